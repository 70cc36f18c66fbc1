"""The client's side of Redis: sends an event as one message to the queue of each subscription, under the event's id.

Bindings are in Redis, and every send asks for their version, so every earlier subscription gets the event. On failure a
typed error of the core; publishing again with the same id stores nothing twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from restante.bus.batch import GroupedSender, Publishing, Sender
from restante.bus.broker import Answer, SendOptions
from restante.bus.envelope import Envelope
from restante.core import operations as ops
from restante.core.call_retry import BLOCK
from restante.core.errors import CallTimeout, NoHandler, Unroutable
from restante.core.keys import reply_keys
from restante.core.message import Draft
from restante.core.operations import MAX_BATCH
from restante.core.queue import AsyncClient, Client, Flow, Wait, open_queue, run_flow, run_flow_async
from restante.core.router import Build, Router
from restante.core.routes import QueueInfo
from restante.core.scripts import Command
from restante.core.stored import Json
from restante.rabbitmq.topology import CALLS, CALLS_ALL, EVENTS, UNROUTED, UNROUTED_LENGTH, UNROUTED_SECONDS


class RedisFlows:
    """Publishes and calls, as flows for both clients."""

    def __init__(self, redis: Client | AsyncClient, prefix: str) -> None:
        self._router = Router(redis, prefix, author="bus")

    def _deliver(self, exchange: str, envelope: Envelope, text: bytes, options: SendOptions, **extra: Any) -> Flow[int]:
        """Sends a copy to every queue bound to the topic; returns how many."""
        return (yield from self._router.publish(exchange, envelope.topic, _build(envelope, text, options, extra)))

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> Flow[int]:
        count = yield from self._deliver(EVENTS, envelope, text, options)
        if not count:
            if options.unrouted == "raise":
                raise Unroutable(
                    f"nobody has subscribed to {envelope.topic}: start the service that does, or check the spelling"
                )
            ref = yield from self._router.open(UNROUTED)
            if ref.settings.max_length != UNROUTED_LENGTH:
                ref.pending["max_length"] = str(UNROUTED_LENGTH)
                yield open_queue(ref)
            kept = SendOptions(options.delay, options.priority, options.expires or UNROUTED_SECONDS)
            yield from self._router.send(QueueInfo(UNROUTED), _build(envelope, text, kept, {}))
        return count

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> Flow[list[int | None]]:
        """Publishes events with one round trip per queue and thousand events, instead of one per event."""
        table = yield from self._router.table(EVENTS)
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
            ref = yield from self._router.open(queue)
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
            yield from self._deliver(
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


def _build(envelope: Envelope, text: bytes, options: SendOptions, extra: dict[str, Any]) -> Build:
    """The send of an event to each queue; `extra` are headers beside those of the envelope."""
    return lambda ref, info: ops.send(
        ref,
        Json(text),
        id=envelope.id,
        kind=envelope.topic,
        priority=options.priority,
        delay=options.delay,
        expires=options.expires,
        headers={**_headers(envelope), **extra},
    )


def _headers(envelope: Envelope) -> dict[str, Any]:
    """The envelope's attributes but those that a message has itself."""
    attributes = envelope.attributes()
    del attributes["id"], attributes["type"]
    return attributes


class RedisBroker:
    """The synchronous client's side of Redis."""

    def __init__(self, redis: Client, prefix: str = "") -> None:
        self.redis = redis
        self._flows = RedisFlows(redis, prefix)

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int:
        return run_flow(self.redis.connection, self._flows.publish(envelope, text, options))

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> list[int | None]:
        return run_flow(self.redis.connection, self._flows.publish_many(events, options))

    def sender(self) -> Sender:
        return GroupedSender(self.publish, self.publish_many)

    def begin(self, publishing: Publishing) -> None:
        """Publishes before it returns: it is one round trip."""
        sender = self.sender()
        sender.begin(publishing)
        sender.settle((publishing,))

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        return run_flow(self.redis.connection, self._flows.call(envelope, text, timeout))

    def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]:
        return run_flow(self.redis.connection, self._flows.call_all(envelope, text, timeout))

    def close(self) -> None:
        self.redis.close()


class AsyncRedisBroker:
    """The asyncio client's side of Redis."""

    #: Each takes a connection for its round trip; more would wait for one core of the server.
    at_once = 16

    def __init__(self, redis: AsyncClient, prefix: str = "") -> None:
        self.redis = redis
        self._flows = RedisFlows(redis, prefix)

    async def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int:
        return await run_flow_async(self.redis.connection, self._flows.publish(envelope, text, options))

    async def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        return await run_flow_async(self.redis.connection, self._flows.call(envelope, text, timeout))

    async def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]:
        return await run_flow_async(self.redis.connection, self._flows.call_all(envelope, text, timeout))

    async def close(self) -> None:
        await self.redis.close()
