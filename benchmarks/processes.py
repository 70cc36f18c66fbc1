"""Measures how much more CPU-bound handlers do in several processes: `python -m benchmarks.processes`.

Rounds with one process and with as many as asked alternate, so that other load of the machine meets both. Each process
is idle when the messages are sent; a round lasts from the first receive to the last ack, by the clock of the server.
It needs free cores: a machine that is busy with other work shows what is left of it.
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
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import restante
from benchmarks.limits import machine_load
from benchmarks.server import RedisServer
from restante import Admin
from restante.core.message import JournalEvent

APP = """
import os
import restante

work = restante.connect().queue("work")


@work.handler
def burn(message):
    total = 0
    for number in range(message.payload):
        total += number * number
"""
#: Iterations of the handler's loop: some ten milliseconds of one core.
ITERATIONS = 200_000
#: Seconds to wait for the processes to start or to finish.
PATIENCE = 300.0


def rate(url: str, place: Path, processes: int, count: int) -> float:
    """Messages per second that so many processes handle."""
    command = [sys.executable, "-c", "import sys; from restante.cli import main; sys.exit(main())"]
    words = ["consume", "app", "--processes", str(processes)]
    with restante.connect(url) as client:
        admin = Admin(client)
        if "work" in admin.queues():
            admin.drop("work", force=True)
        queue = client.queue("work")
        queue.configure(journal_keep=1_000_000)
        running = subprocess.Popen(
            [*command, *words], cwd=place, env={**os.environ, "RESTANTE_URL": url}, stderr=subprocess.DEVNULL
        )
        try:
            wait(lambda: sum(len(one.processes) for one in admin.consumers() if one.pid == running.pid) == processes)
            queue.send_many([ITERATIONS] * count)
            wait(lambda: admin.counts("work").waiting == 0)
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait()
        lines = admin.journal("work", limit=10_000)
        begun = min(line.at for line in lines if line.event is JournalEvent.RECEIVED)
        ended = max(line.at for line in lines if line.event is JournalEvent.ACKED)
    return count / (ended - begun).total_seconds()


def wait(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the processes did not start or finish")
        time.sleep(0.05)


def main() -> int:
    """Prints the rates and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    load = machine_load()
    rates: dict[int, list[float]] = {1: [], options.processes: []}
    ratios = []
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APP)
        for _ in range(options.rounds):
            for processes, found in rates.items():
                found.append(rate(server.url, Path(folder), processes, options.messages))
            ratios.append(rates[options.processes][-1] / rates[1][-1])
    table = Table(
        "processes",
        "messages/s, median",
        "of each round",
        title=f"CPU-bound handlers; others use {load:.0%} of the cores",
    )
    for processes, found in rates.items():
        table.add_row(str(processes), f"{statistics.median(found):.1f}", ", ".join(f"{one:.1f}" for one in found))
    console = Console()
    console.print(table)
    console.print(f"ratio: median {statistics.median(ratios):.2f}, best {max(ratios):.2f} of {len(ratios)} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
