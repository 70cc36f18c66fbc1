"""Writes a lake's report: one HTML page that needs nothing else, made from the gold tables without a Spark session.

It is written beside its place and then put there, so a reader never sees half of it. A table the lake has not got yet
is said to be missing in its section; a lake that is not there, or cannot be read, raises `RestanteError`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from restante.core.errors import RestanteError
from restante.spark.report import sections, tables
from restante.spark.report.charts import dated, moment, span
from restante.spark.report.findings import Finding, Level, findings, troubled
from restante.spark.report.load import gather, opened
from restante.spark.report.model import Axis, Figures

TITLE = "Restante: pipeline report"


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """What was written, and what it says: enough for a command line or an alarm."""

    path: Path
    size: int
    #: Begin and end of what it shows; None where the lake has nothing then.
    begin: datetime | None
    end: datetime | None
    #: Seconds of a bucket.
    step: int
    queues: int
    #: What is wrong or to be watched, the gravest first, as (queue or empty, sentence).
    wrong: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[str, str], ...]
    #: Whether the audit adds up; None where the lake has none.
    adds_up: bool | None
    #: Tables the lake has not got yet.
    missing: tuple[str, ...]


def write(
    lake: str,
    out: Path,
    *,
    title: str = TITLE,
    since: datetime | None = None,
    until: datetime | None = None,
    now: datetime | None = None,
) -> ReportSummary:
    """Writes the report of a lake, between two moments where given; `now` is when it is made."""
    made_at = now or datetime.now(UTC)
    figures = gather(opened(lake), since, until)
    found = findings(figures, min(made_at, until or made_at))
    body = _body(figures, found, title, f"Made on {dated(made_at)} UTC from the gold tables of {lake}.")
    page = _page(title, body)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RestanteError(f"cannot write the report to {out}: {error}") from error
    return _summary(figures, found, out)


def _summary(figures: Figures, found: list[Finding], out: Path) -> ReportSummary:
    axis = figures.axis
    audited = "audit" in figures.present and axis is not None
    return ReportSummary(
        path=out,
        size=out.stat().st_size,
        begin=moment(axis.begin) if axis else None,
        end=moment(axis.end) if axis else None,
        step=axis.step if axis else 0,
        queues=len(figures.queues),
        wrong=tuple((one.queue, one.text) for one in found if one.level is Level.WRONG),
        warnings=tuple((one.queue, one.text) for one in found if one.level is Level.WARNING),
        adds_up=not any(row.missing for row in figures.audit) if audited else None,
        missing=tuple(sorted(figures.known - figures.present)),
    )


def _body(figures: Figures, found: list[Finding], title: str, foot: str) -> str:
    axis = figures.axis
    if axis is None:
        words = "Nothing has happened in this span of time." if figures.present else "The lake has no gold tables yet."
        parts = [
            f'<section class="verdict" id="verdict"><h2>{words}</h2>'
            "<p>Run the pipeline, or choose another span of time.</p></section>"
        ]
        attributes = 'data-first="0" data-step="60" data-end="0" data-buckets="1"'
        about = ""
    else:
        page = sections.Page(figures, axis, found, troubled(figures, found))
        first = (sections.verdict, sections.tiles, sections.queues, sections.choice, sections.charts)
        lists = (tables.drain, tables.deaths, tables.failures, tables.consumers, tables.audit)
        parts = [part(page) for part in (*first, *lists)]
        attributes = (
            f'data-first="{axis.first}" data-step="{axis.step}" data-end="{axis.end}" data-buckets="{axis.count}"'
        )
        about = f"<p>{_about(axis, len(figures.queues))}</p>"
    return (
        f'<header class="top" id="top"><div><h1>{escape(title)}</h1>{about}</div>'
        f'<button id="theme" hidden></button></header><main {attributes}>{"".join(parts)}</main>'
        f"<footer>{escape(foot)} Percentiles of several minutes or kinds are merged from theirs, erring to the slow "
        "side. All times are UTC.</footer>"
    )


def _about(axis: Axis, queues: int) -> str:
    begin, end = moment(axis.begin), moment(axis.end)
    length, words = span(axis.end - axis.begin), f"{queues} queue{'s' * (queues != 1)}"
    return f"{dated(begin)} – {dated(end)} UTC ({length}), {words}, in steps of {span(axis.step)}"


def _page(title: str, body: str) -> str:
    """The page around its body; only the one script may run, whatever text has found its way in."""
    folder = resources.files("restante.spark.report")
    template, style, script = (
        folder.joinpath(f"report.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")
    )
    style = re.sub(r"\s+", " ", style)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(template).substitute(
        title=escape(title), hash=f"sha256-{digest}", style=style, body=body, script=script
    )
