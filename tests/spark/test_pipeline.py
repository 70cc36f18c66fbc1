"""The pipeline on a real Spark and a real Redis: every line once, only what is new computed, nothing passed over."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

import restante
from restante import Admin, Client, InUse, InvalidInput, JournalLost
from restante.core.journal_reader import JournalReader
from restante.spark import pipeline as module
from restante.spark.lake import Lake
from restante.spark.pipeline import Pipeline, PipelineOptions, Summary
from restante.spark.schemas import GOLD, JOURNAL, SILVER
from tests.faults.rows import verdict
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer
from tests.spark.lake_proof import (
    Line,
    assert_every_line_once,
    assert_tables_follow,
    bronze_only,
    by_arrow,
    by_spark,
    copied,
    table_rows,
    times,
    written,
)
from tests.spark.pipeline_process import SparkProcess
from tests.spark.traffic import Traffic, going_on

TODAY = datetime.now(UTC).date()
FIRST, SECOND, THIRD = (TODAY - timedelta(days=days) for days in (3, 2, 1))
DATED = [("silver", table.name) for table in SILVER] + [("gold", table.name) for table in GOLD]


def noon(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def run(spark: SparkSession, server: RedisServer, lake: Path) -> Callable[..., Pipeline]:
    """Makes a pipeline from this test's server to its lake."""

    def make(**options: Any) -> Pipeline:
        told: dict[str, Any] = {"url": server.url, "lake": str(lake), "batch_rows": 2000} | options
        return Pipeline(spark, PipelineOptions(**told))

    return make


@pytest.fixture
def only_bronze() -> Iterator[None]:
    with bronze_only():
        yield


@dataclass
class Days:
    """Three days of some queues, taken into a lake by three runs, and what was seen after each."""

    lake: Path
    url: str
    post: Client
    clock: FrozenClock
    #: The lake after the first run, not compacted yet, and the lines it holds.
    early: Path
    lines: Counter[Line] = field(default_factory=Counter)
    summaries: list[Summary] = field(default_factory=list)
    files: list[dict[str, int]] = field(default_factory=list)
    readers: list[tuple[int, int]] = field(default_factory=list)

    def run(self, spark: SparkSession, compact_from: int) -> None:
        options = PipelineOptions(
            url=self.url, lake=str(self.lake), queues="orders,m*", batch_rows=25, compact_from=compact_from
        )
        self.summaries.append(Pipeline(spark, options).run_once())
        self.files.append(times(self.lake, "silver") | times(self.lake, "gold"))
        place = JournalReader(self.post).place("orders")
        assert place is not None
        self.readers.append((place.readers["pipeline"], place.last))

    def live(self) -> None:
        """Two days pass."""
        queue, mail = self.post.queue("orders", max_attempts=2), self.post.queue("mail", keep_done=3)
        self.post.queue("private").send_many([1, 2, 3])
        queue.send_many([{"n": n} for n in range(30)], kind="order")
        taken = queue.receive_many(12)
        queue.ack_many(taken[:6])
        queue.nack_many(taken[6:9], error=ValueError("no"))
        queue.bury_many(taken[9:11], error=KeyError("price"))
        mail.send_many(["a", "b", "c", "d"])
        self.clock.set(noon(SECOND))
        Admin(self.post).replay("orders", error_class="KeyError")
        mail.ack_many(mail.receive_many(4))
        queue.send_many([{"n": n} for n in range(20)], delay=timedelta(days=30))

    def live_on(self) -> None:
        """On the third day come new messages, and one of the first day ends."""
        self.clock.set(noon(THIRD))
        queue = self.post.queue("orders")
        queue.send_many(["late"] * 10, priority=9)
        queue.ack_many(queue.receive_many(11))

    def written(self) -> Counter[Line]:
        """The lines of the queues that the pipeline reads."""
        return Counter(line for line in written(self.post) if line[0] != "private")

    def copy(self, to: Path) -> Path:
        return copied(self.lake, to)


@pytest.fixture(scope="module")
def days(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Days]:
    clock, folder = FrozenClock(noon(FIRST)), tmp_path_factory.mktemp("days")
    with clock, RedisServer(clock=clock) as server, restante.connect(server.url) as post:
        made = Days(folder / "lake", server.url, post, clock, folder / "early")
        made.live()
        made.run(spark, compact_from=100)
        made.lines = made.written()
        made.copy(made.early)
        made.run(spark, compact_from=2)
        made.live_on()
        made.run(spark, compact_from=100)
        yield made


