"""Rows 1-8: consumers that are killed, stopped, starved or poisoned."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import restante
from restante import Admin, Client, State, fixed
from tests.faults.rows import count_from_journal, history_faults, journal_lines, places, verdict, wait_until
from tests.faults.workers import Worker, runs_of
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE, took_at_most
from tests.harness.servers import RedisServer, debian_binary

#: Seconds a consumer may hold a message in these tests.
LEASE = 1.0
#: The same where the leases of living consumers must not run out: long enough that a busy machine renews in time.
KEPT_LEASE = 3.0


@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_consumers_killed_at_random_moments_lose_nothing(
    server: RedisServer, post: Client, view: Admin, name: str, seconds: float
) -> None:
    queue = post.queue(name, lease=KEPT_LEASE, max_attempts=1000)
    workers: list[Worker] = []
    killed: set[str] = set()
    sent: list[str] = []
    with contextlib.ExitStack() as ending:

        def hire() -> tuple[str, Worker]:
            consumer = f"{name}:{len(workers)}"
            client = {"consumer": consumer}
            # More is sent than they can do, so that each has messages in hands when it is killed.
            worker = ending.enter_context(Worker(server.url, name, seconds=0.06, concurrency=2, client=client))
            workers.append(worker)
            return consumer, worker

        alive = [hire() for _ in range(4)]
        for _, worker in alive:
            worker.wait_line("up")
        until = time.monotonic() + seconds
        next_kill = time.monotonic() + 0.5
        while time.monotonic() < until:
            sent += queue.send_many([len(sent) + place for place in range(10)])
            time.sleep(0.05)
            if time.monotonic() >= next_kill:
                consumer, victim = alive.pop(random.randrange(len(alive)))
                victim.kill9()
                killed.add(consumer)
                alive.append(hire())
                next_kill = time.monotonic() + 0.5
        recovery = wait_until(lambda: view.counts(name).waiting == 0, 60, "draining")
    runs = runs_of(workers)
    counted = Counter(id for id, _ in runs)
    assert not view.counts(name).dead  # kills are far fewer than the attempts allowed
    assert view.counts(name).totals["expired"] >= len(killed)  # else the kills hit idle consumers and prove nothing
    verdict(
        1,
        n=len(sent),
        lost=len(set(sent) - set(counted)),
        # What the dead had in hands may run again, and nothing else.
        **history_faults(view, name, runs, excused=lambda received, _: received.consumer in killed),
        max_recovery_s=_redelivery(view, name),
        within_s=KEPT_LEASE + 1,
        doubled=sum(1 for times in counted.values() if times > 1),
        kills=len(killed),
        drained_s=round(recovery, 2),
    )


def _redelivery(view: Admin, name: str) -> float:
    """Longest time from the start of a lease that ran out to the next delivery, by the journal."""
    longest = 0.0
    leased: dict[str, float] = {}
    expired: dict[str, float] = {}
    for entry in journal_lines(view, name):
        at = entry.at.timestamp()
        if entry.event.value in ("received", "extended"):
            if entry.message_id in expired:
                longest = max(longest, at - expired.pop(entry.message_id))
            leased[entry.message_id] = at
        elif entry.event.value == "expired":
            expired[entry.message_id] = leased[entry.message_id]
    return longest


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.chaos)])
def test_a_consumer_killed_between_receive_and_handler_loses_nothing(
    server: RedisServer, post: Client, view: Admin, name: str, rounds: int
) -> None:
    queue = post.queue(name, lease=0.5, max_attempts=1000)
    for number in range(rounds):
        queue.send(number)
    held = set()
    with contextlib.ExitStack() as ending:
        workers = [
            ending.enter_context(Worker(server.url, name, handler="zombie", count=1, seconds=600))
            for _ in range(rounds)
        ]
        for worker in workers:
            held.add(worker.wait_line("start").split()[1])
            worker.kill9()
    found: dict[str, int] = {}
    while len(found) < rounds:
        message = queue.receive(timeout=PATIENCE, lease=PATIENCE)
        assert message is not None
        found[message.id] = message.attempts
        message.ack()
    assert view.counts(name).waiting == 0
    # A victim may have taken what another one left, so two deliveries of what was held are the least.
    assert all(found[id] >= 2 for id in held)
    runs = [*runs_of(workers), *found.items()]
    verdict(2, n=rounds, lost=len(held - set(found)), **history_faults(view, name, runs))


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.chaos)])
def test_a_consumer_killed_after_its_work_and_before_its_ack_runs_exactly_twice(
    server: RedisServer, post: Client, view: Admin, name: str, rounds: int
) -> None:
    queue = post.queue(name, lease=0.5)
    ids, workers = [], []
    with contextlib.ExitStack() as ending:
        for _ in range(rounds):
            ids.append(queue.send("work"))
            # Only one message waits at a time, so its victim and no other takes it.
            victim = ending.enter_context(Worker(server.url, name, handler="exit on", payload="work"))
            workers.append(victim)
            victim.wait_line("start")
            victim.wait()
            second = ending.enter_context(Worker(server.url, name))
            workers.append(second)
            wait_until(lambda: view.counts(name).waiting == 0, PATIENCE, "the second run's ack")
            second.terminate()
            second.wait()
    runs = runs_of(workers)
    assert runs == [(id, attempt) for id in ids for attempt in (1, 2)]
    verdict(3, n=rounds, lost=len(set(ids) - {id for id, _ in runs}), **history_faults(view, name, runs))


@pytest.mark.parametrize("handler", ["sleep", "async sleep", "iterate"])
@pytest.mark.timed
def test_a_terminated_consumer_finishes_what_runs_and_hands_back_the_rest_uncounted(
    server: RedisServer, post: Client, view: Admin, name: str, handler: str
) -> None:
    queue = post.queue(name)
    sent = queue.send_many(list(range(400)))
    with Worker(server.url, name, handler=handler, seconds=0.05, concurrency=4, prefetch=50) as first:
        first.wait_line("end")
        time.sleep(0.5)
        asked = time.monotonic()
        first.terminate()
        assert first.wait() == 0, first.stderr
        took = time.monotonic() - asked
        done = {line.id for line in first.said("end")}
        started = {line.id for line in first.said("start")}
    assert started == done
    assert 0 < len(done) < 400
    counts = view.counts(name)
    assert (counts.leased, counts.ready) == (0, 400 - len(done))
    assert {message.attempts for message in view.walk(name, State.READY)} == {0}
    with Worker(server.url, name, concurrency=4) as second:
        wait_until(lambda: view.counts(name).waiting == 0, 30, "the second consumer")
        # Its last lines are read for certain once it has ended.
        second.terminate()
        second.wait()
        rest = [line.id for line in second.said("start")]
    verdict(
        4,
        n=400,
        lost=len(set(sent) - done - set(rest)),
        dup=len(rest) - len(set(rest)) + len(done & set(rest)),
        max_recovery_s=took,
        within_s=10.0,
        handler=handler,
    )


@pytest.mark.parametrize("handler", ["sleep", "async sleep"])
@pytest.mark.parametrize("gap", [0.05, 0.6])
@pytest.mark.timed
def test_a_second_signal_hands_back_everything_at_once(
    server: RedisServer, post: Client, view: Admin, name: str, handler: str, gap: float
) -> None:
    queue = post.queue(name)
    queue.send_many(list(range(20)))
    with Worker(server.url, name, handler=handler, seconds=60, concurrency=2, prefetch=10, grace=60) as worker:
        worker.wait_line("start")
        wait_until(lambda: len(worker.said("start")) >= 2, 10, "two running")
        time.sleep(0.2)
        worker.terminate()
        # Two signals that a process has not looked at are one: the first has been seen once it gives something back.
        wait_until(lambda: view.counts(name).ready > 0, 10, "the first signal's effect")
        time.sleep(gap)
        asked = time.monotonic()
        worker.terminate()
        worker.wait()
        took = time.monotonic() - asked
    counts = view.counts(name)
    # What had not started keeps its attempts; what was begun may have had effects, so its attempt counts.
    assert (counts.leased, counts.ready, counts.retrying) == (0, 18, 2)
    assert {message.attempts for message in view.walk(name, State.READY)} == {0}
    assert {message.attempts for message in view.walk(name, State.RETRYING)} == {1}
    verdict("4b", n=20, max_recovery_s=took, within_s=5.0, handler=handler)


@pytest.mark.timed
def test_a_first_signal_hands_back_what_has_not_started_while_a_long_handler_runs(
    server: RedisServer, post: Client, view: Admin, name: str
) -> None:
    queue = post.queue(name)
    queue.send_many(list(range(10)))
    with Worker(server.url, name, seconds=6, concurrency=1, prefetch=5, grace=60) as worker:
        worker.wait_line("start")
        time.sleep(0.2)
        worker.terminate()
        took = wait_until(lambda: view.counts(name).leased <= 1, 3, "handing back")
        assert not worker.said("end")
        assert worker.wait() == 0
    assert view.counts(name).ready == 9
    verdict("4c", n=10, max_recovery_s=took, within_s=3.0)


def test_a_zombie_that_wakes_after_its_lease_settles_nothing(
    server: RedisServer, post: Client, view: Admin, name: str
) -> None:
    queue = post.queue(name, lease=LEASE)
    sent = queue.send_many(list(range(10)))
    with Worker(server.url, name, handler="zombie", count=10, seconds=1.5) as worker:
        worker.wait_line("start")
        wait_until(lambda: len(worker.said("start")) == 10, 10, "ten leases")
        worker.stop()
        time.sleep(2 * LEASE)
        again = queue.receive_many(10, 5, lease=PATIENCE)
        while len(again) < 10:
            again += queue.receive_many(10, 5, lease=PATIENCE)
        assert {message.attempts for message in again} == {2}
        worker.cont()
        worker.wait()
        assert len([line for line in worker.lines if line.startswith("lost")]) == 10, worker.lines
    queue.ack_many(again)
    assert view.counts(name).totals["received"] == 20  # no third delivery
    verdict(5, n=10, lost=len(set(sent) - {message.id for message in again}))


@pytest.mark.parametrize("handler", ["burn", "sleep", "async sleep", "async block", "iterate"])
def test_a_busy_handler_keeps_its_lease(name: str, tmp_path: Path, handler: str) -> None:
    """The server's clock goes on only when every lease was renewed: a machine that is busy ends none."""
    over = tmp_path / "over"
    with (
        FrozenClock() as clock,
        RedisServer(debian_binary(), clock=clock) as server,
        restante.connect(server.url) as post,
    ):
        queue, view = post.queue(name, lease=LEASE), Admin(post)
        sent = queue.send_many(list(range(2)))

        def all_renewed() -> bool:
            held = [*view.walk(name, State.LEASED)]
            return bool(held) and all(message.expires_ms >= clock.now_ms + 1000 * LEASE for message in held)

        with Worker(server.url, name, handler=handler, until=str(over), concurrency=2) as worker:
            worker.wait_line("start")
            rival = []
            for _ in range(6):
                clock.advance(LEASE / 2)  # three leases in all
                wait_until(all_renewed, PATIENCE, "the renewal")
                # A rival that would get the message if the lease were lost.
                message = queue.receive()
                if message is not None and message.attempts > 1:
                    rival.append(message.id)
                elif message is not None:
                    message.release()
            over.touch()
            wait_until(lambda: view.counts(name).waiting == 0, PATIENCE, "the end")
            done = {line.id for line in worker.said("end")}
        # No lease may run out: neither the rival nor the worker itself gets a message a second time.
        faults = history_faults(view, name, runs_of([worker]), excused=lambda *_: False)
        faults["dup"] = max(faults["dup"], len(rival))
        verdict(6, n=2, lost=len(set(sent) - done), **faults, handler=handler)
        count_from_journal(post, name)


