"""Writes rows to Redis: `op=send` sends messages, `op=settle` settles leases; both may be repeated without harm.

A send is idempotent by message id, so ids must be the same at every attempt: from a column `message_id`, or made from
other columns. On failure: a row that cannot be sent raises before its call stores anything; messages that earlier calls
of the job stored stay, and running the job again sends only the rest.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from restante.core.errors import InvalidInput
from restante.core.lease_journal import VERDICTS, LeaseJournal, Settlement
from restante.core.message import MAX_ERROR, Draft, new_id
from restante.core.names import valid_name
from restante.core.queue import Queue
from restante.core.settings import milliseconds
from restante.core.stored import Json
from restante.core.throttle import forget_throttle, throttle
from restante.spark import connections
from restante.spark.options import Options

log = logging.getLogger("restante")

#: Columns with a meaning of their own; without a column `payload` the others become the payload. With op=replay the
#: column `queue` names the queue from which a message comes.
SEND_COLUMNS = (
    "message_id",
    "payload",
    "kind",
    "priority",
    "headers",
    "content_type",
    "due_at",
    "delay_seconds",
    "max_attempts",
    "timeout_seconds",
)
#: Columns that the settle writer reads; the first three are required.
SETTLE_COLUMNS = ("message_id", "lease_token", "verdict", "attempts", "retry", "error_class", "error", "delay_seconds")
#: Microseconds of idle time that a job with a rate may catch up: more makes bursts, less loses time to scheduling. A
#: replay is several jobs with pauses between them.
SLACK = {"send": 50_000, "replay": 3_000_000}
#: Hexadecimal digits of an id made from columns.
ID_DIGITS = 32
_RANDOM = "random"


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    #: Messages stored or leases settled.
    done: int = 0
    #: Messages that were stored already, or leases settled before.
    before: int = 0
    #: Lost leases, whose verdict had no effect.
    lost: int = 0


class Bucket:
    """Limits the messages per second of all tasks of a job together: the bucket is in Redis."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._rate = options.rate
        self._name = options.replay or options.op
        self._slack = SLACK[options.op]

    def per_call(self, most: int) -> int:
        """Most messages of one call: those of a twentieth of a second, so that the pace is even."""
        return max(1, min(most, int(self._rate / 20))) if self._rate else most

    def take(self, count: int) -> None:
        """Waits until `count` more messages may be sent."""
        if self._rate:
            each = round(1_000_000 / self._rate)
            time.sleep(throttle(self._queue, self._name, each, count, self._slack) / 1_000_000)


def send_columns(schema: StructType, options: Options) -> tuple[str, ...]:
    """The columns that a send reads; refuses a schema whose rows could not be sent twice with the same ids."""
    names = tuple(schema.fieldNames())
    options.one_queue()
    if options.op == "replay":
        if not options.replay:
            raise InvalidInput(
                'name the replay: .option("replay", "2026-01-31-timeouts"); the same name sends nothing twice'
            )
        valid_name(options.replay, "replay")
        missing = [name for name in ("message_id", "payload") if name not in names]
        if missing:
            raise InvalidInput(f"op=replay needs the columns {', '.join(missing)}: the messages as they were sent")
    made_from = [name.strip() for name in options.id_columns.split(",") if name.strip()]
    if "message_id" not in names and not made_from:
        raise InvalidInput(
            "a job may run twice, so messages need the same id each time: add a column message_id, or "
            'make it with .option("idColumns", "order,line"), or accept duplicates with idColumns=random'
        )
    if made_from != [_RANDOM] and (missing := [name for name in made_from if name not in names]):
        raise InvalidInput(f"idColumns names {', '.join(missing)}, but the DataFrame has {', '.join(names)}")
    if "payload" in names and schema["payload"].dataType.simpleString() not in ("binary", "string"):
        raise InvalidInput("payload must be binary or string; for a struct use to_json(payload), or rename the column")
    if "headers" in names and schema["headers"].dataType.simpleString() != "string":
        raise InvalidInput("headers must be the text of a JSON object: use to_json(headers)")
    return names


