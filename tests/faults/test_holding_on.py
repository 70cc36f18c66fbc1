"""Consumers and sweepers go on after each kind of failure, and settle every message once."""

from __future__ import annotations

import logging
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import restante
from restante import Admin, Client, Consumer, LeasedMessage, State, Sweeper
from restante.core import call_retry, operations, prefetch, renewal
from restante.core import consumer as consuming
from restante.core.scripts import Script
from tests.faults.rows import verdict
from tests.harness.deadlines import wait_until
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call


@pytest.fixture
def through(proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    """A client behind the proxy that gives up soon."""
    caplog.set_level(logging.INFO, "restante")
    with restante.connect(proxy.url, patience=0.1) as opened:
        yield opened


def fail(proxy: FaultProxy, script: Script) -> None:
    """From now on no request of this script reaches the server."""
    proxy.drop_request(1_000_000, matching=lambda request: script.sha in request)


@contextmanager
def serving(consumer: Consumer) -> Iterator[threading.Thread]:
    running = threading.Thread(target=consumer.run)
    running.start()
    try:
        yield running
    finally:
        consumer.stop()
        running.join()


def events(view: Admin, queue: str, id: str) -> list[str]:
    return [entry.event.value for entry in view.journal(queue, limit=100_000) if entry.message_id == id]


def settled(view: Admin, queue: str) -> bool:
    counts = view.counts(queue)
    return counts.waiting == counts.leased == 0


def test_a_handler_that_fails_while_the_consumer_stops_is_nacked(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, retry=restante.fixed(3600))
    id = queue.send("x")
    begun, go = threading.Event(), threading.Event()

    @queue.handler
    def failing(message: LeasedMessage) -> None:
        begun.set()
        go.wait()
        raise RuntimeError("while stopping")

    consumer = Consumer([queue])
    with serving(consumer) as running:
        begun.wait()
        consumer.stop()
        go.set()
        running.join()
    assert events(view, name, id) == ["sent", "received", "nacked"]
    assert "while stopping" in view.show(name, id).history[0].error


def test_a_renewal_that_failed_is_tried_again(
    proxy: FaultProxy,
    through: Client,
    view: Admin,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewal, "RENEW_AFTER", 0.01)
    queue = through.queue(name, lease=60)
    id = queue.send("x")

    @queue.handler
    def slow(message: LeasedMessage) -> None:
        fail(proxy, operations.EXTEND)
        wait_until(lambda: caplog.text.count("extend failed") >= 2)
        proxy.pass_through()
        wait_until(lambda: "extended" in events(view, name, id))

    consumer = Consumer([queue])
    with serving(consumer):
        wait_until(lambda: consumer.handled + consumer.failed == 1)
    assert [event for event in events(view, name, id) if event != "extended"] == ["sent", "received", "acked"]


def test_acks_that_ride_on_a_receive_that_fails_ride_on_the_next(
    proxy: FaultProxy, through: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = through.queue(name, lease=3600)
    sent = [id for start in (0, 1000, 2000) for id in queue.send_many(range(start, start + 1000))]
    consumer: Consumer
    cut = threading.Event()

    @queue.handler
    def quick(message: LeasedMessage) -> None:
        # Late enough that the consumer knows that its handler is quick, so that acks wait for the next receive.
        if message.payload == 2000:
            fail(proxy, operations.RECEIVE)
            cut.set()

    consumer = Consumer([queue])
    with serving(consumer):
        cut.wait()
        wait_until(lambda: "receive failed" in caplog.text)
        proxy.pass_through()
        wait_until(lambda: settled(view, name), lambda: str(view.counts(name)))
    assert consumer.handled == 3000
    received = [entry.message_id for entry in view.journal(name, limit=100_000) if entry.event.value == "received"]
    assert sorted(received) == sorted(sent)


def test_acks_that_fail_are_told_again(
    proxy: FaultProxy, through: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = through.queue(name, lease=3600)
    ids = queue.send_many(["first", "second"])

    @queue.handler
    def slow(message: LeasedMessage) -> None:
        if message.payload == "first":
            time.sleep(0.05)  # so slow that its ack travels at once
            fail(proxy, operations.ACK)

    with serving(Consumer([queue])):
        wait_until(lambda: "ack failed" in caplog.text)
        proxy.pass_through()
        wait_until(lambda: settled(view, name), lambda: str(view.counts(name)))
    assert [events(view, name, id) for id in ids] == [["sent", "received", "acked"]] * 2


def test_a_message_whose_lease_was_lost_before_its_turn_is_not_handled(
    post: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing, renew = threading.Event(), renewal.Renewal.run_once
    monkeypatch.setattr(renewal.Renewal, "run_once", lambda self: renew(self) if renewing.is_set() else 0)
    monkeypatch.setattr(prefetch.Prefetch, "room", 3)
    queue = post.queue(name, lease=0.1)
    ids = queue.send_many(["first", "second", "third"])
    seen: list[str] = []
    taken = threading.Event()

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        seen.append(message.id)
        if message.id == ids[0]:
            taken.set()
            wait_until(lambda: all(f"lease lost queue={name} id={id}" in caplog.text for id in ids))

    with serving(Consumer([queue])):
        taken.wait()
        wait_until(lambda: view.counts(name).overdue == 3)
        assert Sweeper(post, (name,)).run_once().expired == 3
        assert view.delete(name, ids) == 3
        renewing.set()
        last = queue.send("last")
        wait_until(lambda: last in seen)
    assert set(seen) == {ids[0], last}


def test_a_consumer_looks_at_the_server_again_within_a_minute(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    clock = types.SimpleNamespace(
        monotonic=lambda: time.monotonic() + passed, sleep=time.sleep, perf_counter=time.perf_counter
    )
    monkeypatch.setattr(consuming, "time", clock)
    with RedisServer() as server, restante.connect(server.url) as post:
        queue = post.queue(name)
        queue.handler(lambda message: None)
        consumer = Consumer([queue])
        with serving(consumer):
            queue.send("served")
            wait_until(lambda: consumer.handled == 1)
            call(server.client(), "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            queue.send("still served")
            wait_until(lambda: consumer.handled == 2)
            assert "allkeys-lru" not in caplog.text
            passed = 60.0
            queue.send("and found out")
            wait_until(lambda: "allkeys-lru" in caplog.text)
            wait_until(lambda: consumer.handled == 3)
    verdict("23b", n=3)


def test_nobody_waits_longer_than_a_second_for_a_server_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.999)
    pauses = [call_retry.away(failures) for failures in range(1, 2000)]
    assert max(pauses) <= 1.0
    assert pauses == sorted(pauses)


def test_a_sweeper_goes_on_after_a_failure(
    proxy: FaultProxy, through: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    through.queue(name).send("x", delay=0.01)
    sweeper = Sweeper(through, (name,))
    fail(proxy, operations.RECEIVE)
    running = sweeper.start()
    try:
        wait_until(lambda: "sweep failed" in caplog.text)
        proxy.pass_through()
        wait_until(lambda: [message.state for message in view.walk(name, State.READY)] == [State.READY])
    finally:
        sweeper.stop()
        running.join()
