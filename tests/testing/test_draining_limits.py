"""Time limits in `drain`: real seconds count, and the test goes on."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

import restante
from restante import Admin, Client, LeasedMessage, Message, SoftTimeLimit, State, TimeLimit
from restante.testing import Clock, PrivateServer, drain, drain_async
from restante.testing.draining import WAKING
from tests.harness.deadlines import PATIENCE


def spin(_: Message) -> None:
    while True:
        time.sleep(0.001)


def sleep_in_c(_: Message) -> None:
    time.sleep(PATIENCE)
    raise AssertionError("slept to the end")


async def wait(_: Message) -> None:
    await asyncio.sleep(PATIENCE)
    raise AssertionError("slept to the end")


async def block(_: Message) -> None:
    time.sleep(PATIENCE)  # noqa: ASYNC251 (what such a handler must not do)
    raise AssertionError("slept to the end")


@pytest.mark.parametrize("handler", [spin, sleep_in_c, wait, block])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_handler_that_passes_its_timeout_fails_with_it_and_is_retried(
    restante_client: Client, restante_clock: Clock, handler: Any, frozen: bool
) -> None:
    orders = restante_client.queue("orders", timeout=0.2, max_attempts=2, retry=restante.fixed(60))
    orders.handler(handler)
    if frozen:
        restante_clock.freeze()
    handle = orders.handle(orders.send(1))
    with pytest.raises(TimeLimit) as caught:
        drain(orders)
    assert (caught.value.seconds, handle.state) == (0.2, State.RETRYING)
    assert any(entry.name == handler.__name__ for entry in caught.traceback)
    restante_clock.move(61)
    (failure,) = drain(orders, raises=False).failed
    assert (type(failure.error), failure.state) == (TimeLimit, State.DEAD)
    history = Admin(restante_client).show("orders", handle.id).history
    assert [attempt.error_class for attempt in history] == ["TimeLimit", "TimeLimit"]


def test_the_limit_of_the_message_goes_before_that_of_its_task_and_that_before_the_queue_s(
    restante_client: Client,
) -> None:
    orders = restante_client.queue("orders", timeout=600, max_attempts=1)

    @orders.task(timeout=300)
    def ship(message: LeasedMessage) -> None:
        seen.append((message.limits[0], message.remaining is not None))

    @orders.handler
    def other(message: LeasedMessage) -> None:
        seen.append((message.limits[0], message.remaining is not None))

    seen: list[Any] = []
    ship.send()
    ship.using(timeout=30).send()
    orders.send(1)
    drain(orders)
    assert seen == [(300, True), (30, True), (600, True)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_soft_limit_is_raised_inside_and_a_handler_that_returns_is_acked(
    restante_client: Client, asynchronous: bool
) -> None:
    orders, seen = restante_client.queue("orders", timeout=600, soft_timeout=0.1), []

    def tidy(message: Message) -> None:
        try:
            time.sleep(PATIENCE)
        except SoftTimeLimit:
            seen.append("cleaned up")

    async def tidy_async(message: Message) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except SoftTimeLimit:
            seen.append("cleaned up")

    orders.handler(tidy_async if asynchronous else tidy)
    orders.send(1)
    assert len(drain(orders).handled) == 1
    assert seen == ["cleaned up"]


async def test_a_coroutine_test_goes_on_after_a_limit(restante_server: PrivateServer) -> None:
    async with restante.aio.connect(restante_server.url) as client:
        orders = client.queue("orders", timeout=0.2, max_attempts=1)
        for kind, handler in (("spin", spin), ("wait", wait), ("block", block)):
            orders.handler(kind=kind)(handler)
            await orders.send(1, kind=kind)
        failed = (await drain_async(orders, raises=False)).failed
        assert [(failure.message.kind, type(failure.error), failure.state) for failure in failed] == [
            ("spin", TimeLimit, State.DEAD),
            ("wait", TimeLimit, State.DEAD),
            ("block", TimeLimit, State.DEAD),
        ]
        await asyncio.sleep(0)  # nothing cancels the test afterwards


def test_a_limit_in_another_thread_stops_python_code(restante_client: Client) -> None:
    orders = restante_client.queue("orders", timeout=0.2, max_attempts=1)
    orders.handler(spin)
    orders.send(1)
    failed: list[Any] = []
    thread = threading.Thread(target=lambda: failed.extend(drain(orders, raises=False).failed))
    thread.start()
    thread.join(PATIENCE)
    assert [type(failure.error) for failure in failed] == [TimeLimit]


def test_the_signal_is_as_before_and_no_thread_stays(restante_client: Client) -> None:
    assert WAKING is not None
    orders = restante_client.queue("orders", timeout=0.1, max_attempts=1)
    orders.handler(sleep_in_c)
    orders.send(1)
    mine = lambda *_: None  # noqa: E731
    before = signal.signal(WAKING, mine)
    try:
        watching = {thread for thread in threading.enumerate() if thread.name == "restante-time-limits"}
        drain(orders, raises=False)
        assert signal.getsignal(WAKING) is mine
    finally:
        signal.signal(WAKING, before)
    for thread in set(threading.enumerate()) - watching:
        if thread.name == "restante-time-limits":
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_result_that_the_queue_does_not_keep_need_not_be_json(restante_client: Client) -> None:
    orders = restante_client.queue("orders")

    @orders.task
    def ship() -> object:
        return object()

    ship.send()
    assert len(drain(orders).handled) == 1