class TestRuns:
    def test_every_line_is_in_bronze_once_for_spark_and_for_arrow(self, days: Days, spark: SparkSession) -> None:
        assert_every_line_once(spark, days.early, days.lines)
        assert_every_line_once(spark, days.lake, days.written())
        assert sum(summary.rows for summary in days.summaries) == len(days.written())

    def test_silver_and_gold_are_what_plain_python_makes_of_bronze(self, days: Days) -> None:
        assert_tables_follow(days.early)
        assert_tables_follow(days.lake)

    def test_a_run_with_nothing_new_computes_nothing(self, days: Days) -> None:
        second = days.summaries[1]
        assert (second.batches, second.rows, second.dates) == (0, 0, [])
        assert days.files[1] == days.files[0]

    def test_queues_that_were_not_asked_for_are_left_alone(self, days: Days) -> None:
        assert {queue for queue, _, _ in by_arrow(days.lake)} == {"orders", "mail"}
        place = JournalReader(days.post).place("private")
        assert place is not None
        assert place.readers == {}

    def test_only_dates_that_were_touched_are_computed_anew(self, days: Days) -> None:
        assert [summary.dates for summary in days.summaries] == [[FIRST, SECOND], [], [FIRST, THIRD]]
        before, after = days.files[1], days.files[2]
        for layer, name in DATED:
            of_second = {file for file in before if file.startswith(f"{layer}/{name}/dt={SECOND}/")}
            of_first = {file for file in before if file.startswith(f"{layer}/{name}/dt={FIRST}/")}
            assert {file: after.get(file) for file in of_second} == {file: before[file] for file in of_second}
            assert not of_first & set(after)
        assert any(file.startswith(f"silver/messages/dt={SECOND}/") for file in before)

    def test_batches_hold_no_more_rows_than_they_were_told(self, days: Days) -> None:
        sizes = [pq.read_table(folder).num_rows for folder in sorted((days.early / "bronze").iterdir())]
        assert max(sizes) == 25
        assert len(sizes) == days.summaries[0].batches

    def test_the_journal_knows_after_each_run_how_far_the_pipeline_is(self, days: Days) -> None:
        assert [read == last for read, last in days.readers] == [True, True, True]

    def test_every_file_has_the_columns_and_types_of_its_schema(self, days: Days) -> None:
        tables = [("silver", table) for table in SILVER] + [("gold", table) for table in GOLD]
        for folder, table in [("bronze", JOURNAL), *((f"{layer}/{table.name}", table) for layer, table in tables)]:
            found = pq.read_schema(next((days.early / folder).rglob("*.parquet")))
            assert dict(zip(found.names, found.types, strict=True)) == {one.name: one.arrow for one in table.columns}

    def test_the_sizes_told_are_those_of_the_files(self, days: Days) -> None:
        sizes = Lake(str(days.lake)).sizes()
        assert sizes["bronze"][0] + sizes["bronze_compact"][0] == len(days.written())
        assert sizes["silver/messages"][0] == len(table_rows(Lake(str(days.lake)), "messages"))

    def test_what_a_killed_writer_left_is_in_no_table_and_no_size(
        self, days: Days, spark: SparkSession, tmp_path: Path
    ) -> None:
        folder = days.copy(tmp_path / "lake")
        sizes, rows = Lake(str(folder)).sizes(), table_rows(Lake(str(folder)), "messages")
        left = folder / "silver" / "messages" / ".spark-staging-1" / f"dt={FIRST}"
        left.mkdir(parents=True)
        file = next((folder / "silver" / "messages" / f"dt={FIRST}").glob("*.parquet"))
        (left / file.name).write_bytes(file.read_bytes())
        assert table_rows(Lake(str(folder)), "messages") == rows
        assert spark.read.parquet(str(folder / "silver" / "messages")).count() == len(rows)
        assert Lake(str(folder)).sizes() == sizes


class Snapshots(fs.LocalFileSystem):  # type: ignore[misc]  # pyarrow has no types
    """A file system that keeps a copy of the lake from before each move and removal: what a crash there would leave."""

    def __init__(self, lake: Path, to: Path) -> None:
        super().__init__()
        self.lake, self.to, self.taken = lake, to, list[Path]()

    def take(self) -> None:
        self.taken.append(copied(self.lake, self.to / str(len(self.taken))))

    def move(self, *words: str) -> None:
        self.take()
        super().move(*words)

    def delete_dir(self, *words: str) -> None:
        self.take()
        super().delete_dir(*words)


