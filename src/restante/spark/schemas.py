"""Defines the columns of every table: the Arrow schema, the Spark schema and the reference page come from here.

A table is written as lines of name, Spark type and content; names alone are columns that several tables share. Instants
are UTC, in microseconds; durations are in seconds and end in `_seconds`. No column is NOT NULL, because Spark's Arrow
reader compares nullability too. Absent text is "", as in the journal, not null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from restante.core.errors import InvalidInput
from restante.core.message import JournalEvent

INSTANT: Final = pa.timestamp("us", tz="UTC")
#: Spark's types and Arrow's.
_ARROW_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": INSTANT,
    "double": pa.float64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, Spark's name of its type, and its content."""

    name: str
    type: str
    about: str

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW_TYPES[self.type]


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
        types = {column.name: column.arrow for column in self.columns}
        return pa.schema([(name, types[name]) for name in names or self.names])

    def ddl(self) -> str:
        """The columns as Spark DDL."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def spark(self) -> StructType:
        """The Spark schema."""
        schema = from_arrow_schema(self.arrow())
        assert isinstance(schema, StructType)
        return schema

    def spark_type(self, column: str) -> str:
        """Spark's name for a column's type."""
        return next(item for item in self.columns if item.name == column).type

    def narrow(self, schema: StructType) -> tuple[str, ...]:
        """The columns of a user's `.schema(…)`; refuses a name or type that this table does not have."""
        types = {column.name: column.type for column in self.columns}
        for field in schema.fields:
            if types.get(field.name) != field.dataType.simpleString():
                raise InvalidInput(
                    f"{self.name} has no column {field.name} {field.dataType.simpleString()}; it has {self.ddl()}"
                )
        return tuple(field.name for field in schema.fields)


def _columns(lines: str, shared: Mapping[str, Column]) -> list[Column]:
    columns = []
    for line in lines.strip().splitlines():
        name, *described = line.split(None, 2)
        if described and not name.endswith(","):
            type, about = described
            columns.append(Column(name, type, about))
        else:
            columns += [shared[name.strip()] for name in line.split(",")]
    return columns


def _table(name: str, about: str, lines: str) -> Table:
    return Table(name, about, tuple(_columns(lines, _SHARED)))


_SHARED: Final = {
    column.name: column
    for column in _columns(
        """
    queue               string     the queue
    incarnation         bigint     when the queue was created, in ms: differs if it was removed and recreated
    message_id          string     the message's id; empty where the event is about the queue
    kind                string     the message's kind
    priority            int        0 to 255, high first
    size                int        bytes of the payload
    sent_at             timestamp  when the message was sent
    first_received_at   timestamp  first delivery
    attempts            int        deliveries so far
    consumer            string     the consumer, or the operator of an admin verb
    error_class         string     class of the error; empty for none
    payload             binary     the payload as sent: JSON text, or bytes as content_type says
    headers             string     the headers as a JSON object; empty for none
    content_type        string     application/json, or the type given with bytes
    minute              timestamp  begin of the minute
    """,
        {},
    )
}

#: Values of `messages.fate`: what became of a message, in the order of the audit.
FATES: Final = ("acked", "dead", "expired", "deleted", "cancelled", "waiting")
#: The equation that the audit checks.
EQUATION: Final = f"sent = {' + '.join(FATES)}"

# -- what Spark reads ------------------------------------------------------------------------------------------------

#: payload, headers and content_type have values for queues that journal payloads (`journal="payloads"`).
JOURNAL: Final = _table(
    "journal",
    "one row per event",
    f"""
    queue, incarnation
    position            bigint     number of the line in its journal, without gaps
    event               string     the event: {", ".join(event.value for event in JournalEvent)}
    state               string     the state after the event, or gone
    at                  timestamp  when it happened, by the server's clock
    message_id, sent_at, kind, priority, size, attempts, consumer
    due_at              timestamp  due_at or lease_expires_at, whichever the event sets
    error_class
    detail              string     the state before a removal, the holder before a revoke, a replay's task, or a queue
    payload, headers, content_type
    """,
)

