"""Loops over messages and handlers: the same for a `Queue` and an `AsyncQueue`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from typing import Any

import pytest

import restante
from restante import Consumer, InvalidInput, LeasedMessage, State
from restante.aio import AsyncLeasedMessage
from restante.core.prefetch import Prefetch
from tests.contract.rooms import Room, needs
from tests.harness.deadlines import wait_until_async

pytestmark = needs("consume")


async def first_of(room: Room, queue: Any, **options: Any) -> Any:
    """Takes the first message of a loop, acks it, and leaves the loop."""

    def run() -> Any:
        with closing(queue.consume(**options)) as loop:
            message = next(loop)
            message.ack()
        return message

    if not room.name.startswith("async"):
        return await room.call(run)
    async with aclosing(queue.consume(**options)) as loop:
        message = await anext(loop)
        await message.ack()
    return message


async def all_of(room: Room, queue: Any, **options: Any) -> list[Any]:
    """The messages of a loop that ends when the queue is empty, each acked."""
    seen = []

    def run() -> None:
        for message in queue.consume(stop_when_empty=True, **options):
            with message:
                seen.append(message)

    if not room.name.startswith("async"):
        await room.call(run)
        return seen
    async for message in queue.consume(stop_when_empty=True, **options):
        async with message:
            seen.append(message)
    return seen


async def test_a_loop_yields_every_message_once_in_order(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, list(range(300)))
    assert [message.payload for message in await all_of(room, queue)] == list(range(300))
    assert room.states(queue) == {}


@pytest.mark.parametrize(("prefetch", "most"), [(0, 1), (7, 8)])
async def test_a_loop_holds_at_most_prefetch_messages_ahead(
    room: Room, prefetch: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prefetch, "room", property(lambda window: 1 + window._prefetch))  # as for quick handlers
    queue = room.queue()
    await room.call(queue.send_many, list(range(20)))
    held = []

    def look(message: Any) -> None:
        held.append(room.admin.counts(queue.name).leased)

    if room.name.startswith("async"):
        async for message in queue.consume(prefetch=prefetch, stop_when_empty=True):
            look(message)
            await message.ack()
    else:
        for message in queue.consume(prefetch=prefetch, stop_when_empty=True):
            look(message)
            message.ack()
    assert len(held) == 20
    assert max(held) == most


@pytest.mark.parametrize("prefetch", [-1, 1001, 2.5, "10", True])
async def test_a_prefetch_that_is_no_count_is_refused(room: Room, prefetch: Any) -> None:
    with pytest.raises(InvalidInput, match="prefetch must be a whole number from 0 to 1000"):
        await all_of(room, room.queue(), prefetch=prefetch)


async def test_a_loop_that_is_left_releases_what_it_held_ahead(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetch, "room", 5)
    queue = room.queue()
    await room.call(queue.send_many, list(range(8)))
    assert (await first_of(room, queue)).payload == 0
    assert room.states(queue) == {"ready": 7}
    assert [message.attempts for message in await all_of(room, queue)] == [1] * 7


@needs("cancel")
async def test_a_cancelled_loop_releases_what_it_held_ahead(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetch, "room", 5)
    queue = room.queue(retry=restante.fixed(3600))
    await room.call(queue.send_many, list(range(8)))
    begun = asyncio.Event()

    async def work() -> None:
        async for message in queue.consume():
            async with message:
                begun.set()
                await asyncio.sleep(3600)

    task = asyncio.create_task(work())
    await begun.wait()
    assert room.states(queue) == {"leased": 5, "ready": 3}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The generator is closed by the event loop, a step or two later.
    await wait_until_async(lambda: "leased" not in room.states(queue))
    assert room.events(queue).count("released") == 4
    assert room.events(queue).count("nacked") == 1


async def test_a_suspect_runs_alone(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetch, "room", 5)
    queue = room.queue(lease=1)
    await room.call(queue.send_many, list(range(4)))
    await room.take(queue)
    await room.pass_time(1)
    seen = []
    for message in await all_of(room, queue):
        seen.append((message.payload, message.suspect, message.attempts))
    assert sorted(seen) == [(0, True, 2), (1, False, 1), (2, False, 1), (3, False, 1)]
    first = next(payload for payload, suspect, _ in seen if suspect)
    received = [entry for entry in room.admin.journal(queue.name, limit=1000) if entry.event.value == "released"]
    assert first == 0
    assert len(received) >= 1  # what was received with the suspect went back


async def test_a_consumer_runs_the_handlers_of_a_queue(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine of an `AsyncQueue` awaits the verbs of its message; a plain function gets blocking ones."""
    queue = room.queue(max_attempts=1)
    aio = room.name.startswith("async")
    seen: dict[str, Any] = {}

    def plain(message: LeasedMessage) -> None:
        assert isinstance(message, LeasedMessage)
        seen[message.payload] = message

    async def settles(message: Any) -> None:
        seen[message.payload] = message
        done = message.bury(error="no")
        if aio:
            await done

    async def coroutine(message: Any) -> None:
        assert isinstance(message, AsyncLeasedMessage if aio else LeasedMessage)
        seen[message.payload] = message
        if message.payload == "fails":
            raise LookupError("no such customer")

    queue.handler(kind="plain")(plain)
    queue.handler(kind="settles")(settles)
    queue.handler(coroutine)
    for payload, kind in (("plain", "plain"), ("settled", "settles"), ("good", "x"), ("fails", "y")):
        await room.send(queue, payload, kind=kind)
    consumer = Consumer([queue], concurrency=3, stop_when_empty=True)
    await asyncio.to_thread(consumer.run)
    assert (consumer.handled, consumer.failed) == (3, 1)
    assert room.states(queue) == {"dead": 2}
    dead = {message.payload: message for message in room.admin.walk(queue.name, State.DEAD)}
    assert {payload: message.attempts for payload, message in dead.items()} == {"settled": 1, "fails": 1}
    assert seen["settled"].verdict == "buried"
    assert {message.consumer for message in seen.values()} == {room.post.consumer}


