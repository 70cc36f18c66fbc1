"""What a task returns is the result of its message, where the queue keeps results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

import restante
from restante import Admin, Consumer, Handle, JournalEvent, NoResult, State
from tests.core.bench import Bench

if TYPE_CHECKING:
    from restante import Client, Queue


@pytest.fixture
def post(debian: Bench) -> Iterator[Client]:
    with restante.connect(debian.server.url) as opened:
        yield opened


def work_off(queue: Queue) -> Consumer:
    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    return consumer


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("timeout", [None, 600])
def test_the_handle_of_a_sent_call_gives_what_the_function_returned(
    post: Client, asynchronous: bool, timeout: float | None
) -> None:
    queue = post.queue("sums", keep_done=10)
    handle: Handle
    if asynchronous:

        @queue.task(timeout=timeout)
        async def add_later(a: int, b: int) -> dict[str, int]:
            return {"sum": a + b}

        handle = add_later.send(a=1, b=2)
    else:

        @queue.task(timeout=timeout)
        def add(a: int, b: int) -> dict[str, int]:
            return {"sum": a + b}

        handle = add.send(a=1, b=2)
    assert handle.state is State.READY
    assert work_off(queue).handled == 1
    assert (handle.state, handle.result(timeout=0)) == (State.DONE, {"sum": 3})


def test_a_result_that_is_no_json_fails_the_attempt_and_says_so(post: Client) -> None:
    queue = post.queue("sums", keep_done=10, max_attempts=1)

    @queue.task
    def strange() -> Any:
        return object()

    handle = strange.send()
    consumer = work_off(queue)
    assert (consumer.handled, consumer.failed) == (0, 1)
    with pytest.raises(restante.MessageDead, match="InvalidPayload: result"):
        handle.result(timeout=0)


def test_results_of_a_queue_that_keeps_none_are_dropped(post: Client) -> None:
    queue = post.queue("sums")

    @queue.task
    def today() -> date:
        return date(2026, 11, 19)

    handles = [today.send() for _ in range(20)]
    assert work_off(queue).handled == 20
    with pytest.raises(NoResult, match="keep_done"):
        handles[0].result(timeout=0)
    entries = [entry.event for entry in Admin(post).journal("sums")]
    assert entries.count(JournalEvent.ACKED) == 20


def test_what_a_plain_handler_returns_is_no_result(post: Client) -> None:
    queue = post.queue("plain", keep_done=10)

    @queue.handler
    def handle(message: restante.LeasedMessage) -> str:
        return "ignored"

    id = queue.send(1)
    assert work_off(queue).handled == 1
    assert queue.handle(id).result(timeout=0) is None


def test_a_result_whose_lease_was_lost_is_not_kept(post: Client) -> None:
    queue = post.queue("slow", keep_done=10, retry=restante.fixed(0))
    operator = Admin(post)
    attempts = []

    @queue.task
    def compute(message: restante.LeasedMessage) -> int:
        attempts.append(message.attempts)
        if message.attempts == 1:
            operator.revoke("slow", [message.id])
        return message.attempts

    handle = compute.send()
    work_off(queue)
    assert attempts == [1, 2]
    assert handle.result(timeout=0) == 2
