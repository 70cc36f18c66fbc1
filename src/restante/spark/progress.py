"""Writes what a pipeline is doing to `_progress.json` in the lake, for the Insights page.

The file is replaced by one rename, and rewritten while the process lives: an old one was left by a killed process. On
failure to write it the pipeline goes on, and readers see an old state.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from restante.core.errors import InUse
from restante.spark.lake import Lake

log = logging.getLogger("restante")

#: The file's name.
PROGRESS = "_progress.json"
#: Seconds between two writes. After several missed ones the server takes the process for killed.
BEAT_SECONDS = 2.0


@dataclass
class ProgressFile:
    """The content of the file; instants are integer milliseconds."""

    phase: str = ""
    #: Steps of the phase that are done, and how many there are; 0 if unknown.
    done: int = 0
    total: int = 0
    #: Journal lines taken in by this run, and how many there were when it began.
    rows: int = 0
    rows_expected: int = 0
    #: Whether the run writes the report too.
    report: bool = False
    started_at: int = 0
    updated_at: int = 0
    ended_at: int | None = None
    error: str = ""


class RunProgress:
    """The progress of one process on one lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._file = ProgressFile()
        self._turn = threading.Lock()
        self._depth = 0
        self._stop = threading.Event()
        self._written = 0.0

    @contextmanager
    def running(self, phase: str, *, report: bool = False) -> Iterator[RunProgress]:
        """Reports the work in the block and how it ended. A nested block is part of the outer one's work."""
        if self._depth:
            self._depth += 1
            try:
                yield self
            finally:
                self._depth -= 1
            return
        self._depth = 1
        self._file = ProgressFile(phase, report=report, started_at=_now())
        self._stop.clear()
        beating = threading.Thread(target=self._beat, name="restante-progress", daemon=True)
        self._write()
        beating.start()
        error: BaseException | None = None
        try:
            yield self
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._depth = 0
            self._stop.set()
            beating.join()
            # If another pipeline holds the lake, the file is that pipeline's.
            if not isinstance(error, InUse):
                self._file.ended_at = _now()
                self._file.error = "" if error is None else f"{type(error).__name__}: {error}"
                self._write()

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Reports a step; steps of one phase in quick succession are written once."""
        changed = phase != self._file.phase
        self._file.phase, self._file.done, self._file.total = phase, done, total
        if self._depth and (changed or done == total or time.monotonic() - self._written > BEAT_SECONDS / 4):
            self._write()

    def rows(self, rows: int, expected: int | None = None) -> None:
        """Reports how many lines were taken in."""
        self._file.rows = rows
        if expected is not None:
            self._file.rows_expected = expected
        self._file.rows_expected = max(self._file.rows_expected, rows)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self._write()

    def _write(self) -> None:
        with self._turn:
            self._file.updated_at = _now()
            self._written = time.monotonic()
            new = self._lake.at(f"{PROGRESS}.{os.getpid()}")
            try:
                self._lake.files.create_dir(self._lake.at(), recursive=True)
                with self._lake.files.open_output_stream(new) as stream:
                    stream.write(json.dumps(asdict(self._file)).encode())
                self._lake.files.move(new, self._lake.at(PROGRESS))
            except OSError as error:
                log.warning("progress not written lake=%s error=%s", self._lake.uri, error)


def _now() -> int:
    return round(time.time() * 1000)
