"""Runs handlers in the test's own thread, one message after the other, with the queue's hooks and verdicts.

On failure: as in a consumer, an error of a handler nacks its message; then it is raised in the test, unless
`raises=False`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from restante.core.connection_aio import AsyncConnection
from restante.core.errors import InvalidInput
from restante.core.flow import drive, drive_async
from restante.core.handler_runner import Limits, TimedCalls
from restante.core.handlers import Handling, with_every_kind
from restante.core.hooks import Listeners, distinct
from restante.core.leased_message import AsyncLeasedMessage, Leased, LeasedMessage
from restante.core.message import Message, State
from restante.core.queue import AsyncQueue, Client, Queue
from restante.testing.sent import note_handled

if TYPE_CHECKING:
    from restante.bus.app import Bus

#: Ends a call into C, such as a sleep, in which a handler passes its limit. By default a process ignores this signal,
#: so one that comes late does no harm. None where the platform has none.
WAKING: Final[signal.Signals | None] = getattr(signal, "SIGURG", None)
#: Default of `most`: a handler that sends to its own queue for ever fails the test instead of hanging it.
MOST = 1000


class Failure(NamedTuple):
    """A failed attempt: the message, the handler's error, and the state in which the message is now."""

    message: Message
    error: Exception
    state: State | None


@dataclass(slots=True)
class Drained:
    """What `drain` did: the messages whose handlers succeeded, and the attempts that failed, each in order."""

    handled: list[Message] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.handled) + len(self.failed)


class Attempt(NamedTuple):
    """One call of a handler, for the runner to make."""

    handling: Handling
    message: Leased
    limits: Limits | None


class Drainable:
    """One queue to drain, and an attempt at one of its messages as steps of a flow."""

    #: Whether a handler is a coroutine function.
    awaits = False

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def attempt(self, message: LeasedMessage, drained: Drained) -> Generator[Attempt, Any, None]:
        """Yields the call of the handler, then settles the message. Raises the handler's error after the nack."""
        raise NotImplementedError


class DrainableQueue(Drainable):
    """A native queue, whose handlers were registered with `@queue.handler`."""

    def __init__(self, queue: Queue | AsyncQueue, client: Client, loop_connection: AsyncConnection | None) -> None:
        if not queue.handlers:
            raise InvalidInput(f"{queue.name} has no handler: register one with @{queue.name}.handler")
        super().__init__(queue if isinstance(queue, Queue) else client.queue(queue.name))
        hooks = distinct(queue.hooks)
        self._listeners = Listeners(hooks)
        known = with_every_kind(queue.handlers, queue.name)
        self._handlers = {kind: Handling.of(function, hooks) for kind, function in known.items()}
        self.awaits = any(handling.asynchronous for handling in self._handlers.values())
        self._verbs: AsyncQueue | None = None
        if isinstance(queue, AsyncQueue) and loop_connection is not None:
            self.queue.ref.give(queue.ref.given)
            self._verbs = AsyncQueue(loop_connection, queue.name, queue.ref.consumer, {})
            self._verbs.ref = self.queue.ref

    def attempt(self, message: LeasedMessage, drained: Drained) -> Generator[Attempt, Any, None]:
        handling = self._handlers.get(message.kind) or self._handlers[None]
        given: Leased = message
        if handling.asynchronous and self._verbs is not None:
            given = AsyncLeasedMessage.of(self._verbs, message)
        given.told = True
        self._listeners.tell(self._listeners.started, given)
        started = time.perf_counter()
        try:
            result = yield Attempt(handling, given, handling.limits(given, self.queue.settings))
            if not given.settled:
                self._ack(handling, message, result)
                given.settled, given.verdict = True, "acked"
        except Exception as error:
            state = None if given.settled else self.queue.nack_many((message,), error=error)[0]
            drained.failed.append(Failure(given, error, state))
            self._listeners.tell_failed(given, error, state)
            raise
        note_handled(self.queue.connection.url, given)
        drained.handled.append(given)
        self._listeners.tell(self._listeners.finished, given, time.perf_counter() - started)

    def _ack(self, handling: Handling, message: LeasedMessage, result: Any) -> None:
        """Acks a message; what a task returned is kept with it where the queue keeps results."""
        if handling.keeps(self.queue.settings, result):
            self.queue.ack_result(message, result)
        else:
            self.queue.ack_many((message,))


