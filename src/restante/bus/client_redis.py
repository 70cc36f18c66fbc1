"""The client's side of Redis: sends an event as one message to the queue of each subscription, under the event's id.

Bindings are in Redis, and every send asks for their version, so every earlier subscription gets the event. On failure a
typed error of the core; publishing again with the same id stores nothing twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from restante.bus.batch import GroupedSender, Publishing, Sender
from restante.bus.broker import Answer, SendOptions
from restante.bus.envelope import Envelope
from restante.core import operations as ops
from restante.core.admin import DELETE
from restante.core.call_retry import BLOCK
from restante.core.errors import CallTimeout, NoHandler, TopologyMismatch, Unroutable
from restante.core.keys import QUEUES, exchange_key, reply_keys
from restante.core.message import Draft
from restante.core.operations import MAX_BATCH, Command, QueueRef
from restante.core.queue import AsyncClient, Client, Flow, Wait, open_queue, run_flow, run_flow_async
from restante.core.routes import QueueInfo, Table, question
from restante.core.stored import Json
from restante.rabbitmq.topology import CALLS, CALLS_ALL, EVENTS, UNROUTED, UNROUTED_LENGTH, UNROUTED_SECONDS


class Routes:
    """Finds the queues of a topic by the bindings of a server, of which this process has a copy, and sends to them."""

    def __init__(self, redis: Client | AsyncClient, prefix: str, *, riding: bool) -> None:
        self._redis = redis
        self._prefix = prefix
        #: Whether a send asks for the version in the same round trip: with the synchronous runner, outside a cluster.
        self._riding = riding and redis.connection.endpoint.mode != "cluster"
        self._tables: dict[str, Table] = {}

    def _opened(self, name: str) -> Flow[QueueRef]:
        ref = self._redis.queue(self._prefix + name).ref
        if not ref.opened:
            yield open_queue(ref)
            yield Command(("SADD", QUEUES, ref.name), QUEUES)
        return ref

    def _key(self, exchange: str) -> bytes:
        return exchange_key(self._prefix + exchange, "routes")

    def _load(self, exchange: str) -> Flow[Table]:
        key = self._key(exchange)
        table = self._tables[exchange] = Table.parse((yield Command(("HGETALL", key), key)))
        return table

    def current(self, exchange: str) -> Flow[Table]:
        """The current bindings."""
        known = self._tables.get(exchange)
        if known is not None:
            key = self._key(exchange)
            if ((yield Command(("HGET", key, "version"), key)) or b"") == known.version:
                return known
        return (yield from self._load(exchange))

    def deliver(self, exchange: str, envelope: Envelope, text: bytes, options: SendOptions, **extra: Any) -> Flow[int]:
        """Sends a copy to every queue bound to the topic; returns how many."""
        sent: set[str] = set()
        known = self._tables.get(exchange)
        if self._riding and known is not None and (matched := known.match(envelope.topic)):
            answer = yield from self._send(
                matched[0].name, envelope, text, options, question(self._key(exchange)), extra
            )
            sent.add(matched[0].name)
            table = known if (answer or b"") == known.version else (yield from self._load(exchange))
            if all(info.name != matched[0].name for info in table.match(envelope.topic)):
                # Unbound since this process last read: unless a worker has received the message, it is removed and
                # sent by the current bindings.
                state = yield from self._take_back(matched[0].name, envelope.id)
                if state != b"leased":
                    sent.clear()
        else:
            table = yield from self.current(exchange)
        for info in table.match(envelope.topic):
            if info.name not in sent:
                yield from self._send(info.name, envelope, text, options, b"", extra)
                sent.add(info.name)
        return len(sent)

    def _send(
        self, queue: str, envelope: Envelope, text: bytes, options: SendOptions, asked: bytes, extra: dict[str, Any]
    ) -> Flow[Any]:
        ref = yield from self._opened(queue)
        headers = _headers(envelope)
        op = ops.send(
            ref,
            Json(text),
            id=envelope.id,
            kind=envelope.topic,
            priority=options.priority,
            delay=options.delay,
            expires=options.expires,
            headers={**headers, **extra},
        )
        if not asked:
            yield op
            return None
        answer, _ = yield ops.with_question(op, asked)
        return answer

    def _take_back(self, queue: str, id: str) -> Flow[bytes]:
        """Removes a message; returns its state, `leased` if it stays."""
        ref = yield from self._opened(queue)
        args: list[ops.Argument] = ["bus", "no longer bound", id]
        reply = yield ops.ScriptCall(DELETE, ref.keys.group(DELETE.keys), args, lambda states: states[0], ref.name)
        return bytes(reply)

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> Flow[int]:
        count = yield from self.deliver(EVENTS, envelope, text, options)
        if not count:
            if options.unrouted == "raise":
                raise Unroutable(
                    f"nobody has subscribed to {envelope.topic}: start the service that does, or check the spelling"
                )
            ref = yield from self._opened(UNROUTED)
            if ref.settings.max_length != UNROUTED_LENGTH:
                ref.pending["max_length"] = str(UNROUTED_LENGTH)
                yield open_queue(ref)
            kept = SendOptions(options.delay, options.priority, options.expires or UNROUTED_SECONDS)
            yield from self._send(UNROUTED, envelope, text, kept, b"", {})
        return count

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> Flow[list[int | None]]:
        """Publishes events with one round trip per queue and thousand events, instead of one per event."""
        table = yield from self.current(EVENTS)
        by_queue: dict[str, list[Draft]] = {}
        counts: list[int | None] = []
        for envelope, text in events:
            matched = table.match(envelope.topic)
            if not matched:
                counts.append((yield from self.publish(envelope, text, options)))
                continue
            headers = _headers(envelope)
            for info in matched:
                draft = Draft(Json(text), options.priority, options.delay, id=envelope.id, kind=envelope.topic)
                by_queue.setdefault(info.name, []).append(replace(draft, headers=headers, expires=options.expires))
            counts.append(len(matched))
        for queue, drafts in by_queue.items():
            ref = yield from self._opened(queue)
            for start in range(0, len(drafts), MAX_BATCH):
                yield ops.send_many(ref, drafts[start : start + MAX_BATCH])
        return counts

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Flow[Answer]:
        token = secrets.token_hex(16)
        deadline = time.monotonic() + timeout
        count = yield from self._ask(CALLS, envelope, text, timeout, token)
        if not count:
            raise NoHandler(f"no service answers {envelope.topic}: start the one that does, or check the spelling")
        answers = yield from self._answers(token, deadline, 1)
        if not answers:
            raise CallTimeout(f"{envelope.topic} was not answered within {timeout:g} s: call again, or wait longer")
        return answers[0]

    def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> Flow[list[Answer]]:
        token = secrets.token_hex(16)
        deadline = time.monotonic() + timeout
        count = yield from self._ask(CALLS_ALL, envelope, text, timeout, token)
        if not count:
            raise NoHandler(f"no service answers {envelope.topic}: start one that does, or check the spelling")
        return (yield from self._answers(token, deadline, count))

    def _ask(self, exchange: str, envelope: Envelope, text: bytes, timeout: float, token: str) -> Flow[int]:
        options = SendOptions(expires=timeout)
        return (
            yield from self.deliver(
                exchange, envelope, text, options, reply_to=token, deadline_seconds=round(timeout, 3)
            )
        )

    def _answers(self, token: str, deadline: float, count: int) -> Flow[list[Answer]]:
        """The answers until the deadline, or as soon as there are `count`."""
        key, marker = reply_keys(token)
        answers: list[Answer] = []
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return answers
            yield Wait([marker], min(left, BLOCK))
            received = (yield Command(("LPOP", key, count), key)) or ()
            answers += [Answer.parse(packed) for packed in received]
            if len(answers) >= count:
                return answers


def _headers(envelope: Envelope) -> dict[str, Any]:
    """The envelope's attributes but those that a message has itself."""
    attributes = envelope.attributes()
    del attributes["id"], attributes["type"]
    return attributes


