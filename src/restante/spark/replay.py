"""Replays messages in bulk: chosen by SQL over the lake, shown as a plan, then put back exactly once.

A plan is frozen under a name before anything is sent: which messages, what happens to each, in numbered parts. Messages
that are still dead in their queue are replayed in place, with their history. Messages that are gone are sent as copies
if the journal has their payload; a copy's id is made from the replay's name and the original's queue and id, and its
headers include `replay` and `replay_of`. On failure: run the same name again. The plan notes finished parts; for the
others the journal shows which copies were sent, and a replay in place keeps its own progress.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.admin import Admin
from restante.core.errors import InvalidInput, NotFound, RestanteError
from restante.core.journal_reader import JournalReader
from restante.core.message import JournalEvent
from restante.core.names import valid_name
from restante.core.queue import Client
from restante.core.throttle import forget_throttle
from restante.spark.lake import Lake, now
from restante.spark.live_lake import LiveLake
from restante.spark.pipeline import Pipeline, PipelineOptions, typed
from restante.spark.schemas import FATES
from restante.spark.writer import ID_DIGITS, hashed_id

#: Messages of one part. A restart skips finished parts; smaller ones mean more jobs.
PART = 20_000
#: Seconds of sending in one job at a given rate. A replay can stop between two jobs, and each costs a second.
STRIDE_SECONDS = 10.0
#: What a plan does with a message.
IN_PLACE, COPY, WAITING, NO_PAYLOAD = "in place", "copy", "waiting", "no payload"
#: Fates that are replayed by default: a message that was acked in the end is not.
DEFAULT_FATES = ("dead", "expired")
_PRESENT = "queue string, message_id string, state string"
#: Columns of a frozen plan.
_PLANNED = (
    "part",
    "action",
    "queue",
    "target",
    "message_id",
    "kind",
    "priority",
    "payload",
    "headers",
    "content_type",
    "error_class",
    "sent_at",
)


@dataclass
class Plan:
    """What a replay does, and how far it is."""

    name: str
    where: str
    fates: list[str]
    #: Queue to which copies go; empty for the queue each came from.
    to: str = ""
    made_at: str = ""
    #: Messages by queue, action and error class.
    counts: list[dict[str, Any]] = field(default_factory=list)
    parts: int = 0
    #: Last journal line of each queue that gets copies, when the plan was frozen.
    starts: dict[str, int] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)

    def total(self, *actions: str) -> int:
        return sum(row["messages"] for row in self.counts if not actions or row["action"] in actions)


@dataclass(frozen=True)
class Progress:
    """Progress of a replay: messages done, messages in all, messages per second."""

    done: int
    total: int
    rate: float


class Replay:
    """Replays of one lake into one server."""

    def __init__(self, spark: SparkSession, lake: str, post: Client) -> None:
        self.spark = spark
        self.post = post
        self.lake = Lake(lake)
        self._pipeline = Pipeline(spark, PipelineOptions(url=post.url, lake=lake))

    # -- planning ------------------------------------------------------------------------------------------------

    def plan(
        self, where: str, *, fates: tuple[str, ...] = DEFAULT_FATES, to: str = "", name: str | None = None
    ) -> tuple[Plan, DataFrame]:
        """Plans a replay: which messages, and what would happen to each. Nothing is stored or sent."""
        if unknown := [fate for fate in fates if fate not in FATES]:
            raise InvalidInput(f"fates are {', '.join(FATES)}, not {', '.join(unknown)}")
        if to:
            valid_name(to)
        name = valid_name(name, "replay") if name else f"replay-{hashed_id([where, list(fates), to, now()])[:12]}"
        if not self.lake.exists("silver", "messages"):
            raise NotFound(f"{self.lake.uri} has no tables yet: run `restante pipeline run --once --lake …` first")
        try:
            live = LiveLake(self._pipeline, self.post)
            messages = live.messages()
            chosen = messages.where(F.expr(where)) if where.strip() else messages
            chosen = chosen.where(F.col("fate").isin(list(fates)))
            planned = self._with_actions(chosen, live.journal(), to).persist()
            rows = planned.groupBy("queue", "target", "action", "error_class").count().collect()
        except PySparkException as error:
            failure = typed(error)
            if type(failure) is not RestanteError:
                raise failure from None
            text = str(error).strip().splitlines()[0]
            raise InvalidInput(f"--where is not a condition on the columns of messages: {text}") from None
        counts = [
            {
                "queue": row.queue,
                "target": row.target,
                "action": row.action,
                "error_class": row.error_class,
                "messages": row["count"],
            }
            for row in sorted(rows, key=lambda row: (row.queue, row.action, row.error_class))
        ]
        return Plan(name, where, list(fates), to, counts=counts), planned

    def _with_actions(self, chosen: DataFrame, journal: DataFrame, to: str) -> DataFrame:
        """Each message once, by its latest life, with the action planned for it."""
        latest = chosen.groupBy("queue", "message_id").agg(
            F.max_by(F.struct("incarnation", "sent_at", "kind", "priority", "error_class"), "last_position").alias("m")
        )
        latest = latest.select("queue", "message_id", "m.*")
        kept = journal.where(F.col("payload").isNotNull())
        kept = kept.groupBy("queue", "incarnation", "message_id", "sent_at").agg(
            F.max_by(F.struct("payload", "headers", "content_type"), "position").alias("p")
        )
        kept = kept.select("queue", "incarnation", "message_id", "sent_at", "p.*")
        present = self.spark.read.format("restante").schema(_PRESENT).options(url=self.post.url, kind="queue").load()
        # A replay to another queue leaves dead messages where they are.
        joined = latest.join(kept, ["queue", "incarnation", "message_id", "sent_at"], "left").join(
            present, ["queue", "message_id"], "left"
        )
        has_payload, state = F.col("payload").isNotNull(), F.col("state")
        action = (
            F.when(state.isin("ready", "scheduled", "retrying", "leased"), WAITING)
            .when((state == "dead") & F.lit(not to), IN_PLACE)
            .when(has_payload, COPY)
            .otherwise(NO_PAYLOAD)
        )
        return joined.withColumn("action", action).withColumn("target", F.lit(to) if to else F.col("queue"))

    def freeze(self, plan: Plan, planned: DataFrame) -> Plan:
        """Stores the plan under its name; from then on it does not change."""
        if self.known(plan.name) is not None:
            raise InvalidInput(f"there already is a replay {plan.name}: continue it, or use another name")
        work = planned.where(F.col("action").isin(IN_PLACE, COPY))
        _numbered(work).select(*_PLANNED).write.mode("overwrite").partitionBy("part").parquet(
            self._at(plan.name, "plan")
        )
        plan.parts = -(-plan.total(IN_PLACE, COPY) // PART)
        reader = JournalReader(self.post)
        targets = {row["target"] for row in plan.counts if row["action"] == COPY}
        for target in targets:
            place = reader.place(target)
            if place is None:
                # Open the queue before the first copy: a journal without this reader could lose the record of it.
                Admin(self.post).configure(target)
                place = reader.place(target)
            plan.starts[target] = place.last if place is not None else 0
            if place is not None:
                reader.register(target, f"replay:{plan.name}", place.last)
        plan.made_at = now()
        self._save(plan)
        return plan

    def known(self, name: str) -> Plan | None:
        """The plan frozen under a name; None if there is none."""
        path = self.lake.at("replays", name, "plan.json")
        if not self.lake.exists("replays", name, "plan.json"):
            return None
        with self.lake.files.open_input_stream(path) as stream:
            return Plan(**json.loads(stream.read()))

    def _at(self, *parts: str) -> str:
        return self.lake.path("replays", *parts)

    def _save(self, plan: Plan) -> None:
        self.lake.files.create_dir(self.lake.at("replays", plan.name), recursive=True)
        with self.lake.files.open_output_stream(self.lake.at("replays", plan.name, "plan.json.new")) as stream:
            stream.write(json.dumps(asdict(plan), indent=1).encode())
        self.lake.files.move(
            self.lake.at("replays", plan.name, "plan.json.new"), self.lake.at("replays", plan.name, "plan.json")
        )

    # -- running -------------------------------------------------------------------------------------------------

    def run(
        self,
        plan: Plan,
        *,
        rate: float = 0.0,
        progress: Callable[[Progress], None] = lambda progress: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Runs a frozen plan, or continues it; returns how many messages this run put back."""
        try:
            return self._run(plan, rate, progress, stop)
        except PySparkException as error:
            raise typed(error) from None

    def _run(self, plan: Plan, rate: float, progress: Callable[[Progress], None], stop: Callable[[], bool]) -> int:
        left = [part for part in range(plan.parts) if part not in plan.done]
        work = self.spark.read.parquet(self._at(plan.name, "plan")) if left else None
        sent = self._sent_before(plan) if left else None
        watch = _Watch(plan.total(IN_PLACE, COPY), progress, stop)
        put_back = 0
        # A job sends nothing while it starts and ends: a stride is long enough for that not to matter.
        stride = max(1, int(rate * STRIDE_SECONDS / PART)) if rate else 10
        while left and not stop():
            parts, left = left[:stride], left[stride:]
            assert work is not None
            rows = work.where(F.col("part").isin(parts))
            for part in parts:
                chosen = rows.where((F.col("part") == part) & (F.col("action") == IN_PLACE))
                put_back += self._replay_in_place(plan, chosen, part, rate, stop) if plan.total(IN_PLACE) else 0
            if not stop():
                put_back += self._send_copies(plan, rows.where(F.col("action") == COPY), sent, rate, watch)
            if stop():
                break  # the journal and the task in Redis show the next run what is done
            plan.done += parts
            self._save(plan)
            watch.report(len(plan.done) * PART)
        if len(plan.done) == plan.parts:
            for target in plan.starts:
                JournalReader(self.post).forget(target, f"replay:{plan.name}")
                forget_throttle(self.post.queue(target), plan.name)
        return put_back

    def _sent_before(self, plan: Plan) -> DataFrame | None:
        """Ids of the copies sent since the plan was frozen; None if there is nothing left to send."""
        if len(plan.done) == plan.parts or not plan.starts:
            return None
        schema = "event string, message_id string, position bigint, queue string"
        sent = None
        for target, start in plan.starts.items():
            lines = self.spark.read.format("restante").schema(schema)
            lines = lines.options(url=self.post.url, queues=target, startSeq=start + 1)
            ids = lines.load().where(F.col("event") == "sent").select(F.col("message_id").alias("copy_id"))
            sent = ids if sent is None else sent.unionByName(ids)
        assert sent is not None
        return sent.persist()

    def _send_copies(self, plan: Plan, rows: DataFrame, sent: DataFrame | None, rate: float, watch: _Watch) -> int:
        copied = rows.withColumn("copy_id", _copy_id(plan.name))
        if sent is not None:
            copied = copied.join(sent, "copy_id", "left_anti")
        count = 0
        for target in sorted(plan.starts):
            chosen = copied.where(F.col("target") == target)
            slices = -(-chosen.count() // int(rate * STRIDE_SECONDS)) if rate else 1
            # The id of a copy is a hash, so its digits divide a part evenly.
            number = F.pmod(F.conv(F.substring("copy_id", 1, 8), 16, 10).cast("bigint"), F.lit(max(slices, 1)))
            sizes = {row.slice: row["count"] for row in chosen.groupBy(number.alias("slice")).count().collect()}
            for slice, amount in sorted(sizes.items()):
                if watch.stopped():
                    return count
                with watch.following(Admin(self.post), target, len(plan.done) * PART + count):
                    self._write(plan, chosen.where(number == slice), target, rate)
                count += amount
        return count

    def _write(self, plan: Plan, rows: DataFrame, target: str, rate: float) -> None:
        columns = ("queue", "message_id", "payload", "kind", "priority", "headers", "content_type")
        writer = rows.select(*columns).write.format("restante").mode("append")
        writer.options(url=self.post.url, queue=target, op="replay", replay=plan.name, rate=rate).save()

    def _replay_in_place(self, plan: Plan, rows: DataFrame, part: int, rate: float, stop: Callable[[], bool]) -> int:
        admin = Admin(self.post)
        by_queue: dict[str, list[str]] = {}
        for row in rows.select("queue", "message_id").orderBy("queue", "message_id").collect():
            by_queue.setdefault(row.queue, []).append(row.message_id)
        count = 0
        for queue, ids in by_queue.items():
            id = f"{plan.name}-{part}"
            known = any(task.id == id for task in admin.tasks(queue))
            before = admin.task(queue, id).replayed if known else 0
            task = (
                admin.replay(queue, task=id, rate=rate or None, cancel=stop)
                if known
                else admin.replay(queue, ids=ids, name=id, rate=rate or None, cancel=stop)
            )
            count += task.replayed - before
        return count


class _Watch:
    """Reports the progress of a replay, also in the middle of a Spark job."""

    def __init__(self, total: int, progress: Callable[[Progress], None], stopped: Callable[[], bool]) -> None:
        self._total = total
        self._progress = progress
        self.stopped = stopped
        self._began = time.monotonic()
        self._first: int | None = None

    def report(self, done: int) -> None:
        done = min(done, self._total)
        self._first = done if self._first is None else self._first
        seconds = max(time.monotonic() - self._began, 1e-9)
        self._progress(Progress(done, self._total, (done - self._first) / seconds))

    @contextmanager
    def following(self, admin: Admin, queue: str, done: int) -> Iterator[None]:
        """While the block runs, takes the queue's count of sent messages for progress."""
        before = admin.counts(queue).totals[JournalEvent.SENT.value]
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.5):
                self.report(done + admin.counts(queue).totals[JournalEvent.SENT.value] - before)

        thread = threading.Thread(target=look, name="restante-replay", daemon=True)
        self.report(done)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _copy_id(name: str) -> Any:
    """The id that the writer gives a copy, as a column."""
    text = F.concat(F.lit(f'["{name}","'), F.col("queue"), F.lit('","'), F.col("message_id"), F.lit('"]'))
    return F.substring(F.sha2(text, 256), 1, ID_DIGITS)


def _numbered(work: DataFrame) -> DataFrame:
    """Adds the number of the part to each row, by an order that is the same at every attempt."""
    place = F.row_number().over(Window.orderBy("queue", "message_id"))
    return work.withColumn("part", F.floor((place - 1) / PART).cast("int"))
