"""Spark as a consumer: whatever dies when, no message is lost and none comes out of an overwriting sink twice."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from restante import Client
from restante.core import lease_journal
from restante.core.admin import Admin
from restante.core.errors import InUse, InvalidInput, JournalLost, Unavailable
from restante.core.message import moment
from restante.core.retry import fixed
from restante.spark.leases import DEFAULT_ROWS
from restante.spark.schemas import LEASES
from restante.spark.verdicts import Bury, RetryLater, try_map
from restante.spark.writer import Written
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.servers import call
from tests.spark.driving import Row, fresh_name, rows_of, stream_reader
from tests.spark.leased_work import LEASE, OWNED, Desk, Work, ids


class TestBatches:
    def test_rows_say_what_a_consumer_needs(self, desk: Desk) -> None:
        first = desk.queue.send({"a": 1}, kind="mail", priority=9, headers={"h": "ü"}, retry=fixed(5.0))
        second = desk.queue.send(b"\x00\xff", content_type="image/png")
        rows = desk.work().batch()
        now = moment(desk.clock.now_ms)
        tokens = [row.pop("lease_token") for row in rows or []]
        assert len({*tokens}) == 2
        common = {"queue": desk.queue.name, "attempts": 1, "sent_at": now, "received_at": now, "verdict": "ack"}
        assert rows == [
            {
                **common,
                "message_id": first,
                "kind": "mail",
                "priority": 9,
                "retry": fixed(5.0).text(),
                "payload": b'{"a":1}',
                "headers": '{"h":"ü"}',
                "content_type": "application/json",
            },
            {
                **common,
                "message_id": second,
                "kind": "",
                "priority": 0,
                "retry": "",
                "payload": b"\x00\xff",
                "headers": "",
                "content_type": "image/png",
            },
        ]
        assert desk.states() == {}

    def test_columns_can_be_chosen(self, desk: Desk) -> None:
        (sent,) = desk.send(1)
        schema = StructType([LEASES.spark()[name] for name in ("payload", "message_id")])
        told = {"kind": "leases", "queue": desk.queue.name, "consumer": fresh_name("narrow")}
        reader: Any = stream_reader(desk.post.url, schema, **told)
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(5)))
        assert rows_of(reader.read(part)) == [{"payload": b'{"n":0}', "message_id": sent}]
        reader.stop()

    def test_limits_are_kept(self, desk: Desk) -> None:
        desk.send(30)
        work = desk.work(maxRowsPerBatch=8)
        assert work.query.reader.getDefaultReadLimit() == ReadMaxRows(8)
        assert len(work.batch() or []) == 8
        assert work.query.plan(ReadMaxRows(3))
        assert len(work.write()) == 3
        work.query.commit()
        assert not work.query.plan(ReadMinRows(20))
        assert work.query.plan(ReadAllAvailable())
        assert len(work.write()) == 19
        assert desk.work().query.reader.getDefaultReadLimit() == ReadMaxRows(DEFAULT_ROWS)

    def test_a_large_batch_is_read_in_parts_each_row_once(self, desk: Desk) -> None:
        for _ in range(3):
            desk.send(900)
        work = desk.work(numPartitions=4)
        assert work.query.plan()
        parts = work.query.parts()
        assert len(parts) == 4
        found = [rows_of(work.query.reader.read(part)) for part in parts]
        assert min(map(len, found)) > 600
        assert len({row["message_id"] for part in found for row in part}) == sum(map(len, found)) == 2700

    def test_a_batch_of_many_claims_is_read_and_forgotten_page_by_page(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, count in (("CLAIM", 10), ("READ", 3), ("CLEARED", 2)):
            monkeypatch.setattr(lease_journal, name, count)
        sent = desk.send(95)
        work = desk.work(numPartitions=3)
        assert work.query.plan()
        before = work.write()
        again = work.restart()
        assert again.query.plan()
        assert again.write() == before
        assert ids(before) == sent
        again.settle(before)
        again.query.commit()
        assert again.batch() is None
        assert call(desk.server.client(), "XLEN", f"restante:{{{desk.queue.name}}}:leases:{work.consumer}") == 0

    def test_only_a_plan_takes_messages_and_a_repeated_action_gives_the_same_rows(self, desk: Desk) -> None:
        desk.send(10)
        work = desk.work(maxRowsPerBatch=4)
        assert work.query.plan()
        first = work.query.rows()
        leased = desk.states()
        for _ in range(3):
            assert work.query.rows() == first
        assert desk.states() == leased == {"leased": 4, "ready": 6}

    def test_a_failed_tasks_retry_reads_the_same_rows_also_when_others_are_settled(self, desk: Desk) -> None:
        desk.send(1500)
        work = desk.work(numPartitions=3)
        assert work.query.plan()
        first, *others = work.query.parts()
        before = rows_of(work.query.reader.read(first))
        for part in others:
            work.settle([{**row, "verdict": "ack"} for row in rows_of(work.query.reader.read(part))])
        work.settle([{**row, "verdict": "ack"} for row in before[:100]])
        again = rows_of(work.query.reader.read(first))
        assert again == before
        assert work.settle([{**row, "verdict": "ack"} for row in again]) == Written(done=len(before) - 100, before=100)

    def test_an_empty_or_paused_queue_makes_no_batch(self, desk: Desk) -> None:
        work = desk.work()
        assert work.batch() is None
        desk.send(3)
        Admin(desk.post).pause(desk.queue.name)
        assert work.batch() is None
        Admin(desk.post).resume(desk.queue.name)
        assert len(work.batch() or []) == 3

    def test_what_is_committed_is_forgotten(self, desk: Desk) -> None:
        desk.send(5)
        work = desk.work()
        work.batch()
        work.batch()
        keys = [f"restante:{{{desk.queue.name}}}:{word}:{work.consumer}" for word in ("leases", "verdicts")]
        client = desk.server.client()
        assert [call(client, "XLEN", keys[0]), call(client, "HLEN", keys[1])] == [0, 0]

    def test_lag_is_told(self, desk: Desk) -> None:
        desk.send(10)
        work = desk.work(maxRowsPerBatch=4)
        work.batch()
        assert work.query.end == {desk.queue.name: 4}
        assert work.query.reader.reportLatestOffset() == {desk.queue.name: 10}


class TestOwnership:
    def test_a_second_query_of_the_same_name_is_refused_while_the_first_lives(self, desk: Desk) -> None:
        desk.send(10)
        work = desk.work(maxRowsPerBatch=2)
        work.batch()
        other = desk.work(work.consumer, maxRowsPerBatch=2)
        with pytest.raises(InUse, match="alive elsewhere"):
            other.batch()
        assert len(work.batch() or []) == 2
        assert desk.states() == {"ready": 6}

    def test_a_query_that_was_stopped_leaves_its_name_to_the_next_at_once(self, desk: Desk) -> None:
        desk.send(10)
        work = desk.work(maxRowsPerBatch=2)
        for _ in range(3):
            assert len(work.batch() or []) == 2
            work = work.restart()

    def test_a_predecessor_that_is_gone_is_waited_for(self, desk: Desk) -> None:
        sent = desk.send(4)
        work = desk.work()
        assert work.query.plan()
        again = work.crash()
        passing = threading.Timer(OWNED / 4, desk.clock.advance, [OWNED])
        passing.start()
        assert ids(again.batch()) == sent
        passing.join()

    def test_other_names_share_the_queue(self, desk: Desk) -> None:
        sent = desk.send(10)
        one, other = desk.work(maxRowsPerBatch=3), desk.work(maxRowsPerBatch=3)
        while (one.batch(), other.batch()) != (None, None):
            pass
        assert one.acked() + other.acked() == Counter(sent)
        assert len(one.acked()) > 3 < len(other.acked())

    def test_verdicts_of_one_that_was_thought_dead_have_no_effect(self, desk: Desk) -> None:
        sent = desk.send(4)
        frozen = desk.work()
        assert frozen.query.plan()
        rows = frozen.write()
        next_ = frozen.crash()
        desk.end_leases()
        assert next_.batch() == []
        assert sorted(ids(next_.batch())) == sorted(sent)
        assert frozen.settle(rows) == Written(lost=4)
        with pytest.raises(InUse, match="alive elsewhere"):
            frozen.query.reader.latestOffset(frozen.query.start, ReadMaxRows(5))
        assert desk.events()["acked"] == 4

    def test_a_lease_journal_the_server_lost_is_told(self, desk: Desk) -> None:
        desk.send(4)
        work = desk.work(maxRowsPerBatch=2)
        work.batch()
        Admin(desk.post).drop(desk.queue.name)
        sent = desk.send(2)
        with pytest.raises(JournalLost, match="the server lost rows"):
            work.batch()
        easy = Work(desk, work.consumer, {"failOnDataLoss": False}, query=None)
        easy.query.checkpoint = work.query.checkpoint
        work.stop()
        assert easy.batch() == []
        assert ids(easy.batch()) == sent


class TestKeeping:
    def test_a_batch_may_take_longer_than_its_leases(self, desk: Desk) -> None:
        sent = desk.send(3)
        work = desk.work(leaseSeconds=1)
        assert work.query.plan()
        rows = work.write()

        def ends() -> list[datetime | None]:
            return [Admin(desk.post).show(desk.queue.name, id).lease_expires_at for id in sent]

        for _ in range(4):
            before = ends()
            desk.clock.advance(0.9)
            wait_until(lambda before=before: min(map(str, ends())) > max(map(str, before)), "leases are not renewed")  # type: ignore[misc]
        assert work.settle(rows) == Written(done=3)
        assert desk.events()["expired"] == 0

    def test_a_renewal_that_fails_is_not_the_last(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        own = lease_journal.LeaseJournal.own
        failed: list[float] = []

        def failing(journal: lease_journal.LeaseJournal, lasts: float) -> Any:
            if threading.current_thread().name == "restante-leases" and not failed:
                failed.append(lasts)
                raise Unavailable("away")
            return own(journal, lasts)

        monkeypatch.setattr(lease_journal.LeaseJournal, "own", failing)
        (sent,) = desk.send(1)
        work = desk.work(leaseSeconds=1)
        assert work.query.plan()
        wait_until(lambda: failed)
        before = Admin(desk.post).show(desk.queue.name, sent).lease_expires_at
        desk.clock.advance(0.5)
        wait_until(lambda: Admin(desk.post).show(desk.queue.name, sent).lease_expires_at != before)
        work.stop()

    def test_leases_are_no_longer_renewed_once_the_query_stopped(self, desk: Desk) -> None:
        (sent,) = desk.send(1)
        work = desk.work(leaseSeconds=1)
        assert work.query.plan()
        work.stop()
        desk.clock.advance(1.1)
        message = desk.queue.receive()
        assert message is not None
        assert (message.id, message.attempts) == (sent, 2)


class TestAvailableNow:
    def test_it_ends_with_what_was_there_when_it_began(self, desk: Desk) -> None:
        sent = desk.send(5)
        desk.send(3, delay=LEASE)
        work = desk.work(maxRowsPerBatch=2)
        work.query.available_now()
        work.batch()
        desk.send(10)
        assert work.drain() == 2
        assert sorted(work.acked()) == sorted(sent)

    @pytest.mark.parametrize("verdict", ["nack", "release"])
    @pytest.mark.parametrize("rows", [1, 3, 100])
    def test_it_ends_although_messages_come_again(self, desk: Desk, verdict: str, rows: int) -> None:
        sent = desk.send(6)
        work = desk.work(maxRowsPerBatch=rows)
        work.judge = lambda row: verdict if row["message_id"] == sent[0] else "ack"
        work.query.available_now()
        work.drain()
        if verdict == "nack" or rows > 6:  # a released one stays first in line: the last batch never gets past it
            assert sorted(work.acked()) == sorted(sent[1:])
        again = work.restart()
        again.judge = lambda row: "ack"
        again.query.available_now()
        again.drain()
        assert desk.states() in ({}, {"dead": 1})
        dead = [message.id for message in Admin(desk.post).messages(desk.queue.name, "dead").messages]
        assert sorted([*again.acked().elements(), *dead]) == sorted(sent)

    def test_what_a_crash_left_is_finished_too(self, desk: Desk) -> None:
        sent = desk.send(5)
        work = desk.work(maxRowsPerBatch=3)
        work.query.available_now()
        assert work.query.plan()
        again = work.restart()
        again.query.available_now()
        again.drain()
        assert again.acked() == Counter(sent)


class TestWithSpark:
    def test_failures_are_verdicts_row_by_row(self, spark: SparkSession, post: Client, tmp_path: Path) -> None:
        queue = post.queue(fresh_name("scored"), max_attempts=3, retry=fixed(0, 0, 0))
        sent = queue.send_many([{"n": number} for number in range(10)])
        of = {str(id): number for number, id in enumerate(sent)}
        consumer = fresh_name("scoring")
        told = {"url": post.url, "queue": queue.name, "consumer": consumer}
        sink: dict[tuple[int, int], list[Row]] = {}

        def score(row: dict[str, Any]) -> dict[str, Any] | None:
            n = row["payload"]["n"]
            if n % 5 == 0:
                raise Bury("never")
            if n % 5 == 1 and row["attempts"] == 1:
                raise RetryLater(0, "soon")
            if n % 5 == 2:
                raise ValueError(f"bad {n}")
            return {"score": n * 2} if n != 9 else None

        def run(number: int) -> None:
            def each(batch: DataFrame, epoch: int) -> None:
                made = try_map(batch, score, "score int")
                sink[number, epoch] = [row.asDict() for row in made.collect()]
                made.write.format("restante").mode("append").options(op="settle", **told).save()

            leased = spark.readStream.format("restante").options(kind="leases", **told).load()
            writing = leased.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path))
            assert writing.trigger(availableNow=True).start().awaitTermination(int(PATIENCE))

        for number in range(3):
            run(number)
        rows = [row for batch in sink.values() for row in batch]
        verdicts = Counter(
            (of[row["message_id"]] % 5, row["attempts"], row["verdict"], row["error_class"]) for row in rows
        )
        assert verdicts == {
            (0, 1, "bury", "Bury"): 2,
            (1, 1, "nack", "RetryLater"): 2,
            (1, 2, "ack", ""): 2,
            **{(2, attempt, "nack", "ValueError"): 2 for attempt in (1, 2, 3)},
            (3, 1, "ack", ""): 2,
            (4, 1, "ack", ""): 2,
        }
        scores = {of[row["message_id"]]: row["score"] for row in rows if row["verdict"] == "ack"}
        assert scores == {1: 2, 6: 12, 3: 6, 8: 16, 4: 8, 9: None}
        dead = {of[message.id]: message for message in Admin(post).messages(queue.name, "dead").messages}
        assert sorted(dead) == [0, 2, 5, 7]
        assert "bad 7" in dead[7].history[-1].error
        assert dead[5].history[-1].error == "never"
        assert Admin(post).counts(queue.name).waiting == 0

    def test_rows_of_something_else_are_not_judged(self, spark: SparkSession) -> None:
        with pytest.raises(InvalidInput, match="message_id, lease_token are missing"):
            try_map(spark.range(1), lambda row: None)
