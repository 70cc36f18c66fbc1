"""Batches: messages of any queues with one message at their end; synchronous and asyncio.

A batch buffers what is sent inside its block and sends it when the block ends. On failure: if the block raises,
nothing was sent. If a call fails at the end of the block, its error is raised and the batch stays open: `commit()` goes
on where it stopped, `cancel()` gives the batch up. If the process dies there, the batch stays open too, and operators
see it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from restante.core import batch_calls as calls
from restante.core import operations as ops
from restante.core.batch_calls import BatchName, Record
from restante.core.errors import InvalidInput, RestanteError, Unconfirmed
from restante.core.flow import Flow, drive, drive_async
from restante.core.keywords import check_keywords
from restante.core.message import EPOCH, Draft, MessageId, moment, new_id
from restante.core.names import valid_name
from restante.core.operations import MAX_BATCH
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Argument
from restante.core.send_options import SendOptions
from restante.core.settings import milliseconds

if TYPE_CHECKING:
    from restante.core.queue import AsyncClient, AsyncQueue, Client, Queue

log = logging.getLogger("restante")

#: Default of `keep`: seconds for which the record of a batch that has ended is kept.
KEEP = 86_400.0
#: Most characters of a title.
MAX_TITLE = 200
_ENDINGS = {"d": "dead", "c": "cancelled", "x": "deleted", "u": "purged", "l": "lapsed", "o": "lost"}
_COUNTS = ("total", "pending", *_ENDINGS.values())


class BatchOptions(TypedDict, total=False):
    """What `client.batch(home, …)` accepts."""

    on_complete: Any
    on_dead: Any
    id: str | None
    title: str
    parent: BatchHandle | AsyncBatchHandle | str | None
    keep: float | timedelta


def batch_options(options: BatchOptions) -> BatchOptions:
    """Returns the options; raises InvalidInput for an unknown one, with the nearest known."""
    check_keywords(options, tuple(BatchOptions.__annotations__), "batch()")
    return options


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A message of a batch that did not succeed."""

    id: str
    queue: str
    #: dead, cancelled, deleted, purged, lapsed or lost.
    ended: str
    #: The class of its error.
    error: str


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """How far a batch is."""

    #: Its home queue, a slash and its id.
    id: str
    #: open (it is being filled), running, complete or cancelled.
    state: str
    title: str
    #: The batch that this one is a part of.
    parent: str | None
    created_at: datetime
    #: When the last message had been sent, and when the last had ended.
    sealed_at: datetime | None
    ended_at: datetime | None
    #: Seconds since it was created, or from then until its end.
    age: float
    total: int
    #: Messages that have not ended.
    pending: int
    #: Messages that were acked.
    done: int
    dead: int
    cancelled: int
    deleted: int
    purged: int
    #: Messages that had expired when their turn came.
    lapsed: int
    #: Messages that are nowhere, found by `resume`.
    lost: int
    #: The first messages that did not succeed.
    failed: tuple[BatchFailure, ...]

    @property
    def fraction(self) -> float:
        """The share of its messages that have ended, from 0 to 1."""
        return (self.total - self.pending) / self.total if self.total else float(self.ended_at is not None)

    def as_dict(self) -> dict[str, Any]:
        """The status as a dict for JSON, instants as ISO text."""
        made = asdict(self)
        for name in ("created_at", "sealed_at", "ended_at"):
            made[name] = made[name].isoformat() if made[name] else None
        made["failed"] = [asdict(one) for one in self.failed]
        return {**made, "fraction": self.fraction}


def batch_status(name: BatchName, found: Record | None) -> BatchStatus:
    """Reads the record of a batch; raises NotFound if there is none."""
    if found is None:
        raise calls.not_found(name)
    record = found.fields
    counts = {count: int(record.get(count, 0)) for count in _COUNTS}
    created, ended = int(record["created_at"]), int(record.get("ended_at", 0))
    failed = []
    for id, value in found.failed:
        letter, queue, _, error = value.split(" ", 3)
        failed.append(BatchFailure(id, queue, _ENDINGS.get(letter, letter), error))
    return BatchStatus(
        id=str(name),
        state=record["state"],
        title=record.get("title", ""),
        parent=record.get("parent") or None,
        created_at=moment(created) or EPOCH,
        sealed_at=moment(int(record.get("sealed_at", 0))),
        ended_at=moment(ended),
        age=max(0, (ended or found.now) - created) / 1000,
        done=int(record.get("acked", 0)),
        failed=tuple(failed),
        **counts,
    )


