"""Rows 33-35 and 47: clocks that jump. Only the server's counts, and it is never outrun."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import restante
from restante import Admin, Client, LeaseLost, Sweeper
from tests.faults.rows import count_from_journal, early_deliveries, missing, verdict, wait_until
from tests.faults.workers import Worker
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer, debian_binary

#: Seconds of a jump.
JUMP = 7200.0


@pytest.fixture
def clock() -> Iterator[FrozenClock]:
    with FrozenClock() as made:
        yield made


@pytest.fixture
def frozen(clock: FrozenClock) -> Iterator[Client]:
    with RedisServer(debian_binary(), clock=clock) as server, restante.connect(server.url) as post:
        yield post


def test_a_jump_ahead_ends_leases_and_delays_and_nothing_is_lost_or_early(
    clock: FrozenClock, frozen: Client, name: str
) -> None:
    queue = frozen.queue(name, lease=30)
    sent = queue.send_many(["held"] * 5)
    held = queue.receive_many(5)
    soon = queue.send("soon", delay=3600)
    later = queue.send("later", delay=JUMP + 60)
    clock.advance(JUMP)
    for message in held:
        with pytest.raises(LeaseLost):
            message.ack()
    taken = queue.receive_many(100)
    assert {message.id for message in taken} == {*sent, soon}
    assert all(message.attempts == 2 for message in taken if message.id != soon)  # at most one double per lease
    queue.ack_many(taken)
    assert queue.receive() is None
    clock.advance(60)
    last = queue.receive_many(10)
    queue.ack_many(last)
    assert Admin(frozen).counts(name).waiting == 0
    verdict(33, n=7, lost=missing([*sent, soon, later], [m.id for m in [*taken, *last]]), jump_s=JUMP)
    count_from_journal(frozen, name)


def test_a_jump_back_delays_by_at_most_the_jump_and_nothing_is_stuck_after(
    clock: FrozenClock, frozen: Client, name: str
) -> None:
    queue = frozen.queue(name, lease=30, dedup=60)
    sent = queue.send_many(["held"] * 5)
    held = queue.receive_many(5)
    soon = queue.send("soon", delay=10)
    clock.back(JUMP)
    queue.send("x", id="now")
    fresh = queue.receive()
    assert fresh is not None
    assert fresh.id == "now"
    fresh.ack()
    assert queue.send("x", id="now").stored is False
    held[0].ack()  # its lease is longer now, never shorter
    assert queue.receive() is None
    clock.advance(JUMP)
    assert queue.receive() is None
    clock.advance(10)
    due = queue.receive()
    assert due is not None
    assert due.id == soon
    clock.advance(21)
    back = queue.receive_many(10)
    assert {message.id for message in back} == {message.id for message in held[1:]}
    queue.ack_many([*back, due])
    assert Admin(frozen).counts(name).waiting == 0
    verdict("33b", n=7, lost=missing(sent, [m.id for m in [*back, held[0]]]), jump_s=-JUMP)
    count_from_journal(frozen, name)


def test_a_rate_is_not_stuck_for_the_length_of_a_jump_back(clock: FrozenClock, frozen: Client, name: str) -> None:
    queue = frozen.queue(name, rate=2)
    queue.send_many(list(range(10)))
    assert len(queue.receive_many(10)) == 2
    clock.back(JUMP)
    queue.receive_many(10)
    clock.advance(1)
    assert len(queue.receive_many(10)) == 2


def test_a_clock_that_swings_every_second_makes_nothing_early(clock: FrozenClock, frozen: Client, name: str) -> None:
    queue = frozen.queue(name)
    base = clock.now_ms
    due: dict[str, int] = {}
    for number in range(40):
        clock.advance(1 if number % 2 else -0.9)
        due[queue.send(number, delay=0.5 + number % 3)] = round(clock.now_ms + (0.5 + number % 3) * 1000)
    early = 0
    seen: set[str] = set()
    while len(seen) < 40:
        clock.advance(0.25 if len(seen) % 2 else -0.05)
        for message in queue.receive_many(100):
            early += clock.now_ms < due[message.id]
            seen.add(message.id)
            message.ack()
        clock.advance(0.2)
        assert clock.now_ms - base < 600_000
    verdict(35, n=40, lost=missing(due, seen), early=early)
    count_from_journal(frozen, name)


def test_more_than_a_year_away_is_delivered(clock: FrozenClock, frozen: Client, name: str) -> None:
    queue = frozen.queue(name)
    id = queue.send("patience", delay=400 * 86400)
    clock.advance(400 * 86400 - 1)
    assert queue.receive() is None
    assert Sweeper(frozen).run_once().promoted == 0
    clock.advance(1)
    assert Sweeper(frozen).run_once().promoted == 1
    message = queue.receive()
    assert message is not None
    verdict(47, n=1, lost=int(message.id != id))
    count_from_journal(frozen, name)


@pytest.mark.parametrize("offset", [-3600.0, 3600.0])
def test_a_consumer_or_producer_whose_clock_is_wrong_makes_no_difference(
    server: RedisServer, post: Client, view: Admin, name: str, offset: float
) -> None:
    queue = post.queue(name, lease=1)
    with FrozenClock() as clock:
        clock.offset(offset)
        sent = [queue.send(number, delay=0.5 if number % 2 else 0) for number in range(20)]
        with Worker(server.url, name, clock=clock, seconds=0.1, concurrency=2) as worker:
            wait_until(lambda: view.counts(name).waiting == 0, 30, "draining")
            ids = [line.id for line in worker.said("start")]
            assert {line.attempts for line in worker.said("start")} == {1}
    early = early_deliveries(view, name, delayed=10)
    verdict(34, n=20, lost=missing(sent, ids), dup=len(ids) - len(set(ids)), early=early, offset_s=offset)


def test_a_lease_is_counted_by_the_server_whatever_the_consumer_thinks_the_time_is(
    server: RedisServer, post: Client, view: Admin, name: str
) -> None:
    queue = post.queue(name, lease=1)
    queue.send("long")
    with FrozenClock() as clock:
        clock.offset(0)
        with Worker(server.url, name, clock=clock, seconds=2.5) as worker:
            worker.wait_line("start")
            for step in (3600.0, -3600.0, 0.0):
                clock.offset(step)
                time.sleep(0.3)
            worker.wait_line("end")
            wait_until(lambda: view.counts(name).waiting == 0, 10, "the ack")
    assert view.counts(name).totals["received"] == 1
    verdict("34b", n=1)
