"""Publishes messages: packs each for its queue, sends it to all that are bound, and broadcasts to transient ones.

On failure a typed error reaches Kombu, whose retries are safe: a message keeps its id over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from restante.celery.broadcasts import broadcast
from restante.celery.messages import Message, delay_of, headers_of, kind_of, payload_of, priority_of
from restante.core import operations as ops
from restante.core.message import MessageId, new_id
from restante.core.queue_ref import QueueRef
from restante.core.router import Build
from restante.core.routes import QueueInfo
from restante.core.scripts import ScriptCall

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Publisher:
    """Sends the messages of one channel."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._options = broker.options

    def publish(self, message: dict[str, Any], exchange: str, routing_key: str) -> bool:
        """Sends a message to every queue bound for it; returns False if there is none."""
        broker = self._broker
        flow = broker.router.publish(
            exchange,
            routing_key,
            lambda ref, info: self._build(ref, info, message, exchange, routing_key),
            lambda: broadcast(broker, message, exchange, routing_key),
        )
        if broker.run(flow):
            return True
        if exchange:
            return False
        # The default exchange leads to every queue by its name, also to one that nobody has declared.
        self.send(QueueInfo(routing_key), message, exchange, routing_key)
        return True

    def send(
        self, info: QueueInfo, message: dict[str, Any], exchange: str, routing_key: str, id: str | None = None
    ) -> None:
        """Sends a message to one queue, under its own id or another."""
        build: Build = lambda ref, info: self._build(ref, info, message, exchange, routing_key, id)  # noqa: E731
        self._broker.run(self._broker.router.send(info, build))

    def _build(
        self,
        ref: QueueRef,
        info: QueueInfo,
        message: dict[str, Any],
        exchange: str,
        routing_key: str,
        id: str | None = None,
    ) -> ScriptCall[MessageId]:
        headers, properties = message["headers"], message["properties"]
        payload, content_type = payload_of(
            message["body"], message.get("content-type"), message.get("content-encoding")
        )
        delay = 0.0 if message.get("due") else delay_of(headers)
        dead_letters = "x-dead-letter-exchange" in info.arguments
        call = ops.send(
            ref,
            payload,
            id=id or properties.get("restante_id") or new_id(),
            kind=kind_of(headers),
            priority=priority_of(properties.get("priority"), info.arguments.get("x-max-priority", 255)),
            headers=headers_of(message, info.name, exchange, routing_key, delay if dead_letters else 0.0),
            content_type=content_type,
            delay=delay,
            expires=None if dead_letters else self.expires(info, properties, delay),
        )
        if (fire := properties.get("restante_fire")) is not None:
            return fire(ref, info, call)  # type: ignore[no-any-return]  # a tick of `beat.Scheduler`
        if id is None and properties.pop("restante_new", None):
            call = ops.first_try(ref, call)
        return call

    def expires(self, info: QueueInfo, properties: dict[str, Any], delay: float) -> float | None:
        """Seconds after the due time at which a waiting message is removed: the shortest limit that is set.

        A time to live of the queue or the transport counts from when the message is due, as RabbitMQ counts from when
        a delayed message reaches its queue. The message's own limit counts from the publish: Celery computes it from
        `expires`, an instant, and a plain message has no other start.
        """
        own = properties.get("expiration")
        limits = (
            None if own in (None, "") else max(0.0, int(own) / 1000 - delay),  # Kombu has converted it to milliseconds
            info.seconds("x-message-ttl"),
            self._options.message_ttl,
        )
        return min((limit for limit in limits if limit is not None), default=None)

    def dead_letter(self, info: QueueInfo, message: Message, reason: str) -> None:
        """Moves a message to its queue's dead-letter exchange, or buries it if no queue is bound there.

        The copy's id is derived from this delivery, so a repeated move stores it once.
        """
        leased = message.leased
        exchange = info.arguments["x-dead-letter-exchange"]
        key = info.arguments.get("x-dead-letter-routing-key", message.delivery_info["routing_key"])
        copy = message.as_published()
        copy["headers"].pop("x-delivery-count", None)
        copy["headers"]["x-death"] = [
            {
                "queue": info.name,
                "reason": reason,
                "count": 1,
                "exchange": message.delivery_info["exchange"],
                "routing-keys": [message.delivery_info["routing_key"]],
            },
            *(copy["headers"].get("x-death") or []),
        ]
        copy["properties"].pop("expiration", None)
        copy["properties"]["restante_id"] = f"{leased.id[:150]}.{leased.lease_token}"
        if self.publish(copy, exchange, key):
            self._broker.holder.queue_ack(leased)
        else:
            error = f"{reason}, and no queue is bound to {exchange} for {key}"
            self._broker.holder.bury(leased, error=error)
