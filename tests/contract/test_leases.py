"""At most one valid lease per message: every verb needs its token, and an old one changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from restante import AlreadySettled, InvalidInput, LeaseLost
from tests.contract.rooms import Room, needs

pytestmark = needs("tokens")

VERBS = ("ack", "nack", "bury", "release", "extend")


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Each verb that settles or keeps a message."""
    name: str = request.param
    return lambda message: getattr(message, name)


async def test_a_received_message_is_nobody_elses(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "mine")
    message = await room.take(queue)
    assert message.attempts == 1
    assert message.lease_token
    assert await room.receive(queue) is None
    other = room.client().queue(queue.name)
    assert await room.receive(other) is None


async def test_two_deliveries_never_have_one_token(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "mine")
    tokens = set()
    for _ in range(5):
        message = await room.take(queue)
        tokens.add(message.lease_token)
        await room.call(message.release)
    assert len(tokens) == 5


async def test_an_expired_lease_is_lost_for_every_verb(room: Room, verb: Callable[[Any], Any]) -> None:
    queue = room.queue()
    await room.send(queue, "slow")
    message = await room.take(queue, lease=0.1)
    await room.pass_time(0.1)
    before = room.states(queue)
    with pytest.raises(LeaseLost) as lost:
        await room.call(verb(message))
    assert lost.value.ids == (message.id,)
    assert room.states(queue) == before
    again = await room.take(queue)
    assert (again.id, again.attempts) == (message.id, 2)


async def test_a_token_of_an_earlier_delivery_does_not_touch_the_later_one(
    room: Room, verb: Callable[[Any], Any]
) -> None:
    queue = room.queue()
    await room.send(queue, "slow")
    first = await room.take(queue, lease=0.1)
    await room.pass_time(0.1)
    second = await room.take(queue)
    with pytest.raises(LeaseLost):
        await room.call(verb(first))
    assert room.states(queue) == {"leased": 1}
    await room.call(second.ack)
    assert room.states(queue) == {}


@pytest.mark.parametrize("token", ["", "1-00000000", "forged", "\t", "x" * 10_000])
async def test_a_forged_token_is_lost_for_every_verb(room: Room, verb: Callable[[Any], Any], token: str) -> None:
    queue = room.queue()
    await room.send(queue, "mine")
    message = await room.take(queue)
    right = message.lease_token
    message.lease_token = token
    with pytest.raises(LeaseLost):
        await room.call(verb(message))
    message.lease_token = right
    await room.call(message.ack)
    assert room.states(queue) == {}


async def test_after_a_verdict_every_other_verb_is_lost(room: Room, verb: Callable[[Any], Any]) -> None:
    queue = room.queue()
    await room.send(queue, "once")
    message = await room.take(queue)
    await room.call(message.bury)
    with pytest.raises(LeaseLost):
        await room.call(verb(message))
    assert room.states(queue) == {"dead": 1}


VERDICTS = {"ack": "acked", "nack": "nacked", "bury": "buried", "release": "released"}


@pytest.mark.parametrize("first", VERDICTS)
async def test_a_second_verdict_is_told_which_was_the_first(room: Room, verb: Callable[[Any], Any], first: str) -> None:
    queue = room.queue()
    await room.send(queue, "once")
    message = await room.take(queue)
    await room.call(getattr(message, first))
    before = room.states(queue)
    assert (message.settled, message.verdict) == (True, VERDICTS[first])
    second = verb(message)
    if first == "ack" and second.__name__ == "ack":
        await room.call(second)  # harmless
    else:
        with pytest.raises(AlreadySettled, match=f"already {VERDICTS[first]} by this consumer") as told:
            await room.call(second)
        assert (told.value.ids, told.value.verdict) == ((message.id,), VERDICTS[first])
        assert "longer lease" not in str(told.value)
    assert room.states(queue) == before