SNAPSHOT: Final = _table(
    "queue",
    "one row per message that is in the queue now",
    """
    queue, message_id
    state               string     the state it is in
    kind, priority, size, sent_at
    due_at              timestamp  when it becomes ready (scheduled, retrying)
    lease_expires_at    timestamp  when its lease ends (leased)
    settled_at          timestamp  when it became dead or done (dead, done)
    attempts
    max_attempts        int        deliveries allowed, if the message sets its own limit
    lease_seconds       double     length of its leases, if the message sets its own
    timeout_seconds     double     time limit of its handler, if the message sets its own
    expires_at          timestamp  when it is no longer delivered, if it was sent with an expiry
    replays             int        times it was replayed
    consumer, error_class
    error               string     text of the last attempt's error
    progress            double     how far its handler is, 0 to 1 (leased); null if it has noted none
    progress_step       string     what its handler is doing (leased); empty if it has noted nothing
    progress_at         timestamp  when its handler noted that (leased)
    result              string     what it was acked with, as JSON (done); empty for none
    payload, headers, content_type
    """,
)

RSMQ: Final = _table(
    "rsmq",
    "one row per message of an RSMQ queue",
    """
    queue, message_id
    state               string     ready, scheduled (never received, waits for due_at) or leased
    sent_at
    due_at              timestamp  when it can next be received
    attempts, first_received_at, payload
    """,
)

LEASES: Final = _table(
    "leases",
    "one row per message leased to this consumer",
    """
    queue, message_id
    lease_token         string     proof of the lease; the settle writer needs it
    attempts            int        deliveries so far, including this one
    kind, priority, sent_at
    received_at         timestamp  when it was leased
    retry               string     the message's own retry policy; empty for the queue's
    payload, headers, content_type
    """,
)

# -- silver ----------------------------------------------------------------------------------------------------------

MESSAGES: Final = _table(
    "messages",
    "one row per message: its life so far (silver)",
    """
    queue, incarnation, message_id, kind, priority, size, sent_at
    was_sent            boolean    whether the lake has its sent event
    first_received_at
    last_received_at    timestamp  last delivery
    settled_at          timestamp  when it was acked, became dead or was removed; null while it waits or is leased
    state               string     the state after its last event: a state's name or gone
    last_event          string     its last event
    last_at             timestamp  time of its last event
    last_position       bigint     journal position of its last event
    fate                string     acked, dead, expired (dead as its last lease ended), deleted, cancelled or waiting
    deliveries          int        times it was received
    failures            int        attempts that were nacked or buried
    expiries            int        leases that expired
    releases            int        times it was released, which does not count as an attempt
    revocations         int        times an operator took it back, which counts as an attempt
    replays             int        times it was replayed
    wait_seconds        double     from sent (or due) to the first delivery
    run_seconds         double     held by consumers, all ended leases together
    total_seconds       double     from sent to settled
    consumer, error_class
    """,
)

ATTEMPTS: Final = _table(
    "attempts",
    "one row per ended lease (silver)",
    """
    queue, incarnation, message_id, kind, sent_at, consumer
    attempt             int        number of the delivery
    received_at         timestamp  when the lease began
    ended_at            timestamp  when it ended
    ended_by            string     acked, nacked, buried, released, expired, revoked or cancelled
    run_seconds         double     how long it was held
    error_class
    """,
)

# -- gold ------------------------------------------------------------------------------------------------------------


def _percentiles(word: str, about: str) -> str:
    return "\n".join(f"{word}_p{p}_seconds double {about}, {p}th percentile" for p in (50, 95, 99))


