"""The results of the fault matrix as tables, in `docs/explain/guarantees.md` and in short in the README."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.chaos.matrix import ROWS
from tests.chaos.running import Result

BEGIN, END = "<!-- faults:start -->", "<!-- faults:end -->"
HEAD: Final = (
    "row",
    "fault",
    "cases",
    "lost",
    "unexplained doubles",
    "phantoms",
    "early",
    "stale",
    "slowest recovery, s",
    "verdict",
)
_FAULTS = {row.number: row.fault for row in ROWS}


def whole(results: Iterable[Result], about: str) -> str:
    """Every row of a run."""
    lines = [about, "", f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for one in results:
        slowest = f"{one.max_recovery_s:.2f}" if one.max_recovery_s else ""
        counts = (_shown(count) for count in (one.n, one.lost, one.doubled, one.phantom, one.early, one.stale))
        lines.append(f"| {' | '.join((str(one.row), _FAULTS[one.row], *counts, slowest, one.verdict))} |")
    return "\n".join(lines)


def _shown(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def short(results: Iterable[Result], about: str) -> str:
    """The sums of a run."""
    found = list(results)
    passed = sum(one.verdict == "pass" for one in found)
    sums = (f"{sum(getattr(one, name) or 0 for one in found):,}" for name in ("n", "lost", "doubled", "early"))
    head = ("faults", "passed", "cases", "lost", "unexplained doubles", "early")
    cells = (str(len(found)), str(passed), *sums)
    return "\n".join((about, "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", f"| {' | '.join(cells)} |"))


def about(servers: Mapping[str, str]) -> str:
    """When, with which versions and on which machine a run was made."""
    day = datetime.datetime.now(datetime.UTC).date()
    packages = ", ".join(f"{name} {version(name)}" for name in ("restante", "redis", "celery", "kombu", "pyspark"))
    others = ", ".join(f"{name} {number}" for name, number in servers.items())
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"Last full run on {day}: {packages}; {others}; {machine}."


def write(page: Path, text: str) -> None:
    """Puts a table between a page's marks."""
    old = page.read_text()
    made, times = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", old, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{page} has the marks {BEGIN} and {END} {times} times, not once")
    page.write_text(made)
