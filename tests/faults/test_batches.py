"""Batches under kills of workers, which also carry, of producers and of servers: each ends once, and never early."""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest

import restante
from restante import Admin, BatchStatus, Client, NotFound, Sweeper, Unavailable
from restante.core.keys import QueueKeys
from tests.faults.rows import verdict, wait_until
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import PythonProcess
from tests.harness.servers import RedisServer, debian_binary

#: Queues with the messages, and those with the ends. In a cluster they lie on different nodes.
WORK: Final = ("work-1", "work-2", "work-3")
HOMES: Final = ("home-1", "home-2")
#: Seconds a worker may hold a message.
LEASE: Final = 3.0

#: Acks most messages, some on the next receive and some at once, buries every tenth, and adds to the batch by some.
WORKER: Final = """
import sys, restante
url, name, other = sys.argv[1:]
client = restante.connect(url, patience=60)
queue = client.queue(name)
print("up", flush=True)
for message in queue.consume(prefetch=20):
    with message:
        number = message.payload["n"]
        if number % 10 == 3:
            message.bury(error="poison")
        elif number % 25 == 5:
            message.batch.send(other, {"n": 1000})
        elif number % 25 == 6:
            with message.batch.batch("home-1") as child:
                child.send(other, {"n": 1000})
        elif number % 4 == 0:
            message.ack()
"""
#: Fills batches, with a pause before each call, so that kills find some half filled.
PRODUCER: Final = """
import sys, time, restante
url, pause, first, last, size = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])
client = restante.connect(url, patience=60)
run = client.connection.run
def slowly(call, **options):
    time.sleep(pause)
    return run(call, **options)
client.connection.run = slowly
print("up", flush=True)
for number in range(first, last):
    print("begun", number, flush=True)
    with client.batch(f"home-{number % 2 + 1}", id=f"b{number}", on_complete={"b": number}, on_dead={"d": number}) as b:
        for n in range(size):
            b.send(f"work-{(number + n) % 3 + 1}", {"n": n})
"""


class Shop:
    """Workers and a producer that are killed, and hired again."""

    def __init__(self, url: str, batches: int, size: int, pause: float, ending: contextlib.ExitStack) -> None:
        self.url, self.batches, self.size, self.ending = url, batches, size, ending
        self.pause = pause
        self.workers: list[PythonProcess] = []
        self.next = 0
        self.producer: PythonProcess | None = None
        for number in range(6):
            self.hire(number)

    def hire(self, number: int) -> None:
        name, other = WORK[number % 3], WORK[(number + 1) % 3]
        worker = self.ending.enter_context(PythonProcess(WORKER, self.url, name, other, forked=True))
        self.workers[number:number] = [worker]

    def produce(self) -> None:
        """Starts a producer where the last one was killed: the batch that it was filling stays as it is."""
        if self.producer is not None:
            begun = [int(line.split()[1]) for line in self.producer.lines if line.startswith("begun")]
            self.next = max([self.next, *(number + 1 for number in begun)])
        words = [str(word) for word in (self.pause, self.next, self.batches, self.size)]
        self.producer = self.ending.enter_context(PythonProcess(PRODUCER, self.url, *words, forked=True))
        self.producer.wait_line("up")

    def kill_worker(self) -> None:
        number = random.randrange(len(self.workers))
        self.workers.pop(number).kill9()
        self.hire(number)

    def kill_producer(self) -> None:
        assert self.producer is not None
        if self.producer.returncode is None:
            self.producer.kill9()
            self.produce()


@pytest.fixture(params=["server", "cluster"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[RedisServer]]]:
    """The URL of a server or of a cluster, and the nodes to kill."""
    if request.param == "server":
        with RedisServer(debian_binary(), appendonly="everysec") as server:
            yield server.url, [server]
        return
    with RedisCluster3(appendonly="everysec") as cluster:
        yield cluster.url, cluster.nodes


def journals(view: Admin, queues: tuple[str, ...]) -> Iterator[Any]:
    for queue in queues:
        position = None
        while page := view.journal(queue, after=position):
            yield from page
            position = page[-1].position


def opened_of(view: Admin, batches: int) -> list[BatchStatus]:
    """The batches of the producers that were opened; one that was killed before that has left nothing."""
    found = []
    for number in range(batches):
        with contextlib.suppress(NotFound):
            found.append(view.batch(f"home-{number % 2 + 1}/b{number}"))
    return found


