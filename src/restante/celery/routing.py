"""Exchanges and bindings, stored in Redis so that every process routes alike.

A routing table is cached, and every publish checks its version: a queue that was bound before a publish gets its
message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from restante.core.errors import InvalidInput
from restante.core.keys import TRANSIENT, exchange_key
from restante.core.routes import TYPES, QueueInfo, Table, question

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Routing:
    """Reads and changes the routing tables of one server, and caches them."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._tables: dict[str, Table] = {}

    def table(self, exchange: str) -> Table:
        """The current routing table of an exchange."""
        key = exchange_key(self._broker.full_name(exchange), "routes")
        known = self._tables.get(exchange)
        if known is not None:
            version = self._broker.command("HGET", key, "version", key=key)
            if (version or b"") == known.version:
                return known
        return self.load(exchange)

    def load(self, exchange: str) -> Table:
        """Reads the routing table of an exchange from the server."""
        key = exchange_key(self._broker.full_name(exchange), "routes")
        table = self._tables[exchange] = Table.parse(self._broker.command("HGETALL", key, key=key), exchange)
        return table

    def cached(self, exchange: str) -> tuple[Table | None, bytes]:
        """The cached routing table, and the command whose answer shows whether it is current."""
        known = self._tables.get(exchange)
        if known is None or self._broker.client.connection.endpoint.mode == "cluster":
            return None, b""  # in a cluster exchange and queue may be on different nodes
        return known, question(exchange_key(self._broker.full_name(exchange), "routes"))

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
        if table.declared:
            if table.type != type:
                raise InvalidInput(
                    f"PRECONDITION_FAILED - exchange {exchange} has the type {table.type}, not {type}: use that type, "
                    "or delete the exchange first"
                )
            return
        key = exchange_key(self._broker.full_name(exchange), "routes")
        self._broker.command("HSET", key, "type", f"{type} durable" if durable else type, key=key)
        self._bump_version(exchange)

    def remove_exchange(self, exchange: str) -> None:
        for suffix in ("routes", "broadcast", "positions"):
            key = exchange_key(self._broker.full_name(exchange), suffix)
            self._broker.command("DEL", key, key=key)
        self._tables.pop(exchange, None)

    def bind(self, info: QueueInfo, exchange: str, pattern: str) -> None:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        if exchange:
            bound = exchange_key(self._broker.full_name(info.name), "bound")
            self._broker.command("SADD", bound, f"{exchange}\t{pattern}", key=bound)
        self._broker.command("HSET", key, f"b:{info.name}\t{pattern}", info.text(), key=key)
        self._bump_version(exchange)

    def unbind(self, queue: str, exchange: str, pattern: str) -> None:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        bound = exchange_key(self._broker.full_name(queue), "bound")
        self._broker.command("HDEL", key, f"b:{queue}\t{pattern}", key=key)
        self._broker.command("SREM", bound, f"{exchange}\t{pattern}", key=bound)
        self._bump_version(exchange)

    def bindings(self, queue: str) -> list[tuple[str, str]]:
        """Exchange and pattern of every binding of a queue, except that to the default exchange."""
        bound = exchange_key(self._broker.full_name(queue), "bound")
        pairs = (text.decode().split("\t", 1) for text in self._broker.command("SMEMBERS", bound, key=bound))
        return sorted((exchange, pattern) for exchange, pattern in pairs)

    def remove_queue(self, queue: str) -> None:
        """Removes every route to a queue, and its broadcast positions."""
        for exchange, pattern in self.bindings(queue):
            self.unbind(queue, exchange, pattern)
            positions = exchange_key(self._broker.full_name(exchange), "positions")
            self._broker.command("HDEL", positions, queue, key=positions)
        key = exchange_key(self._broker.full_name(""), "routes")
        self._broker.command("HDEL", key, f"b:{queue}\t{queue}", key=key)
        self._broker.command("ZREM", TRANSIENT, self._broker.full_name(queue), key=TRANSIENT)
        self._bump_version("")

    def _bump_version(self, exchange: str) -> None:
        key = exchange_key(self._broker.full_name(exchange), "routes")
        self._broker.command("HINCRBY", key, "version", 1, key=key)
        self._tables.pop(exchange, None)
