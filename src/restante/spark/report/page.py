"""Writes a lake's report: one self-contained HTML page, drawn from the gold tables without a Spark session.

The page is written to a temporary file and renamed, so a reader never sees half of it. A section whose table the lake
does not have yet says so. On failure: a lake that does not exist or cannot be read raises `RestanteError`.
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
from restante.spark.report import panels, summary, tables
from restante.spark.report.elements import Page
from restante.spark.report.findings import Finding, Level, findings, troubled
from restante.spark.report.formats import dated, moment, span
from restante.spark.report.load import load_figures, open_lake
from restante.spark.report.model import Axis, Figures

TITLE = "Restante: pipeline report"


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """The written file and its main results, for a command line or an alert."""

    path: Path
    size: int
    #: Start and end of the period it shows; None if the lake has no event in it.
    begin: datetime | None
    end: datetime | None
    #: Seconds per bucket.
    step: int
    queues: int
    #: Findings, the most serious first, as (queue or empty, sentence).
    wrong: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[str, str], ...]
    #: Whether the audit adds up; None if the lake has no audit.
    adds_up: bool | None
    #: Tables that the lake does not have yet.
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
    """Writes the report of a lake, of all events or of those between `since` and `until`."""
    written_at = now or datetime.now(UTC)
    figures = load_figures(open_lake(lake), since, until)
    results = findings(figures, min(written_at, until or written_at))
    body = _body(figures, results, title, f"Written on {dated(written_at)} UTC from the gold tables of {lake}.")
    page = _page(title, body)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RestanteError(f"cannot write the report to {out}: {error}") from error
    return _summary(figures, results, out)


def _summary(figures: Figures, results: list[Finding], out: Path) -> ReportSummary:
    axis = figures.axis
    audited = "audit" in figures.present and axis is not None
    return ReportSummary(
        path=out,
        size=out.stat().st_size,
        begin=moment(axis.begin) if axis else None,
        end=moment(axis.end) if axis else None,
        step=axis.step if axis else 0,
        queues=len(figures.queues),
        wrong=tuple((result.queue, result.text) for result in results if result.level is Level.WRONG),
        warnings=tuple((result.queue, result.text) for result in results if result.level is Level.WARNING),
        adds_up=not any(row.missing for row in figures.audit) if audited else None,
        missing=tuple(sorted(figures.known - figures.present)),
    )


def _body(figures: Figures, results: list[Finding], title: str, foot: str) -> str:
    axis = figures.axis
    if axis is None:
        words = "There are no events in this period." if figures.present else "The lake has no gold tables yet."
        parts = [
            f'<section class="verdict" id="verdict"><h2>{words}</h2>'
            "<p>Run the pipeline, or choose another period.</p></section>"
        ]
        attributes = 'data-first="0" data-step="60" data-end="0" data-buckets="1"'
        about = ""
    else:
        page = Page(figures, axis, results, troubled(figures, results))
        first = (summary.verdict, summary.tiles, summary.queues, panels.choice, panels.panels)
        lists = (tables.drain, tables.deaths, tables.failures, tables.consumers, tables.audit)
        parts = [part(page) for part in (*first, *lists)]
        attributes = (
            f'data-first="{axis.first}" data-step="{axis.step}" data-end="{axis.end}" data-buckets="{axis.count}"'
        )
        about = f"<p>{_about(axis, len(figures.queues))}</p>"
    return (
        f'<header class="top" id="top"><div><h1>{escape(title)}</h1>{about}</div>'
        f'<button id="theme" hidden></button></header><main {attributes}>{"".join(parts)}</main>'
        f"<footer>{escape(foot)} Percentiles over several minutes or kinds are merged from those of each, and may "
        "be slightly too high. All times are UTC.</footer>"
    )


def _about(axis: Axis, queues: int) -> str:
    begin, end = moment(axis.begin), moment(axis.end)
    length, words = span(axis.end - axis.begin), f"{queues} queue{'s' * (queues != 1)}"
    return f"{dated(begin)} – {dated(end)} UTC ({length}), {words}, in steps of {span(axis.step)}"


def _page(title: str, body: str) -> str:
    """The whole page; its policy allows only its own script to run, whatever text the body contains."""
    folder = resources.files("restante.spark.report")
    template, style, script = (
        folder.joinpath(f"report.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")
    )
    style = re.sub(r"\s+", " ", style)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(template).substitute(
        title=escape(title), hash=f"sha256-{digest}", style=style, body=body, script=script
    )
