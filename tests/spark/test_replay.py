"""Replays by SQL over a real lake into a real Redis: the plan tells the truth, and each message goes back once."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import restante
from restante import Admin, Client, Draft, InvalidInput, JournalEntry, Message, NotFound, QueueFull, State
from restante.core.journal_reader import JournalReader
from restante.spark.pipeline import Pipeline, PipelineOptions
from restante.spark.replay import Plan, Replay
from restante.spark.writer import replayed_id
from tests.faults.rows import wait_until
from tests.harness.deadlines import PATIENCE, at_most, took_at_most
from tests.harness.servers import RedisServer, call
from tests.spark.lake_proof import audit_only
from tests.spark.pipeline_process import SparkProcess

#: Messages that take some seconds at a rate: acked ones of orders, dead ones of mail.
BULK = 1500
#: What the plan's tests choose.
TIMEOUTS = "kind = 'few' and error_class = 'Timeout'"


class Timeout(Exception):
    """What most of the dead died of."""


#: Fates that messages which were dead when the lake was filled may have by now.
EVERY = ("dead", "expired", "deleted", "waiting")


@dataclass
class Letters:
    """A server and a lake as they were just after the pipeline's run."""

    server: RedisServer
    post: Client
    admin: Admin
    lake: Path
    spark: SparkSession

    def replay(self) -> Replay:
        return Replay(self.spark, str(self.lake), self.post)

    def frozen(self, where: str, **options: object) -> Plan:
        work = self.replay()
        return work.freeze(*work.plan(where, **options))  # type: ignore[arg-type]  # by name

    def ids(self, queue: str, state: State, kind: str) -> list[str]:
        return [message.id for message in self.admin.walk(queue, state) if message.kind == kind]

    def lines(self, queue: str, event: str) -> list[JournalEntry]:
        return [line for line in self.admin.journal(queue, limit=100_000) if line.event == event]

    def last(self) -> dict[str, int]:
        return {queue: self.admin.counts(queue).journal_last for queue in self.admin.queues()}


def fill(post: Client) -> None:
    """Messages acked and dead, many and few, in a queue whose journal has the payloads and in one whose has not."""
    orders, mail = post.queue("orders", journal="payloads", dedup=0), post.queue("mail")
    few = [
        Draft({"n": n}, id=f"few-{n}", kind="few", priority=n % 3, headers={"trace": f"t{n}"} if n % 2 else None)
        for n in range(20)
    ]
    orders.send_many([*few, Draft(b"\x00\xff", id="few-raw", kind="few", content_type="image/png")])
    orders.send_many([{"n": n} for n in range(1000)], kind="bulk")
    orders.send_many([{"n": n} for n in range(BULK - 1000)], kind="bulk")
    while taken := orders.receive_many(1000):
        orders.ack_many(taken)
    for queue, count, error in ((orders, 30, Timeout("x")), (orders, 6, KeyError("x")), (mail, 10, Timeout("x"))):
        queue.send_many([{"n": n} for n in range(count)], kind="few", max_attempts=1)
        queue.nack_many(queue.receive_many(count), error=error)
    for name in ("eu", "us"):
        queue = post.queue(name, journal="payloads")
        queue.send(name, id="order-1")
        queue.bury_many(queue.receive_many(1), error=Timeout("x"))
    for start in range(0, BULK, 500):
        mail.send_many([{"n": start + n} for n in range(500)], kind="bulk")
    while taken := mail.receive_many(1000):
        mail.bury_many(taken, error=Timeout("x"))


@pytest.fixture(scope="module")
def _letters(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Letters, dict[bytes, bytes]]]:
    folder = tmp_path_factory.mktemp("letters") / "lake"
    with RedisServer() as server, restante.connect(server.url) as post:
        fill(post)
        with audit_only():  # a replay looks at silver
            Pipeline(spark, PipelineOptions(url=server.url, lake=str(folder))).run_once()
        client = server.client()
        dumps = {key: call(client, "DUMP", key) for key in call(client, "KEYS", "*")}
        yield Letters(server, post, Admin(post, operator="ada"), folder, spark), dumps


@pytest.fixture
def letters(_letters: tuple[Letters, dict[bytes, bytes]], tmp_path: Path) -> Iterator[Letters]:
    """As after the pipeline's run, whatever other tests did."""
    made, dumps = _letters
    client = made.server.client()
    call(client, "FLUSHALL")
    for key, dump in dumps.items():
        call(client, "RESTORE", key, 0, dump)
    folder = tmp_path / "lake"
    shutil.copytree(made.lake, folder)
    with restante.connect(made.server.url) as post:
        yield Letters(made.server, post, Admin(post, operator="ada"), folder, made.spark)


