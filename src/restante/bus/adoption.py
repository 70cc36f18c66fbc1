"""Takes over what lies in the archive of celery-amqp-events, so that `restante dead` can list and replay it.

| celery-amqp-events | Restante |
|---|---|
| queue `billing:archived` | queue `billing.archive`; on Redis the queue of the subscription |
| task of the message, its routing key | topic |
| task ID | event ID |
| positional and named arguments | data by name; those without one are called "0", "1" …, counted by a header |
| retries, of which the way into the archive is the last | attempts |

A message is acknowledged there after it is confirmed here. On failure in between it lies in both places; the next run
finds its ID here and only acknowledges it. What is not a task message stays where it is and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import amqp
import orjson
from kombu import Connection

from restante.bus.addresses import is_rabbitmq
from restante.bus.archive import RabbitDeadLetters
from restante.bus.client import open_redis
from restante.bus.client_rabbitmq import ConnectionPool, properties_of, to_headers, unreachable
from restante.bus.envelope import Envelope
from restante.bus.registry import registered_handlers
from restante.core.errors import InvalidInput, NotFound, Unavailable
from restante.core.names import valid_name
from restante.core.stored import Json
from restante.core.topics import as_word, valid_topic
from restante.rabbitmq.topology import archive_name, valid_service

#: The header that counts the arguments of an event given without a name: so many of its data's first values.
POSITIONAL = "restante_positional"
#: The error class under which adopted events are listed; their own errors were never stored.
ADOPTED = "Adopted"


@dataclass(slots=True)
class Adoption:
    """How many messages were taken over, were here already, and could not be read."""

    adopted: int = 0
    known: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One archived message, read."""

    id: str
    topic: str
    data: dict[str, Any]
    positional: int
    retries: int

    def envelope(self, service: str) -> Envelope:
        headers = {POSITIONAL: self.positional} if self.positional else {}
        return Envelope(self.id, self.topic, service, datetime.now(UTC), headers=headers)


def adopt(
    source: str,
    service: str,
    *,
    queue: str | None = None,
    to: str | None = None,
    handlers: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Adoption:
    """Moves the messages of `queue` (`service:archived`) at the broker `source` to `service` at the broker `to`.

    `handlers` names the handler of a topic where it is not the one that `restante.compat.amqp_events` makes.
    """
    word = valid_service(as_word(service))
    name = queue or f"{service}:archived"
    if not is_rabbitmq(source):
        raise InvalidInput("celery-amqp-events keeps its archive on RabbitMQ: name that broker by amqp://…")
    target = to or source
    made = Adoption()
    with _opened(source, name) as channel, _keeping(target, word) as keep:
        count = channel.queue_declare(name, passive=True).message_count
        for _ in range(count):
            message = channel.basic_get(name)
            if message is None:
                break
            try:
                read = _read(message)
            except ValueError:
                made.unreadable += 1  # not acked: it goes back to its place when the channel closes
                continue
            if not dry_run:
                made.known += not keep(read, f"{word}.{(handlers or {}).get(read.topic) or as_word(read.topic)}")
                channel.basic_ack(message.delivery_tag)
            made.adopted += 1
            if progress is not None:
                progress(made.adopted)
    return made


@contextmanager
def _opened(url: str, queue: str) -> Iterator[Any]:
    try:
        with Connection(url, connect_timeout=5) as connection:
            yield connection.channel()
    except amqp.exceptions.NotFound:
        raise NotFound(f"RabbitMQ has no queue {queue}: name the archive by --queue") from None
    except ConnectionPool.LOST as error:
        raise unreachable(url, error) from None


def _read(message: Any) -> TaskMessage:
    """A message of Celery's protocol; ValueError where it is none."""
    headers = message.headers or {}
    args, kwargs, *_ = orjson.loads(message.body)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError("not a task message")
    id = valid_name(str(headers.get("id") or message.properties.get("correlation_id") or ""), "event id")
    data = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    return TaskMessage(
        id, valid_topic(str(headers.get("task") or "")), data, len(args), int(headers.get("retries") or 0)
    )


@contextmanager
def _keeping(url: str, service: str) -> Iterator[Callable[[TaskMessage, str], bool]]:
    """What keeps a message for a subscription and says whether it was not there yet."""
    if not is_rabbitmq(url):
        with open_redis(url) as redis:
            subscribed = {info.name for info in registered_handlers(redis)}

            def send(read: TaskMessage, subscription: str) -> bool:
                if subscription not in subscribed:
                    raise NotFound(
                        f"there is no subscription {subscription} for {read.topic}: start the service once, or name "
                        f"its handler by --handler {read.topic}=…"
                    )
                headers = read.envelope(service).attributes()
                payload = Json(orjson.dumps(read.data))
                return redis.queue(subscription).send(payload, id=read.id, kind=read.topic, headers=headers).stored

            yield send
        return
    archive = archive_name(service)
    known = {(one.id, one.subscription) for one in RabbitDeadLetters(url, service).list(limit=1_000_000)}
    pool = ConnectionPool(url)

    def archived(read: TaskMessage, subscription: str) -> bool:
        if (read.id, subscription) in known:
            return False
        envelope = read.envelope(service)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        headers = {
            **to_headers(envelope),
            "restante_attempts": max(1, read.retries),
            "restante_subscription": subscription,
            "restante_archived_at": at,
            "restante_error_class": ADOPTED,
        }
        if not pool.publish(orjson.dumps(read.data), headers, properties_of(envelope), "", archive, id=read.id):
            raise Unavailable(f"{archive} is gone from RabbitMQ: start the service, whose worker declares it")
        return True

    try:
        yield archived
    finally:
        pool.close()
