"""Decides when a child process of the supervisor is replaced, and when its successor starts.

Values in, values out: the supervisor measures, asks here and acts, so each decision is tested without a process.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds without a report after which a child counts as frozen, if its leases are not longer. A handler that holds the
#: interpreter in C code stops all its threads, the renewal of leases too. Shorter kills children of a machine that
#: swaps; longer leaves one process idle, while others have its messages as soon as their leases end.
SILENT_AFTER = 60.0
#: Seconds that a child must live to count as sound: its crash is then the first of a series. Shorter restarts a child
#: that crashes with every message of a slow queue without a pause; longer delays the restart after rare crashes.
SOUND_AFTER = 10.0
#: Seconds before the second restart of a child that crashes at once; each further one waits twice as long.
FIRST_DELAY = 1.0
#: The longest such wait, in seconds; longer delays the return after what made the children crash is repaired.
LONGEST_DELAY = 30.0


class Reason(enum.StrEnum):
    """Why a child process is stopped, or has ended."""

    #: The supervisor itself stops.
    STOPPED = "stopped"
    #: The source code has changed.
    RELOAD = "reload"
    #: It has handled as many messages as one process may.
    MAX_TASKS = "max-tasks"
    #: It uses more memory than one process may.
    MAX_MEMORY = "max-memory"
    #: A handler is still running although its time limit ended a grace ago.
    HUNG = "hung"
    #: It has not reported for longer than its leases last.
    SILENT = "silent"
    #: It ended by itself, with code 0: its queues are empty, or somebody sent it a signal.
    ENDED = "ended"
    #: It ended by itself, with another code or by a signal.
    CRASHED = "crashed"


#: Reasons for which a process that works is replaced; the others concern one that does not.
ROUTINE = frozenset({Reason.MAX_TASKS, Reason.MAX_MEMORY})


@dataclass(frozen=True, slots=True)
class Report:
    """What a child says of itself every second."""

    handled: int = 0
    failed: int = 0
    #: Handlers that run now.
    running: int = 0
    #: Handlers that did not end at their time limit.
    hung: int = 0
    #: Bytes of memory.
    rss: int = 0
    #: Seconds of the longest lease that it may hold.
    lease: float = 0.0
    #: Whether the server has answered a receive.
    polled: bool = False


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """How long one process is used."""

    #: Messages, successes and failures; None for no limit.
    max_tasks: int | None = None
    #: Bytes; None for no limit.
    max_memory: int | None = None
    #: Seconds that a hung handler gets to end, and running handlers when their process stops.
    grace: float = 30.0

    def reason(self, report: Report, *, silent: float, hung: float) -> Reason | None:
        """Why to replace a child, or None. It said its last report `silent` seconds ago, and has hung for `hung`."""
        if silent > max(SILENT_AFTER, report.lease):
            return Reason.SILENT
        if report.hung and hung >= self.grace:
            return Reason.HUNG
        if self.max_tasks is not None and report.handled + report.failed >= self.max_tasks:
            return Reason.MAX_TASKS
        if self.max_memory is not None and report.rss > self.max_memory:
            return Reason.MAX_MEMORY
        return None


def may_replace(reason: Reason, stopping: int, processes: int) -> bool:
    """Whether one more child may stop while `stopping` of all do: a routine leaves at least half of them at work."""
    return reason not in ROUTINE or stopping < max(1, processes // 2)


class Restart(NamedTuple):
    """When the successor of a child starts."""

    #: Seconds from now.
    delay: float
    #: Crashes in a row, for the next decision.
    crashes: int


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Restarts at once, but a child that keeps crashing with growing pauses."""

    #: Returns a number from 0 to 1 that spreads the restarts of children that crash for the same cause.
    spread: Callable[[], float] = random.random

    def next(self, reason: Reason, *, lived: float, crashes: int) -> Restart:
        """Decides for a child that lived for so many seconds, after so many crashes of its predecessors in a row."""
        # A process that is too large as soon as it starts would be replaced without end, as one that crashes.
        if reason not in (Reason.CRASHED, Reason.ENDED, Reason.MAX_MEMORY):
            return Restart(0.0, 0)
        if lived >= SOUND_AFTER:
            return Restart(0.0, 1 if reason is Reason.CRASHED else 0)
        if crashes == 0:
            return Restart(0.0, 1)
        doubled = FIRST_DELAY * 2.0 ** min(crashes - 1, 16)
        return Restart(min(doubled * (1 + self.spread() / 4), LONGEST_DELAY), crashes + 1)
