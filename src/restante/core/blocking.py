"""A blocking command on its own connection, whose socket an event loop can watch.

On a lost connection it raises `Unavailable`. No message is lost with it: a wake-up only says where to look, and callers
look before they block again.
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
    """A command that blocks at the server until it has a result or `BLOCK` seconds are over."""

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
        """Whether the server should have answered by now, so that the connection counts as half-open."""
        return time.monotonic() - self.since > BLOCK + BLOCK_MARGIN

    def has_answer(self) -> bool:
        poller = select.poll()
        poller.register(self._link, select.POLLIN)
        return bool(poller.poll(0))

    def read(self) -> Any:
        """Returns the reply, or None after the timeout, and frees the connection."""
        link = self._link
        try:
            link.patient(BLOCK_MARGIN)
            reply = link.read()
            link.patient(self._connection.settings.socket_timeout)
        except foreign.ResponseError as error:
            # Unblocked, moved, or not ready: the caller's next call finds out what it means.
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
        """Ends the block and returns the reply, which may still be a result."""
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
        """Closes the lost connection and the idle ones to the same server, which probably are half-open too."""
        self._link.close()
        self._connection.close_idle(self._address)

    def _lost(self, error: BaseException) -> Unavailable:
        return lost_waiting(error, self._connection.endpoint.shown)
