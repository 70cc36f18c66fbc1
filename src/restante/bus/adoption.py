"""Moves the archive of celery-amqp-events into Restante, where `restante dead` lists and replays it.

| celery-amqp-events | Restante |
|---|---|
| queue `billing:archived` | queue `billing.archive`; on Redis the queue of the subscription |
| task of the message, its routing key | topic |
| task ID | event ID |
| positional and named arguments | data by name; positional ones are named "0", "1" …, and a header counts them |
| retries, counting the step into the archive | attempts |

A message is acknowledged at the old broker after the new one has confirmed it. On failure in between it is in both
places; the next run finds its ID and only acknowledges it. Messages that are not tasks stay where they are, counted.
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
from restante.bus.amqp_messages import properties_of, to_headers, unreachable
from restante.bus.archive import RabbitDeadLetters
from restante.bus.client import open_redis
from restante.bus.client_rabbitmq import ConnectionPool
from restante.bus.envelope import Envelope
from restante.bus.registry import registered_handlers
from restante.core.errors import InvalidInput, NotFound, Unavailable
from restante.core.names import valid_name
from restante.core.stored import Json
from restante.core.topics import as_word, valid_topic
from restante.rabbitmq.topology import archive_name, valid_service

#: The header with the number of positional arguments: the first values of the event's data.
POSITIONAL = "restante_positional"
#: The error class of adopted events: their own errors were never stored.
ADOPTED = "Adopted"


@dataclass(slots=True)
class Adoption:
    """How many messages were moved, were there already, and could not be read."""

    adopted: int = 0
    known: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """An archived message of celery-amqp-events."""

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

    `handlers` names the handler of a topic where it differs from the one that `restante.compat.amqp_events` names.
    """
    word = valid_service(as_word(service))
    name = queue or f"{service}:archived"
    if not is_rabbitmq(source):
        raise InvalidInput("celery-amqp-events keeps its archive on RabbitMQ: name that broker by amqp://…")
    target = to or source
    adoption = Adoption()
    with _opened(source, name) as channel, _sender(target, word) as send:
        count = channel.queue_declare(name, passive=True).message_count
        for _ in range(count):
            message = channel.basic_get(name)
            if message is None:
                break
            try:
                task = _task_message(message)
            except ValueError:
                adoption.unreadable += 1  # not acked: RabbitMQ puts it back when the channel closes
                continue
            if not dry_run:
                handler = (handlers or {}).get(task.topic) or as_word(task.topic)
                adoption.known += not send(task, f"{word}.{handler}")
                channel.basic_ack(message.delivery_tag)
            adoption.adopted += 1
            if progress is not None:
                progress(adoption.adopted)
    return adoption


@contextmanager
def _opened(url: str, queue: str) -> Iterator[Any]:
    try:
        with Connection(url, connect_timeout=5) as connection:
            yield connection.channel()
    except amqp.exceptions.NotFound:
        raise NotFound(f"RabbitMQ has no queue {queue}: name the archive by --queue") from None
    except ConnectionPool.LOST as error:
        raise unreachable(url, error) from None


def _task_message(message: Any) -> TaskMessage:
    """Reads a message of Celery's protocol; ValueError where it is none."""
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
def _sender(url: str, service: str) -> Iterator[Callable[[TaskMessage, str], bool]]:
    """A function that stores a message for a subscription and returns whether it was new."""
    if not is_rabbitmq(url):
        with open_redis(url) as redis:
            subscribed = {info.name for info in registered_handlers(redis)}

            def send(task: TaskMessage, subscription: str) -> bool:
                if subscription not in subscribed:
                    raise NotFound(
                        f"there is no subscription {subscription} for {task.topic}: start the service once, or name "
                        f"its handler by --handler {task.topic}=…"
                    )
                headers = task.envelope(service).attributes()
                payload = Json(orjson.dumps(task.data))
                return redis.queue(subscription).send(payload, id=task.id, kind=task.topic, headers=headers).stored

            yield send
        return
    archive = archive_name(service)
    known = {(dead.id, dead.subscription) for dead in RabbitDeadLetters(url, service).list(limit=1_000_000)}
    pool = ConnectionPool(url)

    def archive_message(task: TaskMessage, subscription: str) -> bool:
        if (task.id, subscription) in known:
            return False
        envelope = task.envelope(service)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        headers = {
            **to_headers(envelope),
            "restante_attempts": max(1, task.retries),
            "restante_subscription": subscription,
            "restante_archived_at": at,
            "restante_error_class": ADOPTED,
        }
        if not pool.publish(orjson.dumps(task.data), headers, properties_of(envelope), "", archive, id=task.id):
            raise Unavailable(f"{archive} is gone from RabbitMQ: start the service, whose worker declares it")
        return True

    try:
        yield archive_message
    finally:
        pool.close()