async def test_a_block_in_a_handler_settles_the_message(room: Room) -> None:
    queue = room.queue(max_attempts=1)
    aio = room.name.startswith("async")

    async def handle(message: Any) -> None:
        if aio:
            async with message:
                raise LookupError(message.payload)
        else:
            with message:
                raise LookupError(message.payload)

    queue.handler(handle)
    await room.call(queue.send_many, ["a", "b"])
    consumer = Consumer([queue], stop_when_empty=True)
    await asyncio.to_thread(consumer.run)
    assert room.states(queue) == {"dead": 2}
    assert (consumer.handled, consumer.failed) == (2, 0)


async def test_a_consumer_takes_queues_of_both_runners(room: Room) -> None:
    queue, plain = room.queue(), room.plain.queue(room.queue().name)
    seen = []
    queue.handler(lambda message: seen.append(message.payload))
    plain.handler(lambda message: seen.append(message.payload))
    await room.send(queue, "one")
    plain.send("other")
    consumer = Consumer([queue, plain], stop_when_empty=True)
    await asyncio.to_thread(consumer.run)
    assert sorted(seen) == ["one", "other"]
    assert (room.states(queue), room.states(plain)) == ({}, {})


async def test_options_that_are_not_stored_yet_hold_for_a_consumer(room: Room) -> None:
    queue = room.queue(max_attempts=1)  # stored by the first call, which the consumer makes
    room.plain.queue(queue.name).send("x")

    async def fail(message: Any) -> None:
        raise LookupError

    queue.handler(fail)
    await asyncio.to_thread(Consumer([queue], stop_when_empty=True).run)
    assert room.states(queue) == {"dead": 1}


async def test_a_handler_that_cannot_work_is_refused(room: Room) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="must take one argument"):
        queue.handler(lambda: None)
    queue.handler(lambda message: None)
    with pytest.raises(InvalidInput, match="already has a handler for every kind"):
        queue.handler(lambda message: None)
    with pytest.raises(InvalidInput, match="has no handler"):
        Consumer([room.queue()])
