"""One message where one was meant: the same id again, and unique keys with the states they hold in."""

from __future__ import annotations

from typing import Any

import pytest

from restante import Draft, InvalidInput, State
from tests.contract.rooms import Room, needs


def of(*states: State) -> frozenset[State]:
    return frozenset(states)


@needs("dedup")
async def test_the_same_id_again_stores_nothing_and_says_so(room: Room) -> None:
    queue = room.queue()
    first = await room.send(queue, "one", id="order-1")
    again = await room.send(queue, "two", id="order-1")
    assert (first, first.stored) == ("order-1", True)
    assert (again, again.stored) == ("order-1", False)
    assert await room.drain(queue) == ["one"]


@needs("dedup")
@pytest.mark.parametrize("place", ["scheduled", "leased", "retrying", "dead", "done"])
async def test_the_same_id_stores_nothing_wherever_the_first_one_is(room: Room, place: str) -> None:
    queue = room.queue(keep_done=10)
    await room.send(queue, "one", id="a", delay=3600 if place == "scheduled" else 0)
    if place != "scheduled":
        message = await room.take(queue)
        if place == "retrying":
            await room.call(message.nack, delay=3600)
        elif place == "dead":
            await room.call(message.bury)
        elif place == "done":
            await room.call(message.ack)
    assert (await room.send(queue, "two", id="a")).stored is False
    assert room.states(queue) == {place: 1}


@needs("dedup")
async def test_the_same_id_stores_nothing_for_a_window_after_the_ack(room: Room) -> None:
    queue = room.queue(dedup=0.3)
    await room.send(queue, "one", id="a")
    await room.drain(queue)
    assert (await room.send(queue, "two", id="a")).stored is False
    # The window turns over in two generations, so an id is known for one to two windows.
    for _ in range(3):
        await room.pass_time(0.3)
        await room.send(queue, "tick")
        await room.drain(queue)
    assert (await room.send(queue, "three", id="a")).stored is True


@needs("dedup")
async def test_the_window_lasts_at_least_as_long_as_told(room: Room) -> None:
    queue = room.queue(dedup=60)
    await room.send(queue, "tick")
    await room.drain(queue)
    await room.pass_time(59)
    await room.send(queue, "one", id="a")
    await room.drain(queue)
    for _ in range(5):
        await room.pass_time(11)
        await room.send(queue, "tick")
        await room.drain(queue)
        assert (await room.send(queue, "two", id="a")).stored is False
    assert room.states(queue) == {}


@needs("dedup")
async def test_a_window_of_nothing_forgets_at_once(room: Room) -> None:
    queue = room.queue(dedup=0)
    await room.send(queue, "one", id="a")
    await room.drain(queue)
    assert (await room.send(queue, "two", id="a")).stored is True


@needs("dedup", "batch")
async def test_a_batch_stores_each_id_once(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "old", id="a")
    ids = await room.call(
        queue.send_many, [Draft("x", id="a"), Draft("y", id="b"), Draft("z", id="b"), Draft("free"), "plain"]
    )
    assert [id.stored for id in ids] == [False, True, False, True, True]
    assert ids[:3] == ["a", "b", "b"]
    assert await room.drain(queue) == ["old", "y", "free", "plain"]


@needs("dedup", "batch", "limits")
async def test_what_is_already_there_takes_no_place(room: Room) -> None:
    queue = room.queue(max_length=2)
    await room.send(queue, "x", id="a")
    ids = await room.call(queue.send_many, [Draft("x", id="a"), Draft("y", id="b")])
    assert [id.stored for id in ids] == [False, True]


@needs("batch", "priority", "dedup")
async def test_a_batch_is_stored_whole_or_not_at_all(room: Room) -> None:
    queue = room.queue()
    for bad in (Draft("x", priority=999), Draft("x", id="not a name"), Draft(float("nan")), Draft("x", delay=-1)):
        with pytest.raises(InvalidInput):
            await room.call(queue.send_many, ["good", bad])
    for wrong in ([], ["x"] * 1001):
        with pytest.raises(InvalidInput, match="1 to 1000"):
            await room.call(queue.send_many, wrong)
    with pytest.raises(InvalidInput, match="same id"):
        await room.call(queue.send_many, ["x", "y"], id="a")
    assert room.states(queue) == {}


@needs("unique")
async def test_a_unique_key_admits_one_message_and_names_it(room: Room) -> None:
    queue = room.queue()
    first = await room.send(queue, "one", unique="report")
    again = await room.send(queue, "two", unique="report")
    assert (again, again.stored) == (first, False)
    assert (await room.send(queue, "three", unique="other")).stored is True
    assert await room.drain(queue) == ["one", "three"]


@needs("unique")
async def test_a_unique_key_is_free_after_the_ack(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "one", unique="report")
    await room.drain(queue)
    assert (await room.send(queue, "two", unique="report")).stored is True


