"""A consumer's lease journal: its leased messages and their verdicts, readable until the consumer clears them.

It serves consumers whose batches must be repeatable exactly, above all Spark: a batch is a range of rows, and the range
reads the same whatever was settled meanwhile. Messages are copied into the journal after they are leased; after a crash
in between, the leases expire as after any crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from restante.core import operations as ops
from restante.core.batch_calls import carrying
from restante.core.errors import Corrupt, InUse
from restante.core.message import Message, State
from restante.core.names import valid_name
from restante.core.queue import Client
from restante.core.retry import RetryPolicy
from restante.core.scripts import Argument, Script, ScriptCall
from restante.core.settings import milliseconds
from restante.core.stored import Stored

HOLD = Script("hold", "queue journal messages deliveries")
CLEAR = Script("clear", "queue journal")
#: Messages leased and copied by one pair of calls; a longer script would block the server.
CLAIM = 500
#: Entries removed by one call.
CLEARED = 20
#: Most calls that promote due messages before a count; each moves a few hundred.
PROMOTIONS = 50
#: Entries read by one call.
READ = 20


class Row(NamedTuple):
    """One leased message."""

    number: int
    id: str
    token: str
    attempts: int
    received_ms: int
    stored: Stored


class LeaseJournal:
    """The lease journal of a client's consumer on one queue; only the process named `owner` may claim into it."""

    def __init__(self, client: Client, queue: str, owner: str = "") -> None:
        self._client = client
        self._queue = client.queue(queue)
        self.consumer = client.consumer
        self.owner = valid_name(owner, "owner") if owner else ""
        self._leases, self._verdicts = self._queue.ref.keys.lease_journal(self.consumer)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    def own(self, lasts: float) -> int:
        """Takes or renews the ownership for `lasts` seconds and returns the number of the last row."""
        return self._hold((), lasts)

    def _hold(self, messages: Sequence[Message], lasts: float) -> int:
        ref = self._queue.ref
        args: list[Argument] = [self.consumer, self.owner, int(lasts * 1000)]
        for message in messages:
            args += (message.id, message.lease_token)
        keys = (*ref.keys.group(HOLD.keys), self._leases)
        last, owner = self._client.connection.run(ScriptCall(HOLD, keys, args, lambda reply: reply, ref.name))
        if not owner:
            raise InUse(
                f"consumer {self.consumer} of {ref.name} is alive elsewhere: stop it, wait until its ownership ends, "
                "or choose another name"
            )
        return int(last)

    def claim(self, count: int, *, lease: float, lasts: float) -> tuple[int, dict[int, tuple[str, str]]]:
        """Leases up to `count` messages into the journal; returns its last row's number, and id and token by row."""
        last = self.own(lasts)
        claimed: dict[int, tuple[str, str]] = {}
        while count > 0:
            got = self._queue.receive_many(min(count, CLAIM), lease=lease)
            if not got:
                break
            before, last = last, self._hold(got, lasts)
            if last - before == len(got):
                claimed |= {before + 1 + i: (message.id, message.lease_token) for i, message in enumerate(got)}
            else:  # a lease ended between the two calls and has no row
                claimed |= {row.number: (row.id, row.token) for row in self.rows(before, last)}
            count -= len(got)
        return last, claimed

    def rows(self, after: int, upto: int) -> Iterator[Row]:
        """Yields the rows after `after` and up to `upto` that still exist."""
        start = after + 1
        while start <= upto:
            page = self._client.connection.command(
                "XRANGE", self._leases, f"0-{start}", "+", "COUNT", READ, key=self._leases
            )
            for stream_id, fields in page:
                last = int(stream_id.rpartition(b"-")[2])
                number = last - len(fields) // 2
                for i in range(0, len(fields), 2):
                    number += 1
                    if after < number <= upto:
                        yield _row(number, fields[i], fields[i + 1])
                start = last + 1
            if not page:
                return

    def first(self) -> int | None:
        """Returns the number of the oldest row, or None if there is none."""
        page = self._client.connection.command("XRANGE", self._leases, "-", "+", "COUNT", 1, key=self._leases)
        return int(page[0][0].rpartition(b"-")[2]) - len(page[0][1]) // 2 + 1 if page else None

    def holder(self) -> bytes:
        """Returns the stored owner and end of the ownership; another value means another owner or a renewal."""
        key = self._queue.ref.keys["queue"]
        return bytes(self._client.connection.command("HGET", key, f"holder:{self.consumer}", key=key) or b"")

    def last(self) -> int:
        """Returns the number of the last row ever written."""
        text = self.holder()
        return int(text.split(b"\t")[2]) if text else 0

    def renew(self, held: Sequence[tuple[str, str]], lease: float) -> set[str]:
        """Extends leases, given as id and token; returns the tokens whose lease is lost."""
        lost: set[str] = set()
        ref = self._queue.ref
        for start in range(0, len(held), CLAIM):
            part = held[start : start + CLAIM]
            args: list[Argument] = [self.consumer, b""]
            for id, token in part:
                args += (id, token, int(lease * 1000))
            keys = ref.keys.group(ops.EXTEND.keys)
            reply = self._client.connection.run(ScriptCall(ops.EXTEND, keys, args, lambda reply: reply, ref.name))
            lost |= {part[index - 1][1] for index in reply[0]}
        return lost

    def verdicts(self, tokens: Sequence[str]) -> dict[str, str]:
        """Returns the verdicts on these leases by token; leases without a verdict are left out."""
        verdicts: dict[str, str] = {}
        for start in range(0, len(tokens), CLAIM):
            part = tokens[start : start + CLAIM]
            words = self._client.connection.command("HMGET", self._verdicts, *part, key=self._verdicts)
            verdicts |= {token: word.decode() for token, word in zip(part, words, strict=True) if word}
        return verdicts

    def settle(self, verdict: str, rows: Sequence[Settlement]) -> list[str]:
        """Settles up to a batch of leases with one verdict and stores it; returns the tokens whose lease was lost."""
        ref = self._queue.ref
        script, args = _SETTLERS[verdict](rows)
        keys = (*ref.keys.group(script.keys), self._verdicts)
        reply = self._client.connection.run(ScriptCall(script, keys, args, lambda reply: reply, ref.name))
        places = ops.lost_leases(ref, reply[0] if verdict == "nack" else reply)
        lost = [rows[index - 1].token for index in places]
        self._carry()
        # After a lost reply the call runs twice: leases that the first run settled are not lost.
        known = self.verdicts(lost)
        return [token for token in lost if known.get(token) != verdict]

    def _carry(self) -> None:
        """Counts messages of batches that have ended."""
        ref = self._queue.ref
        if ref.noted:
            self._queue.run(carrying(ref, ref.together))

    def clear(self, upto: int) -> None:
        """Removes the rows up to a number, and their verdicts."""
        ref = self._queue.ref
        keys = (*ref.keys.group(CLEAR.keys), self._leases, self._verdicts)
        args: list[Argument] = [upto, CLEARED]
        while self._client.connection.run(ScriptCall(CLEAR, keys, args, lambda reply: reply, ref.name)):
            pass

    def ready(self) -> int:
        """Returns how many messages can be leased now, including those that have become due."""
        ref = self._queue.ref
        for _ in range(PROMOTIONS):
            got = self._client.connection.run(ops.receive(ref, 0))
            self._carry()
            if not got.promoted + got.expired:
                break
        return int(
            self._client.connection.command("ZCARD", ref.keys[State.READY.value], key=ref.keys[State.READY.value])
        )

    def retry_delay(self, attempts: int, own: str) -> int | None:
        """Returns the milliseconds until the next attempt, by the message's own policy or the queue's; None if dead."""
        if not self._queue.ref.opened:
            self._queue.ensure_open()
        policy = RetryPolicy.parse(own) if own else self._queue.settings.retry
        chosen = policy.next(attempts)
        return None if chosen is None else milliseconds(max(chosen, 0.0), "delay")


