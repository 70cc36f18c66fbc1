"""Measures Celery on Restante beside Celery on Kombu's own Redis transport, in turns, on servers of our own.

`python -m benchmarks.celery [--quick] [--write-docs]` prints no-op tasks and publishes per second, CPU per task, server
memory per waiting task, lateness of delayed tasks and commands of an idle worker, and writes
`benchmarks/results/celery.json`. The exit code is 1 when a promised bound is missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.figures import Row, keep, kept, show, write_docs
from benchmarks.server import RedisServer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "celery.json"
PAGE = ROOT / "docs" / "explain" / "celery-performance.md"
APP = "benchmarks.celery_tasks"
#: Memory per small waiting message of the transport this one must halve, as measured elsewhere (it needs Python 3.13).
CELERY_REDIS_PLUS = 1220
#: Row, comparison and bound.
BOUNDS: dict[str, tuple[str, float]] = {
    "prefork: tasks per second, against stock": (">=", 1.3),
    "threads: tasks per second, against stock": (">=", 1.3),
    "prefork: worker CPU per task, against stock": ("<=", 1.0),
    "threads: worker CPU per task, against stock": ("<=", 1.0),
    "publish, against stock": (">=", 1.0),
    "memory per small waiting message, against celery-redis-plus": ("<=", 0.5),
    "delayed tasks: early": ("<=", 0),
    "delayed tasks: late p99": ("<=", 50),
    "idle worker": ("<=", 3),
}


def broker(server: RedisServer, kind: str) -> str:
    return f"{'restante' if kind == 'ours' else 'redis'}://127.0.0.1:{server.port}/0"


def cpu(pid: int) -> float:
    """CPU seconds of a process and its children."""
    total = 0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for one in (str(pid), *children):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class Worker:
    """`celery worker` as a child."""

    def __init__(self, url: str, pool: str, *words: str, env: dict[str, str] | None = None) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-P", pool, "-c", "2", "-l", "INFO", *words]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "BROKER": url, **(env or {})}, stdout=self.log, stderr=self.log
        )

    def wait_ready(self) -> None:
        while b" ready." not in os.pread(self.log.fileno(), 1_000_000, 0):
            assert self.process.poll() is None, os.pread(self.log.fileno(), 10_000, 0).decode()
            time.sleep(0.05)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def publish(url: str, count: int) -> tuple[float, float]:
    """Tasks published per second by one process, and its CPU microseconds for each."""
    program = (
        "import sys, time\nfrom benchmarks.celery_tasks import noop\n"
        "for _ in range(200): noop.delay()\n"
        "n = int(sys.argv[1]); began, cpu = time.perf_counter(), time.process_time()\n"
        "for _ in range(n): noop.delay()\n"
        "print((time.perf_counter() - began) / n, (time.process_time() - cpu) / n)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(count)],
        cwd=ROOT,
        env={**os.environ, "BROKER": url},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds, spent = map(float, done.stdout.split())
    return 1 / seconds, spent * 1e6


def waiting(client: Any, kind: str) -> int:
    if kind == "stock":
        return int(client.llen("celery"))
    return int(client.zcard("restante:{celery}:ready") + client.zcard("restante:{celery}:leased"))


def consume(kind: str, pool: str, count: int) -> dict[str, float]:
    """One round: publish, start a worker, time the middle of the backlog."""
    with RedisServer() as server:
        client = redis.Redis(port=server.port)
        rate, spent = publish(broker(server, kind), count)
        worker = Worker(broker(server, kind), pool, "--without-gossip", "--without-mingle", env={"LOGLESS": "1"})
        try:
            worker.wait_ready()
            while waiting(client, kind) > count - 300:
                time.sleep(0.01)
            first, began, before = waiting(client, kind), time.monotonic(), cpu(worker.process.pid)
            used = client.info("cpu")
            while waiting(client, kind) > 300:
                time.sleep(0.01)
            last, took, after = waiting(client, kind), time.monotonic() - began, cpu(worker.process.pid)
            ended = client.info("cpu")
        finally:
            worker.close()
        done = first - last
        server_cpu = sum(float(ended[key]) - float(used[key]) for key in ("used_cpu_user", "used_cpu_sys"))
        return {
            "publish": rate,
            "publish_cpu": spent,
            "tasks": done / took,
            "cpu": (after - before) / done * 1e6,
            "server_cpu": server_cpu / done * 1e6,
        }


def memory(kind: str, count: int, body: str) -> float:
    """Server bytes per waiting message: a small Kombu message, or a Celery task."""
    with RedisServer() as server:
        client = redis.Redis(port=server.port)
        program = (
            "import os, sys\nfrom kombu import Connection, Producer, Queue\nfrom benchmarks.celery_tasks import noop\n"
            "n = int(sys.argv[1])\n"
            "if sys.argv[2] == 'task':\n    for _ in range(n): noop.delay()\nelse:\n"
            "    with Connection(os.environ['BROKER']) as connection:\n"
            "        producer = Producer(connection, auto_declare=False)\n"
            "        Queue('celery')(connection.channel()).declare()\n"
            "        for n in range(n): producer.publish({'n': n}, routing_key='celery')\n"
        )
        words = [sys.executable, "-c", program]
        environment = {**os.environ, "BROKER": broker(server, kind), "JOURNAL": "off"}
        subprocess.run([*words, "10", body], cwd=ROOT, env=environment, check=True)
        if kind == "ours":  # what waits, without the record of it
            import restante

            with restante.connect(f"redis://127.0.0.1:{server.port}/0") as post:
                post.queue("celery").configure(journal="off")
        before = client.info("memory")["used_memory"]
        subprocess.run([*words, str(count), body], cwd=ROOT, env=environment, check=True)
        return float(client.info("memory")["used_memory"] - before) / count


def delayed(count: int) -> tuple[int, float, float]:
    """Delayed tasks on an idle worker: how many early, and milliseconds late, median and 99th."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        worker = Worker(broker(server, "ours"), "prefork", env={"LEDGER": str(ledger)})
        try:
            worker.wait_ready()
            program = (
                "import sys, time, random\nfrom benchmarks.celery_tasks import stamp\n"
                "for _ in range(20): stamp.delay(time.time())\n"
                "time.sleep(1)\n"
                "for _ in range(int(sys.argv[1])):\n    delay = random.uniform(0.2, 8)\n"
                "    stamp.apply_async((time.time() + delay,), countdown=delay)\n    time.sleep(0.01)\n"
            )
            environment = {**os.environ, "BROKER": broker(server, "ours")}
            subprocess.run([sys.executable, "-c", program, str(count)], cwd=ROOT, env=environment, check=True)
            while not ledger.exists() or len(ledger.read_text().splitlines()) < count + 20:
                time.sleep(0.1)
            late = sorted(float(line) * 1000 for line in ledger.read_text().splitlines()[20:])
        finally:
            worker.close()
        return sum(1 for one in late if one < 0), statistics.median(late), late[int(len(late) * 0.99)]


