"""The leases one process holds: received with acks riding along, renewed while handlers run, given back at the end.

Used by `consume()` and by `Consumer`. On failure of a call its acks return to their place in line, and their leases are
renewed until they are delivered; what cannot be given back returns to the queue when its lease ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from restante.core.connection import Connection, Waker
from restante.core.errors import LeaseLost, RestanteError
from restante.core.leased_message import LeasedMessage
from restante.core.operations import MAX_BATCH, Received
from restante.core.queue import Queue, receiving
from restante.core.renewal import Renewal

log = logging.getLogger("restante")


class LeaseHolder:
    """What one process holds of its queues; safe to use from several threads."""

    def __init__(self, connection: Connection) -> None:
        self._renewal = Renewal(connection)
        self._acks: dict[str, deque[LeasedMessage]] = {}

    # -- taking --------------------------------------------------------------------------------------------------

    def receive(
        self, queue: Queue, count: int, *, timeout: float = 0.0, waker: Waker | None = None
    ) -> tuple[Received | None, int]:
        """Receives up to `count` messages and delivers queued acks by the same call; returns how many acks it carried.

        With acks on board the call does not wait for messages: the acks must not be late.
        """
        acks = self._take_acks(queue.name)
        try:
            got = queue.run(receiving((queue.ref,), count, timeout=0.0 if acks else timeout, acks=acks), waker)
        except BaseException:
            self._put_back(queue.name, acks)
            raise
        self._drop_all(acks)
        return got, len(acks)

    def keep(self, queue: Queue, messages: list[LeasedMessage]) -> list[LeasedMessage]:
        """Renews the leases of what was received from now on, and returns it; a suspect is kept alone."""
        kept, rest = isolate_suspect(messages)
        self.release(queue, rest)
        self._renewal.hold(queue.ref, kept)
        return kept

    # -- settling ------------------------------------------------------------------------------------------------

    def acks(self, queue: Queue) -> deque[LeasedMessage]:
        """The acks of a queue that wait for the next receive or `flush`."""
        return self._acks.setdefault(queue.name, deque())

    def flush(self, queue: Queue) -> None:
        """Delivers the acks queued so far. On failure those not delivered keep their place, and the error is raised."""
        for _ in range(-(-len(self.acks(queue)) // MAX_BATCH)):
            acks = self._take_acks(queue.name)
            if not acks:
                return  # another thread was quicker
            try:
                queue.ack_many(acks)
            except LeaseLost as error:
                log.warning("lease lost before ack queue=%s ids=%s", queue.name, ",".join(error.ids[:10]))
            except BaseException:
                self._put_back(queue.name, acks)
                raise
            self._drop_all(acks)

    def drop(self, message: LeasedMessage) -> None:
        """Renews this lease no longer: its message is settled."""
        self._renewal.drop(message)

    def release(self, queue: Queue, messages: Sequence[LeasedMessage]) -> None:
        """Gives back what was not begun, its attempt not counted."""
        self._drop_all(messages)
        if not messages:
            return
        try:
            queue.release_many(messages)
        except RestanteError as error:
            log.warning("release failed queue=%s error=%s", queue.name, error)

    def close(self) -> None:
        """Ends the renewal."""
        self._renewal.close()

    def _take_acks(self, name: str) -> list[LeasedMessage]:
        waiting = self._acks.get(name)
        taken: list[LeasedMessage] = []
        while waiting and len(taken) < MAX_BATCH:
            try:
                taken.append(waiting.popleft())
            except IndexError:
                break  # another thread was quicker
        return taken

    def _put_back(self, name: str, acks: Sequence[LeasedMessage]) -> None:
        self._acks.setdefault(name, deque()).extendleft(reversed(acks))

    def _drop_all(self, messages: Sequence[LeasedMessage]) -> None:
        for message in messages:
            self._renewal.drop(message)


def isolate_suspect(messages: list[LeasedMessage]) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    """What to work on and what to hand back: a message its last consumer may have died of gets no company.

    Neighbours taken ahead would share its fate again and again, and die of attempts that never began.
    """
    for place, message in enumerate(messages):
        if message.suspect:
            return [message], messages[:place] + messages[place + 1 :]
    return messages, []
