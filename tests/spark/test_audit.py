"""The conservation audit on a real Spark and a real Redis: clean where nothing is lost, exact where something is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from pyspark.sql import SparkSession

import restante
from restante import Admin, Client, NotFound, Queue, State, Sweeper
from restante.spark.audit import Audit, Findings
from restante.spark.lake import Lake
from restante.spark.lake import State as LakeState
from restante.spark.pipeline import Pipeline, PipelineOptions, Summary
from restante.spark.schemas import FATES, JOURNAL
from tests.faults.workers import Worker
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer, call
from tests.spark.lake_proof import audit_only, bronze_only, copied, table_rows
from tests.spark.traffic import Traffic, going_on


@dataclass
class Shop:
    """A server after random traffic, and its lake."""

    server: RedisServer
    post: Client
    lake: Path
    client: redis.Redis

    def audit(self, spark: SparkSession, **options: Any) -> Findings:
        return Audit(spark, str(self.lake), self.post, **options).run()

    def key(self, queue: str, word: str) -> str:
        return f"restante:{{{queue}}}:{word}"

    def one(self, state: State, queue: str = "orders") -> str:
        """The id of some message, made where random traffic has left none."""
        admin, place = Admin(self.post), self.post.queue(queue)
        if not admin.messages(queue, state, limit=1).messages:
            place.send_many(["left"] * 3)
            place.bury_many(place.receive_many(1, lease=60), error=KeyError("price"))
        return admin.messages(queue, state, limit=1).messages[0].id


def every_fate(post: Client, queue: Queue) -> None:
    """One message of each fate: chance alone may leave one out."""
    ids = queue.send_many(["acked", "dead", "expired", "deleted", "waiting", "cancelled"], max_attempts=1)
    acked, dead, _ = queue.receive(lease=60), queue.receive(lease=60), queue.receive(lease=0.001)
    assert acked is not None
    assert dead is not None
    acked.ack()
    dead.bury(error=KeyError("price"))
    Admin(post).delete(queue.name, [ids[3]])
    Admin(post).cancel(queue.name, [ids[5]])
    time.sleep(0.01)
    Sweeper(post, (queue.name,)).run_once()
    assert Admin(post).counts(queue.name).dead == 2


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Chaos: every verb at random, a consumer killed three times, a queue recreated, one with a sparse journal."""
    folder = tmp_path_factory.mktemp("shop") / "lake"
    with RedisServer() as server, restante.connect(server.url) as post:
        post.queue("seasonal").send_many([1, 2, 3])
        post.queue("quiet", journal="terminal").send_many([1, 2, 3])
        post.queue("quiet").ack_many(post.queue("quiet").receive_many(1))
        traffic = Traffic(post, 21)
        traffic.play(100)
        options = PipelineOptions(url=server.url, lake=str(folder), fail_on_data_loss=False)
        with bronze_only():
            Pipeline(spark, options).run_once()
        Admin(post).drop("seasonal")
        time.sleep(0.01)
        every_fate(post, post.queue("seasonal"))
        for _ in range(3):
            with Worker(server.url, "orders", seconds=0.01) as worker, going_on(traffic, pause=0.005):
                worker.wait_line("start")
                time.sleep(0.5)
                worker.kill9()
        traffic.play(30)
        for queue in traffic.queues:
            queue.send_many(["left"] * 3)
            queue.bury_many(queue.receive_many(1, lease=60), error=KeyError("price"))
        with audit_only():
            Pipeline(spark, options).run_once()
        traffic.play(30)  # not in the lake: the audit reads it from the journal
        yield Shop(server, post, folder, server.client())


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows another time of day."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc(at: datetime) -> datetime:
    """An instant of the audit, in UTC unless it names a zone."""
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