LATENCY: Final = _table(
    "latency",
    "acked messages by queue, kind and the minute they were sent in",
    f"""
    queue, kind, minute
    messages            bigint     acked messages that were sent in this minute
    {_percentiles("wait", "from sent or due to the first delivery")}
    {_percentiles("run", "held by consumers")}
    {_percentiles("total", "from sent to acked")}
    """,
)

#: Events that are counted per minute; the others move no message.
COUNTED: Final = tuple(
    event.value for event in JournalEvent if event.value not in ("configured", "paused", "resumed", "edited")
)
_COUNTS: Final = "\n".join(f"{event} bigint messages {event}" for event in COUNTED)

THROUGHPUT: Final = _table(
    "throughput",
    "events by queue and minute, and how they changed the counts of waiting and dead messages",
    f"""
    queue, minute
    {_COUNTS}
    died                bigint     messages that became dead
    waiting_delta       bigint     change of waiting (ready, scheduled, retrying, leased)
    dead_delta          bigint     change of dead
    """,
)

RETRIES: Final = _table(
    "retries",
    "failed attempts by queue, kind, error and minute",
    """
    queue, kind, error_class, minute
    nacked              bigint     attempts that were nacked or buried
    expired             bigint     leases that expired
    worst_attempts      int        the highest attempt number among them
    """,
)

OVERDUE: Final = _table(
    "overdue",
    "leases that expired, by queue and minute",
    """
    queue, minute
    received            bigint     leases begun
    extended            bigint     leases extended
    expired             bigint     leases that expired
    """,
)

CAUSES: Final = _table(
    "causes",
    "why messages died, by queue, kind and error",
    """
    queue, kind, error_class
    event               string     nacked, buried or expired
    dead                bigint     messages that became dead
    first_at            timestamp  first death
    last_at             timestamp  last death
    example_id          string     id of one of them: the greatest
    """,
)

CONSUMERS: Final = _table(
    "consumers",
    "work of each consumer, by the minute in which leases ended",
    """
    consumer, queue, minute
    leases              bigint     leases that ended
    acked               bigint     of these, acked
    failed              bigint     of these, nacked, buried or expired
    busy_seconds        double     time they were held, summed
    """,
)

AUDIT: Final = _table(
    "audit",
    f"conservation by queue and the hour messages were sent in: {EQUATION}",
    """
    queue, incarnation
    hour                timestamp  begin of the hour
    sent                bigint     messages sent
    acked               bigint     acked
    dead                bigint     dead because an attempt failed or was buried
    expired             bigint     dead because the last lease expired
    deleted             bigint     removed by an operator (deleted, purged, moved)
    cancelled           bigint     given up before they were handled, or while they were
    waiting             bigint     none of these
    unsent              bigint     in the lake without their sent event
    """,
)

BACKLOG: Final = _table(
    "backlog",
    "how many messages were waiting and dead at the end of each minute in which that changed",
    """
    queue, minute
    waiting             bigint     messages waiting
    dead                bigint     messages dead
    """,
)

DRAIN: Final = _table(
    "drain",
    "how long until each queue is empty at the rates of its last quarter of an hour",
    """
    queue
    at                  timestamp  end of the last minute with an event in any queue
    waiting             bigint     messages waiting
    arrival_per_second  double     messages sent or replayed per second
    settle_per_second   double     messages that left per second
    drain_seconds       double     seconds until empty; null while more arrive than leave
    """,
)

SILVER: Final = (MESSAGES, ATTEMPTS)
#: Partitioned by send date (`dt`); each date is computed from its own rows alone. Rows of one minute may be under two
#: dates; their counts add up.
GOLD: Final = (LATENCY, THROUGHPUT, RETRIES, OVERDUE, CAUSES, CONSUMERS, AUDIT)
#: Rewritten as a whole from `throughput`, not by date.
SUMMED: Final = (BACKLOG, DRAIN)
#: Tables that Spark can read, by `kind=`.
KINDS: Final = {table.name: table for table in (JOURNAL, SNAPSHOT, RSMQ, LEASES)}
