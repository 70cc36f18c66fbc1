"""What operators see and do: counts, pages, one message whole, replay, delete, purge, pause, edit, move, consumers."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import restante
from restante import InvalidInput, InvalidName, Message, MessageLeased, NotFound, QueueFull, State
from restante.core.admin import ReplayTask
from tests.contract.rooms import Room, fresh_name, needs

pytestmark = needs("admin")


async def bury(room: Room, queue: Any, count: int, **options: Any) -> list[str]:
    """So many dead messages; their ids in the order of dying."""
    ids: list[str] = await room.call(queue.send_many, list(range(count)), **options)
    taken = await room.call(queue.receive_many, count)
    await room.call(queue.bury_many, taken, error=ValueError("no good"))
    return ids


async def test_counts_tell_every_state(room: Room) -> None:
    queue = room.queue(keep_done=5)
    for verb in ("ack", "bury", "nack", "hold"):
        await room.send(queue, verb)
        message = await room.take(queue)
        if verb == "nack":
            await room.call(message.nack, delay=3600)
        elif verb != "hold":
            await room.call(getattr(message, verb))
    await room.send(queue, "later", delay=3600)
    await room.send(queue, "now")
    assert room.states(queue) == {"scheduled": 1, "ready": 1, "leased": 1, "retrying": 1, "dead": 1, "done": 1}
    counts = room.admin.counts(queue.name)
    assert counts.waiting == 4
    assert (counts.totals["sent"], counts.totals["received"], counts.totals["acked"]) == (6, 4, 1)
    assert queue.name in room.admin.queues()


async def test_counts_tell_overdue_leases_and_how_long_the_first_has_waited(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, ["a", "b"])
    await room.take(queue, lease=0.1)
    await room.pass_time(0.15)
    counts = room.admin.counts(queue.name)
    assert counts.overdue == 1
    assert counts.waited >= 0.15


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_show_each_message_once_under_many_equal_scores(room: Room, newest_first: bool) -> None:
    queue = room.queue()
    due = room.now() + timedelta(hours=1)
    ids = await room.call(queue.send_many, list(range(450)), due_at=due)
    seen: list[str] = []
    after = None
    while True:
        page = room.admin.messages(queue.name, "scheduled", limit=70, after=after, newest_first=newest_first)
        seen += [message.id for message in page.messages]
        assert len(seen) == len(set(seen))  # inside: a page that is shown again would be shown for ever
        after = page.next
        if after is None:
            break
    assert seen == sorted(ids, reverse=newest_first)


async def test_pages_stay_in_step_while_messages_come_and_go(room: Room) -> None:
    queue = room.queue()
    ids = await room.call(queue.send_many, list(range(60)))
    first = room.admin.messages(queue.name, "ready", limit=20)
    assert [message.payload for message in first.messages] == list(range(20))
    for message in await room.call(queue.receive_many, 30):
        await room.call(message.ack)
    await room.call(queue.send_many, ["new"] * 5)
    second = room.admin.messages(queue.name, "ready", limit=20, after=first.next)
    assert [message.id for message in second.messages] == ids[30:50]
    assert [m.payload for m in room.admin.walk(queue.name, "ready")] == [*range(30, 60), *["new"] * 5]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 100, 1001])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
async def test_cursors_cut_a_state_into_about_equal_parts(room: Room, size: int, parts: int) -> None:
    queue = room.queue()
    for start in range(0, size, 1000):
        await room.call(queue.send_many, list(range(start, min(size, start + 1000))))
    cursors = room.admin.cursors(queue.name, "ready", parts)
    read = [part_of(room, queue, "ready", *edges, limit=300) for edges in pairwise([None, *cursors, None])]
    assert [message.payload for part in read for message in part] == [*range(size)]
    assert len(cursors) == min(parts, max(1, size)) - 1
    assert all(abs(len(part) - size / len(read)) <= 1 for part in read)


def part_of(
    room: Room, queue: Any, state: str, after: str | None, upto: str | None, *, limit: int = 7
) -> list[Message]:
    """The messages between two cursors, page by page."""
    found: list[Message] = []
    while True:
        page = room.admin.messages(queue.name, state, limit=limit, after=after, upto=upto)
        found += page.messages
        after = page.next
        if after is None:
            return found


async def test_parts_show_each_message_once_under_equal_scores_and_priorities(room: Room) -> None:
    queue = room.queue()
    due = room.now() + timedelta(hours=1)
    later = await room.call(queue.send_many, list(range(100)), due_at=due)
    ready = [id for level in (0, 255, 7) for id in await room.call(queue.send_many, list(range(20)), priority=level)]
    for state, ids in (("scheduled", later), ("ready", ready)):
        cursors = room.admin.cursors(queue.name, state, 5)
        assert len(set(cursors)) == 4
        read = [part_of(room, queue, state, *edges) for edges in pairwise([None, *cursors, None])]
        assert sorted(message.id for part in read for message in part) == sorted(ids)
        assert {len(part) for part in read} == {len(ids) // 5}


async def test_parts_show_what_stays_exactly_once_while_others_come_and_go(room: Room) -> None:
    queue = room.queue()
    ids = await room.call(queue.send_many, list(range(90)), priority=5)
    cursors = room.admin.cursors(queue.name, "ready", 4)
    seen: list[str] = []
    # Between any two pages some leave, the one a cursor stands on among them, and others come at both ends.
    leaving = [id for id in ids if id in {cursor.partition("~")[2] for cursor in cursors}] + ids[1::9]
    come = []
    for number, (after, upto) in enumerate(pairwise([None, *cursors, None])):
        place = after
        while True:
            page = room.admin.messages(queue.name, "ready", limit=5, after=place, upto=upto)
            seen += [message.id for message in page.messages]
            room.admin.delete(queue.name, leaving[:2])
            del leaving[:2]
            come.append(await room.send(queue, "new", priority=9 if number % 2 else 1))
            place = page.next
            if place is None:
                break
    assert len(seen) == len(set(seen))
    gone = set(ids) - {message.id for message in room.admin.walk(queue.name, "ready")}
    assert set(ids) - gone <= set(seen)
    assert set(seen) <= {*ids, *come}


async def test_a_page_reads_as_much_of_each_payload_as_it_is_told(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, b"p" * 5000, headers={"h": "x" * 300})
    await room.send(queue, "short")
    for preview, length in ((0, 0), (1, 1), (100, 100), (5000, 5000), (2**20, 5000)):
        long, short = room.admin.messages(queue.name, "ready", preview=preview).messages
        assert long.preview == b"p" * length
        assert (long.whole, short.whole) == (preview >= 5000, preview >= len(b'"short"'))
        assert (long.size, long.headers) == (5000, {"h": "x" * 300})
    assert long.payload == b"p" * 5000
    assert len(room.admin.messages(queue.name, "ready").messages[0].preview) == 1024


async def test_a_preview_or_a_number_of_parts_that_makes_no_sense_is_refused(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "x")
    bad: list[Any] = [-1, 1.5, "x", None, True]
    for value in bad:
        with pytest.raises(InvalidInput, match="preview"):
            room.admin.messages(queue.name, "ready", preview=value)
    for value in [0, *bad]:
        with pytest.raises(InvalidInput, match="parts"):
            room.admin.cursors(queue.name, "ready", value)
    with pytest.raises(InvalidInput, match="upto"):
        room.admin.messages(queue.name, "ready", upto="0~x", newest_first=True)


async def test_a_page_must_have_a_size_and_a_state(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, 1)
    for limit in (0, -1, 1001, "x"):
        with pytest.raises(InvalidInput, match="limit"):
            room.admin.messages(queue.name, "ready", limit=limit)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ValueError, match="sleeping"):
        room.admin.messages(queue.name, "sleeping")


async def test_peek_shows_who_is_next_and_takes_nothing(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "low")
    await room.send(queue, "high", priority=9)
    assert [message.payload for message in room.admin.peek(queue.name, 5)] == ["high", "low"]
    assert [message.payload for message in room.admin.peek(queue.name)] == ["high"]
    assert room.states(queue) == {"ready": 2}


async def test_show_tells_everything_of_one_message(room: Room) -> None:
    queue = room.queue(max_attempts=9)
    id = await room.send(queue, {"n": 1}, kind="order", headers={"h": 1}, priority=7)
    await room.call((await room.take(queue)).nack, delay=0, error=KeyError("sku"))
    held = await room.take(queue)
    shown = room.admin.show(queue.name, id)
    assert (shown.state, shown.attempts, shown.kind, shown.headers) == (State.LEASED, 2, "order", {"h": 1})
    assert (shown.payload, shown.priority, shown.consumer) == ({"n": 1}, 7, held.consumer)
    assert shown.lease_expires_at == held.lease_expires_at
    [attempt] = shown.history
    assert (attempt.attempt, attempt.error_class, attempt.consumer) == (1, "KeyError", held.consumer)
    assert attempt.received_at is not None
    assert attempt.received_at <= attempt.ended_at
    with pytest.raises(NotFound):
        room.admin.show(queue.name, "nobody")


async def test_a_replay_resets_attempts_and_keeps_the_errors(room: Room) -> None:
    queue = room.queue(max_attempts=1)
    id = await room.send(queue, "x")
    await room.call((await room.take(queue)).nack, error=ValueError("first life"))
    task = room.admin.replay(queue.name)
    assert (task.status, task.replayed, task.total) == ("finished", 1, 1)
    message = await room.take(queue)
    assert (message.id, message.attempts) == (id, 1)
    shown = room.admin.show(queue.name, id)
    assert shown.replays == 1
    assert "first life" in shown.history[0].error


async def test_a_replay_takes_more_than_a_page_and_reports_its_progress(room: Room) -> None:
    queue = room.queue()
    await bury(room, queue, 450)
    seen: list[int] = []
    task = room.admin.replay(queue.name, progress=lambda task: seen.append(task.replayed))
    assert task.replayed == 450
    assert seen == sorted(seen)
    assert len(seen) >= 3
    assert room.states(queue) == {"ready": 450}


async def test_a_replay_can_choose_by_kind_error_or_id(room: Room) -> None:
    queue = room.queue()
    first = await bury(room, queue, 2, kind="a")
    second = await bury(room, queue, 3, kind="b")
    await room.send(queue, "other")
    await room.call((await room.take(queue)).bury, error=KeyError("x"))
    assert room.admin.replay(queue.name, kind="a").replayed == 2
    assert room.admin.replay(queue.name, error_class="KeyError").replayed == 1
    assert room.admin.replay(queue.name, ids=[second[1], first[0], "nobody"]).replayed == 1
    assert room.states(queue) == {"ready": 4, "dead": 2}


async def test_a_dry_run_counts_and_moves_nothing(room: Room) -> None:
    queue = room.queue()
    await bury(room, queue, 250, kind="a")
    await bury(room, queue, 50, kind="b")
    task = room.admin.replay(queue.name, kind="a", dry_run=True)
    assert (task.replayed, task.seen) == (250, 300)
    assert room.states(queue) == {"dead": 300}
    assert "replayed" not in room.events(queue)


async def test_a_cancelled_replay_is_resumed_by_its_id(room: Room) -> None:
    queue = room.queue()
    await bury(room, queue, 500)
    pages: list[ReplayTask] = []
    task = room.admin.replay(queue.name, progress=pages.append, cancel=lambda: len(pages) >= 1)
    assert task.status == "cancelled"
    assert 0 < task.replayed < 500
    stored = room.admin.task(queue.name, task.id)
    assert (stored.status, stored.replayed) == ("cancelled", task.replayed)
    resumed = room.admin.replay(queue.name, task=task.id)
    assert (resumed.status, resumed.replayed, resumed.id) == ("finished", 500, task.id)
    assert room.states(queue) == {"ready": 500}
    assert room.admin.counts(queue.name).totals["replayed"] == 500
    assert [one.id for one in room.admin.tasks(queue.name)] == [task.id]
    with pytest.raises(NotFound):
        room.admin.replay(queue.name, task="nobody")


async def test_a_replay_may_be_given_its_id(room: Room) -> None:
    queue = room.queue()
    ids = await bury(room, queue, 3)
    task = room.admin.replay(queue.name, ids=ids[:2], name="plan-7")
    assert (task.id, task.replayed) == ("plan-7", 2)
    assert room.admin.task(queue.name, "plan-7").status == "finished"
    told = [entry.detail for entry in room.admin.journal(queue.name) if entry.event.value == "replayed"]
    assert told == ["plan-7"] * 2
    with pytest.raises(InvalidName):
        room.admin.replay(queue.name, name="not a name")
    assert room.states(queue) == {"ready": 2, "dead": 1}


async def test_a_replay_keeps_to_its_rate(room: Room) -> None:
    queue = room.queue()
    await bury(room, queue, 30)
    started = time.monotonic()
    task = room.admin.replay(queue.name, rate=40)
    assert task.replayed == 30
    assert time.monotonic() - started >= 0.6  # the last page is not waited for
    for rate in (0, -1, float("nan"), 1e9):
        with pytest.raises(InvalidInput, match="rate"):
            room.admin.replay(queue.name, rate=rate)


async def test_what_dies_again_during_a_replay_is_not_replayed_twice(room: Room) -> None:
    queue = room.queue(max_attempts=1)
    await bury(room, queue, 250)
    plain = room.plain.queue(queue.name)
    clock = room.clock
    assert clock is not None
    failures: list[list[State]] = []

    def fail_first_pages(_: ReplayTask) -> None:
        """Lets what was replayed die again, later than the replay began; not for ever, or a fault would never end."""
        if len(failures) < 2:
            clock.advance(0.002)
            failures.append(plain.nack_many(plain.receive_many(100), error="again"))

    task = room.admin.replay(queue.name, progress=fail_first_pages)
    assert [set(states) for states in failures] == [{State.DEAD}] * 2
    assert (task.replayed, task.status) == (250, "finished")
    assert room.admin.counts(queue.name).totals["replayed"] == 250
    assert room.states(queue) == {"dead": 200, "ready": 50}


async def test_delete_removes_by_id_from_any_state_but_leased(room: Room) -> None:
    queue = room.queue(keep_done=5)
    ready = await room.send(queue, "held")
    held = await room.take(queue)
    ready = await room.send(queue, "ready")
    later = await room.send(queue, "later", delay=3600)
    [dead] = [await _dead(room, queue)]
    assert room.admin.delete(queue.name, [ready, later, dead, "nobody"]) == 3
    with pytest.raises(MessageLeased):
        room.admin.delete(queue.name, [held.id])
    assert room.states(queue) == {"leased": 1}
    await room.call(held.ack)
    assert room.admin.delete(queue.name, [held.id]) == 1
    assert room.states(queue) == {}
    assert await room.receive(queue) is None
    with pytest.raises(InvalidName):
        room.admin.delete(queue.name, ["not a name"])


async def _dead(room: Room, queue: Any) -> str:
    id: str = await room.send(queue, "dead", priority=200)
    await room.call((await room.take(queue)).bury)
    return id


async def test_purge_removes_whole_states_and_leaves_the_leased(room: Room) -> None:
    queue = room.queue()
    await bury(room, queue, 1000)
    await bury(room, queue, 300)
    await room.send(queue, "held")
    held = await room.take(queue)
    await room.send(queue, "ready")
    await room.send(queue, "later", delay=3600)
    assert room.admin.purge(queue.name, [State.READY]) == 1
    assert "ready" not in room.states(queue)
    assert room.admin.purge(queue.name) == 1301
    assert room.states(queue) == {"leased": 1}
    with pytest.raises(InvalidInput):
        room.admin.purge(queue.name, [State.LEASED])
    await room.call(held.ack)
    assert room.admin.purge(queue.name) == 0


async def test_a_paused_queue_takes_and_gives_nothing_out(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "before")
    held = await room.take(queue)
    room.admin.pause(queue.name)
    await room.send(queue, "during")
    assert await room.receive(queue) is None
    assert await room.receive(queue, 0.2) is None
    assert room.admin.counts(queue.name).paused
    await room.call(held.ack)
    room.admin.resume(queue.name)
    assert await room.drain(queue) == ["during"]
    assert [e for e in room.events(queue) if e in ("paused", "resumed")] == ["paused", "resumed"]


async def test_an_edit_changes_what_it_names_and_keeps_the_place(room: Room) -> None:
    queue = room.queue()
    ids = await room.call(queue.send_many, ["a", "b", "c"], headers={"h": 1}, kind="k")
    room.admin.edit(queue.name, ids[1], payload={"new": True})
    room.admin.edit(queue.name, ids[2], priority=5, headers={"h": 2})
    found = [await room.take(queue) for _ in range(3)]
    assert [m.payload for m in found] == ["c", "a", {"new": True}]
    assert [(m.headers["h"], m.kind, m.priority) for m in found] == [(2, "k", 5), (1, "k", 0), (1, "k", 0)]
    with pytest.raises(MessageLeased):
        room.admin.edit(queue.name, ids[0], payload=1)
    with pytest.raises(NotFound):
        room.admin.edit(queue.name, "nobody", payload=1)


async def test_an_edit_keeps_what_it_does_not_name(room: Room) -> None:
    queue = room.queue()
    options: dict[str, Any] = {"kind": "k", "headers": {"h": 1}, "priority": 7, "lease": 50, "max_attempts": 9}
    id = await room.send(queue, "old", **options, retry=restante.fixed(3), unique="u", content_type="x/y")
    room.admin.edit(queue.name, id, payload="new")
    assert (await room.send(queue, "rival", unique="u")).stored is False
    message = await room.take(queue)
    assert (message.payload, message.priority, message.kind, message.headers) == ("new", 7, "k", {"h": 1})
    assert (message.max_attempts, message.retry, message.unique) == (9, restante.fixed(3), "u")
    assert message.lease_expires_at - message.received_at == timedelta(seconds=50)
    await room.call(message.ack)
    assert (await room.send(queue, "rival", unique="u")).stored is True


async def test_an_edit_moves_the_time_of_what_waits(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, b"\x00\xff", delay=3600, content_type="x/y")
    shown = room.admin.edit(queue.name, id, delay=0.1)
    assert shown.state is State.SCHEDULED
    assert await room.receive(queue) is None
    await room.pass_time(0.11)
    message = await room.take(queue)
    assert (message.payload, message.content_type) == (b"\x00\xff", "x/y")


async def test_an_edit_that_makes_no_sense_is_refused(room: Room) -> None:
    queue = room.queue()
    id = await room.send(queue, "a", delay=3600)
    bad: list[dict[str, Any]] = [
        {"priority": 256},
        {"payload": float("nan")},
        {"headers": {"a": object()}},
        {"delay": -5},
        {"delay": float("nan")},
        {"delay": 1e300},
    ]
    for options in bad:
        with pytest.raises(InvalidInput):
            room.admin.edit(queue.name, id, **options)
    assert room.admin.show(queue.name, id).payload == "a"


async def test_a_move_takes_messages_to_another_queue_with_what_they_carry(room: Room) -> None:
    queue, target = room.queue(max_attempts=1), fresh_name()
    ready = await room.send(queue, "ready", priority=9, headers={"h": 1}, kind="k")
    later = await room.send(queue, b"later", delay=3600)
    await room.send(queue, "dead", priority=200)
    buried = await room.take(queue)
    await room.call(buried.bury, error=ValueError("why"))
    assert room.admin.move(queue.name, target, [ready, later, buried.id]) == 3
    assert room.states(queue) == {}
    counts = room.admin.counts(target)
    assert (counts.ready, counts.scheduled) == (2, 1)
    moved = room.queue(target)
    first, second = await room.take(moved), await room.take(moved)
    assert {first.id, second.id} == {ready, buried.id}
    assert (second.headers, second.kind, second.attempts) == ({"h": 1}, "k", 1)
    assert room.admin.show(target, buried.id).history[0].error_class == "ValueError"
    assert room.admin.show(target, later).due_at is not None
    assert target in room.admin.queues()


async def test_a_moved_message_keeps_its_options(room: Room) -> None:
    queue, target = room.queue(), fresh_name()
    options: dict[str, Any] = {"lease": 50, "max_attempts": 9, "retry": restante.fixed(3)}
    id = await room.send(queue, b"x", **options, unique="u", content_type="x/y", priority=7)
    assert room.admin.move(queue.name, target, [id]) == 1
    assert (await room.send(queue, "free here", unique="u")).stored is True
    moved = room.queue(target)
    assert (await room.send(moved, "held there", unique="u")).stored is False
    message = await room.take(moved)
    assert (message.payload, message.content_type, message.priority) == (b"x", "x/y", 7)
    assert (message.max_attempts, message.retry, message.unique) == (9, restante.fixed(3), "u")
    assert message.lease_expires_at - message.received_at == timedelta(seconds=50)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING])
async def test_a_moved_message_keeps_its_time(room: Room, state: State) -> None:
    queue, target = room.queue(), fresh_name()
    if state is State.SCHEDULED:
        id = await room.send(queue, "x", delay=3600, expires=60)
    else:
        id = await room.send(queue, "x", expires=7200)
        await room.call((await room.take(queue)).nack, delay=3600)
    before = room.admin.show(queue.name, id)
    assert before.state is state
    assert room.admin.move(queue.name, target, [id]) == 1
    after = room.admin.show(target, id)
    assert (after.state, after.due_at) == (State.SCHEDULED, before.due_at)
    assert before.expires_at is not None
    assert after.expires_at is not None
    assert abs(after.expires_at - before.expires_at) <= timedelta(milliseconds=2)


async def test_a_move_into_a_full_queue_loses_nothing(room: Room) -> None:
    queue, target = room.queue(), room.queue(max_length=1)
    await room.send(target, "there")
    id = await room.send(queue, "here")
    with contextlib.suppress(QueueFull):
        room.admin.move(queue.name, target.name, [id])
    found = [message.id for name in (queue.name, target.name) for message in room.admin.walk(name, State.READY)]
    assert found.count(id) == 1
    assert len(found) == 2


async def test_a_move_leaves_what_is_held_missing_or_already_there(room: Room) -> None:
    queue, target = room.queue(), fresh_name()
    await room.send(queue, "held")
    held = await room.take(queue)
    await room.send(queue, "here", id="twin")
    await room.send(room.queue(target), "there", id="twin")
    assert room.admin.move(queue.name, target, [held.id, "nobody", "twin"]) == 0
    assert room.states(queue) == {"leased": 1, "ready": 1}
    assert room.admin.show(queue.name, "twin").payload == "here"
    assert room.admin.show(target, "twin").payload == "there"
    with pytest.raises(InvalidInput):
        room.admin.move(queue.name, queue.name, ["twin"])


async def test_a_dropped_queue_leaves_nothing_behind(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "x", unique="u")
    held = await room.take(queue)
    with pytest.raises(MessageLeased):
        room.admin.drop(queue.name)
    await room.call(held.release)
    room.admin.drop(queue.name)
    assert queue.name not in room.admin.queues()
    for key in room.plain.queue(queue.name).ref.keys.by_name.values():
        assert room.plain.connection.command("EXISTS", key, key=key) == 0, key


@needs("registry")
async def test_the_registry_knows_who_takes_and_when_last(room: Room) -> None:
    client = room.client(consumer="worker-7")
    queue = client.queue(fresh_name())
    before = room.now()
    await room.receive(queue)
    [found] = [one for one in room.admin.consumers() if one.name == "worker-7" and queue.name in one.queues]
    assert before - timedelta(milliseconds=5) <= found.last_seen <= room.now()
    assert found.pid > 0


@needs("registry")
async def test_the_registry_forgets_who_has_been_silent_for_long(room: Room) -> None:
    client = room.client(consumer="worker-gone")
    await room.receive(client.queue(fresh_name()))
    await room.pass_time(61)
    assert "worker-gone" not in [one.name for one in room.admin.consumers()]
