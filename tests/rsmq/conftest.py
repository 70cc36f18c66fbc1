"""Servers under a clock the tests move, each kind of Redis in turn, with RSMQ clients on them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

import restante
from restante import Client
from restante.rsmq import AsyncRsmq, Rsmq
from tests.harness.clock import START_MS, FrozenClock
from tests.harness.servers import RedisServer, call, debian_binary, embedded_binary
from tests.rsmq.clients import Node, Pyrsmq, RsmqClient


@dataclass
class Bench:
    """A server, its clock, a plain client and a Restante client."""

    server: RedisServer
    clock: FrozenClock
    client: redis.Redis
    post: Client


def _running(binary: Path) -> Iterator[Bench]:
    with FrozenClock() as clock, RedisServer(binary, clock=clock) as server, restante.connect(server.url) as post:
        yield Bench(server, clock, server.client(), post)


def _cleared(bench: Bench) -> Bench:
    call(bench.client, "FLUSHALL")
    bench.clock.set(START_MS)
    return bench


@pytest.fixture(scope="session")
def _debian() -> Iterator[Bench]:
    yield from _running(debian_binary())


@pytest.fixture(scope="session")
def _valkey() -> Iterator[Bench]:
    yield from _running(embedded_binary())


@pytest.fixture(params=["redis", "valkey"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """An empty server under a frozen clock, each kind in turn."""
    found: Bench = request.getfixturevalue("_debian" if request.param == "redis" else "_valkey")
    return _cleared(found)


@pytest.fixture
def debian(_debian: Bench) -> Bench:
    """An empty Redis 7 under a frozen clock, for behaviour that is the same in every version."""
    return _cleared(_debian)


@pytest.fixture(params=["PyRSMQ", "npm"])
def writer(request: pytest.FixtureRequest, bench: Bench) -> RsmqClient:
    """Each client in turn, in the default namespace."""
    return Pyrsmq(bench.client) if request.param == "PyRSMQ" else Node(bench.client)


@pytest.fixture
def node(bench: Bench) -> Node:
    """The fast client, for many messages."""
    return Node(bench.client)


class Awaited:
    """The asyncio client with the methods of the synchronous client."""

    def __init__(self, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncRsmq(url, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            return self._loop.run_until_complete(made) if inspect.isawaitable(made) else made

        return call if callable(found) else found

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def rsmq(request: pytest.FixtureRequest, bench: Bench) -> Iterator[Rsmq]:
    """Restante's client, synchronous and asyncio in turn."""
    made: Any = Rsmq(bench.server.url) if request.param == "blocking" else Awaited(bench.server.url)
    yield made
    made.close()


@pytest.fixture
def ours(debian: Bench) -> Iterator[Rsmq]:
    """The synchronous client on Redis 7, for behaviour that is the same in both clients."""
    with Rsmq(debian.server.url) as client:
        yield client
