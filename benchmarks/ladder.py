"""Measures the ladder on RabbitMQ with classic rungs and with quorum rungs, in turns, on nodes of our own.

`python -m benchmarks.ladder [--quick] [--write-docs]` prints what retries and delayed publishes cost with either, how
late messages come, memory, and how many of those on the ladder are lost when the node is killed again and again. It
writes `benchmarks/results/ladder.json`. The exit code is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kombu import Connection
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.figures import Row, keep, show, write_docs
from restante import Unroutable
from restante.bus import BusClient
from restante.rabbitmq import Subscribed, TopologyOptions, topology
from restante.rabbitmq.declaration import counts, declare
from restante.rabbitmq.ladder import RUNG_TYPES, RungType
from tests.harness.rabbitmq import RabbitServer
from tests.rabbitmq.kills import killed_while_climbing

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "ladder.json"
PAGE = ROOT / "docs" / "explain" / "ladder-performance.md"
#: Row, comparison and bound.
BOUNDS: dict[str, tuple[str, float]] = {
    "publish, quorum against classic": (">=", 0.8),
    "retries, quorum against classic": (">=", 0.8),
    "quorum: lost when the broker is killed": ("<=", 0),
    "quorum: early": ("<=", 0),
    "classic: early": ("<=", 0),
}
#: Messages that climb down at once, and the delay by which they take five rungs.
CLIMBING, FIVE_RUNGS = 5000, 3.875
#: Messages published before their confirms are awaited.
BATCH = 500


def published(url: str, rungs: RungType, count: int, delay: float) -> float:
    """Publishes per second, one by one and each confirmed."""
    with Connection(url) as connection:
        options = TopologyOptions(rungs=rungs)
        declare(connection, topology("bench", [Subscribed("on_event", "bench.event")], options=options))
        connection.default_channel.queue_purge("bench.on_event")
    with BusClient(url, source="bench", rungs=rungs) as client:
        for _ in range(50):
            client.publish("bench.event", "x" * 150, delay=delay)
        began = time.perf_counter()
        for _ in range(count):
            client.publish("bench.event", "x" * 150, delay=delay)
        return count / (time.perf_counter() - began)


def retried(url: str, rungs: RungType, count: int) -> tuple[float, list[float]]:
    """Events per second that a worker fails and handles a second time, with all that belongs to it; and how late each
    second attempt comes, in seconds, of events that are published at leisure."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.touch()
        service = {
            "service": f"retried-{rungs}",
            "broker": url,
            "handlers": ["failing"],
            "delays": [1],
            "options": {"dedup": 0, "rabbitmq": {"rungs": rungs}, "max_attempts": 3},
        }
        environment = {**os.environ, "SERVICE": json.dumps(service), "LEDGER": str(ledger)}
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "tests.bus.service:bus",
                "worker",
                "-c",
                "2",
                "-l",
                "CRITICAL",
                "--without-gossip",
                "--without-mingle",
                "-n",
                f"{rungs}@bench",
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with BusClient(url, source="bench", rungs=rungs) as client:
                _greet(client)
                _wait(ledger, 2)
                slowly = 40
                for number in range(slowly):
                    client.publish("shop.order.slow", number)
                    time.sleep(0.05)
                _wait(ledger, 2 + 2 * slowly)
                began = time.time()
                client.publish_many([("shop.order.many", number) for number in range(count)])
                _wait(ledger, 2 + 2 * slowly + 2 * count)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
            with Connection(url) as connection:  # or the next would find a listener before its worker is there
                connection.default_channel.queue_delete(f"retried-{rungs}.failing")
        rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    many = [row["at"] for row in rows if row["topic"] == "shop.order.many"]
    tries: dict[str, list[float]] = {}
    for row in rows:
        if row["topic"] == "shop.order.slow":
            tries.setdefault(row["id"], []).append(row["at"])
    return count / (max(many) - began), [again - first - 1.0 for first, again in tries.values()]


