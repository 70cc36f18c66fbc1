"""Renews the leases of held messages from a thread of its own.

On failure it logs a warning and tries again at the next tick. A lost lease is marked on its message, and one that was
lost because the message was cancelled as that. The message of a loop that has passed its time limit is not renewed but
nacked, so that a loop that hangs does not keep it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from restante.core import operations as ops
from restante.core.connection import Connection
from restante.core.errors import RestanteError, TimeLimit
from restante.core.failure_log import FailureLog
from restante.core.message import Message, State
from restante.core.operations import MAX_BATCH
from restante.core.queue_ref import QueueRef

log = logging.getLogger("restante")

#: Share of a lease after which it is renewed.
RENEW_AFTER = 1 / 3
#: Seconds between two checks of the held messages, at least and at most.
SHORTEST_TICK, LONGEST_TICK = 0.02, 5.0


class Renewal:
    """Renews leases in its own thread, so that a busy handler or event loop does not delay them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, tuple[QueueRef, Any]] = {}
        self._tick = LONGEST_TICK
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def hold(self, ref: QueueRef, messages: Sequence[Any]) -> None:
        """Starts renewing the leases of these messages, until `drop`."""
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
        """Whether any lease is being renewed."""
        return bool(self._held)

    def drop(self, message: Message) -> None:
        """Stops renewing the lease of this message."""
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
        """Extends the leases that are due for renewal; returns how many were extended."""
        now = time.monotonic()
        due: dict[QueueRef, list[Any]] = {}
        for ref, message in list(self._held.values()):
            if message.fails_at is not None and message.fails_at <= now:
                self._fail(ref, message)
            elif message.renew_at <= now:
                due.setdefault(ref, []).append(message)
        count = 0
        for ref, messages in due.items():
            for start in range(0, len(messages), MAX_BATCH):
                # A failure of one queue's server must not keep the other leases from renewal.
                try:
                    count += self._extend(ref, messages[start : start + MAX_BATCH])
                except RestanteError as error:
                    log.warning("extend failed queue=%s error=%s", ref.name, error)
        return count

    def _fail(self, ref: QueueRef, message: Any) -> None:
        """Fails the attempt of a loop that has passed its time limit. Its message is not renewed any more."""
        self._held.pop(message.lease_token, None)
        if message.settled:
            return
        message.error, message.lease_lost = TimeLimit(seconds=message.limits[0]), True
        state: State | None = None
        try:
            state = message.state = self._connection.run(ops.nack_many(ref, (message,), error=message.error))[0]
        except RestanteError as failure:
            log.warning("nack failed queue=%s id=%s error=%s", message.queue, message.id, failure)
        FailureLog().failed(message, message.error, state)

    def _extend(self, ref: QueueRef, messages: list[Any]) -> int:
        """Extends leases of one queue in one call; returns how many were extended."""
        asked = time.monotonic()
        # Patience ends with the tick: no lease may wait while another is retried.
        refused = self._connection.run(ops.renew(ref, messages, None, ref.presence), patience=self._tick)
        lost = set(refused)
        for message in messages:
            if message.id not in lost:
                message.renew_at = asked + message.lease_ms / 1000 * RENEW_AFTER
            # A message settled meanwhile has lost no lease: its handler finished before the reply arrived.
            elif self._held.pop(message.lease_token, None) and not message.settled:
                message.lease_lost = True
                what = "cancelled" if message.cancelled else "lease lost"
                log.warning("%s queue=%s id=%s", what, ref.name, message.id)
                if message.cancelled and message.on_cancel is not None:
                    message.on_cancel()
        return sum(message.id not in lost for message in messages)