class TestCleanly:
    def test_after_chaos_everything_adds_up_and_nothing_is_named(self, shop: Shop, spark: SparkSession) -> None:
        findings = shop.audit(spark)
        assert (findings.adds_up, findings.troubles, findings.count) == (True, [], 0)
        assert (findings.gaps, findings.moving) == ({}, 0)
        assert {row["difference"] for row in findings.windows} == {0}
        for name in ("orders", "mail", "thumbnails"):
            rows = [row for row in findings.windows if row["queue"] == name]
            counts = Admin(shop.post).counts(name)
            assert sum(row["sent"] for row in rows) > 0
            assert sum(row["waiting"] for row in rows) == counts.waiting
            assert sum(row["dead"] + row["expired"] for row in rows) == counts.dead
        totals = {fate: sum(row[fate] for row in findings.windows) for fate in FATES}
        assert all(totals.values()), totals

    def test_messages_stopped_in_every_state_have_their_own_fate(
        self, spark: SparkSession, post: Client, lake: Path
    ) -> None:
        queue, admin = post.queue("orders", lease=60, keep_done=5, max_attempts=3), Admin(post, operator="tester")
        later = queue.send("scheduled", delay=600)
        queue.send_many(["revoked", "leased", "retrying", "dead", "done", "held"])
        revoked, leased, retrying, dead, done, _ = queue.receive_many(6)
        ready = queue.send("ready")
        assert admin.revoke("orders", [revoked.id, ready]) == 1
        retrying.nack(delay=600, error=KeyError("x"))
        dead.bury(error=KeyError("y"))
        done.ack()
        (again,) = queue.receive_many(1)
        assert (again.id, again.attempts) == (revoked.id, 2)
        again.ack()
        assert admin.cancel("orders", [later, ready, leased.id, retrying.id, dead.id, done.id]) == 4
        with audit_only():
            Pipeline(spark, PipelineOptions(url=post.url, lake=str(lake))).run_once()
        findings = Audit(spark, str(lake), post).run()
        assert findings.adds_up, findings.troubles
        (window,) = findings.windows
        assert {name: window[name] for name in ("sent", *FATES, "difference")} == {
            **dict.fromkeys(("expired", "deleted", "difference"), 0),
            "sent": 8,
            "acked": 2,
            "dead": 1,
            "cancelled": 4,
            "waiting": 1,
        }
        rows = {row["message_id"]: row for row in table_rows(Lake(str(lake)), "messages")}
        stopped = {id: (row["state"], row["last_event"]) for id, row in rows.items() if row["fate"] == "cancelled"}
        assert stopped == dict.fromkeys((later, ready, leased.id, retrying.id), ("gone", "cancelled"))
        row = rows[revoked.id]
        assert (row["fate"], row["deliveries"], row["revocations"], row["failures"]) == ("acked", 2, 1, 0)
        ended = {
            (row["message_id"], row["attempt"]): row["ended_by"] for row in table_rows(Lake(str(lake)), "attempts")
        }
        assert ended == {
            (revoked.id, 1): "revoked",
            (revoked.id, 2): "acked",
            (leased.id, 1): "cancelled",
            (retrying.id, 1): "nacked",
            (dead.id, 1): "buried",
            (done.id, 1): "acked",
        }

    def test_a_queue_whose_journal_tells_of_ends_only_is_passed_over_with_the_reason(
        self, shop: Shop, spark: SparkSession
    ) -> None:
        findings = shop.audit(spark, queues="quiet")
        assert list(findings.skipped) == ["quiet"]
        assert "level is terminal" in findings.skipped["quiet"]
        assert findings.adds_up

    def test_it_adds_up_while_traffic_goes_on(self, shop: Shop, spark: SparkSession) -> None:
        with going_on(Traffic(shop.post, 22), pause=0.002):
            findings = shop.audit(spark)
        assert findings.adds_up, findings.troubles
        assert findings.moving > 0
        assert {row["difference"] for row in findings.windows} == {0}

    def test_without_the_server_the_lake_alone_is_looked_at_and_hours_are_utc_everywhere(
        self, shop: Shop, spark: SparkSession, elsewhere: None
    ) -> None:
        findings = Audit(spark, str(shop.lake), None).run()
        hours = Lake(str(shop.lake)).table("audit").to_table(["hour"]).column("hour").to_pylist()
        assert {utc(row["hour"]) for row in findings.windows} == set(hours)
        assert findings.adds_up
        assert {row["queue"] for row in findings.windows} == {"orders", "mail", "thumbnails", "seasonal", "quiet"}
        assert {row["difference"] for row in findings.windows} == {0}

    def test_a_lake_without_tables_is_told_with_the_remedy(self, lake: Path, spark: SparkSession) -> None:
        with pytest.raises(NotFound, match="restante pipeline run"):
            Audit(spark, str(lake), None).run()