class RedisBroker:
    """The synchronous client's side of Redis."""

    def __init__(self, redis: Client, prefix: str = "") -> None:
        self.redis = redis
        self._routes = Routes(redis, prefix, riding=True)

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int:
        return run_flow(self.redis.connection, self._routes.publish(envelope, text, options))

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> list[int | None]:
        return run_flow(self.redis.connection, self._routes.publish_many(events, options))

    def sender(self) -> Sender:
        return GroupedSender(self.publish, self.publish_many)

    def begin(self, publishing: Publishing) -> None:
        """Publishes before it returns: it is one round trip."""
        sender = self.sender()
        sender.begin(publishing)
        sender.settle((publishing,))

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        return run_flow(self.redis.connection, self._routes.call(envelope, text, timeout))

    def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]:
        return run_flow(self.redis.connection, self._routes.call_all(envelope, text, timeout))

    def close(self) -> None:
        self.redis.close()


class AsyncRedisBroker:
    """The asyncio client's side of Redis."""

    #: Each takes a connection for its round trip; more would wait for one core of the server.
    at_once = 16

    def __init__(self, redis: AsyncClient, prefix: str = "") -> None:
        self.redis = redis
        self._routes = Routes(redis, prefix, riding=False)

    async def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int:
        return await run_flow_async(self.redis.connection, self._routes.publish(envelope, text, options))

    async def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        return await run_flow_async(self.redis.connection, self._routes.call(envelope, text, timeout))

    async def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]:
        return await run_flow_async(self.redis.connection, self._routes.call_all(envelope, text, timeout))

    async def close(self) -> None:
        await self.redis.close()


def bind(
    redis: Client, prefix: str, exchange: str, type: str, bindings: Sequence[tuple[str, str]], owned: Collection[str]
) -> list[str]:
    """Adds the bindings (queue, pattern) that are missing; removes and returns others of the owned queues."""
    key = exchange_key(prefix + exchange, "routes")
    command = redis.connection.command
    table = Table.parse(command("HGETALL", key, key=key))
    if table.declared and table.type != type:
        raise TopologyMismatch(
            f"the exchange {exchange} is of type {table.type} on {redis.connection.endpoint.shown}, not {type}: "
            f"another program has declared it; delete {key.decode()} if no program needs it, or give the bus a prefix="
        )
    wanted = set(bindings)
    existing = {(info.name, pattern) for pattern, _, info in table.bindings}
    obsolete = sorted(pair for pair in existing - wanted if pair[0] in owned)
    missing = sorted(wanted - existing)
    if not table.declared:
        command("HSET", key, "type", f"{type} durable", key=key)
    for queue, pattern in obsolete:
        command("HDEL", key, f"b:{queue}\t{pattern}", key=key)
        bound = exchange_key(prefix + queue, "bound")
        command("SREM", bound, f"{exchange}\t{pattern}", key=bound)
    for queue, pattern in missing:
        command("HSET", key, f"b:{queue}\t{pattern}", QueueInfo(queue).text(), key=key)
        bound = exchange_key(prefix + queue, "bound")
        command("SADD", bound, f"{exchange}\t{pattern}", key=bound)
    if obsolete or missing or not table.declared:
        command("HINCRBY", key, "version", 1, key=key)
    return [f"{queue} {pattern}" for queue, pattern in obsolete]
