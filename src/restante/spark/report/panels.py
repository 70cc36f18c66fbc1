"""Draws the charts of a report as HTML: one panel for all queues together and one for each queue.

Names of queues and errors are foreign text, so everything is escaped where it enters the HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import Literal

from restante.spark.report.charts import Chart, Line, bar
from restante.spark.report.elements import DETAILED, MARKS, Page, sentences
from restante.spark.report.formats import count, percent, span
from restante.spark.report.model import QUANTILES, WORDS, Axis, QueueFigures
from restante.spark.report.scales import Unit

#: Most bars in the chart of errors.
BARS = 5

_ABOUT = {
    "wait": "from sent or due to the first delivery",
    "run": "in consumers’ hands",
    "total": "from sent to acked",
}
#: Links of the bar that stays on top: section, text.
_LINKS = {
    "charts": "Charts",
    "drain": "Drain",
    "deaths": "Deaths",
    "failures": "Failures",
    "consumers": "Consumers",
    "audit": "Audit",
    "top": "↑ Top",
}


def choice(page: Page) -> str:
    """The bar that stays on top: the choice of a queue, and links to the sections."""
    options = "".join(
        f'<option value="queue-{place}">{MARKS[page.level(queue.name)]} {escape(queue.name)}</option>'
        for place, queue in enumerate(page.queues[:DETAILED])
    )
    links = "".join(f'<a href="#{id}">{words}</a>' for id, words in _LINKS.items())
    return (
        f'<nav hidden><label>Queue <select id="queue"><option value="all">All queues</option>{options}</select></label>'
        f'<span class="steps"><button data-by="-1" aria-label="previous queue">‹</button>'
        f'<button data-by="1" aria-label="next queue">›</button></span><span class="links">{links}</span></nav>'
    )


def panels(page: Page) -> str:
    """The charts of all queues together and of each queue."""
    drawn = [_panel(page, page.figures.everything, "all", "All queues together")]
    for place, queue in enumerate(page.queues[:DETAILED]):
        drawn.append(_panel(page, queue, f"queue-{place}", queue.name))
    left = len(page.queues) - DETAILED
    more = f'<p class="about">The other {left} queues have no charts of their own.</p>' if left > 0 else ""
    return f'<div id="charts">{"".join(drawn)}{more}</div>'


def _panel(page: Page, queue: QueueFigures, id: str, title: str) -> str:
    own = [finding for finding in page.findings if finding.queue == queue.name and queue.name]
    drawn = "".join(page.drawing.chart(chart) for chart in _charts(page, queue))
    return (
        f'<section class="panel" id="{id}"><h3>{escape(title)}</h3>{sentences(own)}'
        f'<div class="charts">{drawn}{_bars(page, queue)}</div></section>'
    )


def _charts(page: Page, queue: QueueFigures) -> Iterator[Chart]:
    for word in WORDS:
        yield _latency(page, queue, word)
    yield _throughput(page, queue)
    yield from _backlog(page, queue)
    yield _retries(page, queue)
    yield _overdue(page, queue)


def _latency(page: Page, queue: QueueFigures, word: str) -> Chart:
    whole = queue.percentiles.get(word, {})
    lines = [Line(p, p, queue.timed(word, p), span(whole.get(p))) for p in QUANTILES]
    empty, missing = "No message sent in this period was acked.", page.lacks("latency")
    return Chart(f"Latency: {word}", _ABOUT[word], Unit.SECONDS, lines, empty=empty, missing=missing)


def _throughput(page: Page, queue: QueueFigures) -> Chart:
    lines = [
        _per_minute(queue, page.axis, "sent", "ready", style="area"),
        _per_minute(queue, page.axis, "acked", "leased"),
        _per_minute(queue, page.axis, "failed", "retrying"),
    ]
    return Chart("Throughput", "messages a minute", Unit.PER_MINUTE, lines, missing=page.lacks("throughput"))


def _backlog(page: Page, queue: QueueFigures) -> Iterator[Chart]:
    missing = page.lacks("backlog")
    waiting = [Line("waiting", "ready", queue.waiting, count(queue.waiting_now), "area")]
    if page.axis.step > 60:
        waiting.insert(0, Line("peak", "ready", queue.peak, count(max(queue.peak, default=0)), "faint"))
    dead = [Line("dead", "dead", queue.dead, count(queue.dead_now), "area")]
    yield Chart("Backlog: waiting", "ready, scheduled, retrying and leased", Unit.COUNT, waiting, missing=missing)
    yield Chart("Backlog: dead", "until an operator replays or deletes them", Unit.COUNT, dead, missing=missing)


def _retries(page: Page, queue: QueueFigures) -> Chart:
    lines = [
        _per_minute(queue, page.axis, "failed", "retrying", "nacked", "expired", style="columns"),
        _per_minute(queue, page.axis, "lease expired", "overdue", "expired", style="columns"),
    ]
    about, missing = "failed attempts a minute", page.lacks("retries")
    return Chart("Retries", about, Unit.PER_MINUTE, lines, queue.storms, "storm minutes", missing=missing)


def _overdue(page: Page, queue: QueueFigures) -> Chart:
    lines = [Line("overdue", "overdue", queue.overdue_rates, percent(queue.overdue_rate), "area")]
    about, empty = "expired leases as a share of those begun", "No lease has begun."
    return Chart("Overdue", about, Unit.SHARE, lines, empty=empty, missing=page.lacks("overdue"))


def _per_minute(
    queue: QueueFigures,
    axis: Axis,
    name: str,
    colour: str,
    *counts: str,
    style: Literal["line", "area", "columns"] = "line",
) -> Line:
    """Messages per minute by bucket: of the count of this name, or of several counts together."""
    columns = [queue.counts.get(column, [0] * axis.count) for column in counts or (name,)]
    sums = [sum(values) for values in zip(*columns, strict=True)]
    values = [number / axis.minutes(bucket) for bucket, number in enumerate(sums)]
    return Line(name, colour, values, count(sum(sums)), style)


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
