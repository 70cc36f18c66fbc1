"""Schedules on a server whose clock the test moves: who fires what, and when."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import restante
from restante import Admin, Client, InvalidInput, NotFound, Queue, State, Sweeper, cron, every
from restante.core.firing import BATCH, plan, tick
from restante.core.schedule import FORMAT, agenda, define, defining
from tests.core.bench import Bench
from tests.harness.clock import START_MS as T

#: START_MS is 2033-05-18 03:33:20 UTC: the next whole minute is 40 s away.
NEXT = 40


@pytest.fixture
def post(bench: Bench) -> Iterator[Client]:
    with restante.connect(bench.server.url) as client:
        yield client


class Place:
    """A queue with schedules, and the clock."""

    def __init__(self, bench: Bench, post: Client) -> None:
        self.bench, self.post = bench, post
        self.queue: Queue = post.queue("q")
        self.admin = Admin(post, operator="tester")

    def advance(self, seconds: float) -> None:
        """Moves the clock. Clients measure the time to the next tick by their own clocks, which did not move."""
        self.bench.clock.advance(seconds)
        self.queue.ref.look_at = 0.0

    def taken(self) -> list[str]:
        """Receives and acks everything; the ticks' ids without the day."""
        found = []
        while (message := self.queue.receive()) is not None:
            found.append(message.id.replace("2033-05-18T", ""))
            message.ack()
        return found


@pytest.fixture
def place(bench: Bench, post: Client) -> Place:
    return Place(bench, post)


def test_a_tick_sends_one_message_when_it_is_due_and_not_before(place: Place) -> None:
    made = place.queue.schedule("a", "* * * * *", payload={"n": 1}, kind="k", priority=3, headers={"h": 1})
    assert made.next_at == datetime(2033, 5, 18, 3, 34, tzinfo=UTC)
    place.advance(NEXT - 0.001)
    assert place.queue.receive() is None
    place.advance(0.001)
    message = place.queue.receive()
    assert message is not None
    assert (message.id, message.schedule, message.tick) == ("a@2033-05-18T03:34:00Z", "a", made.next_at)
    assert (message.payload, message.kind, message.priority, message.headers) == ({"n": 1}, "k", 3, {"h": 1})
    assert place.queue.receive() is None
    [stored] = place.queue.schedules()
    assert (stored.fired, stored.last_at, stored.last_id, stored.last_state) == (
        1,
        made.next_at,
        message.id,
        State.LEASED,
    )
    assert stored.next_at == made.next_at + timedelta(minutes=1)


