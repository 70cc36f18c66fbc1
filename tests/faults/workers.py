"""Starts and reads the processes of `worker.py`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.clock import FrozenClock
from tests.harness.processes import CHECKOUT, PythonProcess

PROGRAM = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Line:
    """One thing a worker said."""

    word: str
    id: str
    attempts: int
    at: float


class Worker(PythonProcess):
    """A consumer process; `told` is described in `worker.py`."""

    def __init__(
        self, url: str, queue: str, *, clock: FrozenClock | None = None, source: Path | None = None, **told: Any
    ) -> None:
        """`source` is a folder with another version of the package; it and a clock need a new interpreter."""
        forked = source is None and clock is None
        super().__init__(
            PROGRAM.read_text() if forked else PROGRAM,
            json.dumps({"url": url, "queue": queue, "handler": "sleep", **told}),
            clock=clock,
            env={"PYTHONPATH": os.pathsep.join((str(source), str(CHECKOUT)))} if source else None,
            forked=forked,
        )

    def said(self, word: str) -> list[Line]:
        """The start or end lines so far."""
        found = []
        for line in self.lines:
            parts = line.split()
            if parts and parts[0] == word and len(parts) == 4:
                found.append(Line(parts[0], parts[1], int(parts[2]), float(parts[3])))
        return found


def told_by(workers: list[Worker], word: str) -> list[Line]:
    """Everything all of them said, in the order of time."""
    return sorted((line for worker in workers for line in worker.said(word)), key=lambda line: line.at)


def runs_of(workers: list[Worker]) -> list[tuple[str, int]]:
    """The message and the attempts that each of their handlers started with, in the order of time."""
    return [(line.id, line.attempts) for line in told_by(workers, "start")]
