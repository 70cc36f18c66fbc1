"""Computes silver from the journal: `messages` and `attempts`, by pure functions DataFrame → DataFrame.

Rows of one send date (`dt`: the UTC date of sent_at, or of `at` where there is none) depend on rows of that date alone,
so a date can be recomputed by itself. Nothing here reads or writes: on failure the query fails and the caller decides.

Nothing depends on the session's time zone or on the order of rows: `position` orders the life of a message.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.message import JournalEvent, State
from restante.spark import schemas
from restante.spark.columns import (
    ENDINGS,
    PASSING,
    REMOVED,
    SECOND,
    STOPPED,
    WAITING,
    Keep,
    as_table,
    dated,
    how_many,
    seconds_between,
    state_before,
)
from restante.spark.schemas import FATES

# Words become numbers in the shuffle, because numbers are cheaper to copy and compare.
_EVENTS = tuple(event.value for event in JournalEvent)
_STATES = (*(state.value for state in State), "gone")
# The key of one life of a message. The time comes first: sorting compares it as a number, and it is nearly unique.
# `dt` is part of it for lines without sent_at (of a damaged message), which would otherwise join across dates.
_LIFE = ("sent_at", "message_id", "queue", "incarnation", "dt")


def _number(word: Column, words: tuple[str, ...]) -> Column:
    chosen = F.when(word == words[0], 0)
    for number, other in enumerate(words[1:], 1):
        chosen = chosen.when(word == other, number)
    return chosen


def _word(number: Column, words: tuple[str, ...]) -> Column:
    return F.element_at(F.array(*(F.lit(word) for word in words)), number + 1)


def tables(journal: DataFrame, keep: Keep = lambda frame: frame) -> tuple[DataFrame, DataFrame]:
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
        .when(event == JournalEvent.CANCELLED, "cancelled")
        .when(event.isin(*REMOVED), F.when(state_before(F.col("detail")) == State.DONE, "acked").otherwise("deleted"))
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
            (
                event.isin(*ENDINGS)
                & ((event != JournalEvent.CANCELLED) | (state_before(F.col("detail")) == State.LEASED))
            ).alias("ends"),
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
    ended_by = F.when(F.col("ends"), event).alias("ended_by")
    holder = F.when(~one_of(*STOPPED), F.col("consumer")).alias("consumer")
    mark = F.struct("position", "at", ended_by, attempt, holder, "error_class")
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
            how_many(one_of(JournalEvent.RECEIVED)).alias("deliveries"),
            how_many(one_of(JournalEvent.NACKED, JournalEvent.BURIED)).alias("failures"),
            how_many(one_of(JournalEvent.EXPIRED)).alias("expiries"),
            how_many(one_of(JournalEvent.RELEASED)).alias("releases"),
            how_many(one_of(JournalEvent.REVOKED)).alias("revocations"),
            how_many(one_of(JournalEvent.REPLAYED)).alias("replays"),
            F.sort_array(F.collect_list(F.when(one_of(JournalEvent.RECEIVED) | F.col("ends"), mark))).alias("marks"),
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
    wait = seconds_between(F.coalesce("due_at", "sent_at"), F.col("first_received_at"))
    rows = lives.select(
        *_LIFE,
        "was_sent",
        "first_received_at",
        "last_received_at",
        "deliveries",
        "failures",
        "expiries",
        "releases",
        "revocations",
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
        seconds_between(F.col("sent_at"), settled_at).alias("total_seconds"),
        F.coalesce(
            F.get(marks, F.size(marks) - 1)["consumer"], F.get(marks, F.size(marks) - 2)["consumer"], F.lit("")
        ).alias("consumer"),
        F.coalesce("error_class", F.lit("")).alias("error_class"),
    )
    return as_table(schemas.MESSAGES, rows)


def _attempts(lives: DataFrame) -> DataFrame:
    marks = lives.select(*_LIFE, "last.kind", "marks", F.posexplode("marks").alias("index", "ended"))
    pairs = marks.withColumn("begun", F.get("marks", F.col("index") - 1)).where(_belong("begun", "ended"))
    rows = pairs.select(
        *_LIFE,
        "kind",
        "begun.consumer",
        "ended.attempt",
        "ended.error_class",
        F.col("begun.at").alias("received_at"),
        F.col("ended.at").alias("ended_at"),
        _word(F.col("ended.ended_by"), _EVENTS).alias("ended_by"),
        seconds_between(F.col("begun.at"), F.col("ended.at")).alias("run_seconds"),
    )
    return as_table(schemas.ATTEMPTS, rows)
