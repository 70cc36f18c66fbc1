"""Draws the first sections of a report as HTML: verdict, tiles, queues, and the charts of each queue.

Names of queues, kinds, errors and consumers are foreign text, so everything is escaped where it enters the HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from restante.spark.report.charts import Chart, Drawing, Line, bar, sparkline
from restante.spark.report.findings import Finding, Level
from restante.spark.report.formats import clock, count, moment, percent, rate, span
from restante.spark.report.model import QUANTILES, WORDS, Axis, Figures, QueueFigures, Series, share
from restante.spark.report.scales import Unit

#: Queues that get charts of their own, those with the most serious findings first; each adds about 50 kB for a month.
DETAILED = 30
#: Full height of a sparkline of waiting messages: without it a few would look like many.
QUIET = 10
#: Most bars in the chart of errors.
BARS = 5

_MARKS = {Level.WRONG: "✕", Level.WARNING: "▲", Level.NOTE: "•", Level.FINE: "✓"}
_ABOUT = {
    "wait": "from sent or due to the first delivery",
    "run": "in consumers’ hands",
    "total": "from sent to acked",
}


@dataclass(slots=True)
class Page:
    """The input of all sections: figures, findings, and the queues, those with the most serious findings first."""

    figures: Figures
    axis: Axis
    findings: list[Finding]
    queues: list[QueueFigures]
    places: dict[str, int] = field(init=False)
    drawing: Drawing = field(init=False)

    def __post_init__(self) -> None:
        self.places = {queue.name: place for place, queue in enumerate(self.queues)}
        self.drawing = Drawing(self.axis)

    def level(self, queue: str) -> Level:
        return max((finding.level for finding in self.findings if finding.queue == queue), default=Level.FINE)

    def link(self, queue: str) -> str:
        """The queue's name, linked to its charts if it has any."""
        place = self.places.get(queue, DETAILED)
        text = escape(queue)
        return f'<a href="#queue-{place}" title="{text}">{text}</a>' if place < DETAILED else f"<span>{text}</span>"

    def mine(self, *queues: str) -> str:
        """The attribute by which a row is shown or hidden with its queues."""
        return f'data-q="{" ".join(str(self.places[queue]) for queue in queues if queue in self.places)}"'

    def lacks(self, table: str) -> str:
        """The text to show instead of a section; empty if the lake has the table."""
        return "" if table in self.figures.present else f"The lake has no {table} table yet."


def mark(level: Level, words: str = "") -> str:
    text = f" {words}" if words else ""
    return f'<span class="mark {level.name.lower()}">{_MARKS[level]}{text}</span>'


def number(value: float | None) -> str:
    quiet = " zero" if not value else ""
    return f'<td class="n{quiet}">{count(value)}</td>'


def cell(text: str, quiet: bool = False) -> str:
    return f'<td class="n{" zero" if quiet else ""}">{text}</td>'


def section(id: str, title: str, about: str, body: str) -> str:
    return f'<section id="{id}"><h2>{title}</h2><p class="about">{about}</p>{body}</section>'


def none(text: str) -> str:
    return f'<p class="card none">{escape(text)}</p>'


def table(heads: Sequence[str], rows: Iterable[str], foot: str = "", more: int = 0, filtered: bool = True) -> str:
    """A table; a head that begins with > is of a column of numbers."""
    head = "".join(
        f'<th class="n">{title[1:]}</th>' if title.startswith(">") else f"<th>{title}</th>" for title in heads
    )
    rest = f'<p class="more">and {count(more)} more</p>' if more > 0 else ""
    attribute = ' data-filtered=""' if filtered else ""
    return (
        f'<div class="table"{attribute}><p class="none for-none">No rows for this queue.</p><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>{foot}</table>{rest}</div>"
    )


# -- summary --------------------------------------------------------------------------------------------------------


def verdict(page: Page) -> str:
    """Whether anything is wrong, and all findings."""
    wrong = [finding for finding in page.findings if finding.level is Level.WRONG]
    warnings = [finding for finding in page.findings if finding.level is Level.WARNING]
    notes = [finding for finding in page.findings if finding.level is Level.NOTE]
    if wrong:
        also = f", {len(warnings)} more to watch" if warnings else ""
        level, title = Level.WRONG, f"{len(wrong)} {'things are' if len(wrong) > 1 else 'thing is'} wrong{also}"
    elif warnings:
        level = Level.WARNING
        title = f"Nothing is wrong, {len(warnings)} {'things' if len(warnings) > 1 else 'thing'} to watch"
    else:
        level, title = Level.FINE, "Nothing is wrong"
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
            items.append(f"<li>{who}{_sentences(own)}</li>")
    return f'<ul class="findings">{"".join(items)}</ul>' if items else ""


def _sentences(findings: list[Finding]) -> str:
    items = "".join(f"<li>{mark(finding.level)}<span>{escape(finding.text)}</span></li>" for finding in findings)
    return f'<ul class="sentences">{items}</ul>' if items else ""


