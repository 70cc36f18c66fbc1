"""Messages, their states, and their lifecycle as data, which the Lua scripts, docs and dashboard follow."""

from __future__ import annotations

import enum
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from restante.core.retry import RetryPolicy
from restante.core.stored import Stored


class State(enum.StrEnum):
    """The state of a message. Each member says who moves a message out of it and how long it may stay."""

    #: Waits for due_at and has never failed. A receive or the sweeper moves it once due; it stays as long as its delay.
    SCHEDULED = "scheduled"
    #: May be received now. Stays until a consumer receives it.
    READY = "ready"
    #: A consumer holds it. Its verdict moves it, a receive or the sweeper once the lease has ended, or an operator who
    #: takes it back or cancels it.
    LEASED = "leased"
    #: Failed and waits for due_at. A receive or the sweeper moves it once due; stays as long as its retry policy says.
    RETRYING = "retrying"
    #: Has no attempts left, or was buried. Stays until an operator replays, deletes, moves or purges it.
    DEAD = "dead"
    #: Kept after success, if `keep_done` is set. Stays until newer results displace it or an operator removes it.
    DONE = "done"


class JournalEvent(enum.StrEnum):
    """The event of a journal line."""

    SENT = "sent"
    RECEIVED = "received"
    ACKED = "acked"
    NACKED = "nacked"
    BURIED = "buried"
    RELEASED = "released"
    EXTENDED = "extended"
    PROMOTED = "promoted"
    EXPIRED = "expired"
    REPLAYED = "replayed"
    DELETED = "deleted"
    PURGED = "purged"
    REVOKED = "revoked"
    CANCELLED = "cancelled"
    EDITED = "edited"
    CONFIGURED = "configured"
    PAUSED = "paused"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the lifecycle: from `sources`, `verb` writes `event` and leads to one of `targets`."""

    sources: frozenset[State | None]
    verb: str
    event: JournalEvent
    targets: frozenset[State | None]
    who: str
    condition: str


def _row(
    sources: set[State | None], verb: str, event: JournalEvent, targets: set[State | None], who: str, condition: str
) -> Transition:
    return Transition(frozenset(sources), verb, event, frozenset(targets), who, condition)


_S = State
#: None stands for a message that does not exist: before the send, or after its removal.
LIFECYCLE: tuple[Transition, ...] = (
    _row(
        {None},
        "send",
        JournalEvent.SENT,
        {_S.READY, _S.SCHEDULED},
        "producer",
        "the same message id again changes nothing",
    ),
    _row(
        {_S.SCHEDULED, _S.RETRYING},
        "promote",
        JournalEvent.PROMOTED,
        {_S.READY},
        "sweeper or receive",
        "due_at has passed",
    ),
    _row({_S.READY}, "receive", JournalEvent.RECEIVED, {_S.LEASED}, "consumer", "attempts + 1, new lease_token"),
    _row({_S.LEASED}, "ack", JournalEvent.ACKED, {None, _S.DONE}, "consumer", "token matches"),
    _row({_S.LEASED}, "nack", JournalEvent.NACKED, {_S.RETRYING, _S.DEAD}, "consumer", "attempts left / spent"),
    _row({_S.LEASED}, "bury", JournalEvent.BURIED, {_S.DEAD}, "consumer", "token matches"),
    _row({_S.LEASED}, "release", JournalEvent.RELEASED, {_S.READY, _S.SCHEDULED}, "consumer", "attempts - 1"),
    _row({_S.LEASED}, "extend", JournalEvent.EXTENDED, {_S.LEASED}, "consumer", "later lease_expires_at"),
    _row(
        {_S.LEASED}, "reclaim", JournalEvent.EXPIRED, {_S.READY, _S.DEAD}, "sweeper or receive", "the lease has ended"
    ),
    _row({_S.DEAD}, "replay", JournalEvent.REPLAYED, {_S.READY}, "operator", "attempts = 0, replays + 1, errors kept"),
    _row({*_S} - {_S.LEASED}, "delete", JournalEvent.DELETED, {None}, "operator", "by id"),
    _row(
        {_S.READY, _S.SCHEDULED, _S.RETRYING, _S.DEAD, _S.DONE},
        "purge",
        JournalEvent.PURGED,
        {None},
        "operator",
        "whole states",
    ),
    _row({_S.LEASED}, "revoke", JournalEvent.REVOKED, {_S.READY}, "operator", "the token dies, the attempt counts"),
    _row(
        {_S.SCHEDULED, _S.READY, _S.LEASED, _S.RETRYING},
        "cancel",
        JournalEvent.CANCELLED,
        {None},
        "operator or program",
        "the holder of a leased one learns by message.cancelled",
    ),
)

#: The states of messages that have ended and stay.
ENDED = frozenset({State.DEAD, State.DONE})

#: The letter of each state in the stored form of a message with a unique key.
STATE_LETTERS = {
    State.SCHEDULED: "s",
    State.READY: "r",
    State.LEASED: "l",
    State.RETRYING: "t",
    State.DEAD: "d",
    State.DONE: "k",
}

#: Characters of an error kept per attempt; of a traceback the end is kept, which says most.
MAX_ERROR = 4000

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


#: The id of a tick's message.
_TICK_ID = re.compile(r"(.+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z)")
_random = random.Random()
# A forked child must not repeat its parent's numbers.
os.register_at_fork(after_in_child=_random.seed)


def _stamp_of(milliseconds: int) -> tuple[int, str]:
    """The first ten characters of an id: the time, in an alphabet that sorts like the numbers."""
    return milliseconds, "".join(_ALPHABET[milliseconds >> shift & 31] for shift in range(45, -1, -5))


_stamp = _stamp_of(0)


def new_id() -> str:
    """Returns a new message id: 26 characters, sorted by time to the millisecond, with 64 random bits."""
    global _stamp
    now = time.time_ns() // 1_000_000
    stamp = _stamp
    if stamp[0] != now:
        stamp = _stamp = _stamp_of(now)
    return f"{stamp[1]}{_random.getrandbits(64):016X}"


def new_ids(count: int) -> list[str]:
    """Returns `count` new message ids; cheaper than as many calls of `new_id`."""
    stamp = _stamp_of(time.time_ns() // 1_000_000)[1]
    text = _random.randbytes(8 * count).hex().upper()
    return [stamp + text[place : place + 16] for place in range(0, 16 * count, 16)]


def tick_id(schedule: str, tick: int) -> str:
    """The message id of a schedule's tick, which is an instant in milliseconds: the schedule's name and the instant."""
    at = EPOCH + timedelta(milliseconds=tick)
    return f"{schedule}@{at:%Y-%m-%dT%H:%M:%S}{f'.{tick % 1000:03d}' if tick % 1000 else ''}Z"


class MessageId(str):
    """The id that a send returns; `stored` is False if an earlier message already had this id or unique key."""

    stored: bool = True

    @classmethod
    def of_earlier(cls, value: str) -> MessageId:
        """The id of an earlier message, which the send did not replace."""
        id = cls(value)
        id.stored = False
        return id


@dataclass(frozen=True, slots=True)
class Draft:
    """A message for `send_many` with its own options."""

    payload: Any
    priority: int = 0
    delay: float | timedelta = 0
    due_at: datetime | None = None
    id: str | None = None
    kind: str = ""
    headers: dict[str, Any] | None = None
    content_type: str | None = None
    lease: float | timedelta | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    unique: str | None = None
    unique_states: frozenset[State] | None = None
    expires: float | timedelta | None = None
    timeout: float | timedelta | None = None


class RemoteError(Exception):
    """An error that another process reported: its class name and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        self.text = text


