"""The measures, the same for every system; a failing measure prints its error as JSON."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import redis

from benchmarks.limits import server_cpu
from benchmarks.peers import recording
from benchmarks.server import dying_with_parent

#: Characters of one payload; ASCII, so also its bytes.
PAYLOAD = 200
#: Messages per second and seconds of the latency measure.
LATENCY_RATE = 200
#: The shortest and longest delay, in seconds, of the delayed measure.
DELAYS = (0.5, 2.0)
#: Milliseconds a message may come early without counting: stored times are whole milliseconds.
EARLY_SLACK = 1.0
#: Seconds an idle worker is left alone before, and watched during, the idle measure.
IDLE_SETTLE, IDLE_SECONDS = 2.0, 10.0
#: Seconds of the lease (visibility, heartbeat, job timeout) in the recovery measure.
LEASE = 10
#: Messages given to the worker that is killed.
RECOVERY_MESSAGES = 10
#: Seconds a worker may take to start and handle its first message.
START_SECONDS = 20.0
#: Messages per bulk call.
BULK = 100

_noise = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=100_000))

Result = dict[str, Any]


@dataclass
class Plan:
    """What the command line asked for."""

    url: str
    count: int
    give_up: float


class Peer(ABC):
    """One system under measure: how to send, and the commands of its own worker."""

    name: ClassVar[str]
    #: The settings chosen for this system, in words; they go into every result.
    settings: ClassVar[dict[str, str]]
    #: What a redelivery that never comes means; None when it may only be late.
    lost: ClassVar[str | None] = None
    #: Why a measure does not exist for this system.
    missing: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def send_each(self, payloads: Iterable[str]) -> None:
        """Send one by one, each call waiting for the server."""

    def send_bulk(self, payloads: list[str]) -> None:
        """Send BULK messages by the system's fastest way; see `missing` if there is none."""
        raise NotImplementedError

    @abstractmethod
    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        """Send each payload with a delay in seconds."""

    @abstractmethod
    def worker(self, measure: str) -> list[list[str]]:
        """Return the commands of the worker processes for a measure."""

    def close(self) -> None:  # noqa: B027 - most systems have nothing to free
        """Free connections."""


def script(name: str) -> str:
    """Return the path of a console script in this environment."""
    return str(Path(sys.executable).parent / name)


def payload(number: int, stamp: float) -> str:
    """Return a text that hardly compresses, headed by its number and a time stamp."""
    head = f"{number:0{recording.NUMBER}d}{stamp:0{recording.STAMP - recording.NUMBER}.6f}"
    start = number * 31 % (len(_noise) - PAYLOAD)
    return head + _noise[start : start + PAYLOAD - len(head)]


def payloads(count: int) -> list[str]:
    """Return messages made in advance, so that making them is not measured."""
    return [payload(number, 0.0) for number in range(count)]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which this share of the sorted values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def until(condition: Callable[[], bool], seconds: float, pause: float = 0.01) -> bool:
    """Wait for a condition; return whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _session_members(leaders: set[int]) -> list[int]:
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # After the name, which may hold anything: state, parent, group, session.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) in leaders and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return members


class Workers:
    """Running worker processes, each with its descendants in a session of its own."""

    def __init__(self, commands: list[list[str]], plan: Plan, **extra: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bench-record-"))
        environment = {**os.environ, recording.URL: plan.url, **extra}
        environment[recording.DIRECTORY] = str(self.directory)
        self._log = (self.directory / "log").open("w+b")
        self._processes = [
            subprocess.Popen(
                dying_with_parent(command),
                env=environment,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command in commands
        ]

    def handled(self, count: int, seconds: float) -> None:
        """Wait until this many messages ran; stop waiting early when a worker died."""

        def reached() -> bool:
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"a worker ended by itself:\n{self.log()}")
            return recording.count(self.directory) >= count

        if not until(reached, seconds):
            done = recording.count(self.directory)
            raise TimeoutError(f"{done} of {count} handled in {seconds} s; {self.log()}")

    def log(self) -> str:
        """Return the end of what the workers printed."""
        self._log.flush()
        return (self.directory / "log").read_text(errors="replace")[-1500:]

    def kill(self) -> None:
        """Kill -9 the processes with all their descendants."""
        leaders = {process.pid for process in self._processes}
        # By session, because some workers put their children into other process groups; until
        # none is left, because a child may be born while we look.
        while members := _session_members(leaders):
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            for process in self._processes:
                process.poll()
            time.sleep(0.005)
        for process in self._processes:
            process.wait()

    def close(self) -> None:
        """Kill what runs and forget what was noted."""
        self.kill()
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def workers(peer: Peer, measure: str, plan: Plan, **extra: str) -> Iterator[Workers]:
    """Run the system's workers for the time of a measure."""
    running = Workers(peer.worker(measure), plan, **extra)
    try:
        yield running
    finally:
        running.close()


