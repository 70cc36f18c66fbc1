"""One RabbitMQ for the folder; tests keep apart by the names of their services and topics."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import amqp
import pytest
from kombu import Connection

from restante.rabbitmq import TopologyOptions
from tests.harness.deadlines import PATIENCE
from tests.harness.rabbitmq import RabbitServer

#: Ladders as high as the tests need them, so that declaring one is quick.
LOW = TopologyOptions(longest_delay=8)


@pytest.fixture(scope="session")
def server() -> Iterator[RabbitServer]:
    with RabbitServer() as running:
        yield running


@pytest.fixture
def connect(server: RabbitServer) -> Iterator[Callable[..., Connection]]:
    """Makes connections that are closed when the test ends; to the test's broker if no URL is given."""
    with ExitStack() as opened:
        yield lambda url=server.url: opened.enter_context(Connection(url))


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def service() -> str:
    """The name of a service that no other test has."""
    return f"s{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topic(service: str) -> str:
    """A topic that no other test has."""
    return f"shop.{service}.paid"


class Wire:
    """Publishes with confirmation, and takes what arrives, with the seconds it took since it was sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.channel: Any = connection.channel()
        #: Queue, message and seconds since its sending.
        self.arrived: list[tuple[str, Any, float]] = []
        self.returned: list[str] = []
        self.channel.events["basic_return"].add(lambda error, exchange, key, message: self.returned.append(key))

    def send(self, exchange: str, key: str, body: str = "", *, mandatory: bool = False, **properties: Any) -> None:
        headers = {"sent": str(time.monotonic())}
        message = amqp.Message(body, delivery_mode=2, application_headers=headers, **properties)
        self.channel.basic_publish_confirm(message, exchange, key, mandatory=mandatory)

    def listen(self, *queues: str, handle: Callable[[Any], None] | None = None) -> None:
        """Takes messages of these queues; each is acked unless `handle` does something else with it."""
        for queue in queues:

            def taken(message: Any, queue: str = queue) -> None:
                took = time.monotonic() - float(message.headers["sent"])
                self.arrived.append((queue, message, took))
                if handle is None:
                    message.channel.basic_ack(message.delivery_tag)
                else:
                    handle(message)

            self.channel.basic_consume(queue, callback=taken)

    def wait(self, count: int, seconds: float = PATIENCE) -> None:
        """Until so many messages have arrived."""
        deadline = time.monotonic() + seconds
        while len(self.arrived) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(self.arrived)} of {count} arrived"
            self._drain(left)

    def quiet(self, seconds: float) -> None:
        """Asserts that nothing more arrives."""
        before = len(self.arrived)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._drain(left)
        assert self.arrived[before:] == []

    def take(self, queue: str) -> list[Any]:
        """Everything that waits in a queue."""
        found = []
        while (message := self.channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
        return found

    def _drain(self, seconds: float) -> None:
        try:
            self._connection.drain_events(timeout=seconds)
        except TimeoutError:
            pass  # Nothing came.


@pytest.fixture
def wire(connect: Callable[..., Connection]) -> Wire:
    return Wire(connect())
