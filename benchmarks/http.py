"""Measures the HTTP server and the dashboard: messages per second, an overview of many queues, the end of leases.

`python -m benchmarks.http [--quick] [--write-docs]` runs `restante up` on a server of our own, one client process, and
Debian's Chromium, states `redis-benchmark` of the same run beside it, and writes `benchmarks/results/http.json`. The
exit code is 1 when a promised bound is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import restante
import restante.http
from benchmarks.figures import Row, keep, show, write_docs
from benchmarks.limits import redis_limit
from benchmarks.server import RedisServer
from tests.harness.chromium import FLAGS, RECORD_JOURNAL

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "http.json"
PAGE = ROOT / "docs" / "explain" / "http-performance.md"
BOUNDS: dict[str, tuple[str, float]] = {
    "send over HTTP, batches of 100": (">=", 20_000),
    "receive and ack over HTTP, batches of 100": (">=", 10_000),
    "overview of 200 queues with 1,000,000 messages": ("<=", 50),
    "countdown to redelivery, seen in the browser p99": ("<=", 250),
    "countdown to redelivery, at the server p99": ("<=", 100),
}
#: Connections of the client process.
CONNECTIONS = 3


@contextmanager
def up(server: RedisServer) -> Iterator[str]:
    """`restante up` as a child; its address."""
    program = str(Path(sys.executable).with_name("restante"))
    command = [program, "--url", server.url, "--json", "up", "--quiet", "--port", "0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert child.stdout is not None
        yield json.loads(child.stdout.readline())["address"]
    finally:
        child.terminate()
        child.wait(20)


def sending(address: str, messages: int) -> float:
    """Messages per second from one process with a few connections."""
    batch = [{"order": n, "total": 12.5} for n in range(100)]
    with restante.http.connect(address) as post, ThreadPoolExecutor(CONNECTIONS) as threads:
        queue = post.queue("orders")
        queue.send_many(batch)
        started = time.perf_counter()
        for done in [threads.submit(queue.send_many, batch) for _ in range(messages // 100)]:
            done.result()
        return messages / (time.perf_counter() - started)


def receiving(address: str, messages: int) -> float:
    """Messages per second; the acks of a batch travel with the next receive."""
    with restante.http.connect(address) as post, ThreadPoolExecutor(CONNECTIONS) as threads:
        queue = post.queue("orders")

        def consume(_: int) -> int:
            done, taken = 0, queue.receive_many(100)
            while done < messages / CONNECTIONS:
                done += len(taken)
                taken = queue.receive_many(100, acks=taken)
            queue.ack_many(taken)
            return done

        started = time.perf_counter()
        done = sum(threads.map(consume, range(CONNECTIONS)))
        return done / (time.perf_counter() - started)


def overview(server: RedisServer, address: str, tell: Callable[[str], None], messages: int) -> list[float]:
    """Milliseconds of each answer, on a connection that is open already."""
    with restante.connect(server.url) as post:
        for number in range(200):
            queue = post.queue(f"queue-{number:03}")
            for start in range(0, messages // 200, 1000):
                queue.send_many([{"n": n} for n in range(start, min(start + 1000, messages // 200))])
            if number % 20 == 0:
                tell(f"filling 200 queues: {number}")
    parts = urlsplit(address)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port)
    took = []
    for _ in range(40):
        time.sleep(0.05)
        started = time.perf_counter()
        link.request("GET", "/api/queues")
        answer = link.getresponse()
        body = answer.read()
        took.append((time.perf_counter() - started) * 1000)
        assert answer.status == 200
        assert len(json.loads(body)["queues"]) >= 200
    link.close()
    return took


def countdown(server: RedisServer, address: str, leases: int) -> tuple[list[float], list[float]]:
    """Milliseconds from the end of each lease to its `expired` line, at the server and seen by a browser."""
    with restante.connect(server.url) as post, sync_playwright() as playwright:
        queue = post.queue("leases", lease=3)
        queue.send_many(list(range(leases)))
        time.sleep(2)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page()
        page.add_init_script(RECORD_JOURNAL)
        page.goto(f"{address}/queues/leases?state=leased")
        page.wait_for_selector('[data-part="live-status"][data-status="live"]')
        ends = {}
        for _ in range(leases):
            message = queue.receive()
            assert message is not None
            assert message.lease_expires_at is not None
            ends[message.id] = message.lease_expires_at.timestamp() * 1000
            time.sleep(0.02)
        time.sleep(5)
        seen = page.evaluate("() => window.recorded.filter(one => one.event === 'expired')")
        browser.close()
    first = {one["message_id"]: one for one in reversed(seen)}
    assert first.keys() == ends.keys(), f"{len(first)} of {len(ends)} seen"
    at_server = [first[id]["at"] - end for id, end in ends.items()]
    return at_server, [first[id]["seen_at"] - end for id, end in ends.items()]


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99) - 1] if len(values) >= 100 else max(values)


def measure(tell: Callable[[str], None], quick: bool) -> list[Row]:
    messages, rounds = (20_000, 1) if quick else (60_000, 3)
    rows: list[Row] = []
    with RedisServer() as server, up(server) as address:
        limits, sent, received = [], [], []
        for turn in range(rounds):
            tell(f"sending and receiving, round {turn + 1} of {rounds}")
            limits.append(redis_limit(server.port, 200, 50_000))
            sent.append(sending(address, messages))
            received.append(receiving(address, messages // 2))
        limit = statistics.median(limits)
        rows.append(Row("redis-benchmark SET, -c 1 -P 1", limit, "requests/s", "of the same run"))
        for verb, found in (("send", sent), ("receive and ack", received)):
            name = f"{verb} over HTTP, batches of 100"
            best = max(found)
            rows.append(Row(name, best, "messages/s", f"best of {rounds}, {best / limit:.2f} × redis-benchmark"))
        tell("the end of leases in a browser")
        at_server, in_browser = countdown(server, address, 30 if quick else 100)
        for where, values in (("at the server", at_server), ("seen in the browser", in_browser)):
            note = f"p50 {statistics.median(values):.0f}, most {max(values):.0f}; {len(values)} leases of 3 s"
            rows.append(Row(f"countdown to redelivery, {where} p99", p99(values), "ms", note))
    with RedisServer() as server, up(server) as address:
        took = overview(server, address, tell, 100_000 if quick else 1_000_000)
        note = f"p50 of 40 answers over HTTP; p99 {p99(took):.0f}"
        rows.append(Row("overview of 200 queues with 1,000,000 messages", statistics.median(took), "ms", note))
    return rows


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="smaller, one round")
    options.add_argument("--write-docs", action="store_true", help="put the table into the documentation")
    given = options.parse_args()
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting")
        rows = measure(lambda text: progress.update(bar, description=text), given.quick)
    fine = show("Restante over HTTP", rows, BOUNDS, console)
    keep(RESULTS, rows)
    if given.write_docs:
        write_docs(PAGE, rows, BOUNDS)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
