"""Reads a queue's book of groups: how many messages of each group wait, are held back, leased, failed and dead.

groups.lua describes the layout. The numbers come from several calls, so they may belong to slightly different moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from restante.core.errors import Corrupt
from restante.core.flow import Flow
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Command

#: Fields per call and calls of one reading: 100,000 fields. Beyond that the list is incomplete and says so.
FIELDS, CALLS = 1000, 100
#: Leases that are looked at. Their groups are not counted in a queue without `group_concurrency`.
LEASES = 1000


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """The messages of one group at one moment."""

    group: str
    scheduled: int = 0
    ready: int = 0
    #: Ready messages that the group holds back.
    held_back: int = 0
    #: Of the first thousand leases of the queue.
    leased: int = 0
    retrying: int = 0
    dead: int = 0
    paused: bool = False
    #: Whether its rate is used up and messages wait for it.
    throttled: bool = False

    @property
    def trouble(self) -> tuple[int, int, bool, int, str]:
        """Sorts those first that need an operator: with dead or failing messages, paused, with many waiting."""
        return -self.dead, -self.retrying, not self.paused, -self.ready, self.group

    def as_dict(self) -> dict[str, Any]:
        """The counts as a dict for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a queue, those in trouble first."""

    groups: list[GroupCounts]
    #: How many groups are not idle, as far as they were read.
    total: int
    #: Whether all of them were read.
    complete: bool


def read_groups(ref: QueueRef, limit: int) -> Flow[Groups]:
    """A flow: reads the groups and returns `Groups` with up to `limit` of them."""
    key, leased, deliveries, held = (ref.keys[name] for name in ("groups", "leased", "deliveries", "held"))
    found: dict[str, GroupCounts] = {}
    cursor, complete = b"0", False
    for _ in range(CALLS):
        cursor, flat = yield Command(("HSCAN", key, cursor, "COUNT", FIELDS), key)
        for field, text in zip(flat[::2], flat[1::2], strict=True):
            _add(found, field, text)
        if cursor == b"0":
            complete = True
            break
    ids = yield Command(("ZRANGE", leased, 0, LEASES - 1), leased)
    if ids:
        texts = yield Command(("HMGET", deliveries, *ids), deliveries)
        for group in _groups_of(texts):
            known = found.get(group, GroupCounts(group))
            found[group] = replace(known, leased=known.leased + 1)
    chosen = sorted(found.values(), key=lambda counts: counts.trouble)[:limit]
    made = []
    for counts in chosen:
        name = counts.group.encode()
        held_back = yield Command(("ZLEXCOUNT", held, b"[%b\t" % name, b"(%b\n" % name), held)
        made.append(replace(counts, held_back=held_back))
    return Groups(made, len(found), complete)


def _add(found: dict[str, GroupCounts], field: bytes, text: bytes) -> None:
    name = field.decode("utf-8", "replace")
    lane, tab, group = name.partition("\t")
    if tab and not lane:
        return  # the clock of a priority
    group = group if tab else name
    known = found.get(group, GroupCounts(group))
    try:
        if tab:
            found[group] = replace(known, ready=known.ready + int(text.split(b" ")[0]))
        else:
            scheduled, _, retrying, dead, flags, _ = text.split(b" ")
            found[group] = replace(
                known,
                scheduled=int(scheduled),
                retrying=int(retrying),
                dead=int(dead),
                paused=b"p" in flags,
                throttled=b"w" in flags,
            )
    except ValueError:
        raise Corrupt(f"the record of the group {group!r} is not what Restante wrote: {text[:60]!r}") from None


def _groups_of(deliveries: Iterable[bytes | None]) -> Iterator[str]:
    """The groups in the limits of deliveries; see moves.lua for the layout."""
    for text in deliveries:
        lines = (text or b"").split(b"\n")
        fields = lines[3].split(b"\t") if len(lines) > 3 else []
        if len(fields) > 4:
            yield fields[4].decode("utf-8", "replace")
