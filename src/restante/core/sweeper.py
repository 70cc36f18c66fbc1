"""Promotes what is due and reclaims expired leases in queues that nobody consumes.

Any receive does this for its own queue, so a sweeper matters where no consumer runs. Several may run at once: every
move is one atomic script. On failure it waits with jittered pauses and goes on when the server is back.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from restante.core import operations as ops
from restante.core.errors import RestanteError
from restante.core.exchange import away
from restante.core.keys import QUEUES
from restante.core.queue import Post

log = logging.getLogger("restante")

#: Seconds between two looks at every queue, at least and at most; a known due time in between is kept to.
SHORTEST, LONGEST = 0.02, 1.0


@dataclass(slots=True)
class Swept:
    """What one round did, and in how many seconds something falls due."""

    queues: int = 0
    promoted: int = 0
    expired: int = 0
    next_seconds: float = LONGEST


class Sweeper:
    """Serves every queue of a post, or those named."""

    def __init__(self, post: Post, queues: tuple[str, ...] = ()) -> None:
        self._post = post
        self._named = queues
        self._stop = threading.Event()
        #: Seconds the last round took.
        self.lag = 0.0

    def run_once(self) -> Swept:
        """One round over the queues; what is more than one call's worth is finished before the next queue."""
        started = time.monotonic()
        done = Swept()
        names = self._named or tuple(
            sorted(name.decode() for name in self._post.connection.command("SMEMBERS", QUEUES, key=QUEUES))
        )
        for name in names:
            ref = self._post.queue(name)._ref
            done.queues += 1
            while True:
                got = self._post.connection.run(ops.receive(ref, 0))
                done.promoted += got.promoted
                done.expired += got.expired
                if got.due is None or got.due > got.now:
                    break
            if got.due is not None:
                done.next_seconds = min(done.next_seconds, (got.due - got.now) / 1000)
        self.lag = time.monotonic() - started
        if done.promoted or done.expired:
            log.info("swept queues=%d promoted=%d expired=%d", done.queues, done.promoted, done.expired)
        return done

    def run(self) -> None:
        """Sweeps until stopped."""
        failures = 0
        while not self._stop.is_set():
            try:
                pause = max(SHORTEST, min(LONGEST, self.run_once().next_seconds))
                failures = 0
            except RestanteError as error:
                failures += 1
                pause = away(failures)
                log.warning("sweep failed error=%s", error)
            self._stop.wait(pause)

    def start(self) -> threading.Thread:
        """Runs in a thread of its own."""
        thread = threading.Thread(target=self.run, name="restante-sweeper", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        self._stop.set()
