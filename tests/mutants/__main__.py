"""`make mutants`: plants every fault of the catalogue in turn and says which test caught it.

    python -m tests.mutants [--room core] [--only TEXT] [--processes N] [--resume] [--write-docs]

In the end every test that caught a fault runs without one: if it fails then too, its faults do not count. Each outcome
is written down as it comes; `--resume` takes those of earlier runs, unless the faulty file or the tests of the fault
changed since. The exit code is 1 when fewer faults than `ENOUGH` are caught.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
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
from tests.mutants.planting import Fault, NotPlanted, locate
from tests.mutants.running import CAUGHT_BY, ROOT, Outcome, failing_without_fault, try_all

#: The share of faults that must be caught.
ENOUGH: Final = 0.98
#: One JSON line per outcome, with a digest of what it was found on.
RESULTS: Final = ROOT / "benchmarks" / "results" / "mutants.jsonl"
PAGE: Final = ROOT / "docs" / "explain" / "planted-faults.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--room", action="append", choices=sorted({fault.room for fault in FAULTS}))
    parser.add_argument("--only", metavar="TEXT", help="faults whose name or function contains this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--resume", action="store_true", help="take what earlier runs found, where nothing changed since"
    )
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
    if told.write_docs and len(chosen) < len(FAULTS):
        parser.error("--write-docs publishes a whole run: leave --room and --only out")
    console = Console()
    known = recorded() if told.resume else {}
    done = {fault: known[fault.name] for fault in chosen if fault.name in known}
    done |= {
        one.fault: one for one in _tried([fault for fault in chosen if fault not in done], told.processes, console)
    }
    outcomes = confirmed([done[fault] for fault in chosen], told.processes, console)
    enough = show(outcomes, console)
    if told.write_docs:
        write_page(PAGE, outcomes)
        caught_by = {one.fault.name: one.by for one in outcomes if one.caught}
        CAUGHT_BY.write_text(json.dumps(caught_by, indent=1, ensure_ascii=False) + "\n")
    return 0 if enough else 1


def digest(fault: Fault) -> str:
    """Identifies a fault, the file it is planted in and its tests. What else those use is not part of it."""
    try:
        planted = locate(fault, ROOT)[0].read_bytes()
    except NotPlanted:
        planted = b""
    files = [ROOT / word.partition("::")[0] for word in fault.tests if word.startswith("tests/")]
    texts = [file.read_bytes() for file in files if file.is_file()]
    return hashlib.sha256(b"\0".join([repr(fault).encode(), planted, *texts])).hexdigest()


def recorded() -> dict[str, Outcome]:
    """The outcomes of earlier runs that still hold, by name; of several, the last."""
    faults, outcomes = {fault.name: fault for fault in FAULTS}, {}
    for row in map(json.loads, RESULTS.read_text().splitlines() if RESULTS.exists() else ()):
        fault = faults.get(f"{row['room']}: {row['what']}")
        if fault is not None and row["digest"] == digest(fault):
            outcomes[fault.name] = Outcome(fault, row["verdict"], row["by"], row["seconds"])
    return outcomes


def _tried(chosen: Sequence[Fault], processes: int, console: Console) -> list[Outcome]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    outcomes: list[Outcome] = []
    RESULTS.parent.mkdir(exist_ok=True)
    with Progress(*columns, console=console) as progress:
        planted = progress.add_task("planted faults", total=len(chosen))
        for outcome in try_all(chosen, processes):
            outcomes.append(outcome)
            with RESULTS.open("a") as file:
                file.write(json.dumps(_line(outcome)) + "\n")
            progress.advance(planted)
            if not outcome.caught:
                progress.print(f"[red]{outcome.verdict}:[/] {outcome.fault.name} ({outcome.fault.where})")
    return outcomes


def confirmed(outcomes: Sequence[Outcome], processes: int, console: Console) -> list[Outcome]:
    """The same outcomes, without those whose test fails although no fault is planted."""
    console.print("running the tests that caught a fault without one")
    failing = failing_without_fault({one.by for one in outcomes if one.caught}, processes)
    return [
        replace(one, verdict="its test fails without it") if one.caught and one.by in failing else one
        for one in outcomes
    ]


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
        "digest": digest(fault),
    }


if __name__ == "__main__":
    sys.exit(main())
