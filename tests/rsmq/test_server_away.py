"""RSMQ consumers and bridges while calls fail: messages stay hidden, deletes are repeated, nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import restante
from restante import Admin, Client, QueueFull
from restante.core import operations
from restante.core.scripts import Script
from restante.rsmq import AsyncRsmq, Rsmq, RsmqReceived, calls, transfer
from restante.rsmq import consumer as rsmq_consumer
from restante.rsmq.bridge import Bridge, Bridged, take_over
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.proxy import FaultProxy
from tests.harness.requirements import require
from tests.rsmq.conftest import Bench

NAMESPACE = "{rsmq}"


@pytest.fixture
def proxy(debian: Bench) -> Iterator[FaultProxy]:
    with FaultProxy(debian.server.port) as running:
        yield running


def drop_calls(proxy: FaultProxy, script: Script) -> None:
    """Drops every call of this script from now on."""
    proxy.drop_request(1_000_000, matching=lambda request: script.sha in request)


class Consuming:
    """A consumer in a thread whose handler waits for an event, and the messages it got."""

    def __init__(self, url: str, kind: str) -> None:
        self.seen: list[RsmqReceived] = []
        self.free = threading.Event()
        self._stop: Callable[[], None] | None = None
        target = self._block if kind == "blocking" else lambda: asyncio.run(self._await())
        self._thread = threading.Thread(target=target)
        self._url = url
        self._thread.start()

    def _handle(self, message: RsmqReceived) -> None:
        self.seen.append(message)
        assert self.free.wait(PATIENCE)

    def _block(self) -> None:
        with restante.connect(self._url, patience=0.1) as post:
            consumer = Rsmq(post=post).consume("orders", self._handle, look_every=0.05)
            self._stop = consumer.stop
            consumer.run()

    async def _await(self) -> None:
        async def handle(message: RsmqReceived) -> None:
            await asyncio.to_thread(self._handle, message)

        async with restante.aio.connect(self._url, patience=0.1) as post:
            consumer = AsyncRsmq(post=post).consume("orders", handle, look_every=0.05)
            self._stop = consumer.stop
            await consumer.run()

    def close(self) -> None:
        self.free.set()
        if self._stop is not None:
            self._stop()
        self._thread.join(PATIENCE)


@pytest.fixture(params=["blocking", "asyncio"])
def consuming_one(
    request: pytest.FixtureRequest,
    proxy: FaultProxy,
    ours: Rsmq,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Consuming]:
    """A consumer behind the proxy that handles the only message of a queue with a vt of half a minute."""
    caplog.set_level(logging.INFO, "restante")
    monkeypatch.setattr(rsmq_consumer, "EXTEND_AFTER", 0.003)  # of the vt, which the server's clock counts
    ours.create_queue("orders", vt=30)
    ours.send_message("orders", "a")
    running = Consuming(proxy.url, request.param)
    try:
        wait_until(lambda: running.seen)
        yield running
    finally:
        proxy.pass_through()
        running.close()


def test_a_message_at_work_stays_hidden_also_after_a_beat_that_failed(
    debian: Bench, proxy: FaultProxy, ours: Rsmq, consuming_one: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    drop_calls(proxy, calls.VISIBILITY)
    wait_until(lambda: "extend failed" in caplog.text)
    proxy.pass_through()
    id = consuming_one.seen[0].id
    for _ in range(3):
        debian.clock.advance(20)
        wait_until(lambda: debian.client.zscore("rsmq:orders", id) == debian.clock.now_ms + 30_000)
        assert ours.receive_message("orders") is None
    consuming_one.free.set()
    wait_until(lambda: not ours.get_queue_attributes("orders").msgs)
    assert [message.rc for message in consuming_one.seen] == [1]


def test_a_delete_that_failed_is_repeated_until_it_arrives(
    proxy: FaultProxy, ours: Rsmq, consuming_one: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    drop_calls(proxy, calls.DELETE)
    consuming_one.free.set()
    wait_until(lambda: "delete waits" in caplog.text)
    assert ours.get_queue_attributes("orders").msgs == 1
    proxy.pass_through()
    wait_until(lambda: not ours.get_queue_attributes("orders").msgs)
    assert len(consuming_one.seen) == 1


@contextmanager
def carrying(bridge: Bridge) -> Iterator[None]:
    """Runs the bridge in a thread."""
    thread = threading.Thread(target=bridge.run)
    thread.start()
    try:
        yield
    finally:
        bridge.stop()
        thread.join(PATIENCE)


def test_a_bridge_goes_on_once_the_queue_has_room_again(
    debian: Bench, ours: Rsmq, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "restante")
    ours.create_queue("in")
    ours.send_many("in", ["a", "b"])
    queue = debian.post.queue("orders", max_length=1)
    with carrying(Bridge(debian.post, "in", "orders")):
        wait_until(lambda: "bridge paused" in caplog.text)
        first = queue.receive()
        assert first is not None
        first.ack()
        debian.clock.advance(31)  # what the bridge held comes again
        second = wait_until(queue.receive)
        assert second is not None
    assert (first.payload, second.payload) == ("a", "b")


def test_acks_of_a_bridge_that_failed_are_delivered_when_it_goes_on(
    debian: Bench, proxy: FaultProxy, ours: Rsmq, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "restante")
    ours.create_queue("in")
    debian.post.queue("out").send_many(["a", "b"])
    drop_calls(proxy, operations.ACK)
    admin = Admin(debian.post)
    with (
        restante.connect(proxy.url, patience=0.1) as post,
        carrying(Bridge(post, "in", "out", back=True)),
    ):
        wait_until(lambda: "bridge paused" in caplog.text)
        assert admin.counts("out").leased == 2
        proxy.pass_through()
        wait_until(lambda: not admin.counts("out").leased)  # the server's clock stands: no lease ends
        markers = debian.client.keys("restante:bridge:*")
        wait_until(lambda: all(debian.client.ttl(marker) <= transfer.SETTLED for marker in markers))
    totals = admin.counts("out").totals
    assert (totals["received"], totals["acked"], len(markers)) == (2, 2, 2)


def test_what_a_bridge_brings_back_is_announced_where_that_is_asked_for(debian: Bench, ours: Rsmq) -> None:
    listener: Any = debian.server.client().pubsub()  # type: ignore[no-untyped-call]  # the driver's
    listener.subscribe("rsmq:rt:in")
    listener.get_message(timeout=PATIENCE)
    ours.create_queue("in")
    debian.post.queue("out").send_many(["a", "b"])
    assert Bridge(debian.post, "in", "out", back=True, realtime=True).drain() == Bridged(moved=2)
    assert [listener.get_message(timeout=PATIENCE)["data"] for _ in range(2)] == [b"1", b"2"]
    listener.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    require("redis-cli")
    with RedisCluster3() as running, restante.connect(running.url, patience=10) as post:
        yield post


class TestCluster:
    """In a cluster no script reaches both queues: a message is sent first and then deleted."""

    def test_a_message_that_a_full_queue_refuses_is_not_deleted(self, cluster: Client) -> None:
        rsmq = Rsmq(post=cluster, namespace=NAMESPACE)
        rsmq.create_queue("in")
        rsmq.send_many("in", ["a", "b"])
        queue = cluster.queue("orders", max_length=1)
        bridge = Bridge(cluster, "in", "orders", namespace=NAMESPACE, lease=1)
        with pytest.raises(QueueFull):
            bridge.run_once()
        assert rsmq.get_queue_attributes("in").msgs == 1
        first = queue.receive()
        assert first is not None
        first.ack()
        wait_until(bridge.run_once)  # once its lease is over
        second = queue.receive()
        assert second is not None
        assert (first.payload, second.payload, rsmq.get_queue_attributes("in").msgs) == ("a", "b", 0)

    def test_a_message_that_an_operator_cannot_move_is_not_deleted(self, cluster: Client) -> None:
        rsmq = Rsmq(post=cluster, namespace=NAMESPACE)
        rsmq.create_queue("chosen")
        ids = rsmq.send_many("chosen", ["a", "b"])
        cluster.queue("full", max_length=1)
        with pytest.raises(QueueFull):
            take_over(cluster, "chosen", "full", ids, namespace=NAMESPACE)
        assert [one.message for one in rsmq.peek("chosen", 5)] == ["b"]
        assert Admin(cluster).counts("full").ready == 1
