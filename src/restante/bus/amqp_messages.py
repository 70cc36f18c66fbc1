"""An event as a message of RabbitMQ: CloudEvents in binary form, where it is published, and why it fails. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import amqp

from restante.bus.addresses import shown
from restante.bus.broker import SendOptions
from restante.bus.envelope import Envelope
from restante.core.errors import QueueFull, RestanteError, Unavailable, Unroutable
from restante.rabbitmq.ladder import Ladder
from restante.rabbitmq.topology import KNOWN

#: The highest priority of a queue on RabbitMQ; 0–255 is scaled to it.
MOST_PRIORITY = 10
_CLOUD = "cloudEvents_"
_CLOUD_NAMES = frozenset(("specversion", "id", "type", "source", "time", "schemaversion"))


def to_headers(envelope: Envelope) -> dict[str, Any]:
    """An envelope as AMQP headers: CloudEvents' attributes with its prefix, all others as they are."""
    return {f"{_CLOUD}{name}" if name in _CLOUD_NAMES else name: value for name, value in envelope.attributes().items()}


def from_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """AMQP headers without CloudEvents' prefix, in either of its two forms."""
    return {
        name[len(_CLOUD) :] if name.startswith((_CLOUD, "cloudEvents:")) else name: value
        for name, value in headers.items()
    }


def properties_of(envelope: Envelope, options: SendOptions | None = None) -> dict[str, Any]:
    """The AMQP properties of an event."""
    return {
        "message_id": envelope.id,
        "type": envelope.topic,
        "app_id": envelope.source,
        "timestamp": int((envelope.time or datetime.now(UTC)).timestamp()),
        "priority": scaled(options.priority if options else 0),
        "delivery_mode": 2,
    }


def scaled(priority: int) -> int:
    """A priority of 0–255 in RabbitMQ's steps, rounded up: above zero stays above zero."""
    return -(-priority * MOST_PRIORITY // 255)


def route(envelope: Envelope, options: SendOptions, ladder: Ladder) -> tuple[str, str]:
    """The exchange and the routing key of an event: to its subscriptions, or to the ladder that delays it."""
    if options.delay:
        return ladder.later(options.delay, envelope.topic)
    return KNOWN, envelope.topic


def amqp_message(body: bytes, headers: dict[str, Any], properties: dict[str, Any]) -> amqp.Message:
    """An AMQP message, of JSON unless its properties say otherwise."""
    all_properties = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    return amqp.Message(body, application_headers=headers, **all_properties)


def event_message(envelope: Envelope, text: bytes, options: SendOptions) -> amqp.Message:
    """An event as it is published."""
    return amqp_message(text, to_headers(envelope), properties_of(envelope, options))


def unreachable(url: str, error: BaseException) -> Unavailable:
    return Unavailable(
        f"RabbitMQ at {shown(url)} cannot be reached ({type(error).__name__}): check the URL, the login, that the "
        "broker runs, and the network between"
    )


def queue_full(ids: str) -> QueueFull:
    return QueueFull(f"a queue is full and refused {ids}: replay or purge its messages")


def returned_error(topic: str, options: SendOptions, exchange: str) -> RestanteError | None:
    """Why an event fails that no queue took; None if `EVENTS` is to keep it."""
    if options.delay:
        return Unavailable(
            f"{exchange} is gone from RabbitMQ, so the event cannot wait there: start a worker, which declares it, or "
            "run `restante rabbitmq declare`"
        )
    if options.unrouted == "raise":
        return Unroutable(f"nobody has subscribed to {topic}: start the service that does, or check the spelling")
    return None


def event_refused(error: BaseException) -> Unavailable:
    return Unavailable(f"RabbitMQ closes every connection that publishes this event: {type(error).__name__}: {error}")
