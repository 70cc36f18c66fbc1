"""The figures of a report: the span of time it shows, what queues and consumers did in it, what does not add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from restante.spark.coverage import Coverage

#: Stands for all queues together where figures are kept by queue; no queue has an empty name.
ALL = ""
#: Most buckets of time in a chart. Far more are narrower than a pixel and make the page heavy; far fewer hide peaks.
BUCKETS = 300
#: Seconds a bucket may last, the shortest that keeps within `BUCKETS` is taken; beyond the last, whole weeks.
STEPS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400)
#: Seconds before the end that count as now; the same as the window of the drain table, so that both tell one story.
NOW = 900
#: Seconds of work that may wait while more comes than goes before a queue is said to grow.
GROWING_FROM = 60
#: What is timed, and the percentiles of it.
WORDS = ("wait", "run", "total")
QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

Series = Sequence[float | None]
Percentiles = dict[str, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """The span of time a report shows, in whole minutes (seconds since 1970), cut into buckets of one length."""

    begin: int
    end: int
    step: int

    @classmethod
    def over(cls, begin: int, end: int) -> Axis:
        """With the shortest buckets that are not too many."""
        weeks = 7 * 86400 * math.ceil((end - begin) / (BUCKETS * 7 * 86400))
        for step in (*STEPS, weeks):
            axis = cls(begin, end, step)
            if axis.count <= BUCKETS:
                return axis
        return axis

    @property
    def first(self) -> int:
        """Begin of the first bucket, which may lie before the span."""
        return self.begin // self.step * self.step

    @property
    def count(self) -> int:
        return math.ceil((self.end - self.first) / self.step)

    def minutes(self, bucket: int) -> float:
        """How much of a bucket lies within the span."""
        begin = self.first + bucket * self.step
        return (min(begin + self.step, self.end) - max(begin, self.begin)) / 60


@dataclass(frozen=True, slots=True)
class Drain:
    """How long until a queue is empty; no seconds while more comes than goes."""

    waiting: int
    arrival: float
    settle: float
    seconds: float | None

    @property
    def growing(self) -> bool:
        """More comes than goes, and more waits than the to and fro of a busy queue."""
        return self.seconds is None and self.waiting > GROWING_FROM * self.settle

    @property
    def words(self) -> str:
        """What to say instead of the seconds; nothing where they say it."""
        if self.waiting <= 0:
            return "empty"
        return "growing" if self.growing else "keeps up" if self.seconds is None else ""


@dataclass(frozen=True, slots=True)
class Cause:
    """What messages died of."""

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
    """What attempts failed of."""

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
    """What one consumer did."""

    name: str
    leases: int = 0
    acked: int = 0
    failed: int = 0
    busy_seconds: float = 0.0
    queues: set[str] = field(default_factory=set)
    #: Share of each bucket it held leases; above 1 where it held several at once.
    load: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Messages of one queue sent in one hour, and what became of them."""

    queue: str
    incarnation: int
    hour: datetime
    sent: int
    acked: int
    dead: int
    expired: int
    deleted: int
    waiting: int
    unsent: int

    @property
    def missing(self) -> int:
        """Sent but not accounted for; below zero where more ended than were sent."""
        return self.sent - self.acked - self.dead - self.expired - self.deleted - self.waiting


@dataclass(slots=True)
class QueueFigures:
    """One queue, or all together: series by bucket, sums over the span, and sums of the last quarter of an hour."""

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
        """The same, or None where the lake has not got the table it is counted in."""
        return self.total(name) if name in self.counts else None

    def timed(self, word: str, percentile: str) -> list[float | None]:
        """One percentile by bucket."""
        return [None if one is None else one[percentile] for one in self.latency.get(word, ())]

    @property
    def waiting_now(self) -> int | None:
        return self.waiting[-1] if self.waiting else None

    @property
    def dead_now(self) -> int | None:
        return self.dead[-1] if self.dead else None

    @property
    def overdue_rate(self) -> float | None:
        return share(self.total("overdue"), self.total("begun"))


@dataclass(slots=True)
class Figures:
    """Everything a report shows."""

    #: Tables a lake has in the end, and those this one has.
    known: frozenset[str]
    present: frozenset[str]
    #: None when nothing lies in the span that was asked for.
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
    """Leases that ran out of those begun: at most 1, because those of a minute may have begun long before it."""
    if part == 0 and whole == 0:
        return None
    return min(1.0, part / whole) if whole else 1.0
