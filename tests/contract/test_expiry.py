"""A message past its own limit of waiting is removed when its turn comes; nothing else ever expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from restante import Draft, InvalidInput, State
from tests.contract.rooms import Room, needs

pytestmark = needs("expiry")


async def test_it_is_delivered_within_its_time_and_removed_after_it(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "stale", expires=0.1)
    await room.send(queue, "fresh", expires=timedelta(hours=1))
    await room.send(queue, "plain")
    await room.pass_time(0.15)
    assert [(await room.take(queue)).payload for _ in range(2)] == ["fresh", "plain"]
    assert await room.receive(queue) is None
    counts = room.admin.counts(queue.name)
    assert (counts.ready, counts.totals["deleted"], counts.totals["sent"]) == (0, 1, 3)
    (line,) = [line for line in room.admin.journal(queue.name) if line.event == "deleted"]
    assert (line.error_class, line.detail, line.attempts) == ("Lapsed", "ready", 0)


async def test_many_that_are_over_do_not_hide_what_is_behind_them(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, list(range(250)), expires=0.05)
    await room.send(queue, "last")
    await room.pass_time(0.1)
    message = await room.take(queue, lease=77)
    assert message.payload == "last"
    assert message.lease_expires_at - message.received_at == timedelta(seconds=77)


async def test_a_limit_of_none_is_no_limit_and_zero_is_at_once(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "never", expires=0)
    await room.send(queue, "ever", expires=None)
    await room.pass_time(0.01)
    assert (await room.take(queue)).payload == "ever"
    assert await room.receive(queue) is None


async def test_it_says_when_it_expires(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "x", expires=60)
    shown = room.admin.show(queue.name, id)
    assert shown.expires_at == shown.sent_at + timedelta(seconds=60)
    other = await room.send(queue, "y")
    assert room.admin.show(queue.name, other).expires_at is None


async def test_held_it_is_not_interrupted_and_given_back_it_is_over(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "x", expires=0.1)
    message = await room.take(queue)
    await room.pass_time(0.15)
    await room.call(message.nack, delay=0)
    assert await room.receive(queue) is None
    assert room.admin.counts(queue.name).waiting == 0


async def test_it_counts_from_when_the_message_is_due(room: Room) -> None:
    queue = room.queue()
    for n, expires in enumerate((3600, 0.01)):
        await room.send(queue, f"delay {n}", delay=0.3, expires=expires)
    listed = room.admin.messages(queue.name, State.SCHEDULED).messages  # due within one millisecond, so in any order
    shown = max(listed, key=lambda message: message.expires_at or message.sent_at)
    assert shown.due_at is not None
    assert shown.expires_at is not None
    assert timedelta(0) <= shown.expires_at - shown.due_at - timedelta(hours=1) <= timedelta(milliseconds=1)
    await room.call(queue.send_many, [Draft("draft", delay=0.3, expires=60), Draft("late", delay=0.3, expires=0.01)])
    await room.pass_time(0.4)
    got = {(await room.take(queue)).payload for _ in range(2)}
    assert got == {"delay 0", "draft"}
    assert await room.receive(queue) is None


async def test_it_counts_from_an_instant_given_as_due_at(room: Room) -> None:
    queue = room.queue()
    due = datetime.now(UTC) + timedelta(days=2)
    id = await room.send(queue, "x", due_at=due, expires=60)
    shown = room.admin.show(queue.name, id)
    assert shown.due_at is not None
    assert shown.expires_at == shown.due_at + timedelta(seconds=60)
    past = await room.send(queue, "y", due_at=datetime.now(UTC) - timedelta(days=2), expires=60)
    shown = room.admin.show(queue.name, past)
    assert shown.expires_at == shown.sent_at + timedelta(seconds=60)
    assert (await room.take(queue)).payload == "y"


async def test_a_unique_key_is_free_again(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "x", expires=0.05, unique="k")
    await room.pass_time(0.1)
    assert await room.receive(queue) is None
    assert (await room.send(queue, "y", unique="k")).stored


async def test_a_replayed_message_is_delivered_whatever_its_age(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "x", expires=0.05)
    await room.call((await room.take(queue)).bury)
    await room.pass_time(0.1)
    assert room.admin.counts(queue.name).dead == 1
    room.admin.replay(queue.name, ids=[id])
    assert (await room.take(queue)).payload == "x"


async def test_an_edited_message_keeps_its_limit(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "x", expires=60, lease=5, max_attempts=3)
    edited = room.admin.edit(queue.name, id, payload="y")
    assert edited.expires_at == edited.sent_at + timedelta(seconds=60)
    assert edited.max_attempts == 3
    assert room.admin.messages(queue.name, State.READY).messages[0].expires_at == edited.expires_at


async def test_a_message_put_off_keeps_its_time_after_the_new_due_time(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "x", delay=60, expires=30)
    edited = room.admin.edit(queue.name, id, delay=7200)
    assert edited.due_at is not None
    assert edited.expires_at is not None
    assert timedelta(0) <= edited.expires_at - edited.due_at - timedelta(seconds=30) <= timedelta(milliseconds=1)


async def test_a_draft_has_its_own(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, [Draft("stale", expires=0.05), "plain"])
    await room.pass_time(0.1)
    assert (await room.take(queue)).payload == "plain"


@pytest.mark.parametrize("expires", [-1, "soon", float("nan"), True])
async def test_what_is_no_duration_is_refused(room: Room, expires: object) -> None:
    with pytest.raises(InvalidInput, match="expires"):
        await room.send(room.queue(), "x", expires=expires)
