"""A failure comes again by the retry policy, and after the last attempt it is dead with its history, never dropped."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import restante
from restante import InvalidInput, State
from tests.contract.rooms import Room, needs

pytestmark = needs("retry", "dead")


async def fail(room: Room, queue: Any, **options: Any) -> Any:
    """Receives and nacks; returns the state reached."""
    return await room.call((await room.take(queue)).nack, **options)


async def test_the_last_allowed_failure_is_dead(room: Room) -> None:
    queue = room.queue(max_attempts=3)
    id = await room.send(queue, "poison")
    states = [await fail(room, queue, delay=0, error=ValueError(f"no {n}")) for n in range(3)]
    assert states == [State.RETRYING, State.RETRYING, State.DEAD]
    assert await room.receive(queue) is None
    shown = room.admin.show(queue.name, id)
    assert (shown.state, shown.attempts, shown.payload) == (State.DEAD, 3, "poison")
    assert [(one.attempt, one.event.value, one.error_class) for one in shown.history] == [
        (1, "nacked", "ValueError"),
        (2, "nacked", "ValueError"),
        (3, "nacked", "ValueError"),
    ]
    assert "no 2" in shown.history[-1].error


async def test_a_message_may_have_its_own_limit(room: Room) -> None:
    queue = room.queue(max_attempts=5)
    await room.send(queue, "fragile", max_attempts=1)
    await room.send(queue, "tough", max_attempts=7)
    assert await fail(room, queue, delay=0) is State.DEAD
    states = [await fail(room, queue, delay=0) for _ in range(7)]
    assert states == [State.RETRYING] * 6 + [State.DEAD]


async def test_a_crash_counts_like_a_failure(room: Room) -> None:
    queue = room.queue(max_attempts=2)
    id = await room.send(queue, "crasher")
    for _ in range(2):
        await room.take(queue, lease=0.05)
        await room.pass_time(0.05)
    assert await room.receive(queue) is None
    shown = room.admin.show(queue.name, id)
    assert shown.state is State.DEAD
    assert [one.event.value for one in shown.history] == ["expired", "expired"]


async def test_fixed_delays_are_used_one_after_the_other_and_then_it_is_dead(room: Room) -> None:
    queue = room.queue(retry=restante.fixed(0.1, 60))
    id = await room.send(queue, "flaky")
    assert await fail(room, queue) is State.RETRYING
    assert await room.receive(queue) is None
    await room.pass_time(0.1)
    assert await fail(room, queue) is State.RETRYING
    shown = room.admin.show(queue.name, id)
    assert shown.due_at is not None
    # Instants are whole milliseconds; what failed within one is due after it, never before.
    assert (
        timedelta(0) <= shown.due_at - shown.history[-1].ended_at - timedelta(seconds=60) <= timedelta(milliseconds=1)
    )
    await room.pass_time(60)
    assert await fail(room, queue) is State.DEAD


async def test_exponential_delays_grow_up_to_their_cap(room: Room) -> None:
    queue = room.queue(retry=restante.exponential(10, factor=3, cap=60, jitter=0), max_attempts=10)
    id = await room.send(queue, "flaky")
    spans = []
    for _ in range(4):
        message = await room.take(queue)
        await room.call(message.nack)
        shown = room.admin.show(queue.name, id)
        assert shown.due_at is not None
        spans.append((shown.due_at - shown.history[-1].ended_at).total_seconds())
        room.admin.edit(queue.name, id, due_at=room.now())
    assert all(0 <= span - wanted <= 0.001001 for span, wanted in zip(spans, [10, 30, 60, 60], strict=True)), spans


@pytest.mark.parametrize("attempts", [1, 2, 309, 1025, 65_535])
@pytest.mark.parametrize("factor", [1, 1.1, 2, 1000])
def test_after_many_attempts_the_delay_is_still_the_cap(attempts: int, factor: float) -> None:
    delay = restante.exponential(0.5, factor=factor, cap=60, jitter=0).next(attempts)
    assert delay == (0.5 if factor == 1 or attempts == 1 else min(60, 0.5 * factor) if attempts == 2 else 60)


async def test_jitter_spreads_by_its_share(room: Room) -> None:
    queue = room.queue(retry=restante.exponential(100, jitter=0.2))
    await room.call(queue.send_many, list(range(50)))
    await room.call(queue.nack_many, await room.call(queue.receive_many, 50))
    waits = [
        (message.due_at - message.history[-1].ended_at).total_seconds()
        for message in room.admin.walk(queue.name, State.RETRYING)
        if message.due_at is not None
    ]
    assert len(waits) == 50
    assert 80 <= min(waits) < max(waits) <= 120.001
    assert len(set(waits)) > 10


async def test_a_message_or_a_nack_may_bring_its_own_policy(room: Room) -> None:
    queue = room.queue(retry=restante.no_retry())
    await room.send(queue, "queue")
    assert await fail(room, queue) is State.DEAD
    await room.send(queue, "message", retry=restante.fixed(100))
    assert await fail(room, queue) is State.RETRYING
    await room.send(queue, "nack")
    assert await fail(room, queue, retry=restante.fixed(100)) is State.RETRYING
    await room.send(queue, "delay")
    assert await fail(room, queue, delay=100) is State.RETRYING
    assert room.states(queue) == {"dead": 1, "retrying": 3}


async def test_a_policy_reads_back_as_it_was_given(room: Room) -> None:
    policy = restante.exponential(0.1234567, factor=1.5, cap=1234567.5, jitter=0.3333333)
    queue = room.queue(retry=policy)
    await room.send(queue, "x")
    assert room.client().queue(queue.name) is not None
    assert room.admin.counts(queue.name).settings.retry == policy


async def test_a_buried_message_is_dead_at_once_with_its_error(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "wrong")
    await room.call((await room.take(queue)).bury, error="not a customer of ours")
    shown = room.admin.show(queue.name, id)
    assert shown.state is State.DEAD
    assert shown.history[-1].event.value == "buried"
    assert shown.history[-1].error == "not a customer of ours"


async def test_errors_of_any_text_are_kept(room: Room) -> None:
    queue = room.queue(max_attempts=50)
    id = await room.send(queue, "x")
    texts = ["tab\tand\nline", "nul\x00", "ünïcödé", "\ud800 lone", "x" * 10_000, ""]
    for text in texts:
        await fail(room, queue, delay=0, error=text)
    history = room.admin.show(queue.name, id).history
    assert [one.error for one in history][:3] == texts[:3]
    assert len(history) == len(texts)


async def test_the_history_is_bounded_and_keeps_the_newest(room: Room) -> None:
    queue = room.queue(max_attempts=100)
    id = await room.send(queue, "x")
    for number in range(60):
        await fail(room, queue, delay=0, error=f"failure {number}")
    history = room.admin.show(queue.name, id).history
    assert len(history) == 50
    assert history[-1].error == "failure 59"
    assert [one.attempt for one in history] == list(range(11, 61))


@needs("batch")
async def test_a_batch_of_failures_goes_each_its_own_way(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "a", max_attempts=1)
    await room.send(queue, "b", max_attempts=2)
    taken = await room.call(queue.receive_many, 2)
    assert await room.call(queue.nack_many, taken, delay=100) == [State.DEAD, State.RETRYING]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True, 65536, 2**63])
async def test_a_limit_that_is_no_count_is_refused(room: Room, limit: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="max_attempts"):
        await room.send(queue, "never", max_attempts=limit)
    with pytest.raises(InvalidInput, match="max_attempts"):
        await room.call(queue.configure, max_attempts=limit)
    assert room.states(queue) == {}
