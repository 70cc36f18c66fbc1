"""A server, connections to it as Kombu makes them, and Celery workers in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, pools

import restante
from restante import Admin, Post
from restante.celery.desk import _desks
from tests.celery.workers import Worker
from tests.harness.servers import RedisServer, call


@pytest.fixture(scope="session")
def _server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def server(_server: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis; this process forgets what it knew of it."""
    call(_server.client(), "FLUSHALL")
    yield _server
    pools.reset()
    for desk in _desks.values():
        desk.renewal.close()
        desk.post.close()
    _desks.clear()


@pytest.fixture
def url(server: RedisServer) -> str:
    return broker_url(server)


def broker_url(server: RedisServer) -> str:
    return f"{server.url.replace('redis://', 'restante://')}/0"


@pytest.fixture
def post(server: RedisServer) -> Iterator[Post]:
    with restante.connect(server.url) as opened:
        yield opened


@pytest.fixture
def admin(post: Post) -> Admin:
    return Admin(post)


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Connection]]:
    """Makes connections that are closed when the test ends; keywords are transport options."""
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(Connection(url, transport_options=options))


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def worker(server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers that are gone when the test ends."""
    with ExitStack() as running:

        def start(**told: Any) -> Worker:
            return running.enter_context(Worker(server, tmp_path, **told))

        yield start
