"""Exchanges and bindings, kept in Redis so that every process routes alike.

A table is cached and its version asked for at every publish: what was bound before a publish gets its message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from restante.core.errors import InvalidInput
from restante.core.keys import TRANSIENT, exchange_key
from restante.core.routes import TYPES, QueueInfo, Table, question

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Routing:
    """The tables of one server, as this process knows them."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._tables: dict[str, Table] = {}

    def table(self, exchange: str) -> Table:
        """The routes as they are now."""
        key = exchange_key(self._broker.full_name(exchange), "routes")
        known = self._tables.get(exchange)
        if known is not None:
            version = self._broker.command("HGET", key, "version", key=key)
            if (version or b"") == known.version:
                return known
        return self.load(exchange)

    def load(self, exchange: str) -> Table:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        table = self._tables[exchange] = Table.parse(self._broker.command("HGETALL", key, key=key), exchange)
        return table

    def guess(self, exchange: str) -> tuple[Table | None, bytes]:
        """The routes as last known, and the question whose answer tells whether they still hold."""
        known = self._tables.get(exchange)
        if known is None or self._broker.client.connection.endpoint.mode == "cluster":
            return None, b""  # in a cluster the exchange may lie elsewhere than the queue
        return known, question(exchange_key(self._broker.full_name(exchange), "routes"))

    def queue(self, name: str) -> QueueInfo | None:
        """What a queue was declared with; every queue is bound to the exchange without a name."""
        return next(iter(self.table("").match(name)), None)

    def declare(self, exchange: str, type: str, durable: bool) -> None:
        if type not in TYPES:
            raise InvalidInput(
                f"exchange {exchange} is of type {type!r}, and this broker has {', '.join(TYPES)}: use topic, whose "
                "patterns cover most of what headers are used for"
            )
        table = self.table(exchange)
        if table.declared:
            if table.type != type:
                raise InvalidInput(
                    f"PRECONDITION_FAILED - exchange {exchange} is of type {table.type}, not {type}: use the type it "
                    "has, or delete it first"
                )
            return
        key = exchange_key(self._broker.full_name(exchange), "routes")
        self._broker.command("HSET", key, "type", f"{type} durable" if durable else type, key=key)
        self._changed(exchange)

    def forget_exchange(self, exchange: str) -> None:
        for word in ("routes", "broadcast", "positions"):
            key = exchange_key(self._broker.full_name(exchange), word)
            self._broker.command("DEL", key, key=key)
        self._tables.pop(exchange, None)

    def bind(self, info: QueueInfo, exchange: str, pattern: str) -> None:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        if exchange:
            bound = exchange_key(self._broker.full_name(info.name), "bound")
            self._broker.command("SADD", bound, f"{exchange}\t{pattern}", key=bound)
        self._broker.command("HSET", key, f"b:{info.name}\t{pattern}", info.text(), key=key)
        self._changed(exchange)

    def unbind(self, queue: str, exchange: str, pattern: str) -> None:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        bound = exchange_key(self._broker.full_name(queue), "bound")
        self._broker.command("HDEL", key, f"b:{queue}\t{pattern}", key=key)
        self._broker.command("SREM", bound, f"{exchange}\t{pattern}", key=bound)
        self._changed(exchange)

    def bindings(self, queue: str) -> list[tuple[str, str]]:
        """Exchange and pattern of every binding but the one to the exchange without a name."""
        bound = exchange_key(self._broker.full_name(queue), "bound")
        pairs = (text.decode().split("\t", 1) for text in self._broker.command("SMEMBERS", bound, key=bound))
        return sorted((exchange, pattern) for exchange, pattern in pairs)

    def forget_queue(self, queue: str) -> None:
        """Removes every route to a queue, and its places in broadcasts."""
        for exchange, pattern in self.bindings(queue):
            self.unbind(queue, exchange, pattern)
            places = exchange_key(self._broker.full_name(exchange), "positions")
            self._broker.command("HDEL", places, queue, key=places)
        key = exchange_key(self._broker.full_name(""), "routes")
        self._broker.command("HDEL", key, f"b:{queue}\t{queue}", key=key)
        self._broker.command("ZREM", TRANSIENT, self._broker.full_name(queue), key=TRANSIENT)
        self._changed("")

    def _changed(self, exchange: str) -> None:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        self._broker.command("HINCRBY", key, "version", 1, key=key)
        self._tables.pop(exchange, None)