def told(plan: Plan) -> dict[tuple[str, str, str], int]:
    return {(row["queue"], row["action"], row["target"]): row["messages"] for row in plan.counts}


class TestPlans:
    def test_a_plan_tells_per_queue_what_happens_to_each_message_and_changes_nothing(self, letters: Letters) -> None:
        timeouts = [m.id for m in letters.admin.walk("orders", State.DEAD) if m.history[-1].error_class == "Timeout"]
        letters.admin.replay("orders", ids=timeouts[:2])
        letters.admin.delete("orders", timeouts[2:5])
        letters.admin.delete("mail", letters.ids("mail", State.DEAD, "few")[:4])
        before, files = letters.last(), sorted(letters.lake.rglob("*"))
        plan, _ = letters.replay().plan(TIMEOUTS, fates=EVERY)
        assert told(plan) == {
            ("orders", "in place", "orders"): 25,
            ("orders", "copy", "orders"): 3,
            ("orders", "waiting", "orders"): 2,
            ("mail", "in place", "mail"): 6,
            ("mail", "no payload", "mail"): 4,
        }
        assert {row["error_class"] for row in plan.counts} == {"Timeout"}
        assert (letters.last(), sorted(letters.lake.rglob("*"))) == (before, files)

    @pytest.mark.parametrize(
        "where",
        ["error_klass = 'x'", "kind ==== 'few'", "1 + 1", "kind = 'few'; drop table x", "cast(kind as int) = 1"],
    )
    def test_a_condition_that_is_none_is_refused_with_its_reason(self, letters: Letters, where: str) -> None:
        with pytest.raises(InvalidInput, match="--where"):
            letters.replay().plan(where)

    def test_fates_and_queues_that_cannot_be_are_refused(self, letters: Letters) -> None:
        with pytest.raises(InvalidInput, match="fates are"):
            letters.replay().plan("true", fates=("lost",))
        with pytest.raises(InvalidInput):
            letters.replay().plan("true", to="no such\tname")

    def test_a_lake_without_tables_is_told_with_the_remedy(self, letters: Letters, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="restante pipeline run"):
            Replay(letters.spark, str(tmp_path / "none"), letters.post).plan("true")

    def test_a_frozen_plan_stays_what_it_was(self, letters: Letters) -> None:
        plan = letters.frozen("kind = 'few' and error_class = 'KeyError'", name="keys")
        assert letters.replay().known("keys") == plan
        queue = letters.post.queue("orders")
        queue.send_many([1, 2, 3], kind="few")
        later = queue.receive_many(3)
        queue.bury_many(later, error=KeyError("x"))
        assert letters.replay().run(plan) == 6
        left = set(letters.ids("orders", State.DEAD, "few"))
        assert {message.id for message in later} <= left
        assert len(letters.ids("orders", State.READY, "few")) == 6

    def test_a_message_replayed_and_acked_since_the_lake_was_filled_is_not_sent_again(self, letters: Letters) -> None:
        dead = [m.id for m in letters.admin.walk("orders", State.DEAD) if m.history[-1].error_class == "Timeout"]
        letters.admin.replay("orders", ids=dead[:2])
        queue = letters.post.queue("orders")
        queue.ack_many(queue.receive_many(2))
        plan, _ = letters.replay().plan(TIMEOUTS + " and queue = 'orders'")
        assert plan.total("copy") == 0
        assert plan.total("in place") == len(dead) - 2


@dataclass
class Done:
    """A replay that was run to its end."""

    letters: Letters
    plan: Plan
    count: int
    dead: dict[str, Message]
    second: int


