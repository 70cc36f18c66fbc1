"""Defines the column expressions that silver and gold share: instants, fates, and the date of a row.

Nothing here reads or writes: on failure the query fails and the caller decides.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.message import JournalEvent, State
from restante.spark.schemas import Table

#: Applied to a frame from which several tables are computed: `persist`, or nothing.
Keep = Callable[[DataFrame], DataFrame]

#: Microseconds: Spark's precision of an instant.
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

#: States of a message that still has work to do.
WAITING = (State.READY, State.SCHEDULED, State.RETRYING, State.LEASED)
#: Events by which an operator ends a lease: their author is not the consumer that held it.
STOPPED = (JournalEvent.REVOKED, JournalEvent.CANCELLED)
#: Events that end a lease. Of the cancelled messages only some were leased.
ENDINGS = (
    JournalEvent.ACKED,
    JournalEvent.NACKED,
    JournalEvent.BURIED,
    JournalEvent.RELEASED,
    JournalEvent.EXPIRED,
    *STOPPED,
)
#: Events that end a failed attempt.
FAILED = (JournalEvent.NACKED, JournalEvent.BURIED, JournalEvent.EXPIRED)
#: Events that remove a message without an ack; `detail` begins with its state before.
REMOVED = (JournalEvent.DELETED, JournalEvent.PURGED, JournalEvent.CANCELLED)
#: Events that do not change the fate.
PASSING = (JournalEvent.EDITED, JournalEvent.EXTENDED)


def start_of(instant: Column, length: int) -> Column:
    """Start of the minute, hour or day, in microseconds; `date_trunc` is slower and depends on the session's zone."""
    micros = F.unix_micros(instant)
    return micros - F.pmod(micros, F.lit(length))


def seconds_between(begin: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(begin)) / SECOND


def how_many(condition: Column) -> Column:
    """How many rows meet a condition."""
    return F.sum(F.when(condition, 1).otherwise(0))


def state_before(detail: Column) -> Column:
    """The state of a message before its removal: the first word of `detail`; an unknown one counts as waiting."""
    return F.substring_index(detail, ",", 1)


def as_table(table: Table, frame: DataFrame, *, by_date: bool = True) -> DataFrame:
    """The table's columns in their order and types, then the date."""
    columns = [F.col(name).cast(table.spark_type(name)).alias(name) for name in table.names]
    return frame.select(*columns, *(["dt"] if by_date else []))


def dated(journal: DataFrame) -> DataFrame:
    """Adds the date under which the lake keeps each journal row: that of sent_at, else of `at`.

    +------+-----+-------------------+-------------------+----------+
    |queue |event|at                 |sent_at            |dt        |
    +------+-----+-------------------+-------------------+----------+
    |orders|acked|2025-11-15 00:00:02|2025-11-14 23:59:58|2025-11-14|
    +------+-----+-------------------+-------------------+----------+
    """
    if "dt" in journal.columns:
        return journal
    day = start_of(F.coalesce("sent_at", "at"), DAY) / DAY
    return journal.withColumn("dt", F.date_from_unix_date(day.cast("int")))
