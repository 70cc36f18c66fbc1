"""Loads the figures of a report from the gold tables of a lake, merged over send dates and divided into time buckets.

It needs Arrow but no Spark session. A table that the lake does not have yet leaves its figures empty. On failure: a
table that cannot be read is read again, because a running pipeline replaces files, and then raises `RestanteError`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from restante.core.errors import InvalidInput, RestanteError
from restante.spark import schemas
from restante.spark.coverage import coverage
from restante.spark.lake import Lake
from restante.spark.report.model import (
    ALL,
    NOW,
    QUANTILES,
    WORDS,
    AuditRow,
    Axis,
    Cause,
    ConsumerFigures,
    Drain,
    Failure,
    Figures,
    Percentiles,
    QueueFigures,
)

#: Fewest failed attempts of a minute with a retry storm: on a quiet queue a few can exceed the acks by chance.
STORM_FAILED = 10
#: Share of a row's messages that each percentile stands for when rows are merged: those between the percentile before
#: and this one; the last also stands for those above it.
SHARES = {"p50": 0.50, "p95": 0.45, "p99": 0.05}
#: Bins per decade, to which merged percentiles are exact. More bins cost time, fewer cost precision.
BINS = 50
#: Greater than the number of bins of all decades together.
PLACES = 1024
#: Attempts to read a table, and seconds between them: files may be replaced between listing and reading. With too few a
#: report fails while the pipeline writes; each adds its pause to the report of a new lake.
TRIES = 5
PAUSE = 0.4


def open_lake(root: str) -> Lake:
    """Opens an existing lake."""
    try:
        lake = Lake(root)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInput(f"{root} is not a valid address of a lake: {error}") from error
    if not lake.exists():
        raise InvalidInput(f"there is no lake at {root}: name the folder the pipeline writes to")
    return lake


def read(lake: Lake, table: schemas.Table, names: Iterable[str], keep: ds.Expression | None = None) -> pa.Table | None:
    """Reads columns of a gold table, all dates together; None if the lake does not have it."""
    for last in (*(False,) * (TRIES - 1), True):
        try:
            if lake.exists("gold", table.name):
                place = lake.at("gold", table.name)
                dataset = ds.dataset(place, schema=table.arrow(), format="parquet", filesystem=lake.files)
                if dataset.files:
                    return _counted(dataset.to_table(columns=list(names), filter=keep))
            # A table that is rewritten as a whole is absent meanwhile.
            if last or table not in schemas.SUMMED or not lake.exists("gold", schemas.THROUGHPUT.name):
                return None
        except (OSError, pa.ArrowInvalid) as error:
            if last:
                raise RestanteError(f"cannot read gold/{table.name} of {lake.uri}: {error}") from error
        time.sleep(PAUSE)
    raise AssertionError("the last try returns or raises")


def _counted(table: pa.Table) -> pa.Table:
    """Counts are 0 where an earlier version wrote a file without their column."""
    for place, field in enumerate(table.schema):
        if pa.types.is_integer(field.type) and table[place].null_count:
            table = table.set_column(place, field, pc.fill_null(table[place], 0))
    return table


#: Columns to read of each table by minute.
_READ = {
    schemas.THROUGHPUT: (
        "queue",
        "minute",
        "sent",
        "acked",
        "nacked",
        "buried",
        "expired",
        "replayed",
        "received",
        "died",
        "waiting_delta",
    ),
    schemas.LATENCY: (
        "queue",
        "minute",
        "messages",
        *(f"{word}_{name}_seconds" for word in WORDS for name in QUANTILES),
    ),
    schemas.RETRIES: ("queue", "error_class", "minute", "nacked", "expired", "worst_attempts"),
    schemas.OVERDUE: ("queue", "minute", "received", "expired"),
    schemas.CONSUMERS: ("consumer", "queue", "minute", "leases", "acked", "failed", "busy_seconds"),
    schemas.BACKLOG: ("queue", "minute", "waiting", "dead"),
}


def load_figures(lake: Lake, since: datetime | None = None, until: datetime | None = None) -> Figures:
    """Loads the figures of the whole lake, or of the events between `since` and `until`."""
    tables = {table.name: read(lake, table, names, _span(table, since, until)) for table, names in _READ.items()}
    causes = read(lake, schemas.CAUSES, schemas.CAUSES.names, _until("first_at", until))
    audit = read(lake, schemas.AUDIT, schemas.AUDIT.names, _until("hour", until))
    drain = read(lake, schemas.DRAIN, schemas.DRAIN.names)
    every = {**tables, "causes": causes, "audit": audit, "drain": drain}
    present = frozenset(name for name, table in every.items() if table is not None)
    figures = Figures(frozenset(every), present)
    figures.incomplete = [journal for journal in coverage(lake.state()) if not journal.whole]
    axis = figures.axis = _extent(tables, since)
    if axis is None:
        return figures
    queues: dict[str, QueueFigures] = defaultdict(lambda: QueueFigures(ALL))
    _count(queues, axis, tables)
    _storm(queues, axis, tables["retries"], tables["throughput"])
    _time(queues, axis, tables["latency"])
    _level(queues, axis, tables["backlog"], tables["throughput"])
    _drain(queues, axis, drain)
    figures.failures = _failures(tables["retries"])
    figures.recent_failures = _failures(_after(tables["retries"], axis.end - NOW))
    figures.consumers = _consumers(axis, tables["consumers"])
    figures.causes = _causes(causes, axis)
    figures.audit = _audit(audit, axis)
    listed = {cause.queue for cause in figures.causes} | {row.queue for row in figures.audit}
    for name in listed.union({ALL}, queues, *(consumer.queues for consumer in figures.consumers)):
        queues[name].name = name
    figures.everything = queues.pop(ALL)
    figures.queues = dict(queues)
    return figures


# -- reading and cutting ---------------------------------------------------------------------------------------------


def _seconds(column: Any) -> Any:
    return pc.divide(pc.cast(column, pa.int64()), 1_000_000)


def _moment(at: datetime) -> pa.Scalar[Any]:
    if at.tzinfo is None:
        raise InvalidInput(f"{at} has no time zone: give since and until as aware datetimes")
    return pa.scalar(at.astimezone(UTC), schemas.INSTANT)


def _until(column: str, until: datetime | None) -> ds.Expression | None:
    return None if until is None else pc.field(column) < _moment(until)


def _span(table: schemas.Table, since: datetime | None, until: datetime | None) -> ds.Expression | None:
    # The backlog has rows where it changes: its value at the start of the period is in an earlier row.
    keep = _until("minute", until)
    if since is None or table is schemas.BACKLOG:
        return keep
    later = pc.field("minute") >= _moment(since)
    return later if keep is None else keep & later


def _extent(tables: dict[str, pa.Table | None], since: datetime | None) -> Axis | None:
    """The period from the first to the last minute with an event."""
    least, most = [], []
    for name, table in tables.items():
        if table is not None and table.num_rows:
            ends = pc.min_max(_seconds(table["minute"])).as_py()
            # A backlog begins before the period, and ends with the throughput from which it is computed.
            least += [] if name == "backlog" and since is not None else [ends["min"]]
            most.append(ends["max"])
    if not least:
        return None
    return Axis.over(min(least), max(most) + 60)


def _indexed(table: pa.Table, axis: Axis) -> pa.Table:
    """Adds a column `bucket`; rows before the first bucket get -1."""
    seconds = pc.subtract(_seconds(table["minute"]), axis.first)
    return table.append_column("bucket", pc.if_else(pc.less(seconds, 0), -1, pc.divide(seconds, axis.step)))


def _after(table: pa.Table | None, begin: int) -> pa.Table | None:
    return None if table is None else table.filter(pc.greater_equal(_seconds(table["minute"]), begin))


def _grouped(table: pa.Table, keys: Sequence[str], sums: Sequence[str], **others: str) -> list[dict[str, Any]]:
    """Rows by key, with the sums of some columns and other aggregates of others, each under the column's name."""
    wanted = {**dict.fromkeys(sums, "sum"), **others}
    grouped = table.group_by(list(keys)).aggregate(list(wanted.items()))
    names = {f"{column}_{how}": column for column, how in wanted.items()}
    renamed = grouped.rename_columns([names.get(name, name) for name in grouped.column_names])
    rows: list[dict[str, Any]] = renamed.to_pylist()
    return rows


