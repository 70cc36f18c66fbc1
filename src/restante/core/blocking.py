"""A blocking command that an event loop can watch, on a connection of its own.

On a lost connection it raises `Unavailable`. Nothing is lost with it: a wake-up only says where to look, and every
caller looks before it blocks again.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions as foreign

from restante.core.call_retry import BLOCK, BLOCK_MARGIN, LOST, lost_waiting
from restante.core.connection import Connection
from restante.core.errors import Unavailable
from restante.core.scripts import pack


class BlockedCommand:
    """A command that blocks at the server until something happens to its keys, or for `BLOCK` seconds."""

    __slots__ = ("_address", "_connection", "_link", "keys", "since")

    def __init__(self, connection: Connection, words: tuple[Any, ...], keys: Sequence[bytes]) -> None:
        self._connection = connection
        #: What it waits for; the keys lie on one node.
        self.keys = tuple(keys)
        try:
            self._address = connection.drive(connection.pool.find(self.keys[0]))
            self._link = connection.drive(connection.pool.take(self._address))
            self._link.write(pack(words))
        except LOST as error:
            raise self._lost(error) from None
        self.since = time.monotonic()

    def fileno(self) -> int:
        return self._link.fileno()

    @property
    def overdue(self) -> bool:
        """Whether the server should have answered by now: if so, the connection is half-open."""
        return time.monotonic() - self.since > BLOCK + BLOCK_MARGIN

    def has_answer(self) -> bool:
        poller = select.poll()
        poller.register(self._link, select.POLLIN)
        return bool(poller.poll(0))

    def read(self) -> Any:
        """Reads the answer, None if nothing happened in time, and frees the connection."""
        link = self._link
        try:
            link.patient(BLOCK_MARGIN)
            reply = link.read()
            link.patient(self._connection.settings.socket_timeout)
        except foreign.ResponseError as error:
            # Unblocked, moved, or not ready: the caller looks at the queues again, and its call meets the same error.
            link.close()
            if str(error).startswith(("UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "NOGROUP")):
                self._connection.drive(self._connection.pool.remap(self._address))
                return None
            raise self._lost(error) from None
        except LOST as error:
            self.give_up()
            raise self._lost(error) from None
        self._connection.drive(self._connection.pool.give(self._address, link))
        return reply

    def unblock(self) -> Any:
        """Ends the wait and returns the answer, which may still say that something happened."""
        try:
            if not self.has_answer():
                self._connection.drive(self._connection.pool.unblock(self._address, self._link))
        except LOST as error:
            self.give_up()
            raise self._lost(error) from None
        return self.read()

    def close(self) -> None:
        """Closes the connection."""
        self._link.close()

    def give_up(self) -> None:
        """Closes the connection, which is lost, and the idle ones to the same node: they are half-open too."""
        self._link.close()
        self._connection.drive(self._connection.pool.close_idle(self._address))

    def _lost(self, error: BaseException) -> Unavailable:
        return lost_waiting(error, self._connection.endpoint.shown)
