"""Holds the leases of one process: receives messages, renews their leases, delivers acks, and releases the rest.

Used by `consume()` and by `Consumer`. When a call fails, its acks return to the front of their queue and their leases
are renewed until the acks are delivered. A message that cannot be released returns when its lease ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from restante.core.connection import Connection, Waker
from restante.core.errors import LeaseLost, RestanteError
from restante.core.leased_message import Leased
from restante.core.operations import MAX_BATCH, Received
from restante.core.queue import Queue, receiving
from restante.core.renewal import Renewal

L = TypeVar("L", bound=Leased)
log = logging.getLogger("restante")


class LeaseHolder:
    """The leases that one process holds, by queue; threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._renewal = Renewal(connection)
        self._acks: dict[str, deque[Leased]] = {}

    # -- taking --------------------------------------------------------------------------------------------------

    def receive(
        self, queue: Queue, count: int, *, timeout: float = 0.0, waker: Waker | None = None
    ) -> tuple[Received | None, int]:
        """Receives up to `count` messages and delivers queued acks in the same call; also returns the number of acks.

        A call that carries acks does not wait for messages: the acks must not be late.
        """
        acks = self._take_acks(queue.name)
        try:
            got = queue.run(receiving((queue.ref,), count, timeout=0.0 if acks else timeout, acks=acks), waker)
        except BaseException:
            self._put_back(queue.name, acks)
            raise
        self._drop_all(acks)
        return got, len(acks)

    def keep(self, queue: Queue, messages: list[L]) -> list[L]:
        """Starts renewing the leases of received messages and returns them. Beside a suspect it releases the others."""
        kept, rest = isolate_suspect(messages)
        self.release(queue, rest)
        self._renewal.hold(queue.ref, kept)
        return kept

    # -- settling ------------------------------------------------------------------------------------------------

    def acks(self, queue: Queue) -> deque[Leased]:
        """The acks of a queue that the next receive or `flush` delivers."""
        return self._acks.setdefault(queue.name, deque())

    def flush(self, queue: Queue) -> None:
        """Delivers the acks queued so far. On failure it raises, and undelivered acks keep their place."""
        for _ in range(-(-len(self.acks(queue)) // MAX_BATCH)):
            acks = self._take_acks(queue.name)
            if not acks:
                return  # another thread took them
            try:
                queue.ack_many(acks)
            except LeaseLost as error:
                log.warning("lease lost before ack queue=%s ids=%s", queue.name, ",".join(error.ids[:10]))
            except BaseException:
                self._put_back(queue.name, acks)
                raise
            self._drop_all(acks)

    def drop(self, message: Leased) -> None:
        """Stops renewing the lease of a settled message."""
        self._renewal.drop(message)

    def release(self, queue: Queue, messages: Sequence[Leased]) -> None:
        """Returns messages that were not started, without counting the attempt."""
        self._drop_all(messages)
        if not messages:
            return
        try:
            queue.release_many(messages)
        except RestanteError as error:
            log.warning("release failed queue=%s error=%s", queue.name, error)

    def close(self) -> None:
        """Stops the renewal thread."""
        self._renewal.close()

    def _take_acks(self, name: str) -> list[Leased]:
        waiting = self._acks.get(name)
        taken: list[Leased] = []
        while waiting and len(taken) < MAX_BATCH:
            try:
                taken.append(waiting.popleft())
            except IndexError:
                break  # another thread took it
        return taken

    def _put_back(self, name: str, acks: Sequence[Leased]) -> None:
        self._acks.setdefault(name, deque()).extendleft(reversed(acks))

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
