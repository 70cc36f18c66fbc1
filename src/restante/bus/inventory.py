"""What lies on a RabbitMQ broker: queues of handlers, archives and rungs, with how much is in them.

Asked by passive declarations over AMQP, so that no management plugin is needed. On failure to reach the broker,
`Unavailable`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kombu import Connection

from restante.bus.client_rabbitmq import ConnectionPool, unreachable
from restante.bus.directory import announced_handlers
from restante.bus.registry import HandlerInfo
from restante.rabbitmq.declaration import Channels
from restante.rabbitmq.ladder import MOST_RUNGS, RUNG_TYPES, SMALLEST, Ladder, RungType
from restante.rabbitmq.topology import UNROUTED, archive_name

#: The share of its limit from which an archive is nearly full. Beyond the limit it refuses, and retries go on for ever.
NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung of the ladder."""

    queue: str
    type: RungType
    #: Seconds it holds a message.
    seconds: float
    messages: int


@dataclass(frozen=True, slots=True)
class Archive:
    """The dead of a service."""

    service: str
    queue: str
    #: None where the service keeps no archive.
    messages: int | None
    #: How many it takes; None where the service has not said.
    limit: int | None

    @property
    def fill(self) -> float | None:
        """The share of its limit that is taken."""
        return None if self.messages is None or not self.limit else self.messages / self.limit

    @property
    def nearly_full(self) -> bool:
        return self.fill is not None and self.fill >= NEARLY_FULL


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything at one moment."""

    handlers: tuple[HandlerInfo, ...] = ()
    #: Messages ready in the queue of each handler.
    waiting: dict[str, int | None] | None = None
    archives: tuple[Archive, ...] = ()
    rungs: tuple[Rung, ...] = ()
    unrouted: int = 0

    def waiting_in(self, queue: str) -> int | None:
        return (self.waiting or {}).get(queue)


def take_inventory(url: str, known: Iterable[HandlerInfo] = ()) -> Inventory:
    """Counts what is there. Services are those that the broker lists, and those of `known` that are on RabbitMQ."""
    handlers = {info.name: info for info in announced_handlers(url)}
    handlers = {info.name: info for info in known if info.broker == "rabbitmq"} | handlers
    try:
        with Connection(url, connect_timeout=3) as connection, Channels(connection) as broker:
            counts = {queue: broker.counts(queue) for queue in sorted({info.queue for info in handlers.values()})}
            waiting = {queue: None if one is None else one[0] for queue, one in counts.items()}
            archives = []
            for service in sorted({info.service for info in handlers.values() if info.topic}):
                limit = next((c.archive_length for c in handlers.values() if c.service == service and c.topic), None)
                found = broker.counts(archive_name(service))
                archives.append(Archive(service, archive_name(service), None if found is None else found[0], limit))
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
    """Shortest first. A ladder has no gaps, so that the first rung that is not there ends it."""
    made = []
    for type in RUNG_TYPES:
        ladder = Ladder(type)
        for place in range(MOST_RUNGS):
            seconds = SMALLEST * 2**place
            found = broker.counts(ladder.rung(seconds))
            if found is None:
                break
            made.append(Rung(ladder.rung(seconds), type, seconds, found[0]))
    return made
