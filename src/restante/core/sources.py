"""What a consumer receives from: queues of either runner, with their handlers and queued acks.

Opens connections that its consumer closes; they fail as those of the queues do.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass

from restante.core.connection import Connection
from restante.core.connection_aio import AsyncConnection
from restante.core.consume import log_paused
from restante.core.errors import AccessDenied
from restante.core.handlers import Handling
from restante.core.hooks import Listeners
from restante.core.leased_message import AsyncLeasedMessage, Leased, LeasedMessage
from restante.core.queue import AsyncQueue, Queue
from restante.core.schedule import storing_of_tasks

log = logging.getLogger("restante")


@dataclass(slots=True)
class Source:
    """One queue of a consumer: its handlers and its queued acks."""

    queue: Queue
    #: By kind; the one of None takes every other kind, or fails it.
    handlers: dict[str | None, Handling]
    #: What is told of its attempts.
    listeners: Listeners
    #: Acks that the next receive carries.
    acks: deque[Leased]
    #: For an `AsyncQueue`: through it coroutine handlers settle their messages, on the consumer's event loop.
    verbs: AsyncQueue | None = None
    #: Whether the pause of the queue has been logged.
    paused: bool = False
    _only: Handling | None = None

    def __post_init__(self) -> None:
        #: The handler where there is one for every kind: the kind need not be read.
        self._only = self.handlers.get(None) if len(self.handlers) == 1 else None

    def handler(self, message: Leased) -> Handling:
        if self._only is not None:
            return self._only
        return self.handlers.get(message.kind) or self.handlers[None]

    def shaped(self, messages: list[LeasedMessage]) -> list[Leased]:
        """The messages as their handlers take them: a coroutine handler of an `AsyncQueue` awaits its verbs."""
        if self.verbs is None:
            return list(messages)
        shaped: list[Leased] = []
        for message in messages:
            awaits = self.handler(message).asynchronous
            shaped.append(AsyncLeasedMessage.of(self.verbs, message) if awaits else message)
        return shaped

    @property
    def looks_at(self) -> float:
        """When to look next whether a schedule is due, by time.monotonic()."""
        ref = self.queue.ref
        return ref.look_at if ref.scheduled else math.inf

    def store_schedules(self) -> None:
        """Stores the schedules of the queue's tasks, and logs those of tasks that this program does not have."""
        if not self.queue.ref.scheduled and not self.queue.ref.task_schedules:
            return
        try:
            unknown = self.queue.run(storing_of_tasks(self.queue.ref))
        except AccessDenied as error:
            log.error("schedules of tasks not stored queue=%s error=%s", self.queue.name, error)
            return
        for name in unknown:
            log.warning(
                "schedule without its task queue=%s schedule=%s: its task is not in this program; if it was removed, "
                "remove its schedule too: restante schedule rm %s %s",
                *(self.queue.name, name, self.queue.name, name),
            )

    def open(self) -> None:
        """Reads the settings again if they have changed, and logs a pause."""
        if self.queue.ref.opened:
            return
        self.queue.ensure_open()
        self.paused = log_paused(self.queue.name, self.queue.settings.paused, self.paused)


class SourceConnections:
    """The connections that a consumer opens for its asyncio queues.

    It receives in its own thread and runs coroutines on its own event loop, where the connection of an `AsyncQueue` may
    not be used. So it opens two of its own.
    """

    def __init__(self) -> None:
        self._opened: dict[AsyncConnection, tuple[Connection, AsyncConnection]] = {}

    def twins(self, queue: Queue | AsyncQueue) -> tuple[Queue, AsyncQueue | None]:
        """The queue to receive from, and for an `AsyncQueue` the one through which coroutines settle messages."""
        if isinstance(queue, Queue):
            return queue, None
        theirs = queue.connection
        if theirs not in self._opened:
            url, settings = theirs.url, theirs.settings
            self._opened[theirs] = Connection(url, settings), AsyncConnection(url, settings)
        connection, loop_connection = self._opened[theirs]
        plain = Queue(connection, queue.name, queue.ref.consumer, {})
        plain.ref.pending = dict(queue.ref.pending)
        plain.ref.task_schedules = queue.ref.task_schedules
        verbs = AsyncQueue(loop_connection, queue.name, queue.ref.consumer, {})
        verbs.ref = plain.ref  # a receive notices changed settings for both
        return plain, verbs

    def close(self) -> None:
        for connection, _ in self._opened.values():
            connection.close()

    async def close_aio(self) -> None:
        """Closes the connections of coroutine handlers, after cancelling those that still run."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for _, connection in self._opened.values():
            await connection.close()
