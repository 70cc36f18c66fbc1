"""Takes messages and runs handlers: batches in, acks riding on the next receive, leases renewed from another thread.

On failure: a handler's exception nacks its message; a lost server is waited for with jittered pauses and work goes on
when it is back; a lost lease is marked on the message and said in the log. A stop hands back what has not started,
its attempt not counted; a second stop hands back everything, what was begun with its attempt counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import orjson

from restante.core import operations as ops
from restante.core.connection import Bell, Connection
from restante.core.errors import InvalidInput, LeaseLost, RestanteError, Unavailable
from restante.core.exchange import BLOCK, away
from restante.core.message import Message
from restante.core.operations import MAX_BATCH, QueueRef
from restante.core.queue import (
    AsyncLeasedMessage,
    AsyncQueue,
    LeasedMessage,
    Queue,
    receiving,
    run_flow,
)

log = logging.getLogger("restante")

#: Seconds of work a consumer may hold beyond what is running; more would keep messages from idle consumers.
BUFFERED_WORK = 0.1
#: Seconds of handling above which an ack travels at once: waiting for the next receive would invite doubles.
SLOW_HANDLER = 0.005
#: Share of its lease after which a held message is renewed.
RENEW_AFTER = 1 / 3
#: Seconds between two looks at held messages, at least and at most.
SHORTEST_TICK, LONGEST_TICK = 0.02, 5.0


class Renewal:
    """Keeps leases of held messages alive from a thread of its own, so that a busy handler or loop does not matter."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, tuple[QueueRef, Any]] = {}
        self._tick = LONGEST_TICK
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def hold(self, ref: QueueRef, messages: Sequence[Any]) -> None:
        """From now on these are renewed until dropped."""
        if not messages:
            return
        now = time.monotonic()
        shortest = LONGEST_TICK
        for message in messages:
            lease = message._lease_ms / 1000
            message._renew_at = now + lease * RENEW_AFTER
            shortest = min(shortest, lease * RENEW_AFTER / 2)
            self._held[message.lease_token] = (ref, message)
        if shortest < self._tick or self._thread is None:
            self._tick = max(SHORTEST_TICK, min(self._tick, shortest))
            self._start()
            self._wake.set()

    def drop(self, message: Message) -> None:
        """No longer renewed."""
        self._held.pop(message.lease_token, None)

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="restante-renewal", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._tick)
            self._wake.clear()
            try:
                self.run_once()
            except RestanteError as error:
                log.warning("extend failed error=%s", error)
            except Exception:
                log.exception("extend failed")

    def run_once(self) -> int:
        """Extends what is due for it; returns how many leases were extended."""
        now = time.monotonic()
        due: dict[QueueRef, list[Any]] = {}
        for ref, message in list(self._held.values()):
            if message._renew_at <= now:
                due.setdefault(ref, []).append(message)
        count = 0
        for ref, messages in due.items():
            for start in range(0, len(messages), MAX_BATCH):
                part = messages[start : start + MAX_BATCH]
                asked = time.monotonic()
                # One try per tick: a lease must not wait behind the patience of another.
                extended = self._connection.run(ops.renew(ref, part, None, ref.card), patience=self._tick)
                lost = set(extended)
                for message in part:
                    if message.id in lost:
                        # Settled meanwhile is no loss: the handler finished while the answer was on its way.
                        if self._held.pop(message.lease_token, None) and not message.settled:
                            message.lease_lost = True
                            log.warning("lease lost queue=%s id=%s", ref.name, message.id)
                    else:
                        message._renew_at = asked + message._lease_ms / 1000 * RENEW_AFTER
                        count += 1
        return count