def drafts(batch: pa.RecordBatch, options: Options) -> list[Draft]:
    """The rows of a batch as messages."""
    names = set(batch.schema.names)
    rows = batch.to_pylist()
    made_from = [name.strip() for name in options.id_columns.split(",") if name.strip()]
    if {"payload", "message_id"} == names and options.op == "send" and not batch.column("message_id").null_count:
        return [Draft(_payload(row["payload"], None), id=row["message_id"]) for row in rows]
    messages = []
    for row in rows:
        id = _id(row, made_from)
        content_type = row.get("content_type") or None
        if "payload" in names:
            payload = _payload(row["payload"], content_type)
        else:
            rest = {name: value for name, value in row.items() if name not in SEND_COLUMNS}
            payload = Json(_json(rest))
        headers = _headers(row)
        if options.op == "replay":
            queue = row.get("queue") or ""
            headers = (headers or {}) | {"replay": options.replay, "replay_of": id}
            headers |= {"replay_from": queue} if queue else {}
            id = replayed_id(options.replay, queue, id)
        messages.append(
            Draft(
                payload,
                id=id,
                kind=row.get("kind") or "",
                priority=row.get("priority") or 0,
                headers=headers,
                due_at=row.get("due_at"),
                delay=row.get("delay_seconds") or 0,
                max_attempts=row.get("max_attempts"),
                timeout=row.get("timeout_seconds"),
                content_type=content_type if type(payload) is bytes else None,
            )
        )
    return messages


def _id(row: dict[str, Any], made_from: Sequence[str]) -> str:
    """The row's id: given, made from columns, or random if the options say so."""
    if row.get("message_id") is not None:
        return str(row["message_id"])
    if list(made_from) == [_RANDOM]:
        return new_id()
    if not made_from:
        raise InvalidInput("a row has no message_id: fill it, filter the row out, or name idColumns to make it from")
    return hashed_id([row[name] for name in made_from])


def _headers(row: dict[str, Any]) -> dict[str, Any] | None:
    text = row.get("headers")
    if not text:
        return None
    try:
        headers = orjson.loads(text)
    except ValueError:
        headers = None
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers must be the text of a JSON object, not {text[:80]!r}")
    return headers


def _payload(value: Any, content_type: str | None) -> Any:
    """Text or bytes in the form in which they are sent: JSON unless another content type is given."""
    if value is None:
        return None
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if content_type is None or content_type.split(";")[0].strip() == "application/json":
        return Json(raw)
    return raw


def _json(row: dict[str, Any]) -> bytes:
    """Columns as a JSON object; decimals keep their digits as text."""

    def plain(value: Any) -> str:
        if isinstance(value, bytes):
            raise TypeError
        return str(value)

    try:
        return orjson.dumps(row, default=plain, option=orjson.OPT_NAIVE_UTC)
    except orjson.JSONEncodeError:
        raise InvalidInput(
            "a binary column cannot be part of a JSON payload: select base64(column) instead, or rename it to payload"
        ) from None


def _marked(value: Any) -> Any:
    """Encodes a value that JSON cannot express so that it differs from every value that JSON can."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {type(value).__name__: str(value)}


def hashed_id(values: Sequence[Any]) -> str:
    """An id made from values: equal values always give the same id, other values another."""
    texts = [repr(value) if isinstance(value, float) else value for value in values]  # JSON has no NaN
    text = orjson.dumps(texts, default=_marked, option=orjson.OPT_NAIVE_UTC)
    return hashlib.sha256(text).hexdigest()[:ID_DIGITS]


def replayed_id(replay: str, queue: str, id: str) -> str:
    """The id of a message's copy, the same at each attempt; includes the queue, as ids are unique within one."""
    return hashed_id([replay, queue, id])


