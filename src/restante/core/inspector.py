"""Reads queues, messages, consumers, journals and the audit; no message changes.

On failure it raises a typed error of `restante.core.errors`.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import orjson

from restante.core.attempts import parse_delivery, parse_history, parse_progress, parse_result
from restante.core.batch_admin import BatchReader
from restante.core.errors import AccessDenied, Corrupt, InvalidInput, NotFound
from restante.core.journal import JournalEntry, Position
from restante.core.keys import AUDIT, QUEUES, SUBSCRIPTIONS, UNROUTABLE
from restante.core.message import EPOCH, Instant, JournalEvent, Message, State, iso, moment
from restante.core.names import valid_name
from restante.core.operations import MAX_BATCH
from restante.core.queue import Client
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Argument, Command, Script, ScriptCall
from restante.core.settings import QueueSettings, whole
from restante.core.stored import readable

LIST = Script("list", "queue journal messages deliveries history")
SHOW = Script("show", "queue journal messages deliveries history ready scheduled retrying leased dead done")
COUNTS = Script("counts", "queue journal ready scheduled retrying leased dead done messages")

#: Messages on one page of a list.
PAGE = 100
#: Bytes of each payload that a list returns.
PREVIEW = 1024
#: Seconds without an update after which a consumer is no longer listed.
CONSUMER_GONE = 60.0
#: The states whose lowest score `counts.lua` returns, in its order.
_EDGES = (State.SCHEDULED, State.RETRYING, State.LEASED, State.DEAD, State.DONE)
_STREAM_ID = re.compile(r"\d{1,20}-\d{1,20}")


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts and settings of a queue at one moment."""

    queue: str
    at: datetime
    ready: int
    scheduled: int
    retrying: int
    leased: int
    dead: int
    done: int
    #: Leases that have ended and are not yet reclaimed.
    overdue: int
    #: Seconds since the next message in the queue was sent.
    waited: float
    paused: bool
    #: Number of events of each type since the queue was created.
    totals: dict[str, int]
    settings: QueueSettings
    #: Journal: last sequence number, and number of entries trimmed before a registered reader had read them.
    journal_last: int
    journal_lost: int
    #: The nearest due_at of scheduled and retrying, the first end of a lease, the oldest time of dead and done.
    edges: dict[State, datetime]

    @property
    def waiting(self) -> int:
        """Messages that are neither settled nor dead."""
        return self.ready + self.scheduled + self.retrying + self.leased

    def as_dict(self) -> dict[str, Any]:
        """The counts as a dict for JSON."""
        states = {state.value: getattr(self, state.value) for state in State}
        return {
            "queue": self.queue,
            "at": self.at.isoformat(),
            **states,
            "overdue": self.overdue,
            "waited_seconds": self.waited,
            "paused": self.paused,
            "totals": self.totals,
            "settings": self.settings.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list and the cursor of the next."""

    messages: list[Message]
    #: Pass it as `after` for the next page; None after the last page.
    next: str | None


@dataclass(frozen=True, slots=True)
class ConsumerProcess:
    """One of the processes of a consumer."""

    #: The name under which it holds messages: the consumer's, and its number.
    name: str
    pid: int
    concurrency: int
    last_seen: datetime
    #: Handlers that did not end at their time limit and still run.
    hung: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer's entry in the registry."""

    name: str
    queues: tuple[str, ...]
    last_seen: datetime
    host: str
    #: The process; for a consumer of several, their parent.
    pid: int
    #: How many handlers may run at a time, in all its processes.
    concurrency: int
    #: Handlers that did not end at their time limit and still run.
    hung: int = 0
    #: The same by queue, without queues that have none.
    hung_by_queue: dict[str, int] = field(default_factory=dict)
    #: Its processes, if it has several.
    processes: tuple[ConsumerProcess, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it holds messages."""
        return tuple(process.name for process in self.processes) or (self.name,)

    def as_dict(self, instant: Instant = iso) -> dict[str, Any]:
        """The entry as a dict for JSON, instants as `instant` converts them."""
        fields = asdict(self) | {"last_seen_at": instant(self.last_seen)}
        del fields["last_seen"], fields["hung_by_queue"]
        for process in fields["processes"]:
            process["last_seen_at"] = instant(process.pop("last_seen"))
        return fields


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action of an operator."""

    #: The id in the audit; pass it as `before` to read earlier entries.
    id: str
    at: datetime
    who: str
    verb: str
    queue: str
    count: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """The entry as a dict for JSON, instants as ISO text."""
        return asdict(self) | {"at": self.at.isoformat()}


@dataclass(frozen=True, slots=True)
class Dropped:
    """The number of messages that an exchange dropped because no queue was bound for them."""

    count: int
    #: When it last dropped one, to about a second.
    at: datetime | None


def parse_message(
    queue: str, id: str, state: State, score: bytes, stored: bytes, delivery: bytes, history: bytes
) -> Message:
    """Builds a message from the reply of a script."""
    at = int(float(score))
    attempts, consumer, received, replays = parse_delivery(delivery)
    held = readable(stored)
    held.whole = len(held.body) == held.size
    return Message(
        id,
        queue,
        held,
        state=state,
        attempts=attempts,
        replays=replays,
        consumer=consumer,
        received_ms=received,
        history=parse_history(history),
        result=parse_result(history) if state is State.DONE else None,
        last_progress=parse_progress(delivery) if state is State.LEASED else None,
        due_ms=at if state in (State.SCHEDULED, State.RETRYING) else 0,
        expires_ms=at if state is State.LEASED else 0,
        settled_ms=at if state in (State.DEAD, State.DONE) else 0,
    )


def _presence(text: bytes) -> dict[str, Any]:
    """The registry entry of a consumer or a service; empty if it cannot be read."""
    try:
        card = orjson.loads(text)
    except ValueError:
        return {}
    return card if isinstance(card, dict) else {}


#: When a consumer was last seen, in which queue, and its entry there.
_Sighting = tuple[int, str, dict[str, Any]]


def _consumers(seen_by_name: Mapping[str, Sequence[_Sighting]]) -> list[ConsumerInfo]:
    """The consumers by name; processes of one parent are one consumer."""
    families: dict[str, dict[str, Sequence[_Sighting]]] = {}
    for name, rows in sorted(seen_by_name.items()):
        parent = rows[0][2].get("parent")
        families.setdefault(parent if isinstance(parent, str) else name, {})[name] = rows
    found = []
    for family, members in sorted(families.items()):
        processes, hung = [], Counter[str]()
        for name, rows in members.items():
            seen_at, card = moment(max(row[0] for row in rows)) or EPOCH, rows[0][2]
            own = {queue: count for _, queue, entry in rows if (count := _number(entry, "hung"))}
            hung.update(own)
            processes.append(
                ConsumerProcess(name, _number(card, "pid"), _number(card, "concurrency", 1), seen_at, sum(own.values()))
            )
        queues = tuple(sorted({row[1] for rows in members.values() for row in rows}))
        several = "parent" in card
        found.append(
            ConsumerInfo(
                family,
                queues,
                max(process.last_seen for process in processes),
                str(card.get("host", "")),
                _number(card, "parent_pid" if several else "pid"),
                sum(process.concurrency for process in processes),
                hung.total(),
                dict(hung),
                tuple(sorted(processes, key=_by_number)) if several else (),
            )
        )
    return found


def _number(card: dict[str, Any], name: str, default: int = 0) -> int:
    value = card.get(name, default)
    return value if isinstance(value, int) else default


def _by_number(process: ConsumerProcess) -> tuple[int, str]:
    number = process.name.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0, process.name


def _place(cursor: str) -> tuple[float, bytes]:
    score, _, id = cursor.partition("~")
    return float(score), id.encode()


class Inspector(BatchReader):
    """Read access to queues, messages and journals: `Inspector(client)`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _ref(self, queue: str) -> QueueRef:
        return self._client.queue(queue).ref

    def _run(self, script: Script, queue: str, args: list[Argument], extra: Sequence[bytes] = ()) -> Any:
        keys = self._ref(queue).keys.group(script.keys) + tuple(extra)
        return self._client.connection.run(ScriptCall(script, keys, args, lambda reply: reply, queue))

    # -- queues and messages -------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Returns the names of all queues."""
        return sorted(name.decode() for name in self._client.connection.command("SMEMBERS", QUEUES, key=QUEUES))

    def elsewhere(self) -> frozenset[str]:
        """Returns the queues of another broker, of which this server has only the journal."""
        flat = self._client.connection.command("HGETALL", SUBSCRIPTIONS, key=SUBSCRIPTIONS)
        cards = [_presence(text) for text in flat[1::2]]
        return frozenset(str(card["queue"]) for card in cards if "queue" in card and card.get("broker") != "redis")

    def counts(self, queue: str) -> Counts:
        """Returns how many messages of a queue are in each state."""
        return self._client.connection.run(self._counting(queue))

    def _counting(self, queue: str) -> ScriptCall[Counts]:
        keys = self._ref(queue).keys.group(COUNTS.keys)
        return ScriptCall(COUNTS, keys, [], lambda reply: self._counts(queue, reply), queue)

    def _counts(self, queue: str, reply: Any) -> Counts:
        now, ready, scheduled, retrying, leased, dead, done, overdue, first, flat, edges = reply
        texts = [text.decode("utf-8", "replace") for text in flat]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        try:
            last = int(fields.get("sequence", 0)) - int(fields.get("journal_skip", 0))
            lost = int(fields.get("journal_lost", 0))
            totals = {event.value: int(fields.get(event.value, 0)) for event in JournalEvent}
        except ValueError as error:
            raise Corrupt(f"the totals of {queue} are not what Restante wrote: {error}") from None
        return Counts(
            queue,
            moment(now) or EPOCH,
            ready,
            scheduled,
            retrying,
            leased,
            dead,
            done,
            overdue,
            max(0.0, (now - int(first)) / 1000) if first else 0.0,
            fields.get("pause") == "1",
            totals,
            QueueSettings.parse(fields),
            last,
            lost,
            {state: at for state, score in zip(_EDGES, edges, strict=True) if score and (at := moment(float(score)))},
        )

    def all_counts(self) -> list[Counts]:
        """Returns the counts of every queue, read in one round trip."""
        return self._client.connection.run_all([self._counting(name) for name in self.queues()])

    def messages(
        self,
        queue: str,
        state: State | str,
        *,
        limit: int = PAGE,
        after: str | None = None,
        upto: str | None = None,
        newest_first: bool = False,
        preview: int = PREVIEW,
    ) -> Page:
        """Returns one page of the messages in a state.

        `after` and `upto` are cursors. A cursor is a place and not a count, so messages that come and go shift no page.
        Of each payload the first `preview` bytes are read.
        """
        state = State(state)
        whole(limit, "limit", 1, MAX_BATCH)
        whole(preview, "preview", 0, 2**40)
        if upto and newest_first:
            raise InvalidInput("upto is for pages that begin with the oldest")
        score, _, last = (after or "").partition("~")
        reply = self._run(
            LIST,
            queue,
            [limit, preview, score, last, "1" if newest_first else "0"],
            [self._ref(queue).keys[state.value]],
        )
        messages: list[Message] = []
        last_wanted = _place(upto) if upto else None
        for i in range(1, len(reply), 5):
            id, at, stored, delivery, line = reply[i : i + 5]
            if last_wanted and (float(at), id) > last_wanted:
                return Page(messages, None)
            if stored:
                history = line + b"\n" if line else b""
                message = parse_message(queue, id.decode(), state, at, stored, delivery, history)
                message.place_after = f"{at.decode()}~{message.id}"
                messages.append(message)
        end = f"{reply[-4].decode()}~{reply[-5].decode()}" if len(reply) > 5 * limit else None
        return Page(messages, end)

    def cursors(self, queue: str, state: State | str, parts: int) -> list[str]:
        """Returns up to `parts - 1` cursors that split a state into parts of about equal size, for parallel reading."""
        whole(parts, "parts", 1, 100_000)
        key = self._ref(queue).keys[State(state).value]
        size = int(self._client.connection.command("ZCARD", key, key=key))
        cursors = []
        for rank in sorted({size * part // parts for part in range(1, parts)} - {0}):
            entry = self._client.connection.command("ZRANGE", key, rank - 1, rank - 1, "WITHSCORES", key=key)
            if entry:
                cursors.append(f"{entry[1].decode()}~{entry[0].decode()}")
        return cursors

    def walk(
        self, queue: str, state: State | str, *, newest_first: bool = False, preview: int = PREVIEW
    ) -> Iterator[Message]:
        """Yields every message in a state, page by page. Of each payload the first `preview` bytes are read."""
        after: str | None = None
        while True:
            page = self.messages(queue, state, after=after, newest_first=newest_first, preview=preview)
            yield from page.messages
            after = page.next
            if after is None:
                return

    def peek(self, queue: str, count: int = 1) -> list[Message]:
        """Returns the next messages of the queue without receiving them."""
        return self.messages(queue, State.READY, limit=count).messages

    def show(self, queue: str, id: str) -> Message:
        """Returns one complete message with the history of its attempts."""
        _, state, score, stored, delivery, history = self._run(SHOW, queue, [valid_name(id, "message id")])
        if not state:
            raise NotFound(f"{queue} has no message {id}: it was never sent, or is settled or deleted; see the journal")
        return parse_message(queue, id, State(state.decode()), score, stored, delivery, history)

    def consumers(self) -> list[ConsumerInfo]:
        """Returns the consumers seen within the last minute; removes older entries if the user may do so."""
        seen_by_name: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
        now = self.now_ms()
        keys = {queue: self._ref(queue).keys["consumers"] for queue in self.queues()}
        answers: list[Any] = self._client.connection.run_all([Command(("HGETALL", key), key) for key in keys.values()])
        for (queue, key), flat in zip(keys.items(), answers, strict=True):
            for i in range(0, len(flat), 2):
                seen, _, card = flat[i + 1].partition(b"\t")
                if not seen.isdigit() or now - int(seen) > CONSUMER_GONE * 1000:
                    with contextlib.suppress(AccessDenied):  # a read-only user leaves the cleanup to others
                        self._client.connection.command("HDEL", key, flat[i], key=key)
                    continue
                name = flat[i].decode("utf-8", "replace")
                seen_by_name.setdefault(name, []).append((int(seen), queue, _presence(card)))
        return _consumers(seen_by_name)

    def unroutable(self) -> dict[str, Dropped]:
        """Returns, by exchange, what Celery and Kombu programs published without a bound queue."""
        flat = self._client.connection.command("HGETALL", UNROUTABLE, key=UNROUTABLE)
        fields = dict(zip((name.decode() for name in flat[::2]), map(int, flat[1::2]), strict=True))
        counted = ((name.removeprefix("count:"), value) for name, value in fields.items() if name.startswith("count:"))
        return {
            exchange: Dropped(count, moment(fields.get(f"at:{exchange}", 0))) for exchange, count in sorted(counted)
        }

    def now_ms(self) -> int:
        """The time on the server's clock, in milliseconds."""
        seconds, micros = self._client.connection.command("TIME", key=QUEUES)
        return int(seconds) * 1000 + int(micros) // 1000

    # -- the journal ---------------------------------------------------------------------------------------------

    def journal(
        self, queue: str, *, after: Position | None = None, limit: int = 1000, newest_first: bool = False
    ) -> list[JournalEntry]:
        """Returns the entries after a position, oldest first, or the newest entries, newest first."""
        key = self._ref(queue).keys["journal"]
        read = after.sequence if after is not None else 0
        words = ("XREVRANGE", key, "+", f"(0-{read}") if newest_first else ("XRANGE", key, f"(0-{read}", "+")
        entries: list[JournalEntry] = []
        # A stream entry holds the lines of one call, so a page may need several reads or part of one.
        while len(entries) < limit:
            rows = self._client.connection.command(*words, "COUNT", limit - len(entries), key=key)
            for stream_id, fields in rows:
                lines = JournalEntry.parse_block(queue, stream_id, fields[1])
                entries += reversed(lines) if newest_first else lines
            if not rows:
                break
            end = f"({rows[-1][0].decode()}"
            words = ("XREVRANGE", key, end, f"(0-{read}") if newest_first else ("XRANGE", key, end, "+")
        return [entry for entry in entries if entry.position.sequence > read][:limit]

    def follow(
        self, queues: Sequence[str] = (), *, pause: float = 0.2, stop: Callable[[], bool] | None = None
    ) -> Iterator[JournalEntry]:
        """Yields journal entries as they are written, from now on, until `stop` returns True."""
        places: dict[str, Position] = {}
        begun = False
        while stop is None or not stop():
            quiet = True
            for name in queues or self.queues():
                if name not in places:
                    # A queue that appears later is followed from its beginning.
                    newest = [] if begun else self.journal(name, limit=1, newest_first=True)
                    places[name] = newest[0].position if newest else Position(0)
                for entry in self.journal(name, after=places[name]):
                    places[name] = entry.position
                    quiet = False
                    yield entry
            begun = True
            if quiet:
                time.sleep(pause)

    def register_reader(self, queue: str, reader: str, position: Position) -> None:
        """Stores a reader's position: the journal is not trimmed beyond the slowest reader, up to its hard cap."""
        key = self._ref(queue).keys["queue"]
        field_ = f"reader:{valid_name(reader, 'reader')}"
        self._client.connection.command("HSET", key, field_, position.sequence, key=key)

    def forget_reader(self, queue: str, reader: str) -> None:
        """Removes a reader: the journal may be trimmed beyond its position."""
        key = self._ref(queue).keys["queue"]
        self._client.connection.command("HDEL", key, f"reader:{valid_name(reader, 'reader')}", key=key)

    def audit(self, *, limit: int = PAGE, before: str | None = None) -> list[AuditEntry]:
        """Returns the actions of operators, newest first."""
        whole(limit, "limit", 1, MAX_BATCH)
        if before is not None and not _STREAM_ID.fullmatch(before):
            raise InvalidInput(f"before must be the id of an audit entry, not {before!r}")
        if before is not None and int(before.replace("-", "")) == 0:
            return []  # nothing comes before the first id, and the server would refuse the interval
        end = f"({before}" if before else "+"
        rows = self._client.connection.command("XREVRANGE", AUDIT, end, "-", "COUNT", limit, key=AUDIT)
        entries = []
        for id, fields in rows:
            values = {
                name: text.decode("utf-8", "replace") for name, text in zip(fields[::2], fields[1::2], strict=True)
            }
            at = moment(int(id.partition(b"-")[0])) or EPOCH
            who, verb, queue, detail = (values.get(name, "") for name in (b"who", b"verb", b"queue", b"detail"))
            count = values.get(b"count", "")
            entries.append(
                AuditEntry(id.decode(), at, who, verb, queue, int(count) if count.isdecimal() else 0, detail)
            )
        return entries
