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


def iterate(queue: Queue, *, prefetch: int = 100, stop_when_empty: bool = False) -> Iterator[LeasedMessage]:
    """Yields messages one by one; `with message:` acks or nacks each, and a failure does not end the loop.

    Acks of quick handlers travel with the next receive. While the server is away the loop waits: it keeps acks and
    renews their leases once the server is back, and nack, bury, release and extend return when the server has
    answered. SIGTERM or SIGINT ends the loop after the current message; prefetched messages are released, and their
    attempt is not counted.
    """
    if not queue.ref.opened:
        queue.ensure_open()
    holder, window, waker = LeaseHolder(queue.connection), Prefetch(1, prefetch), Waker()
    acks, buffer = holder.acks(queue), deque[LeasedMessage]()
    hooks = distinct(queue.hooks)
    listeners = Listeners(hooks)
    wait, failures = 0.0 if stop_when_empty else LONGEST_WAIT, 0
    suspected = paused = False
    with stopping_by_signal(waker.wake):
        try:
            while not waker.woken:
                if not buffer:
                    # After a suspect, receive single messages until one is not a suspect.
                    count = 1 if suspected else window.room
                    asked = time.monotonic()
                    try:
                        got, acked = holder.receive(queue, count, timeout=wait, waker=waker)
                        failures = 0
                    except Unavailable as error:
                        failures += 1
                        log.warning("receive failed queue=%s error=%s", queue.name, error)
                        time.sleep(away(failures, time.monotonic() - asked))
                        continue
                    if got is None or not got.messages:
                        paused = log_paused(queue.name, queue.settings.paused, paused)
                        if stop_when_empty and not acked:
                            return
                        continue
                    buffer.extend(holder.keep(queue, got.messages))
                    for message in buffer:
                        message.riding_acks, message.waker = acks, waker
                message = buffer.popleft()
                suspected = message.suspect
                if message.lease_lost:
                    continue
                message.limit(queue.settings.timeout)
                if listeners.started:
                    listeners.tell(listeners.started, message)
                started = time.perf_counter()
                try:
                    yield message
                finally:
                    took = time.perf_counter() - started
                    if hooks or queue.settings.soft_timeout is not None:
                        _turn_ended(queue, listeners, message, took)
                window.note(took)
                if message.settled and not acks:
                    holder.drop(message)
                if acks and not window.quick:
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


def _turn_ended(queue: Queue | AsyncQueue, listeners: Listeners, message: Leased, seconds: float) -> None:
    """Tells hooks how a turn of the loop ended, and the log what of hooks and limits the turn left out."""
    tell_ended(listeners, message, seconds)
    if not message.ran:
        queue.warn_of_loop(message, queue.settings.soft_timeout)


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
    renewal, window, buffer = Renewal(keeper), Prefetch(1, prefetch), deque[AsyncLeasedMessage]()
    hooks = distinct(queue.hooks)
    listeners = Listeners(hooks)
    failures = 0
    suspected = paused = False
    try:
        while True:
            if not buffer:
                count = 1 if suspected else window.room
                asked = time.monotonic()
                try:
                    messages = await queue.receive_many(count, timeout=0 if stop_when_empty else LONGEST_WAIT)
                    failures = 0
                except Unavailable as error:
                    failures += 1
                    log.warning("receive failed queue=%s error=%s", queue.name, error)
                    await asyncio.sleep(away(failures, time.monotonic() - asked))
                    continue
                if not messages:
                    paused = log_paused(queue.name, queue.settings.paused, paused)
                    if stop_when_empty:
                        return
                    continue
                # Without a pause in between: a cancellation there would lose the messages.
                kept, rest = isolate_suspect(messages)
                buffer.extend(kept)
                renewal.hold(queue.ref, kept)
                _release(keeper, queue.ref, rest)
            message = buffer.popleft()
            suspected = message.suspect
            if message.lease_lost:
                continue
            message.in_consume = message.told = True
            message.limit(queue.settings.timeout)
            if listeners.started:
                listeners.tell(listeners.started, message)
            started = time.perf_counter()
            try:
                yield message
            finally:
                took = time.perf_counter() - started
                renewal.drop(message)
                if hooks or queue.settings.soft_timeout is not None:
                    _turn_ended(queue, listeners, message, took)
            window.note(took)
    finally:
        for message in buffer:
            renewal.drop(message)
        _release(keeper, queue.ref, [message for message in buffer if not message.lease_lost])
        await asyncio.to_thread(renewal.close)
        keeper.close()


def _release(keeper: Connection, ref: ops.QueueRef, messages: Sequence[AsyncLeasedMessage]) -> None:
    """Returns messages that were not started, without counting the attempt.

    Blocks the event loop for one call. An awaited call could be cancelled, or come after the client was closed.
    """
    if not messages:
        return
    try:
        keeper.run(ops.release_many(ref, messages), patience=RELEASE_PATIENCE)
    except RestanteError as error:
        log.warning("release failed queue=%s error=%s", ref.name, error)
