"""Tasks on every kind of queue, and handlers that are run in a loop of one's own."""

# A queue of any kind has no type here, so its decorators have none; tests/core/test_typing.py proves their types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import restante
from restante import InvalidArguments, InvalidInput, LeasedMessage, MessageDead, NoHandler, SoftTimeLimit, State
from restante import TimeLimit as Limit
from restante.aio import AsyncLeasedMessage
from tests.contract.rooms import Room, needs

pytestmark = needs("admin", "tokens", "handle", "done", "headers", "unique", "retry")


def awaits(queue: Any) -> bool:
    """Whether the verbs of the queue's messages are awaited."""
    return asyncio.iscoroutinefunction(queue.send)


async def work(room: Room, queue: Any) -> list[Any]:
    """What a program does that receives by itself: runs the handler of each message, and acks with its result."""
    ended: list[Any] = []
    while (message := await room.call(queue.receive)) is not None:
        ended.append(message)
        if awaits(queue):
            async with message:
                await message.ack(result=await queue.run_handler(message))
        else:

            def handle(message: Any = message) -> None:
                with message:
                    message.ack(result=queue.run_handler(message))

            await asyncio.to_thread(handle)
    return ended


async def test_a_task_is_sent_followed_and_run_on_every_queue(room: Room) -> None:
    queue = room.queue(keep_done=10)

    @queue.task(priority=7, max_attempts=2)
    def add(a: int, b: int = 2) -> dict[str, int]:
        return {"sum": a + b}

    @queue.task(kind="add.later")
    async def add_later(a: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": a}

    handles = [
        await room.call(add.send, a=1),
        await add.using(priority=9, delay=0).send_async(1, b=5),
        await room.call(add_later.send, 7),
    ]
    shown = [room.admin.show(queue.name, handle.id) for handle in handles]
    assert [(one.kind, one.payload, one.priority, one.max_attempts) for one in shown] == [
        ("add", {"a": 1}, 7, 2),
        ("add", {"a": 1, "b": 5}, 9, 2),
        ("add.later", {"a": 7}, 0, None),
    ]
    assert len(await work(room, queue)) == 3
    assert [await room.call(handle.result, timeout=5) for handle in handles] == [{"sum": 3}, {"sum": 6}, {"sum": 7}]


async def test_a_call_that_does_not_fit_is_refused_before_anything_is_stored(room: Room) -> None:
    queue = room.queue()

    @queue.task
    def ship(order: int) -> None: ...

    with pytest.raises(InvalidArguments, match="did you mean order"):
        await room.call(ship.send, ordr=1)
    with pytest.raises(InvalidArguments):
        ship.draft("1")
    with pytest.raises(InvalidInput, match="did you mean delay"):
        ship.using(dealy=1)
    with pytest.raises(InvalidInput, match="did you mean timeout"):
        queue.task(timeuot=1)
    assert queue.name not in room.admin.queues() or room.admin.counts(queue.name).ready == 0


async def test_drafts_of_tasks_are_one_batch_and_unique_calls_are_stored_once(room: Room) -> None:
    queue = room.queue()

    @queue.task(unique="order")
    def ship(order: int, express: bool = False) -> None: ...

    first = await room.call(ship.send, order=1)
    again = await room.call(ship.send, order=1, express=True)
    assert again.id == first.id
    await room.call(queue.send_many, [ship.draft(order=1), ship.draft(order=2), ship.using(delay=60).draft(order=3)])
    counts = room.admin.counts(queue.name)
    assert (counts.ready, counts.scheduled) == (2, 1)
    assert await room.call(first.cancel)
    assert room.admin.counts(queue.name).ready == 1


async def test_a_task_that_takes_the_message_gets_it_with_the_verbs_of_its_queue(room: Room) -> None:
    queue = room.queue(keep_done=10)
    seen: list[Any] = []
    if awaits(queue):

        @queue.task
        async def ship(message: AsyncLeasedMessage, order: int) -> None:
            await message.progress(0.5, "packing")
            seen.append((message.id, (await queue.handle(message.id).progress()).step, order))

    else:

        @queue.task
        def ship(message: LeasedMessage, order: int) -> None:
            message.progress(0.5, "packing")
            seen.append((message.id, queue.handle(message.id).progress.step, order))

    handle = await room.call(ship.send, order=42)
    await work(room, queue)
    assert seen == [(handle.id, "packing", 42)]


async def test_what_a_handler_raises_fails_the_message(room: Room) -> None:
    queue = room.queue(max_attempts=1)

    @queue.task
    def ship(order: int) -> None:
        raise LookupError(f"no order {order}")

    handles = [await room.call(ship.send, order=42)]
    handles.append(queue.handle(await room.send(queue, {"ordr": 1}, kind="ship")))
    handles.append(queue.handle(await room.send(queue, {"order": 1}, kind="shop")))
    ended = await work(room, queue)
    assert [type(message.error) for message in ended] == [LookupError, InvalidArguments, NoHandler]
    for handle, expected in zip(handles, ("LookupError", "InvalidArguments", "NoHandler"), strict=True):
        with pytest.raises(MessageDead) as dead:
            await room.call(handle.result, timeout=5)
        assert dead.value.error_class == expected


async def test_a_handler_that_is_run_by_hand_is_inside_hooks_and_under_its_limits(room: Room) -> None:
    queue = room.queue(max_attempts=1)
    seen: list[str] = []

    class Around(restante.Hook):
        def around(self, message: Any, call: Any) -> Any:
            seen.append(f"before {message.kind}")
            try:
                return call()
            finally:
                seen.append(f"after {message.kind}")

        async def around_async(self, message: Any, call: Any) -> Any:
            seen.append(f"before {message.kind}")
            try:
                return await call()
            finally:
                seen.append(f"after {message.kind}")

    queue.add_hook(Around())

    @queue.task(timeout=0.2)
    def spin() -> None:
        while True:
            time.sleep(0.001)

    @queue.task(timeout=0.2)
    async def sleep() -> None:
        await asyncio.sleep(3600)

    @queue.task(soft_timeout=0.1, timeout=600)
    def soft() -> None:
        try:
            while True:
                time.sleep(0.001)
        except SoftTimeLimit:
            seen.append("cleaned up")

    for task in (spin, sleep, soft):
        await room.call(task.send)
    ended = await work(room, queue)
    assert [type(message.error) for message in ended] == [Limit, Limit, type(None)]
    assert [message.verdict for message in ended] == ["nacked", "nacked", "acked"]
    spun = ["before spin", "after spin", "before sleep", "after sleep", "before soft", "cleaned up", "after soft"]
    assert seen == spun


async def test_a_queue_without_a_handler_or_of_another_message_runs_nothing(room: Room) -> None:
    queue, other = room.queue(), room.queue()
    await room.send(other)
    message = await room.take(other)
    with pytest.raises(InvalidInput, match="has no handler"):
        await room.call(queue.run_handler, message)

    @queue.task
    def ship(order: int) -> None: ...

    with pytest.raises(InvalidInput, match=f"is a message of {other.name}"):
        await room.call(queue.run_handler, message)
    assert message.state is State.LEASED


async def test_a_handler_that_needs_other_verbs_or_another_loop_is_refused_with_the_remedy(room: Room) -> None:
    queue = room.queue()
    await room.send(queue)
    message = await room.take(queue)
    ran: list[int] = []
    if awaits(queue):

        @queue.handler
        def plain(message: Any) -> None:
            ran.append(threading.get_ident())

        with pytest.raises(InvalidInput, match="make it async def"):
            await queue.run_handler(message)
    else:

        @queue.handler
        async def coroutine(message: Any) -> None:
            ran.append(threading.get_ident())

        with pytest.raises(InvalidInput, match="await run_handler"):
            queue.run_handler(message)
    assert ran == []
