"""Combines a lake with the journal lines it has not taken in yet, so that tables are as of now.

A lake is as old as the last run of its pipeline. Audit and replay act on the fate of messages, so they must know what
happened since. Nothing is written. On failure: a server that is away raises Unavailable.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.journal_reader import JournalReader, Place
from restante.core.queue import Client
from restante.spark.columns import dated
from restante.spark.options import Options
from restante.spark.pipeline import Pipeline
from restante.spark.schemas import JOURNAL


class LiveLake:
    """One lake and one server at the moment this object was created."""

    def __init__(self, pipeline: Pipeline, post: Client) -> None:
        self.pipeline = pipeline
        self.spark = pipeline.spark
        self.post = post
        self.state = pipeline.lake.state()
        if self.state.folded < 0:
            raise NotFound(f"{pipeline.lake.uri} has no tables yet: run `restante pipeline run --once --lake …` first")
        queues = Options(queues=pipeline.options.queues).matching(Admin(post).queues())
        #: Where the journals stood at that moment.
        self.places: dict[str, Place] = JournalReader(post).places(queues)
        self.lines = pipeline.journal(self.state)
        #: The lake's last line by queue and incarnation.
        self.ends = {
            (row.queue, row.incarnation): row.last
            for row in self.lines.groupBy("queue", "incarnation").agg(F.max("position").alias("last")).collect()
        }
        self.tail = self._tail().cache()

    def _tail(self) -> DataFrame:
        """Journal lines that are not in the lake yet."""
        parts = []
        for queue, place in self.places.items():
            end = self.ends.get((queue, place.incarnation), place.floor)
            if place.last > end:
                lines = self.spark.read.format("restante").schema(JOURNAL.ddl())
                options = {"url": self.post.url, "queues": queue, "startSeq": end + 1, "endSeq": place.last}
                parts.append(lines.options(**options).load())
        if not parts:
            return dated(self.spark.createDataFrame([], JOURNAL.ddl()))
        return dated(reduce(DataFrame.unionByName, parts))

    def journal(self) -> DataFrame:
        """Every line of lake and tail."""
        return self.lines.unionByName(self.tail.select(*self.lines.columns))

    def messages(self) -> DataFrame:
        """The table `messages` as of now."""
        return self.pipeline.messages(self.state, self.tail)
