"""One delivery of an event or a call, as the worker's main process hands it to the process that runs the handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from restante.bus.envelope import Envelope, Malformed
from restante.core.journal import Line
from restante.core.message import JournalEvent, State
from restante.rabbitmq.topology import CALL, calls_queue


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received message and what its broker knows of it."""

    envelope: Envelope
    #: An event, a call of one service, or a call of all services.
    purpose: Literal["event", "call", "call_all"] = "event"
    #: The queue it came from.
    queue: str = ""
    reply_to: str = ""
    #: When the caller stops waiting, in seconds by this machine's clock.
    deadline: float = 0.0
    #: Whether it may have been delivered before.
    suspect: bool = False
    priority: int = 0
    size: int = 0
    #: Replays so far.
    replays: int = 0
    #: Whether the broker knows that the delivery before this one ended without a verdict.
    expired: bool = False
    #: Identifies this delivery among all of its message.
    token: str = ""

    @property
    def turn(self) -> int:
        """The number of this attempt over all replays: it only grows, and records compare it."""
        return self.replays * 100_000 + self.envelope.attempts

    def pack(self) -> str:
        rest = [
            self.purpose,
            self.queue,
            self.reply_to,
            self.deadline,
            self.suspect,
            self.priority,
            self.size,
            self.replays,
            self.expired,
            self.token,
        ]
        return orjson.dumps([self.envelope.attributes(), self.envelope.attempts, *rest]).decode()

    @classmethod
    def parse(cls, packed: str) -> Delivery:
        headers, attempts, *rest = orjson.loads(packed)
        return cls(Envelope.read(headers, attempts=attempts), *rest)

    def line(self, event: JournalEvent, state: State | str, consumer: str, **more: Any) -> Line:
        """A line of the journal about this delivery."""
        envelope = self.envelope
        sent = None if envelope.time is None else int(envelope.time.timestamp() * 1000)
        return Line(event, state, envelope.topic, self.size, self.priority, sent, consumer, **more)


def purpose_of(queue: str, service: str) -> Literal["event", "call", "call_all"]:
    """What the messages of a queue are, by its name."""
    if queue.startswith(CALL):
        return "call"
    return "call_all" if queue == calls_queue(service) else "event"


def call_seconds(headers: Mapping[str, Any]) -> float:
    """How long the caller of a call waits; Malformed where its headers do not say."""
    try:
        wait = float(headers["deadline_seconds"])
    except (KeyError, TypeError, ValueError):
        raise Malformed("a call must have the header deadline_seconds: how long its caller waits") from None
    if not 0 < wait < 1e9:
        raise Malformed(f"deadline_seconds is {wait}")
    return wait