#: One message of a batch: its queue, its script arguments, and the id that was returned to the caller.
_Entry = tuple[Any, tuple[str, str, int, bytes], MessageId]


class _Batch:
    """What the handles of both runners share: the flows."""

    def __init__(self, client: Client | AsyncClient, id: str) -> None:
        self._client: Any = client
        self._name = BatchName.parse(id)

    @property
    def id(self) -> str:
        """The id of the batch: its home queue, a slash, and an id of its own."""
        return str(self._name)

    @property
    def home(self) -> str:
        """The queue that gets the messages of its end."""
        return self._name.home

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def _together(self) -> bool:
        return bool(self._client.connection.endpoint.mode != "cluster")

    def _queue(self, queue: Any) -> Any:
        """The queue of this client, given by itself or by name."""
        if isinstance(queue, str):
            return self._client.queue(queue)
        if getattr(queue, "client", None) is not self._client:
            raise InvalidInput(f"a batch sends to queues of its own client, given by name or as such, not {queue!r}")
        return queue

    def _entry(self, queue: Any, item: Any, options: SendOptions) -> _Entry:
        """Checks and encodes one message."""
        given = self._queue(queue)
        check_keywords(options, tuple(SendOptions.__annotations__), "send() of a batch")
        if isinstance(item, Draft) and options:
            raise InvalidInput("a Draft has its own options: give none beside it")
        draft = item if isinstance(item, Draft) else Draft(item, **options)
        if draft.id is not None:
            raise InvalidInput("a batch makes the ids of its messages: give the batch an id, and none to its messages")
        id = MessageId(new_id())
        entry = ops.entry_in_batch(given.ref, replace(draft, id=id), self.id)
        return given, entry, id

    def _adding(self, entries: Sequence[_Entry]) -> Flow[None]:
        """Adds messages to a batch that runs: announced, sent, confirmed."""
        for start in range(0, len(entries), MAX_BATCH):
            chunk = entries[start : start + MAX_BATCH]
            announced = yield calls.adding(self._name, [(queue.name, str(id)) for queue, _, id in chunk])
            try:
                left_out = yield from _send(chunk)
            except Unconfirmed:
                raise  # asked about later
            except RestanteError:
                # What was sent to other queues stays; what is nowhere leaves the batch.
                missing = yield from calls.missing_of([(q.name, str(id)) for q, _, id in chunk], self._together)
                yield from self._seal("confirm", announced, [id for _, id in missing])
                raise
            if announced or left_out:
                yield from self._seal("confirm", announced, left_out)

    def _seal(self, verb: str, announced: bytes = b"", left_out: Sequence[str] = ()) -> Flow[str]:
        """Seals or confirms, and carries what that put into the outbox of the home."""
        parts = [left_out[start : start + MAX_BATCH] for start in range(0, len(left_out), MAX_BATCH)] or [()]
        for part in parts[:-1]:
            yield calls.sealing(self._name, "confirm", b"", part)
        state, noted = yield calls.sealing(self._name, verb, announced, parts[-1])
        if noted:
            yield from calls.carry(self.home, noted, self._together)
        return str(state)

    def _status(self) -> Flow[BatchStatus]:
        return batch_status(self._name, (yield calls.show(self._name)))

    def _cancel(self) -> Flow[int]:
        return (yield from calls.cancelling(self._name, self._client.consumer, self._together))

    def _resume(self) -> Flow[int]:
        return (yield from calls.resuming(self._name, self._together))


def _send(entries: Sequence[_Entry]) -> Flow[list[str]]:
    """Sends the messages of each queue by one call; returns the ids that were not stored because of a unique key."""
    left_out: list[str] = []
    for _, part in groupby(sorted(entries, key=lambda entry: entry[0].name), lambda entry: entry[0].name):
        chunk = list(part)
        sent = yield ops.send_entries(chunk[0][0].ref, [entry for _, entry, _ in chunk])
        for (_, _, id), stored in zip(chunk, sent, strict=True):
            if stored != id:
                id.stored = False
                left_out.append(str(id))
    return left_out


