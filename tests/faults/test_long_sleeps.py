"""Whoever sleeps is woken by what happens. Sleeps last for hours here, so that none ends by itself in time."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import restante
from restante import Admin, Client, Consumer, State, Sweeper
from restante.core import connection_aio, consumer, pool, queue, sweeper
from restante.core.queue import AsyncQueue
from restante.core.sweeper import Swept
from tests.harness.deadlines import PATIENCE, wait_until, wait_until_async
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer

#: Seconds: much longer than a test waits for anything.
HOURS = 100 * PATIENCE
#: Seconds until the messages of these tests are due.
SOON = 0.3


@pytest.fixture(autouse=True)
def _long_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pool, connection_aio, consumer, queue):
        monkeypatch.setattr(module, "BLOCK", HOURS)
    monkeypatch.setattr(sweeper, "ROUND", HOURS)


@pytest.fixture
def names(name: str) -> list[str]:
    return [name, f"{name}-other"]


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server whose blocked clients are those of one test."""
    with RedisServer() as running:
        yield running


def blocked(server: RedisServer) -> int:
    return int(server.info("clients")["blocked_clients"])


def in_background(work: Callable[[], object]) -> threading.Thread:
    """A thread that does not keep the run from ending where it never wakes."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    return not thread.is_alive()


def receive(runner: str, url: str, names: list[str]) -> list[Any]:
    """A list that will hold the payloads of the next receive."""
    got: list[Any] = []

    def blocking() -> None:
        with restante.connect(url) as post:
            got.extend(message.payload for message in post.receive_many(names, 1, HOURS))

    async def awaited() -> None:
        async with restante.aio.connect(url) as post:
            got.extend(message.payload for message in await post.receive_many(names, 1, HOURS))

    in_background(blocking if runner == "sync" else lambda: asyncio.run(awaited()))
    return got


@contextmanager
def serving(consumer: Consumer) -> Iterator[threading.Thread]:
    thread = in_background(consumer.run)
    yield thread
    consumer.stop()
    wait_until(lambda: ended(thread), "a consumer that ends")


@pytest.mark.parametrize("runner", ["sync", "async"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_receive_wakes_for_the_nearest_due_time_of_its_queues(
    server: RedisServer, post: Client, names: list[str], runner: str, first: int
) -> None:
    post.queue(names[first]).send("soon", delay=SOON)
    post.queue(names[1 - first]).send("in hours", delay=HOURS)
    got = receive(runner, server.url, names)
    wait_until(lambda: got == ["soon"])


@pytest.mark.parametrize("runner", ["sync", "async"])
def test_a_receive_ends_when_its_time_is_over(server: RedisServer, post: Client, name: str, runner: str) -> None:
    got: list[object] = []

    async def awaited() -> None:
        async with restante.aio.connect(server.url) as other:
            got.append(await other.queue(name).receive(SOON))

    in_background(
        (lambda: got.append(post.queue(name).receive(SOON))) if runner == "sync" else lambda: asyncio.run(awaited())
    )
    wait_until(lambda: got == [None])


@pytest.mark.parametrize("first", [0, 1])
def test_an_idle_consumer_wakes_for_the_nearest_due_time_of_its_queues(
    post: Client, names: list[str], first: int
) -> None:
    post.queue(names[first]).send("soon", delay=SOON)
    post.queue(names[1 - first]).send("in hours", delay=HOURS)
    queues = [post.queue(name) for name in names]
    for one in queues:
        one.handler(lambda message: None)
    consumer = Consumer(queues)
    with serving(consumer):
        wait_until(lambda: consumer.handled == 1)


def test_an_idle_consumer_that_is_stopped_ends(own: RedisServer, name: str) -> None:
    with restante.connect(own.url) as post:
        idle = post.queue(name)
        idle.handler(lambda message: None)
        with serving(Consumer([idle])) as thread:
            wait_until(lambda: blocked(own) == 1)
        assert ended(thread)


class Interrupted(Exception):
    """Raised by a signal, as Celery's time limits are."""


def test_an_interrupted_wait_leaves_nothing_behind(own: RedisServer, name: str) -> None:
    """Its connection would swallow the wake-up of another, and the next call on it would wait behind the block."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    try:
        with restante.connect(own.url) as post:
            waiting = post.queue(name)
            waiting.send("open the queue first")
            message = waiting.receive()
            assert message is not None
            message.ack()

            def when_blocked() -> None:
                wait_until(lambda: blocked(own) == 1)
                signal.pthread_kill(main, signal.SIGUSR1)

            in_background(when_blocked)
            with pytest.raises(Interrupted):
                waiting.receive(2 * PATIENCE)
            wait_until(lambda: blocked(own) == 0, "the server still waits for somebody")
            got = receive("sync", own.url, [name])
            wait_until(lambda: blocked(own) == 1)
            waiting.send("for the other")
            wait_until(lambda: got == ["for the other"])
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_a_cancelled_wait_leaves_nothing_behind(own: RedisServer, name: str) -> None:
    async with restante.aio.connect(own.url) as post:
        waiting = asyncio.create_task(post.queue(name).receive(HOURS))
        await wait_until_async(lambda: blocked(own) == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        await wait_until_async(lambda: blocked(own) == 0, "the server still waits for somebody")
        await still_usable(post.queue(name))


async def test_a_cancelled_call_leaves_nothing_behind(proxy: FaultProxy, name: str) -> None:
    async with restante.aio.connect(proxy.url) as post:
        await still_usable(post.queue(name))
        proxy.delay(3)
        sending = asyncio.create_task(post.queue(name).send("cancelled", delay=HOURS))
        await asyncio.sleep(0.3)
        sending.cancel()
        await asyncio.wait({sending})
        proxy.pass_through()
        await still_usable(post.queue(name))


async def still_usable(queue: AsyncQueue) -> None:
    """Answers belong to their calls, and a wait ends in time."""
    id = await queue.send("x")
    message = await queue.receive(SOON)
    assert message is not None
    assert message.id == id
    await message.ack()
    assert await queue.receive(SOON) is None


def ready(view: Admin, name: str) -> list[Any]:
    return [message.payload for message in view.walk(name, State.READY)]


def test_a_sweeper_that_is_stopped_during_a_round_does_not_sleep_after_it(
    post: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweeper(post, (name,))
    round_of = made.run_once

    def stopped_meanwhile() -> Swept:
        made.stop()
        return round_of()

    monkeypatch.setattr(made, "run_once", stopped_meanwhile)
    thread = made.start()
    wait_until(lambda: ended(thread), "a sweeper that ends")


def test_a_sweeper_wakes_for_what_falls_due(post: Client, view: Admin, name: str) -> None:
    post.queue(name).send("known before", delay=SOON)
    made = Sweeper(post, (name,))
    thread = made.start()
    wait_until(lambda: ready(view, name) == ["known before"])
    post.queue(name).send("told later", delay=SOON)
    made.expect(name, SOON)
    wait_until(lambda: ready(view, name) == ["known before", "told later"])
    made.stop()
    wait_until(lambda: ended(thread), "a sweeper that ends")