def _tile(title: str, value: str, about: str, line: str = "", level: Level = Level.FINE) -> str:
    kind = f' class="{level.name.lower()}"' if level >= Level.WARNING else ""
    return (
        f'<li><h3>{title}</h3><strong{kind}>{value}</strong><p title="{escape(about)}">{escape(about)}</p>{line}</li>'
    )


def tiles(page: Page) -> str:
    """The main figures of all queues together."""
    every = page.figures.everything
    rate, total = every.overdue_rate, every.percentiles.get("total", {})
    died = every.total("died")
    dying = Level.WARNING if every.recent.get("died") else Level.FINE
    items = [
        _tile(
            "Messages sent",
            count(every.known("sent")),
            _rate(every, "sent", page.axis),
            _sparkline(every, "sent", "ready"),
        ),
        _tile(
            "Acked", count(every.known("acked")), _rate(every, "acked", page.axis), _sparkline(every, "acked", "leased")
        ),
        _tile(
            "Waiting now",
            count(every.waiting_now),
            f"peak {count(max(every.peak, default=0))}",
            sparkline(every.waiting, "ready", QUIET),
        ),
        _tile(
            "Dead now",
            count(every.dead_now),
            f"{count(died)} died, {count(every.total('replayed'))} replayed",
            sparkline(every.dead, "dead"),
            dying,
        ),
        _tile(
            "Total time, p99",
            span(total.get("p99")),
            f"median {span(total.get('p50'))}",
            sparkline(every.timed("total", "p99"), "p95"),
        ),
        _tile(
            "Overdue rate",
            percent(rate),
            f"{count(every.total('overdue'))} leases expired",
            sparkline(_rates(every), "overdue"),
        ),
        _drain_tile(page),
    ]
    return f'<ul class="tiles" id="tiles">{"".join(items)}</ul>'


def _rate(queue: QueueFigures, name: str, axis: Axis) -> str:
    return f"{rate(queue.total(name) / ((axis.end - axis.begin) / 60))} a minute"


def _sparkline(queue: QueueFigures, name: str, colour: str) -> str:
    return sparkline(queue.counts.get(name, ()), colour)


def _rates(queue: QueueFigures) -> Series:
    pairs = zip(queue.counts.get("overdue", ()), queue.counts.get("begun", ()), strict=True)
    return [share(expired, begun) for expired, begun in pairs]


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


def queues(page: Page) -> str:
    """One row per queue, those with the most serious findings first."""
    heads = (
        "Queue",
        "",
        ">Waiting",
        "",
        ">Dead",
        ">Median",
        ">p99",
        "",
        ">Overdue",
        ">Drained in",
        ">Sent",
        ">Acked",
        ">Failed",
        ">Died",
    )
    rows = []
    for queue in page.queues:
        total = queue.percentiles.get("total", {})
        rate = queue.overdue_rate
        rows.append(
            f"<tr><th>{page.link(queue.name)}</th><td>{mark(page.level(queue.name))}</td>"
            f"{number(queue.waiting_now)}<td>{sparkline(queue.waiting, 'ready', QUIET)}</td>{number(queue.dead_now)}"
            f"{cell(span(total.get('p50')))}{cell(span(total.get('p99')))}"
            f"<td>{sparkline(queue.timed('total', 'p99'), 'p95')}</td>"
            f"{cell(percent(rate), not rate)}{cell(drained(queue))}{number(queue.known('sent'))}"
            f"{number(queue.known('acked'))}{number(queue.known('failed'))}{number(queue.known('died'))}</tr>"
        )
    about = (
        "Queues with the most serious findings come first. Times are from sent to acked; the small charts show waiting "
        "messages and the p99."
    )
    return section("queues", "Queues", about, table(heads, rows, filtered=False))


def drained(queue: QueueFigures) -> str:
    return "–" if queue.drain is None else queue.drain.words or span(queue.drain.seconds)


# -- charts ----------------------------------------------------------------------------------------------------------


def choice(page: Page) -> str:
    """The bar that stays on top: the choice of a queue, and links to the sections."""
    options = "".join(
        f'<option value="queue-{place}">{_MARKS[page.level(queue.name)]} {escape(queue.name)}</option>'
        for place, queue in enumerate(page.queues[:DETAILED])
    )
    links = "".join(
        f'<a href="#{id}">{words}</a>'
        for id, words in (
            ("charts", "Charts"),
            ("drain", "Drain"),
            ("deaths", "Deaths"),
            ("failures", "Failures"),
            ("consumers", "Consumers"),
            ("audit", "Audit"),
            ("top", "↑ Top"),
        )
    )
    return (
        f'<nav hidden><label>Queue <select id="queue"><option value="all">All queues</option>{options}</select></label>'
        f'<span class="steps"><button data-by="-1" aria-label="previous queue">‹</button>'
        f'<button data-by="1" aria-label="next queue">›</button></span><span class="links">{links}</span></nav>'
    )


def charts(page: Page) -> str:
    """The charts of all queues together and of each queue."""
    panels = [_panel(page, page.figures.everything, "all", "All queues together")]
    for place, queue in enumerate(page.queues[:DETAILED]):
        panels.append(_panel(page, queue, f"queue-{place}", queue.name))
    left = len(page.queues) - DETAILED
    more = f'<p class="about">The other {left} queues have no charts of their own.</p>' if left > 0 else ""
    return f'<div id="charts">{"".join(panels)}{more}</div>'


