"""Groups take turns, each keeps its own order, and limits hold for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from restante import Draft, InvalidInput, State
from tests.contract.rooms import Room, needs
from tests.contract.test_batches import filled
from tests.harness.deadlines import PATIENCE

pytestmark = needs("groups")


async def send_groups(room: Room, queue: Any, *named: str) -> None:
    """Sends one message per name such as a1: the letter is its group, the whole its payload."""
    await room.call(queue.send_many, [Draft(name, group=name[0]) for name in named])


async def taken(room: Room, queue: Any, count: int = 100) -> list[Any]:
    found: list[Any] = await room.call(queue.receive_many, count)
    return found


def payloads(messages: Sequence[Any]) -> list[Any]:
    return [message.payload for message in messages]


async def test_a_group_that_sends_much_does_not_delay_one_that_sends_little(room: Room) -> None:
    queue = room.queue()
    await send_groups(room, queue, *(f"a{number}" for number in range(100)))
    await room.send(queue, "b", group="b")
    await room.send(queue, "c", group="c")
    first = payloads(await taken(room, queue, 4))
    assert sorted(first[:3]) == ["a0", "b", "c"]
    assert first[3] == "a1"


async def test_each_group_keeps_its_own_order(room: Room) -> None:
    queue = room.queue()
    await send_groups(room, queue, "a1", "a2", "b1", "a3", "b2", "b3")
    found = await room.drain(queue)
    for group in "ab":
        assert [name for name in found if name[0] == group] == [f"{group}{number}" for number in (1, 2, 3)]


async def test_messages_without_a_group_take_turns_like_one_group(room: Room) -> None:
    queue = room.queue()
    await send_groups(room, queue, *(f"a{number}" for number in range(20)))
    for number in range(3):
        await room.send(queue, number)
    found = payloads(await taken(room, queue, 6))
    assert [name for name in found if isinstance(name, int)] == [0, 1, 2]


@needs("priority")
async def test_turns_are_taken_within_a_priority(room: Room) -> None:
    queue = room.queue()
    await send_groups(room, queue, "a1", "b1", "a2")
    await room.send(queue, "urgent", group="a", priority=9)
    assert (await room.drain(queue))[0] == "urgent"


async def test_weights_decide_how_often_a_group_has_its_turn(room: Room) -> None:
    queue = room.queue(group_weights={"a": 3})
    await send_groups(room, queue, *(f"{group}{number}" for number in range(12) for group in "ab"))
    found = payloads(await taken(room, queue, 12))
    assert sum(name[0] == "a" for name in found) == 9


async def test_the_group_is_on_the_message_and_in_its_journal(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, 1, group="tenant 42, ü")
    message = await room.take(queue)
    await room.send(queue, 2)
    assert message.group == "tenant 42, ü"
    await room.call(message.ack)
    lines = [line for line in room.admin.journal(queue.name) if line.message_id == id]
    assert [(line.event.value, line.group) for line in lines] == [
        ("sent", "tenant 42, ü"),
        ("received", "tenant 42, ü"),
        ("acked", "tenant 42, ü"),
    ]
    assert (await room.take(queue)).group is None


async def test_with_a_concurrency_of_one_the_next_waits_until_the_one_before_is_settled(room: Room) -> None:
    queue = room.queue(group_concurrency=1)
    await send_groups(room, queue, "a1", "a2", "a3", "b1", "b2")
    one, other = sorted(await taken(room, queue), key=lambda message: message.payload)
    assert payloads([one, other]) == ["a1", "b1"]
    assert await taken(room, queue) == []
    await room.call(one.ack)
    (two,) = await taken(room, queue)
    assert two.payload == "a2"
    await room.call(two.bury)
    assert payloads(await taken(room, queue)) == ["a3"]


@needs("batch")
async def test_an_ack_that_rides_on_a_receive_makes_room_for_it(room: Room) -> None:
    queue = room.queue(group_concurrency=1)
    await send_groups(room, queue, "a1", "a2", "a3")
    held: list[Any] = []
    found = []
    for _ in range(3):
        held = await room.call(queue.receive_many, 10, acks=held)
        found += payloads(held)
    assert found == ["a1", "a2", "a3"]


@needs("retry")
async def test_a_message_that_waits_for_its_retry_keeps_the_place_of_its_group(room: Room) -> None:
    queue = room.queue(group_concurrency=1)
    await send_groups(room, queue, "a1", "a2")
    await room.call((await room.take(queue)).nack, delay=60)
    assert await taken(room, queue) == []
    await room.pass_time(60)
    again = await room.take(queue)
    assert (again.payload, again.attempts) == ("a1", 2)
    await room.call(again.release, delay=60)
    assert await taken(room, queue) == []
    await room.pass_time(60)
    await room.call((await room.take(queue)).ack)
    assert payloads(await taken(room, queue)) == ["a2"]


async def test_a_lease_that_expires_makes_room_for_the_same_message_again(room: Room) -> None:
    queue = room.queue(group_concurrency=1, lease=5)
    await send_groups(room, queue, "a1", "a2")
    await room.take(queue)
    await room.pass_time(5)
    assert payloads(await taken(room, queue)) == ["a1"]


@needs("expiry")
async def test_a_message_that_expired_while_it_waited_makes_room_for_the_next(room: Room) -> None:
    queue = room.queue(group_concurrency=1)
    await room.send(queue, "late", group="a", expires=5)
    await send_groups(room, queue, "a1", "a2")
    await room.pass_time(5)
    found = []
    while messages := await taken(room, queue):
        found += payloads(messages)
        await room.call(messages[0].ack)
    assert found == ["a1", "a2"]


async def test_a_higher_concurrency_lets_more_in_at_once(room: Room) -> None:
    queue = room.queue(group_concurrency=1)
    await send_groups(room, queue, "a1", "a2", "a3", "a4")
    assert payloads(await taken(room, queue)) == ["a1"]
    await room.call(queue.configure, group_concurrency=3)
    assert payloads(await taken(room, queue)) == ["a2", "a3"]
    await room.call(queue.configure, group_concurrency=None)
    assert payloads(await taken(room, queue)) == ["a4"]


async def test_the_rate_holds_for_each_group(room: Room) -> None:
    queue = room.queue(group_rate=2)
    await send_groups(room, queue, *(f"{group}{number}" for number in range(6) for group in "ab"))
    assert sorted(payloads(await taken(room, queue))) == ["a0", "a1", "b0", "b1"]
    assert await taken(room, queue) == []
    await room.pass_time(0.5)
    assert sorted(payloads(await taken(room, queue))) == ["a2", "b2"]
    await room.pass_time(2)
    assert sorted(payloads(await taken(room, queue))) == ["a3", "a4", "b3", "b4"]


@needs("poll")
async def test_a_waiting_receive_wakes_when_a_group_has_room_again(room: Room) -> None:
    import asyncio

    queue = room.queue(group_concurrency=1)
    await send_groups(room, queue, "a1", "a2")
    one = await room.take(queue)
    waiting = asyncio.create_task(room.receive(room.client().queue(queue.name), PATIENCE))
    await asyncio.sleep(0.3)
    await room.call(one.ack)
    got = await waiting
    assert got is not None
    assert got.payload == "a2"


@needs("poll")
async def test_a_waiting_receive_wakes_when_the_rate_has_room_again(room: Room) -> None:
    queue = room.queue(group_rate=2)
    await send_groups(room, queue, "a1", "a2", "a3")
    assert len(await taken(room, queue)) == 2
    got = await room.receive(queue, PATIENCE)
    assert got is not None
    assert got.payload == "a3"


@needs("admin")
async def test_a_paused_group_is_not_delivered_and_the_others_are(room: Room) -> None:
    queue = room.queue()
    await send_groups(room, queue, "a1", "a2", "b1")
    room.admin.pause(queue.name, group="a")
    room.admin.pause(queue.name, group="a")
    assert await room.drain(queue) == ["b1"]
    counts = room.admin.counts(queue.name)
    assert (counts.ready, counts.held_back) == (2, 2)
    room.admin.resume(queue.name, group="a")
    assert await room.drain(queue) == ["a1", "a2"]
    assert [entry.detail for entry in room.admin.audit(limit=2)] == ["group a", "group a"]
    told = [line for line in room.admin.journal(queue.name) if line.event.value in ("paused", "resumed")]
    assert [(line.event.value, line.group, line.consumer) for line in told] == [
        ("paused", "a", "tester"),
        ("resumed", "a", "tester"),
    ]


@needs("admin")
async def test_one_group_is_counted_listed_and_purged(room: Room) -> None:
    queue = room.queue(group_concurrency=1)
    await send_groups(room, queue, *(f"a{number}" for number in range(5)), "b1", "b2")
    await room.send(queue, "later", group="a", delay=60)
    one, other = sorted(await taken(room, queue), key=lambda message: message.payload)
    await room.call(other.bury)
    found = {counts.group: counts for counts in room.admin.groups(queue.name).groups}
    assert [*found] == ["b", "a"]
    mine = found["a"]
    assert (mine.scheduled, mine.ready, mine.held_back, mine.leased, mine.dead) == (1, 4, 4, 1, 0)
    assert (found["b"].ready, found["b"].dead) == (1, 1)
    listed = room.admin.messages(queue.name, State.READY, group="a", limit=3)
    assert payloads(listed.messages) == ["a1", "a2", "a3"]
    rest = room.admin.messages(queue.name, State.READY, group="a", limit=3, after=listed.next)
    assert payloads(rest.messages) == ["a4"]
    assert {message.held_back for message in room.admin.walk(queue.name, State.READY)} == {True, False}
    assert room.admin.show(queue.name, listed.messages[0].id).held_back
    assert room.admin.purge(queue.name, group="a") == 5
    assert room.states(queue) == {"ready": 1, "leased": 1, "dead": 1}
    await room.call(one.ack)
    assert await room.drain(queue) == ["b2"]
    assert [counts.group for counts in room.admin.groups(queue.name).groups] == ["b"]


@needs("admin")
async def test_idle_groups_are_forgotten(room: Room) -> None:
    queue = room.queue(group_concurrency=2, group_rate=1000)
    await send_groups(room, queue, "a1", "b1", "a2")
    await room.drain(queue)
    await room.pass_time(20)
    await room.drain(queue)
    found = room.admin.groups(queue.name)
    assert (found.groups, found.total, found.complete) == ([], 0, True)


@needs("admin")
async def test_an_edit_keeps_the_group_and_a_move_takes_it_along(room: Room) -> None:
    queue, target = room.queue(), room.queue()
    id = await room.send(queue, 1, group="a")
    assert room.admin.edit(queue.name, id, payload=2, priority=7).group == "a"
    assert room.admin.move(queue.name, target.name, [id]) == 1
    message = await room.take(target)
    assert (message.payload, message.group) == (2, "a")


@pytest.mark.parametrize("group", ["", "a\tb", "a\nb", "x" * 129, "\x00", 42, b"a"])
async def test_a_group_that_is_no_name_is_refused(room: Room, group: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="group"):
        await room.send(queue, 1, group=group)
    assert room.states(queue) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_concurrency", 0),
        ("group_concurrency", 1.5),
        ("group_rate", 0),
        ("group_rate", True),
        ("group_weights", {"a": 0}),
        ("group_weights", {"a": 101}),
        ("group_weights", {"": 1}),
        ("group_weights", ["a"]),
        ("group_weights", {str(number): 1 for number in range(101)}),
        ("group_concurency", 1),
    ],
)
async def test_a_setting_of_groups_that_makes_no_sense_is_refused_by_name(room: Room, name: str, value: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="group_con" if name == "group_concurency" else name):
        await room.call(queue.configure, **{name: value})


@needs("admin", "tokens", "batches", "retry")
async def test_a_message_of_a_group_may_be_part_of_a_batch(room: Room) -> None:
    home, queue = room.queue(), room.queue(group_concurrency=1, max_attempts=2)
    async with filled(room, room.post.batch(home.name, on_complete="done")) as batch:
        for name in ("a1", "a2", "b1", "a3"):
            await room.call(batch.send, queue, name, group=name[0])
        await room.call(batch.send, queue, "alone")
    await send_groups(room, queue, "a4")
    held = {message.payload: message for message in await taken(room, queue)}
    assert sorted(held) == ["a1", "alone", "b1"]
    one = held["a1"]
    assert (one.group, one.batch_id, held["alone"].group) == ("a", batch.id, None)
    await room.call(one.nack, delay=60)
    for name in ("b1", "alone"):
        await room.call(held[name].ack)
    assert await taken(room, queue) == []
    status = await room.call(batch.status)
    assert (status.state, status.done, status.pending) == ("running", 2, 3)
    await room.pass_time(60)
    found = []
    while messages := await taken(room, queue):
        assert len(messages) == 1
        assert await room.receive(home) is None or messages[0].payload == "a4"
        found.append((messages[0].payload, messages[0].attempts, messages[0].batch_id))
        await room.call(messages[0].ack)
        if messages[0].payload == "a3":
            end = await room.take(home)
            assert (end.payload, end.headers["batch"]["done"], end.headers["batch"]["total"]) == ("done", 5, 5)
            await room.call(end.ack)
    assert found == [("a1", 2, batch.id), ("a2", 1, batch.id), ("a3", 1, batch.id), ("a4", 1, None)]
    assert await room.receive(home) is None
    told = [
        (line.event.value, line.group, line.detail)
        for line in room.admin.journal(queue.name)
        if line.message_id == one.id and line.event.value in ("sent", "acked")
    ]
    assert told == [("sent", "a", f"batch {batch.id}"), ("acked", "a", "")]


@needs("admin", "tokens", "batches")
async def test_what_a_group_holds_back_leaves_its_batch_when_it_is_removed(room: Room) -> None:
    home, queue, target = room.queue(), room.queue(group_concurrency=1), room.queue()
    async with filled(room, room.post.batch(home.name, on_complete="done")) as batch:
        ids = [await room.call(batch.send, queue, name, group="a") for name in ("a1", "a2", "a3", "a4", "a5")]
    one = await room.take(queue)
    assert await taken(room, queue) == []
    assert room.admin.counts(queue.name).held_back == 4
    assert room.admin.delete(queue.name, [ids[1]]) == 1
    assert room.admin.cancel(queue.name, [ids[2]]) == 1
    assert room.admin.move(queue.name, target.name, [ids[3]]) == 1
    assert room.admin.purge(queue.name, [State.READY], group="a") == 1
    moved = await room.take(target)
    assert (moved.payload, moved.group, moved.batch_id) == ("a4", "a", batch.id)
    await room.call(one.ack)
    await room.call(moved.ack)
    end = await room.take(home)
    counts = {word: end.headers["batch"][word] for word in ("total", "done", "deleted", "cancelled", "purged")}
    assert counts == {"total": 5, "done": 2, "deleted": 1, "cancelled": 1, "purged": 1}


@needs("admin", "tokens", "batches")
async def test_the_end_of_a_batch_takes_its_turn_in_a_home_with_groups(room: Room) -> None:
    home, queue = room.queue(group_concurrency=1), room.queue()
    await send_groups(room, home, "a1", "a2")
    end = Draft("end of a", group="a")
    for options in ({"on_complete": end}, {"on_complete": "end"}):
        async with filled(room, room.post.batch(home.name, **options)) as batch:
            await room.call(batch.send, queue, 1)
        await room.call((await room.take(queue)).ack)
    one, other = await taken(room, home)
    assert payloads([one, other]) == ["a1", "end"]
    assert (await taken(room, home), room.admin.counts(home.name).held_back) == ([], 2)
    await room.call(other.ack)
    await room.call(one.ack)
    found = await room.drain(home)
    assert found == ["a2", "end of a"]
    assert room.admin.groups(home.name).groups == []


@needs("admin", "schedule")
async def test_the_tick_of_a_schedule_takes_its_turn(room: Room) -> None:
    queue = room.queue(group_concurrency=1, lease=600)
    await send_groups(room, queue, "a1", "a2")
    one = await room.take(queue)
    made = await room.call(queue.schedule, "poll", every="1m", payload="tick", group="a", overlap=False)
    await room.call(queue.schedule, "plain", every="1m", payload="no group")
    for _ in range(2):
        [stored] = [each for each in await room.call(queue.schedules) if each.name == "poll"]
        await room.pass_time((stored.next_at - room.now()).total_seconds())
        queue.ref.look_at = 0.0  # the clock moved, and the client waits by its own
        assert payloads(await taken(room, queue)) == ["no group"]
    # The first tick's message is held back, so the second is passed over.
    [stored] = [each for each in await room.call(queue.schedules) if each.name == "poll"]
    assert (stored.last_state, stored.fired) == (State.READY, 1)
    await room.call(one.ack)
    (two,) = await taken(room, queue)
    assert two.payload == "a2"
    await room.call(two.ack)
    (tick,) = await taken(room, queue)
    assert (tick.payload, tick.schedule, tick.tick, tick.group) == ("tick", "poll", made.next_at, "a")
    (sent,) = [line for line in room.admin.journal(queue.name) if line.message_id == tick.id][:1]
    assert (sent.event.value, sent.group, sent.detail) == ("sent", "a", "schedule poll")
