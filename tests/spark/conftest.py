"""One Spark and one Redis for all tests of this folder: a second JVM would cost more than the tests themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import restante
from restante import Post
from tests.harness.servers import RedisServer, call
from tests.harness.spark_session import quick_session
from tests.spark.leased_work import Desk, opened_desk


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of the test run; the first run of all leaves the class archive for the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESTANTE_SPARK_ARCHIVE", os.environ.get("RESTANTE_SPARK_ARCHIVE", "1"))
        running = quick_session()
    yield running
    running.stop()


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
def post(server: RedisServer) -> Iterator[Post]:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start Spark in processes of their own take minutes on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