def _panel(page: Page, queue: QueueFigures, id: str, title: str) -> str:
    own = [finding for finding in page.findings if finding.queue == queue.name and queue.name]
    drawn = "".join(page.drawing.chart(chart) for chart in _charts(page, queue))
    return (
        f'<section class="panel" id="{id}"><h3>{escape(title)}</h3>{_sentences(own)}'
        f'<div class="charts">{drawn}{_bars(page, queue)}</div></section>'
    )


def _charts(page: Page, queue: QueueFigures) -> Iterable[Chart]:
    yield from _latency_charts(page, queue)
    yield from _flow_charts(page, queue)
    yield from _failure_charts(page, queue)


def _latency_charts(page: Page, queue: QueueFigures) -> Iterable[Chart]:
    for word in WORDS:
        whole = queue.percentiles.get(word, {})
        lines = [Line(p, p, queue.timed(word, p), span(whole.get(p))) for p in QUANTILES]
        yield Chart(
            f"Latency: {word}",
            _ABOUT[word],
            Unit.SECONDS,
            lines,
            empty="No message sent in this period was acked.",
            missing=page.lacks("latency"),
        )


def _per_minute(queue: QueueFigures, axis: Axis, *names: str) -> list[float]:
    """The sum of some series as messages per minute, by bucket."""
    zeros = [0] * axis.count
    columns = [queue.counts.get(name, zeros) for name in names]
    return [sum(values) / axis.minutes(bucket) for bucket, values in enumerate(zip(*columns, strict=True))]


def _flow_charts(page: Page, queue: QueueFigures) -> Iterable[Chart]:
    axis = page.axis
    yield Chart(
        "Throughput",
        "messages a minute",
        Unit.PER_MINUTE,
        [
            Line("sent", "ready", _per_minute(queue, axis, "sent"), count(queue.total("sent")), "area"),
            Line("acked", "leased", _per_minute(queue, axis, "acked"), count(queue.total("acked"))),
            Line("failed", "retrying", _per_minute(queue, axis, "failed"), count(queue.total("failed"))),
        ],
        missing=page.lacks("throughput"),
    )
    peak = [Line("peak", "ready", queue.peak, count(max(queue.peak, default=0)), "faint")] if axis.step > 60 else []
    yield Chart(
        "Backlog: waiting",
        "ready, scheduled, retrying and leased",
        Unit.COUNT,
        [
            *peak,
            Line("waiting", "ready", queue.waiting, count(queue.waiting_now), "area"),
        ],
        missing=page.lacks("backlog"),
    )
    yield Chart(
        "Backlog: dead",
        "until an operator replays or deletes them",
        Unit.COUNT,
        [
            Line("dead", "dead", queue.dead, count(queue.dead_now), "area"),
        ],
        missing=page.lacks("backlog"),
    )


def _failure_charts(page: Page, queue: QueueFigures) -> Iterable[Chart]:
    axis = page.axis
    failed = queue.total("nacked") + queue.total("expired")
    yield Chart(
        "Retries",
        "failed attempts a minute",
        Unit.PER_MINUTE,
        [
            Line("failed", "retrying", _per_minute(queue, axis, "nacked", "expired"), count(failed), "columns"),
            Line(
                "lease expired",
                "overdue",
                _per_minute(queue, axis, "expired"),
                count(queue.total("expired")),
                "columns",
            ),
        ],
        queue.storms,
        "storm minutes",
        missing=page.lacks("retries"),
    )
    yield Chart(
        "Overdue",
        "expired leases as a share of those begun",
        Unit.SHARE,
        [
            Line("overdue", "overdue", _rates(queue), percent(queue.overdue_rate), "area"),
        ],
        empty="No lease has begun.",
        missing=page.lacks("overdue"),
    )


def _bars(page: Page, queue: QueueFigures) -> str:
    """Why messages died, by error class."""
    by_error: Counter[str] = Counter()
    for cause in page.figures.causes:
        if not queue.name or cause.queue == queue.name:
            by_error[cause.error_class or f"({cause.event}, no error)"] += cause.dead
    shown, whole = by_error.most_common(BARS), by_error.total()
    rest = whole - sum(dead for _, dead in shown)
    if rest:
        shown.append((f"{len(by_error) - BARS} other errors", rest))
    most = max((dead for _, dead in shown), default=1)
    items = "".join(
        f'<li><span title="{escape(name)}">{escape(name)}</span><b>{count(dead)}</b>{bar(dead / most, "dead")}</li>'
        for name, dead in shown
    )
    missing = page.lacks("causes") or ("" if items else "No message died.")
    body = f'<p class="none">{missing}</p>' if missing else f'<ol class="bars">{items}</ol>'
    return (
        '<figure class="chart barred"><figcaption><h4>Why messages died</h4><p>by class of the last error</p>'
        f"</figcaption>{body}</figure>"
    )
