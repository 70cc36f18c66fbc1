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
from typing import TYPE_CHECKING, Any, TypeVar

import amqp
from kombu import Connection
from kombu.exceptions import OperationalError

from restante.bus.addresses import shown
from restante.bus.broker import Answer, SendOptions
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
from restante.rabbitmq.declaration import counts, declare
from restante.rabbitmq.ladder import RUNGS, Ladder, RungType
from restante.rabbitmq.topology import (
    CALLS,
    CALLS_ALL,
    EVENTS,
    KNOWN,
    LONGEST_DELAY,
    Topology,
    TopologyOptions,
    shared,
)

if TYPE_CHECKING:
    from restante.bus.batch import Publishing, Sender
    from restante.bus.confirms import Confirms

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
#: A broker that is out of memory reads no more, and a write to it would never end.
_OPTIONS = {"confirm_publish": True, "write_timeout": CONFIRM}
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


def properties_of(envelope: Envelope, options: SendOptions | None = None) -> dict[str, Any]:
    """AMQP's own properties of an event."""
    return {
        "message_id": envelope.id,
        "type": envelope.topic,
        "app_id": envelope.source,
        "timestamp": int((envelope.time or datetime.now(UTC)).timestamp()),
        "priority": scaled(options.priority if options else 0),
        "delivery_mode": 2,
    }


def scaled(priority: int) -> int:
    """0–255 as RabbitMQ's few steps; what is above zero stays above zero."""
    return -(-priority * MOST_PRIORITY // 255)


def route(envelope: Envelope, options: SendOptions, ladder: Ladder) -> tuple[str, str]:
    """The exchange and the routing key of an event: to who is known to listen, or to the ladder that delays it."""
    if options.delay:
        return ladder.later(options.delay, envelope.topic)
    return KNOWN, envelope.topic


class RabbitConnection:
    """One connection: a channel that confirms, and one that asks and hears answers."""

    def __init__(self, url: str) -> None:
        self.kombu = Connection(url, transport_options=_OPTIONS, connect_timeout=5, heartbeat=0)
        self.kombu.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)
        self._confirming: Any = None
        self._asking: Any = None
        self.returned: list[Any] = []
        self.answers: deque[Any] = deque()

    @property
    def confirming(self) -> Any:
        if self._confirming is None:
            self._confirming = self.kombu.channel()
            self._confirming.events["basic_return"].add(self._on_return)
        return self._confirming

    @property
    def asking(self) -> Any:
        """A channel without confirms; answers come to it alone, by an address only the broker can make."""
        if self._asking is None:
            made = self.kombu.connection.channel()
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
        message = amqp_message(body, headers, properties)
        self.confirming.basic_publish(message, exchange, key, mandatory=True, confirm_timeout=CONFIRM)
        return not self.returned

    def ask(self, message: Any, exchange: str, key: str, mandatory: bool = False) -> None:
        """Publishes without a confirm: the answer is one, and a lost answer needs none."""
        channel = self.asking
        # The connection makes every channel wait for confirms; the class's own method does not.
        type(channel).basic_publish(channel, message, exchange, key, mandatory)

    def close(self) -> None:
        try:
            self.kombu.collapse_errors = True
            self.kombu.release()
        except Exception as error:  # a broken connection cannot be closed properly, and need not be
            log.debug("closing failed error=%s", error)


def amqp_message(body: bytes, headers: dict[str, Any], properties: dict[str, Any]) -> amqp.Message:
    """A message of JSON, unless its properties say otherwise."""
    told = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    return amqp.Message(body, application_headers=headers, **told)


class ConnectionPool:
    """The connections of one process to one broker; a forked child makes its own."""

    #: What a lost connection, a closed channel or an unreachable broker raises.
    LOST = (OSError, amqp.exceptions.AMQPError, OperationalError)

    def __init__(self, url: str, patience: float = PATIENCE, options: TopologyOptions | None = None) -> None:
        self.url = url
        self.patience = patience
        self.options = options or TopologyOptions()
        self.ladder = self.options.ladder()
        self._idle: deque[RabbitConnection] = deque()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def take(self) -> Iterator[RabbitConnection]:
        """A connection for this thread; given back unless it failed."""
        if self._pid != os.getpid():
            with self._lock:
                self._idle, self._pid = deque(), os.getpid()
        if self._closed:
            raise Unavailable("this client is closed: make a new one")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = RabbitConnection(self.url)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._idle) >= IDLE:
            connection.close()
        else:
            self._idle.append(connection)

    def publish(
        self, body: bytes, headers: dict[str, Any], properties: dict[str, Any], exchange: str, key: str, *, id: str
    ) -> bool:
        """Publishes with a confirm; False where no queue took it."""
        return self.run(lambda connection: connection.publish(body, headers, properties, exchange, key), (id,))

    def run(self, work: Callable[[RabbitConnection], T], ids: Sequence[str]) -> T:
        """Does something over a connection, and over others while the broker is away and patience lasts."""
        deadline = time.monotonic() + self.patience
        written = False
        pause = 0.05
        while True:
            try:
                with self.take() as connection:
                    written = True
                    return work(connection)
            except amqp.exceptions.MessageNacked:
                raise queue_full(", ".join(ids[:3])) from None
            except amqp.exceptions.NotFound:
                self.declare(shared(self.options))
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
    except ConnectionPool.LOST as error:
        raise unreachable(url, error) from None