class Pace:
    """How long handlers take, as a moving average, and what follows for batches and acks."""

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        #: Seconds; the first guess keeps a consumer from hoarding before it knows.
        self.seconds = BUFFERED_WORK

    def note(self, seconds: float, count: int = 1) -> None:
        weight = min(0.5, 0.1 * count)
        self.seconds += (max(seconds / count, 1e-7) - self.seconds) * weight

    @property
    def room(self) -> int:
        """Messages to hold in all: those running and a little work ahead."""
        ahead = int(BUFFERED_WORK / self.seconds * self._concurrency)
        return min(MAX_BATCH, self._concurrency + min(self._prefetch, ahead))

    @property
    def low(self) -> int:
        """Messages held below which more are fetched."""
        return max(self._concurrency - 1, self.room // 2 - 1)

    @property
    def chunk(self) -> int:
        """Messages handed to a worker at once; one unless they are quick."""
        return max(1, min(50, int(0.005 / self.seconds)))

    @property
    def quick(self) -> bool:
        return self.seconds < SLOW_HANDLER


def alone(messages: list[LeasedMessage]) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    """What to work on and what to hand back: a message its last consumer may have died of gets no company.

    Neighbours taken ahead would share its fate again and again, and die of attempts that never began.
    """
    for place, message in enumerate(messages):
        if message.suspect:
            return [message], messages[:place] + messages[place + 1 :]
    return messages, []


@contextlib.contextmanager
def stopping_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` while this is entered, where signals can be had: the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def iterate(queue: Queue, *, prefetch: int = 100, stop_when_empty: bool = False) -> Iterator[LeasedMessage]:
    """Yields messages one after the other; `with message:` acks or nacks each, and a failure does not end the loop.

    Acks of quick work travel with the next receive. SIGTERM or SIGINT ends the iteration after the message at
    hand; what was taken ahead is handed back with its attempt not counted.
    """
    connection, ref = queue._connection, queue._ref
    riding: deque[LeasedMessage] = deque()
    buffer: deque[LeasedMessage] = deque()
    renewal = Renewal(connection)
    pace = Pace(1, prefetch)
    bell = Bell()
    failures = 0
    suspected = False
    if not ref.opened:
        queue._open()

    def settle(acks: Sequence[LeasedMessage]) -> None:
        for message in acks:
            renewal.drop(message)

    def flush() -> None:
        acks = list(riding)
        riding.clear()
        if acks:
            try:
                queue.ack_many(acks)
            except LeaseLost as error:
                log.warning("lease lost before ack queue=%s ids=%s", queue.name, ",".join(error.ids[:10]))
            finally:
                settle(acks)

    with stopping_by_signal(bell.ring):
        try:
            while not bell.rung:
                if not buffer:
                    acks = [riding.popleft() for _ in range(len(riding))]
                    try:
                        # After a suspect, one at a time until an unsuspected message comes.
                        flow = receiving(
                            (ref,),
                            1 if suspected else pace.room,
                            timeout=0 if stop_when_empty or acks else 3600,
                            acks=acks,
                        )
                        got = queue._run(flow, bell)
                        failures = 0
                    except Unavailable as error:
                        riding.extendleft(reversed(acks))
                        failures += 1
                        log.warning("receive failed queue=%s error=%s", queue.name, error)
                        time.sleep(away(failures))
                        continue
                    settle(acks)
                    if got is None or not got.messages:
                        if stop_when_empty and not acks:
                            return
                        continue
                    kept, rest = alone(got.messages)
                    if rest:
                        queue.release_many(rest)
                    for message in kept:
                        message._riding = riding
                    renewal.hold(ref, kept)
                    buffer.extend(kept)
                message = buffer.popleft()
                suspected = message.suspect
                if message.lease_lost:
                    continue
                started = time.perf_counter()
                yield message
                pace.note(time.perf_counter() - started)
                if message.settled and not riding:
                    renewal.drop(message)
                if riding and not pace.quick:
                    flush()
        finally:
            try:
                flush()
                held = [message for message in buffer if not message.lease_lost]
                if held:
                    queue.release_many(held)
            except (LeaseLost, Unavailable) as error:
                log.warning("hand-back failed queue=%s error=%s", queue.name, error)
            renewal.close()
            bell.close()


async def iterate_async(queue: AsyncQueue, *, stop_when_empty: bool = False) -> AsyncIterator[AsyncLeasedMessage]:
    """Yields messages one after the other in asyncio; leases are renewed even while the loop is blocked."""
    keeper = Connection(queue._connection.url, queue._connection.settings)
    renewal = Renewal(keeper)
    failures = 0
    try:
        while True:
            try:
                message = await queue.receive(timeout=0 if stop_when_empty else 3600)
                failures = 0
            except Unavailable as error:
                failures += 1
                log.warning("receive failed queue=%s error=%s", queue.name, error)
                await asyncio.sleep(away(failures))
                continue
            if message is None:
                if stop_when_empty:
                    return
                continue
            message._consumed = True
            renewal.hold(queue._ref, [message])
            try:
                yield message
            finally:
                renewal.drop(message)
    finally:
        await asyncio.to_thread(renewal.close)
        keeper.close()


@dataclass(slots=True)
class Source:
    """One queue a consumer serves: its handlers and the acks waiting to travel."""

    queue: Queue
    handlers: dict[str | None, Callable[[Any], Any]]
    acks: deque[LeasedMessage] = field(default_factory=deque)

    def handler(self, message: LeasedMessage) -> Callable[[Any], Any] | None:
        return self.handlers.get(message.kind) or self.handlers.get(None)


class Consumer:
    """Runs handlers for one or more queues, plain functions in threads and coroutines on one event loop.

    `run()` blocks until stopped by `stop()`, SIGTERM or SIGINT. The first stop finishes what runs, hands back the
    rest and waits up to `grace` seconds; a second hands back everything at once.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        *,
        concurrency: int = 1,
        prefetch: int = 100,
        grace: float = 30.0,
        stop_when_empty: bool = False,
    ) -> None:
        if not queues:
            raise InvalidInput("a consumer needs at least one queue with a handler")
        if not 1 <= concurrency <= 10_000 or not 0 <= prefetch <= MAX_BATCH:
            raise InvalidInput(f"concurrency must be 1 to 10000 and prefetch 0 to {MAX_BATCH}")
        for queue in queues:
            if not queue._handlers:
                raise InvalidInput(f"{queue.name} has no handler: register one with @{queue.name}.handler")
        self._connection = queues[0]._connection
        self._sources = {queue.name: Source(queue, dict(queue._handlers)) for queue in queues}
        self._turn = deque(self._sources.values())
        self._concurrency = concurrency
        self._grace = grace
        self._stop_when_empty = stop_when_empty
        self._pace = Pace(concurrency, prefetch)
        self._renewal = Renewal(self._connection)
        self._bell = Bell()
        self._inbox: SimpleQueue[list[LeasedMessage] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: asyncio.Semaphore | None = None
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._unstarted: deque[LeasedMessage] = deque()
        self._running: dict[str, LeasedMessage] = {}
        self._changed = threading.Condition()
        self._parked = False
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
        self._bell.ring()

    def run(self) -> None:
        """Serves until stopped."""
        card = orjson.dumps({"host": platform.node(), "pid": os.getpid(), "concurrency": self._concurrency})
        for source in self._sources.values():
            source.queue._ref.card = card
        self._start_workers()
        failures = 0
        with stopping_by_signal(self.stop):
            try:
                for source in self._sources.values():
                    if not source.queue._ref.opened:
                        source.queue._open()
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
        with self._changed:
            # Half empty before the next fetch, so that quick handlers get batches and not one message a call.
            # A suspect runs without others taken ahead.
            while self._outstanding > (0 if self._suspected else self._pace.low) and not self._stops:
                self._changed.wait(0.2)
        if self._stops:
            return True
        got_any, due = False, None
        for _ in range(len(self._turn)):
            source = self._turn[0]
            self._turn.rotate(-1)
            room = 1 if self._suspected else self._pace.room - self._outstanding
            if room <= 0 or (self._suspected and self._outstanding):
                return True
            ref = source.queue._ref
            if not ref.opened:
                source.queue._open()
            acks = [source.acks.popleft() for _ in range(min(len(source.acks), MAX_BATCH))]
            try:
                got = run_flow(self._connection, receiving((ref,), room, acks=acks))
            except BaseException:
                source.acks.extendleft(reversed(acks))
                raise
            self.last_poll = time.monotonic()
            for message in acks:
                self._renewal.drop(message)
            if got is None:
                continue
            if got.due is not None:
                wait = max(0.0, (got.due - got.now) / 1000)
                due = wait if due is None else min(due, wait)
            if got.messages:
                got_any = True
                kept, rest = alone(got.messages)
                self._suspected = kept[0].suspect
                if rest:
                    source.queue.release_many(rest)
                self._dispatch(ref, kept)
            got_any = got_any or bool(acks)
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

    def _park(self, seconds: float) -> None:
        """Sleeps until there is something to take; workers settle for themselves meanwhile."""
        self._parked = True
        try:
            for source in self._sources.values():
                self._flush(source)
            if seconds > 0:
                markers = [source.queue._ref.keys["marker"] for source in self._sources.values()]
                self._connection.wait(markers, seconds, self._bell)
        finally:
            self._parked = False

    def _dispatch(self, ref: QueueRef, messages: list[LeasedMessage]) -> None:
        self._renewal.hold(ref, messages)
        with self._changed:
            self._outstanding += len(messages)
        source = self._sources[ref.name]
        plain: list[LeasedMessage] = []
        for message in messages:
            handler = source.handler(message)
            if self._loop is not None and inspect.iscoroutinefunction(handler):
                self._loop.call_soon_threadsafe(self._spawn, source, message, handler)
            else:
                plain.append(message)
        size = max(1, min(self._pace.chunk, -(-len(plain) // self._concurrency)))
        for start in range(0, len(plain), size):
            self._inbox.put(plain[start : start + size])

    # -- handling ------------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        handlers = [handler for source in self._sources.values() for handler in source.handlers.values()]
        if any(inspect.iscoroutinefunction(handler) for handler in handlers):
            self._loop = asyncio.new_event_loop()
            self._slots = asyncio.Semaphore(self._concurrency)
            self._threads.append(threading.Thread(target=self._loop.run_forever, name="restante-loop", daemon=True))
        if not all(inspect.iscoroutinefunction(handler) for handler in handlers):
            for number in range(self._concurrency):
                self._threads.append(threading.Thread(target=self._work, name=f"restante-worker-{number}", daemon=True))
        for thread in self._threads:
            thread.start()

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
                    self._pace.note(time.perf_counter() - started, done)
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
            handler(message)
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
            if self._parked or not self._pace.quick:
                await asyncio.to_thread(self._succeed, source, message)
            else:
                self._succeed(source, message)
        finally:
            self._running.pop(message.lease_token, None)
        self._pace.note(time.perf_counter() - started)

    def _succeed(self, source: Source, message: LeasedMessage) -> None:
        self.handled += 1
        if message.settled:
            self._renewal.drop(message)
            return
        message.settled = True
        source.acks.append(message)
        if self._parked or not self._pace.quick:
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
            self._renewal.drop(message)

    def _flush(self, source: Source) -> None:
        acks: list[LeasedMessage] = []
        try:
            while len(acks) < MAX_BATCH:
                acks.append(source.acks.popleft())
        except IndexError:
            pass
        if not acks:
            return
        try:
            source.queue.ack_many(acks)
        except LeaseLost as error:
            log.warning("lease lost before ack queue=%s ids=%s", source.queue.name, ",".join(error.ids[:10]))
        except RestanteError as error:
            source.acks.extendleft(reversed(acks))
            log.warning("ack failed queue=%s error=%s", source.queue.name, error)
            return
        for message in acks:
            self._renewal.drop(message)

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
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._renewal.close()
        self._bell.close()

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
            self._renewal.drop(message)
            try:
                message.nack(delay=0, error="the consumer was stopped while the handler ran")
            except RestanteError as error:
                log.warning("hand-back failed queue=%s id=%s error=%s", message.queue, message.id, error)

    def _hand_back(self, messages: list[LeasedMessage]) -> None:
        for name, source in self._sources.items():
            mine = [message for message in messages if message.queue == name]
            for message in mine:
                self._renewal.drop(message)
            if mine:
                try:
                    source.queue.release_many(mine)
                except RestanteError as error:
                    log.warning("hand-back failed queue=%s error=%s", name, error)