class Settlement(NamedTuple):
    """The arguments of a verdict on one lease."""

    id: str
    token: str
    #: Milliseconds until the next attempt, for nack; None if the message is dead.
    delay_ms: int | None
    error_class: str
    #: JSON text, as `error_parts` returns it.
    error: bytes


def _ack(rows: Sequence[Settlement]) -> tuple[Script, list[Argument]]:
    return ops.ACK, [part for row in rows for part in (row.id, row.token)]


def _nack(rows: Sequence[Settlement]) -> tuple[Script, list[Argument]]:
    return ops.NACK, [
        part
        for row in rows
        for part in (
            row.id,
            row.token,
            "dead" if row.delay_ms is None else str(row.delay_ms),
            row.error_class,
            row.error,
        )
    ]


def _bury(rows: Sequence[Settlement]) -> tuple[Script, list[Argument]]:
    return ops.BURY, [part for row in rows for part in (row.id, row.token, row.error_class, row.error)]


def _release(rows: Sequence[Settlement]) -> tuple[Script, list[Argument]]:
    return ops.RELEASE, ["0", *(part for row in rows for part in (row.id, row.token))]


_SETTLERS = {"ack": _ack, "nack": _nack, "bury": _bury, "release": _release}
#: The verdicts on a lease.
VERDICTS = tuple(_SETTLERS)


def _row(number: int, id: bytes, text: bytes) -> Row:
    try:
        token, facts, stored = text.split(b"\n", 2)
        attempts, received = facts.split(b"\t")
        return Row(number, id.decode(), token.decode(), int(attempts), int(received or 0), Stored(stored))
    except ValueError:
        raise Corrupt(f"row {number} of a lease journal is damaged") from None
