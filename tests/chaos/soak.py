"""`make soak MINUTES=60`: load over every door of one Redis and one RabbitMQ for a long time, with faults at random.

    python -m tests.chaos.soak [--minutes 60] [--seed 1] [--plot FILE]

Producers send by the native client, HTTP, RSMQ, Celery and the bus on both brokers, at `LOAD` of the capacity that was
measured just before. A ledger outside the brokers records what was confirmed and what was done. Meanwhile consumers are
killed, connections are reset and the brokers are killed. Then everything is drained: nothing confirmed may be missing,
no key may be left that was not there before, and memory, connections, descriptors and threads must not have grown. The
exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import redis
from kombu.exceptions import OperationalError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import restante
import restante.http
from restante import Admin, RestanteError
from restante.rsmq import Rsmq
from tests.bus.places import OnRabbitMQ, OnRedis, Place, Service
from tests.celery.workers import Worker as CeleryWorker
from tests.chaos.plot import plot
from tests.faults.workers import Worker
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.ledger import read_ledger
from tests.harness.processes import PythonProcess
from tests.harness.proxy import FaultProxy
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer, call
from tests.server.calls import Up

#: Seconds of a lease: what a killed consumer held is free again soon, also before the end is judged.
LEASE: Final = 3.0
#: Lines of a journal: as few as may be, so that journals are full after seconds and memory can be compared.
KEPT, CAP = 1000, 2000
#: Share of the measured capacity at which the soak sends. Above it, nothing is left to catch up with after a fault.
LOAD: Final = 0.7
#: Seconds of sending without a pause by which the capacity is measured.
MEASURED: Final = 10.0
#: Seconds for which the bus remembers events. With the default of a day, Redis would grow for a day.
WINDOW: Final = 60.0
#: Seconds between two faults, at most.
EVERY: Final = 12.0
#: Seconds within which living workers have ended what killed ones left: their control queues.
FORGOTTEN: Final = 120.0
#: Keys that a queue or an exchange has sooner or later, and that are bounded: the older generation of ids, a stream.
BOUNDED: Final = (":acked_before", ":broadcast")
#: What differs between the names of two workers.
_ONE_WORKER = re.compile(r"\w+@\w+|[0-9a-f]{8}-[0-9a-f-]{27}")
#: Minutes that a soak lasts at least.
SHORTEST: Final = 0.25
RESULTS: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
#: Seconds between two samples.
SAMPLE: Final = 2.0
#: By how much the median of the last third of the samples may exceed that of the first, beside a little that is free.
GROWTH: Final = 0.25
FREE: Final = {
    "redis_mb": 8.0,
    "server_mb": 15.0,
    "rabbitmq_mb": 60.0,
    "keys": 10.0,
    "connections": 15.0,
    "descriptors": 15.0,
    "threads": 5.0,
}


P = TypeVar("P", bound=PythonProcess)


@dataclass
class Ledger:
    """What was confirmed and what was done, outside the broker."""

    sent: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    failures: int = 0


@dataclass
class Outcome:
    """How a soak went."""

    minutes: float
    #: Messages per second and door.
    pace: float
    sent: dict[str, int]
    lost: dict[str, int]
    refused: dict[str, int]
    faults: dict[str, int]
    grown: dict[str, tuple[float, float]]
    keys_left: list[str]

    @property
    def passed(self) -> bool:
        return not (any(self.lost.values()) or self.grown or self.keys_left) and all(self.sent.values())


class Doors:
    """Every way to send and to consume, on one Redis behind a proxy and one RabbitMQ."""

    NAMES: Final = ("native", "http", "rsmq", "celery", "bus", "rabbitmq")

    def __init__(
        self, server: RedisServer, proxy: FaultProxy, rabbit: RabbitServer, folder: Path, running: ExitStack
    ) -> None:
        self.server, self.proxy, self.rabbit, self.folder, self._running = server, proxy, rabbit, folder, running
        self.ledgers = {name: Ledger() for name in self.NAMES}
        self.stopping = threading.Event()
        self.post = running.enter_context(restante.connect(proxy.url, patience=60))
        for name in ("orders", "web"):
            self.post.queue(name, lease=LEASE, max_attempts=1000, journal_keep=KEPT, journal_cap=CAP)
        self.up = running.enter_context(Up(self.post))
        self.web = running.enter_context(restante.http.connect(self.up.address))
        self.rsmq = running.enter_context(Rsmq(proxy.url))
        self.rsmq.create_queue("letters", vt=5)
        (folder / "rabbitmq").mkdir()
        self._places = {"bus": OnRedis(folder, server), "rabbitmq": OnRabbitMQ(folder / "rabbitmq", rabbit, server)}
        self.clients = {name: running.enter_context(place.client()) for name, place in self._places.items()}
        self._began: list[PythonProcess] = []
        self.natives = [self._native(), self._native()]
        self.celery = self._celery()
        self.app = self.celery.app  # one for all, as a producer has: those of later workers stay unused
        self.services = {name: self._service(place) for name, place in self._places.items()}
        self.celery.wait_ready()
        for service in self.services.values():
            service.wait_ready()
        self.threads = [threading.Thread(target=one, daemon=True) for one in (self._take_web, self._take_rsmq)]
        for thread in self.threads:
            thread.start()

    def _native(self) -> Worker:
        return self._keep(Worker(self.proxy.url, "orders", seconds=0.01, concurrency=4, client={"patience": 60.0}))

    def _celery(self) -> CeleryWorker:
        options = {"visibility_timeout": LEASE}
        conf = {"task_acks_late": True, "task_reject_on_worker_lost": True, "task_ignore_result": True}
        return self._keep(
            CeleryWorker(self.server, self.folder, options=options, conf=conf, name=f"w{len(self._began)}", wait=False)
        )

    def _service(self, place: Place) -> Service:
        # What a killed service had handled and not acked stays until its lease ends.
        conf = {"broker_transport_options": {"visibility_timeout": LEASE}} if place.kind == "redis" else {}
        return self._keep(Service(place, "billing", ["paid"], options={"dedup": WINDOW}, conf=conf, wait=False))

    def _keep(self, process: P) -> P:
        self._began.append(process)
        self._running.enter_context(process)
        return process

    def kill_a_consumer(self, chance: random.Random) -> str:
        """SIGKILL to one of the consumers, and another in its place."""
        which = chance.choice(("native", "celery", *self.services))
        if which == "native":
            self.natives.pop(0).kill9()
            self.natives.append(self._native())
        elif which == "celery":
            self.celery.kill9()
            self.celery = self._celery()
        else:
            self.services[which].kill9()
            self.services[which] = self._service(self._places[which])
        return f"{which} consumer killed"

    def send(self, door: str, number: int) -> None:
        """One message by a door; what raises was not confirmed, and counts neither way."""
        key = f"{door}-{number}"
        ledger = self.ledgers[door]
        try:
            match door:
                case "native":
                    ledger.sent.add(self.post.queue("orders").send(key))
                case "http":
                    ledger.sent.add(self.web.queue("web").send(key))
                case "rsmq":
                    self.rsmq.send_message("letters", key)
                    ledger.sent.add(key)
                case "celery":
                    self.app.send_task("shop.note", args=(key, 0), ignore_result=True)
                    ledger.sent.add(key)
                case _:
                    ledger.sent.add(self.clients[door].publish("shop.order.paid", {"order": number}).id)
        except (RestanteError, OSError, OperationalError):
            ledger.failures += 1

    def _take_web(self) -> None:
        queue = self.web.queue("web")
        while not self.stopping.is_set():
            try:
                for message in queue.receive_many(50, timeout=1):
                    self.ledgers["http"].done.add(message.id)
                    message.ack()
            except (RestanteError, OSError):
                time.sleep(0.2)

    def _take_rsmq(self) -> None:
        while not self.stopping.is_set():
            try:
                message = self.rsmq.receive_message("letters")
                if message is None:
                    time.sleep(0.02)
                    continue
                self.ledgers["rsmq"].done.add(str(message.message))
                self.rsmq.delete_message("letters", message.id)
            except (RestanteError, OSError):
                time.sleep(0.2)

    def look(self) -> None:
        """Brings the ledgers up to what processes have written."""
        for one in self._began:
            if isinstance(one, Worker):
                self.ledgers["native"].done |= {line.id for line in one.said("end")}
        for row in read_ledger(self.folder / "ledger"):
            if row["kind"] == "done":
                self.ledgers["celery"].done.add(str(row["number"]))
        for name, place in self._places.items():
            self.ledgers[name].done |= {row["id"] for row in place.rows("paid")}

    def left(self) -> dict[str, int]:
        """How many of each door are not done yet, or done and not gone yet."""
        self.look()
        here = Admin(self.post)
        held = {
            "native": here.counts("orders").waiting,
            "http": here.counts("web").waiting,
            "rsmq": self.rsmq.get_queue_attributes("letters").msgs,
        }
        return {name: max(len(one.sent - one.done), held.get(name, 0)) for name, one in self.ledgers.items()}

    def lost(self) -> dict[str, int]:
        return {name: len(one.sent - one.done) for name, one in self.ledgers.items()}

    def close(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        for process in (*self.natives, self.celery, *self.services.values()):
            process.terminate()
            process.wait(PATIENCE)


class Sampler:
    """What the brokers and the HTTP server hold, sampled while a block runs."""

    def __init__(self, server: RedisServer, rabbit: RabbitServer, up: Up) -> None:
        self._server, self._rabbit, self._up = server, rabbit, Path("/proc", str(up.pid))
        self.samples: list[dict[str, float]] = []
        self._over = threading.Event()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(PATIENCE)

    def _sample(self) -> None:
        begun = time.monotonic()
        while not self._over.wait(SAMPLE):
            try:
                client = self._server.client()
                memory, clients = call(client, "INFO", "memory"), call(client, "INFO", "clients")
                keys = call(client, "INFO", "keyspace")["db0"]
                client.close()
                rabbitmq_mb = resident_mb(Path("/proc", str(self._rabbit.pid)))
            except (OSError, redis.ConnectionError):
                continue  # a broker was just killed, or loads its data
            self.samples.append(
                {
                    "seconds": time.monotonic() - begun,
                    "redis_mb": memory["used_memory"] / 1e6,
                    "keys": float(keys["keys"] - keys["expires"]),
                    "connections": float(clients["connected_clients"]),
                    "server_mb": resident_mb(self._up),
                    "rabbitmq_mb": rabbitmq_mb,
                    "descriptors": float(len(os.listdir(self._up / "fd"))),
                    "threads": float(len(os.listdir(self._up / "task"))),
                }
            )

    def grown(self) -> dict[str, tuple[float, float]]:
        """What grew from the first third after the start to the last, with both medians."""
        rest = self.samples[len(self.samples) // 5 :]
        third = max(1, len(rest) // 3)
        found = {}
        for name, free in FREE.items():
            first = statistics.median(sample[name] for sample in rest[:third])
            last = statistics.median(sample[name] for sample in rest[-third:])
            if last > first * (1 + GROWTH) + free:
                found[name] = (round(first, 1), round(last, 1))
        return found


def resident_mb(process: Path) -> float:
    """The resident memory of a process, given its folder in /proc."""
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def lasting(server: RedisServer) -> Counter[str]:
    """The keys that do not end by themselves; names of workers are made equal, since others took their places."""
    with closing(server.client()) as client:
        found = [key.decode() for key in client.scan_iter(count=1000) if call(client, "PTTL", key) == -1]
    return Counter(_ONE_WORKER.sub("*", key) for key in found if not key.endswith(BOUNDED))


def soak(
    minutes: float, seed: int, told: Callable[[str, float], None] = lambda what, share: None
) -> tuple[Outcome, Sampler]:
    chance = random.Random(seed)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="restante-soak-")))
        server = running.enter_context(RedisServer(appendonly="always"))
        proxy = running.enter_context(FaultProxy(server.port))
        rabbit = running.enter_context(RabbitServer())
        doors = Doors(server, proxy, rabbit, folder, running)
        number = 0

        def send_all() -> None:
            nonlocal number
            number += 1
            for name in doors.NAMES:
                doors.send(name, number)

        for _ in range(3):
            send_all()
        wait_until(lambda: not any(doors.left().values()), doors.left)
        told("measuring the capacity", 0.0)
        begun, first = time.monotonic(), number
        while time.monotonic() - begun < MEASURED * min(1.0, minutes):
            send_all()
        wait_until(lambda: not any(doors.left().values()), doors.left)
        pace = LOAD * (number - first) / (time.monotonic() - begun)
        before, faults = lasting(server), dict[str, int]()
        sampler = Sampler(server, rabbit, doors.up)
        with sampler.sampling():
            begun, first = time.monotonic(), number
            next_fault = begun + chance.uniform(1, EVERY)
            while (passed := time.monotonic() - begun) < minutes * 60:
                send_all()
                told(f"{number * len(doors.NAMES):,} sent", passed / (minutes * 60))
                time.sleep(max(0.0, begun + (number - first) / pace - time.monotonic()))
                if time.monotonic() >= next_fault:
                    what = _fault(doors, chance)
                    faults[what] = faults.get(what, 0) + 1
                    next_fault = time.monotonic() + chance.uniform(1, EVERY)
            told("draining", 1.0)
            wait_until(lambda: not any(doors.left().values()), doors.left)
        told("waiting for what killed workers left", 1.0)
        deadline = time.monotonic() + FORGOTTEN
        while (left := lasting(server) - before) and time.monotonic() < deadline:
            time.sleep(1)
        doors.close()
        outcome = Outcome(
            minutes=round(minutes, 2),
            pace=round(pace, 1),
            sent={name: len(one.sent) for name, one in doors.ledgers.items()},
            lost=doors.lost(),
            refused={name: one.failures for name, one in doors.ledgers.items()},
            faults=faults,
            grown=sampler.grown(),
            keys_left=sorted(left),
        )
        return outcome, sampler


def _fault(doors: Doors, chance: random.Random) -> str:
    match chance.choice(("kill", "kill", "kill", "reset", "reset", "reset", "Redis", "Redis", "RabbitMQ")):
        case "reset":
            doors.proxy.reset_all()
            return "connections reset"
        case "Redis":
            doors.server.kill9()
            doors.server.restart()
            return "Redis killed"
        case "RabbitMQ":
            doors.rabbit.kill()
            doors.rabbit.start()
            return "RabbitMQ killed"
        case _:
            return doors.kill_a_consumer(chance)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=RESULTS / "soak.svg")
    asked = parser.parse_args(words)
    if asked.minutes < SHORTEST:
        parser.error(f"--minutes must be at least {SHORTEST}: fewer samples say nothing")
    asked.plot.parent.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("starting", total=1.0)
        outcome, sampler = soak(
            asked.minutes, asked.seed, lambda what, share: progress.update(task, description=what, completed=share)
        )
    plot(sampler.samples, asked.plot)
    sys.stdout.write(json.dumps({"row": 59, **asdict(outcome), "verdict": "pass" if outcome.passed else "fail"}) + "\n")
    console.print(f"the plot is in {asked.plot}")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
