"""Nothing comes early by the server's clock, and everything comes once it is due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from restante import InvalidInput
from tests.contract.rooms import Room, needs

pytestmark = needs("delay", "fractions")

#: Seconds in a year, leap days ignored.
YEAR = 365 * 86400.0


def waited(message: Any) -> float:
    """Seconds from the sending to the receiving, both by the server's clock."""
    return float((message.received_at - message.sent_at).total_seconds())


@needs("poll")
@pytest.mark.parametrize("delay", [0.001, 0.002, 0.01, 0.1, 0.25])
async def test_a_delayed_message_is_never_early(room: Room, delay: float) -> None:
    queue = room.queue()
    await room.send(queue, "later", delay=delay)
    message = await room.receive(queue, 60)
    assert message is not None
    assert waited(message) >= delay


async def test_a_delay_may_be_a_timedelta(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "later", delay=timedelta(milliseconds=80))
    assert await room.receive(queue) is None
    await room.pass_time(0.08)
    assert waited(await room.take(queue)) >= 0.08


@pytest.mark.parametrize("years", [1, 9.9])
async def test_a_delay_of_years_is_kept_to_the_millisecond(room: Room, years: float) -> None:
    queue = room.queue()
    id = await room.send(queue, "much later", delay=years * YEAR)
    shown = room.admin.show(queue.name, id)
    assert shown.due_at is not None
    over = shown.due_at - shown.sent_at - timedelta(milliseconds=round(years * YEAR * 1000))
    # Instants are whole milliseconds; a message sent within one is due after it, never before.
    assert timedelta(0) <= over <= timedelta(milliseconds=1)
    assert await room.receive(queue) is None
    await room.pass_time(years * YEAR - 60)
    assert await room.receive(queue) is None
    await room.pass_time(60)
    assert waited(await room.take(queue)) >= years * YEAR


async def test_due_at_is_the_moment_the_message_becomes_ready(room: Room) -> None:
    queue = room.queue()
    due = room.now() + timedelta(milliseconds=150)
    id = await room.send(queue, "later", due_at=due)
    assert room.admin.show(queue.name, id).due_at == due
    assert await room.receive(queue) is None
    await room.pass_time(0.15)
    assert (await room.take(queue)).received_at >= due


async def test_a_due_time_below_the_millisecond_is_not_rounded_to_early(room: Room) -> None:
    queue = room.queue()
    due = room.now().replace(microsecond=0) + timedelta(hours=1, microseconds=1900)
    id = await room.send(queue, "later", due_at=due)
    shown = room.admin.show(queue.name, id)
    assert shown.due_at is not None
    assert shown.due_at >= due


async def test_a_delay_below_the_millisecond_is_not_rounded_to_early(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "later", delay=60.0014)
    shown = room.admin.show(queue.name, id)
    assert shown.due_at is not None
    assert shown.due_at - shown.sent_at >= timedelta(seconds=60.0014)


async def test_a_due_time_in_the_past_is_now(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "late", due_at=room.now() - timedelta(days=1))
    assert await room.drain(queue) == ["late"]


async def test_delayed_messages_come_in_the_order_of_their_due_times(room: Room) -> None:
    queue = room.queue()
    for place in (3, 1, 4, 2, 5):
        await room.send(queue, place, delay=place * 0.1)
    await room.pass_time(0.5)
    assert await room.drain(queue) == [1, 2, 3, 4, 5]


async def test_more_than_one_call_can_promote_falls_due_at_once_and_all_of_it_comes(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, list(range(900)), delay=0.05)
    await room.pass_time(0.05)
    found: list[int] = []
    while len(found) < 900:
        taken = await room.call(queue.receive_many, 1000, 5)
        assert taken
        found += [message.payload for message in taken]
        await room.call(queue.ack_many, taken)
    assert sorted(found) == list(range(900))


async def test_a_released_message_can_wait_before_it_comes_again(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "again")
    message = await room.take(queue)
    await room.call(message.release, delay=0.15)
    assert room.states(queue) == {"scheduled": 1}
    assert await room.receive(queue) is None
    await room.pass_time(0.15)
    assert (await room.take(queue)).attempts == 1


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), 1e300, 2**63, "5", True, timedelta(-1)])
async def test_a_delay_that_is_no_duration_is_refused_and_nothing_is_stored(room: Room, delay: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="delay"):
        await room.send(queue, "never", delay=delay)
    assert room.states(queue) == {}


async def test_a_due_time_without_a_zone_or_beside_a_delay_is_refused(room: Room) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="aware"):
        await room.send(queue, "never", due_at=room.now().replace(tzinfo=None))
    with pytest.raises(InvalidInput, match="both"):
        await room.send(queue, "never", due_at=room.now(), delay=5)
    assert room.states(queue) == {}