def fill(peer: Peer, messages: list[str]) -> None:
    """Store waiting messages the quickest way the system has."""
    if "send_bulk" in peer.missing:
        peer.send_each(messages)
        return
    for start in range(0, len(messages), BULK):
        peer.send_bulk(messages[start : start + BULK])


def _timed(client: redis.Redis, count: int, work: Callable[[], None]) -> Result:
    server, mine, start = server_cpu(client), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return {
        "per_second": count / seconds,
        "client_us": (time.process_time() - mine) / count * 1e6,
        "server_us": (server_cpu(client) - server) / count * 1e6,
    }


def send(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Sends per second, one by one."""
    peer.send_each(payloads(BULK))
    messages = payloads(plan.count)
    return _timed(client, plan.count, lambda: peer.send_each(messages))


def send_bulk(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Sends per second by the system's fastest way."""
    fill(peer, payloads(BULK))
    messages = payloads(plan.count)
    return _timed(client, plan.count, lambda: fill(peer, messages))


def consume(peer: Peer, plan: Plan, client: redis.Redis, measure: str = "consume") -> Result:
    """Messages received, run and acknowledged per second, from the first to the last."""
    fill(peer, payloads(plan.count))
    server = server_cpu(client)
    with workers(peer, measure, plan) as running:
        running.handled(1, START_SECONDS)
        running.handled(plan.count, plan.give_up)
        by_process = recording.entries(running.directory)
    noted = sorted(entry for process in by_process for entry in process)
    cpu = sum(process[-1].cpu - process[0].cpu for process in by_process)
    return {
        "per_second": (len(noted) - 1) / (noted[-1].at - noted[0].at),
        "processes": len(by_process),
        "repeated": len(noted) - len({entry.number for entry in noted}),
        "client_us": cpu / len(noted) * 1e6,
        "server_us": (server_cpu(client) - server) / len(noted) * 1e6,
    }


def consume_best(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """The same with as many processes as serve the system best."""
    return consume(peer, plan, client, "consume_best")


def _warm(peer: Peer, running: Workers) -> None:
    peer.send_each([payload(0, 0.0)])
    running.handled(1, START_SECONDS)


def latency(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Milliseconds from the send call to the handler's start, at a steady rate."""

    def paced() -> Iterator[str]:
        start = time.monotonic()
        for number in range(1, plan.count + 1):
            time.sleep(max(0.0, start + number / LATENCY_RATE - time.monotonic()))
            yield payload(number, time.monotonic())

    with workers(peer, "latency", plan) as running:
        _warm(peer, running)
        peer.send_each(paced())
        running.handled(plan.count + 1, plan.give_up)
        noted = [entry for process in recording.entries(running.directory) for entry in process]
    times = [(entry.at - entry.stamp) * 1000 for entry in noted if entry.number]
    return {"p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99)}


def memory(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Server bytes per waiting message."""
    peer.send_each([payload(0, 0.0)])
    before = client.info("memory")["used_memory"]
    fill(peer, payloads(plan.count))
    peer.close()
    return {"bytes": (client.info("memory")["used_memory"] - before) / plan.count}


def idle(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Commands per second an idle worker costs the server."""
    with workers(peer, "idle", plan) as running:
        _warm(peer, running)
        peer.close()
        time.sleep(IDLE_SETTLE)
        before = client.info("stats")["total_commands_processed"]
        time.sleep(IDLE_SECONDS)
        # The count an INFO reports leaves out itself, so exactly one of ours is in between.
        commands = client.info("stats")["total_commands_processed"] - before - 1
    return {"per_second": commands / IDLE_SECONDS}


def delayed(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Milliseconds between a delayed message's due time and its handler's start."""
    chance = random.Random(2)

    def spread() -> Iterator[tuple[str, float]]:
        for number in range(1, plan.count + 1):
            wait = chance.uniform(*DELAYS)
            yield payload(number, time.monotonic() + wait), wait

    with workers(peer, "delayed", plan) as running:
        _warm(peer, running)
        peer.send_later(spread())
        running.handled(plan.count + 1, plan.give_up)
        noted = [entry for process in recording.entries(running.directory) for entry in process]
    late = [(entry.at - entry.stamp) * 1000 for entry in noted if entry.number]
    early = sum(value < -EARLY_SLACK for value in late)
    return {"p50_ms": percentile(late, 0.5), "p99_ms": percentile(late, 0.99), "early": early}


def recovery(peer: Peer, plan: Plan, client: redis.Redis) -> Result:
    """Seconds from a worker's first message, after which it is killed, to its last redelivery."""
    os.environ[recording.LEASE] = str(LEASE)
    with workers(peer, "recovery", plan, **{recording.HANG: "3600"}) as doomed:
        peer.send_each(payloads(RECOVERY_MESSAGES))
        doomed.handled(1, START_SECONDS)
        # Time to prefetch what it wants; far below the lease.
        time.sleep(0.5)
        doomed.kill()
        taken = [entry for process in recording.entries(doomed.directory) for entry in process]
        first = min(entry.at for entry in taken)
        with workers(peer, "recovery", plan) as heir:

            def missing() -> set[int]:
                noted = recording.entries(heir.directory)
                done = {entry.number for process in noted for entry in process}
                return set(range(RECOVERY_MESSAGES)) - done

            left = plan.give_up - (time.monotonic() - first)
            recovered = until(lambda: not missing(), left, 0.05)
            still = len(missing())
            noted = [entry for process in recording.entries(heir.directory) for entry in process]
    seconds: float | str = max((entry.at for entry in noted), default=first) - first
    if not recovered:
        seconds = peer.lost or f">{plan.give_up:g}"
    hung = {entry.number for entry in taken}
    again = min((entry.at for entry in noted if entry.number in hung), default=None)
    return {
        "seconds": seconds,
        "first_seconds": again and again - first,
        "taken": len(taken),
        "undelivered": still,
    }


MEASURES: dict[str, Callable[[Peer, Plan, redis.Redis], Result]] = {
    "send": send,
    "send_bulk": send_bulk,
    "consume": consume,
    "consume_best": consume_best,
    "latency": latency,
    "memory": memory,
    "idle": idle,
    "delayed": delayed,
    "recovery": recovery,
}


def _interrupted(number: int, frame: object) -> None:
    raise SystemExit(f"ended by signal {number}")


def main(make: Callable[[str], Peer]) -> None:
    """Run one measure and print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--give-up", type=float, default=30.0, help="seconds to wait for handlers")
    arguments = parser.parse_args()
    # So that a time-out from outside still ends the workers.
    signal.signal(signal.SIGTERM, _interrupted)
    plan = Plan(arguments.url, arguments.count, arguments.give_up)
    client = redis.Redis.from_url(arguments.url)
    peer = make(arguments.url)
    result: Result = {"peer": peer.name, "measure": arguments.measure, "count": arguments.count}
    reason = peer.missing.get(arguments.measure)
    try:
        if reason:
            result |= {"value": None, "reason": reason}
        else:
            value = MEASURES[arguments.measure](peer, plan, client)
            result |= {"value": value, "settings": peer.settings}
    except Exception as error:
        result |= {"value": None, "error": f"{type(error).__name__}: {error}"}
    finally:
        peer.close()
    print(json.dumps(result), flush=True)
