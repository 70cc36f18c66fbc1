"""Every transition writes one entry, the positions have no gaps, and nothing is trimmed before its readers had it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from restante import JournalEntry, JournalEvent, JournalLost, Position, State
from restante.core.journal_reader import Block, JournalReader
from restante.core.message import LIFECYCLE
from restante.core.stored import Stored
from tests.contract.rooms import Room, needs
from tests.harness.deadlines import PATIENCE, wait_until_async

pytestmark = needs("journal")


async def whole_life(room: Room, queue: Any) -> None:
    """Every verb of the lifecycle once."""
    await room.send(queue, "a", delay=0.02)
    await room.pass_time(0.02)
    message = await room.take(queue)  # promoted, received
    await room.call(message.extend)
    await room.call(message.release)
    message = await room.take(queue)
    await room.call(message.nack, delay=0)
    await room.take(queue, lease=0.05)
    await room.pass_time(0.05)
    message = await room.take(queue)  # expired, received
    await room.call(message.bury)
    room.admin.replay(queue.name)
    await room.call((await room.take(queue)).ack)
    id = await room.send(queue, "b")
    room.admin.edit(queue.name, id, payload="c")
    room.admin.delete(queue.name, [id])
    id = await room.send(queue, "e")
    await room.take(queue)
    room.admin.revoke(queue.name, [id])
    room.admin.cancel(queue.name, [id])
    await room.send(queue, "d")
    room.admin.purge(queue.name)
    room.admin.pause(queue.name)
    room.admin.resume(queue.name)
    await room.call(queue.configure, lease=31)


LIFE = [
    "sent",
    "promoted",
    "received",
    "extended",
    "released",
    "received",
    "nacked",
    "promoted",
    "received",
    "expired",
    "received",
    "buried",
    "replayed",
    "received",
    "acked",
    "sent",
    "edited",
    "deleted",
    "sent",
    "received",
    "revoked",
    "cancelled",
    "sent",
    "purged",
    "paused",
    "resumed",
]


def dense(entries: list[JournalEntry]) -> bool:
    """Whether the positions follow each other without gaps."""
    return all(b.position.sequence == a.position.sequence + 1 for a, b in itertools.pairwise(entries))


async def test_every_transition_is_one_entry_in_its_order(room: Room) -> None:
    queue = room.queue()
    await whole_life(room, queue)
    assert room.events(queue) == LIFE
    entries = room.admin.journal(queue.name)
    assert dense(entries)
    assert entries[0].position == Position(1)
    assert {row.event for row in LIFECYCLE} <= {entry.event for entry in entries}
    assert room.admin.counts(queue.name).journal_last == entries[-1].position.sequence


async def test_an_entry_says_what_happened_to_whom_by_whom_and_why(room: Room) -> None:
    client = room.client(consumer="me")
    queue = client.queue(room.queue().name, max_attempts=1)
    id = await room.send(queue, {"n": 1}, kind="order", priority=3)
    await room.call((await room.take(queue)).nack, error=LookupError("x"))
    sent, received, nacked = [e for e in room.admin.journal(queue.name) if e.event is not JournalEvent.CONFIGURED]
    assert (sent.message_id, sent.state, sent.kind, sent.priority, sent.size) == (id, "ready", "order", 3, 7)
    assert (received.state, received.attempts, received.consumer) == ("leased", 1, "me")
    assert received.due_at is not None
    assert (nacked.state, nacked.error_class, nacked.consumer) == ("dead", "LookupError", "me")
    assert sent.at == sent.sent_at == nacked.sent_at
    assert sent.at <= received.at <= nacked.at


async def test_a_state_in_the_journal_is_where_the_message_is(room: Room) -> None:
    queue = room.queue(keep_done=3)
    ids = await room.call(queue.send_many, [1, 2, 3])
    first, second, _ = await room.call(queue.receive_many, 3)
    await room.call(first.ack)
    await room.call(second.release, delay=60)
    last = {entry.message_id: entry.state for entry in room.admin.journal(queue.name)}
    for id in ids:
        assert last[id] == room.admin.show(queue.name, id).state


async def test_a_journal_of_ends_keeps_only_what_ends_a_message(room: Room) -> None:
    queue = room.queue(journal="terminal", max_attempts=1)
    await room.call(queue.send_many, list(range(4)))
    ack, nack, bury, lost = await room.call(queue.receive_many, 4, lease=0.3)
    await room.call(ack.ack)
    await room.call(nack.nack)
    await room.call(bury.bury)
    await room.pass_time(0.3)
    assert await room.receive(queue) is None
    room.admin.delete(queue.name, [nack.id])
    assert room.events(queue) == ["acked", "nacked", "buried", "expired", "deleted"]
    assert dense(room.admin.journal(queue.name))
    assert lost.id in [message.id for message in room.admin.walk(queue.name, State.DEAD)]


async def test_a_journal_switched_off_writes_nothing_and_goes_on_without_a_gap(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, 1)
    await room.call(queue.configure, journal="off")
    await room.send(queue, 2)
    assert await room.drain(queue) == [1, 2]
    await room.call(queue.configure, journal="full")
    await room.send(queue, 3)
    assert await room.drain(queue) == [3]
    assert room.events(queue)[0] == "sent"
    assert room.events(queue)[-3:] == ["sent", "received", "acked"]
    assert len(room.events(queue)) == 4
    assert dense(room.admin.journal(queue.name))
    assert room.admin.counts(queue.name).totals["sent"] == 3


async def test_a_journal_of_payloads_keeps_what_was_sent_edited_and_moved_in(room: Room) -> None:
    queue, target = room.queue(journal="payloads"), room.queue()
    await room.call(target.configure, journal="payloads")
    one = await room.send(queue, {"n": 1}, headers={"h": 1}, kind="k")
    many = await room.call(queue.send_many, ["a", b"\x00\n\t", None], priority=3)
    careful = await room.send(queue, "once", id="e")  # the name of the lines' own field
    assert not (await room.send(queue, "twice", id="e")).stored
    room.admin.edit(queue.name, one, payload={"n": 2})
    assert room.admin.move(queue.name, target.name, [one]) == 1
    await room.call((await room.take(queue)).nack, delay=0)
    found = [(id, Stored(raw)) for block in blocks(room, queue) for id, raw in block.stored.items()]
    assert [(id.decode(), form.payload) for id, form in found] == [
        (one, {"n": 1}),
        (many[0], "a"),
        (many[1], b"\x00\n\t"),
        (many[2], None),
        (careful, "once"),
        (one, {"n": 2}),
    ]
    assert (found[0][1].headers, found[0][1].kind, found[1][1].priority) == ({"h": 1}, "k", 3)
    [(id, moved)] = [pair for block in blocks(room, target) for pair in block.stored.items()]
    assert (id.decode(), Stored(moved).payload, Stored(moved).headers) == (one, {"n": 2}, {"h": 1})


def blocks(room: Room, queue: Any) -> list[Block]:
    """The whole journal in raw blocks."""
    reader = JournalReader(room.plain)
    place = reader.place(queue.name)
    assert place is not None
    return [block for page in reader.blocks(queue.name, 0, place.last) for block in page]


async def test_payloads_beside_the_lines_change_nothing_for_their_readers(room: Room) -> None:
    told = []
    for level in ("full", "payloads"):
        queue = room.queue(journal=level, keep_done=9)
        await whole_life(room, queue)
        entries = room.admin.journal(queue.name)
        assert dense(entries)
        assert entries == room.admin.journal(queue.name, newest_first=True)[::-1]
        pages: list[JournalEntry] = []
        while page := room.admin.journal(queue.name, after=pages[-1].position if pages else None, limit=3):
            pages += page
        assert pages == entries
        told.append([(e.event, e.state, e.size, e.attempts, e.error_class) for e in entries])
    assert told[0] == told[1]


class Looks:
    """Never stops a follower, and counts how often it asked: at the second time it knows where it stands."""

    count = 0

    def __call__(self) -> bool:
        self.count += 1
        return False


async def test_following_a_journal_of_payloads_shows_its_lines(room: Room) -> None:
    queue = room.queue(journal="payloads")
    await room.send(queue, "before")
    looks = Looks()
    following = room.admin.follow([queue.name], pause=0.01, stop=looks)

    def next_two() -> list[str]:
        return [next(following).event.value for _ in range(2)]

    reading = asyncio.create_task(asyncio.to_thread(next_two))
    await wait_until_async(lambda: looks.count > 1)
    await room.call(queue.send_many, ["after", "it"])
    assert await asyncio.wait_for(reading, PATIENCE) == ["sent", "sent"]


async def test_the_last_line_of_a_removed_message_begins_with_the_state_it_was_in(room: Room) -> None:
    queue, target = room.queue(keep_done=9, max_attempts=9), room.queue()
    ids = {}
    for state in (State.DONE, State.DEAD, State.RETRYING, State.READY, State.SCHEDULED):
        ids[state] = [await _brought_to(room, queue, state) for _ in range(4)]
    for found in ids.values():
        room.admin.delete(queue.name, found[:1])
        room.admin.delete(queue.name, found[1:2], detail="a mistake")
        room.admin.move(queue.name, target.name, found[2:3])
    assert room.admin.purge(queue.name) == 6  # what is done cannot be moved
    last = {entry.message_id: entry for entry in room.admin.journal(queue.name)}
    for state, (deleted, explained, moved, purged) in ids.items():
        assert last[deleted].detail == state.value
        assert last[explained].detail == f"{state.value}, a mistake"
        assert last[moved].detail == (state.value if state is State.DONE else f"{state.value}, moved to {target.name}")
        assert (last[purged].event, last[purged].detail) == (JournalEvent.PURGED, state.value)
        assert {last[id].state for id in (deleted, explained, moved, purged)} == {"gone"}
        assert {last[id].consumer for id in (deleted, explained, moved, purged)} == {"tester"}


async def _brought_to(room: Room, queue: Any, state: State) -> str:
    """A message in a state."""
    id: str = await room.send(queue, state.value, priority=9, delay=3600 if state is State.SCHEDULED else 0)
    verdicts: dict[State, dict[str, Any]] = {State.DONE: {}, State.DEAD: {}, State.RETRYING: {"delay": 3600}}
    if state in verdicts:
        message = await room.take(queue)
        verb = {State.DONE: message.ack, State.DEAD: message.bury, State.RETRYING: message.nack}[state]
        await room.call(verb, **verdicts[state])
    return id


async def test_a_purge_is_one_line_per_message_and_counts_messages(room: Room) -> None:
    queue = room.queue(max_attempts=9)
    ids = [id for _ in range(2) for id in await room.call(queue.send_many, list(range(550)), kind="k")]
    sent = {id: room.admin.show(queue.name, id).sent_at for id in (ids[0], ids[-1])}
    for message in await room.call(queue.receive_many, 2):
        await room.call(message.bury)
    assert room.admin.purge(queue.name) == 1100
    lines = [entry for entry in room.admin.journal(queue.name, limit=10_000) if entry.event is JournalEvent.PURGED]
    assert sorted(entry.message_id for entry in lines) == sorted(ids)
    assert {(entry.kind, entry.state, entry.consumer) for entry in lines} == {("k", "gone", "tester")}
    assert {entry.message_id: entry.sent_at for entry in lines}.items() >= sent.items()
    assert sorted((entry.detail, entry.attempts) for entry in lines) == [("dead", 1)] * 2 + [("ready", 0)] * 1098
    assert room.admin.counts(queue.name).totals["purged"] == 1100
    assert dense(room.admin.journal(queue.name, limit=10_000))


async def test_blocks_are_whole_or_say_what_is_missing(room: Room) -> None:
    queue = room.queue(journal_keep=1000)
    for _ in range(4):
        await room.call(queue.send_many, ["x"] * 1000)
    reader = JournalReader(room.plain)
    place = reader.place(queue.name)
    assert place is not None
    first = room.admin.journal(queue.name, limit=1)[0].position.sequence
    assert place.floor >= first - 1 > 0
    with pytest.raises(JournalLost, match=f"no longer has lines 1 to {first - 1}"):
        list(reader.blocks(queue.name, 0, place.last))
    found = [block for page in reader.blocks(queue.name, first - 1, place.last) for block in page]
    assert (found[0].first, found[-1].last) == (first, place.last)
    assert sum(block.lines.count(b"\n") + 1 for block in found) == place.last - first + 1


async def test_reading_goes_on_from_a_position(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, list(range(25)))
    read: list[JournalEntry] = []
    place = None
    while batch := room.admin.journal(queue.name, after=place, limit=10):
        read += batch
        assert dense(read)  # inside: what is read again would be read for ever
        place = batch[-1].position
    assert len([entry for entry in read if entry.event is JournalEvent.SENT]) == 25
    newest = room.admin.journal(queue.name, limit=1, newest_first=True)
    assert newest == read[-1:]


async def test_following_shows_what_happens_from_now_on(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "before")
    seen: list[JournalEntry] = []
    looks = Looks()

    def follow() -> None:
        for entry in room.admin.follow([queue.name], pause=0.01, stop=looks):
            seen.append(entry)
            if len(seen) == 4:
                return

    following = asyncio.create_task(asyncio.to_thread(follow))
    await wait_until_async(lambda: looks.count > 1)
    await room.send(queue, "after")
    assert await room.drain(queue) == ["before", "after"]
    await asyncio.wait_for(following, PATIENCE)
    assert [entry.event.value for entry in seen] == ["sent", "received", "acked", "received"]


async def test_the_journal_is_trimmed_to_what_it_keeps(room: Room) -> None:
    queue = room.queue(journal_keep=1000)
    for _ in range(4):
        await room.call(queue.send_many, ["x"] * 1000)
    entries = room.admin.journal(queue.name, limit=10_000)
    # Trimming looks once per thousand entries and drops whole nodes of the stream.
    assert 1000 <= len(entries) <= 2200
    assert dense(entries)
    assert room.admin.counts(queue.name).journal_lost == 0


async def test_a_registered_reader_holds_the_trimming_back(room: Room) -> None:
    queue = room.queue(journal_keep=1000)
    await room.send(queue, "first")
    room.admin.register_reader(queue.name, "spark", Position(0))
    for _ in range(4):
        await room.call(queue.send_many, ["x"] * 1000)
    entries = room.admin.journal(queue.name, limit=10_000)
    assert entries[0].position == Position(1)
    assert len(entries) >= 4001
    room.admin.register_reader(queue.name, "spark", entries[-1].position)
    for _ in range(2):
        await room.call(queue.send_many, ["x"] * 1000)
    assert room.admin.journal(queue.name, limit=1)[0].position.sequence > 2000
    assert room.admin.counts(queue.name).journal_lost == 0
    room.admin.forget_reader(queue.name, "spark")


async def test_beyond_the_cap_a_reader_loses_and_the_loss_is_counted_exactly(room: Room) -> None:
    queue = room.queue(journal_keep=1000, journal_cap=2000)
    await room.send(queue, "first")
    room.admin.register_reader(queue.name, "spark", Position(0))
    for _ in range(6):
        await room.call(queue.send_many, ["x"] * 1000)
    counts = room.admin.counts(queue.name)
    assert counts.journal_lost > 0
    entries = room.admin.journal(queue.name, limit=20_000)
    assert len(entries) <= 3200
    # Whole nodes are dropped, so a little that was given up may still be readable; never the other way round.
    assert 0 <= counts.journal_lost - (entries[0].position.sequence - 1) <= 200


@pytest.mark.parametrize("verb", ["ack", "send"])
async def test_a_call_that_changes_nothing_writes_nothing(room: Room, verb: str) -> None:
    queue = room.queue()
    await room.send(queue, "x", id="a")
    message = await room.take(queue)
    await room.call(message.ack)
    before = room.events(queue)
    if verb == "ack":
        await room.call(queue.ack_many, [message])
    else:
        await room.send(queue, "x", id="a")
    assert room.events(queue) == before
