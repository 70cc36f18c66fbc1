"""The worker's side of Redis: declares queues and bindings, reads deliveries, and settles them by the core's verbs.

On failure a typed error of the core; a message that was not settled is delivered again when its lease ends.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Literal

from restante.bus.broker import REPLY_GRACE, Answer
from restante.bus.client_redis import bind
from restante.bus.dedup import WINDOW, Claim, Records, RedisRecords
from restante.bus.delivery import Delivery, call_seconds, purpose_of
from restante.bus.envelope import Envelope, Malformed
from restante.core.errors import InvalidInput
from restante.core.settings import QueueOptions, QueueSettings
from restante.rabbitmq.topology import CALLS, CALLS_ALL, EVENTS, call_queue, calls_queue

if TYPE_CHECKING:
    from restante.bus.app import Bus
    from restante.bus.handler import Handler
    from restante.bus.options import LadderOptions
    from restante.core.journal import Line
    from restante.core.message import JournalEvent, State
    from restante.core.queue import Client

log = logging.getLogger("restante")

_TOKEN = re.compile(r"[0-9a-f]{32}")


class RedisWorker:
    """The worker's side of Restante's own queues."""

    broker: Literal["redis", "rabbitmq"] = "redis"
    #: The message stays leased while the handler runs: once acked, nothing could be retried. A record says instead that
    #: the handler has begun.
    always_acks_late = True
    #: The dead stay in their queue.
    archive_length = None

    def __init__(self, bus: Bus, url: str, window: float, prefix: str) -> None:
        self._bus = bus
        self._window = window
        self._prefix = prefix
        self.store_url = url
        self.client_options: LadderOptions = {}

    @property
    def _redis(self) -> Client:
        assert self._bus.redis is not None
        return self._bus.redis

    @functools.cached_property
    def _begun(self) -> Records:
        """Records of what handlers with early acks have begun."""
        # Also without deduplication: an early ack promises that an event does not run again.
        return RedisRecords(self._redis.connection, self._window or WINDOW, self._prefix)

    def prepare_transport(self, options: dict[str, Any]) -> None:
        if options.get("global_keyprefix", self._prefix) != self._prefix:
            raise InvalidInput("the prefix of keys is set by Bus(prefix=…), not by global_keyprefix")
        if self._prefix:
            options["global_keyprefix"] = self._prefix

    def install(self) -> None:
        from restante.celery import install

        install(self._bus)

    def delivery(self, queue: str, message: Any, size: int) -> Delivery:
        taken, headers = message.leased, message.headers
        if taken is None:
            raise Malformed("a broadcast is not an event")
        envelope = Envelope.read(headers, id=taken.id, topic=taken.kind or queue, attempts=taken.attempts)
        purpose = purpose_of(queue, self._bus.service)
        if purpose == "event":
            # Always suspect: the server counts deliveries, so a record of the same attempt means a delivery that ended
            # without a verdict.
            return Delivery(
                envelope, purpose, queue, suspect=True, priority=taken.priority, size=size, expired=taken.suspect
            )
        token = str(headers.get("reply_to", ""))
        if not _TOKEN.fullmatch(token):
            raise Malformed("the reply address of a call must be a token of its caller")
        # By the server's clock until it was received, by this machine's since.
        left = taken.stored.sent_ms / 1000 + call_seconds(headers) - taken.received_ms / 1000
        return Delivery(envelope, purpose, queue, token, time.time() + left, priority=taken.priority, size=size)

    def defer(self, queue: str, message: Any) -> bool:
        """Never: the server itself counts every delivery."""
        return False

    def is_over(self, delivery: Delivery) -> bool:
        """Never: the server itself expires events, by its own clock."""
        return False

    def claim(self, handler: Handler, delivery: Delivery) -> Claim:
        """The lease's holder seizes the record, unless a handler with early acks may have begun the event before."""
        name, id = handler.subscription, delivery.envelope.id
        if handler.early:
            return Claim(self._begun, name, id, 1, seize=not delivery.expired)
        return Claim(self._bus.records, name, id, delivery.turn, seize=True)

    def line(self, delivery: Delivery, event: JournalEvent, state: State | str, **more: Any) -> Line | None:
        """None: the server's scripts write the journal."""
        return None

    def retry(self, message: Any, request: Any, delay: float, error: BaseException) -> None:
        message.channel.retry(message.delivery_tag, delay, error)

    def bury(self, message: Any, request: Any, error: BaseException) -> None:
        message.channel.bury(message.delivery_tag, error)

    def give_back(self, message: Any, errors: tuple[type[BaseException], ...]) -> None:
        message.reject_log_error(log, errors, requeue=True)

    def reply(self, delivery: Delivery, answer: Answer) -> None:
        from restante.core.claims import reply

        seconds = max(0.0, delivery.deadline - time.time()) + REPLY_GRACE
        self._redis.connection.run_all(reply(delivery.reply_to, answer.pack(), seconds))

    def arguments(self, queue: str) -> dict[str, Any]:
        handler = self._bus.subscriptions.get(queue)
        return {"x-delivery-limit": handler.retry_rule.max_attempts} if handler else {}

    def forget_answer(self, topic: str) -> None:
        bind(self._redis, self._prefix, CALLS, "direct", [], (call_queue(topic),))

    def connected(self) -> None:
        """Nothing to do: a restarted server has everything at once."""

    def close(self) -> None:
        """Nothing to close: the bus closes its Redis client."""

    def declare(self) -> list[str]:
        bus = self._bus
        subscribed = [(name, handler.pattern or "") for name, handler in bus.subscriptions.items()]
        removed = bind(self._redis, self._prefix, EVENTS, "topic", subscribed, bus.subscriptions)
        topics = sorted(bus.answered)
        bind(self._redis, self._prefix, CALLS, "direct", [(call_queue(topic), topic) for topic in topics], ())
        every = calls_queue(bus.service)
        bind(self._redis, self._prefix, CALLS_ALL, "direct", [(every, topic) for topic in topics], (every,))
        for name, handler in bus.subscriptions.items():
            wanted: QueueOptions = {"max_attempts": handler.retry_rule.max_attempts, "retry": handler.retry_rule.policy}
            queue = self._redis.queue(self._prefix + name)
            queue.ensure_open()
            settings: QueueSettings = queue.settings
            if any(getattr(settings, key) != value for key, value in wanted.items()):
                queue.configure(**wanted)
        return removed
