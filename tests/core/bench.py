"""A server under a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from restante.core.connection import Connection
from tests.harness.clock import START_MS, FrozenClock
from tests.harness.servers import RedisServer, call


@dataclass
class Bench:
    """A server, its clock, a plain client to look with and a connection to work with."""

    server: RedisServer
    clock: FrozenClock
    client: redis.Redis
    connection: Connection

    def clear(self) -> None:
        """As if just started."""
        call(self.client, "FLUSHALL")
        self.clock.set(START_MS)
