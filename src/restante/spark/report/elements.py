"""The parts that sections of a report share: the page they are drawn for, marks, cells, tables.

Names of queues, kinds, errors and consumers are foreign text, so everything is escaped where it enters the HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from restante.spark.report.charts import Drawing, bar
from restante.spark.report.findings import Finding, Level
from restante.spark.report.formats import count, span
from restante.spark.report.model import Axis, Figures, QueueFigures

#: Queues that get charts of their own, those with the most serious findings first; each makes the page larger.
DETAILED = 30

MARKS = {Level.WRONG: "✕", Level.WARNING: "▲", Level.NOTE: "•", Level.FINE: "✓"}


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

    def row(self, queue: str, *cells: str) -> str:
        """A row of a table about a queue."""
        return f"<tr {self.mine(queue)}><th>{self.link(queue)}</th>{''.join(cells)}</tr>"

    def lacks(self, table: str) -> str:
        """The text to show instead of a section; empty if the lake has the table."""
        return "" if table in self.figures.present else f"The lake has no {table} table yet."


def mark(level: Level, words: str = "") -> str:
    text = f" {words}" if words else ""
    return f'<span class="mark {level.name.lower()}">{MARKS[level]}{text}</span>'


def number(value: float | None) -> str:
    """The cell of a count; a zero is pale."""
    return figure(count(value), pale=not value)


def figure(text: str, pale: bool = False) -> str:
    """The cell of a number that is formatted already."""
    return f'<td class="n{" zero" if pale else ""}">{text}</td>'


def cell(text: str) -> str:
    """The cell of a name or another text."""
    return f"<td>{escape(text)}</td>"


def error(error_class: str, part: float, colour: str) -> str:
    """The cells of an error and of its share as a bar."""
    return f'<td class="error">{escape(error_class) or "–"}</td><td class="wide">{bar(part, colour)}</td>'


def section(id: str, title: str, about: str, body: str = "", otherwise: str = "") -> str:
    """A section; without a body it says `otherwise`."""
    body = body or f'<p class="card none">{escape(otherwise)}</p>'
    return f'<section id="{id}"><h2>{title}</h2><p class="about">{about}</p>{body}</section>'


def table(heads: str, rows: Iterable[str], foot: str = "", more: int = 0, filtered: bool = True) -> str:
    """A table with its heads separated by |; > begins one of numbers, an empty one is of marks or charts."""
    head = "".join(map(_head, heads.split("|")))
    rest = f'<p class="more">and {count(more)} more</p>' if more > 0 else ""
    attribute = ' data-filtered=""' if filtered else ""
    return (
        f'<div class="table"{attribute}><p class="none for-none">No rows for this queue.</p><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>{foot}</table>{rest}</div>"
    )


def _head(title: str) -> str:
    if not title:
        return "<td></td>"  # a screen reader would announce an empty <th>
    return f'<th class="n">{title[1:]}</th>' if title.startswith(">") else f"<th>{title}</th>"


def sentences(findings: list[Finding]) -> str:
    """Findings as a list, each with its mark."""
    items = "".join(f"<li>{mark(finding.level)}<span>{escape(finding.text)}</span></li>" for finding in findings)
    return f'<ul class="sentences">{items}</ul>' if items else ""


def drained(queue: QueueFigures) -> str:
    """When the queue is empty, in words or as a duration."""
    return "–" if queue.drain is None else queue.drain.words or span(queue.drain.seconds)
