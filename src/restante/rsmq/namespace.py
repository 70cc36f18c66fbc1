"""Holds what every call needs of an RSMQ namespace; nothing here does I/O."""

from __future__ import annotations

from restante.rsmq import validation
from restante.rsmq.keys import RsmqKeys, names_key, valid_namespace


class Namespace:
    """A namespace: the keys of its queues, and the channels on which sends are announced."""

    __slots__ = ("_places", "name", "names", "realtime")

    def __init__(self, name: str, realtime: bool) -> None:
        self.name = valid_namespace(name)
        self.names = names_key(name)
        self.realtime = realtime
        self._places: dict[str, tuple[bytes, bytes]] = {}

    def place(self, qname: str, item: str = "qname") -> tuple[bytes, bytes]:
        """The queue's sorted set and hash."""
        try:
            return self._places[qname]
        except (KeyError, TypeError):
            keys = RsmqKeys(validation.queue_name(qname, item), self.name)
            # Bounded, so that a program with ever new queue names does not run out of memory.
            if len(self._places) >= 10_000:
                self._places.clear()
            self._places[qname] = keys.due, keys.messages
            return keys.due, keys.messages

    def channel(self, qname: str) -> str:
        """The channel on which sends are announced; empty without realtime."""
        return f"{self.name}:rt:{qname}" if self.realtime else ""
