"""Servers under a clock the tests move, each kind of Redis in turn, with RSMQ clients on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

import restante
from restante import Post
from tests.harness.clock import START_MS, FrozenClock
from tests.harness.servers import RedisServer, call, debian_binary, embedded_binary
from tests.rsmq.clients import Client, Node, Pyrsmq


@dataclass
class Bench:
    """A server, its clock, a plain client and a post."""

    server: RedisServer
    clock: FrozenClock
    client: redis.Redis
    post: Post


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
def _old() -> Iterator[Bench]:
    yield from _running(embedded_binary())


@pytest.fixture(params=["7", "6.2"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """An empty server under a frozen clock, each kind in turn."""
    found: Bench = request.getfixturevalue("_debian" if request.param == "7" else "_old")
    return _cleared(found)


@pytest.fixture
def debian(_debian: Bench) -> Bench:
    """An empty Redis 7 under a frozen clock, for what no version changes."""
    return _cleared(_debian)


@pytest.fixture(params=["PyRSMQ", "npm"])
def writer(request: pytest.FixtureRequest, bench: Bench) -> Client:
    """Each client in turn, in the default namespace."""
    return Pyrsmq(bench.client) if request.param == "PyRSMQ" else Node(bench.client)


@pytest.fixture
def node(bench: Bench) -> Node:
    """The quick one, for many messages."""
    return Node(bench.client)