def _drainables(
    queues: tuple[Queue | AsyncQueue | Bus, ...], client: Callable[[str, Any], Client], link: AsyncConnection | None
) -> Iterator[Drainable]:
    for queue in queues:
        if isinstance(queue, Queue | AsyncQueue):
            yield DrainableQueue(queue, client(queue.connection.url, queue.connection.settings), link)
        elif hasattr(queue, "subscriptions"):
            from restante.testing.bus import drainable_subscriptions

            yield from drainable_subscriptions(queue)
        else:
            raise InvalidInput(f"drain takes queues and buses, such as drain(orders), not {queue!r}")


def _work(sources: list[Drainable], drained: Drained, most: int, raises: bool) -> Generator[Attempt, Any, Drained]:
    """Attempts every ready message, a queue after the other, until all are empty."""
    quiet = 0
    while quiet < len(sources):
        source = sources.pop(0)
        sources.append(source)
        message = source.queue.receive()
        if message is None:
            quiet += 1
            continue
        quiet = 0
        if len(drained) >= most:
            message.release()
            raise AssertionError(
                f"drain has handled {len(drained)} messages and {source.queue.name} is not empty: does a handler send "
                "to its own queue? Or give most="
            )
        try:
            yield from source.attempt(message, drained)
        except Exception:
            if raises:
                raise
    return drained


class _Opened:
    """The connections of one drain, and how it calls handlers."""

    def __init__(self, queues: tuple[Any, ...]) -> None:
        if not queues:
            raise InvalidInput("name at least one queue, such as drain(orders)")
        self._clients: dict[str, Client] = {}
        first = next((queue for queue in queues if isinstance(queue, AsyncQueue)), None)
        self.link = None if first is None else AsyncConnection(first.connection.url, first.connection.settings)

    def client(self, url: str, settings: Any) -> Client:
        """A client for blocking calls to the server of an `AsyncQueue`."""
        if url not in self._clients:
            self._clients[url] = Client(url, settings)
        return self._clients[url]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    async def close_link(self) -> None:
        if self.link is not None:
            await self.link.close()


def drain(*queues: Queue | AsyncQueue | Bus, raises: bool = True, most: int = MOST) -> Drained:
    """Handles every ready message of these queues in this thread, until none is ready; returns what it did.

    Messages that handlers send to these queues meanwhile are handled too; delayed ones and retries wait for their time
    (see `Clock.move`). The first error of a handler is raised, after its message was nacked; with `raises=False` errors
    are only returned. Coroutine handlers run on an event loop of this call. Time limits count real seconds, as in a
    consumer: an attempt that passes its `timeout` fails with `TimeLimit`.
    """
    opened = _Opened(queues)
    drained = Drained()
    runner = asyncio.Runner()  # makes its loop when it first runs a coroutine
    calls = TimedCalls(_interrupt)

    def perform(attempt: Attempt) -> Any:
        if not attempt.handling.asynchronous:
            return calls.call(*attempt)
        return runner.run(calls.call_async(*attempt), context=contextvars.copy_context())

    awaits = False
    try:
        sources = list(_drainables(queues, opened.client, opened.link))
        if any(source.awaits for source in sources):
            _refuse_running_loop()
            awaits = True
        with _interruptible():
            return drive(_work(sources, drained, most, raises), perform)
    finally:
        calls.close()
        opened.close()
        if awaits:
            runner.run(opened.close_link())
        runner.close()


async def drain_async(*queues: Queue | AsyncQueue | Bus, raises: bool = True, most: int = MOST) -> Drained:
    """`drain` for coroutine tests: coroutine handlers run on the test's event loop, plain handlers block it."""
    opened = _Opened(queues)
    drained = Drained()
    calls = TimedCalls(_interrupt)

    async def perform(attempt: Attempt) -> Any:
        return await calls.call_async(*attempt) if attempt.handling.asynchronous else calls.call(*attempt)

    try:
        sources = list(_drainables(queues, opened.client, opened.link))
        with _interruptible():
            return await drive_async(_work(sources, drained, most, raises), perform)
    finally:
        calls.close()
        opened.close()
        await opened.close_link()


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput("an event loop runs in this thread: await drain_async(…) in a coroutine test")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets `_interrupt` end a call into C of this thread, if it is the main thread, which alone gets signals."""
    if WAKING is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(WAKING, _wake)
    try:
        yield
    finally:
        # A handler that was not set from Python reads as None.
        signal.signal(WAKING, signal.SIG_DFL if before is None else before)


def _wake(*_: object) -> None:
    """Runs in the main thread when the signal has interrupted a call: here Python raises what waits for the thread."""


def _interrupt(thread: threading.Thread) -> None:
    main = thread is threading.main_thread() and thread.ident is not None
    if WAKING is not None and main and signal.getsignal(WAKING) is _wake:
        signal.pthread_kill(thread.ident or 0, WAKING)
