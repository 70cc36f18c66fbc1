"""A Kombu channel over the core's queues: publishing, declaring, consuming, and verdicts.

On failure a typed error reaches Kombu, whose retries are safe: a message keeps its id over them. What a channel holds
when it closes goes back to its place uncounted, unless a task is at work on it.
"""

from __future__ import annotations

import base64
import itertools
import logging
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from kombu.transport import base

from restante.celery import messages
from restante.celery.declarations import Declarations
from restante.celery.transient_queues import drop_queue
from restante.celery.unroutable import expendable, no_route, not_found
from restante.core import operations as ops
from restante.core.admin import Admin
from restante.core.errors import MessageLeased, NotFound, RestanteError
from restante.core.keys import exchange_key
from restante.core.message import new_id
from restante.core.operations import MAX_BATCH
from restante.core.queue import LeasedMessage
from restante.core.routes import QueueInfo
from restante.core.topics import matches

if TYPE_CHECKING:
    from restante.celery.transport import Transport

log = logging.getLogger("restante")

#: Messages taken by one call where no prefetch bounds them.
BATCH = 100
#: Seconds between two notes of how far a broadcast was heard.
KEEP_EVERY = 20.0


class Source:
    """A queue that a channel consumes from: its own messages, and the broadcasts it has subscribed to."""

    __slots__ = (
        "bindings", "due_at", "info", "kept_at", "marker", "maybe", "name", "places", "queue", "taps", "topics",
        "unkept",
    )  # fmt: skip

    def __init__(self, channel: Channel, name: str, info: QueueInfo) -> None:
        self.name = name
        self.info = info
        self.queue = channel.broker.queue(name)
        self.marker = self.queue.ref.keys["marker"]
        #: Whether something may be there: before the first look, after a wake-up, while there was more. A transient
        #: queue mostly has broadcasts alone; what else is there has set its marker.
        self.maybe = not info.transient
        #: When something falls due, by time.monotonic().
        self.due_at: float | None = None
        #: Consumer tag, callback and whether it acks by itself; in turns where there are several.
        self.taps: deque[tuple[str, Callable[[Any], Any], bool]] = deque()
        #: Exchange and pattern of every binding, known where the queue is transient.
        self.bindings: list[tuple[str, str]] = []
        #: Broadcast stream → the last entry this queue has had.
        self.places: dict[bytes, str] = {}
        self.topics: dict[bytes, tuple[str, list[str], str]] = {}
        #: When the places were last noted on the server, and whether they have moved since.
        self.kept_at, self.unkept = 0.0, False