def ends_and_faults(post: Client, view: Admin) -> tuple[dict[str, int], dict[str, int], int]:
    """How often each batch sent its end and its alarm, and how many ended before one of their messages."""
    sent: dict[str, list[str]] = defaultdict(list)
    ended: dict[str, int] = {}
    for entry in journals(view, WORK):
        at = entry.at.timestamp() * 1000
        if entry.event.value == "sent" and entry.detail.startswith("batch "):
            sent[entry.detail.removeprefix("batch ")].append(entry.message_id)
        elif entry.event.value in ("acked", "buried") or (entry.event.value == "expired" and entry.state == "dead"):
            ended[entry.message_id] = round(at)
    ends: dict[str, int] = defaultdict(int)
    alarms: dict[str, int] = defaultdict(int)
    early = 0
    for entry in journals(view, HOMES):
        event, _, batch = entry.detail.partition(" of batch ")
        if entry.event.value == "sent" and batch:
            (ends if event == "complete" else alarms)[batch] += 1
            last = max((ended.get(id, 2**62) for id in sent[batch]), default=0)
            early += event == "complete" and last > round(entry.at.timestamp() * 1000)
    return ends, alarms, early


@pytest.mark.parametrize(
    ("batches", "size", "kills", "pause"),
    [(30, 30, 8, 0.02), pytest.param(1000, 100, 60, 0.003, marks=pytest.mark.chaos)],
)
def test_each_batch_ends_once_though_workers_producers_and_servers_are_killed(
    nodes: tuple[str, list[RedisServer]], batches: int, size: int, kills: int, pause: float
) -> None:
    url, servers = nodes
    with contextlib.ExitStack() as ending:
        post = ending.enter_context(restante.connect(url, patience=60))
        view = Admin(post, operator="tester")
        for name in (*WORK, *HOMES):
            post.queue(name, lease=LEASE, max_attempts=1000, journal_keep=10_000_000, journal_cap=10_000_000)
            post.queue(name).ensure_open()
        sweeper = Sweeper(ending.enter_context(restante.connect(url)), HOMES)  # nobody consumes the homes
        sweeping = sweeper.start()
        ending.callback(sweeping.join)
        ending.callback(sweeper.stop)
        shop = Shop(url, batches, size, pause, ending)
        shop.produce()
        for number in range(kills):
            time.sleep(random.uniform(0.1, 0.6))
            if number % 8 == 5:
                server = random.choice(servers)
                server.kill9()
                server.restart()
            elif number % 4 == 2:
                shop.kill_producer()
            else:
                shop.kill_worker()
        assert shop.producer is not None
        assert shop.producer.wait() == 0, shop.producer.stderr
        opened = [name for home in HOMES for name in view.batches(home, limit=1000) if name.state == "open"]
        for status in opened:
            post.batch_handle(status.id).resume()

        def drained() -> bool:
            try:
                keys = [QueueKeys(name)["outbox"] for name in (*WORK, *HOMES)]
                noted = sum(post.connection.command("ZCARD", key, key=key) for key in keys)
                return noted == 0 and not any(view.batches(home) for home in HOMES)
            except Unavailable:
                return False

        took = wait_until(drained, 10 * PATIENCE, "the end of every batch")
        for worker in shop.workers:
            worker.kill9()
        ends, alarms, early = ends_and_faults(post, view)
        named = {batch: count for batch, count in ends.items() if "/b" in batch}
        known = opened_of(view, batches)
        assert {status.state for status in known} == {"complete"}
        assert [status for status in known if status.pending or status.lost] == []
        assert [status for status in known if status.done + status.dead != status.total] == []
        waiting = [view.counts(name).waiting for name in WORK]
        assert waiting == [0, 0, 0]
        with_dead = {status.id for status in known if status.dead}
        assert {batch for batch in alarms if "/b" in batch} == with_dead
        verdict(
            "batches",
            n=len(named),
            lost=len({status.id for status in known} - set(named)),
            dup=sum(count - 1 for count in (*named.values(), *alarms.values())),
            early=early,
            resumed=len(opened),
            kills=kills,
            drained_s=round(took, 2),
        )
        assert len(named) >= batches - 2 * kills
