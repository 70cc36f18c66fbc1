"""Computes every table of the lake from the journal: pure functions DataFrame → DataFrame, named after their table.

Rows of one send date (`dt`: the UTC date of sent_at, or of `at` where there is none) depend on rows of that date alone,
so a date can be recomputed by itself. Nothing here reads or writes: on failure the query fails and the caller decides.

Nothing depends on the session's time zone or on the order of rows: `position` orders the life of a message.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.message import JournalEvent, State
from restante.spark import schemas
from restante.spark.schemas import COUNTED, Table

#: Applied to a frame from which several tables are computed: `persist`, or nothing.
Keep = Callable[[DataFrame], DataFrame]

#: Microseconds: Spark's precision of an instant.
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
#: Microseconds over which `drain` averages rates: a shorter window makes them jump, a longer one shows the past.
RATE_WINDOW = 15 * MINUTE

#: Values of `messages.fate`: what became of a message.
FATES = ("waiting", "acked", "dead", "expired", "deleted")
#: States of a message that still has work to do.
WAITING = (State.READY, State.SCHEDULED, State.RETRYING, State.LEASED)
#: Events that end a lease.
ENDINGS = (JournalEvent.ACKED, JournalEvent.NACKED, JournalEvent.BURIED, JournalEvent.RELEASED, JournalEvent.EXPIRED)
#: Events that end a failed attempt.
FAILED = (JournalEvent.NACKED, JournalEvent.BURIED, JournalEvent.EXPIRED)
#: Events by which an operator removes a message; `detail` begins with its state before.
REMOVED = (JournalEvent.DELETED, JournalEvent.PURGED)
#: Events that do not change the fate.
PASSING = (JournalEvent.EDITED, JournalEvent.EXTENDED)

# Words become numbers in the shuffle, because numbers are cheaper to copy and compare.
_EVENTS = tuple(event.value for event in JournalEvent)
_STATES = (*(state.value for state in State), "gone")
# The key of one life of a message. The time comes first: sorting compares it as a number, and it is nearly unique.
# `dt` is part of it for lines without sent_at (of a damaged message), which would otherwise join across dates.
_LIFE = ("sent_at", "message_id", "queue", "incarnation", "dt")
_MINUTE_KEYS = ("queue", "minute", "dt")


# -- columns -----------------------------------------------------------------------------------------------------


def _number(word: Column, words: tuple[str, ...]) -> Column:
    chosen = F.when(word == words[0], 0)
    for number, other in enumerate(words[1:], 1):
        chosen = chosen.when(word == other, number)
    return chosen


def _word(number: Column, words: tuple[str, ...]) -> Column:
    return F.element_at(F.array(*(F.lit(word) for word in words)), number + 1)


def _begin(instant: Column, length: int) -> Column:
    """Start of the minute, hour or day, in microseconds; `date_trunc` is slower and depends on the session's zone."""
    micros = F.unix_micros(instant)
    return micros - F.pmod(micros, F.lit(length))


def _seconds(begin: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(begin)) / SECOND


def _amount(condition: Column) -> Column:
    """How many rows meet a condition."""
    return F.sum(F.when(condition, 1).otherwise(0))


def _before(detail: Column) -> Column:
    """The state of a message before its removal: the first word of `detail`; an unknown one counts as waiting."""
    return F.substring_index(detail, ",", 1)


def _as(table: Table, frame: DataFrame, *, by_date: bool = True) -> DataFrame:
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
    day = _begin(F.coalesce("sent_at", "at"), DAY) / DAY
    return journal.withColumn("dt", F.date_from_unix_date(day.cast("int")))


# -- silver ------------------------------------------------------------------------------------------------------


def silver(journal: DataFrame, keep: Keep = lambda frame: frame) -> tuple[DataFrame, DataFrame]:
    """Messages and attempts; with `keep` their common input is computed once."""
    # As one column: Spark's cache compresses each column and collects its extremes, at five times the cost.
    lives = keep(_lives(journal).select(F.struct("*").alias("life"))).select("life.*")
    return _messages(lives), _attempts(lives)