class _Filling(_Batch):
    """What batches that are being filled share: the buffer and the end of the block."""

    def __init__(self, client: Client | AsyncClient, home: str, options: BatchOptions) -> None:
        id = options.get("id")
        if id is not None and "/" in valid_name(id, "batch id"):
            raise InvalidInput(f"the id of a batch has no slash, not {id!r}")
        super().__init__(client, f"{valid_name(home)}/{id or new_id()}")
        self._nonce = new_id()
        parent = options.get("parent")
        self._parent = None if parent is None else BatchName.parse(parent if isinstance(parent, str) else parent.id)
        title = options.get("title", "")
        if not isinstance(title, str) or len(title) > MAX_TITLE:
            raise InvalidInput(f"title must be a text of up to {MAX_TITLE} characters, not {title!r}")
        self._fields: dict[str, Argument] = {
            "title": title.encode("utf-8", "replace"),
            "parent": str(self._parent or ""),
            "keep_ms": milliseconds(options.get("keep", KEEP), "keep", least=1),
        }
        ref: QueueRef = client.queue(home).ref
        for event, given in (("complete", options.get("on_complete")), ("dead", options.get("on_dead"))):
            if given is not None:
                draft = given if isinstance(given, Draft) else Draft(given)
                self._fields.update(calls.end_fields(event, ref, draft))
        self._buffer: list[_Entry] = []
        self._left_out: list[str] = []
        #: new, inside (the block), abandoned (it raised), opened (at the server), committed.
        self._stage = "new"

    def _buffering(self, queue: Any, items: Sequence[Any], options: SendOptions) -> list[MessageId] | None:
        """Keeps messages until the block ends; None once it has ended, and they are to be added at once."""
        if self._stage == "committed":
            return None
        if self._stage != "inside":
            raise InvalidInput(
                "send inside the `with` block of the batch: before it and after it failed, nothing is sent"
            )
        entries = [self._entry(queue, item, options) for item in items]
        self._buffer += entries
        return [id for _, _, id in entries]

    def _enter(self) -> None:
        if self._stage != "new":
            raise InvalidInput(
                "a batch has one `with` block: make another batch, or send to this one outside of a block"
            )
        self._stage = "inside"

    def _abandon(self) -> None:
        if self._buffer:
            log.warning("batch not opened batch=%s messages not sent=%d", self.id, len(self._buffer))
        self._stage, self._buffer = "abandoned", []

    def _queues(self) -> list[Any]:
        """The queues that the commit uses."""
        return [self._client.queue(self.home), *{id(queue): queue for queue, _, _ in self._buffer}.values()]

    def _committing(self) -> Flow[None]:
        """Opens the batch, adds and sends its messages, and seals it. Repeated after a failure, it goes on."""
        if self._stage == "committed":
            return
        if self._stage not in ("inside", "opened"):
            raise InvalidInput("there is nothing to commit: the batch has no block, or its block raised")
        if self._stage == "inside":
            yield from self._opening()
            self._stage = "opened"
        while self._buffer:
            chunk = self._buffer[:MAX_BATCH]
            yield calls.adding(self._name, [(queue.name, str(id)) for queue, _, id in chunk])
            self._left_out += yield from _send(chunk)
            del self._buffer[: len(chunk)]
        yield from self._seal("seal", left_out=self._left_out)
        self._stage = "committed"

    def _opening(self) -> Flow[None]:
        """Creates the batch, after adding it to the one that it is a part of."""
        parent, announced = self._parent, b""
        if parent is not None:
            announced = yield calls.adding(parent, [(self.home, self.id)])
        if not (yield calls.opening(self._name, self._nonce, self._fields)):
            if parent is not None:
                yield calls.sealing(parent, "confirm", announced, [self.id])
            raise InvalidInput(f"there is a batch {self.id} already, and nothing was sent: give this one another id")
        if parent is not None and announced:
            yield calls.sealing(parent, "confirm", announced)


class BatchHandle(_Batch):
    """A batch by its id: `client.batch_handle(id)`, or `message.batch` in a handler. Each method calls the server."""

    def status(self) -> BatchStatus:
        """How far the batch is: its state and counts, and the first messages that did not succeed."""
        return drive(self._status(), self._client.connection.run)

    def send(self, queue: Queue | str, payload: Any, **options: Unpack[SendOptions]) -> MessageId:
        """Adds a message to the batch and sends it. Raises BatchEnded if the batch has ended, and then sends nothing.

        A handler adds to the batch of its own message: that one cannot end meanwhile. Takes a payload with the options
        of `queue.send`, or a Draft.
        """
        return self._send_now(queue, [payload], options)[0]

    def send_many(self, queue: Queue | str, messages: Sequence[Any], **options: Unpack[SendOptions]) -> list[MessageId]:
        """Adds messages to the batch and sends them: payloads or Drafts, as for `queue.send_many`."""
        return self._send_now(queue, messages, options)

    def _send_now(self, queue: Any, messages: Sequence[Any], options: SendOptions) -> list[MessageId]:
        ops.check_batch(messages)
        entries = [self._entry(queue, message, options) for message in messages]
        self._open([self._queue(queue)])
        drive(self._adding(entries), self._client.connection.run)
        return [id for _, _, id in entries]

    def _open(self, queues: Sequence[Any]) -> None:
        for queue in queues:
            if not queue.ref.opened:
                queue.ensure_open()

    def cancel(self) -> int:
        """Gives the batch up: cancels its messages and the batches in it, and sends no message of its end.

        Returns how many messages were cancelled. Those that have ended already stay as they are.
        """
        return drive(self._cancel(), self._client.connection.run)

    def resume(self) -> int:
        """Goes on with a batch whose producer died: leaves out what was not sent, and seals it.

        In a running batch it counts messages that are nowhere as lost. Returns how many it found.
        """
        return drive(self._resume(), self._client.connection.run)

    def batch(self, home: str, **options: Unpack[BatchOptions]) -> Batch:
        """Makes a batch that is a part of this one, which ends after it."""
        return Batch(self._client, home, batch_options({**options, "parent": self}))


