"""Rows 26 and 28: the master dies and sentinels name another; sends confirmed by the replica survive it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import restante
from restante import RestanteError
from tests.faults.rows import missing, verdict, wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import spawn
from tests.harness.servers import HOST, RedisServer, call, debian_binary, free_port


@contextlib.contextmanager
def watched(master: RedisServer, folder: Path) -> Iterator[str]:
    """A sentinel that watches the master; gives the URL that asks it."""
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {HOST}\nsentinel monitor shop {HOST} {master.port} 1\n"
        "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 5000\n"
    )
    child = spawn([debian_binary(), config, "--sentinel", "--logfile", folder / "sentinel.log"])
    try:
        with contextlib.closing(redis.Redis(port=port)) as sentinel:

            def sees_a_replica() -> bool:
                try:
                    found = call(sentinel, "SENTINEL", "replicas", "shop")
                    return bool(found) and call(sentinel, "INFO", "server")["process_id"] == child.pid
                except redis.ConnectionError:
                    return False

            wait_until(sees_a_replica, 20, "the sentinel to find the replica")
        yield f"redis+sentinel://{HOST}:{port}/shop/0"
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer(debian_binary()) as master, RedisServer(debian_binary()) as replica:
        call(replica.client(), "REPLICAOF", HOST, master.port)
        wait_until(lambda: replica.info("replication").get("master_link_status") == "up", 10, "the replica")
        yield master, replica


@pytest.mark.timed
def test_a_dead_master_is_followed_and_what_the_replica_confirmed_survives(
    pair: tuple[RedisServer, RedisServer], tmp_path: Path, name: str
) -> None:
    master, _ = pair
    with watched(master, tmp_path) as url, restante.connect(url) as post:
        queue = post.queue(name)
        sent = [queue.send(number, durability="replica:1") for number in range(50)]
        master.kill9()
        started = time.monotonic()
        while True:
            try:
                # There is no replica left, so the rest is confirmed by the new master alone.
                sent.append(queue.send(len(sent)))
                break
            except RestanteError:
                assert time.monotonic() - started < PATIENCE
        outage = time.monotonic() - started
        got = [message.id for _ in range(60) if (message := queue.receive()) is not None]
    verdict(26, n=len(sent), lost=missing(sent, got), max_recovery_s=outage, within_s=15.0)


async def test_asyncio_asks_the_sentinels_too(pair: tuple[RedisServer, RedisServer], tmp_path: Path, name: str) -> None:
    master, _ = pair
    with watched(master, tmp_path) as url:
        async with restante.aio.connect(url) as post:
            queue = post.queue(name)
            sent = await queue.send("x", durability="replica:1")
            master.kill9()
            for _ in range(1000):
                try:
                    message = await queue.receive()
                    break
                except RestanteError:
                    await asyncio.sleep(0.2)
            assert message is not None
            assert message.id == sent
