"""Measure every peer on a server of our own and print one table; a failed measure stays a gap."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from statistics import median
from threading import Semaphore
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.environments import ROOT, environment, peer_names
from benchmarks.limits import machine_load, redis_limit
from benchmarks.server import RedisServer, dying_with_parent

RESULTS = Path(__file__).resolve().parent / "results" / "peers.json"
#: Measures that need the machine for themselves, in the order they run.
TIMED = ("send", "send_bulk", "consume", "consume_best", "latency", "delayed")
#: Measures whose figures hardly depend on load; each group has a server of its own per peer, and
#: all groups run side by side.
UNTIMED = (("idle", "recovery"), ("memory",))
#: Measures whose rate is also given as a ratio to redis-benchmark.
RATES = ("send", "send_bulk", "consume", "consume_best")
#: Fillings that run at once; more would only take the processors from the idle workers.
FILLINGS = 2
#: Seconds a measure may take beyond the time its handlers get.
GRACE = 40.0
#: Requests of one redis-benchmark run, and runs before each peer's measures; the median counts,
#: because single runs differ up to tenfold with the
#: processors on which client and server happen to run.
LIMIT_REQUESTS, LIMIT_RUNS = 5_000, 5

#: Messages per measure, enough for two or three seconds each.
COUNTS = {
    "send": 3_000,
    "send_bulk": 6_000,
    "consume": 4_000,
    "consume_best": 6_000,
    "latency": 1_000,
    "delayed": 200,
    "memory": 20_000,
    "idle": 1,
    "recovery": 1,
}
#: The slowest consumers get fewer messages, or they alone would fill the time.
CONSUME_COUNTS = {"rq": 800, "celery": 2_500, "arq": 2_500, "huey": 8_000}
#: How much more `--full` sends, and less `--quick`.
FULL, QUICK = 5.0, 0.2
#: Seconds to wait for the handlers of a measure, and with `--full`.
GIVE_UP, GIVE_UP_FULL = 30.0, 120.0

Result = dict[str, Any]


def count(peer: str, measure: str, scale: float) -> int:
    """Return how many messages a peer gets in a measure."""
    messages = COUNTS[measure]
    if measure.startswith("consume"):
        messages = CONSUME_COUNTS.get(peer, messages)
    return max(1, int(messages * scale))


def measure_peer(python: Path, peer: str, measure: str, url: str, scale: float) -> Result:
    """Run one measure of one peer in its environment and return what it printed."""
    give_up = GIVE_UP_FULL if scale > 1 else GIVE_UP
    command = [str(python), "-m", f"benchmarks.peers.{peer}", measure, "--url", url]
    command += ["--count", str(count(peer, measure, scale)), "--give-up", str(give_up)]
    failed: Result = {"peer": peer, "measure": measure, "value": None}
    # A copy without our own environment's variables, or the peer would import our packages.
    surroundings = {key: os.environ[key] for key in os.environ if key != "PYTHONPATH"}
    process = subprocess.Popen(
        # Never SIGKILL: it still has to end its workers.
        dying_with_parent(command, "TERM"),
        cwd=ROOT,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=give_up + GRACE)
    except subprocess.TimeoutExpired:
        return failed | {"error": f"not done after {give_up + GRACE:g} s"}
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    try:
        result: Result = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return failed | {"error": errors[-1500:] or "no output"}
    return result


def _timed(peers: dict[str, Path], scale: float, done: Callable[[str], None]) -> list[Result]:
    results = []
    with RedisServer() as own:
        for peer, python in peers.items():
            load = machine_load()
            limits = [redis_limit(own.port, count=LIMIT_REQUESTS) for _ in range(LIMIT_RUNS)]
            limit = median(limits)
            for measure in TIMED:
                own.flush()
                result = measure_peer(python, peer, measure, own.url, scale)
                result |= {"rb1": limit, "rb1_runs": limits, "load_before": load}
                if measure in RATES and result["value"]:
                    result["value"]["ratio"] = result["value"]["per_second"] / limit
                results.append(result)
                done(f"{peer} {measure}")
    return results


def _untimed(peers: dict[str, Path], scale: float, done: Callable[[str], None]) -> list[Result]:
    filling = Semaphore(FILLINGS)

    def run(server: RedisServer, job: tuple[str, tuple[str, ...]]) -> list[Result]:
        peer, measures = job
        results = []
        for measure in measures:
            server.flush()
            with filling if measure == "memory" else nullcontext():
                # Bytes per message do not change with more messages.
                size = min(1.0, scale) if measure == "memory" else scale
                results.append(measure_peer(peers[peer], peer, measure, server.url, size))
            done(f"{peer} {measure}")
        return results

    jobs = [(peer, measures) for measures in UNTIMED for peer in peers]
    with ExitStack() as stack:
        # The servers start in this thread, because they die with the thread that started them.
        servers = [stack.enter_context(RedisServer()) for _ in jobs]
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(jobs))))
        return [result for results in pool.map(run, servers, jobs) for result in results]


def run_peers(
    peers: list[str] | None = None,
    quick: bool = False,
    full: bool = False,
    console: Console | None = None,
) -> list[Result]:
    """Measure the peers (all unless named) and return one result per peer and measure."""
    console = console or Console(stderr=True)
    pythons = {peer: environment(peer, console) for peer in peers or peer_names()}
    scale = FULL if full else QUICK if quick else 1.0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        total = len(pythons) * (len(TIMED) + sum(map(len, UNTIMED)))
        bar = progress.add_task("peers", total=total)

        def done(description: str) -> None:
            progress.update(bar, advance=1, description=f"{description:<24}")

        results = _timed(pythons, scale, done)
        typical = median(result["rb1"] for result in results)
        for result in results:
            if result["value"] and "ratio" in result["value"]:
                # Steadier than the ratio to the peer's own few redis-benchmark runs.
                result["value"]["ratio_run"] = result["value"]["per_second"] / typical
        return results + _untimed(pythons, scale, done)


def _rate(value: Result) -> str:
    return f"{value['per_second']:,.0f} ({value['ratio']:.3f})"


def _times(value: Result) -> str:
    early = f" ({value['early']})" if "early" in value else ""
    return f"{value['p50_ms']:,.1f} / {value['p99_ms']:,.1f}{early}"


def _seconds(value: Result) -> str:
    seconds = value["seconds"]
    return seconds if isinstance(seconds, str) else f"{seconds:.1f}"


#: The columns of the table: measure, heading, how its value is written.
COLUMNS: tuple[tuple[str, str, Callable[[Result], str]], ...] = (
    ("send", "send /s (×rb1)", _rate),
    ("send_bulk", "bulk /s (×rb1)", _rate),
    ("consume", "consume /s (×rb1)", _rate),
    ("consume_best", "several processes", _rate),
    ("latency", "latency p50/p99 ms", _times),
    ("memory", "bytes", lambda value: f"{value['bytes']:,.0f}"),
    ("idle", "idle cmd/s", lambda value: f"{value['per_second']:.1f}"),
    ("delayed", "late p50/p99 ms (early)", _times),
    ("recovery", "kill -9, s", _seconds),
)


def table(results: list[Result]) -> Table:
    """Return the results as a table, a row per peer."""
    shown = Table(title="Peers at their own best settings, 200-byte payloads")
    shown.add_column("peer")
    shown.add_column("load before", justify="right")
    shown.add_column("rb1 /s", justify="right")
    for _, heading, _ in COLUMNS:
        shown.add_column(heading, justify="right")
    found = {(result["peer"], result["measure"]): result for result in results}
    for peer in dict.fromkeys(result["peer"] for result in results):
        cells = []
        for measure, _, write in COLUMNS:
            result = found.get((peer, measure), {})
            value = result.get("value")
            cells.append(write(value) if value else "failed" if "error" in result else "–")
        first = found[peer, TIMED[0]]
        shown.add_row(peer, f"{first['load_before']:.0%}", f"{first['rb1']:,.0f}", *cells)
    return shown


def main() -> None:
    """Measure, write the JSON file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="peers to measure; all unless named")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a fifth of the messages")
    size.add_argument("--full", action="store_true", help="five times the messages")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    unknown = set(arguments.peers) - set(peer_names())
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {peer_names()}")
    results = run_peers(arguments.peers or None, quick=arguments.quick, full=arguments.full)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    console = Console()
    console.print(table(results))
    for result in results:
        if "error" in result:
            console.print(f"{result['peer']} {result['measure']}: {result['error']}", markup=False)


if __name__ == "__main__":
    main()