async def _into(room: Room, queue: Any, state: State) -> tuple[str, Any]:
    """The id of a message that has just reached the state, and its delivery if it had one."""
    id: str = await room.send(
        queue, "one", unique="k", unique_states=of(state), delay=3600 if state is State.SCHEDULED else 0
    )
    if state in (State.SCHEDULED, State.READY):
        return id, None
    message = await room.take(queue)
    if state is State.RETRYING:
        await room.call(message.nack, delay=3600)
    elif state is State.DEAD:
        await room.call(message.bury)
    elif state is State.DONE:
        await room.call(message.ack)
    return id, message


@needs("unique", "delay", "dead", "done")
@pytest.mark.parametrize("state", list(State))
async def test_a_unique_key_holds_exactly_in_the_states_it_names(room: Room, state: State) -> None:
    queue = room.queue(keep_done=100)
    holder, _ = await _into(room, queue, state)
    assert room.states(queue) == {state.value: 1}
    again = await room.send(queue, "two", unique="k", unique_states=of(*State))
    assert (again, again.stored) == (holder, False)


@needs("unique", "delay", "dead", "done")
@pytest.mark.parametrize("state", list(State))
async def test_leaving_the_states_it_names_frees_the_key(room: Room, state: State) -> None:
    queue = room.queue(keep_done=100)
    id, delivery = await _into(room, queue, state)
    if state is State.READY:
        await room.take(queue)
    elif state is State.LEASED:
        await room.call(delivery.release)
    elif state in (State.SCHEDULED, State.RETRYING):
        room.admin.edit(queue.name, id, due_at=room.now())
        await room.take(queue)
    elif state is State.DEAD:
        room.admin.replay(queue.name)
    else:
        room.admin.delete(queue.name, [id])
    assert (await room.send(queue, "two", unique="k", unique_states=of(*State))).stored is True


@needs("unique", "done")
async def test_a_result_pushed_out_by_newer_ones_frees_its_key(room: Room) -> None:
    queue = room.queue(keep_done=1)
    states = of(State.READY, State.DONE)
    await room.send(queue, "one", unique="k", unique_states=states)
    await room.drain(queue)
    await room.pass_time(0.01)  # of results of the same millisecond either may be the older one
    await room.send(queue, "two")
    await room.drain(queue)
    assert (await room.send(queue, "three", unique="k", unique_states=states)).stored is True


@needs("unique")
@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_an_operator_who_removes_the_message_frees_its_key(room: Room, how: str) -> None:
    queue = room.queue()
    id = await room.send(queue, "one", unique="k")
    if how == "delete":
        room.admin.delete(queue.name, [id])
    else:
        room.admin.purge(queue.name)
    assert (await room.send(queue, "two", unique="k")).stored is True


@needs("unique", "retry", "dead")
async def test_by_default_a_key_holds_until_the_message_is_settled(room: Room) -> None:
    queue = room.queue(max_attempts=2)
    await room.send(queue, "one", unique="k")
    for delay in (0.0, 0.0):
        assert (await room.send(queue, "no", unique="k")).stored is False
        message = await room.take(queue)
        assert (await room.send(queue, "no", unique="k")).stored is False
        await room.call(message.nack, delay=delay)
    assert room.states(queue) == {"dead": 1}
    assert (await room.send(queue, "yes", unique="k")).stored is True


@needs("unique", "batch")
async def test_a_batch_stores_each_unique_key_once(room: Room) -> None:
    queue = room.queue()
    ids = await room.call(queue.send_many, [Draft(n, unique=f"k{n % 2}") for n in range(4)])
    assert [id.stored for id in ids] == [True, True, False, False]
    assert ids[2:] == ids[:2]


@needs("unique")
@pytest.mark.parametrize("key", ["", "a\tb", "a\nb", "x" * 201, "\ud800", 5, b"k"])
async def test_a_unique_key_that_cannot_be_kept_is_refused(room: Room, key: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="unique"):
        await room.send(queue, "x", unique=key)
    assert room.states(queue) == {}


@needs("unique")
async def test_states_that_do_not_exist_are_refused(room: Room) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput):
        await room.send(queue, "x", unique="k", unique_states=frozenset({"sleeping"}))
    assert room.states(queue) == {}


@needs("unique")
@pytest.mark.parametrize("key", ["a", "x" * 200, "日本", "{a}", "*", "\x00", " ", "a:b", "'\"\\"])
async def test_any_other_text_is_a_unique_key(room: Room, key: str) -> None:
    queue = room.queue()
    assert (await room.send(queue, "x", unique=key)).stored is True
    assert (await room.send(queue, "x", unique=key)).stored is False
    assert (await room.take(queue)).unique == key
