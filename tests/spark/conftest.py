"""One Redis for all tests of this folder; the Spark session is the process's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import restante
from restante import Client
from tests.harness.servers import RedisServer, call
from tests.spark.leased_work import Desk, opened_desk


@pytest.fixture(scope="session")
def _server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def server(_server: RedisServer) -> RedisServer:
    """An empty Redis."""
    call(_server.client(), "FLUSHALL")
    return _server


@pytest.fixture
def post(server: RedisServer) -> Iterator[Client]:
    """A client of it; `post.url` is what Spark's options take."""
    with restante.connect(server.url) as opened:
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """An empty folder for tables."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def _desk() -> Iterator[Desk]:
    with opened_desk() as desk:
        yield desk


@pytest.fixture
def desk(_desk: Desk) -> Iterator[Desk]:
    """An empty queue on a server whose clock stands still."""
    with _desk.fresh() as fresh:
        yield fresh
