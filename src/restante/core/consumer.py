"""Runs the handlers of queues in threads or asyncio tasks; receives in batches, and acks travel with the next receive.

On failure: an exception in a handler nacks its message. While the server is away the consumer waits with jittered
pauses and continues when the server is back. A lost lease is marked on the message and logged. The first stop releases
messages that have not started, without counting the attempt; a second stop also returns running ones and counts it.
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
from queue import Empty, SimpleQueue
from typing import Any

import orjson

from restante.core.call_retry import BLOCK, away
from restante.core.connection import Waker
from restante.core.consume import stopping_by_signal
from restante.core.errors import InvalidInput, LeaseLost, RestanteError, Unavailable, UnsafeServer
from restante.core.holder import LeaseHolder
from restante.core.keywords import known_keywords
from restante.core.leased_message import Leased, insist
from restante.core.operations import MAX_BATCH
from restante.core.prefetch import Prefetch
from restante.core.queue import AsyncQueue, Queue
from restante.core.sources import Handling, Source, SourceConnections

log = logging.getLogger("restante")

#: Seconds between two checks of the server's configuration.
EXAMINE_EVERY = 30.0
#: Seconds a stop waits for the event loop to close. A handler that blocks the loop longer ends with the process.
LOOP_CLOSE = 5.0


class Consumer:
    """Runs the handlers of one or more queues: functions in threads, coroutine functions on one event loop.

    `run()` blocks until `stop()`, SIGTERM or SIGINT. The first stop waits up to `grace` seconds for running handlers
    and releases the other messages; a second stop returns all messages at once.
    """

    @known_keywords
    def __init__(
        self,
        queues: Sequence[Queue | AsyncQueue],
        *,
        concurrency: int = 1,
        prefetch: int = 100,
        grace: float = 30.0,
        stop_when_empty: bool = False,
    ) -> None:
        if not isinstance(queues, Sequence) or not all(isinstance(queue, Queue | AsyncQueue) for queue in queues):
            raise InvalidInput(f"a consumer takes a list of queues, such as Consumer([orders]), not {queues!r}")
        if not queues:
            raise InvalidInput("a consumer needs at least one queue with a handler")
        if not 1 <= concurrency <= 10_000 or not 0 <= prefetch <= MAX_BATCH:
            raise InvalidInput(f"concurrency must be 1 to 10000 and prefetch 0 to {MAX_BATCH}")
        for queue in queues:
            if not queue.handlers:
                raise InvalidInput(f"{queue.name} has no handler: register one with @{queue.name}.handler")
        self._connections = SourceConnections()
        twins = [self._connections.twins(queue) for queue in queues]
        self._connection = twins[0][0].connection
        self._holder = LeaseHolder(self._connection)
        self._sources = {
            queue.name: Source(
                plain,
                {kind: Handling.of(handler) for kind, handler in queue.handlers.items()},
                self._holder.acks(plain),
                verbs,
            )
            for queue, (plain, verbs) in zip(queues, twins, strict=True)
        }
        self._turn = deque(self._sources.values())
        self._concurrency = concurrency
        self._grace = grace
        self._stop_when_empty = stop_when_empty
        self._prefetch = Prefetch(concurrency, prefetch)
        self._waker = Waker()
        self._inbox: SimpleQueue[list[Leased] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: asyncio.Semaphore | None = None
        self._over: asyncio.Event | None = None
        self._loop_thread: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._unstarted: deque[Leased] = deque()
        self._running: dict[str, Leased] = {}
        self._changed = threading.Condition()
        self._parked = False
        self._examined = time.monotonic()
        self._suspected = False
        self._pending: dict[str, Leased] = {}
        self._stops = 0
        #: Messages handled since the start: successes and failures.
        self.handled = 0
        self.failed = 0
        #: When the server last answered a receive, by time.monotonic().
        self.last_poll = 0.0

    # -- control -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops the consumer: running handlers finish. A second call returns their messages at once."""
        self._stops += 1
        self._waker.wake()

    def run(self) -> None:
        """Consumes until stopped."""
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
        """Waits for room, receives from each queue and delivers its acks. Returns False when the consumer is done."""
        if time.monotonic() - self._examined > EXAMINE_EVERY:
            self._examine()
        with self._changed:
            # Fetch again when half of the messages are handled, so that quick handlers get batches and not one message
            # per call. While a suspect runs, nothing is prefetched.
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
                kept = self._holder.keep(source.queue, source.shaped(got.messages))
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
        """Logs an error if the server has become unsafe. Stopping a running consumer would not help."""
        self._examined = time.monotonic()
        try:
            self._connection.examine()
        except UnsafeServer as error:
            log.error("unsafe server: %s", error)

    def _park(self, seconds: float) -> None:
        """Waits until there is a message to receive; workers deliver their own acks meanwhile."""
        self._parked = True
        try:
            for source in self._sources.values():
                self._flush(source)
            if seconds > 0:
                markers = [source.queue.ref.keys["marker"] for source in self._sources.values()]
                self._connection.wait(markers, seconds, self._waker)
        finally:
            self._parked = False

    def _dispatch(self, source: Source, messages: list[Leased]) -> None:
        with self._changed:
            self._outstanding += len(messages)
        plain: list[Leased] = []
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
        """Runs the event loop of coroutine handlers. On exit it cancels running tasks and closes the loop."""

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._slots, self._over = asyncio.Semaphore(self._concurrency), asyncio.Event()
            ready.set()
            await self._over.wait()
            await self._connections.close_aio()

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
                # A bug of ours, not of a handler: the message returns when its lease ends; the worker continues.
                log.exception("worker failed")
            finally:
                self._left(len(chunk))

    def _handle_plain(self, message: Leased) -> None:
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
                raise TypeError("the handler returned a coroutine that nobody awaits: use async def")
        except Exception as error:
            self._fail(source, message, error)
        else:
            self._succeed(source, message)
        finally:
            self._running.pop(message.lease_token, None)

    def _spawn(self, source: Source, message: Leased, handler: Callable[[Any], Any]) -> None:
        assert self._loop is not None
        self._pending[message.lease_token] = message
        self._loop.create_task(self._handle(source, message, handler))

    async def _handle(self, source: Source, message: Leased, handler: Callable[[Any], Any]) -> None:
        assert self._slots is not None
        async with self._slots:
            if self._pending.pop(message.lease_token, None) is None:
                return  # released while it waited for a slot
            try:
                if self._stops:
                    self._unstarted.append(message)
                elif not message.lease_lost:
                    await self._run_coroutine(source, message, handler)
            except Exception:
                log.exception("worker failed")
            finally:
                self._left(1)

    async def _run_coroutine(self, source: Source, message: Leased, handler: Callable[[Any], Any]) -> None:
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

    def _succeed(self, source: Source, message: Leased) -> None:
        self.handled += 1
        if message.settled:
            self._holder.drop(message)
            return
        message.settled, message.verdict = True, "acked"
        source.acks.append(message)
        if self._parked or not self._prefetch.quick:
            self._flush(source)

    def _fail(self, source: Source, message: Leased, error: Exception) -> None:
        self.failed += 1
        log.warning("nacked queue=%s id=%s error=%s: %s", message.queue, message.id, type(error).__name__, error)
        try:
            if not message.settled:
                insist(message, "nack", lambda: source.queue.nack_many((message,), error=error))
        except LeaseLost:
            log.warning("lease lost before nack queue=%s id=%s", message.queue, message.id)
        except RestanteError as failure:
            # The lease expires and counts the attempt; only the text of the error is lost.
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
        """Waits for running handlers, releases the other messages and delivers the last acks."""
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
        self._connections.close()
        self._waker.close()

    def _drain(self) -> list[Leased]:
        """Takes the messages that have not started, from the workers and from the inbox they no longer empty."""
        messages: list[Leased] = []
        while self._unstarted:
            messages.append(self._unstarted.popleft())
        while not self._inbox.empty():
            try:
                chunk = self._inbox.get_nowait()
            except Empty:
                break
            if chunk is not None:
                messages += chunk
                self._left(len(chunk))
        while self._pending:
            try:
                _, message = self._pending.popitem()
            except KeyError:
                break
            messages.append(message)
            self._left(1)
        return messages

    def _give_up(self, messages: list[Leased]) -> None:
        """Returns messages whose handlers run. The attempt counts, because their work may be done twice."""
        for message in messages:
            self._holder.drop(message)
            try:
                self._sources[message.queue].queue.nack_many(
                    (message,), delay=0, error="the consumer was stopped while the handler ran"
                )
            except RestanteError as error:
                log.warning("nack failed queue=%s id=%s error=%s", message.queue, message.id, error)

    def _hand_back(self, messages: list[Leased]) -> None:
        for name, source in self._sources.items():
            self._holder.release(source.queue, [message for message in messages if message.queue == name])
