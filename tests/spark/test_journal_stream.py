"""The journal as a stream: limits are kept, offsets are plain, and loss is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from restante import Client
from restante.core.admin import Admin
from restante.core.errors import JournalLost
from restante.spark.journal import share
from tests.harness.servers import RedisServer, call
from tests.spark.busy_queues import BusyQueues, facts, place, rows
from tests.spark.driving import Query, Row, batch_reader, fresh_name, rows_of, stream_reader


def query(post: Client, **told: Any) -> Query:
    return Query(lambda: stream_reader(post.url, **told))


def lines(found: list[Row] | None) -> list[tuple[str, int]]:
    return sorted((row["queue"], row["position"]) for row in found or [])


def fill(post: Client, queue: str, count: int) -> str:
    post.queue(queue).send_many(["x"] * count)
    return queue


class TestAdmission:
    def test_a_limit_is_kept_and_every_line_comes_once(self, post: Client) -> None:
        names = [fresh_name("busy"), fresh_name("busy")]
        BusyQueues(post, names, 1).run(150)
        batches = query(post, maxRowsPerBatch=37).drain()
        assert [len(batch) for batch in batches[:-1]] == [37] * (len(batches) - 1)
        assert facts([row for batch in batches for row in batch]) == rows(post, *names)

    def test_without_a_limit_one_batch_takes_all(self, post: Client) -> None:
        queue = fill(post, fresh_name("all"), 500)
        reading = query(post)
        assert isinstance(reading.reader.getDefaultReadLimit(), ReadAllAvailable)
        assert lines(reading.batch()) == [(queue, number) for number in range(1, 501)]
        assert reading.batch() is None

    def test_the_limit_given_wins_over_the_option(self, post: Client) -> None:
        fill(post, fresh_name("given"), 50)
        reading = query(post, maxRowsPerBatch=10)
        assert reading.reader.getDefaultReadLimit() == ReadMaxRows(10)
        assert len(reading.batch(ReadMaxRows(7)) or []) == 7
        assert len(reading.batch(ReadAllAvailable()) or []) == 43

    def test_fewer_rows_than_asked_for_wait_for_more(self, post: Client) -> None:
        queue = fill(post, fresh_name("few"), 9)
        reading = query(post)
        assert reading.batch(ReadMinRows(10)) is None
        fill(post, queue, 1)
        assert len(reading.batch(ReadMinRows(10)) or []) == 10

    def test_fewer_rows_than_asked_for_do_not_keep_an_ending_query(self, post: Client) -> None:
        fill(post, fresh_name("few"), 9)
        assert len(query(post).available_now().batch(ReadMinRows(10)) or []) == 9

    def test_rows_are_shared_by_what_each_queue_has_unread(self, post: Client) -> None:
        busy, idle, quiet = fill(post, fresh_name("a"), 900), fill(post, fresh_name("b"), 100), fresh_name("c")
        post.queue(quiet).receive()
        reading = query(post)
        assert reading.plan(ReadMaxRows(100))
        read = {name: where["position"] for name, where in reading.end.items()}
        assert read == {busy: 90, idle: 10, quiet: 0}

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10_000)), st.integers(1, 20_000))
    def test_shares_use_the_whole_limit_and_never_more(self, wanted: dict[str, int], most: int) -> None:
        given_ = share(wanted, most)
        total = sum(wanted.values())
        assert sum(given_.values()) == min(total, most)
        assert given_.keys() == wanted.keys()
        assert all(0 <= given_[name] <= wanted[name] for name in wanted)
        if most >= len(wanted):
            assert all(given_[name] for name in wanted if wanted[name]), "a quiet queue is not starved by a busy one"
        # Who gets a row that its share had not given takes it from others: one each at most.
        least = {name: wanted[name] * most // max(total, most) - len(wanted) for name in wanted}
        assert all(given_[name] >= least[name] for name in wanted)


class TestOffsets:
    def test_the_same_place_is_the_same_text(self, post: Client) -> None:
        for queue in ("zebra", "ant", "m"):
            fill(post, queue, 3)
        first, second = query(post), query(post, queues="m,zebra,ant")
        texts = {
            json.dumps(reading.reader.latestOffset(reading.start, ReadAllAvailable())) for reading in (first, second)
        }
        texts.add(json.dumps(first.reader.reportLatestOffset()))
        (text,) = texts
        assert [*json.loads(text)] == ["ant", "m", "zebra"]
        turned = {name: dict(reversed(json.loads(text)[name].items())) for name in reversed(json.loads(text))}
        assert json.dumps(first.reader.latestOffset(turned, ReadAllAvailable())) == text

    @pytest.mark.parametrize("begin", ["earliest", "latest"])
    def test_the_first_offset_is_the_same_however_often_it_is_asked_for(self, post: Client, begin: str) -> None:
        queue = fill(post, fresh_name("first"), 5)
        reader: Any = stream_reader(post.url, startingPosition=begin)
        first = reader.initialOffset()
        assert first[queue]["position"] == (0 if begin == "earliest" else 5)
        fill(post, queue, 5)
        assert json.dumps(reader.initialOffset()) == json.dumps(first)

    def test_a_stream_from_the_latest_line_reads_what_comes_then(self, post: Client) -> None:
        queue = fill(post, fresh_name("latest"), 5)
        reading = query(post, startingPosition="latest")
        assert reading.batch() is None
        begun = reading.start
        fill(post, queue, 2)
        end = reading.reader.latestOffset(begun, ReadAllAvailable())
        found = [row for part in reading.reader.partitions(begun, end) for row in reading.reader.read(part)]
        assert sum(batch.num_rows for batch in found) == 2

    def test_a_queue_that_appears_later_is_read_from_its_beginning(self, post: Client) -> None:
        old = fill(post, fresh_name("old"), 3)
        reading = query(post)
        assert lines(reading.batch()) == [(old, 1), (old, 2), (old, 3)]
        new = fill(post, fresh_name("new"), 2)
        fill(post, old, 1)
        assert lines(reading.batch()) == [(new, 1), (new, 2), (old, 4)]

    def test_no_queue_yet_is_no_reason_to_end(self, post: Client) -> None:
        reading = query(post)
        assert reading.start == {}
        assert reading.batch() is None
        queue = fill(post, fresh_name("late"), 1)
        assert lines(reading.batch()) == [(queue, 1)]

    def test_a_batch_planned_before_a_crash_is_read_as_it_was_planned(self, post: Client) -> None:
        queue = fill(post, fresh_name("again"), 10)
        reading = query(post, maxRowsPerBatch=4)
        reading.batch()
        assert reading.plan()
        planned = reading.rows()
        fill(post, queue, 10)
        again = reading.crashed()
        assert again.plan()
        assert again.rows() == planned
        again.commit()
        assert len(again.drained()) == 12


class TestAvailableNow:
    def test_it_ends_with_what_was_there_when_it_began(self, post: Client) -> None:
        queue = fill(post, fresh_name("now"), 25)
        reading = query(post, maxRowsPerBatch=10).available_now()
        found = reading.batch()
        fill(post, queue, 10)
        fill(post, fresh_name("after"), 10)
        batches = [found, *reading.drain()]
        assert [len(batch or []) for batch in batches] == [10, 10, 5]
        assert lines([row for batch in batches for row in batch or []]) == [(queue, number) for number in range(1, 26)]

    def test_the_next_run_goes_on_where_it_ended(self, post: Client) -> None:
        queue = fill(post, fresh_name("now"), 5)
        first = query(post).available_now()
        first.drain()
        fill(post, queue, 5)
        assert lines(first.restarted().available_now().drained()) == [(queue, number) for number in range(6, 11)]


class TestRegistration:
    def test_a_reader_is_registered_at_what_is_committed_not_at_what_is_planned(self, post: Client) -> None:
        queue = fill(post, fresh_name("registered"), 30)
        reading = query(post, reader="lake", maxRowsPerBatch=10)
        assert reading.plan()
        assert place(post, queue).readers == {"lake": 0}
        reading.commit()
        assert reading.plan()
        assert place(post, queue).readers == {"lake": 10}
        reading.commit()
        reading.drain()
        assert place(post, queue).readers == {"lake": 30}

    def test_the_journal_waits_for_a_registered_reader(self, post: Client) -> None:
        queue = post.queue(fresh_name("waits"), journal_keep=1000, journal_cap=1_000_000)
        fill(post, queue.name, 10)
        reading = query(post, reader="lake")
        assert len(reading.drained()) == 11
        for _ in range(15):
            fill(post, queue.name, 200)
        assert place(post, queue.name).floor <= 11
        assert len(reading.drained()) == 3000

    def test_without_a_name_nothing_is_registered(self, post: Client) -> None:
        queue = fill(post, fresh_name("nameless"), 3)
        query(post).drain()
        assert place(post, queue).readers == {}

    def test_a_queue_made_anew_is_not_registered_at_the_old_number(self, post: Client) -> None:
        queue = fill(post, fresh_name("anew"), 30)
        reading = query(post, reader="lake", failOnDataLoss=False)
        reading.batch()
        made_anew(post, queue, 3)
        assert lines(reading.batch()) == [(queue, 1), (queue, 2), (queue, 3)]
        assert place(post, queue).readers == {"lake": 0}
        reading.batch()
        assert place(post, queue).readers == {"lake": 3}


def trimmed(post: Client, queue: str) -> int:
    """Lets the journal run over its cap; returns the number of the last line that went."""
    post.queue(queue, journal_keep=1000, journal_cap=1000)
    while (floor := place(post, queue).floor) < 500:
        fill(post, queue, 250)
    return floor


def made_anew(post: Client, queue: str, count: int) -> None:
    before = place(post, queue).incarnation
    Admin(post).drop(queue)
    while True:
        fill(post, queue, count)
        if place(post, queue).incarnation != before:
            return
        Admin(post).drop(queue)


def went_back(server: RedisServer, queue: str, to: int) -> None:
    """As a server restored from an older copy stands."""
    key = f"restante:{{{queue}}}"
    for stream_id, _ in call(server.client(), "XRANGE", f"{key}:journal", f"0-{to + 1}", "+"):
        call(server.client(), "XDEL", f"{key}:journal", stream_id)
    call(server.client(), "HSET", f"{key}:queue", "sequence", to)


@pytest.mark.parametrize("now", [False, True], ids=["endless", "available-now"])
class TestLoss:
    """Found at the next plan, whether the query goes on or ends with what is there."""

    def begun(self, post: Client, now: bool, **told: Any) -> tuple[str, Query]:
        queue = fill(post, fresh_name("lost"), 100)
        reading = query(post, queues=queue, **told)
        assert len(reading.batch() or []) == 100
        return queue, reading

    def again(self, reading: Query, now: bool) -> Query:
        reading = reading.restarted()
        return reading.available_now() if now else reading

    def test_trimmed_lines_end_the_query(self, post: Client, now: bool) -> None:
        queue, reading = self.begun(post, now)
        floor = trimmed(post, queue)
        with pytest.raises(JournalLost, match=f"trimmed to line {floor}, and 100 is the last one read"):
            self.again(reading, now).batch()

    def test_trimmed_lines_are_passed_over_when_told_so(self, post: Client, now: bool) -> None:
        queue, reading = self.begun(post, now, failOnDataLoss=False)
        floor = trimmed(post, queue)
        found = lines(self.again(reading, now).batch())
        assert found == [(queue, number) for number in range(floor + 1, place(post, queue).last + 1)]

    def test_a_queue_made_anew_ends_the_query(self, post: Client, now: bool) -> None:
        queue, reading = self.begun(post, now)
        made_anew(post, queue, 150)
        with pytest.raises(JournalLost, match="removed and recreated"):
            self.again(reading, now).batch()

    def test_a_queue_made_anew_is_read_from_its_beginning_when_told_so(self, post: Client, now: bool) -> None:
        queue, reading = self.begun(post, now, failOnDataLoss=False)
        made_anew(post, queue, 150)
        found = self.again(reading, now).batch()
        assert facts(found or []) == rows(post, queue)

    def test_a_journal_that_went_back_ends_the_query(self, post: Client, server: RedisServer, now: bool) -> None:
        queue, reading = self.begun(post, now)
        fill(post, queue, 1)
        reading.batch()
        went_back(server, queue, 100)
        with pytest.raises(JournalLost, match="went back from line 101 to 100"):
            self.again(reading, now).batch()

    def test_a_journal_that_went_back_is_read_from_its_end_when_told_so(
        self, post: Client, server: RedisServer, now: bool
    ) -> None:
        queue, reading = self.begun(post, now, failOnDataLoss=False)
        fill(post, queue, 1)
        reading.batch()
        went_back(server, queue, 100)
        reading = self.again(reading, now)
        assert reading.batch() in ([], None)
        fill(post, queue, 2)
        assert lines(self.again(reading, now).batch()) == [(queue, 101), (queue, 102)]


class TestLossOfAPlannedBatch:
    """The batch was planned, then its process died: on restart Spark reads it without asking for a plan."""

    def planned(self, post: Client, **told: Any) -> tuple[str, Query]:
        queue = fill(post, fresh_name("planned"), 100)
        reading = query(post, queues=queue, **told)
        reading.batch(ReadMaxRows(10))
        assert reading.plan()
        return queue, reading.crashed()

    def test_a_queue_made_anew_is_not_read_in_the_old_ones_place(self, post: Client) -> None:
        queue, reading = self.planned(post)
        made_anew(post, queue, 150)
        with pytest.raises(JournalLost, match=queue):
            reading.rows()

    def test_a_queue_made_anew_comes_once_when_told_to_go_on(self, post: Client) -> None:
        queue, reading = self.planned(post, failOnDataLoss=False)
        made_anew(post, queue, 150)
        assert facts(reading.drained()) == rows(post, queue)

    @pytest.mark.parametrize("goes_on", [False, True])
    def test_a_queue_made_anew_between_plan_and_read_is_not_read(self, post: Client, goes_on: bool) -> None:
        queue = fill(post, fresh_name("planned"), 100)
        reader = batch_reader(post.url, queues=queue, failOnDataLoss=not goes_on)
        parts = reader.partitions()
        made_anew(post, queue, 150)
        if goes_on:
            assert [row for part in parts for row in rows_of(reader.read(part))] == []
        else:
            with pytest.raises(JournalLost, match=queue):
                rows_of(reader.read(parts[0]))

    def test_trimmed_lines_end_the_query(self, post: Client, server: RedisServer) -> None:
        queue, reading = self.planned(post)
        call(server.client(), "XTRIM", f"restante:{{{queue}}}:journal", "MAXLEN", 0)
        with pytest.raises(JournalLost, match="no longer has lines 11 to 100"):
            reading.rows()

    def test_trimmed_lines_are_passed_over_when_told_so(self, post: Client) -> None:
        queue, reading = self.planned(post, failOnDataLoss=False)
        floor = trimmed(post, queue)
        found = reading.drained()
        assert lines(found) == [(queue, number) for number in range(floor + 1, place(post, queue).last + 1)]


class TestWithSpark:
    def test_a_query_reads_every_line_once_in_bounded_batches_and_tells_its_lag(
        self, spark: SparkSession, post: Client, tmp_path: Path
    ) -> None:
        names = [fresh_name("busy"), fresh_name("busy")]
        BusyQueues(post, names, 11).run(60)
        total = len(rows(post, *names))
        stream = spark.readStream.format("restante").options(
            url=post.url, queues=",".join(names), maxRowsPerBatch=total // 2 + 1, reader="lake"
        )
        writing = stream.load().writeStream.format("memory").queryName("lines_of_busy")
        running = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert running.awaitTermination(120)
        found = spark.table("lines_of_busy").select("queue", "position").collect()
        assert sorted(map(tuple, found)) == [(row["queue"], row["position"]) for row in rows(post, *names)]
        told = [progress["sources"][0] for progress in running.recentProgress if progress["numInputRows"]]
        assert [one["numInputRows"] for one in told] == [total // 2 + 1, total - total // 2 - 1]
        latest = {
            name: {"incarnation": place(post, name).incarnation, "position": place(post, name).last} for name in names
        }
        assert [json.loads(one["latestOffset"]) for one in told] == [latest, latest]
        assert json.loads(told[-1]["endOffset"]) == latest != json.loads(told[0]["endOffset"])
        spark.sql("DROP VIEW lines_of_busy")

    def test_lost_lines_end_a_real_query_with_the_remedy(
        self, spark: SparkSession, post: Client, tmp_path: Path
    ) -> None:
        queue = fill(post, fresh_name("lost"), 3)

        def run() -> None:
            stream = spark.readStream.format("restante").options(url=post.url, queues=queue).load()
            writing = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
            writing.trigger(availableNow=True).start().awaitTermination(120)

        run()
        trimmed(post, queue)
        with pytest.raises(Exception, match=r"JournalLost.*trimmed to line .*failOnDataLoss=false"):
            run()
