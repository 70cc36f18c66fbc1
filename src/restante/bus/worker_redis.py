"""The broker's side of a worker on Redis: what a delivery says of itself, and verdicts in the core's own words."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from restante.bus.broker import CALLS, CALLS_ALL, EVENTS, REPLY_GRACE, Answer
from restante.bus.delivery import Delivery
from restante.bus.envelope import Envelope, Malformed
from restante.core.settings import QueueOptions, QueueSettings

if TYPE_CHECKING:
    from restante.bus.app import Bus
    from restante.core.queue import Client

_TOKEN = re.compile(r"[0-9a-f]{32}")


class WorkerBackend(Protocol):
    """What a worker asks of its broker beyond what Celery asks."""

    @property
    def archive_length(self) -> int | None:
        """Messages the service's archive takes, where it has one with a limit."""
        ...

    def delivery(self, queue: str, message: Any, size: int) -> Delivery: ...

    def defer(self, queue: str, message: Any) -> bool: ...

    def retry(self, message: Any, request: Any, delay: float, error: BaseException) -> None: ...

    def bury(self, message: Any, request: Any, error: BaseException) -> None: ...

    def reply(self, delivery: Delivery, answer: Answer) -> None: ...

    def arguments(self, queue: str) -> dict[str, Any]: ...

    def declare(self) -> list[str]: ...

    def connected(self) -> None:
        """The worker has a new connection to its broker."""
        ...

    def close(self) -> None: ...


def purpose_of(queue: str, service: str) -> Literal["event", "call", "call_all"]:
    """What a queue is for."""
    if queue.startswith("call:"):
        return "call"
    return "call_all" if queue == f"{service}.calls" else "event"


def call_seconds(headers: Mapping[str, Any]) -> float:
    """How long the caller waits."""
    try:
        found = float(headers["deadline_seconds"])
    except (KeyError, TypeError, ValueError):
        raise Malformed("a call says by deadline_seconds how long its caller waits") from None
    if not 0 < found < 1e9:
        raise Malformed(f"deadline_seconds is {found}")
    return found


class RedisWorker:
    """Restante's own queues."""

    #: The dead stay in their queue.
    archive_length = None

    def __init__(self, bus: Bus, redis: Client, prefix: str) -> None:
        self._bus = bus
        self._redis = redis
        self._prefix = prefix

    def delivery(self, queue: str, message: Any, size: int) -> Delivery:
        taken, headers = message.taken, message.headers
        if taken is None:
            raise Malformed("a broadcast is no event")
        envelope = Envelope.read(headers, id=taken.id, topic=taken.kind or queue, attempts=taken.attempts)
        purpose = purpose_of(queue, self._bus.service)
        if purpose == "event":
            # The server counts deliveries, so an equal count means that one ended without a verdict and uncounted.
            return Delivery(
                envelope, purpose, queue, suspect=True, priority=taken.priority, size=size, expired=taken.suspect
            )
        token = str(headers.get("reply_to", ""))
        if not _TOKEN.fullmatch(token):
            raise Malformed("a call's reply address is a token of its caller's, and nothing else")
        # By the server's clock until it was received, by ours since.
        left = taken.stored.sent_ms / 1000 + call_seconds(headers) - taken.received_ms / 1000
        return Delivery(envelope, purpose, queue, token, time.time() + left, priority=taken.priority, size=size)

    def defer(self, queue: str, message: Any) -> bool:
        """Never: the server counts every delivery by itself."""
        return False

    def retry(self, message: Any, request: Any, delay: float, error: BaseException) -> None:
        message.channel.retry(message.delivery_tag, delay, error)

    def bury(self, message: Any, request: Any, error: BaseException) -> None:
        message.channel.bury(message.delivery_tag, error)

    def reply(self, delivery: Delivery, answer: Answer) -> None:
        from restante.core.claims import reply

        seconds = max(0.0, delivery.deadline - time.time()) + REPLY_GRACE
        self._redis.connection.run_all(reply(delivery.reply_to, answer.pack(), seconds))

    def arguments(self, queue: str) -> dict[str, Any]:
        handler = self._bus.subscriptions.get(queue)
        return {"x-delivery-limit": handler.retry_rule.max_attempts} if handler else {}

    def connected(self) -> None:
        """Nothing to do: a server that starts again has everything at once."""

    def close(self) -> None:
        """Nothing of its own to close."""

    def declare(self) -> list[str]:
        from restante.bus.client_redis import bind

        bus = self._bus
        subscribed = [(name, one.pattern or "") for name, one in bus.subscriptions.items()]
        removed = bind(self._redis, self._prefix, EVENTS, "topic", subscribed, bus.subscriptions)
        topics = sorted(bus.answered)
        bind(self._redis, self._prefix, CALLS, "direct", [(f"call:{topic}", topic) for topic in topics], ())
        every = f"{bus.service}.calls"
        bind(self._redis, self._prefix, CALLS_ALL, "direct", [(every, topic) for topic in topics], (every,))
        for name, handler in bus.subscriptions.items():
            wanted: QueueOptions = {"max_attempts": handler.retry_rule.max_attempts, "retry": handler.retry_rule.policy}
            queue = self._redis.queue(self._prefix + name)
            queue.ensure_open()
            settings: QueueSettings = queue.settings
            if any(getattr(settings, key) != value for key, value in wanted.items()):
                queue.configure(**wanted)
        return removed
