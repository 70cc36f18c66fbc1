"""Readers and writers driven in this process as Spark drives them, crashes included: a batch costs milliseconds."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from restante.spark.options import Options
from restante.spark.source import RestanteSource
from restante.spark.writer import Written

Row = dict[str, Any]
#: What Spark hands to `read` where `partitions` gave none.
NO_PARTS: Final[Any] = (None,)

_numbers = itertools.count(1)


def fresh_name(word: str) -> str:
    """A name no test used before: this process and Spark's Python workers remember the queues they have opened."""
    return f"{word}-{next(_numbers):04}"


def options(url: str, **told: Any) -> Options:
    """Options as Spark hands them over: text under lower-cased names."""
    return Options.parse(texts(url=url, **told))


def texts(**told: Any) -> dict[str, str]:
    return {name.lower(): str(value).lower() if isinstance(value, bool) else str(value) for name, value in told.items()}


def source(url: str, **told: Any) -> RestanteSource:
    return RestanteSource(texts(url=url, **told))


def batch_reader(url: str, schema: StructType | None = None, **told: Any) -> DataSourceReader:
    made = source(url, **told)
    return made.reader(schema or made.schema())


def stream_reader(url: str, schema: StructType | None = None, **told: Any) -> DataSourceStreamReader:
    made = source(url, **told)
    return made.streamReader(schema or made.schema())


def rows_of(batches: Iterable[Any]) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]


def sent_over(value: Any) -> Any:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(value))


def read_all(reader: DataSourceReader) -> list[Row]:
    """Every row, part by part."""
    return [row for part in read_parts(reader) for row in part]


def read_parts(reader: DataSourceReader) -> list[list[Row]]:
    """The rows of each part, read by copies of the reader as tasks have them."""
    return [rows_of(sent_over(reader).read(sent_over(part))) for part in reader.partitions() or NO_PARTS]


def written(url: str, rows: list[Row], schema: Any = None, **told: Any) -> Written:
    """What one task of a job says after writing these rows."""
    return write_batch(url, batch_of(rows, schema), **told)


def batch_of(rows: list[Row], schema: Any = None) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema) if schema is not None else pa.RecordBatch.from_pylist(rows)


def write_batch(url: str, *batches: Any, stream: bool = False, **told: Any) -> Written:
    columns = from_arrow_schema(batches[0].schema)
    assert isinstance(columns, StructType)
    made = source(url, **told)
    writer: Any = made.streamWriter(columns, False) if stream else made.writer(columns, False)
    told_back = sent_over(writer).write(iter(batches))
    assert isinstance(told_back, Written)
    return told_back


@dataclass
class Checkpoint:
    """What Spark keeps of a query: the ends of planned batches, and how many batches are committed."""

    #: The offset the query began with, once asked for.
    first: str = ""
    ends: list[str] = field(default_factory=list)
    commits: int = 0


class Query:
    """A streaming query: plans, reads and commits one batch after the other, and can be left at every step."""

    def __init__(self, make: Callable[[], DataSourceStreamReader], checkpoint: Checkpoint | None = None) -> None:
        self._make = make
        self.checkpoint = checkpoint or Checkpoint()
        self.reader: Any = make()

    def available_now(self) -> Query:
        self.reader.prepareForTriggerAvailableNow()
        return self

    @property
    def start(self) -> Any:
        """Where the next batch begins. The log has only ends: the beginning of the first batch is asked for again."""
        kept = self.checkpoint
        if kept.commits:
            return json.loads(kept.ends[kept.commits - 1])
        return json.loads(json.dumps(self.reader.initialOffset()))

    @property
    def end(self) -> Any:
        return json.loads(self.checkpoint.ends[-1])

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Whether there is a batch to run; one planned before a crash comes first, as it was."""
        if len(self.checkpoint.ends) > self.checkpoint.commits:
            return True
        start = self.start
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return False
        self.checkpoint.ends.append(json.dumps(end))
        return True

    def parts(self) -> list[InputPartition]:
        return [sent_over(part) for part in self.reader.partitions(self.start, self.end)]

    def rows(self) -> list[Row]:
        """The planned batch, as one action reads it."""
        return [row for part in (self.parts() or NO_PARTS) for row in rows_of(self._make().read(part))]

    def commit(self) -> None:
        self.checkpoint.commits += 1

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """One whole batch; None where there is nothing to do."""
        if not self.plan(limit):
            return None
        rows = self.rows()
        self.commit()
        return rows

    def drain(self, limit: ReadLimit | None = None, most: int = 1000) -> list[list[Row]]:
        """Every batch until there is nothing more to do."""
        made = []
        while (rows := self.batch(limit)) is not None:
            made.append(rows)
            assert len(made) <= most, "the query does not end"
        return made

    def drained(self, limit: ReadLimit | None = None) -> list[Row]:
        """The rows of every batch until there is nothing more to do."""
        return [row for batch in self.drain(limit) for row in batch]

    def stop(self) -> None:
        self.reader.stop()

    def crashed(self) -> Query:
        """The same query after its process was killed: only the checkpoint is left."""
        keeper = getattr(self.reader, "_keeper", None)
        if keeper is not None:
            keeper.stop()
            keeper.join()
        return Query(self._make, self.checkpoint)

    def restarted(self) -> Query:
        """The same query stopped and started."""
        self.stop()
        return Query(self._make, self.checkpoint)