# -- counts ----------------------------------------------------------------------------------------------------------

#: Series by bucket, from a column of each table. `failed` is the sum of three.
_COUNTED = {
    "throughput": {
        "sent": "sent",
        "acked": "acked",
        "died": "died",
        "replayed": "replayed",
        "change": "waiting_delta",
        "received": "received",
        "failed": "failed",
    },
    "retries": {"nacked": "nacked", "expired": "expired"},
    "overdue": {"begun": "received", "overdue": "expired"},
}


def _count(queues: dict[str, QueueFigures], axis: Axis, tables: dict[str, pa.Table | None]) -> None:
    for table_name, columns in _COUNTED.items():
        table = tables[table_name]
        if table is None:
            continue
        if table_name == "throughput":
            failed = pc.add(pc.add(table["nacked"], table["buried"]), table["expired"])
            table = table.append_column("failed", failed)
        for row in _grouped(_indexed(table, axis), ("queue", "bucket"), tuple(columns.values())):
            for name in (row["queue"], ALL):
                for series, column in columns.items():
                    values = queues[name].counts.setdefault(series, [0] * axis.count)
                    values[row["bucket"]] += row[column] or 0
        recent = _after(table, axis.end - NOW)
        assert recent is not None
        for row in _grouped(recent, ("queue",), tuple(columns.values())):
            for name in (row["queue"], ALL):
                for series, column in columns.items():
                    queues[name].recent[series] = queues[name].recent.get(series, 0) + (row[column] or 0)


