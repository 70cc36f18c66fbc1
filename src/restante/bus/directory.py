"""The services of a RabbitMQ broker and their handlers, kept on the broker itself: for servers and commands that know
its address and no store.

Each service has one message in the queue `SERVICES`, which it replaces when it starts with other handlers. Whoever
reads or writes is the queue's only consumer meanwhile and takes nothing out: what it was given goes back when its
channel closes. On failure to get the queue within `PATIENCE` seconds, `Unavailable`.
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

from restante.bus.client_rabbitmq import CONFIRM, ConnectionPool, amqp_message, unreachable
from restante.bus.registry import HandlerInfo
from restante.core.errors import Unavailable
from restante.rabbitmq.topology import SERVICES

#: Seconds to wait for whoever reads or writes at the same time; each takes milliseconds.
PATIENCE = 5.0
#: Seconds between two tries.
AGAIN = 0.05


def announce(url: str, service: str, handlers: Sequence[HandlerInfo]) -> None:
    """Says which handlers a service has, instead of what it said before."""
    text = orjson.dumps({"service": service, "cards": [asdict(info) for info in handlers]})
    with _held(url) as (channel, messages):
        before = [one for one in messages if one.properties.get("message_id") == service]
        if [_bytes(one) for one in before] == [text]:
            return
        message = amqp_message(text, {}, {"message_id": service, "delivery_mode": 2})
        channel.basic_publish(message, "", SERVICES, mandatory=True, confirm_timeout=CONFIRM)
        for one in before:
            channel.basic_ack(one.delivery_tag)


def announced_handlers(url: str) -> list[HandlerInfo]:
    """The handlers of all services that have started on a broker, by name; none where none has."""
    try:
        with _held(url) as (_, messages):
            told = [_bytes(one) for one in messages]
    except amqp.exceptions.NotFound:
        return []
    found: dict[str, list[HandlerInfo]] = {}
    for text in told:
        try:
            said = orjson.loads(text)
            found[said["service"]] = [HandlerInfo.read(info.pop("name"), info) for info in said["cards"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # Somebody else's message. It stays, and says nothing of services.
    return sorted((info for handlers in found.values() for info in handlers), key=lambda info: info.name)


@contextmanager
def _held(url: str) -> Iterator[tuple[Any, list[Any]]]:
    """A channel that alone has the queue, and everything in it."""
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
            # Answered after the deliveries, which are all there are: nothing limits how many are given at once.
            channel.queue_declare(SERVICES, passive=True)
            yield channel, list(messages)
            channel.close()
    except amqp.exceptions.NotFound:
        raise
    except ConnectionPool.LOST as error:
        raise unreachable(url, error) from None


def _bytes(message: Any) -> bytes:
    return message.body if isinstance(message.body, bytes) else str(message.body).encode()
