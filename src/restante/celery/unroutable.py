"""Handles messages for which no queue is bound, as AMQP does: they are lost only if their sender accepts that.

| Publish | Outcome |
|---|---|
| to an exchange that nobody declared | `NotFound` (404) |
| `mandatory=True` | returned: the producer's `on_return`, without one `Unroutable` (312) |
| `deadletter_queue` is set | sent to that queue |
| a transient message, or a transient exchange | dropped: an event may have no listener |
| any other | the option `unroutable` decides: dropped and counted, with one warning per route, or `Unroutable` |
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from kombu.exceptions import ChannelError
from kombu.transport import base

from restante.core.errors import RestanteError
from restante.core.keys import UNROUTABLE
from restante.core.routes import QueueInfo, Table

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient
    from restante.celery.channel import Channel

log = logging.getLogger("restante")

#: Routes whose warning is remembered; with more routes a warning may be repeated.
ROUTES = 1000
#: Seconds between two updates of the time of an exchange's last drop; its count is always exact.
NOTE_EVERY = 1.0


class Unroutable(ChannelError):
    """No queue is bound for a message that must not be dropped."""


class DroppedMessages:
    """Counts on the server what this process drops, and logs one warning per route."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._warned: set[tuple[str, str]] = set()
        self._noted_at: dict[str, float] = defaultdict(lambda: float("-inf"))

    def add(self, exchange: str, routing_key: str, *, warn: bool) -> None:
        if warn and (exchange, routing_key) not in self._warned:
            if len(self._warned) >= ROUTES:
                self._warned.clear()
            self._warned.add((exchange, routing_key))
            log.warning(
                "dropped because no queue is bound exchange=%s routing_key=%s: bind one, or set deadletter_queue or "
                "unroutable='raise'; logged once, further ones are counted in restante_unroutable_total",
                exchange,
                routing_key,
            )
        name, now = self._broker.full_name(exchange), time.monotonic()
        try:
            self._broker.command("HINCRBY", UNROUTABLE, f"count:{name}", 1, key=UNROUTABLE)
            if now - self._noted_at[name] >= NOTE_EVERY:
                self._noted_at[name] = now
                at = int(self._broker.server_time() * 1000)
                self._broker.command("HSET", UNROUTABLE, f"at:{name}", at, key=UNROUTABLE)
        except RestanteError as error:
            # The message is dropped either way: the publish must not fail because the count does.
            log.warning("drop not counted exchange=%s error=%s", exchange, error)


def handle_unroutable(
    channel: Channel, message: dict[str, Any], exchange: str, routing_key: str, *, mandatory: bool
) -> None:
    """Applies the rules above to a message for which no queue is bound."""
    routing, options = channel.broker.routing, channel.options
    table = routing.table(exchange)
    if not table.declared:
        raise not_found("exchange", exchange, "Channel.basic_publish", (60, 40))
    if options.deadletter_queue:
        info = routing.queue(options.deadletter_queue) or QueueInfo(options.deadletter_queue)
        channel.publisher.send(info, message, exchange, routing_key)
    elif mandatory:
        _return(channel, message, exchange, routing_key)
    elif expendable(message, table):
        return
    elif options.unroutable == "raise":
        raise no_route(exchange, routing_key)
    else:
        channel.broker.dropped.add(exchange, routing_key, warn=options.unroutable == "warn")


def _return(channel: Channel, message: dict[str, Any], exchange: str, routing_key: str) -> None:
    """Returns a mandatory message as py-amqp does: to its producer's `on_return`, or else as an error."""
    error = no_route(exchange, routing_key)
    if not channel.events["basic_return"]:
        raise error
    returned = base.Message(
        body=message["body"],
        content_type=message["content-type"],
        content_encoding=message["content-encoding"],
        headers=message["headers"],
        properties=message["properties"],
        channel=channel,
        delivery_info={"exchange": exchange, "routing_key": routing_key},
    )
    for callback in list(channel.events["basic_return"]):
        callback(error, exchange, routing_key, returned)


def expendable(message: dict[str, Any], table: Table) -> bool:
    """Whether the sender accepts that the message has no receiver."""
    return not table.durable or message["properties"].get("delivery_mode") == 1


def no_route(exchange: str, routing_key: str) -> Unroutable:
    return Unroutable(
        f"NO_ROUTE - no queue is bound to exchange {exchange!r} for {routing_key!r}: bind one, or set the transport "
        "option deadletter_queue",
        (60, 40),
        "Channel.basic_publish",
        312,
    )


def not_found(what: str, name: str, method: str, signature: tuple[int, int] = (50, 10)) -> NotFound:
    return NotFound(f"NOT_FOUND - no {what} {name!r}: declare it first", signature, method, 404)
