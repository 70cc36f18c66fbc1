"""Clients, queues and messages over HTTP, synchronous and asyncio: thin methods around the calls of `calls`.

On failure every method raises a typed error of `restante.core.errors`, and nothing is half done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, Unpack

from restante.core.attempts import Status
from restante.core.flow import drive, drive_async
from restante.core.handle import AsyncHandle, Handle
from restante.core.handler_runner import AsyncHandlerMethods, HandlerMethods
from restante.core.handlers import Handlers
from restante.core.hooks import Hooked, QueueHooks
from restante.core.keywords import check_keywords, parameters
from restante.core.leased_message import AsyncLeasedMessage, LeasedMessage
from restante.core.message import Message
from restante.core.names import valid_name
from restante.core.queue import consumer_name
from restante.core.settings import QueueOptions, QueueSettings, queue_fields
from restante.core.task import AsyncTaskMethod, TaskMethod
from restante.http import calls
from restante.http.calls import Call, HttpQueueRef
from restante.http.connection import DEFAULT_ADDRESS, AsyncHttpConnection, HttpConnection, HttpEndpoint, HttpOptions
from restante.http.serializers import stored_in

P = ParamSpec("P")
T = TypeVar("T")


def connect(address: str = DEFAULT_ADDRESS, **options: Unpack[HttpOptions]) -> HttpClient:
    """Returns a client of the server at `address`, which connects with the first call.

    The options are those of `HttpOptions`. The token defaults to RESTANTE_TOKEN.
    """
    return HttpClient(address, **options)


def sync_method(build: Callable[Concatenate[HttpQueueRef, P], Call[T]]) -> Callable[Concatenate[Any, P], T]:
    """Turns a call into a method that performs it."""
    known = parameters(build)

    @functools.wraps(build)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            call = build(self.ref, *args, **kwargs)
        except TypeError:
            check_keywords(kwargs, known, f"{build.__name__}()")
            raise
        return drive(call, self.connection.perform)

    return method


def async_method(
    build: Callable[Concatenate[HttpQueueRef, P], Call[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turns a call into a coroutine method that performs it."""
    known = parameters(build)

    @functools.wraps(build)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            call = build(self.ref, *args, **kwargs)
        except TypeError:
            check_keywords(kwargs, known, f"{build.__name__}()")
            raise
        return await drive_async(call, self.connection.perform)

    return method


class HttpMessage(LeasedMessage):
    """A received message, leased until `lease_expires_at`. As a context manager it acks, or nacks on an exception."""

    def __init__(self, queue: HttpQueue, fields: dict[str, Any]) -> None:
        super().__init__(queue, *_parts(fields))  # type: ignore[arg-type]  # it has the methods that a message calls
        self.replays, self.suspect = fields["replays"], fields["suspect"]

    @property
    def batch(self) -> None:
        """Always None: over HTTP a batch is sent by one request, and `batch_id` names that of a message."""
        return None


class AsyncHttpMessage(AsyncLeasedMessage):
    """A received message for asyncio: await its verbs, or use `async with`, which acks or nacks."""

    def __init__(self, queue: AsyncHttpQueue, fields: dict[str, Any]) -> None:
        super().__init__(queue, *_parts(fields))  # type: ignore[arg-type]  # it has the methods that a message calls
        self.replays, self.suspect = fields["replays"], fields["suspect"]

    @property
    def batch(self) -> None:
        """Always None, as for `HttpMessage`."""
        return None


class HttpHandle(Handle):
    """A message that was sent, by its id; the server waits for its end."""

    def status(self, wait: float = 0) -> Status:
        """All that the properties show, read by one request, once the message has ended or after `wait` seconds."""
        found: Status = self.queue.status(self.id, wait=wait)
        return found


class AsyncHttpHandle(AsyncHandle):
    """An `HttpHandle` for asyncio."""

    async def status(self, wait: float = 0) -> Status:
        """All that the other methods show, read by one request, once the message has ended or after `wait` seconds."""
        found: Status = await self.queue.status(self.id, wait=wait)
        return found


