"""Rows 15-18, 22, 23, 31: the server is killed, down, silent, loading, full, wrongly set up, or forgets its scripts."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest

import restante
from restante import Admin, Client, NotReady, QueueFull, State, Unavailable, UnsafeServer
from restante.core import doctor
from tests.faults.rows import (
    count_from_journal,
    drain,
    history_faults,
    keep_whole_journal,
    missing,
    never_run,
    places,
    verdict,
    wait_until,
)
from tests.faults.workers import Worker, runs_of, told_by
from tests.harness.clock import FrozenClock
from tests.harness.servers import HOST, RedisServer, call, closed_port, debian_binary


@pytest.mark.parametrize("fsync", ["everysec", "always"])
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_a_killed_server_loses_nothing_confirmed_and_consumers_go_on(
    binary: Path, name: str, fsync: Literal["everysec", "always"], kills: int
) -> None:
    with contextlib.ExitStack() as ending:
        # With `everysec` Redis answers before it writes while the disk is busy with the last second, for up to two
        # seconds, and a kill then loses what it answered. In memory no write is slow.
        quick = Path("/dev/shm") if fsync == "everysec" and Path("/dev/shm").is_dir() else None
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(dir=quick)))
        server = ending.enter_context(RedisServer(binary, appendonly=fsync, directory=folder))
        post = ending.enter_context(restante.connect(server.url, patience=15))
        queue = post.queue(name, lease=5)
        keep_whole_journal(queue)
        sent = [queue.send("first")]
        # One repeats its calls over the whole outage, the other gives each up and must keep what it carried.
        workers = [
            ending.enter_context(Worker(server.url, name, seconds=0.002, concurrency=2, client={"patience": patience}))
            for patience in (4.0, 0.2)
        ]
        for worker in workers:
            worker.wait_line("up")
        over = threading.Event()

        def produce() -> None:
            while not over.is_set():
                sent.append(queue.send(len(sent)))

        producer = threading.Thread(target=produce)
        producer.start()
        recoveries = []
        for _ in range(kills):
            time.sleep(0.5)
            server.kill9()
            time.sleep(0.7)
            server.start()
            back = time.monotonic()
            recoveries.append(
                wait_until(lambda: any(line.at > back for line in told_by(workers, "start")), 20, "resuming")  # noqa: B023 (called at once)
            )
        over.set()
        producer.join()
        view = Admin(post)
        wait_until(lambda: view.counts(name).waiting == 0, 60, "draining")
        assert all(worker.returncode is None for worker in workers)
        runs = runs_of(workers)
        verdict(
            15,
            n=len(sent),
            lost=missing(sent, [id for id, _ in runs]),
            # The consumers live and renew: only what they never heard of may come again.
            **history_faults(view, name, runs, excused=never_run(runs)),
            max_recovery_s=max(recoveries),
            within_s=2.0,
            fsync=fsync,
        )
        count_from_journal(post, name)


def test_without_an_append_only_file_a_kill_loses_everything_and_the_count_says_so(name: str) -> None:
    with RedisServer(debian_binary()) as server, restante.connect(server.url, patience=10) as post:
        sent = post.queue(name).send_many(list(range(50)))
        warned = {one.what: one.level for one in doctor.examine(post)}
        server.kill9()
        server.start()
        lost = missing(sent, drain(post, name))
    assert warned["persistence"] == "danger"
    assert lost == 50  # what the other rows count as lost is really counted
    verdict(16, n=50, counted_lost=lost)


@pytest.mark.timed
def test_a_server_that_is_down_at_the_start_is_a_clear_error_within_5_seconds(name: str) -> None:
    url = f"redis://{HOST}:{closed_port()}"
    slowest = 0.0
    for attempt in (_send, _consume, _look):
        started = time.monotonic()
        with restante.connect(url) as post, pytest.raises(Unavailable, match="cannot be reached"):
            attempt(post, name)
        slowest = max(slowest, time.monotonic() - started)
    verdict("15b", n=3, max_recovery_s=slowest, within_s=5.0)


def _send(post: Client, name: str) -> None:
    post.queue(name).send("x")


def _consume(post: Client, name: str) -> None:
    queue = post.queue(name)
    queue.handler(print)
    restante.Consumer([queue]).run()


def _look(post: Client, name: str) -> None:
    Admin(post).counts(name)


@pytest.mark.timed
def test_a_server_silent_for_longer_than_a_lease_doubles_nothing_and_is_served_again_at_once(name: str) -> None:
    """Its clock stands still meanwhile: by clients' clocks every lease has ended, by the one that counts none has."""
    lease, work = 0.5, 0.8
    # Calls fail during the silence, so that a lease may be given to a consumer that no longer listens.
    client = {"socket_timeout": 0.5, "connect_timeout": 0.3, "patience": 0.5}
    with (
        FrozenClock() as clock,
        RedisServer(debian_binary(), clock=clock) as server,
        restante.connect(server.url, patience=15) as post,
    ):
        queue, view = post.queue(name, lease=lease), Admin(post)
        sent = queue.send_many(list(range(16)))
        with Worker(server.url, name, seconds=work, concurrency=4, client=client) as worker:
            worker.wait_line("start")
            server.pause()
            time.sleep(2 * work)  # what runs ends meanwhile, after its lease by the worker's own clock
            server.resume()
            back = time.monotonic()
            sent.append(queue.send("after"))
            wait_until(lambda: any(line.at > back for line in worker.said("start")), 10, "work after the silence")
            recovery = time.monotonic() - back
            wait_until(lambda: view.counts(name).ready == 0, 30, "serving")
            worker.terminate()
            assert worker.wait() == 0
        counts = view.counts(name)
        assert counts.totals["expired"] == 0
        assert "lease lost" not in worker.stderr
        # What was given to nobody comes again when its lease has ended by the server's clock.
        clock.advance(lease)
        ids = [*(line.id for line in worker.said("start")), *drain(post, name)]
        verdict(
            17,
            n=len(sent),
            lost=missing(sent, ids),
            dup=len(ids) - len(set(ids)),
            max_recovery_s=recovery,
            within_s=2.0,
            given_to_nobody=counts.leased,
        )
        count_from_journal(post, name)


