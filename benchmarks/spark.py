"""Measures the Spark side on a server of our own: reading, the lake, writing, consuming, replaying.

`python -m benchmarks.spark [--quick] [--growth] [--write-docs]` prints a table beside a raw read of the same stream by
Redis' own client in the same run, and writes `benchmarks/results/spark.json`. CPU seconds are those of the driver, the
JVM and its Python workers, without the server's. The exit code is 1 when a promised bound is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import restante
from benchmarks.figures import Row, keep, show, write_docs
from benchmarks.server import RedisServer
from restante.core.admin import Admin
from restante.core.queue import Client
from restante.spark.pipeline import Pipeline, PipelineOptions, Summary
from restante.spark.replay import COPY, Replay
from restante.spark.session import session

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "spark.json"
PAGE = ROOT / "docs" / "explain" / "spark-performance.md"
#: Row, comparison and promised bound.
BOUNDS: dict[str, tuple[str, float]] = {
    "batch read": (">=", 200_000),
    "streaming to bronze": (">=", 120_000),
    "writer": (">=", 50_000),
    "consumer": (">=", 12_000),
    "lake, CPU seconds per 1M events": ("<=", 25),
    "replay: duplicates": ("<=", 0),
    "replay: second run sends": ("<=", 0),
    "replay: rate against its cap": ("within", 0.05),
}
QUEUES = ("orders", "mail", "search", "billing")
KEEP: dict[str, Any] = {"journal_keep": 2**30, "journal_cap": 2**30}
#: The bound of every replay measured, messages per second.
CAP = 15_000


def cpu_seconds() -> float:
    """CPU seconds of this process and all below it, those that ended included."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15])) / tick
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(times.get(pid, 0.0) for pid in ours)


def fill(post: Client, events: int, tell: Callable[[str], None]) -> int:
    """Ordinary traffic over four queues: batches of 100, three of a hundred fail once or for good."""
    queues = [post.queue(name, **KEEP) for name in QUEUES]
    payload = {"order": 1, "customer": "c" * 120}
    written, turn = 0, 0
    while written < events:
        queue = queues[turn % len(queues)]
        queue.send_many([payload] * 100, kind=f"kind{turn % 5}")
        got = queue.receive_many(100)
        queue.ack_many(got[:97])
        queue.nack_many(got[97:99], delay=0, error=TimeoutError("slow"))
        queue.bury_many(got[99:], error=ValueError("bad"))
        queue.ack_many(queue.receive_many(2))
        written += 100 + 100 + 100 + 6
        turn += 1
        if turn % 200 == 0:
            tell(f"filling {written:,} of {events:,}")
    return sum(Admin(post).counts(name).journal_last for name in QUEUES)


def raw_read(post: Client) -> tuple[int, float]:
    """All journals by XRANGE in pages, nothing parsed: what Redis and its client give."""
    began, lines = time.monotonic(), 0
    for name in QUEUES:
        key = f"restante:{{{name}}}:journal".encode()
        after = "-"
        while rows := post.connection.command("XRANGE", key, after, "+", "COUNT", 2000, key=key):
            lines += len(rows)
            after = f"({rows[-1][0].decode()}"
    return lines, time.monotonic() - began


def sending_seconds(post: Client, queue: str, after: int) -> float:
    """Seconds from the first line of a journal after a position to its last."""
    key = f"restante:{{{queue}}}:journal".encode()
    first = post.connection.command("XRANGE", key, f"(0-{after}", "+", "COUNT", 1, key=key)
    last = post.connection.command("XREVRANGE", key, "+", "-", "COUNT", 1, key=key)
    begun, ended = (int(entry[0][1][1].split(b"\t", 4)[3]) for entry in (first, last))
    return (ended - begun) / 1000


def best(times: int, work: Callable[[], float]) -> float:
    """The best of several rounds: the machine is shared, and noise only ever slows."""
    return max(work() for _ in range(times))


