"""Draws the tables of a report as HTML: drain, why messages died, why attempts failed, consumers, audit.

Names are foreign text, so everything is escaped where it enters the HTML.
"""

from __future__ import annotations

import math
from html import escape

from restante.spark.report.charts import SHADES, bar
from restante.spark.report.findings import Level
from restante.spark.report.formats import clock, count, percent, rate
from restante.spark.report.model import AuditRow, ConsumerFigures
from restante.spark.report.sections import Page, cell, drained, mark, none, number, section, table

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
        return section("drain", "Drain", about, none(page.lacks("drain") or "The rates are unknown."))
    longest = max((estimate.seconds or 0.0 for _, estimate in drains), default=0.0) or 1.0
    rows = []
    for queue, estimate in drains:
        endless = estimate.growing
        part = 1.0 if endless else (estimate.seconds or 0.0) / longest
        rows.append(
            f"<tr {page.mine(queue.name)}><th>{page.link(queue.name)}</th>{cell(drained(queue))}"
            f'<td class="widest">{bar(part, "dead" if endless else "ready", endless)}</td>'
            f"{number(estimate.waiting)}{cell(f'{rate(estimate.arrival)}/s')}{cell(f'{rate(estimate.settle)}/s')}</tr>"
        )
    heads = ("Queue", ">Drained in", "", ">Waiting", ">Arriving", ">Leaving")
    return section("drain", "Drain", about, table(heads, rows))


def deaths(page: Page) -> str:
    """The causes of death, with an example of each."""
    about = "By queue, kind and error, summed over the dates of sending; replayed messages are counted too."
    causes = page.figures.causes
    if not causes:
        return section("deaths", "Why messages died", about, none(page.lacks("causes") or "No message died."))
    most = causes[0].dead
    rows = [
        f"<tr {page.mine(cause.queue)}><th>{page.link(cause.queue)}</th>{number(cause.dead)}"
        f'<td class="error">{escape(cause.error_class) or "–"}</td>'
        f'<td class="wide">{bar(cause.dead / most, "dead")}</td>'
        f'<td>{escape(cause.kind)}</td><td>{escape(cause.event)}</td><td class="n">{clock(cause.first_at)}</td>'
        f'<td class="n">{clock(cause.last_at)}</td><td><code>{escape(cause.example_id)}</code></td></tr>'
        for cause in causes[:LISTED]
    ]
    heads = ("Queue", ">Died", "Error", "", "Kind", "By", ">First", ">Last", "Example")
    return section("deaths", "Why messages died", about, table(heads, rows, more=len(causes) - LISTED))


def failures(page: Page) -> str:
    """Failed attempts by error."""
    about = "Attempts that were nacked or buried, or whose lease expired, whether or not a later one succeeded."
    failed = page.figures.failures
    if not failed:
        return section("failures", "Why attempts failed", about, none(page.lacks("retries") or "No attempt failed."))
    most = failed[0].failed
    rows = [
        f"<tr {page.mine(failure.queue)}><th>{page.link(failure.queue)}</th>{number(failure.failed)}"
        f'<td class="error">{escape(failure.error_class) or "–"}</td>'
        f'<td class="wide">{bar(failure.failed / most, "retrying")}</td>'
        f"{number(failure.nacked)}{number(failure.expired)}{number(failure.worst_attempts)}</tr>"
        for failure in failed[:LISTED]
    ]
    heads = ("Queue", ">Failed", "Error", "", ">Nacked or buried", ">Lease expired", ">Highest attempt")
    return section("failures", "Why attempts failed", about, table(heads, rows, more=len(failed) - LISTED))


def consumers(page: Page) -> str:
    """The load of each consumer over time."""
    about = (
        "Share of time in which a consumer held a lease, by the minute in which the lease ended: above 100 % if it "
        "held several at once."
    )
    busiest = page.figures.consumers
    if not busiest:
        return section("consumers", "Consumers", about, none(page.lacks("consumers") or "No lease has ended."))
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
    about = (
        "Conservation: sent = acked + dead + expired + deleted + waiting, by hour of sending. Without sent event: "
        "messages in the lake that were sent before it began."
    )
    rows = page.figures.audit
    if not rows:
        return section("audit", "Audit", about, none(page.lacks("audit") or "No message was sent."))
    wrong = [row for row in rows if row.missing]
    sent, off = count(sum(row.sent for row in rows)), count(sum(abs(row.missing) for row in wrong))
    verdict = (
        f'<p class="audit-mark wrong">{mark(Level.WRONG, "Does not add up")} {off} of {sent} messages sent, '
        f"in {len(wrong)} of {len(rows)} hours</p>"
        if wrong
        else f'<p class="audit-mark fine">{mark(Level.FINE, "OK")} All {sent} messages sent are accounted for.</p>'
    )
    by_queue: dict[str, list[AuditRow]] = {}
    for row in rows:
        by_queue.setdefault(row.queue, []).append(row)
    bad = {row.queue for row in wrong}
    order = sorted(by_queue, key=lambda name: (name not in bad, page.places.get(name, 0)))
    heads = ("Queue", "", ">Sent", ">Acked", ">Dead", ">Expired", ">Deleted", ">Waiting", ">Without sent event")
    lines = [
        f"<tr {page.mine(name)}><th>{page.link(name)}</th><td>{_adds_up(name not in bad)}</td>"
        f"{_sums(by_queue[name])}</tr>"
        for name in order
    ]
    foot = f"<tfoot><tr><th>All</th><td>{_adds_up(not wrong)}</td>{_sums(rows)}</tr></tfoot>"
    return section("audit", "Audit", about, verdict + table(heads, lines, foot) + _hours(page, wrong))


_AUDITED = ("sent", "acked", "dead", "expired", "deleted", "waiting", "unsent")


def _sums(rows: list[AuditRow]) -> str:
    return "".join(number(sum(getattr(row, name) for row in rows)) for name in _AUDITED)


def _adds_up(fine: bool) -> str:
    return mark(Level.FINE, "OK") if fine else mark(Level.WRONG, "does not add up")


def _hours(page: Page, wrong: list[AuditRow]) -> str:
    if not wrong:
        return ""
    lines = [
        f"<tr {page.mine(row.queue)}><th>{page.link(row.queue)}</th>{cell(clock(row.hour))}"
        f"{cell(f'{row.missing:+,}')}{_sums([row])}</tr>"
        for row in wrong[:LISTED]
    ]
    heads = (
        "Queue",
        ">Hour",
        ">Missing",
        ">Sent",
        ">Acked",
        ">Dead",
        ">Expired",
        ">Deleted",
        ">Waiting",
        ">Without sent event",
    )
    return f'<h3 class="below">Hours that do not add up</h3>{table(heads, lines, more=len(wrong) - LISTED)}'
