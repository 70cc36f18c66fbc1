"""Options are read in one place: what is misspelt, missing or out of range is refused with its remedy."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from restante.core.errors import InvalidInput, InvalidName
from restante.core.message import State
from restante.spark.journal import FilteringJournalReader, JournalBatchReader, JournalStreamReader
from restante.spark.leases import LeaseStreamReader
from restante.spark.options import KNOWN, Options, instant, reference
from restante.spark.schemas import JOURNAL, KINDS, LEASES, RSMQ, SNAPSHOT, Table
from restante.spark.snapshot import RsmqReader, SnapshotReader
from restante.spark.source import RestanteSource
from tests.spark.driving import batch_reader, sent_over, source, stream_reader

URL = "redis://127.0.0.1:1"


class TestReading:
    def test_names_are_known_in_any_case(self) -> None:
        for name in ("maxRowsPerBatch", "maxrowsperbatch", "MAXROWSPERBATCH"):
            assert Options.parse({name: "7"}).max_rows_per_batch == 7

    def test_queue_and_queues_are_one_option(self) -> None:
        assert Options.parse({"queue": "orders"}) == Options.parse({"queues": "orders"})

    def test_options_of_a_table_made_by_sql_carry_a_prefix(self) -> None:
        assert Options.parse({"option.kind": "dead"}).kind == "dead"

    def test_what_spark_adds_by_itself_is_passed_over(self) -> None:
        added = {"path": "x", "checkpointLocation": "y", "provider": "restante", "spark.anything": "z"}
        assert Options.parse(added) == Options()

    def test_texts_become_numbers_and_flags(self) -> None:
        found = Options.parse({"leaseSeconds": "2.5", "numPartitions": "3", "failOnDataLoss": "False", "rate": "10"})
        assert (found.lease_seconds, found.num_partitions, found.fail_on_data_loss, found.rate) == (2.5, 3, False, 10.0)

    def test_every_option_is_explained(self) -> None:
        explained = reference()
        assert len(explained) == len(fields(Options))
        assert all(about for _, _, about in explained)
        assert {name.lower() for name, _, _ in explained} | {"queue"} == KNOWN


class TestRefusing:
    def test_a_misspelt_name_is_answered_with_the_right_one(self) -> None:
        with pytest.raises(InvalidInput, match=r"no option maxRowPerBatch: did you mean maxRowsPerBatch\?"):
            Options.parse({"maxRowPerBatch": "1"})

    def test_a_name_like_no_other_is_answered_with_where_to_look(self) -> None:
        with pytest.raises(InvalidInput, match="reference"):
            Options.parse({"zzz": "1"})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("kind", "stream"),
            ("op", "overwrite"),
            ("startingPosition", "middle"),
            ("states", "ready,waiting"),
            ("states", ""),
            ("since", "yesterday"),
            ("until", "2026-13-01"),
            ("numPartitions", "-1"),
            ("numPartitions", "two"),
            ("numPartitions", "1.5"),
            ("maxRowsPerBatch", "-1"),
            ("rowsPerCall", "0"),
            ("rowsPerCall", "1001"),
            ("leaseSeconds", "0.5"),
            ("leaseSeconds", "nan"),
            ("leaseSeconds", "inf"),
            ("failOnDataLoss", "maybe"),
            ("rate", "-1"),
            ("rate", "nan"),
            ("rate", "inf"),
            ("patience", "nan"),
            ("patience", "-1"),
            ("startSeq", "-1"),
            ("endSeq", "-1"),
            ("reader", "two words"),
            ("queues", ""),
        ],
    )
    def test_a_value_out_of_range_is_refused_by_its_name(self, name: str, value: str) -> None:
        with pytest.raises(InvalidInput, match=name if name != "states" else "states must be some of"):
            Options.parse({name: value})

    def test_without_a_server_the_remedy_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RESTANTE_URL", raising=False)
        with pytest.raises(InvalidInput, match="RESTANTE_URL"):
            Options.parse({}).server()
        monkeypatch.setenv("RESTANTE_URL", URL)
        assert Options.parse({}).server() == URL
        assert Options.parse({"url": "redis://other"}).server() == "redis://other"

    def test_the_server_named_by_the_environment_travels_with_the_reader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RESTANTE_URL", URL)
        made = RestanteSource({"kind": "dead"})
        schema = StructType().add("message_id", "string").add("payload", "string")
        served = [
            made.reader(made.schema()),
            RestanteSource({}).streamReader(JOURNAL.spark()),
            RestanteSource({"queue": "q"}).writer(schema, False),
            RestanteSource({"queue": "q"}).streamWriter(schema, False),
        ]
        monkeypatch.delenv("RESTANTE_URL")  # as on an executor
        for one in map(sent_over, served):
            assert one.options.server() == URL

    @pytest.mark.parametrize("queues", ["*", "a,b", "a?"])
    def test_a_consumer_or_writer_needs_exactly_one_queue(self, queues: str) -> None:
        with pytest.raises(InvalidInput, match="name one queue"):
            Options.parse({"queues": queues}).one_queue()

    def test_a_queue_name_is_checked_as_everywhere(self) -> None:
        with pytest.raises(InvalidName):
            Options.parse({"queue": "two words"}).one_queue()
        assert Options.parse({"queue": "orders"}).one_queue() == "orders"

    def test_a_consumer_needs_a_name_that_stays(self) -> None:
        with pytest.raises(InvalidInput, match="restarts must use the same name"):
            Options.parse({}).named_consumer()
        with pytest.raises(InvalidName):
            Options.parse({"consumer": "two words"}).named_consumer()


class TestMeaning:
    def test_queues_are_chosen_by_names_and_patterns(self) -> None:
        names = ["orders", "orders.eu", "mail", "audit"]
        assert Options.parse({}).matching(names) == sorted(names)
        assert Options.parse({"queues": "orders*"}).matching(names) == ["orders", "orders.eu"]
        assert Options.parse({"queues": "mail, a????"}).matching(names) == ["audit", "mail"]
        assert Options.parse({"queues": "Mail"}).matching(names) == []

    def test_an_instant_without_a_zone_is_utc(self) -> None:
        noon = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
        east = datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))).isoformat()
        for text in ("2026-01-31T12:00:00", "2026-01-31T12:00:00Z", "2026-01-31 12:00", east):
            assert instant(text, "since") == noon
        assert instant("", "since") is None

    def test_kinds_of_one_state_are_that_state(self) -> None:
        assert Options.parse({"kind": "dead"}).state_list() == [State.DEAD]
        assert Options.parse({"kind": "done", "states": "ready"}).state_list() == [State.DONE]
        assert Options.parse({"kind": "queue", "states": "ready, dead"}).state_list() == [State.READY, State.DEAD]
        assert Options.parse({}).state_list() == [*State]


class TestChoosing:
    """Which reader serves which kind; no server is asked for that."""

    @pytest.mark.parametrize(
        ("kind", "reader", "table"),
        [
            ("journal", JournalBatchReader, JOURNAL),
            ("queue", SnapshotReader, SNAPSHOT),
            ("dead", SnapshotReader, SNAPSHOT),
            ("done", SnapshotReader, SNAPSHOT),
            ("rsmq", RsmqReader, RSMQ),
        ],
    )
    def test_each_kind_of_table_has_its_reader_and_columns(self, kind: str, reader: type, table: Table) -> None:
        assert type(batch_reader(URL, kind=kind)) is reader
        assert source(URL, kind=kind).schema() == table.spark()

    def test_the_journal_is_the_kind_unless_told_otherwise(self) -> None:
        assert source(URL).schema() == JOURNAL.spark()

    def test_filters_are_taken_only_where_they_were_asked_for(self) -> None:
        assert type(batch_reader(URL, pushdown=True)) is FilteringJournalReader
        assert JournalBatchReader.pushFilters is DataSourceReader.pushFilters

    def test_streams_are_the_journal_and_leases(self) -> None:
        assert type(stream_reader(URL)) is JournalStreamReader
        assert type(stream_reader(URL, kind="leases", queue="q", consumer="c")) is LeaseStreamReader
        for kind in ("queue", "dead", "done", "rsmq"):
            with pytest.raises(InvalidInput, match=r"use spark\.read"):
                stream_reader(URL, kind=kind)

    def test_leases_are_not_a_table(self) -> None:
        with pytest.raises(InvalidInput, match="readStream"):
            batch_reader(URL, kind="leases", queue="q", consumer="c")

    def test_a_consumer_without_name_or_queue_is_refused_before_the_query_starts(self) -> None:
        with pytest.raises(InvalidInput, match="name the consumer"):
            stream_reader(URL, kind="leases", queue="q")
        with pytest.raises(InvalidInput, match="name one queue"):
            stream_reader(URL, kind="leases", consumer="c")

    @pytest.mark.parametrize("table", KINDS.values(), ids=lambda table: table.name)
    def test_columns_are_chosen_in_any_order_and_others_refused(self, table: Table) -> None:
        spark_schema: StructType = table.spark()
        turned = StructType(list(reversed(spark_schema.fields)))
        assert table.narrow(turned) == tuple(turned.fieldNames())
        for wrong in (StructType().add("queue", "integer"), StructType().add("colour", "string")):
            with pytest.raises(InvalidInput, match="has no column"):
                table.narrow(wrong)

    def test_the_columns_of_leases_are_those_a_verdict_needs(self) -> None:
        assert {"message_id", "lease_token", "attempts", "retry"} <= {*LEASES.names}