class Bench:
    """The measurements; each leaves the server as the next expects it."""

    def __init__(self, spark: SparkSession, server: RedisServer, folder: Path, tell: Callable[[str], None]) -> None:
        self.spark, self.server, self.folder, self.tell = spark, server, folder, tell
        self.rows: list[Row] = []

    def post(self, database: int) -> Client:
        return restante.connect(f"redis://127.0.0.1:{self.server.port}/{database}")

    def add(self, name: str, value: float, unit: str, note: str = "") -> None:
        self.rows.append(Row(name, value, unit, note))
        self.tell(f"{name}: {value:,.1f} {unit}")

    def reading(self, events: int, rounds: int) -> None:
        post = self.post(0)
        total = fill(post, events, self.tell)
        entries, seconds = raw_read(post)
        self.add("raw XRANGE of the same streams", total / seconds, "events/s", f"{entries:,} entries, one client")

        def read() -> float:
            began = time.monotonic()
            journal = self.spark.read.format("restante").options(url=post.url, numPartitions=2).load()
            journal.write.format("noop").mode("overwrite").save()
            return total / (time.monotonic() - began)

        read()
        self.add("batch read", best(rounds, read), "events/s", f"{total:,} events, all columns, to nowhere")

        def stream() -> float:
            lake = tempfile.mkdtemp(dir=self.folder)
            pipeline = Pipeline(self.spark, PipelineOptions(url=post.url, lake=lake, num_partitions=2))
            began = time.monotonic()
            summary = Summary()
            pipeline._stream_until_done(summary, lambda: False)
            took = time.monotonic() - began
            assert summary.rows == total
            shutil.rmtree(lake)
            return total / took

        self.add("streaming to bronze", best(rounds, stream), "events/s", "250,000 per batch, Parquet zstd")
        post.connection.command("FLUSHALL", key=b"x")

    def lake(self, events: int) -> float:
        """CPU seconds per million events for all layers."""
        post = self.post(0)
        total = fill(post, events, self.tell)
        lake = tempfile.mkdtemp(dir=self.folder)
        began, cpu = time.monotonic(), cpu_seconds()
        summary = Pipeline(self.spark, PipelineOptions(url=post.url, lake=lake, num_partitions=2)).run_once()
        spent, took = cpu_seconds() - cpu, time.monotonic() - began
        assert summary.rows == total, (summary.rows, total)
        shutil.rmtree(lake)
        post.connection.command("FLUSHALL", key=b"x")
        self.add(
            f"lake of {total:,} events",
            spent,
            "CPU s",
            f"{took:.1f} s wall, {spent / total * 1e6:.1f} CPU s per million; "
            + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.seconds.items()),
        )
        return spent / total * 1e6

    def writing(self, rows: int, rounds: int) -> None:
        post = self.post(1)
        post.queue("bulk", **KEEP).send({})
        turn = 0

        def write() -> float:
            nonlocal turn
            turn += 1
            frame = self.spark.range(0, rows, 1, 2).select(
                F.concat(F.lit(f"{turn}-"), F.col("id")).alias("message_id"),
                F.to_json(F.struct(F.col("id").alias("order"), F.lit("c" * 150).alias("customer"))).alias("payload"),
            )
            began = time.monotonic()
            frame.write.format("restante").options(url=post.url, queue="bulk").mode("append").save()
            return rows / (time.monotonic() - began)

        write()
        self.add("writer", best(rounds, write), "rows/s", f"{rows:,} rows of 200 bytes, ids given")
        assert Admin(post).counts("bulk").ready == rows * turn + 1
        post.connection.command("FLUSHALL", key=b"x")

    def consuming(self, messages: int, rounds: int) -> None:
        post = self.post(1)
        turn = 0

        def consume() -> float:
            nonlocal turn
            turn += 1
            name = f"work{turn}"
            queue = post.queue(name, **KEEP)
            for _ in range(messages // 1000):
                queue.send_many([{"order": 1, "customer": "c" * 150}] * 1000)
            options = {"url": post.url, "queue": name, "consumer": "bench"}
            seen: list[float] = []

            def settle(batch: Any, number: int) -> None:
                verdicts = batch.select("message_id", "lease_token", F.lit("ack").alias("verdict"))
                verdicts.write.format("restante").options(op="settle", **options).mode("append").save()
                seen.append(time.monotonic())

            stream = self.spark.readStream.format("restante").options(
                kind="leases", maxRowsPerBatch=20_000, numPartitions=2, **options
            )
            checkpoint = tempfile.mkdtemp(dir=self.folder)
            began = time.monotonic()
            query = stream.load().writeStream.foreachBatch(settle).option("checkpointLocation", checkpoint)
            query.trigger(availableNow=True).start().awaitTermination()
            took = time.monotonic() - began
            assert Admin(post).counts(name).totals["acked"] == messages
            return messages / took

        consume()
        self.add("consumer", best(rounds, consume), "messages/s", "20,000 per batch, leased, read and acked")
        post.connection.command("FLUSHALL", key=b"x")

    def replaying(self, messages: int) -> None:
        """Archived messages, one in twenty already replayed by a run that was cut off."""
        post = self.post(2)
        queue = post.queue("orders", journal="payloads", **KEEP)
        for turn in range(messages // 1000):
            queue.send_many([{"order": turn, "line": line} for line in range(1000)])
            queue.ack_many(queue.receive_many(1000))
            if turn % 100 == 0:
                self.tell(f"archiving {turn * 1000:,} of {messages:,}")
        post.queue("again").configure(**KEEP)  # every line is needed for the times
        lake = tempfile.mkdtemp(dir=self.folder)
        Pipeline(self.spark, PipelineOptions(url=post.url, lake=lake)).run_once()
        work = Replay(self.spark, lake, post)
        plan, rows = work.plan("", fates=("acked",), to="again", name="bench")
        plan = work.freeze(plan, rows)
        early = self.spark.read.parquet(f"{lake}/replays/bench/plan").orderBy("message_id").limit(messages // 20)
        columns = ("queue", "message_id", "payload", "headers", "content_type")
        early.select(*columns).write.format("restante").options(
            url=post.url, queue="again", op="replay", replay="bench"
        ).mode("append").save()
        before, place = Admin(post).counts("again").totals["sent"], Admin(post).counts("again").journal_last
        assert before == messages // 20
        began = time.monotonic()
        sent = work.run(plan, rate=CAP)
        took = time.monotonic() - began
        rate = sent / sending_seconds(post, "again", place)
        stored = Admin(post).counts("again").totals["sent"]
        known = work.known("bench")
        assert known is not None
        self.add("replay: messages", sent, "messages", f"of {plan.total(COPY):,} archived, {before:,} replayed before")
        self.add("replay: duplicates", stored - messages, "messages")
        self.add(
            "replay: rate against its cap",
            rate / CAP,
            "of the cap",
            f"{rate:,.0f} of {CAP:,}/s from the first to the last message, {took:.1f} s in all",
        )
        self.add("replay: second run sends", work.run(known, rate=CAP), "messages")
        post.connection.command("FLUSHALL", key=b"x")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    options.add_argument("--growth", action="store_true", help="also 100,000 to 5,000,000 events")
    options.add_argument("--only", default="", help="some of reading,writing,consuming,lake,replaying")
    options.add_argument("--write-docs", action="store_true", help="put the table into the documentation")
    given = options.parse_args()
    size, rounds = (100_000, 1) if given.quick else (1_000_000, 3)
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="restante-bench-"))
    progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)
    spark = session(master="local[2]", name="benchmark")
    try:
        with RedisServer() as server, progress:
            bar = progress.add_task("starting")
            bench = Bench(spark, server, folder, lambda text: progress.update(bar, description=text))
            chosen = given.only.split(",") if given.only else ["reading", "writing", "consuming", "lake", "replaying"]
            if "reading" in chosen:
                bench.reading(size, rounds)
            if "writing" in chosen:
                bench.writing(size // 5, rounds)
            if "consuming" in chosen:
                bench.consuming(size // 10, rounds)
            if "lake" in chosen:
                for _ in range(0 if given.quick else 5):
                    bench.lake(size)  # Java compiles for minutes; a pipeline that goes on does not pay for it again
                per_million = bench.lake(size)
                bench.add("lake, CPU seconds per 1M events", per_million, "CPU s", "bronze, silver and gold")
            if given.growth:
                for events in (100_000, 300_000, 1_000_000, 3_000_000, 5_000_000):
                    bench.lake(events)
            if "replaying" in chosen:
                bench.replaying(size)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    fine = show("Restante on Spark", bench.rows, BOUNDS, console)
    keep(RESULTS, bench.rows, pyspark=pyspark.__version__)
    if given.write_docs:
        write_docs(PAGE, bench.rows, BOUNDS)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