class TestNaming:
    @contextmanager
    def without(self, shop: Shop, place: str, id: str, queue: str = "orders") -> Iterator[None]:
        """A message taken out of one of Redis' keys by hand, and put back in the end."""
        key = shop.key(queue, place)
        if place in ("messages", "deliveries"):
            value = call(shop.client, "HGET", key, id)
            call(shop.client, "HDEL", key, id)
            yield
            call(shop.client, "HSET", key, id, value)
        else:
            score = call(shop.client, "ZSCORE", key, id)
            call(shop.client, "ZREM", key, id)
            yield
            call(shop.client, "ZADD", key, score, id)

    def test_messages_removed_by_hand_are_named_each_with_its_last_known_state(
        self, shop: Shop, spark: SparkSession
    ) -> None:
        dead, ready, other = shop.one(State.DEAD), shop.one(State.READY), shop.one(State.DEAD, "mail")
        with (
            self.without(shop, "dead", dead),
            self.without(shop, "messages", ready),
            self.without(shop, "dead", other, "mail"),
            self.without(shop, "messages", other, "mail"),
        ):
            findings = shop.audit(spark)
        assert not findings.adds_up
        assert findings.count == 3
        told = {
            (one.queue, one.message_id): (one.what, one.journal_state, one.redis_state) for one in findings.troubles
        }
        assert told == {
            ("orders", dead): ("missing", "dead", ""),
            ("orders", ready): ("missing", "ready", ""),
            ("mail", other): ("missing", "dead", ""),
        }
        for one in findings.troubles:
            lines = Admin(shop.post).journal(one.queue, limit=100_000, newest_first=True)
            last = next(line for line in lines if line.message_id == one.message_id)
            assert one.last_event == last.event.value
            assert utc(datetime.fromisoformat(one.last_at)) == last.at
        missing = {
            name: sum(row["difference"] for row in findings.windows if row["queue"] == name)
            for name in ("orders", "mail", "thumbnails")
        }
        assert missing == {"orders": 2, "mail": 1, "thumbnails": 0}

    def test_a_message_put_in_by_hand_and_one_put_elsewhere_are_named(self, shop: Shop, spark: SparkSession) -> None:
        moved = shop.one(State.DEAD)
        stored = call(shop.client, "HGET", shop.key("orders", "messages"), moved)
        call(shop.client, "HSET", shop.key("orders", "messages"), "by-hand", stored)
        call(shop.client, "ZADD", shop.key("orders", "retrying"), 2**41, "by-hand")
        with self.without(shop, "dead", moved):
            call(shop.client, "ZADD", shop.key("orders", "retrying"), 2**41, moved)
            findings = shop.audit(spark, queues="orders")
            call(shop.client, "ZREM", shop.key("orders", "retrying"), moved, "by-hand")
        call(shop.client, "HDEL", shop.key("orders", "messages"), "by-hand")
        told = {one.message_id: (one.what, one.journal_state, one.redis_state) for one in findings.troubles}
        assert told == {"by-hand": ("unknown", "", "retrying"), moved: ("moved", "dead", "retrying")}
        assert not findings.adds_up

    def test_lines_the_lake_has_not_or_has_twice_are_counted(
        self, shop: Shop, spark: SparkSession, tmp_path: Path
    ) -> None:
        folder = copied(shop.lake, tmp_path / "lake")
        for file in (folder / "bronze").rglob("*.parquet"):
            rows = pq.read_table(file).to_pylist()
            rows = [row for row in rows if (row["queue"], row["position"]) != ("orders", 40)]
            rows += [row for row in rows if (row["queue"], row["position"]) == ("mail", 30)]
            pq.write_table(pa.Table.from_pylist(rows, JOURNAL.arrow()), file)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        findings = Audit(spark, str(folder), None).run()
        assert findings.gaps == {"orders": 1, "mail": -1}
        assert not findings.adds_up


class TestRetention:
    def test_dates_that_were_removed_are_no_gaps(self, spark: SparkSession, lake: Path) -> None:
        """The end of an old message lies under its date of sending, between lines of younger ones."""
        today = datetime.now(UTC).replace(hour=0, minute=1, second=0, microsecond=0)
        old = today - timedelta(days=5)
        lines = [
            ("sent", "ready", old, "a", old),
            ("sent", "ready", today, "b", today),
            ("received", "leased", today, "a", old),
            ("acked", "gone", today, "a", old),
            ("received", "leased", today, "b", today),
            ("acked", "gone", today, "b", today),
        ]
        rows = [
            dict.fromkeys(JOURNAL.names)
            | {
                "queue": "orders",
                "incarnation": 1,
                "position": number,
                "event": event,
                "state": state,
                "at": at,
                "message_id": id,
                "sent_at": sent_at,
                "kind": "",
                "priority": 0,
                "size": 1,
                "attempts": 1,
                "consumer": "",
                "error_class": "",
                "detail": "",
            }
            for number, (event, state, at, id, sent_at) in enumerate(lines, 1)
        ]
        batch = lake / "bronze" / "batch=0"
        batch.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, JOURNAL.arrow()), batch / "part-0.parquet")
        (batch / "_SUCCESS").touch()
        commits = lake / "_checkpoints" / "bronze" / "commits"
        commits.mkdir(parents=True)
        (commits / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        Lake(str(lake)).save(LakeState(folded=0))
        kept = Pipeline(spark, PipelineOptions(url="", lake=str(lake), compact_from=1, keep_bronze_days=2))
        kept.compact(Summary())
        kept.retain(Summary())
        assert Lake(str(lake)).journal().count_rows() == 3
        findings = Audit(spark, str(lake), None).run()
        assert findings.gaps == {}
        assert findings.adds_up

    def test_messages_older_than_what_is_kept_are_not_called_unknown(self, spark: SparkSession, lake: Path) -> None:
        long_ago = int((datetime.now(UTC) - timedelta(days=5)).timestamp() * 1000)
        with FrozenClock(long_ago) as clock, RedisServer(clock=clock) as server, restante.connect(server.url) as post:
            queue = post.queue("orders")
            queue.send_many(["old"] * 3)
            clock.unfreeze()
            queue.send_many(["new"] * 2, priority=9)
            queue.ack_many(queue.receive_many(1))
            options = PipelineOptions(url=server.url, lake=str(lake), keep_bronze_days=2, keep_silver_days=2)
            with audit_only():
                Pipeline(spark, options).run_once()
            findings = Audit(spark, str(lake), post).run()
            assert findings.troubles == []
            assert findings.adds_up
