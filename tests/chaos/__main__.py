"""`make chaos`: every row of the fault matrix against real servers, one JSON line each, and a table in the end.

    python -m tests.chaos [--rows 1,5,20-25] [--write-docs]

Run it on a quiet machine: bounds of time are asserted here, multiplied by how much slower than usual the machine is.
The exit code is 1 when a row fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos import table
from tests.chaos.matrix import ROWS, Row
from tests.chaos.running import ROOT, Part, run_all, slowness
from tests.harness.servers import debian_binary

RESULTS = ROOT / "benchmarks" / "results" / "chaos.jsonl"


def chosen(text: str) -> list[Row]:
    """The rows that numbers and spans such as `1,5,20-25` name."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        try:
            numbers |= set(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise SystemExit(f"rows are numbers and spans such as 1,5,20-25, not {part!r}") from None
    known = {row.number: row for row in ROWS}
    if unknown := sorted(numbers - known.keys()):
        raise SystemExit(f"there is no row {unknown[0]}: the rows are 1 to {max(known)}")
    return [row for row in ROWS if not numbers or row.number in numbers]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", metavar="1,5,20-25")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into the guarantees and the README")
    told = parser.parse_args(words)
    if told.rows and told.write_docs:
        parser.error("--write-docs publishes a full run: leave --rows out")
    rows, slower = chosen(told.rows), slowness()
    console = Console(stderr=True)
    console.print(f"bounds of time are multiplied by {slower:.2f}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(rows))
        for result in run_all(rows, slower=slower, told=lambda parts: progress.update(task, description=files(parts))):
            results.append(result)
            sys.stdout.write(result.line() + "\n")
            sys.stdout.flush()
            progress.advance(task)
    results.sort(key=lambda result: result.row)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(f"{result.line()}\n" for result in results))
    failed = [result for result in results if result.verdict != "pass"]
    for result in failed:
        console.print(f"row {result.row} failed: {', '.join(result.failed) or 'no test passed'}")
    console.print(f"{len(results) - len(failed)} of {len(results)} rows passed")
    if told.write_docs:
        about = table.about(_servers())
        table.write(ROOT / "docs/explain/guarantees.md", table.whole(results, about))
        table.write(ROOT / "README.md", table.short(results, about))
    return 1 if failed else 0


def files(running: Iterable[Part]) -> str:
    """The files of parts, for the bar of progress."""
    return ", ".join(Path(part[0].partition("::")[0]).stem.removeprefix("test_") for part in running)


def _servers() -> dict[str, str]:
    """The versions of the servers that the tests start."""
    redis = subprocess.run([debian_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    found = {"Redis": redis.partition("v=")[2].split()[0]}
    for plugins in Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"):
        found["RabbitMQ"] = plugins.name.partition("-")[2]
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
