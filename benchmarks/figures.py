"""Figures with promised bounds: shown as a table, kept as JSON, and put between the marks of a page."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

#: Row, comparison (">=", "<=", or "within" of 1) and bound.
Bounds = Mapping[str, tuple[str, float]]
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


@dataclass
class Row:
    """One figure."""

    name: str
    value: float
    unit: str
    note: str = ""

    @property
    def shown(self) -> str:
        return f"{self.value:,.2f}" if self.value < 100 else f"{self.value:,.0f}"


def holds(row: Row, bounds: Bounds) -> bool | None:
    """Whether a promised bound is kept; None where none is promised."""
    if row.name not in bounds:
        return None
    word, bound = bounds[row.name]
    if word == "within":
        return abs(row.value - 1) <= bound
    return row.value >= bound if word == ">=" else row.value <= bound


def verdict(row: Row, bounds: Bounds) -> str:
    """The bound and whether it is kept, in a word."""
    kept = holds(row, bounds)
    if kept is None:
        return ""
    word, bound = bounds[row.name]
    return f"{'✓' if kept else '✗'} {word} {bound:,g}"


def show(title: str, rows: Sequence[Row], bounds: Bounds, console: Console) -> bool:
    """Prints the table; returns whether every bound is kept."""
    table = Table(title=title, title_justify="left")
    for heading in ("measure", "value", "unit", "bound", "note"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for row in rows:
        table.add_row(row.name, row.shown, row.unit, verdict(row, bounds), row.note)
    console.print(table)
    return all(holds(row, bounds) is not False for row in rows)


def keep(path: Path, rows: Sequence[Row], **about: str) -> None:
    """Writes the rows where the next run finds them."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine, **about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def kept(path: Path) -> list[Row]:
    """The rows of the run before."""
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def write_docs(page: Path, rows: Sequence[Row], bounds: Bounds) -> None:
    """Puts the figures between the page's marks."""
    lines = ["| measure | value | bound | note |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.shown} {row.unit} | {verdict(row, bounds)} | {row.note} |" for row in rows]
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}")
