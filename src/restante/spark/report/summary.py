"""Draws the first sections of a report as HTML: what is wrong, the main figures, one row per queue.

Names of queues are foreign text, so everything is escaped where it enters the HTML.
"""

from __future__ import annotations

from html import escape

from restante.spark.report.charts import sparkline
from restante.spark.report.elements import Page, drained, figure, mark, number, section, sentences, table
from restante.spark.report.findings import Finding, Level
from restante.spark.report.formats import clock, count, moment, percent, rate, span
from restante.spark.report.model import Axis, QueueFigures

#: Full height of a sparkline of waiting messages: without it a few would look like many.
QUIET = 10


def verdict(page: Page) -> str:
    """Whether anything is wrong, and all findings."""
    wrong = [finding for finding in page.findings if finding.level is Level.WRONG]
    warnings = [finding for finding in page.findings if finding.level is Level.WARNING]
    notes = [finding for finding in page.findings if finding.level is Level.NOTE]
    level, title = Level.FINE, "Nothing is wrong"
    if wrong:
        also = f", {len(warnings)} more to watch" if warnings else ""
        level, title = Level.WRONG, f"{len(wrong)} {'things are' if len(wrong) > 1 else 'thing is'} wrong{also}"
    elif warnings:
        level = Level.WARNING
        title = f"Nothing is wrong, {len(warnings)} {'things' if len(warnings) > 1 else 'thing'} to watch"
    body = _by_queue(page, wrong + warnings)
    if notes:
        body += f"<details><summary>Notes ({len(notes)})</summary>{_by_queue(page, notes)}</details>"
    return (
        f'<section class="verdict {level.name.lower()}" id="verdict"><h2>{mark(level)} {title}</h2>'
        f"<p>At {clock(moment(page.axis.end))} UTC, judged by the 15 minutes before.</p>{body}</section>"
    )


def _by_queue(page: Page, findings: list[Finding]) -> str:
    """Findings under their queue's name: first those of the lake, then by the order of the queues."""
    items = []
    for name in ("", *page.places):
        own = [finding for finding in findings if finding.queue == name]
        if own:
            who = page.link(name) if name else '<span class="whole">The lake</span>'
            items.append(f"<li>{who}{sentences(own)}</li>")
    return f'<ul class="findings">{"".join(items)}</ul>' if items else ""


# -- tiles -----------------------------------------------------------------------------------------------------------


def tiles(page: Page) -> str:
    """The main figures of all queues together."""
    every = page.figures.everything
    total = every.percentiles.get("total", {})
    dead = f"{count(every.total('died'))} died, {count(every.total('replayed'))} replayed"
    dying = Level.WARNING if every.recent.get("died") else Level.FINE
    waiting, peak = sparkline(every.waiting, "ready", QUIET), f"peak {count(max(every.peak, default=0))}"
    slowest = sparkline(every.timed("total", "p99"), "p95")
    overdue = sparkline(every.overdue_rates, "overdue")
    items = [
        _counted_tile("Messages sent", every, "sent", "ready", page.axis),
        _counted_tile("Acked", every, "acked", "leased", page.axis),
        _tile("Waiting now", count(every.waiting_now), peak, waiting),
        _tile("Dead now", count(every.dead_now), dead, sparkline(every.dead, "dead"), dying),
        _tile("Total time, p99", span(total.get("p99")), f"median {span(total.get('p50'))}", slowest),
        _tile("Overdue rate", percent(every.overdue_rate), f"{count(every.total('overdue'))} leases expired", overdue),
        _drain_tile(page),
    ]
    return f'<ul class="tiles" id="tiles">{"".join(items)}</ul>'


def _tile(title: str, value: str, about: str, line: str = "", level: Level = Level.FINE) -> str:
    kind = f' class="{level.name.lower()}"' if level >= Level.WARNING else ""
    return (
        f'<li><h3>{title}</h3><strong{kind}>{value}</strong><p title="{escape(about)}">{escape(about)}</p>{line}</li>'
    )


def _counted_tile(title: str, queue: QueueFigures, name: str, colour: str, axis: Axis) -> str:
    per_minute = queue.total(name) / ((axis.end - axis.begin) / 60)
    line = sparkline(queue.counts.get(name, ()), colour)
    return _tile(title, count(queue.known(name)), f"{rate(per_minute)} a minute", line)


def _drain_tile(page: Page) -> str:
    drains = [queue for queue in page.queues if queue.drain is not None and queue.drain.waiting > 0]
    growing = [queue for queue in drains if queue.drain and queue.drain.growing]
    if growing:
        worst = max(growing, key=lambda queue: queue.drain.waiting if queue.drain else 0)
        level = Level.WARNING if page.level(worst.name) >= Level.WARNING else Level.FINE
        return _tile("Drained in", "growing", f"{worst.name}, {len(growing)} of {len(page.queues)} queues", "", level)
    if not any(queue.drain for queue in page.queues):
        return _tile("Drained in", "–", page.lacks("drain") or "unknown")
    slowest = max(drains, key=lambda queue: (queue.drain and queue.drain.seconds) or 0.0, default=None)
    if slowest is None or slowest.drain is None:
        return _tile("Drained in", "empty", "no message waits")
    return _tile("Drained in", drained(slowest), f"slowest: {slowest.name}")


# -- queues ----------------------------------------------------------------------------------------------------------

_HEADS = "Queue||>Waiting||>Dead|>Median|>p99||>Overdue|>Drained in|>Sent|>Acked|>Failed|>Died"


def queues(page: Page) -> str:
    """One row per queue, those with the most serious findings first."""
    about = (
        "Queues with the most serious findings come first. Times are from sent to acked; the small charts show waiting "
        "messages and the p99."
    )
    rows = (_queue_row(page, queue) for queue in page.queues)
    return section("queues", "Queues", about, table(_HEADS, rows, filtered=False))


def _queue_row(page: Page, queue: QueueFigures) -> str:
    total, overdue = queue.percentiles.get("total", {}), queue.overdue_rate
    cells = (
        f"<td>{mark(page.level(queue.name))}</td>",
        number(queue.waiting_now),
        f"<td>{sparkline(queue.waiting, 'ready', QUIET)}</td>",
        number(queue.dead_now),
        figure(span(total.get("p50"))),
        figure(span(total.get("p99"))),
        f"<td>{sparkline(queue.timed('total', 'p99'), 'p95')}</td>",
        figure(percent(overdue), pale=not overdue),
        figure(drained(queue)),
        *(number(queue.known(name)) for name in ("sent", "acked", "failed", "died")),
    )
    return f"<tr><th>{page.link(queue.name)}</th>{''.join(cells)}</tr>"
