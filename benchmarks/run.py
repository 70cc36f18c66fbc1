"""Runs the whole benchmark on a server of our own: Restante, the peers, and the bounds it promises to keep.

`python -m benchmarks.run [--quick] [--no-peers]` prints tables, writes `benchmarks/results/bench.json` and puts the
table into docs/explain/performance.md with `--write-docs`. The exit code is 1 when a promised bound is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.environments import environment
from benchmarks.limits import machine_load
from benchmarks.peers_run import measure_peer, run_peers
from benchmarks.server import RedisServer
from restante import bench
from restante.connecting import connect

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bench.json"
PAGE = ROOT / "docs" / "explain" / "performance.md"
#: Name of a row, what is compared ("ratio" or "value"), the comparison, and the promised bound.
BOUNDS: tuple[tuple[str, str, str, float], ...] = (
    ("send one by one", "ratio", ">=", 0.35),
    ("send in batches of 100", "ratio", ">=", 2.5),
    ("receive+ack one by one", "ratio", ">=", 0.25),
    ("receive+ack in batches of 100", "ratio", ">=", 1.3),
    ("latency p50 at 200/s", "value", "<=", 0.5),
    ("latency p99 at 200/s", "value", "<=", 3.0),
    ("server memory per waiting message, no journal", "value", "<=", 500),
    ("delayed: lateness p99", "value", "<=", 10),
    ("delayed: early", "value", "<=", 0),
    ("idle commands per consumer", "value", "<=", 1),
    ("redelivery after a lease ends, idle", "value", "<=", 200),
    ("redelivery after a lease ends, behind 10,000 leases and 1,000,000 ready", "value", "<=", 200),
    ("cost at 1,000,000 against 1,000", "value", "<=", 1.5),
    ("consume against the best acking peer", "value", ">=", 5),
)
#: Huey is left out of the best: it has no ack, so a crash loses what it holds.
NO_ACK = {"huey"}
#: Rounds in which Restante and the best peer take turns.
TURNS = 3


def against_best(server: RedisServer, peers: list[dict[str, Any]], step: bench.Step) -> bench.Row | None:
    """Consuming with a no-op handler, one process, in turns with the best peer that acks."""
    rates = {
        row["peer"]: row["value"]["per_second"]
        for row in peers
        if row["measure"] == "consume" and row.get("value") and row["peer"] not in NO_ACK
    }
    if not rates:
        return None
    best = max(rates, key=lambda peer: float(rates[peer]))
    ours, theirs = [], []
    for turn in range(TURNS):
        step(f"in turns with {best}, {turn + 1} of {TURNS}")
        server.flush()
        with connect(server.url, consumer="bench") as post, bench.scratch(post) as queue:
            bench._batches(queue, 20_000)
            started = time.perf_counter()
            bench._handle(queue, 20_000)
            ours.append(20_000 / (time.perf_counter() - started))
        server.flush()
        result = measure_peer(environment(best), best, "consume", server.url, 1.0)
        if result.get("value"):
            theirs.append(float(result["value"]["per_second"]))
    if not theirs:
        return None
    mine, peer = statistics.median(ours), statistics.median(theirs)
    detail = {"peer": best, "restante": mine, "theirs": peer}
    return bench.Row("consume against the best acking peer", mine / peer, "times", detail=detail)


def judged(rows: list[bench.Row]) -> list[dict[str, Any]]:
    """Every row with its bound, if it has one, and whether it is kept."""
    bounds = {name: (which, sign, bound) for name, which, sign, bound in BOUNDS}
    made = []
    for row in rows:
        entry = row.as_dict() | {"bound": None, "kept": None}
        if row.name in bounds:
            which, sign, bound = bounds[row.name]
            value = float(entry[which])
            entry["bound"] = f"{which} {sign} {bound:g}"
            entry["kept"] = value >= bound if sign == ">=" else value <= bound
        made.append(entry)
    return made


def table(entries: list[dict[str, Any]]) -> Table:
    """For people."""
    made = Table(title="Restante")
    for name in ("measure", "value", "unit", "× rb1", "server µs", "client µs", "promised", ""):
        made.add_column(name, justify="left" if name in ("measure", "unit", "promised", "") else "right")
    for entry in entries:
        cells = [f"{entry[key]:.2f}" if entry[key] is not None else "" for key in ("ratio", "server_us", "client_us")]
        kept = "" if entry["kept"] is None else "[green]kept" if entry["kept"] else "[red]missed"
        made.add_row(entry["name"], f"{entry['value']:,.2f}", entry["unit"], *cells, entry["bound"] or "", kept)
    return made


def markdown(entries: list[dict[str, Any]], peers: list[dict[str, Any]], about: str) -> str:
    """The tables as the documentation shows them."""
    lines = [about, "", "| measure | value | × rb1 | server / client CPU µs | promised |", "|---|---|---|---|---|"]
    for entry in entries:
        ratio = f"{entry['ratio']:.2f}" if entry["ratio"] is not None else ""
        cpu = f"{entry['server_us']:.1f} / {entry['client_us']:.1f}" if entry["server_us"] is not None else ""
        kept = "" if entry["kept"] is None else (" ✓" if entry["kept"] else " ✗")
        value = f"{entry['value']:,.2f} {entry['unit']}"
        lines.append(f"| {entry['name']} | {value} | {ratio} | {cpu} | {entry['bound'] or ''}{kept} |")
    measures = ("send", "send_bulk", "consume", "consume_best", "latency", "memory", "idle", "delayed", "recovery")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in peers:
        found.setdefault(row["peer"], {})[row["measure"]] = row
    if found:
        lines += ["", "| peer | " + " | ".join(measures) + " |", "|---" * (len(measures) + 1) + "|"]
        for peer, rows in sorted(found.items()):
            lines.append(f"| {peer} | " + " | ".join(_cell(rows.get(measure)) for measure in measures) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    value = row.get("value") if row else None
    if not isinstance(value, dict):
        return "–" if value is None else str(value)
    if "per_second" in value and "repeated" not in value and "ratio" not in value:
        return f"{value['per_second']:.1f}/s"
    if "per_second" in value:
        return f"{value['per_second']:,.0f}/s"
    if "p50_ms" in value:
        early = f" ({value['early']} early)" if value.get("early") else ""
        return f"{value['p50_ms']:,.1f} / {value['p99_ms']:,.1f} ms{early}"
    first = next(iter(value.values()))
    return f"{first:,.0f}" if isinstance(first, int | float) else str(first)


def write_docs(page: Path, text: str) -> None:
    """Puts a table between a page's two marks."""
    start, end = "<!-- bench:start -->", "<!-- bench:end -->"
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}\n{text}\n{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts, for a look")
    parser.add_argument("--no-peers", action="store_true", help="Restante alone")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into the documentation")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    load = machine_load()
    if load > 0.1:
        console.print(f"[yellow]others use {load:.0%} of this machine: figures will be noisy")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with RedisServer() as server:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("starting", total=None)

            def step(text: str) -> None:
                progress.update(task, description=text)

            rows = bench.run(server.url, quick=options.quick, step=step)
        peers = [] if options.no_peers else run_peers(quick=options.quick, console=console)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("in turns with the best peer", total=None)
            versus = against_best(server, peers, step) if peers else None
        if versus is not None:
            rows.append(versus)
        version = server.client.info("server")["redis_version"]
    entries = judged(rows)
    console.print(table(entries))
    about = (
        f"Redis {version}, Python {platform.python_version()}, {platform.machine()}, others used {load:.0%} of the "
        f"machine at the start; {time.strftime('%Y-%m-%d')}."
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"about": about, "rows": entries, "peers": peers}, indent=1))
    console.print(f"written to {RESULTS.relative_to(ROOT)}")
    if options.write_docs:
        write_docs(PAGE, markdown(entries, peers, about))
        write_docs(ROOT / "README.md", markdown([entry for entry in entries if entry["bound"]], [], about))
    missed = [entry["name"] for entry in entries if entry["kept"] is False]
    if missed:
        console.print(f"[red]missed: {', '.join(missed)}")
    return 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
