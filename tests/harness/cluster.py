"""A Redis Cluster of three masters on this machine, and the moving of a slot under load.

When the cluster does not form in time it raises with what redis-cli and the nodes said.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import redis
from redis.crc import key_slot

from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import HOST, RedisServer, ServerFailed, call, require

#: Masters; Redis Cluster needs at least this many to agree on anything.
MASTERS: Final = 3

#: Milliseconds after which a silent node counts as gone. Shorter makes a busy test machine
#: declare healthy nodes dead, longer slows tests that kill one.
NODE_TIMEOUT_MS: Final = 3000

#: Milliseconds for a cluster under a clock that tests move: no step of the clock may look like a silent node.
NODE_TIMEOUT_MOVED_MS: Final = 100 * 365 * 86_400_000

#: Seconds for the nodes to agree.
JOIN_TIMEOUT: Final = PATIENCE

#: Milliseconds one MIGRATE may take.
MIGRATE_TIMEOUT_MS: Final = 5000

POLL: Final = 0.02


class RedisCluster3:
    """Three cluster masters without replicas. Use as a context manager or `start` and `stop`."""

    def __init__(
        self,
        binary: Path | None = None,
        *,
        appendonly: Literal[False, "everysec", "always"] = False,
        config: Mapping[str, str] | None = None,
        clock: FrozenClock | None = None,
    ) -> None:
        silent = NODE_TIMEOUT_MS if clock is None else NODE_TIMEOUT_MOVED_MS
        settings = {"cluster-node-timeout": str(silent), **(config or {})}
        self.nodes: list[RedisServer] = [
            RedisServer(binary, cluster=True, appendonly=appendonly, config=settings, clock=clock)
            for _ in range(MASTERS)
        ]
        self._clients: dict[int, redis.Redis] = {}

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self.nodes[0].port}"

    def start(self) -> Self:
        """Start the nodes, join them, and wait until each of them says that all is well."""
        for node in self.nodes:
            node.start()
        said = subprocess.run(
            [
                require("redis-cli"),
                "--cluster",
                "create",
                *(f"{HOST}:{node.port}" for node in self.nodes),
                "--cluster-replicas",
                "0",
                "--cluster-yes",
            ],
            capture_output=True,
            text=True,
            timeout=JOIN_TIMEOUT,
            check=False,
        )
        if said.returncode != 0:
            raise ServerFailed(f"redis-cli exit={said.returncode}\n{said.stdout}{said.stderr}")
        deadline = time.monotonic() + JOIN_TIMEOUT
        while not all(self._is_ok(node) for node in self.nodes):
            if time.monotonic() > deadline:
                states = [self._call(node, "CLUSTER", "INFO") for node in self.nodes]
                raise ServerFailed(f"the cluster did not form: {states}")
            time.sleep(POLL)
        return self

    def stop(self) -> None:
        """Stop the nodes and remove their data."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        for node in self.nodes:
            node.close()

    def node_id(self, node: RedisServer) -> str:
        """The name the cluster knows the node by."""
        name = self._call(node, "CLUSTER", "MYID")
        assert isinstance(name, bytes)
        return name.decode()

    def node_of_slot(self, slot: int) -> RedisServer:
        """The node that owns the slot, in the eyes of the first node that is alive."""
        asked = next(node for node in self.nodes if node.alive)
        ranges = self._call(asked, "CLUSTER", "SLOTS")
        assert isinstance(ranges, list)
        for first, last, owner, *_ in ranges:
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == owner[1])
        raise ServerFailed(f"no node owns slot {slot}")

    def node_of_key(self, key: str | bytes) -> RedisServer:
        """The node that owns the key's slot."""
        return self.node_of_slot(self.slot_of(key))

    @staticmethod
    def slot_of(key: str | bytes) -> int:
        """The slot of a key, by its hash tag if it has one."""
        return key_slot(key.encode() if isinstance(key, str) else key)

    def move_slot(
        self, slot: int, to_node: RedisServer, *, batch: int = 10, pause: float = 0.0, finish: bool = True
    ) -> int:
        """Move a slot while clients use it; returns the number of keys moved.

        The slot is in the migrating phase from the first batch to the last; `pause` seconds
        before each batch, and once before the end, make that phase last. Without `finish` it
        lasts until the next call, although every key has moved.
        """
        source = self.node_of_slot(slot)
        if source is to_node:
            return 0
        source_id, target_id = self.node_id(source), self.node_id(to_node)
        self._call(to_node, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        self._call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        moved = 0
        while True:
            time.sleep(pause)
            keys = self._call(source, "CLUSTER", "GETKEYSINSLOT", slot, batch)
            assert isinstance(keys, list)
            if not keys:
                break
            self._call(source, "MIGRATE", HOST, to_node.port, "", 0, MIGRATE_TIMEOUT_MS, "KEYS", *keys)
            moved += len(keys)
        if not finish:
            return moved
        # The target first: should this stop half way, the slot has an owner that has the keys.
        others = [node for node in self.nodes if node is not to_node and node is not source]
        for node in (to_node, source, *others):
            self._call(node, "CLUSTER", "SETSLOT", slot, "NODE", target_id)
        return moved

    def _call(self, node: RedisServer, *words: str | bytes | int) -> object:
        if node.port not in self._clients:
            self._clients[node.port] = node.client(socket_timeout=JOIN_TIMEOUT)
        answer: object = call(self._clients[node.port], *words)
        return answer

    def _is_ok(self, node: RedisServer) -> bool:
        state = self._call(node, "CLUSTER", "INFO")
        assert isinstance(state, bytes)
        said = dict(line.split(":", 1) for line in state.decode().split())
        everyone = said["cluster_known_nodes"] == str(MASTERS)
        return said["cluster_state"] == "ok" and everyone

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
