"""Counts the messages on a RabbitMQ broker: in the queues of handlers, the archives and the rungs.

It asks by passive declarations over AMQP, which need no management plugin. If the broker cannot be reached, it raises
`Unavailable`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kombu import Connection

from restante.bus.amqp_messages import unreachable
from restante.bus.client_rabbitmq import ConnectionPool
from restante.bus.directory import announced_handlers
from restante.bus.registry import HandlerInfo
from restante.rabbitmq.declaration import Channels
from restante.rabbitmq.ladder import MOST_RUNGS, RUNG_TYPES, SMALLEST, Ladder, RungType
from restante.rabbitmq.topology import UNROUTED, archive_name

#: The share of its limit from which an archive is nearly full. A full archive refuses dead events, which then wait on
#: the ladder again and again.
NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung of the ladder, with its messages."""

    queue: str
    type: RungType
    #: Seconds it holds a message.
    seconds: float
    messages: int


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a service, with its messages."""

    service: str
    queue: str
    #: None if the service keeps no archive.
    messages: int | None
    #: How many it takes; None if the service has not announced it.
    limit: int | None

    @property
    def fill(self) -> float | None:
        """The used share of its limit."""
        return None if self.messages is None or not self.limit else self.messages / self.limit

    @property
    def nearly_full(self) -> bool:
        return self.fill is not None and self.fill >= NEARLY_FULL


@dataclass(frozen=True, slots=True)
class Inventory:
    """Handlers and counts at one moment."""

    handlers: tuple[HandlerInfo, ...] = ()
    #: Ready messages by queue.
    waiting: dict[str, int | None] | None = None
    archives: tuple[Archive, ...] = ()
    rungs: tuple[Rung, ...] = ()
    unrouted: int = 0

    def waiting_in(self, queue: str) -> int | None:
        return (self.waiting or {}).get(queue)


def take_inventory(url: str, known: Iterable[HandlerInfo] = ()) -> Inventory:
    """Counts the messages of the services that the broker lists, and of those of `known` that are on RabbitMQ."""
    handlers = {info.name: info for info in announced_handlers(url)}
    handlers = {info.name: info for info in known if info.broker == "rabbitmq"} | handlers
    try:
        with Connection(url, connect_timeout=3) as connection, Channels(connection) as broker:
            counts = {queue: broker.counts(queue) for queue in sorted({info.queue for info in handlers.values()})}
            waiting = {queue: None if count is None else count[0] for queue, count in counts.items()}
            archives = []
            for service in sorted({info.service for info in handlers.values() if info.topic}):
                limit = next((c.archive_length for c in handlers.values() if c.service == service and c.topic), None)
                count = broker.counts(archive_name(service))
                archives.append(Archive(service, archive_name(service), None if count is None else count[0], limit))
            unrouted = broker.counts(UNROUTED)
            return Inventory(
                tuple(sorted(handlers.values(), key=lambda info: info.name)),
                waiting,
                tuple(archives),
                tuple(_rungs(broker)),
                unrouted[0] if unrouted else 0,
            )
    except ConnectionPool.LOST as error:
        raise unreachable(url, error) from None


def _rungs(broker: Channels) -> list[Rung]:
    """The rungs of each ladder, shortest first. A ladder has no gaps, so the first missing rung ends it."""
    rungs = []
    for type in RUNG_TYPES:
        ladder = Ladder(type)
        for place in range(MOST_RUNGS):
            seconds = SMALLEST * 2**place
            count = broker.counts(ladder.rung(seconds))
            if count is None:
                break
            rungs.append(Rung(ladder.rung(seconds), type, seconds, count[0]))
    return rungs
