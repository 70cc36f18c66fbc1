"""Measures the bus beside plain Celery on the same broker, in turns, on servers of our own.

`python -m benchmarks.bus [--quick] [--write-docs]` prints publishes per second, round trips of calls and how late
retries come, on Redis and on RabbitMQ, and writes `benchmarks/results/bus.json`. The exit code is 1 when a bound is
missed.
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

import amqp
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.figures import Row, keep, show, write_docs
from benchmarks.server import RedisServer
from tests.harness.rabbitmq import RabbitServer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bus.json"
PAGE = ROOT / "docs" / "explain" / "bus-performance.md"
#: Row, comparison and bound. One confirmed publish after the other has no bound against an unconfirmed `send_task`: it
#: waits for the broker's disk each time. Its bounds are `send_task` with confirms, and a batch against the unconfirmed.
BOUNDS: dict[str, tuple[str, float]] = {
    "Redis: publish, against send_task": (">=", 1.0),
    "RabbitMQ: publish with confirms, against send_task with confirms": (">=", 1.0),
    "Redis: call p50, against Celery's RPC": ("<=", 1.2),
    "RabbitMQ: call p50, against Celery's RPC": ("<=", 1.2),
    "RabbitMQ: publish_many with confirms, against send_task": (">=", 1.0),
    "RabbitMQ: publish in a batch, against send_task": (">=", 1.5),
    "RabbitMQ: a batch and three killed brokers, lost": ("<=", 0),
    "Redis: retries, early": ("<=", 0),
    "RabbitMQ: retries, early": ("<=", 0),
    "Redis: retries, longest over its policy": ("<=", 20),
    "RabbitMQ: retries, longest over its policy": ("<=", 20),
}

_PUBLISH = """
import sys, time
from benchmarks.bus_tasks import bus, noop, plain
kind, count, confirms = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
data = {"order": 42, "text": "x" * 150}
if kind == "many":
    began = time.perf_counter()
    for _ in range(count // 100): bus.publish_many([("bench.event", data)] * 100)
    print(count / (time.perf_counter() - began)); sys.exit()
if kind == "batch":
    with bus.batch():
        for _ in range(100): bus.publish("bench.event", data)
    began = time.perf_counter()
    with bus.batch():
        for _ in range(count): bus.publish("bench.event", data)
    print(count / (time.perf_counter() - began)); sys.exit()
if kind == "bus":
    send = lambda: bus.publish("bench.event", data)
else:
    if confirms:
        plain.conf.broker_transport_options = {"confirm_publish": True}
    send = lambda: plain.send_task("plain.noop", (data,), ignore_result=True)
for _ in range(100): send()
began = time.perf_counter()
for _ in range(count): send()
print(count / (time.perf_counter() - began))
"""
_CALL = """
import sys, time
from benchmarks.bus_tasks import bus, echo
kind, count = sys.argv[1], int(sys.argv[2])
data = {"order": 42, "text": "x" * 150}
call = (lambda: bus.call("bench.call", data)) if kind == "bus" else (lambda: echo.delay(data).get())
times = []
for number in range(count + 50):
    began = time.perf_counter()
    assert call() == data
    if number >= 50: times.append(time.perf_counter() - began)
import json; print(json.dumps(times))
"""


class Worker:
    """`celery worker` as a child."""

    def __init__(self, app: str, environment: dict[str, str], *words: str) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            f"benchmarks.bus_tasks:{app}",
            "worker",
            "-c",
            "2",
            "-l",
            "WARNING",
            "-n",
            f"{app}@bench",
            "--without-gossip",
            "--without-mingle",
            *words,
        ]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=self.log, stderr=self.log
        )

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def told(program: str, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def declared(environment: dict[str, str]) -> None:
    told("from benchmarks.bus_tasks import bus; bus.declare(); bus.close()", environment)


def publishing(
    environment: dict[str, str], count: int, rounds: int, kinds: list[tuple[str, bool]]
) -> list[list[float]]:
    """Publishes per second of each kind, for each of some rounds in turns."""
    declared(environment)
    found: list[list[float]] = [[] for _ in kinds]
    for _ in range(rounds):
        for place, (kind, confirms) in enumerate(kinds):
            found[place].append(float(told(_PUBLISH, environment, kind, str(count), str(int(confirms)))))
    return found


def against(ours: list[float], theirs: list[float]) -> float:
    """How many times as fast, the median over rounds: a machine that is busy for a while slows both of a round."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


_BATCH = """
import os, sys
from restante.bus import BusClient
with BusClient(os.environ["BROKER"], patience=120) as client, client.batch():
    for number in range(int(sys.argv[1])): print(client.publish("bench.event", number).id, flush=True)
"""


def killed(rabbit: RabbitServer, environment: dict[str, str], count: int, kills: int) -> int:
    """Events of a batch that are not in their queue after the broker was killed in the middle, several times."""
    told(_CLEAR, environment)
    rabbit.write_down()
    publisher = subprocess.Popen(
        [sys.executable, "-c", _BATCH, str(count)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert publisher.stdout is not None
    ids = []
    for number, line in enumerate(publisher.stdout):
        ids.append(line.strip())
        if number and number % (count // (kills + 1)) == 0 and number // (count // (kills + 1)) <= kills:
            rabbit.kill()
            rabbit.start()
    if publisher.wait(300) or len(ids) != count:
        raise RuntimeError("the publisher of a batch ended with an error")
    with amqp.Connection(f"127.0.0.1:{rabbit.port}") as connection:
        channel = connection.channel()
        got = iter(lambda: channel.basic_get("bench.handled", no_ack=True), None)
        there = {message.properties["message_id"] for message in got}
    return len(set(ids) - there)


_CLEAR = """
from benchmarks.bus_tasks import bus, plain
bus.declare()
for app, queue in ((bus, "bench.handled"), (plain, "plain")):
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge(queue)
bus.close()
"""


def calling(environment: dict[str, str], count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round trip, by kind; both workers are there all the time, idle while the other is asked."""
    times: dict[str, list[float]] = {"bus": [], "plain": []}
    told(_CLEAR, environment)  # what was published before must not keep the workers busy meanwhile
    workers = [Worker("bus", environment), Worker("plain", environment)]
    try:
        time.sleep(6)
        for _ in range(rounds):
            for kind in times:
                times[kind] += json.loads(told(_CALL, environment, kind, str(count)))
    finally:
        for worker in workers:
            worker.close()
    return times


def late(environment: dict[str, str], count: int) -> tuple[int, float, float, float]:
    """Retries after 1, 2 and 4 s, from the failure to the next start: early ones, ms late p50 and p99, % over."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        options = {"store": environment["STORE"]} if "STORE" in environment else {}
        service = {
            "service": "late",
            "broker": environment["BROKER"],
            "handlers": ["failing"],
            "delays": [1, 2, 4],
            "options": options,
        }
        env = {**environment, "SERVICE": json.dumps(service), "LEDGER": str(ledger)}
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
            ],
            cwd=ROOT,
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(5)
            program = (
                "import sys, time\nfrom restante.bus import BusClient\nfrom os import environ\n"
                "client = BusClient(environ['BROKER'])\n"
                "for n in range(int(sys.argv[1])): client.publish('shop.order.late', n); time.sleep(0.05)\n"
            )
            told(program, env, str(count))
            deadline = time.monotonic() + 30
            while ledger.read_text().count("\n") < count * 4 and time.monotonic() < deadline:
                time.sleep(0.1)
            rows = [json.loads(line) for line in ledger.read_text().splitlines()]
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(20)
    by_id: dict[str, list[float]] = {}
    for row in rows:
        by_id.setdefault(row["id"], []).append(row["at"])
    over = [
        ((after - before - wanted) * 1000, (after - before) / wanted * 100 - 100)
        for tries in by_id.values()
        for before, after, wanted in zip(tries, tries[1:], (1, 2, 4), strict=False)
    ]
    over.sort()
    late = [one for one, _ in over]
    return sum(1 for one in late if one < 0), late[len(late) // 2], late[int(len(late) * 0.99)], max(s for _, s in over)


def measure(quick: bool, progress: Progress) -> list[Row]:
    rows: list[Row] = []
    count, rounds = (500, 1) if quick else (2000, 3)
    calls = 200 if quick else 500
    step = progress.add_task("starting servers")

    def say(text: str) -> None:
        progress.update(step, description=text)

    with RedisServer() as redis, RabbitServer() as rabbit:
        address = f"127.0.0.1:{redis.port}/0"
        on_redis = {"BROKER": f"restante://{address}", "PLAIN": f"redis://{address}", "BACKEND": f"redis://{address}"}
        on_rabbit = {"BROKER": rabbit.url, "STORE": f"redis://{address}"}
        without = {"BROKER": rabbit.url}
        say("Redis: publishing")
        middle = statistics.median
        ours, stock, batch = publishing(on_redis, count, rounds, [("bus", False), ("plain", False), ("batch", False)])
        rows += [
            Row("Redis: publish", middle(ours), "/s", "one subscription, one process"),
            Row(
                "Redis: publish, against send_task",
                against(ours, stock),
                "×",
                f"Celery on its own transport: {middle(stock):,.0f}/s",
            ),
            Row("Redis: publish in a batch", middle(batch), "/s"),
            Row("Redis: publish in a batch, against send_task", against(batch, stock), "×"),
        ]
        say("RabbitMQ: publishing")
        kinds = [("bus", True), ("plain", False), ("plain", True), ("many", True), ("batch", True)]
        ours, them, sure, many, batch = publishing(without, count, rounds, kinds)
        journalled, noted = publishing(on_rabbit, count, rounds, [("bus", True), ("batch", True)])
        name = "RabbitMQ: publish with confirms"
        rows += [
            Row(name, middle(ours), "/s", "mandatory, persistent"),
            Row(f"{name}, against send_task", against(ours, them), "×", f"{middle(them):,.0f}/s, unconfirmed"),
            Row(f"{name}, against send_task with confirms", against(ours, sure), "×", f"{middle(sure):,.0f}/s"),
            Row("RabbitMQ: publish in a batch", middle(batch), "/s", "each confirmed by the end of the block"),
            Row("RabbitMQ: publish in a batch, against send_task", against(batch, them), "×", "unconfirmed there"),
            Row("RabbitMQ: publish_many with confirms", middle(many), "/s", "batches of 100"),
            Row("RabbitMQ: publish_many with confirms, against send_task", against(many, them), "×"),
            Row(f"{name} and journal", middle(journalled), "/s", "with a store in Redis"),
            Row("RabbitMQ: publish in a batch, with journal", middle(noted), "/s"),
        ]
        say("RabbitMQ: killing it in the middle of a batch")
        events = 3000 if quick else 10_000
        lost = killed(rabbit, without, events, 3)
        rows.append(Row("RabbitMQ: a batch and three killed brokers, lost", lost, "", f"of {events:,} events"))
        for name, environment in (("Redis", on_redis), ("RabbitMQ", on_rabbit)):
            say(f"{name}: calling")
            times = calling(environment, calls, rounds)
            p50s = {kind: statistics.median(one) * 1000 for kind, one in times.items()}
            rows += [
                Row(f"{name}: call p50", p50s["bus"], "ms", "prefork worker of two processes"),
                Row(
                    f"{name}: call p50, against Celery's RPC",
                    p50s["bus"] / p50s["plain"],
                    "×",
                    f"Celery: {p50s['plain']:.2f} ms",
                ),
            ]
            say(f"{name}: retries")
            early, p50, p99, over = late(environment, 20 if quick else 60)
            rows += [
                Row(f"{name}: retries, early", early, "", "of 1, 2 and 4 s"),
                Row(f"{name}: retries, late p50", p50, "ms", "from the failure to the next start"),
                Row(f"{name}: retries, late p99", p99, "ms"),
                Row(f"{name}: retries, longest over its policy", over, "%", "of the delay"),
            ]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--write-docs", action="store_true", help="put the table into the documentation")
    given = parser.parse_args()
    console = Console()
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        rows = measure(given.quick, progress)
    good = show("The bus beside plain Celery", rows, BOUNDS, console)
    keep(RESULTS, rows)
    if given.write_docs:
        write_docs(PAGE, rows, BOUNDS)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
