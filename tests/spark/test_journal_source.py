"""The journal as a table: every line once, as core reads it, however it is asked for and cut."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import StructType

import restante
from restante import Client
from restante.core import journal_reader
from restante.core.admin import Admin
from restante.core.errors import Corrupt, InvalidInput, JournalLost, Unavailable
from restante.spark import arrow, journal
from restante.spark.journal import FilteringJournalReader, Range, split
from restante.spark.schemas import JOURNAL
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer, call, closed_port
from tests.spark.busy_queues import HAPPENS, BusyQueues, entries, facts, place, rows
from tests.spark.driving import Row, batch_reader, fresh_name, options, read_all, read_parts

QUICK = settings(
    max_examples=int(os.environ.get("RESTANTE_EXAMPLES", "12")),
    derandomize="RESTANTE_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    # Every example takes queues of its own, so that the server need not be emptied.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def positions(found: list[Row]) -> list[int]:
    return [row["position"] for row in found]


@pytest.fixture
def small_parts() -> Iterator[None]:
    """Cuts, pages and batches that a few lines can show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "LEAST_PART", 1)
        patch.setattr(journal_reader, "READ", 3)
        patch.setattr(arrow, "BATCH", 10)
        yield


@pytest.fixture
def blocks(post: Client) -> str:
    """A queue whose journal has entries of 1 to 9 lines, 45 in all."""
    queue = fresh_name("blocks")
    for count in range(1, 10):
        post.queue(queue).send_many([f"{count}.{n}" for n in range(count)])
    return queue


def append_line(server: RedisServer, queue: str, line: str) -> None:
    """What another version of the scripts might write."""
    key = f"restante:{{{queue}}}"
    last = call(server.client(), "HINCRBY", f"{key}:queue", "sequence", 1)
    call(server.client(), "XADD", f"{key}:journal", f"0-{last}", "e", line)


class TestRows:
    @QUICK
    @given(seed=st.integers(0, 2**32))
    def test_every_line_is_what_core_reads(self, post: Client, seed: int) -> None:
        names = [fresh_name("busy"), fresh_name("busy")]
        BusyQueues(post, names, seed).run(120)
        assert facts(read_all(batch_reader(post.url, queues=",".join(names)))) == rows(post, *names)

    def test_every_event_there_is_comes_out(self, post: Client) -> None:
        names = [fresh_name("busy"), fresh_name("busy")]
        for seed in itertools.count():
            BusyQueues(post, names, seed).run(100)
            found = read_all(batch_reader(post.url, kind="journal"))
            if {row["event"] for row in found} == HAPPENS:
                break
            assert seed < 20
        assert facts(found) == rows(post, *sorted(names))

    def test_a_message_without_its_payload_is_told_too(self, post: Client, server: RedisServer) -> None:
        queue = fresh_name("orphan")
        id = post.queue(queue).send(1)
        call(server.client(), "HDEL", f"restante:{{{queue}}}:messages", id)
        assert post.queue(queue).receive() is None
        found = read_all(batch_reader(post.url))
        assert facts(found) == rows(post, queue)
        assert found[-1]["error_class"] == "PayloadMissing"

    def test_no_queue_at_all_is_an_empty_table(self, post: Client) -> None:
        assert read_all(batch_reader(post.url)) == []

    def test_a_server_that_is_away_is_told_once_patience_ends(self) -> None:
        with pytest.raises(Unavailable):
            batch_reader(f"redis://127.0.0.1:{closed_port()}", patience=0.2).partitions()

    def test_queues_are_chosen_by_name_and_pattern(self, post: Client) -> None:
        for queue in ("eu.orders", "eu.mail", "us.orders", "audit"):
            post.queue(queue).send(1)
        choices = {
            "audit": ["audit"],
            "*.orders": ["eu.orders", "us.orders"],
            "e?.*,audit": ["audit", "eu.mail", "eu.orders"],
            "none": [],
        }
        for asked, meant in choices.items():
            found = read_all(batch_reader(post.url, queues=asked))
            assert sorted({row["queue"] for row in found}) == meant

    def test_a_narrow_schema_gives_those_columns_in_that_order(self, post: Client, blocks: str) -> None:
        whole = read_all(batch_reader(post.url))
        for names in (
            ["event"],
            ["at", "queue"],
            ["position"],
            ["payload"],
            ["detail", "incarnation", "size", "due_at"],
        ):
            schema = StructType([JOURNAL.spark()[name] for name in names])
            found = read_all(batch_reader(post.url, schema))
            assert found == [{name: row[name] for name in names} for row in whole]
            assert not found or [*found[0]] == names

    def test_a_narrow_schema_and_a_span_of_time_go_together(self, post: Client, blocks: str) -> None:
        schema = StructType([JOURNAL.spark()["position"]])
        found = read_all(batch_reader(post.url, schema, since="2020-01-01T00:00:00Z"))
        assert found == [{"position": number} for number in range(1, 46)]

    def test_a_schema_the_journal_has_not_is_refused(self, post: Client) -> None:
        for schema in (StructType().add("position", "string"), StructType().add("offset", "long")):
            with pytest.raises(InvalidInput, match="journal has no column"):
                batch_reader(post.url, schema)


