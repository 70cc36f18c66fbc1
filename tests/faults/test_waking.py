"""Rows 44-46 and forks: idle herds, hidden leases, several sweepers, and one client in two processes."""

from __future__ import annotations

import os
import threading
import time

import pytest

import restante
from restante import Admin, Client, Sweeper
from restante.core import pool
from restante.core import queue as queue_module
from tests.faults.rows import count_from_journal, drain, missing, script_calls, verdict, wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer, debian_binary


def blocked(server: RedisServer) -> int:
    return int(server.info("clients")["blocked_clients"])


def test_one_message_wakes_at_most_two_of_two_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sleepers look again by themselves every few seconds; here they do not, so that every look was caused by a message.
    for module in (pool, queue_module):
        monkeypatch.setattr(module, "BLOCK", PATIENCE)
    sleepers, messages = 200, 5
    with (
        RedisServer(debian_binary(), config={"maxclients": "2000"}) as server,
        restante.connect(server.url, idle_connections=500) as post,
    ):
        queue = post.queue("herd", lease=3600)
        queue.send("warm")
        drain(post, "herd")
        got: list[object] = []

        def wait() -> None:
            got.append(queue.receive(timeout=2 * PATIENCE))

        threads = [threading.Thread(target=wait, daemon=True) for _ in range(sleepers)]
        for thread in threads:
            thread.start()
        wait_until(lambda: blocked(server) == sleepers, 30, "two hundred waiting")
        woken = []
        for number in range(messages):
            before = script_calls(server)
            queue.send("one")
            asleep = sleepers - number - 1
            wait_until(lambda: len(got) == sleepers - asleep and blocked(server) == asleep, 10, "the delivery")  # noqa: B023 (called at once)
            woken.append(script_calls(server) - before - 1)
        queue.send_many(["go home"] * sleepers)
        for thread in threads:
            thread.join(PATIENCE)
        assert None not in got
        assert max(woken) <= 2
        verdict(44, n=sleepers, woken=max(woken))
        count_from_journal(post, "herd")


@pytest.mark.parametrize("ready", [0, 5000])
@pytest.mark.timed
def test_an_expired_lease_behind_ten_thousand_long_ones_comes_back_at_once(
    server: RedisServer, post: Client, name: str, ready: int
) -> None:
    queue = post.queue(name)
    for _ in range(10):
        queue.send_many(["long"] * 1000)
        assert len(queue.receive_many(1000, lease=3600)) == 1000
    id = queue.send("short", priority=9)
    short = queue.receive(lease=0.5)
    assert short is not None
    for start in range(0, ready, 1000):
        queue.send_many([start] * 1000)
    lateness = []
    message = short
    for _ in range(3):
        assert message.lease_expires_at is not None
        expires = message.lease_expires_at
        again = None
        while again is None or again.id != id:
            if again is not None:
                again.release()
                time.sleep(0.01)
            again = queue.receive(timeout=5, lease=0.5)
        assert again.received_at is not None
        lateness.append((again.received_at - expires).total_seconds())
        message = again
    assert message.attempts == 4
    verdict(46, n=10_001, max_recovery_s=max(lateness), within_s=1.0, early=sum(1 for late in lateness if late < 0))


def test_sweepers_that_run_at_once_double_nothing(server: RedisServer, post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, max_attempts=3)
    sent = queue.send_many(list(range(900)), delay=0.3)
    held = queue.send_many(list(range(900)))
    assert len(queue.receive_many(900, lease=0.3)) == 900
    posts = [restante.connect(server.url) for _ in range(3)]
    sweepers = [Sweeper(opened, (name,)) for opened in posts]
    threads = [sweeper.start() for sweeper in sweepers]
    wait_until(lambda: view.counts(name).ready == 1800, 20, "sweeping")
    for sweeper in sweepers:
        sweeper.stop()
    for thread, opened in zip(threads, posts, strict=True):
        thread.join(PATIENCE)
        opened.close()
    totals = view.counts(name).totals
    assert (totals["promoted"], totals["expired"]) == (900, 900)
    seen = drain(post, name)
    verdict(45, n=1800, lost=missing([*sent, *held], seen), dup=len(seen) - len(set(seen)))


def test_a_queue_nobody_consumes_is_swept_in_time(server: RedisServer, post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, max_attempts=1)
    queue.send("later", delay=0.4)
    queue.send("crashed")
    assert queue.receive(lease=0.4) is not None
    with restante.connect(server.url) as opened:
        sweeper = Sweeper(opened)
        thread = sweeper.start()
        took = wait_until(lambda: view.counts(name).ready == 1 and view.counts(name).dead == 1, 10, "sweeping")
        sweeper.stop()
        thread.join(PATIENCE)
    verdict("45b", n=2, max_recovery_s=took)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_client_works_on_both_sides_of_a_fork(server: RedisServer, post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name)
    queue.send("before")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in range(200):
                assert view.show(name, queue.send(f"child {number}")).payload == f"child {number}"
            code = 0
        finally:
            os._exit(code)
    for number in range(200):
        assert view.show(name, queue.send(f"parent {number}")).payload == f"parent {number}"
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    payloads = [message.payload for message in queue.receive_many(1000)]
    expected = {"before", *(f"{who} {n}" for who in ("child", "parent") for n in range(200))}
    assert len({entry.message_id for entry in view.journal(name) if entry.event.value == "sent"}) == 401
    verdict("fork", n=401, lost=len(expected - set(payloads)), dup=len(payloads) - len(set(payloads)))
