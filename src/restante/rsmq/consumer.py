"""Runs a handler for the messages of an RSMQ queue, and keeps each message hidden while its handler works.

On failure: if a handler raises, its message stays in the queue. It is received again when its vt or `retry_delay` has
passed, or moved to the dead-letter queue after `max_receives`. If the server is lost, the consumer retries with
jittered pauses. A stop lets the running handler finish; its message is then deleted as usual.

The protocol has no proof of who holds a message. A consumer that was suspended or cut off from the server for longer
than the vt may resume while another works on the same message: its delete then removes the message for both.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from restante.core.call_retry import away
from restante.core.connection import Waker
from restante.core.consume import stopping_by_signal
from restante.core.errors import InvalidInput, RestanteError, Unavailable
from restante.core.settings import whole
from restante.rsmq import calls, validation
from restante.rsmq.calls import MOST_RECEIVES, RsmqReceived
from restante.rsmq.client import LOOK_EVERY, AsyncRsmq, Rsmq, blocking_twin
from restante.rsmq.notifications import AsyncSubscription, Subscription

log = logging.getLogger("restante")

#: Share of the vt after which the message in progress is hidden again: two attempts may fail before it becomes visible.
EXTEND_AFTER = 1 / 3
#: Seconds for which the queue's vt is cached. Each receive passes the cached vt, so that message and heartbeat agree; a
#: consumer obeys a changed setting this late.
VT_KNOWN = 5.0
#: Seconds; the longest `look_every`. A consumer that polls less often looks dead.
LONGEST_LOOK = 60.0
#: Seconds of one wait for messages, after which the cached vt is read again.
LONGEST_WAIT = VT_KNOWN


class Heartbeat:
    """Keeps a message hidden while its handler works, from a separate thread, so that a busy handler does not delay it.

    It ends when the handler returns or raises, or when the message does not exist any more.
    """

    def __init__(self, rsmq: Rsmq) -> None:
        self._rsmq = rsmq
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: Queue, id and vt of the message in progress, and when to hide it again.
        self._work: tuple[str, str, int, float] | None = None
        self._awake_at = math.inf
        self._closed = False

    @contextmanager
    def during(self, qname: str, id: str, vt: int) -> Iterator[None]:
        """Keeps the message hidden within the block; with vt 0 nothing is hidden, so there is no heartbeat."""
        if vt == 0:
            yield
            return
        due = time.monotonic() + vt * EXTEND_AFTER
        with self._changed:
            self._work = (qname, id, vt, due)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rsmq-heartbeat", daemon=True)
                self._thread.start()
            elif due < self._awake_at:
                self._changed.notify()
        try:
            yield
        finally:
            # A beat holds the lock. Otherwise a beat in flight could hide a message that the failed handler returned.
            with self._changed:
                self._work = None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if self._work is not None and self._work[3] <= time.monotonic():
                    self._work = self._beat(*self._work[:3])
                self._awake_at = math.inf if self._work is None else self._work[3]
                self._changed.wait(None if self._work is None else max(0.0, self._awake_at - time.monotonic()))

    def _beat(self, qname: str, id: str, vt: int) -> tuple[str, str, int, float] | None:
        asked = time.monotonic()
        try:
            # Patience ends at the next beat, because the end of the handler waits for a beat in flight.
            beat = calls.change_message_visibility(self._rsmq.space, qname, id, vt)
            if not self._rsmq.run(beat, patience=vt * EXTEND_AFTER):
                log.warning("extend missed queue=%s id=%s", qname, id)
                return None
        except RestanteError as error:
            log.warning("extend failed queue=%s id=%s error=%s", qname, id, error)
        return qname, id, vt, asked + vt * EXTEND_AFTER


class _Plan:
    """Settings and counters of a consumer, shared by both kinds."""

    def __init__(
        self,
        qname: str,
        vt: int | None,
        dead: str | None,
        max_receives: int | None,
        retry_delay: int | None,
        stop_when_empty: bool,
        look_every: float,
    ) -> None:
        self.qname = validation.queue_name(qname)
        self.vt = None if vt is None else validation.seconds(vt, "vt")
        if (dead is None) != (max_receives is None):
            raise InvalidInput("dead and max_receives belong together: give both or none")
        self.dead = None if dead is None else validation.queue_name(dead, "dead")
        self.max_receives = None if max_receives is None else whole(max_receives, "max_receives", 1, MOST_RECEIVES)
        self.retry_delay = None if retry_delay is None else validation.seconds(retry_delay, "retry_delay")
        self.stop_when_empty = stop_when_empty
        if not 0 < look_every <= LONGEST_LOOK:
            raise InvalidInput(f"look_every must be a number of seconds up to {LONGEST_LOOK:g}, not {look_every!r}")
        self.look_every = look_every
        self._known = (0, -math.inf)
        #: Messages since the start, by how their handler ended.
        self.handled = 0
        self.failed = 0

    def _vt(self) -> int | None:
        """The vt for the next receive; None if it must be read from the queue."""
        if self.vt is not None:
            return self.vt
        vt, since = self._known
        return vt if time.monotonic() < since + VT_KNOWN else None

    def _learn(self, vt: int) -> int:
        self._known = (vt, time.monotonic())
        return vt

    def count_failure(self, message: RsmqReceived, error: BaseException) -> None:
        """Counts and logs a handler that raised."""
        self.failed += 1
        log.warning(
            "failed queue=%s id=%s rc=%d error=%s: %s", self.qname, message.id, message.rc, type(error).__name__, error
        )


class RsmqConsumer(_Plan):
    """Calls a handler for each message, one at a time, until `stop()`, SIGTERM or SIGINT.

    If the handler returns, the message is deleted. If it raises, the message stays: it is received again when its vt
    has passed, or `retry_delay` seconds after the failure. With `dead` and `max_receives`, a message that was received
    that often is moved to the queue `dead` instead. The message stays hidden for as long as the handler works. Several
    consumers, in threads or processes, may serve one queue.
    """

    def __init__(
        self,
        rsmq: Rsmq,
        qname: str,
        handler: Callable[[RsmqReceived], Any],
        *,
        vt: int | None = None,
        dead: str | None = None,
        max_receives: int | None = None,
        retry_delay: int | None = None,
        stop_when_empty: bool = False,
        look_every: float = LOOK_EVERY,
    ) -> None:
        super().__init__(qname, vt, dead, max_receives, retry_delay, stop_when_empty, look_every)
        self._rsmq = rsmq
        self._handler = handler
        self._stopped = False
        self._waker: Waker | None = None

    def stop(self) -> None:
        """Ends `run()` after the message in progress; callable from any thread and from signal handlers."""
        self._stopped = True
        if (waker := self._waker) is not None:
            waker.wake()

    def run(self) -> None:
        """Handles messages until stopped."""
        heartbeat = Heartbeat(self._rsmq)
        failures = 0
        subscription = Subscription(self._rsmq.client.connection, self._rsmq.space, self.qname)
        self._waker = Waker()
        with stopping_by_signal(self.stop), subscription, closing(heartbeat), closing(self._waker):
            while not self._stopped:
                try:
                    if (vt := self._vt()) is None:
                        vt = self._learn(self._rsmq.run(calls.vt_of(self._rsmq.space, self.qname)))
                    message = self._next(subscription, vt)
                    failures = 0
                    if message is not None:
                        self._work(message, vt, heartbeat)
                    elif self.stop_when_empty:
                        return
                except Unavailable as error:
                    failures += 1
                    log.warning("server away queue=%s error=%s", self.qname, error)
                    subscription.close()
                    subscription.wait(away(failures), self._waker)

    def _next(self, subscription: Subscription, vt: int) -> RsmqReceived | None:
        if self.dead is not None and self.max_receives is not None:
            got = self._rsmq.receive_or_dead_letter(self.qname, self.dead, self.max_receives, vt=vt)
            if got is None and not self.stop_when_empty:
                subscription.open()
                subscription.wait(self.look_every, self._waker)
            return got
        timeout = 0.0 if self.stop_when_empty else LONGEST_WAIT
        return self._rsmq.wait_for(self.qname, timeout, vt, subscription, self._waker, self.look_every)

    def _work(self, message: RsmqReceived, vt: int, heartbeat: Heartbeat) -> None:
        try:
            with heartbeat.during(self.qname, message.id, vt):
                self._handler(message)
        except Exception as error:
            self.count_failure(message, error)
            if self.retry_delay is not None:
                delay = self.retry_delay
                self._insist(lambda: self._rsmq.change_message_visibility(self.qname, message.id, delay))
        else:
            self._insist(lambda: self._rsmq.delete_message(self.qname, message.id))
            self.handled += 1

    def _insist(self, call: Callable[[], Any]) -> None:
        """Repeats the call until the server is back or the consumer stops: an undeleted message is handled again."""
        failures = 0
        while True:
            try:
                call()
                return
            except Unavailable as error:
                if self._stopped:
                    raise
                failures += 1
                log.warning("delete waits for the server queue=%s error=%s", self.qname, error)
                time.sleep(away(failures))


class AsyncRsmqConsumer(_Plan):
    """The consumer for asyncio: `await consumer.run()`.

    The heartbeat runs in a thread, so it goes on while a handler blocks the event loop.
    """

    def __init__(
        self,
        rsmq: AsyncRsmq,
        qname: str,
        handler: Callable[[RsmqReceived], Awaitable[Any]],
        *,
        vt: int | None = None,
        dead: str | None = None,
        max_receives: int | None = None,
        retry_delay: int | None = None,
        stop_when_empty: bool = False,
        look_every: float = LOOK_EVERY,
    ) -> None:
        super().__init__(qname, vt, dead, max_receives, retry_delay, stop_when_empty, look_every)
        self._rsmq = rsmq
        self._handler = handler
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Ends `run()` after the message in progress; callable from any thread and from signal handlers."""
        if self._loop is None:
            self._stopped.set()
        else:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def run(self) -> None:
        """Handles messages until stopped."""
        self._loop = asyncio.get_running_loop()
        twin = blocking_twin(self._rsmq)
        heartbeat = Heartbeat(twin)
        failures = 0
        subscription = AsyncSubscription(self._rsmq.client.connection, self._rsmq.space, self.qname)
        try:
            with stopping_by_signal(self.stop):
                while not self._stopped.is_set():
                    try:
                        if (vt := self._vt()) is None:
                            asked = calls.vt_of(self._rsmq.space, self.qname)
                            vt = self._learn(await self._rsmq.client.connection.run(asked))
                        message = await self._next(subscription, vt)
                        failures = 0
                        if message is not None:
                            await self._work(message, vt, heartbeat)
                        elif self.stop_when_empty:
                            return
                    except Unavailable as error:
                        failures += 1
                        log.warning("server away queue=%s error=%s", self.qname, error)
                        await subscription.close()
                        await subscription.wait(away(failures), self._stopped)
        finally:
            await subscription.close()
            heartbeat.close()
            twin.client.close()

    async def _next(self, subscription: AsyncSubscription, vt: int) -> RsmqReceived | None:
        if self.dead is not None and self.max_receives is not None:
            got = await self._rsmq.receive_or_dead_letter(self.qname, self.dead, self.max_receives, vt=vt)
            if got is None and not self.stop_when_empty:
                await subscription.open()
                await subscription.wait(self.look_every, self._stopped)
            return got
        timeout = 0.0 if self.stop_when_empty else LONGEST_WAIT
        return await self._rsmq.wait_for(self.qname, timeout, vt, subscription, self._stopped, self.look_every)

    async def _work(self, message: RsmqReceived, vt: int, heartbeat: Heartbeat) -> None:
        try:
            with heartbeat.during(self.qname, message.id, vt):
                await self._handler(message)
        except Exception as error:
            self.count_failure(message, error)
            if self.retry_delay is not None:
                delay = self.retry_delay
                await self._insist(lambda: self._rsmq.change_message_visibility(self.qname, message.id, delay))
        else:
            await self._insist(lambda: self._rsmq.delete_message(self.qname, message.id))
            self.handled += 1

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> None:
        failures = 0
        while True:
            try:
                await call()
                return
            except Unavailable as error:
                if self._stopped.is_set():
                    raise
                failures += 1
                log.warning("delete waits for the server queue=%s error=%s", self.qname, error)
                await asyncio.sleep(away(failures))