def messages(journal: DataFrame) -> DataFrame:
    """One row per message: its life so far.

    +------+----------+-------------------+--------+-----+----------+------------+-----------+----------+
    |queue |message_id|sent_at            |was_sent|fate |deliveries|wait_seconds|run_seconds|dt        |
    +------+----------+-------------------+--------+-----+----------+------------+-----------+----------+
    |orders|01K…A     |2025-11-14 09:00:00|true    |acked|2         |0.004       |1.25       |2025-11-14|
    +------+----------+-------------------+--------+-----+----------+------------+-----------+----------+
    """
    return _messages(_lives(journal))


def attempts(journal: DataFrame) -> DataFrame:
    """One row per ended lease whose start and end are both in the journal.

    +------+----------+--------+-------+-----------------------+-----------------------+--------+-----------+
    |queue |message_id|consumer|attempt|received_at            |ended_at               |ended_by|run_seconds|
    +------+----------+--------+-------+-----------------------+-----------------------+--------+-----------+
    |orders|01K…A     |shop-1  |1      |2025-11-14 09:00:00.004|2025-11-14 09:00:01.004|nacked  |1.0        |
    |orders|01K…A     |shop-2  |2      |2025-11-14 09:00:06    |2025-11-14 09:00:06.25 |acked   |0.25       |
    +------+----------+--------+-------+-----------------------+-----------------------+--------+-----------+
    """
    return _attempts(_lives(journal))


def _lines(journal: DataFrame) -> DataFrame:
    """Columns of the lines about messages that silver needs, with words as numbers."""
    event, state = F.col("event"), F.col("state")
    fate = (
        F.when(state.isin(*WAITING), "waiting")
        .when(event.isin(*REMOVED), F.when(_before(F.col("detail")) == State.DONE, "acked").otherwise("deleted"))
        .when((state == State.DEAD) & (event == JournalEvent.EXPIRED), "expired")
        .when(state == State.DEAD, "dead")
        .otherwise("acked")
    )
    return (
        dated(journal)
        .where(F.col("message_id") != "")
        .select(
            *_LIFE,
            "position",
            "at",
            "kind",
            "priority",
            "size",
            "attempts",
            "consumer",
            "error_class",
            _number(event, _EVENTS).alias("event"),
            _number(state, _STATES).alias("state"),
            _number(fate, FATES).alias("fate"),
            F.when((event == JournalEvent.SENT) & (state == State.SCHEDULED), F.col("due_at")).alias("due_at"),
        )
    )


def _lives(journal: DataFrame) -> DataFrame:
    """One row per life, with the starts and ends of its leases in a list: the only shuffle of silver.

    Each aggregate picks its row by position, so it is right under any plan. The sort only makes it fast: Spark then
    combines neighbours in one pass instead of filling a hash table and sorting after all. Window functions over the
    same order took twice the time.
    """
    event, position = F.col("event"), F.col("position")

    def one_of(*events: JournalEvent) -> Column:
        return event.isin(*(_EVENTS.index(name) for name in events))

    def at(*events: JournalEvent) -> Column:
        return F.when(one_of(*events), F.col("at"))

    last = F.struct("position", "event", "state", "fate", "at", "kind", "priority", "size")
    # A released line no longer counts the delivery that it gives back.
    attempt = F.when(one_of(JournalEvent.RELEASED), F.col("attempts") + 1).otherwise(F.col("attempts")).alias("attempt")
    ended_by = F.when(one_of(*ENDINGS), event).alias("ended_by")
    mark = F.struct("position", "at", ended_by, attempt, "consumer", "error_class")
    return (
        _lines(journal)
        .repartition("message_id")
        .sortWithinPartitions(*_LIFE, "position")
        .groupBy(*_LIFE)
        .agg(
            F.max_by(last, position).alias("last"),
            F.max_by(F.struct("event", "fate", "at"), F.when(~one_of(*PASSING), position)).alias("decided"),
            F.max_by("error_class", F.when(F.col("error_class") != "", position)).alias("error_class"),
            F.max(one_of(JournalEvent.SENT)).alias("was_sent"),
            F.max("due_at").alias("due_at"),
            F.max(at(JournalEvent.ACKED)).alias("acked_at"),
            F.min(at(JournalEvent.RECEIVED)).alias("first_received_at"),
            F.max(at(JournalEvent.RECEIVED)).alias("last_received_at"),
            _amount(one_of(JournalEvent.RECEIVED)).alias("deliveries"),
            _amount(one_of(JournalEvent.NACKED, JournalEvent.BURIED)).alias("failures"),
            _amount(one_of(JournalEvent.EXPIRED)).alias("expiries"),
            _amount(one_of(JournalEvent.RELEASED)).alias("releases"),
            _amount(one_of(JournalEvent.REPLAYED)).alias("replays"),
            F.sort_array(F.collect_list(F.when(one_of(JournalEvent.RECEIVED, *ENDINGS), mark))).alias("marks"),
        )
    )


