"""Tasks with a schedule: stored when a consumer starts, fired while its handlers are busy, changed and removed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import restante
from restante import Client, Consumer, InvalidArguments, InvalidInput, LeasedMessage, cron, every
from tests.harness.deadlines import wait_until
from tests.harness.servers import RedisServer, debian_binary


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(debian_binary()) as running:
        yield running


@pytest.fixture
def post(server: RedisServer) -> Iterator[Client]:
    server.client().flushall()
    with restante.connect(server.url) as client:
        yield client


class Running:
    """A consumer in a thread."""

    def __init__(self, *queues: Any, concurrency: int = 1) -> None:
        self.consumer = Consumer(queues, concurrency=concurrency)
        self.thread = threading.Thread(target=self.consumer.run)

    def __enter__(self) -> Consumer:
        self.thread.start()
        return self.consumer

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self.thread.join()


def test_a_consumer_stores_and_fires_the_schedules_of_its_tasks(post: Client) -> None:
    orders, seen = post.queue("orders"), []

    @orders.task(every="1s", priority=4)
    def poll(size: int = 3) -> None:
        seen.append(size)

    @orders.task(cron="0 3 * * *", tz="Europe/Berlin")
    def nightly(message: LeasedMessage) -> None:
        seen.append(message.attempts)

    assert orders.schedules() == []
    with Running(orders):
        wait_until(lambda: len(seen) >= 2)
    assert set(seen) == {3}
    found = {one.name: one for one in orders.schedules()}
    assert {name: (one.origin, one.kind, one.timing.text) for name, one in found.items()} == {
        "poll": ("task", "poll", "every 1s"),
        "nightly": ("task", "nightly", "0 3 * * *"),
    }
    assert found["poll"].priority == 4
    assert found["nightly"].timing.tz == "Europe/Berlin"


def test_a_busy_consumer_fires_all_the_same(post: Client) -> None:
    orders, release, ran = post.queue("orders"), threading.Event(), threading.Event()

    @orders.handler
    def handle(message: LeasedMessage) -> None:
        ran.set()
        release.wait()

    orders.send("long")
    orders.schedule("poll", every="1s", missed="all")
    with Running(orders):
        ran.wait()
        try:
            wait_until(lambda: restante.Admin(post).counts("orders").totals["sent"] >= 3)
        finally:
            release.set()


def test_a_task_whose_definition_changed_is_changed_and_one_that_is_gone_is_reported(
    post: Client, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def define(client: Client, interval: str, *names: str) -> Any:
        queue = client.queue("orders")
        for name in names:
            queue.task(kind=name, every=interval)(lambda: None)
        return queue

    with Running(define(post, "1h", "kept", "gone")):
        wait_until(lambda: len(post.queue("orders").schedules()) == 2)
    restante.Admin(post).pause_schedule("orders", "kept")
    with restante.connect(server.url) as newer, caplog.at_level(logging.WARNING):
        with Running(define(newer, "2h", "kept")):
            wait_until(lambda: "schedule without its task" in caplog.text)
        stored = {one.name: one for one in newer.queue("orders").schedules()}
    assert (stored["kept"].timing.text, stored["kept"].status) == ("every 2h", "paused")
    assert (stored["gone"].timing.text, stored["gone"].status) == ("every 1h", "active")
    assert "restante schedule rm orders gone" in caplog.text


def test_a_task_is_scheduled_with_arguments(post: Client) -> None:
    orders = post.queue("orders")

    @orders.task
    def ship(order: int, express: bool = False) -> None: ...

    made = ship.using(priority=9).schedule("nightly", "0 3 * * *", order=42)
    assert (made.payload, made.kind, made.priority, made.origin) == ({"order": 42}, "ship", 9, "api")
    berlin = ship.schedule("monthly", cron("0 0 1 * *", tz="Europe/Berlin", missed="skip"), 7, express=True)
    assert (berlin.payload, berlin.timing.missed) == ({"order": 7, "express": True}, "skip")
    with pytest.raises(InvalidArguments):
        ship.schedule("wrong", "0 3 * * *", ordr=42)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="schedule\\(\\) has no option 'delay'"):
        ship.using(delay=5).schedule("wrong", "0 3 * * *", order=42)


async def test_a_task_of_an_asyncio_queue_is_scheduled(server: RedisServer, post: Client) -> None:
    async with restante.aio.connect(server.url) as client:
        orders, seen = client.queue("async-orders"), []

        @orders.task(every=every("1s"))
        async def poll() -> None:
            seen.append(1)

        @orders.task
        async def ship(order: int) -> None: ...

        made = await ship.schedule("nightly", "0 3 * * *", order=42)
        assert made.payload == {"order": 42}
        with Running(orders):
            await asyncio.to_thread(wait_until, lambda: seen)
        assert [one.name for one in await orders.schedules()] == ["poll", "nightly"]
        await orders.unschedule("poll")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "0 25 * * *"}, "the hour '25'"),
        ({"cron": "0 3 * * *", "every": "5m"}, "give a cron expression such as '0 3 * * *', or every='5m'"),
        ({"cron": "0 3 * * *", "every": every("5m")}, "has cron and every"),
        ({"tz": "Europe/Berlin"}, "has a time zone and no cron expression"),
        ({"every": "5m", "tz": "Europe/Berlin"}, "an interval has no time zone"),
        ({"evry": "5m"}, "did you mean every?"),
    ],
)
def test_a_wrong_schedule_of_a_task_is_refused_where_it_is_defined(post: Client, options: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        post.queue("orders").task(kind="poll", **options)(lambda: None)
    assert said in str(refused.value)


def test_a_task_that_needs_arguments_has_no_schedule_of_its_own(post: Client) -> None:
    with pytest.raises(InvalidInput, match="called without arguments at each tick and needs order: give it a default"):

        @post.queue("orders").task(every="5m")
        def ship(order: int, rest: int = 1) -> None: ...