def test_a_loading_server_is_not_ready_and_then_goes_on(name: str) -> None:
    # The pause between two keys of the loading makes any small file a big one.
    slowly = {"key-load-delay": "200", "loading-process-events-interval-bytes": "1024"}
    with RedisServer(debian_binary(), appendonly="everysec", config=slowly) as server:
        with restante.connect(server.url) as post:
            queue = post.queue(name)
            sent = queue.send_many(list(range(200)))
        call(server.client(), "DEBUG", "POPULATE", 10_000)
        call(server.client(), "BGREWRITEAOF")
        wait_until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", 20, "rewriting")
        with Worker(server.url, name, client={"patience": 1.0}) as worker:
            worker.wait_line("end")
            wait_until(lambda: len(worker.said("end")) == 200, 20, "the first batch")
            with restante.connect(server.url) as post:
                sent += post.queue(name).send_many(list(range(300)), delay=3)
            server.kill9()
            server.start(wait=False)
            with restante.connect(server.url, patience=0.3) as hasty, pytest.raises(NotReady):
                hasty.queue(name).send("not now")
            wait_until(lambda: server.info("persistence").get("loading") == "0", 60, "loading")
            wait_until(lambda: len({line.id for line in worker.said("end")}) == 500, 30, "the second batch")
            assert worker.returncode is None
            ids = [line.id for line in worker.said("start")]
        verdict(18, n=500, lost=missing(sent, ids), dup=len(ids) - len(set(ids)))
        with restante.connect(server.url) as post:
            count_from_journal(post, name)