class TestPayloads:
    def test_payload_headers_and_type_stand_beside_the_lines_that_carry_them(self, post: Client) -> None:
        queue = post.queue(fresh_name("payloads"), journal="payloads")
        queue.send({"n": 1}, id="json", headers={"a": "ü"})
        queue.send_many([b"\x00\xff", None, "text"])
        got = queue.receive_many(4)
        got[0].ack()
        queue.release_many(got[1:])
        Admin(post).edit(queue.name, got[1].id, payload=[2])
        found = read_all(batch_reader(post.url))
        assert facts(found) == rows(post, queue.name)
        carried = [
            (row["event"], row["payload"], row["headers"], row["content_type"]) for row in found if row["payload"]
        ]
        assert carried == [
            ("sent", b'{"n":1}', '{"a":"\u00fc"}', "application/json"),
            ("sent", b"\x00\xff", "", "application/octet-stream"),
            ("sent", b"null", "", "application/json"),
            ("sent", b'"text"', "", "application/json"),
            ("edited", b"[2]", "", "application/json"),
        ]
        assert all(row["headers"] is None for row in found if row["payload"] is None)

    def test_other_levels_have_nulls(self, post: Client) -> None:
        queue = post.queue(fresh_name("levels"))
        queue.send(1)
        queue.configure(journal="payloads")
        queue.send(2)
        queue.configure(journal="full")
        queue.send(3)
        found = [row["payload"] for row in read_all(batch_reader(post.url)) if row["event"] == "sent"]
        assert found == [None, b"2", None]

    def test_lines_a_level_leaves_out_take_no_numbers(self, post: Client) -> None:
        queue = post.queue(fresh_name("terminal"), journal="terminal")
        queue.send_many(range(5))
        for message in queue.receive_many(5):
            message.ack()
        found = read_all(batch_reader(post.url))
        assert [row["event"] for row in found] == ["configured", *["acked"] * 5]
        assert facts(found) == rows(post, queue.name)
        assert positions(found) == [1, 2, 3, 4, 5, 6]


class TestSpans:
    def test_numbers_bound_what_is_read_also_inside_an_entry(self, post: Client, blocks: str) -> None:
        for low, high in ((1, 45), (1, 1), (2, 2), (5, 9), (17, 30), (45, 45), (44, 99), (46, 50), (30, 17)):
            found = read_all(batch_reader(post.url, startSeq=low, endSeq=high))
            assert positions(found) == [*range(low, min(high, 45) + 1)]
        assert positions(read_all(batch_reader(post.url, startSeq=40))) == [*range(40, 46)]
        assert positions(read_all(batch_reader(post.url, endSeq=4))) == [*range(1, 5)]

    def test_instants_bound_what_is_read_the_first_included_the_last_not(self) -> None:
        with FrozenClock() as clock, RedisServer(clock=clock) as server, restante.connect(server.url) as post:
            for count in range(30):
                post.queue("timed").send_many(["x"] * (count % 4 + 1))
                clock.advance(0.001 * (count % 3))
            whole = rows(post, "timed")
            times = sorted({row["at"] for row in whole})
            second = timedelta(seconds=1)
            around = [times[0] - second, times[0], times[7], times[7] + second / 2000, times[-1], times[-1] + second]
            for since, until in itertools.permutations(around, 2):
                found = read_all(batch_reader(post.url, since=since.isoformat(), until=until.isoformat()))
                assert facts(found) == [row for row in whole if since <= row["at"] < until], (since, until)
            assert facts(read_all(batch_reader(post.url, since=times[7].isoformat()))) == [
                row for row in whole if row["at"] >= times[7]
            ]

    def test_a_first_line_that_was_trimmed_is_told_not_passed_over(self, post: Client) -> None:
        queue = post.queue(fresh_name("trimmed"), journal_keep=1000, journal_cap=1000)
        for _ in range(15):
            queue.send_many(range(200))
        floor = place(post, queue.name).floor
        assert floor > 100
        with pytest.raises(JournalLost, match=f"begins after line {floor}"):
            batch_reader(post.url, startSeq=5).partitions()
        found = read_all(batch_reader(post.url, startSeq=5, failOnDataLoss=False))
        assert positions(found) == [*range(floor + 1, place(post, queue.name).last + 1)]
        assert positions(read_all(batch_reader(post.url))) == positions(found)

    def test_lines_that_vanish_while_they_are_read_are_told(
        self, post: Client, blocks: str, server: RedisServer
    ) -> None:
        call(server.client(), "XDEL", f"restante:{{{blocks}}}:journal", "0-15")
        with pytest.raises(JournalLost, match="no longer has lines 11 to 15"):
            read_all(batch_reader(post.url))
        found = read_all(batch_reader(post.url, failOnDataLoss=False))
        assert positions(found) == [*range(1, 11), *range(16, 46)]


