"""The asyncio client's side of RabbitMQ, over aio-pika; the messages are those of `client_rabbitmq`.

On failure, as there, it raises `Unavailable` once patience is over, or `Unconfirmed` if the broker may have the event.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Unpack

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity, DeliveryError, PublishError

from restante.bus.amqp_messages import properties_of, queue_full, returned_error, route, to_headers, unreachable
from restante.bus.broker import Answer, SendOptions
from restante.bus.client_rabbitmq import CONFIRM, PATIENCE, REPLY_TO, ConnectionPool
from restante.bus.envelope import Envelope
from restante.bus.registry import Registry
from restante.core.errors import CallTimeout, NoHandler, RestanteError, Unconfirmed
from restante.rabbitmq.topology import CALLS, CALLS_ALL, EVENTS, TopologyOptions, shared

if TYPE_CHECKING:
    from restante.bus.options import LadderOptions

_LOST = (OSError, AMQPError, asyncio.TimeoutError)


class AsyncRabbitBroker:
    """The asyncio client's side of RabbitMQ: one connection for all publishes and calls."""

    #: All of them share the connection. More take memory, fewer leave the broker idle.
    at_once = 500

    def __init__(
        self, url: str, *, store: str | None = None, patience: float = PATIENCE, **ladder: Unpack[LadderOptions]
    ) -> None:
        self._url = url
        self._options = TopologyOptions(**ladder)
        self._ladder = self._options.ladder()
        self._patience = patience
        self._registry = Registry(store) if store else None
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._confirming: AbstractChannel | None = None
        self._asking: AbstractChannel | None = None
        #: Waiting calls by id: the answers so far, and the event that wakes the caller.
        self._waiting: dict[str, tuple[list[Answer], asyncio.Event]] = {}

    async def _open(self) -> tuple[AbstractChannel, AbstractChannel]:
        async with self._lock:
            if self._connection is None or self._connection.is_closed:
                self._connection = await aio_pika.connect(self._url, timeout=5)
                self._confirming = self._asking = None
            if self._confirming is None or self._confirming.is_closed:
                self._confirming = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            if self._asking is None or self._asking.is_closed:
                self._asking = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
                queue = await self._asking.get_queue(REPLY_TO, ensure=False)
                await queue.consume(self._answered, no_ack=True)
            return self._confirming, self._asking

    async def _answered(self, message: AbstractIncomingMessage) -> None:
        waiting = self._waiting.get(message.correlation_id or "")
        if waiting is not None:
            waiting[0].append(Answer.parse(message.body))
            waiting[1].set()

    async def _publish(self, message: aio_pika.Message, exchange: str, key: str, *, asking: bool = False) -> bool:
        """Publishes and waits for the confirm; False if no queue took the message."""
        channel = (await self._open())[asking]
        try:
            target = await channel.get_exchange(exchange, ensure=False)
            await target.publish(message, key, mandatory=True, timeout=CONFIRM)
        except PublishError:
            return False
        return True

    async def _run(self, message: aio_pika.Message, exchange: str, key: str, id: str) -> bool:
        deadline = time.monotonic() + self._patience
        pause, written = 0.05, False
        while True:
            try:
                await self._open()
                written = True
                return await self._publish(message, exchange, key)
            except DeliveryError:
                raise queue_full(id) from None
            except ChannelNotFoundEntity:
                await self._declare()
            except _LOST as error:
                if time.monotonic() + pause > deadline:
                    raise (Unconfirmed(ids=(id,)) if written else unreachable(self._url, error)) from None
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)

    async def _declare(self) -> None:
        await asyncio.to_thread(ConnectionPool(self._url).declare, shared(self._options))

    async def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int | None:
        message = _message(envelope, text, options)
        noted = None
        if self._registry:
            noted = await asyncio.to_thread(self._registry.sent, envelope, len(text), options)
        try:
            exchange, key = route(envelope, options, self._ladder)
            if not await self._run(message, exchange, key, envelope.id):
                if error := returned_error(envelope.topic, options, exchange):
                    raise error
                await self._run(message, EVENTS, envelope.topic, envelope.id)
                return 0
        except RestanteError:
            if self._registry:
                await asyncio.to_thread(self._registry.not_sent, envelope, len(text))
            raise
        return noted or None

    async def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        answers = await self._ask(CALLS, envelope, text, timeout, 1)
        if not answers:
            raise CallTimeout(f"{envelope.topic} was not answered within {timeout:g} s: call again, or wait longer")
        return answers[0]

    async def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]:
        count = await asyncio.to_thread(self._registry.answering, envelope.topic) if self._registry else None
        return await self._ask(CALLS_ALL, envelope, text, timeout, count)

    async def _ask(
        self, exchange: str, envelope: Envelope, text: bytes, timeout: float, count: int | None
    ) -> list[Answer]:
        deadline = time.monotonic() + timeout
        if self._registry and exchange == CALLS:
            await asyncio.to_thread(self._registry.called, envelope, len(text))
        answers: list[Answer] = []
        waker = asyncio.Event()
        self._waiting[envelope.id] = (answers, waker)
        try:
            while True:
                message = _message(envelope, text, None, deadline - time.monotonic())
                try:
                    routed = await self._publish(message, exchange, envelope.topic, asking=True)
                    break
                except ChannelNotFoundEntity:
                    await self._declare()
            if not routed:
                raise NoHandler(f"no service answers {envelope.topic}: start the one that does, or check the spelling")
            while count is None or len(answers) < count:
                waker.clear()
                try:
                    await asyncio.wait_for(waker.wait(), max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    break
            return answers
        except _LOST as error:
            raise unreachable(self._url, error) from None
        finally:
            del self._waiting[envelope.id]

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        if self._registry:
            self._registry.close()


def _message(
    envelope: Envelope, text: bytes, options: SendOptions | None, left: float | None = None
) -> aio_pika.Message:
    headers: dict[str, Any] = to_headers(envelope)
    properties = properties_of(envelope, options)
    if left is not None:
        headers["deadline_seconds"] = round(left, 3)
    return aio_pika.Message(
        text,
        headers=headers,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT if left is None else aio_pika.DeliveryMode.NOT_PERSISTENT,
        priority=properties["priority"],
        message_id=envelope.id,
        type=envelope.topic,
        app_id=envelope.source,
        timestamp=properties["timestamp"],
        correlation_id=None if left is None else envelope.id,
        reply_to=None if left is None else REPLY_TO,
        expiration=None if left is None else max(0.001, left),
    )
