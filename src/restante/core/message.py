"""What a message is, the states it can be in, and the lifecycle as data that Lua, docs and pages follow."""

from __future__ import annotations

import enum
import os
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from restante.core.retry import RetryPolicy
from restante.core.stored import Stored


class State(enum.StrEnum):
    """Where a message is. Each member says who moves a message out of it and how long it may stay."""

    #: Waits for due_at and has never failed. Left by any receive or the sweeper once due; stays as long as its delay.
    SCHEDULED = "scheduled"
    #: May be received now. Left by a consumer; stays until one comes.
    READY = "ready"
    #: A consumer holds it. Left by its verdict, or by any receive or the sweeper once the lease has ended.
    LEASED = "leased"
    #: Failed and waits for due_at. Left by any receive or the sweeper once due; stays as long as the retry policy says.
    RETRYING = "retrying"
    #: Attempts spent, or refused for good. Left only by an operator: replay, delete, move or purge.
    DEAD = "dead"
    #: Kept after success where the queue keeps results. Left when newer results push it out.
    DONE = "done"


class JournalEvent(enum.StrEnum):
    """What the journal says happened."""

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
    EDITED = "edited"
    CONFIGURED = "configured"
    PAUSED = "paused"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the lifecycle: from these states, this verb writes this event and leads to one of those states."""

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
#: None stands for "not there": before the send, or gone for good.
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
)

#: The letter that stands for a state inside the stored form of a unique send.
STATE_LETTERS = {
    State.SCHEDULED: "s",
    State.READY: "r",
    State.LEASED: "l",
    State.RETRYING: "t",
    State.DEAD: "d",
    State.DONE: "k",
}

#: Characters of an error kept per attempt; the end of a traceback says most.
MAX_ERROR = 4000

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


_random = random.Random()
# A forked child must not repeat its parent's numbers.
os.register_at_fork(after_in_child=_random.seed)


def _stamp_of(milliseconds: int) -> tuple[int, str]:
    """The first ten characters of an id: the time, in an alphabet that sorts as the numbers do."""
    return milliseconds, "".join(_ALPHABET[milliseconds >> shift & 31] for shift in range(45, -1, -5))


_stamp = _stamp_of(0)


def new_id() -> str:
    """A message id: 26 characters, ordered by time to the millisecond, 64 random bits below that."""
    global _stamp
    now = time.time_ns() // 1_000_000
    stamp = _stamp
    if stamp[0] != now:
        stamp = _stamp = _stamp_of(now)
    return f"{stamp[1]}{_random.getrandbits(64):016X}"


def new_ids(count: int) -> list[str]:
    """That many message ids of this moment; cheaper than as many calls of `new_id`."""
    stamp = _stamp_of(time.time_ns() // 1_000_000)[1]
    text = _random.randbytes(8 * count).hex().upper()
    return [stamp + text[place : place + 16] for place in range(0, 16 * count, 16)]


class MessageId(str):
    """The id of a sent message; `stored` is False when an earlier message already stood for it."""

    stored: bool = True

    @classmethod
    def of_earlier(cls, value: str) -> MessageId:
        """The id of the message that was there before."""
        made = cls(value)
        made.stored = False
        return made


@dataclass(frozen=True, slots=True)
class Draft:
    """A message before it is sent, for `send_many` with options of its own per message."""

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


class RemoteError(Exception):
    """An error of a consumer elsewhere, as it was told: its class and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        self.text = text


@dataclass(frozen=True, slots=True)
class Attempt:
    """One ended attempt of a message, as its history keeps it."""

    attempt: int
    received_at: datetime | None
    ended_at: datetime
    event: JournalEvent
    consumer: str
    error_class: str
    error: str


#: Stands for an instant that was not written, where there must be one.
EPOCH = datetime.fromtimestamp(0, UTC)


def moment(milliseconds: int | float | None) -> datetime | None:
    """Integer milliseconds as the API's aware datetime."""
    if not milliseconds:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)


class Message:
    """A message and what is known of it; received messages add the verbs that settle them.

    What the message carries is decoded when it is first asked for, so that moving messages stays cheap.
    """

    # Defaults of the class, so that a message sets only what it has.
    attempts: int = 0
    replays: int = 0
    #: Whether the attempt before this one ended without a word: its consumer may have died of this message.
    suspect: bool = False
    consumer: str = ""
    lease_token: str = ""
    #: Whether this consumer gave a verdict, and which: acked, nacked, buried or released.
    settled: bool = False
    verdict: str = ""
    history: tuple[Attempt, ...] = ()
    due_ms: int = 0
    expires_ms: int = 0
    lease_ms: int = 0
    received_ms: int = 0
    settled_ms: int = 0
    #: Where it stands on a page of a list, as a cursor.
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
        self.due_ms = due_ms
        self.expires_ms = expires_ms
        self.received_ms = received_ms
        self.lease_ms = expires_ms - received_ms if received_ms else 0
        self.settled_ms = settled_ms

    @property
    def payload(self) -> Any:
        """What was sent: the JSON value, or bytes if bytes were sent."""
        return self.stored.payload

    @property
    def whole(self) -> bool:
        """Whether the payload is all here; pages of a list carry its start only."""
        return self.stored.whole

    @property
    def preview(self) -> bytes:
        """The payload's bytes, or their start on a page of a list."""
        return self.stored.body

    @property
    def kind(self) -> str:
        """What the message is, in the sender's words."""
        return self.stored.kind

    @property
    def priority(self) -> int:
        """0 to 255, high first."""
        return self.stored.priority

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.stored.size

    @property
    def headers(self) -> dict[str, Any]:
        """What travels beside the payload."""
        return self.stored.headers

    @property
    def content_type(self) -> str:
        """application/json, or what the sender of bytes said they are."""
        return self.stored.content_type

    @property
    def max_attempts(self) -> int | None:
        """This message's own limit, or None where the queue's holds."""
        return self.stored.max_attempts

    @property
    def retry(self) -> RetryPolicy | None:
        """This message's own retry policy, or None where the queue's holds."""
        return self.stored.retry

    @property
    def unique(self) -> str | None:
        """The unique key the message was sent with."""
        return self.stored.unique

    @property
    def sent_at(self) -> datetime:
        """When Redis stored it."""
        return moment(self.stored.sent_ms) or EPOCH

    @property
    def due_at(self) -> datetime | None:
        """When it becomes ready, while it is scheduled or retrying."""
        return moment(self.due_ms)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease ends by the server's clock, while it is leased."""
        return moment(self.expires_ms)

    @property
    def expires_at(self) -> datetime | None:
        """When it is no longer worth delivering; None for most, which wait until they are received."""
        span = self.stored.expires_ms
        return None if span is None else moment(self.stored.sent_ms + span)

    @property
    def received_at(self) -> datetime | None:
        """When it was last received."""
        return moment(self.received_ms)

    @property
    def settled_at(self) -> datetime | None:
        """When it became dead or done."""
        return moment(self.settled_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} queue={self.queue} state={self.state} attempts={self.attempts}>"