def iso(at: datetime | None) -> str | None:
    """An instant as ISO text, as the command line shows it."""
    return at.isoformat() if at else None


#: Converts the instants of a value that becomes a dict for JSON.
Instant = Callable[[datetime | None], Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished attempt, as the message's history keeps it."""

    attempt: int
    received_at: datetime | None
    ended_at: datetime
    event: JournalEvent
    consumer: str
    error_class: str
    error: str

    def as_dict(self, instant: Instant = iso) -> dict[str, Any]:
        """The attempt as a dict for JSON, instants as `instant` converts them."""
        return {
            "attempt": self.attempt,
            "received_at": instant(self.received_at),
            "ended_at": instant(self.ended_at),
            "event": self.event.value,
            "consumer": self.consumer,
            "error_class": self.error_class,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the handler of a leased message is, as it last noted it."""

    #: From 0 to 1.
    fraction: float
    #: What it is doing.
    step: str
    #: When it noted it.
    at: datetime

    def as_dict(self, instant: Instant = iso) -> dict[str, Any]:
        """The progress as a dict for JSON, the instant as `instant` converts it."""
        return {"fraction": self.fraction, "step": self.step, "at": instant(self.at)}


#: Stands for a missing instant where a value is required.
EPOCH = datetime.fromtimestamp(0, UTC)


def moment(milliseconds: int | float | None) -> datetime | None:
    """Converts integer milliseconds into an aware datetime; None for 0 or None."""
    if not milliseconds:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)


class Message:
    """A message with its state and its facts; received messages add the verbs that settle them.

    Payload, headers and options are decoded on first access, so that moving messages stays cheap.
    """

    # Class defaults, so that a message sets only the fields it has.
    attempts: int = 0
    replays: int = 0
    #: Whether the previous attempt ended without a verdict: this message may have crashed its consumer.
    suspect: bool = False
    consumer: str = ""
    lease_token: str = ""
    #: Whether this consumer knows that the message was cancelled while it held it.
    cancelled: bool = False
    #: Whether a loop has entered the block that a hook has for loops, such as `OpenTelemetry.processing`.
    inside_hooks: bool = False
    #: Whether this consumer has settled the message, and how: acked, nacked, buried or released.
    settled: bool = False
    verdict: str = ""
    history: tuple[Attempt, ...] = ()
    #: What the handler of a done message returned, if it was acked with a result.
    result: Any = None
    #: How far the handler of a leased message is, if it has noted it.
    last_progress: Progress | None = None
    due_ms: int = 0
    expires_ms: int = 0
    lease_ms: int = 0
    received_ms: int = 0
    settled_ms: int = 0
    #: Its place on a page of a list, as the cursor of the next page.
    place_after: str = ""

    def __init__(
        self,
        id: str,
        queue: str,
        stored: Stored,
        *,
        state: State,
        attempts: int = 0,
        replays: int = 0,
        consumer: str = "",
        lease_token: str = "",
        due_ms: int = 0,
        expires_ms: int = 0,
        received_ms: int = 0,
        settled_ms: int = 0,
        history: tuple[Attempt, ...] = (),
        result: Any = None,
        last_progress: Progress | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.stored = stored
        self.state = state
        self.attempts = attempts
        self.replays = replays
        self.consumer = consumer
        self.lease_token = lease_token
        self.history = history
        self.result = result
        self.last_progress = last_progress
        self.due_ms = due_ms
        self.expires_ms = expires_ms
        self.received_ms = received_ms
        self.lease_ms = expires_ms - received_ms if received_ms else 0
        self.settled_ms = settled_ms

    @property
    def schedule(self) -> str | None:
        """The schedule whose tick sent the message, as its id says; None for other messages."""
        found = _TICK_ID.fullmatch(self.id)
        return None if found is None else found[1]

    @property
    def tick(self) -> datetime | None:
        """The tick that sent the message; None for other messages."""
        found = _TICK_ID.fullmatch(self.id)
        try:
            return None if found is None else datetime.fromisoformat(found[2])
        except ValueError:
            return None

    @property
    def payload(self) -> Any:
        """The payload: a JSON value, or bytes if bytes were sent."""
        return self.stored.payload

    @property
    def whole(self) -> bool:
        """Whether the payload is complete; pages of a list carry only its start."""
        return self.stored.whole

    @property
    def preview(self) -> bytes:
        """The payload's bytes, or their start on a page of a list."""
        return self.stored.body

    @property
    def kind(self) -> str:
        """The kind that the sender gave the message."""
        return self.stored.kind

    @property
    def priority(self) -> int:
        """The priority, 0 to 255; higher runs first."""
        return self.stored.priority

    @property
    def size(self) -> int:
        """The size of the payload in bytes."""
        return self.stored.size

    @property
    def headers(self) -> dict[str, Any]:
        """The headers sent with the payload."""
        return self.stored.headers

    @property
    def content_type(self) -> str:
        """application/json, or the type that the sender gave."""
        return self.stored.content_type

    @property
    def max_attempts(self) -> int | None:
        """The message's own limit of attempts, or None if the queue's applies."""
        return self.stored.max_attempts

    @property
    def retry(self) -> RetryPolicy | None:
        """The message's own retry policy, or None if the queue's applies."""
        return self.stored.retry

    @property
    def timeout(self) -> float | None:
        """The message's own time limit in seconds, or None if that of its task or queue applies."""
        span = self.stored.timeout_ms
        return None if span is None else span / 1000

    @property
    def unique(self) -> str | None:
        """The unique key the message was sent with."""
        return self.stored.unique

    @property
    def batch_id(self) -> str | None:
        """The batch that the message is a part of: its home queue, a slash and its id; None for most messages."""
        return self.stored.batch

    @property
    def sent_at(self) -> datetime:
        """When Redis stored the message."""
        return moment(self.stored.sent_ms) or EPOCH

    @property
    def due_at(self) -> datetime | None:
        """When a scheduled or retrying message becomes ready."""
        return moment(self.due_ms)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease of a leased message ends, by the server's clock."""
        return moment(self.expires_ms)

    @property
    def expires_at(self) -> datetime | None:
        """When the message expires and is no longer delivered; None if it was sent without `expires`."""
        span = self.stored.expires_ms
        return None if span is None else moment(self.stored.sent_ms + span)

    @property
    def received_at(self) -> datetime | None:
        """When the message was last received."""
        return moment(self.received_ms)

    @property
    def settled_at(self) -> datetime | None:
        """When the message became dead or done."""
        return moment(self.settled_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} queue={self.queue} state={self.state} attempts={self.attempts}>"
