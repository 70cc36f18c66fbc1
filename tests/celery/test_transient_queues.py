"""Transient queues: alive while they have a consumer, removed afterwards; what short-lived clients leave behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue
from redis import Redis

from restante.celery import transient_queues
from tests.celery.conftest import broker_url
from tests.celery.test_kombu import Heard, drain
from tests.celery.workers import Worker, wait_for
from tests.harness.deadlines import PATIENCE
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call

Connect = Callable[..., Connection]
NEWS = Exchange("news", "fanout")
BRIEF = Queue("brief", NEWS, exclusive=True, expires=0.05)
#: Idle connections that a process may have because two threads needed one at the same time.
IDLE = 3
#: Seconds after which a worker's control queue expires without a consumer; Celery's default is ten.
CONTROL_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient_queues, "GRACE", 0.0)


def signers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "restante-transient-queues"]


class TestConsumedQueues:
    def test_a_queue_with_a_busy_consumer_never_expires(self, connect: Connect) -> None:
        connection = connect()
        heard = Heard(connection, BRIEF)
        time.sleep(0.1)  # x-expires passes while the consumer is busy
        other = connect().channel()
        other.broker.transient_queues.remove_expired()
        Producer(other, NEWS).publish("still there")
        drain(connection)
        assert heard.bodies == ["still there"]

    def test_a_queue_that_nobody_uses_ends(self, connect: Connect, server: RedisServer) -> None:
        channel = connect().channel()
        BRIEF(channel).declare()
        assert len(channel.list_bindings()) == 1
        time.sleep(0.1)
        channel.broker.transient_queues.remove_expired()
        assert channel.list_bindings() == []
        assert call(server.client(), "KEYS", "*positions*") == []

    @pytest.mark.parametrize("end", ["cancel", "close"])
    def test_its_own_time_counts_once_nobody_consumes(self, connect: Connect, end: str) -> None:
        connection = connect()
        heard = Heard(connection, BRIEF)
        watcher = connect().channel()
        if end == "cancel":
            heard.consumer.cancel()
        else:
            connection.close()
        time.sleep(0.1)
        watcher.broker.transient_queues.remove_expired()
        assert watcher.list_bindings() == []

    def test_one_of_two_consumers_that_leaves_does_not_end_it(self, connect: Connect) -> None:
        connection = connect()
        one, other = Heard(connection, BRIEF), Heard(connection, BRIEF)
        one.consumer.cancel()
        time.sleep(0.1)
        other.channel.broker.transient_queues.remove_expired()
        assert len(other.channel.list_bindings()) == 1

    def test_a_queue_that_ended_all_the_same_is_bound_again(self, connect: Connect, server: RedisServer) -> None:
        connection = connect()
        heard = Heard(connection, BRIEF)
        publisher = Producer(connect(), NEWS)
        publisher.publish(1)
        drain(connection)
        transient_queues.drop_queue(heard.channel.broker, "brief")  # as another process does on expiry
        publisher.publish("lost: nobody is bound")
        assert heard.channel.broker.transient_queues.run_once() == 1
        publisher.publish(2)
        drain(connection)
        assert heard.bodies == [1, 2]
        assert heard.channel.broker.transient_queues.run_once() == 0

    def test_it_is_renewed_again_and_again_also_after_a_failure(
        self, through: Connection, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(transient_queues, "RENEW_EVERY", 0.02)
        heard = Heard(through, BRIEF)
        proxy.drop_request(1_000_000, matching=b"ZADD")
        wait_for(lambda: "queues not renewed" in caplog.text)
        proxy.pass_through()
        for _ in range(2):
            transient_queues.drop_queue(heard.channel.broker, "brief")  # as another process does on expiry
            wait_for(lambda: len(heard.channel.list_bindings()) == 1)

    def test_the_thread_ends_with_the_last_consumer(self, connect: Connect) -> None:
        connection = connect()
        one, other = Heard(connection, BRIEF), Heard(connection, Queue("second", NEWS, auto_delete=True))
        assert len(signers()) == 1
        one.consumer.cancel()
        assert len(signers()) == 1
        other.consumer.cancel()
        wait_for(lambda: not signers(), PATIENCE)


@pytest.fixture(scope="module")
def running(_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    call(_server.client(), "FLUSHALL")
    told = {"control_queue_expires": CONTROL_SECONDS}
    with Worker(_server, tmp_path_factory.mktemp("worker"), concurrency=1, conf=told) as worker:
        yield worker


class TestShortLivedClients:
    def test_a_hundred_of_them_are_all_answered_and_leave_nothing(
        self, running: Worker, address: str, redis: Redis
    ) -> None:

        def ping() -> Any:
            app = Celery(broker=address, set_as_current=False)
            with app.connection_for_write() as connection:
                return app.control.ping(["w1@test"], timeout=PATIENCE, connection=connection)

        def left() -> tuple[int, int, int, int]:
            gc.collect()
            return (
                len(threading.enumerate()),
                len(os.listdir("/proc/self/fd")),
                len(call(redis, "CLIENT", "LIST").splitlines()),
                call(redis, "DBSIZE"),
            )

        for _ in range(3):
            ping()
        before = left()
        answers = [ping() for _ in range(100)]
        assert answers == [[{"w1@test": {"ok": "pong"}}]] * 100
        wait_for(
            lambda: all(now <= then + IDLE for now, then in zip(left(), before, strict=True)),
            PATIENCE,
            lambda: f"{left()} after {before}",
        )

    def test_a_worker_that_is_never_idle_keeps_its_remote_control(
        self, running: Worker, connect_bare: Connection
    ) -> None:
        """Its control queue expires after `CONTROL_SECONDS`; then another client removes it."""
        begun = time.monotonic()
        while time.monotonic() - begun < CONTROL_SECONDS + 0.5:
            running.send("add", 1, 1, ignore_result=True)
            time.sleep(0.05)
        connect_bare.channel().broker.transient_queues.remove_expired()
        answer = running.app.control.ping(["w1@test"], timeout=PATIENCE)
        assert answer == [{"w1@test": {"ok": "pong"}}]


@pytest.fixture
def address(_server: RedisServer) -> str:
    return broker_url(_server)


@pytest.fixture
def redis(_server: RedisServer) -> Redis:
    return _server.client()


@pytest.fixture
def connect_bare(address: str) -> Iterator[Connection]:
    with Connection(address) as connection:
        yield connection


class TestInspectScheduled:
    def test_tasks_that_wait_on_the_broker_are_listed_in_celerys_format(self, running: Worker) -> None:
        inspect = running.app.control.inspect(["w1@test"], timeout=PATIENCE)
        assert inspect.scheduled() == {"w1@test": []}
        late = running.send("add", 1, 2, countdown=3600, priority=3)
        soon = running.send("add", 3, countdown=60, kwargs={"y": 4})
        first, second = inspect.scheduled()["w1@test"]
        assert first["eta"].endswith("+00:00")
        assert first["eta"] < second["eta"]
        del first["eta"]
        assert first == {
            "priority": 6,
            "request": {
                "id": soon.id,
                "name": "shop.add",
                "type": "shop.add",
                "args": [3],
                "kwargs": {"y": 4},
                "hostname": "w1@test",
                "time_start": None,
                "acknowledged": False,
                "worker_pid": None,
                "delivery_info": {"exchange": "", "routing_key": "celery", "priority": 0, "redelivered": False},
            },
        }
        assert (second["request"]["id"], second["request"]["delivery_info"]["priority"]) == (late.id, 3)
        running.app.control.purge()
        assert inspect.scheduled() == {"w1@test": []}
