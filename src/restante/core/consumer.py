"""Runs the handlers of queues in threads or asyncio tasks; receives in batches, and acks travel with the next receive.

On failure: an exception in a handler nacks its message. While the server is away the consumer waits with jittered
pauses and continues when the server is back. A lost lease is marked on the message and logged. The first stop releases
messages that have not started, without counting the attempt; a second stop also returns running ones and counts it.
A handler that does not end at its time limit is replaced, and its message fails without it.

One message's way: `_fetch` receives it and `_dispatch` passes it to a worker; `_attempt` or `_attempt_async` starts it,
runs its handler inside its hooks and limits, and settles it by `_succeed` or `_fail`, which report to the hooks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from restante.core.call_retry import BLOCK, away
from restante.core.connection import Waker
from restante.core.consume import stopping_by_signal
from restante.core.errors import InvalidInput, LeaseLost, RestanteError, TimeLimit, Unavailable, UnsafeServer
from restante.core.failure_log import FailureLog
from restante.core.firing import firing
from restante.core.handlers import Handling, with_every_kind
from restante.core.holder import LeaseHolder
from restante.core.hooks import Hook, Listeners, check_hook, distinct
from restante.core.keywords import known_keywords
from restante.core.leased_message import Leased, insist
from restante.core.message import State
from restante.core.operations import MAX_BATCH
from restante.core.prefetch import Prefetch
from restante.core.queue import AsyncQueue, Queue
from restante.core.sources import Source, SourceConnections
from restante.core.time_limit import Abandoned, HandlerStopped, TimeLimits, Watch
from restante.core.tracebacks import place
from restante.core.workers import LoopThread, Worker, Workers

log = logging.getLogger("restante")

#: Seconds between two checks of the server's configuration.
EXAMINE_EVERY = 30.0


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
        hooks: Sequence[Hook] = (),
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
        own = tuple(check_hook(hook) for hook in hooks)
        self._sources = {
            queue.name: self._source(queue, plain, verbs, distinct((*queue.hooks, *own)))
            for queue, (plain, verbs) in zip(queues, twins, strict=True)
        }
        self._turn = deque(self._sources.values())
        self._concurrency = concurrency
        self._grace = grace
        self._stop_when_empty = stop_when_empty
        self._prefetch = Prefetch(concurrency, prefetch)
        self._waker = Waker()
        self._workers = Workers(concurrency, self._work_off)
        self._loop = LoopThread(concurrency, self._connections.close_aio)
        self._limits = TimeLimits(self._hangs, self._hangs_no_longer)
        #: Attempts that were given up and whose handlers still run, with their queues.
        self._hung: dict[Watch, str] = {}
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
        #: What its registry entry says beside host, pid and concurrency: a child process names its parent.
        self.card: dict[str, Any] = {}

    def _source(
        self, queue: Queue | AsyncQueue, plain: Queue, verbs: AsyncQueue | None, hooks: Sequence[Hook]
    ) -> Source:
        registered = with_every_kind(queue.handlers, queue.name)
        handlers = {kind: Handling.of(handler, hooks) for kind, handler in registered.items()}
        return Source(plain, handlers, Listeners((FailureLog(), *hooks)), self._holder.acks(plain), verbs)

    # -- control -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops the consumer: running handlers finish. A second call returns their messages at once."""
        self._stops += 1
        self._waker.wake()

    @property
    def running(self) -> int:
        """How many handlers run, without those that hang."""
        return len(self._running)

    @property
    def longest_lease(self) -> float:
        """Seconds of the longest lease that it may hold now."""
        own = max((message.lease_ms or 0 for message in list(self._running.values())), default=0) / 1000
        return max(own, *(source.queue.settings.lease for source in self._sources.values()))

    @property
    def hung(self) -> int:
        """How many handlers did not end at their time limit and still run. Others have taken their places."""
        return len(self._hung)

    def run(self) -> None:
        """Consumes until stopped."""
        self._introduce()
        self._start_workers()
        failures = 0
        with stopping_by_signal(self.stop):
            try:
                for source in self._sources.values():
                    source.open()
                    source.store_schedules()
                while not self._stops:
                    asked = time.monotonic()
                    try:
                        if not self._fetch():
                            break
                        failures = 0
                    except Unavailable as error:
                        failures += 1
                        log.warning("receive failed error=%s", error)
                        if not self._stops:
                            time.sleep(away(failures, time.monotonic() - asked))
            finally:
                self._finish()

    def _introduce(self) -> None:
        """Writes the consumer's entries for the registry, which the next receive or renewal carries."""
        hung = list(self._hung.values())
        for name, source in self._sources.items():
            card = {"host": platform.node(), "pid": os.getpid(), "concurrency": self._concurrency} | self.card
            if name in hung:
                card["hung"] = hung.count(name)
            source.queue.ref.presence = orjson.dumps(card)
            source.queue.ref.seen = 0.0

    # -- fetching ------------------------------------------------------------------------------------------------

    def _fetch(self) -> bool:
        """Waits for room, receives from each queue and delivers its acks. Returns False when the consumer is done."""
        if time.monotonic() - self._examined > EXAMINE_EVERY:
            self._examine()
        self._await_room()
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

    def _await_room(self) -> None:
        """Waits until there is room to fetch, and fires schedules meanwhile.

        Fetches again when half of the messages are handled, so that quick handlers get batches and not one message per
        call. While a suspect runs, nothing is prefetched.
        """
        while True:
            due: Source | None = None
            with self._changed:
                while self._outstanding > (0 if self._suspected else self._prefetch.low) and not self._stops:
                    first = min(self._sources.values(), key=lambda source: source.looks_at)
                    pause = first.looks_at - time.monotonic()
                    if pause <= 0:
                        due = first
                        break
                    self._changed.wait(min(0.2, pause))
            if due is None:
                return
            due.queue.run(firing(due.queue.ref))

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
            if handler.asynchronous:
                self._loop.put(message, partial(self._begin_async, source, message, handler))
            else:
                plain.append(message)
        size = max(1, min(self._prefetch.chunk, -(-len(plain) // self._concurrency)))
        for start in range(0, len(plain), size):
            self._workers.put(plain[start : start + size])

    # -- workers -------------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        handlers = [handler for source in self._sources.values() for handler in source.handlers.values()]
        if any(handler.asynchronous for handler in handlers):
            self._loop.start()
        if not all(handler.asynchronous for handler in handlers):
            self._workers.start()

    def _work_off(self, worker: Worker) -> None:
        """Handles the messages of a worker's chunk, unless it is replaced meanwhile."""
        started = time.perf_counter()
        done = 0
        try:
            for message in worker.messages():
                if self._stops:
                    self._unstarted.append(message)
                elif not message.lease_lost:
                    self._attempt(message)
                    done += 1
            if done:
                self._prefetch.note(time.perf_counter() - started, done)
        except Exception:
            # A bug of ours, not of a handler: the message returns when its lease ends; the worker continues.
            log.exception("worker failed")
        finally:
            if not worker.replaced:
                self._left(worker.taken)

    async def _begin_async(self, source: Source, message: Leased, handler: Handling) -> bool:
        """Handles a message on the event loop. Returns whether it was given up, and its slot with it."""
        abandoned = False
        try:
            if self._stops:
                self._unstarted.append(message)
            elif not message.lease_lost:
                abandoned = await self._attempt_async(source, message, handler)
        except Exception:
            log.exception("worker failed")
        finally:
            if not abandoned:
                self._left(1)
        return abandoned

    # -- one attempt ---------------------------------------------------------------------------------------------

    def _attempt(self, message: Leased) -> None:
        """Starts a message, runs its plain handler, and settles it."""
        source = self._sources[message.queue]
        handler = source.handler(message)
        started = self._start(source, message)
        try:
            limits = handler.limits(message, source.queue.ref.settings)
            if limits is None:
                result = handler.call(message)
            else:
                message.limits = limits
                result = self._limits.around(message, partial(handler.call, message))
        except (Abandoned, HandlerStopped):
            return  # `_hangs` has settled it
        except BaseException as error:
            self._fail(source, message, error)
        else:
            kept = result if handler.keeps(source.queue.ref.settings, result) else None
            self._succeed(source, message, started, kept)
        finally:
            self._running.pop(message.lease_token, None)

    async def _attempt_async(self, source: Source, message: Leased, handler: Handling) -> bool:
        """Starts a message, runs its coroutine handler, and settles it. Returns whether it was given up before."""
        started = self._start(source, message)
        begun = time.perf_counter()
        if (task := asyncio.current_task()) is not None:
            message.on_cancel = partial(self._loop.call, task.cancel)
        try:
            limits = handler.limits(message, source.queue.ref.settings)
            if limits is None:
                result = await handler.function(message)
            else:
                message.limits = limits
                result = await self._limits.around_async(message, partial(handler.function, message))
        except (Abandoned, HandlerStopped):
            return True
        except BaseException as error:
            if self._loop.closing and isinstance(error, asyncio.CancelledError):
                raise  # the message has been returned
            await asyncio.to_thread(self._fail, source, message, error)
        else:
            kept = result if handler.keeps(source.queue.ref.settings, result) else None
            if self._parked or not self._prefetch.quick or kept is not None:
                await asyncio.to_thread(self._succeed, source, message, started, kept)
            else:
                self._succeed(source, message, started, None)
        finally:
            message.on_cancel = None
            self._running.pop(message.lease_token, None)
        self._prefetch.note(time.perf_counter() - begun)
        return False

    def _start(self, source: Source, message: Leased) -> float:
        """Tells the hooks. Returns when the attempt started, if one of them wants to know how long it took."""
        self._running[message.lease_token] = message
        listeners = source.listeners
        if listeners.started:
            listeners.tell(listeners.started, message)
        return time.perf_counter() if listeners.finished else 0.0

    def _succeed(self, source: Source, message: Leased, started: float, result: Any) -> None:
        """Acks a message: with its result by a call of its own, else by the next receive where handlers are quick."""
        if result is not None and not message.settled and not self._keep(source, message, result):
            return
        self.handled += 1
        if message.settled:
            self._holder.drop(message)
        else:
            message.settled, message.verdict = True, "acked"
            source.acks.append(message)
            if self._parked or not self._prefetch.quick:
                self._flush(source)
        if source.listeners.finished:
            source.listeners.tell(source.listeners.finished, message, time.perf_counter() - started)

    def _keep(self, source: Source, message: Leased, result: Any) -> bool:
        """Acks a message with its result. Returns False if the result cannot be kept: the attempt has failed then."""
        try:
            insist(message, "ack", lambda: source.queue.ack_result(message, result))
        except InvalidInput as error:
            self._fail(source, message, error)
            return False
        except LeaseLost:
            log.warning("lease lost before ack queue=%s id=%s", message.queue, message.id)
        except RestanteError as failure:
            # The lease expires, and the message is delivered again.
            log.error("ack failed queue=%s id=%s error=%s", message.queue, message.id, failure)
        message.settled = True
        return True

    def _fail(self, source: Source, message: Leased, error: BaseException) -> None:
        """Nacks a message, unless its handler has settled it or it was cancelled."""
        if message.cancelled:
            log.info("cancelled queue=%s id=%s", message.queue, message.id)
            self._holder.drop(message)
            return
        self.failed += 1
        state: State | None = None
        try:
            if not message.settled:
                state = insist(message, "nack", lambda: source.queue.nack_many((message,), error=error))[0]
        except LeaseLost:
            log.warning("lease lost before nack queue=%s id=%s", message.queue, message.id)
        except RestanteError as failure:
            # The lease expires and counts the attempt; only the text of the error is lost.
            log.error("nack failed queue=%s id=%s error=%s", message.queue, message.id, failure)
        finally:
            self._holder.drop(message)
        source.listeners.tell_failed(message, error, state)

    # -- handlers that hang --------------------------------------------------------------------------------------

    def _hangs(self, watch: Watch, error: TimeLimit) -> None:
        """Fails the message of a handler that did not end, and gives its place to another."""
        message = watch.message
        self._hung[watch] = message.queue
        self._running.pop(message.lease_token, None)
        self._introduce()
        log.error(
            "hung queue=%s id=%s attempt=%d at=%s timeout=%g hung=%d: %s",
            message.queue,
            message.id,
            message.attempts,
            place(error) or "-",
            watch.limit,
            self.hung,
            "it blocks the event loop" if watch.blocking else "another takes its place",
        )
        begun = 1
        if isinstance(watch.thread, Worker):
            begun = self._workers.replace(watch.thread)
        else:
            self._loop.give_slot_away()

        def settle() -> None:
            try:
                self._fail(self._sources[message.queue], message, error)
            finally:
                self._left(begun)

        # In a thread of its own: while the server is away a verdict waits, and the limits of others must not.
        threading.Thread(target=settle, name="restante-hung", daemon=True).start()

    def _hangs_no_longer(self, watch: Watch) -> None:
        """A handler has ended after it was given up."""
        if self._hung.pop(watch, None) is not None:
            self._introduce()
            message = watch.message
            log.warning("hung no longer queue=%s id=%s hung=%d", message.queue, message.id, self.hung)

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
        self._limits.close()
        self._workers.stop()
        self._loop.stop()
        self._holder.close()
        self._connections.close()
        self._waker.close()

    def _drain(self) -> list[Leased]:
        """Takes the messages that have not started, from the workers and from the inbox they no longer empty."""
        messages: list[Leased] = []
        while self._unstarted:
            messages.append(self._unstarted.popleft())
        waiting = self._workers.take_back() + self._loop.take_back()
        self._left(len(waiting))
        return messages + waiting

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
