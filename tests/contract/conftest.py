"""Each contract test runs once per room; a room's servers live as long as the test run."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import restante
from restante import Client, Queue
from restante.server import ServerSettings, Serving
from tests.contract.rooms import (
    ALL,
    BLOCKING,
    HTTP_CAN,
    Room,
    async_client,
    async_http_client,
    fresh_name,
    http_client,
    sync_client,
)
from tests.contract.rsmq_room import RSMQ_CAN, rsmq_client, rsmq_states
from tests.harness.clock import FrozenClock
from tests.harness.cluster import RedisCluster3
from tests.harness.requirements import require
from tests.harness.servers import RedisServer, debian_binary, embedded_binary

#: Every room the contract runs on, and what it can do: a test that needs more is not collected for it.
ROOMS: Final = {
    "sync": BLOCKING,
    "async": ALL,
    "async-valkey": ALL,
    "cluster": BLOCKING,
    "embedded": BLOCKING,
    "http": HTTP_CAN,
    "async-http": ALL - {"consume", "schedule", "batches"},
    "rsmq": RSMQ_CAN,
    "rsmq-valkey": RSMQ_CAN,
}
#: Rooms for `make long` alone: what they join, a client and a server, `make test` tries in two other rooms.
LONG: Final = {"async-valkey"}


@dataclass
class Clocked:
    """A server and the clock it lives by."""

    url: str
    clock: FrozenClock
    plain: Client


def _clocked(binary: Path) -> Iterator[Clocked]:
    with FrozenClock() as clock:
        clock.unfreeze()
        with RedisServer(binary, clock=clock) as server, restante.connect(server.url) as plain:
            yield Clocked(server.url, clock, plain)


@pytest.fixture(scope="session")
def _debian() -> Iterator[Clocked]:
    yield from _clocked(debian_binary())


@pytest.fixture(scope="session")
def _valkey() -> Iterator[Clocked]:
    yield from _clocked(embedded_binary())


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Clocked]:
    require("redis-cli")
    with FrozenClock() as clock:
        clock.unfreeze()
        with RedisCluster3(clock=clock) as cluster, restante.connect(cluster.url, patience=10) as plain:
            yield Clocked(cluster.url, clock, plain)


@pytest.fixture(scope="session")
def _directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocked]:
    debian_binary()
    with FrozenClock() as clock:
        clock.unfreeze()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in clock.env().items():  # the client starts its server itself
                patch.setitem(os.environ, name, value)
            plain = restante.connect(directory=tmp_path_factory.mktemp("embedded"))
        with plain:
            yield Clocked(plain.url, clock, plain)


@pytest.fixture(scope="session")
def _http(_debian: Clocked) -> Iterator[str]:
    # Without its sweeper, so that a test's clock alone decides what has moved.
    with Serving(_debian.url, ServerSettings(port=0, sweep=False)) as serving:
        yield serving.address


def _needs(node: pytest.Item) -> set[str]:
    return {word for mark in node.iter_markers("needs") for word in mark.args}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of a test per room that can do what it needs."""
    if "room" in metafunc.fixturenames:
        needed = _needs(metafunc.definition)
        rooms = [
            pytest.param(kind, marks=pytest.mark.chaos if kind in LONG else ())
            for kind, can in ROOMS.items()
            if needed <= can
        ]
        metafunc.parametrize("room", rooms, indirect=True)


@pytest.fixture
async def room(request: pytest.FixtureRequest) -> AsyncIterator[Room]:
    """One implementation per run of the test.

    The clock of its server stands still unless the test moves it, so that no lease or window ends because the machine
    is busy. It runs for tests of receives that wait, since a waiting server measures by it, and for RSMQ, where it
    alone keeps messages in order.
    """
    kind: str = request.param
    servers = {"cluster": "_cluster", "embedded": "_directory"}
    fixture = "_valkey" if kind.endswith("valkey") else servers.get(kind, "_debian")
    server: Clocked = request.getfixturevalue(fixture)
    if "poll" in _needs(request.node) or kind.startswith("rsmq"):
        server.clock.unfreeze()
    else:
        server.clock.set(time.time_ns() // 1_000_000)
    counted = None
    if kind.endswith("http"):
        web = async_http_client if kind.startswith("async") else http_client
        opener = web(request.getfixturevalue("_http"))
    elif kind.startswith("rsmq"):
        opener, counted = rsmq_client(server.url), rsmq_states(server.plain)
    else:
        opener = (async_client if kind.startswith("async") else sync_client)(server.url)
    made = Room(kind, opener, server.plain, ROOMS[kind], server.clock, spread=kind == "cluster", counted=counted)
    yield made
    await made.close()


@pytest.fixture
def plain_queue(_debian: Clocked) -> Queue:
    """A queue on the newest server, for properties that no runner changes."""
    return _debian.plain.queue(fresh_name())