@st.composite
def many_ranges(draw: st.DrawFn) -> list[Range]:
    sizes = draw(st.lists(st.integers(0, 60), max_size=6))
    return [Range(f"q{n}", n, after := draw(st.integers(0, 50)), after + size) for n, size in enumerate(sizes)]


class TestSplitting:
    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(ranges=many_ranges(), parts=st.integers(1, 12))
    def test_parts_are_about_equal_and_hold_each_line_once(
        self, small_parts: None, ranges: list[Range], parts: int
    ) -> None:
        made = split(ranges, parts)
        found = [(one.queue, line) for part in made for one in part.ranges for line in range(one.after, one.upto)]
        assert found == [(one.queue, line) for one in ranges for line in range(one.after, one.upto)]
        assert len(made) <= parts
        assert all(sum(map(len, part.ranges)) <= -(-len(found) // parts) for part in made)
        assert all(len(one) > 0 for part in made for one in part.ranges)

    def test_little_work_is_not_cut(self) -> None:
        assert len(split([Range("a", 1, 0, 500), Range("b", 1, 0, 500)], 16)) == 1

    @QUICK
    @given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), parts=st.integers(1, 20))
    def test_entries_that_straddle_a_cut_are_read_once(
        self, post: Client, small_parts: None, sizes: list[int], parts: int
    ) -> None:
        names = [fresh_name("cut"), fresh_name("cut")]
        for n, size in enumerate(sizes):
            post.queue(names[n % 2]).send_many(["x"] * size)
        found = read_parts(batch_reader(post.url, queues=",".join(names), numPartitions=parts))
        assert len(found) <= parts
        counted = Counter((row["queue"], row["position"]) for part in found for row in part)
        assert set(counted.values()) == {1}
        assert counted.total() == sum(sizes)

    def test_real_cuts_give_every_line_once(self, post: Client) -> None:
        queue = post.queue(fresh_name("long"))
        for _ in range(75):
            queue.send_many([0] * 333)
        found = read_parts(batch_reader(post.url, numPartitions=4))
        assert len(found) == 3
        assert [number for part in found for number in positions(part)] == [*range(1, 75 * 333 + 1)]


class TestUnknownFormats:
    @pytest.mark.parametrize(
        "line",
        [
            "2\tsent\tready\t1\tid\t1\t\t0\t1\t0\t\t\t\t",
            "1\tsent\tready\t1\tid\t1\t\t0\t1\t0\t\t\t\t\tone more",
            "1\tsent\tready",
            "1\tsent\tready\tnoon\tid\t1\t\t0\t1\t0\t\t\t\t",
            "",
        ],
    )
    @pytest.mark.parametrize("names", [None, ["queue", "position", "at"]])
    def test_a_line_of_another_format_is_refused(
        self, post: Client, server: RedisServer, blocks: str, line: str, names: list[str] | None
    ) -> None:
        append_line(server, blocks, line)
        schema = StructType([JOURNAL.spark()[name] for name in names]) if names else None
        with pytest.raises(Corrupt, match=f"of {blocks}"):
            read_all(batch_reader(post.url, schema))
        assert len(read_all(batch_reader(post.url, schema, endSeq=45))) == 45


