"""Computes gold from the journal and from silver, by pure functions DataFrame → DataFrame named after their table.

Rows of one send date (`dt`: the UTC date of sent_at, or of `at` where there is none) depend on rows of that date alone,
so a date can be recomputed by itself. Nothing here reads or writes: on failure the query fails and the caller decides.

Nothing depends on the session's time zone or on the order of rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.message import JournalEvent, State
from restante.spark import schemas
from restante.spark.columns import (
    FAILED,
    HOUR,
    MINUTE,
    REMOVED,
    SECOND,
    Keep,
    as_table,
    dated,
    how_many,
    start_of,
    state_before,
)
from restante.spark.schemas import COUNTED, FATES

#: Microseconds over which `drain` averages rates: a shorter window makes them jump, a longer one shows the past.
RATE_WINDOW = 15 * MINUTE
_MINUTE_KEYS = ("queue", "minute", "dt")


def tables(
    journal: DataFrame, messages: DataFrame, attempts: DataFrame, keep: Keep = lambda frame: frame
) -> dict[str, DataFrame]:
    """Every table of schemas.GOLD; with `keep` the journal's events are counted once for all tables that need it."""
    counts = keep(_counts(journal))
    return {
        "latency": latency(messages),
        "throughput": _throughput(counts),
        "retries": _retries(counts),
        "overdue": _overdue(counts),
        "causes": causes(journal),
        "consumers": consumers(attempts),
        "audit": audit(messages),
    }


def latency(messages: DataFrame) -> DataFrame:
    """Acked messages by queue, kind and the minute they were sent in; percentiles are exact, linear between ranks.

    +------+-----+-------------------+--------+----------------+---+------------------+----------+
    |queue |kind |minute             |messages|wait_p50_seconds|...|total_p99_seconds |dt        |
    +------+-----+-------------------+--------+----------------+---+------------------+----------+
    |orders|order|2025-11-14 09:00:00|312     |0.012           |...|1.93              |2025-11-14|
    +------+-----+-------------------+--------+----------------+---+------------------+----------+
    """
    words, shares = ("wait", "run", "total"), {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    grouped = (
        messages.where((F.col("fate") == "acked") & F.col("sent_at").isNotNull())
        .groupBy("queue", "kind", start_of(F.col("sent_at"), MINUTE).alias("minute"), "dt")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            *(F.percentile(f"{word}_seconds", [*shares.values()]).alias(word) for word in words),
        )
    )
    spread = {f"{word}_{name}_seconds": F.col(word)[index] for word in words for index, name in enumerate(shares)}
    return as_table(schemas.LATENCY, grouped.withColumns({**spread, "minute": F.timestamp_micros("minute")}))


def _counts(journal: DataFrame) -> DataFrame:
    """Counts events by all keys of the tables that count them: a few rows per minute, in one pass over the journal."""
    before = F.when(F.col("event").isin(*REMOVED), state_before(F.col("detail"))).otherwise("")
    keys = ("queue", "kind", "error_class", "event", "state", "dt")
    counted = (
        dated(journal)
        .where(F.col("event").isin(*COUNTED))
        .groupBy(*keys, start_of(F.col("at"), MINUTE).alias("minute"), before.alias("before"))
        .agg(F.count(F.lit(1)).alias("n"), F.max("attempts").alias("worst"))
    )
    return counted.withColumn("minute", F.timestamp_micros("minute"))


def _count_of(*events: str) -> Column:
    return F.sum(F.when(F.col("event").isin(*events), F.col("n")).otherwise(0))


def throughput(journal: DataFrame) -> DataFrame:
    """Events by queue and minute, and how they changed the counts of waiting and dead messages.

    +------+-------------------+----+--------+-----+---+----+-------------+----------+----------+
    |queue |minute             |sent|received|acked|...|died|waiting_delta|dead_delta|dt        |
    +------+-------------------+----+--------+-----+---+----+-------------+----------+----------+
    |orders|2025-11-14 09:00:00|320 |318     |312  |...|2   |6            |2         |2025-11-14|
    +------+-------------------+----+--------+-----+---+----+-------------+----------+----------+
    """
    return _throughput(_counts(journal))


