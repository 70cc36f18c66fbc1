"""Both brokers, started once; a test module's programs and workers run once per broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.servers import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])
def broker(request: pytest.FixtureRequest) -> str:
    """The broker's URL, of each kind in turn."""
    if request.param == "rabbitmq":
        return str(request.getfixturevalue("rabbit").url)
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"{server.url.replace('redis://', 'restante://')}/0"
