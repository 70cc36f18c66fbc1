"""Deduplication: whether a subscription may run a message, by records in Redis, in this process, or not at all.

A record is taken when the handler starts, confirmed when it succeeds, released when it fails. A crash leaves it taken.
On RabbitMQ the next attempt, which counts one more, takes it over. On Redis whoever holds the message's lease does: no
other delivery of it can be valid.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from restante.core.journal import Line, Taken
from restante.core.keys import QueueKeys

if TYPE_CHECKING:
    from restante.core.connection import Connection

#: Seconds within which a message that is done does not run again.
WINDOW = 86400.0
#: Records a process keeps in memory; the oldest give way.
MOST = 100_000


class Records(Protocol):
    """Where it is kept what has run."""

    def take(
        self, subscription: str, id: str, attempts: int, line: Line | None = None, *, seize: bool = False
    ) -> Taken: ...

    def confirm(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None: ...

    def release(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None: ...

    def note(self, subscription: str, id: str, attempts: int, line: Line) -> None: ...


class RedisRecords:
    """Records in Redis: they hold for every process of every host."""

    def __init__(self, connection: Connection, window: float = WINDOW, prefix: str = "") -> None:
        self._connection = connection
        self._window = window
        self._prefix = prefix
        self._keys: dict[str, QueueKeys] = {}

    def _run(self, verb: str, subscription: str, id: str, attempts: int, line: Line | None) -> Taken:
        from restante.core.claims import once

        keys = self._keys.get(subscription)
        if keys is None:
            keys = self._keys[subscription] = QueueKeys(self._prefix + subscription)
        return self._connection.run(once(verb, keys, id, attempts, self._window, line))

    def take(
        self, subscription: str, id: str, attempts: int, line: Line | None = None, *, seize: bool = False
    ) -> Taken:
        return self._run("seize" if seize else "take", subscription, id, attempts, line)

    def confirm(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        self._run("confirm", subscription, id, attempts, line)

    def release(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        self._run("release", subscription, id, attempts, line)

    def note(self, subscription: str, id: str, attempts: int, line: Line) -> None:
        self._run("note", subscription, id, attempts, line)


class MemoryRecords:
    """Records of this process alone: enough where one process handles a subscription."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._lock = threading.Lock()
        #: (subscription, id) → attempts at work, or None where it is done; and until when that counts.
        self._known: OrderedDict[tuple[str, str], tuple[int | None, float]] = OrderedDict()

    def take(
        self, subscription: str, id: str, attempts: int, line: Line | None = None, *, seize: bool = False
    ) -> Taken:
        now = time.monotonic()
        with self._lock:
            before, until = self._known.get((subscription, id), (0, 0.0))
            if until > now:
                if before is None:
                    return Taken.DONE
                if before >= attempts and not seize:
                    return Taken.AT_WORK
            self._put((subscription, id), attempts, now)
        return Taken.RUN

    def confirm(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        with self._lock:
            self._put((subscription, id), None, time.monotonic())

    def release(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        with self._lock:
            if self._known.get((subscription, id), (None, 0.0))[0] == attempts:
                del self._known[subscription, id]

    def note(self, subscription: str, id: str, attempts: int, line: Line) -> None:
        pass

    def _put(self, key: tuple[str, str], state: int | None, now: float) -> None:
        self._known[key] = (state, now + self._window)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)


class NoRecords:
    """No deduplication: what is delivered twice runs twice."""

    def take(
        self, subscription: str, id: str, attempts: int, line: Line | None = None, *, seize: bool = False
    ) -> Taken:
        return Taken.RUN

    def confirm(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        pass

    def release(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        pass

    def note(self, subscription: str, id: str, attempts: int, line: Line) -> None:
        pass
