"""Reads journals in bulk: raw blocks for those who parse many lines at once, and where each journal begins and ends.

Nothing here moves or marks anything but a reader's own registration; a server that is away raises Unavailable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from restante.core.errors import Corrupt, JournalLost
from restante.core.journal import Position
from restante.core.names import valid_name
from restante.core.queue import Client

#: Stream entries asked for in one read: few enough that no other client waits long behind it.
READ = 2000


class Place(NamedTuple):
    """One journal at one moment."""

    #: When the queue was first opened, ms: another value is another journal under the same name.
    incarnation: int
    #: Number of its last line.
    last: int
    #: Lines up to this one may have been trimmed.
    floor: int
    #: Lines trimmed before a registered reader had them.
    lost: int
    #: How far each registered reader is.
    readers: dict[str, int]


class Block(NamedTuple):
    """One entry: the lines of one call."""

    #: Numbers of its first and last line.
    first: int
    last: int
    lines: bytes
    #: Stored forms by message id, where the queue journals payloads.
    stored: dict[bytes, bytes]


class JournalReader:
    """The journals of a server as a bulk reader sees them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def place(self, queue: str) -> Place | None:
        """Where a queue's journal stands; None if there is no such queue."""
        key = self._client.queue(queue).ref.keys["queue"]
        flat = self._client.connection.command("HGETALL", key, key=key)
        found = {flat[i].decode("utf-8", "replace"): flat[i + 1] for i in range(0, len(flat), 2)}
        if "incarnation" not in found:
            return None
        mark = "reader:"
        try:
            readers = {name[len(mark) :]: int(value) for name, value in found.items() if name.startswith(mark)}
            last = int(found.get("sequence", 0)) - int(found.get("journal_skip", 0))
            floor, lost = int(found.get("journal_floor", 0)), int(found.get("journal_lost", 0))
            return Place(int(found["incarnation"]), last, floor, lost, readers)
        except ValueError as error:
            raise Corrupt(f"the bookkeeping of {queue} is not what Restante wrote: {error}") from None

    def places(self, queues: Sequence[str]) -> dict[str, Place]:
        """The same of several queues; those that do not exist are left out."""
        found = ((name, self.place(name)) for name in queues)
        return {name: place for name, place in found if place is not None}

    def blocks(self, queue: str, after: int, upto: int, *, pass_gaps: bool = False) -> Iterator[list[Block]]:
        """Entries with lines after one number and up to another, page by page; the first and last may reach beyond.

        The lines are whole and without gaps, or JournalLost is raised and names the numbers that are missing; with
        `pass_gaps` reading goes on behind them.
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
                    f"the journal of {queue} has no lines {expected} to {gap} any more: raise its journal_cap, "
                    "or read on with failOnDataLoss=false"
                )
            expected = max(expected, gap + 1)

    def seek(self, queue: str, place: Place, at_ms: int) -> int:
        """The number of the last line before a moment, by bisection; exact as long as the clock never went back."""
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
        """Registers a reader that has read nothing where the journal begins; one that is registered stays where it is.

        From then on no line is trimmed before this reader has it, up to the hard cap. Returns where the journal stands
        afterwards, None if there is no such queue.
        """
        before = self.place(queue)
        if before is None:
            return None
        key = self._client.queue(queue).ref.keys["queue"]
        field = f"reader:{valid_name(reader, 'reader')}"
        self._client.connection.command("HSETNX", key, field, before.floor, key=key)
        after = self.place(queue)
        if after is not None and after.incarnation != before.incarnation:
            # Dropped and made anew in between: the old journal's beginning may lie behind lines of the new one.
            self.register(queue, reader, 0)
            after = self.place(queue)
        return after

    def register(self, queue: str, reader: str, position: int) -> None:
        """Notes how far a reader is: the journal is not trimmed beyond the slowest, up to its hard cap."""
        key = self._client.queue(queue).ref.keys["queue"]
        self._client.connection.command("HSET", key, f"reader:{valid_name(reader, 'reader')}", position, key=key)

    def forget(self, queue: str, reader: str) -> None:
        """The journal no longer waits for this reader."""
        key = self._client.queue(queue).ref.keys["queue"]
        self._client.connection.command("HDEL", key, f"reader:{valid_name(reader, 'reader')}", key=key)


def _block(stream_id: bytes, fields: list[bytes]) -> Block:
    last = Position.parse(stream_id).sequence
    lines = fields[1]
    stored = dict(zip(fields[2::2], fields[3::2], strict=True)) if len(fields) > 2 else {}
    return Block(last - lines.count(b"\n"), last, lines, stored)


def _at_ms(queue: str, block: Block) -> int:
    """When the lines of an entry were written: all are of one call and one moment."""
    try:
        return int(block.lines.split(b"\t", 4)[3])
    except (ValueError, IndexError):
        raise Corrupt(f"line {block.first} of the journal of {queue} cannot be read") from None
