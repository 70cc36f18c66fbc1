"""Measures our RSMQ client beside PyRSMQ and npm's rsmq, in turns, on one server: one connection, one call at a time.

Client and server share one core, so that what is measured is the work of both. Otherwise each call also waits for a
sleeping core to wake up, which costs every client the same and on some machines far more than the call; the rows
"unpinned" show that too, and promise nothing.

`python -m benchmarks.rsmq [--quick] [--write-docs]` prints sends, receives and deletes per second of each, and writes
`benchmarks/results/rsmq.json`. The exit code is 1 when a promised bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.figures import Row, keep, show, write_docs
from benchmarks.server import RedisServer
from restante.rsmq import AsyncRsmq, Rsmq
from tests.rsmq.clients import Pyrsmq
from tests.rsmq.npm_client import NodeRsmq

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "rsmq.json"
PAGE = ROOT / "docs" / "guide" / "rsmq.md"
CALLS = ("send", "receive", "delete")
MESSAGE = "x" * 100
#: Row, comparison and bound.
BOUNDS: dict[str, tuple[str, float]] = {f"{name}, against PyRSMQ": (">=", 4.0) for name in CALLS} | {
    f"{name}, against npm rsmq": (">=", 0.8) for name in CALLS
}


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ours(server: RedisServer, count: int) -> dict[str, float]:
    with Rsmq(server.url) as client:
        ids: list[str] = []

        def send() -> None:
            for _ in range(count):
                client.send_message("orders", MESSAGE)

        def receive() -> None:
            for _ in range(count):
                got = client.receive_message("orders")
                assert got is not None
                ids.append(got.id)

        def delete() -> None:
            for id in ids:
                client.delete_message("orders", id)

        return {"send": timed(send), "receive": timed(receive), "delete": timed(delete)}


def ours_asyncio(server: RedisServer, count: int) -> dict[str, float]:
    async def run() -> dict[str, float]:
        async with AsyncRsmq(server.url) as client:
            began = time.perf_counter()
            for _ in range(count):
                await client.send_message("orders", MESSAGE)
            sent = time.perf_counter()
            ids = []
            for _ in range(count):
                got = await client.receive_message("orders")
                assert got is not None
                ids.append(got.id)
            received = time.perf_counter()
            for id in ids:
                await client.delete_message("orders", id)
            return {"send": sent - began, "receive": received - sent, "delete": time.perf_counter() - received}

    return asyncio.run(run())


def pyrsmq(server: RedisServer, count: int) -> dict[str, float]:
    # As its own documentation makes the client.
    client = Pyrsmq(redis.Redis(port=server.port, decode_responses=True)).smq
    ids: list[Any] = []

    def send() -> None:
        for _ in range(count):
            client.sendMessage(qname="orders", message=MESSAGE).execute()

    def receive() -> None:
        for _ in range(count):
            ids.append(client.receiveMessage(qname="orders").execute()["id"])

    def delete() -> None:
        for id in ids:
            client.deleteMessage(qname="orders", id=id).execute()

    return {"send": timed(send), "receive": timed(receive), "delete": timed(delete)}


def npm(server: RedisServer, count: int) -> dict[str, float]:
    with NodeRsmq(server.port) as node:
        node("measure", qname="orders", count=200, message=MESSAGE)  # compiled before it is timed
        took = node.finish(node.start("measure", qname="orders", count=count, message=MESSAGE), 120)
        return {name: float(took[name]) for name in CALLS}


def measure(tell: Callable[[str], None], count: int, rounds: int, suffix: str = "") -> list[Row]:
    kinds = {"ours": ours, "PyRSMQ": pyrsmq, "npm rsmq": npm, "ours, asyncio": ours_asyncio}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    with RedisServer() as server, Rsmq(server.url) as client:
        client.create_queue("orders", vt=600)
        ours(server, 200)
        for turn in range(rounds):
            for name, run in kinds.items():
                tell(f"round {turn + 1} of {rounds}, {name}")
                # The slow one makes fewer calls: a rate needs no more.
                calls = count // 4 if name == "PyRSMQ" else count
                found[name].append({call: calls / took for call, took in run(server, calls).items()})
                assert client.get_queue_attributes("orders").msgs == 0
    rates = {
        name: {call: statistics.median(one[call] for one in some) for call in CALLS} for name, some in found.items()
    }
    rows = []
    for call in CALLS:
        told = ", ".join(f"{name} {rates[name][call]:,.0f}" for name in kinds)
        for peer, note in (("PyRSMQ", f"per second: {told}"), ("npm rsmq", "")):
            rows.append(Row(f"{call}, against {peer}{suffix}", rates["ours"][call] / rates[peer][call], "×", note))
    return rows


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer calls and rounds")
    options.add_argument("--write-docs", action="store_true", help="put the table into the documentation")
    given = options.parse_args()
    console = Console()
    progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)
    with progress:
        bar = progress.add_task("starting")
        count, rounds = (2000, 3) if given.quick else (4000, 9)

        def tell(text: str) -> None:
            progress.update(bar, description=text)

        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(every)})  # what is started from here on inherits it
        rows = measure(tell, count, rounds)
        os.sched_setaffinity(0, every)
        rows += measure(tell, count // 2, 3, ", unpinned")
    fine = show("RSMQ clients", rows, BOUNDS, console)
    keep(RESULTS, rows)
    if given.write_docs:
        write_docs(PAGE, rows, BOUNDS)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
