"""The journal: one line per message moved, numbered without gaps, and positions in it.

A call writes its lines as one stream entry, separated by newlines, under the id `0-<number of its last line>`: a single
append, however many messages it moved. The first line of an entry therefore follows the last line of the entry before;
any other number proves a loss.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from restante.core.errors import Corrupt
from restante.core.message import EPOCH, Instant, JournalEvent, State, iso, moment

#: The first column of every line; readers refuse an unknown format.
FORMAT = "1"
_STREAM_ID = re.compile(r"(?:\d{1,20}-)?\d{1,20}", re.ASCII)
#: The columns of a line, tab separated, in order.
COLUMNS = (
    "format",
    "event",
    "state",
    "at",
    "message_id",
    "sent_at",
    "kind",
    "priority",
    "size",
    "attempts",
    "consumer",
    "due_at",
    "error_class",
    "detail",
)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in one queue's journal: the sequence number of the last line read."""

    sequence: int = 0

    @classmethod
    def parse(cls, stream_id: bytes | str) -> Position:
        text = stream_id.decode() if isinstance(stream_id, bytes) else stream_id
        if not _STREAM_ID.fullmatch(text):
            raise Corrupt(f"{text[:60]!r} is not a position in a journal")
        return cls(int(text.rpartition("-")[2]))

    def __str__(self) -> str:
        return f"0-{self.sequence}"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the journal."""

    queue: str
    position: Position
    event: JournalEvent
    #: The state of the message after the event: a State's value, or "gone".
    state: str
    at: datetime
    message_id: str
    sent_at: datetime | None
    kind: str
    priority: int
    size: int
    attempts: int
    #: Who caused it: a consumer, or the operator of an admin verb.
    consumer: str
    #: due_at or lease_expires_at, whichever the event sets.
    due_at: datetime | None
    error_class: str
    detail: str

    @classmethod
    def parse_block(cls, queue: str, stream_id: bytes, block: bytes) -> list[JournalEntry]:
        """Parses one stream entry into its lines, oldest first; its id is the number of the last one."""
        lines = block.decode("utf-8", "replace").split("\n")
        first = Position.parse(stream_id).sequence - len(lines) + 1
        return [cls.parse(queue, Position(first + index), line) for index, line in enumerate(lines)]

    @classmethod
    def parse(cls, queue: str, position: Position, line: str) -> JournalEntry:
        """Parses one line."""
        parts = line.split("\t")
        if parts[0] != FORMAT or len(parts) != len(COLUMNS):
            raise Corrupt(f"journal entry {position} of {queue} has format {parts[0]!r}; this client reads {FORMAT}")
        _, event, state, at, message_id, sent, kind, priority, size, attempts, consumer, due, error_class, detail = (
            parts
        )
        try:
            when = moment(int(at)) or EPOCH
            return cls(
                queue,
                position,
                JournalEvent(event),
                state,
                when,
                message_id,
                moment(int(sent or 0)),
                kind,
                int(priority),
                int(size),
                int(attempts),
                consumer,
                moment(int(due or 0)),
                error_class,
                detail,
            )
        except ValueError as error:
            raise Corrupt(f"journal entry {position} of {queue} cannot be read: {error}") from None

    def as_dict(self, instant: Instant = iso) -> dict[str, Any]:
        """The entry as a dict for JSON, instants as `instant` converts them: without it as ISO text."""
        return {
            "queue": self.queue,
            "position": self.position.sequence,
            "event": self.event.value,
            "state": self.state,
            "at": instant(self.at),
            "message_id": self.message_id,
            "sent_at": instant(self.sent_at),
            "kind": self.kind,
            "priority": self.priority,
            "size": self.size,
            "attempts": self.attempts,
            "consumer": self.consumer,
            "due_at": instant(self.due_at),
            "error_class": self.error_class,
            "detail": self.detail,
        }


class Taken(IntEnum):
    """Whether a subscription may run a message."""

    #: This very delivery began it, and its process is gone: a pool hands a job to a second process only then.
    ABANDONED = -2
    #: Another delivery of the message is running.
    AT_WORK = -1
    #: The message is already done.
    DONE = 0
    RUN = 1


@dataclass(frozen=True, slots=True)
class Line:
    """A journal line for a broker that keeps no journal."""

    event: JournalEvent
    state: State | str
    kind: str
    size: int
    priority: int = 0
    sent_ms: int | None = None
    consumer: str = ""
    #: Seconds until the message is due again.
    delay: float | None = None
    error_class: str = ""
    detail: str = ""