def test_poison_that_raises_is_dead_after_exactly_its_attempts_and_the_others_are_served(
    server: RedisServer, post: Client, view: Admin, name: str
) -> None:
    queue = post.queue(name, max_attempts=3, retry=fixed(0.05, 0.05, 0.05))
    sent = queue.send_many([f"good {n}" for n in range(300)])
    poison = queue.send_many(["poison"] * 5, priority=1)
    with Worker(server.url, name, handler="raise on", payload="poison", concurrency=2) as worker:
        wait_until(lambda: view.counts(name).waiting == 0, 30, "serving")
        started = Counter(line.id for line in worker.said("start"))
        served = {line.id for line in worker.said("end")}
    assert [started[id] for id in poison] == [3] * 5
    assert {id for id, states in places(view, name).items() if states == [State.DEAD]} == set(poison)
    for id in poison:
        shown = view.show(name, id)
        assert [one.error_class for one in shown.history] == ["ValueError"] * 3
        assert shown.payload == "poison"
    verdict(7, n=305, lost=len(set(sent) - served), dup=sum(1 for id in sent if started[id] != 1))


@pytest.mark.chaos
@pytest.mark.timed
def test_poison_that_raises_delays_the_others_no_more_than_twice(
    server: RedisServer, post: Client, view: Admin, name: str
) -> None:
    """The same load at half of the capacity, without poison and with it in one message of a thousand."""
    count, poison = 9_990, 10
    waits = {}
    batches = count // 10
    for poisoned in (False, True):
        queue = post.queue(f"{name}-{poisoned}", max_attempts=3, retry=fixed(0.05, 0.05, 0.05))
        bad: list[str] = []
        good: list[str] = []
        with Worker(
            server.url, queue.name, handler="raise on", payload="poison", seconds=0.002, concurrency=4
        ) as worker:
            worker.wait_line("up")
            for batch in range(batches):
                good += queue.send_many([f"good {batch}"] * 10)
                if poisoned and batch % (batches // poison) == 50:
                    bad.append(queue.send("poison", priority=1))
                time.sleep(0.01)
            drained = partial(_nothing_waits, view, queue.name)
            wait_until(drained, PATIENCE, "serving")
        lines = list(journal_lines(view, queue.name))
        sent = {line.message_id: line.at for line in lines if line.event.value == "sent"}
        acked = {line.message_id: line.at for line in lines if line.event.value == "acked"}
        delays = sorted((acked[id] - sent[id]).total_seconds() for id in good)
        waits[poisoned] = delays[len(delays) * 99 // 100]
        assert {id for id, states in places(view, queue.name).items() if states == [State.DEAD]} == set(bad)
        assert len(bad) == (poison if poisoned else 0)
    # A wait is known to the millisecond, and a scheduler's slice is a few of them.
    took_at_most(waits[True], 2 * waits[False] + 0.005, "99 of a hundred messages, from send to ack,")
    verdict(7, n=2 * count + poison, p99_s=waits[True], p99_without_s=waits[False])


def _nothing_waits(view: Admin, queue: str) -> bool:
    return view.counts(queue).waiting == 0


@pytest.mark.parametrize("prefetch", [0, 20])
def test_poison_that_kills_its_process_is_dead_after_exactly_its_attempts_and_alone(
    server: RedisServer, post: Client, view: Admin, name: str, prefetch: int
) -> None:
    queue = post.queue(name, max_attempts=3, lease=LEASE)
    poison = queue.send("poison")
    good = queue.send_many([f"good {n}" for n in range(20)])
    deaths = 0
    while view.counts(name).waiting:
        with Worker(server.url, name, handler="exit on", payload="poison", prefetch=prefetch) as worker:
            while worker.returncode is None and view.counts(name).waiting:
                time.sleep(0.02)
            deaths += worker.returncode == 9
        assert deaths <= 3
    shown = view.show(name, poison)
    assert (shown.state, shown.attempts, deaths) == (State.DEAD, 3, 3)
    assert [one.event.value for one in shown.history] == ["expired"] * 3
    bystanders = set(places(view, name)) & set(good)
    assert view.counts(name).totals["acked"] == 20 - len(bystanders)
    verdict(8, n=21, lost=len(bystanders), prefetch=prefetch)
