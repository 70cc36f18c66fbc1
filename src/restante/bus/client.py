"""A light client that publishes and calls without Celery: for web processes, scripts and short-lived jobs.

On failure it raises a typed error. An event that was not confirmed may be published again with the same id: it runs
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast, overload

from restante.bus.addresses import choose_broker_url, core_url, is_rabbitmq
from restante.bus.batch import AsyncBatch, Batch, Publishing, opened_batch
from restante.bus.broker import Answer, AsyncBroker, Broker, Published, SendOptions
from restante.bus.envelope import Envelope, new_envelope
from restante.bus.options import (
    CallOptions,
    ConnectionOptions,
    ManyOptions,
    PublishOptions,
    RabbitOptions,
)
from restante.bus.schema import Event, encode
from restante.core.errors import InvalidInput
from restante.core.extras import needs_extra
from restante.core.keywords import check_keywords
from restante.core.retry import seconds
from restante.core.settings import ClientOptions, ClientSettings

if TYPE_CHECKING:
    from restante.core.queue import Client

#: Keywords of publish, for the hint in the error about an unknown one.
_PUBLISH = PublishOptions.__optional_keys__ | {"wait"}
#: A topic is given by its name, an event's class, or an event.
Topic = str | type[Event] | Event
#: Seconds a call waits for its answer.
TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An event or a call, checked and encoded, ready to send."""

    envelope: Envelope
    text: bytes
    response: Any = None
    declined: Any = None


def make_outgoing(
    topic: Topic,
    data: Any,
    source: str,
    *,
    id: str | None = None,
    headers: Mapping[str, Any] | None = None,
    expires: float | None = None,
    version: str = "",
) -> Outgoing:
    """Checks and encodes an event or a call; raises before anything is sent."""
    hint: Any = None
    if isinstance(topic, Event):
        if data is not None:
            raise InvalidInput("an event has its own data: publish(event), without a second argument")
        data, topic = topic, type(topic)
    if isinstance(topic, type):
        if not issubclass(topic, Event) or not topic.topic:
            raise InvalidInput(f"{topic.__name__} has no topic: class {topic.__name__}(Event, topic='shop.order.paid')")
        hint, kind = topic, topic
        text = encode(data, hint)
        envelope = new_envelope(
            kind.topic, source, id=id, version=kind.version, headers=headers, expires_at=_end(expires)
        )
        return Outgoing(envelope, text, kind.response, kind.error)
    envelope = new_envelope(topic, source, id=id, version=version, headers=headers, expires_at=_end(expires))
    return Outgoing(envelope, encode(data))


def _end(expires: float | None) -> datetime | None:
    return None if expires is None else datetime.now(UTC) + timedelta(seconds=expires)


def _send_options(options: Mapping[str, Any], known: Collection[str], where: str) -> SendOptions:
    """The checked options of a publish, from a caller's keywords."""
    check_keywords(options, known, where)
    get = options.get
    return SendOptions.checked(get("delay", 0), get("priority", 0), get("expires"), get("unrouted", "keep"))


def prepare_publish(
    topic: Topic,
    data: Any,
    source: str,
    options: Mapping[str, Any],
    known: Collection[str] = PublishOptions.__optional_keys__,
) -> tuple[Outgoing, SendOptions]:
    """The event and its options, from a caller's arguments; raises before anything is sent."""
    send_options = _send_options(options, known, "publish")
    outgoing = make_outgoing(
        topic, data, source, id=options.get("id"), headers=options.get("headers"), expires=send_options.lifetime
    )
    return outgoing, send_options


def _prepare_call(topic: Topic, data: Any, source: str, options: Mapping[str, Any]) -> tuple[Outgoing, float]:
    check_keywords(options, CallOptions.__optional_keys__, "call")
    return make_outgoing(topic, data, source, headers=options.get("headers")), allowed(options.get("timeout", TIMEOUT))


def _check_settings(url: str, settings: Mapping[str, Any], where: str) -> None:
    known, rabbit = set(ConnectionOptions.__optional_keys__), set(RabbitOptions.__optional_keys__)
    if is_rabbitmq(url):
        check_keywords(settings, rabbit | (set(settings) - known), f"{where} on RabbitMQ")
        if "patience" in settings:
            seconds(settings["patience"], "patience")
    else:
        known -= rabbit - {"patience"}
    check_keywords(settings, known | {"broker", "source", "store", "prefix"}, where)


def allowed(timeout: float | timedelta) -> float:
    """Seconds that a call may take."""
    return seconds(timeout, "timeout", least=0.001)


class _Connected:
    """What both clients are opened with."""

    def __init__(
        self,
        broker: str | None = None,
        *,
        broker_url: str | None = None,
        source: str = "",
        store: str | None = None,
        prefix: str = "",
        **settings: Unpack[ConnectionOptions],
    ) -> None:
        self.url = choose_broker_url(broker, broker_url)
        self.source = source
        _check_settings(self.url, settings, type(self).__name__)
        self._connect(store, prefix, settings)

    def _connect(self, store: str | None, prefix: str, settings: ConnectionOptions) -> None:
        raise NotImplementedError


