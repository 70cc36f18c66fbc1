"""Publishing without waiting for each confirm: futures of events, and blocks that wait for all of their events.

On failure the block raises `BatchFailed` at its end, with the id, topic and error of every event that was not
published. Events that the broker has confirmed stay published.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Protocol, Self

from restante.bus.broker import Published, SendOptions
from restante.bus.envelope import Envelope
from restante.core.errors import BatchFailed, RestanteError, Unavailable, Unconfirmed

log = logging.getLogger("restante")

Failure = tuple[str, str, Exception]


class Publishing(Future[Published]):
    """The future of an event: `result()` waits until the broker has it, and raises what `publish` would have raised.

    It is settled even if nobody waits for it. Every `Future` method but `cancel()` has its usual meaning: an event that
    was handed over cannot be taken back.
    """

    def __init__(self, envelope: Envelope, text: bytes, options: SendOptions) -> None:
        super().__init__()
        self.envelope, self.text, self.options = envelope, text, options
        #: Whether a batch reports its failure, so that it is not logged.
        self.reported = False
        #: Sends and reads confirms for up to so many seconds, while somebody waits.
        self._drive: Callable[[float], None] | None = None

    @property
    def id(self) -> str:
        """The event's id."""
        return self.envelope.id

    @property
    def topic(self) -> str:
        """The event's topic."""
        return self.envelope.topic

    def driven_by(self, drive: Callable[[float], None]) -> None:
        """Sets the function that sends and reads confirms while somebody waits."""
        self._drive = drive

    def cancel(self) -> bool:
        """False: the broker may have it already."""
        return False

    def result(self, timeout: float | None = None) -> Published:
        """Waits until the broker has the event; raises the error where it has not."""
        self._wait(timeout)
        return super().result(0 if timeout is not None else None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits until the event is settled; the error, or None where the broker has it."""
        self._wait(timeout)
        return super().exception(0 if timeout is not None else None)

    def _wait(self, timeout: float | None) -> None:
        if self._drive is not None and not self.done():
            self._drive(float("inf") if timeout is None else timeout)

    def settled(self, subscriptions: int | None) -> None:
        """Ends it with success: the broker has the event."""
        self.set_result(Published(self.id, subscriptions))

    def failed(self, error: Exception) -> None:
        """Ends it with an error: the event was not published, or its fate is unknown."""
        if not self.reported:
            log.error("not published topic=%s id=%s error=%s", self.topic, self.id, error)
        self.set_exception(error)


class Sender(Protocol):
    """Publishes events without waiting for their confirms."""

    def begin(self, publishing: Publishing) -> None:
        """Hands an event over; waits only while too many are unconfirmed."""

    def settle(self, publishings: Sequence[Publishing]) -> None:
        """Waits until each of them is published or has failed."""


class Batch:
    """A block whose events are published without waiting for each: `with bus.batch():`.

    It applies to the thread that opened it. `publish()` in the block returns at once, with `subscriptions` None, and
    the end of the block waits for all confirms. If the broker stays away for longer than the client's patience, the
    next `publish()` in the block raises `Unavailable`.
    """

    def __init__(self, sender: Sender, opened: threading.local) -> None:
        self._sender = sender
        self._opened = opened
        self._pid = os.getpid()
        self._pending: deque[Publishing] = deque()
        self._failures: list[Failure] = []
        self._away: Exception | None = None

    @property
    def holds(self) -> bool:
        """Whether this process opened the block: a child forked inside it publishes on its own."""
        return self._pid == os.getpid()

    def add(self, publishing: Publishing) -> None:
        """Publishes an event as a part of the batch."""
        self._gather()
        if self._away is not None:
            raise Unavailable(f"the broker stayed away, and events of this batch were not published: {self._away}")
        publishing.reported = True
        self._pending.append(publishing)
        try:
            self._sender.begin(publishing)
        except Exception:
            self._pending.remove(publishing)  # refused, so it would never be settled
            raise

    def wait(self) -> None:
        """Waits until everything published in the block so far is settled, and raises for what has failed."""
        self._sender.settle(self._pending)
        self._gather()
        self._failures += [
            (publishing.id, publishing.topic, Unconfirmed(ids=(publishing.id,))) for publishing in self._pending
        ]
        self._pending.clear()
        if self._failures:
            failures, self._failures = self._failures, []
            raise BatchFailed(failures=failures)

    def _gather(self) -> None:
        """Drops settled events, so that a batch of millions holds only those that are unconfirmed."""
        while self._pending and self._pending[0].done():
            settled = self._pending.popleft()
            error = settled.exception()
            if isinstance(error, Exception):
                self._failures.append((settled.id, settled.topic, error))
                if isinstance(error, Unavailable | Unconfirmed):
                    self._away = error

    def __enter__(self) -> Self:
        self._opened.__dict__.setdefault("batches", []).append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._opened.batches.remove(self)
        try:
            self.wait()
        except BatchFailed as failed:
            if error is None or isinstance(error, Exception):
                raise failed from error
            # An interrupt must not become an ordinary error, which the program might catch.
            error.add_note(str(failed))
            log.error("batch interrupted: %s", failed)


def opened_batch(opened: threading.local) -> Batch | None:
    """The innermost block that this thread is in."""
    batches = opened.__dict__.get("batches")
    return batches[-1] if batches and batches[-1].holds else None


class AsyncBatch:
    """A batch for asyncio, `async with client.batch():`, for the task that opened it and tasks created inside."""

    def __init__(self, opened: ContextVar[AsyncBatch | None], at_once: int) -> None:
        self._opened = opened
        self._room = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[Published]] = set()
        self._failures: list[Failure] = []
        self._away: Exception | None = None
        #: Whether it is a block, which reports failures at its end; otherwise failures are logged.
        self.open = False

    async def add(
        self, id: str, topic: str, work: Callable[[], Coroutine[Any, Any, Published]]
    ) -> asyncio.Task[Published]:
        """Publishes as a part of the batch."""
        await self._room.acquire()
        if self._away is not None:
            self._room.release()
            raise Unavailable(f"the broker stayed away, and events of this batch were not published: {self._away}")
        task = asyncio.create_task(work(), name=id)
        self._tasks.add(task)

        def ended(task: asyncio.Task[Published]) -> None:
            self._room.release()
            self._tasks.discard(task)
            error = Unconfirmed(ids=(id,)) if task.cancelled() else task.exception()
            if isinstance(error, Exception) and not self.open:
                log.error("not published topic=%s id=%s error=%s", topic, id, error)
            elif isinstance(error, Exception):
                self._failures.append((id, topic, error))
                if isinstance(error, Unavailable | Unconfirmed):
                    self._away = error

        task.add_done_callback(ended)
        return task

    async def wait(self) -> None:
        """Waits until everything published in the block so far is settled, and raises for what has failed."""
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # the loop runs a task's callbacks right after its end
        if self._failures:
            failures, self._failures = self._failures, []
            raise BatchFailed(failures=failures)

    async def __aenter__(self) -> Self:
        self.open = True
        self._before = self._opened.set(self)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._opened.reset(self._before)
        try:
            await self.wait()
        except BatchFailed as failed:
            if error is None or isinstance(error, Exception):
                raise failed from error
            error.add_note(str(failed))
            log.error("batch interrupted: %s", failed)
        finally:
            self.open = False


class GroupedSender:
    """Sends events in groups: one call for several, and each alone where that call fails."""

    #: Events of one call. More delay the first of them.
    MAX_GROUP = 100

    def __init__(
        self,
        publish: Callable[[Envelope, bytes, SendOptions], int | None],
        many: Callable[[Sequence[tuple[Envelope, bytes]], SendOptions], list[int | None]],
    ) -> None:
        self._publish, self._many = publish, many
        self._waiting: list[Publishing] = []
        #: Any thread may wait for a result, which sends.
        self._lock = threading.RLock()

    def begin(self, publishing: Publishing) -> None:
        publishing.driven_by(lambda seconds: self._send())
        with self._lock:
            if self._waiting and self._waiting[0].options != publishing.options:
                self._send()
            self._waiting.append(publishing)
            if len(self._waiting) >= self.MAX_GROUP:
                self._send()

    def settle(self, publishings: Sequence[Publishing]) -> None:
        self._send()

    def _send(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            away: RestanteError | None = None
            if len(waiting) > 1 and waiting[0].options.unrouted == "keep":
                try:
                    counts = self._many(
                        [(publishing.envelope, publishing.text) for publishing in waiting], waiting[0].options
                    )
                except RestanteError as error:
                    away = error
                else:
                    for publishing, count in zip(waiting, counts, strict=True):
                        publishing.settled(count)
                    return
            for publishing in waiting:
                try:
                    # The client's patience is spent once, not once per event.
                    if isinstance(away, Unconfirmed):
                        raise Unconfirmed(ids=(publishing.id,))
                    if isinstance(away, Unavailable):
                        raise away
                    publishing.settled(self._publish(publishing.envelope, publishing.text, publishing.options))
                except RestanteError as error:
                    away = error
                    publishing.failed(error)
