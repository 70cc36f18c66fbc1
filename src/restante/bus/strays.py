"""Forwards events that left RabbitMQ's ladder while the broker started and found no queue.

RabbitMQ starts quorum queues, which the rungs are, before it has read its bindings. Events due in between go to
`events.unrouted`, by the alternate exchange of `ladder:return`. RabbitMQ accepts connections only once the bindings are
there, so a worker that has just connected finds all strays. On failure between publishing and removing, an event is in
both places, and runs once where the bus keeps records.
"""

from __future__ import annotations

from typing import Any

import amqp
from kombu import Connection

from restante.bus.client_rabbitmq import CONFIRM
from restante.bus.envelope import Malformed
from restante.bus.worker_rabbitmq import KEPT_PROPERTIES, attempts_of, without_x_headers
from restante.rabbitmq.ladder import LADDER, TO_QUEUE, target_of
from restante.rabbitmq.topology import KNOWN, UNROUTED


def forward_strays(url: str) -> int:
    """Moves every stray whose queue exists to that queue; returns how many. All others stay where they are."""
    with Connection(url, transport_options={"confirm_publish": True}, connect_timeout=5) as connection:
        channel = connection.channel()
        returned: list[Any] = []
        channel.events["basic_return"].add(lambda *returns: returned.append(returns))
        sent = 0
        for _ in range(channel.queue_declare(UNROUTED, passive=True).message_count):
            message = channel.basic_get(UNROUTED)
            if message is None:
                break
            if not message.delivery_info["exchange"].startswith(LADDER):
                continue
            key = message.delivery_info["routing_key"]
            target = target_of(key)
            exchange = "" if key.endswith(f"{TO_QUEUE}.{target}") else KNOWN
            try:
                forwarded = _without_history(message, target)
            except Malformed:
                continue
            returned.clear()
            channel.basic_publish(forwarded, exchange, target, mandatory=True, confirm_timeout=CONFIRM)
            if not returned:
                channel.basic_ack(message.delivery_tag)
                sent += 1
        return sent  # closing the connection returns messages that were not acked


def _without_history(message: Any, queue: str) -> amqp.Message:
    """The event without the broker's headers; the rejections that they count stay counted."""
    headers = message.headers or {}
    attempts = attempts_of(headers, queue) - 1
    given = message.properties
    properties = {name: given[name] for name in KEPT_PROPERTIES if given.get(name) is not None}
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
    return amqp.Message(
        body,
        application_headers={**without_x_headers(headers), "restante_attempts": attempts},
        delivery_mode=2,
        **properties,
    )
