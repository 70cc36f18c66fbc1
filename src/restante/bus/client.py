"""Publishing and calling without Celery: a light client for web processes, scripts and short-lived jobs.

On failure a typed error; what was not confirmed may be published again with the same id, and runs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from restante.bus.addresses import chosen, core_url, is_rabbitmq
from restante.bus.broker import Answer, AsyncBroker, Broker, Nobody, Published, Sending
from restante.bus.envelope import Envelope, seal
from restante.bus.schema import Event, encode
from restante.core.errors import InvalidInput
from restante.core.extras import needs_extra
from restante.core.retry import seconds

if TYPE_CHECKING:
    from restante.core.queue import Post

#: What may stand for a topic: its name, an event's class, or an event.
Topic = str | type[Event] | Event
#: Seconds a call waits for its answer.
TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Said:
    """Something to send, checked and encoded."""

    envelope: Envelope
    text: bytes
    response: Any = None
    declined: Any = None


def say(
    topic: Topic, data: Any, source: str, *, id: str | None = None, headers: Mapping[str, Any] | None = None,
    expires: float | None = None, version: str = "",
) -> Said:  # fmt: skip
    """The envelope and the text of an event or a call; raises before anything is sent."""
    hint: Any = None
    if isinstance(topic, Event):
        if data is not None:
            raise InvalidInput("an event brings its own data: publish(event), without a second argument")
        data, topic = topic, type(topic)
    if isinstance(topic, type):
        if not issubclass(topic, Event) or not topic.topic:
            raise InvalidInput(f"{topic.__name__} has no topic: class {topic.__name__}(Event, topic='shop.order.paid')")
        hint, kind = topic, topic
        text = encode(data, hint)
        made = seal(kind.topic, source, id=id, version=kind.version, headers=headers, expires_at=_end(expires))
        return Said(made, text, kind.response, kind.error)
    made = seal(topic, source, id=id, version=version, headers=headers, expires_at=_end(expires))
    return Said(made, encode(data))


def _end(expires: float | None) -> datetime | None:
    return None if expires is None else datetime.now(UTC) + timedelta(seconds=expires)


def allowed(timeout: float | timedelta) -> float:
    """How long a call may take."""
    return seconds(timeout, "timeout", least=0.001)


class Client:
    """Publishes and calls over one broker; safe to share between threads. Close it when done."""

    def __init__(
        self, broker: str | None = None, *, source: str = "", store: str | None = None, prefix: str = "",
        **settings: Any,
    ) -> None:  # fmt: skip
        self.url = chosen(broker)
        self.source = source
        self._broker: Broker
        if is_rabbitmq(self.url):
            with needs_extra("rabbitmq", "a client of RabbitMQ"):
                from restante.bus.on_rabbitmq import RabbitBroker

            self._broker = RabbitBroker(self.url, store=store, **settings)
        else:
            from restante.bus.on_redis import RedisBroker

            self._broker = RedisBroker(open_post(self.url, **settings), prefix)

    def publish(
        self, topic: Topic, data: Any = None, *, id: str | None = None, delay: float | timedelta = 0, priority: int = 0,
        expires: float | timedelta | None = None, headers: Mapping[str, Any] | None = None, nobody: Nobody = "keep",
    ) -> Published:  # fmt: skip
        """Hands an event to every subscription of its topic; returns once the broker has it.

        `delay` seconds pass at the broker. `expires` seconds after it is due it is not handled any more. Where nobody
        has subscribed it is kept in `events.unrouted`, or with `nobody="raise"` refused with `Unroutable`. The same
        `id` again is the same event: each subscription handles it once.
        """
        how = Sending.checked(delay, priority, expires, nobody)
        said = say(topic, data, self.source, id=id, headers=headers, expires=how.lifetime)
        return Published(said.envelope.id, self._broker.publish(said.envelope, said.text, how))

    def publish_many(
        self, events: Iterable[Event | tuple[Topic, Any]], *, delay: float | timedelta = 0, priority: int = 0,
        expires: float | timedelta | None = None, headers: Mapping[str, Any] | None = None,
    ) -> list[Published]:  # fmt: skip
        """Publishes events, or pairs of topic and data, and waits for all confirms at once: many times as fast."""
        how = Sending.checked(delay, priority, expires, "keep")
        pairs = [one if isinstance(one, tuple) else (one, None) for one in events]
        said = [say(topic, data, self.source, headers=headers, expires=how.lifetime) for topic, data in pairs]
        counts = self._broker.publish_many([(one.envelope, one.text) for one in said], how)
        return [Published(one.envelope.id, count) for one, count in zip(said, counts, strict=True)]

    def forward(self, envelope: Envelope, text: bytes, how: Sending) -> Published:
        """Publishes what was sealed before, by an outbox or another broker."""
        return Published(envelope.id, self._broker.publish(envelope, text, how))

    def call(
        self, topic: Topic, data: Any = None, *, timeout: float | timedelta = TIMEOUT,
        headers: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Asks the services that answer a topic: one instance of one of them answers, once.

        Raises `NoHandler` at once where none does, `Declined` with data where the handler says no, `CallFailed` where
        it fails and `CallTimeout` where the time is over; a call not begun by then is not begun any more.
        """
        said = say(topic, data, self.source, headers=headers)
        return self._broker.call(said.envelope, said.text, allowed(timeout)).value(said.response, said.declined)

    def call_all(
        self, topic: Topic, data: Any = None, *, timeout: float | timedelta = TIMEOUT,
        headers: Mapping[str, Any] | None = None,
    ) -> dict[str, Answer]:  # fmt: skip
        """Asks every service that answers a topic; the answers that came in time, by service."""
        said = say(topic, data, self.source, headers=headers)
        return by_service(self._broker.call_all(said.envelope, said.text, allowed(timeout)))

    def close(self) -> None:
        """Closes the connections; a closed client cannot be used again."""
        self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio."""

    def __init__(
        self, broker: str | None = None, *, source: str = "", store: str | None = None, prefix: str = "",
        **settings: Any,
    ) -> None:  # fmt: skip
        self.url = chosen(broker)
        self.source = source
        self._broker: AsyncBroker
        if is_rabbitmq(self.url):
            with needs_extra("rabbitmq", "an asyncio client of RabbitMQ"):
                from restante.bus.on_rabbitmq_aio import AsyncRabbitBroker

            self._broker = AsyncRabbitBroker(self.url, store=store, **settings)
        else:
            from restante.bus.on_redis import AsyncRedisBroker
            from restante.core.queue import AsyncPost
            from restante.core.settings import ClientSettings

            url, on_close = _resolved(self.url)
            self._broker = AsyncRedisBroker(AsyncPost(url, ClientSettings(**settings), on_close=on_close), prefix)

    async def publish(
        self, topic: Topic, data: Any = None, *, id: str | None = None, delay: float | timedelta = 0, priority: int = 0,
        expires: float | timedelta | None = None, headers: Mapping[str, Any] | None = None, nobody: Nobody = "keep",
    ) -> Published:  # fmt: skip
        """`Client.publish` with await."""
        how = Sending.checked(delay, priority, expires, nobody)
        said = say(topic, data, self.source, id=id, headers=headers, expires=how.lifetime)
        return Published(said.envelope.id, await self._broker.publish(said.envelope, said.text, how))

    async def call(
        self, topic: Topic, data: Any = None, *, timeout: float | timedelta = TIMEOUT,
        headers: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """`Client.call` with await."""
        said = say(topic, data, self.source, headers=headers)
        answer = await self._broker.call(said.envelope, said.text, allowed(timeout))
        return answer.value(said.response, said.declined)

    async def call_all(
        self, topic: Topic, data: Any = None, *, timeout: float | timedelta = TIMEOUT,
        headers: Mapping[str, Any] | None = None,
    ) -> dict[str, Answer]:  # fmt: skip
        """`Client.call_all` with await."""
        said = say(topic, data, self.source, headers=headers)
        return by_service(await self._broker.call_all(said.envelope, said.text, allowed(timeout)))

    async def close(self) -> None:
        """Closes the connections; a closed client cannot be used again."""
        await self._broker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def by_service(answers: list[Answer]) -> dict[str, Answer]:
    """The first answer of each service."""
    made: dict[str, Answer] = {}
    for answer in answers:
        made.setdefault(answer.service, answer)
    return made


def open_post(url: str, **settings: Any) -> Post:
    """The core's client for a Redis broker."""
    from restante.core.queue import Post
    from restante.core.settings import ClientSettings

    found, on_close = _resolved(url)
    return Post(found, ClientSettings(**settings), on_close=on_close)


def _resolved(url: str) -> tuple[str, Any]:
    core = core_url(url)
    if core.startswith("embedded://"):
        from restante.connecting import resolve

        return resolve(None, core.partition("//")[2] or ".restante")
    return core, None
