"""Which message comes next: priority first, then the order of sending, and nobody loses a place by coming back."""

from __future__ import annotations

from tests.contract.rooms import Room, needs


async def test_messages_come_in_the_order_they_were_sent(room: Room) -> None:
    queue = room.queue()
    for number in range(20):
        await room.send(queue, number)
    assert await room.drain(queue) == list(range(20))


@needs("batch")
async def test_a_batch_keeps_the_order_of_its_items(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, list(range(500)))
    await room.send(queue, 500)
    taken = await room.call(queue.receive_many, 1000)
    assert [message.payload for message in taken] == list(range(501))


@needs("priority")
async def test_every_priority_from_255_to_0_is_strict(room: Room) -> None:
    queue = room.queue()
    order = [(level * 37) % 256 for level in range(256)]  # 37 and 256 share no factor: each level once
    for level in order:
        await room.send(queue, level, priority=level)
    found = []
    while taken := await room.call(queue.receive_many, 10):
        found += [message.payload for message in taken]
        await room.call(queue.ack_many, taken)
    assert found == list(range(255, -1, -1))


@needs("priority")
async def test_within_a_priority_the_first_sent_is_the_first_received(room: Room) -> None:
    queue = room.queue()
    for number in range(12):
        await room.send(queue, number, priority=number % 3)
    expected = [number for level in (2, 1, 0) for number in range(12) if number % 3 == level]
    assert await room.drain(queue) == expected


@needs("priority")
async def test_a_later_urgent_message_overtakes_what_waits(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "routine")
    await room.send(queue, "urgent", priority=1)
    assert await room.drain(queue) == ["urgent", "routine"]


@needs("tokens")
async def test_a_released_message_returns_to_its_place_and_the_attempt_does_not_count(room: Room) -> None:
    queue = room.queue()
    for number in range(3):
        await room.send(queue, number)
    first = await room.take(queue)
    await room.call(first.release)
    again = await room.take(queue)
    assert (again.id, again.attempts) == (first.id, 1)
    await room.call(again.ack)
    assert await room.drain(queue) == [1, 2]


@needs("retry")
async def test_a_nack_without_delay_returns_to_its_place_and_counts(room: Room) -> None:
    queue = room.queue()
    for number in range(3):
        await room.send(queue, number)
    first = await room.take(queue)
    await room.call(first.nack, delay=0)
    again = await room.take(queue)
    assert (again.id, again.attempts) == (first.id, 2)
    await room.call(again.ack)
    assert await room.drain(queue) == [1, 2]


@needs("retry", "priority")
async def test_a_nacked_urgent_message_is_still_urgent(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "urgent", priority=9)
    await room.send(queue, "routine")
    await room.call((await room.take(queue)).nack, delay=0)
    assert await room.drain(queue) == ["urgent", "routine"]


@needs("tokens")
async def test_an_expired_lease_returns_its_message_to_its_place(room: Room) -> None:
    queue = room.queue()
    for number in range(3):
        await room.send(queue, number)
    first = await room.take(queue, lease=0.1)
    await room.pass_time(0.1)
    again = await room.take(queue)
    assert (again.id, again.attempts) == (first.id, 2)
    await room.call(again.ack)
    assert await room.drain(queue) == [1, 2]


@needs("delay", "priority")
async def test_what_falls_due_together_comes_by_priority(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "low", delay=0.05)
    await room.send(queue, "high", delay=0.06, priority=5)
    await room.pass_time(0.06)
    assert await room.drain(queue) == ["high", "low"]
