"""`make coverage`: which lines of the package the tests run, by room and for the modules below `LOW`.

Runs the whole suite under coverage.py, children included, and prints a table; `--write-docs` puts it into
docs/explain/planted-faults.md. There is no target: a line that runs is not a line that is checked, which is what the
planted faults are for. The exit code is that of the tests.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explain" / "planted-faults.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
#: Percent; a module below it is listed with its reason.
LOW: Final = 85.0
#: Why modules run less than `LOW` percent of their lines in the tests.
REASONS: Final[dict[str, str]] = {}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.coverage_report")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--processes", default=str(2 * (os.cpu_count() or 1)))
    parser.add_argument("tests", nargs="*", help="tests to run instead of all")
    told = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="restante-coverage-") as folder:
        environment = {**os.environ, "COVERAGE_FILE": str(Path(folder, "data"))}
        coverage = [sys.executable, "-m", "coverage"]
        pytest = ["-m", "pytest", "-m", "not chaos", "-n", told.processes, "--dist", "loadgroup", *told.tests]
        code = subprocess.run([*coverage, "run", *pytest], cwd=ROOT, env=environment).returncode
        subprocess.run([*coverage, "combine", "--quiet"], cwd=ROOT, env=environment, check=True)
        report = Path(folder, "report.json")
        subprocess.run([*coverage, "json", "--quiet", "-o", str(report)], cwd=ROOT, env=environment, check=True)
        text = table(json.loads(report.read_text())["files"])
    Console().print(text, markup=False)
    if told.write_docs:
        write(PAGE, text)
    return code


def table(files: dict[str, Any]) -> str:
    """Lines per room, then the modules below `LOW`."""
    rooms: dict[str, list[int]] = {}
    low: list[str] = []
    for path, found in sorted(files.items()):
        inside = path.partition("src/restante/")[2]
        room = inside.partition("/")[0] if "/" in inside else "(top level)"
        summary = found["summary"]
        sums = rooms.setdefault(room, [0, 0])
        sums[0] += summary["num_statements"]
        sums[1] += summary["covered_lines"]
        if summary["num_statements"] and summary["percent_covered"] < LOW:
            reason = REASONS.get(inside, "")
            low.append(f"| `{inside}` | {summary['num_statements']} | {summary['percent_covered']:.0f}% | {reason} |")
    lines = [
        f"Run on {datetime.datetime.now(datetime.UTC).date()}.",
        "",
        "| room | statements | run by tests |",
        "|---|---|---|",
    ]
    every = [sum(column) for column in zip(*rooms.values(), strict=True)]
    for room, (statements, covered) in [*sorted(rooms.items()), ("all", every)]:
        lines.append(f"| {room} | {statements:,} | {100 * covered / max(1, statements):.1f}% |")
    if low:
        lines += ["", f"| module below {LOW:.0f}% | statements | run | reason |", "|---|---|---|---|", *low]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    made, times = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", page.read_text(), flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{page} has the marks {BEGIN} and {END} {times} times, not once")
    page.write_text(made)


if __name__ == "__main__":
    sys.exit(main())
