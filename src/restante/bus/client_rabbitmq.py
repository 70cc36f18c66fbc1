"""The client's side of RabbitMQ: publishes events with confirms, and calls.

An event is a CloudEvents message in binary form. On failure a publish is repeated over a new connection until the
client's patience ends; then it raises `Unavailable`, or `Unconfirmed` if the broker may have the event. Publishing
again with the same id is safe.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import amqp
from kombu import Connection
from kombu.exceptions import OperationalError

from restante.bus.amqp_messages import (
    amqp_message,
    properties_of,
    queue_full,
    returned_error,
    route,
    to_headers,
    unreachable,
)
from restante.bus.broker import Answer, SendOptions
from restante.bus.envelope import Envelope
from restante.bus.registry import Registry
from restante.core.errors import CallTimeout, NoHandler, RestanteError, Unavailable, Unconfirmed
from restante.rabbitmq.declaration import declare
from restante.rabbitmq.topology import CALLS, CALLS_ALL, EVENTS, Topology, TopologyOptions, shared

if TYPE_CHECKING:
    from restante.bus.batch import Publishing, Sender
    from restante.bus.confirms import Confirms
    from restante.bus.options import LadderOptions

T = TypeVar("T")
log = logging.getLogger("restante")

#: Seconds for which a publish is repeated while the broker is away.
PATIENCE = 10.0
#: Seconds a confirm may take before the connection is considered lost.
CONFIRM = 10.0
#: Idle connections that a process keeps for its threads.
IDLE = 8
#: RabbitMQ's direct reply-to: it carries answers to the connection that called.
REPLY_TO = "amq.rabbitmq.reply-to"
#: A broker that is out of memory stops reading, and a write to it would never end.
_OPTIONS = {"confirm_publish": True, "write_timeout": CONFIRM}


class RabbitConnection:
    """A connection with two channels: one publishes with confirms, one calls and receives answers."""

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
        """A channel without confirms that receives answers, by an address that only the broker can create."""
        if self._asking is None:
            channel = self.kombu.connection.channel()
            channel.events["basic_return"].add(self._on_return)
            channel.basic_consume(REPLY_TO, no_ack=True, callback=self.answers.append)
            self._asking = channel
        return self._asking

    def _on_return(self, error: Any, exchange: str, key: str, message: Any) -> None:
        self.returned.append(message)

    def publish(
        self, body: bytes, headers: dict[str, Any], properties: dict[str, Any], exchange: str, key: str
    ) -> bool:
        """Publishes and waits for the confirm; False if no queue took the message."""
        self.returned.clear()
        message = amqp_message(body, headers, properties)
        self.confirming.basic_publish(message, exchange, key, mandatory=True, confirm_timeout=CONFIRM)
        return not self.returned

    def ask(self, message: Any, exchange: str, key: str, mandatory: bool = False) -> None:
        """Publishes without a confirm: the answer of a call is its confirm, and an answer needs none."""
        channel = self.asking
        # amqp replaces the channel's method by one that waits for the confirm; the class's own does not.
        type(channel).basic_publish(channel, message, exchange, key, mandatory)

    def close(self) -> None:
        try:
            self.kombu.collapse_errors = True
            self.kombu.release()
        except Exception as error:  # a broken connection cannot be closed properly, and need not be
            log.debug("closing failed error=%s", error)


class ConnectionPool:
    """The connections of a process to one broker; a forked child opens its own."""

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
        """A connection for this thread; returned to the pool unless the block failed."""
        if self._pid != os.getpid():
            with self._lock:
                self._idle, self._pid = deque(), os.getpid()
        if self._closed:
            raise Unavailable("this client is closed: open a new one")
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
        """Publishes and waits for the confirm, with patience; False if no queue took the message."""
        return self.run(lambda connection: connection.publish(body, headers, properties, exchange, key), (id,))

    def run(self, work: Callable[[RabbitConnection], T], ids: Sequence[str]) -> T:
        """Runs `work` with a connection, and again with others while the broker is away and patience lasts."""
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
        """Declares exchanges, queues and bindings."""
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


class RabbitBroker:
    """The synchronous client's side of RabbitMQ."""

    def __init__(
        self, url: str, *, store: str | None = None, patience: float = PATIENCE, **ladder: Unpack[LadderOptions]
    ) -> None:
        self.pool = ConnectionPool(url, patience, TopologyOptions(**ladder))
        self.registry = Registry(store) if store else None
        self._confirms: Confirms | None = None
        self._lock = threading.Lock()

    @property
    def confirms(self) -> Confirms:
        """The publisher that does not wait for each confirm; a forked child opens its own."""
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
            routed = self.pool.publish(text, headers, properties, exchange, key, id=envelope.id)
            if not routed:
                if error := returned_error(envelope.topic, options, exchange):
                    raise error
                # EVENTS keeps events without a subscription; a service that has subscribed meanwhile gets it too.
                self.pool.publish(text, headers, properties, EVENTS, envelope.topic, id=envelope.id)
                return 0
        except RestanteError:
            if self.registry:
                self.registry.not_sent(envelope, len(text))
            raise
        return noted or None  # 0 although a queue took it: a subscription that the registry lacks

    def publish_many(self, events: Sequence[tuple[Envelope, bytes]], options: SendOptions) -> list[int | None]:
        from restante.bus.batch import Publishing

        publishings = [Publishing(envelope, text, options) for envelope, text in events]
        for publishing in publishings:
            publishing.reported = True
            self.confirms.begin(publishing)
        self.confirms.settle(publishings)
        failed = [(event.id, error) for event in publishings if (error := event.exception()) is not None]
        if ids := [id for id, error in failed if isinstance(error, Unconfirmed)]:
            raise Unconfirmed(ids=ids)
        if failed:
            raise failed[0][1]
        return [publishing.result().subscriptions for publishing in publishings]

    def call(self, envelope: Envelope, text: bytes, timeout: float) -> Answer:
        answers = self._ask(CALLS, envelope, text, timeout, 1)
        if not answers:
            raise CallTimeout(f"{envelope.topic} was not answered within {timeout:g} s: call again, or wait longer")
        return answers[0]

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
                # The call may have run, so that calling again could run it twice.
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
        answers: list[Answer] = []
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
                    answers.append(Answer.parse(body if isinstance(body, bytes) else body.encode()))
            if count is not None and len(answers) >= count:
                break
        return answers

    def close(self) -> None:
        if self._confirms is not None:
            self._confirms.close()
        self.pool.close()
        if self.registry:
            self.registry.close()