def _throughput(counts: DataFrame) -> DataFrame:
    event, before = F.col("event"), F.col("before")
    died = event.isin(*FAILED) & (F.col("state") == State.DEAD)
    removed = event.isin(*REMOVED)
    waiting = (
        F.when(event.isin(JournalEvent.SENT, JournalEvent.REPLAYED), 1)
        .when((event == JournalEvent.ACKED) | died | (removed & ~before.isin(State.DEAD, State.DONE)), -1)
        .otherwise(0)
    )
    dead = F.when(died, 1).when((event == JournalEvent.REPLAYED) | (removed & (before == State.DEAD)), -1).otherwise(0)
    n = F.col("n")
    grouped = counts.groupBy(*_MINUTE_KEYS).agg(
        *(_count_of(event).alias(event) for event in COUNTED),
        F.sum(F.when(died, n).otherwise(0)).alias("died"),
        F.sum(waiting * n).alias("waiting_delta"),
        F.sum(dead * n).alias("dead_delta"),
    )
    return as_table(schemas.THROUGHPUT, grouped)


def retries(journal: DataFrame) -> DataFrame:
    """Failed attempts by queue, kind, error and minute.

    +------+-----+-----------+-------------------+------+-------+--------------+----------+
    |queue |kind |error_class|minute             |nacked|expired|worst_attempts|dt        |
    +------+-----+-----------+-------------------+------+-------+--------------+----------+
    |orders|order|KeyError   |2025-11-14 09:00:00|4     |0      |2             |2025-11-14|
    +------+-----+-----------+-------------------+------+-------+--------------+----------+
    """
    return _retries(_counts(journal))


def _retries(counts: DataFrame) -> DataFrame:
    failed = counts.where(F.col("event").isin(*FAILED)).groupBy(*_MINUTE_KEYS, "kind", "error_class")
    nacked, expired = _count_of(JournalEvent.NACKED, JournalEvent.BURIED), _count_of(JournalEvent.EXPIRED)
    worst = F.max("worst").alias("worst_attempts")
    return as_table(schemas.RETRIES, failed.agg(nacked.alias("nacked"), expired.alias("expired"), worst))


def overdue(journal: DataFrame) -> DataFrame:
    """Leases begun, extended and expired, by queue and minute.

    +------+-------------------+--------+--------+-------+----------+
    |queue |minute             |received|extended|expired|dt        |
    +------+-------------------+--------+--------+-------+----------+
    |orders|2025-11-14 09:00:00|318     |12      |1      |2025-11-14|
    +------+-------------------+--------+--------+-------+----------+
    """
    return _overdue(_counts(journal))


def _overdue(counts: DataFrame) -> DataFrame:
    events = (JournalEvent.RECEIVED, JournalEvent.EXTENDED, JournalEvent.EXPIRED)
    leases = counts.where(F.col("event").isin(*events)).groupBy(*_MINUTE_KEYS)
    return as_table(schemas.OVERDUE, leases.agg(*(_count_of(event).alias(event) for event in events)))


