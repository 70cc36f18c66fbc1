"""Exchanges and bindings as AMQP declares them, kept by the core's router so that every process routes alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from restante.core.errors import InvalidInput
from restante.core.keys import TRANSIENT, exchange_key
from restante.core.routes import TYPES, QueueInfo, Table

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Routing:
    """Declares and removes the exchanges and bindings of one server."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker

    def table(self, exchange: str) -> Table:
        """The current routing table of an exchange."""
        return self._broker.run(self._broker.router.table(exchange))

    def queue(self, name: str) -> QueueInfo | None:
        """The declaration of a queue; every queue is bound to the default exchange."""
        return next(iter(self.table("").match(name)), None)

    def declare(self, exchange: str, type: str, durable: bool) -> None:
        """Declares an exchange; another type than before is an error."""
        if type not in TYPES:
            raise InvalidInput(
                f"exchange {exchange} has the type {type!r}, which is not supported: use {', '.join(TYPES)}; topic "
                "patterns cover most uses of a headers exchange"
            )
        table = self.table(exchange)
        if not table.declared:
            self._broker.run(self._broker.router.declare(exchange, type, durable=durable))
        elif table.type != type:
            raise InvalidInput(
                f"PRECONDITION_FAILED - exchange {exchange} has the type {table.type}, not {type}: use that type, "
                "or delete the exchange first"
            )

    def remove_exchange(self, exchange: str) -> None:
        self._broker.run(self._broker.router.remove(exchange))
        for suffix in ("broadcast", "positions"):
            key = exchange_key(self._broker.full_name(exchange), suffix)
            self._broker.command("DEL", key, key=key)

    def bind(self, info: QueueInfo, exchange: str, pattern: str) -> None:
        self._broker.run(self._broker.router.bind(exchange, [(info, pattern)]))

    def unbind(self, queue: str, exchange: str, pattern: str) -> None:
        self._broker.run(self._broker.router.unbind(exchange, [(queue, pattern)]))

    def bindings(self, queue: str) -> list[tuple[str, str]]:
        """Exchange and pattern of every binding of a queue, except that to the default exchange."""
        return self._broker.run(self._broker.router.bindings(queue))

    def remove_queue(self, queue: str) -> None:
        """Removes every route to a queue, and its broadcast positions."""
        for exchange, pattern in self.bindings(queue):
            self.unbind(queue, exchange, pattern)
            positions = exchange_key(self._broker.full_name(exchange), "positions")
            self._broker.command("HDEL", positions, queue, key=positions)
        self._broker.command("ZREM", TRANSIENT, self._broker.full_name(queue), key=TRANSIENT)
        self.unbind(queue, "", queue)
