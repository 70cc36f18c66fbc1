"""A lake of a version that did not know revoked and cancelled messages: it can be read, and a run updates it."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import restante
from restante import Admin, Client
from restante.server import ServerSettings, Serving
from restante.spark import schemas
from restante.spark.audit import Audit, Findings
from restante.spark.lake import Lake
from restante.spark.pipeline import Pipeline, PipelineOptions, Summary
from restante.spark.replay import Replay
from restante.spark.report import write
from restante.spark.report.load import load_figures
from tests.cli.conftest import Cli
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer
from tests.spark.lake_proof import copied, table_rows, times
from tests.spark.reference import Row
from tests.spark.test_tables import assert_same, expected

TODAY = datetime.now(UTC).date()
#: A day without the events that the older version did not know, and one with them.
PLAIN, STOPPED = (TODAY - timedelta(days=days) for days in (3, 2))
#: The columns that it did not write, by table.
UNKNOWN = {"throughput": ("revoked", "cancelled"), "audit": ("cancelled",), "messages": ("revocations",)}


def noon(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp() * 1000)


def as_older(name: str, row: Row) -> Row:
    """A row as the older version would have written it: it took a cancelled message for a waiting one."""
    if name == "throughput":
        row["waiting_delta"] += row["cancelled"]
    elif name == "audit":
        row["waiting"] += row["cancelled"]
    else:
        row["fate"] = "waiting" if row["fate"] == "cancelled" else row["fate"]
        row["last_event"] = "resumed" if row["last_event"] in ("revoked", "cancelled") else row["last_event"]
    return row


def _rewrite(table: pa.Table, file: Path) -> None:
    pq.write_table(table, file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # of the content that it had


def make_older(lake: Path) -> None:
    """Rewrites a lake as the older version would have written it."""
    for layer, name in (("gold", "throughput"), ("gold", "audit"), ("silver", "messages")):
        for file in (lake / layer / name).rglob("*.parquet"):
            table = pq.read_table(file, partitioning=None)
            older = pa.Table.from_pylist([as_older(name, row) for row in table.to_pylist()], table.schema)
            _rewrite(older.drop_columns([*UNKNOWN[name]]), file)
    state = json.loads((lake / "_state.json").read_text())
    del state["events"]
    (lake / "_state.json").write_text(json.dumps(state))


@dataclass
class Upgrade:
    """A server, and an older lake of two of its days."""

    post: Client
    older: Path

    def pipeline(self, spark: SparkSession, lake: Path) -> Pipeline:
        return Pipeline(spark, PipelineOptions(url=self.post.url, lake=str(lake)))

    def audit(self, spark: SparkSession, lake: Path, *, offline: bool = False) -> Findings:
        return Audit(spark, str(lake), None if offline else self.post).run()


@pytest.fixture(scope="module")
def upgrade(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    clock, lake = FrozenClock(noon(PLAIN)), tmp_path_factory.mktemp("older") / "lake"
    with clock, RedisServer(clock=clock) as server, restante.connect(server.url, consumer="shop-1") as post:
        made, admin = Upgrade(post, lake), Admin(post, operator="tester")
        queue = post.queue("orders", keep_done=10, lease=60)
        queue.send_many([{"n": n} for n in range(8)])
        queue.ack_many(queue.receive_many(3))
        queue.bury_many(queue.receive_many(2), error=ValueError("no"))
        clock.set(noon(STOPPED))
        ids = queue.send_many([{"m": m} for m in range(6)], priority=9)
        held = queue.receive_many(3)
        assert admin.revoke("orders", [held[0].id]) == 1
        assert admin.cancel("orders", [held[1].id, ids[5]]) == 2
        held[2].ack()
        made.pipeline(spark, lake).run_once()
        make_older(lake)
        yield made


@pytest.fixture
def lake(upgrade: Upgrade, tmp_path: Path) -> Path:
    """The older lake, to be changed."""
    return copied(upgrade.older, tmp_path / "lake")


def followed(lake: Path) -> dict[str, list[Row]]:
    """What plain Python makes of the lake's journal."""
    return expected(Lake(str(lake)).journal().to_table().to_pylist())


def with_zeros(rows: list[Row], name: str) -> list[Row]:
    """A table's rows, with 0 in the columns that an older version did not write."""
    return [{**row, **{column: row[column] or 0 for column in UNKNOWN.get(name, ())}} for row in rows]


def on(day: date, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["dt"] == day]