def causes(journal: DataFrame) -> DataFrame:
    """Why messages died, by queue, kind and error.

    +------+-----+-----------+------+----+-------------------+-------------------+----------+----------+
    |queue |kind |error_class|event |dead|first_at           |last_at            |example_id|dt        |
    +------+-----+-----------+------+----+-------------------+-------------------+----------+----------+
    |orders|order|KeyError   |buried|2   |2025-11-14 09:00:07|2025-11-14 17:12:40|01K…Z     |2025-11-14|
    +------+-----+-----------+------+----+-------------------+-------------------+----------+----------+
    """
    # Not from the counts: Spark cannot hash-aggregate the maximum of a text, and deaths are few.
    deaths = dated(journal).where(F.col("event").isin(*FAILED) & (F.col("state") == State.DEAD))
    grouped = deaths.groupBy("queue", "kind", "error_class", "event", "dt").agg(
        F.count(F.lit(1)).alias("dead"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.max("message_id").alias("example_id"),
    )
    return as_table(schemas.CAUSES, grouped)


def consumers(attempts: DataFrame) -> DataFrame:
    """Work of each consumer, by the minute in which leases ended.

    +--------+------+-------------------+------+-----+------+------------+----------+
    |consumer|queue |minute             |leases|acked|failed|busy_seconds|dt        |
    +--------+------+-------------------+------+-----+------+------------+----------+
    |shop-1  |orders|2025-11-14 09:00:00|160   |156  |4     |48.2        |2025-11-14|
    +--------+------+-------------------+------+-----+------+------------+----------+
    """
    ended_by = F.col("ended_by")
    # Whole microseconds, because a sum of doubles depends on the order of rows.
    busy = F.sum(F.unix_micros("ended_at") - F.unix_micros("received_at"))
    grouped = attempts.groupBy("consumer", "queue", start_of(F.col("ended_at"), MINUTE).alias("minute"), "dt").agg(
        F.count(F.lit(1)).alias("leases"),
        how_many(ended_by == JournalEvent.ACKED).alias("acked"),
        how_many(ended_by.isin(*FAILED)).alias("failed"),
        (busy / SECOND).alias("busy_seconds"),
    )
    return as_table(schemas.CONSUMERS, grouped.withColumn("minute", F.timestamp_micros("minute")))


def audit(messages: DataFrame) -> DataFrame:
    """Conservation by queue and the hour messages were sent in: the terms of `schemas.EQUATION`.

    Messages without their sent event have a fate too, but count as `unsent` only: otherwise a lake that began in the
    middle would never add up.

    +------+-------------+-------------------+-----+-----+----+-------+-------+---------+-------+------+----------+
    |queue |incarnation  |hour               |sent |acked|dead|expired|deleted|cancelled|waiting|unsent|dt        |
    +------+-------------+-------------------+-----+-----+----+-------+-------+---------+-------+------+----------+
    |orders|1762999999999|2025-11-14 09:00:00|19200|19178|12  |1      |3      |2        |4      |0     |2025-11-14|
    +------+-------------+-------------------+-----+-----+----+-------+-------+---------+-------+------+----------+
    """
    was_sent = F.col("was_sent")
    hour = start_of(F.coalesce("sent_at", "last_at"), HOUR).alias("hour")
    grouped = messages.groupBy("queue", "incarnation", hour, "dt").agg(
        how_many(was_sent).alias("sent"),
        *(how_many(was_sent & (F.col("fate") == fate)).alias(fate) for fate in FATES),
        how_many(~was_sent).alias("unsent"),
    )
    return as_table(schemas.AUDIT, grouped.withColumn("hour", F.timestamp_micros("hour")))


# -- summed over dates -------------------------------------------------------------------------------------------


def backlog(throughput: DataFrame) -> DataFrame:
    """How many messages were waiting and dead at the end of each minute in which either changed.

    Counts start at zero with the lake's first event, so those of a queue whose journal was trimmed before the lake
    began can fall below zero.

    +------+-------------------+-------+----+
    |queue |minute             |waiting|dead|
    +------+-------------------+-------+----+
    |orders|2025-11-14 09:00:00|6      |2   |
    +------+-------------------+-------+----+
    """
    so_far = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    changes = (
        throughput.groupBy("queue", "minute")
        .agg(F.sum("waiting_delta").alias("waiting"), F.sum("dead_delta").alias("dead"))
        .where((F.col("waiting") != 0) | (F.col("dead") != 0))
    )
    levels = changes.withColumns({name: F.sum(name).over(so_far) for name in ("waiting", "dead")})
    return as_table(schemas.BACKLOG, levels, by_date=False)


def drain(throughput: DataFrame) -> DataFrame:
    """How long until each queue is empty at the rates of the last minutes.

    +------+-------------------+-------+------------------+-----------------+-------------+
    |queue |at                 |waiting|arrival_per_second|settle_per_second|drain_seconds|
    +------+-------------------+-------+------------------+-----------------+-------------+
    |orders|2025-11-14 09:15:00|600    |5.0               |7.5              |240.0        |
    +------+-------------------+-------+------------------+-----------------+-------------+
    """
    end = throughput.agg((F.unix_micros(F.max("minute")) + MINUTE).alias("end"))
    recent = F.unix_micros("minute") >= F.col("end") - RATE_WINDOW
    arrived = F.col("sent") + F.col("replayed")
    sums = (
        throughput.crossJoin(F.broadcast(end))
        .groupBy("queue", "end")
        .agg(
            F.sum("waiting_delta").alias("waiting"),
            F.sum(F.when(recent, arrived).otherwise(0)).alias("arrived"),
            F.sum(F.when(recent, arrived - F.col("waiting_delta")).otherwise(0)).alias("departed"),
        )
    )
    waiting, arrived, departed = F.col("waiting"), F.col("arrived"), F.col("departed")
    seconds = RATE_WINDOW // SECOND
    rows = sums.select(
        "queue",
        "waiting",
        F.timestamp_micros("end").alias("at"),
        (arrived / seconds).alias("arrival_per_second"),
        (departed / seconds).alias("settle_per_second"),
        F.when(waiting == 0, 0.0)
        .when((waiting > 0) & (departed > arrived), waiting * seconds / (departed - arrived))
        .alias("drain_seconds"),
    )
    return as_table(schemas.DRAIN, rows, by_date=False)