class Channel(Declarations):
    """A Kombu channel."""

    Message = messages.Message
    _ids = itertools.count(1)

    def __init__(self, transport: Transport) -> None:
        self.connection: Any = transport
        self.broker = transport.broker
        self.options = transport.options
        self.channel_id = next(self._ids)
        self.closed = False
        self.prefetch = 0
        self.no_ack_consumers: set[str] = set()
        self.sources: dict[str, Source] = {}
        self._tags: dict[str, str] = {}
        #: Taken and not yet handed out.
        self.waiting: deque[tuple[Source, messages.Message]] = deque()
        #: Handed out and not yet settled, by delivery tag.
        self.held: dict[str, messages.Message] = {}
        self._turn = 0
        #: Callbacks by event, where a Kombu producer puts its `on_return`.
        self.events: dict[str, set[Callable[..., Any]]] = defaultdict(set)

    # -- publishing ----------------------------------------------------------------------------------------------

    def prepare_message(
        self, body: Any, priority: int | None = None, content_type: str | None = None,
        content_encoding: str | None = None, headers: Any = None, properties: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        properties = {} if properties is None else properties
        properties.setdefault("delivery_info", {})
        properties.setdefault("priority", priority or 0)
        # Kept by Kombu over its retries, so that a message stored by a try whose answer was lost is not stored twice.
        if "restante_id" not in properties:
            properties["restante_id"], properties["restante_new"] = new_id(), True
        return {
            "body": body, "content-encoding": content_encoding, "content-type": content_type,
            "headers": headers or {}, "properties": properties,
        }  # fmt: skip

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, mandatory: bool = False, **kwargs: Any
    ) -> None:
        exchange, routing_key = exchange or "", routing_key or ""
        if not self._publish(message, exchange, routing_key):
            self._no_route(message, exchange, routing_key, mandatory)

    def _publish(self, message: dict[str, Any], exchange: str, routing_key: str) -> bool:
        """Sends a message where it is bound for; False where that is nowhere."""
        sent: str | None = None
        known, question = self.broker.routing.guess(exchange)
        if known is not None:
            guessed = known.match(routing_key)
            if len(guessed) == 1 and not (guessed[0].transient and known.broadcasts):
                # One queue, as for most: the message goes there at once, and the question along with it.
                sent = guessed[0].name
                if (self._send(guessed[0], message, exchange, routing_key, question=question) or b"") == known.version:
                    return True
        table = self.broker.routing.load(exchange) if sent else self.broker.routing.table(exchange)
        chosen = table.match(routing_key)
        if sent is not None:
            if all(info.name != sent for info in chosen):
                self._take_back(sent, message)
            elif len(chosen) == 1:
                return True
            chosen = [info for info in chosen if info.name != sent]
        if not exchange and not chosen:
            chosen = [QueueInfo(routing_key)]
        copies = [info for info in chosen if not (info.transient and table.broadcasts)]
        if len(copies) < len(chosen):
            self._broadcast(message, exchange, routing_key)
        for info in copies:
            self._send(info, message, exchange, routing_key)
        return bool(chosen)

    def _take_back(self, queue: str, message: dict[str, Any]) -> None:
        """The queue had been unbound before the message was sent there: unless it was received, it goes again."""
        try:
            Admin(self.broker.client, audited=False).delete(
                self.broker.full_name(queue), [message["properties"]["restante_id"]], detail="no longer bound"
            )
        except (MessageLeased, NotFound, KeyError):
            pass

    def _send(
        self, info: QueueInfo, message: dict[str, Any], exchange: str, routing_key: str, id: str | None = None,
        question: bytes = b"",
    ) -> Any:  # fmt: skip
        headers, properties = message["headers"], message["properties"]
        payload, content_type = messages.payload_of(
            message["body"], message.get("content-type"), message.get("content-encoding")
        )
        delay = 0.0 if message.get("due") else messages.delay_of(headers)
        lettered = "x-dead-letter-exchange" in info.arguments
        queue = self.broker.queue(info.name)
        if not queue.ref.opened:
            queue.ensure_open()
        call = ops.send(
            queue.ref,
            payload,
            id=id or properties.get("restante_id") or new_id(),
            kind=messages.kind_of(headers),
            priority=_priority(properties.get("priority"), info.arguments.get("x-max-priority", 255)),
            headers=messages.headers_of(message, info.name, exchange, routing_key, delay if lettered else 0.0),
            content_type=content_type,
            delay=delay,
            expires=None if lettered else self._expires(info, properties, delay),
        )
        call.question = question
        if id is None and properties.pop("restante_new", None):
            ops.first_try(queue.ref, call)
        self.broker.client.connection.run(call)
        return call.answer

    def _expires(self, info: QueueInfo, properties: dict[str, Any], delay: float) -> float | None:
        """Seconds from the due time after which a waiting message is removed, by the shortest limit there is.

        A time to live of the queue or the transport counts from when the message is due, as RabbitMQ counts from when
        a delayed message reaches its queue. The message's own limit counts from the publish: Celery makes it of
        `expires`, an instant, and a plain message has no other beginning.
        """
        own = properties.get("expiration")
        limits = (
            None if own in (None, "") else max(0.0, int(own) / 1000 - delay),  # Kombu has made milliseconds of it
            info.seconds("x-message-ttl"), self.options.message_ttl,
        )  # fmt: skip
        return min((limit for limit in limits if limit is not None), default=None)

    def _broadcast(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        body = message["body"]
        packed = {**message, "properties": {**message["properties"]}}
        packed["properties"].pop("restante_id", None)
        packed["properties"].pop("restante_new", None)
        if isinstance(body, bytes | bytearray | memoryview):
            packed["body"], packed["b"] = base64.b64encode(body).decode(), 1
        stream = exchange_key(self.broker.full_name(exchange), "broadcast")
        self.broker.command(
            "XADD", stream, "MAXLEN", "~", self.options.stream_maxlen, "*", "k", routing_key, "m",
            orjson.dumps(packed, default=str), key=stream,
        )  # fmt: skip

    def _no_route(self, message: dict[str, Any], exchange: str, routing_key: str, mandatory: bool) -> None:
        """No queue is bound for a message: `unroutable` has the rules."""
        table, options = self.broker.routing.table(exchange), self.options
        if not table.declared:
            raise not_found("exchange", exchange, "Channel.basic_publish", (60, 40))
        if options.deadletter_queue:
            fallback = options.deadletter_queue
            self._send(self.broker.routing.queue(fallback) or QueueInfo(fallback), message, exchange, routing_key)
        elif mandatory:
            self._return(message, exchange, routing_key)
        elif expendable(message, table):
            return
        elif options.unroutable == "raise":
            raise no_route(exchange, routing_key)
        else:
            self.broker.dropped.add(exchange, routing_key, warn=options.unroutable == "warn")

    def _return(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        """Hands a mandatory message back as py-amqp does: to `on_return` of its producer, or as an error."""
        error = no_route(exchange, routing_key)
        if not self.events["basic_return"]:
            raise error
        returned = base.Message(
            body=message["body"], content_type=message["content-type"], content_encoding=message["content-encoding"],
            headers=message["headers"], properties=message["properties"], channel=self,
            delivery_info={"exchange": exchange, "routing_key": routing_key},
        )  # fmt: skip
        for callback in list(self.events["basic_return"]):
            callback(error, exchange, routing_key, returned)

    # -- consuming -----------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **_: Any
    ) -> str:
        source = self.sources.get(queue)
        if source is None:
            info = self.broker.routing.queue(queue) or QueueInfo(queue)
            source = self.sources[queue] = Source(self, queue, info)
            self._subscribe(source)
            self.broker.transient_queues.add(source)
        source.taps.append((consumer_tag, callback, no_ack))
        self._tags[consumer_tag] = queue
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)
        self.connection.wake()
        return consumer_tag

    def _subscribe(self, source: Source) -> None:
        """Learns the broadcasts a transient queue is bound to, and where it is in each."""
        if not source.info.transient:
            return
        source.topics, source.places = {}, {}
        routing = self.broker.routing
        limit = source.info.seconds("x-message-ttl")
        source.bindings = routing.bindings(source.name)
        for exchange, pattern in source.bindings:
            table = routing.table(exchange)
            if not table.broadcasts:
                continue
            stream = exchange_key(self.broker.full_name(exchange), "broadcast")
            places = exchange_key(self.broker.full_name(exchange), "positions")
            place = (self.broker.command("HGET", places, source.name, key=places) or b"0-0").decode()
            if limit is not None:
                oldest = f"{int((self.broker.server_time() - limit) * 1000)}-0"
                place = max(place, oldest, key=entry_order)
            source.places[stream] = place
            kept = source.topics.get(stream, (table.type, [], exchange))
            kept[1].append(pattern)
            source.topics[stream] = kept
        self.connection.wake()

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        self._cancel(consumer_tag, drop=True)

    def _cancel(self, consumer_tag: str, *, drop: bool) -> None:
        queue = self._tags.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)
        source = self.sources.get(queue) if queue is not None else None
        if source is None or queue is None:
            return
        source.taps = deque(tap for tap in source.taps if tap[0] != consumer_tag)
        if not source.taps:
            del self.sources[queue]
            try:
                self.broker.transient_queues.remove(source)
                if source.unkept:
                    self._keep_places(source, now=True)
            except RestanteError as error:
                # Heard twice is better than what this channel holds not given back.
                log.warning("positions not noted queue=%s error=%s", queue, error)
            mine = [message for at, message in self.waiting if at is source]
            self.waiting = deque(pair for pair in self.waiting if pair[0] is not source)
            self.broker.release([message.leased for message in mine if message.leased is not None])
            if drop and source.info.transient and "x-expires" not in source.info.arguments:
                drop_queue(self.broker, queue)
        self.connection.wake()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False, **_: Any) -> None:
        self.prefetch = prefetch_count or 0
        self.connection.wake()

    def flow(self, active: bool = True) -> None:
        raise NotImplementedError("flow is not there: a consumer that is not asked takes nothing")

    @property
    def free(self) -> int:
        """How many messages may be taken now."""
        if not self.prefetch:
            return max(0, BATCH - len(self.waiting))
        return max(0, min(MAX_BATCH, self.prefetch - len(self.held) - len(self.waiting)))

    def pump(self, now: float) -> None:
        """Takes what is free from queues that may have something; acks travel along."""
        if not self.sources:
            return
        for source in self._order():
            if source.due_at is not None and source.due_at <= now:
                source.maybe, source.due_at = True, None
            if not source.maybe:
                continue
            free = self.free
            if free <= 0:
                return
            got = self.broker.receive(source.queue, free, self.options.visibility_timeout)
            source.maybe = len(got.messages) >= free
            source.due_at = None if got.due is None else time.monotonic() + max(0.0, (got.due - got.now) / 1000)
            for taken in got.messages:
                self._accept(source, taken, got.now)

    def _order(self) -> list[Source]:
        sources = list(self.sources.values())
        if len(sources) > 1:
            if self.options.queue_order_strategy == "sorted":
                sources.sort(key=lambda source: source.name)
            elif self.options.queue_order_strategy == "round_robin":
                self._turn = (self._turn + 1) % len(sources)
                sources = sources[self._turn :] + sources[: self._turn]
        return sources

    def _accept(self, source: Source, taken: LeasedMessage, now: int) -> None:
        """Puts a received message in line, unless its time or its deliveries are over."""
        try:
            made = messages.parts(taken, source.name)
        except Exception as error:  # whatever a foreign message is made of, it must not stop the worker
            log.error("buried queue=%s id=%s error=%s", source.name, taken.id, type(error).__name__)
            self.broker.bury(taken, error)
            return
        message = self.Message(self, taken, source.name, f"{source.name}:{taken.lease_token}", made)
        arguments = source.info.arguments
        if "x-dead-letter-exchange" in arguments:
            limit = arguments.get("x-delivery-limit", self.options.delivery_limit)
            waited = float(made["waited"])
            expires = self._expires(source.info, message.properties, waited)
            if taken.attempts > limit:
                self._dead_letter(source.info, message, "delivery_limit")
                return
            lapses_at = None if expires is None else taken.stored.sent_ms + (waited + expires) * 1000
            if lapses_at is not None and lapses_at <= now and not taken.replays:
                self._dead_letter(source.info, message, "expired")
                return
        self.waiting.append((source, message))

    def hear(self, stream: bytes, entries: list[Any]) -> None:
        """Broadcast entries for the queues that subscribed to them."""
        for source in list(self.sources.values()):
            if stream not in source.places:
                continue
            type, patterns, exchange = source.topics[stream]
            for id, fields in entries:
                place = id.decode()
                if entry_order(place) <= entry_order(source.places[stream]):
                    continue
                source.places[stream] = place
                found = dict(zip(fields[::2], fields[1::2], strict=True))
                topic = found[b"k"].decode()
                if type == "topic" and not any(matches(pattern, topic) for pattern in patterns):
                    continue
                told = orjson.loads(found[b"m"])
                body = base64.b64decode(told["body"]) if told.get("b") else told["body"]
                made = {
                    "body": body, "content_type": told.get("content-type"), "headers": told.get("headers") or {},
                    "content_encoding": told.get("content-encoding"), "properties": told.get("properties") or {},
                    "exchange": exchange, "routing_key": topic,
                }  # fmt: skip
                self.waiting.append((source, self.Message(self, None, source.name, f"{source.name}:{place}", made)))
            self._keep_places(source)

    def _keep_places(self, source: Source, *, now: bool = False) -> None:
        """Notes how far a queue has heard: not for every entry, a reconnect may hear the last ones twice."""
        moment = time.monotonic()
        if not now and moment - source.kept_at < KEEP_EVERY:
            source.unkept = True
            return
        source.kept_at, source.unkept = moment, False
        for stream, (_, _, exchange) in source.topics.items():
            places = exchange_key(self.broker.full_name(exchange), "positions")
            self.broker.command("HSET", places, source.name, source.places[stream], key=places)

    def deliver(self) -> bool:
        """Hands one message out; False where none is in line."""
        while self.waiting:
            source, message = self.waiting.popleft()
            if not source.taps:
                if message.leased is not None:
                    self.broker.release((message.leased,))
                continue
            tag, callback, no_ack = source.taps[0]
            source.taps.rotate(-1)
            message.delivery_info["consumer_tag"] = tag
            if no_ack:
                if message.leased is not None:
                    self.broker.queue_ack(message.leased)
            else:
                self.held[str(message.delivery_tag)] = message
            callback(message)
            return True
        return False

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> messages.Message | None:
        info = self.broker.routing.queue(queue) or QueueInfo(queue)
        source = self.sources.get(queue) or Source(self, queue, info)
        if info.transient:
            self.broker.transient_queues.renew(info)
            if not source.places:
                self._subscribe(source)
        kept, self.waiting = self.waiting, deque()
        try:
            # What has lapsed goes to the dead-letter exchange, and the one behind it is asked for.
            while not self.waiting:
                got = self.broker.receive(source.queue, 1, self.options.visibility_timeout)
                if not got.messages:
                    break
                self._accept(source, got.messages[0], got.now)
            if not self.waiting and source.places:
                self._peek_broadcasts(source)
            if not self.waiting:
                return None
            message = self.waiting.popleft()[1]
        finally:
            self.waiting = kept
        if no_ack:
            if message.leased is not None:
                self.broker.queue_ack(message.leased)
                self.broker.flush_acks()
        else:
            self.held[str(message.delivery_tag)] = message
        return message

    def _peek_broadcasts(self, source: Source) -> None:
        """One entry of the first broadcast that has one."""
        for stream, place in list(source.places.items()):
            entries = self.broker.command("XRANGE", stream, f"({place}", "+", "COUNT", 1, key=stream)
            if entries:
                listening = self.sources
                self.sources = {source.name: source}
                try:
                    self.hear(stream, entries)
                    self._keep_places(source, now=True)
                finally:
                    self.sources = listening
                return

    def message_to_python(self, message: Any) -> Any:
        return message

    # -- verdicts ------------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False, **_: Any) -> None:
        tags = self._upto(delivery_tag) if multiple else [delivery_tag]
        for tag in tags:
            message = self.held.pop(tag, None)
            if message is None or message.leased is None:
                continue
            if message.unreadable is not None:
                self.broker.bury(message.leased, message.unreadable)
            else:
                self.broker.queue_ack(message.leased)
        self._settled()

    def basic_reject(self, delivery_tag: str, requeue: bool = False, **_: Any) -> None:
        message = self.held.pop(delivery_tag, None)
        if message is None:
            return
        info = self.broker.routing.queue(_queue_of(delivery_tag)) or QueueInfo(_queue_of(delivery_tag))
        if message.leased is None:
            if requeue:
                self._send(
                    info, _again(message), message.delivery_info["exchange"], message.delivery_info["routing_key"]
                )
        elif requeue:
            self.broker.nack(message.leased, message.failure or "rejected to be delivered again")
        elif "x-dead-letter-exchange" in info.arguments:
            self._dead_letter(info, message, "rejected")
        else:
            self.broker.bury(message.leased, message.unreadable or message.failure or sys.exc_info()[1] or "rejected")
        self._settled()

    def retry(self, delivery_tag: str, delay: float, error: BaseException) -> None:
        """A failure in the core's own words: the message waits that long at the broker, or is dead if it was the last
        attempt. Kombu has no word for it."""
        message = self.held.pop(delivery_tag, None)
        if message is not None and message.leased is not None:
            self.broker.nack(message.leased, error, delay)
        self._settled()

    def bury(self, delivery_tag: str, error: BaseException) -> None:
        """Dead at once, with its error."""
        message = self.held.pop(delivery_tag, None)
        if message is not None and message.leased is not None:
            self.broker.bury(message.leased, error)
        self._settled()

    def basic_nack(self, delivery_tag: str, multiple: bool = False, requeue: bool = True, **_: Any) -> None:
        for tag in self._upto(delivery_tag) if multiple else [delivery_tag]:
            self.basic_reject(tag, requeue)

    def basic_recover(self, requeue: bool = False, **_: Any) -> None:
        """Gives everything that is held back."""
        messages, self.held = list(self.held.values()), {}
        self.broker.release([message.leased for message in messages if message.leased is not None])
        for source in self.sources.values():
            source.maybe = True
        self._settled()

    def _upto(self, delivery_tag: str) -> list[str]:
        tags = list(self.held)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self.held else []

    def _settled(self) -> None:
        """An ack waits for the loop's turn, where a loop turns; otherwise it is told at once."""
        transport = self.connection
        if transport is None or not transport.turning:
            self.broker.flush_acks()
        if transport is not None:
            transport.wake()

    def _dead_letter(self, info: QueueInfo, message: messages.Message, reason: str) -> None:
        """To the exchange the queue names, under an id made of this delivery's: repeated, it is stored once."""
        taken = message.leased
        exchange = info.arguments["x-dead-letter-exchange"]
        key = info.arguments.get("x-dead-letter-routing-key", message.delivery_info["routing_key"])
        again = _again(message)
        again["headers"].pop("x-delivery-count", None)
        again["headers"]["x-death"] = [
            {
                "queue": info.name, "reason": reason, "count": 1, "exchange": message.delivery_info["exchange"],
                "routing-keys": [message.delivery_info["routing_key"]],
            },
            *(again["headers"].get("x-death") or []),
        ]  # fmt: skip
        again["properties"].pop("expiration", None)
        again["properties"]["restante_id"] = f"{taken.id[:150]}.{taken.lease_token}"
        if self._publish(again, exchange, key):
            self.broker.queue_ack(taken)
        else:
            self.broker.bury(taken, f"{reason}, and no queue is bound to {exchange} for {key}")

    # -- life ----------------------------------------------------------------------------------------------------

    def refresh(self, now: float) -> None:
        """Notes on the server how far broadcasts were read, where they have moved since."""
        for source in self.sources.values():
            if source.unkept and now - source.kept_at >= KEEP_EVERY:
                self._keep_places(source)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for tag in list(self._tags):
            self._cancel(tag, drop=False)
        begun = _begun()
        mine = [*self.held.values(), *(message for _, message in self.waiting)]
        self.waiting.clear()
        back = [message for message in mine if message.leased is not None and id(message) not in begun]
        # Tasks at work keep their leases: their acks come later, through this channel, and count.
        self.held = {tag: message for tag, message in self.held.items() if id(message) in begun}
        self.broker.release([message.leased for message in back])
        try:
            self.broker.flush_acks()
        except RestanteError as error:
            log.warning("acks put off error=%s", error)
        transport, self.connection = self.connection, None
        if transport is not None:
            transport.close_channel(self)


