"""What a broker does for a client, and the answers it gives; one room per broker does it, sync and asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from restante.bus.envelope import Envelope
from restante.core.errors import CallFailed, Declined, InvalidInput
from restante.core.settings import milliseconds, whole

if TYPE_CHECKING:
    from restante.bus.batch import Publishing, Sender

#: The exchange of events, and the one of calls.
EVENTS = "events"
CALLS = "calls"
#: Where calls to all services go.
CALLS_ALL = "calls.all"
#: The queue of events nobody has subscribed to.
UNROUTED = "events.unrouted"
#: Seconds an unrouted event is kept, and how many of them.
UNROUTED_SECONDS = 7 * 86400.0
UNROUTED_LENGTH = 10_000
#: Seconds an answer waits for its caller beyond the call's deadline.
REPLY_GRACE = 60.0

Unrouted = Literal["keep", "raise"]


@dataclass(frozen=True, slots=True)
class Published:
    """An event that is on its way."""

    id: str
    #: How many subscriptions got it. RabbitMQ tells only whether any did: None there means at least one, unless the
    #: bus has a store that knows the subscriptions.
    subscriptions: int | None


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How an event is sent, checked."""

    delay: float = 0.0
    priority: int = 0
    expires: float | None = None
    unrouted: Unrouted = "keep"

    @classmethod
    def checked(cls, delay: Any, priority: Any, expires: Any, unrouted: Any) -> SendOptions:
        if unrouted not in ("keep", "raise"):
            raise InvalidInput(f"unrouted must be keep or raise, not {unrouted!r}")
        return cls(
            milliseconds(delay, "delay") / 1000,
            whole(priority, "priority", 0, 255),
            None if expires is None else milliseconds(expires, "expires", least=0.001) / 1000,
            unrouted,
        )

    @property
    def lifetime(self) -> float | None:
        """Seconds from now until the event is over: `expires` counts from when it is due."""
        return None if self.expires is None else self.delay + self.expires


@dataclass(frozen=True, slots=True)
class Answer:
    """What one service answered."""

    service: str
    outcome: Literal["ok", "declined", "failed"]
    #: The JSON text of what was returned or declined with.
    text: bytes = b"null"
    error_class: str = ""
    error: str = ""

    def pack(self) -> bytes:
        """As it travels: one line of facts, then the data's own text."""
        return orjson.dumps([self.service, self.outcome, self.error_class, self.error]) + b"\n" + self.text

    @classmethod
    def parse(cls, packed: bytes) -> Answer:
        facts, _, text = packed.partition(b"\n")
        service, outcome, error_class, error = orjson.loads(facts)
        return cls(service, outcome, text, error_class, error)

    def value(self, response: Any = None, declined: Any = None) -> Any:
        """What was returned, by its schema; a refusal and a failure are raised."""
        from restante.bus.schema import decode

        if self.outcome == "declined":
            raise Declined(decode(self.text, declined))
        if self.outcome == "failed":
            raise CallFailed(f"{self.service} failed: {self.error_class}: {self.error}", error_class=self.error_class)
        return decode(self.text, response)


class Broker(Protocol):
    """A broker, to a client that publishes and calls."""

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int | None: ...

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> list[int | None]: ...

    def begin(self, publishing: Publishing) -> None: ...

    def sender(self) -> Sender: ...

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer: ...

    def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]: ...

    def close(self) -> None: ...


class AsyncBroker(Protocol):
    """The same with await."""

    #: Events of a batch that are published at a time.
    at_once: int

    async def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int | None: ...

    async def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer: ...

    async def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]: ...

    async def close(self) -> None: ...
