"""Runs handlers for queues, in threads or as asyncio tasks: batches in, acks riding on the next receive.

On failure: a handler's exception nacks its message; a lost server is waited for with jittered pauses and work goes on
when it is back; a lost lease is marked on the message and said in the log. A stop hands back what has not started,
its attempt not counted; a second stop hands back everything, what was begun with its attempt counted.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import orjson

from restante.core.call_retry import BLOCK, away
from restante.core.connection import Waker
from restante.core.consume import stopping_by_signal, tell_paused
from restante.core.errors import InvalidInput, LeaseLost, RestanteError, Unavailable, UnsafeServer
from restante.core.holder import LeaseHolder
from restante.core.keywords import known_keywords
from restante.core.leased_message import LeasedMessage
from restante.core.operations import MAX_BATCH
from restante.core.prefetch import Prefetch
from restante.core.queue import Queue

log = logging.getLogger("restante")

#: Seconds between two looks at the server's settings.
EXAMINE_EVERY = 30.0
#: Seconds the end waits for the event loop to close, beyond a handler that blocks it; then it is left to the process.
LOOP_CLOSE = 5.0


@dataclass(frozen=True, slots=True)
class Handling:
    """A registered handler, and whether calling it gives a coroutine."""

    function: Callable[[Any], Any]
    asynchronous: bool

    @classmethod
    def of(cls, function: Callable[[Any], Any]) -> Handling:
        called = type(function).__call__  # of an object that is called like a function
        return cls(function, inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called))


@dataclass(slots=True)
class Source:
    """One queue a consumer serves: its handlers and the acks waiting to travel."""

    queue: Queue
    handlers: dict[str | None, Handling]
    #: Acks that wait for the next receive.
    acks: deque[LeasedMessage]
    #: Whether the log has said that the queue is paused.
    paused: bool = False

    def handler(self, message: LeasedMessage) -> Handling | None:
        return self.handlers.get(message.kind) or self.handlers.get(None)

    def open(self) -> None:
        """Reads the settings again where they have changed; a consumer of a paused queue must not look idle."""
        if self.queue.ref.opened:
            return
        self.queue.ensure_open()
        self.paused = tell_paused(self.queue.name, self.queue.settings.paused, self.paused)


class Consumer:
    """Runs handlers for one or more queues, plain functions in threads and coroutines on one event loop.

    `run()` blocks until stopped by `stop()`, SIGTERM or SIGINT. The first stop finishes what runs, hands back the
    rest and waits up to `grace` seconds; a second hands back everything at once.
    """

    @known_keywords
    def __init__(
        self,
        queues: Sequence[Queue],
        *,
        concurrency: int = 1,
        prefetch: int = 100,
        grace: float = 30.0,
        stop_when_empty: bool = False,
    ) -> None:
        if not isinstance(queues, Sequence) or not all(isinstance(queue, Queue) for queue in queues):
            raise InvalidInput(f"a consumer takes a list of queues, such as Consumer([orders]), not {queues!r}")
        if not queues:
            raise InvalidInput("a consumer needs at least one queue with a handler")
        if not 1 <= concurrency <= 10_000 or not 0 <= prefetch <= MAX_BATCH:
            raise InvalidInput(f"concurrency must be 1 to 10000 and prefetch 0 to {MAX_BATCH}")
        for queue in queues:
            if not queue.handlers:
                raise InvalidInput(f"{queue.name} has no handler: register one with @{queue.name}.handler")
        self._connection = queues[0].connection
        self._holder = LeaseHolder(self._connection)
        self._sources = {
            queue.name: Source(
                queue, {kind: Handling.of(one) for kind, one in queue.handlers.items()}, self._holder.acks(queue)
            )
            for queue in queues
        }
        self._turn = deque(self._sources.values())
        self._concurrency = concurrency
        self._grace = grace
        self._stop_when_empty = stop_when_empty
        self._prefetch = Prefetch(concurrency, prefetch)
        self._waker = Waker()
        self._inbox: SimpleQueue[list[LeasedMessage] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: asyncio.Semaphore | None = None
        self._over: asyncio.Event | None = None
        self._loop_thread: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._unstarted: deque[LeasedMessage] = deque()
        self._running: dict[str, LeasedMessage] = {}
        self._changed = threading.Condition()
        self._parked = False
        self._examined = time.monotonic()
        self._suspected = False
        self._pending: dict[str, LeasedMessage] = {}
        self._stops = 0
        #: Messages handled since the start, by how it went.
        self.handled = 0
        self.failed = 0
        #: When the server last answered a receive, by time.monotonic().
        self.last_poll = 0.0

    # -- control -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Once: finish what runs. Twice: hand back everything now."""
        self._stops += 1
        self._waker.wake()

    def run(self) -> None:
        """Serves until stopped."""
        card = orjson.dumps({"host": platform.node(), "pid": os.getpid(), "concurrency": self._concurrency})
        for source in self._sources.values():
            source.queue.ref.presence = card
        self._start_workers()
        failures = 0
        with stopping_by_signal(self.stop):
            try:
                for source in self._sources.values():
                    source.open()
                while not self._stops:
                    try:
                        if not self._fetch():
                            break
                        failures = 0
                    except Unavailable as error:
                        failures += 1
                        log.warning("receive failed error=%s", error)
                        if not self._stops:
                            time.sleep(away(failures))
            finally:
                self._finish()

    # -- fetching ------------------------------------------------------------------------------------------------

    def _fetch(self) -> bool:
        """One turn: wait for room, then receive from each queue with its acks; False when there is nothing left."""
        if time.monotonic() - self._examined > EXAMINE_EVERY:
            self._examine()
        with self._changed:
            # Half empty before the next fetch, so that quick handlers get batches and not one message a call.
            # A suspect runs without others taken ahead.
            while self._outstanding > (0 if self._suspected else self._prefetch.low) and not self._stops:
                self._changed.wait(0.2)
        if self._stops:
            return True
        got_any, due = False, None
        for _ in range(len(self._turn)):
            source = self._turn[0]
            self._turn.rotate(-1)
            room = 1 if self._suspected else self._prefetch.room - self._outstanding
            if room <= 0 or (self._suspected and self._outstanding):
                return True
            source.open()
            got, acked = self._holder.receive(source.queue, room)
            self.last_poll = time.monotonic()
            if got is None:
                continue
            if got.due is not None:
                wait = max(0.0, (got.due - got.now) / 1000)
                due = wait if due is None else min(due, wait)
            if got.messages:
                got_any = True
                kept = self._holder.keep(source.queue, got.messages)
                self._suspected = kept[0].suspect
                self._dispatch(source, kept)
            got_any = got_any or acked > 0
        if got_any:
            return True
        if self._stop_when_empty:
            with self._changed:
                if self._outstanding == 0:
                    return any(source.acks for source in self._sources.values())
                self._changed.wait(0.05)
                return True
        self._park(BLOCK if due is None else min(BLOCK, due))
        return True

    def _examine(self) -> None:
        """Says so when the server was made unsafe while we work: refusing now would help nobody."""
        self._examined = time.monotonic()
        try:
            self._connection.examine()
        except UnsafeServer as error:
            log.error("unsafe server: %s", error)

    def _park(self, seconds: float) -> None:
        """Sleeps until there is something to take; workers settle for themselves meanwhile."""
        self._parked = True
        try:
            for source in self._sources.values():
                self._flush(source)
            if seconds > 0:
                markers = [source.queue.ref.keys["marker"] for source in self._sources.values()]
                self._connection.wait(markers, seconds, self._waker)
        finally:
            self._parked = False

    def _dispatch(self, source: Source, messages: list[LeasedMessage]) -> None:
        with self._changed:
            self._outstanding += len(messages)
        plain: list[LeasedMessage] = []
        for message in messages:
            message.waker = self._waker
            handler = source.handler(message)
            if handler is not None and handler.asynchronous and self._loop is not None:
                self._loop.call_soon_threadsafe(self._spawn, source, message, handler.function)
            else:
                plain.append(message)
        size = max(1, min(self._prefetch.chunk, -(-len(plain) // self._concurrency)))
        for start in range(0, len(plain), size):
            self._inbox.put(plain[start : start + size])

    # -- handling ------------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        handlers = [handler for source in self._sources.values() for handler in source.handlers.values()]
        if any(handler.asynchronous for handler in handlers):
            ready = threading.Event()
            self._loop_thread = threading.Thread(
                target=self._run_loop, args=(ready,), name="restante-loop", daemon=True
            )
            self._loop_thread.start()
            ready.wait()
        if not all(handler.asynchronous for handler in handlers):
            for number in range(self._concurrency):
                self._threads.append(threading.Thread(target=self._work, name=f"restante-worker-{number}", daemon=True))
        for thread in self._threads:
            thread.start()

    def _run_loop(self, ready: threading.Event) -> None:
        """The thread of coroutine handlers. Its end cancels what still runs there and closes the loop."""

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._slots, self._over = asyncio.Semaphore(self._concurrency), asyncio.Event()
            ready.set()
            await self._over.wait()

        asyncio.run(serve())

    def _work(self) -> None:
        while (chunk := self._inbox.get()) is not None:
            started = time.perf_counter()
            done = 0
            try:
                for message in chunk:
                    if self._stops:
                        self._unstarted.append(message)
                    elif not message.lease_lost:
                        self._handle_plain(message)
                        done += 1
                if done:
                    self._prefetch.note(time.perf_counter() - started, done)
            except Exception:
                # A fault of ours, not of a handler: the lease returns the message, the worker goes on.
                log.exception("worker failed")
            finally:
                self._left(len(chunk))

    def _handle_plain(self, message: LeasedMessage) -> None:
        source = self._sources[message.queue]
        self._running[message.lease_token] = message
        try:
            handler = source.handler(message)
            if handler is None:
                raise LookupError(f"no handler for kind {message.kind!r} in queue {message.queue}")
            result = handler.function(message)
            if result is not None and inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError("the handler returned a coroutine that nobody awaits: define it by async def")
        except Exception as error:
            self._fail(source, message, error)
        else:
            self._succeed(source, message)
        finally:
            self._running.pop(message.lease_token, None)

    def _spawn(self, source: Source, message: LeasedMessage, handler: Callable[[Any], Any]) -> None:
        assert self._loop is not None
        self._pending[message.lease_token] = message
        self._loop.create_task(self._handle(source, message, handler))

    async def _handle(self, source: Source, message: LeasedMessage, handler: Callable[[Any], Any]) -> None:
        assert self._slots is not None
        async with self._slots:
            if self._pending.pop(message.lease_token, None) is None:
                return  # handed back while it waited for its turn
            try:
                if self._stops:
                    self._unstarted.append(message)
                elif not message.lease_lost:
                    await self._run_coroutine(source, message, handler)
            except Exception:
                log.exception("worker failed")
            finally:
                self._left(1)

    async def _run_coroutine(self, source: Source, message: LeasedMessage, handler: Callable[[Any], Any]) -> None:
        started = time.perf_counter()
        self._running[message.lease_token] = message
        try:
            await handler(message)
        except Exception as error:
            await asyncio.to_thread(self._fail, source, message, error)
        else:
            if self._parked or not self._prefetch.quick:
                await asyncio.to_thread(self._succeed, source, message)
            else:
                self._succeed(source, message)
        finally:
            self._running.pop(message.lease_token, None)
        self._prefetch.note(time.perf_counter() - started)

    def _succeed(self, source: Source, message: LeasedMessage) -> None:
        self.handled += 1
        if message.settled:
            self._holder.drop(message)
            return
        message.settled, message.verdict = True, "acked"
        source.acks.append(message)
        if self._parked or not self._prefetch.quick:
            self._flush(source)

    def _fail(self, source: Source, message: LeasedMessage, error: Exception) -> None:
        self.failed += 1
        log.warning("nacked queue=%s id=%s error=%s: %s", message.queue, message.id, type(error).__name__, error)
        try:
            if not message.settled:
                message.nack(error=error)
        except LeaseLost:
            log.warning("lease lost before nack queue=%s id=%s", message.queue, message.id)
        except RestanteError as failure:
            # The lease ends by itself and counts the attempt; the error's text is all that is lost.
            log.error("nack failed queue=%s id=%s error=%s", message.queue, message.id, failure)
        finally:
            self._holder.drop(message)

    def _flush(self, source: Source) -> None:
        try:
            self._holder.flush(source.queue)
        except RestanteError as error:
            log.warning("ack failed queue=%s error=%s", source.queue.name, error)

    def _left(self, count: int) -> None:
        with self._changed:
            self._outstanding -= count
            self._changed.notify_all()

    # -- the end -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Waits for what runs, hands back what does not, and leaves no ack behind."""
        deadline = time.monotonic() + self._grace
        self._stops = max(self._stops, 1)
        self._hand_back(self._drain())
        while True:
            with self._changed:
                if self._outstanding <= 0 or self._stops > 1 or time.monotonic() >= deadline:
                    break
                self._changed.wait(0.05)
            self._hand_back(self._drain())
        self._hand_back(self._drain())
        if self._outstanding > 0:
            self._give_up([message for message in list(self._running.values()) if not message.settled])
        for source in self._sources.values():
            self._flush(source)
        for _ in self._threads:
            self._inbox.put(None)
        if self._loop is not None and self._over is not None and self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._loop_thread.join(LOOP_CLOSE)
        self._holder.close()
        self._waker.close()

    def _drain(self) -> list[LeasedMessage]:
        """What was taken and not begun, from the workers and from the inbox they no longer empty."""
        taken = []
        while self._unstarted:
            taken.append(self._unstarted.popleft())
        while not self._inbox.empty():
            try:
                chunk = self._inbox.get_nowait()
            except Empty:
                break
            if chunk is not None:
                taken += chunk
                self._left(len(chunk))
        while self._pending:
            try:
                _, message = self._pending.popitem()
            except KeyError:
                break
            taken.append(message)
            self._left(1)
        return taken

    def _give_up(self, messages: list[LeasedMessage]) -> None:
        """Hands back what was begun. Its attempt counts: what it did may be done again."""
        for message in messages:
            self._holder.drop(message)
            try:
                message.nack(delay=0, error="the consumer was stopped while the handler ran")
            except RestanteError as error:
                log.warning("hand-back failed queue=%s id=%s error=%s", message.queue, message.id, error)

    def _hand_back(self, messages: list[LeasedMessage]) -> None:
        for name, source in self._sources.items():
            self._holder.release(source.queue, [message for message in messages if message.queue == name])
