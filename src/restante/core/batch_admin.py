"""Operators' view of batches: list, show, cancel, resume; the parts of `Inspector` and `Admin` for them.

On failure it raises a typed error of `restante.core.errors`. A cancel or a resume that was interrupted is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from restante.core import batch_calls as calls
from restante.core.batch import BatchStatus, batch_status
from restante.core.batch_calls import BatchName
from restante.core.keys import QueueKeys
from restante.core.message import Draft
from restante.core.operations import MAX_BATCH
from restante.core.operator_verbs import cancel_many
from restante.core.queue import Client, run_flow
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Command
from restante.core.settings import whole

if TYPE_CHECKING:
    from collections.abc import Callable

#: Batches on one page of a list.
PAGE = 100


class BatchReader:
    """Reads batches."""

    _client: Client
    queues: Callable[[], list[str]]

    def batches(self, home: str | None = None, *, ended: bool = False, limit: int = PAGE) -> list[BatchStatus]:
        """Returns the batches of one home, or of all queues, the newest first: those that have not ended, or have."""
        whole(limit, "limit", 1, MAX_BATCH)
        homes = self.queues() if home is None else [home]
        keys = {name: QueueKeys(name)["batches_ended" if ended else "batches"] for name in homes}
        connection = self._client.connection
        words: list[Command[Any]] = [
            Command(("ZREVRANGE", key, 0, limit - 1, "WITHSCORES"), key) for key in keys.values()
        ]
        answers: list[Any] = connection.run_all(words)
        found: list[tuple[float, BatchName]] = []
        for name, flat in zip(keys, answers, strict=True):
            found += [(float(at), BatchName(name, id.decode())) for id, at in zip(flat[::2], flat[1::2], strict=True)]
        newest = [name for _, name in sorted(found, key=lambda pair: -pair[0])[:limit]]
        records = connection.run_all([calls.show(name) for name in newest])
        # One that was forgotten meanwhile has no record.
        return [batch_status(name, record) for name, record in zip(newest, records, strict=True) if record is not None]

    def batch(self, id: str) -> BatchStatus:
        """Returns how far a batch is; raises NotFound if there is none."""
        name = BatchName.parse(id)
        return batch_status(name, self._client.connection.run(calls.show(name)))


class BatchVerbs:
    """Cancels and repairs batches, and writes it to the audit."""

    _client: Client
    operator: str
    note: Callable[..., None]

    def cancel_batch(self, id: str) -> int:
        """Gives a batch up: cancels its messages and the batches in it; no message of its end is sent.

        Returns how many messages were cancelled. Repeat it if it was interrupted.
        """
        name = BatchName.parse(id)
        count = run_flow(self._client.connection, calls.cancelling(name, self.operator, self._together))
        self.note("cancel", name.home, count, f"batch {name}")
        return count

    def resume_batch(self, id: str) -> int:
        """Goes on with a batch whose producer died, as `BatchHandle.resume`; returns how many messages were missing."""
        name = BatchName.parse(id)
        count = run_flow(self._client.connection, calls.resuming(name, self._together))
        self.note("resume", name.home, count, f"batch {name}")
        return count

    @property
    def _together(self) -> bool:
        return self._client.connection.endpoint.mode != "cluster"

    def _end_batches(self, queue: str) -> list[bytes]:
        """Cancels the batches of a queue that is dropped, and returns the keys of their records."""
        keys: Sequence[bytes] = (QueueKeys(queue)["batches"], QueueKeys(queue)["batches_ended"])
        connection = self._client.connection
        for id in connection.command("ZRANGE", keys[0], 0, -1, key=keys[0]):
            self.cancel_batch(f"{queue}/{id.decode()}")
        ids = [id.decode() for key in keys for id in connection.command("ZRANGE", key, 0, -1, key=key)]
        return [key for id in ids for key in QueueKeys(queue).batch(id)]

    def _cancel_leased(self, queue: str, ids: Sequence[str]) -> None:
        """Cancels leased messages of a queue that is dropped, so that their batches do not wait for them."""
        connection, ref = self._client.connection, QueueRef(queue, self.operator, Draft)
        ref.together = self._together
        for start in range(0, len(ids), calls.PAGE):
            part = ids[start : start + calls.PAGE]
            connection.run(cancel_many(ref, part, operator=self.operator, detail="dropped"))
            run_flow(connection, calls.carrying(ref, ref.together))