async def test_a_verdict_on_many_is_known_to_each(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, ["a", "b"])
    taken = await room.call(queue.receive_many, 2)
    await room.call(queue.ack_many, taken)
    for message in taken:
        with pytest.raises(AlreadySettled, match="already acked"):
            await room.call(message.nack)


@pytest.mark.parametrize("wrong", [None, 5, "abc"])
async def test_what_is_no_list_of_messages_cannot_be_settled(room: Room, wrong: Any) -> None:
    queue = room.queue()
    for many in (queue.ack_many, queue.nack_many, queue.bury_many, queue.release_many, queue.extend_many):
        with pytest.raises(InvalidInput, match="give "):
            await room.call(many, wrong)


async def test_a_repeated_ack_is_harmless(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "once")
    await room.send(queue, "other")
    message = await room.take(queue)
    for _ in range(3):
        await room.call(queue.ack_many, [message])
    assert room.events(queue, message.id) == ["sent", "received", "acked"]
    assert room.states(queue) == {"ready": 1}


async def test_an_ack_repeated_inside_one_batch_counts_once(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "once")
    message = await room.take(queue)
    await room.call(queue.ack_many, [message, message])
    assert room.admin.counts(queue.name).totals["acked"] == 1


async def test_a_lost_lease_in_a_batch_leaves_the_others_acked(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, ["a", "b", "c"])
    taken = await room.call(queue.receive_many, 3)
    taken[1].lease_token = "forged"
    with pytest.raises(LeaseLost) as lost:
        await room.call(queue.ack_many, taken)
    assert lost.value.ids == (taken[1].id,)
    assert room.states(queue) == {"leased": 1}
    assert not taken[1].settled


async def test_the_queue_decides_the_lease_unless_the_message_or_the_call_does(room: Room) -> None:
    queue = room.queue(lease=40)
    await room.send(queue, "queue")
    await room.send(queue, "message", lease=timedelta(seconds=50))
    await room.send(queue, "call", lease=50)
    spans = []
    for lease in (None, None, 60):
        message = await room.take(queue, lease=lease)
        spans.append((message.lease_expires_at - message.received_at).total_seconds())
    assert spans == [40, 50, 60]


async def test_extend_counts_from_now(room: Room) -> None:
    queue = room.queue(lease=5)
    await room.send(queue, "long")
    message = await room.take(queue)
    before = message.lease_expires_at
    await room.pass_time(0.1)
    await room.call(message.extend)
    assert message.lease_expires_at - before >= timedelta(milliseconds=100)
    await room.call(message.extend, lease=1000)
    assert message.lease_expires_at - before > timedelta(seconds=900)
    await room.call(message.extend, lease=0.05)
    await room.pass_time(0.05)
    assert (await room.take(queue)).attempts == 2


async def test_an_extended_lease_outlives_the_first_one(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "long")
    message = await room.take(queue, lease=0.3)
    await room.call(message.extend, lease=30)
    await room.pass_time(0.3)
    assert await room.receive(queue) is None
    await room.call(message.ack)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), 1e300, 2**63, "5", False])
async def test_a_lease_that_is_no_duration_is_refused(room: Room, lease: Any) -> None:
    queue = room.queue()
    await room.send(queue, "mine")
    with pytest.raises(InvalidInput, match="lease"):
        await room.receive(queue, lease=lease)
    with pytest.raises(InvalidInput, match="lease"):
        await room.send(queue, "never", lease=lease)
    message = await room.take(queue)
    with pytest.raises(InvalidInput, match="lease"):
        await room.call(message.extend, lease=lease)
    assert room.states(queue) == {"leased": 1}


@needs("batch")
async def test_acks_ride_on_the_next_receive(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, list(range(6)))
    first = await room.call(queue.receive_many, 3)
    second = await room.call(queue.receive_many, 3, acks=first)
    assert [message.payload for message in second] == [3, 4, 5]
    assert room.states(queue) == {"leased": 3}
    assert await room.call(queue.receive_many, 3, acks=second) == []
    assert room.states(queue) == {}
