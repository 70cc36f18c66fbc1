"""What a lake must hold: every line of the journals once, and tables equal to what plain Python makes of them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from restante import Admin, Client
from restante.core.journal_reader import JournalReader
from restante.spark import gold
from restante.spark.columns import Keep
from restante.spark.lake import Lake
from restante.spark.pipeline import Pipeline, PipelineOptions
from tests.spark.reference import Row
from tests.spark.test_tables import assert_same, expected

#: A line: its queue, that queue's incarnation and its number.
Line = tuple[str, int, int]


def written(post: Client) -> Counter[Line]:
    """Every line the journals have ever had, trimmed or not, each once."""
    places = JournalReader(post).places(Admin(post).queues())
    return Counter(
        (queue, place.incarnation, position) for queue, place in places.items() for position in range(1, place.last + 1)
    )


def by_arrow(folder: Path) -> Counter[Line]:
    """The lines a lake gives to programs without Spark, with how often each is there."""
    rows = Lake(str(folder)).journal().to_table(["queue", "incarnation", "position"]).to_pylist()
    return Counter((row["queue"], row["incarnation"], row["position"]) for row in rows)


def by_spark(spark: SparkSession, folder: Path) -> Counter[Line]:
    """The lines a lake gives to Spark, with how often each is there."""
    pipeline = Pipeline(spark, PipelineOptions(url="", lake=str(folder)))
    rows = pipeline.journal(pipeline.lake.state()).select("queue", "incarnation", "position").collect()
    return Counter((row.queue, row.incarnation, row.position) for row in rows)


def assert_every_line_once(spark: SparkSession, folder: Path, wanted: Counter[Line]) -> None:
    """N lines in are N rows out, for Spark and for Arrow."""
    for found in (by_arrow(folder), by_spark(spark, folder)):
        twice = {line: count for line, count in found.items() if count > 1}
        assert (len(found), sorted(wanted - found)[:10], sorted(found - wanted)[:10], twice) == (
            len(wanted),
            [],
            [],
            {},
        )


def assert_tables_follow(folder: Path) -> None:
    """Silver and gold are what plain Python makes of bronze."""
    lake = Lake(str(folder))
    for name, rows in expected(lake.journal().to_table().to_pylist()).items():
        assert_same(name, table_rows(lake, name), rows)


def table_rows(lake: Lake, name: str) -> list[Row]:
    """A table's rows as Arrow reads them; the name of a folder is text to it, and so the date is."""
    rows = lake.table(name).to_table().to_pylist()
    return [{**row, "dt": date.fromisoformat(row["dt"])} if "dt" in row else row for row in rows]


@contextmanager
def bronze_only() -> Iterator[None]:
    """Pipelines skip the refresh of silver and gold, which takes most of a small run: for tests of bronze alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "refresh", lambda self, summary: None)
        yield


@contextmanager
def audit_only() -> Iterator[None]:
    """Pipelines compute silver, and of gold the table `audit` alone, for tests that look at no other."""

    def tables(journal: DataFrame, messages: DataFrame, attempts: DataFrame, keep: Keep) -> dict[str, DataFrame]:
        return {"audit": gold.audit(messages)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gold, "tables", tables)
        patch.setattr(Pipeline, "_write_summed", lambda self, written: None)
        yield


def times(folder: Path, *parts: str) -> dict[str, int]:
    """Every file below a folder and when it was last written, in nanoseconds."""
    root = folder.joinpath(*parts)
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in root.rglob("*.parquet")}


def copied(folder: Path, to: Path) -> Path:
    """A lake as a crash at this moment would leave it."""
    shutil.copytree(folder, to, copy_function=shutil.copy2)
    return to
