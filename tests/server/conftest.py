"""A Redis, a server on it in this process, and calls to it; each test begins with an empty Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import restante
from restante import Admin, Client
from restante.server import ServerSettings, Serving
from restante.server.access import SignInLimit, Tokens
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer, call
from tests.server.calls import Api, Up


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="session")
def _serving(_redis: RedisServer) -> Iterator[Serving]:
    with Serving(_redis.url, ServerSettings(port=0)) as serving:
        yield serving


def empty(redis: RedisServer, serving: Serving) -> None:
    """Empties the Redis, and the server's memory of it."""
    call(redis.client(), "FLUSHALL")
    serving.state.tokens._asked_at = float("-inf")
    serving.state.tokens.clock = time.monotonic
    serving.state.sign_in_limit = SignInLimit()
    serving.state._queues.clear()
    serving.state.client._queues.clear()
    # What was read of queues that are no more; names would be looked for within a second anyway.
    hub, loop = serving.state.hub, serving.state.loop
    assert loop is not None
    forgotten = threading.Event()
    for step in (hub.places.clear, hub._keys.clear, forgotten.set):
        loop.call_soon_threadsafe(step)
    assert forgotten.wait(PATIENCE)


@pytest.fixture
def redis(_redis: RedisServer, _serving: Serving) -> RedisServer:
    empty(_redis, _serving)
    return _redis


@pytest.fixture
def serving(_serving: Serving, redis: RedisServer) -> Serving:
    return _serving


@pytest.fixture
def post(redis: RedisServer) -> Iterator[Client]:
    with restante.connect(redis.url) as opened:
        yield opened


@pytest.fixture
def admin(post: Client) -> Admin:
    return Admin(post, operator="tester")


@pytest.fixture
def api(serving: Serving) -> Api:
    """Calls to a server without tokens."""
    return Api(serving.address)


@pytest.fixture
def token(post: Client, serving: Serving) -> Callable[..., Api]:
    """Makes a token with these roles, and calls that show it."""

    def make(*roles: str) -> Api:
        text = Tokens(post).create(f"t-{'-'.join(roles)}", roles)[1]
        serving.state.tokens._asked_at = float("-inf")
        return Api(serving.address, text)

    return make


class Clock:
    """The server's clock for tokens: it stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(serving: Serving) -> Clock:
    made = serving.state.tokens.clock = Clock()
    return made


@pytest.fixture
def up(post: Client) -> Iterator[Callable[..., Up]]:
    """Starts `restante up` in processes that end with the test."""
    with ExitStack() as running:
        yield lambda *words: running.enter_context(Up(post, *words))
