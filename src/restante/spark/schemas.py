"""Defines the columns of every table: the Arrow schema, the Spark schema and the reference page come from here.

Instants are `timestamp` (UTC, microseconds); durations are double seconds and end in `_seconds`. No column is NOT NULL,
because Spark's Arrow reader compares nullability too. Absent text is "", as in the journal, not null.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from restante.core.errors import InvalidInput
from restante.core.message import JournalEvent

TEXT = pa.string()
LONG = pa.int64()
INT = pa.int32()
INSTANT = pa.timestamp("us", tz="UTC")
SECONDS = pa.float64()
RAW = pa.binary()
FLAG = pa.bool_()
DATE = pa.date32()

_SPARK_TYPES = {
    TEXT: "string",
    LONG: "bigint",
    INT: "int",
    INSTANT: "timestamp",
    SECONDS: "double",
    RAW: "binary",
    FLAG: "boolean",
    DATE: "date",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its Arrow type and its content."""

    name: str
    type: pa.DataType
    about: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns in order, and what a row is."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def arrow(self, names: tuple[str, ...] | None = None) -> pa.Schema:
        """The Arrow schema of all columns, or of those named."""
        types = {column.name: column.type for column in self.columns}
        return pa.schema([(name, types[name]) for name in names or self.names])

    def ddl(self) -> str:
        """The columns as Spark DDL."""
        return ", ".join(f"`{column.name}` {_SPARK_TYPES[column.type]}" for column in self.columns)

    def spark(self) -> StructType:
        """The Spark schema."""
        schema = from_arrow_schema(self.arrow())
        assert isinstance(schema, StructType)
        return schema

    def spark_type(self, column: str) -> str:
        """Spark's name for a column's type."""
        return _SPARK_TYPES[next(item for item in self.columns if item.name == column).type]

    def narrow(self, schema: StructType) -> tuple[str, ...]:
        """The columns of a user's `.schema(…)`; refuses a name or type that this table does not have."""
        types = {column.name: _SPARK_TYPES[column.type] for column in self.columns}
        for field in schema.fields:
            if types.get(field.name) != field.dataType.simpleString():
                raise InvalidInput(
                    f"{self.name} has no column {field.name} {field.dataType.simpleString()}; it has {self.ddl()}"
                )
        return tuple(field.name for field in schema.fields)


QUEUE = Column("queue", TEXT, "the queue")
INCARNATION = Column(
    "incarnation", LONG, "when the queue was created, in ms: a queue recreated under the same name has another value"
)
MESSAGE_ID = Column("message_id", TEXT, "the message's id; empty where the event is about the queue")
KIND = Column("kind", TEXT, "the message's kind")
PRIORITY = Column("priority", INT, "0 to 255, high first")
SENT_AT = Column("sent_at", INSTANT, "when the message was sent")
CONSUMER = Column("consumer", TEXT, "the consumer, or the operator of an admin verb")
ERROR_CLASS = Column("error_class", TEXT, "class of the error; empty for none")
PAYLOAD = Column("payload", RAW, "the payload as sent: JSON text, or bytes as content_type says")
HEADERS = Column("headers", TEXT, "the headers as a JSON object; empty for none")
CONTENT_TYPE = Column("content_type", TEXT, "application/json, or the type given with bytes")
MINUTE = Column("minute", INSTANT, "begin of the minute")

_JOURNAL_COLUMNS = (
    QUEUE,
    INCARNATION,
    Column("position", LONG, "number of the line in its journal, without gaps"),
    Column("event", TEXT, "the event: " + ", ".join(event.value for event in JournalEvent)),
    Column("state", TEXT, "the state after the event, or gone"),
    Column("at", INSTANT, "when it happened, by the server's clock"),
    MESSAGE_ID,
    SENT_AT,
    KIND,
    PRIORITY,
    Column("size", INT, "bytes of the payload"),
    Column("attempts", INT, "deliveries so far"),
    CONSUMER,
    Column("due_at", INSTANT, "due_at or lease_expires_at, whichever the event sets"),
    ERROR_CLASS,
    Column(
        "detail", TEXT, "the earlier state (deleted, purged), the task of a replay, or the queue a message moved to"
    ),
)
#: Columns with values for queues that journal payloads (`journal="payloads"`); null for others.
_CONTENT_COLUMNS = (PAYLOAD, HEADERS, CONTENT_TYPE)

JOURNAL = Table("journal", "one row per event", _JOURNAL_COLUMNS + _CONTENT_COLUMNS)

