"""Reports which lines of each journal a lake holds: where they begin, and how many are missing in between.

Each refresh counts the lines of its new batches, so the result does not depend on what Redis still has.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.dataset as ds

from restante.core.errors import NotFound
from restante.spark.lake import Lake, State


@dataclass(frozen=True, slots=True)
class Coverage:
    """The lines of one journal in a lake."""

    queue: str
    incarnation: int
    #: Numbers of the first and the last line.
    first: int
    last: int
    #: How many lines the lake has taken in.
    lines: int

    @property
    def before(self) -> int:
        """Journal lines before the lake's first."""
        return self.first - 1

    @property
    def missing(self) -> int:
        """Lines between the first and the last that the lake lacks."""
        return self.last - self.first + 1 - self.lines

    @property
    def whole(self) -> bool:
        return not self.before and not self.missing

    def sentences(self) -> list[str]:
        """What the lake lacks of the journal, in words."""
        sentences = []
        if self.before:
            lines = "line was" if self.before == 1 else f"{self.before:,} lines were"
            sentences.append(
                f"The lake begins at line {self.first:,}: the {lines} trimmed from the journal before the pipeline "
                "registered with it."
            )
        if self.missing:
            lines = "journal line is" if self.missing == 1 else f"{self.missing:,} journal lines are"
            sentences.append(f"{lines[0].upper()}{lines[1:]} missing between {self.first:,} and {self.last:,}.")
        return sentences


def coverage(state: State) -> list[Coverage]:
    """The coverage of every journal in the lake, by queue and then by age."""
    journals = []
    for key, (first, last, lines) in state.journals.items():
        incarnation, _, queue = key.partition(" ")
        journals.append(Coverage(queue, int(incarnation), first, last, lines))
    return sorted(journals, key=lambda journal: (journal.queue, journal.incarnation))


def count_lines(lake: Lake, state: State) -> bool:
    """Counts the lines of new batches into the state; returns whether there were any. The caller saves the state."""
    if state.counted < state.compacted:
        # A lake written by a version that did not count lines.
        state.journals = {key: [first, first + count - 1, count] for key, (count, first) in state.removed.items()}
        try:
            _add(state, lake.journal())
        except NotFound:
            pass  # retention has removed all of it
        state.counted = max([state.compacted, *lake.batches()])
        return True
    fresh = [number for number in lake.batches() if number > state.counted]
    for number in fresh:
        _add(state, ds.dataset(lake.at("bronze", f"batch={number}"), filesystem=lake.files, format="parquet"))
        state.counted = number
    return bool(fresh)


def _add(state: State, rows: ds.Dataset) -> None:
    journals = rows.to_table(columns=["queue", "incarnation", "position"]).group_by(["queue", "incarnation"])
    for row in journals.aggregate([("position", "min"), ("position", "max"), ("position", "count")]).to_pylist():
        key = f"{row['incarnation']} {row['queue']}"
        first, last, lines = state.journals.get(key, [row["position_min"], 0, 0])
        state.journals[key] = [
            min(first, row["position_min"]),
            max(last, row["position_max"]),
            lines + row["position_count"],
        ]
