"""The registry of handlers in Redis, which services write when they start: for pages, commands and publishers.

RabbitMQ does not report which queues an event went to, and has no journal: with a store, publishers use this instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from restante.bus.broker import SendOptions
from restante.bus.client import open_redis
from restante.bus.envelope import Envelope
from restante.core.errors import RestanteError
from restante.core.journal import Line
from restante.core.keys import QUEUES, SUBSCRIPTIONS, QueueKeys
from restante.core.message import JournalEvent, State
from restante.core.topics import matches
from restante.rabbitmq.topology import call_queue

if TYPE_CHECKING:
    from restante.bus.broker import WorkerBackend
    from restante.bus.handler import Handler
    from restante.core.queue import Client

log = logging.getLogger("restante")

#: Seconds without a request after one failed, so that no second publish waits for it.
AWAY = 5.0
#: Seconds for which a copy of the registry is used.
FRESH = 1.0


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A handler of a service, as the registry lists it."""

    name: str
    service: str
    handler: str
    #: The pattern of topics of a handler of events.
    topic: str | None
    #: The topic of calls that the handler answers.
    answers: str | None
    queue: str
    retry: str
    max_attempts: int
    broker: str
    #: Messages the service's archive takes; None on Redis, without an archive, and if an earlier version wrote this.
    archive_length: int | None = None

    @classmethod
    def read(cls, name: str, stored: Mapping[str, Any]) -> HandlerInfo:
        """Reads a stored handler; ignores fields that a later version added."""
        return cls(name, **{key: value for key, value in stored.items() if key in cls.__slots__ and key != "name"})


def register(
    redis: Client, service: str, handlers: Sequence[Handler], backend: WorkerBackend, prefix: str = ""
) -> None:
    """Writes a service's handlers to the registry, and removes those that it no longer has."""
    command = redis.connection.command
    flat = command("HGETALL", SUBSCRIPTIONS, key=SUBSCRIPTIONS)
    before = {flat[at].decode(): orjson.loads(flat[at + 1]) for at in range(0, len(flat), 2)}
    now = {info.name: info for info in handler_infos(service, handlers, backend, prefix)}
    for name, info in now.items():
        stored = {key: value for key, value in asdict(info).items() if key != "name"}
        if before.get(name) != stored:
            command("HSET", SUBSCRIPTIONS, name, orjson.dumps(stored), key=SUBSCRIPTIONS)
        command("SADD", QUEUES, info.queue, key=QUEUES)
    for name, stored in before.items():
        if stored["service"] == service and stored["broker"] == backend.broker and name not in now:
            command("HDEL", SUBSCRIPTIONS, name, key=SUBSCRIPTIONS)
            log.warning("unregistered subscription=%s: its queue stays with its messages until you drop it", name)
            answered = {other["answers"] for other_name, other in before.items() if other_name != name}
            if stored["answers"] and stored["answers"] not in answered:
                backend.forget_answer(stored["answers"])


def handler_infos(
    service: str, handlers: Sequence[Handler], backend: WorkerBackend, prefix: str = ""
) -> list[HandlerInfo]:
    """A service's handlers as the registry lists them."""
    return [
        HandlerInfo(
            prefix + handler.subscription,
            service,
            handler.name,
            handler.pattern,
            handler.answers,
            prefix + (handler.subscription if handler.answers is None else call_queue(handler.answers)),
            handler.retry_rule.policy.text(),
            handler.retry_rule.max_attempts,
            backend.broker,
            backend.archive_length,
        )
        for handler in handlers
    ]


def registered_handlers(redis: Client) -> list[HandlerInfo]:
    """All registered handlers, by name."""
    flat = redis.connection.command("HGETALL", SUBSCRIPTIONS, key=SUBSCRIPTIONS)
    infos = []
    for at in range(0, len(flat), 2):
        try:
            infos.append(HandlerInfo.read(flat[at].decode(), orjson.loads(flat[at + 1])))
        except (ValueError, TypeError, AttributeError) as error:
            # An entry that cannot be read must not hide every other service.
            log.warning("skipped subscription=%r error=%s", flat[at][:100], error)
    return sorted(infos, key=lambda info: info.name)


