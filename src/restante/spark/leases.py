"""Makes Spark a consumer: messages are leased when a batch is planned, and each batch can be read again exactly.

An offset is a row number in the consumer's lease journal. Only `latestOffset` claims messages: Spark calls `read` once
per action and again for failed tasks, and it must return the same rows each time. While tasks run, a thread of the
planner's process renews every lease of an unfinished batch. Planning a batch checks its leases: rows whose lease went
to another consumer are left out, unless this consumer settled them before a crash.

On failure: after a crash between leasing messages and copying them into the lease journal, their leases expire; a later
crash repeats the batch; a consumer that was away longer than its leases drops the rows it lost, which come again as new
deliveries.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as streaming

from restante.core.errors import InUse, JournalLost, RestanteError
from restante.core.lease_journal import LeaseJournal, Row
from restante.core.message import moment
from restante.core.queue import Client, consumer_name
from restante.core.settings import ClientSettings
from restante.spark import connections
from restante.spark.arrow import content, rows_as_batch
from restante.spark.options import Options
from restante.spark.schemas import LEASES

log = logging.getLogger("restante")

#: Messages leased for one batch where the query sets no limit. More may not be settled within one lease.
DEFAULT_ROWS = 20_000
#: Leases are renewed after this share of their time, so that a failed renewal can be repeated.
RENEW = 1 / 3
#: Seconds an ownership lasts unless renewed, and its greatest share of a lease. A restart after a crash waits for it to
#: end, and the leases should outlive that. A stall longer than this costs the batch, but no message.
OWNED_SECONDS = 10.0
OWNED_PART = 2 / 3
#: Seconds between two checks of a predecessor's ownership.
LOOK = 0.2
#: Seconds for which a query that ends keeps its ownership, so that the next can start at once.
_AT_ONCE = 0.001
#: The program in which Spark runs a stream's reader. Spark ends it by a signal and does not call `stop`.
_RUNNER = "python_streaming_source_runner"
#: Rows in one Arrow batch.
BATCH = 5_000


class LeasePart(InputPartition):
    """Rows of the lease journal after one number, up to another, without those whose lease was lost."""

    def __init__(self, after: int, upto: int, without: frozenset[int]) -> None:
        super().__init__((after, upto))
        self.after, self.upto, self.without = after, upto, without


class LeaseStreamReader(DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """`kind=leases`."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names
        self.queue = options.one_queue()
        self.consumer = options.named_consumer()
        self.owner = ""
        #: Messages that AvailableNow may still lease; None for a stream without an end.
        self.budget: int | None = None
        self._seen: set[str] = set()
        self._repeats = 0
        self._keeper: _Keeper | None = None
        #: The last claim: after which row, up to which, and when. Its leases need no check for a while.
        self._fresh = (0, 0, 0.0)

    def _journal(self) -> LeaseJournal:
        post = connections.post(self.options.server(), consumer=self.consumer, patience=self.options.patience)
        return LeaseJournal(post, self.queue, self.owner)

    def _own(self) -> tuple[LeaseJournal, int]:
        """The lease journal with its ownership renewed, and the number of its last row."""
        if not self.owner:
            self.owner = f"{consumer_name()}:{uuid.uuid4().hex[:8]}"
        journal = self._journal()
        if self._keeper is not None:
            return journal, journal.own(self._owned)
        last = self._take_over(journal)
        self._keeper = _Keeper(journal, self.options.lease_seconds, self._owned)
        self._keeper.start()
        if _RUNNER in sys.argv[0] and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ended)
        return journal, last

    @property
    def _owned(self) -> float:
        return min(OWNED_SECONDS, self.options.lease_seconds * OWNED_PART)

    def _take_over(self, journal: LeaseJournal) -> int:
        """Waits until a dead predecessor's ownership ends; raises InUse if the predecessor renews it, so is alive."""
        first = journal.holder()
        until = time.monotonic() + self._owned + LOOK
        while True:
            try:
                return journal.own(self._owned)
            except InUse:
                if time.monotonic() > until or journal.holder() != first:
                    raise
                time.sleep(LOOK)

    def _ended(self, number: int, frame: object) -> None:
        # The signal may come while a call holds the shared connection, so this opens another.
        post = Client(self.options.server(), ClientSettings(patience=0.5), consumer=self.consumer)
        try:
            LeaseJournal(post, self.queue, self.owner).own(_AT_ONCE)
        finally:
            os._exit(128 + number)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        journal = self._journal()
        first = journal.first()
        # Uncommitted rows belong to this consumer even if its checkpoint is lost.
        return {self.queue: first - 1 if first is not None else journal.last()}

    def getDefaultReadLimit(self) -> streaming.ReadLimit:  # noqa: N802  # Spark's name
        return streaming.ReadMaxRows(self.options.max_rows_per_batch or DEFAULT_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self.budget = self._repeats = self._journal().ready()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        journal = self._journal()
        return {self.queue: journal.last() + journal.ready()}

    def latestOffset(self, start: dict[str, int], limit: streaming.ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        journal, last = self._own()
        begun = start[self.queue]
        if last < begun:
            if self.options.fail_on_data_loss:
                raise JournalLost(
                    f"the lease journal of {self.consumer} on {self.queue} ends at {last}, and {begun} was committed: "
                    "the server lost rows; continue with failOnDataLoss=false, or start with a new checkpoint"
                )
            return {self.queue: last}
        journal.clear(begun)
        assert self._keeper is not None
        self._keeper.forget(begun)
        if last > begun:
            return {self.queue: last}  # rows claimed before and not committed come first
        room = limit.max_rows if isinstance(limit, streaming.ReadMaxRows) else DEFAULT_ROWS
        if isinstance(limit, streaming.ReadAllAvailable | streaming.ReadMinRows):
            room = max(journal.ready(), 0)
            if isinstance(limit, streaming.ReadMinRows) and room < limit.min_rows and self.budget is None:
                return start
        if self.budget is not None:
            room = min(room, self.budget)
        if room <= 0:
            return start
        seconds = self.options.lease_seconds
        begun_at = time.monotonic()
        end, claimed = journal.claim(room, lease=seconds, lasts=self._owned)
        self._fresh = (begun, end, begun_at)
        self._keeper.hold(claimed)
        if self.budget is not None:
            # A message that comes again after a failure was counted before and must not use up the budget. Repetitions
            # have a budget of their own, or messages that are released each time would repeat for ever.
            fresh = {id for id, _ in claimed.values()} - self._seen
            self._repeats -= len(claimed) - len(fresh)
            self.budget = self.budget - len(fresh) if self._repeats >= 0 else 0
            self._seen |= fresh
        return {self.queue: end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        after, upto = start[self.queue], end[self.queue]
        if upto <= after:
            return []
        journal, _ = self._own()
        gone = frozenset() if self._is_fresh(after, upto) else self._check(journal, after, upto)
        parts = max(1, min(self.options.parts(), (upto - after) // 500))
        edges = [after + (upto - after) * part // parts for part in range(parts + 1)]
        return [
            LeasePart(low, high, frozenset(number for number in gone if low < number <= high))
            for low, high in itertools.pairwise(edges)
        ]

    def _is_fresh(self, after: int, upto: int) -> bool:
        low, high, at = self._fresh
        return low <= after and upto <= high and time.monotonic() - at < self.options.lease_seconds * RENEW

    def _check(self, journal: LeaseJournal, after: int, upto: int) -> frozenset[int]:
        """Renews the leases of rows claimed earlier; returns the lost rows that this consumer has not settled."""
        rows = list(journal.rows(after, upto))
        if len(rows) < upto - after and self.options.fail_on_data_loss:
            raise JournalLost(
                f"the lease journal of {self.consumer} on {self.queue} has {len(rows)} of rows {after + 1} to {upto}: "
                "another query uses the same consumer name, or the server lost them"
            )
        lost = journal.renew([(row.id, row.token) for row in rows], self.options.lease_seconds)
        settled = journal.verdicts(sorted(lost))
        gone = frozenset(row.number for row in rows if row.token in lost and row.token not in settled)
        if gone:
            log.warning("lease lost queue=%s consumer=%s count=%d", self.queue, self.consumer, len(gone))
        assert self._keeper is not None
        self._keeper.hold({row.number: (row.id, row.token) for row in rows if row.token not in lost})
        return gone

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LeasePart):
            return
        held: list[dict[str, Any]] = []
        for row in self._journal().rows(partition.after, partition.upto):
            if row.number not in partition.without:
                held.append(_row(self.queue, row))
            if len(held) >= BATCH:
                yield rows_as_batch(LEASES, self.names, held)
                held = []
        if held:
            yield rows_as_batch(LEASES, self.names, held)

    def stop(self) -> None:
        if self._keeper is None:
            return
        self._keeper.stop()
        self._keeper.join(timeout=1)
        try:
            self._journal().own(_AT_ONCE)
        except RestanteError as error:  # the ownership then expires
            log.warning("ownership not released consumer=%s error=%s", self.consumer, type(error).__name__)


class _Keeper(threading.Thread):
    """Renews the ownership and the leases of uncommitted batches until it is stopped."""

    def __init__(self, journal: LeaseJournal, lease: float, owned: float) -> None:
        super().__init__(name="restante-leases", daemon=True)
        self._journal = journal
        self._lease = lease
        self._owned = owned
        self._held: dict[int, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def hold(self, rows: dict[int, tuple[str, str]]) -> None:
        with self._lock:
            self._held |= rows

    def forget(self, upto: int) -> None:
        with self._lock:
            self._held = {number: held for number, held in self._held.items() if number > upto}

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        renewed = time.monotonic()
        while not self._stopped.wait(min(self._owned, self._lease) * RENEW):
            try:
                self._journal.own(self._owned)
                if time.monotonic() - renewed >= self._lease * RENEW:
                    renewed = time.monotonic()
                    self._renew()
            except RestanteError as error:
                log.warning("renewal failed consumer=%s error=%s", self._journal.consumer, type(error).__name__)

    def _renew(self) -> None:
        with self._lock:
            held = dict(self._held)
        lost = self._journal.renew(list(held.values()), self._lease) if held else set()
        # Settled leases are reported as lost too: they need no renewal.
        with self._lock:
            self._held = {number: pair for number, pair in self._held.items() if pair[1] not in lost}


def _row(queue: str, row: Row) -> dict[str, Any]:
    stored = row.stored
    payload, headers, content_type = content(stored)
    return {
        "queue": queue,
        "message_id": row.id,
        "lease_token": row.token,
        "attempts": row.attempts,
        "kind": stored.kind,
        "priority": stored.priority,
        "sent_at": moment(stored.sent_ms),
        "received_at": moment(row.received_ms),
        "retry": stored.options.get("r") or "",
        "payload": payload,
        "headers": headers,
        "content_type": content_type,
    }
