"""Servers for the fault tests: one shared by those that leave it well, fresh ones for those that break it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import restante
from restante import Admin, Client
from tests.faults import rows
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, debian_binary, embedded_binary

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A server that tests share and do not harm."""
    with RedisServer(debian_binary()) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A queue no other test uses."""
    return f"f-{next(_numbers)}"


@pytest.fixture(autouse=True)
def sound_history(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every row on the shared server: nothing was delivered that nobody sent, and no verdict was stale."""
    rows.uncounted.clear()
    if not {"name", "server"} <= set(request.fixturenames):
        yield
        return
    running, queue = request.getfixturevalue("server"), request.getfixturevalue("name")
    yield
    if rows.uncounted:
        with restante.connect(running.url) as post:
            rows.count_from_journal(post, queue)


@pytest.fixture
def post(server: RedisServer) -> Iterator[Client]:
    with restante.connect(server.url) as opened:
        yield opened


@pytest.fixture
def view(post: Client) -> Admin:
    return Admin(post, operator="tester")


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as running:
        yield running


@pytest.fixture(params=[debian_binary, embedded_binary], ids=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param()
    return found
