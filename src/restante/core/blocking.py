"""A sleep that an event loop can watch: one blocked command on a connection of its own.

On a lost connection `Unavailable`. Nothing is lost with it: a wake-up only says where to look, and whoever sleeps
again looks first.
"""

from __future__ import annotations

import select
import time
from typing import Any

from redis import exceptions as foreign

from restante.core.call_retry import BLOCK, BLOCK_MARGIN, LOST, lost_waiting
from restante.core.connection import Connection
from restante.core.errors import Unavailable
from restante.core.operations import pack


class BlockedCommand:
    """A command that blocks at the server until something happens or `BLOCK` seconds are over."""

    __slots__ = ("_address", "_connection", "_link", "since", "words")

    def __init__(self, connection: Connection, words: tuple[Any, ...], key: bytes) -> None:
        self._connection = connection
        self.words = words
        try:
            self._address = connection.address_of(key)
            self._link = connection.take_link(self._address)
            self._link.write(pack(words))
        except LOST as error:
            raise self._lost(error) from None
        self.since = time.monotonic()

    def fileno(self) -> int:
        return self._link.fileno()

    @property
    def late(self) -> bool:
        """Whether the server should have answered by now: the connection is half-open."""
        return time.monotonic() - self.since > BLOCK + BLOCK_MARGIN

    def has_answer(self) -> bool:
        poller = select.poll()
        poller.register(self._link, select.POLLIN)
        return bool(poller.poll(0))

    def read(self) -> Any:
        """The answer, None if nothing happened in time; the connection is free again."""
        link = self._link
        try:
            link.patient(BLOCK_MARGIN)
            reply = link.read()
            link.patient(self._connection.settings.socket_timeout)
        except foreign.ResponseError as error:
            # Unblocked, moved, or not ready: whoever sleeps looks again, and meets what it means there.
            link.close()
            if str(error).startswith(("UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "NOGROUP")):
                self._connection.remap(self._address)
                return None
            raise self._lost(error) from None
        except LOST as error:
            self.give_up()
            raise self._lost(error) from None
        self._connection.give_link(self._address, link)
        return reply

    def end(self) -> Any:
        """Wakes the command up; its answer may still be that something happened."""
        try:
            if not self.has_answer():
                self._connection.unblock(self._address, self._link)
        except LOST as error:
            self.give_up()
            raise self._lost(error) from None
        return self.read()

    def drop(self) -> None:
        """Closes the connection."""
        self._link.close()

    def give_up(self) -> None:
        """Closes the connection, which is lost, and those that lie idle beside it: they are half-open too."""
        self._link.close()
        self._connection.close_idle(self._address)

    def _lost(self, error: BaseException) -> Unavailable:
        return lost_waiting(error, self._connection.endpoint.shown)
