"""Publishes messages: finds the bound queues, sends to each, and broadcasts to transient ones.

On failure a typed error reaches Kombu, whose retries are safe: a message keeps its id over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from restante.celery.broadcasts import broadcast
from restante.celery.messages import Message, delay_of, headers_of, kind_of, payload_of, priority_of
from restante.core import operations as ops
from restante.core.admin import Admin
from restante.core.errors import MessageLeased, NotFound
from restante.core.message import new_id
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Publisher:
    """Sends the messages of one channel."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._options = broker.options

    def publish(self, message: dict[str, Any], exchange: str, routing_key: str) -> bool:
        """Sends a message to every queue bound for it; returns False if there is none."""
        sent: str | None = None
        routing = self._broker.routing
        cached, question = routing.cached(exchange)
        if cached is not None:
            guessed = cached.match(routing_key)
            if len(guessed) == 1 and not (guessed[0].transient and cached.broadcasts):
                # One queue, as for most messages: the send carries the question whether the cached routes still hold.
                sent = guessed[0].name
                if (self.send(guessed[0], message, exchange, routing_key, question=question) or b"") == cached.version:
                    return True
        table = routing.load(exchange) if sent else routing.table(exchange)
        queues = table.match(routing_key)
        if sent is not None:
            if all(info.name != sent for info in queues):
                self._take_back(sent, message)
            elif len(queues) == 1:
                return True
            queues = [info for info in queues if info.name != sent]
        if not exchange and not queues:
            queues = [QueueInfo(routing_key)]
        copies = [info for info in queues if not (info.transient and table.broadcasts)]
        if len(copies) < len(queues):
            broadcast(self._broker, message, exchange, routing_key)
        for info in copies:
            self.send(info, message, exchange, routing_key)
        return bool(queues)

    def _take_back(self, queue: str, message: dict[str, Any]) -> None:
        """Deletes a message from a queue that was unbound before the send, unless it was received already."""
        try:
            Admin(self._broker.client, audited=False).delete(
                self._broker.full_name(queue), [message["properties"]["restante_id"]], detail="no longer bound"
            )
        except (MessageLeased, NotFound, KeyError):
            pass

    def send(
        self,
        info: QueueInfo,
        message: dict[str, Any],
        exchange: str,
        routing_key: str,
        id: str | None = None,
        question: bytes = b"",
    ) -> Any:
        """Sends a message to one queue; returns the answer to `question`, a command that travels with the send."""
        headers, properties = message["headers"], message["properties"]
        payload, content_type = payload_of(
            message["body"], message.get("content-type"), message.get("content-encoding")
        )
        delay = 0.0 if message.get("due") else delay_of(headers)
        dead_letters = "x-dead-letter-exchange" in info.arguments
        queue = self._broker.queue(info.name)
        if not queue.ref.opened:
            queue.ensure_open()
        call = ops.send(
            queue.ref,
            payload,
            id=id or properties.get("restante_id") or new_id(),
            kind=kind_of(headers),
            priority=priority_of(properties.get("priority"), info.arguments.get("x-max-priority", 255)),
            headers=headers_of(message, info.name, exchange, routing_key, delay if dead_letters else 0.0),
            content_type=content_type,
            delay=delay,
            expires=None if dead_letters else self.expires(info, properties, delay),
        )
        if id is None and properties.pop("restante_new", None):
            call = ops.first_try(queue.ref, call)
        if not question:
            self._broker.client.connection.run(call)
            return None
        answer, _ = self._broker.client.connection.run(ops.with_question(call, question))
        return answer

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
            self._broker.queue_ack(leased)
        else:
            self._broker.bury(leased, f"{reason}, and no queue is bound to {exchange} for {key}")
