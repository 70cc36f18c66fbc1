"""What differs between brokers, as protocols: a client's side, sync and asyncio, and a worker's; and their values."""

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
    from restante.bus.dedup import Claim
    from restante.bus.delivery import Delivery
    from restante.bus.handler import Handler
    from restante.bus.options import LadderOptions
    from restante.core.journal import Line
    from restante.core.message import JournalEvent, State

#: Seconds an answer is kept for its caller after the call's deadline.
REPLY_GRACE = 60.0

Unrouted = Literal["keep", "raise"]


@dataclass(frozen=True, slots=True)
class Published:
    """The receipt of a published event."""

    id: str
    #: How many subscriptions got it. RabbitMQ reports only whether any did: None means at least one there, unless the
    #: client has a store, which lists the subscriptions.
    subscriptions: int | None


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Checked options of a publish."""

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
        """Seconds from now until the event expires: `expires` counts from when it is due."""
        return None if self.expires is None else self.delay + self.expires


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one service to a call."""

    service: str
    outcome: Literal["ok", "declined", "failed"]
    #: The returned value, or the data of `Declined`, as JSON text.
    text: bytes = b"null"
    error_class: str = ""
    error: str = ""

    def pack(self) -> bytes:
        """The message of an answer: one line of facts, then the data's JSON."""
        return orjson.dumps([self.service, self.outcome, self.error_class, self.error]) + b"\n" + self.text

    @classmethod
    def parse(cls, packed: bytes) -> Answer:
        facts, _, text = packed.partition(b"\n")
        service, outcome, error_class, error = orjson.loads(facts)
        return cls(service, outcome, text, error_class, error)

    def value(self, response: Any = None, declined: Any = None) -> Any:
        """The returned value by its schema; raises `Declined` or `CallFailed` where there is none."""
        from restante.bus.schema import decode

        if self.outcome == "declined":
            raise Declined(decode(self.text, declined))
        if self.outcome == "failed":
            raise CallFailed(f"{self.service} failed: {self.error_class}: {self.error}", error_class=self.error_class)
        return decode(self.text, response)


class Broker(Protocol):
    """The client's side of a broker: publishes and calls."""

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int | None: ...

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> list[int | None]: ...

    def begin(self, publishing: Publishing) -> None: ...

    def sender(self) -> Sender: ...

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer: ...

    def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]: ...

    def close(self) -> None: ...


class AsyncBroker(Protocol):
    """The asyncio client's side of a broker."""

    #: Events of a batch that are published at the same time.
    at_once: int

    async def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int | None: ...

    async def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer: ...

    async def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]: ...

    async def close(self) -> None: ...


class WorkerBackend(Protocol):
    """The worker's side of a broker: what differs between brokers beyond Celery's transports."""

    #: The broker in the registry of handlers.
    broker: Literal["redis", "rabbitmq"]
    #: Whether Celery acks late whatever a handler's `acks_late` says.
    always_acks_late: bool

    @property
    def store_url(self) -> str | None:
        """The Redis that keeps the records of what has run."""
        ...

    @property
    def client_options(self) -> LadderOptions:
        """The options of this service's own clients."""
        ...

    @property
    def archive_length(self) -> int | None:
        """Messages the service's archive takes, where it has one with a limit."""
        ...

    def prepare_transport(self, options: dict[str, Any]) -> None:
        """Sets the transport options that the bus needs; InvalidInput where a given one contradicts it."""
        ...

    def install(self) -> None:
        """Prepares the Celery app, before its worker starts."""
        ...

    def declare(self) -> list[str]:
        """Declares queues and bindings; returns the bindings that it removed."""
        ...

    def arguments(self, queue: str) -> dict[str, Any]:
        """The arguments with which Celery declares a queue."""
        ...

    def forget_answer(self, topic: str) -> None:
        """Unbinds the call queue of a topic that this service no longer answers and no other does."""
        ...

    def connected(self) -> None:
        """The worker has a new connection to its broker."""
        ...

    def defer(self, queue: str, message: Any) -> bool:
        """Whether a message was settled without running its handler now."""
        ...

    def delivery(self, queue: str, message: Any, size: int) -> Delivery:
        """The delivery that a message is; Malformed where it cannot be read."""
        ...

    def is_over(self, delivery: Delivery) -> bool:
        """Whether an event has expired and the broker delivered it all the same."""
        ...

    def claim(self, handler: Handler, delivery: Delivery) -> Claim:
        """The record that lets a handler run a delivery."""
        ...

    def line(self, delivery: Delivery, event: JournalEvent, state: State | str, **more: Any) -> Line | None:
        """A line for the journal; None where the broker writes its own, or there is no journal."""
        ...

    def retry(self, message: Any, request: Any, delay: float, error: BaseException) -> None:
        """Settles a delivery as failed: the broker delivers the message again after a delay."""
        ...

    def bury(self, message: Any, request: Any, error: BaseException) -> None:
        """Settles a delivery as failed for good: the broker keeps the message among the dead."""
        ...

    def give_back(self, message: Any, errors: tuple[type[BaseException], ...]) -> None:
        """Returns a message that could not be settled; `errors` of a lost connection are logged."""
        ...

    def reply(self, delivery: Delivery, answer: Answer) -> None:
        """Sends the answer of a call to its caller."""
        ...

    def close(self) -> None: ...
