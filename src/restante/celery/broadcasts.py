"""Broadcasts: an exchange's stream of messages, which every bound transient queue reads from a position of its own.

A broadcast costs one stream entry, however many queues read it. On failure to store a position the queue reads its last
entries again after a reconnect.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

import orjson

from restante.core.keys import exchange_key
from restante.core.routes import QueueInfo
from restante.core.scripts import Command
from restante.core.topics import matches

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient

#: Seconds between two writes of a queue's positions. Shorter: more calls. Longer: more entries are read a second time
#: after a reconnect.
SAVE_EVERY = 20.0


def broadcast(broker: BrokerClient, message: dict[str, Any], exchange: str, routing_key: str) -> Command[bytes]:
    """The command that adds a message to the stream of an exchange."""
    body = message["body"]
    packed = {**message, "properties": {**message["properties"]}}
    packed["properties"].pop("restante_id", None)
    packed["properties"].pop("restante_new", None)
    if isinstance(body, bytes | bytearray | memoryview):
        packed["body"], packed["b"] = base64.b64encode(body).decode(), 1
    stream, text = _stream(broker, exchange), orjson.dumps(packed, default=str)
    limit = ("MAXLEN", "~", broker.options.stream_maxlen)
    return Command(("XADD", stream, *limit, "*", "k", routing_key, "m", text), stream)


def start_at_end(broker: BrokerClient, queue: str, exchange: str) -> None:
    """Lets a queue read an exchange's broadcasts from now on, unless it has a position there already."""
    stream, positions = _stream(broker, exchange), _positions(broker, exchange)
    newest = broker.command("XREVRANGE", stream, "+", "-", "COUNT", 1, key=stream)
    broker.command("HSETNX", positions, queue, newest[0][0] if newest else b"0-0", key=positions)


class BroadcastReader:
    """Reads the broadcasts of one queue: it knows the queue's bindings and its position in each stream."""

    __slots__ = ("_broker", "_info", "_saved_at", "_topics", "bindings", "positions", "unsaved")

    def __init__(self, broker: BrokerClient, info: QueueInfo) -> None:
        self._broker = broker
        self._info = info
        #: Exchange and pattern of every binding; empty for a durable queue, which gets copies.
        self.bindings: list[tuple[str, str]] = []
        #: Stream → the last entry that the queue has read.
        self.positions: dict[bytes, str] = {}
        #: Stream → the type of its exchange, the patterns of the queue's bindings, the exchange.
        self._topics: dict[bytes, tuple[str, list[str], str]] = {}
        #: When the positions were last written to the server, and whether they have moved since.
        self._saved_at, self.unsaved = 0.0, False

    def subscribe(self) -> None:
        """Loads a transient queue's bindings and positions from the server."""
        self._topics, self.positions = {}, {}
        broker, queue = self._broker, self._info.name
        time_to_live = self._info.seconds("x-message-ttl")
        self.bindings = broker.routing.bindings(queue)
        for exchange, pattern in self.bindings:
            table = broker.routing.table(exchange)
            if not table.broadcasts:
                continue
            stream, positions = _stream(broker, exchange), _positions(broker, exchange)
            position = (broker.command("HGET", positions, queue, key=positions) or b"0-0").decode()
            if time_to_live is not None:
                oldest = f"{int((broker.server_time() - time_to_live) * 1000)}-0"
                position = max(position, oldest, key=entry_order)
            self.positions[stream] = position
            topic = self._topics.setdefault(stream, (table.type, [], exchange))
            topic[1].append(pattern)

    def read(self, stream: bytes, entries: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        """Advances the position to the last entry; returns position and message parts of new entries that are bound."""
        messages = []
        type, patterns, exchange = self._topics[stream]
        for id, fields in entries:
            position = id.decode()
            if entry_order(position) <= entry_order(self.positions[stream]):
                continue
            self.positions[stream] = position
            entry = dict(zip(fields[::2], fields[1::2], strict=True))
            routing_key = entry[b"k"].decode()
            if type == "topic" and not any(matches(pattern, routing_key) for pattern in patterns):
                continue
            message = orjson.loads(entry[b"m"])
            parts = {
                "body": base64.b64decode(message["body"]) if message.get("b") else message["body"],
                "content_type": message.get("content-type"),
                "content_encoding": message.get("content-encoding"),
                "headers": message.get("headers") or {},
                "properties": message.get("properties") or {},
                "exchange": exchange,
                "routing_key": routing_key,
            }
            messages.append((position, parts))
        self.unsaved = True
        return messages

    def read_one(self) -> list[tuple[str, dict[str, Any]]]:
        """Reads one entry of the first stream that has a new one, and stores the position; empty if it is not bound."""
        for stream, position in self.positions.items():
            entries = self._broker.command("XRANGE", stream, f"({position}", "+", "COUNT", 1, key=stream)
            if entries:
                messages = self.read(stream, entries)
                self.save()
                return messages
        return []

    def save_when_due(self, now: float) -> None:
        """Stores positions that have moved, but not after every entry: a reconnect may read the last ones again."""
        if self.unsaved and now - self._saved_at >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Stores the positions on the server."""
        self._saved_at, self.unsaved = time.monotonic(), False
        for stream, (_, _, exchange) in self._topics.items():
            positions = _positions(self._broker, exchange)
            self._broker.command("HSET", positions, self._info.name, self.positions[stream], key=positions)

    def restore(self, exchange: str) -> None:
        """Stores the position in one exchange if the server has none."""
        position = self.positions.get(_stream(self._broker, exchange))
        if position is not None:
            positions = _positions(self._broker, exchange)
            self._broker.command("HSETNX", positions, self._info.name, position, key=positions)


def entry_order(position: str) -> tuple[int, int]:
    """Sorts positions in a stream."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number or 0)


def _stream(broker: BrokerClient, exchange: str) -> bytes:
    return exchange_key(broker.full_name(exchange), "broadcast")


def _positions(broker: BrokerClient, exchange: str) -> bytes:
    return exchange_key(broker.full_name(exchange), "positions")
