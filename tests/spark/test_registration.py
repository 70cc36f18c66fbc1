"""A pipeline and the journals: they wait for it from before Spark starts, and a lake says which lines it lacks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import restante
from restante import Admin, Client
from restante.cli.demo import refresh_insights
from restante.core.journal_reader import JournalReader, Place
from restante.spark import registration as module
from restante.spark import session as spark_session
from restante.spark.coverage import Coverage, count_lines, coverage
from restante.spark.lake import Lake, State
from restante.spark.registration import Registration
from tests.cli.conftest import Cli
from tests.faults.rows import wait_until
from tests.spark.driving import stream_reader

#: The least lines a journal keeps, and enough that it is trimmed behind them.
KEEP, MANY = 1000, 5000


@pytest.fixture
def admin(post: Client) -> Admin:
    return Admin(post)


def place(post: Client, queue: str) -> Place:
    found = JournalReader(post).place(queue)
    assert found is not None
    return found


def busy(post: Client, name: str, lines: int = MANY) -> None:
    """A journal that keeps as little as it may."""
    queue = post.queue(name, journal_keep=KEEP)
    for start in range(0, lines, 1000):
        queue.send_many(list(range(start, min(start + 1000, lines))))


class TestClaim:
    def test_a_reader_begins_where_the_journal_does_and_keeps_its_place(self, post: Client) -> None:
        busy(post, "old")
        journals = JournalReader(post)
        first = journals.claim("old", "lake")
        assert first is not None
        assert 0 < first.floor == first.readers["lake"]
        journals.register("old", "lake", 4500)
        again = journals.claim("old", "lake")
        assert again is not None
        assert again.readers == {"lake": 4500}

    def test_a_queue_that_is_not_there_is_not_made(self, post: Client, admin: Admin) -> None:
        assert JournalReader(post).claim("nosuch", "lake") is None
        assert admin.queues() == []


class TestRegistration:
    def test_journals_wait_from_the_moment_of_registration(self, post: Client) -> None:
        post.queue("orders", journal_keep=KEEP)
        post.queue("orders").send(0)
        with Registration(post.url):
            busy(post, "orders")
        assert place(post, "orders").floor == 0
        busy(post, "other")
        assert place(post, "other").floor > 0

    def test_queues_that_appear_later_are_registered_with(self, post: Client) -> None:
        with Registration(post.url, queues="shop.*", reader="lake"):
            post.queue("shop.late").send(1)
            post.queue("elsewhere").send(1)
            wait_until(lambda: place(post, "shop.late").readers == {"lake": 0}, 60, "registering")
        assert place(post, "elsewhere").readers == {}

    def test_a_queue_made_anew_is_registered_with_again(
        self, post: Client, admin: Admin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LOOKS", 1)
        post.queue("orders").send(1)
        with Registration(post.url):
            admin.drop("orders")
            with restante.connect(post.url) as fresh:
                fresh.queue("orders").send(2)
            wait_until(lambda: place(post, "orders").readers == {"pipeline": 0}, 60, "registering")

    def test_what_it_registered_can_be_withdrawn_and_nothing_else(self, post: Client) -> None:
        for name in ("orders", "emails"):
            post.queue(name).send(1)
        JournalReader(post).register("emails", "pipeline", 1)
        with Registration(post.url) as registration:
            assert registration.unread() == sum(place(post, name).last for name in ("orders", "emails")) - 1
            registration.withdraw()
        assert place(post, "orders").readers == {}
        assert place(post, "emails").readers == {"pipeline": 1}

    def test_a_server_that_is_away_stops_nobody(self) -> None:
        with Registration("redis://127.0.0.1:1"):
            pass


class TestStream:
    def test_a_stream_registers_before_its_first_batch_and_with_new_queues_as_it_sees_them(self, post: Client) -> None:
        post.queue("orders", journal_keep=KEEP).send(0)
        reader: Any = stream_reader(post.url, reader="lake")
        start = reader.initialOffset()
        assert place(post, "orders").readers == {"lake": 0}
        post.queue("late", journal_keep=KEEP).send(0)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["late"]["position"] == place(post, "late").last
        assert place(post, "late").readers == {"lake": 0}
        busy(post, "late")
        assert len(list(reader.partitions(start, end))) == 1
        assert place(post, "late").floor == 0


class TestEveryWayIn:
    def test_the_command_registers_before_it_starts_spark(
        self, post: Client, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        post.queue("orders", journal_keep=KEEP).send(0)

        def boot(**_: Any) -> SparkSession:
            """While the JVM starts, more is written than the journal keeps."""
            busy(post, "orders")
            return spark

        monkeypatch.setattr(spark_session, "session", boot)
        monkeypatch.setattr(SparkSession, "stop", lambda self: None)
        cli = Cli(post.url, tmp_path)
        ran = cli.inside("pipeline", "run", "--lake", "lake", "--report", "lake/report.html", "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["rows"], ran.json["incomplete"]) == (place(post, "orders").last, [])
        assert ran.json["rows"] > MANY
        assert [one.first for one in coverage(Lake(str(tmp_path / "lake")).state())] == [1]
        assert "The lake begins" not in (tmp_path / "lake" / "report.html").read_text()

    def test_a_lake_that_begins_late_says_so_in_summary_status_and_report(
        self, post: Client, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy(post, "orders")
        before = place(post, "orders").floor
        assert before > 0
        monkeypatch.setattr(SparkSession, "stop", lambda self: None)
        cli = Cli(post.url, tmp_path)
        sentence = f"The lake begins at line {before + 1:,}: the {before:,} lines were trimmed"
        ran = cli.inside("pipeline", "run", "--lake", "lake", "--report", "lake/report.html")
        assert ran.code == 0, ran.err
        assert sentence in " ".join(ran.out.split())
        assert sentence in (tmp_path / "lake" / "report.html").read_text()
        told = cli.inside("pipeline", "status", "--lake", "lake", "--json").json
        assert told["queues"]["orders"]["begins"] == before + 1
        assert [(one["queue"], one["first"]) for one in told["incomplete"]] == [("orders", before + 1)]
        assert sentence in " ".join(cli.inside("pipeline", "status", "--lake", "lake").out.split())

    def test_where_spark_does_not_start_no_journal_waits_for_it(
        self, post: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        post.queue("orders").send(0)

        def broken(**_: Any) -> SparkSession:
            raise restante.InvalidInput("there is no Java: install it")

        monkeypatch.setattr(spark_session, "session", broken)
        ran = Cli(post.url, tmp_path).inside("pipeline", "run", "--lake", "lake", "--json")
        assert ran.code != 0
        assert place(post, "orders").readers == {}

    def test_the_demo_registers_before_it_waits_for_its_shop(self, post: Client, tmp_path: Path) -> None:
        post.queue("orders").send(0)
        closed = threading.Event()
        closed.set()
        refresh_insights(post.url, tmp_path, closed)
        assert place(post, "orders").readers == {"pipeline": 0}


class TestCoverage:
    def lake(self, folder: Path, *batches: list[int]) -> Lake:
        """A lake with these lines, as Spark would leave it."""
        for number, positions in enumerate(batches):
            rows = {"queue": ["orders"] * len(positions), "incarnation": [7] * len(positions), "position": positions}
            (folder / f"bronze/batch={number}").mkdir(parents=True)
            pq.write_table(pa.table(rows), folder / f"bronze/batch={number}/part-0.parquet")
            (folder / "_checkpoints/bronze/commits").mkdir(parents=True, exist_ok=True)
            (folder / f"_checkpoints/bronze/commits/{number}").touch()
        return Lake(str(folder))

    def test_a_whole_journal_has_nothing_to_say(self, tmp_path: Path) -> None:
        lake, state = self.lake(tmp_path, [1, 2, 3], [4, 5]), State()
        assert count_lines(lake, state)
        assert not count_lines(lake, state)
        (one,) = coverage(state)
        assert one == Coverage("orders", 7, 1, 5, 5)
        assert (one.whole, one.sentences()) == (True, [])

    def test_lines_before_the_first_and_in_between_are_counted(self, tmp_path: Path) -> None:
        lake, state = self.lake(tmp_path, [3180, 3181], [3190]), State()
        count_lines(lake, state)
        (one,) = coverage(state)
        assert (one.before, one.missing) == (3179, 8)
        assert one.sentences() == [
            "The lake begins at line 3,180: the 3,179 lines were trimmed from the journal before the pipeline "
            "registered with it.",
            "8 journal lines are missing between 3,180 and 3,190.",
        ]

    def test_a_lake_from_before_it_was_counted_is_counted_whole(self, tmp_path: Path) -> None:
        lake = self.lake(tmp_path, [1, 2], [3, 4], [6])
        (tmp_path / "bronze_compact/dt=2026-01-01").mkdir(parents=True)
        (tmp_path / "bronze/batch=0/part-0.parquet").rename(
            tmp_path / "bronze_compact/dt=2026-01-01/compact-0-0-0.parquet"
        )
        (tmp_path / "bronze/batch=0").rmdir()
        state = State(folded=2, compacted=0)
        lake.save(state)
        assert count_lines(lake, state)
        assert coverage(state) == [Coverage("orders", 7, 1, 6, 5)]
        assert not count_lines(lake, state)
