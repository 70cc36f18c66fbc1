"""Every table equals what plain Python makes of the same journal, whole and date by date."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.message import JournalEvent
from restante.spark import gold, silver
from restante.spark.columns import dated
from restante.spark.schemas import ATTEMPTS, COUNTED, FATES, GOLD, JOURNAL, MESSAGES, SILVER, SUMMED, THROUGHPUT, Table
from tests.spark import reference
from tests.spark.reference import History, Row

BY_NAME = {table.name: table for table in (*SILVER, *GOLD, *SUMMED)}
DATED = {table.name for table in (*SILVER, *GOLD)}
#: Random journals that are tried; `RESTANTE_EXAMPLES` asks for more.
EXAMPLES = int(os.environ.get("RESTANTE_EXAMPLES", "4"))

Read = Callable[[Table, list[Row]], DataFrame]


@pytest.fixture(scope="module")
def read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Rows of a table as Spark has them: read from a Parquet file."""
    folder = tmp_path_factory.mktemp("rows")

    def read(table: Table, rows: list[Row]) -> DataFrame:
        schema = table.arrow().append(pa.field("dt", pa.date32())) if table.name in DATED else table.arrow()
        path = folder / f"{len(list(folder.iterdir()))}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        return spark.read.parquet(str(path))

    return read


def expected(journal: list[Row]) -> dict[str, list[Row]]:
    """Every table by plain Python."""
    messages, attempts = reference.messages(journal), reference.attempts(journal)
    throughput = reference.throughput(journal)
    return {
        "messages": messages,
        "attempts": attempts,
        "latency": reference.latency(messages),
        "throughput": throughput,
        "retries": reference.retries(journal),
        "overdue": reference.overdue(journal),
        "causes": reference.causes(journal),
        "consumers": reference.consumers(attempts),
        "audit": reference.audit(messages),
        "backlog": reference.backlog(throughput),
        "drain": reference.drain(throughput),
    }


def made(read: Read, journal: list[Row], wanted: dict[str, list[Row]]) -> dict[str, DataFrame]:
    """Every table by Spark; what the pipeline reads back from the lake comes from files here too."""
    rows, throughput = read(JOURNAL, journal), read(THROUGHPUT, wanted["throughput"])
    messages, attempts = silver.tables(rows)
    by_date = gold.tables(rows, read(MESSAGES, wanted["messages"]), read(ATTEMPTS, wanted["attempts"]))
    summed = {"backlog": gold.backlog(throughput), "drain": gold.drain(throughput)}
    return {"messages": messages, "attempts": attempts, **by_date, **summed}


def one_by_one(journal: DataFrame) -> dict[str, DataFrame]:
    """The tables that come from the journal itself, each by its own function."""
    functions = (silver.messages, silver.attempts, gold.throughput, gold.retries, gold.overdue, gold.causes)
    return {function.__name__: function(journal) for function in functions}


def collected(frames: Iterable[tuple[str, DataFrame]]) -> dict[str, list[Row]]:
    """The rows of many tables in one query, each table in a column of its own."""
    named = [frame.select(F.struct("*").alias(name)) for name, frame in frames]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)
    found: dict[str, list[Row]] = {name: [] for name in together.columns}
    for row in together.collect():
        name, values = next((name, values) for name, values in row.asDict(recursive=True).items() if values is not None)
        found[name].append({column: aware(value) for column, value in values.items()})
    return found


def aware(value: Any) -> Any:
    """Spark gives instants in this machine's time zone and does not say so."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def in_order(rows: list[Row], table: Table) -> list[Row]:
    names = [column.name for column in table.columns if not pa.types.is_floating(column.arrow)]
    return sorted(rows, key=lambda row: [str(row[name]) for name in (*names, *(["dt"] if "dt" in row else []))])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
    return type(one) is type(other) and one == other


def assert_same(name: str, rows: list[Row], wanted: list[Row]) -> None:
    """The rows of a table, in any order; doubles but for their last digits."""
    table = BY_NAME[name]
    for row, want in zip(in_order(rows, table), in_order(wanted, table), strict=False):
        differing = {key: (row.get(key), want.get(key)) for key in row | want if not same(row.get(key), want.get(key))}
        assert not differing, f"{name}: {differing} (made, wanted) in {want}"
    assert len(rows) == len(wanted), name


class TestAgainstPlainPython:
    @settings(
        max_examples=EXAMPLES,
        derandomize="RESTANTE_EXAMPLES" not in os.environ,
        database=None,
        deadline=None,
        # Shrinking would take a query per step; a history is told by two numbers anyway.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(history=reference.histories())
    def test_every_table_is_what_plain_python_makes_of_the_same_journal(self, read: Read, history: History) -> None:
        journal = history.rows()
        wanted = expected(journal)
        for name, rows in collected(made(read, journal, wanted).items()).items():
            assert_same(name, rows, wanted[name])

    def test_a_date_computed_by_itself_gives_the_same_rows_as_all_dates_together(self, read: Read) -> None:
        rows = History(7, 600).rows()
        wanted = expected(rows)
        journal = dated(read(JOURNAL, rows))
        day = Counter(row["dt"] for row in reference.dated(rows)).most_common(1)[0][0]
        itself, others = journal.where(F.col("dt") == day), journal.where(F.col("dt") != day)
        for name, found in collected([*one_by_one(itself).items(), *one_by_one(others).items()]).items():
            assert {row["dt"] for row in found} > {day}, name
            assert_same(name, found, wanted[name])

    def test_what_is_kept_on_the_way_changes_nothing(self, read: Read) -> None:
        rows = History(9, 600).rows()
        journal, wanted = read(JOURNAL, rows), expected(rows)
        kept: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            kept.append(frame.persist())
            return frame

        messages, attempts = silver.tables(journal, keep)
        every = {"messages": messages, "attempts": attempts, **gold.tables(journal, messages, attempts, keep)}
        for name, found in collected(every.items()).items():
            assert_same(name, found, wanted[name])
        assert len(kept) == 2
        for frame in kept:
            frame.unpersist()


class TestShape:
    def test_every_table_has_the_columns_and_types_of_its_schema_in_order_and_the_date_last(self, read: Read) -> None:
        for name, frame in made(read, [], expected([])).items():
            columns = ", ".join(f"`{column}` {type}" for column, type in frame.dtypes)
            assert columns == BY_NAME[name].ddl() + (", `dt` date" if name in DATED else "")

    def test_an_empty_journal_gives_empty_tables(self, read: Read) -> None:
        assert collected(made(read, [], expected([])).items()) == {name: [] for name in BY_NAME}

    def test_every_event_is_counted_but_those_of_queues_and_edits(self) -> None:
        assert {*COUNTED} == {*JournalEvent} - {
            JournalEvent.CONFIGURED,
            JournalEvent.PAUSED,
            JournalEvent.RESUMED,
            JournalEvent.EDITED,
        }

    def test_every_fate_is_a_column_of_the_audit(self) -> None:
        names = BY_NAME["audit"].names
        assert names[names.index("acked") : names.index("unsent")] == FATES
