"""Time limits of handlers: a thread watches the attempts that have one and stops those that run too long.

A coroutine is cancelled. A plain handler gets an asynchronous exception, which Python raises at its next bytecode: a
call into C (a sleep, a query without its own timeout) is not interrupted. A handler that has not ended `STOP_GRACE`
later hangs: its message fails without it, and its consumer replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from types import FrameType, TracebackType
from typing import Any

from restante.core.errors import SoftTimeLimit, TimeLimit
from restante.core.hooks import Hook
from restante.core.leased_message import Leased
from restante.core.message import Message
from restante.core.tracebacks import coroutine_traceback, stack_traceback, thread_frame

log = logging.getLogger("restante")

#: Seconds between the limit and the moment at which a handler that has not ended counts as hung. Its lease is renewed
#: until then. Too short gives up handlers that clean up; too long keeps their places from other messages.
STOP_GRACE = 2.0
#: Seconds between two looks of a thread and the watcher, where one waits for a few bytecodes of the other.
_GLANCE = 0.0005
_FOREVER = float("inf")
#: Bytecodes within which Python raises an exception that a thread has asked for in itself. It does so at the first one;
#: too few would let it escape.
_BYTECODES = 100

#: Its types of arguments stay undeclared: whoever else uses it in this process shares them.
_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc


class HandlerStopped(BaseException):
    """Raised in the thread of a handler that has passed its timeout. No `Exception`, so that handlers let it pass."""


class Abandoned(BaseException):
    """Tells the consumer that an attempt has ended for it already: the handler hung, and its message has failed."""


class _FlagCleared(BaseException):
    """Raised by a thread in itself, and caught at once: see `_raise_in`."""


class Watch:
    """One attempt that has a limit.

    A handler's thread and the watcher agree without a lock, because an asynchronous exception could leave one locked.
    Each side writes its own flag before it reads the other's: the thread `inside`, the watcher `stopping`. So either
    the watcher sees that the handler has returned, or the thread sees that an exception may be on its way and removes
    it before it goes on.
    """

    __slots__ = (
        "begun",
        "blocking",
        "coroutine",
        "frame",
        "hung",
        "hung_at",
        "inside",
        "limit",
        "limit_at",
        "loop",
        "message",
        "over",
        "place",
        "soft",
        "soft_at",
        "softened",
        "stopping",
        "task",
        "thread",
    )

    def __init__(self, message: Leased, limit: float | None, soft: float | None) -> None:
        now = time.monotonic()
        self.message = message
        self.limit, self.soft = limit, soft
        self.limit_at = _FOREVER if limit is None else now + limit
        self.soft_at = _FOREVER if soft is None or (limit is not None and soft >= limit) else now + soft
        self.hung_at = _FOREVER
        self.thread = threading.current_thread()
        self.task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.frame: FrameType | None = None
        self.coroutine: SoftCoroutine | None = None
        #: Whether the handler has begun, whether it runs, and whether the watcher is about to raise something in it.
        self.begun = False
        self.inside = False
        self.stopping = False
        self.softened = self.over = self.hung = False
        #: Whether it is a coroutine that blocks its event loop.
        self.blocking = False
        #: Where the handler was when its limit passed.
        self.place: TracebackType | None = None

    @property
    def next_at(self) -> float:
        """When the watcher must look at it again, by time.monotonic()."""
        return min(self.soft_at, self.limit_at, self.hung_at)

    def begin(self) -> None:
        """Notes that the handler begins. Nothing is raised in its thread before: that could leave our locks locked."""
        self.inside = self.begun = True

    def leave(self) -> None:
        """Notes that the handler has returned. Afterwards nothing is raised in its thread any more. Safe to repeat."""
        self.inside = False
        while self.stopping:
            time.sleep(_GLANCE)
        if self.softened or self.over:
            _raise_in(self.thread.ident, None)

    def exceeded(self, error: BaseException | None) -> TimeLimit:
        """The failure of the attempt, with the traceback of the place where the handler was stopped."""
        failure = TimeLimit(seconds=self.limit)
        trace = self.place if error is None or error.__traceback__ is None else error.__traceback__
        self.place = None  # its frames hold this object: they would stay until the next collection
        return failure.with_traceback(trace)


class TimeLimits(Hook):
    """Watches the attempts of one consumer. Attempts without a limit do not come here.

    `on_hung` is called in the watching thread for a handler that did not end, with the error of its attempt, and
    `on_late_end` in the handler's thread when it ends after all. `interrupt` is called after an exception was raised in
    a thread, and may end the call into C in which that thread waits. None of them may wait: the limits of others are
    watched by the same thread.
    """

    def __init__(
        self,
        on_hung: Callable[[Watch, TimeLimit], None],
        on_late_end: Callable[[Watch], None] | None = None,
        interrupt: Callable[[threading.Thread], None] | None = None,
    ) -> None:
        self._on_hung, self._on_late_end, self._interrupt = on_hung, on_late_end, interrupt
        #: The attempts that run. A dict, because adding and removing are atomic.
        self._running: dict[Watch, None] = {}
        self._wake = threading.Event()
        self._wake_at = _FOREVER
        self._closed = False
        self._thread: threading.Thread | None = None
        #: Held while an attempt that has passed its limit becomes hung or ends.
        self._deciding = threading.Lock()

    # -- around handlers -----------------------------------------------------------------------------------------

    def around(self, message: Message, call: Callable[[], Any]) -> Any:
        """Runs a plain handler under the limits of its message; raises TimeLimit if it passed them."""
        watch = self._watch(message)
        result, returned = None, False
        try:
            # Leaving three times: each of the two exceptions that the watcher may raise can cut one of them short.
            try:
                try:
                    try:
                        watch.begin()
                        result = call()
                        returned = True
                    finally:
                        watch.leave()
                finally:
                    watch.leave()
            finally:
                watch.leave()
        except BaseException as error:
            self._end(watch)
            if watch.over:
                raise watch.exceeded(error) from None
            if not returned:  # otherwise it is a soft limit that came after the handler had returned
                raise
        else:
            self._end(watch)
            if watch.over:
                raise watch.exceeded(None)
        return result

    async def around_async(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        """Runs a coroutine handler under the limits of its message; raises TimeLimit if it passed them."""
        watch = self._watch(message, sys._getframe())
        awaited: Awaitable[Any] = call()
        if watch.soft is not None:
            awaited = watch.coroutine = SoftCoroutine(awaited)
        watch.begin()
        try:
            result = await awaited
        except BaseException as error:
            watch.inside = False
            self._end(watch)
            if not watch.over:
                raise
            if watch.task is not None and isinstance(error, asyncio.CancelledError):
                watch.task.uncancel()
            raise watch.exceeded(error) from None
        watch.inside = False
        self._end(watch)
        if watch.over:
            raise watch.exceeded(None)
        return result

    def _watch(self, message: Any, frame: FrameType | None = None) -> Watch:
        watch = Watch(message, *message.limits)
        if frame is not None:
            watch.frame, watch.task, watch.loop = frame, asyncio.current_task(), asyncio.get_running_loop()
        message.limit_at = watch.limit_at if watch.limit is not None else None
        self._running[watch] = None
        if self._thread is None:
            self._start()
        if watch.next_at < self._wake_at:
            self._wake.set()
        return watch

    def _end(self, watch: Watch) -> None:
        """The handler has ended. Raises Abandoned if it was given up before."""
        self._running.pop(watch, None)
        watch.frame = None
        if not watch.over:
            return
        with self._deciding:
            hung = watch.hung
        if hung:
            if watch.loop is not None:
                _raise_in(watch.thread.ident, None)  # it has ended by itself meanwhile
            if self._on_late_end is not None:
                self._on_late_end(watch)
            raise Abandoned

    # -- watching ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._deciding:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="restante-time-limits", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            try:
                # Until the scan is over every new attempt wakes this thread: the scan may have missed it.
                self._wake_at = _FOREVER
                self._wake.clear()
                self._wake_at = self.run_once()
                self._wake.wait(None if self._wake_at == _FOREVER else max(0.0, self._wake_at - time.monotonic()))
            except Exception:
                log.exception("time limits failed")
                time.sleep(STOP_GRACE)

    def run_once(self) -> float:
        """Stops the attempts that are over; returns when the next one is due."""
        now, due = time.monotonic(), _FOREVER
        for watch in list(self._running):
            if not watch.begun and watch.next_at <= now:
                due = now + _GLANCE
                continue
            if watch.soft_at <= now < watch.limit_at:
                watch.soft_at = _FOREVER
                self._soften(watch)
            if watch.limit_at <= now:
                watch.soft_at = watch.limit_at = _FOREVER
                watch.hung_at = now + STOP_GRACE
                self._stop(watch)
            if watch.hung_at <= now:
                watch.hung_at = _FOREVER
                self._give_up(watch)
            due = min(due, watch.next_at)
        return due

    def _soften(self, watch: Watch) -> None:
        """Raises SoftTimeLimit inside the handler."""
        if watch.loop is not None:
            _call_on_loop(watch, _soften_coroutine)
            return
        watch.stopping = True
        if watch.inside:
            watch.softened = True
            self._raise(watch, SoftTimeLimit)
        watch.stopping = False

    def _stop(self, watch: Watch) -> None:
        """Stops the handler; from now on its attempt has failed, however it ends."""
        if watch.loop is not None:
            watch.over = True
            watch.place = _coroutine_place(watch)
            _call_on_loop(watch, _cancel)
            return
        watch.stopping = True
        if watch.inside:
            watch.over = True
            watch.place = stack_traceback(thread_frame(watch.thread.ident))
            self._raise(watch, HandlerStopped)
        watch.stopping = False

    def _raise(self, watch: Watch, error: type[BaseException]) -> None:
        _raise_in(watch.thread.ident, error)
        if self._interrupt is not None:
            self._interrupt(watch.thread)

    def _give_up(self, watch: Watch) -> None:
        """Gives up a handler that has not ended."""
        with self._deciding:
            if not watch.over or watch not in self._running:
                return
            watch.hung = True
            if watch.loop is not None:
                watch.place = _coroutine_place(watch) or watch.place
                if _blocks_its_loop(watch):
                    watch.blocking = True
                    # It computes or sleeps without await, so it cannot be cancelled, and no other coroutine can run. It
                    # has done so since its limit passed, so the exception finds it there and not in the event loop.
                    self._raise(watch, HandlerStopped)
            else:
                watch.place = stack_traceback(thread_frame(watch.thread.ident)) or watch.place
            self._on_hung(watch, watch.exceeded(None))


class SoftCoroutine:
    """Awaits a coroutine, and can raise an error inside it where it waits."""

    def __init__(self, awaited: Awaitable[Any]) -> None:
        self._awaited = awaited
        #: What to raise in place of the next CancelledError.
        self.error: BaseException | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaited.__await__()
        try:
            wanted = next(inner)
            while True:
                try:
                    got = yield wanted
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as error:
                    raised, self.error = (self.error or error), None
                    if raised is not error and (task := asyncio.current_task()) is not None:
                        task.uncancel()  # nobody has asked to cancel the task
                    wanted = inner.throw(raised)
                else:
                    wanted = inner.send(got)
        except StopIteration as end:
            return end.value


def _call_on_loop(watch: Watch, function: Callable[[Watch], None]) -> None:
    """Calls a function on the event loop of a coroutine. A loop that has been closed has ended it."""
    with contextlib.suppress(RuntimeError):
        if watch.loop is not None:
            watch.loop.call_soon_threadsafe(function, watch)


def _soften_coroutine(watch: Watch) -> None:
    """Runs on the event loop."""
    if watch.inside and not watch.over and watch.coroutine is not None and watch.task is not None:
        watch.coroutine.error = SoftTimeLimit(seconds=watch.soft)
        watch.task.cancel()


def _cancel(watch: Watch) -> None:
    """Runs on the event loop."""
    if watch.inside and watch.task is not None:
        if watch.coroutine is not None:
            watch.coroutine.error = None
        watch.task.cancel()


def _coroutine_place(watch: Watch) -> TracebackType | None:
    """Where a coroutine is: the frames of the awaits that it is in, or of its thread while it runs."""
    if _blocks_its_loop(watch):
        return stack_traceback(thread_frame(watch.thread.ident))
    return coroutine_traceback(watch.task.get_coro()) if watch.task is not None else None


def _blocks_its_loop(watch: Watch) -> bool:
    """Whether the thread of the event loop is inside this coroutine."""
    frame, sought = thread_frame(watch.thread.ident), watch.frame
    while frame is not None and frame is not sought:
        frame = frame.f_back
    return frame is not None


def _raise_in(ident: int | None, error: type[BaseException] | None) -> None:
    """Raises an exception in a thread at its next bytecode; None removes one that has not been raised yet.

    In Python 3.11 either leaves a flag set for the whole interpreter until an exception has been raised. Meanwhile
    every thread that is traced (by a debugger, a profiler, a measurement of coverage) waits at its next call of a
    function for the flag to clear: for as long as a handler blocks in C, or for ever if the exception was removed. So
    this thread raises one in itself, which clears the flag; a thread that blocks sets it again when it goes on. No
    Python function may be called in between.
    """
    if ident is None:
        return
    own = ctypes.c_ulong(threading.get_ident())
    _set_exception(ctypes.c_ulong(ident), None if error is None else ctypes.py_object(error))
    if sys.version_info < (3, 12):
        try:
            _set_exception(own, ctypes.py_object(_FlagCleared))
            for _ in range(_BYTECODES):
                pass
        except _FlagCleared:
            pass
        except BaseException:  # raised by the handler of a signal, before it
            _set_exception(own, None)
            raise
