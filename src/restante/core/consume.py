"""Messages one after the other as a Python loop: batches in, acks riding on the next receive, leases renewed meanwhile.

On failure: an exception in the body nacks its message and the loop goes on; a lost server is waited for with jittered
pauses, by receives and verdicts alike; a stop by signal ends the loop after the message at hand and gives back what was
taken ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from restante.core.call_retry import away
from restante.core.connection import Connection, Waker
from restante.core.errors import LeaseLost, RestanteError, Unavailable
from restante.core.leased_message import AsyncLeasedMessage, LeasedMessage
from restante.core.operations import MAX_BATCH
from restante.core.queue import AsyncQueue, Queue, receiving
from restante.core.renewal import Renewal

log = logging.getLogger("restante")

#: Seconds of work a consumer may hold beyond what is running; more would keep messages from idle consumers.
BUFFERED_WORK = 0.1
#: Seconds of handling above which an ack travels at once: waiting for the next receive would invite doubles.
SLOW_HANDLER = 0.005


class Prefetch:
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


def isolate_suspect(messages: list[LeasedMessage]) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    """What to work on and what to hand back: a message its last consumer may have died of gets no company.

    Neighbours taken ahead would share its fate again and again, and die of attempts that never began.
    """
    for place, message in enumerate(messages):
        if message.suspect:
            return [message], messages[:place] + messages[place + 1 :]
    return messages, []


def hand_back(queue: Queue, messages: Sequence[LeasedMessage]) -> None:
    """Releases what was not begun; what cannot be released comes back when its lease ends."""
    if not messages:
        return
    try:
        queue.release_many(messages)
    except RestanteError as error:
        log.warning("hand-back failed queue=%s error=%s", queue.name, error)


def tell_paused(name: str, paused: bool, before: bool) -> bool:
    """Logs that a queue was paused or resumed: a consumer that gets nothing must not look idle. Returns `paused`."""
    if paused and not before:
        log.warning("paused queue=%s: nothing is received until it is resumed, by restante resume", name)
    elif before and not paused:
        log.info("resumed queue=%s", name)
    return paused


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

    Acks of quick work travel with the next receive. A server that is away is waited for: acks are kept and their
    leases renewed once it is back, and nack, bury, release and extend return when it has answered. SIGTERM or SIGINT
    ends the iteration after the message at hand; what was taken ahead is handed back with its attempt not counted.
    """
    connection, ref = queue.connection, queue.ref
    riding: deque[LeasedMessage] = deque()
    buffer: deque[LeasedMessage] = deque()
    renewal = Renewal(connection)
    window = Prefetch(1, prefetch)
    waker = Waker()
    failures = 0
    suspected = paused = False
    if not ref.opened:
        queue.ensure_open()

    def settle(acks: Sequence[LeasedMessage]) -> None:
        for message in acks:
            renewal.drop(message)

    def flush() -> bool:
        """Sends the acks that wait; False where the server is away, and they wait on."""
        acks = list(riding)
        if acks:
            try:
                queue.ack_many(acks)
            except LeaseLost as error:
                log.warning("lease lost before ack queue=%s ids=%s", queue.name, ",".join(error.ids[:10]))
            except Unavailable as error:
                log.warning("ack waits for the server queue=%s count=%d error=%s", queue.name, len(acks), error)
                return False
            for _ in acks:
                riding.popleft()
            settle(acks)
        return True

    def flush_last() -> None:
        """Sends the acks that are left; waits for the server as long as a lease may last, unless told to stop."""
        until = max((message.renew_at + message.lease_ms / 1000 for message in riding), default=0.0)
        tries = 0
        while not flush():
            if waker.woken or time.monotonic() > until:
                log.error("acks lost queue=%s ids=%s", queue.name, ",".join(one.id for one in riding))
                return
            tries += 1
            time.sleep(away(tries))

    with stopping_by_signal(waker.wake):
        try:
            while not waker.woken:
                if not buffer:
                    acks = [riding.popleft() for _ in range(len(riding))]
                    try:
                        # After a suspect, one at a time until an unsuspected message comes.
                        flow = receiving(
                            (ref,),
                            1 if suspected else window.room,
                            timeout=0 if stop_when_empty or acks else 3600,
                            acks=acks,
                        )
                        got = queue.run(flow, waker)
                        failures = 0
                    except Unavailable as error:
                        riding.extendleft(reversed(acks))
                        failures += 1
                        log.warning("receive failed queue=%s error=%s", queue.name, error)
                        time.sleep(away(failures))
                        continue
                    settle(acks)
                    if got is None or not got.messages:
                        paused = tell_paused(queue.name, queue.settings.paused, paused)
                        if stop_when_empty and not acks:
                            return
                        continue
                    kept, rest = isolate_suspect(got.messages)
                    hand_back(queue, rest)
                    for message in kept:
                        message.riding_acks, message.waker = riding, waker
                    renewal.hold(ref, kept)
                    buffer.extend(kept)
                message = buffer.popleft()
                suspected = message.suspect
                if message.lease_lost:
                    continue
                started = time.perf_counter()
                yield message
                window.note(time.perf_counter() - started)
                if message.settled and not riding:
                    renewal.drop(message)
                if riding and not window.quick:
                    flush()
        finally:
            try:
                flush_last()
            except RestanteError as error:
                log.warning("ack failed queue=%s error=%s", queue.name, error)
            hand_back(queue, [message for message in buffer if not message.lease_lost])
            renewal.close()
            waker.close()


async def iterate_async(queue: AsyncQueue, *, stop_when_empty: bool = False) -> AsyncIterator[AsyncLeasedMessage]:
    """Yields messages one after the other in asyncio; leases are renewed even while the loop is blocked."""
    keeper = Connection(queue.connection.url, queue.connection.settings)
    renewal = Renewal(keeper)
    failures = 0
    paused = False
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
                paused = tell_paused(queue.name, queue.settings.paused, paused)
                if stop_when_empty:
                    return
                continue
            message.in_consume = True
            renewal.hold(queue.ref, [message])
            try:
                yield message
            finally:
                renewal.drop(message)
    finally:
        await asyncio.to_thread(renewal.close)
        keeper.close()