SNAPSHOT = Table(
    "queue",
    "one row per message that is in the queue now",
    (
        QUEUE,
        MESSAGE_ID,
        Column("state", TEXT, "the state it is in"),
        KIND,
        PRIORITY,
        Column("size", INT, "bytes of the payload"),
        SENT_AT,
        Column("due_at", INSTANT, "when it becomes ready (scheduled, retrying)"),
        Column("lease_expires_at", INSTANT, "when its lease ends (leased)"),
        Column("settled_at", INSTANT, "when it became dead or done (dead, done)"),
        Column("attempts", INT, "deliveries so far"),
        Column("max_attempts", INT, "deliveries allowed, if the message sets its own limit"),
        Column("replays", INT, "times it was replayed"),
        CONSUMER,
        ERROR_CLASS,
        Column("error", TEXT, "text of the last attempt's error"),
        PAYLOAD,
        HEADERS,
        CONTENT_TYPE,
    ),
)

RSMQ = Table(
    "rsmq",
    "one row per message of an RSMQ queue",
    (
        QUEUE,
        MESSAGE_ID,
        Column("state", TEXT, "ready, scheduled (never received, waits for due_at) or leased"),
        SENT_AT,
        Column("due_at", INSTANT, "when it can next be received"),
        Column("attempts", INT, "deliveries so far"),
        Column("first_received_at", INSTANT, "first delivery"),
        PAYLOAD,
    ),
)

LEASES = Table(
    "leases",
    "one row per message leased to this consumer",
    (
        QUEUE,
        MESSAGE_ID,
        Column("lease_token", TEXT, "proof of the lease; the settle writer needs it"),
        Column("attempts", INT, "deliveries so far, including this one"),
        KIND,
        PRIORITY,
        SENT_AT,
        Column("received_at", INSTANT, "when it was leased"),
        Column("retry", TEXT, "the message's own retry policy; empty for the queue's"),
        PAYLOAD,
        HEADERS,
        CONTENT_TYPE,
    ),
)

MESSAGES = Table(
    "messages",
    "one row per message: its life so far (silver)",
    (
        QUEUE,
        INCARNATION,
        MESSAGE_ID,
        KIND,
        PRIORITY,
        Column("size", INT, "bytes of the payload"),
        SENT_AT,
        Column("was_sent", FLAG, "whether the lake has its sent event"),
        Column("first_received_at", INSTANT, "first delivery"),
        Column("last_received_at", INSTANT, "last delivery"),
        Column(
            "settled_at", INSTANT, "when it was acked, became dead or was removed; null while it waits or is leased"
        ),
        Column("state", TEXT, "the state after its last event: a state's name or gone"),
        Column("last_event", TEXT, "its last event"),
        Column("last_at", INSTANT, "time of its last event"),
        Column("last_position", LONG, "journal position of its last event"),
        Column("fate", TEXT, "acked, dead, expired (dead because its last lease ended), deleted or waiting"),
        Column("deliveries", INT, "times it was received"),
        Column("failures", INT, "attempts that were nacked or buried"),
        Column("expiries", INT, "leases that expired"),
        Column("releases", INT, "times it was released, which does not count as an attempt"),
        Column("replays", INT, "times it was replayed"),
        Column("wait_seconds", SECONDS, "from sent (or due) to the first delivery"),
        Column("run_seconds", SECONDS, "held by consumers, all ended leases together"),
        Column("total_seconds", SECONDS, "from sent to settled"),
        CONSUMER,
        ERROR_CLASS,
    ),
)

ATTEMPTS = Table(
    "attempts",
    "one row per ended lease (silver)",
    (
        QUEUE,
        INCARNATION,
        MESSAGE_ID,
        KIND,
        SENT_AT,
        CONSUMER,
        Column("attempt", INT, "number of the delivery"),
        Column("received_at", INSTANT, "when the lease began"),
        Column("ended_at", INSTANT, "when it ended"),
        Column("ended_by", TEXT, "acked, nacked, buried, released or expired"),
        Column("run_seconds", SECONDS, "how long it was held"),
        ERROR_CLASS,
    ),
)


def _percentiles(word: str, about: str) -> tuple[Column, ...]:
    return tuple(Column(f"{word}_p{p}_seconds", SECONDS, f"{about}, {p}th percentile") for p in (50, 95, 99))


