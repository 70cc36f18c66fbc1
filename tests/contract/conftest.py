"""Each contract test runs once per room; a room's servers live as long as the test run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import restante
from restante import Post, Queue
from restante.server import ServerSettings, Serving
from tests.contract.rooms import HTTP_CAN, Room, async_client, fresh_name, http_client, sync_client
from tests.contract.rsmq_room import RSMQ_CAN, rsmq_client, rsmq_states
from tests.harness.clock import FrozenClock
from tests.harness.cluster import RedisCluster3
from tests.harness.requirements import require
from tests.harness.servers import RedisServer, debian_binary, embedded_binary

#: Every room the contract runs on.
ROOMS = ("sync", "sync-6.2", "async", "async-6.2", "cluster", "embedded", "http", "rsmq", "rsmq-6.2")


@dataclass
class Clocked:
    """A server whose clock runs with the real one until a test moves it."""

    url: str
    clock: FrozenClock
    plain: Post


def _clocked(binary: Path) -> Iterator[Clocked]:
    with FrozenClock() as clock:
        clock.unfreeze()
        with RedisServer(binary, clock=clock) as server, restante.connect(server.url) as plain:
            yield Clocked(server.url, clock, plain)


@pytest.fixture(scope="session")
def _debian() -> Iterator[Clocked]:
    yield from _clocked(debian_binary())


@pytest.fixture(scope="session")
def _old() -> Iterator[Clocked]:
    yield from _clocked(embedded_binary())


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Post]:
    require("redis-cli")
    with RedisCluster3() as cluster, restante.connect(cluster.url, patience=10) as plain:
        yield plain


@pytest.fixture(scope="session")
def _directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    debian_binary()
    with restante.connect(directory=tmp_path_factory.mktemp("embedded")) as plain:
        yield plain


@pytest.fixture(scope="session")
def _http(_debian: Clocked) -> Iterator[str]:
    # Without its sweeper, so that a test's clock alone decides what has moved.
    with Serving(_debian.url, ServerSettings(port=0, sweep=False)) as serving:
        yield serving.address


@pytest.fixture(params=ROOMS)
async def room(request: pytest.FixtureRequest) -> AsyncIterator[Room]:
    """One implementation per run of the test."""
    kind: str = request.param
    if kind == "cluster":
        plain = request.getfixturevalue("_cluster")
        made = Room(kind, sync_client(plain.url), plain, spread=True)
    elif kind == "embedded":
        plain = request.getfixturevalue("_directory")
        made = Room(kind, sync_client(plain.url), plain)
    else:
        server: Clocked = request.getfixturevalue("_old" if kind.endswith("6.2") else "_debian")
        server.clock.unfreeze()
        if kind == "http":
            made = Room(kind, http_client(request.getfixturevalue("_http")), server.plain, HTTP_CAN, clock=server.clock)
        elif kind.startswith("rsmq"):
            made = Room(
                kind, rsmq_client(server.url), server.plain, RSMQ_CAN, clock=server.clock,
                counted=rsmq_states(server.plain),
            )  # fmt: skip
        else:
            opener = async_client if kind.startswith("async") else sync_client
            made = Room(kind, opener(server.url), server.plain, clock=server.clock)
    for mark in request.node.iter_markers("needs"):
        missing = sorted(set(mark.args) - made.capabilities)
        if missing:
            pytest.skip(f"{kind} does not claim {', '.join(missing)}")
    yield made
    await made.close()


@pytest.fixture
def plain_queue(_debian: Clocked) -> Queue:
    """A queue on the newest server, for properties that no runner changes."""
    return _debian.plain.queue(fresh_name())