class TestCompaction:
    def test_rows_are_there_once_before_during_and_after_wherever_a_crash_comes(
        self, days: Days, spark: SparkSession, tmp_path: Path
    ) -> None:
        wanted = days.lines
        folder = copied(days.early, tmp_path / "lake")
        options = PipelineOptions(url="", lake=str(folder), compact_from=2)
        compacting = Pipeline(spark, options)
        compacting.lake.files = watch = Snapshots(folder, tmp_path)
        summary = Summary()
        compacting.compact(summary)
        batches = days.summaries[0].batches
        assert summary.compacted == batches
        # The state twice, a file per date and its date, each batch and the work folder: a step each.
        assert len(watch.taken) == 2 + len({FIRST, SECOND}) + batches + 1
        seen = set()
        for crashed in (*watch.taken, folder):
            state = Lake(str(crashed)).state()
            seen.add((bool(state.compacting), state.compacted >= 0, len(Lake(str(crashed)).batches()) == batches))
            assert by_arrow(crashed) == wanted
            assert_every_line_once(spark, crashed, wanted)
        # Begun; noted with all batches left; noted with some gone.
        assert {(True, False, True), (False, True, True), (False, True, False)} <= seen

        for number, crashed in enumerate(watch.taken):
            if number in (1, 3, len(watch.taken) // 2):
                again = Pipeline(spark, PipelineOptions(url="", lake=str(crashed), compact_from=2))
                again.compact(Summary())
                assert_every_line_once(spark, crashed, wanted)
                assert Lake(str(crashed)).batches() == []
                assert sorted(times(crashed, "bronze_compact")) == sorted(times(folder, "bronze_compact"))

    def test_a_run_after_compaction_reads_old_rows_from_the_compacted_files(self, days: Days) -> None:
        assert days.summaries[1].compacted == days.summaries[0].batches
        assert not {line[2] for line in by_arrow(days.lake)} - {line[2] for line in days.written()}
        assert days.summaries[2].dates == [FIRST, THIRD]  # of which the first lies in compacted files
        (folder,) = (days.lake / "bronze_compact").glob(f"dt={FIRST}")
        assert len(list(folder.glob("*.parquet"))) == 1


class TestRetention:
    def test_dates_older_than_is_kept_go_and_gold_stays(self, days: Days, spark: SparkSession, tmp_path: Path) -> None:
        folder = days.copy(tmp_path / "lake")
        options = PipelineOptions(url="", lake=str(folder), compact_from=2, keep_bronze_days=1, keep_silver_days=2)
        work, summary = Pipeline(spark, options), Summary()
        gold = times(folder, "gold")
        work.compact(summary)
        work.retain(summary)

        def dates(*parts: str) -> set[str]:
            return {entry.name for entry in folder.joinpath(*parts).iterdir() if entry.name.startswith("dt=")}

        assert dates("bronze_compact") == {f"dt={THIRD}"}
        assert dates("silver", "messages") == {f"dt={SECOND}", f"dt={THIRD}"}
        assert f"dt={FIRST}" not in dates("silver", "attempts")
        assert times(folder, "gold") == gold
        assert summary.removed == 4

    def test_rows_for_a_date_that_was_removed_are_counted_and_change_nothing(
        self, days: Days, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = days.copy(tmp_path / "lake")
        late = Lake(str(folder)).journal().to_table().slice(0, 3).to_pylist()
        assert {row["sent_at"].date() for row in late} == {FIRST}
        number = Lake(str(folder)).batches()[-1] + 1
        commit(folder, number, [{**row, "position": 10_000 + place} for place, row in enumerate(late)])
        before = times(folder, "silver") | times(folder, "gold")
        options = PipelineOptions(url="", lake=str(folder), keep_bronze_days=2)
        with caplog.at_level(logging.WARNING, "restante"):
            Pipeline(spark, options).refresh(Summary())
        assert Lake(str(folder)).state().too_late == 3
        assert times(folder, "silver") | times(folder, "gold") == before
        assert f"rows too late dates={FIRST}" in caplog.text


def commit(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    """A batch as the stream leaves it: its rows, and Spark's note that they are all there."""
    place = folder / "bronze" / f"batch={number}"
    place.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, JOURNAL.arrow()), place / "part-0.parquet")
    (place / "_SUCCESS").touch()
    commits = folder / "_checkpoints" / "bronze" / "commits"
    (commits / str(number)).write_bytes((commits / "0").read_bytes())


class TestGuards:
    def test_a_second_pipeline_is_refused_while_the_first_runs(
        self, run: Callable[..., Pipeline], post: Client, lake: Path
    ) -> None:
        post.queue("orders").send(1)
        first = Lake(str(lake))
        first.lock()
        with pytest.raises(InUse, match="another pipeline is running"):
            run().run_once()
        with pytest.raises(InUse, match="another pipeline is running"):
            run().run_continuously()
        first.unlock()
        first.lock()
        first.unlock()

    def test_a_lake_whose_checkpoint_is_gone_is_refused(self, days: Days, spark: SparkSession, tmp_path: Path) -> None:
        folder = days.copy(tmp_path / "lake")
        (folder / "_checkpoints").rename(tmp_path / "elsewhere")
        before = times(folder)
        with pytest.raises(InvalidInput, match="has batches but no checkpoint"):
            Pipeline(spark, PipelineOptions(url=days.url, lake=str(folder))).run_once()
        assert times(folder) == before

    def test_a_lake_whose_checkpoint_is_gone_is_refused_also_when_all_is_compacted(
        self, days: Days, spark: SparkSession, tmp_path: Path
    ) -> None:
        folder = days.copy(tmp_path / "lake")
        options = PipelineOptions(url=days.url, lake=str(folder), compact_from=1)
        Pipeline(spark, options).compact(Summary())
        assert Lake(str(folder)).batches() == []
        (folder / "_checkpoints").rename(tmp_path / "elsewhere")
        with pytest.raises(InvalidInput, match="no checkpoint"):
            Pipeline(spark, options).run_once()

    def test_a_batch_that_is_still_being_written_is_not_in_the_tables(
        self, days: Days, spark: SparkSession, tmp_path: Path
    ) -> None:
        """As silver and gold are renewed while the stream goes on, or after it was stopped in the middle of a batch."""
        folder = days.copy(tmp_path / "lake")
        wanted = by_arrow(folder)
        number = Lake(str(folder)).batches()[-1] + 1
        half = folder / "bronze" / f"batch={number}" / "_temporary" / "0"
        half.mkdir(parents=True)
        rows = Lake(str(folder)).journal().to_table().slice(0, 3)
        pq.write_table(rows, half.parent.parent / "part-0.parquet")
        work = Pipeline(spark, PipelineOptions(url="", lake=str(folder), compact_from=1))
        work.refresh(Summary())
        work.compact(Summary())
        assert Lake(str(folder)).state().folded == number - 1
        assert Lake(str(folder)).state().compacted == number - 1
        assert by_arrow(folder) == wanted
        assert by_spark(spark, folder) == wanted


@pytest.mark.usefixtures("only_bronze")
class TestLoss:
    def test_lost_lines_end_the_run_and_are_passed_over_only_when_asked(
        self, run: Callable[..., Pipeline], post: Client, lake: Path, spark: SparkSession
    ) -> None:
        queue = post.queue("orders", journal_keep=1000, journal_cap=3000)
        reader = JournalReader(post)
        queue.send_many([1] * 900)
        run().run_once()
        read = 901  # the settings are a line too
        for _ in range(3):
            queue.send_many([1] * 700)
        place = reader.place("orders")
        assert place is not None
        assert (place.readers, place.last) == ({"pipeline": read}, 3001)
        assert place.floor <= read  # kept beyond journal_keep, because the pipeline has not read it
        assert place.lost == 0

        for _ in range(3):
            queue.send_many([1] * 700)
        place = reader.place("orders")
        assert place is not None
        assert place.floor > read
        assert place.lost == place.floor - read
        with pytest.raises(JournalLost, match=f"orders was trimmed to line {place.floor}, and {read} is the last one"):
            run().run_once()
        assert len(by_arrow(lake)) == read

        summary = run(fail_on_data_loss=False).run_once()
        assert summary.rows == place.last - place.floor
        numbers = {position for _, _, position in by_arrow(lake)}
        assert numbers == {*range(1, read + 1), *range(place.floor + 1, place.last + 1)}
        assert by_spark(spark, lake) == by_arrow(lake)
        assert run().run_once().rows == 0

    def test_a_queue_made_anew_is_told_apart_from_the_old_one(
        self, run: Callable[..., Pipeline], post: Client, lake: Path, spark: SparkSession
    ) -> None:
        queue = post.queue("orders")
        queue.send_many([1, 2, 3])
        run().run_once()
        old = written(post)
        Admin(post).drop("orders")
        post.queue("orders").send_many([1, 2])
        with pytest.raises(JournalLost, match="was removed and recreated"):
            run().run_once()
        run(fail_on_data_loss=False).run_once()
        assert_every_line_once(spark, lake, old + written(post))


@pytest.mark.usefixtures("only_bronze")
class TestServerAway:
    def test_a_run_goes_on_when_its_server_comes_back(
        self, spark: SparkSession, lake: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        told: list[str] = []
        with RedisServer(appendonly="always") as server, restante.connect(server.url) as post:
            queue = post.queue("orders")
            queue.send_many(list(range(50)))

            def stop_the_server() -> bool:
                """Asked all the time while the run goes on; never true."""
                pauses = [name for name in told if "trying again" in name]
                if server.alive and not pauses and len(list(lake.glob("bronze/batch=*"))) >= 2:
                    server.kill9()
                elif len(pauses) == 2 and not server.alive:
                    server.restart()
                return False

            options = PipelineOptions(url=server.url, lake=str(lake), batch_rows=5, patience=0.5)
            work = Pipeline(spark, options, progress=lambda step: told.append(step.name))
            with caplog.at_level(logging.WARNING, "restante"):
                summary = work.run_once(stop=stop_the_server)
            assert summary.rows == 50
            assert_every_line_once(spark, lake, written(post))
        pauses = [name for name in told if "trying again" in name]
        assert pauses[:2] == ["server away, trying again in 1 s", "server away, trying again in 2 s"]
        assert "stopped error=Unavailable again_in=1" in caplog.text

    def test_a_run_can_be_stopped_while_its_server_is_away(
        self, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "BACKOFF", (60.0, 60.0))
        stop = threading.Event()
        options = PipelineOptions(url="redis://127.0.0.1:1", lake=str(lake), patience=0.5)
        summary = Pipeline(spark, options, progress=lambda step: stop.set()).run_once(stop=stop.is_set)
        assert (summary.rows, summary.batches) == (0, 0)


class TestKilled:
    @pytest.mark.parametrize(
        "moments",
        [
            ("bronze", "silver and gold"),
            pytest.param(("bronze", "silver and gold") * 5, marks=pytest.mark.chaos),
        ],
        ids=len,
    )
    def test_a_pipeline_killed_at_any_moment_holds_every_line_once_in_the_end(
        self, spark: SparkSession, server: RedisServer, post: Client, lake: Path, moments: tuple[str, ...]
    ) -> None:
        chance = random.Random(11)
        options: dict[str, Any] = {
            "url": server.url,
            "lake": str(lake),
            "batch_rows": 150,
            "compact_from": 3,
            "trigger_seconds": 0.1,
            "refresh_seconds": 0.5,
        }
        with ExitStack() as processes, going_on(Traffic(post, 6), pause=0.05):

            def starting(number: int) -> SparkProcess:
                gate = str(lake.parent / f"gate-{number}")
                return processes.enter_context(SparkProcess("pipeline", options=options, gate=gate))

            process = starting(0)
            for number, moment in enumerate(moments):
                process.go()
                if number + 1 < len(moments):
                    following = starting(number + 1)
                process.wait_line(f"step {moment}")
                time.sleep(chance.uniform(0, 0.7))
                process.kill9()
                process = following
        left = Lake(str(lake)).state()

        def caught_up() -> bool:
            places = JournalReader(post).places(Admin(post).queues()).values()
            return all(place.readers.get("pipeline") == place.last for place in places)

        options |= {"batch_rows": 100_000, "refresh_seconds": 1000.0}
        summary = Pipeline(spark, PipelineOptions(**options)).run_continuously(stop=caught_up)
        assert summary.rows > 0
        wanted, found = written(post), by_arrow(lake)
        verdict(
            58,
            n=len(wanted),
            lost=(wanted - found).total(),
            phantom=len(found.keys() - wanted.keys()),
            dup=found.total() - len(found),
            folded=left.folded,
            compacted=left.compacted,
        )
        assert_every_line_once(spark, lake, wanted)
        assert_tables_follow(lake)
