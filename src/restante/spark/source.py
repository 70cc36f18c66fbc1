"""The data source `restante`: chooses the reader or writer for each `kind` and `op`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from restante.core.errors import InvalidInput
from restante.spark.journal import FilteringJournalReader, JournalBatchReader, JournalStreamReader
from restante.spark.leases import LeaseStreamReader
from restante.spark.options import KNOWN, STATE_KINDS, Options
from restante.spark.schemas import KINDS, SNAPSHOT, Table
from restante.spark.snapshot import RsmqReader, SnapshotReader
from restante.spark.writer import RestanteStreamWriter, RestanteWriter

#: Metadata key under which the schema of a table created by SQL keeps its options.
_KEPT = "restante"


class RestanteSource(DataSource):
    """`format("restante")`, with the options of `restante.spark.options.Options`."""

    @classmethod
    def name(cls) -> str:
        return "restante"

    def _options(self, schema: StructType | None = None) -> Options:
        """The checked options; those of a table created by SQL come with its schema."""
        given = dict(self.options)
        if schema is not None and schema.fields and "url" not in given:
            given = {**schema.fields[0].metadata.get(_KEPT, {}), **given}
        options = Options.parse(given)
        # Executors have another environment than the driver: the server's URL must travel with the options.
        return replace(options, url=options.server()) if schema is not None else options

    def _table(self, options: Options) -> Table:
        return SNAPSHOT if options.kind in STATE_KINDS else KINDS[options.kind]

    def schema(self) -> StructType:
        schema = self._table(self._options()).spark()
        if "provider" in self.options:
            # CREATE TABLE … USING restante: Spark keeps the options but does not pass them to the reader.
            kept = {name: value for name, value in self.options.items() if name.lower() in KNOWN}
            schema.fields[0].metadata[_KEPT] = kept
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(schema)
        names = self._table(options).narrow(schema)
        if options.kind == "journal":
            kind = FilteringJournalReader if options.pushdown else JournalBatchReader
            return kind(options, names)
        if options.kind == "rsmq":
            return RsmqReader(options, names)
        if options.kind == "leases":
            raise InvalidInput(
                "kind=leases leases messages, as a stream: use spark.readStream, or kind=queue to read without leasing"
            )
        return SnapshotReader(options, names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        options = self._options(schema)
        names = self._table(options).narrow(schema)
        if options.kind == "journal":
            return JournalStreamReader(options, names)
        if options.kind == "leases":
            return LeaseStreamReader(options, names)
        raise InvalidInput(f"kind={options.kind} is a table: use spark.read; streams are journal and leases")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidInput('a queue is not overwritten: use .mode("append"), and `restante purge` to empty it')
        return RestanteWriter(self._options(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        return RestanteStreamWriter(self._options(schema), schema)


def register(spark: SparkSession) -> None:
    """Registers `format("restante")` with a session that did not find it by itself."""
    spark.dataSource.register(RestanteSource)


def read(spark: SparkSession, kind: str = "journal", **options: Any) -> Any:
    """Reads a table of Restante: `read(spark, "dead", url=…, queues="orders")`."""
    register(spark)
    return spark.read.format("restante").options(kind=kind, **options).load()
