"""The lists of a report as HTML: drain, why messages died, why attempts failed, consumers, audit.

Names are other people's text: everything is escaped where it enters the HTML.
"""

from __future__ import annotations

import math
from html import escape

from restante.spark.report.charts import SHADES, bar, clock, count, percent, rate
from restante.spark.report.findings import Level
from restante.spark.report.model import AuditRow, ConsumerFigures
from restante.spark.report.sections import Page, cell, drained, mark, none, number, section, table

#: Rows of a list; what is left out is counted below it.
LISTED = 40


def drain(page: Page) -> str:
    """How long until each queue is empty."""
    about = (
        "Until nothing waits, at the rates of the last quarter of an hour. Growing: more comes than goes; "
        "keeps up: the same, but what waits is less than a minute of work."
    )
    drains = [(queue, queue.drain) for queue in page.queues if queue.drain is not None]
    if not drains:
        return section("drain", "Drain", about, none(page.lacks("drain") or "Nothing is known of the rates."))
    longest = max((one.seconds or 0.0 for _, one in drains), default=0.0) or 1.0
    rows = []
    for queue, one in drains:
        endless = one.growing
        part = 1.0 if endless else (one.seconds or 0.0) / longest
        rows.append(
            f"<tr {page.mine(queue.name)}><th>{page.link(queue.name)}</th>{cell(drained(queue))}"
            f'<td class="widest">{bar(part, "dead" if endless else "ready", endless)}</td>'
            f"{number(one.waiting)}{cell(f'{rate(one.arrival)}/s')}{cell(f'{rate(one.settle)}/s')}</tr>"
        )
    heads = ("Queue", ">Drained in", "", ">Waiting", ">Come", ">Go")
    return section("drain", "Drain", about, table(heads, rows))


def deaths(page: Page) -> str:
    """Dead causes with an example each."""
    about = "Causes by queue, kind and error, over the dates the messages were sent on; replayed ones are counted too."
    causes = page.figures.causes
    if not causes:
        return section("deaths", "Why messages died", about, none(page.lacks("causes") or "No message died."))
    most = causes[0].dead
    rows = [
        f"<tr {page.mine(one.queue)}><th>{page.link(one.queue)}</th>{number(one.dead)}"
        f'<td class="error">{escape(one.error_class) or "–"}</td><td class="wide">{bar(one.dead / most, "dead")}</td>'
        f'<td>{escape(one.kind)}</td><td>{escape(one.event)}</td><td class="n">{clock(one.first_at)}</td>'
        f'<td class="n">{clock(one.last_at)}</td><td><code>{escape(one.example_id)}</code></td></tr>'
        for one in causes[:LISTED]
    ]
    heads = ("Queue", ">Died", "Error", "", "Kind", "By", ">First", ">Last", "Example")
    return section("deaths", "Why messages died", about, table(heads, rows, more=len(causes) - LISTED))


def failures(page: Page) -> str:
    """Failed attempts by error."""
    about = "Attempts that were nacked, buried or whose lease ran out, whether or not a later one succeeded."
    failed = page.figures.failures
    if not failed:
        return section("failures", "Why attempts failed", about, none(page.lacks("retries") or "No attempt failed."))
    most = failed[0].failed
    rows = [
        f"<tr {page.mine(one.queue)}><th>{page.link(one.queue)}</th>{number(one.failed)}"
        f'<td class="error">{escape(one.error_class) or "–"}</td>'
        f'<td class="wide">{bar(one.failed / most, "retrying")}</td>'
        f"{number(one.nacked)}{number(one.expired)}{number(one.worst_attempts)}</tr>"
        for one in failed[:LISTED]
    ]
    heads = ("Queue", ">Failed", "Error", "", ">Nacked or buried", ">Lease ran out", ">Highest attempt")
    return section("failures", "Why attempts failed", about, table(heads, rows, more=len(failed) - LISTED))


def consumers(page: Page) -> str:
    """A strip of load for each consumer."""
    about = (
        "Time leases were held, by the minute they ended in, of the time that passed: above 100 % where a consumer "
        "holds several leases at once."
    )
    some = page.figures.consumers
    if not some:
        return section("consumers", "Consumers", about, none(page.lacks("consumers") or "No lease has ended."))
    # A few loads far above the others would make all others pale.
    loads = sorted(load for one in some for load in one.load if load > 0)
    high = max(1.0, math.ceil(loads[int(len(loads) * 0.98)])) if loads else 1.0
    seconds = page.axis.end - page.axis.begin
    items = [_consumer(page, one, high, seconds) for one in some[:LISTED]]
    shades = "".join(f'<i class="shade-{shade}"></i>' for shade in range(1, SHADES + 1))
    key = f'<span class="key">0 <span>{shades}</span> {percent(high)} or more</span>'
    head = f'<li class="head"><span>Consumer</span>{key}<span>Load</span><span>Leases</span><span>Failed</span></li>'
    axis = f'<li><b></b><div class="axis">{page.drawing.times()}</div></li>'
    left = len(some) - LISTED
    more = f'<p class="more">and {count(left)} more, less busy</p>' if left > 0 else ""
    body = (
        f'<div class="card" data-filtered=""><p class="none for-none">Nobody took messages of this queue.</p>'
        f'<ol class="consumers">{head}{"".join(items)}{axis}</ol>{more}</div>'
    )
    return section("consumers", "Consumers", about, body)


def _consumer(page: Page, one: ConsumerFigures, high: float, seconds: float) -> str:
    name, queues = one.name or "(unnamed)", sorted(one.queues)
    quiet = "" if one.failed else ' class="zero"'
    return (
        f"<li {page.mine(*queues)}>"
        f'<b title="{escape(name)}: {escape(", ".join(queues))}">{escape(name)}</b>'
        f"{page.drawing.strip(name, one.load, high)}<span>{percent(one.busy_seconds / seconds)}</span>"
        f"<span>{count(one.leases)}</span><span{quiet}>{percent(one.failed / max(one.leases, 1))}</span></li>"
    )


def audit(page: Page) -> str:
    """Whether every message sent has a fate, by queue, and the hours in which that fails."""
    about = (
        "Conservation: sent = acked + dead + expired + deleted + waiting, by the hour messages were sent in. Without "
        "sent event: seen in the lake, but sent before it began."
    )
    rows = page.figures.audit
    if not rows:
        return section("audit", "Audit", about, none(page.lacks("audit") or "No message was sent."))
    wrong = [row for row in rows if row.missing]
    sent, off = count(sum(row.sent for row in rows)), count(sum(abs(row.missing) for row in wrong))
    said = (
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
    return section("audit", "Audit", about, said + table(heads, lines, foot) + _hours(page, wrong))


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
    heads = ("Queue", ">Hour", ">Missing", ">Sent", ">Acked", ">Dead", ">Expired", ">Deleted", ">Waiting",
             ">Without sent event")  # fmt: skip
    return f'<h3 class="below">Hours that do not add up</h3>{table(heads, lines, more=len(wrong) - LISTED)}'
