"""Where handlers run: threads for plain ones, which take chunks of messages, and an event loop for coroutines.

A chunk stays with its thread until it is worked off. A thread that hangs is replaced, and the rest of its chunk goes to
the new one; a coroutine that hangs gives its slot away.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from restante.core.leased_message import Leased

#: Seconds a stop waits for the event loop to close. A handler that blocks the loop longer ends with the process.
LOOP_CLOSE = 5.0


class Worker(threading.Thread):
    """A thread and the chunk it works off."""

    def __init__(self, number: int, work: Callable[[Worker], None]) -> None:
        super().__init__(target=work, args=(self,), name=f"restante-worker-{number}", daemon=True)
        self.chunk: deque[Leased] = deque()
        self._size = 0
        #: Whether another thread has taken its place, and what was left of its chunk.
        self.replaced = False

    def take(self, chunk: Sequence[Leased]) -> None:
        """Begins a chunk."""
        self.chunk, self._size = deque(chunk), len(chunk)

    def messages(self) -> Iterator[Leased]:
        """The messages of the chunk, until the thread is replaced."""
        chunk = self.chunk
        while chunk and not self.replaced:
            yield chunk.popleft()

    @property
    def taken(self) -> int:
        """How many messages of its chunk the thread has begun."""
        return self._size - len(self.chunk)


class Workers:
    """The threads of a consumer and the chunks that wait for one."""

    def __init__(self, count: int, work_off: Callable[[Worker], None]) -> None:
        self._count = count
        self._work_off = work_off
        self._inbox: SimpleQueue[Sequence[Leased] | None] = SimpleQueue()
        self._started = 0

    def start(self) -> None:
        """Starts the threads."""
        for _ in range(self._count):
            self._next().start()

    def put(self, chunk: Sequence[Leased]) -> None:
        """Passes messages to the next thread that has time."""
        self._inbox.put(chunk)

    def replace(self, worker: Worker) -> int:
        """Starts a thread in the place of one that hangs. Returns how many messages the old one had begun."""
        begun = worker.taken
        rest, worker.chunk = worker.chunk, deque()
        worker.replaced = True
        following = self._next()
        following.take(rest)
        following.start()
        return begun

    def take_back(self) -> list[Leased]:
        """The messages of chunks that no thread has begun; they will not be begun."""
        messages: list[Leased] = []
        while not self._inbox.empty():
            try:
                chunk = self._inbox.get_nowait()
            except Empty:
                break
            messages += chunk or ()
        return messages

    def stop(self) -> None:
        """Lets every thread end after its chunk."""
        for _ in range(self._started):
            self._inbox.put(None)

    def _next(self) -> Worker:
        self._started += 1
        return Worker(self._started - 1, self._work)

    def _work(self, worker: Worker) -> None:
        if worker.chunk:
            self._work_off(worker)
        while not worker.replaced and (chunk := self._inbox.get()) is not None:
            worker.take(chunk)
            self._work_off(worker)


class LoopThread:
    """The thread whose event loop runs coroutine handlers, at most `slots` at a time."""

    def __init__(self, slots: int, on_close: Callable[[], Awaitable[None]]) -> None:
        self._count = slots
        self._on_close = on_close
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: asyncio.Semaphore | None = None
        self._over: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        #: Messages that wait for a slot.
        self._pending: dict[str, Leased] = {}

    def start(self) -> None:
        """Starts the thread and waits for its loop."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="restante-loop", daemon=True)
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._slots, self._over = asyncio.Semaphore(self._count), asyncio.Event()
            ready.set()
            await self._over.wait()
            await self._on_close()

        asyncio.run(serve())

    @property
    def closing(self) -> bool:
        """Whether tasks that still run are being cancelled."""
        return self._over is None or self._over.is_set()

    def put(self, message: Leased, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Makes an attempt once a slot is free. It returns whether it gave its slot away before."""
        self.call(self._spawn, message, attempt)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls a function on the loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *args)

    def give_slot_away(self) -> None:
        """Lets another attempt run beside one that hangs."""
        assert self._slots is not None
        self.call(self._slots.release)

    def _spawn(self, message: Leased, attempt: Callable[[], Awaitable[bool]]) -> None:
        self._pending[message.lease_token] = message
        asyncio.get_running_loop().create_task(self._wait_for_slot(message, attempt))

    async def _wait_for_slot(self, message: Leased, attempt: Callable[[], Awaitable[bool]]) -> None:
        assert self._slots is not None
        await self._slots.acquire()
        given_away = False
        try:
            if self._pending.pop(message.lease_token, None) is not None:  # otherwise it was taken back meanwhile
                given_away = await attempt()
        finally:
            if not given_away:
                self._slots.release()

    def take_back(self) -> list[Leased]:
        """The messages that wait for a slot; they will not be begun."""
        messages: list[Leased] = []
        while self._pending:
            try:
                _, message = self._pending.popitem()
            except KeyError:
                break
            messages.append(message)
        return messages

    def stop(self) -> None:
        """Cancels what still runs and ends the loop."""
        if self._over is not None and self._thread is not None:
            self.call(self._over.set)
            self._thread.join(LOOP_CLOSE)