def send_all(queue: Queue, messages: Sequence[Draft], per_call: int, bucket: Bucket) -> Written:
    """Sends messages in calls of bounded size; counts how many were new."""
    written = Written()
    per_call = bucket.per_call(per_call)
    for start in range(0, len(messages), per_call):
        part = messages[start : start + per_call]
        bucket.take(len(part))
        stored = sum(1 for id in queue.send_many(part) if id.stored)
        written.done += stored
        written.before += len(part) - stored
    return written


class _Writer:
    """The common part of the batch and the streaming writer."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        if options.op == "settle":
            options.named_consumer()
            missing = [name for name in SETTLE_COLUMNS[:3] if name not in schema.fieldNames()]
            if missing:
                raise InvalidInput(f"op=settle needs the columns {', '.join(missing)}; see try_map")
            options.one_queue()
        else:
            send_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self.options
        written = Written()
        if options.op == "settle":
            post = connections.post(options.server(), consumer=options.named_consumer(), patience=options.patience)
            journal = LeaseJournal(post, options.one_queue())
            for batch in iterator:
                _add(written, settle_all(journal, batch.to_pylist(), options.rows_per_call))
            return written
        queue = connections.post(options.server(), patience=options.patience).queue(options.one_queue())
        bucket = Bucket(queue, options)
        for batch in iterator:
            _add(written, send_all(queue, drafts(batch, options), options.rows_per_call, bucket))
        return written

    def _log(self, messages: Sequence[WriterCommitMessage | None], batch: str = "") -> None:
        total = Written()
        for message in messages:
            if isinstance(message, Written):
                _add(total, message)
        log.info(
            "%s queue=%s%s done=%d before=%d lost=%d",
            "settled" if self.options.op == "settle" else "sent",
            self.options.queues,
            batch,
            total.done,
            total.before,
            total.lost,
        )


class RestanteWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("restante")`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._log(messages)
        if self.options.rate and self.options.op == "send":
            post = connections.post(self.options.server(), patience=self.options.patience)
            forget_throttle(post.queue(self.options.one_queue()), self.options.op)


class RestanteStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("restante")`: a repeated epoch changes nothing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._log(messages, f" batch={batchId}")


def _add(total: Written, more: Written) -> None:
    total.done += more.done
    total.before += more.before
    total.lost += more.lost


def settle_all(journal: LeaseJournal, rows: Sequence[dict[str, Any]], per_call: int) -> Written:
    """Settles leases by the rows' verdicts; a lease settled before keeps its verdict, a lost one is only counted."""
    written = Written()
    if any(row["message_id"] is None or row["lease_token"] is None for row in rows):
        raise InvalidInput("a row has no message_id or lease_token: pass the rows of kind=leases on unchanged")
    by_verdict: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["verdict"] not in VERDICTS:
            raise InvalidInput(f"verdict must be one of {', '.join(VERDICTS)}, not {row['verdict']!r}")
        by_verdict.setdefault(row["verdict"], []).append(row)
    decided = journal.verdicts([row["lease_token"] for row in rows])
    for verdict, chosen in by_verdict.items():
        fresh = [row for row in chosen if row["lease_token"] not in decided]
        written.before += len(chosen) - len(fresh)
        for start in range(0, len(fresh), per_call):
            part = [_settlement(journal, verdict, row) for row in fresh[start : start + per_call]]
            lost = journal.settle(verdict, part)
            written.lost += len(lost)
            written.done += len(part) - len(lost)
    return written


def _settlement(journal: LeaseJournal, verdict: str, row: dict[str, Any]) -> Settlement:
    if verdict in ("ack", "release"):
        return Settlement(row["message_id"], row["lease_token"], None, "", b'""')
    text = orjson.dumps(str(row.get("error") or "")[-MAX_ERROR:])
    name = "".join(ch for ch in str(row.get("error_class") or "") if ch.isalnum() or ch in "._")[:80]
    delay = row.get("delay_seconds")
    wait = (
        milliseconds(delay, "delay_seconds")
        if delay is not None
        else journal.retry_delay(row.get("attempts") or 1, row.get("retry") or "")
    )
    return Settlement(row["message_id"], row["lease_token"], wait, name, text)