class TestReading:
    def test_columns_that_it_did_not_write_are_null_whatever_file_comes_first(self, lake: Path) -> None:
        newer = next((lake / "gold" / "throughput" / f"dt={STOPPED}").glob("*.parquet"))
        table = pq.read_table(newer, partitioning=None)
        for column in ("revoked", "cancelled"):
            table = table.append_column(column, pa.array([7] * table.num_rows, pa.int64()))
        _rewrite(table, newer)
        rows = table_rows(Lake(str(lake)), "throughput")
        assert {(row["dt"], row["revoked"], row["cancelled"]) for row in rows} == {(PLAIN, None, None), (STOPPED, 7, 7)}
        for name in UNKNOWN:
            found = table_rows(Lake(str(lake)), name)
            assert [*found[0]] == [*schemas_of(name).names, "dt"]

    def test_the_report_counts_nothing_for_them(self, lake: Path) -> None:
        figures = load_figures(Lake(str(lake)))
        assert [(row.cancelled, row.missing) for row in figures.audit] == [(0, 0), (0, 0)]
        page = write(str(lake), lake / "report.html")
        assert (page.adds_up, page.missing, page.queues) == (True, (), 1)

    def test_the_audit_names_the_cancelled_before_any_run(
        self, upgrade: Upgrade, spark: SparkSession, lake: Path
    ) -> None:
        for offline in (False, True):
            findings = upgrade.audit(spark, lake, offline=offline)
            assert findings.adds_up, findings.troubles
            told = {fate: sum(row[fate] for row in findings.windows) for fate in ("sent", *schemas.FATES, "difference")}
            assert told == {
                "sent": 14,
                "acked": 4,
                "dead": 2,
                "expired": 0,
                "deleted": 0,
                "cancelled": 2,
                "waiting": 6,
                "difference": 0,
            }

    def test_a_replay_does_not_take_them_for_waiting(self, upgrade: Upgrade, spark: SparkSession, lake: Path) -> None:
        work = Replay(spark, str(lake), upgrade.post)
        assert work.plan("true", fates=("waiting",))[0].total() == 6
        assert work.plan("true", fates=("cancelled",))[0].total() == 2


class TestUpgrading:
    def test_a_run_without_news_computes_the_dates_that_have_such_events(
        self, upgrade: Upgrade, spark: SparkSession, lake: Path
    ) -> None:
        before = {name: time for name, time in times(lake).items() if f"dt={PLAIN}/" in name}
        summary = upgrade.pipeline(spark, lake).run_once()
        assert (summary.rows, summary.dates) == (0, [STOPPED])
        assert {name: time for name, time in times(lake).items() if f"dt={PLAIN}/" in name} == before
        for name, rows in followed(lake).items():
            assert_same(name, with_zeros(table_rows(Lake(str(lake)), name), name), rows)
        assert upgrade.pipeline(spark, lake).run_once().dates == []

    def test_a_refresh_writes_all_columns_of_the_dates_it_touches(
        self, upgrade: Upgrade, spark: SparkSession, lake: Path
    ) -> None:
        shutil.rmtree(lake / "gold" / "throughput" / f"dt={STOPPED}")  # as if that day had been quiet
        state = json.loads((lake / "_state.json").read_text())
        work = upgrade.pipeline(spark, lake)
        state["folded"] -= 1  # the last batch has not been refreshed
        (lake / "_state.json").write_text(json.dumps(state))
        summary = Summary()
        work.refresh(summary)
        assert summary.dates == [PLAIN, STOPPED]
        for name, rows in followed(lake).items():
            assert_same(name, table_rows(Lake(str(lake)), name), rows)

    def test_dates_that_retention_takes_are_left_as_they_are(
        self, upgrade: Upgrade, spark: SparkSession, lake: Path
    ) -> None:
        options = PipelineOptions(url=upgrade.post.url, lake=str(lake), keep_bronze_days=1)
        short, long = Pipeline(spark, options), upgrade.pipeline(spark, lake)
        assert (short.outdated(short.lake.state()), long.outdated(long.lake.state())) == ([], [STOPPED])


class TestCommands:
    def test_every_command_and_the_insights_page_take_it(
        self, upgrade: Upgrade, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # the session is shared
        cli = Cli(upgrade.post.url, lake.parent)
        words = ("--lake", str(lake))
        report = str(lake / "report.html")
        try:
            for command in (("status",), ("report", "--out", report), ("audit",), ("audit", "--offline")):
                ran = cli.inside("pipeline", *command, *words, "--json")
                assert ran.code == 0, ran.err
            dry = cli.inside("pipeline", "replay", "--where", "true", "--fate", "cancelled", "--dry-run", *words)
            assert dry.code == 0, dry.err
            with Serving(upgrade.post.url, ServerSettings(port=0, lake=lake)) as serving:
                told = json.load(urllib.request.urlopen(f"{serving.address}/api/insights"))
                page = urllib.request.urlopen(f"{serving.address}/insights/report").read().decode()
            assert told["available"]
            assert "14 messages sent are accounted for" in page
            ran = cli.inside("pipeline", "run", "--report", report, *words, "--json")
            assert (ran.code, ran.json["dates"]) == (0, [str(STOPPED)])
            assert "Cancelled" in Path(report).read_text()
        finally:
            cli.close()


def schemas_of(name: str) -> schemas.Table:
    return next(table for table in (*schemas.SILVER, *schemas.GOLD) if table.name == name)
