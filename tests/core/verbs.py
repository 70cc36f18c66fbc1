"""Each script called by its bare arguments, so that a test decides every one of them, also the wrong ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from restante.core import (
    admin,
    batch_calls,
    firing,
    handle,
    inspector,
    lease_journal,
    operations,
    operator_verbs,
    queue,
    schedule,
)
from restante.core.connection import Connection
from restante.core.keys import QueueKeys
from restante.core.scripts import Argument, Script, ScriptCall, sha1
from restante.core.stored import encode

#: Every script of the product by its name.
SCRIPTS: Final[Mapping[str, Script]] = MappingProxyType(
    {
        script.name: script
        for module in (
            *(operations, operator_verbs, handle, queue, inspector, admin, lease_journal, schedule, firing),
            batch_calls,
        )
        for script in vars(module).values()
        if isinstance(script, Script)
    }
)
#: In place of the random part of a token: with it the test knows every token beforehand.
NONCE: Final = "n"
CONSUMER: Final = "c"
#: The process that claims into the consumer's lease journal, and one that would like to.
OWNER: Final = "o"
RIVAL: Final = "o2"
OPERATOR: Final = "op"
#: The options of a message whose payload is bytes.
RAW: Final = {"e": "bytes", "c": "application/octet-stream"}
#: In place of a token where the last attempt ended without a word.
SILENT: Final = "-"

Token = tuple[str, str]


def altered(script: Script, old: str, new: str, *, count: int = 1) -> Script:
    """The script with a fault planted in its text; the text must occur exactly so often."""
    found = script.text.decode().count(old)
    assert found == count, f"{old!r} occurs {found} times in {script.name}"
    made = copy.copy(script)
    made.text = script.text.replace(old.encode(), new.encode())
    made.sha = sha1(made.text)
    return made


@dataclass(frozen=True)
class Item:
    """A message as the send script takes it."""

    id: str
    payload: bytes = b"x"
    priority: int = 0
    #: "" now, "+ms" from now, "ms" at a time.
    due: str = ""
    kind: str = ""
    lease_ms: int | None = None
    max_attempts: int | None = None
    unique: str | None = None
    #: The letters of the states in which the unique key holds.
    letters: str = "lrst"

    @property
    def stored(self) -> bytes:
        return encode(
            self.payload,
            kind=self.kind,
            priority=self.priority,
            lease_ms=self.lease_ms,
            max_attempts=self.max_attempts,
            unique=self.unique,
            unique_states=self.letters if self.unique else "",
        )[0]

    @property
    def limits(self) -> str:
        if self.lease_ms is None and self.max_attempts is None and self.unique is None:
            return ""
        letters = self.letters if self.unique else ""
        return f"{self.lease_ms or ''}\t{self.max_attempts or ''}\t{letters}\t{self.unique or ''}"


@dataclass(frozen=True)
class Tick:
    """What the script that fires is told about one schedule."""

    name: str
    #: Its head as read, after it fired, and where it is passed over because the last message waits ("" to fire then).
    before: str
    after: str
    passed: str = ""
    #: When the next tick is due.
    due: int | None = None
    #: Messages, each with the time at which it is due.
    messages: tuple[tuple[Item, int], ...] = ()


@dataclass(frozen=True)
class Got:
    """The answer of receive."""

    now: int
    due: int | None
    version: int
    promoted: int
    expired: int
    base: int
    lost: list[int]
    #: id, attempts, lease_expires_at, stored form.
    messages: list[tuple[str, int, int, bytes]]
    #: The word that tells of earlier attempts, per message: "1", or attempts, replays and how the last ended.
    told: list[str]

    @property
    def pairs(self) -> list[Token]:
        return [(row[0], f"{self.base + place}-{NONCE}") for place, row in enumerate(self.messages, 1)]


def text(reply: Any) -> Any:
    """A reply with its bytes decoded."""
    if isinstance(reply, bytes):
        return reply.decode()
    return [text(part) for part in reply] if isinstance(reply, list) else reply


class Verbs:
    """One queue of one server, through these scripts."""

    def __init__(self, connection: Connection, name: str = "q", scripts: Mapping[str, Script] = SCRIPTS) -> None:
        self.connection = connection
        self.name = name
        self.keys = QueueKeys(name)
        self.scripts = scripts

    def call(self, verb: str, *args: Argument, more: Sequence[bytes] = (), keys: tuple[str, ...] | None = None) -> Any:
        """With the script's keys, or with these, and more behind them."""
        script = self.scripts[verb]
        names = script.keys if keys is None else keys
        given = (*self.keys.group(names), *more)
        return self.connection.run(ScriptCall(script, given, list(args), lambda reply: reply, self.name))

    def send(self, *items: Item, careful: bool = True, few: bool = False) -> list[str]:
        """Per message "" or the id that stands for it; all "" when nobody asked. With few keys, or with all."""
        args: list[Argument] = ["1" if careful else "0"]
        for item in items:
            args += (item.id, item.due, item.priority, item.stored)
        reply = text(self.call("send", *args, keys=operations.FEW_KEYS if few else None))
        return reply[1:] if isinstance(reply, list) else [""] * len(items)

    def receive(
        self,
        n: int = 1,
        *,
        lease_ms: int | None = None,
        acks: Sequence[Token] = (),
        card: str = "",
        consumer: str = CONSUMER,
    ) -> Got:
        riding = [word for pair in acks for word in pair]
        reply = self.call("receive", n, NONCE, consumer, "" if lease_ms is None else lease_ms, card, *riding)
        now, due, version, promoted, expired, base, lost = text(reply[:7])
        told = [reply[i].decode() for i in range(8, len(reply), 4)]
        rows = [
            (reply[i].decode(), int(word.partition(" ")[0]), int(reply[i + 2]), reply[i + 3])
            for i, word in zip(range(7, len(reply), 4), told, strict=True)
        ]
        return Got(now, int(due) if due else None, int(version), promoted, expired, base, lost, rows, told)

    def _memory(self, kept: bool) -> Sequence[bytes]:
        """The key under which a verdict is remembered, if it shall be."""
        return self.keys.lease_journal(CONSUMER)[1:] if kept else ()

    def ack(self, *pairs: Token, kept: bool = False) -> list[int]:
        """The positions whose lease is lost, as for every verb below that takes pairs."""
        return list(self.call("ack", *(word for pair in pairs for word in pair), more=self._memory(kept)))

    def nack(
        self, *pairs: Token, delay: int | str = 0, error: str = "E", said: str = '"no"', kept: bool = False
    ) -> tuple[list[int], list[str]]:
        args: list[Argument] = []
        for id, token in pairs:
            args += (id, token, str(delay), error, said)
        lost, *states = text(self.call("nack", *args, more=self._memory(kept)))
        return lost, states

    def bury(self, *pairs: Token, error: str = "E", said: str = '"no"', kept: bool = False) -> list[int]:
        args: list[Argument] = []
        for id, token in pairs:
            args += (id, token, error, said)
        return list(self.call("bury", *args, more=self._memory(kept)))

    def release(self, *pairs: Token, delay: int = 0, kept: bool = False) -> list[int]:
        words = (word for pair in pairs for word in pair)
        return list(self.call("release", delay, *words, more=self._memory(kept)))

    def hold(self, *pairs: Token, owner: str = OWNER, lasts: int | str = 60_000) -> tuple[int, str]:
        """The number of the lease journal's last row, and the owner, "" if it is another."""
        words = (word for pair in pairs for word in pair)
        leases = self.keys.lease_journal(CONSUMER)[:1]
        last, held_by = text(self.call("hold", CONSUMER, owner, lasts, *words, more=leases))
        return last, held_by

    def clear(self, upto: int | str, entries: int = 20) -> int:
        """How many entries of the lease journal were forgotten."""
        return int(self.call("clear", upto, entries, more=self.keys.lease_journal(CONSUMER)))

    def extend(self, *pairs: Token, lease_ms: int = 30_000, card: str = "") -> tuple[list[int], list[int], list[str]]:
        """The positions whose lease is lost, those whose message was cancelled, and when each lease ends."""
        args: list[Argument] = [CONSUMER, card]
        for id, token in pairs:
            args += (id, token, lease_ms)
        lost, cancelled, *until = text(self.call("extend", *args))
        return lost, cancelled, until

    def schedule(self, name: str, before: str, record: str, due: int | None = None, word: str = "added") -> int:
        """1 where it was stored, 0 where it had changed."""
        told = "" if due is None else str(due)
        return int(self.call("schedule", OPERATOR, f"schedule {name} {word}", name, before, record, told))

    def tick(
        self, *ticks: Tick, most: int = 100, chance: int = 0, ahead: int = 0
    ) -> tuple[int, str, list[str], list[str]]:
        """Now, when the nearest tick is due, what became of each, and names and records of those that are due."""
        args: list[Argument] = [most, chance, ahead]
        for tick in ticks:
            due = "" if tick.due is None else str(tick.due)
            args += (tick.name, tick.before, tick.after, tick.passed, due, len(tick.messages))
            for item, at in tick.messages:
                args += (item.id, at, item.priority, item.stored)
        now, nearest, statuses, *rows = text(self.call("tick", *args))
        return now, nearest, statuses, rows

    def agenda(self, *names: str, cursor: str = "0", count: int = 100) -> Any:
        return text(self.call("agenda", cursor, count, *names))

    def progress(self, pair: Token, note: str = '[0.5,"half"]') -> int:
        """1 where it was noted, 0 for a lost lease, -1 for a cancelled message."""
        return int(self.call("progress", *pair, note))

    def ack_result(self, pair: Token, result: str = "42") -> list[int]:
        return list(self.call("ack_result", result, *pair))

    def revoke(self, *ids: str, detail: str = "") -> list[int]:
        """Per message 1 if it was leased."""
        return list(self.call("revoke", OPERATOR, detail, *ids))

    def cancel(self, *ids: str, detail: str = "") -> list[str]:
        """Per message the state it was in."""
        return list(text(self.call("cancel", OPERATOR, detail, *ids)))

    def status(self, id: str) -> Any:
        return self.call("status", id)

    def replay(self, *ids: str, task: str = "", record: str = "{}") -> list[int]:
        return list(self.call("replay", OPERATOR, task, record, *ids))

    def delete(self, *ids: str, detail: str = "") -> list[str]:
        return list(text(self.call("delete", OPERATOR, detail, *ids)))

    def purge(self, state: str, limit: int = 1000) -> int:
        more = self.keys.group((state, "unique", "outbox"))
        return int(self.call("purge", OPERATOR, state, limit, more=more))

    def edit(self, item: Item, due: str = "") -> str:
        return str(text(self.call("edit", OPERATOR, item.id, item.stored, item.priority, due)))

    def move(self, target: str, *ids: str) -> list[str]:
        more = QueueKeys(target).group(admin._MOVE_TARGET)
        return list(text(self.call("move", OPERATOR, self.name, target, *ids, more=more)))

    def configure(self, event: str = "configured", **fields: str) -> dict[str, str]:
        flat = text(self.call("configure", OPERATOR, event, *(word for pair in fields.items() for word in pair)))
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def list(
        self, state: str, limit: int, cut: int = 2048, after: tuple[int, str] | None = None, back: bool = False
    ) -> Any:
        score, id = after or ("", "")
        return self.call("list", limit, cut, score, id, "1" if back else "0", more=(self.keys[state],))

    def show(self, id: str) -> Any:
        return self.call("show", id)

    def counts(self) -> Any:
        return text(self.call("counts"))
