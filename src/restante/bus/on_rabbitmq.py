"""Events and calls on RabbitMQ: published with confirms, retried on the ladder, dead in the service's archive.

An event is a CloudEvents message in binary form. On failure a call is repeated over a new connection until the
client's patience ends, then `Unavailable`, or `Unconfirmed` where the broker may have the event: publishing again with
the same id is safe.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import amqp
from kombu import Connection
from kombu.exceptions import OperationalError

from restante.bus.addresses import shown
from restante.bus.broker import CALLS, CALLS_ALL, EVENTS, Answer, Sending
from restante.bus.envelope import Envelope
from restante.bus.registry import Registry
from restante.core.errors import (
    CallTimeout,
    NoHandler,
    QueueFull,
    RestanteError,
    Unavailable,
    Unconfirmed,
    Unroutable,
)
from restante.rabbitmq.declaring import counts, declare
from restante.rabbitmq.ladder import RUNGS, RungType
from restante.rabbitmq.topology import LONGEST_DELAY, Topology, TopologyOptions, shared

T = TypeVar("T")
log = logging.getLogger("restante")

#: Seconds over which a publish is repeated while the broker is away.
PATIENCE = 10.0
#: Seconds a confirm may take before the connection counts as lost.
CONFIRM = 10.0
#: Connections a process keeps for its threads.
IDLE = 8
#: RabbitMQ's own priorities go to this; 0–255 is spread over them.
MOST_PRIORITY = 10
#: The address by which RabbitMQ itself carries answers to the connection that asked.
REPLY_TO = "amq.rabbitmq.reply-to"
_CLOUD = "cloudEvents_"
_CLOUD_NAMES = frozenset(("specversion", "id", "type", "source", "time", "schemaversion"))


def to_headers(envelope: Envelope) -> dict[str, Any]:
    """An envelope as application headers of AMQP: CloudEvents' own with its prefix, all others as they are."""
    return {f"{_CLOUD}{name}" if name in _CLOUD_NAMES else name: value for name, value in envelope.attributes().items()}


def from_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes without the prefix, in either of the two forms that are in use."""
    return {
        name[len(_CLOUD) :] if name.startswith((_CLOUD, "cloudEvents:")) else name: value
        for name, value in headers.items()
    }


def properties_of(envelope: Envelope, how: Sending | None = None) -> dict[str, Any]:
    """AMQP's own properties of an event."""
    return {
        "message_id": envelope.id,
        "type": envelope.topic,
        "app_id": envelope.source,
        "timestamp": int((envelope.time or datetime.now(UTC)).timestamp()),
        "priority": scaled(how.priority if how else 0),
        "delivery_mode": 2,
    }


def scaled(priority: int) -> int:
    """0–255 as RabbitMQ's few steps; what is above zero stays above zero."""
    return -(-priority * MOST_PRIORITY // 255)


class Link:
    """One connection: a channel that confirms, and one that asks and hears answers."""

    def __init__(self, url: str) -> None:
        self.connection = Connection(url, transport_options={"confirm_publish": True}, connect_timeout=5, heartbeat=0)
        self.connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)
        self._confirming: Any = None
        self._asking: Any = None
        self.returned: list[Any] = []
        self.answers: deque[Any] = deque()

    @property
    def confirming(self) -> Any:
        if self._confirming is None:
            self._confirming = self.connection.channel()
            self._confirming.events["basic_return"].add(self._on_return)
        return self._confirming

    @property
    def asking(self) -> Any:
        """A channel without confirms; answers come to it alone, by an address only the broker can make."""
        if self._asking is None:
            made = self.connection.connection.channel()
            made.events["basic_return"].add(self._on_return)
            made.basic_consume(REPLY_TO, no_ack=True, callback=self.answers.append)
            self._asking = made
        return self._asking

    def _on_return(self, error: Any, exchange: str, key: str, message: Any) -> None:
        self.returned.append(message)

    def publish(
        self, body: bytes, headers: dict[str, Any], properties: dict[str, Any], exchange: str, key: str
    ) -> bool:
        """Publishes and waits for the confirm; False where no queue took it."""
        self.returned.clear()
        message = packed(body, headers, properties)
        self.confirming.basic_publish(message, exchange, key, mandatory=True, confirm_timeout=CONFIRM)
        return not self.returned

    def publish_many(self, messages: Sequence[amqp.Message], exchange: str, keys: Sequence[str]) -> set[str]:
        """Publishes them all, then waits for all confirms; the ids of those that no queue took."""
        self.returned.clear()
        channel = self.connection.connection.channel()
        try:
            channel.events["basic_return"].add(self._on_return)
            pending = set(range(1, len(messages) + 1))
            refused: set[int] = set()

            def settle(tag: int, multiple: bool) -> None:
                pending.difference_update([one for one in pending if one <= tag] if multiple else [tag])

            def refuse(tag: int, multiple: bool) -> None:
                refused.update([one for one in pending if one <= tag] if multiple else [tag])
                settle(tag, multiple)

            channel.events["basic_ack"].add(settle)
            channel.events["basic_nack"].add(refuse)
            channel.confirm_select()
            for message, key in zip(messages, keys, strict=True):
                type(channel).basic_publish(channel, message, exchange, key, True)
            deadline = time.monotonic() + CONFIRM
            while pending:
                self.connection.drain_events(timeout=max(0.01, deadline - time.monotonic()))
            if refused:
                raise amqp.exceptions.MessageNacked()
            return {str(message.properties.get("message_id")) for message in self.returned}
        finally:
            if channel.is_open:
                channel.close()

    def ask(self, message: Any, exchange: str, key: str, mandatory: bool = False) -> None:
        """Publishes without a confirm: the answer is one, and a lost answer needs none."""
        channel = self.asking
        # The connection makes every channel wait for confirms; the class's own method does not.
        type(channel).basic_publish(channel, message, exchange, key, mandatory)

    def close(self) -> None:
        try:
            self.connection.collapse_errors = True
            self.connection.release()
        except Exception as error:  # a broken connection cannot be closed properly, and need not be
            log.debug("closing failed error=%s", error)


