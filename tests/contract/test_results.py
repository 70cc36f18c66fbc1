"""Messages followed by their id: state, progress while they run, and the result of their handler."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from restante import (
    InvalidInput,
    InvalidPayload,
    LeaseLost,
    MessageDead,
    NoResult,
    PayloadTooLarge,
    Progress,
    ResultTimeout,
    State,
)
from restante.core.operations import MAX_RESULT, MAX_STEP
from tests.contract.rooms import Room, needs

pytestmark = needs("admin", "tokens", "handle", "done")

VALUES: list[Any] = [42, "text", [1, {"a": None}], {"deep": {"wide": 2**70}}, "", 0, False, [], "a\tb\nc\u2028"]


@pytest.fixture
def looked(room: Room) -> Any:
    """Reads a property of a handle in a thread where it blocks."""

    async def look(handle: Any, name: str) -> Any:
        kind = getattr(type(handle), name)
        if isinstance(kind, property):
            return await asyncio.to_thread(getattr, handle, name)
        return await getattr(handle, name)()

    return look


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20].encode("unicode_escape").decode())
async def test_a_result_is_what_the_handler_acked_with(room: Room, value: Any) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    message = await room.take(queue)
    await room.call(message.ack, result=value)
    assert (message.settled, message.verdict) == (True, "acked")
    assert await room.call(handle.result, timeout=5) == value
    assert room.admin.show(queue.name, handle.id).result == value
    assert room.admin.messages(queue.name, "done").messages[0].result == value
    assert room.admin.show(queue.name, handle.id).history == ()


async def test_a_message_acked_without_a_result_has_none(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    await room.call((await room.take(queue)).ack)
    assert await room.call(handle.result, timeout=5) is None


async def test_a_handle_tells_every_state(room: Room, looked: Any) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue, delay=10))
    assert await looked(handle, "state") is State.SCHEDULED
    await room.pass_time(10)
    message = await room.take(queue)
    assert await looked(handle, "state") is State.LEASED
    await room.call(message.nack, delay=10)
    assert await looked(handle, "state") is State.RETRYING
    await room.pass_time(10)
    message = await room.take(queue)
    await room.call(message.release)
    assert await looked(handle, "state") is State.READY
    await room.call((await room.take(queue)).bury, error=ValueError("no good"))
    assert await looked(handle, "state") is State.DEAD
    room.admin.replay(queue.name, ids=[handle.id])
    await room.call((await room.take(queue)).ack)
    assert await looked(handle, "state") is State.DONE
    room.admin.purge(queue.name)
    assert await looked(handle, "state") is None


async def test_progress_is_shown_while_the_message_is_leased(room: Room, looked: Any) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    message = await room.take(queue)
    assert await looked(handle, "progress") is None
    await room.call(message.progress, 0.4, "step")
    noted = await looked(handle, "progress")
    assert noted == Progress(0.4, "step", room.now())
    assert room.admin.show(queue.name, handle.id).last_progress == noted
    assert room.admin.messages(queue.name, "leased").messages[0].last_progress == noted
    await room.call(message.extend)
    assert await looked(handle, "progress") == noted, "a renewal keeps it"
    await room.call(message.progress, 1)
    assert (await looked(handle, "progress")).fraction == 1
    await room.call(message.ack, result="x")
    assert await looked(handle, "progress") is None


@pytest.mark.parametrize("verb", ["nack", "release", "bury"])
async def test_progress_ends_with_its_attempt(room: Room, looked: Any, verb: str) -> None:
    queue = room.queue()
    handle = queue.handle(await room.send(queue))
    message = await room.take(queue)
    await room.call(message.progress, 0.4, "step")
    await room.call(getattr(message, verb))
    assert await looked(handle, "progress") is None
    assert room.admin.show(queue.name, handle.id).last_progress is None


async def test_progress_needs_the_lease(room: Room, looked: Any) -> None:
    queue = room.queue()
    handle = queue.handle(await room.send(queue))
    message = await room.take(queue, lease=1)
    await room.pass_time(1)
    with pytest.raises(LeaseLost):
        await room.call(message.progress, 0.4)
    assert message.lease_lost
    assert await looked(handle, "progress") is None


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan, True, "half", None])
async def test_progress_is_a_number_from_0_to_1(room: Room, fraction: Any) -> None:
    queue = room.queue()
    await room.send(queue)
    message = await room.take(queue)
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        await room.call(message.progress, fraction)


async def test_the_step_of_a_progress_is_bounded(room: Room) -> None:
    queue = room.queue()
    await room.send(queue)
    message = await room.take(queue)
    await room.call(message.progress, 0.5, "é" * MAX_STEP)
    for step in ("x" * (MAX_STEP + 1), 5):
        with pytest.raises(InvalidInput, match="step"):
            await room.call(message.progress, 0.5, step)


async def test_a_result_that_cannot_be_kept_is_refused_and_the_message_stays(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    message = await room.take(queue)
    with pytest.raises(InvalidPayload, match="result"):
        await room.call(message.ack, result=object())
    with pytest.raises(InvalidPayload, match="result"):
        await room.call(message.ack, result=math.nan)
    with pytest.raises(PayloadTooLarge, match=f"keeps up to {MAX_RESULT}"):
        await room.call(message.ack, result="x" * MAX_RESULT)
    assert not message.settled
    await room.call(message.ack, result="x" * (MAX_RESULT - 2))
    assert len(await room.call(handle.result, timeout=5)) == MAX_RESULT - 2


async def test_a_result_comes_too_late_once_the_lease_is_lost(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    late = await room.take(queue, lease=1)
    await room.pass_time(1)
    again = await room.take(queue)
    with pytest.raises(LeaseLost):
        await room.call(late.ack, result="late")
    await room.call(again.ack, result="in time")
    assert await room.call(handle.result, timeout=5) == "in time"


async def test_a_queue_that_keeps_nothing_acks_and_drops_the_result(room: Room) -> None:
    queue = room.queue()
    handle = queue.handle(await room.send(queue))
    await room.call((await room.take(queue)).ack, result="x")
    assert room.states(queue) == {}
    with pytest.raises(NoResult, match="set keep_done"):
        await room.call(handle.result, timeout=5)


async def test_a_result_that_newer_ones_have_displaced_is_named_as_that(room: Room) -> None:
    queue = room.queue(keep_done=1)
    handles = [queue.handle(await room.send(queue, number)) for number in range(2)]
    for number in range(2):
        await room.call((await room.take(queue)).ack, result=number)
        await room.pass_time(0.01)
    assert await room.call(handles[1].result, timeout=5) == 1
    with pytest.raises(NoResult, match="displaced"):
        await room.call(handles[0].result, timeout=5)


async def test_a_dead_message_raises_its_last_error(room: Room) -> None:
    queue = room.queue(keep_done=10, max_attempts=1)
    handle = queue.handle(await room.send(queue))
    await room.call((await room.take(queue)).nack, error=ValueError("no such order"))
    with pytest.raises(
        MessageDead, match="dead after 1 attempts, the last error is ValueError: no such order"
    ) as caught:
        await room.call(handle.result, timeout=5)
    assert caught.value.error_class == "ValueError"
    assert caught.value.error.strip().endswith("ValueError: no such order")


async def test_a_message_that_is_gone_has_no_result(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    await room.call(handle.cancel)
    for gone in (handle, queue.handle("nobody")):
        with pytest.raises(NoResult, match="never sent, or was acked, cancelled or deleted"):
            await room.call(gone.result, timeout=5)


async def test_a_wait_for_a_result_ends_with_its_timeout(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue, delay=3600))
    with pytest.raises(ResultTimeout, match="scheduled"):
        await room.call(handle.result, timeout=0.05)
    with pytest.raises(TimeoutError):
        await room.call(handle.result, timeout=0)
    with pytest.raises(InvalidInput, match="timeout"):
        await room.call(handle.result, timeout=-1)


async def test_a_result_is_waited_for(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    waiting = asyncio.ensure_future(room.call(handle.result, timeout=60))
    message = await room.take(queue)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await room.call(message.ack, result={"total": 7})
    assert await waiting == {"total": 7}


async def test_a_replayed_message_has_the_result_of_its_last_run(room: Room) -> None:
    queue = room.queue(keep_done=10)
    handle = queue.handle(await room.send(queue))
    await room.call((await room.take(queue)).bury, error="no")
    room.admin.replay(queue.name, ids=[handle.id])
    await room.call((await room.take(queue)).ack, result="second")
    assert await room.call(handle.result, timeout=5) == "second"
    shown = room.admin.show(queue.name, handle.id)
    assert [attempt.event for attempt in shown.history] == ["buried"]
