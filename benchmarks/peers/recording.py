"""The no-op handler of every peer: note in shared memory which message ran and when."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Names of the environment variables by which a measure speaks to its workers.
URL, DIRECTORY, HANG, LEASE = "BENCH_URL", "BENCH_RECORD", "BENCH_HANG", "BENCH_LEASE"
#: Messages one worker process can note; the file is sparse, so a high limit costs nothing.
CAPACITY = 2_000_000
#: Characters at the head of a payload holding its number and its time stamp.
NUMBER, STAMP = 8, 24

_HEADER = struct.Struct("<Q")
_ENTRY = struct.Struct("<dddQ")


class Entry(NamedTuple):
    """One handler start: when, the stamp in the payload, CPU used so far, message number."""

    at: float
    stamp: float
    cpu: float
    number: int


class _Recorder:
    """Append entries to this process's own file."""

    def __init__(self) -> None:
        path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.entries"
        with path.open("w+b") as file:
            file.truncate(_HEADER.size + CAPACITY * _ENTRY.size)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._lock = threading.Lock()

    def note(self, payload: str) -> None:
        now = time.monotonic()
        entry = (now, float(payload[NUMBER:STAMP]), time.process_time(), int(payload[:NUMBER]))
        with self._lock:
            _ENTRY.pack_into(self._memory, _HEADER.size + self._count * _ENTRY.size, *entry)
            self._count += 1
            _HEADER.pack_into(self._memory, 0, self._count)


_recorder: tuple[int, _Recorder] | None = None
_opening = threading.Lock()


def _note(payload: str) -> None:
    global _recorder
    # By process id, because some workers fork after importing their tasks.
    if _recorder is None or _recorder[0] != os.getpid():
        with _opening:
            if _recorder is None or _recorder[0] != os.getpid():
                _recorder = (os.getpid(), _Recorder())
    _recorder[1].note(payload)


def handle(payload: str) -> None:
    """Note the message; hang afterwards if this worker is the one to be killed."""
    _note(payload)
    if HANG in os.environ:
        time.sleep(float(os.environ[HANG]))


async def handle_async(payload: str) -> None:
    """Do the same for handlers that are coroutines."""
    _note(payload)
    if HANG in os.environ:
        await asyncio.sleep(float(os.environ[HANG]))


def _files(directory: Path) -> Iterator[bytes]:
    for path in directory.glob("*.entries"):
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            if len(head) == _HEADER.size:
                yield head + file.read(_HEADER.unpack(head)[0] * _ENTRY.size)


def count(directory: Path) -> int:
    """Return how many messages all workers have noted so far."""
    total = 0
    for path in directory.glob("*.entries"):
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            total += _HEADER.unpack(head)[0] if len(head) == _HEADER.size else 0
    return total


def entries(directory: Path) -> list[list[Entry]]:
    """Return the entries of every worker process, in the order they were noted."""
    return [[Entry(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])] for data in _files(directory)]
