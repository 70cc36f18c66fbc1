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
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

from restante.core.call_retry import away
from restante.core.connection import Connection, Waker
from restante.core.consume import stopping_by_signal
from restante.core.errors import InvalidInput, RestanteError, Unavailable
from restante.core.flow import drive, drive_async
from restante.core.queue import Client
from restante.core.scripts import Operation
from restante.core.settings import whole
from restante.rsmq import calls, validation
from restante.rsmq.calls import MOST_RECEIVES, RsmqReceived
from restante.rsmq.namespace import Namespace
from restante.rsmq.notifications import (
    LOOK_EVERY,
    AsyncSubscription,
    Sleep,
    Step,
    Subscribe,
    Subscription,
    Unsubscribe,
    wait_for,
)

if TYPE_CHECKING:  # the clients import this module
    from restante.rsmq.client import AsyncRsmq, Rsmq

log = logging.getLogger("restante")
C = TypeVar("C", bound="Rsmq | AsyncRsmq")
R = TypeVar("R")

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

    def __init__(self, namespace: Namespace, connection: Connection) -> None:
        self._namespace = namespace
        self._connection = connection
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
            beat = calls.change_message_visibility(self._namespace, qname, id, vt)
            if not self._connection.run(beat, patience=vt * EXTEND_AFTER):
                log.warning("extend missed queue=%s id=%s", qname, id)
                return None
        except RestanteError as error:
            log.warning("extend failed queue=%s id=%s error=%s", qname, id, error)
        return qname, id, vt, asked + vt * EXTEND_AFTER


class ConsumerOptions(TypedDict, total=False):
    """The options of a consumer, beside client, queue and handler."""

    vt: int | None
    dead: str | None
    max_receives: int | None
    retry_delay: int | None
    stop_when_empty: bool
    look_every: float


@dataclass(frozen=True, slots=True)
class Handle:
    """A step: call the handler and keep the message hidden meanwhile; returns the error it raised, or None."""

    message: RsmqReceived
    vt: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A step: make a call; returns the error if the server is away, else None."""

    call: Operation[Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: sleep, whatever happens meanwhile."""

    seconds: float


