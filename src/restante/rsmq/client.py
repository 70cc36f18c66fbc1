"""The RSMQ clients, synchronous and asyncio: they run the calls that `calls` defines.

On failure every method raises a typed error: protocol errors are in `restante.rsmq.errors`, server errors in
`restante.core.errors`. Each call is atomic.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from redis.crc import key_slot

from restante.connecting import connect
from restante.core.errors import InvalidInput
from restante.core.flow import drive, drive_async
from restante.core.queue import AsyncClient, Client, check_timeout
from restante.core.scripts import Operation
from restante.rsmq import calls
from restante.rsmq.calls import RsmqReceived, Steps
from restante.rsmq.consumer import AsyncRsmqConsumer, ConsumerOptions, RsmqConsumer
from restante.rsmq.keys import DEFAULT_NAMESPACE
from restante.rsmq.namespace import Namespace
from restante.rsmq.notifications import LOOK_EVERY, AsyncSubscription, Subscription, wait_for

__all__ = ["LOOK_EVERY", "AsyncRsmq", "Rsmq", "RsmqReceived"]

P = ParamSpec("P")
T = TypeVar("T")


def _namespace(name: str, realtime: bool, mode: str) -> Namespace:
    namespace = Namespace(name, realtime)
    if mode == "cluster" and key_slot(namespace.names) != key_slot(namespace.place("any")[0]):
        raise InvalidInput(
            f"the keys of the namespace {name} are on different servers of the cluster: use a hash tag, such as "
            f"namespace='{{{name}}}'"
        )
    return namespace


def _calling(build: Callable[Concatenate[Namespace, P], Operation[T]]) -> Callable[Concatenate[Rsmq, P], T]:
    """Turns a call into a method that runs it."""

    @functools.wraps(build)
    def method(self: Rsmq, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(build(self.space, *args, **kwargs))

    return method


def _stepping(build: Callable[Concatenate[Namespace, P], Steps[T]]) -> Callable[Concatenate[Rsmq, P], T]:
    """Turns a call of several steps into a method that runs them."""

    @functools.wraps(build)
    def method(self: Rsmq, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(build(self.space, *args, **kwargs), self.run)

    return method


def _awaiting(
    build: Callable[Concatenate[Namespace, P], Operation[T]],
) -> Callable[Concatenate[AsyncRsmq, P], Coroutine[Any, Any, T]]:
    """Turns a call into a coroutine method."""

    @functools.wraps(build)
    async def method(self: AsyncRsmq, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.client.connection.run(build(self.space, *args, **kwargs))

    return method


def _awaiting_steps(
    build: Callable[Concatenate[Namespace, P], Steps[T]],
) -> Callable[Concatenate[AsyncRsmq, P], Coroutine[Any, Any, T]]:
    """Turns a call of several steps into a coroutine method."""

    @functools.wraps(build)
    async def method(self: AsyncRsmq, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await drive_async(build(self.space, *args, **kwargs), self.client.connection.run)

    return method


class _InNamespace:
    """What both clients say of the namespace they work in."""

    space: Namespace

    @property
    def namespace(self) -> str:
        return self.space.name

    @property
    def realtime(self) -> bool:
        return self.space.realtime


class Rsmq(_InNamespace):
    """An RSMQ client; safe to share between threads.

    `url` is as for `restante.connect`. With `post` it uses an open client and leaves it open. With `realtime` every
    send is announced on the protocol's channel, and `receive_waiting` listens there.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        realtime: bool = False,
        post: Client | None = None,
    ) -> None:
        if url is not None and post is not None:
            raise InvalidInput("give a url or an open client (post=), not both")
        self._owned = post is None
        self.client = connect(url) if post is None else post
        self.run = self.client.connection.run
        try:
            self.space = _namespace(namespace, realtime, self.client.connection.endpoint.mode)
        except BaseException:
            self.close()
            raise

    create_queue = _calling(calls.create_queue)
    delete_queue = _calling(calls.delete_queue)
    list_queues = _calling(calls.list_queues)
    get_queue_attributes = _calling(calls.get_queue_attributes)
    set_queue_attributes = _calling(calls.set_queue_attributes)
    send_message = _calling(calls.send_message)
    receive_message = _calling(calls.receive_message)
    pop_message = _calling(calls.pop_message)
    delete_message = _calling(calls.delete_message)
    change_message_visibility = _calling(calls.change_message_visibility)
    send_many = _calling(calls.send_many)
    receive_many = _calling(calls.receive_many)
    delete_many = _calling(calls.delete_many)
    peek = _calling(calls.peek)
    purge = _calling(calls.purge)
    move = _stepping(calls.move)
    receive_or_dead_letter = _stepping(calls.receive_or_dead_letter)

    def receive_waiting(self, qname: str, timeout: float, *, vt: int | None = None) -> RsmqReceived | None:
        """Receives the next message; waits up to `timeout` seconds for it.

        A delayed or hidden message is received when it becomes due. A message sent meanwhile is noticed at once if
        both sides have `realtime` on, else at the next poll, at most LOOK_EVERY seconds later.
        """
        with Subscription(self.client.connection, self.space, qname) as subscription:
            return drive(wait_for(self.space, qname, vt, check_timeout(timeout)), subscription.perform)

    def consume(
        self, qname: str, handler: Callable[[RsmqReceived], Any], **options: Unpack[ConsumerOptions]
    ) -> RsmqConsumer:
        """Returns a consumer whose `run()` calls the handler for each message; takes the options of `RsmqConsumer`."""
        return RsmqConsumer(self, qname, handler, **options)

    def close(self) -> None:
        """Closes the connection, if the constructor opened it."""
        if self._owned:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncRsmq(_InNamespace):
    """The RSMQ client for asyncio; belongs to the event loop it is first used in."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        realtime: bool = False,
        post: AsyncClient | None = None,
    ) -> None:
        if url is not None and post is not None:
            raise InvalidInput("give a url or an open client (post=), not both")
        from restante import aio

        self._owned = post is None
        self.client = aio.connect(url) if post is None else post
        self.space = _namespace(namespace, realtime, self.client.connection.endpoint.mode)

    create_queue = _awaiting(calls.create_queue)
    delete_queue = _awaiting(calls.delete_queue)
    list_queues = _awaiting(calls.list_queues)
    get_queue_attributes = _awaiting(calls.get_queue_attributes)
    set_queue_attributes = _awaiting(calls.set_queue_attributes)
    send_message = _awaiting(calls.send_message)
    receive_message = _awaiting(calls.receive_message)
    pop_message = _awaiting(calls.pop_message)
    delete_message = _awaiting(calls.delete_message)
    change_message_visibility = _awaiting(calls.change_message_visibility)
    send_many = _awaiting(calls.send_many)
    receive_many = _awaiting(calls.receive_many)
    delete_many = _awaiting(calls.delete_many)
    peek = _awaiting(calls.peek)
    purge = _awaiting(calls.purge)
    move = _awaiting_steps(calls.move)
    receive_or_dead_letter = _awaiting_steps(calls.receive_or_dead_letter)

    async def receive_waiting(self, qname: str, timeout: float, *, vt: int | None = None) -> RsmqReceived | None:
        """Receives the next message; waits up to `timeout` seconds for it, as `Rsmq.receive_waiting` does."""
        async with AsyncSubscription(self.client.connection, self.space, qname) as subscription:
            return await drive_async(wait_for(self.space, qname, vt, check_timeout(timeout)), subscription.perform)

    def consume(
        self, qname: str, handler: Callable[[RsmqReceived], Awaitable[Any]], **options: Unpack[ConsumerOptions]
    ) -> AsyncRsmqConsumer:
        """Returns a consumer whose `run()` awaits the handler for each message."""
        return AsyncRsmqConsumer(self, qname, handler, **options)

    async def close(self) -> None:
        """Closes the connection, if the constructor opened it."""
        if self._owned:
            await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