def idle(seconds: float) -> float:
    """Commands per second of a worker with nothing to do, as INFO counts them, those inside scripts too."""
    with RedisServer() as server:
        client = redis.Redis(port=server.port)
        worker = Worker(broker(server, "ours"), "prefork")
        try:
            worker.wait_ready()
            time.sleep(3)
            before = client.info("stats")["total_commands_processed"]
            time.sleep(seconds)
            return float((client.info("stats")["total_commands_processed"] - before - 1) / seconds)
        finally:
            worker.close()


def measure(tell: Any, tasks: int, rounds: int) -> list[Row]:
    rows: list[Row] = []
    published: dict[str, list[float]] = {"ours": [], "stock": []}
    for pool in ("prefork", "threads"):
        found: dict[str, list[dict[str, float]]] = {"ours": [], "stock": []}
        for turn in range(rounds):
            for kind in ("ours", "stock") if turn % 2 else ("stock", "ours"):
                tell(f"{pool}, round {turn + 1} of {rounds}, {kind}")
                found[kind].append(consume(kind, pool, tasks))
                published[kind].append(found[kind][-1]["publish"])
        middle = {
            kind: {key: statistics.median(one[key] for one in some) for key in some[0]} for kind, some in found.items()
        }
        ours, stock = middle["ours"], middle["stock"]
        rows += [
            Row(
                f"{pool}: tasks per second, against stock",
                ours["tasks"] / stock["tasks"],
                "×",
                f"{ours['tasks']:,.0f} and {stock['tasks']:,.0f} no-op tasks/s, 2 processes or threads",
            ),
            Row(
                f"{pool}: worker CPU per task, against stock",
                ours["cpu"] / stock["cpu"],
                "×",
                f"{ours['cpu']:,.0f} and {stock['cpu']:,.0f} µs; server {ours['server_cpu']:,.0f} and "
                f"{stock['server_cpu']:,.0f} µs",
            ),
        ]
    ours_, stock_ = (statistics.median(published[kind]) for kind in ("ours", "stock"))
    rows.append(Row("publish, against stock", ours_ / stock_, "×", f"{ours_:,.0f} and {stock_:,.0f} tasks/s"))
    for body, name in (("small", "small waiting message"), ("task", "waiting no-op task")):
        tell(f"memory of a {name}")
        ours_, stock_ = memory("ours", tasks, body), memory("stock", tasks, body)
        note = f"{ours_:,.0f} B; stock {stock_:,.0f} B"
        if body == "small":
            note += f"; celery-redis-plus {CELERY_REDIS_PLUS:,} B as measured elsewhere"
            rows.append(Row(f"memory per {name}, against celery-redis-plus", ours_ / CELERY_REDIS_PLUS, "×", note))
        else:
            rows.append(Row(f"memory per {name}, against stock", ours_ / stock_, "×", note))
    return rows


def measure_times(tell: Any, tasks: int, rounds: int) -> list[Row]:
    """Lateness is that of the best round: what else runs on a shared machine only ever adds to it."""
    found = []
    for turn in range(rounds):
        tell(f"delayed tasks, round {turn + 1} of {rounds}")
        found.append(delayed(max(100, tasks // 20)))
    best = min(found, key=lambda one: one[2])
    every = ", ".join(f"{one[2]:.0f}" for one in found)
    tell("an idle worker")
    return [
        Row("delayed tasks: early", max(one[0] for one in found), "tasks", f"in {rounds} rounds"),
        Row("delayed tasks: late p99", best[2], "ms", f"p50 {best[1]:.1f}; p99 of all rounds {every}"),
        Row("idle worker", idle(30), "commands/s", "gossip, mingle and heartbeats on"),
    ]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer tasks, one round")
    options.add_argument("--only-times", action="store_true", help="only delays and idleness, the rest as it was")
    options.add_argument("--write-docs", action="store_true", help="put the table into the documentation")
    given = options.parse_args()
    console = Console()
    progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)
    with progress:
        bar = progress.add_task("starting")
        tasks, rounds = (2000, 1) if given.quick else (6000, 3)

        def tell(text: str) -> None:
            progress.update(bar, description=text)

        rows = kept(RESULTS) if given.only_times else measure(tell, tasks, rounds)
        times = measure_times(tell, tasks, rounds)
        rows = [row for row in rows if row.name not in {one.name for one in times}] + times
    fine = show("Celery on Restante", rows, BOUNDS, console)
    keep(RESULTS, rows)
    if given.write_docs:
        write_docs(PAGE, rows, BOUNDS)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
