"""Holds the leases of one process: receives messages, renews their leases, delivers acks, and releases the rest.

Used by `consume()`, `Consumer`, Celery's transport and the RSMQ bridge. When a call fails, its acks return to the front
of their queue and their leases are renewed until the acks are delivered. A message that cannot be released returns when
its lease ends.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from restante.core.connection import Connection, Waker
from restante.core.errors import LeaseLost, RestanteError
from restante.core.leased_message import Leased, LeasedMessage
from restante.core.operations import MAX_BATCH, Received
from restante.core.queue import Queue, receiving
from restante.core.renewal import Renewal

L = TypeVar("L", bound=Leased)
log = logging.getLogger("restante")


class LeaseHolder:
    """The leases that one process holds, by queue; threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._renewal = Renewal(connection)
        self._acks: dict[Queue, deque[Leased]] = {}
        #: When `queue_ack` last found none of its queue waiting, by time.monotonic().
        self.acks_since = 0.0
        self._late_releases: deque[tuple[Queue, Leased]] = deque()

    # -- taking --------------------------------------------------------------------------------------------------

    def receive(
        self,
        queue: Queue,
        count: int,
        *,
        timeout: float = 0.0,
        lease: float | timedelta | None = None,
        waker: Waker | None = None,
    ) -> tuple[Received | None, int]:
        """Receives up to `count` messages and delivers queued acks in the same call; also returns the number of acks.

        A call that carries acks does not wait for messages: the acks must not be late.
        """
        acks = self._take_acks(queue)
        timeout = 0.0 if acks else timeout
        try:
            got = queue.run(receiving((queue.ref,), count, timeout=timeout, lease=lease, acks=acks), waker)
        except BaseException:
            self._put_back(queue, acks)
            raise
        self._drop_all(acks)
        return got, len(acks)

    def keep(self, queue: Queue, messages: list[L]) -> list[L]:
        """Starts renewing the leases of received messages and returns them. Beside a suspect it releases the others."""
        kept, rest = isolate_suspect(messages)
        self.release(queue, rest)
        self._renewal.hold(queue.ref, kept)
        return kept

    def hold(self, queue: Queue, messages: Sequence[LeasedMessage]) -> None:
        """`keep` for a worker of another protocol, whose pool decides what runs beside a suspect."""
        self._renewal.hold(queue.ref, messages)

    @property
    def in_use(self) -> bool:
        """Whether leases are held or verdicts wait for the server."""
        return self._renewal.held_any or self.has_acks or self.has_late_releases

    # -- acks ----------------------------------------------------------------------------------------------------

    def acks(self, queue: Queue) -> deque[Leased]:
        """The acks of a queue that the next receive or `flush` delivers."""
        waiting = self._acks.get(queue)
        return self._acks.setdefault(queue, deque()) if waiting is None else waiting

    def queue_ack(self, message: LeasedMessage) -> None:
        """Acks a message by the next receive of its queue or by `flush`. Its lease is renewed until then."""
        message.settled = True
        waiting = self.acks(message.source)
        if not waiting:
            self.acks_since = time.monotonic()
        waiting.append(message)

    @property
    def has_acks(self) -> bool:
        """Whether acks of any queue wait."""
        return any(self._acks.values())

    def flush(self, queue: Queue) -> list[Leased]:
        """Delivers the acks queued so far and returns the messages for which they came in time.

        On failure it raises, and undelivered acks keep their place.
        """
        acked: list[Leased] = []
        for _ in range(-(-len(self.acks(queue)) // MAX_BATCH)):
            acks = self._take_acks(queue)
            if not acks:
                break  # another thread took them
            lost: Sequence[str] = ()
            try:
                queue.ack_many(acks)
            except LeaseLost as error:
                lost = error.ids
                log.warning("lease lost before ack queue=%s ids=%s", queue.name, ",".join(lost[:10]))
            except BaseException:
                self._put_back(queue, acks)
                raise
            self._drop_all(acks)
            acked += [message for message in acks if message.id not in lost] if lost else acks
        return acked

    def flush_all(self) -> None:
        """Delivers the acks of every queue."""
        for queue in list(self._acks):
            self.flush(queue)

    # -- other verdicts ------------------------------------------------------------------------------------------

    def drop(self, message: Leased) -> None:
        """Stops renewing the lease of a settled message."""
        self._renewal.drop(message)

    def nack(self, message: LeasedMessage, *, delay: float | timedelta, error: BaseException | str) -> None:
        """Fails an attempt whose work is over: a verdict that comes too late is logged."""
        self._settle("nack", message, lambda: message.source.nack_many((message,), delay=delay, error=error))

    def bury(self, message: LeasedMessage, *, error: BaseException | str) -> None:
        """Dead-letters a message whose work is over: a verdict that comes too late is logged."""
        self._settle("bury", message, lambda: message.source.bury_many((message,), error=error))

    def _settle(self, verb: str, message: LeasedMessage, call: Callable[[], object]) -> None:
        self._renewal.drop(message)
        try:
            call()
        except LeaseLost:
            log.warning("lease lost before %s queue=%s id=%s", verb, message.queue, message.id)

    def release(self, queue: Queue, messages: Sequence[Leased], *, insist: bool = False) -> None:
        """Returns messages that were not started to their queue, without counting the attempt.

        With `insist`, those that the server did not answer wait for `release_late`: a process that goes on after an
        outage need not keep them from others until their leases end.
        """
        self._drop_all(messages)
        for start in range(0, len(messages), MAX_BATCH):
            part = messages[start : start + MAX_BATCH]
            try:
                queue.release_many(part)
            except LeaseLost as error:
                # They are in the queue already, or with another consumer.
                log.warning("lease lost before release queue=%s ids=%s", queue.name, ",".join(error.ids[:10]))
            except RestanteError as error:
                verb = "release delayed" if insist else "release failed"
                log.warning("%s queue=%s count=%d error=%s", verb, queue.name, len(part), error)
                if insist:
                    self._late_releases += [(queue, message) for message in part]

    def release_all(self, messages: Sequence[LeasedMessage], *, insist: bool = False) -> None:
        """`release` for messages of several queues."""
        by_queue: dict[Queue, list[LeasedMessage]] = {}
        for message in messages:
            by_queue.setdefault(message.source, []).append(message)
        for queue, released in by_queue.items():
            self.release(queue, released, insist=insist)

    @property
    def has_late_releases(self) -> bool:
        """Whether releases that failed wait to be repeated."""
        return bool(self._late_releases)

    def release_late(self) -> None:
        """Repeats the releases that failed. On failure it raises, and the rest keep their place."""
        while self._late_releases:
            queue, message = self._late_releases[0]
            try:
                queue.release_many((message,))
            except LeaseLost:
                pass
            self._late_releases.popleft()

    def close(self) -> None:
        """Stops the renewal thread."""
        self._renewal.close()

    def _take_acks(self, queue: Queue) -> list[Leased]:
        waiting = self._acks.get(queue)
        taken: list[Leased] = []
        while waiting and len(taken) < MAX_BATCH:
            try:
                taken.append(waiting.popleft())
            except IndexError:
                break  # another thread took it
        return taken

    def _put_back(self, queue: Queue, acks: Sequence[Leased]) -> None:
        self.acks(queue).extendleft(reversed(acks))

    def _drop_all(self, messages: Sequence[Leased]) -> None:
        for message in messages:
            self._renewal.drop(message)


def isolate_suspect(messages: list[L]) -> tuple[list[L], list[L]]:
    """Separates a suspect message from the others: returns the messages to keep and those to release.

    A suspect may have crashed its last consumer, so it runs alone. If it crashes the consumer again, no other message
    loses an attempt that never started.
    """
    for place, message in enumerate(messages):
        if message.suspect:
            return [message], messages[:place] + messages[place + 1 :]
    return messages, []
