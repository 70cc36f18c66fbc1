"""Sends messages to the queues that are bound to a topic, by bindings stored in Redis, of which it keeps a copy.

Every publish checks the version of the copy, so a queue that was bound before a publish gets its message. On failure a
typed error of the core: some queues may have the message already, and a publish under the same id stores no second one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from restante.core.keys import QUEUES, exchange_key
from restante.core.operator_verbs import delete
from restante.core.queue import AsyncClient, Client, Flow, open_queue
from restante.core.queue_ref import QueueRef
from restante.core.routes import QueueInfo, Table, question
from restante.core.scripts import Command, Operation, ScriptCall, with_question

#: Builds the send for one queue. Every send of a publish has the same message id.
Build = Callable[[QueueRef, QueueInfo], ScriptCall[Any]]


class Router:
    """Reads and changes the bindings of one server, and publishes by them.

    Its methods are flows, for both runners. The journal names `author` where a message was taken back.
    """

    def __init__(self, client: Client | AsyncClient, prefix: str = "", *, author: str) -> None:
        self._client = client
        self._prefix = prefix
        self._author = author
        # Whether a send asks for the version in the same round trip. The asyncio runner cannot; in a cluster the
        # exchange and the queue may be on different nodes.
        self._optimistic = isinstance(client, Client) and client.connection.endpoint.mode != "cluster"
        self._tables: dict[str, Table] = {}

    # -- reading -------------------------------------------------------------------------------------------------

    def table(self, exchange: str) -> Flow[Table]:
        """The current routes of an exchange."""
        known = self._tables.get(exchange)
        if known is not None:
            key = self._routes(exchange)
            if ((yield Command(("HGET", key, "version"), key)) or b"") == known.version:
                return known
        return (yield from self.load(exchange))

    def load(self, exchange: str) -> Flow[Table]:
        """Reads the routes of an exchange from the server."""
        key = self._routes(exchange)
        table = self._tables[exchange] = Table.parse((yield Command(("HGETALL", key), key)), exchange)
        return table

    def bindings(self, queue: str) -> Flow[list[tuple[str, str]]]:
        """Exchange and pattern of every binding of a queue, except that to the exchange without a name."""
        bound = self._bound(queue)
        members: list[bytes] = yield Command(("SMEMBERS", bound), bound)
        pairs = (member.decode().split("\t", 1) for member in members)
        return sorted((exchange, pattern) for exchange, pattern in pairs)

    # -- changing ------------------------------------------------------------------------------------------------

    def declare(self, exchange: str, type: str, *, durable: bool = True) -> Flow[None]:
        """Sets the type of an exchange. The caller refuses an exchange that has another type already."""
        key = self._routes(exchange)
        yield Command(("HSET", key, "type", f"{type} durable" if durable else type), key)
        yield from self._changed(exchange)

    def bind(self, exchange: str, bindings: Sequence[tuple[QueueInfo, str]]) -> Flow[None]:
        """Binds queues to an exchange, each with a pattern."""
        key = self._routes(exchange)
        for info, pattern in bindings:
            if exchange:
                # The queue's list comes first: removing the queue removes only bindings that are listed.
                bound = self._bound(info.name)
                yield Command(("SADD", bound, f"{exchange}\t{pattern}"), bound)
            yield Command(("HSET", key, f"b:{info.name}\t{pattern}", info.text()), key)
        if bindings:
            yield from self._changed(exchange)

    def unbind(self, exchange: str, bindings: Sequence[tuple[str, str]]) -> Flow[None]:
        """Removes bindings, given as queue and pattern."""
        key = self._routes(exchange)
        for queue, pattern in bindings:
            bound = self._bound(queue)
            yield Command(("HDEL", key, f"b:{queue}\t{pattern}"), key)
            yield Command(("SREM", bound, f"{exchange}\t{pattern}"), bound)
        if bindings:
            yield from self._changed(exchange)

    def remove(self, exchange: str) -> Flow[None]:
        """Removes the routes of an exchange."""
        key = self._routes(exchange)
        yield Command(("DEL", key), key)
        self._tables.pop(exchange, None)

    def _changed(self, exchange: str) -> Flow[None]:
        key = self._routes(exchange)
        yield Command(("HINCRBY", key, "version", 1), key)
        self._tables.pop(exchange, None)

    # -- sending -------------------------------------------------------------------------------------------------

    def publish(
        self, exchange: str, topic: str, build: Build, broadcast: Callable[[], Operation[Any]] | None = None
    ) -> Flow[int]:
        """Sends a message to every queue bound to the topic; returns how many it has reached.

        If one refuses, the others keep their copies: taking them back could delete what an earlier publish under the
        same id has stored. Publishing again under the id completes them.

        With `broadcast`, transient queues read the stream of an exchange that has one: this builds the call that adds
        the message to the stream, and they get no copies.
        """
        table, first = yield from self._send_first(exchange, topic, build, broadcast is not None)
        matched = table.match(topic)
        copies = matched
        if broadcast is not None and table.broadcasts:
            copies = [info for info in matched if not info.transient]
            if len(copies) < len(matched):
                yield broadcast()
        for info in copies:
            if info.name != first:
                yield from self.send(info, build)
        return len(matched) + (first != "" and all(info.name != first for info in matched))

    def _send_first(self, exchange: str, topic: str, build: Build, streams: bool) -> Flow[tuple[Table, str]]:
        """Sends to the first queue by the copy of the routes, and asks in the same round trip whether they still hold.

        Most messages have one queue and take one round trip. Returns the current routes, and the queue that has the
        message: none if nothing was sent yet.
        """
        known = self._tables.get(exchange) if self._optimistic else None
        guessed = known.match(topic) if known is not None else ()
        if known is None or not guessed or (streams and known.broadcasts and any(info.transient for info in guessed)):
            return (yield from self.table(exchange)), ""
        send = yield from self._prepare(guessed[0], build)
        version, id = yield with_question(send, question(self._routes(exchange)))
        first = guessed[0].name
        if (version or b"") == known.version:
            return known, first
        table = yield from self.load(exchange)
        if all(info.name != first for info in table.match(topic)) and (yield from self._take_back(first, id)):
            first = ""
        return table, first

    def send(self, info: QueueInfo, build: Build) -> Flow[Any]:
        """Sends a message to one queue, whatever is bound."""
        return (yield (yield from self._prepare(info, build)))

    def open(self, queue: str) -> Flow[QueueRef]:
        """The queue, declared on the server, with its settings read."""
        ref = self._client.queue(self._prefix + queue).ref
        if not ref.opened:
            yield Command(("SADD", QUEUES, ref.name), QUEUES)
            yield open_queue(ref)
        return ref

    def _prepare(self, info: QueueInfo, build: Build) -> Flow[ScriptCall[Any]]:
        ref = self._client.queue(self._prefix + info.name).ref
        if not ref.opened:
            yield from self.open(info.name)
        return build(ref, info)

    def _take_back(self, queue: str, id: str) -> Flow[bool]:
        """Deletes a message from a queue that was unbound before the send; returns False if a consumer has it."""
        ref = yield from self.open(queue)
        states = yield delete(ref, (id,), operator=self._author, detail="no longer bound")
        return bool(states != [b"leased"])

    def _routes(self, exchange: str) -> bytes:
        return exchange_key(self._prefix + exchange, "routes")

    def _bound(self, queue: str) -> bytes:
        return exchange_key(self._prefix + queue, "bound")
