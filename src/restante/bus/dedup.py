"""Deduplication: records that decide whether a subscription may run a message, in Redis, in this process, or none.

A record is taken when the handler starts, confirmed when it succeeds, released when it fails. A crash leaves it taken.
A delivery that finds its own token in the record was begun by a process that is gone; the executor counts a failed
attempt. On RabbitMQ the next attempt takes the record over, since its turn is higher. On Redis the holder of the
message's lease takes it over: no other delivery can be valid.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from restante.core.errors import InvalidInput
from restante.core.journal import Line, Taken
from restante.core.keys import QueueKeys
from restante.core.retry import seconds

if TYPE_CHECKING:
    from restante.core.connection import Connection
    from restante.core.queue import Client

#: Default of `dedup`: seconds for which a handled message does not run again.
WINDOW = 86400.0
#: Where records are kept.
DedupStore = Literal["redis", "memory"]
#: Records that a process keeps in memory; the oldest are dropped beyond.
MOST = 100_000


class Turn(NamedTuple):
    """The turn of one delivery to run a message for a subscription."""

    subscription: str
    id: str
    #: Grows with each attempt: a record taken by an earlier one gives way.
    number: int
    #: Identifies the delivery; empty if it cannot be told from others.
    token: str = ""
    #: Whether a taken record gives way in any case: the broker has ended the delivery that took it.
    seize: bool = False


class Records(Protocol):
    """A store of records of handled messages."""

    def take(self, turn: Turn, line: Line | None = None) -> Taken: ...

    def confirm(self, turn: Turn, line: Line | None = None) -> None: ...

    def release(self, turn: Turn) -> None: ...

    def note(self, turn: Turn, line: Line) -> None: ...


class RedisRecords:
    """Records in Redis, shared by every process of every host."""

    def __init__(self, connection: Connection, window: float = WINDOW, prefix: str = "") -> None:
        self._connection = connection
        self._window = window
        self._prefix = prefix
        self._keys: dict[str, QueueKeys] = {}

    def _run(self, verb: str, turn: Turn, line: Line | None = None) -> Taken:
        from restante.core.claims import once

        keys = self._keys.get(turn.subscription)
        if keys is None:
            keys = self._keys[turn.subscription] = QueueKeys(self._prefix + turn.subscription)
        return self._connection.run(once(verb, keys, turn.id, turn.number, self._window, line, turn.token))

    def take(self, turn: Turn, line: Line | None = None) -> Taken:
        return self._run("seize" if turn.seize else "take", turn, line)

    def confirm(self, turn: Turn, line: Line | None = None) -> None:
        self._run("confirm", turn, line)

    def release(self, turn: Turn) -> None:
        self._run("release", turn)

    def note(self, turn: Turn, line: Line) -> None:
        self._run("note", turn, line)


class MemoryRecords:
    """Records of this process alone: enough if one process handles a subscription."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._lock = threading.Lock()
        #: (subscription, id) → the running attempt, or None once done; and until when the record holds.
        self._known: OrderedDict[tuple[str, str], tuple[int | None, float]] = OrderedDict()

    def take(self, turn: Turn, line: Line | None = None) -> Taken:
        now = time.monotonic()
        with self._lock:
            before, until = self._known.get(turn[:2], (0, 0.0))
            if until > now:
                if before is None:
                    return Taken.DONE
                if before >= turn.number and not turn.seize:
                    return Taken.AT_WORK
            self._put(turn[:2], turn.number, now)
        return Taken.RUN

    def confirm(self, turn: Turn, line: Line | None = None) -> None:
        with self._lock:
            self._put(turn[:2], None, time.monotonic())

    def release(self, turn: Turn) -> None:
        with self._lock:
            if self._known.get(turn[:2], (None, 0.0))[0] == turn.number:
                del self._known[turn[:2]]

    def note(self, turn: Turn, line: Line) -> None:
        pass

    def _put(self, key: tuple[str, str], state: int | None, now: float) -> None:
        self._known[key] = (state, now + self._window)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)


class NoRecords:
    """No deduplication: a message that is delivered twice runs twice."""

    def take(self, turn: Turn, line: Line | None = None) -> Taken:
        return Taken.RUN

    def confirm(self, turn: Turn, line: Line | None = None) -> None:
        pass

    def release(self, turn: Turn) -> None:
        pass

    def note(self, turn: Turn, line: Line) -> None:
        pass


class JournalOnly(NoRecords):
    """No deduplication, but the journal in Redis."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._lines = RedisRecords(connection, prefix=prefix)

    def take(self, turn: Turn, line: Line | None = None) -> Taken:
        if line is not None:
            self.note(turn, line)
        return Taken.RUN

    def confirm(self, turn: Turn, line: Line | None = None) -> None:
        if line is not None:
            self.note(turn, line)

    def note(self, turn: Turn, line: Line) -> None:
        self._lines.note(turn, line)


def dedup_window(dedup: Any, store: Any) -> float:
    """Checks `dedup` and `dedup_store` of a bus; returns the window in seconds."""
    if isinstance(dedup, str):
        remedy = {
            "redis": "dedup_store='redis', the default, keeps its records in Redis: leave dedup out",
            "memory": "dedup_store='memory' keeps its records in this process",
            "off": "dedup=0 turns deduplication off",
        }.get(dedup, "dedup=86400 is a day")
        raise InvalidInput(f"dedup is the window of deduplication in seconds, not {dedup!r}: {remedy}")
    if store not in ("redis", "memory"):
        raise InvalidInput(f"dedup_store must be redis or memory, not {store!r}; dedup=0 turns deduplication off")
    return seconds(dedup, "dedup")


def open_records(store: DedupStore, redis: Client | None, window: float, prefix: str) -> Records:
    """The records of a bus; `redis` is the broker's own or the store's, None where there is none."""
    if window == 0:
        return NoRecords() if redis is None else JournalOnly(redis.connection, prefix)
    if store == "memory":
        return MemoryRecords(window)
    assert redis is not None
    return RedisRecords(redis.connection, window, prefix)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one delivery to run, by a record of its message."""

    records: Records
    turn: Turn

    def take(self, line: Line | None) -> Taken:
        return self.records.take(self.turn, line)

    def confirm(self, line: Line | None) -> None:
        self.records.confirm(self.turn, line)

    def release(self) -> None:
        self.records.release(self.turn)
