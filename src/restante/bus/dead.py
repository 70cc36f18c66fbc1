"""A service's dead events on either broker: list, show, and replay to that service alone.

A replayed event goes to the subscription it died in, with its attempts reset. On failure it is in one place or in two,
never in none: an event that was put back twice runs once where the bus keeps records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from restante.bus.addresses import is_rabbitmq
from restante.bus.client import open_redis
from restante.bus.registry import HandlerInfo, registered_handlers
from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.message import Message, State
from restante.core.queue import Client

#: Dead events that a list shows by default.
PAGE = 100


@dataclass(frozen=True, slots=True)
class DeadEvent:
    """An event that one subscription could not handle."""

    id: str
    subscription: str
    topic: str
    source: str
    attempts: int
    died_at: datetime | None
    error_class: str
    error: str
    #: The data as JSON text, cut where it is long.
    data: str
    replays: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "died_at": None if self.died_at is None else self.died_at.isoformat()}


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Selects dead events; a field that is None selects all."""

    ids: Sequence[str] | None = None
    subscription: str | None = None
    error_class: str | None = None

    def matches(self, event: DeadEvent) -> bool:
        return (
            (self.ids is None or event.id in self.ids)
            and (self.subscription is None or event.subscription == self.subscription)
            and (self.error_class is None or event.error_class == self.error_class)
        )


ALL = DeadFilter()


class DeadLetters(Protocol):
    """The dead events of one service."""

    service: str

    def counts(self) -> dict[str, int]: ...

    def list(self, choice: DeadFilter = ..., limit: int = ...) -> list[DeadEvent]: ...

    def replay(
        self, choice: DeadFilter = ..., *, dry_run: bool = ..., progress: Callable[[int], None] | None = ...
    ) -> int: ...

    def close(self) -> None: ...


def dead_letters(broker: str, service: str, *, operator: str | None = None) -> DeadLetters:
    """Opens the dead events of a service on the broker at a URL."""
    if is_rabbitmq(broker):
        from restante.bus.archive import RabbitDeadLetters

        return RabbitDeadLetters(broker, service)
    return RedisDeadLetters(open_redis(broker), service, operator=operator)


def find_dead_event(letters: DeadLetters, id: str) -> DeadEvent:
    """The dead event with this id; NotFound where there is none."""
    for event in letters.list(DeadFilter(ids=(id,)), limit=1):
        return event
    raise NotFound(f"{letters.service} has no dead event {id}: see `restante dead ls --service {letters.service}`")


class RedisDeadLetters:
    """Dead messages in the queues of a service's subscriptions."""

    def __init__(self, redis: Client, service: str, *, operator: str | None = None) -> None:
        self.service = service
        self._redis = redis
        self._admin = Admin(redis, operator=operator)

    def _handler_infos(self) -> list[HandlerInfo]:
        mine = [
            info for info in registered_handlers(self._redis) if info.service == self.service and info.topic is not None
        ]
        if not mine:
            known = sorted({info.service for info in registered_handlers(self._redis)})
            hint = f"there are {', '.join(known)}" if known else "no service has started yet"
            raise NotFound(f"no service {self.service} has subscribed to anything; {hint}")
        return [info for info in mine if info.broker == "redis"]

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for info in self._handler_infos():
            try:
                counts[info.name] = self._admin.counts(info.queue).dead
            except NotFound:
                counts[info.name] = 0
        return counts

    def list(self, choice: DeadFilter = ALL, limit: int = PAGE) -> list[DeadEvent]:
        events: list[DeadEvent] = []
        for info in self._handler_infos():
            if choice.subscription not in (None, info.name):
                continue
            for message in self._walk(info):
                event = _dead(info.name, message)
                if choice.matches(event):
                    events.append(event)
                    if len(events) >= limit:
                        return events
        return events

    def _walk(self, info: HandlerInfo) -> Iterator[Message]:
        try:
            yield from self._admin.walk(info.queue, State.DEAD, newest_first=True)
        except NotFound:
            return

    def replay(
        self, choice: DeadFilter = ALL, *, dry_run: bool = False, progress: Callable[[int], None] | None = None
    ) -> int:
        done = 0
        for info in self._handler_infos():
            if choice.subscription not in (None, info.name):
                continue
            try:
                if not self._admin.counts(info.queue).dead:
                    continue
                before = done
                task = self._admin.replay(
                    info.queue,
                    ids=None if choice.ids is None else list(choice.ids),
                    error_class=choice.error_class,
                    dry_run=dry_run,
                    progress=None if progress is None else lambda work, before=before: progress(before + work.replayed),  # type: ignore[misc]
                )
                done += task.replayed
            except NotFound:
                continue
        return done

    def close(self) -> None:
        self._redis.close()


def _dead(subscription: str, message: Message) -> DeadEvent:
    last = message.history[-1] if message.history else None
    return DeadEvent(
        message.id,
        subscription,
        message.kind,
        str(message.headers.get("source", "")),
        message.attempts,
        last.ended_at if last else None,
        last.error_class if last else "",
        last.error if last else "",
        message.stored.body[:10_000].decode(errors="replace"),
        message.replays,
    )


@contextmanager
def open_dead_letters(broker: str, service: str, *, operator: str | None = None) -> Iterator[DeadLetters]:
    """`dead_letters`, closed at the end of the block."""
    letters = dead_letters(broker, service, operator=operator)
    try:
        yield letters
    finally:
        letters.close()