class PublishMethod:
    """The method `publish` of a `BusClient` and a `Bus`."""

    @overload
    def publish(
        self, topic: Topic, data: Any = None, *, wait: Literal[True] = True, **options: Unpack[PublishOptions]
    ) -> Published: ...

    @overload
    def publish(
        self, topic: Topic, data: Any = None, *, wait: Literal[False], **options: Unpack[PublishOptions]
    ) -> Publishing: ...

    @overload
    def publish(
        self, topic: Topic, data: Any = None, *, wait: bool, **options: Unpack[PublishOptions]
    ) -> Published | Publishing: ...

    def publish(
        self, topic: Topic, data: Any = None, *, wait: bool = True, **options: Unpack[PublishOptions]
    ) -> Published | Publishing:
        """Sends an event to every subscription of its topic; returns once the broker has it.

        The broker holds the event for `delay` seconds. It is not handled later than `expires` seconds after it is due.
        If no service has subscribed, it is kept in `events.unrouted`; with `unrouted="raise"`, `Unroutable` is raised
        instead. Publishing the same `id` twice is one event: each subscription handles it once. `wait=False` returns a
        future at once. Inside a block of `batch()` it also returns at once, with `subscriptions` None, and the block's
        end waits.
        """
        return self._publish(topic, data, wait, options)

    def _publish(self, topic: Topic, data: Any, wait: bool, options: PublishOptions) -> Published | Publishing:
        raise NotImplementedError


