"""Reads and checks the options of the data source.

Spark passes options as text with lower-cased names. A missing, misspelt or out-of-range option is refused with its
remedy before anything is read or sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from restante.core.embedded import EMBEDDED
from restante.core.errors import InvalidInput
from restante.core.keywords import resembling
from restante.core.message import State
from restante.core.names import valid_name
from restante.core.settings import milliseconds, whole
from restante.spark.schemas import KINDS

#: Options that Spark itself adds to those of a source.
_SPARKS_OWN = {
    "path",
    "paths",
    "checkpointlocation",
    "queryname",
    "serialization.format",
    "provider",
    "owner",
    "comment",
    "location",
    "external",
    "is_managed_location",
    "collation",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRUE = {"true": True, "false": False}
#: Values of `kind=` that mean a queue's snapshot of one state.
STATE_KINDS = (State.DEAD.value, State.DONE.value)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read or a write. The reference page shows the comments."""

    #: The server's URL; RESTANTE_URL by default.
    url: str = ""
    #: What to read: journal, queue, dead, done, rsmq, or leases (streaming only).
    kind: str = "journal"
    #: Queues, separated by commas; `*` and `?` match. All by default; a consumer and a writer take exactly one.
    queues: str = "*"
    #: States of a snapshot, separated by commas; all by default.
    states: str = ",".join(state.value for state in State)
    #: Only events at or after this instant (ISO 8601).
    since: str = ""
    #: Only events before this instant (ISO 8601).
    until: str = ""
    #: First line of the journal to read, counted from 1.
    start_seq: int = 0
    #: Last line of the journal to read.
    end_seq: int = 0
    #: Parts read in parallel; the number of this machine's cores by default.
    num_partitions: int = 0
    #: Most rows of one micro-batch; 0 for no limit.
    max_rows_per_batch: int = 0
    #: Where a stream begins: earliest (the oldest line the journal still has) or latest.
    starting_position: str = "earliest"
    #: Whether lost lines stop the query; false continues after them.
    fail_on_data_loss: bool = True
    #: Name under which a stream registers its progress, so that the journal keeps unread lines; none by default.
    reader: str = ""
    #: Pass filters on queue, at and position down; needs spark.sql.python.filterPushdown.enabled=true.
    pushdown: bool = False
    #: Namespace of RSMQ queues.
    namespace: str = "rsmq"
    #: The consumer's name, required by kind=leases and op=settle; restarts must use the same name.
    consumer: str = ""
    #: Seconds a lease lasts before it is renewed.
    lease_seconds: float = 60.0
    #: What to write: send, settle or replay.
    op: str = "send"
    #: Columns to make the message id from, where there is no column message_id; `random` for new ids at each attempt.
    id_columns: str = ""
    #: Messages sent in one call.
    rows_per_call: int = 250
    #: Messages per second sent by the whole job; 0 for no limit.
    rate: float = 0.0
    #: Name of a replay: one name never sends the same message twice.
    replay: str = ""
    #: Seconds for which calls are repeated while the server is away.
    patience: float = 30.0

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Reads and checks the options that Spark passes."""
        words = {_spelled(item.name).lower(): item for item in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in given.items():
            # A table created by SQL stores its options under this prefix.
            lower = name.lower().removeprefix("option.")
            lower = "queues" if lower == "queue" else lower
            if lower in _SPARKS_OWN or lower.startswith("spark."):
                continue
            if lower not in words:
                near = resembling(lower, words)
                hint = f"did you mean {_spelled(words[near].name)}?" if near else "see the Spark source's reference"
                raise InvalidInput(f"there is no option {name}: {hint}")
            item = words[lower]
            values[item.name] = _value(_spelled(item.name), str(text), item.default)
        return _checked(cls(**values))

    def server(self) -> str:
        """The server's URL."""
        url = self.url or os.environ.get("RESTANTE_URL", "")
        if not url or url == EMBEDDED:
            raise InvalidInput(
                'name the server: .option("url", "redis://…"), or RESTANTE_URL; for an embedded one client.url'
            )
        return url

    def matching(self, names: Iterable[str]) -> list[str]:
        """The names that match `queues`, sorted."""
        patterns = [part.strip() for part in self.queues.split(",")]
        return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))

    def one_queue(self) -> str:
        """The name of the only queue; a consumer or a writer needs exactly one."""
        if any(ch in self.queues for ch in "*?,"):
            raise InvalidInput(f'name one queue: .option("queue", "orders"), not {self.queues!r}')
        return valid_name(self.queues)

    def named_consumer(self) -> str:
        """The name of the consumer that holds the leases."""
        if not self.consumer:
            raise InvalidInput('name the consumer: .option("consumer", "scoring"); restarts must use the same name')
        return valid_name(self.consumer, "consumer")

    def parts(self) -> int:
        """How many parts to read in parallel."""
        return self.num_partitions or os.cpu_count() or 1

    def state_list(self) -> list[State]:
        """The states of a snapshot."""
        words = self.kind if self.kind in STATE_KINDS else self.states
        try:
            return [State(word.strip()) for word in words.split(",")]
        except ValueError:
            known = ", ".join(state.value for state in State)
            raise InvalidInput(f"states must be some of {known}, not {self.states!r}") from None

    def since_ms(self) -> int | None:
        return instant(self.since, "since")

    def until_ms(self) -> int | None:
        return instant(self.until, "until")