def test_a_full_server_refuses_sends_and_its_backlog_is_drained_to_nothing(binary: Path, name: str) -> None:
    with RedisServer(binary) as server, restante.connect(server.url) as post:
        queue = post.queue(name, max_attempts=2, lease=30)
        sent = queue.send_many(["x" * 1000] * 600)
        later = queue.send_many(["y" * 1000] * 50, delay=0.5)
        time.sleep(0.6)
        call(server.client(), "CONFIG", "SET", "maxmemory", str(max(1, server.used_memory() - 200_000)))
        for payload in ("z", "z" * 10_000):
            with pytest.raises(QueueFull, match="maxmemory"):
                queue.send(payload)
        with pytest.raises(QueueFull):
            queue.send_many(["z"] * 10)
        view = Admin(post)
        fates: dict[str, str] = {}
        place = 0
        while taken := queue.receive_many(50):
            for message in taken:
                verb = ("ack", "bury", "nack", "release", "extend")[place % 5] if message.attempts == 1 else "ack"
                place += 1
                if verb == "extend":
                    message.extend()
                    verb = "ack"
                if verb == "release" and fates.get(message.id) == "released":
                    verb = "ack"
                if verb == "nack":
                    message.nack(delay=0, error=ValueError("x" * 2000))
                elif verb == "bury":
                    message.bury(error=ValueError("x" * 2000))
                    fates[message.id] = "dead"
                elif verb == "release":
                    message.release()
                    fates[message.id] = "released"
                else:
                    message.ack()
                    fates[message.id] = "acked"
        counts = view.counts(name)
        assert (counts.ready, counts.scheduled, counts.retrying, counts.leased) == (0, 0, 0, 0)
        dead = {id for id, states in places(view, name).items() if states == [State.DEAD]}
        assert dead == {id for id, fate in fates.items() if fate == "dead"}
        lost = missing([*sent, *later], fates)
        # An operator can still act.
        assert view.purge(name, [State.DEAD]) == len(dead)
        call(server.client(), "CONFIG", "SET", "maxmemory", "0")
        queue.send("room again")
        assert len(drain(post, name)) == 1
        verdict(22, n=650, lost=lost, server=".".join(map(str, server.version)))
        count_from_journal(post, name)


def test_an_expired_lease_at_maxmemory_still_dies_with_its_reason(binary: Path, name: str) -> None:
    with RedisServer(binary) as server, restante.connect(server.url) as post:
        queue = post.queue(name, max_attempts=1, lease=0.2)
        sent = queue.send_many(["x" * 1000] * 20)
        queue.receive_many(20)
        time.sleep(0.3)
        call(server.client(), "CONFIG", "SET", "maxmemory", "1")
        assert queue.receive() is None
        view = Admin(post)
        assert view.counts(name).dead == 20
        assert view.show(name, sent[0]).history[0].event.value == "expired"
        verdict("22b", n=20)
        count_from_journal(post, name)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "allkeys-lfu"])
def test_a_server_that_would_evict_messages_is_refused(policy: str, name: str) -> None:
    with RedisServer(debian_binary(), config={"maxmemory-policy": policy}) as server:
        with restante.connect(server.url) as post, pytest.raises(UnsafeServer, match=policy):
            post.queue(name).send("x")
        with restante.connect(server.url, allow_eviction=True) as told:
            told.queue(name).send("x")
        assert call(server.client(), "SCARD", "restante:queues") == 1
    verdict(23, n=1, policy=policy)


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.chaos)])
def test_forgotten_scripts_are_no_error_to_anybody(name: str, seconds: float) -> None:
    with RedisServer(debian_binary()) as server, contextlib.ExitStack() as ending:
        post = ending.enter_context(restante.connect(server.url))
        queue = post.queue(name)
        workers = [ending.enter_context(Worker(server.url, name, concurrency=2)) for _ in range(2)]
        for worker in workers:
            worker.wait_line("up")
        errors: list[Exception] = []
        sent: list[str] = []
        until = time.monotonic() + seconds

        def produce() -> None:
            while time.monotonic() < until:
                try:
                    sent.append(queue.send(len(sent)))
                    sent.extend(queue.send_many([1, 2, 3], durability="memory"))
                except Exception as error:
                    errors.append(error)
                time.sleep(0.005)  # many calls between two flushes still, and no core taken

        producer = threading.Thread(target=produce)
        producer.start()
        flusher: Any = server.client()
        flushes = 0
        while time.monotonic() < until:
            call(flusher, "SCRIPT", "FLUSH")
            flushes += 1
            time.sleep(0.1)
        producer.join()
        view = Admin(post)
        wait_until(lambda: view.counts(name).waiting == 0, 30, "draining")
        ids = [line.id for line in told_by(workers, "start")]
        assert not errors
        assert not any("failed" in worker.stderr for worker in workers)
        verdict(31, n=len(sent), lost=missing(sent, ids), dup=len(ids) - len(set(ids)), flushes=flushes)
        count_from_journal(post, name)
