"""Audits conservation, `schemas.EQUATION`, and names each message that breaks it.

The audit compares the messages that should be in Redis according to the journal with those that are. Messages with
journal lines since it began are left out, so the audit of a running system is exact. On failure nothing changes: the
audit only reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.journal_reader import JournalReader, Place
from restante.core.queue import Client
from restante.spark import gold
from restante.spark.columns import HOUR, SECOND
from restante.spark.lake import Lake
from restante.spark.live_lake import LiveLake
from restante.spark.pipeline import Pipeline, PipelineOptions, typed
from restante.spark.schemas import FATES, SNAPSHOT

#: Most messages that an audit names; the rest is only counted.
NAMED = 1000
#: Journal levels that record every message.
WHOLE_LEVELS = ("full", "payloads")
_SNAPSHOT_DDL = "queue string, message_id string, state string, sent_at timestamp"
_EVENTS_DDL = "queue string, position bigint, message_id string"
#: Columns of a message that the comparison needs.
_LIFE = ("queue", "message_id", "sent_at")

#: How many messages are missing, by queue, hour of sending and fate.
Missing = dict[tuple[str, Any, str], int]


@dataclass(frozen=True)
class Trouble:
    """One message whose state in Redis differs from its state in the journal."""

    queue: str
    message_id: str
    #: missing (the journal has it, Redis has not), unknown (the other way round) or moved (another state).
    what: str
    #: Its state in the journal and in Redis; empty where it is absent.
    journal_state: str
    redis_state: str
    last_event: str
    last_at: str


@dataclass
class Findings:
    """The result of an audit."""

    #: One row per queue and hour of sending: the columns of `gold/audit` less the missing messages, and `difference`.
    windows: list[dict[str, Any]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    #: How many messages do not add up; `troubles` names the first of them.
    count: int = 0
    #: Journal lines missing in the lake, by queue.
    gaps: dict[str, int] = field(default_factory=dict)
    #: Messages that moved during the audit and are left out of the comparison.
    moving: int = 0
    #: Queues that cannot be audited, and why.
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        return self.count == 0 and not self.gaps


class Audit:
    """Compares one lake with one server; without a server it checks the lake alone."""

    def __init__(self, spark: SparkSession, lake: str, post: Client | None, *, queues: str = "*") -> None:
        self.spark = spark
        self.post = post
        self.lake = Lake(lake)
        url = post.url if post is not None else ""
        self._pipeline = Pipeline(spark, PipelineOptions(url=url, lake=lake, queues=queues))
        self.queues = queues

    def run(self) -> Findings:
        """Runs the audit and returns its result."""
        try:
            return self._run()
        except PySparkException as error:
            raise typed(error) from None

    def _run(self) -> Findings:
        findings = Findings()
        self.spark.conf.set("spark.sql.session.timeZone", "UTC")
        if self.post is None:
            state = self.lake.state()
            if state.folded < 0:
                raise NotFound(f"{self.lake.uri} has no tables yet: run `restante pipeline run --once --lake …` first")
            self._look_for_gaps(self._pipeline.journal(state), findings)
            self._add_windows(gold.audit(self._pipeline.messages(state)), {}, findings)
            return findings
        live = LiveLake(self._pipeline, self.post)
        self._look_for_gaps(live.lines, findings)
        firsts = {
            row.queue: row.first for row in live.lines.groupBy("queue").agg(F.min("position").alias("first")).collect()
        }
        places = self._auditable(live.places, findings)
        messages = live.messages().cache()
        snapshot = self._snapshot(list(places)).cache()
        snapshot.count()
        moving = self._moving(places)
        missing = self._compare(self._lives(messages, places), snapshot, moving, firsts, findings)
        self._add_windows(gold.audit(messages), missing, findings)
        return findings

    # -- the lake ------------------------------------------------------------------------------------------------

    def _look_for_gaps(self, journal: DataFrame, findings: Findings) -> None:
        spans = journal.groupBy("queue", "incarnation").agg(
            F.min("position").alias("first"),
            F.max("position").alias("last"),
            F.countDistinct("position").alias("rows"),
            F.count("*").alias("lines"),
        )
        removed = self.lake.state().removed
        for row in spans.collect():
            # Lines that retention removed were in the lake once, perhaps as its first.
            count, first = removed.get(f"{row.incarnation} {row.queue}", [0, row.first])
            absent = row.last - min(first, row.first) + 1 - row.rows - count
            if absent or row.lines != row.rows:
                findings.gaps[row.queue] = findings.gaps.get(row.queue, 0) + (absent or row.rows - row.lines)

    # -- the server ----------------------------------------------------------------------------------------------

    def _auditable(self, places: dict[str, Place], findings: Findings) -> dict[str, Place]:
        """Queues whose journal records every message; notes why the others are skipped."""
        assert self.post is not None
        admin = Admin(self.post)
        levels = " and ".join(WHOLE_LEVELS)
        auditable: dict[str, Place] = {}
        elsewhere = admin.elsewhere()
        for queue, place in places.items():
            if queue in elsewhere:
                findings.skipped[queue] = "its messages are on RabbitMQ"
                continue
            level = admin.counts(queue).settings.journal
            if level in WHOLE_LEVELS:
                auditable[queue] = place
            else:
                findings.skipped[queue] = f"its journal level is {level}: only {levels} record every message"
        return auditable

    def _read(self, schema: str, **options: Any) -> DataFrame:
        assert self.post is not None
        return self.spark.read.format("restante").schema(schema).options(url=self.post.url, **options).load()

    def _lives(self, messages: DataFrame, places: dict[str, Place]) -> DataFrame:
        """Messages that should be in Redis: those not gone, of the journals that exist now."""
        current = self.spark.createDataFrame(
            [(queue, place.incarnation) for queue, place in places.items()], "queue string, incarnation bigint"
        )
        alive = messages.join(F.broadcast(current), ["queue", "incarnation"], "left_semi")
        return alive.where(F.col("state") != "gone").select(*_LIFE, "state", "last_event", "last_at")

    def _snapshot(self, queues: list[str]) -> DataFrame:
        if not queues:
            return self.spark.createDataFrame(
                [], "queue string, message_id string, redis_state string, redis_sent_at timestamp"
            )
        rows = self._read(_SNAPSHOT_DDL, kind=SNAPSHOT.name, queues=",".join(queues))
        # A message that changes state between two pages appears twice; it is among the moving ones.
        return rows.groupBy("queue", "message_id").agg(
            F.first("state").alias("redis_state"), F.first("sent_at").alias("redis_sent_at")
        )

    def _moving(self, places: dict[str, Place]) -> DataFrame:
        """Messages with journal lines since the audit began."""
        assert self.post is not None
        now = JournalReader(self.post).places(list(places))
        parts = [
            self._read(_EVENTS_DDL, queues=queue, startSeq=places[queue].last + 1, endSeq=place.last)
            for queue, place in now.items()
            if place.last > places[queue].last and place.incarnation == places[queue].incarnation
        ]
        if not parts:
            return self.spark.createDataFrame([], "queue string, message_id string")
        return reduce(DataFrame.unionByName, parts).select("queue", "message_id").distinct().cache()

    # -- comparing -----------------------------------------------------------------------------------------------

    def _compare(
        self, lives: DataFrame, snapshot: DataFrame, moving: DataFrame, firsts: dict[str, int], findings: Findings
    ) -> Missing:
        """Names the messages that do not add up; returns how many are missing by queue, hour and fate."""
        findings.moving = moving.count()
        both = lives.withColumnRenamed("state", "journal_state").join(snapshot, ["queue", "message_id"], "full_outer")
        both = both.join(moving, ["queue", "message_id"], "left_anti")
        # Redis keeps done messages only up to a bound: an absent one is no error.
        journal_state, redis_state = F.coalesce("journal_state", F.lit("")), F.coalesce("redis_state", F.lit(""))
        wrong = both.where((journal_state != redis_state) & ~((journal_state == "done") & (redis_state == "")))
        # The lake does not know messages sent before it began.
        young = [queue for queue, first in firsts.items() if first > 1]
        if young:
            wrong = wrong.where(~((journal_state == "") & F.col("queue").isin(young)))
        state = self.lake.state()
        if state.removed or state.too_late:
            # Nor messages of dates that retention has removed.
            kept = [info.base_name.removeprefix("dt=") for info in self.lake.listing("silver", "messages")]
            known = F.date_format("redis_sent_at", "yyyy-MM-dd").isin(kept)
            wrong = wrong.where((journal_state != "") | known)
        wrong = wrong.withColumn("last_at", F.unix_micros("last_at")).cache()
        findings.count = wrong.count()
        for row in wrong.orderBy("queue", "message_id").limit(NAMED).collect():
            what = "missing" if not row.redis_state else "unknown" if not row.journal_state else "moved"
            findings.troubles.append(
                Trouble(
                    row.queue,
                    row.message_id,
                    what,
                    row.journal_state or "",
                    row.redis_state or "",
                    row.last_event or "",
                    _utc(row.last_at).isoformat() if row.last_at else "",
                )
            )
        micros = F.unix_micros("sent_at")
        hour = (micros - F.pmod(micros, F.lit(HOUR))).alias("hour")
        gone = wrong.where((redis_state == "") & (journal_state != ""))
        counts: Missing = {}
        for row in gone.groupBy("queue", hour, "journal_state", "last_event").count().collect():
            fate = "waiting" if row.journal_state != "dead" else "expired" if row.last_event == "expired" else "dead"
            key = (row.queue, _utc(row.hour), fate)
            counts[key] = counts.get(key, 0) + row["count"]
        return counts

    def _add_windows(self, audited: DataFrame, missing: Missing, findings: Findings) -> None:
        for row in audited.withColumn("hour", F.unix_micros("hour")).orderBy("queue", "hour").collect():
            window = row.asDict() | {"hour": _utc(row.hour)}
            window.pop("dt", None)
            for fate in ("waiting", "dead", "expired"):
                window[fate] -= missing.get((row.queue, window["hour"], fate), 0)
            window["difference"] = window["sent"] - sum(window[name] for name in FATES)
            findings.windows.append(window)


def _utc(micros: int) -> datetime:
    """An instant in UTC: Spark itself would give it in the time zone of the machine."""
    return datetime.fromtimestamp(micros / SECOND, UTC)