class _Consumer(Generic[C, R]):
    """What both kinds of consumers do, as flows, with their settings and counters."""

    def __init__(
        self,
        rsmq: C,
        qname: str,
        handler: Callable[[RsmqReceived], R],
        *,
        vt: int | None = None,
        dead: str | None = None,
        max_receives: int | None = None,
        retry_delay: int | None = None,
        stop_when_empty: bool = False,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._rsmq = rsmq
        self._handler = handler
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
        self._failures = 0
        #: Messages since the start, by how their handler ended.
        self.handled = 0
        self.failed = 0

    def _stopping(self) -> bool:
        raise NotImplementedError

    def _one(self) -> Generator[Step | Handle | Attempt | Pause, Any, bool]:
        """Receives a message and handles it; returns False if there was none and the consumer ends then."""
        vt = self._vt()
        if vt is None:
            vt = self._learn((yield calls.vt_of(self._rsmq.space, self.qname)))
        message = yield from self._next(vt)
        self._failures = 0
        if message is None:
            return not self.stop_when_empty
        yield from self._work(message, vt)
        return True

    def _server_away(self, error: Unavailable) -> Generator[Step, Any, None]:
        """Waits before the next attempt, longer after each failure."""
        self._failures += 1
        log.warning("server away queue=%s error=%s", self.qname, error)
        yield Unsubscribe()
        yield Sleep(away(self._failures))

    def _vt(self) -> int | None:
        """The vt for the next receive; None if it must be read from the queue."""
        if self.vt is not None:
            return self.vt
        vt, since = self._known
        return vt if time.monotonic() < since + VT_KNOWN else None

    def _learn(self, vt: int) -> int:
        self._known = (vt, time.monotonic())
        return vt

    def _next(self, vt: int) -> Generator[Step, Any, RsmqReceived | None]:
        space = self._rsmq.space
        if self.dead is not None and self.max_receives is not None:
            got = yield from calls.receive_or_dead_letter(space, self.qname, self.dead, self.max_receives, vt=vt)
            if got is None and not self.stop_when_empty:
                yield Subscribe()
                yield Sleep(self.look_every)
            return got
        timeout = 0.0 if self.stop_when_empty else LONGEST_WAIT
        waiting = wait_for(space, self.qname, vt, timeout, every=self.look_every, stopping=self._stopping)
        return (yield from waiting)

    def _work(self, message: RsmqReceived, vt: int) -> Generator[Handle | Attempt | Pause, Any, None]:
        place = (self._rsmq.space, self.qname, message.id)
        error = yield Handle(message, vt)
        if error is not None:
            self._count_failure(message, error)
            if self.retry_delay is not None:
                yield from self._insist(partial(calls.change_message_visibility, *place, self.retry_delay))
        else:
            yield from self._insist(partial(calls.delete_message, *place))
            self.handled += 1

    def _insist(self, call: Callable[[], Operation[Any]]) -> Generator[Attempt | Pause, Any, None]:
        """Repeats the call until the server is back or the consumer stops: an undeleted message is handled again."""
        failures = 0
        while (error := (yield Attempt(call()))) is not None:
            if self._stopping():
                raise error
            failures += 1
            log.warning("delete waits for the server queue=%s error=%s", self.qname, error)
            yield Pause(away(failures))

    def _count_failure(self, message: RsmqReceived, error: BaseException) -> None:
        self.failed += 1
        log.warning(
            "failed queue=%s id=%s rc=%d error=%s: %s", self.qname, message.id, message.rc, type(error).__name__, error
        )


class RsmqConsumer(_Consumer["Rsmq", Any]):
    """Calls a handler for each message, one at a time, until `stop()`, SIGTERM or SIGINT.

    If the handler returns, the message is deleted. If it raises, the message stays: it is received again when its vt
    has passed, or `retry_delay` seconds after the failure. With `dead` and `max_receives`, a message that was received
    that often is moved to the queue `dead` instead. The message stays hidden for as long as the handler works. Several
    consumers, in threads or processes, may serve one queue.
    """

    _stopped = False
    _waker: Waker | None = None

    def stop(self) -> None:
        """Ends `run()` after the message in progress; callable from any thread and from signal handlers."""
        self._stopped = True
        if (waker := self._waker) is not None:
            waker.wake()

    def run(self) -> None:
        """Handles messages until stopped."""
        self._waker = waker = Waker()
        heartbeat = Heartbeat(self._rsmq.space, self._rsmq.client.connection)
        subscription = Subscription(self._rsmq.client.connection, self._rsmq.space, self.qname, waker)
        perform = partial(self._perform, heartbeat=heartbeat, subscription=subscription)
        with stopping_by_signal(self.stop), subscription, closing(heartbeat), closing(waker):
            going = True
            while going and not self._stopped:
                try:
                    going = drive(self._one(), perform)
                except Unavailable as error:
                    drive(self._server_away(error), perform)

    def _stopping(self) -> bool:
        return self._stopped

    def _perform(
        self, step: Step | Handle | Attempt | Pause, *, heartbeat: Heartbeat, subscription: Subscription
    ) -> Any:
        if isinstance(step, Handle):
            try:
                with heartbeat.during(self.qname, step.message.id, step.vt):
                    self._handler(step.message)
            except Exception as error:
                return error
        elif isinstance(step, Attempt):
            try:
                self._rsmq.run(step.call)
            except Unavailable as error:
                return error
        elif isinstance(step, Pause):
            time.sleep(step.seconds)
        else:
            return subscription.perform(step)
        return None


class AsyncRsmqConsumer(_Consumer["AsyncRsmq", Awaitable[Any]]):
    """The consumer for asyncio: `await consumer.run()`.

    The heartbeat runs in a thread, so it goes on while a handler blocks the event loop.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        rsmq: AsyncRsmq,
        qname: str,
        handler: Callable[[RsmqReceived], Awaitable[Any]],
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(rsmq, qname, handler, **options)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Ends `run()` after the message in progress; callable from any thread and from signal handlers."""
        if self._loop is None:
            self._stopped.set()
        else:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def run(self) -> None:
        """Handles messages until stopped."""
        self._loop = asyncio.get_running_loop()
        client = self._rsmq.client
        blocking = Client(client.url, client.connection.settings, consumer=client.consumer)
        heartbeat = Heartbeat(self._rsmq.space, blocking.connection)
        subscription = AsyncSubscription(client.connection, self._rsmq.space, self.qname, self._stopped)
        perform = partial(self._perform, heartbeat=heartbeat, subscription=subscription)
        try:
            with stopping_by_signal(self.stop):
                going = True
                while going and not self._stopped.is_set():
                    try:
                        going = await drive_async(self._one(), perform)
                    except Unavailable as error:
                        await drive_async(self._server_away(error), perform)
        finally:
            await subscription.close()
            heartbeat.close()
            blocking.close()

    def _stopping(self) -> bool:
        return self._stopped.is_set()

    async def _perform(
        self, step: Step | Handle | Attempt | Pause, *, heartbeat: Heartbeat, subscription: AsyncSubscription
    ) -> Any:
        if isinstance(step, Handle):
            try:
                with heartbeat.during(self.qname, step.message.id, step.vt):
                    await self._handler(step.message)
            except Exception as error:
                return error
        elif isinstance(step, Attempt):
            try:
                await self._rsmq.client.connection.run(step.call)
            except Unavailable as error:
                return error
        elif isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        else:
            return await subscription.perform(step)
        return None