class Batch(BatchHandle, _Filling):
    """A batch to fill: `with client.batch("reports", on_complete=…) as batch:`."""

    def __init__(self, client: Client, home: str, options: BatchOptions) -> None:
        _Filling.__init__(self, client, home, options)

    def _send_now(self, queue: Any, messages: Sequence[Any], options: SendOptions) -> list[MessageId]:
        ops.check_batch(messages)
        kept = self._buffering(queue, messages, options)
        return super()._send_now(queue, messages, options) if kept is None else kept

    def commit(self) -> None:
        """Opens the batch, sends its messages and seals it: the end of the block. Call it again if it has failed."""
        self._open(self._queues())
        drive(self._committing(), self._client.connection.run)

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
        else:
            self.commit()


class AsyncBatchHandle(_Batch):
    """A `BatchHandle` for asyncio."""

    async def status(self) -> BatchStatus:
        """How far the batch is, as `BatchHandle.status`."""
        return await drive_async(self._status(), self._client.connection.run)

    async def send(self, queue: AsyncQueue | str, payload: Any, **options: Unpack[SendOptions]) -> MessageId:
        """Adds a message to the batch and sends it, as `BatchHandle.send`."""
        return (await self._send_now(queue, [payload], options))[0]

    async def send_many(
        self, queue: AsyncQueue | str, messages: Sequence[Any], **options: Unpack[SendOptions]
    ) -> list[MessageId]:
        """Adds messages to the batch and sends them: payloads or Drafts, as for `queue.send_many`."""
        return await self._send_now(queue, messages, options)

    async def _send_now(self, queue: Any, messages: Sequence[Any], options: SendOptions) -> list[MessageId]:
        ops.check_batch(messages)
        entries = [self._entry(queue, message, options) for message in messages]
        await self._open([self._queue(queue)])
        await drive_async(self._adding(entries), self._client.connection.run)
        return [id for _, _, id in entries]

    async def _open(self, queues: Sequence[Any]) -> None:
        for queue in queues:
            if not queue.ref.opened:
                await queue.ensure_open()

    async def cancel(self) -> int:
        """Gives the batch up, as `BatchHandle.cancel`."""
        return await drive_async(self._cancel(), self._client.connection.run)

    async def resume(self) -> int:
        """Goes on with a batch whose producer died, as `BatchHandle.resume`."""
        return await drive_async(self._resume(), self._client.connection.run)

    def batch(self, home: str, **options: Unpack[BatchOptions]) -> AsyncBatch:
        """Makes a batch that is a part of this one, which ends after it."""
        return AsyncBatch(self._client, home, batch_options({**options, "parent": self}))


class AsyncBatch(AsyncBatchHandle, _Filling):
    """A batch to fill, for asyncio: `async with client.batch("reports", on_complete=…) as batch:`."""

    def __init__(self, client: AsyncClient, home: str, options: BatchOptions) -> None:
        _Filling.__init__(self, client, home, options)

    async def _send_now(self, queue: Any, messages: Sequence[Any], options: SendOptions) -> list[MessageId]:
        ops.check_batch(messages)
        kept = self._buffering(queue, messages, options)
        return await super()._send_now(queue, messages, options) if kept is None else kept

    async def commit(self) -> None:
        """Opens the batch, sends its messages and seals it: the end of the block. Call it again if it has failed."""
        await self._open(self._queues())
        await drive_async(self._committing(), self._client.connection.run)

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
        else:
            await self.commit()


#: The names of the counts of a batch, in the order of tables.
COUNTS = tuple(item.name for item in fields(BatchStatus) if item.name in ("done", *_COUNTS))
