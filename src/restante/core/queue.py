"""Clients and queues, synchronous and asyncio: thin methods around the operations of `operations`.

On failure every method raises a typed error of `restante.core.errors`, and nothing is half done.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import platform
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, Unpack
from weakref import WeakSet

import orjson

from restante.core import operations as ops
from restante.core.batch import AsyncBatch, AsyncBatchHandle, Batch, BatchHandle, BatchOptions, batch_options
from restante.core.batch_calls import carrying
from restante.core.call_retry import BLOCK
from restante.core.connection import Connection, Waker
from restante.core.connection_aio import AsyncConnection
from restante.core.errors import InvalidInput
from restante.core.firing import firing
from restante.core.flow import Flow as Flow
from restante.core.flow import Wait as Wait
from restante.core.flow import drive, drive_async
from restante.core.handle import AsyncHandle, Handle, cancel, status
from restante.core.handler_runner import AsyncHandlerMethods, HandlerMethods
from restante.core.handlers import Handlers
from restante.core.hooks import Hooked, QueueHooks
from restante.core.keys import QUEUES
from restante.core.keywords import check_keywords, known_keywords, parameters
from restante.core.leased_message import AsyncLeasedMessage as AsyncLeasedMessage
from restante.core.leased_message import LeasedMessage as LeasedMessage
from restante.core.message import Message
from restante.core.names import valid_name
from restante.core.operations import MAX_BATCH, Received
from restante.core.queue_ref import QueueRef
from restante.core.schedule import ScheduleOptions, schedule, schedules, unschedule
from restante.core.scripts import Argument, Operation, Script, ScriptCall
from restante.core.send_options import SendOptions
from restante.core.settings import ClientSettings, QueueOptions, QueueSettings, queue_fields
from restante.core.task import AsyncTaskMethod, TaskMethod

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("restante")

CONFIGURE = Script("configure", "queue journal marker")
#: Seconds between two updates of a consumer's entry in the registry.
PRESENCE_EVERY = 20.0


def open_queue(ref: QueueRef, *, operator: str = "", event: str = "configured") -> ScriptCall[None]:
    """Writes the pending settings, if any, and reads the settings in force."""
    args: list[Argument] = [operator, event]
    for name, value in ref.pending.items():
        args += (name, value)

    def parse(reply: list[bytes]) -> None:
        texts = [text.decode("utf-8", "replace") for text in reply]
        stored = dict(zip(texts[::2], texts[1::2], strict=True))
        ref.settings = QueueSettings.parse(stored)
        ref.scheduled, ref.look_at = stored.get("schedules", "0") != "0", 0.0
        ref.pending = {}
        ref.opened = True

    return ScriptCall(CONFIGURE, ref.keys.group(CONFIGURE.keys), args, parse, ref.name)


def receiving(
    refs: Sequence[QueueRef],
    count: int,
    *,
    timeout: float = 0,
    lease: float | timedelta | None = None,
    acks: Sequence[Message | ops.Ticket] = (),
) -> Flow[Received | None]:
    """Receives from the first queue that has a message; waits for one up to `timeout` seconds."""
    deadline = time.monotonic() + timeout if timeout else 0.0
    while True:
        until: float | None = None
        for ref in refs:
            got = yield from _fire_and_receive(ref, count, lease, acks)
            acks = ()
            if got.messages or (timeout == 0 and len(refs) == 1):
                return got
            if got.due is not None:
                wait = max(0.0, (got.due - got.now) / 1000)
                until = wait if until is None else min(until, wait)
        remaining = deadline - time.monotonic() if timeout else 0.0
        if remaining <= 0:
            return None
        pause = min(BLOCK, remaining) if until is None else min(BLOCK, remaining, until)
        for ref in refs:
            if not ref.opened:  # changed meanwhile: this wait may be long, and a new schedule due before it ends
                yield open_queue(ref)
                pause = 0.0
        if pause > 0:
            yield Wait([ref.keys["marker"] for ref in refs], pause)


def _fire_and_receive(
    ref: QueueRef, count: int, lease: float | timedelta | None, acks: Sequence[Message | ops.Ticket]
) -> Flow[Received]:
    """Receives from one queue without waiting. Where it has schedules, fires those that are due before.

    `due` of the answer then counts their next tick.
    """
    if ref.scheduled:
        if time.monotonic() >= ref.look_at:
            yield from firing(ref)
        got: Received = yield from _receive_from(ref, count, lease, acks)
        wait = max(0, math.ceil((ref.look_at - time.monotonic()) * 1000))
        return got._replace(due=got.now + wait if got.due is None else min(got.due, got.now + wait))
    return (yield from _receive_from(ref, count, lease, acks))


def _receive_from(
    ref: QueueRef, count: int, lease: float | timedelta | None, acks: Sequence[Message | ops.Ticket]
) -> Flow[Received]:
    """Receives from one queue without waiting; buries damaged messages and looks behind them."""
    got: Received = yield ops.receive(ref, count, lease=lease, acks=acks, presence=_presence(ref))
    lost = got.lost
    if lost:
        log.warning("lease lost before ack queue=%s ids=%s", ref.name, ",".join(lost[:10]))
    if ref.noted:
        yield from carrying(ref, ref.together)
    while True:
        if got.spoiled:
            buried: int = yield ops.bury_corrupt(ref, got.spoiled)
            log.error("buried queue=%s error=Corrupt count=%d", ref.name, buried)
        if got.messages or not (got.spoiled or got.due == got.now):
            return got
        got = yield ops.receive(ref, count, lease=lease)
        if ref.noted:
            yield from carrying(ref, ref.together)
        got.lost.extend(lost)  # only the first call carried acks


def _presence(ref: QueueRef) -> bytes:
    """The consumer's registry entry when it is due for an update, else nothing."""
    now = time.monotonic()
    if ref.consumer == "" or (ref.seen and now - ref.seen < PRESENCE_EVERY):
        return b""
    ref.seen = now
    return ref.presence or orjson.dumps({"host": platform.node(), "pid": os.getpid()})


