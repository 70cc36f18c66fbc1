"""Reads journals in bulk: raw blocks for callers that parse many lines at once, and the extent of each journal.

It changes nothing but the reader's own registration. While the server is away it raises Unavailable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from restante.core.errors import Corrupt, JournalLost
from restante.core.journal import Position
from restante.core.names import valid_name
from restante.core.queue import Client

#: Stream entries per read: few enough that other clients do not wait long behind it.
READ = 2000


class Place(NamedTuple):
    """The extent of a journal at one moment."""

    #: When the queue was created, in ms; another value means another journal under the same name.
    incarnation: int
    #: Number of the last line.
    last: int
    #: Lines up to this one may have been trimmed.
    floor: int
    #: Number of lines trimmed before a registered reader had read them.
    lost: int
    #: The position of each registered reader.
    readers: dict[str, int]


class Block(NamedTuple):
    """One stream entry: the lines of one call."""

    #: Numbers of the first and last line.
    first: int
    last: int
    lines: bytes
    #: Stored forms by message id, where the queue journals payloads.
    stored: dict[bytes, bytes]


class JournalReader:
    """Bulk access to the journals of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def place(self, queue: str) -> Place | None:
        """Returns the extent of a queue's journal; None if the queue does not exist."""
        key = self._client.queue(queue).ref.keys["queue"]
        flat = self._client.connection.command("HGETALL", key, key=key)
        fields = {flat[i].decode("utf-8", "replace"): flat[i + 1] for i in range(0, len(flat), 2)}
        if "incarnation" not in fields:
            return None
        mark = "reader:"
        try:
            readers = {name[len(mark) :]: int(value) for name, value in fields.items() if name.startswith(mark)}
            last = int(fields.get("sequence", 0)) - int(fields.get("journal_skip", 0))
            floor, lost = int(fields.get("journal_floor", 0)), int(fields.get("journal_lost", 0))
            return Place(int(fields["incarnation"]), last, floor, lost, readers)
        except ValueError as error:
            raise Corrupt(f"the bookkeeping of {queue} is not what Restante wrote: {error}") from None

    def places(self, queues: Sequence[str]) -> dict[str, Place]:
        """Returns the extents of several journals; queues that do not exist are left out."""
        places = ((name, self.place(name)) for name in queues)
        return {name: place for name, place in places if place is not None}

    def blocks(self, queue: str, after: int, upto: int, *, pass_gaps: bool = False) -> Iterator[list[Block]]:
        """Yields pages of entries with lines after `after` and up to `upto`; the first and last entry may reach beyond.

        The lines have no gaps: JournalLost names missing numbers. With `pass_gaps` reading continues after them.
        """
        key = self._client.queue(queue).ref.keys["journal"]
        expected = after + 1
        while expected <= upto:
            count = min(READ, upto - expected + 1)
            rows = self._client.connection.command("XRANGE", key, f"0-{expected}", "+", "COUNT", count, key=key)
            page = []
            gap = upto if not rows else 0
            for stream_id, fields in rows:
                block = _block(stream_id, fields)
                if block.first > expected:
                    gap = min(block.first - 1, upto)
                    break
                page.append(block)
                expected = block.last + 1
                if expected > upto:
                    break
            if page:
                yield page
            if gap and not pass_gaps:
                raise JournalLost(
                    f"the journal of {queue} no longer has lines {expected} to {gap}: raise its journal_cap, "
                    "or continue with failOnDataLoss=false"
                )
            expected = max(expected, gap + 1)

    def seek(self, queue: str, place: Place, at_ms: int) -> int:
        """Returns the number of the last line before a time, by bisection; exact unless the clock went back."""
        key = self._client.queue(queue).ref.keys["journal"]
        low, high = place.floor, place.last
        while low < high:
            middle = (low + high) // 2
            rows = self._client.connection.command("XRANGE", key, f"0-{middle + 1}", "+", "COUNT", 1, key=key)
            if not rows:
                return high
            block = _block(*rows[0])
            if _at_ms(queue, block) < at_ms:
                low = min(block.last, high)
            else:
                high = max(low, min(middle, block.first - 1))
        return low

    def claim(self, queue: str, reader: str) -> Place | None:
        """Registers a new reader at the beginning of the journal; a registered one keeps its position.

        From then on no line is trimmed before this reader has read it, up to the hard cap. Returns the extent of the
        journal afterwards, or None if the queue does not exist.
        """
        before = self.place(queue)
        if before is None:
            return None
        key = self._client.queue(queue).ref.keys["queue"]
        field = f"reader:{valid_name(reader, 'reader')}"
        self._client.connection.command("HSETNX", key, field, before.floor, key=key)
        after = self.place(queue)
        if after is not None and after.incarnation != before.incarnation:
            # Dropped and created again in between: the old beginning may lie after lines of the new journal.
            self.register(queue, reader, 0)
            after = self.place(queue)
        return after

    def register(self, queue: str, reader: str, position: int) -> None:
        """Stores a reader's position: the journal is not trimmed beyond the slowest reader, up to its hard cap."""
        key = self._client.queue(queue).ref.keys["queue"]
        self._client.connection.command("HSET", key, f"reader:{valid_name(reader, 'reader')}", position, key=key)

    def forget(self, queue: str, reader: str) -> None:
        """Removes a reader: the journal may be trimmed beyond its position."""
        key = self._client.queue(queue).ref.keys["queue"]
        self._client.connection.command("HDEL", key, f"reader:{valid_name(reader, 'reader')}", key=key)


def _block(stream_id: bytes, fields: list[bytes]) -> Block:
    last = Position.parse(stream_id).sequence
    lines = fields[1]
    stored = dict(zip(fields[2::2], fields[3::2], strict=True)) if len(fields) > 2 else {}
    return Block(last - lines.count(b"\n"), last, lines, stored)


def _at_ms(queue: str, block: Block) -> int:
    """When an entry was written; all its lines have the same time."""
    try:
        return int(block.lines.split(b"\t", 4)[3])
    except (ValueError, IndexError):
        raise Corrupt(f"line {block.first} of the journal of {queue} cannot be read") from None
