"""Both brokers, started by the tests, and services on them that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bus.places import OnRabbitMQ, OnRedis, Place, Service
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer, call


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer]:
    with RedisServer(appendonly="always") as running:
        yield running


@pytest.fixture(scope="package")
def rabbit() -> Iterator[RabbitServer]:
    """Not the process's own: what other folders have bound there would take events that nobody listens to here."""
    with RabbitServer() as running:
        yield running


@pytest.fixture
def redis(_redis: RedisServer) -> RedisServer:
    call(_redis.client(), "FLUSHALL")
    return _redis


@pytest.fixture(params=["redis", "rabbitmq"])
def place(request: pytest.FixtureRequest, redis: RedisServer, tmp_path: Path) -> Place:
    """A broker: the scenario runs on each."""
    if request.param == "redis":
        return OnRedis(tmp_path, redis)
    return OnRabbitMQ(tmp_path, request.getfixturevalue("rabbit"), redis)


@pytest.fixture
def service(place: Place) -> Iterator[Callable[..., Service]]:
    """Starts services that are gone when the test ends."""
    with ExitStack() as running:
        yield lambda name, *handlers, **told: running.enter_context(Service(place, name, list(handlers), **told))
