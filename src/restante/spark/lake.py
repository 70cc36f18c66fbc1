"""Places the tables of a lake in files, and keeps track of which batches they hold, so that no row counts twice.

    bronze/batch=N/                journal rows of one micro-batch, overwritten when the batch is repeated
    bronze_compact/dt=…/           the same rows of older batches, in few files, named after the batches they hold
    silver/<table>/dt=…/           one row per message, one per ended lease; dt is the date of sending
    gold/<table>/dt=…/             figures; `backlog` and `drain` are not divided by date
    _checkpoints/, _state.json     progress of Spark and of the pipeline
    _progress.json                 what the pipeline is doing now, for the Insights page (progress.py)

The tables are plain Parquet. On failure every step can be repeated: `_state.json` says which batches are in silver and
gold and which are compacted, and is replaced by one rename.
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
from restante.core.message import JournalEvent
from restante.spark.schemas import GOLD, SILVER, SUMMED

_BATCH = re.compile(r"batch=(\d+)$")
_COMPACT = re.compile(r"compact-(\d+)-(\d+)-\d+\.parquet$")
_DATE = re.compile(r"/dt=(\d{4}-\d{2}-\d{2})(?:/|$)")


#: Events that this version knows.
EVENTS = frozenset(event.value for event in JournalEvent)


@dataclass
class State:
    """The progress of the pipeline. Batches are numbered from 0; -1 stands for none."""

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
    #: Rows of dates whose bronze was removed before they came: silver and gold do not have them.
    too_late: int = 0
    #: Lines of each journal in the lake: incarnation and queue → number of the first, of the last, and how many.
    journals: dict[str, list[int]] = field(default_factory=dict)
    #: The last batch in `journals`.
    counted: int = -1
    #: Events that the version which last wrote silver and gold knew; empty for versions that did not note it.
    events: list[str] = field(default_factory=list)

    def new_events(self) -> list[str]:
        """Events that silver and gold may not count, because the version that wrote them did not know them."""
        known = {*self.events} or EVENTS - {JournalEvent.REVOKED.value, JournalEvent.CANCELLED.value}
        return sorted(EVENTS - known)


class Lake:
    """A lake at a directory or a URI that Arrow knows (`s3://…`, `hdfs://…`)."""

    def __init__(self, root: str) -> None:
        if "://" in root:
            try:
                self.files, path = fs.FileSystem.from_uri(root)
            except (pa.ArrowException, OSError) as error:
                raise InvalidInput(
                    f"{root} is not a valid address of a lake: {error}; use a folder, s3://… or hdfs://…"
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
        """The address of a file or folder, as Spark names it."""
        return "/".join((self.uri, *parts))

    def at(self, *parts: str) -> str:
        """The address of a file or folder, as Arrow's file system names it."""
        return "/".join((self._root, *parts))

    def exists(self, *parts: str) -> bool:
        return bool(self.files.get_file_info(self.at(*parts)).type != fs.FileType.NotFound)

    def listing(self, *parts: str, recursive: bool = False) -> list[fs.FileInfo]:
        """The entries of a folder; none if it does not exist."""
        return list(
            self.files.get_file_info(fs.FileSelector(self.at(*parts), allow_not_found=True, recursive=recursive))
        )

    def remove(self, *parts: str) -> None:
        """Removes a folder and its content, if it exists."""
        if self.exists(*parts):
            self.files.delete_dir(self.at(*parts))

    def remove_file(self, path: str) -> None:
        self.files.delete_file(path)

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Reads the stored state; that of a new lake is empty."""
        if not self.exists("_state.json"):
            return State()
        with self.files.open_input_stream(self.at("_state.json")) as stream:
            return State(**json.loads(stream.read()))

    def save(self, state: State) -> None:
        """Replaces the stored state by one rename."""
        self.files.create_dir(self._root, recursive=True)
        with self.files.open_output_stream(self.at("_state.json.new")) as stream:
            stream.write(json.dumps(asdict(state), indent=1, default=str).encode())
        self.files.move(self.at("_state.json.new"), self.at("_state.json"))

    def lock(self) -> None:
        """Locks the lake against a second pipeline on this machine while this process lives."""
        if not self.local:
            return
        import fcntl

        self.files.create_dir(self._root, recursive=True)
        self._lock = os.open(self.at("_lock"), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(f"another pipeline is running on {self.uri}: stop it, or use another lake") from None

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Refuses a lake without its checkpoint: Spark would number batches from 0 and overwrite older ones."""
        if (self._folders() or self.state().folded >= 0) and not self.exists("_checkpoints", "bronze"):
            raise InvalidInput(
                f"{self.uri} has batches but no checkpoint: restore {self.path('_checkpoints', 'bronze')} from a "
                "backup, or start with an empty lake"
            )

    # -- bronze --------------------------------------------------------------------------------------------------

    def batches(self) -> list[int]:
        """Numbers of the committed batches in bronze: others may be half written, or may be written again."""
        names = [info.base_name for info in self.listing("_checkpoints", "bronze", "commits")]
        last = max((int(name) for name in names if name.isdigit()), default=-1)
        return [number for number in self._folders() if number <= last]

    def _folders(self) -> list[int]:
        matches = (_BATCH.search(info.path) for info in self.listing("bronze"))
        return sorted(int(match[1]) for match in matches if match)

    def compact_files(self, upto: int) -> list[str]:
        """Files of bronze_compact with batches up to a number: later ones are still being moved."""
        files = []
        for info in self.listing("bronze_compact", recursive=True):
            match = _COMPACT.search(info.path)
            if match and int(match[2]) <= upto:
                files.append(info.path)
        return sorted(files)

    def journal_paths(self, state: State, dates: Iterable[date] | None = None) -> tuple[list[str], list[str]]:
        """Compacted files (of all or some dates) and batch folders, which together hold each journal row once."""
        wanted = None if dates is None else {day.isoformat() for day in dates}
        compact = [
            self._named(path)
            for path in self.compact_files(state.compacted)
            if wanted is None or (match := _DATE.search(path)) is None or match[1] in wanted
        ]
        later = [self.path("bronze", f"batch={number}") for number in self.batches() if number > state.compacted]
        return compact, later

    def _named(self, path: str) -> str:
        """Translates Arrow's name of a file to Spark's."""
        return self.uri + path[len(self._root) :]

    # -- for other programs ----------------------------------------------------------------------------------------

    def table(self, name: str) -> ds.Dataset:
        """A table of silver or gold as an Arrow dataset, including `dt`: no Spark is needed.

        A column that an earlier version did not write is null in its files.
        """
        for layer, tables in (("gold", (*GOLD, *SUMMED)), ("silver", SILVER)):
            table = next((table for table in tables if table.name == name), None)
            if table is not None and self.exists(layer, name):
                dates = pa.schema([] if table in SUMMED else [("dt", pa.string())])
                return ds.dataset(
                    self.at(layer, name),
                    schema=pa.unify_schemas([table.arrow(), dates]),
                    filesystem=self.files,
                    format="parquet",
                    partitioning=ds.partitioning(dates, flavor="hive"),
                )
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
        """Rows, files and bytes of each table; the rows come from the files' footers."""
        sizes: dict[str, tuple[int, int, int]] = {}
        for layer in ("bronze", "bronze_compact", "silver", "gold"):
            folders = [info.path for info in self.listing(layer) if info.type == fs.FileType.Directory]
            tables = {f"{layer}/{folder.rpartition('/')[2]}": [folder] for folder in folders}
            if layer.startswith("bronze"):
                tables = {layer: [self.at(layer)]}
            for name, places in tables.items():
                infos = [
                    info
                    for place in places
                    for info in self.files.get_file_info(fs.FileSelector(place, allow_not_found=True, recursive=True))
                    if info.path.endswith(".parquet") and not re.search(r"/[_.]", info.path[len(self._root) :])
                ]
                paths = [info.path for info in infos]
                rows = ds.dataset(paths, filesystem=self.files, format="parquet").count_rows() if paths else 0
                sizes[name] = (rows, len(paths), sum(info.size for info in infos))
        return sizes


def now() -> str:
    """The current time in the form in which the state stores it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
