"""The operators' view of schedules: list, show, add, pause, resume, run now and delete; no hot path.

On failure it raises a typed error and nothing is half done: each change is one script.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from restante.core.errors import NotFound
from restante.core.firing import running_now
from restante.core.flow import Flow
from restante.core.inspector import Inspector
from restante.core.keys import QUEUES, SCHEDULED_QUEUES
from restante.core.keywords import nearest
from restante.core.names import valid_name
from restante.core.queue import run_flow
from restante.core.queue_ref import QueueRef
from restante.core.schedule import (
    Schedule,
    ScheduleOptions,
    changing,
    define,
    defining,
    found_by,
    removing,
    schedules,
    timing_from,
)
from restante.core.ticks import Timing

T = TypeVar("T")


class ScheduleAdmin(Inspector):
    """The part of `Admin` that is about schedules."""

    #: The author of changes, in the journal and in the audit.
    operator: str

    def note(self, verb: str, queue: str = "", count: int = 0, detail: str = "") -> None:
        """Adds an entry to the audit."""
        raise NotImplementedError

    def schedules(self, queue: str | None = None) -> list[Schedule]:
        """Returns the schedules of a queue, or of all, the next to tick first and those that do not tick last."""
        names = [valid_name(queue)] if queue is not None else self.scheduled_queues()
        found = [one for name in names for one in self._flow(schedules(self._ref(name)))]
        return sorted(found, key=lambda one: (one.next_at is None, one.head.due_ms, one.queue, one.name))

    def scheduled_queues(self) -> list[str]:
        """Returns the names of queues that have or had schedules."""
        found = self._client.connection.command("SMEMBERS", SCHEDULED_QUEUES, key=SCHEDULED_QUEUES)
        return sorted(name.decode() for name in found)

    def schedule(self, queue: str, name: str) -> Schedule:
        """Returns a schedule. Raises NotFound with the nearest name if there is none."""
        return self._flow(found_by(self._known(queue), name))

    def add_schedule(
        self,
        queue: str,
        name: str,
        cron: str | Timing | None = None,
        *,
        payload: Any = None,
        every: float | str | timedelta | None = None,
        tz: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | str | timedelta | None = None,
        missed: str | None = None,
        overlap: bool | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Adds a schedule, or changes the one of that name, as `queue.schedule` does."""
        given = {"tz": tz, "start": start, "end": end, "jitter": jitter, "missed": missed, "overlap": overlap}
        timing = timing_from(cron, every, given)
        opened = self._client.queue(queue)
        if not opened.ref.opened:
            opened.ensure_open()
        definition = define(opened.ref, name, timing, payload, "api", options)
        stored = opened.run(defining(opened.ref, name, definition, self.operator))
        self.note("add schedule", queue, 1, f"{name}: {timing.text}")
        return stored

    def pause_schedule(self, queue: str, name: str) -> Schedule:
        """Pauses a schedule: it does not tick until `resume_schedule`. Messages that it has sent stay."""
        return self._change(queue, name, "paused")

    def resume_schedule(self, queue: str, name: str) -> Schedule:
        """Ends the pause of a schedule. It ticks from now on; what passed during the pause was not missed."""
        return self._change(queue, name, "resumed")

    def _change(self, queue: str, name: str, word: str) -> Schedule:
        found = self._flow(changing(self._known(queue), name, word, self.operator))
        self.note(f"{word.removesuffix('d')} schedule", queue, 1, name)
        return found

    def run_schedule(self, queue: str, name: str) -> str:
        """Sends the message of a schedule now, beside its ticks, and returns its id."""
        id = self._flow(running_now(self._known(queue), name))
        self.note("run schedule", queue, 1, f"{name}: {id}")
        return id

    def delete_schedule(self, queue: str, name: str) -> None:
        """Deletes a schedule. Messages that it has sent stay."""
        self._flow(removing(self._known(queue), name, self.operator))
        self.note("delete schedule", queue, 1, name)

    def _flow(self, flow: Flow[T]) -> T:
        return run_flow(self._client.connection, flow)

    def _known(self, name: str) -> QueueRef:
        """A queue that must exist: a misspelt name must not become one."""
        if not self._client.connection.command("SISMEMBER", QUEUES, valid_name(name), key=QUEUES):
            raise NotFound(f"no queue {name}: {nearest(name, self.queues())}")
        return self._ref(name)