def check_count(count: int) -> int:
    """Returns `count` if one call may receive that many messages; raises InvalidInput otherwise."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_BATCH:
        raise InvalidInput(f"count must be a whole number from 1 to {MAX_BATCH}, not {count!r}")
    return count


def queue_names(queues: Sequence[str]) -> Sequence[str]:
    """Returns the queue names. Refuses a string, whose letters would each be taken for a queue."""
    if isinstance(queues, str) or not isinstance(queues, Sequence):
        raise InvalidInput(f"give a list of queue names such as ['orders', 'mail'], not {queues!r}")
    if not queues:
        raise InvalidInput("name at least one queue")
    return queues


def check_timeout(timeout: float) -> float:
    """Returns `timeout` if it is a valid number of seconds; raises InvalidInput otherwise."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 1e9:
        raise InvalidInput(f"timeout must be a number of seconds from 0, not {timeout!r}")
    return timeout


Method = TypeVar("Method", bound=Callable[..., Any])
#: Keywords that a verb passes on to each message of a call.
_SHARED = {
    "send_many": tuple(SendOptions.__annotations__),
    "schedule": tuple(ScheduleOptions.__annotations__),
}


def shown_as(method: Method, build: Callable[..., Operation[Any] | Flow[Any]]) -> Method:
    """Gives a method the signature of its operation as its callers see it: `self` for the ref, the result as result.

    Done once per method, for `inspect`, `help()` and editors. Type checkers read the annotations of `sync_method`.
    """
    signature = inspect.signature(build)
    _, *parameters_ = signature.parameters.values()
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    result = signature.return_annotation.partition("[")[2].removesuffix("]")  # of Operation[result]
    shown = signature.replace(parameters=[self, *parameters_], return_annotation=result)
    annotations = {parameter.name: parameter.annotation for parameter in parameters_} | {"return": result}
    method.__dict__["__signature__"] = shown
    method.__annotations__, method.__module__ = annotations, __name__
    return method


