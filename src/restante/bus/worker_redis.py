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
from restante.bus.dedup import WINDOW, Claim, Records, RedisRecords, Turn
from restante.bus.delivery import Delivery, call_seconds, purpose_of
from restante.bus.envelope import Envelope, Malformed
from restante.core.errors import InvalidInput, TopologyMismatch
from restante.core.keys import exchange_key
from restante.core.queue import run_flow
from restante.core.router import Router
from restante.core.routes import QueueInfo
from restante.core.settings import QueueOptions, QueueSettings
from restante.rabbitmq.topology import CALLS, CALLS_ALL, EVENTS, call_queue, calls_queue

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
                envelope,
                purpose,
                queue,
                suspect=True,
                priority=taken.priority,
                size=size,
                expired=taken.suspect,
                token=taken.lease_token,
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
            return Claim(self._begun, Turn(name, id, 1, delivery.token, seize=not delivery.expired))
        return Claim(self._bus.records, Turn(name, id, delivery.turn, delivery.token, seize=True))

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
        self._bind(CALLS, "direct", [], (call_queue(topic),))

    def connected(self) -> None:
        """Nothing to do: a restarted server has everything at once."""

    def close(self) -> None:
        """Nothing to close: the bus closes its Redis client."""

    def declare(self) -> list[str]:
        bus = self._bus
        subscribed = [(name, handler.pattern or "") for name, handler in bus.subscriptions.items()]
        removed = self._bind(EVENTS, "topic", subscribed, bus.subscriptions)
        topics = sorted(bus.answered)
        self._bind(CALLS, "direct", [(call_queue(topic), topic) for topic in topics], ())
        every = calls_queue(bus.service)
        self._bind(CALLS_ALL, "direct", [(every, topic) for topic in topics], (every,))
        for name, handler in bus.subscriptions.items():
            wanted: QueueOptions = {"max_attempts": handler.retry_rule.max_attempts, "retry": handler.retry_rule.policy}
            queue = self._redis.queue(self._prefix + name)
            queue.ensure_open()
            settings: QueueSettings = queue.settings
            if any(getattr(settings, key) != value for key, value in wanted.items()):
                queue.configure(**wanted)
        return removed

    def _bind(self, exchange: str, type: str, bindings: Sequence[tuple[str, str]], owned: Collection[str]) -> list[str]:
        """Adds the bindings (queue, pattern) that are missing; removes and returns others of the owned queues."""
        router, connection = Router(self._redis, self._prefix, author="bus"), self._redis.connection
        table = run_flow(connection, router.load(exchange))
        if not table.declared:
            run_flow(connection, router.declare(exchange, type))
        elif table.type != type:
            key = exchange_key(self._prefix + exchange, "routes").decode()
            raise TopologyMismatch(
                f"the exchange {exchange} is of type {table.type} on {connection.endpoint.shown}, not {type}: another "
                f"program has declared it; delete {key} if no program needs it, or give the bus a prefix="
            )
        existing = {(info.name, pattern) for pattern, _, info in table.bindings}
        missing = sorted(set(bindings) - existing)
        obsolete = sorted(pair for pair in existing - set(bindings) if pair[0] in owned)
        # New ones first: an event that an old and a new pattern match finds the queue at any moment.
        run_flow(connection, router.bind(exchange, [(QueueInfo(queue), pattern) for queue, pattern in missing]))
        run_flow(connection, router.unbind(exchange, obsolete))
        return [f"{queue} {pattern}" for queue, pattern in obsolete]
