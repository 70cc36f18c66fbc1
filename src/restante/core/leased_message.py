"""A received message with the verbs that settle it, synchronous and asyncio.

On failure a verb raises and has changed nothing. Inside `consume()` a verb waits while the server is away, as the loop
itself does, until the server is back or the loop is stopped. An exception in a block of `with message:` is logged and
nacks the message; the program continues behind the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from restante.core.batch import AsyncBatchHandle, BatchHandle
from restante.core.call_retry import away
from restante.core.connection import Waker
from restante.core.errors import AlreadySettled, LeaseLost, RestanteError, Unavailable
from restante.core.flow import drive, drive_async
from restante.core.hooks import Listeners
from restante.core.message import Message, State
from restante.core.operations import lease_lost
from restante.core.retry import RetryPolicy
from restante.core.stored import Stored

if TYPE_CHECKING:
    from restante.core.queue import AsyncQueue, Queue

T = TypeVar("T")
log = logging.getLogger("restante")


def _refuse_second(message: Message) -> None:
    """Refuses a second verdict on the client, because the server could only report a lost lease."""
    if message.settled:
        raise AlreadySettled(ids=(message.id,), verdict=message.verdict or "settled")


def _log_waiting(message: Message, verb: str, error: Unavailable) -> None:
    log.warning("%s waits for the server queue=%s id=%s error=%s", verb, message.queue, message.id, error)


def _log_failed(message: Message, verb: str, error: RestanteError) -> None:
    """Logs a verdict that came too late or did not arrive: the lease expires and the message is delivered again."""
    if isinstance(error, LeaseLost):
        log.warning("lease lost before %s queue=%s id=%s", verb, message.queue, message.id)
    else:
        log.warning("%s failed queue=%s id=%s error=%s", verb, message.queue, message.id, error)


def _is_last(message: Any) -> bool:
    """Whether a failure now makes the message dead, as far as its holder knows: over HTTP it has no queue settings."""
    settings = getattr(message.source.ref, "settings", None)
    most = message.max_attempts or (settings.max_attempts if settings else None)
    policy = message.retry or (settings.retry if settings else None)
    spent = most is not None and message.attempts >= most
    return not message.settled and (spent or (policy is not None and policy.next(message.attempts) is None))


class Leased(Message):
    """What the received message of both runners has in common."""

    #: The queue it came from.
    source: Any
    #: Set when the lease is known to have ended: another consumer may have the message.
    lease_lost = False
    #: Called by the renewal, in its thread, when it learns that the message was cancelled.
    on_cancel: Callable[[], object] | None = None
    #: After a block of `with message:`, what went wrong in it: the exception of the block, or the `LeaseLost` of an ack
    #: that came too late. None if the block succeeded.
    error: BaseException | None = None
    #: When the renewal extends the lease, by time.monotonic().
    renew_at = 0.0
    #: Set by a loop or consumer that waits while its server is away; fires when it must stop.
    waker: Waker | None = None
    #: The timeout and the soft timeout of this attempt in seconds, and when the former ends, by time.monotonic(). Set
    #: when its handler starts.
    limits: tuple[float | None, float | None] = (None, None)
    limit_at: float | None = None
    #: Whether a loop or a test tells hooks of this attempt, as a consumer does. Otherwise `with message:` tells them.
    told = False
    #: Whether `run_handler` has run its handler.
    ran = False
    _block: tuple[Listeners, float] | None = None
    #: In a loop: when the renewal fails the attempt instead of extending its lease, by time.monotonic().
    fails_at: float | None = None

    @property
    def remaining(self) -> float | None:
        """Seconds until the attempt passes its timeout, at least 0; None if it has none."""
        return None if self.limit_at is None else max(0.0, self.limit_at - time.monotonic())

    def limit(self, timeout: float | None) -> None:
        """Starts the time limit of a turn of a loop: the message's own timeout, else this one of its queue."""
        timeout = self.timeout or timeout
        if timeout is not None:
            self.limits = (timeout, None)
            self.limit_at = self.fails_at = time.monotonic() + timeout

    def _block_begins(self) -> None:
        """Tells the hooks of the queue, if it has any, that a block of `with message:` has received this message."""
        if self.told or self.waker is not None:
            return
        listeners: Listeners | None = getattr(self.source, "listeners", None)
        if listeners is not None:
            self._block = listeners, time.perf_counter()
            listeners.tell(listeners.started, self)

    def _block_ends(self) -> None:
        if self._block is not None:
            listeners, started = self._block
            self._block = None
            tell_ended(listeners, self, time.perf_counter() - started)
            if not self.ran:
                self.source.warn_of_loop(self)

    def _note_failure(self, error: Exception) -> None:
        """Logs the exception of a block with its traceback, before the nack: a nack may wait for the server."""
        self.error = error
        dead = " state=dead" if _is_last(self) else ""
        log.error("failed queue=%s id=%s attempt=%d%s", self.queue, self.id, self.attempts, dead, exc_info=error)

    def _note_undelivered(self, verb: str, failure: LeaseLost | Unavailable) -> None:
        """Logs that the verdict at the end of a block came too late, or that the loop was stopped while it waited.

        Outside such a loop a verdict that does not reach the server raises, as every other call does there.
        """
        if isinstance(failure, LeaseLost):
            self.lease_lost = True
            self.error = self.error or failure
        elif self.waker is None:
            raise failure
        _log_failed(self, verb, failure)


