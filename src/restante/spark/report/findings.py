"""Finds what is wrong at the end of a report, in sentences, the most serious first: "must I do something now"?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

from restante.spark.report.formats import clock, count, moment, percent, rate, span
from restante.spark.report.model import NOW, Figures, QueueFigures, share

#: Shares of expired leases that are a warning and that are wrong: consumers are stuck or too slow.
OVERDUE_WARNING, OVERDUE_WRONG = 0.05, 0.25
#: Fewer expired leases than this are chance.
OVERDUE_LEAST = 5
#: Deaths as a share of acks that are a warning and that are wrong; fewer than the last number are never wrong.
DIED_WARNING, DIED_WRONG, DIED_FEW = 0.01, 0.1, 10
#: Seconds until a queue is empty (or would be without arrivals) that are too long.
DRAIN_LONG = 3600


class Level(IntEnum):
    """How serious a finding is."""

    FINE = 0
    #: Good to know; nobody has to act.
    NOTE = 1
    #: Becomes wrong if it goes on.
    WARNING = 2
    #: Messages fail, are late or are missing now.
    WRONG = 3


class Finding(NamedTuple):
    """A sentence about a queue, or about the lake if `queue` is empty."""

    level: Level
    queue: str
    text: str


def findings(figures: Figures, now: datetime) -> list[Finding]:
    """All findings, the most serious first."""
    results = [*_lake(figures, now)]
    for queue in figures.queues.values():
        results += _queue(queue, figures)
    return sorted(results, key=lambda finding: (-finding.level, finding.queue))


def troubled(figures: Figures, results: list[Finding]) -> list[QueueFigures]:
    """The queues, those with the most serious findings first."""

    def trouble(queue: QueueFigures) -> tuple[int, int, int, int, str]:
        levels = [finding.level for finding in results if finding.queue == queue.name]
        wrong, warnings = levels.count(Level.WRONG), levels.count(Level.WARNING)
        return -wrong, -warnings, -(queue.dead_now or 0), -(queue.waiting_now or 0), queue.name

    return sorted(figures.queues.values(), key=trouble)


def _lake(figures: Figures, now: datetime) -> Iterator[Finding]:
    if figures.axis is None:
        return
    quiet = now - moment(figures.axis.end)
    if quiet > timedelta(seconds=NOW):
        past = span(quiet.total_seconds())
        text = f"There was no event in the {past} before this report: nothing happened, or the pipeline is not running."
        yield Finding(Level.WARNING, "", text)


def _queue(queue: QueueFigures, figures: Figures) -> Iterator[Finding]:
    for journal in figures.incomplete:
        if journal.queue == queue.name:
            yield from (Finding(Level.WARNING, queue.name, sentence) for sentence in journal.sentences())
    yield from _audit(queue, figures)
    yield from _storm(queue, figures)
    yield from _deaths(queue)
    yield from _drain(queue)
    yield from _overdue(queue)
    if min((*queue.waiting, *queue.dead), default=0) < 0:
        text = "Counts fall below zero: messages were sent before the lake began, and it has only their later events."
        yield Finding(Level.NOTE, queue.name, text)


def _audit(queue: QueueFigures, figures: Figures) -> Iterator[Finding]:
    wrong = [row for row in figures.audit if row.queue == queue.name and row.missing]
    if wrong:
        lost = sum(max(row.missing, 0) for row in wrong)
        extra = sum(max(-row.missing, 0) for row in wrong)
        parts = [f"{count(lost)} sent without a known fate"] if lost else []
        parts += [f"{count(extra)} more than sent"] if extra else []
        text = f"The audit does not add up: {' and '.join(parts)}, first in the hour of {clock(wrong[0].hour)}."
        yield Finding(Level.WRONG, queue.name, text)


def _storm(queue: QueueFigures, figures: Figures) -> Iterator[Finding]:
    if not queue.recent_storms:
        return
    failed = queue.recent.get("nacked", 0) + queue.recent.get("expired", 0)
    most = next((failure.error_class for failure in figures.recent_failures if failure.queue == queue.name), "")
    by = f", most of them by {most}" if most else ""
    acked = count(queue.recent.get("acked", 0))
    yield Finding(
        Level.WRONG, queue.name, f"Retry storm: {count(failed)} attempts failed and {acked} were acked recently{by}."
    )


def _deaths(queue: QueueFigures) -> Iterator[Finding]:
    died, acked = queue.recent.get("died", 0), queue.recent.get("acked", 0)
    dead = queue.dead_now or 0
    if died:
        level = Level.WARNING if died >= DIED_WARNING * acked else Level.NOTE
        if died >= DIED_FEW and died >= DIED_WRONG * acked:
            level = Level.WRONG
        yield Finding(level, queue.name, f"{count(died)} became dead recently; {count(dead)} are dead in all.")
    elif dead > 0:
        yield Finding(Level.NOTE, queue.name, f"{count(dead)} are dead from earlier: replay or delete them.")


def _drain(queue: QueueFigures) -> Iterator[Finding]:
    drain = queue.drain
    if drain is None or drain.waiting <= 0:
        return
    if drain.settle <= 0:
        if not queue.recent.get("received"):
            text = f"{count(drain.waiting)} wait and none was received recently: no consumer, paused, or not due yet."
            yield Finding(Level.WARNING, queue.name, text)
    elif drain.growing:
        work = drain.waiting / drain.settle
        level = Level.WRONG if work > DRAIN_LONG else Level.WARNING
        rates = f"{rate(drain.arrival)}/s arrive, {rate(drain.settle)}/s leave"
        text = f"More messages arrive than leave: {rates}; {count(drain.waiting)} wait, {span(work)} of work."
        yield Finding(level, queue.name, text)
    elif drain.seconds is not None and drain.seconds > DRAIN_LONG:
        text = f"{count(drain.waiting)} wait; at the current rate that takes {span(drain.seconds)}."
        yield Finding(Level.WARNING, queue.name, text)


def _overdue(queue: QueueFigures) -> Iterator[Finding]:
    expired = queue.recent.get("overdue", 0)
    rate = share(expired, queue.recent.get("begun", 0)) or 0.0
    if expired >= OVERDUE_LEAST and rate >= OVERDUE_WARNING:
        level = Level.WRONG if rate >= OVERDUE_WRONG else Level.WARNING
        words = f"{percent(rate)} of leases expired recently ({count(expired)})"
        text = f"{words}: consumers stop, or take longer than the lease."
        yield Finding(level, queue.name, text)
