"""Keeps the leases of held messages alive from a thread of its own.

On failure it says so in the log and tries again at the next tick; a lease found lost is marked on its message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from restante.core import operations as ops
from restante.core.connection import Connection
from restante.core.errors import RestanteError
from restante.core.message import Message
from restante.core.operations import MAX_BATCH, QueueRef

log = logging.getLogger("restante")

#: Share of its lease after which a held message is renewed.
RENEW_AFTER = 1 / 3
#: Seconds between two looks at held messages, at least and at most.
SHORTEST_TICK, LONGEST_TICK = 0.02, 5.0


class Renewal:
    """Keeps leases of held messages alive from a thread of its own, so that a busy handler or loop does not matter."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, tuple[QueueRef, Any]] = {}
        self._tick = LONGEST_TICK
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def hold(self, ref: QueueRef, messages: Sequence[Any]) -> None:
        """From now on these are renewed until dropped."""
        if not messages:
            return
        now = time.monotonic()
        shortest = LONGEST_TICK
        for message in messages:
            lease = message.lease_ms / 1000
            message.renew_at = now + lease * RENEW_AFTER
            shortest = min(shortest, lease * RENEW_AFTER / 2)
            self._held[message.lease_token] = (ref, message)
        if shortest < self._tick or self._thread is None:
            self._tick = max(SHORTEST_TICK, min(self._tick, shortest))
            self._start()
            self._wake.set()

    @property
    def held_any(self) -> bool:
        """Whether it renews any lease now."""
        return bool(self._held)

    def drop(self, message: Message) -> None:
        """No longer renewed."""
        self._held.pop(message.lease_token, None)

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="restante-renewal", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._tick)
            self._wake.clear()
            try:
                self.run_once()
            except Exception:
                log.exception("extend failed")

    def run_once(self) -> int:
        """Extends what is due for it; returns how many leases were extended."""
        now = time.monotonic()
        due: dict[QueueRef, list[Any]] = {}
        for ref, message in list(self._held.values()):
            if message.renew_at <= now:
                due.setdefault(ref, []).append(message)
        count = 0
        for ref, messages in due.items():
            for start in range(0, len(messages), MAX_BATCH):
                # Each by itself: where one queue's server is away, those of the others still renew.
                try:
                    count += self._extend(ref, messages[start : start + MAX_BATCH])
                except RestanteError as error:
                    log.warning("extend failed queue=%s error=%s", ref.name, error)
        return count

    def _extend(self, ref: QueueRef, messages: list[Any]) -> int:
        """Extends leases of one queue by one call; returns how many were extended."""
        asked = time.monotonic()
        # One try per tick: a lease must not wait behind the patience of another.
        refused = self._connection.run(ops.renew(ref, messages, None, ref.presence), patience=self._tick)
        lost = set(refused)
        for message in messages:
            if message.id not in lost:
                message.renew_at = asked + message.lease_ms / 1000 * RENEW_AFTER
            # Settled meanwhile is no loss: the handler finished while the answer was on its way.
            elif self._held.pop(message.lease_token, None) and not message.settled:
                message.lease_lost = True
                log.warning("lease lost queue=%s id=%s", ref.name, message.id)
        return sum(message.id not in lost for message in messages)