def packed(body: bytes, headers: dict[str, Any], properties: dict[str, Any]) -> amqp.Message:
    """A message of JSON, unless its properties say otherwise."""
    told = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    return amqp.Message(body, application_headers=headers, **told)


class Links:
    """The connections of one process to one broker; a forked child makes its own."""

    #: What a lost connection, a closed channel or an unreachable broker raises.
    LOST = (OSError, amqp.exceptions.AMQPError, OperationalError)

    def __init__(self, url: str, patience: float = PATIENCE, options: TopologyOptions | None = None) -> None:
        self.url = url
        self.patience = patience
        self._options = options or TopologyOptions()
        self._idle: deque[Link] = deque()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Link]:
        """A connection for this thread; given back unless it failed."""
        if self._pid != os.getpid():
            with self._lock:
                self._idle, self._pid = deque(), os.getpid()
        if self._closed:
            raise Unavailable("this client is closed: make a new one")
        try:
            link = self._idle.pop()
        except IndexError:
            link = Link(self.url)
        try:
            yield link
        except BaseException:
            link.close()
            raise
        if self._closed or len(self._idle) >= IDLE:
            link.close()
        else:
            self._idle.append(link)

    def publish(
        self, body: bytes, headers: dict[str, Any], properties: dict[str, Any], exchange: str, key: str, *, id: str
    ) -> bool:
        """Publishes with a confirm; False where no queue took it."""
        return self.patiently(lambda link: link.publish(body, headers, properties, exchange, key), (id,))

    def patiently(self, work: Callable[[Link], T], ids: Sequence[str]) -> T:
        """Does something over a connection, and over others while the broker is away and patience lasts."""
        deadline = time.monotonic() + self.patience
        written = False
        pause = 0.05
        while True:
            try:
                with self.one() as link:
                    written = True
                    return work(link)
            except amqp.exceptions.MessageNacked:
                raise QueueFull(
                    f"a queue is full and refused {', '.join(ids[:3])}: replay or purge what lies there"
                ) from None
            except amqp.exceptions.NotFound:
                self.declare(shared(self._options))
                if time.monotonic() > deadline:
                    raise
            except self.LOST as error:
                if time.monotonic() + pause > deadline:
                    if written:
                        raise Unconfirmed(ids=ids) from None
                    raise unreachable(self.url, error) from None
                time.sleep(pause)
                pause = min(1.0, pause * 2)

    def declare(self, wanted: Topology) -> None:
        """Makes sure of exchanges, queues and bindings."""
        try:
            connection = Connection(self.url, connect_timeout=5)
            with connection:
                declare(connection, wanted)
        except self.LOST as error:
            raise unreachable(self.url, error) from None

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def counted(url: str, names: list[str]) -> dict[str, tuple[int, int] | None]:
    """Messages that are ready and consumers of each queue; None where there is no such queue."""
    try:
        with Connection(url, connect_timeout=3) as connection:
            return counts(connection, names)
    except Links.LOST as error:
        raise unreachable(url, error) from None


def unreachable(url: str, error: BaseException) -> Unavailable:
    return Unavailable(
        f"RabbitMQ at {shown(url)} cannot be reached ({type(error).__name__}): check the URL, the login, that the "
        "broker runs, and the network between"
    )