def sync_method(
    build: Callable[Concatenate[QueueRef, P], Operation[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Turns an operation into a method that runs it."""
    known = (*parameters(build), *_SHARED.get(build.__name__, ()))

    @functools.wraps(build)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        ref = self.ref
        if not ref.opened:
            self.ensure_open()
        try:
            operation = build(ref, *args, **kwargs)
        except TypeError:
            check_keywords(kwargs, known, f"{build.__name__}()")
            raise
        result = self.connection.run(operation)
        if ref.noted:
            run_flow(self.connection, carrying(ref, ref.together))
        return result  # type: ignore[no-any-return]

    return shown_as(method, build)


def async_method(
    build: Callable[Concatenate[QueueRef, P], Operation[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turns an operation into a coroutine method that runs it."""
    known = (*parameters(build), *_SHARED.get(build.__name__, ()))

    @functools.wraps(build)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        ref = self.ref
        if not ref.opened:
            await self.ensure_open()
        try:
            operation = build(ref, *args, **kwargs)
        except TypeError:
            check_keywords(kwargs, known, f"{build.__name__}()")
            raise
        result = await self.connection.run(operation)
        if ref.noted:
            await run_flow_async(self.connection, carrying(ref, ref.together))
        return result  # type: ignore[no-any-return]

    return shown_as(method, build)


def sync_flow(build: Callable[Concatenate[QueueRef, P], Flow[T]]) -> Callable[Concatenate[Any, P], T]:
    """Turns a flow of several operations into a method that runs it."""
    known = (*parameters(build), *_SHARED.get(build.__name__, ()))

    @functools.wraps(build)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(kwargs, known, f"{build.__name__}()")
        if not self.ref.opened:
            self.ensure_open()
        return self.run(build(self.ref, *args, **kwargs))  # type: ignore[no-any-return]

    return shown_as(method, build)


def async_flow(
    build: Callable[Concatenate[QueueRef, P], Flow[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turns a flow of several operations into a coroutine method that runs it."""
    known = (*parameters(build), *_SHARED.get(build.__name__, ()))

    @functools.wraps(build)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(kwargs, known, f"{build.__name__}()")
        if not self.ref.opened:
            await self.ensure_open()
        return await self.run(build(self.ref, *args, **kwargs))  # type: ignore[no-any-return]

    return shown_as(method, build)


class _Named(QueueHooks):
    """The part that `Queue` and `AsyncQueue` share."""

    ref: QueueRef

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.ref.name

    @property
    def settings(self) -> QueueSettings:
        """The settings as last read. The client reads them again when the server reports a newer version."""
        return self.ref.settings

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a queue holds connections: open it by name in the other process")


class Queue(TaskMethod, HandlerMethods, _Named):
    """A queue. Open it with `client.queue(name)`; threads may share it."""

    def __init__(self, connection: Connection, name: str, consumer: str, options: QueueOptions) -> None:
        super().__init__()
        self.connection = connection
        self.ref = QueueRef(name, consumer, functools.partial(LeasedMessage, self))
        self.ref.together = connection.endpoint.mode != "cluster"
        self.ref.give(queue_fields(options))
        self.handlers: Handlers = {}

    def ensure_open(self) -> None:
        """Registers the queue, writes its pending options and reads the settings in force."""
        self.connection.command("SADD", QUEUES, self.name, key=QUEUES)
        self.connection.run(open_queue(self.ref))

    def run(self, flow: Flow[T], waker: Waker | None = None) -> T:
        """Runs a flow of operations to its end and returns its result."""
        if not self.ref.opened:
            self.ensure_open()
        return run_flow(self.connection, flow, waker)

    send = sync_method(ops.send)
    send_many = sync_method(ops.send_many)
    ack_many = sync_method(ops.ack_many)
    nack_many = sync_method(ops.nack_many)
    bury_many = sync_method(ops.bury_many)
    release_many = sync_method(ops.release_many)
    extend_many = sync_method(ops.extend_many)
    ack_result = sync_method(ops.ack_result)
    progress = sync_method(ops.progress)
    status = sync_method(status)
    cancel = sync_method(cancel)
    schedule = sync_flow(schedule)
    schedules = sync_flow(schedules)
    unschedule = sync_flow(unschedule)

    def handle(self, id: str) -> Handle:
        """The message with this id, to follow it, to wait for its result, or to cancel it. It calls no server."""
        return Handle(self, id)

    def configure(self, **options: Unpack[QueueOptions]) -> QueueSettings:
        """Changes settings of the queue, for all its clients."""
        self.ref.pending.update(queue_fields(options))
        self.ensure_open()
        return self.settings

    def receive(self, timeout: float = 0, *, lease: float | timedelta | None = None) -> LeasedMessage | None:
        """Returns the next message, leased to this consumer, or None if none arrives within `timeout` seconds."""
        got = self.run(receiving((self.ref,), 1, timeout=check_timeout(timeout), lease=lease))
        return got.messages[0] if got and got.messages else None

    def receive_many(
        self, count: int, timeout: float = 0, *, lease: float | timedelta | None = None, acks: Sequence[Message] = ()
    ) -> list[LeasedMessage]:
        """Receives up to `count` messages by one call, after acking `acks`; waits up to `timeout` s for the first."""
        flow = receiving((self.ref,), check_count(count), timeout=check_timeout(timeout), lease=lease, acks=acks)
        got = self.run(flow)
        return got.messages if got else []

    @known_keywords
    def consume(self, *, prefetch: int = 100, stop_when_empty: bool = False) -> Iterator[LeasedMessage]:
        """Yields messages one by one until stopped. While the server is away the loop and its verdicts wait.

        `around` hooks and soft limits hold for handlers: run one by `run_handler(message)`.
        """
        from restante.core.consume import iterate  # imported here: consume.py imports this module

        return iterate(self, prefetch=prefetch, stop_when_empty=stop_when_empty)


class AsyncQueue(AsyncTaskMethod, AsyncHandlerMethods, _Named):
    """A queue for asyncio. Open it with `client.queue(name)` on a client of `restante.aio.connect()`."""

    def __init__(self, connection: AsyncConnection, name: str, consumer: str, options: QueueOptions) -> None:
        super().__init__()
        self.connection = connection
        self.ref = QueueRef(name, consumer, functools.partial(AsyncLeasedMessage, self))
        self.ref.together = connection.endpoint.mode != "cluster"
        self.ref.give(queue_fields(options))
        self.handlers: Handlers = {}

    async def ensure_open(self) -> None:
        """Registers the queue, writes its pending options and reads the settings in force."""
        await self.connection.command("SADD", QUEUES, self.name, key=QUEUES)
        await self.connection.run(open_queue(self.ref))

    async def run(self, flow: Flow[T]) -> T:
        """Runs a flow of operations to its end and returns its result."""
        if not self.ref.opened:
            await self.ensure_open()
        return await run_flow_async(self.connection, flow)

    send = async_method(ops.send)
    send_many = async_method(ops.send_many)
    ack_many = async_method(ops.ack_many)
    nack_many = async_method(ops.nack_many)
    bury_many = async_method(ops.bury_many)
    release_many = async_method(ops.release_many)
    extend_many = async_method(ops.extend_many)
    ack_result = async_method(ops.ack_result)
    progress = async_method(ops.progress)
    status = async_method(status)
    cancel = async_method(cancel)
    schedule = async_flow(schedule)
    schedules = async_flow(schedules)
    unschedule = async_flow(unschedule)

    def handle(self, id: str) -> AsyncHandle:
        """The message with this id, to follow it, to wait for its result, or to cancel it. It calls no server."""
        return AsyncHandle(self, id)

    async def configure(self, **options: Unpack[QueueOptions]) -> QueueSettings:
        """Changes settings of the queue, for all its clients."""
        self.ref.pending.update(queue_fields(options))
        await self.ensure_open()
        return self.settings

    async def receive(self, timeout: float = 0, *, lease: float | timedelta | None = None) -> AsyncLeasedMessage | None:
        """Returns the next message, leased to this consumer, or None if none arrives within `timeout` seconds."""
        got = await self.run(receiving((self.ref,), 1, timeout=check_timeout(timeout), lease=lease))
        return got.messages[0] if got and got.messages else None

    async def receive_many(
        self, count: int, timeout: float = 0, *, lease: float | timedelta | None = None, acks: Sequence[Message] = ()
    ) -> list[AsyncLeasedMessage]:
        """Receives up to `count` messages by one call, after acking `acks`; waits up to `timeout` s for the first."""
        flow = receiving((self.ref,), check_count(count), timeout=check_timeout(timeout), lease=lease, acks=acks)
        got = await self.run(flow)
        return got.messages if got else []

    @known_keywords
    def consume(
        self, *, prefetch: int = 100, stop_when_empty: bool = False
    ) -> AsyncGenerator[AsyncLeasedMessage, None]:
        """Yields messages one by one until left or cancelled. While the server is away the loop and its verdicts wait.

        A separate thread renews the leases. When the loop ends, messages received ahead are released.
        """
        from restante.core.consume import iterate_async  # imported here: consume.py imports this module

        return iterate_async(self, prefetch=prefetch, stop_when_empty=stop_when_empty)


C = TypeVar("C", bound=Connection | AsyncConnection)
Q = TypeVar("Q", bound=_Named)


class _Stopped(Exception):
    """The waker fired while a flow waited."""


def run_flow(connection: Connection, flow: Flow[T], waker: Waker | None = None) -> T:
    """Drives a flow on the synchronous runner. Returns None if the waker ended a wait."""

    def perform(step: Operation[Any] | Wait) -> Any:
        if not isinstance(step, Wait):
            return connection.run(step)
        connection.wait(step.markers, step.seconds, waker)
        if waker is not None and waker.woken:
            raise _Stopped
        return None

    try:
        return drive(flow, perform)
    except _Stopped:
        return None  # type: ignore[return-value]  # flows that wait may return None


async def run_flow_async(connection: AsyncConnection, flow: Flow[T]) -> T:
    """Drives a flow on the asyncio runner."""

    async def perform(step: Operation[Any] | Wait) -> Any:
        if isinstance(step, Wait):
            return await connection.wait(step.markers, step.seconds)
        return await connection.run(step)

    return await drive_async(flow, perform)


def consumer_name() -> str:
    """The default consumer name: host name and process id."""
    host = "".join(ch for ch in platform.node() if ch.isalnum() or ch in ".-_").lstrip("-")[:100] or "host"
    return valid_name(f"{host}:{os.getpid()}", "consumer")


#: The open clients of this process: `restante.testing` empties a server under them between two tests.
CLIENTS: WeakSet[_QueueOpener[Any, Any]] = WeakSet()


class _QueueOpener(Hooked, Generic[C, Q]):
    """The part that `Client` and `AsyncClient` share: a connection, and the queues that were opened on it."""

    _connect: ClassVar[type[Any]]
    _open: ClassVar[type[Any]]

    def __init__(
        self,
        url: str,
        settings: ClientSettings,
        *,
        consumer: str | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.connection: C = self._connect(url, settings)
        self.consumer = valid_name(consumer, "consumer") if consumer else consumer_name()
        self.url = url
        self._queues: dict[str, Q] = {}
        self._on_close = on_close
        CLIENTS.add(self)

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> Q:
        """Opens a queue. Options are stored in Redis by its first call, apply to all clients and stay until changed."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self._open(self.connection, name, self.consumer, options)
            queue.opened_by(self)
        elif options:
            queue.ref.give(queue_fields(options))
        return queue

    def reopen(self) -> None:
        """Lets every queue of this client write its options again at its next use: the server was emptied."""
        for queue in self._queues.values():
            queue.ref.reopen()

    def _hooks_changed(self) -> None:
        for queue in self._queues.values():
            queue._hooks_changed()

    def _closed(self) -> None:
        """Ends what was started together with this client, such as an embedded server."""
        if self._on_close is not None:
            self._on_close()
            self._on_close = None


def queues_with(handler: Any) -> list[Any]:
    """The queues of this process that have this function as a handler."""
    queues = [queue for client in CLIENTS for queue in list(client._queues.values())]
    return [queue for queue in queues if any(known is handler for known in queue.handlers.values())]


class Client(_QueueOpener[Connection, Queue]):
    """A connection to one server, used to open queues. Close it when done."""

    _connect = Connection
    _open = Queue

    def receive_many(
        self, queues: Sequence[str], count: int = 1, timeout: float = 0, *, lease: float | timedelta | None = None
    ) -> list[LeasedMessage]:
        """Receives up to `count` messages from the first of several queues that has any, in the given order."""
        opened = [self.queue(name) for name in queue_names(queues)]
        for queue in opened:
            if not queue.ref.opened:
                queue.ensure_open()
        refs = [queue.ref for queue in opened]
        got = opened[0].run(receiving(refs, check_count(count), timeout=check_timeout(timeout), lease=lease))
        return got.messages if got else []

    def batch(self, home: str, **options: Unpack[BatchOptions]) -> Batch:
        """Makes a batch: messages of any queues, and a message to the queue `home` when the last of them has ended.

        Use it in a `with` statement. Its messages are sent when the block ends, and not at all if it raises.
        """
        return Batch(self, home, batch_options(options))

    def batch_handle(self, id: str) -> BatchHandle:
        """The batch with this id, to follow it, to add to it, or to cancel it. It calls no server."""
        return BatchHandle(self, id)

    def close(self) -> None:
        """Closes the connections, and stops the embedded server if this was its last client."""
        self.connection.close()
        self._closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_QueueOpener[AsyncConnection, AsyncQueue]):
    """A `Client` for asyncio: `async with restante.aio.connect() as client:`."""

    _connect = AsyncConnection
    _open = AsyncQueue

    async def receive_many(
        self, queues: Sequence[str], count: int = 1, timeout: float = 0, *, lease: float | timedelta | None = None
    ) -> list[AsyncLeasedMessage]:
        """Receives up to `count` messages from the first of several queues that has any, in the given order."""
        opened = [self.queue(name) for name in queue_names(queues)]
        for queue in opened:
            if not queue.ref.opened:
                await queue.ensure_open()
        refs = [queue.ref for queue in opened]
        got = await opened[0].run(receiving(refs, check_count(count), timeout=check_timeout(timeout), lease=lease))
        return got.messages if got else []

    def batch(self, home: str, **options: Unpack[BatchOptions]) -> AsyncBatch:
        """Makes a batch, as `Client.batch` does, for an `async with` statement."""
        return AsyncBatch(self, home, batch_options(options))

    def batch_handle(self, id: str) -> AsyncBatchHandle:
        """The batch with this id, to follow it, to add to it, or to cancel it. It calls no server."""
        return AsyncBatchHandle(self, id)

    async def close(self) -> None:
        """Closes the connections, and stops the embedded server if this was its last client."""
        await self.connection.close()
        self._closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