def tell_ended(listeners: Listeners, message: Leased, seconds: float) -> None:
    """Tells hooks how a turn ended; nothing if the program released the message or left it leased."""
    if message.error is not None:
        state = message.state if message.state in (State.RETRYING, State.DEAD) else None
        listeners.tell_failed(message, message.error, state)
    elif message.verdict == "acked":
        listeners.tell(listeners.finished, message, seconds)


@contextlib.contextmanager
def noticing(message: Leased) -> Iterator[None]:
    """Marks the message if the block finds that its lease has ended."""
    try:
        yield
    except LeaseLost:
        message.lease_lost = True
        raise


def _ending(message: Any, error: BaseException | None) -> Generator[Callable[[], Any], Any, bool]:
    """The end of a block, as a flow whose steps call a verb; returns whether an error of the block ends here."""
    if error is not None and not isinstance(error, Exception):
        message.error = error
        if not message.settled:
            # Interrupted half way: the work may be done twice, so the attempt counts. No error here may hide the cause.
            try:
                yield lambda: message.source.nack_many((message,), delay=0, error=error)
            except RestanteError as failure:
                _log_failed(message, "nack", failure)
        return False
    if error is not None:
        message._note_failure(error)
    if not message.settled:
        try:
            yield message.ack if error is None else lambda: message.nack(error=error)
        except (LeaseLost, Unavailable) as failure:
            message._note_undelivered("ack" if error is None else "nack", failure)
    return True


def insist(message: Leased, verb: str, call: Callable[[], T]) -> T:
    """Calls the server for a message. In a loop that waits for it, repeats until it answers or the loop stops."""
    failures = 0
    while True:
        try:
            return call()
        except Unavailable as error:
            if message.waker is None or message.waker.woken:
                raise
            failures += 1
            _log_waiting(message, verb, error)
            time.sleep(away(failures))


class LeasedMessage(Leased):
    """A received message, leased to this consumer. `with message:` acks it, or nacks it if the block fails.

    An `Exception` of the block becomes the failure of the message. It is logged with its traceback, kept as
    `message.error`, and not raised: the program continues behind the block. If the lease has ended by then, that is
    logged too. KeyboardInterrupt, SystemExit and the like return the message and are raised.
    """

    state: State = State.LEASED
    #: In `consume()`: acks that travel with the next receive.
    riding_acks: deque[Leased] | None = None

    def __init__(self, queue: Queue, id: str, stored: Stored, attempts: int, expires: int, token: str, now: int):
        # Does not call super().__init__(): this runs once per received message.
        self.source = queue
        self.id = id
        self.queue = queue.name
        self.stored = stored
        self.attempts = attempts
        self.lease_token = token
        self.consumer = queue.ref.consumer
        self.expires_ms = expires
        self.lease_ms = expires - now
        self.received_ms = now

    @property
    def batch(self) -> BatchHandle | None:
        """The batch that the message is a part of, to add messages to it; None if it is in none."""
        name = self.stored.batch
        return None if name is None else BatchHandle(self.source.client, name)

    def ack(self, *, result: Any = None) -> None:
        """Acks the message: it is removed, or kept as done. In `consume()` the next receive may carry the ack.

        A `result`, any JSON value, is kept with a done message; without `keep_done` it is dropped.
        """
        if self.settled:
            if self.verdict == "acked":
                return
            _refuse_second(self)
        if result is not None:
            self._insist("ack", lambda: self.source.ack_result(self, result))
        elif self.riding_acks is not None:
            self.riding_acks.append(self)
        else:
            self._insist("ack", lambda: self.source.ack_many((self,)))
        self.settled, self.verdict = True, "acked"

    def nack(
        self,
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        retry: RetryPolicy | None = None,
    ) -> State:
        """Fails the attempt: the message retries after `delay` or its policy's, or is dead after the last attempt."""
        _refuse_second(self)
        states = self._insist("nack", lambda: self.source.nack_many((self,), delay=delay, error=error, retry=retry))
        self.settled, self.verdict, self.state = True, "nacked", states[0]
        return self.state

    def bury(self, *, error: BaseException | str | None = None) -> None:
        """Dead-letters the message at once, whatever attempts are left."""
        _refuse_second(self)
        self._insist("bury", lambda: self.source.bury_many((self,), error=error))
        self.settled, self.verdict = True, "buried"

    def release(self, *, delay: float | timedelta = 0) -> None:
        """Returns the message to its old position in the queue and does not count the attempt."""
        _refuse_second(self)
        self._insist("release", lambda: self.source.release_many((self,), delay=delay))
        self.settled, self.verdict = True, "released"

    def extend(self, *, lease: float | timedelta | None = None) -> None:
        """Extends the lease, counted from now."""
        _refuse_second(self)
        if self._insist("extend", lambda: self.source.extend_many((self,), lease=lease)):
            self.lease_lost = True
            raise lease_lost(self)

    def progress(self, fraction: float, step: str = "") -> None:
        """Notes how far the handler is, from 0 to 1, and what it is doing; each call is one round trip.

        `queue.handle(id).progress`, the API and the dashboard show it while the message is leased.
        """
        _refuse_second(self)
        with noticing(self):
            self._insist("progress", lambda: self.source.progress(self, fraction, step))

    def _insist(self, verb: str, call: Callable[[], T]) -> T:
        """`insist` for this message."""
        return insist(self, verb, call)

    def __enter__(self) -> Self:
        self._block_begins()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None and self.riding_acks is not None and not self.settled:
            self.ack()  # it only queues the ack and cannot fail: a flow would cost each message of a loop a tenth more
            return True
        try:
            return drive(_ending(self, error), operator.call)
        finally:
            self._block_ends()


