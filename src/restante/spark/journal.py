"""Reads the journal as a table and as a stream: offsets are line numbers, and lost lines are never skipped silently.

An offset is `{queue: {"incarnation": …, "position": …}}` with sorted queues and whole numbers only, because Spark
compares offsets as text. On failure: calls to a server that is away are repeated for `patience` seconds, then the query
ends with Unavailable and can be started again; lost lines end it with JournalLost unless failOnDataLoss=false.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming import datasource as streaming

from restante.core.admin import Admin
from restante.core.errors import JournalLost
from restante.core.journal_reader import JournalReader, Place
from restante.spark import connections
from restante.spark.arrow import batches
from restante.spark.options import Options, whole_ms

log = logging.getLogger("restante")

#: Fewest rows of a part: cut further, a task costs more than it saves.
LEAST_PART = 10_000

Offset = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Range:
    """Lines of one journal: those after `after`, up to and including `upto`."""

    queue: str
    incarnation: int
    after: int
    upto: int

    def __len__(self) -> int:
        return max(0, self.upto - self.after)


class Part(InputPartition):
    """The ranges one task reads; all parts have about the same number of lines."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def split(ranges: Iterable[Range], parts: int) -> list[Part]:
    """Divides ranges into about equal parts: long journals are split, short ones share a task."""
    unread = [lines for lines in ranges if len(lines) > 0]
    size = max(LEAST_PART, -(-sum(map(len, unread)) // max(parts, 1)))
    result: list[Part] = []
    held: list[Range] = []
    room = size
    for lines in unread:
        after = lines.after
        while after < lines.upto:
            upto = min(lines.upto, after + room)
            held.append(Range(lines.queue, lines.incarnation, after, upto))
            room -= upto - after
            after = upto
            if room == 0:
                result.append(Part(tuple(held)))
                held, room = [], size
    if held:
        result.append(Part(tuple(held)))
    return result


def read_part(options: Options, names: tuple[str, ...], part: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one part. For an empty list of parts Spark passes a part of its own, which has none."""
    if not isinstance(part, Part):
        return
    reader = JournalReader(connections.post(options.server(), patience=options.patience))
    since, until = options.since_ms(), options.until_ms()
    # Garbage collection would take half of the time and find nothing: the rows are short-lived tuples.
    gc.disable()
    try:
        for one in part.ranges:
            place = reader.place(one.queue)
            if place is None or place.incarnation != one.incarnation:
                if options.fail_on_data_loss:
                    raise _replaced(one.queue, one.after, one.upto)
                continue
            wanted = names if since is None and until is None else tuple(dict.fromkeys((*names, "at")))
            for batch in batches(
                reader, one.queue, one.incarnation, one.after, one.upto, wanted, pass_gaps=not options.fail_on_data_loss
            ):
                yield (
                    batch
                    if wanted == names and since is None and until is None
                    else _within(batch, since, until, names)
                )
    finally:
        gc.enable()


def _replaced(queue: str, after: int, upto: int) -> JournalLost:
    return JournalLost(
        f"lines {after + 1} to {upto} of {queue} are gone: the queue was removed or recreated after they were planned; "
        "continue with failOnDataLoss=false, or start with a new checkpoint"
    )


def _within(batch: pa.RecordBatch, since: int | None, until: int | None, names: tuple[str, ...]) -> pa.RecordBatch:
    import pyarrow.compute as pc

    at = batch.column("at")
    keep = pc.is_valid(at)
    if since is not None:
        keep = pc.and_(keep, pc.greater_equal(at, pa.scalar(since * 1000, at.type)))
    if until is not None:
        keep = pc.and_(keep, pc.less(at, pa.scalar(until * 1000, at.type)))
    return batch.filter(keep).select(list(names))


class JournalBatchReader(DataSourceReader):
    """`spark.read.format("restante")`: the lines that the journals hold now."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names
        #: Narrowed by filters: queues, first and last line, first and last millisecond.
        self.only: set[str] | None = None
        self.low, self.high = options.start_seq, options.end_seq
        self.since, self.until = options.since_ms(), options.until_ms()

    def partitions(self) -> Sequence[InputPartition]:
        post = connections.post(self.options.server(), patience=self.options.patience)
        reader = JournalReader(post)
        queues = self.options.matching(Admin(post).queues())
        ranges = []
        for queue, place in reader.places([name for name in queues if self.only is None or name in self.only]).items():
            after = max(place.floor, self.low - 1)
            if self.options.start_seq and self.options.fail_on_data_loss and place.floor >= self.options.start_seq:
                raise JournalLost(
                    f"the journal of {queue} begins after line {place.floor}, and startSeq is "
                    f"{self.options.start_seq}: start later, or read with failOnDataLoss=false"
                )
            upto = min(place.last, self.high) if self.high else place.last
            if self.since is not None:
                after = max(after, reader.seek(queue, place, self.since))
            if self.until is not None:
                upto = min(upto, reader.seek(queue, place, self.until))
            ranges.append(Range(queue, place.incarnation, after, upto))
        return split(ranges, self.options.parts())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self.options, self.names, partition)


class FilteringJournalReader(JournalBatchReader):
    """Takes filters from Spark. It is a separate class because Spark refuses `pushFilters` where pushdown is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        for filter in filters:
            self._narrow(filter)
            yield filter  # some other rows remain at the edges, so Spark filters again

    def _narrow(self, filter: Filter) -> None:
        column = getattr(filter, "attribute", ())
        value: Any = getattr(filter, "value", None)
        if column == ("queue",) and isinstance(filter, EqualTo | In):
            named = {value} if isinstance(filter, EqualTo) else set(value)
            self.only = named if self.only is None else self.only & named
        elif column == ("position",) and isinstance(filter, GreaterThan | GreaterThanOrEqual):
            self.low = max(self.low, value)
        elif column == ("position",) and isinstance(filter, LessThan | LessThanOrEqual):
            self.high = min(self.high or value, max(value, 1))
        elif column == ("at",) and isinstance(filter, GreaterThan | GreaterThanOrEqual):
            at = whole_ms(_aware(value)) - 1
            self.since = at if self.since is None else max(self.since, at)
        elif column == ("at",) and isinstance(filter, LessThan | LessThanOrEqual):
            at = whole_ms(_aware(value)) + 1
            self.until = at if self.until is None else min(self.until, at)


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def offset(places: dict[str, tuple[int, int]]) -> Offset:
    """Positions as Spark stores them, always in the same order, so that equal offsets are equal text."""
    return {queue: {"incarnation": places[queue][0], "position": places[queue][1]} for queue in sorted(places)}


class JournalStreamReader(DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """`spark.readStream.format("restante")`: every line once, in batches within the read limit."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names
        #: Where AvailableNow ends; None for a stream without an end.
        self.target: dict[str, Place] | None = None
        #: Spark asks twice for the first offset and needs the same answer.
        self._first: Offset | None = None
        #: Removed queues that were logged; each is logged once.
        self._missed: set[str] = set()
        #: Journals that this reader is registered with.
        self._claimed: set[tuple[str, int]] = set()

    def _reader(self) -> JournalReader:
        return JournalReader(connections.post(self.options.server(), patience=self.options.patience))

    def _places(self) -> dict[str, Place]:
        post = connections.post(self.options.server(), patience=self.options.patience)
        reader = self._reader()
        places = reader.places(self.options.matching(Admin(post).queues()))
        for queue, place in list(places.items()) if self.options.reader else ():
            if (queue, place.incarnation) in self._claimed:
                continue
            # Register before the first batch is planned: lines trimmed between the two would be missing in it.
            if (claimed := reader.claim(queue, self.options.reader)) is not None:
                places[queue] = claimed
                self._claimed.add((queue, claimed.incarnation))
        return places

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        if self._first is None:
            latest = self.options.starting_position == "latest"
            places = self._places()
            self._first = offset(
                {queue: (place.incarnation, place.last if latest else place.floor) for queue, place in places.items()}
            )
        return self._first

    def getDefaultReadLimit(self) -> streaming.ReadLimit:  # noqa: N802  # Spark's name
        rows = self.options.max_rows_per_batch
        return streaming.ReadMaxRows(rows) if rows else streaming.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self.target = self._places()

    def reportLatestOffset(self) -> Offset:  # noqa: N802  # Spark's name
        return offset({queue: (place.incarnation, place.last) for queue, place in self._places().items()})

    def latestOffset(self, start: Offset, limit: streaming.ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        if self.options.reader:
            # Everything up to `start` is committed; Spark guarantees that in no other call.
            for queue, place in start.items():
                self._register(queue, place)
        ranges = self._open_ranges(start, self.target if self.target is not None else self._places())
        wanted = {one.queue: len(one) for one in ranges}
        if isinstance(limit, streaming.ReadMinRows) and sum(wanted.values()) < limit.min_rows and self.target is None:
            return start
        if isinstance(limit, streaming.ReadMaxRows):
            wanted = share(wanted, limit.max_rows)
        ends = {queue: (place["incarnation"], place["position"]) for queue, place in start.items()}
        ends |= {one.queue: (one.incarnation, one.after + wanted[one.queue]) for one in ranges}
        return offset(ends)

    def _register(self, queue: str, place: dict[str, int]) -> None:
        reader = self._reader()
        now = reader.place(queue)
        if now is not None and now.incarnation == place["incarnation"]:
            reader.register(queue, self.options.reader, place["position"])

    def _open_ranges(self, start: Offset, places: dict[str, Place]) -> list[Range]:
        """The unread lines of each queue; raises JournalLost where lines are lost."""
        ranges = []
        for queue in start.keys() - places.keys() - self._missed:
            # How many of its lines were unread is unknown.
            log.warning("queue is gone queue=%s position=%d", queue, start[queue]["position"])
            self._missed.add(queue)
        for queue, place in places.items():
            read = start.get(queue)
            after = place.floor if read is None else read["position"]
            if read is not None and (loss := self._lost(queue, place, read)):
                if self.options.fail_on_data_loss:
                    raise JournalLost(f"{loss}; continue with failOnDataLoss=false, or start with a new checkpoint")
                after = (
                    place.floor
                    if read["incarnation"] != place.incarnation
                    else min(max(after, place.floor), place.last)
                )
            ranges.append(Range(queue, place.incarnation, after, max(after, place.last)))
        return ranges

    def _lost(self, queue: str, place: Place, read: dict[str, int]) -> str:
        """What was lost since `read`, as a sentence; empty if nothing was."""
        if read["incarnation"] != place.incarnation:
            return f"the queue {queue} was removed and recreated: its old journal is lost after line {read['position']}"
        if place.last < read["position"]:
            return (
                f"the journal of {queue} went back from line {read['position']} to {place.last}: "
                "the server was restored from an older state"
            )
        if place.floor > read["position"]:
            return (
                f"the journal of {queue} was trimmed to line {place.floor}, and {read['position']} is the last one read"
            )
        return ""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ranges = []
        for queue, place in end.items():
            read = start.get(queue)
            after = read["position"] if read and read["incarnation"] == place["incarnation"] else 0
            if place["position"] <= after:
                continue
            now = self._reader().place(queue)
            if now is None or now.incarnation != place["incarnation"]:
                if self.options.fail_on_data_loss:
                    raise _replaced(queue, after, place["position"])
                continue
            if read is None or not self.options.fail_on_data_loss:
                after = max(after, now.floor)
            ranges.append(Range(queue, place["incarnation"], after, place["position"]))
        return split(ranges, self.options.parts())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self.options, self.names, partition)


def share(wanted: dict[str, int], rows: int) -> dict[str, int]:
    """Divides a batch's rows among journals by their unread lines: idle journals would waste even shares."""
    total = sum(wanted.values())
    if total <= rows:
        return wanted
    # Each journal gets at least one row, if there are enough: a busy journal must not starve a quiet one.
    open_ = sorted((queue for queue, count in wanted.items() if count), key=lambda name: wanted[name], reverse=True)
    given = dict.fromkeys(wanted, 0) | dict.fromkeys(open_[:rows], 1)
    rest = rows - sum(given.values())
    unread = total - sum(given.values())
    for queue in open_ if rest else ():
        given[queue] += (wanted[queue] - given[queue]) * rest // unread
    left = rows - sum(given.values())
    for queue in open_:
        more = min(left, wanted[queue] - given[queue])
        given[queue] += more
        left -= more
    return given