class TestRuns:
    @pytest.fixture
    def done(self, letters: Letters) -> Done:
        """Six dead in place; three of them as copies, since they were removed; then the same name again."""
        where = "kind = 'few' and error_class = 'KeyError'"
        dead = {m.id: letters.admin.show("orders", m.id) for m in letters.admin.walk("orders", State.DEAD)}
        dead = {id: message for id, message in dead.items() if message.history[-1].error_class == "KeyError"}
        letters.admin.delete("orders", sorted(dead)[:3])
        plan = letters.frozen(where, name="keys", fates=EVERY)
        count = letters.replay().run(plan)
        again = letters.replay().known("keys")
        assert again is not None
        return Done(letters, plan, count, dead, letters.replay().run(again))

    def test_each_goes_back_once_in_place_with_its_history_or_as_a_copy_with_its_origin(self, done: Done) -> None:
        admin = done.letters.admin
        assert done.count == 6
        ready = {message.id: admin.show("orders", message.id) for message in admin.walk("orders", State.READY)}
        gone, left = sorted(done.dead)[:3], sorted(done.dead)[3:]
        copies = {replayed_id("keys", "orders", id): id for id in gone}
        assert set(ready) == {*left, *copies}
        for id in left:
            assert (ready[id].replays, ready[id].attempts) == (1, 0)
            assert [attempt.error_class for attempt in ready[id].history] == ["KeyError"]
        for copy, id in copies.items():
            assert ready[copy].headers == {"replay": "keys", "replay_of": id, "replay_from": "orders"}
            assert (ready[copy].payload, ready[copy].kind) == (done.dead[id].payload, "few")
        lines = done.letters.lines("orders", "replayed")
        assert {(line.message_id, line.detail) for line in lines} == {(id, "keys-0") for id in left}
        assert done.second == 0
        assert admin.counts("orders").totals["replayed"] == 3
        place = JournalReader(done.letters.post).place("orders")
        assert place is not None
        assert set(place.readers) == {"pipeline"}  # the journal no longer waits for the replay

    def test_copies_are_what_was_sent(self, letters: Letters) -> None:
        plan = letters.frozen("message_id like 'few-%'", fates=("acked",), name="again")
        assert letters.replay().run(plan) == 21
        found = {message.headers["replay_of"]: message for message in letters.admin.walk("orders", State.READY)}
        assert set(found) == {*(f"few-{n}" for n in range(20)), "few-raw"}
        for n in range(20):
            message = found[f"few-{n}"]
            assert (message.payload, message.priority, message.kind) == ({"n": n}, n % 3, "few")
            trace = {"trace": f"t{n}"} if n % 2 else {}
            assert message.headers == trace | {"replay": "again", "replay_of": f"few-{n}", "replay_from": "orders"}
        assert (found["few-raw"].payload, found["few-raw"].content_type) == (b"\x00\xff", "image/png")

    def test_what_others_replayed_meanwhile_is_not_replayed_twice(self, letters: Letters) -> None:
        plan = letters.frozen("kind = 'bulk' and queue = 'mail'", name="bulk")
        share = letters.ids("mail", State.DEAD, "bulk")[: BULK // 20]
        letters.admin.replay("mail", ids=share)
        assert letters.replay().run(plan) == BULK - len(share)
        counts = Counter(line.message_id for line in letters.lines("mail", "replayed"))
        assert (len(counts), set(counts.values())) == (BULK, {1})

    def test_copies_to_another_queue_leave_the_originals_where_they_lie(self, letters: Letters) -> None:
        before = letters.admin.counts("orders")
        plan = letters.frozen(TIMEOUTS + " and queue = 'orders'", to="repair", name="aside")
        assert told(plan) == {("orders", "copy", "repair"): 30}
        # Its journal waits before the first copy is sent, though the queue was not there.
        place = JournalReader(letters.post).place("repair")
        assert place is not None
        assert "replay:aside" in place.readers
        assert letters.replay().run(plan) == 30
        assert letters.admin.counts("repair").ready == 30
        assert letters.admin.counts("orders").dead == before.dead
        assert letters.replay().run(plan) == 0

    def test_messages_of_two_queues_with_one_id_are_two_copies(self, letters: Letters) -> None:
        plan = letters.frozen("message_id = 'order-1'", to="repair", name="both")
        assert plan.total("copy") == 2
        assert letters.replay().run(plan) == 2
        assert sorted(message.payload for message in letters.admin.walk("repair", State.READY)) == ["eu", "us"]

    def test_a_full_queue_ends_the_replay_with_the_typed_error_and_room_lets_it_go_on(self, letters: Letters) -> None:
        letters.post.queue("repair").configure(max_length=10)
        plan = letters.frozen("message_id like 'few-%'", fates=("acked",), to="repair", name="tight")
        with pytest.raises(QueueFull):
            letters.replay().run(plan)
        letters.post.queue("repair").configure(max_length=None)
        again = letters.replay().known("tight")
        assert again is not None
        letters.replay().run(again)
        copies = Counter(message.headers["replay_of"] for message in letters.admin.walk("repair", State.READY))
        assert (len(copies), set(copies.values())) == (21, {1})


class TestStopping:
    @pytest.mark.parametrize(("queue", "fate"), [("orders", "acked"), ("mail", "dead")])
    @pytest.mark.timed
    def test_a_slow_replay_stops_soon_when_told_and_goes_on_later(
        self, letters: Letters, queue: str, fate: str
    ) -> None:
        plan = letters.frozen(f"kind = 'bulk' and queue = '{queue}'", fates=(fate,), name="slowly")
        waiting = letters.admin.counts(queue).waiting

        def stop() -> bool:
            return letters.admin.counts(queue).waiting - waiting >= 50

        with at_most(20):  # all of it would take thirty
            first = letters.replay().run(plan, rate=50, stop=stop)
        assert 50 <= letters.admin.counts(queue).waiting - waiting < BULK
        again = letters.replay().known("slowly")
        assert again is not None
        assert first + letters.replay().run(again) == BULK
        assert letters.admin.counts(queue).waiting - waiting == BULK


class TestRates:
    @pytest.mark.parametrize(("queue", "fate", "event"), [("orders", "acked", "sent"), ("mail", "dead", "replayed")])
    @pytest.mark.timed
    def test_the_rate_is_kept_within_a_twentieth(self, letters: Letters, queue: str, fate: str, event: str) -> None:
        rate = 300.0
        start = letters.last()[queue]
        plan = letters.frozen(f"kind = 'bulk' and queue = '{queue}'", fates=(fate,), name="slowly")
        assert letters.replay().run(plan, rate=rate) == BULK
        lines = [line for line in letters.lines(queue, event) if line.position.sequence > start]
        assert len(lines) == BULK
        begin, end = lines[0].at, lines[-1].at
        # Lines of one call share their moment: the last call's are not part of the time that passed.
        passed = [line for line in lines if line.at < end]
        took = (end - begin).total_seconds()
        assert len(passed) / took <= rate * 1.05
        took_at_most(took, len(passed) / (rate * 0.95))
        # And no second of it is a burst, as long as the machine lets the replay send evenly.
        for second in range(int((end - begin).total_seconds())):
            since = begin + timedelta(seconds=second)
            within = [line for line in lines if since <= line.at < since + timedelta(seconds=1)]
            took_at_most(len(within) / rate, 1.1 + 0.1, "what one second sent")


@contextmanager
def consumers(letters: Letters, *names: str) -> Iterator[Counter[str]]:
    """Everything that arrives is acked at once; gives how often each original came."""
    seen: Counter[str] = Counter()
    over = threading.Event()

    def work() -> None:
        with restante.connect(letters.server.url) as post:
            while True:
                taken = post.receive_many(names, 200, 0.1)
                for message in taken:
                    seen[message.headers.get("replay_of", message.id)] += 1
                if taken:
                    post.queue(taken[0].queue).ack_many(taken)
                elif over.is_set():
                    return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield seen
    over.set()
    thread.join(PATIENCE)


class TestKilled:
    def test_a_replay_killed_twice_puts_each_message_back_once_whoever_acks_meanwhile(self, letters: Letters) -> None:
        """In place into one queue, as copies into another that forgets acked ids at once."""
        plan = letters.frozen("kind = 'bulk'", fates=("acked", "dead"), name="all")
        assert told(plan) == {("orders", "copy", "orders"): BULK, ("mail", "in place", "mail"): BULK}
        acked = {
            row["message_id"]
            for row in letters.replay().lake.table("messages").to_table().to_pylist()
            if row["kind"] == "bulk"
        }
        copied = letters.admin.counts("orders").totals["sent"]

        def moved() -> tuple[int, int]:
            return letters.admin.counts("mail").totals["replayed"], letters.admin.counts("orders").totals[
                "sent"
            ] - copied

        def starting(number: int) -> SparkProcess:
            told = {"url": letters.server.url, "lake": str(letters.lake), "name": "all", "rate": 500.0}
            return SparkProcess("replay", gate=str(letters.lake.parent / f"gate-{number}"), **told)

        with consumers(letters, "orders", "mail") as seen, starting(0) as first, starting(1) as second:
            for place, one in enumerate((first, second)):
                one.go()
                wait_until(lambda place=place: moved()[place] > 100, 150, "the first messages")  # type: ignore[misc]
                time.sleep(0.5)
                one.kill9()
                assert 100 < moved()[place] < BULK
            again = letters.replay().known("all")
            assert again is not None
            letters.replay().run(again)
            wait_until(lambda: len(seen) == 2 * BULK, 30, "the last messages")
        assert moved() == (BULK, BULK)
        assert set(seen) == acked
        assert set(seen.values()) == {1}
        assert letters.admin.counts("orders").waiting == letters.admin.counts("mail").waiting == 0