class Registry:
    """The registry for a publisher on RabbitMQ. If Redis is away, events are published without it."""

    def __init__(self, store: str) -> None:
        self._redis = open_redis(store, patience=1.0)
        self._handlers: list[HandlerInfo] = []
        self._read_at = 0.0
        #: Until when no request is sent, because Redis was away.
        self._away_until = 0.0

    def _failed(self, error: RestanteError) -> None:
        self._away_until = time.monotonic() + AWAY
        log.warning("registry away error=%s", error)

    def _known(self) -> list[HandlerInfo]:
        now = time.monotonic()
        if now < self._away_until:
            return []
        if now - self._read_at > FRESH:
            self._handlers = [info for info in registered_handlers(self._redis) if info.broker == "rabbitmq"]
            self._read_at = now
        return self._handlers

    def answering(self, topic: str) -> int | None:
        """How many services answer a topic, None if unknown."""
        try:
            return len({info.service for info in self._known() if info.answers == topic}) or None
        except RestanteError as error:
            self._failed(error)
            return None

    def sent(self, envelope: Envelope, size: int, options: SendOptions) -> int | None:
        """Writes an event to the journal of every subscription that gets it; returns how many, None if unknown."""
        state = State.SCHEDULED if options.delay else State.READY
        line = self._line(JournalEvent.SENT, state, envelope, size, options.priority, options.delay or None)
        return self._note(envelope, line, [c.queue for c in self._topics(envelope.topic)])

    def sent_many(self, events: Sequence[tuple[Envelope, int, SendOptions]]) -> list[int | None]:
        """`sent` for several events in one round trip."""
        from restante.core.claims import once

        if time.monotonic() < self._away_until:
            return [None] * len(events)
        ops, counts = [], []
        for envelope, size, options in events:
            queues = [info.queue for info in self._topics(envelope.topic)]
            state = State.SCHEDULED if options.delay else State.READY
            line = self._line(JournalEvent.SENT, state, envelope, size, options.priority, options.delay or None)
            ops += [once("note", QueueKeys(queue), envelope.id, 0, 1.0, line) for queue in queues]
            counts.append(len(queues))
        try:
            self._redis.connection.run_all(ops)
        except RestanteError as error:
            self._failed(error)
            return [None] * len(events)
        return [*counts]

    def not_sent(self, envelope: Envelope, size: int) -> None:
        """Writes to the journal that an event noted as sent was not published."""
        line = self._line(JournalEvent.DELETED, "gone", envelope, size, 0, None, detail="not published")
        self._note(envelope, line, [c.queue for c in self._topics(envelope.topic)])

    def called(self, envelope: Envelope, size: int) -> None:
        """Writes a call to the journal of its queue."""
        self._note(
            envelope, self._line(JournalEvent.SENT, State.READY, envelope, size, 0, None), [call_queue(envelope.topic)]
        )

    def _topics(self, topic: str) -> list[HandlerInfo]:
        try:
            return [info for info in self._known() if info.topic is not None and matches(info.topic, topic)]
        except RestanteError as error:
            self._failed(error)
            return []

    def _line(
        self,
        event: JournalEvent,
        state: Any,
        envelope: Envelope,
        size: int,
        priority: int,
        delay: float | None,
        **more: Any,
    ) -> Line:
        sent = None if envelope.time is None else int(envelope.time.timestamp() * 1000)
        return Line(event, state, envelope.topic, size, priority, sent, self._redis.consumer, delay, **more)

    def _note(self, envelope: Envelope, line: Line, queues: list[str]) -> int | None:
        from restante.core.claims import once

        if time.monotonic() < self._away_until:
            return None
        try:
            ops = [once("note", QueueKeys(queue), envelope.id, 0, 1.0, line) for queue in queues]
            self._redis.connection.run_all(ops)
        except RestanteError as error:
            self._failed(error)
            return None
        return len(queues)

    def close(self) -> None:
        self._redis.close()
