"""Servers that live by a clock the tests move, one per kind of Redis and test run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from restante.core.connection import Connection
from restante.core.settings import ClientSettings
from tests.core.bench import Bench
from tests.core.desk import Desk
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer, debian_binary, embedded_binary


def _running(binary: Path) -> Iterator[Bench]:
    with FrozenClock() as clock, RedisServer(binary, clock=clock) as server:
        connection = Connection(server.url, ClientSettings())
        yield Bench(server, clock, server.client(), connection)
        connection.close()


@pytest.fixture(scope="session")
def _debian() -> Iterator[Bench]:
    yield from _running(debian_binary())


@pytest.fixture(scope="session")
def _embedded() -> Iterator[Bench]:
    yield from _running(embedded_binary())


@pytest.fixture
def debian(_debian: Bench) -> Bench:
    """An empty Redis 7 under a frozen clock."""
    _debian.clear()
    return _debian


@pytest.fixture(params=["debian", "embedded"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """An empty server under a frozen clock, each kind in turn."""
    found: Bench = request.getfixturevalue(f"_{request.param}")
    found.clear()
    return found


@pytest.fixture
def desk(bench: Bench) -> Desk:
    """An open queue on it."""
    return Desk(bench)
