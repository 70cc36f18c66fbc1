"""Draws the tables of a report as HTML: drain, why messages died, why attempts failed, consumers, audit.

Names are foreign text, so everything is escaped where it enters the HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import TypeVar

from restante.spark.report.charts import SHADES, bar
from restante.spark.report.elements import Page, cell, drained, error, figure, mark, number, section, table
from restante.spark.report.findings import Level
from restante.spark.report.formats import clock, count, percent, rate
from restante.spark.report.model import AuditRow, Cause, ConsumerFigures, Failure
from restante.spark.schemas import EQUATION, FATES

T = TypeVar("T")

#: Most rows of a table; the number of omitted rows is shown below it.
LISTED = 40


def drain(page: Page) -> str:
    """How long until each queue is empty."""
    about = (
        "Time until no message waits, at the rates of the last 15 minutes. Growing: more messages arrive than leave. "
        "Keeps up: the same, but the waiting messages are less than a minute of work."
    )
    drains = [(queue, queue.drain) for queue in page.queues if queue.drain is not None]
    if not drains:
        return section("drain", "Drain", about, otherwise=page.lacks("drain") or "The rates are unknown.")
    longest = max((estimate.seconds or 0.0 for _, estimate in drains), default=0.0) or 1.0
    rows = []
    for queue, estimate in drains:
        endless = estimate.growing
        part = 1.0 if endless else (estimate.seconds or 0.0) / longest
        filled = f'<td class="widest">{bar(part, "dead" if endless else "ready", endless)}</td>'
        rates = figure(f"{rate(estimate.arrival)}/s"), figure(f"{rate(estimate.settle)}/s")
        rows.append(page.row(queue.name, figure(drained(queue)), filled, number(estimate.waiting), *rates))
    return section("drain", "Drain", about, table("Queue|>Drained in||>Waiting|>Arriving|>Leaving", rows))


def deaths(page: Page) -> str:
    """The causes of death, with an example of each."""
    causes = page.figures.causes

    def row(cause: Cause) -> str:
        return page.row(
            cause.queue,
            number(cause.dead),
            error(cause.error_class, cause.dead / causes[0].dead, "dead"),
            cell(cause.kind),
            cell(cause.event),
            figure(clock(cause.first_at)),
            figure(clock(cause.last_at)),
            f"<td><code>{escape(cause.example_id)}</code></td>",
        )

    about = "By queue, kind and error, summed over the dates of sending; replayed messages are counted too."
    drawn = _first("Queue|>Died|Error||Kind|By|>First|>Last|Example", causes, row)
    return section("deaths", "Why messages died", about, drawn, page.lacks("causes") or "No message died.")


def failures(page: Page) -> str:
    """Failed attempts by error."""
    failed = page.figures.failures

    def row(failure: Failure) -> str:
        counts = (failure.nacked, failure.expired, failure.worst_attempts)
        why = error(failure.error_class, failure.failed / failed[0].failed, "retrying")
        return page.row(failure.queue, number(failure.failed), why, *map(number, counts))

    about = "Attempts that were nacked or buried, or whose lease expired, whether or not a later one succeeded."
    drawn = _first("Queue|>Failed|Error||>Nacked or buried|>Lease expired|>Highest attempt", failed, row)
    return section("failures", "Why attempts failed", about, drawn, page.lacks("retries") or "No attempt failed.")


def _first(heads: str, items: Sequence[T], row: Callable[[T], str]) -> str:
    """A table of the first items and how many more there are; empty without any."""
    return table(heads, map(row, items[:LISTED]), more=len(items) - LISTED) if items else ""


def consumers(page: Page) -> str:
    """The load of each consumer over time."""
    about = (
        "Share of time in which a consumer held a lease, by the minute in which the lease ended: above 100 % if it "
        "held several at once."
    )
    busiest = page.figures.consumers
    if not busiest:
        return section("consumers", "Consumers", about, otherwise=page.lacks("consumers") or "No lease has ended.")
    # Scaled to the 98th percentile: a few very high loads would make all others pale.
    loads = sorted(load for consumer in busiest for load in consumer.load if load > 0)
    high = max(1.0, math.ceil(loads[int(len(loads) * 0.98)])) if loads else 1.0
    seconds = page.axis.end - page.axis.begin
    items = [_consumer(page, consumer, high, seconds) for consumer in busiest[:LISTED]]
    shades = "".join(f'<i class="shade-{shade}"></i>' for shade in range(1, SHADES + 1))
    key = f'<span class="key">0 <span>{shades}</span> {percent(high)} or more</span>'
    head = f'<li class="head"><span>Consumer</span>{key}<span>Load</span><span>Leases</span><span>Failed</span></li>'
    axis = f'<li><b></b><div class="axis">{page.drawing.times()}</div></li>'
    left = len(busiest) - LISTED
    more = f'<p class="more">and {count(left)} more, less busy</p>' if left > 0 else ""
    body = (
        f'<div class="card" data-filtered=""><p class="none for-none">No consumer received messages of this queue.</p>'
        f'<ol class="consumers">{head}{"".join(items)}{axis}</ol>{more}</div>'
    )
    return section("consumers", "Consumers", about, body)


def _consumer(page: Page, consumer: ConsumerFigures, high: float, seconds: float) -> str:
    name, queues = consumer.name or "(unnamed)", sorted(consumer.queues)
    quiet = "" if consumer.failed else ' class="zero"'
    failed = percent(consumer.failed / max(consumer.leases, 1))
    return (
        f"<li {page.mine(*queues)}>"
        f'<b title="{escape(name)}: {escape(", ".join(queues))}">{escape(name)}</b>'
        f"{page.drawing.strip(name, consumer.load, high)}<span>{percent(consumer.busy_seconds / seconds)}</span>"
        f"<span>{count(consumer.leases)}</span><span{quiet}>{failed}</span></li>"
    )


def audit(page: Page) -> str:
    """Whether every sent message has a fate, by queue, and the hours in which some have none."""
    rows = page.figures.audit
    wrong = [row for row in rows if row.missing]
    return section(
        "audit",
        "Audit",
        f"Conservation: {EQUATION}, by hour of sending. Without sent event: "
        "messages in the lake that were sent before it began.",
        _result(rows, wrong) + _audited(page, rows, wrong) + _hours(page, wrong) if rows else "",
        page.lacks("audit") or "No message was sent.",
    )


def _result(rows: list[AuditRow], wrong: list[AuditRow]) -> str:
    sent, off = count(sum(row.sent for row in rows)), count(sum(abs(row.missing) for row in wrong))
    if wrong:
        return (
            f'<p class="audit-mark wrong">{mark(Level.WRONG, "Does not add up")} {off} of {sent} messages sent, '
            f"in {len(wrong)} of {len(rows)} hours</p>"
        )
    return f'<p class="audit-mark fine">{mark(Level.FINE, "OK")} All {sent} messages sent are accounted for.</p>'


def _audited(page: Page, rows: list[AuditRow], wrong: list[AuditRow]) -> str:
    """One row per queue, those that do not add up first, and the sums."""
    by_queue: dict[str, list[AuditRow]] = {}
    for row in rows:
        by_queue.setdefault(row.queue, []).append(row)
    bad = {row.queue for row in wrong}
    order = sorted(by_queue, key=lambda name: (name not in bad, page.places.get(name, 0)))
    lines = [page.row(name, f"<td>{_adds_up(name not in bad)}</td>", _sums(by_queue[name])) for name in order]
    foot = f"<tfoot><tr><th>All</th><td>{_adds_up(not wrong)}</td>{_sums(rows)}</tr></tfoot>"
    return table(f"Queue||{_AUDIT_HEADS}", lines, foot)


_AUDITED = ("sent", *FATES, "unsent")
_AUDIT_HEADS = "|".join(f">{name.capitalize()}" for name in ("sent", *FATES, "without sent event"))


def _sums(rows: list[AuditRow]) -> str:
    return "".join(number(sum(getattr(row, name) for row in rows)) for name in _AUDITED)


def _adds_up(fine: bool) -> str:
    return mark(Level.FINE, "OK") if fine else mark(Level.WRONG, "does not add up")


def _hours(page: Page, wrong: list[AuditRow]) -> str:
    def hour(row: AuditRow) -> str:
        return page.row(row.queue, figure(clock(row.hour)), figure(f"{row.missing:+,}"), _sums([row]))

    drawn = _first(f"Queue|>Hour|>Missing|{_AUDIT_HEADS}", wrong, hour)
    return f'<h3 class="below">Hours that do not add up</h3>{drawn}' if wrong else ""
