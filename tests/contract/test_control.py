"""Work that is stopped: an operator takes a held message back, or gives up one that waits or runs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from restante import AlreadySettled, InvalidInput, InvalidName, LeaseLost, MessageCancelled, State
from restante.core.keys import QueueKeys
from tests.contract.rooms import Room, needs

pytestmark = needs("admin", "tokens", "handle")


async def test_a_message_taken_back_is_ready_at_once_and_its_attempt_counts(room: Room) -> None:
    queue = room.queue()
    first = await room.send(queue, "first")
    await room.send(queue, "second")
    held = await room.take(queue)
    assert room.admin.revoke(queue.name, [held.id]) == 1
    assert room.states(queue) == {"ready": 2}
    again = await room.take(queue)
    assert (again.id, again.attempts) == (first, 2), "it keeps its position"
    assert again.lease_token != held.lease_token
    shown = room.admin.show(queue.name, first)
    assert [(attempt.event, attempt.error_class) for attempt in shown.history] == [("revoked", "Revoked")]
    assert room.events(queue, first) == ["sent", "received", "revoked", "received"]


async def test_the_token_of_a_message_taken_back_dies_at_once(room: Room) -> None:
    queue = room.queue()
    await room.send(queue)
    held = await room.take(queue)
    room.admin.revoke(queue.name, [held.id])
    for verb in (held.ack, held.nack, held.bury, held.release, held.extend):
        with pytest.raises(LeaseLost):
            await room.call(verb)
    with pytest.raises(LeaseLost):
        await room.call(held.progress, 0.5)
    assert not held.cancelled
    assert await room.drain(queue) == ["x"]


async def test_a_message_taken_back_after_its_last_attempt_is_delivered_once_more(room: Room) -> None:
    queue = room.queue(max_attempts=1)
    id = await room.send(queue)
    await room.take(queue)
    room.admin.revoke(queue.name, [id])
    again = await room.take(queue)
    assert await room.call(again.nack) is State.DEAD


async def test_only_leased_messages_are_taken_back(room: Room) -> None:
    queue = room.queue(keep_done=5)
    for verb in ("ack", "bury", "nack"):
        await room.send(queue, verb)
        message = await room.take(queue)
        await room.call(getattr(message, verb), **({"delay": 3600} if verb == "nack" else {}))
    ids = [await room.send(queue, "ready"), await room.send(queue, "later", delay=3600)]
    before = room.states(queue)
    assert room.admin.revoke(queue.name, [*ids, "nobody"]) == 0
    assert room.states(queue) == before


async def test_waiting_messages_are_cancelled_at_once_in_every_state(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "retrying")
    await room.call((await room.take(queue)).nack, delay=3600)
    await room.send(queue, "ready")
    await room.send(queue, "scheduled", delay=3600)
    ids = [message.id for state in ("retrying", "ready", "scheduled") for message in room.admin.walk(queue.name, state)]
    assert room.admin.cancel(queue.name, ids, detail="ordered twice") == 3
    assert room.states(queue) == {}
    lines = [line for line in room.admin.journal(queue.name) if line.event == "cancelled"]
    assert [(line.state, line.detail, line.consumer) for line in lines] == [
        ("gone", f"{state}, ordered twice", "tester") for state in ("retrying", "ready", "scheduled")
    ]


async def test_a_running_message_is_cancelled_and_its_holder_learns_why(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue)
    held = await room.take(queue)
    assert room.admin.cancel(queue.name, [id]) == 1
    assert room.states(queue) == {}
    assert not held.cancelled
    with pytest.raises(MessageCancelled, match="cancelled"):
        await room.call(held.extend)
    assert held.cancelled
    assert held.lease_lost
    with pytest.raises(LeaseLost):
        await room.call(held.ack)
    assert room.events(queue, id) == ["sent", "received", "cancelled"]


async def test_progress_tells_the_holder_of_a_cancelled_message(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue)
    held = await room.take(queue)
    room.admin.cancel(queue.name, [id])
    with pytest.raises(MessageCancelled):
        await room.call(held.progress, 0.5)
    assert held.cancelled
    assert held.lease_lost


async def test_of_many_extended_leases_those_cancelled_are_marked(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, ["kept", "cancelled", "revoked"])
    kept, cancelled, revoked = await room.call(queue.receive_many, 3)
    room.admin.cancel(queue.name, [cancelled.id])
    room.admin.revoke(queue.name, [revoked.id])
    lost = await room.call(queue.extend_many, [kept, cancelled, revoked])
    assert lost == [cancelled.id, revoked.id]
    assert [message.cancelled for message in (kept, cancelled, revoked)] == [False, True, False]


async def test_what_has_ended_is_not_cancelled(room: Room) -> None:
    queue = room.queue(keep_done=5)
    for verb in ("ack", "bury"):
        await room.send(queue, verb)
        await room.call(getattr(await room.take(queue), verb))
    ids = [message.id for state in ("done", "dead") for message in room.admin.walk(queue.name, state)]
    assert room.admin.cancel(queue.name, [*ids, "nobody"]) == 0
    assert room.states(queue) == {"dead": 1, "done": 1}


async def test_a_cancelled_message_frees_its_unique_key_and_may_be_sent_again(room: Room) -> None:
    queue = room.queue()
    first = await room.send(queue, "a", id="order-1", unique="k")
    await room.take(queue)
    room.admin.cancel(queue.name, [first])
    assert (await room.send(queue, "b", id="order-1", unique="k")).stored
    assert await room.drain(queue) == ["b"]


async def test_a_place_that_a_stopped_message_leaves_is_free_for_another(room: Room) -> None:
    queue = room.queue(max_leased=1)
    await room.call(queue.send_many, ["a", "b"])
    for stop in (room.admin.revoke, room.admin.cancel):
        held = await room.take(queue)
        assert await room.receive(queue) is None
        stop(queue.name, [held.id])
    assert (await room.take(queue)).payload == "b"


async def test_a_receive_that_waits_is_woken_by_a_message_taken_back(room: Room) -> None:
    queue = room.queue()
    await room.send(queue)
    held = await room.take(queue)
    room.admin.revoke(queue.name, [held.id])
    key = QueueKeys(queue.name)["marker"]
    assert room.plain.connection.command("ZCARD", key, key=key) == 1


async def test_the_audit_names_who_stopped_what(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, ["a", "b"])
    one = await room.take(queue)
    room.admin.revoke(queue.name, [one.id], detail="hangs")
    room.admin.cancel(queue.name, [one.id])
    room.admin.cancel(queue.name, [one.id])
    found = [entry for entry in room.admin.audit(limit=20) if entry.queue == queue.name]
    assert [(entry.who, entry.verb, entry.count, entry.detail) for entry in found] == [
        ("tester", "cancel", 1, one.id),
        ("tester", "revoke", 1, "hangs"),
    ]


async def test_ids_are_given_as_a_list_of_valid_ones(room: Room) -> None:
    queue = room.queue()
    for verb in (room.admin.revoke, room.admin.cancel):
        with pytest.raises(InvalidInput, match="list"):
            verb(queue.name, "letters")
        with pytest.raises(InvalidName):
            verb(queue.name, ["not a name"])


async def test_a_verdict_given_before_the_cancel_stands(room: Room) -> None:
    queue = room.queue()
    await room.send(queue)
    held = await room.take(queue)
    await room.call(held.ack)
    assert room.admin.cancel(queue.name, [held.id]) == 0
    with contextlib.suppress(AlreadySettled):
        await room.call(held.extend)
    assert not held.cancelled


async def test_a_program_cancels_what_it_has_sent(room: Room) -> None:
    queue = room.queue()
    waiting: Any = queue.handle(await room.send(queue, "waiting", delay=3600))
    running: Any = queue.handle(await room.send(queue, "running"))
    held = await room.take(queue)
    assert await room.call(waiting.cancel) is True
    assert await room.call(running.cancel) is True
    assert await room.call(running.cancel) is False
    with pytest.raises(MessageCancelled):
        await room.call(held.extend)
    assert room.states(queue) == {}