class TestFilters:
    def narrowed(self, post: Client, *filters: Filter) -> list[Row]:
        reader = FilteringJournalReader(options(post.url), JOURNAL.names)
        assert list(reader.pushFilters([*filters])) == [*filters], "Spark filters the rows at the edges again"
        return read_all(reader)

    def test_what_is_read_shrinks_and_never_too_much(self, post: Client, blocks: str) -> None:
        other = fresh_name("other")
        post.queue(other).send_many(range(5))
        whole = rows(post, *sorted((blocks, other)))
        at = entries(post, blocks)[20].at
        queue, position, moment = ("queue",), ("position",), ("at",)
        cases: list[tuple[Filter, Any, int]] = [
            (EqualTo(queue, other), lambda row: row["queue"] == other, 5),
            (EqualTo(queue, "none"), lambda row: False, 0),
            (In(queue, (other, "none")), lambda row: row["queue"] == other, 5),
            (GreaterThan(position, 40), lambda row: row["position"] > 40, 6),
            (GreaterThanOrEqual(position, 40), lambda row: row["position"] >= 40, 6),
            (LessThan(position, 3), lambda row: row["position"] < 3, 6),
            (LessThanOrEqual(position, 0), lambda row: False, 50),
            (LessThan(position, -7), lambda row: False, 0),
            (GreaterThan(moment, at), lambda row: row["at"] > at, 50),
            (GreaterThanOrEqual(moment, at), lambda row: row["at"] >= at, 50),
            (LessThan(moment, at), lambda row: row["at"] < at, 50),
            (LessThanOrEqual(moment, at), lambda row: row["at"] <= at, 50),
            (EqualTo(("event",), "sent"), lambda row: row["event"] == "sent", 50),
        ]
        for filter, wanted, most in cases:
            found = facts(self.narrowed(post, filter))
            assert len(found) <= most, filter
            assert [row for row in found if wanted(row)] == [row for row in whole if wanted(row)], filter
        pairs = itertools.combinations([(filter, wanted) for filter, wanted, _ in cases], 2)
        for (one, first), (two, second) in pairs:
            found = [row for row in facts(self.narrowed(post, one, two)) if first(row) and second(row)]
            assert found == [row for row in whole if first(row) and second(row)], (one, two)


def collected(frame: DataFrame) -> list[Row]:
    """Spark gives instants in this machine's time zone and does not say so."""
    return [
        {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.asDict().items()}
        for row in frame.collect()
    ]


class TestWithSpark:
    def test_the_table_is_what_core_reads(self, spark: SparkSession, post: Client) -> None:
        names = [fresh_name("busy"), fresh_name("busy")]
        BusyQueues(post, names, 3).run(200)
        frame = spark.read.format("restante").options(url=post.url, queues=",".join(names)).load()
        assert ", ".join(f"`{name}` {type}" for name, type in frame.dtypes) == JOURNAL.ddl()
        assert facts(collected(frame)) == rows(post, *names)

    def test_columns_can_be_chosen_and_others_are_refused(self, spark: SparkSession, post: Client, blocks: str) -> None:
        reader = spark.read.format("restante").options(url=post.url, queues=blocks)
        narrow = reader.schema("event string, position bigint").load()
        assert [tuple(row) for row in narrow.collect()] == [("sent", number) for number in range(1, 46)]
        with pytest.raises(Exception, match="journal has no column offset bigint"):
            reader.schema("offset bigint").load().collect()

    def test_no_queue_is_an_empty_table(self, spark: SparkSession, post: Client) -> None:
        assert spark.read.format("restante").options(url=post.url, queues="none").load().collect() == []

    def test_sql_reads_it_as_a_view(self, spark: SparkSession, post: Client, blocks: str) -> None:
        told = f"OPTIONS (url '{post.url}', queues '{blocks}', kind 'journal')"
        spark.sql(f"CREATE TEMPORARY VIEW blocks_view USING restante {told}")
        try:
            found = spark.sql("SELECT event, count(*), max(position) FROM blocks_view GROUP BY event").collect()
        finally:
            spark.catalog.dropTempView("blocks_view")
        assert [tuple(row) for row in found] == [("sent", 45, 45)]

    def test_filters_passed_down_give_the_same_rows(self, spark: SparkSession, post: Client, blocks: str) -> None:
        other = fresh_name("other")
        BusyQueues(post, [other], 5).run(60)
        at = entries(post, blocks)[20].at
        plain = spark.read.format("restante").options(url=post.url, queues=f"{blocks},{other}")
        wanted = (
            (F.col("queue") == blocks)
            & (F.col("position") > 3)
            & (F.col("position") <= 44)
            & (F.col("at") <= F.lit(at))
        )
        either = F.col("queue").isin(other, "none") & (F.col("at") >= F.lit(at)) & (F.col("event") != "sent")
        frames = [plain.load().where(condition) for condition in (wanted, either)]
        expected = [facts(collected(frame)) for frame in frames]
        assert all(expected)
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            pushed = plain.option("pushdown", "true")
            for condition, same in zip((wanted, either), expected, strict=True):
                assert facts(collected(pushed.load().where(condition))) == same
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