def unreachable(url: str, error: BaseException) -> Unavailable:
    return Unavailable(
        f"RabbitMQ at {shown(url)} cannot be reached ({type(error).__name__}): check the URL, the login, that the "
        "broker runs, and the network between"
    )


def no_subscription(topic: str) -> Unroutable:
    return Unroutable(f"nobody has subscribed to {topic}: start who listens, or check the spelling")


def queue_full(ids: str) -> QueueFull:
    return QueueFull(f"a queue is full and refused {ids}: replay or purge what lies there")


def ladder_gone(exchange: str) -> Unavailable:
    return Unavailable(
        f"{exchange} is gone from RabbitMQ, so the event cannot wait there: start a worker, which declares it, or "
        "`restante rabbitmq declare`"
    )


def event_refused(error: BaseException) -> Unavailable:
    return Unavailable(f"RabbitMQ closes every connection that brings this event: {type(error).__name__}: {error}")


class RabbitBroker:
    """The synchronous client of a RabbitMQ broker."""

    def __init__(
        self,
        url: str,
        *,
        store: str | None = None,
        patience: float = PATIENCE,
        rungs: RungType = RUNGS,
        longest_delay: float = LONGEST_DELAY,
    ) -> None:
        self.pool = ConnectionPool(url, patience, TopologyOptions(rungs=rungs, longest_delay=longest_delay))
        self.registry = Registry(store) if store else None
        self._confirms: Confirms | None = None
        self._lock = threading.Lock()

    @property
    def confirms(self) -> Confirms:
        """What publishes without waiting; a forked child makes its own."""
        if self._confirms is None or self._confirms.pid != os.getpid():
            from restante.bus.confirms import Confirms

            with self._lock:
                if self._confirms is None or self._confirms.pid != os.getpid():
                    self._confirms = Confirms(self.pool, self.registry)
        return self._confirms

    def sender(self) -> Sender:
        return self.confirms

    def begin(self, publishing: Publishing) -> None:
        self.confirms.begin(publishing)

    def publish(self, envelope: Envelope, text: bytes, options: SendOptions) -> int | None:
        headers, properties = to_headers(envelope), properties_of(envelope, options)
        noted = self.registry.sent(envelope, len(text), options) if self.registry else None
        exchange, key = route(envelope, options, self.pool.ladder)
        try:
            heard = self.pool.publish(text, headers, properties, exchange, key, id=envelope.id)
            if not heard:
                if options.delay:
                    raise ladder_gone(exchange)
                if options.unrouted == "raise":
                    raise no_subscription(envelope.topic)
                # By the exchange that keeps what nobody wants; whoever has subscribed meanwhile gets it there too.
                self.pool.publish(text, headers, properties, EVENTS, envelope.topic, id=envelope.id)
                return 0
        except RestanteError:
            if self.registry:
                self.registry.not_sent(envelope, len(text))
            raise
        return noted or None  # heard, so by somebody whom the registry does not know

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> list[int | None]:
        from restante.bus.batch import Publishing

        made = [Publishing(envelope, text, options) for envelope, text in events]
        for one in made:
            one.reported = True
            self.confirms.begin(one)
        self.confirms.settle(made)
        failed = [(one.id, error) for one in made if (error := one.exception()) is not None]
        if ids := [id for id, error in failed if isinstance(error, Unconfirmed)]:
            raise Unconfirmed(ids=ids)
        if failed:
            raise failed[0][1]
        return [one.result().subscriptions for one in made]

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
                with self.pool.take() as connection:
                    return self._asked(connection, exchange, envelope, text, deadline, count)
            except amqp.exceptions.NotFound:
                self.pool.declare(shared(self.pool.options))
            except ConnectionPool.LOST as error:
                # Whether it was run cannot be known; asking again might run it twice.
                raise unreachable(self.pool.url, error) from None

    def _asked(
        self,
        connection: RabbitConnection,
        exchange: str,
        envelope: Envelope,
        text: bytes,
        deadline: float,
        count: int | None,
    ) -> list[Answer]:
        left = deadline - time.monotonic()
        headers = {**to_headers(envelope), "deadline_seconds": round(left, 3)}
        properties = {
            **properties_of(envelope),
            "delivery_mode": 1,
            "reply_to": REPLY_TO,
            "correlation_id": envelope.id,
            "expiration": str(max(1, int(left * 1000))),
        }
        connection.returned.clear()
        connection.answers.clear()
        connection.ask(amqp_message(text, headers, properties), exchange, envelope.topic, mandatory=True)
        got: list[Answer] = []
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection.kombu.drain_events(timeout=left)
            except TimeoutError:
                break
            if any(message.properties.get("message_id") == envelope.id for message in connection.returned):
                raise NoHandler(f"no service answers {envelope.topic}: start the one that does, or check the spelling")
            while connection.answers:
                message = connection.answers.popleft()
                if message.properties.get("correlation_id") == envelope.id:
                    body = message.body
                    got.append(Answer.parse(body if isinstance(body, bytes) else body.encode()))
            if count is not None and len(got) >= count:
                break
        return got

    def close(self) -> None:
        if self._confirms is not None:
            self._confirms.close()
        self.pool.close()
        if self.registry:
            self.registry.close()
