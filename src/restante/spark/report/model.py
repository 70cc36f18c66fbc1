"""The figures of a report: the period it shows, the work of queues and consumers in it, and the audit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from restante.spark.coverage import Coverage
from restante.spark.schemas import FATES

#: The name under which figures by queue hold the sum of all queues; no queue has an empty name.
ALL = ""
#: Most time buckets of a chart. Many more are narrower than a pixel and make the page large; many fewer hide peaks.
BUCKETS = 300
#: Possible seconds of a bucket; the shortest that gives at most `BUCKETS` is used, then whole weeks.
STEPS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400)
#: Seconds before the end that count as now; equal to the window of the drain table, so that both agree.
NOW = 900
#: Seconds of work that may wait before a queue with more arrivals than departures counts as growing.
GROWING_FROM = 60
#: The latencies of a message, and the percentiles shown of each.
WORDS = ("wait", "run", "total")
QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

Series = Sequence[float | None]
Percentiles = dict[str, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """The period of a report, in whole minutes (seconds since 1970), divided into buckets of equal length."""

    begin: int
    end: int
    step: int

    @classmethod
    def over(cls, begin: int, end: int) -> Axis:
        """An axis with the shortest buckets of which there are at most `BUCKETS`."""
        weeks = 7 * 86400 * math.ceil((end - begin) / (BUCKETS * 7 * 86400))
        for step in (*STEPS, weeks):
            axis = cls(begin, end, step)
            if axis.count <= BUCKETS:
                return axis
        return axis

    @property
    def first(self) -> int:
        """Start of the first bucket, which may lie before the period."""
        return self.begin // self.step * self.step

    @property
    def count(self) -> int:
        return math.ceil((self.end - self.first) / self.step)

    def minutes(self, bucket: int) -> float:
        """How many minutes of a bucket lie within the period."""
        begin = self.first + bucket * self.step
        return (min(begin + self.step, self.end) - max(begin, self.begin)) / 60


@dataclass(frozen=True, slots=True)
class Drain:
    """How long until a queue is empty; `seconds` is None while more messages arrive than leave."""

    waiting: int
    arrival: float
    settle: float
    seconds: float | None

    @property
    def growing(self) -> bool:
        """More messages arrive than leave, and more wait than the normal fluctuation of a busy queue."""
        return self.seconds is None and self.waiting > GROWING_FROM * self.settle

    @property
    def words(self) -> str:
        """The words to show instead of the seconds; empty if the seconds are to be shown."""
        if self.waiting <= 0:
            return "empty"
        return "growing" if self.growing else "keeps up" if self.seconds is None else ""


@dataclass(frozen=True, slots=True)
class Cause:
    """An error from which messages became dead."""

    queue: str
    kind: str
    error_class: str
    event: str
    dead: int
    first_at: datetime | None
    last_at: datetime | None
    example_id: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error with which attempts failed."""

    queue: str
    error_class: str
    nacked: int
    expired: int
    worst_attempts: int

    @property
    def failed(self) -> int:
        return self.nacked + self.expired


@dataclass(slots=True)
class ConsumerFigures:
    """The work of one consumer."""

    name: str
    leases: int = 0
    acked: int = 0
    failed: int = 0
    busy_seconds: float = 0.0
    queues: set[str] = field(default_factory=set)
    #: Share of each bucket in which it held leases; above 1 if it held several at once.
    load: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The messages of one queue sent in one hour, by fate."""

    queue: str
    incarnation: int
    hour: datetime
    sent: int
    acked: int
    dead: int
    expired: int
    deleted: int
    cancelled: int
    waiting: int
    unsent: int

    @property
    def missing(self) -> int:
        """Messages sent but not accounted for; below zero if more ended than were sent."""
        fates: Iterable[int] = (getattr(self, fate) for fate in FATES)
        return self.sent - sum(fates)


@dataclass(slots=True)
class QueueFigures:
    """The figures of one queue, or of all: series by bucket, and totals of the period and of its last `NOW` seconds."""

    name: str
    counts: dict[str, list[int]] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    storms: list[int] = field(default_factory=list)
    recent_storms: int = 0
    latency: dict[str, list[Percentiles | None]] = field(default_factory=dict)
    percentiles: dict[str, Percentiles] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    drain: Drain | None = None

    def total(self, name: str) -> int:
        return sum(self.counts.get(name, ()))

    def known(self, name: str) -> int | None:
        """The total; None if the lake does not have the table from which it is counted."""
        return self.total(name) if name in self.counts else None

    def timed(self, word: str, percentile: str) -> list[float | None]:
        """One percentile by bucket."""
        return [None if values is None else values[percentile] for values in self.latency.get(word, ())]

    @property
    def waiting_now(self) -> int | None:
        return self.waiting[-1] if self.waiting else None

    @property
    def dead_now(self) -> int | None:
        return self.dead[-1] if self.dead else None

    @property
    def overdue_rate(self) -> float | None:
        return share(self.total("overdue"), self.total("begun"))

    @property
    def overdue_rates(self) -> Series:
        """The overdue rate by bucket."""
        pairs = zip(self.counts.get("overdue", ()), self.counts.get("begun", ()), strict=True)
        return [share(expired, begun) for expired, begun in pairs]


@dataclass(slots=True)
class Figures:
    """All figures of a report."""

    #: Tables of a complete lake, and those that this one has.
    known: frozenset[str]
    present: frozenset[str]
    #: None if there is no event in the period.
    axis: Axis | None = None
    queues: dict[str, QueueFigures] = field(default_factory=dict)
    everything: QueueFigures = field(default_factory=lambda: QueueFigures(ALL))
    causes: list[Cause] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    recent_failures: list[Failure] = field(default_factory=list)
    consumers: list[ConsumerFigures] = field(default_factory=list)
    audit: list[AuditRow] = field(default_factory=list)
    #: Journals of which the lake lacks lines.
    incomplete: list[Coverage] = field(default_factory=list)


def share(part: int, whole: int) -> float | None:
    """The share of expired leases in those begun: at most 1, as leases that expire now may have begun long ago."""
    if part == 0 and whole == 0:
        return None
    return min(1.0, part / whole) if whole else 1.0
