"""The conservation audit: sent = acked + dead + expired + deleted + waiting, and every id that does not add up by name.

What the journal says must lie in Redis is compared with what does. Messages that move while the audit looks are told by
the journal and left out of the comparison, so that the audit of a running system is exact. On failure nothing changes:
the audit only reads.
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
from restante.spark import tables
from restante.spark.lake import Lake
from restante.spark.live_lake import LiveLake
from restante.spark.pipeline import Pipeline, PipelineOptions, typed
from restante.spark.schemas import SNAPSHOT

#: Ids named per kind of trouble; the rest is counted.
NAMED = 1000
#: Journal levels that tell of every message.
WHOLE_LEVELS = ("full", "payloads")
_LOOK = "queue string, message_id string, state string, sent_at timestamp"
_EVENTS = "queue string, position bigint, message_id string"
#: What the comparison needs of a message.
_LIFE = ("queue", "message_id", "sent_at")

#: Messages that are not where they must be, by queue, hour of sending and fate.
Missing = dict[tuple[str, Any, str], int]


@dataclass(frozen=True)
class Trouble:
    """One message that does not add up."""

    queue: str
    message_id: str
    #: missing (the journal has it, Redis has not), unknown (the other way round) or moved (another state).
    what: str
    #: Its state as the journal has it, and as Redis has it.
    journal_state: str
    redis_state: str
    last_event: str
    last_at: str


@dataclass
class Findings:
    """What an audit found."""

    #: One row per queue and hour of sending as `gold/audit` has it, less what is missing, with the `difference`.
    windows: list[dict[str, Any]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    #: How many there are in all; `troubles` names the first.
    count: int = 0
    #: Journal lines the lake has not: queue and how many.
    gaps: dict[str, int] = field(default_factory=dict)
    #: Messages that moved while the audit looked, and were left out of the comparison.
    moving: int = 0
    #: Queues that cannot be audited, and why.
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        return self.count == 0 and not self.gaps


class Audit:
    """Compares one lake with one server."""

    def __init__(self, spark: SparkSession, lake: str, post: Client | None, *, queues: str = "*") -> None:
        self.spark = spark
        self.post = post
        self.lake = Lake(lake)
        url = post.url if post is not None else ""
        self._pipeline = Pipeline(spark, PipelineOptions(url=url, lake=lake, queues=queues))
        self.queues = queues

    def run(self) -> Findings:
        """The whole audit."""
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
            self._add_windows(tables.audit(self._pipeline.table("silver", "messages")), {}, findings)
            return findings
        live = LiveLake(self._pipeline, self.post)
        self._look_for_gaps(live.lines, findings)
        firsts = {
            row.queue: row.first
            for row in live.lines.groupBy("queue").agg(F.min("position").alias("first")).collect()
        }  # fmt: skip
        places = self._auditable(live.places, findings)
        messages = live.messages().cache()
        found = self._snapshot(list(places)).cache()
        found.count()
        moving = self._moving(places)
        missing = self._compare(self._lives(messages, places), found, moving, firsts, findings)
        self._add_windows(tables.audit(messages), missing, findings)
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
            # What retention took was there once, and may have been the beginning.
            count, first = removed.get(f"{row.incarnation} {row.queue}", [0, row.first])
            absent = row.last - min(first, row.first) + 1 - row.rows - count
            if absent or row.lines != row.rows:
                findings.gaps[row.queue] = findings.gaps.get(row.queue, 0) + (absent or row.rows - row.lines)

    # -- the server ----------------------------------------------------------------------------------------------

    def _auditable(self, places: dict[str, Place], findings: Findings) -> dict[str, Place]:
        """Queues whose journal tells of every message."""
        assert self.post is not None
        admin = Admin(self.post)
        told = " and ".join(WHOLE_LEVELS)
        found: dict[str, Place] = {}
        elsewhere = admin.elsewhere()
        for queue, place in places.items():
            if queue in elsewhere:
                findings.skipped[queue] = "its messages lie on RabbitMQ, which keeps them by itself"
                continue
            level = admin.counts(queue).settings.journal
            if level in WHOLE_LEVELS:
                found[queue] = place
            else:
                findings.skipped[queue] = f"its journal is kept at level {level}: only {told} tell of every message"
        return found

    def _read(self, schema: str, **options: Any) -> DataFrame:
        assert self.post is not None
        return self.spark.read.format("restante").schema(schema).options(url=self.post.url, **options).load()

    def _lives(self, messages: DataFrame, places: dict[str, Place]) -> DataFrame:
        """Messages that must lie in Redis: those of the journals that are there now."""
        now = self.spark.createDataFrame(
            [(queue, place.incarnation) for queue, place in places.items()], "queue string, incarnation bigint"
        )
        here = messages.join(F.broadcast(now), ["queue", "incarnation"], "left_semi").where(F.col("state") != "gone")
        return here.select(*_LIFE, "state", "last_event", "last_at")

    def _snapshot(self, queues: list[str]) -> DataFrame:
        if not queues:
            return self.spark.createDataFrame(
                [], "queue string, message_id string, redis_state string, redis_sent_at timestamp"
            )
        looked = self._read(_LOOK, kind=SNAPSHOT.name, queues=",".join(queues))
        # A message that changed its state between two pages is seen twice, and is among the moving.
        return looked.groupBy("queue", "message_id").agg(
            F.first("state").alias("redis_state"), F.first("sent_at").alias("redis_sent_at")
        )

    def _moving(self, places: dict[str, Place]) -> DataFrame:
        """Messages with lines since the audit began."""
        assert self.post is not None
        now = JournalReader(self.post).places(list(places))
        parts = [
            self._read(_EVENTS, queues=queue, startSeq=places[queue].last + 1, endSeq=place.last)
            for queue, place in now.items()
            if place.last > places[queue].last and place.incarnation == places[queue].incarnation
        ]
        if not parts:
            return self.spark.createDataFrame([], "queue string, message_id string")
        return reduce(DataFrame.unionByName, parts).select("queue", "message_id").distinct().cache()

    # -- comparing -----------------------------------------------------------------------------------------------

    def _compare(
        self, lives: DataFrame, found: DataFrame, moving: DataFrame, firsts: dict[str, int], findings: Findings
    ) -> Missing:
        """Names what does not add up; returns how many are missing by queue, hour and fate."""
        findings.moving = moving.count()
        both = lives.withColumnRenamed("state", "journal_state").join(found, ["queue", "message_id"], "full_outer")
        both = both.join(moving, ["queue", "message_id"], "left_anti")
        # done lies in Redis only as long as its bound allows, and nobody promises more.
        journal_state, redis_state = F.coalesce("journal_state", F.lit("")), F.coalesce("redis_state", F.lit(""))
        wrong = both.where((journal_state != redis_state) & ~((journal_state == "done") & (redis_state == "")))
        # What was sent before the lake began cannot be known to it.
        young = [queue for queue, first in firsts.items() if first > 1]
        if young:
            wrong = wrong.where(~((journal_state == "") & F.col("queue").isin(young)))
        state = self.lake.state()
        if state.removed or state.too_late:
            # Nor what was sent on dates that retention has removed from it.
            kept = [info.base_name.removeprefix("dt=") for info in self.lake.listing("silver", "messages")]
            known = F.date_format("redis_sent_at", "yyyy-MM-dd").isin(kept)
            wrong = wrong.where((journal_state != "") | known)
        wrong = wrong.withColumn("last_at", F.unix_micros("last_at")).cache()
        findings.count = wrong.count()
        for row in wrong.orderBy("queue", "message_id").limit(NAMED).collect():
            what = "missing" if not row.redis_state else "unknown" if not row.journal_state else "moved"
            findings.troubles.append(
                Trouble(
                    row.queue, row.message_id, what, row.journal_state or "", row.redis_state or "",
                    row.last_event or "", _utc(row.last_at).isoformat() if row.last_at else "",
                )
            )  # fmt: skip
        micros = F.unix_micros("sent_at")
        hour = (micros - F.pmod(micros, F.lit(tables.HOUR))).alias("hour")
        gone = wrong.where((redis_state == "") & (journal_state != ""))
        counts: Missing = {}
        for row in gone.groupBy("queue", hour, "journal_state", "last_event").count().collect():
            fate = "waiting" if row.journal_state != "dead" else "expired" if row.last_event == "expired" else "dead"
            key = (row.queue, _utc(row.hour), fate)
            counts[key] = counts.get(key, 0) + row["count"]
        return counts

    def _add_windows(self, audited: DataFrame, missing: Missing, findings: Findings) -> None:
        for row in audited.withColumn("hour", F.unix_micros("hour")).orderBy("queue", "hour").collect():
            made = row.asDict() | {"hour": _utc(row.hour)}
            made.pop("dt", None)
            for fate in ("waiting", "dead", "expired"):
                made[fate] -= missing.get((row.queue, made["hour"], fate), 0)
            made["difference"] = made["sent"] - sum(
                made[name] for name in ("acked", "dead", "expired", "deleted", "waiting")
            )  # fmt: skip
            findings.windows.append(made)


def _utc(micros: int) -> datetime:
    """Spark gives instants to Python in the machine's own time zone; this does not."""
    return datetime.fromtimestamp(micros / tables.SECOND, UTC)