def _greet(client: BusClient) -> None:
    """Publishes one event as soon as the worker has subscribed."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.publish("shop.order.warm", 0, unrouted="raise")
            return
        except Unroutable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _wait(ledger: Path, lines: int) -> None:
    deadline = time.monotonic() + 180
    while ledger.read_text().count("\n") < lines:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ledger.read_text().count(chr(10))} of {lines} lines")
        time.sleep(0.05)


def climbed(url: str, rungs: RungType) -> float:
    """Seconds from the last message's due time until all that took five rungs have come out."""
    options = TopologyOptions(rungs=rungs)
    queue = "climbed.on_event"
    with Connection(url) as connection:
        declare(connection, topology("climbed", [Subscribed("on_event", f"climbed.{rungs}")], options=options))
        connection.default_channel.queue_purge(queue)
        with BusClient(url, source="bench", rungs=rungs) as client:
            for _ in range(CLIMBING // BATCH):
                client.publish_many([(f"climbed.{rungs}", None)] * BATCH, delay=FIVE_RUNGS)
        due = time.monotonic() + FIVE_RUNGS
        while (found := counts(connection, [queue])[queue]) is None or found[0] < CLIMBING:
            time.sleep(0.02)
            if time.monotonic() > due + 120:
                raise TimeoutError(str(found))
        connection.default_channel.queue_purge(queue)
        return time.monotonic() - due


def memory(server: RabbitServer, rungs: RungType) -> float:
    """Kilobytes of an idle rung that was used before."""
    lines = server.control("list_queues", "name", "memory").splitlines()
    return statistics.median(int(line.split("\t")[1]) for line in lines if line.startswith(f"ladder:{rungs}.")) / 1024


def measure(quick: bool, progress: Progress) -> list[Row]:
    count, rounds = (200, 1) if quick else (1000, 3)
    step = progress.add_task("starting a node")
    found: dict[tuple[str, RungType], list[float]] = {}
    late: dict[RungType, list[float]] = {rungs: [] for rungs in RUNG_TYPES}
    kept: dict[RungType, float] = {}

    def note(name: str, rungs: RungType, value: float) -> None:
        found.setdefault((name, rungs), []).append(value)

    with RabbitServer() as server:
        for number in range(rounds):
            for rungs in RUNG_TYPES:
                progress.update(step, description=f"{rungs}: round {number + 1} of {rounds}")
                rate, times = retried(server.url, rungs, count)
                note("retried", rungs, rate)
                late[rungs] += times
                note("now", rungs, published(server.url, rungs, count, 0))
                note("later", rungs, published(server.url, rungs, count, 60))
                note("climbed", rungs, climbed(server.url, rungs))
        for rungs in RUNG_TYPES:
            kept[rungs] = memory(server, rungs)
    middle = {key: statistics.median(values) for key, values in found.items()}
    rows = []
    for name, key, unit, text in (
        ("publish", "now", "/s", "one by one, confirmed; goes by no rung"),
        ("publish with a delay", "later", "/s", "one by one, confirmed"),
        ("retries", "retried", "/s", "failed, held for a second, handled again; a worker of two processes"),
        ("late after five rungs", "climbed", "s", f"the last of {CLIMBING:,} that are due at once"),
    ):
        ours, theirs = middle[key, "quorum"], middle[key, "classic"]
        rows += [
            Row(f"classic: {name}", theirs, unit, text),
            Row(f"quorum: {name}", ours, unit),
            Row(f"{name}, quorum against classic", ours / theirs, "×"),
        ]
    for rungs in RUNG_TYPES:
        times = sorted(late[rungs])
        rows += [
            Row(f"{rungs}: early", sum(1 for one in times if one < 0), "", "retries after a second, on a quiet ladder"),
            Row(f"{rungs}: late p50", times[len(times) // 2] * 1000, "ms"),
            Row(f"{rungs}: late p99", times[int(len(times) * 0.99)] * 1000, "ms"),
            Row(f"{rungs}: memory per rung", kept[rungs], "kB", "idle"),
        ]
    kills = 3 if quick else 20
    for rungs in RUNG_TYPES:
        with RabbitServer() as server:
            said = lambda text: progress.update(step, description=text)  # noqa: E731 - one word for one place
            outcome = killed_while_climbing(server, rungs, 500 if quick else CLIMBING, kills, say=said)
        rows += [
            Row(
                f"{rungs}: lost when the broker is killed", outcome.lost, "", f"of {outcome.sent:,}, {kills} × kill -9"
            ),
            Row(f"{rungs}: came twice", outcome.doubled, ""),
        ]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and kills")
    parser.add_argument("--write-docs", action="store_true", help="put the table into the documentation")
    given = parser.parse_args()
    console = Console()
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        rows = measure(given.quick, progress)
    good = show("The ladder on RabbitMQ", rows, BOUNDS, console)
    keep(RESULTS, rows)
    if given.write_docs:
        write_docs(PAGE, rows, BOUNDS)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