class RabbitBroker:
    """The synchronous client of a RabbitMQ broker."""

    def __init__(
        self, url: str, *, store: str | None = None, patience: float = PATIENCE, rungs: RungType = RUNGS,
        longest_delay: float = LONGEST_DELAY,
    ) -> None:  # fmt: skip
        self._options = TopologyOptions(rungs=rungs, longest_delay=longest_delay)
        self._ladder = self._options.ladder()
        self.links = Links(url, patience, self._options)
        self.registry = Registry(store) if store else None

    def publish(self, envelope: Envelope, text: bytes, how: Sending) -> int | None:
        headers, properties = to_headers(envelope), properties_of(envelope, how)
        noted = self.registry.sent(envelope, len(text), how) if self.registry else None
        try:
            if how.delay:
                exchange, key = self._ladder.later(how.delay, envelope.topic)
                self.links.publish(text, headers, properties, exchange, key, id=envelope.id)
                return noted or None
            heard = self.links.publish(text, headers, properties, f"{EVENTS}.known", envelope.topic, id=envelope.id)
            if not heard:
                if how.nobody == "raise":
                    raise Unroutable(
                        f"nobody has subscribed to {envelope.topic}: start who listens, or check the spelling"
                    )
                # By the exchange that keeps what nobody wants; whoever has subscribed meanwhile gets it there too.
                self.links.publish(text, headers, properties, EVENTS, envelope.topic, id=envelope.id)
                return 0
        except RestanteError:
            if self.registry:
                self.registry.not_sent(envelope, len(text))
            raise
        return noted or None  # heard, so by somebody whom the registry does not know

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], how: Sending) -> list[int | None]:
        if how.delay:
            return [self.publish(envelope, text, how) for envelope, text in events]
        noted = [self.registry.sent(one, len(text), how) if self.registry else None for one, text in events]
        messages = [packed(text, to_headers(one), properties_of(one, how)) for one, text in events]
        keys = [envelope.topic for envelope, _ in events]
        ids = [envelope.id for envelope, _ in events]
        try:
            unheard = self.links.patiently(lambda link: link.publish_many(messages, f"{EVENTS}.known", keys), ids)
        except RestanteError:
            for envelope, text in events if self.registry else ():
                assert self.registry is not None
                self.registry.not_sent(envelope, len(text))
            raise
        if unheard:
            again = [place for place, id in enumerate(ids) if id in unheard]
            some, where = [messages[place] for place in again], [keys[place] for place in again]
            self.links.patiently(lambda link: link.publish_many(some, EVENTS, where), sorted(unheard))
        return [0 if id in unheard else count or None for id, count in zip(ids, noted, strict=True)]

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        got = self._ask(CALLS, envelope, text, timeout, 1)
        if not got:
            raise CallTimeout(f"{envelope.topic} was not answered within {timeout:g} s: call again, or wait longer")
        return got[0]

    def call_all(self, envelope: Envelope, text: bytes, timeout: float) -> list[Answer]:
        count = self.registry.answering(envelope.topic) if self.registry else None
        return self._ask(CALLS_ALL, envelope, text, timeout, count)

    def _ask(self, exchange: str, envelope: Envelope, text: bytes, timeout: float, count: int | None) -> list[Answer]:
        deadline = time.monotonic() + timeout
        if self.registry and exchange == CALLS:
            self.registry.called(envelope, len(text))
        while True:
            try:
                with self.links.one() as link:
                    return self._asked(link, exchange, envelope, text, deadline, count)
            except amqp.exceptions.NotFound:
                self.links.declare(shared(self._options))
            except Links.LOST as error:
                # Whether it was run cannot be known; asking again might run it twice.
                raise unreachable(self.links.url, error) from None

    def _asked(
        self, link: Link, exchange: str, envelope: Envelope, text: bytes, deadline: float, count: int | None
    ) -> list[Answer]:
        left = deadline - time.monotonic()
        headers = {**to_headers(envelope), "deadline_seconds": round(left, 3)}
        properties = {
            **properties_of(envelope), "delivery_mode": 1, "reply_to": REPLY_TO, "correlation_id": envelope.id,
            "expiration": str(max(1, int(left * 1000))),
        }  # fmt: skip
        link.returned.clear()
        link.answers.clear()
        link.ask(packed(text, headers, properties), exchange, envelope.topic, mandatory=True)
        got: list[Answer] = []
        while (left := deadline - time.monotonic()) > 0:
            try:
                link.connection.drain_events(timeout=left)
            except TimeoutError:
                break
            if any(message.properties.get("message_id") == envelope.id for message in link.returned):
                raise NoHandler(f"no service answers {envelope.topic}: start the one that does, or check the spelling")
            while link.answers:
                message = link.answers.popleft()
                if message.properties.get("correlation_id") == envelope.id:
                    body = message.body
                    got.append(Answer.parse(body if isinstance(body, bytes) else body.encode()))
            if count is not None and len(got) >= count:
                break
        return got

    def close(self) -> None:
        self.links.close()
        if self.registry:
            self.registry.close()
