"""Fixtures: a server, Kombu connections to it, and Celery workers in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, pools

import restante
from restante import Admin, Client
from restante.celery.broker_client import _clients
from restante.core.scripts import Script
from tests.celery.workers import Worker
from tests.harness.clock import FrozenClock
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call


@pytest.fixture(scope="session")
def _server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def server(_server: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis; this process closes its clients of earlier tests."""
    call(_server.client(), "FLUSHALL")
    yield _server
    pools.reset()
    for broker in _clients.values():
        broker.holder.close()
        broker.client.close()
    _clients.clear()


@pytest.fixture
def url(server: RedisServer) -> str:
    return broker_url(server)


def broker_url(server: RedisServer) -> str:
    return f"{server.url.replace('redis://', 'restante://')}/0"


@pytest.fixture(scope="session")
def frozen() -> Iterator[tuple[RedisServer, FrozenClock]]:
    """A server whose clock the test moves; queues keep the tests apart."""
    clock = FrozenClock()
    with RedisServer(clock=clock) as running:
        yield running, clock


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as running:
        yield running


@pytest.fixture
def through(proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> Iterator[Connection]:
    """A connection through the proxy, whose calls are repeated only for a short time."""
    caplog.set_level(logging.INFO, "restante")
    options = {"patience": 0.1, "visibility_timeout": 3600}
    with Connection(f"{proxy.url.replace('redis', 'restante', 1)}/0", transport_options=options) as opened:
        yield opened


def drop_calls(proxy: FaultProxy, script: Script) -> None:
    """Drops every further call of this script before it reaches the server."""
    proxy.drop_request(1_000_000, matching=lambda request: script.sha in request)


@pytest.fixture
def post(server: RedisServer) -> Iterator[Client]:
    with restante.connect(server.url) as opened:
        yield opened


@pytest.fixture
def admin(post: Client) -> Admin:
    return Admin(post)


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Connection]]:
    """Opens connections that are closed when the test ends; keywords are transport options."""
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(Connection(url, transport_options=options))


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def worker(server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers that are stopped when the test ends."""
    with ExitStack() as running:

        def start(**told: Any) -> Worker:
            return running.enter_context(Worker(server, tmp_path, **told))

        yield start
