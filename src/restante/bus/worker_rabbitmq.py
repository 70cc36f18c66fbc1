"""The worker's side of RabbitMQ: counts attempts by a message's headers, retries by the ladder, and buries in the
service's archive.

A retry or a dead event is published and confirmed before the delivery is acked. On failure in between the event is
there twice, and runs once where the bus keeps records.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from restante.bus.amqp_messages import MOST_PRIORITY, amqp_message, from_headers, unreachable
from restante.bus.broker import Answer
from restante.bus.client_rabbitmq import REPLY_TO, ConnectionPool
from restante.bus.dedup import Claim, Turn
from restante.bus.delivery import Delivery, call_seconds, purpose_of
from restante.bus.directory import announce
from restante.bus.envelope import Envelope, Malformed
from restante.bus.options import LadderOptions
from restante.bus.registry import handler_infos
from restante.core.errors import QueueFull, RestanteError, Unavailable
from restante.core.message import JournalEvent, State
from restante.core.retry import RetryPolicy
from restante.core.topics import is_topic, matches
from restante.rabbitmq.ladder import CRASH_DELAY, Ladder
from restante.rabbitmq.topology import (
    Subscribed,
    Topology,
    TopologyOptions,
    archive_name,
    gate_topology,
    topology,
)

if TYPE_CHECKING:
    from restante.bus.app import Bus
    from restante.bus.handler import Handler
    from restante.core.journal import Line

log = logging.getLogger("restante")

#: Seconds until a dead event that a full archive refused is tried again.
FULL_AGAIN = 60.0
#: AMQP properties that a message keeps when it is published again.
KEPT_PROPERTIES = ("content_type", "content_encoding", "message_id", "type", "app_id", "timestamp", "priority")
#: Errors of past attempts that a message carries.
ERRORS_KEPT = 10


class RabbitWorker:
    """The worker's side of RabbitMQ."""

    broker: Literal["redis", "rabbitmq"] = "rabbitmq"
    always_acks_late = False

    def __init__(self, bus: Bus, store: str | None, options: Mapping[str, Any]) -> None:
        self._bus = bus
        self._given = options
        self.store_url = store

    @functools.cached_property
    def _options(self) -> TopologyOptions:
        return TopologyOptions(**self._given)

    @functools.cached_property
    def _pool(self) -> ConnectionPool:
        return ConnectionPool(self._bus.broker_url, options=self._options)

    @property
    def client_options(self) -> LadderOptions:
        """The options that decide where a delayed event waits."""
        names = LadderOptions.__optional_keys__
        return cast(LadderOptions, {name: value for name, value in self._given.items() if name in names})

    def prepare_transport(self, options: dict[str, Any]) -> None:
        options.setdefault("confirm_publish", True)

    def install(self) -> None:
        """Nothing to do: Celery's own transport is used."""

    def topology(self) -> Topology:
        """The exchanges, queues and bindings of the service."""
        bus = self._bus
        subscribed = [Subscribed(handler.name, handler.pattern or "") for handler in bus.subscriptions.values()]
        return topology(bus.service, subscribed, sorted(bus.answered), self._policies(), self._options)

    def _policies(self) -> list[RetryPolicy]:
        return [handler.retry_rule.policy for handler in self._bus.subscriptions.values()]

    @functools.cached_property
    def _ladder(self) -> Ladder:
        return self._options.ladder(self._policies())

    def _ladder_route(self, delay: float, queue: str) -> tuple[str, str]:
        reach = self._ladder.reach
        if delay > reach:
            log.warning("shortened delay=%g service=%s: the ladder reaches %g s", delay, self._bus.service, reach)
        return self._ladder.retry(min(delay, reach), queue)

    @property
    def archive_length(self) -> int | None:
        return self._options.archive_length if self._options.archive else None

    def declare(self) -> list[str]:
        if not self._bus.consumes_tasks:
            # A worker that consumed the queue would declare it.
            self._bus.amqp.queues.deselect(f"{self._bus.service}.tasks")
        self._pool.declare(self.topology())
        try:
            handlers = (*self._bus.subscriptions.values(), *self._bus.answered.values())
            announce(self._pool.url, self._bus.service, handler_infos(self._bus.service, handlers, self))
        except RestanteError as error:
            # Without it, pages of servers that have no store show less; no event depends on it.
            log.warning("not announced service=%s error=%s", self._bus.service, error)
        return []

    def arguments(self, queue: str) -> dict[str, Any]:
        return next((dict(declared.arguments) for declared in self.topology().queues if declared.name == queue), {})

    def delivery(self, queue: str, message: Any, size: int) -> Delivery:
        headers = from_headers(message.headers)
        attempts = attempts_of(message.headers, queue)
        properties = message.properties
        purpose = purpose_of(queue, self._bus.service)
        envelope = Envelope.read(
            headers, id=properties.get("message_id") or "", topic=properties.get("type") or "", attempts=attempts
        )
        redelivered = bool(message.delivery_info.get("redelivered"))
        if purpose == "event":
            again = _count(headers.get("restante_replays"))
            return Delivery(
                envelope,
                purpose,
                queue,
                suspect=redelivered,
                priority=_priority(message),
                size=size,
                replays=again,
                token=secrets.token_hex(8),
            )
        reply_to = str(properties.get("reply_to") or "")
        if not reply_to.startswith(f"{REPLY_TO}."):
            raise Malformed("the reply address of a call must be RabbitMQ's direct reply-to")
        called_at = envelope.time.timestamp() if envelope.time else time.time()
        deadline = called_at + call_seconds(headers)
        return Delivery(envelope, purpose, queue, reply_to, deadline, redelivered, _priority(message), size)

    def defer(self, queue: str, message: Any) -> bool:
        """Settles a message without running it, and returns True, in two cases.

        A redelivered message may have killed its process, which counts no attempt. If no shared record says whether it
        was begun, it is published to the ladder with one attempt more, so that even such a message ends in the archive.
        A rejection would do that too, but without a confirm: RabbitMQ may lose the message when it is killed.

        A message that came by a pattern which the handler no longer has is acknowledged and skipped: RabbitMQ keeps
        bindings until an operator removes them.
        """
        handler = self._bus.subscriptions.get(queue)
        if handler is None:
            return False
        topic = str(from_headers(message.headers).get("type") or "")
        if handler.pattern and is_topic(topic) and not matches(handler.pattern, topic):
            log.warning("skipped subscription=%s topic=%s: remove the binding of its former pattern", queue, topic)
            message.ack()
            return True
        if not message.delivery_info.get("redelivered") or self._bus.has_shared_records:
            return False
        try:
            attempts = attempts_of(message.headers, queue)
            exchange, key = self._ladder_route(CRASH_DELAY, queue)
            headers = {**without_x_headers(message.headers), "restante_attempts": attempts}
            self._publish(message, message.body, headers, exchange, key, str(message.properties.get("message_id")))
            message.ack()
        except (Malformed, RestanteError):
            message.reject()  # to the ladder too; if it is malformed, it is buried when it comes back
        return True

    def is_over(self, delivery: Delivery) -> bool:
        """By this machine's clock: RabbitMQ has none for messages on its ladder."""
        return delivery.envelope.is_over

    def claim(self, handler: Handler, delivery: Delivery) -> Claim:
        turn = Turn(handler.subscription, delivery.envelope.id, delivery.turn, delivery.token)
        return Claim(self._bus.records, turn)

    def line(self, delivery: Delivery, event: JournalEvent, state: State | str, **more: Any) -> Line | None:
        if self._bus.redis is None:
            return None
        return delivery.line(event, state, f"{platform.node() or 'host'}:{os.getpid()}", **more)

    def retry(self, message: Any, request: Any, delay: float, error: BaseException) -> None:
        original, body, delivery, _ = message.restante
        exchange, key = self._ladder_route(delay, delivery.queue)
        headers = {
            **without_x_headers(original),
            **error_headers(original, error),
            "restante_attempts": delivery.envelope.attempts,
        }
        self._publish(message, body, headers, exchange, key, delivery.envelope.id)
        _ack(message, request)
        name = getattr(error, "name", type(error).__name__)
        self._bus.note(delivery, JournalEvent.NACKED, State.RETRYING, delay=delay, error_class=name)

    def bury(self, message: Any, request: Any, error: BaseException) -> None:
        original, body, delivery, _ = getattr(message, "restante", (message.headers, message.body, None, None))
        queue = delivery.queue if delivery else getattr(message, "restante_queue", "")
        id = delivery.envelope.id if delivery else str(message.properties.get("message_id") or "unreadable")
        name = getattr(error, "name", type(error).__name__)
        attempts = delivery.envelope.attempts if delivery else attempts_of(original, queue)
        headers = {
            **without_x_headers(original),
            **error_headers(original, error),
            "restante_attempts": attempts,
            "restante_subscription": queue,
            "restante_archived_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        if not self._options.archive:
            log.error("dropped subscription=%s id=%s error=%s: the archive is off", queue, id, name)
        else:
            try:
                self._publish(message, body, headers, "", archive_name(self._bus.service), id)
            except QueueFull:
                log.error("archive full service=%s id=%s: replay or purge it; tried again later", self._bus.service, id)
                exchange, key = self._ladder_route(FULL_AGAIN, queue)
                again = {**without_x_headers(original), "restante_attempts": max(0, attempts - 1)}
                self._publish(message, body, again, exchange, key, id)
        _ack(message, request)
        if delivery is not None:
            self._bus.note(delivery, JournalEvent.BURIED, State.DEAD, error_class=name)

    def _publish(self, message: Any, body: Any, headers: dict[str, Any], exchange: str, key: str, id: str) -> None:
        """Publishes a message with new headers; one that could not be read keeps its content type."""
        kept = {name: message.properties[name] for name in KEPT_PROPERTIES if message.properties.get(name) is not None}
        kept |= {"content_type": message.content_type, "content_encoding": message.content_encoding}
        raw = body if isinstance(body, bytes) else str(body).encode()
        if not self._pool.publish(raw, headers, {**kept, "delivery_mode": 2}, exchange, key, id=id):
            raise Unavailable(
                f"{key or exchange} is gone from RabbitMQ: restart the worker, which declares it, or run "
                f"`restante rabbitmq declare --service {self._bus.service}`"
            )

    def forget_answer(self, topic: str) -> None:
        """Nothing to do: the bindings of a call stay with its queue."""

    def connected(self) -> None:
        from restante.bus.strays import forward_strays

        try:
            self._pool.declare(gate_topology())
            if sent := forward_strays(self._pool.url):
                log.warning("forwarded events=%d: they found no queue while RabbitMQ started", sent)
        except (RestanteError, *ConnectionPool.LOST) as error:
            # The events stay there, and every worker that connects tries again.
            log.warning("not forwarded queue=events.unrouted error=%s: %s", type(error).__name__, error)

    def close(self) -> None:
        pool = self.__dict__.pop("_pool", None)
        if pool is not None:
            pool.close()

    def give_back(self, message: Any, errors: tuple[type[BaseException], ...]) -> None:
        """By the ladder, which counts: put back into its queue, the message would come again at once and for ever."""
        message.reject_log_error(log, errors, requeue=False)

    def reply(self, delivery: Delivery, answer: Answer) -> None:
        try:
            with self._pool.take() as connection:
                properties = {"correlation_id": delivery.envelope.id, "delivery_mode": 1}
                connection.ask(amqp_message(answer.pack(), {}, properties), "", delivery.reply_to)
        except ConnectionPool.LOST as error:
            raise unreachable(self._pool.url, error) from None


def _ack(message: Any, request: Any) -> None:
    if request is not None:
        request.acknowledge()
    else:
        message.ack()


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1_000_000 else 0


def _priority(message: Any) -> int:
    return int((message.properties.get("priority") or 0) * 255 // MOST_PRIORITY)


def attempts_of(headers: Mapping[str, Any], queue: str) -> int:
    """Deliveries so far, this one included: those in the message's header, and rejections that the broker counted."""
    try:
        published = int(headers.get("restante_attempts") or 0)
        deaths = headers.get("x-death") or ()
        counted = sum(
            int(death.get("count", 1))
            for death in deaths
            if death.get("queue") == queue and death.get("reason") == "rejected"
        )
        quorum = int(headers.get("x-delivery-count") or 0)
    except (TypeError, ValueError, AttributeError):
        raise Malformed("the headers that count its deliveries are not numbers") from None
    return published + counted + quorum + 1


def without_x_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers without RabbitMQ's own: by its history of dead letters it drops messages that seem to cycle."""
    return {name: value for name, value in headers.items() if not name.startswith("x-")}


def error_headers(headers: Mapping[str, Any], error: BaseException) -> dict[str, Any]:
    """Headers with the errors of past attempts and this one, the newest last."""
    name, text = getattr(error, "name", type(error).__name__), str(error)
    before = headers.get("restante_errors")
    line = {"error_class": name, "error": text[-2000:], "at": datetime.now(UTC).isoformat(timespec="milliseconds")}
    return {
        "restante_errors": [*(before if isinstance(before, list) else ()), line][-ERRORS_KEPT:],
        "restante_error_class": name,
    }
