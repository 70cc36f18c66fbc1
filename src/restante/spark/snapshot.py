"""Reads queues as tables: the messages in a queue now, by state, in parts and without side effects.

A snapshot is not of one moment: each page is exact when it is read, and a message that changes state meanwhile may
appear in both states or in neither. For figures that must add up, use the journal. On failure the read ends with the
typed error and can be repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from restante.core.admin import Admin
from restante.core.message import Message, State, moment
from restante.core.operations import MAX_BATCH
from restante.core.stored import encode_json
from restante.rsmq import reader
from restante.spark import connections
from restante.spark.arrow import content, rows_as_batch
from restante.spark.options import Options
from restante.spark.schemas import RSMQ, SNAPSHOT

#: Bytes of a payload to read where the table has its column: all of them.
_WHOLE = 2**40
#: Bytes of payloads and results to aim for in one page: a script that gathers more blocks the server too long. The
#: first page, which is small, shows how many messages that are.
PAGE_BYTES = 2_000_000
FIRST_PAGE = 50
#: Fewest messages of a part: smaller ones cost more than they save.
LEAST_PART = 2_000


class StatePart(InputPartition):
    """The messages of one state of one queue, between two cursors."""

    def __init__(self, queue: str, state: str, after: str | None, upto: str | None) -> None:
        super().__init__((queue, state, after, upto))
        self.queue, self.state, self.after, self.upto = queue, state, after, upto


class SnapshotReader(DataSourceReader):
    """`kind=queue`, `dead` and `done`."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names

    def partitions(self) -> Sequence[InputPartition]:
        admin = Admin(connections.post(self.options.server(), patience=self.options.patience))
        partitions: list[InputPartition] = []
        for queue in self.options.matching(admin.queues()):
            counts = admin.counts(queue)
            for state in self.options.state_list():
                size = getattr(counts, state.value)
                if size:
                    parts = max(1, min(self.options.parts(), size // LEAST_PART))
                    cursors = admin.cursors(queue, state, parts)
                    edges = [None, *cursors, None]
                    partitions += [
                        StatePart(queue, state.value, after, upto) for after, upto in itertools.pairwise(edges)
                    ]
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StatePart):
            return  # for an empty list of parts Spark passes a part of its own
        admin = Admin(connections.post(self.options.server(), patience=self.options.patience))
        preview = _WHOLE if "payload" in self.names else 0
        after = partition.after
        limit = FIRST_PAGE
        while True:
            page = admin.messages(
                partition.queue, partition.state, limit=limit, after=after, upto=partition.upto, preview=preview
            )
            if page.messages:
                rows = [_row(message) for message in page.messages]
                yield rows_as_batch(SNAPSHOT, self.names, rows)
                mean = sum(len(row["payload"]) + len(row["result"]) for row in rows) / len(rows)
                limit = int(max(1, min(MAX_BATCH, PAGE_BYTES / max(mean, 1))))
            if page.next is None:
                return
            after = page.next


def _row(message: Message) -> dict[str, Any]:
    stored = message.stored
    payload, headers, content_type = content(stored)
    last = message.history[-1] if message.history else None
    progress = message.last_progress
    return {
        "queue": message.queue,
        "message_id": message.id,
        "state": message.state.value,
        "kind": message.kind,
        "priority": message.priority,
        "size": stored.size,
        "sent_at": message.sent_at,
        "due_at": message.due_at,
        "lease_expires_at": message.lease_expires_at,
        "settled_at": message.settled_at if message.state in (State.DEAD, State.DONE) else None,
        "attempts": message.attempts,
        "max_attempts": stored.max_attempts,
        "lease_seconds": None if stored.lease_ms is None else stored.lease_ms / 1000,
        "timeout_seconds": message.timeout,
        "expires_at": message.expires_at,
        "replays": message.replays,
        "consumer": message.consumer,
        "error_class": last.error_class if last else "",
        "error": last.error if last else "",
        "progress": progress.fraction if progress else None,
        "progress_step": progress.step if progress else "",
        "progress_at": progress.at if progress else None,
        "result": "" if message.result is None else encode_json(message.result, "result")[0].decode(),
        "payload": payload,
        "headers": headers,
        "content_type": content_type,
    }


class RsmqPart(InputPartition):
    """One part of an RSMQ queue."""

    def __init__(self, queue: str, part: tuple[int, int]) -> None:
        super().__init__((queue, part))
        self.queue, self.part = queue, part


class RsmqReader(DataSourceReader):
    """`kind=rsmq`."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names

    def partitions(self) -> Sequence[InputPartition]:
        post = connections.post(self.options.server(), patience=self.options.patience)
        space = self.options.namespace
        return [
            RsmqPart(queue, part)
            for queue in self.options.matching(reader.queues(post, space))
            for part in reader.split(post, queue, self.options.parts(), space)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RsmqPart):
            return
        post = connections.post(self.options.server(), patience=self.options.patience)
        for page in reader.walk(post, partition.queue, self.options.namespace, part=partition.part):
            yield rows_as_batch(RSMQ, self.names, (_rsmq_row(partition.queue, message) for message in page))


def _rsmq_row(queue: str, message: reader.RsmqMessage) -> dict[str, Any]:
    return {
        "queue": queue,
        "message_id": message.id,
        "state": message.state.value,
        "sent_at": moment(message.sent_ms),
        "due_at": moment(message.due_ms),
        "attempts": message.attempts,
        "first_received_at": moment(message.first_received_ms),
        "payload": message.payload,
    }
