"""Measures Restante on a server: rates, latency, lateness, memory, idle cost, recovery and growth with depth.

Rates are measured in short rounds that alternate with the server's own limit (`redis-benchmark` SET, one connection, no
pipeline: "rb1"), and medians are compared. Machines are shared and noisy, but ratios within one run are comparable.
The benchmark uses its own queues; on failure they are dropped too.
"""

from __future__ import annotations

import csv
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from restante.connecting import connect
from restante.core.admin import Admin
from restante.core.call_retry import info
from restante.core.consumer import Consumer
from restante.core.keys import QUEUES
from restante.core.message import State, new_id
from restante.core.queue import Client, Queue
from restante.core.scripts import pack

#: Bytes of each payload, as JSON text.
PAYLOAD_BYTES = 200
_PAYLOAD = "x" * (PAYLOAD_BYTES - 2)
#: Seconds of lease in the recovery measure: long compared with the reaction to its end.
RECOVERY_LEASE = 2.0


@dataclass(slots=True)
class Row:
    """A measured figure."""

    name: str
    value: float
    unit: str
    #: For rates: the ratio to the server's own limit.
    ratio: float | None = None
    #: CPU microseconds per message, of the server and of the client.
    server_us: float | None = None
    client_us: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


Step = Callable[[str], None]


def server_info(post: Client, section: str) -> dict[str, str]:
    """Returns a section of INFO."""
    return info(post.connection.command("INFO", section, key=QUEUES))


