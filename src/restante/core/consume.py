"""`consume()`: messages as a Python loop, received in batches; acks travel with the next receive, leases are renewed.

On failure: an exception in the body nacks its message, and the loop continues. While the server is away, receives and
verdicts wait with jittered pauses. A signal ends the loop after the current message and releases prefetched messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

from restante.core import operations as ops
from restante.core.call_retry import away
from restante.core.connection import Connection, Waker
from restante.core.errors import RestanteError, Unavailable
from restante.core.holder import LeaseHolder, isolate_suspect
from restante.core.hooks import Listeners, distinct
from restante.core.leased_message import AsyncLeasedMessage, Leased, LeasedMessage, tell_ended
from restante.core.prefetch import Prefetch
from restante.core.queue import AsyncQueue, Queue
from restante.core.queue_ref import QueueRef
from restante.core.renewal import Renewal

log = logging.getLogger("restante")

#: Seconds one receive of an idle loop waits before the loop checks whether it must stop and waits again.
LONGEST_WAIT = 3600.0
#: Seconds over which the release of messages that were received ahead is repeated in asyncio: it blocks the event loop.
RELEASE_PATIENCE = 0.5


def log_paused(name: str, paused: bool, before: bool) -> bool:
    """Logs that a queue was paused or resumed, because a paused consumer must not look idle. Returns `paused`."""
    if paused and not before:
        log.warning("paused queue=%s: nothing is received until it is resumed, by restante resume", name)
    elif before and not paused:
        log.info("resumed queue=%s", name)
    return paused


@contextlib.contextmanager
def stopping_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on SIGTERM and SIGINT inside the block. In other threads it does nothing: they get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class _Loop:
    """What both loops share: how much to receive, the pauses while the server is away, and each message's turn."""

    def __init__(self, queue: Queue | AsyncQueue, prefetch: int) -> None:
        self._queue = queue
        self._ref = queue.ref
        self._hooks = distinct(queue.hooks)
        self._listeners = Listeners(self._hooks)
        self._failures = 0
        self._paused = False
        self.window = Prefetch(1, prefetch)
        #: Whether the last message was a suspect.
        self.suspected = False

    @property
    def count(self) -> int:
        """Messages to receive: after a suspect single ones, until one is not a suspect."""
        return 1 if self.suspected else self.window.room

    def note_failed(self, error: Unavailable, asked: float) -> float:
        """Logs a receive that failed; returns the seconds until the next."""
        self._failures += 1
        log.warning("receive failed queue=%s error=%s", self._ref.name, error)
        return away(self._failures, time.monotonic() - asked)

    def note_answered(self, messages: Sequence[Leased]) -> None:
        """Notes that the server is there, and, if it had no message, whether the queue is paused."""
        self._failures = 0
        if not messages:
            self._paused = log_paused(self._ref.name, self._ref.settings.paused, self._paused)

    def begin(self, message: Leased) -> float:
        """Begins a turn: the time limit of the message, and the hooks. Returns when, by time.perf_counter()."""
        message.limit(self._ref.settings.timeout)
        if self._listeners.started:
            self._listeners.tell(self._listeners.started, message)
        return time.perf_counter()

    def end(self, message: Leased, started: float) -> None:
        """Ends a turn: tells hooks how, and the log what of hooks and limits a loop leaves out."""
        took = time.perf_counter() - started
        self.window.note(took)
        soft_timeout = self._ref.settings.soft_timeout
        if self._hooks or soft_timeout is not None:
            tell_ended(self._listeners, message, took)
            if not message.ran:
                self._queue.warn_of_loop(message, soft_timeout)