LATENCY = Table(
    "latency",
    "acked messages by queue, kind and the minute they were sent in",
    (
        QUEUE,
        KIND,
        MINUTE,
        Column("messages", LONG, "acked messages that were sent in this minute"),
        *_percentiles("wait", "from sent or due to the first delivery"),
        *_percentiles("run", "held by consumers"),
        *_percentiles("total", "from sent to acked"),
    ),
)

#: Events that are counted per minute; the others move no message.
COUNTED = tuple(
    event.value for event in JournalEvent if event.value not in ("configured", "paused", "resumed", "edited")
)

THROUGHPUT = Table(
    "throughput",
    "events by queue and minute, and how they changed the counts of waiting and dead messages",
    (
        QUEUE,
        MINUTE,
        *(Column(event, LONG, f"messages {event}") for event in COUNTED),
        Column("died", LONG, "messages that became dead"),
        Column("waiting_delta", LONG, "change of waiting (ready, scheduled, retrying, leased)"),
        Column("dead_delta", LONG, "change of dead"),
    ),
)

RETRIES = Table(
    "retries",
    "failed attempts by queue, kind, error and minute",
    (
        QUEUE,
        KIND,
        ERROR_CLASS,
        MINUTE,
        Column("nacked", LONG, "attempts that were nacked or buried"),
        Column("expired", LONG, "leases that expired"),
        Column("worst_attempts", INT, "the highest attempt number among them"),
    ),
)

OVERDUE = Table(
    "overdue",
    "leases that expired, by queue and minute",
    (
        QUEUE,
        MINUTE,
        Column("received", LONG, "leases begun"),
        Column("extended", LONG, "leases extended"),
        Column("expired", LONG, "leases that expired"),
    ),
)

CAUSES = Table(
    "causes",
    "why messages died, by queue, kind and error",
    (
        QUEUE,
        KIND,
        ERROR_CLASS,
        Column("event", TEXT, "nacked, buried or expired"),
        Column("dead", LONG, "messages that became dead"),
        Column("first_at", INSTANT, "first death"),
        Column("last_at", INSTANT, "last death"),
        Column("example_id", TEXT, "id of one of them: the greatest"),
    ),
)

CONSUMERS = Table(
    "consumers",
    "work of each consumer, by the minute in which leases ended",
    (
        CONSUMER,
        QUEUE,
        MINUTE,
        Column("leases", LONG, "leases that ended"),
        Column("acked", LONG, "of these, acked"),
        Column("failed", LONG, "of these, nacked, buried or expired"),
        Column("busy_seconds", SECONDS, "time they were held, summed"),
    ),
)

AUDIT = Table(
    "audit",
    "conservation by queue and the hour messages were sent in: sent = acked + dead + expired + deleted + waiting",
    (
        QUEUE,
        INCARNATION,
        Column("hour", INSTANT, "begin of the hour"),
        Column("sent", LONG, "messages sent"),
        Column("acked", LONG, "acked"),
        Column("dead", LONG, "dead because an attempt failed or was buried"),
        Column("expired", LONG, "dead because the last lease expired"),
        Column("deleted", LONG, "removed by an operator (deleted, purged, moved)"),
        Column("waiting", LONG, "none of these"),
        Column("unsent", LONG, "in the lake without their sent event"),
    ),
)

BACKLOG = Table(
    "backlog",
    "how many messages were waiting and dead at the end of each minute in which that changed",
    (QUEUE, MINUTE, Column("waiting", LONG, "messages waiting"), Column("dead", LONG, "messages dead")),
)

DRAIN = Table(
    "drain",
    "how long until each queue is empty at the rates of its last quarter of an hour",
    (
        QUEUE,
        Column("at", INSTANT, "end of the last minute with an event in any queue"),
        Column("waiting", LONG, "messages waiting"),
        Column("arrival_per_second", SECONDS, "messages sent or replayed per second"),
        Column("settle_per_second", SECONDS, "messages that left per second"),
        Column("drain_seconds", SECONDS, "seconds until empty; null while more arrive than leave"),
    ),
)

SILVER = (MESSAGES, ATTEMPTS)
#: Partitioned by send date (`dt`); each date is computed from its own rows alone. Rows of one minute may be under two
#: dates; their counts add up.
GOLD = (LATENCY, THROUGHPUT, RETRIES, OVERDUE, CAUSES, CONSUMERS, AUDIT)
#: Rewritten as a whole from `throughput`, not by date.
SUMMED = (BACKLOG, DRAIN)
#: Tables that Spark can read, by `kind=`.
KINDS = {table.name: table for table in (JOURNAL, SNAPSHOT, RSMQ, LEASES)}