class BusClient(PublishMethod, _Connected):
    """Publishes and calls over one broker; safe to share between threads. Close it when done."""

    _broker: Broker

    def _connect(self, store: str | None, prefix: str, settings: ConnectionOptions) -> None:
        #: The open batches of each thread.
        self._opened = threading.local()
        if is_rabbitmq(self.url):
            with needs_extra("rabbitmq", "a client of RabbitMQ"):
                from restante.bus.client_rabbitmq import RabbitBroker

            self._broker = RabbitBroker(self.url, store=store, **cast(RabbitOptions, settings))
        else:
            from restante.bus.client_redis import RedisBroker

            self._broker = RedisBroker(open_redis(self.url, **cast(ClientOptions, settings)), prefix)

    def _publish(self, topic: Topic, data: Any, wait: bool, options: PublishOptions) -> Published | Publishing:
        outgoing, send_options = prepare_publish(topic, data, self.source, options, _PUBLISH)
        if wait:
            return self.send(outgoing, send_options)
        return self._begin(Publishing(outgoing.envelope, outgoing.text, send_options))

    def send(self, outgoing: Outgoing, send_options: SendOptions) -> Published:
        """Publishes a checked event: as a part of this thread's batch, or waiting for the broker."""
        if opened_batch(self._opened) is None:
            return Published(outgoing.envelope.id, self._broker.publish(outgoing.envelope, outgoing.text, send_options))
        return Published(self._begin(Publishing(outgoing.envelope, outgoing.text, send_options)).id, None)

    def _begin(self, publishing: Publishing) -> Publishing:
        batch = opened_batch(self._opened)
        if batch is None:
            self._broker.begin(publishing)
        else:
            batch.add(publishing)
        return publishing

    def batch(self) -> Batch:
        """A block whose events this thread publishes without waiting for each: `with client.batch():`.

        The end of the block waits until the broker has all events, and raises `BatchFailed` with those it lacks. Events
        that were published before an error in the block stay published. Events whose confirm was lost with a
        connection are published again under their ids, and subscriptions handle them once.
        """
        return Batch(self._broker.sender(), self._opened)

    def publish_many(
        self, events: Iterable[Event | tuple[Topic, Any]], **options: Unpack[ManyOptions]
    ) -> list[Published]:
        """Publishes events, or pairs of topic and data, and waits for all confirms together: many times as fast."""
        send_options, headers = (
            _send_options(options, ManyOptions.__optional_keys__, "publish_many"),
            options.get("headers"),
        )
        pairs = [event if isinstance(event, tuple) else (event, None) for event in events]
        outgoing = [
            make_outgoing(topic, data, self.source, headers=headers, expires=send_options.lifetime)
            for topic, data in pairs
        ]
        counts = self._broker.publish_many([(event.envelope, event.text) for event in outgoing], send_options)
        return [Published(event.envelope.id, count) for event, count in zip(outgoing, counts, strict=True)]

    def forward(self, envelope: Envelope, text: bytes, send_options: SendOptions) -> Published:
        """Publishes an event that already has an envelope, of an outbox or another broker; waits, also in a batch."""
        return Published(envelope.id, self._broker.publish(envelope, text, send_options))

    def call(self, topic: Topic, data: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Calls a topic: one instance of one of the services that answer it runs the handler once and replies.

        Raises `NoHandler` at once if no service answers the topic, `Declined` with data if the handler declines,
        `CallFailed` if it fails and `CallTimeout` if no answer came in time. A call that has not begun by then never
        begins.
        """
        outgoing, timeout = _prepare_call(topic, data, self.source, options)
        return self._broker.call(outgoing.envelope, outgoing.text, timeout).value(outgoing.response, outgoing.declined)

    def call_all(self, topic: Topic, data: Any = None, **options: Unpack[CallOptions]) -> dict[str, Answer]:
        """Calls every service that answers a topic; returns the answers that came in time, by service."""
        outgoing, timeout = _prepare_call(topic, data, self.source, options)
        return by_service(self._broker.call_all(outgoing.envelope, outgoing.text, timeout))

    def close(self) -> None:
        """Waits for events on their way, then closes the connections; a closed client cannot be used again."""
        self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncBusClient(_Connected):
    """`BusClient` for asyncio."""

    _broker: AsyncBroker

    def _connect(self, store: str | None, prefix: str, settings: ConnectionOptions) -> None:
        #: The open batch of the current task.
        self._opened: ContextVar[AsyncBatch | None] = ContextVar("restante_batch", default=None)
        if is_rabbitmq(self.url):
            with needs_extra("rabbitmq", "an asyncio client of RabbitMQ"):
                from restante.bus.client_rabbitmq_aio import AsyncRabbitBroker

            self._broker = AsyncRabbitBroker(self.url, store=store, **cast(RabbitOptions, settings))
        else:
            from restante.bus.client_redis import AsyncRedisBroker
            from restante.core.queue import AsyncClient

            url, on_close = _resolved(self.url)
            self._broker = AsyncRedisBroker(
                AsyncClient(url, ClientSettings.parse(cast(ClientOptions, settings)), on_close=on_close), prefix
            )
        self._unbatched = self.batch()

    @overload
    async def publish(
        self, topic: Topic, data: Any = None, *, wait: Literal[True] = True, **options: Unpack[PublishOptions]
    ) -> Published: ...

    @overload
    async def publish(
        self, topic: Topic, data: Any = None, *, wait: Literal[False], **options: Unpack[PublishOptions]
    ) -> asyncio.Task[Published]: ...

    async def publish(
        self, topic: Topic, data: Any = None, *, wait: bool = True, **options: Unpack[PublishOptions]
    ) -> Published | asyncio.Task[Published]:
        """`BusClient.publish` with await; `wait=False` returns a task, whose name is the event's id."""
        outgoing, send_options = prepare_publish(topic, data, self.source, options, _PUBLISH)

        async def send() -> Published:
            return Published(
                outgoing.envelope.id, await self._broker.publish(outgoing.envelope, outgoing.text, send_options)
            )

        batch = self._opened.get()
        if batch is not None and not batch.open:
            batch = None  # this task outlived the block that created it
        if wait and batch is None:
            return await send()
        task = await (batch or self._unbatched).add(outgoing.envelope.id, outgoing.envelope.topic, send)
        return Published(outgoing.envelope.id, None) if wait else task

    def batch(self) -> AsyncBatch:
        """`BusClient.batch` with await: `async with client.batch():`, for this task and tasks created inside."""
        return AsyncBatch(self._opened, self._broker.at_once)

    async def call(self, topic: Topic, data: Any = None, **options: Unpack[CallOptions]) -> Any:
        """`BusClient.call` with await."""
        outgoing, timeout = _prepare_call(topic, data, self.source, options)
        answer = await self._broker.call(outgoing.envelope, outgoing.text, timeout)
        return answer.value(outgoing.response, outgoing.declined)

    async def call_all(self, topic: Topic, data: Any = None, **options: Unpack[CallOptions]) -> dict[str, Answer]:
        """`BusClient.call_all` with await."""
        outgoing, timeout = _prepare_call(topic, data, self.source, options)
        return by_service(await self._broker.call_all(outgoing.envelope, outgoing.text, timeout))

    async def close(self) -> None:
        """Waits for events on their way, then closes the connections; a closed client cannot be used again."""
        await self._unbatched.wait()
        await self._broker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def by_service(answers: list[Answer]) -> dict[str, Answer]:
    """The first answer of each service."""
    first: dict[str, Answer] = {}
    for answer in answers:
        first.setdefault(answer.service, answer)
    return first


def open_redis(url: str, **settings: Unpack[ClientOptions]) -> Client:
    """Opens the core's client for a Redis broker's URL."""
    from restante.core.queue import Client

    resolved, on_close = _resolved(url)
    return Client(resolved, ClientSettings.parse(settings), on_close=on_close)


def _resolved(url: str) -> tuple[str, Any]:
    core = core_url(url)
    if core.startswith("embedded://"):
        from restante.connecting import resolve

        return resolve(None, core.partition("//")[2] or ".restante")
    return core, None