def instant(text: str, name: str) -> int | None:
    """Milliseconds of an ISO 8601 instant, in UTC unless it names a time zone."""
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} must be an instant such as 2026-01-31T12:00:00Z, not {text!r}") from None
    return whole_ms(when if when.tzinfo else when.replace(tzinfo=UTC))


def whole_ms(when: datetime) -> int:
    """Milliseconds of an instant, rounded up: lines of the millisecond in which it lies come before it."""
    return -((_EPOCH - when) // timedelta(milliseconds=1))


def _spelled(name: str) -> str:
    """The option's name as users write it."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


#: Every option's name in lower case, as Spark passes it.
KNOWN = frozenset({"queue", *(_spelled(item.name).lower() for item in fields(Options))})


def _value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in _TRUE:
            raise InvalidInput(f"{name} must be true or false, not {text!r}")
        return _TRUE[text.lower()]
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            raise InvalidInput(f"{name} must be a number, not {text!r}") from None
    return text


def _checked(options: Options) -> Options:
    if options.kind not in (*KINDS, *STATE_KINDS):
        raise InvalidInput(f"kind must be one of {', '.join((*KINDS, *STATE_KINDS))}, not {options.kind!r}")
    if options.op not in ("send", "settle", "replay"):
        raise InvalidInput(f"op must be send, settle or replay, not {options.op!r}")
    if options.starting_position not in ("earliest", "latest"):
        raise InvalidInput(f"startingPosition must be earliest or latest, not {options.starting_position!r}")
    whole(options.rows_per_call, "rowsPerCall", 1, 1000)
    whole(options.num_partitions, "numPartitions", 0, 100_000)
    whole(options.max_rows_per_batch, "maxRowsPerBatch", 0, 2**40)
    milliseconds(options.lease_seconds, "leaseSeconds", least=1.0)
    if not 0 <= options.rate <= 1e6:
        raise InvalidInput(f"rate must be messages per second from 0 to 1000000, not {options.rate}")
    milliseconds(options.patience, "patience")
    whole(options.start_seq, "startSeq", 0, 2**53)
    whole(options.end_seq, "endSeq", 0, 2**53)
    if not options.queues.replace(",", "").strip():
        raise InvalidInput("queues must name a queue, a pattern, or * for all")
    if options.reader:
        valid_name(options.reader, "reader")
    options.state_list()
    options.since_ms()
    options.until_ms()
    return options


def reference() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every option, for the reference page."""
    import inspect

    source = inspect.getsource(Options).splitlines()
    about: dict[str, str] = {}
    comment: list[str] = []
    for line in source:
        text = line.strip()
        if text.startswith("#:"):
            comment.append(text[2:].strip())
        elif comment and ":" in text:
            about[text.partition(":")[0]] = " ".join(comment)
            comment = []
    return [(_spelled(item.name), str(item.default), about[item.name]) for item in fields(Options)]
