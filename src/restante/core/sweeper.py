"""Promotes due messages, reclaims expired leases and fires schedules in queues without consumers.

Every receive does this for its own queue, so a sweeper is needed where no consumer runs. Several sweepers may run at
once, because every move is one atomic script. On failure it waits with jittered pauses and continues when the server is
back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from restante.core import operations as ops
from restante.core.batch_calls import carrying
from restante.core.call_retry import away
from restante.core.errors import RestanteError
from restante.core.firing import firing
from restante.core.keys import QUEUES, SCHEDULED_QUEUES
from restante.core.keywords import known_keywords
from restante.core.queue import Client, queue_names, run_flow
from restante.core.queue_ref import QueueRef

log = logging.getLogger("restante")

#: Seconds between two rounds over all queues; queues with a known due time in between are swept at that time.
ROUND = 1.0
#: Shortest pause in seconds, so that due times close together become one sweep.
SHORTEST = 0.005


@dataclass(slots=True)
class Swept:
    """The counts of one round, and the seconds until the next message or lease is known to be due."""

    queues: int = 0
    promoted: int = 0
    expired: int = 0
    fired: int = 0
    next_seconds: float = ROUND


class Sweeper:
    """Sweeps every queue of a server, or only the given ones."""

    @known_keywords
    def __init__(self, client: Client, queues: tuple[str, ...] = ()) -> None:
        if queues:
            queue_names(queues)
        self._client = client
        self._named = queues
        self._stop = threading.Event()
        self._news = threading.Condition()
        #: Queue → its next due time, by the monotonic clock.
        self._due: dict[str, float] = {}
        #: The queues that have schedules.
        self._scheduled: frozenset[str] = frozenset()
        #: Seconds the last round took.
        self.lag = 0.0

    def run_once(self) -> Swept:
        """Sweeps all queues once; a queue that needs several calls is finished before the next."""
        started = time.monotonic()
        names = self._named or tuple(
            sorted(name.decode() for name in self._client.connection.command("SMEMBERS", QUEUES, key=QUEUES))
        )
        found = self._client.connection.command("SMEMBERS", SCHEDULED_QUEUES, key=SCHEDULED_QUEUES)
        self._scheduled = frozenset(name.decode() for name in found)
        for name in self._scheduled.intersection(names):
            self._client.queue(name).ref.look_at = 0.0  # one of them may be new, or its next tick another
        done = self._sweep(names)
        for name in self._due.keys() - set(names):
            self._due.pop(name, None)
        self.lag = time.monotonic() - started
        return done

    def _sweep(self, names: Iterable[str]) -> Swept:
        done = Swept()
        for name in names:
            ref = self._client.queue(name).ref
            done.queues += 1
            with self._news:
                known = self._due.pop(name, None)
            try:
                if name in self._scheduled:
                    done.fired += self._fire(ref, done)
                while True:
                    got = self._client.connection.run(ops.receive(ref, 0))
                    if ref.noted:
                        run_flow(self._client.connection, carrying(ref, ref.together))
                    done.promoted += got.promoted
                    done.expired += got.expired
                    if got.due is None or got.due > got.now:
                        break
            except RestanteError:
                self._know(name, known)
                raise
            if got.due is not None:
                left = (got.due - got.now) / 1000
                done.next_seconds = min(done.next_seconds, left)
                self._know(name, time.monotonic() + left)
        if done.promoted or done.expired or done.fired:
            log.info(
                "swept queues=%d promoted=%d expired=%d fired=%d", done.queues, done.promoted, done.expired, done.fired
            )
        return done

    def _fire(self, ref: QueueRef, done: Swept) -> int:
        """Fires the schedules of a queue that are due, and notes when to look again."""
        fired = 0
        while time.monotonic() >= ref.look_at and not self._stop.is_set():
            fired += run_flow(self._client.connection, firing(ref))
        left = ref.look_at - time.monotonic()
        done.next_seconds = min(done.next_seconds, max(0.0, left))
        self._know(ref.name, ref.look_at)
        return fired

    def _know(self, queue: str, at: float | None) -> None:
        """Stores the next due time of a queue, unless a nearer one was stored meanwhile."""
        with self._news:
            if at is not None:
                self._due[queue] = min(at, self._due.get(queue, at))

    def expect(self, queue: str, seconds: float) -> None:
        """Announces that a queue has work in `seconds`. A journal reader knows this before the next round."""
        at = time.monotonic() + max(0.0, seconds)
        with self._news:
            if at < self._due.get(queue, float("inf")) and (not self._named or queue in self._named):
                self._due[queue] = at
                self._news.notify()

    def run(self) -> None:
        """Sweeps until stopped."""
        failures, next_round = 0, 0.0
        while not self._stop.is_set():
            try:
                now = time.monotonic()
                if now >= next_round:
                    self.run_once()
                    next_round = max(now + ROUND, time.monotonic() + self.lag)
                else:
                    self._sweep([name for name, at in list(self._due.items()) if at <= now])
                failures = 0
            except RestanteError as error:
                failures += 1
                log.warning("sweep failed error=%s", error)
                self._stop.wait(away(failures))
                continue
            with self._news:
                until = min([next_round, *self._due.values()])
                pause = until - time.monotonic()
                # A stop since the loop's own check has notified nobody, and the wait would last its whole time.
                if pause > SHORTEST and not self._stop.is_set():
                    self._news.wait(pause)
            self._stop.wait(SHORTEST)

    def start(self) -> threading.Thread:
        """Starts `run` in a thread of its own."""
        thread = threading.Thread(target=self.run, name="restante-sweeper", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Ends `run` after the round that is under way."""
        self._stop.set()
        with self._news:
            self._news.notify()