def iterate(queue: Queue, *, prefetch: int = 100, stop_when_empty: bool = False) -> Iterator[LeasedMessage]:
    """Yields messages one by one; `with message:` acks or nacks each, and a failure does not end the loop.

    Acks of quick handlers travel with the next receive. While the server is away the loop waits: it keeps acks and
    renews their leases once the server is back, and nack, bury, release and extend return when the server has
    answered. SIGTERM or SIGINT ends the loop after the current message; prefetched messages are released, and their
    attempt is not counted.
    """
    if not queue.ref.opened:
        queue.ensure_open()
    loop, holder, waker = _Loop(queue, prefetch), LeaseHolder(queue.connection), Waker()
    acks, buffer = holder.acks(queue), deque[LeasedMessage]()
    wait = 0.0 if stop_when_empty else LONGEST_WAIT
    with stopping_by_signal(waker.wake):
        try:
            while not waker.woken:
                if not buffer:
                    asked = time.monotonic()
                    try:
                        got, acked = holder.receive(queue, loop.count, timeout=wait, waker=waker)
                    except Unavailable as error:
                        time.sleep(loop.note_failed(error, asked))
                        continue
                    messages = got.messages if got else []
                    loop.note_answered(messages)
                    if not messages:
                        if stop_when_empty and not acked:
                            return
                        continue
                    buffer.extend(holder.keep(queue, messages))
                    for message in buffer:
                        message.riding_acks, message.waker = acks, waker
                message = buffer.popleft()
                loop.suspected = message.suspect
                if message.lease_lost:
                    continue
                started = loop.begin(message)
                try:
                    yield message
                finally:
                    loop.end(message, started)
                if message.settled and not acks:
                    holder.drop(message)
                if acks and not loop.window.quick:
                    _flush(holder, queue)
        finally:
            _end(holder, queue, waker, buffer)


def _end(holder: LeaseHolder, queue: Queue, waker: Waker, buffer: Iterable[LeasedMessage]) -> None:
    """Delivers the last acks and returns what was received ahead."""
    try:
        _flush_last(holder, queue, waker)
    except RestanteError as error:
        log.warning("ack failed queue=%s error=%s", queue.name, error)
    holder.release(queue, [message for message in buffer if not message.lease_lost])
    holder.close()
    waker.close()


def _flush(holder: LeaseHolder, queue: Queue) -> bool:
    """Delivers the queued acks. Returns False while the server is away; the acks then stay queued."""
    try:
        holder.flush(queue)
    except Unavailable as error:
        log.warning("ack waits for the server queue=%s count=%d error=%s", queue.name, len(holder.acks(queue)), error)
        return False
    return True


def _flush_last(holder: LeaseHolder, queue: Queue, waker: Waker) -> None:
    """Delivers the last acks. Waits for the server until the last lease has ended, unless a signal stops it."""
    acks = holder.acks(queue)
    until = max((message.renew_at + message.lease_ms / 1000 for message in acks), default=0.0)
    tries = 0
    while not _flush(holder, queue):
        if waker.woken or time.monotonic() > until:
            log.error("acks lost queue=%s ids=%s", queue.name, ",".join(message.id for message in acks))
            return
        tries += 1
        time.sleep(away(tries))


async def iterate_async(
    queue: AsyncQueue, *, prefetch: int = 100, stop_when_empty: bool = False
) -> AsyncGenerator[AsyncLeasedMessage, None]:
    """Yields messages one by one in asyncio. A separate thread renews leases even while the event loop is blocked."""
    keeper = Connection(queue.connection.url, queue.connection.settings)
    loop, renewal, buffer = _Loop(queue, prefetch), Renewal(keeper), deque[AsyncLeasedMessage]()
    wait = 0.0 if stop_when_empty else LONGEST_WAIT
    try:
        while True:
            if not buffer:
                asked = time.monotonic()
                try:
                    messages = await queue.receive_many(loop.count, timeout=wait)
                except Unavailable as error:
                    await asyncio.sleep(loop.note_failed(error, asked))
                    continue
                loop.note_answered(messages)
                if not messages:
                    if stop_when_empty:
                        return
                    continue
                # Without a pause in between: a cancellation there would lose the messages.
                kept, rest = isolate_suspect(messages)
                buffer.extend(kept)
                renewal.hold(queue.ref, kept)
                _release(keeper, queue.ref, rest)
            message = buffer.popleft()
            loop.suspected = message.suspect
            if message.lease_lost:
                continue
            message.in_consume = message.told = True
            started = loop.begin(message)
            try:
                yield message
            finally:
                renewal.drop(message)
                loop.end(message, started)
    finally:
        for message in buffer:
            renewal.drop(message)
        _release(keeper, queue.ref, [message for message in buffer if not message.lease_lost])
        await asyncio.to_thread(renewal.close)
        keeper.close()


def _release(keeper: Connection, ref: QueueRef, messages: Sequence[AsyncLeasedMessage]) -> None:
    """Returns messages that were not started, without counting the attempt.

    Blocks the event loop for one call. An awaited call could be cancelled, or come after the client was closed.
    """
    if not messages:
        return
    try:
        keeper.run(ops.release_many(ref, messages), patience=RELEASE_PATIENCE)
    except RestanteError as error:
        log.warning("release failed queue=%s error=%s", ref.name, error)