def test_the_journal_names_the_schedule(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.advance(NEXT)
    place.taken()
    place.queue.unschedule("a")
    told = [(entry.event, entry.detail) for entry in place.admin.journal("q") if entry.detail]
    assert told == [
        ("configured", "schedule a added"),
        ("sent", "schedule a"),
        ("configured", "schedule a removed"),
    ]


def test_of_many_firers_that_read_a_schedule_one_fires_it(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.advance(NEXT)
    run = place.post.connection.run
    seen = [run(tick(place.queue.ref)) for _ in range(10)]
    fired = [run(tick(place.queue.ref, [plan(one, found.now) for one in found.waiting if one])) for found in seen]
    assert [found.statuses for found in fired] == [["fired"], *[["changed"]] * 9]
    assert place.taken() == ["a@03:34:00Z"]


def test_a_firer_that_slept_through_the_dedup_window_sends_nothing_twice(place: Place) -> None:
    place.queue.configure(dedup=0)
    place.queue.schedule("a", every="1m")
    place.advance(NEXT)
    run = place.post.connection.run
    late = run(tick(place.queue.ref))
    assert place.taken() == ["a@03:34:00Z"]
    place.advance(3600)
    assert run(tick(place.queue.ref, [plan(one, late.now) for one in late.waiting if one])).statuses == ["changed"]
    assert place.admin.counts("q").waiting == 0


def test_a_crash_between_reading_and_firing_loses_nothing(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.advance(NEXT)
    place.post.connection.run(tick(place.queue.ref))  # and no more of it
    assert place.taken() == ["a@03:34:00Z"]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("once", ["a@03:37:00Z"]),
        ("skip", ["a@03:37:00Z"]),
        ("all", ["a@03:34:00Z", "a@03:35:00Z", "a@03:36:00Z", "a@03:37:00Z"]),
    ],
)
def test_ticks_that_passed_while_nobody_fired(place: Place, missed: Any, expected: list[str]) -> None:
    place.queue.schedule("a", every="1m", missed=missed)
    place.advance(NEXT + 3 * 60 + 30)
    assert place.taken() == expected
    place.advance(30)
    assert place.taken() == ["a@03:38:00Z"]
    [stored] = place.queue.schedules()
    assert (stored.fired, stored.skipped) == (len(expected) + 1, 0 if missed == "all" else 3)


def test_thousands_of_missed_ticks_are_all_sent_or_passed_over(place: Place) -> None:
    place.queue.schedule("all", every="1s", missed="all")
    place.queue.schedule("once", every="1s")
    place.advance(2500)
    found = place.taken()
    assert len([id for id in found if id.startswith("all@")]) == 2500
    assert len([id for id in found if id.startswith("once@")]) == 1
    assert len(set(found)) == 2501


def test_a_long_missed_tick_is_skipped(place: Place) -> None:
    place.queue.schedule("a", "0 4 * * *", missed="skip")
    place.queue.schedule("b", "0 4 * * *", missed="once")
    place.advance(3600)
    assert place.taken() == ["b@04:00:00Z"]
    a, b = sorted(place.queue.schedules(), key=lambda one: one.name)
    assert (a.fired, a.skipped, a.head.why) == (0, 1, "missed")
    assert a.next_at == b.next_at == datetime(2033, 5, 19, 4, tzinfo=UTC)


def test_without_overlap_a_tick_is_passed_over_while_the_last_message_waits(place: Place) -> None:
    place.queue.schedule("a", every="1m", overlap=False)
    place.advance(NEXT)
    Sweeper(place.post).run_once()
    place.advance(60)
    message = place.queue.receive()
    assert message is not None
    place.advance(20)
    place.queue.release_many([message], delay=100)
    place.advance(60)
    assert place.queue.receive() is None
    place.advance(60)
    assert place.taken() == ["a@03:34:00Z"]
    place.advance(60)
    assert place.taken() == ["a@03:38:00Z"]
    [stored] = place.queue.schedules()
    assert (stored.fired, stored.skipped, stored.head.why) == (2, 3, "overlap")


def test_a_dead_message_does_not_hold_up_the_next_tick(place: Place) -> None:
    place.queue.schedule("a", every="1m", overlap=False)
    place.advance(NEXT)
    message = place.queue.receive()
    assert message is not None
    message.bury(error="no")
    assert place.queue.schedules()[0].last_state is State.DEAD
    place.advance(60)
    assert place.taken() == ["a@03:35:00Z"]


def test_a_paused_schedule_does_not_tick_and_makes_up_for_nothing(place: Place) -> None:
    place.queue.schedule("a", every="1m", missed="all")
    assert place.admin.pause_schedule("q", "a").status == "paused"
    assert place.admin.pause_schedule("q", "a").next_at is None
    place.advance(NEXT + 600)
    assert place.taken() == []
    resumed = place.admin.resume_schedule("q", "a")
    assert (resumed.status, resumed.next_at) == ("active", datetime(2033, 5, 18, 3, 45, tzinfo=UTC))
    assert place.admin.resume_schedule("q", "a") == resumed
    place.advance(60)
    assert place.taken() == ["a@03:45:00Z"]
    verbs = [entry.verb for entry in place.admin.audit() if entry.verb.endswith("schedule")]
    assert set(verbs) == {"pause schedule", "resume schedule"}


def test_a_paused_queue_keeps_its_ticks(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.admin.pause("q")
    for _ in range(3):
        place.advance(60)
        assert place.queue.receive() is None
    place.admin.resume("q")
    assert place.taken() == ["a@03:34:00Z", "a@03:35:00Z", "a@03:36:00Z"]


def test_an_edit_counts_from_now_and_the_same_definition_changes_nothing(place: Place) -> None:
    first = place.queue.schedule("a", every="1h", payload=1)
    place.advance(60)
    assert place.queue.schedule("a", every="1h", payload=1).head == first.head
    changed = place.queue.schedule("a", every="1h", payload=2)
    assert (changed.next_at, changed.payload, changed.head.revision) == (first.next_at, 2, 2)
    place.admin.pause_schedule("q", "a")
    edited = place.queue.schedule("a", every="1m", payload=2)
    assert (edited.status, edited.next_at, edited.head.revision) == ("paused", None, 3)
    resumed = place.admin.resume_schedule("q", "a")
    assert resumed.next_at == datetime(2033, 5, 18, 3, 35, tzinfo=UTC)


def test_an_edit_between_reading_and_firing_wins(place: Place) -> None:
    place.queue.schedule("a", every="1m", payload=1)
    place.advance(NEXT)
    found = place.post.connection.run(tick(place.queue.ref))
    place.queue.schedule("a", every="1h", payload=2)
    fired = place.post.connection.run(tick(place.queue.ref, [plan(one, found.now) for one in found.waiting if one]))
    assert fired.statuses == ["changed"]
    assert place.taken() == []


def test_run_now_sends_beside_the_ticks(place: Place) -> None:
    place.queue.schedule("a", every="1m", payload=7)
    id = place.admin.run_schedule("q", "a")
    message = place.queue.receive()
    assert message is not None
    assert (message.id, message.payload, message.schedule) == (id, 7, None)
    message.ack()
    place.advance(NEXT)
    assert place.taken() == ["a@03:34:00Z"]
    place.admin.pause_schedule("q", "a")
    place.admin.run_schedule("q", "a")
    assert len(place.taken()) == 1
    assert place.admin.schedule("q", "a").status == "paused"


def test_a_schedule_ends_and_a_new_definition_begins_again(place: Place) -> None:
    until = datetime(2033, 5, 18, 3, 35, tzinfo=UTC)
    place.queue.schedule("a", every="1m", end=until)
    place.advance(3600)
    assert place.taken() == ["a@03:35:00Z"]
    [stored] = place.queue.schedules()
    assert (stored.status, stored.next_at, stored.next()) == ("ended", None, [])
    assert place.queue.schedule("a", every="1m").status == "active"


def test_jitter_makes_a_tick_late_and_never_early(place: Place) -> None:
    made = place.queue.schedule("a", every="1h", jitter="30m")
    assert made.due_at is not None
    assert made.next_at is not None
    left = (made.due_at - datetime.fromtimestamp(T / 1000, UTC)).total_seconds()
    place.advance(left - 0.001)
    assert place.taken() == []
    place.advance(0.001)
    assert place.taken() == ["a@04:00:00Z"]


def test_a_clock_that_goes_back_repeats_no_tick(place: Place) -> None:
    place.queue.configure(dedup=0)  # nothing else would notice a repetition
    place.queue.schedule("a", every="1m")
    place.advance(NEXT)
    assert place.taken() == ["a@03:34:00Z"]
    place.advance(-3600)
    place.admin.pause_schedule("q", "a")
    place.admin.resume_schedule("q", "a")
    place.advance(3600)
    assert place.taken() == []
    place.advance(60)
    assert place.taken() == ["a@03:35:00Z"]


def test_a_full_queue_holds_ticks_back_and_gives_each_schedule_its_turn(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.queue.configure(max_length=2)
    for name in "abcd":
        place.queue.schedule(name, every="1h", missed="all")
    place.advance(3600)
    with caplog.at_level(logging.WARNING):
        first = place.queue.receive()
    assert "schedule not fired queue=q schedule=" in caplog.text
    assert first is not None
    first.ack()
    found = {first.id[0]}
    for _ in range(9):
        place.queue.ref.look_at = 0.0
        found |= {id[0] for id in place.taken()}
    assert found == {*"abcd"}


def test_what_is_due_fires_before_the_receive_of_the_same_call(place: Place) -> None:
    for number in range(BATCH * 3):
        place.queue.schedule(f"s{number}", every="1m")
    place.advance(NEXT)
    assert len({message.id for message in place.queue.receive_many(1000)}) == BATCH * 3


def test_a_sweeper_fires_where_nobody_consumes(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    sweeper = Sweeper(place.post)
    assert sweeper.run_once().fired == 0
    place.advance(NEXT)
    done = sweeper.run_once()
    assert (done.fired, done.next_seconds <= 60) == (1, True)
    assert place.admin.counts("q").ready == 1
    assert Sweeper(place.post, ("other",)).run_once().fired == 0


def test_a_dropped_queue_has_no_schedules(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.admin.drop("q")
    place.advance(600)
    assert place.queue.receive() is None
    assert place.admin.schedules() == []
    place.queue.schedule("a", every="1m")
    place.advance(60)
    assert place.taken() == ["a@03:44:00Z"]


def test_a_purge_removes_messages_and_no_schedule(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.advance(NEXT)
    Sweeper(place.post).run_once()
    assert place.admin.purge("q") == 1
    place.advance(60)
    assert place.taken() == ["a@03:35:00Z"]


def test_a_later_version_s_schedule_is_left_to_those_that_can_read_it(place: Place) -> None:
    place.queue.schedule("a", every="1m")
    place.queue.schedule("b", every="1m")
    key = place.queue.ref.keys["schedules"]
    record: Any = place.bench.client.hget(key, "a")
    place.bench.client.hset(key, "a", record.replace(b'"v":%d' % FORMAT, b'"v":%d' % (FORMAT + 1)))
    place.advance(NEXT)
    assert place.taken() == ["b@03:34:00Z"]
    assert [one.name for one in place.queue.schedules()] == ["b"]


def test_a_schedule_is_left_to_its_only_firer(place: Place) -> None:
    timing = every("1m")
    definition = define(place.queue.ref, "a", timing, None, "celery", {}, firer="celery beat")
    stored = place.queue.run(defining(place.queue.ref, "a", definition, "tester"))
    assert place.bench.client.zcard(place.queue.ref.keys["ticks"]) == 0
    place.bench.client.zadd(place.queue.ref.keys["ticks"], {"a": stored.head.due_ms})
    place.advance(NEXT)
    assert place.taken() == []
    with pytest.raises(InvalidInput, match="only celery beat can make the message"):
        place.admin.run_schedule("q", "a")


def test_a_damaged_schedule_is_reported_and_does_not_stop_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.queue.schedule("a", every="1m")
    place.queue.schedule("b", every="1m")
    place.bench.client.hset(place.queue.ref.keys["schedules"], "a", b"spoiled")
    place.advance(NEXT)
    assert place.taken() == ["b@03:34:00Z"]
    assert "the schedule a of q is damaged: remove it and define it again" in caplog.text
    assert [one.name for one in place.queue.schedules()] == ["b"]
    assert place.queue.schedule("a", every="1m").status == "active"
    place.bench.client.hset(place.queue.ref.keys["schedules"], "a", b"spoiled again")
    place.queue.unschedule("a")
    with pytest.raises(NotFound):
        place.queue.unschedule("a")


def test_schedules_are_listed_in_the_order_of_their_ticks(place: Place) -> None:
    other = place.post.queue("r")
    place.queue.schedule("late", every="1d")
    other.schedule("soon", every="1m")
    place.queue.schedule("paused", every="1m")
    place.admin.pause_schedule("q", "paused")
    assert [one.name for one in place.admin.schedules()] == ["soon", "late", "paused"]
    assert [one.name for one in place.admin.schedules("q")] == ["late", "paused"]
    assert place.admin.scheduled_queues() == ["q", "r"]
    page = place.post.connection.run(agenda(place.queue.ref, ["paused", "nobody", "late"]))
    assert [one.name for one in page.schedules] == ["paused", "late"]


def test_many_schedules_are_listed_page_by_page(place: Place) -> None:
    for number in range(1200):
        place.queue.schedule(f"s{number}", every="1d")
    assert len(place.queue.schedules()) == 1200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "0 3 * * *", "every": 5}, "give a cron expression such as '0 3 * * *', or every='5m'"),
        ({}, "give a cron expression such as '0 3 * * *', or every='5m'"),
        ({"every": 5, "tz": "Europe/Berlin"}, "an interval has no time zone"),
        ({"cron": cron("0 3 * * *"), "tz": "Europe/Berlin"}, "give tz to cron(…) or every(…), not beside it"),
        ({"cron": every(5), "every": 5}, "give every to cron(…) or every(…)"),
        ({"every": 5, "delay": 3}, "schedule() has no option 'delay'"),
        ({"every": 5, "payloud": 3}, "did you mean payload?"),
        ({"every": 5, "priority": 256}, "priority must be"),
        ({"every": 5, "payload": object()}, "cannot be sent as JSON"),
    ],
)
def test_what_is_no_schedule_is_refused_and_nothing_stored(place: Place, options: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        place.queue.schedule("a", **options)
    assert said in str(refused.value)
    assert place.queue.schedules() == []


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "x" * 161])
def test_a_schedule_s_name_is_checked(place: Place, name: str) -> None:
    with pytest.raises(InvalidInput):
        place.queue.schedule(name, every=5)


def test_a_missing_schedule_or_queue_is_named(place: Place) -> None:
    place.queue.schedule("nightly", every=5)
    for change in (place.admin.schedule, place.admin.pause_schedule, place.admin.delete_schedule):
        with pytest.raises(NotFound, match="did you mean nightly"):
            change("q", "nigtly")
        with pytest.raises(NotFound, match="no queue qq"):
            change("qq", "nightly")
    assert place.admin.queues() == ["q"]
