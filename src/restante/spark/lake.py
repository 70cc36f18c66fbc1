"""The lake: where its tables lie, which batches are in them, and how files come and go without anything counted twice.

    bronze/batch=N/                journal rows of one micro-batch, overwritten whole when the batch is repeated
    bronze_compact/dt=…/           the same rows of older batches, in few files, named after the batches they hold
    silver/<table>/dt=…/           one row per message, one per ended lease; dt is the date of sending
    gold/<table>/dt=…/             figures; `backlog` and `drain` lie undivided
    _checkpoints/, _state.json     how far Spark and the pipeline are
    _progress.json                 what the pipeline is doing now, for the Insights page (progress.py)

Plain Parquet, readable by anything. Every step is repeated safely after a crash: `_state.json` is replaced in one move,
and says which batches are in silver and gold and which are compacted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from restante.core.errors import InUse, InvalidInput, NotFound

_BATCH = re.compile(r"batch=(\d+)$")
_COMPACT = re.compile(r"compact-(\d+)-(\d+)-\d+\.parquet$")
_DATE = re.compile(r"/dt=(\d{4}-\d{2}-\d{2})(?:/|$)")


@dataclass
class State:
    """How far the pipeline is. Batches are numbered from 0; -1 stands for none."""

    #: The last batch in silver and gold. Lakes on disk store it under this name.
    folded: int = -1
    #: The last batch in bronze_compact.
    compacted: int = -1
    #: Batches being moved into bronze_compact: first and last.
    compacting: list[int] = field(default_factory=list)
    #: When and how the last run ended.
    last_run: dict[str, Any] = field(default_factory=dict)
    #: Journal lines that retention removed: incarnation and queue → how many, and the first of them.
    removed: dict[str, list[int]] = field(default_factory=dict)
    #: The folder retention is removing; its lines are counted already.
    removing: str = ""
    #: Rows that came for dates whose bronze was already removed, and so are in no other table.
    too_late: int = 0
    #: Lines of each journal in the lake: incarnation and queue → number of the first, of the last, and how many.
    journals: dict[str, list[int]] = field(default_factory=dict)
    #: The last batch in `journals`.
    counted: int = -1


class Lake:
    """A lake at a directory or a URI that Arrow knows (`s3://…`, `hdfs://…`)."""

    def __init__(self, root: str) -> None:
        if "://" in root:
            try:
                self.files, path = fs.FileSystem.from_uri(root)
            except (pa.ArrowException, OSError) as error:
                raise InvalidInput(
                    f"{root} is no place for a lake: {error}; use a folder, s3://… or hdfs://…"
                ) from None
            self.local = False
            self.uri = root.rstrip("/")
        else:
            self.files = fs.LocalFileSystem()
            path = str(Path(root).expanduser().absolute())
            self.local = True
            self.uri = path
        self._root = path.rstrip("/")
        self._lock: int | None = None

    # -- places --------------------------------------------------------------------------------------------------

    def path(self, *parts: str) -> str:
        """A place as Spark names it."""
        return "/".join((self.uri, *parts))

    def at(self, *parts: str) -> str:
        """A place as Arrow's file system names it."""
        return "/".join((self._root, *parts))

    def exists(self, *parts: str) -> bool:
        return bool(self.files.get_file_info(self.at(*parts)).type != fs.FileType.NotFound)

    def listing(self, *parts: str, recursive: bool = False) -> list[fs.FileInfo]:
        """What lies in a folder; nothing if it is not there."""
        return list(
            self.files.get_file_info(fs.FileSelector(self.at(*parts), allow_not_found=True, recursive=recursive))
        )

    def remove(self, *parts: str) -> None:
        """Removes a folder with all it holds, if it is there."""
        if self.exists(*parts):
            self.files.delete_dir(self.at(*parts))

    def remove_file(self, path: str) -> None:
        self.files.delete_file(path)

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """How far the pipeline is; a new lake is at its beginning."""
        if not self.exists("_state.json"):
            return State()
        with self.files.open_input_stream(self.at("_state.json")) as stream:
            return State(**json.loads(stream.read()))

    def save(self, state: State) -> None:
        """Replaces the state in one move."""
        self.files.create_dir(self._root, recursive=True)
        with self.files.open_output_stream(self.at("_state.json.new")) as stream:
            stream.write(json.dumps(asdict(state), indent=1, default=str).encode())
        self.files.move(self.at("_state.json.new"), self.at("_state.json"))

    def lock(self) -> None:
        """Keeps a second pipeline on this machine off the lake while this process lives."""
        if not self.local:
            return
        import fcntl

        self.files.create_dir(self._root, recursive=True)
        self._lock = os.open(self.at("_lock"), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(f"another pipeline is running on {self.uri}: stop it, or choose another lake") from None

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Refuses a lake whose checkpoint is gone: batches would be numbered anew and overwrite older ones."""
        if (self._folders() or self.state().folded >= 0) and not self.exists("_checkpoints", "bronze"):
            raise InvalidInput(
                f"{self.uri} has batches but no checkpoint: restore {self.path('_checkpoints', 'bronze')} from a "
                "backup, or start with an empty lake"
            )

    # -- bronze --------------------------------------------------------------------------------------------------

    def batches(self) -> list[int]:
        """Numbers of the batches in bronze that Spark has committed: others may be half written, or written again."""
        names = [info.base_name for info in self.listing("_checkpoints", "bronze", "commits")]
        last = max((int(name) for name in names if name.isdigit()), default=-1)
        return [number for number in self._folders() if number <= last]

    def _folders(self) -> list[int]:
        found = (_BATCH.search(info.path) for info in self.listing("bronze"))
        return sorted(int(match[1]) for match in found if match)

    def compact_files(self, upto: int) -> list[str]:
        """Files of bronze_compact that hold batches up to a number: younger ones are being moved."""
        found = []
        for info in self.listing("bronze_compact", recursive=True):
            match = _COMPACT.search(info.path)
            if match and int(match[2]) <= upto:
                found.append(info.path)
        return sorted(found)

    def journal_paths(self, state: State, dates: Iterable[date] | None = None) -> tuple[list[str], list[str]]:
        """What holds the journal's rows, each row once: compacted files (of some dates), and batch folders."""
        wanted = None if dates is None else {day.isoformat() for day in dates}
        compact = [
            self._named(path)
            for path in self.compact_files(state.compacted)
            if wanted is None or (match := _DATE.search(path)) is None or match[1] in wanted
        ]
        later = [self.path("bronze", f"batch={number}") for number in self.batches() if number > state.compacted]
        return compact, later

    def _named(self, path: str) -> str:
        """Arrow's name of a file as Spark's."""
        return self.uri + path[len(self._root) :]

    # -- what other programs read ----------------------------------------------------------------------------------

    def table(self, name: str) -> ds.Dataset:
        """A table of silver or gold as an Arrow dataset, `dt` included; for those who need no Spark."""
        for layer in ("gold", "silver"):
            if self.exists(layer, name):
                return ds.dataset(self.at(layer, name), filesystem=self.files, format="parquet", partitioning="hive")
        raise NotFound(f"{self.uri} has no table {name} yet: run `restante pipeline run --once --lake …` first")

    def journal(self) -> ds.Dataset:
        """Bronze as an Arrow dataset, each row once."""
        compact, later = self.journal_paths(self.state())
        files = [self._root + path[len(self.uri) :] for path in compact]
        for folder in later:
            place = self._root + folder[len(self.uri) :]
            infos = self.files.get_file_info(fs.FileSelector(place))
            files += [info.path for info in infos if info.path.endswith(".parquet")]
        if not files:
            raise NotFound(f"{self.uri} has no journal yet: run `restante pipeline run --once --lake …` first")
        return ds.dataset(files, filesystem=self.files, format="parquet")

    def sizes(self) -> dict[str, tuple[int, int, int]]:
        """Rows, files and bytes by table; rows from the files' footers."""
        found: dict[str, tuple[int, int, int]] = {}
        for layer in ("bronze", "bronze_compact", "silver", "gold"):
            folders = [info.path for info in self.listing(layer) if info.type == fs.FileType.Directory]
            tables = {layer: [self.at(layer)]} if layer.startswith("bronze") else {
                f"{layer}/{folder.rpartition('/')[2]}": [folder] for folder in folders
            }  # fmt: skip
            for name, places in tables.items():
                infos = [
                    info
                    for place in places
                    for info in self.files.get_file_info(fs.FileSelector(place, allow_not_found=True, recursive=True))
                    if info.path.endswith(".parquet") and not re.search(r"/[_.]", info.path[len(self._root) :])
                ]
                paths = [info.path for info in infos]
                rows = ds.dataset(paths, filesystem=self.files, format="parquet").count_rows() if paths else 0
                found[name] = (rows, len(paths), sum(info.size for info in infos))
        return found


def now() -> str:
    """This moment as the state keeps it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
