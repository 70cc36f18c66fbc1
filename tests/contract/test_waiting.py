"""A receive that waits: woken at once by what arrives, at the very time by what falls due, and over when it said."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from restante import InvalidInput
from tests.contract.rooms import Room, fresh_name, needs
from tests.harness.deadlines import PATIENCE, at_most, took_at_most

pytestmark = [needs("poll"), pytest.mark.timed]

#: Seconds a woken receive may take: a missed wake-up would cost the five of a consumer's sleep.
PROMPT = 1.5
#: Seconds a receive may be late to give up: the promise.
OVERTIME = 0.1


async def timed(waiting: Any) -> tuple[Any, float]:
    """The result and the seconds it took."""
    started = time.monotonic()
    return await waiting, time.monotonic() - started


@pytest.mark.parametrize("timeout", [0.05, 0.3, 1.0])
async def test_a_receive_gives_up_when_it_said(room: Room, timeout: float) -> None:
    queue = room.queue()
    await room.send(queue, "open the queue first")
    await room.drain(queue)
    message, seconds = await timed(room.receive(queue, timeout))
    assert message is None
    assert seconds >= timeout
    took_at_most(seconds, timeout + OVERTIME)


async def test_a_receive_without_a_timeout_does_not_wait(room: Room) -> None:
    queue = room.queue()
    assert await room.receive(queue) is None
    assert await room.call(queue.receive_many, 10) == []


async def test_an_arriving_message_ends_the_wait(room: Room) -> None:
    queue = room.queue()
    waiting = asyncio.create_task(room.receive(queue, PATIENCE))
    await asyncio.sleep(0.3)
    with at_most(PROMPT):
        await room.send(room.client().queue(queue.name), "news")
        message = await waiting
    assert message is not None
    assert message.payload == "news"


async def test_what_falls_due_ends_the_wait_at_its_time(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "later", delay=0.4)
    message, seconds = await timed(room.receive(queue, PATIENCE))
    assert message is not None
    assert (message.received_at - message.sent_at).total_seconds() >= 0.4
    took_at_most(seconds, 0.4 + PROMPT)


async def test_a_nearer_due_time_reaches_those_who_already_wait(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "much later", delay=600)
    waiting = asyncio.create_task(timed(room.receive(queue, PATIENCE)))
    await asyncio.sleep(0.2)
    await room.send(room.client().queue(queue.name), "soon", delay=0.3)
    message, seconds = await waiting
    assert message.payload == "soon"
    took_at_most(seconds, 0.5 + PROMPT)


async def test_an_ending_lease_ends_the_wait(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "dropped")
    await room.take(queue, lease=0.4)
    message, seconds = await timed(room.receive(queue, PATIENCE))
    assert (message.payload, message.attempts) == ("dropped", 2)
    took_at_most(seconds, 0.4 + PROMPT)


async def test_a_lease_taken_while_others_wait_is_reclaimed_in_time(room: Room) -> None:
    queue = room.queue()
    waiters = [asyncio.create_task(timed(room.receive(room.client().queue(queue.name), PATIENCE))) for _ in range(2)]
    await asyncio.sleep(0.3)
    await room.send(queue, "dropped", lease=0.5)
    done, pending = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    first, second = done.pop(), pending.pop()
    assert first.result()[0].attempts == 1
    message, seconds = await second
    assert message.attempts == 2
    took_at_most(seconds, 0.3 + 0.5 + PROMPT)


async def test_a_retry_that_falls_due_ends_the_wait(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "flaky")
    message = await room.take(queue)
    waiting = asyncio.create_task(timed(room.receive(room.client().queue(queue.name), PATIENCE)))
    await asyncio.sleep(0.2)
    await room.call(message.nack, delay=0.3)
    again, seconds = await waiting
    assert again.attempts == 2
    took_at_most(seconds, 0.5 + PROMPT)


@pytest.mark.parametrize("how", ["release", "replay", "resume", "move"])
async def test_everything_that_makes_a_message_ready_ends_the_wait(room: Room, how: str) -> None:
    queue = room.queue()
    id = await room.send(queue, "x")
    message: Any = None
    if how == "resume":
        room.admin.pause(queue.name)
    else:
        message = await room.take(queue)
    other = fresh_name()
    if how == "replay":
        await room.call(message.bury)
    elif how == "move":
        await room.call(message.release)
    target = room.client().queue(other if how == "move" else queue.name)
    waiting = asyncio.create_task(room.receive(target, PATIENCE))
    await asyncio.sleep(0.3)
    with at_most(PROMPT):
        if how == "release":
            await room.call(message.release)
        elif how == "replay":
            await asyncio.to_thread(room.admin.replay, queue.name)
        elif how == "resume":
            await asyncio.to_thread(room.admin.resume, queue.name)
        else:
            await asyncio.to_thread(room.admin.move, queue.name, other, [id])
        got = await waiting
    assert got is not None
    assert got.id == id


async def test_a_batch_wakes_several_who_wait(room: Room) -> None:
    queue = room.queue()
    waiters = [asyncio.create_task(room.receive(room.client().queue(queue.name), PATIENCE)) for _ in range(3)]
    await asyncio.sleep(0.3)
    with at_most(2 * PROMPT):
        await room.call(queue.send_many, [1, 2, 3])
        got = await asyncio.gather(*waiters)
    assert sorted(message.payload for message in got) == [1, 2, 3]


@needs("many_queues")
async def test_one_receive_takes_from_the_first_of_several_queues_that_has_something(room: Room) -> None:
    names = [fresh_name() for _ in range(3)]
    await room.send(room.queue(names[1]), "second")
    await room.send(room.queue(names[2]), "third")
    taken = await room.call(room.post.receive_many, names, 10)
    assert [(message.queue, message.payload) for message in taken] == [(names[1], "second")]
    taken = await room.call(room.post.receive_many, names, 10)
    assert [(message.queue, message.payload) for message in taken] == [(names[2], "third")]
    assert await room.call(room.post.receive_many, names, 10) == []
    with pytest.raises(InvalidInput):
        await room.call(room.post.receive_many, [], 1)


@needs("many_queues")
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_wait_on_several_queues_ends_with_the_first_message_of_any(room: Room, which: int) -> None:
    names = [fresh_name() for _ in range(3)]
    waiting = asyncio.create_task(room.call(room.post.receive_many, names, 1, PATIENCE))
    await asyncio.sleep(0.3)
    with at_most(PROMPT):
        await room.send(room.client().queue(names[which]), which)
        taken = await waiting
    assert [message.payload for message in taken] == [which]
    await room.call(taken[0].ack)


@needs("many_queues")
async def test_a_wait_on_several_queues_keeps_the_nearest_due_time_and_its_own_end(room: Room) -> None:
    names = [fresh_name() for _ in range(2)]
    await room.send(room.queue(names[1]), "later", delay=0.4)
    taken, seconds = await timed(room.call(room.post.receive_many, names, 1, PATIENCE))
    assert [message.payload for message in taken] == ["later"]
    assert (taken[0].received_at - taken[0].sent_at).total_seconds() >= 0.4
    took_at_most(seconds, 0.4 + PROMPT)
    taken, seconds = await timed(room.call(room.post.receive_many, names, 1, 0.3))
    assert taken == []
    assert seconds >= 0.3
    took_at_most(seconds, 0.3 + PROMPT)


@needs("cancel", "admin")
async def test_a_cancelled_handler_still_settles_its_message(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "x")
    begun = asyncio.Event()

    async def handle() -> None:
        async with await room.take(queue):
            begun.set()
            await asyncio.sleep(PATIENCE)

    handling = asyncio.create_task(handle())
    await begun.wait()
    # A server that has just started knows no script, so that the verdict takes several calls.
    room.plain.connection.command("SCRIPT", "FLUSH")
    handling.cancel()
    await asyncio.wait({handling})
    assert handling.cancelled()
    assert room.events(queue, id) == ["sent", "received", "nacked"]


@needs("cancel")
async def test_a_cancelled_wait_leaves_the_client_usable(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "open the queue first")
    await room.drain(queue)
    for pause in (0.0, 0.0, 0.001, 0.002, 0.005, 0.02, 0.1):
        waiting = asyncio.create_task(queue.receive(20))
        await asyncio.sleep(pause)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=PATIENCE)
        assert waiting.cancelled(), f"a cancellation after {pause} s was swallowed"
    sending = [asyncio.create_task(queue.send(number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in sending[::2]:
        task.cancel()
    ended = await asyncio.gather(*sending, return_exceptions=True)
    confirmed = {number for number, result in enumerate(ended) if isinstance(result, str)}
    assert confirmed <= set(await room.drain(queue))
