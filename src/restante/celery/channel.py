"""A Kombu channel over the core's queues: it translates Kombu's calls, and holds what was received and not settled.

On failure a typed error reaches Kombu, whose retries are safe: a message keeps its id over them. A channel that closes
releases the messages it holds, without counting the attempt, except those that tasks are running.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.transport import base
from kombu.utils.uuid import uuid

from restante.celery import messages
from restante.celery.declarations import Declarations
from restante.celery.publisher import Publisher
from restante.celery.source import Source
from restante.celery.transient_queues import drop_queue
from restante.celery.unroutable import handle_unroutable
from restante.core.errors import RestanteError
from restante.core.message import new_id
from restante.core.operations import MAX_BATCH
from restante.core.queue import LeasedMessage
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.transport import Transport

log = logging.getLogger("restante")

#: Messages received by one call if no prefetch count limits them.
BATCH = 100


class Channel(base.StdChannel):
    """A Kombu channel."""

    Message = messages.Message
    _ids = itertools.count(1)

    def __init__(self, transport: Transport) -> None:
        self.connection: Any = transport
        self.broker = transport.broker
        self.options = transport.options
        self.publisher = Publisher(self.broker)
        self.declarations = Declarations(self.broker)
        self.channel_id = next(self._ids)
        self.closed = False
        self.prefetch = 0
        self.no_ack_consumers: set[str] = set()
        self.sources: dict[str, Source] = {}
        #: Consumer tag → queue.
        self._tags: dict[str, str] = {}
        #: Received, and not yet handed to a consumer.
        self.waiting: deque[tuple[Source, messages.Message]] = deque()
        #: Handed to a consumer and not yet settled, by delivery tag.
        self.held: dict[str, messages.Message] = {}
        self._first_source = 0
        #: Callbacks by event, where a Kombu producer puts its `on_return`.
        self.events: dict[str, set[Callable[..., Any]]] = defaultdict(set)

    # -- publishing ----------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Any = None,
        properties: Any = None,
    ) -> dict[str, Any]:
        properties = {} if properties is None else properties
        properties.setdefault("delivery_info", {})
        properties.setdefault("priority", priority or 0)
        # Kombu keeps the id over its retries, so a message that was stored although its answer was lost is stored once.
        if "restante_id" not in properties:
            properties["restante_id"], properties["restante_new"] = new_id(), True
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, mandatory: bool = False, **kwargs: Any
    ) -> None:
        exchange, routing_key = exchange or "", routing_key or ""
        if not self.publisher.publish(message, exchange, routing_key):
            handle_unroutable(self, message, exchange, routing_key, mandatory=mandatory)

    # -- declaring -----------------------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
        **_: Any,
    ) -> None:
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        if passive:
            self.declarations.check_exchange(exchange)
        else:
            self.broker.routing.declare(exchange, type, durable)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False, **_: Any) -> None:
        if not (if_unused and self.broker.routing.table(exchange).bindings):
            self.broker.routing.remove_exchange(exchange)

    def exchange_bind(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("exchanges cannot be bound to exchanges: bind the queue to both")

    exchange_unbind = exchange_bind

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> dict[str, Any]:
        return dict(base.to_rabbitmq_queue_arguments(arguments or {}, **options))

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **_: Any,
    ) -> queue_declare_ok_t:
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            self.declarations.check_queue(queue)
        else:
            self.declarations.declare_queue(queue, arguments, transient=auto_delete or exclusive)
        return queue_declare_ok_t(queue, self.declarations.size(queue), 0)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        self.declarations.bind(queue, exchange or "amq.direct", routing_key or "")
        self._subscribe_again(queue)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        self.broker.routing.unbind(queue, exchange or "amq.direct", routing_key or "")
        self._subscribe_again(queue)

    def _subscribe_again(self, queue: str) -> None:
        source = self.sources.get(queue)
        if source is not None:
            self._subscribe(source)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> int:
        count = self.declarations.unsettled(queue)
        if if_empty and count:
            return 0
        if if_unused and any(queue in channel.sources for channel in self.connection.channels):
            return 0
        drop_queue(self.broker, queue)
        return count

    def after_reply_message_received(self, queue: str) -> None:
        self.queue_delete(queue)

    def queue_purge(self, queue: str, **_: Any) -> int:
        return self.declarations.purge(queue)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        return self.declarations.bindings()

    get_bindings = list_bindings

    # -- consuming -----------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **_: Any
    ) -> str:
        source = self.sources.get(queue)
        if source is None:
            source = self.sources[queue] = Source(self.broker, self._info(queue))
            self._subscribe(source)
            self.broker.transient_queues.add(source)
        source.consumers.append((consumer_tag, callback, no_ack))
        self._tags[consumer_tag] = queue
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)
        self.connection.wake()
        return consumer_tag

    def _info(self, queue: str) -> QueueInfo:
        return self.broker.routing.queue(queue) or QueueInfo(queue)

    def _subscribe(self, source: Source) -> None:
        if source.info.transient:
            source.broadcasts.subscribe()
            self.connection.wake()

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        self._cancel(consumer_tag, drop=True)

    def _cancel(self, consumer_tag: str, *, drop: bool) -> None:
        queue = self._tags.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)
        source = self.sources.get(queue) if queue is not None else None
        if source is None or queue is None:
            return
        source.consumers = deque(consumer for consumer in source.consumers if consumer[0] != consumer_tag)
        if not source.consumers:
            del self.sources[queue]
            try:
                self.broker.transient_queues.remove(source)
                if source.broadcasts.unsaved:
                    source.broadcasts.save()
            except RestanteError as error:
                # Broadcasts read twice are better than messages that are not released.
                log.warning("positions not saved queue=%s error=%s", queue, error)
            unread = [message for origin, message in self.waiting if origin is source]
            self.waiting = deque(pair for pair in self.waiting if pair[0] is not source)
            self.broker.release([message.leased for message in unread if message.leased is not None])
            if drop and source.info.transient and "x-expires" not in source.info.arguments:
                drop_queue(self.broker, queue)
        self.connection.wake()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False, **_: Any) -> None:
        self.prefetch = prefetch_count or 0
        self.connection.wake()

    def flow(self, active: bool = True) -> None:
        raise NotImplementedError("flow is not supported: a consumer that does not drain events receives nothing")

    @property
    def room(self) -> int:
        """How many more messages the channel may receive now."""
        if not self.prefetch:
            return max(0, BATCH - len(self.waiting))
        return max(0, min(MAX_BATCH, self.prefetch - len(self.held) - len(self.waiting)))

    def receive(self, now: float) -> None:
        """Receives from queues that may have messages, as many as there is room for; pending acks travel along."""
        if not self.sources:
            return
        for source in self._ordered_sources():
            if source.due_at is not None and source.due_at <= now:
                source.maybe_ready, source.due_at = True, None
            if not source.maybe_ready:
                continue
            room = self.room
            if room <= 0:
                return
            received = self.broker.receive(source.queue, room, self.options.visibility_timeout)
            source.maybe_ready = len(received.messages) >= room
            due, server_now = received.due, received.now
            source.due_at = None if due is None else time.monotonic() + max(0.0, (due - server_now) / 1000)
            for leased in received.messages:
                self._accept(source, leased, server_now)

    def _ordered_sources(self) -> list[Source]:
        sources = list(self.sources.values())
        if len(sources) > 1:
            if self.options.queue_order_strategy == "sorted":
                sources.sort(key=lambda source: source.name)
            elif self.options.queue_order_strategy == "round_robin":
                self._first_source = (self._first_source + 1) % len(sources)
                sources = sources[self._first_source :] + sources[: self._first_source]
        return sources

    def _accept(self, source: Source, leased: LeasedMessage, now: int) -> None:
        """Puts a received message in line, unless it has expired or was delivered too often."""
        try:
            parts = messages.unpack(leased, source.name)
        except Exception as error:  # a foreign message may contain anything, and must not stop the worker
            log.error("buried queue=%s id=%s error=%s", source.name, leased.id, type(error).__name__)
            self.broker.holder.bury(leased, error=error)
            return
        message = self.Message(self, leased, f"{source.name}:{leased.lease_token}", parts)
        arguments = source.info.arguments
        if "x-dead-letter-exchange" in arguments:
            limit = arguments.get("x-delivery-limit", self.options.delivery_limit)
            waited = float(parts["waited"])
            expires = self.publisher.expires(source.info, message.properties, waited)
            if leased.attempts > limit:
                self.publisher.dead_letter(source.info, message, "delivery_limit")
                return
            expires_at = None if expires is None else leased.stored.sent_ms + (waited + expires) * 1000
            if expires_at is not None and expires_at <= now and not leased.replays:
                self.publisher.dead_letter(source.info, message, "expired")
                return
        self.waiting.append((source, message))

    def receive_broadcasts(self, stream: bytes, entries: list[Any]) -> None:
        """Puts entries of a stream in line for every queue that reads it."""
        now = time.monotonic()
        for source in list(self.sources.values()):
            if stream in source.broadcasts.positions:
                self._accept_broadcasts(source, source.broadcasts.read(stream, entries))
                source.broadcasts.save_when_due(now)

    def _accept_broadcasts(self, source: Source, broadcasts: list[tuple[str, dict[str, Any]]]) -> None:
        for position, parts in broadcasts:
            self.waiting.append((source, self.Message(self, None, f"{source.name}:{position}", parts)))

    def save_positions(self, now: float) -> None:
        """Stores how far broadcasts were read, if that is due."""
        for source in self.sources.values():
            source.broadcasts.save_when_due(now)

    def deliver(self) -> bool:
        """Hands one message to a consumer; returns False if none is in line."""
        while self.waiting:
            source, message = self.waiting.popleft()
            if not source.consumers:
                if message.leased is not None:
                    self.broker.release((message.leased,))
                continue
            tag, callback, no_ack = source.consumers[0]
            source.consumers.rotate(-1)
            message.delivery_info["consumer_tag"] = tag
            if no_ack:
                if message.leased is not None:
                    self.broker.holder.queue_ack(message.leased)
            else:
                self.held[str(message.delivery_tag)] = message
            callback(message)
            return True
        return False

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> messages.Message | None:
        info = self._info(queue)
        source = self.sources.get(queue) or Source(self.broker, info)
        if info.transient:
            self.broker.transient_queues.renew(info)
            if not source.broadcasts.positions:
                self._subscribe(source)
        in_line, self.waiting = self.waiting, deque()
        try:
            # An expired message goes to the dead-letter exchange, and the next one is received.
            while not self.waiting:
                received = self.broker.receive(source.queue, 1, self.options.visibility_timeout)
                if not received.messages:
                    break
                self._accept(source, received.messages[0], received.now)
            if not self.waiting:
                self._accept_broadcasts(source, source.broadcasts.read_one())
            if not self.waiting:
                return None
            message = self.waiting.popleft()[1]
        finally:
            self.waiting = in_line
        if no_ack:
            if message.leased is not None:
                self.broker.holder.queue_ack(message.leased)
                self.broker.flush_acks()
        else:
            self.held[str(message.delivery_tag)] = message
        return message

    def message_to_python(self, message: Any) -> Any:
        return message

    # -- verdicts ------------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False, **_: Any) -> None:
        tags = self._tags_up_to(delivery_tag) if multiple else [delivery_tag]
        for tag in tags:
            message = self.held.pop(tag, None)
            if message is None or message.leased is None:
                continue
            if message.unreadable is not None:
                self.broker.holder.bury(message.leased, error=message.unreadable)
            else:
                self.broker.holder.queue_ack(message.leased)
        self._after_verdict()

    def basic_reject(self, delivery_tag: str, requeue: bool = False, **_: Any) -> None:
        message = self.held.pop(delivery_tag, None)
        if message is None:
            return
        info = self._info(delivery_tag.rpartition(":")[0])
        if message.leased is None:
            if requeue:
                origin = message.delivery_info
                self.publisher.send(info, message.as_published(), origin["exchange"], origin["routing_key"])
        elif requeue:
            self.broker.holder.nack(message.leased, delay=0, error=message.failure or "rejected with requeue")
        elif "x-dead-letter-exchange" in info.arguments:
            self.publisher.dead_letter(info, message, "rejected")
        else:
            error = message.unreadable or message.failure or sys.exc_info()[1] or "rejected"
            self.broker.holder.bury(message.leased, error=error)
        self._after_verdict()

    def retry(self, delivery_tag: str, delay: float, error: BaseException) -> None:
        """Nacks a message with a delay and an error: it is retried, or dead after its last attempt.

        Kombu has no method for this.
        """
        message = self.held.pop(delivery_tag, None)
        if message is not None and message.leased is not None:
            self.broker.holder.nack(message.leased, delay=delay, error=error)
        self._after_verdict()

    def bury(self, delivery_tag: str, error: BaseException) -> None:
        """Makes a message dead at once, with its error."""
        message = self.held.pop(delivery_tag, None)
        if message is not None and message.leased is not None:
            self.broker.holder.bury(message.leased, error=error)
        self._after_verdict()

    def basic_nack(self, delivery_tag: str, multiple: bool = False, requeue: bool = True, **_: Any) -> None:
        for tag in self._tags_up_to(delivery_tag) if multiple else [delivery_tag]:
            self.basic_reject(tag, requeue)

    def basic_recover(self, requeue: bool = False, **_: Any) -> None:
        """Releases every message that the channel holds."""
        held, self.held = list(self.held.values()), {}
        self.broker.release([message.leased for message in held if message.leased is not None])
        for source in self.sources.values():
            source.maybe_ready = True
        self._after_verdict()

    def _tags_up_to(self, delivery_tag: str) -> list[str]:
        tags = list(self.held)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self.held else []

    def _after_verdict(self) -> None:
        """Wakes the loop that flushes pending acks; without a loop it flushes them itself."""
        transport = self.connection
        if transport is None or not transport.loop_running:
            self.broker.flush_acks()
        if transport is not None:
            transport.wake()

    # -- closing -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for tag in list(self._tags):
            self._cancel(tag, drop=False)
        running = _running_messages()
        unsettled = [*self.held.values(), *(message for _, message in self.waiting)]
        self.waiting.clear()
        released = [message for message in unsettled if message.leased is not None and id(message) not in running]
        # Running tasks keep their leases: they ack later through this channel, and their acks are valid.
        self.held = {tag: message for tag, message in self.held.items() if id(message) in running}
        self.broker.release([message.leased for message in released])
        try:
            self.broker.flush_acks()
        except RestanteError as error:
            log.warning("acks delayed error=%s", error)
        transport, self.connection = self.connection, None
        if transport is not None:
            transport.close_channel(self)


def _running_messages() -> set[int]:
    """The ids of the message objects whose tasks a Celery worker in this process is running."""
    state = sys.modules.get("celery.worker.state")
    if state is None:
        return set()
    return {id(request._message) for request in list(state.active_requests) if hasattr(request, "_message")}
