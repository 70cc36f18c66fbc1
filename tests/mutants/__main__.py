"""`make mutants`: plants every fault of the catalogue in turn and says which test caught it.

    python -m tests.mutants [--room core] [--only TEXT] [--processes N] [--write-docs]

First the closest tests run without a fault: what fails then proves nothing, and its faults do not count. The exit code
is 1 when fewer faults than `ENOUGH` are caught or a room has none.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.mutants.catalogue import FAULTS
from tests.mutants.planting import Fault
from tests.mutants.running import ROOT, Outcome, try_all, without_fault

#: The share of faults that must be caught.
ENOUGH: Final = 0.98
RESULTS: Final = ROOT / "benchmarks" / "results" / "mutants.json"
PAGE: Final = ROOT / "docs" / "explain" / "planted-faults.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--room", action="append", choices=sorted({fault.room for fault in FAULTS}))
    parser.add_argument("--only", metavar="TEXT", help="faults whose name or function contains this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")
    told = parser.parse_args(words)
    chosen = [
        fault
        for fault in FAULTS
        if (not told.room or fault.room in told.room)
        and (not told.only or told.only in fault.name or told.only in fault.where)
    ]
    if not chosen:
        parser.error("no fault is named so")
    console = Console()
    outcomes = _tried(chosen, told.processes, console)
    enough = show(outcomes, console)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([_line(one) for one in outcomes], indent=1) + "\n")
    if told.write_docs:
        write_page(PAGE, outcomes)
    return 0 if enough else 1


def _tried(chosen: Sequence[Fault], processes: int, console: Console) -> list[Outcome]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    outcomes: list[Outcome] = []
    with Progress(*columns, console=console) as progress:
        sound = progress.add_task("tests without a fault", total=len({fault.tests for fault in chosen}))
        broken = set()
        for tests, passed in without_fault({fault.tests for fault in chosen}, processes):
            progress.advance(sound)
            if not passed:
                broken.add(tests)
                progress.print(f"[red]fails without a fault:[/] {' '.join(tests)}")
        planted = progress.add_task("planted faults", total=len(chosen))
        for outcome in try_all(chosen, processes):
            if outcome.fault.tests in broken:
                outcome = replace(outcome, verdict="its tests fail without it")
            outcomes.append(outcome)
            progress.advance(planted)
            if not outcome.caught:
                progress.print(f"[red]{outcome.verdict}:[/] {outcome.fault.name} ({outcome.fault.where})")
    order = {fault: place for place, fault in enumerate(chosen)}
    return sorted(outcomes, key=lambda outcome: order[outcome.fault])


def show(outcomes: Sequence[Outcome], console: Console) -> bool:
    """Prints what caught each fault and the totals per room; returns whether enough were caught."""
    table = Table(title="Planted faults", title_justify="left")
    for heading in ("room", "fault", "verdict", "caught by", "s"):
        table.add_column(heading, justify="right" if heading == "s" else "left", overflow="fold")
    for one in outcomes:
        verdict = one.verdict if one.caught else f"[red]{one.verdict}[/]"
        table.add_row(one.fault.room, one.fault.what, verdict, one.by.rpartition("::")[2], f"{one.seconds:.0f}")
    console.print(table)
    for room, caught, of in totals(outcomes):
        console.print(f"{room:<10} {caught:>4} of {of}")
    caught = sum(one.caught for one in outcomes)
    console.print(f"{'all':<10} {caught:>4} of {len(outcomes)}")
    return caught >= ENOUGH * len(outcomes)


def totals(outcomes: Sequence[Outcome]) -> list[tuple[str, int, int]]:
    """Per room: how many were caught, of how many."""
    rooms = dict.fromkeys(one.fault.room for one in outcomes)
    found = {room: [one.caught for one in outcomes if one.fault.room == room] for room in rooms}
    return [(room, sum(caught), len(caught)) for room, caught in found.items()]


def write_page(page: Path, outcomes: Sequence[Outcome]) -> None:
    """Puts the tables between the page's marks."""
    lines = [f"Run on {datetime.date.today().isoformat()}.", "", "| room | caught | planted |", "|---|---|---|"]
    lines += [f"| {room} | {caught} | {of} |" for room, caught, of in totals(outcomes)]
    lines += [f"| all | {sum(one.caught for one in outcomes)} | {len(outcomes)} |", ""]
    lines += ["| room | fault | verdict | caught by |", "|---|---|---|---|"]
    lines += [
        f"| {one.fault.room} | {one.fault.what} | {one.verdict} | {f'`{_test(one)}`' if one.caught else ''} |"
        for one in outcomes
    ]
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text("\n".join([head + BEGIN, *lines, END]) + rest.partition(END)[2])


def _test(outcome: Outcome) -> str:
    file, _, name = outcome.by.partition("::")
    return f"{file}: {name.partition('[')[0].rpartition('::')[2]}"


def _line(outcome: Outcome) -> dict[str, object]:
    fault = outcome.fault
    return {
        "room": fault.room,
        "what": fault.what,
        "where": fault.where,
        "verdict": outcome.verdict,
        "by": outcome.by,
        "seconds": round(outcome.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
