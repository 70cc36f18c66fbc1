"""What the model is made of: messages, settings, acked ids, and the answers it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.core.verbs import RAW, Item


class Full(Exception):
    """The model refuses the send."""


@dataclass
class Entry:
    """One message."""

    item: Item
    #: The number it was sent under, and when.
    sequence: int
    sent_at: int
    state: str
    #: The score in its state's index.
    score: int
    attempts: int = 0
    token: str = ""
    expires: int = 0
    replays: int = 0
    #: When and by whom it was last received.
    received_at: int | str = ""
    consumer: str = ""
    #: Its place in line, kept apart once it was promoted or delivered; None before.
    place: int | None = None
    #: Ended attempts: number, event, error class.
    ended: list[tuple[int, str, str]] = field(default_factory=list)
    #: What its handler noted of its progress, with the time.
    progress: str = ""
    #: What it was acked with.
    result: str = ""

    def stored(self) -> dict[str, Any]:
        """What does not change about it but by an edit."""
        return {
            "sequence": self.sequence,
            "sent_at": self.sent_at,
            "kind": self.item.kind,
            "priority": self.item.priority,
            "limits": self.item.limits,
            "body": self.item.payload,
            "options": RAW,
        }


@dataclass
class Settings:
    """What the queue is told; None where it is not."""

    lease_ms: int = 30_000
    max_attempts: int = 5
    max_length: int | None = None
    max_dead: int | None = None
    max_leased: int | None = None
    keep_done: int = 0
    dedup_ms: int = 60_000
    pause: bool = False
    journal: str = "full"


@dataclass
class Grave:
    """An acked id."""

    token: str
    at: int
    #: Milliseconds for which it must be known: the window it was acked under, or a shorter one that came after.
    window: int


@dataclass(frozen=True)
class Taken:
    """What a receive must answer."""

    promoted: int
    expired: int
    base: int
    lost: list[int]
    #: id, attempts, lease_expires_at.
    messages: list[tuple[str, int, int]]
    #: What it tells of earlier attempts.
    told: list[str]