class AsyncLeasedMessage(Leased):
    """A received message for asyncio: its verbs are awaited, and `async with` does what `with` does."""

    #: Set by `consume()`: verbs wait while the server is away, until their task is cancelled.
    in_consume = False

    def __init__(self, queue: AsyncQueue, id: str, stored: Stored, attempts: int, expires: int, token: str, now: int):
        super().__init__(
            id,
            queue.name,
            stored,
            state=State.LEASED,
            attempts=attempts,
            consumer=queue.ref.consumer,
            lease_token=token,
            expires_ms=expires,
            received_ms=now,
        )
        self.source = queue

    @classmethod
    def of(cls, queue: AsyncQueue, message: LeasedMessage) -> AsyncLeasedMessage:
        """A received message with verbs that are awaited."""
        expires, now = message.expires_ms, message.received_ms
        made = cls(queue, message.id, message.stored, message.attempts, expires, message.lease_token, now)
        made.replays, made.suspect = message.replays, message.suspect
        return made

    @property
    def batch(self) -> AsyncBatchHandle | None:
        """The batch that the message is a part of, to add messages to it; None if it is in none."""
        name = self.stored.batch
        return None if name is None else AsyncBatchHandle(self.source.client, name)

    async def ack(self, *, result: Any = None) -> None:
        """Acks the message: it is removed, or kept as done, with its `result` if one is given."""
        if self.settled:
            if self.verdict == "acked":
                return
            _refuse_second(self)
        if result is not None:
            await self._insist("ack", lambda: self.source.ack_result(self, result))
        else:
            await self._insist("ack", lambda: self.source.ack_many((self,)))

    async def nack(
        self,
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        retry: RetryPolicy | None = None,
    ) -> State:
        """Fails the attempt: the message retries after `delay` or its policy's, or is dead after the last attempt."""
        _refuse_second(self)
        call = lambda: self.source.nack_many((self,), delay=delay, error=error, retry=retry)  # noqa: E731
        self.state = (await self._insist("nack", call))[0]
        return self.state

    async def bury(self, *, error: BaseException | str | None = None) -> None:
        """Dead-letters the message at once, whatever attempts are left."""
        _refuse_second(self)
        await self._insist("bury", lambda: self.source.bury_many((self,), error=error))

    async def release(self, *, delay: float | timedelta = 0) -> None:
        """Returns the message to its old position in the queue and does not count the attempt."""
        _refuse_second(self)
        await self._insist("release", lambda: self.source.release_many((self,), delay=delay))

    async def extend(self, *, lease: float | timedelta | None = None) -> None:
        """Extends the lease, counted from now."""
        _refuse_second(self)
        if await self._insist("extend", lambda: self.source.extend_many((self,), lease=lease)):
            self.lease_lost = True
            raise lease_lost(self)

    async def progress(self, fraction: float, step: str = "") -> None:
        """Notes how far the handler is, from 0 to 1, and what it is doing; each call is one round trip."""
        _refuse_second(self)
        with noticing(self):
            await self._insist("progress", lambda: self.source.progress(self, fraction, step))

    async def _insist(self, verb: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `insist`, on asyncio."""
        failures = 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                if not self.in_consume and (self.waker is None or self.waker.woken):
                    raise
                failures += 1
                _log_waiting(self, verb, error)
                await asyncio.sleep(away(failures))

    async def __aenter__(self) -> Self:
        self._block_begins()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            return await drive_async(_ending(self, error), operator.call)
        finally:
            self._block_ends()
