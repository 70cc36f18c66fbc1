"""What becomes of a message that no queue is bound for, as AMQP has it: lost only where its sender accepts that.

| Publish | Outcome |
|---|---|
| to an exchange that nobody declared | `NotFound` (404) |
| `mandatory=True` | returned: the producer's `on_return`, without one `Unroutable` (312) |
| `deadletter_queue` is set | kept there |
| a transient message, or a transient exchange | dropped: nobody listens, as it may be with events |
| any other | by the option `unroutable`: dropped and counted, with one warning per route, or `Unroutable` |
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from kombu.exceptions import ChannelError

from restante.core.errors import RestanteError
from restante.core.keys import UNROUTABLE

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient
    from restante.core.routes import Table

log = logging.getLogger("restante")

#: Routes whose warning is remembered; beyond them a route may be warned of again.
ROUTES = 1000
#: Seconds between two notes of when an exchange last dropped a message; its count is always exact.
NOTE_EVERY = 1.0


class Unroutable(ChannelError):
    """No queue is bound for a message that must not be dropped."""


class DroppedMessages:
    """Counts what one process drops, on the server, and warns of each route once."""

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
                exchange, routing_key,
            )  # fmt: skip
        name, now = self._broker.full_name(exchange), time.monotonic()
        try:
            self._broker.command("HINCRBY", UNROUTABLE, f"count:{name}", 1, key=UNROUTABLE)
            if now - self._noted_at[name] >= NOTE_EVERY:
                self._noted_at[name] = now
                at = int(self._broker.server_time() * 1000)
                self._broker.command("HSET", UNROUTABLE, f"at:{name}", at, key=UNROUTABLE)
        except RestanteError as error:
            # The message is dropped either way: a count that cannot be kept must not fail its publish.
            log.warning("drop not counted exchange=%s error=%s", exchange, error)


def expendable(message: dict[str, Any], table: Table) -> bool:
    """Whether the sender accepts that nobody listens."""
    return not table.durable or message["properties"].get("delivery_mode") == 1


def no_route(exchange: str, routing_key: str) -> Unroutable:
    return Unroutable(
        f"NO_ROUTE - no queue is bound to exchange {exchange!r} for {routing_key!r}: bind one, or set the transport "
        "option deadletter_queue",
        (60, 40), "Channel.basic_publish", 312,
    )  # fmt: skip


def not_found(what: str, name: str, method: str, signature: tuple[int, int] = (50, 10)) -> NotFound:
    return NotFound(f"NOT_FOUND - no {what} {name!r}: declare it first", signature, method, 404)
