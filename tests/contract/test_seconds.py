"""What every queue can do, also one that counts in whole seconds: wait, hide, come again, be held longer, be gone."""

from __future__ import annotations

from datetime import timedelta

from tests.contract.rooms import Room, needs


async def test_an_empty_queue_gives_nothing(room: Room) -> None:
    assert await room.receive(room.queue()) is None


async def test_what_is_acked_is_gone_and_what_is_held_is_nobody_elses(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "first")
    await room.send(queue, "second")
    first = await room.take(queue)
    assert room.states(queue) == {"leased": 1, "ready": 1}
    assert (first.payload, first.attempts, (await room.take(queue)).payload) == ("first", 1, "second")
    assert await room.receive(queue) is None
    await room.call(first.ack)
    assert room.states(queue) == {"leased": 1}


@needs("delay")
async def test_a_delay_of_seconds_is_kept_and_not_exceeded(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "later", delay=2)
    await room.send(queue, "sooner", delay=1)
    assert room.states(queue) == {"scheduled": 2}
    assert await room.receive(queue) is None
    await room.pass_time(1)
    assert (await room.take(queue)).payload == "sooner"
    assert await room.receive(queue) is None
    await room.pass_time(1)
    assert (await room.take(queue)).payload == "later"


async def test_a_lease_that_ends_gives_the_message_to_another_and_the_attempt_is_counted(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "x")
    await room.take(queue, lease=1)
    assert await room.receive(queue) is None
    await room.pass_time(1)
    again = await room.take(queue, lease=60)
    assert (again.id, again.payload, again.attempts) == (id, "x", 2)


async def test_a_lease_can_be_made_longer(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "x")
    message = await room.take(queue, lease=1)
    await room.call(message.extend, lease=3)
    await room.pass_time(2)
    assert await room.receive(queue) is None
    await room.pass_time(1)
    assert (await room.take(queue)).attempts == 2


async def test_a_message_tells_when_it_was_sent_by_the_servers_clock(room: Room) -> None:
    queue = room.queue()
    before = room.now()
    await room.send(queue, "x")
    message = await room.take(queue)
    # Some tell microseconds, and the clock's own milliseconds are cut, not rounded.
    assert before <= message.sent_at <= room.now() + timedelta(milliseconds=1)
