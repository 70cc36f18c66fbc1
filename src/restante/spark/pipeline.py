"""Runs the pipeline: streams the journal into bronze, then refreshes silver and gold for the dates that changed.

Every line counts exactly once, also after a crash: a repeated batch overwrites itself in bronze, silver and gold are
computed from bronze and overwrite whole dates, and the state is saved after the work. On failure: a server that is away
ends the query, which starts again after a growing pause; lost journal lines end the run.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.query import StreamingQuery

from restante.core import errors
from restante.core.errors import RestanteError, Unavailable
from restante.spark import gold, silver
from restante.spark.columns import dated
from restante.spark.coverage import Coverage, count_lines, coverage
from restante.spark.lake import EVENTS, Lake, State, now
from restante.spark.progress import RunProgress
from restante.spark.registration import READER, Registration
from restante.spark.report import write as write_report
from restante.spark.retention import Retention
from restante.spark.schemas import GOLD, JOURNAL, SILVER, SUMMED
from restante.spark.source import register

log = logging.getLogger("restante")

#: Most rows of one micro-batch: fewer pay its fixed cost more often, more need more memory per task.
BATCH_ROWS = 250_000
#: Compaction waits for this many refreshed batches: fewer make many small files, more keep many folders.
COMPACT_FROM = 16
#: Seconds between two reads of new lines, in continuous mode.
TRIGGER_SECONDS = 5.0
#: Seconds between two refreshes of silver and gold, in continuous mode.
REFRESH_SECONDS = 60.0
#: Seconds of the first and of the longest pause after a failure.
BACKOFF = (1.0, 60.0)
#: Tables written in parallel: with one, Spark's planning leaves cores idle; many compete for them.
AT_A_TIME = 2
#: Tables divided by date, by name.
TABLES = {table.name: table for table in (*SILVER, *GOLD)}


@dataclass(frozen=True)
class PipelineOptions:
    """The options of a pipeline."""

    url: str
    lake: str
    queues: str = "*"
    reader: str = READER
    batch_rows: int = BATCH_ROWS
    num_partitions: int = 0
    #: Seconds for which the source repeats calls to a server that is away, before the query ends and starts again.
    patience: float = 30.0
    fail_on_data_loss: bool = True
    compact_from: int = COMPACT_FROM
    #: Days of bronze and of silver to keep; 0 keeps all. Gold is small and stays.
    keep_bronze_days: int = 0
    keep_silver_days: int = 0
    #: The report to write after every refresh of silver and gold; none by default.
    report: str = ""
    trigger_seconds: float = TRIGGER_SECONDS
    refresh_seconds: float = REFRESH_SECONDS


@dataclass
class Summary:
    """The result of a run."""

    batches: int = 0
    rows: int = 0
    #: The last batch in `batches` and `rows`; -1 for none.
    last: int = -1
    dates: list[date] = field(default_factory=list)
    compacted: int = 0
    removed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    #: Journals of which the lake lacks lines: trimmed before its first line, or missing in between.
    incomplete: list[Coverage] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """Progress for callers: the name of the step, and how much of it is done."""

    name: str
    done: int
    total: int


class TableProgress:
    """Reports how many tables of a refresh are written."""

    def __init__(self, report: Callable[[Step], None]) -> None:
        self._report = report
        self._done = -1
        self.next()

    def next(self) -> None:
        self._done += 1
        self._report(Step("silver and gold", self._done, len(SILVER) + len(GOLD) + len(SUMMED)))


class Pipeline:
    """Fills one lake from one server by one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        options: PipelineOptions,
        *,
        progress: Callable[[Step], None] = lambda step: None,
        status: RunProgress | None = None,
    ) -> None:
        self.spark = spark
        self.options = options
        self.lake = Lake(options.lake)
        self._retention = Retention(self.lake, options.keep_bronze_days, options.keep_silver_days)
        self._progress = progress
        #: The progress that other processes see; a caller that reports before Spark starts passes its own.
        self.status = status or RunProgress(self.lake)
        register(spark)
        # Spark's default of 96 bits is deprecated in Parquet.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
        # Without this Spark sorts rows by date before it writes them, to keep fewer files open.
        spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", "50")

    # -- runs ----------------------------------------------------------------------------------------------------

    def run_once(self, *, stop: Callable[[], bool] = lambda: False) -> Summary:
        """Takes all lines that the journals have now through all tables, then returns."""
        with self._working() as summary:
            self._stream_until_done(summary, stop)
            self._run_later_steps(summary)
            self._end_run(summary)
            return summary

    def run_continuously(self, *, stop: Callable[[], bool] = lambda: False) -> Summary:
        """Runs until `stop` returns true: bronze every `trigger_seconds`, silver and gold every `refresh_seconds`."""
        failures = 0
        with self._working() as summary:
            while not stop():
                query = self._start(once=False)
                try:
                    refreshed = time.monotonic()
                    while query.isActive and not stop():
                        query.awaitTermination(timeout=1)
                        self._count_batches(summary)
                        if time.monotonic() - refreshed >= self.options.refresh_seconds:
                            self._run_later_steps(summary)
                            self._end_run(summary)
                            refreshed = time.monotonic()
                            failures = 0
                    if error := query.exception():
                        raise error
                except PySparkException as error:
                    failures = self._pause_or_raise(error, failures, stop)
                finally:
                    query.stop()
            self._run_later_steps(summary)
            self._end_run(summary)
            return summary

    @contextmanager
    def _working(self) -> Iterator[Summary]:
        """Locks the lake, keeps the reader registered and reports progress during the block."""
        reading = Registration(self.options.url, queues=self.options.queues, reader=self.options.reader)
        with self.status.running("bronze", report=bool(self.options.report)):
            self.lake.lock()
            try:
                self.lake.check()
                with reading:
                    summary = Summary(last=self._last_batch())
                    self.status.rows(0, _unread(reading))
                    yield summary
            finally:
                self.lake.unlock()

    def _report_step(self, step: Step) -> None:
        self.status.tell(step.name, step.done, step.total)
        self._progress(step)

    def _stream_until_done(self, summary: Summary, stop: Callable[[], bool]) -> None:
        failures = 0
        began = time.monotonic()
        while not stop():
            query = self._start(once=True)
            try:
                while query.isActive and not stop():
                    query.awaitTermination(timeout=1)
                    self._count_batches(summary)
                if error := query.exception():
                    raise error
                break
            except PySparkException as error:
                failures = self._pause_or_raise(error, failures, stop)
            finally:
                query.stop()
        self._count_batches(summary)
        summary.seconds["bronze"] = time.monotonic() - began

    def _pause_or_raise(self, error: PySparkException, failures: int, stop: Callable[[], bool]) -> int:
        """Waits before the next attempt; raises an error that another attempt would not cure."""
        failure = typed(error)
        if not isinstance(failure, Unavailable):
            raise failure from None
        pause = min(BACKOFF[0] * 2 ** min(failures, 10), BACKOFF[1])
        log.warning("stopped error=%s again_in=%.0f", type(failure).__name__, pause)
        self._report_step(Step(f"server away, trying again in {pause:.0f} s", 0, 0))
        until = time.monotonic() + pause
        while time.monotonic() < until and not stop():
            time.sleep(0.1)
        return failures + 1

    def _run_later_steps(self, summary: Summary) -> None:
        """Runs the steps after bronze and notes how long each takes."""
        self._count_batches(summary)
        for name, step in (("silver and gold", self.refresh), ("compact", self.compact), ("retention", self.retain)):
            began = time.monotonic()
            step(summary)
            summary.seconds[name] = summary.seconds.get(name, 0.0) + time.monotonic() - began

    def _end_run(self, summary: Summary) -> None:
        """Saves the result of the run in the state, and writes the report if the options name one."""
        state = self.lake.state()
        summary.incomplete = [journal for journal in coverage(state) if not journal.whole]
        state.last_run = {
            "ended_at": now(),
            "batches": summary.batches,
            "rows": summary.rows,
            "dates": [day.isoformat() for day in summary.dates],
            "seconds": summary.seconds,
        }
        self.lake.save(state)
        if self.options.report:
            self._report_step(Step("report", 0, 0))
            write_report(self.options.lake, Path(self.options.report))

    # -- bronze --------------------------------------------------------------------------------------------------

    def _start(self, *, once: bool) -> StreamingQuery:
        options: dict[str, Any] = {
            "url": self.options.url,
            "queues": self.options.queues,
            "reader": self.options.reader,
            "maxRowsPerBatch": self.options.batch_rows,
            "failOnDataLoss": self.options.fail_on_data_loss,
            "numPartitions": self.options.num_partitions,
            "patience": self.options.patience,
        }
        rows = self.spark.readStream.format("restante").options(**options).load()

        bronze = self.lake.path("bronze")

        def keep(batch: DataFrame, number: int) -> None:
            # With Spark Connect this runs in another process: it must not use this object.
            batch.write.mode("overwrite").parquet(f"{bronze}/batch={number}")

        writer = rows.writeStream.foreachBatch(keep).option(
            "checkpointLocation", self.lake.path("_checkpoints", "bronze")
        )
        trigger = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime=f"{self.options.trigger_seconds} seconds")
        )
        return trigger.queryName(f"restante-{self.options.reader}").start()

    def _last_batch(self) -> int:
        """The number of the last batch of earlier runs."""
        return max([*self.lake.batches(), self.lake.state().compacted])

    def _count_batches(self, summary: Summary) -> None:
        """Adds the batches that Spark committed since the last call to the summary."""
        for number in self.lake.batches():
            if number > summary.last:
                summary.last = number
                summary.batches += 1
                summary.rows += self._rows_in(number)
                self.status.rows(summary.rows)
                self._report_step(Step("bronze", summary.rows, 0))

    def _rows_in(self, batch: int) -> int:
        """The number of rows in a batch, from its files' footers."""
        files = ds.dataset(self.lake.at("bronze", f"batch={batch}"), filesystem=self.lake.files, format="parquet")
        return int(files.count_rows())

    # -- silver and gold -----------------------------------------------------------------------------------------

    def journal(self, state: State, dates: Sequence[date] | None = None) -> DataFrame:
        """Each row of bronze once, with its date of sending; of all dates or of some."""
        compact, later = self.lake.journal_paths(state, dates)
        schema = JOURNAL.ddl()
        parts = [self.spark.read.schema(schema).parquet(*paths) for paths in (compact, later) if paths]
        if not parts:
            return dated(self.spark.createDataFrame([], schema))
        rows = dated(reduce(DataFrame.unionByName, parts))
        return rows if dates is None else rows.where(col("dt").isin(list(dates)))

    def refresh(self, summary: Summary) -> None:
        """Recomputes silver and gold for the dates that new batches touch."""
        state = self.lake.state()
        if count_lines(self.lake, state):
            self.lake.save(state)
        fresh = [number for number in self.lake.batches() if number > max(state.folded, state.compacted)]
        if not fresh and not state.new_events():
            return
        written = TableProgress(self._report_step)
        touched = self._touched(fresh)
        removed = [day for day in touched if self._retention.is_removed(day)]
        dates = sorted({*touched, *self.outdated(state)}.difference(removed))
        if removed:
            state.too_late += sum(touched[day] for day in removed)
            log.warning("rows too late dates=%s", ",".join(map(str, removed)))
        if dates:
            rows = self.journal(state, dates)
            with _kept() as keep:
                messages, attempts = silver.tables(rows, keep)
                self._overwrite_all("silver", {"messages": messages, "attempts": attempts}, written)
            # Read back from the files just written, because keeping silver in memory costs more.
            messages, attempts = self._silver("messages", dates), self._silver("attempts", dates)
            with _kept() as keep:
                self._overwrite_all("gold", gold.tables(rows, messages, attempts, keep), written)
            self._write_summed(written)
        state.folded = max([state.folded, *fresh])
        state.events = sorted(EVENTS)
        self.lake.save(state)
        summary.dates = sorted({*summary.dates, *dates})

    def _touched(self, batches: Sequence[int]) -> dict[date, int]:
        """How many rows some batches have, by date of sending."""
        if not batches:
            return {}
        folders = [self.lake.path("bronze", f"batch={number}") for number in batches]
        rows = dated(self.spark.read.schema(JOURNAL.ddl()).parquet(*folders))
        return {row.dt: row["count"] for row in rows.groupBy("dt").count().collect()}

    def outdated(self, state: State) -> list[date]:
        """Dates of which an earlier version wrote silver and gold without events that this version knows."""
        new = state.new_events()
        if state.folded < 0 or not new:
            return []
        days = self.journal(state).where(col("event").isin(new)).select("dt").distinct().collect()
        return [row.dt for row in days if not self._retention.is_removed(row.dt)]

    def messages(self, state: State, tail: DataFrame | None = None) -> DataFrame:
        """The table `messages`; dates that are outdated, or have lines in `tail`, are computed again for this frame."""
        kept = self.table("silver", "messages")
        dates = {*self.outdated(state)}
        if tail is not None:
            dates |= {row.dt for row in tail.where(col("message_id") != "").select("dt").distinct().collect()}
        if not dates:
            return kept
        lines = self.journal(state, sorted(dates))
        if tail is not None:
            lines = lines.unionByName(tail.select(*lines.columns))
        return kept.where(~col("dt").isin(list(dates))).unionByName(silver.messages(lines).select(*kept.columns))

    def _silver(self, name: str, dates: Sequence[date]) -> DataFrame:
        rows = self.table("silver", name)
        return rows.where(col("dt").isin(list(dates)))

    def table(self, layer: str, name: str) -> DataFrame:
        """A table of silver or gold; one without files has its columns and no rows."""
        place = self.lake.path(layer, name)
        self.lake.files.create_dir(self.lake.at(layer, name), recursive=True)
        return self.spark.read.schema(f"{TABLES[name].ddl()}, dt date").parquet(place)

    def _overwrite_all(self, layer: str, frames: Mapping[str, DataFrame], written: TableProgress) -> None:
        """Writes several tables at a time: planning a small one takes longer than computing it, and uses one core."""
        with ThreadPoolExecutor(AT_A_TIME, "restante-refresh") as pool:
            writing = [pool.submit(self._overwrite, table, layer, name) for name, table in frames.items()]
            for write in as_completed(writing):
                write.result()
                written.next()

    def _overwrite(self, table: DataFrame, layer: str, name: str) -> None:
        """Replaces the dates for which the table has rows."""
        writer = table.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy("dt").parquet(self.lake.path(layer, name))

    def _write_summed(self, written: TableProgress) -> None:
        """Rewrites the tables that need all dates: small ones, computed from a small one."""
        throughput = self.table("gold", "throughput")
        for name, table in (("backlog", gold.backlog(throughput)), ("drain", gold.drain(throughput))):
            table.coalesce(1).write.mode("overwrite").parquet(self.lake.path("gold", name))
            written.next()

    # -- files ---------------------------------------------------------------------------------------------------

    def compact(self, summary: Summary) -> None:
        """Moves refreshed batches into few files by date of sending."""
        state = self.lake.state()
        if state.compacting:
            self._undo_compaction(state)
        ripe = [number for number in self.lake.batches() if state.compacted < number <= state.folded]
        for number in self.lake.batches():
            if number <= state.compacted:  # left by a crash after the state was saved
                self.lake.remove("bronze", f"batch={number}")
        if len(ripe) < self.options.compact_from:
            return
        first, last = ripe[0], ripe[-1]
        self._report_step(Step("compact", 0, len(ripe)))
        state.compacting = [first, last]
        self.lake.save(state)
        folders = [self.lake.path("bronze", f"batch={number}") for number in ripe]
        rows = dated(self.spark.read.schema(JOURNAL.ddl()).parquet(*folders))
        staging = f"_compacting/{first}-{last}"
        rows.repartition("dt").sortWithinPartitions("queue", "position").write.mode("overwrite").partitionBy(
            "dt"
        ).parquet(self.lake.path(staging))
        self._place(staging, first, last)
        state.compacting, state.compacted = [], last
        self.lake.save(state)
        for number in ripe:
            self.lake.remove("bronze", f"batch={number}")
        self.lake.remove("_compacting")
        summary.compacted += len(ripe)

    def _place(self, staging: str, first: int, last: int) -> None:
        """Moves the compacted files into place, under names that say which batches they hold."""
        count = 0
        for info in sorted(self.lake.listing(staging, recursive=True), key=lambda info: info.path):
            match = re.search(r"/(dt=[^/]+)/[^/]+\.parquet$", info.path)
            if match:
                self.lake.files.create_dir(self.lake.at("bronze_compact", match[1]), recursive=True)
                name = f"compact-{first}-{last}-{count}.parquet"
                self.lake.files.move(info.path, self.lake.at("bronze_compact", match[1], name))
                count += 1

    def _undo_compaction(self, state: State) -> None:
        """Removes the files of a compaction that a crash interrupted: its batches are still in bronze."""
        first, last = state.compacting
        for info in self.lake.listing("bronze_compact", recursive=True):
            if f"/compact-{first}-{last}-" in info.path:
                self.lake.remove_file(info.path)
        state.compacting = []
        self.lake.save(state)

    def retain(self, summary: Summary) -> None:
        """Removes the dates that are older than the options keep."""
        summary.removed += self._retention.run()


@contextmanager
def _kept() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Yields a function that persists a frame until the block ends, for frames that several tables come from."""
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist())
        return kept[-1]

    try:
        yield keep
    finally:
        for frame in kept:
            frame.unpersist()


def _unread(reading: Registration) -> int:
    """The number of unread lines; 0 while the server is away, which the stream then reports."""
    try:
        return reading.unread()
    except Unavailable:
        return 0


def typed(error: BaseException) -> RestanteError:
    """The typed error behind a Spark error: Spark passes a Python error on as text."""
    text = str(error)
    match = re.search(r"restante\.core\.errors\.(\w+): (.*)", text)
    kind = getattr(errors, match[1], None) if match else None
    if match and isinstance(kind, type) and issubclass(kind, RestanteError):
        return kind(match[2].strip())
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return RestanteError(f"Spark stopped: {first.strip()}")