def _belong(begin: str, end: str) -> str:
    """SQL: whether two neighbours are of one lease; where lines between them are missing, they are of two."""
    return f"{end}.ended_by IS NOT NULL AND {begin}.ended_by IS NULL AND {begin}.attempt = {end}.attempt"


def _run() -> Column:
    """Microseconds of all complete leases, summed."""

    def held(begin: str, end: str) -> str:
        return f"if({_belong(begin, end)}, unix_micros({end}.at) - unix_micros({begin}.at), 0L)"

    # Spark interprets lambdas, which is slow: only lives with several leases use one. It is SQL text, because a lambda
    # from a Python function gets a new name in every query, and Spark would recompile the query each time.
    only, each = held("get(marks, 0)", "get(marks, 1)"), held("get(marks, i - 1)", "get(marks, i)")
    added = f"aggregate(sequence(1, size(marks) - 1), 0L, (sum, i) -> sum + {each})"
    return F.expr(f"CASE size(marks) WHEN 0 THEN 0L WHEN 1 THEN 0L WHEN 2 THEN {only} ELSE {added} END")


def _messages(lives: DataFrame) -> DataFrame:
    last, marks = F.col("last"), F.col("marks")
    # If only lines that decide nothing are left of a life, the last of them counts.
    decided = F.coalesce("decided", F.struct(last["event"].alias("event"), last["fate"], last["at"]))
    event, fate, at = decided["event"], decided["fate"], decided["at"]
    kept_as_done = event.isin(*(_EVENTS.index(name) for name in REMOVED)) & (fate == FATES.index("acked"))
    settled_at = F.when(kept_as_done, F.coalesce("acked_at", at)).when(fate != FATES.index("waiting"), at)
    wait = _seconds(F.coalesce("due_at", "sent_at"), F.col("first_received_at"))
    rows = lives.select(
        *_LIFE,
        "was_sent",
        "first_received_at",
        "last_received_at",
        "deliveries",
        "failures",
        "expiries",
        "releases",
        "replays",
        "last.kind",
        "last.priority",
        "last.size",
        last["at"].alias("last_at"),
        last["position"].alias("last_position"),
        _word(last["state"], _STATES).alias("state"),
        _word(last["event"], _EVENTS).alias("last_event"),
        _word(fate, FATES).alias("fate"),
        settled_at.alias("settled_at"),
        F.when(wait < 0, 0.0).otherwise(wait).alias("wait_seconds"),
        (_run() / SECOND).alias("run_seconds"),
        _seconds(F.col("sent_at"), settled_at).alias("total_seconds"),
        F.coalesce(F.get(marks, F.size(marks) - 1)["consumer"], F.lit("")).alias("consumer"),
        F.coalesce("error_class", F.lit("")).alias("error_class"),
    )
    return _as(schemas.MESSAGES, rows)