def server_cpu(post: Client) -> float:
    """Returns the CPU seconds that the server has used."""
    cpu = server_info(post, "cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


@contextmanager
def scratch(post: Client, **options: Any) -> Iterator[Queue]:
    """A temporary queue, dropped at the end."""
    queue = post.queue(f"restante-bench-{new_id()}", **options)
    try:
        yield queue
    finally:
        admin = Admin(post, operator="bench")
        admin.purge(queue.name)
        keys = queue.ref.keys
        post.connection.command("UNLINK", *keys.by_name.values(), key=keys["queue"])
        post.connection.command("SREM", QUEUES, queue.name, key=QUEUES)


def redis_limit(post: Client, count: int = 5000) -> float:
    """Requests per second of consecutive SETs without a pipeline, by redis-benchmark or the client's own connection."""
    parts = urlsplit(post.url)
    if shutil.which("redis-benchmark") and parts.scheme in ("redis", "unix") and not parts.password:
        where = (
            ["-s", parts.path]
            if parts.scheme == "unix"
            else ["-h", parts.hostname or "", "-p", str(parts.port or 6379)]
        )
        command = ["redis-benchmark", *where, "-c", "1", "-P", "1", "-t", "set", "-d", str(PAYLOAD_BYTES)]
        done = subprocess.run([*command, "-n", str(count), "--csv"], capture_output=True, text=True, timeout=120)
        for row in csv.DictReader(done.stdout.splitlines()):
            if row.get("test") == "SET":
                return float(row["rps"])
    link = post.connection.drive(post.connection.pool.dedicated(b"restante:bench"))
    packed = pack(("SET", "restante:bench", "x" * PAYLOAD_BYTES))
    started = time.perf_counter()
    for _ in range(count):
        link.call(packed)
    rate = count / (time.perf_counter() - started)
    link.call(pack(("DEL", "restante:bench")))
    link.close()
    return rate


def _each(queue: Queue, count: int) -> None:
    for _ in range(count):
        queue.send(_PAYLOAD)


def _batches(queue: Queue, count: int) -> None:
    batch = [_PAYLOAD] * 100
    for _ in range(count // 100):
        queue.send_many(batch)


def _ride(queue: Queue, size: int, count: int) -> None:
    acks: list[Any] = []
    for _ in range(count // size):
        acks = queue.receive_many(size, acks=acks)
    if acks:
        queue.ack_many(acks)


def _apart(queue: Queue, count: int) -> None:
    for _ in range(count):
        message = queue.receive()
        assert message is not None
        message.ack()


def _iterate(queue: Queue, count: int) -> None:
    for message in queue.consume(stop_when_empty=True):
        with message:
            pass


def _handle(queue: Queue, count: int) -> None:
    queue.handlers = {None: lambda message: None}
    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert consumer.handled == count


#: Name, messages per round, whether to fill the queue before, the function to time.
RATES: tuple[tuple[str, int, bool, Callable[[Queue, int], None]], ...] = (
    ("send one by one", 500, False, _each),
    ("send in batches of 100", 5000, False, _batches),
    ("receive+ack one by one", 500, True, lambda queue, count: _ride(queue, 1, count)),
    ("receive, then ack, one by one", 300, True, _apart),
    ("receive+ack in batches of 100", 5000, True, lambda queue, count: _ride(queue, 100, count)),
    ("consume() with a no-op body", 10000, True, _iterate),
    ("consumer with a no-op handler", 10000, True, _handle),
)


def rates(post: Client, step: Step, rounds: int = 7, **options: Any) -> list[Row]:
    """Messages per second of each way to send and receive: medians of alternating rounds, with CPU cost per message."""
    rounds_of: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name, *_ in RATES}
    limits = []
    with scratch(post, **options) as queue:
        for number in range(rounds):
            step(f"rates, round {number + 1} of {rounds}")
            for name, count, fill, work in RATES:
                limit = redis_limit(post)
                limits.append(limit)
                if fill:
                    _batches(queue, count + 100)
                    if work in (_iterate, _handle):
                        _ride(queue, 100, 100)
                server, client, started = server_cpu(post), time.process_time(), time.perf_counter()
                work(queue, count)
                wall = time.perf_counter() - started
                rounds_of[name].append(
                    (
                        count / wall,
                        count / wall / limit,
                        (server_cpu(post) - server) / count * 1e6,
                        (time.process_time() - client) / count * 1e6,
                    )
                )
                Admin(post, operator="bench").purge(queue.name)
    rows = [Row("redis-benchmark SET, -c 1 -P 1 (rb1)", statistics.median(limits), "requests/s", 1.0)]
    for name, samples in rounds_of.items():
        rate, ratio, server, client = (statistics.median(column) for column in zip(*samples, strict=True))
        best = max(sample[1] for sample in samples)
        rows.append(Row(name, rate, "messages/s", ratio, server, client, {"best_ratio": best, "rounds": len(samples)}))
    return rows


def memory(post: Client, step: Step, count: int = 20_000) -> list[Row]:
    """Server bytes per waiting message without the journal, and per journal line."""
    per_message = []
    for level in ("off", "full"):
        step(f"memory, journal {level}")
        with scratch(post, journal=level) as queue:
            while int(server_info(post, "memory").get("lazyfree_pending_objects", 0)):
                time.sleep(0.05)  # the server frees the keys of earlier measures in the background
            before = int(server_info(post, "memory")["used_memory"])
            _batches(queue, count)
            per_message.append((int(server_info(post, "memory")["used_memory"]) - before) / count)
    return [
        Row("server memory per waiting message, no journal", per_message[0], "bytes"),
        Row("server memory per journal line", per_message[1] - per_message[0], "bytes"),
    ]


def journal_cost(post: Client, step: Step, rounds: int = 3) -> list[Row]:
    """The cost of the journal: server CPU per message sent, received and acked, at each level."""
    rows = []
    for level in ("off", "terminal", "full"):
        step(f"journal {level}")
        samples = []
        with scratch(post, journal=level) as queue:
            for _ in range(rounds):
                started = server_cpu(post)
                _batches(queue, 10_000)
                _ride(queue, 100, 10_000)
                samples.append((server_cpu(post) - started) / 10_000 * 1e6)
        rows.append(Row(f"send+receive+ack in batches, journal {level}", min(samples), "server CPU µs/message"))
    return rows


_CONSUMER = """
import sys, time
from restante.connecting import connect
post = connect(sys.argv[1])
queue = post.queue(sys.argv[2])
print("ready", flush=True)
for message in queue.consume():
    with message:
        now = time.time()
        print(message.payload, now, message.attempts, flush=True)
        if sys.argv[3:] == ["hang"]:
            time.sleep(3600)
"""


class _Watcher:
    """A consumer in a separate process, which prints each message and when it arrived."""

    def __init__(self, post: Client, queue: Queue, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONSUMER, post.url, queue.name, *words], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def read(self) -> tuple[float, float, int]:
        """Returns the payload, the time of arrival and the attempt of the next message."""
        assert self.process.stdout is not None
        text, at, attempts = self.process.stdout.readline().split()
        return float(text), float(at), int(attempts)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def _quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def latency(post: Client, step: Step, seconds: float = 10.0, rate: float = 200.0) -> list[Row]:
    """Milliseconds from send to handler at a steady rate, between two processes."""
    step("latency")
    with scratch(post) as queue:
        watcher = _Watcher(post, queue)
        late: list[float] = []
        total = int(seconds * rate)

        def collect() -> None:
            for _ in range(total):
                sent, at, _ = watcher.read()
                late.append((at - sent) * 1000)

        reader = threading.Thread(target=collect)
        reader.start()
        started = time.monotonic()
        for number in range(total):
            wait = started + number / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            queue.send(time.time())
        reader.join(30)
        watcher.close()
    middle, high = _quantiles(late)
    return [Row("latency p50 at 200/s", middle, "ms"), Row("latency p99 at 200/s", high, "ms")]


def lateness(post: Client, step: Step, count: int = 300) -> list[Row]:
    """Milliseconds by which delayed messages reach an idle consumer late, and how many arrive early."""
    step("delayed messages")
    with scratch(post) as queue:
        watcher = _Watcher(post, queue)
        for number in range(count):
            delay = 0.5 + number * 0.01
            queue.send(time.time() + delay, delay=delay)
        late = []
        for _ in range(count):
            due, at, _ = watcher.read()
            late.append((at - due) * 1000)
        watcher.close()
    middle, high = _quantiles(late)
    # By the server's clock the message is due a round trip after the time measured here, so a negative value is early.
    early = sum(1 for milliseconds in late if milliseconds < 0)
    return [
        Row("delayed: lateness p50", middle, "ms"),
        Row("delayed: lateness p99", high, "ms"),
        Row("delayed: early", early, f"of {count}"),
    ]


def idle(post: Client, step: Step, seconds: float = 20.0) -> list[Row]:
    """Commands per second that one idle consumer sends."""
    step("idle consumer")
    with scratch(post) as queue:
        watcher = _Watcher(post, queue)
        time.sleep(1)
        before = int(server_info(post, "stats")["total_commands_processed"])
        time.sleep(seconds)
        # Without the INFO command itself.
        count = int(server_info(post, "stats")["total_commands_processed"]) - before - 1
        watcher.close()
    return [Row("idle commands per consumer", max(0, count) / seconds, "per second")]


def recovery(post: Client, step: Step, held: int = 10_000, backlog: int = 100_000) -> list[Row]:
    """Milliseconds from the end of a killed consumer's lease to redelivery, in an idle queue and in a full one."""
    rows = []
    for name, crowd, ready in (("idle", 0, 0), (f"behind {held:,} leases and {backlog:,} ready", held, backlog)):
        step(f"recovery, {name}")
        with scratch(post, lease=RECOVERY_LEASE) as queue:
            if crowd:
                _batches(queue, crowd)
                for _ in range(crowd // 1000):
                    queue.receive_many(1000, lease=3600)
                _batches(queue, ready)
            queue.send(time.time(), priority=255)
            taker = _Watcher(post, queue, "hang")
            taker.read()
            first_expiry = Admin(post).messages(queue.name, State.LEASED).messages[0].expires_ms
            taker.process.kill()
            taker.process.wait()
            assert taker.process.stdout is not None
            taker.process.stdout.close()
            while True:
                got = queue.receive_many(1, timeout=30)
                if got and got[0].attempts > 1:
                    break
                if got:
                    queue.ack_many(got)
            # By the server's clock: from the end of the lease to the next lease.
            again = got[0]
            ended = again.received_ms - first_expiry
            rows.append(Row(f"redelivery after a lease ends, {name}", ended, "ms"))
            queue.ack_many(got)
            _release_all(post, queue)
    return rows


def _release_all(post: Client, queue: Queue) -> None:
    """Removes the leases of an hour, which would prevent a purge of the queue."""
    post.connection.command("UNLINK", queue.ref.keys["leased"], key=queue.ref.keys["leased"])


def growth(post: Client, step: Step, depths: tuple[int, ...] = (1_000, 1_000_000), rounds: int = 7) -> list[Row]:
    """Server CPU per message, send and receive+ack in batches of 100, as the queue grows."""
    rows = []
    count = 5_000
    with scratch(post, journal_keep=10_000) as queue:
        filled = 0
        for depth in depths:
            step(f"growth, depth {depth:,}")
            while filled < depth:
                queue.send_many([_PAYLOAD] * min(1000, depth - filled))
                filled += min(1000, depth - filled)
            samples = []
            for _ in range(rounds):
                first = server_cpu(post)
                _batches(queue, count)
                second = server_cpu(post)
                _ride(queue, 100, count)
                samples.append(((second - first) / count * 1e6, (server_cpu(post) - second) / count * 1e6))
            sends, takes = (min(column) for column in zip(*samples, strict=True))
            detail = {"send": sends, "receive+ack": takes}
            rows.append(Row(f"cost at depth {depth:,}", sends + takes, "server CPU µs/message", detail=detail))
    rows.append(Row(f"cost at {depths[-1]:,} against {depths[0]:,}", rows[-1].value / rows[0].value, "times"))
    return rows


def run(url: str, *, quick: bool = False, step: Step = lambda text: None) -> list[Row]:
    """Runs every measure on the server at `url`."""
    with connect(url, consumer="bench") as post:
        return [
            *rates(post, step, 3 if quick else 9),
            *memory(post, step, 5_000 if quick else 20_000),
            *journal_cost(post, step, 2 if quick else 5),
            *latency(post, step, 2 if quick else 10),
            *lateness(post, step, 50 if quick else 300),
            *idle(post, step, 5 if quick else 20),
            *recovery(post, step, 1_000 if quick else 10_000, 5_000 if quick else 1_000_000),
            *growth(post, step, (1_000, 20_000) if quick else (1_000, 1_000_000), 3 if quick else 7),
        ]
