"""Removes dates from bronze and silver that are older than a pipeline keeps.

On failure: a crash in the middle of a removal leaves its folder in the state, and the next run finishes it first.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pyarrow.dataset as ds

from restante.spark.lake import Lake

_DATE = re.compile(r"/dt=(\d{4}-\d{2}-\d{2})$")


class Retention:
    """The retention of one lake: days of bronze and of silver to keep; 0 keeps all."""

    def __init__(self, lake: Lake, bronze_days: int, silver_days: int) -> None:
        self._lake = lake
        self._bronze_days = bronze_days
        self._days = {
            "bronze_compact": bronze_days,
            "silver/messages": silver_days,
            "silver/attempts": silver_days,
        }

    def is_removed(self, day: date) -> bool:
        """Whether bronze no longer keeps a date."""
        return bool(self._bronze_days) and day < _oldest(self._bronze_days)

    def run(self) -> int:
        """Removes the dates that are too old; returns how many folders it removed."""
        removed = 0
        if self._lake.state().removing:
            self._finish()
        for folder, days in self._days.items():
            for info in self._lake.listing(folder) if days else ():
                match = _DATE.search(info.path)
                if match and date.fromisoformat(match[1]) < _oldest(days):
                    self._begin(f"{folder}/dt={match[1]}", counted=folder == "bronze_compact")
                    self._finish()
                    removed += 1
        return removed

    def _begin(self, folder: str, *, counted: bool) -> None:
        """Records that a folder is being removed, and its lines, so that the audit does not count them as lost."""
        state = self._lake.state()
        if counted:
            lines = ds.dataset(self._lake.at(folder), filesystem=self._lake.files, format="parquet")
            rows = lines.to_table(columns=["queue", "incarnation", "position"]).group_by(["queue", "incarnation"])
            for row in rows.aggregate([("position", "count"), ("position", "min")]).to_pylist():
                key = f"{row['incarnation']} {row['queue']}"
                count, first = state.removed.get(key, [0, row["position_min"]])
                state.removed[key] = [count + row["position_count"], min(first, row["position_min"])]
        state.removing = folder
        self._lake.save(state)

    def _finish(self) -> None:
        state = self._lake.state()
        self._lake.remove(state.removing)
        state.removing = ""
        self._lake.save(state)


def _oldest(days: int) -> date:
    return datetime.now(UTC).date() - timedelta(days=days)