def _attempts(lives: DataFrame) -> DataFrame:
    marks = lives.select(*_LIFE, "last.kind", "marks", F.posexplode("marks").alias("index", "ended"))
    pairs = marks.withColumn("begun", F.get("marks", F.col("index") - 1)).where(_belong("begun", "ended"))
    rows = pairs.select(
        *_LIFE,
        "kind",
        "ended.consumer",
        "ended.attempt",
        "ended.error_class",
        F.col("begun.at").alias("received_at"),
        F.col("ended.at").alias("ended_at"),
        _word(F.col("ended.ended_by"), _EVENTS).alias("ended_by"),
        _seconds(F.col("begun.at"), F.col("ended.at")).alias("run_seconds"),
    )
    return _as(schemas.ATTEMPTS, rows)


# -- gold --------------------------------------------------------------------------------------------------------


def gold(
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
        .groupBy("queue", "kind", _begin(F.col("sent_at"), MINUTE).alias("minute"), "dt")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            *(F.percentile(f"{word}_seconds", [*shares.values()]).alias(word) for word in words),
        )
    )
    spread = {f"{word}_{name}_seconds": F.col(word)[index] for word in words for index, name in enumerate(shares)}
    return _as(schemas.LATENCY, grouped.withColumns({**spread, "minute": F.timestamp_micros("minute")}))


def _counts(journal: DataFrame) -> DataFrame:
    """Counts events by all keys of the tables that count them: a few rows per minute, in one pass over the journal."""
    before = F.when(F.col("event").isin(*REMOVED), _before(F.col("detail"))).otherwise("")
    keys = ("queue", "kind", "error_class", "event", "state", "dt")
    counted = (
        dated(journal)
        .where(F.col("event").isin(*COUNTED))
        .groupBy(*keys, _begin(F.col("at"), MINUTE).alias("minute"), before.alias("before"))
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
    return _as(schemas.THROUGHPUT, grouped)


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
    return _as(schemas.RETRIES, failed.agg(nacked.alias("nacked"), expired.alias("expired"), worst))


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
    return _as(schemas.OVERDUE, leases.agg(*(_count_of(event).alias(event) for event in events)))


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
    return _as(schemas.CAUSES, grouped)


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
    grouped = attempts.groupBy("consumer", "queue", _begin(F.col("ended_at"), MINUTE).alias("minute"), "dt").agg(
        F.count(F.lit(1)).alias("leases"),
        _amount(ended_by == JournalEvent.ACKED).alias("acked"),
        _amount(ended_by.isin(*FAILED)).alias("failed"),
        (busy / SECOND).alias("busy_seconds"),
    )
    return _as(schemas.CONSUMERS, grouped.withColumn("minute", F.timestamp_micros("minute")))


def audit(messages: DataFrame) -> DataFrame:
    """Conservation by queue and the hour messages were sent in: sent = acked + dead + expired + deleted + waiting.

    Messages without their sent event have a fate too, but count as `unsent` only: otherwise a lake that began in the
    middle would never add up.

    +------+-------------+-------------------+-----+-----+----+-------+-------+-------+------+----------+
    |queue |incarnation  |hour               |sent |acked|dead|expired|deleted|waiting|unsent|dt        |
    +------+-------------+-------------------+-----+-----+----+-------+-------+-------+------+----------+
    |orders|1762999999999|2025-11-14 09:00:00|19200|19180|12  |1      |3      |4      |0     |2025-11-14|
    +------+-------------+-------------------+-----+-----+----+-------+-------+-------+------+----------+
    """
    was_sent = F.col("was_sent")
    hour = _begin(F.coalesce("sent_at", "last_at"), HOUR).alias("hour")
    grouped = messages.groupBy("queue", "incarnation", hour, "dt").agg(
        _amount(was_sent).alias("sent"),
        *(_amount(was_sent & (F.col("fate") == fate)).alias(fate) for fate in FATES),
        _amount(~was_sent).alias("unsent"),
    )
    return _as(schemas.AUDIT, grouped.withColumn("hour", F.timestamp_micros("hour")))


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
    return _as(schemas.BACKLOG, levels, by_date=False)


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
    return _as(schemas.DRAIN, rows, by_date=False)
