"""The list of a RabbitMQ broker's services and handlers, kept on the broker itself: for servers and commands that know
its URL and no store.

Each service has one message in the queue `SERVICES`, which it replaces when it starts with other handlers. A reader or
writer is the queue's exclusive consumer and acknowledges nothing it only reads: those messages return when its channel
closes. If it does not get the queue within `PATIENCE` seconds, it raises `Unavailable`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import amqp
import orjson
from kombu import Connection

from restante.bus.amqp_messages import amqp_message, unreachable
from restante.bus.client_rabbitmq import CONFIRM, ConnectionPool
from restante.bus.registry import HandlerInfo
from restante.core.errors import Unavailable
from restante.rabbitmq.topology import SERVICES

#: Seconds to wait for others that read or write at the same time; each takes milliseconds.
PATIENCE = 5.0
#: Seconds between two attempts to consume the queue.
AGAIN = 0.05


def announce(url: str, service: str, handlers: Sequence[HandlerInfo]) -> None:
    """Writes a service's handlers to the list, in place of those it wrote before."""
    text = orjson.dumps({"service": service, "cards": [asdict(info) for info in handlers]})
    with _locked(url) as (channel, messages):
        before = [message for message in messages if message.properties.get("message_id") == service]
        if [_bytes(message) for message in before] == [text]:
            return
        new = amqp_message(text, {}, {"message_id": service, "delivery_mode": 2})
        channel.basic_publish(new, "", SERVICES, mandatory=True, confirm_timeout=CONFIRM)
        for old in before:
            channel.basic_ack(old.delivery_tag)


def announced_handlers(url: str) -> list[HandlerInfo]:
    """The handlers of all services that have started on a broker, by name."""
    try:
        with _locked(url) as (_, messages):
            texts = [_bytes(message) for message in messages]
    except amqp.exceptions.NotFound:
        return []
    services: dict[str, list[HandlerInfo]] = {}
    for text in texts:
        try:
            announcement = orjson.loads(text)
            services[announcement["service"]] = [
                HandlerInfo.read(stored.pop("name"), stored) for stored in announcement["cards"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # A foreign message stays, and is ignored.
    return sorted((info for handlers in services.values() for info in handlers), key=lambda info: info.name)


@contextmanager
def _locked(url: str) -> Iterator[tuple[Any, list[Any]]]:
    """An exclusive channel of the queue, and all its messages."""
    deadline = time.monotonic() + PATIENCE
    try:
        with Connection(url, transport_options={"confirm_publish": True}, connect_timeout=5) as connection:
            while True:
                channel = connection.channel()
                messages: list[Any] = []
                try:
                    channel.basic_consume(SERVICES, exclusive=True, callback=messages.append)
                    break
                except amqp.exceptions.AccessRefused as error:
                    if "exclusive" not in error.reply_text or time.monotonic() > deadline:
                        raise Unavailable(
                            f"the list of services on RabbitMQ cannot be read: {error.reply_text}"
                        ) from None
                    time.sleep(AGAIN)
            # The reply comes after all deliveries, since no prefetch limits them.
            channel.queue_declare(SERVICES, passive=True)
            yield channel, list(messages)
            channel.close()
    except amqp.exceptions.NotFound:
        raise
    except ConnectionPool.LOST as error:
        raise unreachable(url, error) from None


def _bytes(message: Any) -> bytes:
    return message.body if isinstance(message.body, bytes) else str(message.body).encode()