def _storm(queues: dict[str, QueueFigures], axis: Axis, retries: pa.Table | None, sent: pa.Table | None) -> None:
    """Counts the minutes of each bucket in which many attempts failed, and more failed than were acked."""
    if retries is None:
        return
    failed = retries.group_by(["queue", "minute"]).aggregate([("nacked", "sum"), ("expired", "sum")])
    failed = failed.append_column("failed", pc.add(failed["nacked_sum"], failed["expired_sum"]))
    failed = failed.filter(pc.greater_equal(failed["failed"], STORM_FAILED))
    if sent is not None and failed.num_rows:
        concerned = sent.filter(pc.is_in(sent["minute"], value_set=pc.unique(failed["minute"])))
        acked = concerned.group_by(["queue", "minute"]).aggregate([("acked", "sum")])
        failed = failed.join(acked, keys=["queue", "minute"])
        failed = failed.filter(pc.greater(failed["failed"], pc.fill_null(failed["acked_sum"], 0)))
    for row in _grouped(_indexed(failed, axis), ("queue", "bucket"), (), minute="count"):
        for name in (row["queue"], ALL):
            figure = queues[name]
            figure.storms = figure.storms or [0] * axis.count
            figure.storms[row["bucket"]] += row["minute"]
    recent = _after(failed, axis.end - NOW)
    assert recent is not None
    for row in _grouped(recent, ("queue",), (), minute="count"):
        queues[row["queue"]].recent_storms = row["minute"]


# -- latency ---------------------------------------------------------------------------------------------------------


