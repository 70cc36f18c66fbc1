"""Batches: messages of any queues, and one message when the last of them has ended, exactly once."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from restante import BatchEnded, Draft, InvalidInput, NotFound, QueueFull, State
from restante.core import operations as ops
from restante.core.batch_calls import ANNOUNCED, BatchName, adding
from restante.core.keys import QueueKeys
from restante.core.queue_ref import QueueRef
from tests.contract.rooms import Room, fresh_name, needs

pytestmark = needs("admin", "tokens", "batches")


@contextlib.asynccontextmanager
async def filled(room: Room, batch: Any) -> AsyncIterator[Any]:
    """The block of a batch, whether it is entered by `with` or by `async with`."""
    if hasattr(batch, "__aenter__"):
        async with batch:
            yield batch
        return
    await room.call(batch.__enter__)
    try:
        yield batch
    except BaseException as error:
        await room.call(batch.__exit__, type(error), error, None)
        raise
    await room.call(batch.__exit__, None, None, None)


async def a_batch(room: Room, count: int = 3, queues: int = 2, **options: Any) -> tuple[Any, Any, list[Any]]:
    """A batch of messages in several queues, its home, and the queues."""
    home = room.queue(fresh_name("home"))
    work = [room.queue(max_attempts=1) for _ in range(queues)]
    options.setdefault("on_complete", {"report": 42})
    async with filled(room, room.post.batch(home.name, **options)) as batch:
        for number in range(count):
            await room.call(batch.send, work[number % queues], {"n": number})
    return batch, home, work


async def filled_with_one_for_each(room: Room, batch: Any, *queues: Any) -> None:
    async with filled(room, batch):
        for number, queue in enumerate(queues, 1):
            await room.call(batch.send, queue, number)


def outboxes(room: Room, *queues: Any) -> int:
    """How many entries wait to be carried."""
    keys = [QueueKeys(queue.name)["outbox"] for queue in queues]
    return sum(int(room.plain.connection.command("ZCARD", key, key=key)) for key in keys)


async def test_the_message_of_its_end_comes_after_the_last_message(room: Room) -> None:
    batch, home, work = await a_batch(room, 5)
    for number in range(5):
        assert await room.receive(home) is None
        message = await room.take(work[number % 2])
        assert message.batch_id == batch.id
        await room.call(message.ack)
    end = await room.take(home)
    assert end.payload == {"report": 42}
    assert end.headers["batch"] == {
        "id": batch.id,
        "total": 5,
        "done": 5,
        "dead": 0,
        "cancelled": 0,
        "deleted": 0,
        "purged": 0,
        "lapsed": 0,
        "lost": 0,
        "pending": 0,
        "failed": [],
        "more": 0,
    }
    assert end.batch_id is None
    await room.call(end.ack)
    assert await room.receive(home) is None
    status = await room.call(batch.status)
    assert (status.state, status.total, status.done, status.pending, status.fraction) == ("complete", 5, 5, 0, 1.0)
    assert outboxes(room, home, *work) == 0


async def test_a_draft_gives_the_end_its_kind_headers_and_payload(room: Room) -> None:
    draft = Draft(b"\x00\xff", kind="report", priority=7, headers={"who": "ä"}, max_attempts=2, content_type="x/y")
    _, home, work = await a_batch(room, 1, on_complete=draft)
    await room.call((await room.take(work[0])).ack)
    end = await room.take(home)
    assert (end.payload, end.kind, end.priority, end.max_attempts) == (b"\x00\xff", "report", 7, 2)
    assert (end.headers["who"], end.content_type) == ("ä", "x/y")
    assert end.headers["batch"]["done"] == 1


async def test_acks_that_ride_on_a_receive_end_it_too(room: Room) -> None:
    _, home, work = await a_batch(room, 3, queues=1)
    got = await room.call(work[0].receive_many, 3)
    assert await room.call(work[0].receive_many, 1, acks=got) == []
    assert (await room.take(home)).headers["batch"]["done"] == 3


async def test_an_empty_batch_ends_at_once(room: Room) -> None:
    batch, home, _ = await a_batch(room, 0)
    assert (await room.take(home)).headers["batch"]["total"] == 0
    assert (await room.call(batch.status)).fraction == 1.0


async def test_the_first_dead_message_is_told_once_and_the_end_lists_them(room: Room) -> None:
    _, home, work = await a_batch(room, 4, queues=1, on_dead={"alarm": 1})
    for error in ("ValueError", "KeyError"):
        message = await room.take(work[0])
        await room.call(message.nack, error={"ValueError": ValueError("no"), "KeyError": KeyError("k")}[error])
        if error == "ValueError":
            alarm = await room.take(home)
            assert alarm.payload == {"alarm": 1}
            assert [one["id"] for one in alarm.headers["batch"]["failed"]] == [message.id]
    await room.call((await room.take(work[0])).bury, error="boom")
    assert await room.receive(home) is None
    await room.call((await room.take(work[0])).ack)
    counts = (await room.take(home)).headers["batch"]
    assert (counts["done"], counts["dead"], counts["more"]) == (1, 3, 0)
    assert [(one["queue"], one["ended"], one["error"]) for one in counts["failed"]] == [
        (work[0].name, "dead", "ValueError"),
        (work[0].name, "dead", "KeyError"),
        (work[0].name, "dead", "Error"),
    ]
    assert await room.receive(home) is None


async def test_a_retry_does_not_settle(room: Room) -> None:
    home, work = room.queue(fresh_name("home")), room.queue(max_attempts=3)
    async with filled(room, room.post.batch(home.name, on_complete=1)) as batch:
        await room.call(batch.send, work, 1)
    await room.call((await room.take(work)).nack, delay=0)
    assert (await room.call(batch.status)).pending == 1
    await room.call((await room.take(work)).release)
    assert (await room.call(batch.status)).pending == 1
    await room.call((await room.take(work)).ack)
    assert (await room.take(home)).headers["batch"]["done"] == 1


async def test_messages_that_operators_remove_have_ended(room: Room) -> None:
    batch, home, work = await a_batch(room, 4, queues=1)
    ids = [message.id for message in room.admin.walk(work[0].name, State.READY)]
    assert room.admin.delete(work[0].name, ids[:1]) == 1
    assert room.admin.cancel(work[0].name, ids[1:2]) == 1
    held = await room.take(work[0])
    assert await room.call(work[0].cancel, held.id) is True
    assert room.admin.purge(work[0].name) == 1
    counts = (await room.take(home)).headers["batch"]
    assert (counts["deleted"], counts["cancelled"], counts["purged"], counts["done"]) == (1, 2, 1, 0)
    assert {one["id"]: one["ended"] for one in counts["failed"]} == {
        ids[0]: "deleted",
        ids[1]: "cancelled",
        held.id: "cancelled",
        ids[3]: "purged",
    }
    assert outboxes(room, home, *work) == 0
    assert (await room.call(batch.status)).state == "complete"


@needs("expiry")
async def test_a_message_that_lapsed_has_ended(room: Room) -> None:
    home, work = room.queue(fresh_name("home")), room.queue()
    async with filled(room, room.post.batch(home.name, on_complete=1)) as batch:
        await room.call(batch.send, work, 1, expires=5)
    await room.pass_time(6)
    assert await room.receive(work) is None
    assert (await room.take(home)).headers["batch"]["lapsed"] == 1


async def test_a_crash_on_the_last_attempt_ends_a_message(room: Room) -> None:
    _, home, work = await a_batch(room, 1)
    await room.call(work[0].receive, lease=1)
    await room.pass_time(2)
    assert await room.receive(work[0]) is None
    counts = (await room.take(home)).headers["batch"]
    assert [one["error"] for one in counts["failed"]] == ["LeaseExpired"]


async def test_a_replayed_message_is_waited_for_again(room: Room) -> None:
    batch, home, work = await a_batch(room, 2, queues=1)
    await room.call((await room.take(work[0])).nack)
    assert (await room.call(batch.status)).dead == 1
    assert room.admin.replay(work[0].name).replayed == 1
    status = await room.call(batch.status)
    assert (status.dead, status.pending, status.failed) == (0, 2, ())
    for _ in range(2):
        await room.call((await room.take(work[0])).ack)
    assert (await room.take(home)).headers["batch"]["done"] == 2


async def test_a_replay_after_the_end_corrects_the_counts_and_sends_nothing(room: Room) -> None:
    batch, home, work = await a_batch(room, 1)
    await room.call((await room.take(work[0])).nack)
    await room.call((await room.take(home)).ack)
    assert room.admin.replay(work[0].name).replayed == 1
    assert (await room.call(batch.status)).pending == 1
    await room.call((await room.take(work[0])).ack)
    status = await room.call(batch.status)
    assert (status.state, status.done, status.dead, status.pending) == ("complete", 1, 0, 0)
    assert await room.receive(home) is None


async def test_a_moved_message_stays_in_its_batch(room: Room) -> None:
    batch, home, work = await a_batch(room, 2, queues=1)
    other = room.queue(max_attempts=1)
    await room.call((await room.take(work[0])).nack)
    for state in (State.READY, State.DEAD):
        (message,) = room.admin.walk(work[0].name, state)
        assert room.admin.move(work[0].name, other.name, [message.id]) == 1
    assert (await room.call(batch.status)).pending == 2
    for _ in range(2):
        message = await room.take(other)
        assert message.batch_id == batch.id
        await room.call(message.ack)
    assert (await room.take(home)).headers["batch"]["done"] == 2


async def test_an_edited_message_stays_in_its_batch(room: Room) -> None:
    _, home, work = await a_batch(room, 1)
    (message,) = room.admin.walk(work[0].name, State.READY)
    room.admin.edit(work[0].name, message.id, payload="other")
    await room.call((await room.take(work[0])).ack)
    assert (await room.take(home)).headers["batch"]["done"] == 1


async def test_nothing_is_sent_before_the_block_ends_nor_when_it_raises(room: Room) -> None:
    home, work = room.queue(fresh_name("home")), room.queue()
    batch = room.post.batch(home.name, on_complete=1)

    async def fill() -> None:
        async with filled(room, batch):
            await room.call(batch.send, work, 1)
            assert await room.receive(work) is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fill()
    assert await room.receive(work) is None
    assert await room.receive(home) is None
    with pytest.raises(NotFound, match="no batch"):
        await room.call(batch.status)
    with pytest.raises(InvalidInput, match="inside the `with` block"):
        await room.call(batch.send, work, 1)


async def test_a_handler_adds_to_the_batch_of_its_message(room: Room) -> None:
    batch, home, work = await a_batch(room, 1)
    parent = await room.take(work[0])
    await room.call(parent.batch.send, work[1], "child")
    await room.call(parent.batch.send_many, work[1], ["b", Draft("c", priority=1)])
    assert outboxes(room, home) == 0  # nothing is announced any more
    await room.call(parent.ack)
    assert (await room.call(batch.status)).pending == 3
    for _ in range(3):
        assert await room.receive(home) is None
        await room.call((await room.take(work[1])).ack)
    assert (await room.take(home)).headers["batch"]["total"] == 4
    with pytest.raises(BatchEnded, match="nothing was sent"):
        await room.call(batch.send, work[1], "late")
    assert await room.receive(work[1]) is None


async def test_a_parent_ends_after_its_children(room: Room) -> None:
    batch, home, work = await a_batch(room, 1)
    message = await room.take(work[0])
    inner = room.queue(fresh_name("inner"))
    async with filled(room, message.batch.batch(inner.name, on_complete="inner")) as child:
        await room.call(child.send, work[1], 1)
    await room.call(message.ack)
    assert (await room.call(child.status)).parent == batch.id
    assert await room.receive(home) is None
    await room.call((await room.take(work[1])).ack)
    assert (await room.take(inner)).payload == "inner"
    counts = (await room.take(home)).headers["batch"]
    assert (counts["total"], counts["done"], counts["dead"]) == (2, 2, 0)


async def test_a_child_with_dead_messages_counts_as_dead(room: Room) -> None:
    batch, home, work = await a_batch(room, 1, on_dead="alarm")
    message = await room.take(work[0])
    async with filled(room, message.batch.batch(home.name)) as child:
        await room.call(child.send, work[1], 1)
    await room.call((await room.take(work[1])).nack)
    assert (await room.take(home)).payload == "alarm"
    await room.call(message.ack)
    (failed,) = (await room.take(home)).headers["batch"]["failed"]
    assert failed == {"id": child.id, "queue": home.name, "ended": "dead", "error": "BatchHasDead"}
    assert batch.id != child.id


async def test_a_message_that_a_unique_key_refuses_is_not_part_of_it(room: Room) -> None:
    home, work = room.queue(fresh_name("home")), room.queue()
    await room.send(work, 0, unique="k")
    async with filled(room, room.post.batch(home.name, on_complete=1)) as batch:
        first = await room.call(batch.send, work, 1, unique="k")
        second = await room.call(batch.send, work, 2)
    assert (first.stored, second.stored) == (False, True)
    assert (await room.call(batch.status)).total == 1
    assert await room.drain(work) == [0, 2]
    assert (await room.take(home)).headers["batch"]["total"] == 1


async def test_a_refused_send_leaves_the_batch_open_and_commit_goes_on(room: Room) -> None:
    home, work, full = room.queue(fresh_name("home")), room.queue(), room.queue(max_length=1)
    await room.send(full, "first")
    batch = room.post.batch(home.name, on_complete=1)
    with pytest.raises(QueueFull):
        await filled_with_one_for_each(room, batch, work, full)
    assert (await room.call(batch.status)).state == "open"
    assert await room.receive(home) is None
    assert await room.drain(full) == ["first"]
    await room.call(batch.commit)
    assert await room.drain(work) == [1]
    assert await room.drain(full) == [2]
    assert (await room.take(home)).headers["batch"]["total"] == 2


async def test_a_batch_whose_producer_died_waits_for_an_operator(room: Room) -> None:
    home, work, full = room.queue(fresh_name("home")), room.queue(), room.queue(max_length=1)
    await room.send(full, "first")
    batch = room.post.batch(home.name, on_complete=1)
    with pytest.raises(QueueFull):
        await filled_with_one_for_each(room, batch, work, full)
    sent = len(await room.drain(work))
    handle = room.client().batch_handle(batch.id)
    assert (await room.call(handle.status)).state == "open"
    assert await room.call(handle.resume) == 2 - sent
    counts = (await room.take(home)).headers["batch"]
    assert (counts["total"], counts["done"]) == (sent, sent)


async def test_an_open_batch_that_is_cancelled_counts_only_what_was_sent(room: Room) -> None:
    home, work, full = room.queue(fresh_name("home")), room.queue(), room.queue(max_length=1)
    await room.send(full, "first")
    batch = room.post.batch(home.name, on_complete=1)
    with pytest.raises(QueueFull):
        await filled_with_one_for_each(room, batch, work, full)
    sent = sum(room.states(work).values())
    assert await room.call(batch.cancel) == sent
    status = await room.call(batch.status)
    assert (status.state, status.total, status.cancelled) == ("cancelled", sent, sent)
    assert await room.receive(home) is None


async def test_messages_that_were_announced_and_never_sent_leave_the_batch(room: Room) -> None:
    batch, home, work = await a_batch(room, 1)
    name = BatchName.parse(batch.id)
    room.plain.connection.run(adding(name, [(work[1].name, "never")]))
    await room.call((await room.take(work[0])).ack)
    assert (await room.call(batch.status)).pending == 1
    await room.pass_time(ANNOUNCED + 1)
    end = await room.receive(home) or await room.take(home)
    assert end.headers["batch"]["total"] == 1
    # Its sender may only have slept.
    assert (await room.send(work[1], "late", id="never")).stored is False


async def test_an_entry_that_nobody_carried_is_carried_by_the_next_receive(room: Room) -> None:
    batch, home, work = await a_batch(room, 1)
    message = await room.take(work[0])
    # As a client that dies between the ack and the next call.
    room.plain.connection.run(ops.ack_many(QueueRef(work[0].name, "c", Draft), (message,)))
    assert (outboxes(room, *work), (await room.call(batch.status)).pending) == (1, 1)
    await room.pass_time(1)
    assert await room.receive(work[0]) is None
    assert outboxes(room, *work) == 0
    assert (await room.take(home)).headers["batch"]["done"] == 1


async def test_a_cancelled_batch_takes_its_messages_with_it_and_sends_no_end(room: Room) -> None:
    batch, home, work = await a_batch(room, 4)
    held = await room.take(work[0])
    async with filled(room, held.batch.batch(home.name, on_complete="inner")) as child:
        await room.call(child.send, work[1], "inner")
    assert await room.call(batch.cancel) == 5
    for queue in (home, *work):
        assert await room.receive(queue) is None
    for one in (batch, child):
        status = await room.call(one.status)
        assert (status.state, status.pending) == ("cancelled", 0)
        assert status.ended_at is not None
    with pytest.raises(BatchEnded):
        await room.call(batch.send, work[0], 1)
    assert await room.call(batch.cancel) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_complete": Draft(1, delay=5)}, "takes no delay"),
        ({"on_complete": Draft(1, id="x")}, "takes no id"),
        ({"on_dead": Draft(1, unique="x")}, "on_dead takes no unique"),
        ({"on_complete": "x" * 70_000}, "send a reference"),
        ({"on_complete": Draft(1, headers={"a": "x" * 20_000})}, "headers of on_complete"),
        ({"on_compleet": 1}, "did you mean on_complete"),
        ({"id": "a/b"}, "no slash"),
        ({"title": 7}, "title must be"),
        ({"parent": "x"}, "home queue, a slash"),
    ],
)
async def test_options_that_cannot_be_are_refused(room: Room, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        room.post.batch(room.queue().name, **options)


async def test_misuse_is_refused(room: Room) -> None:
    home, work = room.queue(fresh_name("home")), room.queue()
    batch = room.post.batch(home.name, id="mine")
    with pytest.raises(InvalidInput, match="inside the `with` block"):
        await room.call(batch.send, work, 1)
    stranger = room.client().queue(work.name)
    async with filled(room, batch):
        for arguments, options, text in (
            ((work, Draft(1, id="x")), {}, "makes the ids"),
            ((stranger, 1), {}, "its own client"),
            ((work, 1), {"priorty": 1}, "did you mean priority"),
            ((work, Draft(1)), {"priority": 1}, "its own options"),
        ):
            with pytest.raises(InvalidInput, match=text):
                await room.call(batch.send, *arguments, **options)
    with pytest.raises(InvalidInput, match="one `with` block"):
        async with filled(room, batch):
            pass
    again = room.post.batch(home.name, id="mine")
    with pytest.raises(InvalidInput, match="already"):
        async with filled(room, again):
            await room.call(again.send, work, 1)
    assert await room.receive(work) is None


async def test_the_end_is_stored_though_its_queue_is_full(room: Room) -> None:
    home, work = room.queue(fresh_name("home"), max_length=1), room.queue()
    await room.send(home, "first")
    async with filled(room, room.post.batch(home.name, on_complete="end")) as batch:
        await room.call(batch.send, work, 1)
    await room.call((await room.take(work)).ack)
    assert await room.drain(home) == ["first", "end"]


async def test_the_journal_names_the_batch(room: Room) -> None:
    batch, home, work = await a_batch(room, 1)
    await room.call((await room.take(work[0])).ack)
    details = [entry.detail for entry in room.admin.journal(work[0].name) if entry.event.value == "sent"]
    assert details == [f"batch {batch.id}"]
    ends = [entry.detail for entry in room.admin.journal(home.name) if entry.event.value == "sent"]
    assert ends == [f"complete of batch {batch.id}"]


async def test_a_large_batch_is_sent_and_counted_in_parts(room: Room) -> None:
    batch, home, work = await a_batch(room, 2300, queues=1)
    assert (await room.call(batch.status)).total == 2300
    held: list[Any] = []
    while got := await room.call(work[0].receive_many, 1000, acks=held):
        held = got
    assert (await room.take(home)).headers["batch"]["done"] == 2300
    assert inspect.iscoroutinefunction(batch.commit) == inspect.iscoroutinefunction(home.send)