def _begun() -> set[int]:
    """Messages that a Celery worker in this process is at work on."""
    state = sys.modules.get("celery.worker.state")
    if state is None:
        return set()
    return {id(request._message) for request in list(state.active_requests) if hasattr(request, "_message")}


def _again(message: messages.Message) -> dict[str, Any]:
    """A received message as it can be published."""
    return {
        "body": message.raw,
        "content-type": message.content_type,
        "content-encoding": message.content_encoding,
        "headers": dict(message.headers),
        "properties": {name: value for name, value in message.properties.items() if name != "delivery_tag"},
        "due": True,
    }


def _queue_of(tag: str) -> str:
    return tag.rpartition(":")[0]


def entry_order(place: str) -> tuple[int, int]:
    """Stream entries by their ids."""
    first, _, second = place.partition("-")
    return int(first), int(second or 0)


_clamped = False


def _priority(given: Any, most: int) -> int:
    """0 to 255, high first; what is out of range counts as the nearest, with one warning."""
    global _clamped
    try:
        wanted = int(given or 0)
    except (TypeError, ValueError):
        wanted = 0
    priority = max(0, min(255, wanted))
    if priority != wanted and not _clamped:
        _clamped = True
        log.warning("priority %d is not 0 to 255 and counts as %d", wanted, priority)
    return min(priority, most)