def _time(queues: dict[str, QueueFigures], axis: Axis, table: pa.Table | None) -> None:
    if table is None or not table.num_rows:
        return
    table = _indexed(table, axis)
    coded = table["queue"].combine_chunks().dictionary_encode()
    names = coded.dictionary.to_pylist()
    cell = pc.add(pc.multiply(pc.cast(coded.indices, pa.int64()), axis.count), table["bucket"])
    for word in WORDS:
        pieces = _pieces(table, word, cell)
        for number, merged in _merged(pieces, pieces["cell"]).items():
            latency = queues[names[number // axis.count]].latency
            latency.setdefault(word, [None] * axis.count)[number % axis.count] = merged
        queue = pc.divide(pieces["cell"], axis.count)
        for number, merged in _merged(pieces, queue).items():
            queues[names[number]].percentiles[word] = merged
        # Arrow has no remainder.
        bucket = pc.subtract(pieces["cell"], pc.multiply(queue, axis.count))
        together = queues[ALL].latency.setdefault(word, [None] * axis.count)
        for number, merged in _merged(pieces, bucket).items():
            together[number] = merged
        for merged in _merged(pieces, pc.multiply(bucket, 0)).values():
            queues[ALL].percentiles[word] = merged


def _pieces(table: pa.Table, word: str, cell: Any) -> pa.Table:
    """Divides each row's messages into three pieces, one per percentile, and merges pieces of nearly equal value.

    A cell is one bucket of one queue. Cell and bin of the value make one number, because Arrow groups by it several
    times as fast as by three columns.
    """
    cuts = []
    for name, part in SHARES.items():
        value = table[f"{word}_{name}_seconds"]
        # From a microsecond to thirty years, so that the bin is never negative and always below `PLACES`.
        bounded = pc.min_element_wise(pc.max_element_wise(value, 1e-6, skip_nulls=False), 1e9, skip_nulls=False)
        place = pc.cast(pc.floor(pc.multiply(pc.add(pc.log10(bounded), 6), BINS)), pa.int64())
        columns = [pc.add(pc.multiply(cell, PLACES), place), pc.multiply(table["messages"], part), value]
        cuts.append(pa.table(columns, names=["code", "messages", "value"]))
    pieces = _gathered(pa.concat_tables(cuts).drop_null())
    cells = pc.divide(pieces["code"], PLACES)
    place = pc.subtract(pieces["code"], pc.multiply(cells, PLACES))
    return pieces.append_column("cell", cells).append_column("place", place)


def _gathered(pieces: pa.Table) -> pa.Table:
    grouped = pieces.group_by("code").aggregate([("messages", "sum"), ("value", "max")])
    return grouped.rename_columns(["code", "messages", "value"])


def _merged(pieces: pa.Table, key: Any) -> dict[int, Percentiles]:
    """Percentiles of all pieces of each key.

    The percentile of a union is neither the mean nor the maximum of its parts' percentiles: a slow kind of ten messages
    would stand for a fast one of ten thousand. Weighted pieces return a single part's own percentiles; for many parts
    the result is at most slightly too high.
    """
    code = pc.add(pc.multiply(key, PLACES), pieces["place"])
    rows = _gathered(pieces.set_column(0, "code", code)).sort_by("code").combine_chunks()
    runs = pc.run_end_encode(pc.divide(rows["code"], PLACES).combine_chunks())
    values, weights = rows["value"].to_pylist(), rows["messages"].to_pylist()
    percentiles: dict[int, Percentiles] = {}
    begin = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        percentiles[number] = quantiles(values[begin:end], weights[begin:end])
        begin = end
    return percentiles


def quantiles(values: list[float], weights: list[float]) -> Percentiles:
    """The percentiles of weighted values in ascending order: the least value at which enough weight has accumulated."""
    gathered = list(accumulate(weights))
    # Weights are products of fractions: a rounding error must not let their sum miss the mark.
    marks = {name: quantile * gathered[-1] * (1 - 1e-9) for name, quantile in QUANTILES.items()}
    return {name: values[bisect_left(gathered, mark)] for name, mark in marks.items()}


# -- levels ----------------------------------------------------------------------------------------------------------


def _level(queues: dict[str, QueueFigures], axis: Axis, table: pa.Table | None, sent: pa.Table | None) -> None:
    """Waiting and dead at the end of each bucket, carried over where nothing changed, and the most waiting in it."""
    if table is None:
        return
    rows = _indexed(table.sort_by("minute"), axis).group_by(["queue", "bucket"], use_threads=False)
    levels = rows.aggregate([("waiting", "last"), ("waiting", "max"), ("dead", "last")]).sort_by("bucket").to_pylist()
    by_queue: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
    for row in levels:
        by_queue[row["queue"]][row["bucket"]] = row
    everything = queues[ALL]
    everything.waiting, everything.dead = [0] * axis.count, [0] * axis.count
    before = 0
    for name, rows_by_bucket in by_queue.items():
        start = rows_by_bucket.get(-1, {"waiting_last": 0, "dead_last": 0})
        waiting, dead = start["waiting_last"], start["dead_last"]
        before += waiting
        figure = queues[name]
        for bucket in range(axis.count):
            row = rows_by_bucket.get(bucket, {"waiting_max": waiting, "waiting_last": waiting, "dead_last": dead})
            figure.peak.append(max(waiting, row["waiting_max"]))
            waiting, dead = row["waiting_last"], row["dead_last"]
            figure.waiting.append(waiting)
            figure.dead.append(dead)
            everything.waiting[bucket] += waiting
            everything.dead[bucket] += dead
    if sent is not None:
        everything.peak = _peak(axis, before, sent)


def _peak(axis: Axis, before: int, sent: pa.Table) -> list[int]:
    """The most waiting in all queues at once, which is not the sum of their peaks: those come at different times."""
    changes = _indexed(sent, axis).group_by(["bucket", "minute"]).aggregate([("waiting_delta", "sum")])
    by_bucket: dict[int, list[int]] = defaultdict(list)
    for row in changes.sort_by("minute").to_pylist():
        by_bucket[row["bucket"]].append(row["waiting_delta_sum"])
    level, peaks = before, []
    for bucket in range(axis.count):
        highest = level
        for change in by_bucket.get(bucket, ()):
            level += change
            highest = max(highest, level)
        peaks.append(highest)
    return peaks


def _drain(queues: dict[str, QueueFigures], axis: Axis, table: pa.Table | None) -> None:
    """The lake's own estimate if the report ends with the lake; otherwise the same estimate at the report's end."""
    rows = [] if table is None else table.to_pylist()
    for row in rows:
        if row["at"].timestamp() == axis.end:
            rates = row["arrival_per_second"], row["settle_per_second"]
            queues[row["queue"]].drain = Drain(row["waiting"], *rates, row["drain_seconds"])
    window = min(NOW, axis.end - axis.begin)
    for figure in queues.values():
        if figure.drain is None and figure.waiting and "sent" in figure.counts:
            arrived = figure.recent.get("sent", 0) + figure.recent.get("replayed", 0)
            departed = arrived - figure.recent.get("change", 0)
            figure.drain = estimate(figure.waiting[-1], arrived / window, departed / window)


def estimate(waiting: int, arrival: float, settle: float) -> Drain:
    """Estimates how long it takes until nothing waits, at these rates."""
    if waiting <= 0:
        return Drain(waiting, arrival, settle, 0.0)
    return Drain(waiting, arrival, settle, waiting / (settle - arrival) if settle > arrival else None)


# -- lists -----------------------------------------------------------------------------------------------------------


def _failures(table: pa.Table | None) -> list[Failure]:
    if table is None:
        return []
    rows = _grouped(table, ("queue", "error_class"), ("nacked", "expired"), worst_attempts="max")
    failures = [Failure(**row) for row in rows]
    return sorted(failures, key=lambda failure: (-failure.failed, failure.queue, failure.error_class))


def _causes(table: pa.Table | None, axis: Axis) -> list[Cause]:
    if table is None:
        return []
    table = table.filter(pc.greater_equal(_seconds(table["last_at"]), axis.begin))
    others = {"first_at": "min", "last_at": "max", "example_id": "max"}
    rows = _grouped(table, ("queue", "kind", "error_class", "event"), ("dead",), **others)
    return sorted((Cause(**row) for row in rows), key=lambda cause: (-cause.dead, cause.queue, cause.error_class))


def _consumers(axis: Axis, table: pa.Table | None) -> list[ConsumerFigures]:
    if table is None:
        return []
    by_name: dict[str, ConsumerFigures] = {}
    for row in _grouped(table, ("consumer", "queue"), ("leases", "acked", "failed", "busy_seconds")):
        consumer = by_name.setdefault(row["consumer"], ConsumerFigures(row["consumer"], load=[0.0] * axis.count))
        consumer.queues.add(row["queue"])
        consumer.leases += row["leases"]
        consumer.acked += row["acked"]
        consumer.failed += row["failed"]
        consumer.busy_seconds += row["busy_seconds"]
    for row in _grouped(_indexed(table, axis), ("consumer", "bucket"), ("busy_seconds",)):
        by_name[row["consumer"]].load[row["bucket"]] = row["busy_seconds"] / 60 / axis.minutes(row["bucket"])
    return sorted(by_name.values(), key=lambda consumer: (-consumer.busy_seconds, consumer.name))


def _audit(table: pa.Table | None, axis: Axis) -> list[AuditRow]:
    if table is None:
        return []
    # An hour that begins before the period reaches into it.
    table = table.filter(pc.greater(_seconds(table["hour"]), axis.begin - 3600))
    sums = ("sent", *schemas.FATES, "unsent")
    # By incarnation too: a surplus of one must not hide a deficit of another.
    rows = [AuditRow(**row) for row in _grouped(table, ("queue", "incarnation", "hour"), sums)]
    return sorted(rows, key=lambda row: (row.hour, row.queue, row.incarnation))
