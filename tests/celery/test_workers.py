"""Celery on the broker: workers in processes of their own, which record their tasks in a ledger outside Redis."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, chunks, group
from celery.canvas import Signature

from restante import Admin, State
from restante.celery.control import LISTED
from tests.celery.workers import Worker, wait_for
from tests.harness.deadlines import PATIENCE, at_most, took_at_most, wait_until
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call

Start = Callable[..., Worker]


def task(worker: Worker, name: str, *args: Any, **options: Any) -> Signature:
    return worker.app.signature(f"shop.{name}", args=args, app=worker.app, **options)


class TestPools:
    @pytest.mark.timed
    @pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
    def test_tasks_delays_retries_and_control_work_in_every_pool(
        self, worker: Start, admin: Admin, pool: str, server: RedisServer
    ) -> None:
        one = worker(pool=pool)
        assert one.send("add", 2, 3).get(timeout=PATIENCE) == 5
        assert one.send("flaky", 2, 0.3).get(timeout=PATIENCE) == "ok"
        tried = [row["at"] for row in one.rows("tried")]
        assert [later - earlier >= 0.3 for earlier, later in itertools.pairwise(tried)] == [True, True]
        # Taken before the send: the due time counts from the send.
        sent = time.time()
        one.send("note", "late", countdown=0.5, headers={})
        (row,) = one.wait_rows(1, "begun")
        assert row["at"] - sent >= 0.5
        took_at_most(row["at"] - sent, 2.0)
        wait_for(lambda: one.app.control.ping(timeout=2) == [{"w1@test": {"ok": "pong"}}])
        wait_for(lambda: admin.counts("celery").waiting == 0, PATIENCE)
        one.terminate()
        assert one.wait(PATIENCE) == 0, one.stderr[-3000:]
        counts = admin.counts("celery")
        assert (counts.waiting, counts.dead, counts.totals["expired"]) == (0, 0, 0)


class TestCanvas:
    def test_chains_groups_chords_and_chunks(self, worker: Start) -> None:
        one = worker()
        add = lambda *args: task(one, "add", *args)  # noqa: E731 - as short as Celery's own
        assert chain(add(1, 2), add(3), add(4)).apply_async().get(timeout=PATIENCE) == 10
        assert sorted(group(add(n, n) for n in range(10)).apply_async().get(timeout=PATIENCE)) == list(range(0, 20, 2))
        assert chord([add(n, n) for n in range(10)], task(one, "total")).apply_async().get(timeout=PATIENCE) == 90
        inside = chord([task(one, "flaky", 1, 0.1), add(1, 1)], task(one, "noop", immutable=True))
        assert inside.apply_async().get(timeout=PATIENCE) is None
        pairs = chunks(add(), zip(range(6), range(6), strict=True), 2).apply_async().get(timeout=PATIENCE)
        assert pairs == [[0, 2], [4, 6], [8, 10]]
        parts = group(group(add(n, 1) for n in range(start, start + 5)) for start in range(0, 20, 5))
        assert len(parts.apply_async().get(timeout=PATIENCE)) == 20

    def test_autoretry_ends_after_its_tries(self, worker: Start, admin: Admin) -> None:
        one = worker()
        with pytest.raises(KeyError):
            one.send("auto").get(timeout=PATIENCE)
        assert len(one.rows("tried")) == 3
        wait_for(lambda: admin.counts("celery").waiting == 0, PATIENCE)


class TestTimes:
    @pytest.mark.timed
    def test_delays_of_every_length_are_kept_by_the_broker(self, worker: Start, admin: Admin) -> None:
        one = worker()
        wanted = [0.05, 0.3, 1.0, 2.0]
        due = {}
        for number, delay in enumerate(wanted):
            due[number] = time.time() + delay
            one.send("note", number, eta=datetime.now(UTC) + timedelta(seconds=delay))
        one.send("note", "next year", countdown=400 * 86400)
        rows = one.wait_rows(len(wanted), "begun")
        late = [row["at"] - due[row["number"]] for row in rows]
        assert min(late) >= -0.002
        took_at_most(max(late), 0.5)
        counts = admin.counts("celery")
        assert (counts.scheduled, counts.leased) == (1, 0)
        (waiting,) = admin.messages("celery", State.SCHEDULED).messages
        assert waiting.due_at is not None
        assert timedelta(days=399) < waiting.due_at - datetime.now(UTC) < timedelta(days=401)

    def test_ten_thousand_scheduled_tasks_are_not_in_a_workers_memory(self, worker: Start, admin: Admin) -> None:
        one = worker(pool="solo")
        for _ in range(100):
            one.send("noop").forget()
        wait_for(lambda: admin.counts("celery").waiting == 0, PATIENCE)
        before = resident(one.pid)
        with one.app.producer_pool.acquire() as producer:
            for number in range(10_000):
                one.send("note", number, countdown=3600, producer=producer, ignore_result=True)
        time.sleep(1)
        counts = admin.counts("celery")
        assert (counts.scheduled, counts.leased) == (10_000, 0)
        assert resident(one.pid) - before < 5_000_000
        listed = one.app.control.inspect(["w1@test"], timeout=PATIENCE).scheduled()["w1@test"]
        # Those due first; tasks of one millisecond in any order.
        assert len({task["request"]["args"][0] for task in listed}) == LISTED
        assert max(task["request"]["args"][0] for task in listed) < LISTED + 100

    def test_expired_tasks_are_not_run(self, worker: Start, admin: Admin) -> None:
        one = worker(wait=False, concurrency=1)
        one.send("note", "stale", expires=0.2)
        one.send("note", "fresh", expires=600)
        time.sleep(0.3)
        one.wait_ready()
        one.wait_rows(1, "done")
        time.sleep(0.3)
        assert [row["number"] for row in one.rows("begun")] == ["fresh"]
        assert admin.counts("celery").waiting == 0

    def test_a_scheduled_task_can_be_revoked_by_its_id(self, worker: Start, admin: Admin) -> None:
        one = worker()
        doomed, other = one.send("note", "doomed", countdown=3), one.send("note", "other", countdown=3)
        doomed.revoke()
        one.wait_rows(1, "done")
        time.sleep(0.5)
        assert [row["number"] for row in one.rows("begun")] == ["other"]
        wait_for(lambda: admin.counts("celery").waiting == 0, PATIENCE)
        assert other.id


class TestOrder:
    def test_priorities_hold_under_a_backlog(self, worker: Start) -> None:
        one = worker(wait=False, concurrency=1, pool="solo", conf={"worker_prefetch_multiplier": 1})
        for number in range(20):
            one.send("note", number, priority=0)
        one.send("note", "urgent", priority=255)
        one.wait_ready()
        rows = one.wait_rows(21, "begun")
        assert [row["number"] for row in rows] == ["urgent", *range(20)]

    def test_rate_limits_hold(self, worker: Start) -> None:
        one = worker()
        for number in range(10):
            one.send("limited", number)
        rows = one.wait_rows(10, "limited")
        assert rows[-1]["at"] - rows[0]["at"] >= 1.4


class TestFailures:
    def test_a_task_whose_process_dies_runs_again(self, worker: Start, admin: Admin) -> None:
        one = worker()
        assert one.send("die", 1).get(timeout=PATIENCE) == "alive"
        wait_for(lambda: admin.counts("celery").waiting == 0, PATIENCE)
        assert len(one.rows("dying")) == 2

    def test_a_task_that_always_kills_is_dead_in_the_end_with_the_reason(self, worker: Start, admin: Admin) -> None:
        one = worker(options={"delivery_limit": 3})
        one.send("die", 100)
        wait_for(lambda: admin.counts("celery").dead == 1, PATIENCE, lambda: one.stderr[-2000:])
        assert len(one.rows("dying")) == 3
        (dead,) = admin.messages("celery", State.DEAD).messages
        assert dead.kind == "shop.die"

    def test_a_rejected_task_is_dead_and_can_be_replayed(self, worker: Start, admin: Admin) -> None:
        one = worker()
        one.send("reject", False)
        wait_for(lambda: admin.counts("celery").dead == 1, PATIENCE)
        admin.replay("celery")
        wait_for(lambda: len(one.rows("rejecting")) == 2, PATIENCE)

    def test_an_unknown_task_is_dead_not_lost(self, worker: Start, admin: Admin) -> None:
        one = worker()
        one.send("of-another-service")
        wait_for(lambda: admin.counts("celery").dead == 1, PATIENCE)

    def test_a_time_limit_ends_the_task_and_the_worker_goes_on(self, worker: Start, admin: Admin) -> None:
        one = worker(conf={"task_acks_on_failure_or_timeout": True})
        result = one.send("slow")
        with pytest.raises(Exception, match="TimeLimitExceeded"):
            result.get(timeout=PATIENCE)
        assert one.send("add", 1, 1).get(timeout=PATIENCE) == 2
        wait_for(lambda: admin.counts("celery").waiting == 0, PATIENCE)

    @pytest.mark.timed
    def test_a_killed_workers_tasks_run_again_after_the_lease(self, worker: Start, admin: Admin) -> None:
        one = worker(options={"visibility_timeout": 2.0})
        for number in range(4):
            one.send("note", number, 60)
        one.wait_rows(2, "begun")
        one.kill9()
        killed = time.time()
        other = worker(options={"visibility_timeout": 2.0}, concurrency=4, name="w2")
        wait_for(lambda: len({row["number"] for row in other.rows("begun") if row["at"] > killed}) == 4, PATIENCE)
        first = min(row["at"] for row in other.rows("begun") if row["at"] > killed)
        took_at_most(first - killed, 12)  # the lease, and the start of the other worker

    def test_early_acks_are_given_before_the_task_runs(self, worker: Start, admin: Admin) -> None:
        one = worker(conf={"task_acks_late": False})
        one.send("note", 1, 600)
        one.wait_rows(1, "begun")
        wait_for(lambda: admin.counts("celery").totals["acked"] == 1)
        assert not one.rows("done")

    def test_sigterm_finishes_what_runs_and_hands_the_rest_back_uncounted(self, worker: Start, admin: Admin) -> None:
        one = worker(conf={"worker_prefetch_multiplier": 4})
        for number in range(12):
            one.send("note", number, 0.7)
        one.wait_rows(2, "begun")
        one.terminate()
        assert one.wait(PATIENCE) == 0
        begun = {row["number"] for row in one.rows("begun")}
        assert begun == {row["number"] for row in one.rows("done")}
        counts = admin.counts("celery")
        assert (counts.leased, counts.waiting) == (0, 12 - len(begun))
        assert all(message.attempts == 0 for message in admin.walk("celery", State.READY))
        other = worker(name="w2", concurrency=4)
        rows = other.wait_rows(12, "done")
        assert Counter(row["number"] for row in rows) == dict.fromkeys(range(12), 1)
        assert not any(row["redelivered"] for row in rows)


class TestOutages:
    def test_a_worker_goes_on_after_its_server_restarted(self, tmp_path: Path) -> None:
        with RedisServer(appendonly="always") as server, Worker(server, tmp_path, concurrency=2) as one:
            one.send("note", "long", 6.0)
            one.wait_rows(1, "begun")
            server.kill9()
            time.sleep(2)
            server.restart()
            wait_for(lambda: sends(one, "after"), PATIENCE)
            one.wait_rows(1, "done")
            wait_for(lambda: {"long", "after"} <= {row["number"] for row in one.rows("done")}, PATIENCE)
            time.sleep(1)
            assert Counter(row["number"] for row in one.rows("begun")) == {"long": 1, "after": 1}

    @pytest.mark.timed
    def test_a_half_open_connection_is_noticed_and_left(self, server: RedisServer, tmp_path: Path) -> None:
        with (
            FaultProxy(server.port) as proxy,
            Worker(_Beside(proxy.url), tmp_path, options={"socket_timeout": 1.0}) as one,
        ):
            one.send("note", "before")
            one.wait_rows(1, "done")
            proxy.blackhole()
            time.sleep(12)
            proxy.heal()
            with at_most(15):
                wait_for(lambda: sends(one, "after"), PATIENCE)
                one.wait_rows(2, "done")


@dataclass
class _Beside:
    """A server under another address."""

    url: str


class TestServices:
    def test_two_services_on_one_topic_each_see_every_event(self, worker: Start) -> None:
        bind = {name: ["events", "order.#"] for name in ("billing", "shipping")}
        workers = [worker(name=name, queues=name, bind=bind) for name in bind]
        for number in range(5):
            workers[0].send("note", number, exchange="events", routing_key="order.paid")
        rows = workers[0].wait_rows(10, "done")
        assert Counter(row["number"] for row in rows) == dict.fromkeys(range(5), 2)

    @pytest.mark.timed
    def test_remote_control_reaches_every_worker_and_events_flow(self, worker: Start) -> None:
        one, two = worker(name="w1", words=("-E",)), worker(name="w2", words=("-E",))
        both = {"w1@test", "w2@test"}
        wait_for(lambda: {name for answer in one.app.control.ping(timeout=3) for name in answer} == both)
        inspect = one.app.control.inspect(timeout=3)
        stats: dict[str, Any] = wait_until(lambda: told if set(told := inspect.stats() or {}) == both else {})
        for told in stats.values():
            took_at_most(told["restante"]["last_poll_seconds_ago"], 10)
        seen: list[str] = []
        with one.app.connection_for_read() as connection:
            receiver = one.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
            with receiver.consumer_context() as (heard, _, _):
                two.send("noop")
                deadline = time.monotonic() + PATIENCE
                while not {"task-received", "task-succeeded"} <= set(seen):
                    assert time.monotonic() < deadline, seen
                    try:
                        heard.drain_events(timeout=1)
                    except TimeoutError:
                        pass

    def test_a_worker_is_among_the_consumers(self, worker: Start, admin: Admin) -> None:
        one = worker(concurrency=3)
        one.send("noop").get(timeout=PATIENCE)
        (consumer,) = admin.consumers()
        assert (consumer.pid, consumer.concurrency, consumer.queues) == (one.pid, 3, ("celery",))


class TestIdle:
    def test_an_idle_worker_asks_little(self, worker: Start, server: RedisServer) -> None:
        one = worker()
        time.sleep(3)
        client = server.client()
        before, begun = commands(client), time.monotonic()
        time.sleep(20)
        rate = (commands(client) - before - 1) / (time.monotonic() - begun)
        assert rate <= 3.0, rate
        assert one.returncode is None


def commands(client: Any) -> int:
    return int(call(client, "INFO", "stats")["total_commands_processed"])


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def sends(worker: Worker, number: Any) -> bool:
    try:
        worker.send("note", number)
    except Exception:
        return False
    return True
