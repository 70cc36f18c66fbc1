"""Handlers in the test's own thread: what `drain` runs, settles, returns and raises."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import restante
from restante import Admin, Client, Hook, InvalidInput, LeasedMessage, Message, NoHandler, State
from restante.aio import AsyncLeasedMessage
from restante.testing import Clock, PrivateServer, drain, drain_async

ROOM: contextvars.ContextVar[str] = contextvars.ContextVar("ROOM", default="nowhere")


def counts(client: Client, queue: str) -> dict[str, int]:
    found = Admin(client).counts(queue)
    return {state.value: getattr(found, state.value) for state in State if getattr(found, state.value)}


def test_handlers_run_in_the_thread_of_the_test(restante_client: Client) -> None:
    orders, threads = restante_client.queue("orders"), []

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        threads.append((threading.current_thread(), message.payload))

    orders.send_many([1, 2])
    done = drain(orders)
    assert threads == [(threading.current_thread(), 1), (threading.current_thread(), 2)]
    assert [message.payload for message in done.handled] == [1, 2]
    assert counts(restante_client, "orders") == {}


def test_what_handlers_send_to_the_same_queues_is_handled_too(restante_client: Client) -> None:
    orders, mail, seen = restante_client.queue("orders"), restante_client.queue("mail"), []

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        mail.send({"about": message.payload})

    @mail.handler
    def write(message: LeasedMessage) -> None:
        seen.append(message.payload)

    orders.send(1)
    assert len(drain(mail, orders)) == 2
    assert seen == [{"about": 1}]


def test_a_failure_is_nacked_and_then_raised_with_the_line_of_the_handler(restante_client: Client) -> None:
    orders = restante_client.queue("orders")

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        raise ValueError("no address")

    orders.send_many([1, 2])
    with pytest.raises(ValueError, match="no address") as caught:
        drain(orders)
    assert caught.traceback[-1].name == "ship"
    assert counts(restante_client, "orders") == {"retrying": 1, "ready": 1}
    assert next(Admin(restante_client).walk("orders", "retrying")).history[0].error_class == "ValueError"


def test_failures_are_returned_with_their_state_where_they_are_not_raised(restante_client: Client) -> None:
    orders = restante_client.queue("orders", max_attempts=2, retry=restante.fixed(0))

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        raise ValueError("no address")

    orders.send(1)
    done = drain(orders, raises=False)
    assert [failure.state for failure in done.failed] == [State.RETRYING, State.DEAD]
    assert done.handled == []


def test_retries_and_delays_wait_for_the_clock(restante_client: Client, restante_clock: Clock) -> None:
    orders, attempts = restante_client.queue("orders", retry=restante.fixed(60, 3600)), []

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise ConnectionError

    orders.send(1, delay=86400)
    assert len(drain(orders)) == 0
    for seconds in (86400, 60, 3600):
        restante_clock.move(seconds + 1)
        drain(orders, raises=False)
    assert attempts == [1, 2, 3]


def test_a_handler_that_settles_its_message_decides(restante_client: Client) -> None:
    orders = restante_client.queue("orders")

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        message.bury(error="refused")

    orders.send(1)
    drain(orders)
    assert counts(restante_client, "orders") == {"dead": 1}


def test_a_message_of_an_unknown_kind_fails_as_in_a_consumer(restante_client: Client) -> None:
    orders = restante_client.queue("orders")
    orders.handler(kind="known")(lambda message: None)
    orders.send(1, kind="unknown")
    with pytest.raises(NoHandler, match="unknown"):
        drain(orders)
    assert counts(restante_client, "orders") == {"retrying": 1}


def test_a_handler_that_sends_to_itself_for_ever_ends_the_test(restante_client: Client) -> None:
    orders = restante_client.queue("orders")

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        orders.send(1)

    orders.send(1)
    with pytest.raises(AssertionError, match="does a handler send to its own queue"):
        drain(orders, most=7)
    assert counts(restante_client, "orders") == {"ready": 1}


def test_a_plain_function_that_returns_a_coroutine_fails(restante_client: Client) -> None:
    orders = restante_client.queue("orders")

    async def later(message: LeasedMessage) -> None:
        raise AssertionError("nobody awaits this")

    @orders.handler
    def ship(message: LeasedMessage) -> object:
        return later(message)

    orders.send(1)
    with pytest.raises(TypeError, match="use async def"):
        drain(orders)


def test_coroutine_handlers_run_to_their_end_and_see_the_context_of_the_test(restante_client: Client) -> None:
    orders, seen = restante_client.queue("orders"), []

    @orders.handler
    async def ship(message: LeasedMessage) -> None:
        await asyncio.sleep(0)
        seen.append((message.payload, ROOM.get()))

    orders.send(1)
    token = ROOM.set("here")
    drain(orders)
    ROOM.reset(token)
    assert seen == [(1, "here")]


def test_handlers_of_an_asyncio_queue_await_their_verbs(restante_server: PrivateServer) -> None:
    orders = restante.aio.connect(restante_server.url).queue("orders", max_attempts=9)

    @orders.handler
    async def ship(message: AsyncLeasedMessage) -> None:
        await message.extend(lease=60)
        await message.bury(error="refused")

    with restante_server.client() as client:
        client.queue("orders").send(1)
        done = drain(orders)
        assert isinstance(done.handled[0], AsyncLeasedMessage)
        assert counts(client, "orders") == {"dead": 1}
        assert client.queue("orders").settings.max_attempts == 5  # as it read them before
        assert Admin(client).counts("orders").settings.max_attempts == 9


async def test_a_coroutine_test_drains_on_its_own_loop(restante_server: PrivateServer) -> None:
    loops: list[Any] = []
    async with restante.aio.connect(restante_server.url) as client:
        orders, failing = client.queue("orders"), client.queue("failing")

        @orders.handler
        async def ship(message: AsyncLeasedMessage) -> None:
            loops.append(asyncio.get_running_loop())

        @failing.handler
        async def fail(message: AsyncLeasedMessage) -> None:
            raise ValueError("no")

        await orders.send(1)
        other = asyncio.create_task(asyncio.sleep(60))
        assert len(await drain_async(orders)) == 1
        assert loops == [asyncio.get_running_loop()]
        with pytest.raises(InvalidInput, match="await drain_async"):
            drain(orders)
        await failing.send(1)
        with pytest.raises(ValueError, match="no"):
            await drain_async(failing)
        assert not other.cancelled()
        other.cancel()


def test_hooks_are_around_the_handlers_and_hear_of_the_end(restante_client: Client) -> None:
    told: list[Any] = []

    class Told(Hook):
        def around(self, message: Message, call: Callable[[], Any]) -> Any:
            told.append("in")
            return call()

        async def around_async(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
            told.append("in")
            return await call()

        def started(self, message: Message) -> None:
            told.append("started")

        def finished(self, message: Message, seconds: float) -> None:
            told.append("finished")

        def failed(self, message: Message, error: BaseException, state: State | None) -> None:
            told.append((str(error), state))

        def dead(self, message: Message, error: BaseException) -> None:
            told.append("dead")

    restante_client.add_hook(Told())
    orders = restante_client.queue("orders", max_attempts=1)

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        if message.payload == "bad":
            raise ValueError("bad")

    @orders.handler(kind="later")
    async def later(message: LeasedMessage) -> None:
        pass

    orders.send("good")
    orders.send("bad")
    orders.send("good", kind="later")
    drain(orders, raises=False)
    assert told == [
        *("started", "in", "finished"),
        *("started", "in", ("bad", State.DEAD), "dead"),
        *("started", "in", "finished"),
    ]


@pytest.mark.parametrize("wrong", [(), ("orders",)])
def test_what_is_no_queue_is_refused(restante_client: Client, wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput, match="drain"):
        drain(*wrong)


def test_a_queue_without_a_handler_is_refused(restante_client: Client) -> None:
    with pytest.raises(InvalidInput, match="no handler"):
        drain(restante_client.queue("orders"))


def test_what_a_task_returns_is_the_result_of_its_message(restante_client: Client) -> None:
    sums = restante_client.queue("sums", keep_done=10)

    @sums.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.send(a=1, b=2)
    assert len(drain(sums).handled) == 1
    assert handle.result(timeout=0) == 3