def _parts(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What a leased message is made of, after its queue."""
    return (
        fields["id"],
        stored_in(fields),
        fields["attempts"],
        fields["lease_expires_at"],
        fields["lease_token"],
        fields["received_at"],
    )


class _Queue(QueueHooks):
    """The part that `HttpQueue` and `AsyncHttpQueue` share."""

    _message: ClassVar[type]
    ref: HttpQueueRef

    def __init__(self, connection: Any, address: str, name: str, consumer: str, options: QueueOptions) -> None:
        super().__init__()
        self.connection = connection
        self.ref = HttpQueueRef(name, address, consumer, options, functools.partial(self._message, self))
        self.handlers: Handlers = {}

    @property
    def name(self) -> str:
        return self.ref.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _receiving(
        self, count: int, timeout: float, lease: float | timedelta | None, acks: Sequence[Message]
    ) -> Call[list[Any]]:
        return calls.receive(self.ref, calls.wanted(count, lease, self.ref.consumer), timeout, acks)


class HttpQueue(TaskMethod, HandlerMethods, _Queue):
    """A queue of an HTTP server; its methods are those of `Queue`. Open it with `client.queue(name)`.

    It has no `consume()`, because no lease is renewed over HTTP: receive in a loop, and run handlers by `run_handler`.
    """

    _message = HttpMessage

    configure = sync_method(calls.configure)
    read_settings = sync_method(calls.read_settings)
    send = sync_method(calls.send)
    send_many = sync_method(calls.send_many)
    ack_many = sync_method(calls.ack_many)
    nack_many = sync_method(calls.nack_many)
    bury_many = sync_method(calls.bury_many)
    release_many = sync_method(calls.release_many)
    extend_many = sync_method(calls.extend_many)
    ack_result = sync_method(calls.ack_result)
    progress = sync_method(calls.progress)
    status = sync_method(calls.status)
    cancel = sync_method(calls.cancel)

    def handle(self, id: str) -> HttpHandle:
        """The message with this id, to follow it, to wait for its result, or to cancel it. It calls no server."""
        return HttpHandle(self, id)

    @property
    def settings(self) -> QueueSettings:
        """The current settings, read from the server each time; needs the role read."""
        return self.read_settings()

    def receive(self, timeout: float = 0, *, lease: float | timedelta | None = None) -> HttpMessage | None:
        """Receives and leases the next message; returns None if none arrives within `timeout` seconds."""
        messages = self.receive_many(1, timeout, lease=lease)
        return messages[0] if messages else None

    def receive_many(
        self, count: int, timeout: float = 0, *, lease: float | timedelta | None = None, acks: Sequence[Message] = ()
    ) -> list[HttpMessage]:
        """Receives up to `count` messages, waiting up to `timeout` seconds. Settles `acks` in the same call."""
        return drive(self._receiving(count, timeout, lease, acks), self.connection.perform)


class AsyncHttpQueue(AsyncTaskMethod, AsyncHandlerMethods, _Queue):
    """A queue of an HTTP server for asyncio; its methods are those of `AsyncQueue`."""

    _message = AsyncHttpMessage

    configure = async_method(calls.configure)
    read_settings = async_method(calls.read_settings)
    send = async_method(calls.send)
    send_many = async_method(calls.send_many)
    ack_many = async_method(calls.ack_many)
    nack_many = async_method(calls.nack_many)
    bury_many = async_method(calls.bury_many)
    release_many = async_method(calls.release_many)
    extend_many = async_method(calls.extend_many)
    ack_result = async_method(calls.ack_result)
    progress = async_method(calls.progress)
    status = async_method(calls.status)
    cancel = async_method(calls.cancel)

    def handle(self, id: str) -> AsyncHttpHandle:
        """The message with this id, to follow it, to wait for its result, or to cancel it. It calls no server."""
        return AsyncHttpHandle(self, id)

    async def receive(self, timeout: float = 0, *, lease: float | timedelta | None = None) -> AsyncHttpMessage | None:
        """Receives and leases the next message; returns None if none arrives within `timeout` seconds."""
        messages = await self.receive_many(1, timeout, lease=lease)
        return messages[0] if messages else None

    async def receive_many(
        self, count: int, timeout: float = 0, *, lease: float | timedelta | None = None, acks: Sequence[Message] = ()
    ) -> list[AsyncHttpMessage]:
        """Receives up to `count` messages, waiting up to `timeout` seconds. Settles `acks` in the same call."""
        return await drive_async(self._receiving(count, timeout, lease, acks), self.connection.perform)


class _Client(Hooked):
    """The part that `HttpClient` and `AsyncHttpClient` share."""

    _open: ClassVar[type[Any]]
    connection: Any

    def __init__(self, address: str, options: HttpOptions) -> None:
        super().__init__()
        check_keywords(options, HttpOptions.__annotations__, "connect()")
        self._endpoint = HttpEndpoint(address, options)
        #: The server's address, without a login.
        self.address = self._endpoint.address
        consumer = options.get("consumer")
        self.consumer = valid_name(consumer, "consumer") if consumer else consumer_name()
        self._queues: dict[str, Any] = {}

    def _opened(self, name: str, options: QueueOptions) -> Any:
        """The queue with this name: one object, because it has the handlers and hooks."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._open(self.connection, self.address, name, self.consumer, options).opened_by(self)
            return self._queues.setdefault(name, queue)
        if options:
            queue_fields(options)
            queue.ref.pending = {**queue.ref.pending, **options}
        return queue

    def _hooks_changed(self) -> None:
        for queue in self._queues.values():
            queue._hooks_changed()

    def _receiving(
        self, queues: Sequence[str], count: int, timeout: float, lease: float | timedelta | None
    ) -> Call[list[Any]]:
        def make(fields: dict[str, Any]) -> Any:
            return self._opened(fields["queue"], {}).ref.make(fields)

        return calls.receive_any(self.address, queues, calls.wanted(count, lease, self.consumer), timeout, make)

    def _asking(self, method: str, path: str, body: Any, idempotency_key: str | None) -> Call[Any]:
        key = calls.keyed(method, path, idempotency_key)
        return calls.ask(self.address, method, path, body, idempotency_key=key)


class HttpClient(_Client):
    """Connections to one HTTP server; safe to share between threads. Close it when done."""

    _open = HttpQueue

    def __init__(self, address: str, **options: Unpack[HttpOptions]) -> None:
        super().__init__(address, options)
        self.connection = HttpConnection(self._endpoint)

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> HttpQueue:
        """The queue with this name. Options are stored at its first use, which needs the role operate."""
        queue: HttpQueue = self._opened(name, options)
        return queue

    def receive_many(
        self, queues: Sequence[str], count: int = 1, timeout: float = 0, *, lease: float | timedelta | None = None
    ) -> list[HttpMessage]:
        """Receives up to `count` messages from the first queue that has any, trying them in the given order."""
        return drive(self._receiving(queues, count, timeout, lease), self.connection.perform)

    def ask(self, method: str, path: str, body: Any = None, *, idempotency_key: str | None = None) -> Any:
        """Makes one API call and returns its JSON. Only a GET, or a send with a key, is repeated on failure."""
        return drive(self._asking(method, path, body, idempotency_key), self.connection.perform)

    def close(self) -> None:
        """Closes the client and its idle connections."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncHttpClient(_Client):
    """An `HttpClient` for asyncio: `async with restante.http.aio.connect() as client:`."""

    _open = AsyncHttpQueue

    def __init__(self, address: str, **options: Unpack[HttpOptions]) -> None:
        super().__init__(address, options)
        self.connection = AsyncHttpConnection(self._endpoint)

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> AsyncHttpQueue:
        """The queue with this name. Options are stored at its first use, which needs the role operate."""
        queue: AsyncHttpQueue = self._opened(name, options)
        return queue

    async def receive_many(
        self, queues: Sequence[str], count: int = 1, timeout: float = 0, *, lease: float | timedelta | None = None
    ) -> list[AsyncHttpMessage]:
        """Receives up to `count` messages from the first queue that has any, trying them in the given order."""
        return await drive_async(self._receiving(queues, count, timeout, lease), self.connection.perform)

    async def ask(self, method: str, path: str, body: Any = None, *, idempotency_key: str | None = None) -> Any:
        """Makes one API call and returns its JSON. Only a GET, or a send with a key, is repeated on failure."""
        return await drive_async(self._asking(method, path, body, idempotency_key), self.connection.perform)

    async def close(self) -> None:
        """Closes the client and its idle connections."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
