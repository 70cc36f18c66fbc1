"""Bounds that refuse or hold back, and settings that hold for every client of a queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

import restante
from restante import InvalidInput, QueueFull, State
from tests.contract.rooms import Room, needs
from tests.faults.rows import verdict
from tests.harness.deadlines import PATIENCE, at_most

pytestmark = needs("limits")


async def test_a_full_queue_refuses_and_takes_again_once_there_is_room(room: Room) -> None:
    queue = room.queue(max_length=3)
    await room.send(queue, 1)
    await room.send(queue, 2, delay=3600)
    await room.send(queue, 3)
    with pytest.raises(QueueFull, match="max_length is 3"):
        await room.send(queue, 4)
    message = await room.take(queue)
    with pytest.raises(QueueFull):
        await room.send(queue, 4)
    await room.call(message.nack, delay=3600)
    with pytest.raises(QueueFull):
        await room.send(queue, 4)
    await room.call((await room.take(queue)).ack)
    assert (await room.send(queue, 4)).stored is True


async def test_a_batch_that_does_not_fit_is_refused_whole(room: Room) -> None:
    queue = room.queue(max_length=3)
    await room.call(queue.send_many, [1, 2])
    with pytest.raises(QueueFull):
        await room.call(queue.send_many, [3, 4])
    assert room.states(queue) == {"ready": 2}


async def test_the_same_id_again_is_no_refusal_on_a_full_queue(room: Room) -> None:
    queue = room.queue(max_length=1)
    await room.send(queue, 1, id="a")
    assert (await room.send(queue, 1, id="a")).stored is False


@needs("dead")
async def test_too_many_dead_letters_refuse_sends_and_drop_nothing(room: Room) -> None:
    queue = room.queue(max_dead=2)
    await room.call(queue.send_many, [1, 2, 3])
    for message in await room.call(queue.receive_many, 3):
        await room.call(message.bury)
    with pytest.raises(QueueFull, match="max_dead is 2"):
        await room.send(queue, 4)
    verdict(55, n=3, lost=3 - room.states(queue)["dead"])
    room.admin.purge(queue.name, [State.DEAD])
    await room.send(queue, 4)


@needs("done")
async def test_kept_results_are_bounded_and_the_oldest_go_first(room: Room) -> None:
    queue = room.queue(keep_done=3)
    ids = await room.call(queue.send_many, list(range(5)))
    for _ in ids:
        await room.call((await room.take(queue)).ack)
        await room.pass_time(0.002)  # results are kept by the millisecond they were acked in
    assert [message.id for message in room.admin.walk(queue.name, State.DONE)] == ids[2:]
    assert room.admin.show(queue.name, ids[4]).payload == 4
    assert room.states(queue) == {"done": 3}


@needs("done")
async def test_a_batch_of_results_beyond_the_bound_is_cut_to_it(room: Room) -> None:
    queue = room.queue(keep_done=10)
    await room.call(queue.send_many, list(range(1000)))
    await room.call(queue.ack_many, await room.call(queue.receive_many, 1000))
    for _ in range(10):
        await room.send(queue, "tick")
        await room.drain(queue)
    assert room.states(queue) == {"done": 10}


async def test_no_more_are_leased_than_allowed(room: Room) -> None:
    queue = room.queue(max_leased=3)
    await room.call(queue.send_many, list(range(10)))
    taken = await room.call(queue.receive_many, 10)
    assert len(taken) == 3
    other = room.client().queue(queue.name)
    assert await room.receive(other) is None
    await room.call(taken[0].ack)
    assert (await room.take(other)).payload == 3
    assert await room.receive(other) is None


@needs("poll")
@pytest.mark.timed
@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release", "release later"])
async def test_a_freed_place_wakes_whoever_waits_for_it(room: Room, verb: str) -> None:
    import asyncio

    queue = room.queue(max_leased=1)
    await room.call(queue.send_many, ["first", "second"])
    message = await room.take(queue)
    waiting = asyncio.create_task(room.receive(room.client().queue(queue.name), PATIENCE))
    await asyncio.sleep(0.3)
    with at_most(2):  # and not after the longest sleep of a consumer
        if verb == "nack":
            await room.call(message.nack, delay=600)
        elif verb == "release later":
            await room.call(message.release, delay=600)
        else:
            await room.call(getattr(message, verb))
        got = await waiting
    assert got is not None
    assert got.payload == ("first" if verb == "release" else "second")


async def test_no_more_per_second_are_received_than_allowed(room: Room) -> None:
    queue = room.queue(rate=20)
    await room.call(queue.send_many, list(range(100)))
    begun = room.now()
    times: list[datetime] = []
    while len(times) < 40:
        message = await room.receive(queue)
        assert message is not None
        times.append(message.received_at)
        if len(times) >= 20:
            await room.pass_time(0.05)
    # A burst of one second's worth may come at once; beyond it the rate holds.
    assert (times[-1] - begun).total_seconds() >= 19 / 20


async def test_settings_hold_for_every_client_until_changed(room: Room) -> None:
    queue = room.queue(lease=77, max_attempts=2, retry=restante.fixed(5), keep_done=4, dedup=9)
    await room.send(queue, "x")
    other = room.client().queue(queue.name)
    assert (await room.receive(other)) is not None
    seen = await room.settings(other)
    assert (seen.lease, seen.max_attempts, seen.retry, seen.keep_done, seen.dedup) == (77, 2, restante.fixed(5), 4, 9)
    await room.call(queue.configure, lease=None, max_attempts=8)
    await room.receive(other)
    await room.receive(other)
    seen = await room.settings(other)
    assert (seen.lease, seen.max_attempts, seen.keep_done) == (30, 8, 4)


async def test_a_setting_changed_by_another_client_is_not_undone(room: Room) -> None:
    queue = room.queue(lease=77, max_attempts=2)
    await room.send(queue, "x")
    other = room.client().queue(queue.name)
    await room.call(other.configure, lease=10)
    for _ in range(3):
        message = await room.take(queue)
        await room.call(message.release)
    assert (message.lease_expires_at - message.received_at).total_seconds() == 10
    found = room.admin.counts(queue.name).settings
    assert (found.lease, found.max_attempts) == (10, 2)


async def test_a_limit_set_by_another_client_holds_for_those_who_knew_none(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, 1)
    await room.call(room.client().queue(queue.name).configure, max_length=2)
    await room.send(queue, 2)
    with pytest.raises(QueueFull, match="max_length is 2"):
        await room.send(queue, 3)
    assert room.states(queue) == {"ready": 2}


async def test_options_hold_though_the_queue_is_open_already(room: Room) -> None:
    name = room.queue().name
    await room.send(room.queue(name), 1)
    await room.send(room.queue(name, max_length=2), 2)
    with pytest.raises(QueueFull, match="max_length is 2"):
        await room.send(room.queue(name), 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", 0),
        ("lease", "x"),
        ("max_length", 0),
        ("max_length", 1.5),
        ("max_dead", -1),
        ("max_payload", 0),
        ("max_payload", 2**63),
        ("max_leased", 0),
        ("rate", 0),
        ("rate", float("nan")),
        ("rate", 1e9),
        ("rate", True),
        ("keep_done", -1),
        ("dedup", -1),
        ("retry", "often"),
        ("journal", "some"),
        ("journal_keep", 1),
        ("journal_cap", 0),
        ("durability", "paper"),
        ("durability", "replica:0"),
        ("durability", "replica:x"),
        ("nonsense", 1),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_by_name(room: Room, name: str, value: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match=name):
        await room.call(queue.configure, **{name: value})
    with pytest.raises(InvalidInput, match=name):
        room.queue(**{name: value})
    await room.send(queue, "still works")


@pytest.mark.parametrize("priority", [-1, 256, 999, 2**63, 1.0, "1", True, None])
async def test_a_priority_outside_0_to_255_is_refused(room: Room, priority: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="priority"):
        await room.send(queue, "never", priority=priority)
    assert room.states(queue) == {}


@pytest.mark.parametrize("count", [0, -1, 1001, 2**63, 1.5, "3", True])
async def test_a_count_outside_one_call_is_refused(room: Room, count: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="count"):
        await room.call(queue.receive_many, count)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "3", True])
async def test_a_timeout_that_is_no_time_is_refused(room: Room, timeout: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="timeout"):
        await room.receive(queue, timeout)
