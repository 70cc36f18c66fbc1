"""A consumer that dies, anywhere: no message is lost, and none comes out of an overwriting sink twice."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from restante import Client
from restante.core.admin import Admin
from restante.core.errors import InUse
from restante.core.lease_journal import LeaseJournal
from restante.core.retry import fixed
from restante.spark.writer import Written
from tests.faults.rows import missing, verdict
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import PythonProcess
from tests.spark import scoring_program
from tests.spark.driving import fresh_name
from tests.spark.leased_work import LEASE, Desk, Work, ids


class TestCrashes:
    def check(self, work: Work, sent: list[str], *, attempts: int) -> None:
        """All that was sent lies in the sink once, is acked once, and took so many deliveries at most."""
        work.drain()
        assert work.acked() == Counter(sent)
        assert work.desk.states() == {}
        assert work.desk.events()["acked"] == len(sent)
        assert max(row["attempts"] for rows in work.sink.values() for row in rows) == attempts

    def test_inside_the_lease_the_same_batch_comes_again(self, desk: Desk) -> None:
        sent = desk.send(10)
        work = desk.work(maxRowsPerBatch=4)
        work.batch()
        assert work.query.plan()
        before = work.write()
        again = work.restart()
        assert again.query.plan()
        assert again.write() == before
        self.check(again, sent, attempts=1)

    def test_killed_inside_the_lease_its_messages_come_again_when_it_ends(self, desk: Desk) -> None:
        sent = desk.send(10)
        work = desk.work(maxRowsPerBatch=4)
        work.batch()
        assert work.query.plan()
        work.write()
        again = work.crash()
        with pytest.raises(InUse, match="alive elsewhere"):
            again.batch()
        desk.end_leases()
        self.check(again, sent, attempts=2)

    def test_killed_and_started_again_before_its_leases_end_it_repeats_the_batch(self, desk: Desk) -> None:
        sent = desk.send(10)
        work = desk.work(maxRowsPerBatch=4)
        work.batch()
        assert work.query.plan()
        before = work.write()
        again = work.crash()
        desk.clock.advance(LEASE * 0.8)
        assert again.query.plan()
        assert again.write() == before
        self.check(again, sent, attempts=1)

    def test_after_the_claim_before_the_plan_is_kept_the_claimed_come_first(self, desk: Desk) -> None:
        sent = desk.send(10)
        work = desk.work(maxRowsPerBatch=4)
        work.query.reader.latestOffset(work.query.start, ReadMaxRows(4))
        assert desk.states() == {"leased": 4, "ready": 6}
        again = work.restart()
        assert ids(again.batch()) == sent[:4]
        self.check(again, sent, attempts=1)

    def test_between_lease_and_copy_the_leases_end_by_themselves(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = desk.send(10)
        work = desk.work(maxRowsPerBatch=4)

        def dies(self: LeaseJournal, messages: Any, lasts: float) -> int:
            if messages:
                raise KeyboardInterrupt
            return held(self, messages, lasts)

        held = LeaseJournal._hold
        with monkeypatch.context() as patch:
            patch.setattr(LeaseJournal, "_hold", dies)
            with pytest.raises(KeyboardInterrupt):
                work.query.plan()
        again = work.restart()
        assert ids(again.batch()) == sent[4:8]
        desk.end_leases()
        self.check(again.restart(), sent, attempts=2)

    @pytest.mark.parametrize("away", [False, True], ids=["at-once", "beyond-the-lease"])
    @pytest.mark.parametrize("settled", [5, 2])
    def test_after_the_verdicts_the_batch_comes_again_and_changes_nothing(
        self, desk: Desk, settled: int, away: bool
    ) -> None:
        sent = desk.send(5)
        work = desk.work()
        assert work.query.plan()
        before = work.write()
        work.settle(before[:settled])
        if away:
            again = work.crash()
            desk.end_leases()
        else:
            again = work.restart()
        assert again.query.plan()
        rows = again.write()
        assert rows == (before[:settled] if away else before)
        assert again.settle(rows) == Written(done=len(rows) - settled, before=settled)
        again.query.commit()
        self.check(again, sent, attempts=2 if away and settled < 5 else 1)

    def test_away_beyond_the_lease_what_others_took_is_dropped(self, desk: Desk) -> None:
        sent = desk.send(6)
        work = desk.work()
        assert work.query.plan()
        work.write()
        again = work.crash()
        desk.end_leases()
        taken = desk.queue.receive_many(2)
        assert again.query.plan()
        assert again.write() == []
        again.query.commit()
        for message in taken:
            message.ack()
        again.drain()
        assert again.acked() + Counter(message.id for message in taken) == Counter(sent)
        assert desk.states() == {}

    def test_a_lost_checkpoint_does_not_lose_what_was_claimed(self, desk: Desk) -> None:
        sent = desk.send(6)
        work = desk.work(maxRowsPerBatch=4)
        assert work.query.plan()
        work.stop()
        anew = desk.work(work.consumer, maxRowsPerBatch=4)
        assert ids(anew.batch()) == sent[:4]
        self.check(anew, sent, attempts=1)

    @settings(
        max_examples=int(os.environ.get("RESTANTE_EXAMPLES", "15")),
        derandomize="RESTANTE_EXAMPLES" not in os.environ,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(seed=st.integers(0, 2**32))
    def test_crashes_anywhere_lose_nothing_and_double_nothing(self, desk: Desk, seed: int) -> None:
        chance = random.Random(seed)
        desk.fresh_queue(max_attempts=1000, retry=fixed(*[0] * 1000))
        sent = desk.send(40)
        failing = {id for id in sent if chance.random() < 0.2}
        work = desk.work(maxRowsPerBatch=chance.choice((1, 5, 13)))
        work.judge = lambda row: "nack" if row["message_id"] in failing and row["attempts"] == 1 else "ack"
        elsewhere: Counter[str] = Counter()
        for _ in range(25):
            self.until_a_crash(work, chance)
            if chance.random() < 0.5:
                work = work.restart()
            else:
                work = work.crash()
                desk.end_leases()
                for message in desk.queue.receive_many(chance.randrange(1, 4)) if chance.random() < 0.3 else []:
                    message.ack()
                    elsewhere[message.id] += 1
        desk.end_leases()
        work.crash().drain()
        assert work.acked() + elsewhere == Counter(sent)
        assert desk.states() == {}

    def until_a_crash(self, work: Work, chance: random.Random) -> None:
        """Whole batches, then part of one."""
        for _ in range(chance.randrange(3)):
            work.batch()
        last = chance.choice(("claim", "plan", "write", "part", "settle"))
        if last == "claim" and len(work.query.checkpoint.ends) == work.query.checkpoint.commits:
            work.query.reader.latestOffset(work.query.start, work.query.reader.getDefaultReadLimit())
            return
        if not work.query.plan() or last in ("claim", "plan"):
            return
        rows = work.write()
        if last in ("part", "settle"):
            work.settle(chance.sample(rows, len(rows) // 2) if last == "part" else rows)


def test_killed_with_all_its_processes_it_goes_on_without_loss_or_doubles(
    spark: SparkSession, post: Client, tmp_path: Path
) -> None:
    queue = post.queue(fresh_name("killed"))
    sent = [str(id) for id in queue.send_many([{"n": number} for number in range(50)])]
    program = Path(scoring_program.__file__)
    told = (post.url, queue.name, fresh_name("scoring"), str(tmp_path))
    with PythonProcess(program, *told, "1") as first:
        first.wait_line("written 1", timeout=PATIENCE)
        first.kill9()
        assert "settled 0" in first.lines
    scoring_program.main(*told, "-1")  # in this process, on its Spark
    found = [
        (row["message_id"], row["score"], row["verdict"]) for row in pq.read_table(tmp_path / "scores").to_pylist()
    ]
    assert sorted(found) == sorted((id, number * 2, "ack") for number, id in enumerate(sent))
    assert Admin(post).counts(queue.name).waiting == 0
    entries = Admin(post).journal(queue.name, limit=100_000)
    acked = Counter(entry.message_id for entry in entries if entry.event == "acked")
    verdict(58, n=len(sent), lost=missing(sent, acked), phantom=missing(acked, sent), dup=acked.total() - len(acked))
