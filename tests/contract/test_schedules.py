"""Schedules through every client: defined, fired by a receive, listed and removed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from restante import InvalidInput, NotFound, State
from tests.contract.rooms import Room, needs

pytestmark = needs("admin", "schedule")


async def test_a_receive_fires_what_is_due(room: Room) -> None:
    queue = room.queue()
    made = await room.call(queue.schedule, "poll", every="1m", payload={"n": 1}, priority=7)
    assert (made.name, made.queue, made.status, made.payload) == ("poll", queue.name, "active", {"n": 1})
    assert made.next_at is not None
    assert await room.receive(queue) is None
    await room.pass_time((made.next_at - room.now()).total_seconds())
    queue.ref.look_at = 0.0  # the clock moved, and the client waits by its own
    message = await room.take(queue)
    assert (message.schedule, message.tick, message.payload, message.priority) == ("poll", made.next_at, {"n": 1}, 7)
    [stored] = await room.call(queue.schedules)
    assert (stored.last_state, stored.next_at) == (State.LEASED, made.next_at + timedelta(minutes=1))
    assert room.admin.schedule(queue.name, "poll") == stored
    await room.call(message.ack)
    await room.call(queue.unschedule, "poll")
    assert await room.call(queue.schedules) == []


async def test_a_schedule_is_checked(room: Room) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="the hour '25'"):
        await room.call(queue.schedule, "nightly", "0 25 * * *")
    with pytest.raises(InvalidInput, match="did you mean payload"):
        await room.call(queue.schedule, "nightly", "0 3 * * *", payloud=1)
    with pytest.raises(NotFound):
        await room.call(queue.unschedule, "nightly")
