"""The queue implementations that the contract runs on, and how a test speaks to all of them alike.

A test is a coroutine that gets a `Room`. It opens queues with `room.queue()` and calls every method through
`room.call`, which awaits what is awaitable and runs what blocks in a thread. What an implementation cannot do it
does not declare among its capabilities, and a test marked `needs("tokens")` is not collected for it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pytest

import restante
import restante.http
from restante import Admin, Client, QueueSettings, State
from restante.http import AsyncHttpQueue
from tests.harness.clock import FrozenClock

#: Every word a test may need, and what it stands for.
CAPABILITIES: Final = {
    "admin": "an operator's view: counts, pages, replay, delete, purge, edit, move",
    "batch": "many messages by one call",
    "batches": "messages of several queues with one message at their end",
    "cancel": "calls that are coroutines, which a task's cancellation ends",
    "bytes": "raw bytes with a content type",
    "consume": "a loop over messages",
    "dead": "a state for what has failed for good",
    "dedup": "the same id again stores nothing",
    "delay": "messages that become ready later",
    "done": "results kept after success",
    "expiry": "messages that are removed once they are too old",
    "fractions": "delays and leases to the millisecond, and due times given as such",
    "handle": "a message followed by its id: state, progress, result, cancel",
    "headers": "values beside the payload, and a kind",
    "journal": "one entry per transition",
    "limits": "bounds on length, payload, rate and leases that refuse or hold back",
    "many_queues": "one receive from several queues",
    "poll": "a receive that waits",
    "priority": "256 levels, high first",
    "registry": "consumers with the time they were last seen",
    "retry": "retry policies and max_attempts",
    "schedule": "messages at the ticks of a schedule",
    "tokens": "leases fenced by a token",
    "unique": "at most one message per key in chosen states",
}
ALL: Final = frozenset(CAPABILITIES)
#: What a client can do whose calls block.
BLOCKING: Final = ALL - {"cancel"}

_numbers = itertools.count(1)


def needs(*capabilities: str) -> pytest.MarkDecorator:
    """The test is run only where all of these are declared."""
    unknown = set(capabilities) - ALL
    assert not unknown, f"not a capability: {unknown}"
    return pytest.mark.needs(*capabilities)


def fresh_name(stem: str = "q") -> str:
    """A queue name no other test uses, so that tests share servers without meeting."""
    return f"{stem}-{os.getpid()}-{next(_numbers)}"


@dataclass
class Room:
    """One implementation, ready for one test."""

    name: str
    #: Opens another client, as another process would; its close() may have to be awaited.
    open: Callable[..., Any]
    #: A plain post on the same server, for the operator's view.
    plain: Client
    capabilities: frozenset[str] = ALL
    #: Moves the server's time, where the server lives by one; None where a test has to sleep.
    clock: FrozenClock | None = None
    #: Whether two queues may lie on different servers.
    spread: bool = False
    #: Counts states where the operator's own view does not reach.
    counted: Callable[[str], dict[str, int]] | None = None
    _opened: list[Any] = field(default_factory=list)

    def client(self, **settings: Any) -> Any:
        """Another client of the same server."""
        made = self.open(**settings)
        self._opened.append(made)
        return made

    @property
    def post(self) -> Any:
        """The test's main client."""
        return self._opened[0] if self._opened else self.client()

    def queue(self, name: str | None = None, **options: Any) -> Any:
        """A queue, by default one that nobody else uses."""
        return self.post.queue(name or fresh_name(), **options)

    @property
    def admin(self) -> Admin:
        return Admin(self.plain, operator="tester")

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The method's result, whether it blocks or is awaited."""
        if inspect.iscoroutinefunction(method):
            return await method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)

    async def pass_time(self, seconds: float) -> None:
        """The server's clock goes on by so much, and a little more for its granularity."""
        if self.clock is not None:
            self.clock.advance(seconds + 0.002)
        else:
            await asyncio.sleep(seconds + 0.002)

    def now(self) -> datetime:
        """The server's time."""
        return datetime.fromtimestamp(self.admin.now_ms() / 1000, UTC)

    async def close(self) -> None:
        for client in self._opened:
            await self.call(client.close)
        self._opened.clear()

    async def settings(self, queue: Any) -> QueueSettings:
        """The queue's settings as its client knows them."""
        if isinstance(queue, AsyncHttpQueue):  # no property waits for a server
            return await queue.read_settings()
        found: QueueSettings = queue.settings
        return found

    # -- what nearly every test says -------------------------------------------------------------------------------

    async def send(self, queue: Any, payload: Any = "x", **options: Any) -> Any:
        return await self.call(queue.send, payload, **options)

    async def receive(self, queue: Any, timeout: float = 0, **options: Any) -> Any:
        return await self.call(queue.receive, timeout, **options)

    async def take(self, queue: Any, **options: Any) -> Any:
        """A message that must be there."""
        message = await self.call(queue.receive, **options)
        assert message is not None, f"{queue.name} has nothing ready"
        return message

    async def drain(self, queue: Any) -> list[Any]:
        """The payloads of everything ready, in order, each acked."""
        found = []
        while (message := await self.receive(queue)) is not None:
            found.append(message.payload)
            await self.call(message.ack)
        return found

    def states(self, queue: Any) -> dict[str, int]:
        """How many messages each state holds, without the empty ones."""
        if self.counted is not None:
            return self.counted(queue.name)
        counts = self.admin.counts(queue.name)
        return {state.value: getattr(counts, state.value) for state in State if getattr(counts, state.value)}

    def events(self, queue: Any, id: str | None = None) -> list[str]:
        """What the journal says happened, without the settings."""
        return [
            entry.event.value
            for entry in self.admin.journal(queue.name, limit=10_000)
            if entry.event.value != "configured" and (id is None or entry.message_id == id)
        ]


def sync_client(url: str) -> Callable[..., Any]:
    """How a synchronous room opens clients."""
    return lambda **settings: restante.connect(url, **settings)


#: What a queue behind an HTTP server can do: everything but the loop; operators look at the same Redis.
HTTP_CAN: Final = BLOCKING - {"consume", "schedule", "batches"}


def http_client(address: str) -> Callable[..., Any]:
    """How a room behind an HTTP server opens clients."""
    return lambda **settings: restante.http.connect(address, **settings)


def async_http_client(address: str) -> Callable[..., Any]:
    """How an asyncio room behind an HTTP server opens clients."""
    return lambda **settings: restante.http.aio.connect(address, **settings)


def async_client(url: str) -> Callable[..., Any]:
    """How an asyncio room opens clients."""
    return lambda **settings: restante.aio.connect(url, **settings)
