"""A queue that a channel consumes from, and what the channel knows about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from restante.celery.broadcasts import BroadcastReader
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Source:
    """A queue with its consumers and its broadcasts."""

    __slots__ = ("broadcasts", "consumers", "due_at", "info", "marker", "maybe_ready", "name", "queue")

    def __init__(self, broker: BrokerClient, info: QueueInfo) -> None:
        self.name = info.name
        self.info = info
        self.queue = broker.queue(info.name)
        self.marker = self.queue.ref.keys["marker"]
        #: Whether the queue may have messages: at first, after a wake-up, and while a receive was full. A transient
        #: queue mostly has broadcasts only; any other message in it has set its marker.
        self.maybe_ready = not info.transient
        #: When something falls due, by time.monotonic().
        self.due_at: float | None = None
        #: Tag, callback and no_ack of every consumer; several take turns.
        self.consumers: deque[tuple[str, Callable[[Any], Any], bool]] = deque()
        self.broadcasts = BroadcastReader(broker, info)
