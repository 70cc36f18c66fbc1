"""Rows 26-28: another server becomes the master; what the replica confirmed survives, and clients follow."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import restante
from restante import Admin, RestanteError, Unavailable, Unconfirmed
from tests.faults.rows import count_from_journal, drain, missing, script_calls, verdict, wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import spawn
from tests.harness.proxy import FaultProxy
from tests.harness.servers import HOST, RedisServer, call, debian_binary, free_port

#: A master that does not wait for a second replica before it serves the first.
ALONE = {"repl-diskless-sync-delay": "0"}


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
            # How often it looks: its usual seconds would only make the tests slow. While the master is down it asks a
            # replica once a second, and gives the failover up for ten seconds if the answer is older than five pings.
            call(sentinel, "SENTINEL", "DEBUG", "info-period", 100, "ping-period", 300, "publish-period", 100)
        yield f"redis+sentinel://{HOST}:{port}/shop/0"
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer(config=ALONE) as master, RedisServer(config=ALONE) as replica:
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
        verdict(26, n=len(sent), lost=missing(sent, got), max_recovery_s=outage, within_s=5.0)
        count_from_journal(post, name)


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


def role(server: RedisServer) -> str:
    """Its part in replication, "" where it closed our connection, as it does with everybody's when the part changes."""
    try:
        return server.info("replication")["role"]
    except redis.ConnectionError:
        return ""


def serves(server: RedisServer, beyond: int) -> bool:
    """Whether clients have called more scripts there than so many."""
    try:
        return script_calls(server) > beyond
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize("failovers", [1, pytest.param(5, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_a_master_demoted_under_load_is_left_and_what_the_replica_confirmed_is_served(
    pair: tuple[RedisServer, RedisServer], tmp_path: Path, name: str, failovers: int
) -> None:
    """Both servers run all the while: until the sentinel demotes it, the old master takes writes that nobody keeps."""
    master, _ = pair
    confirmed: list[str] = []
    seen: list[str] = []
    errors: list[Exception] = []
    over = threading.Event()

    def produce(url: str) -> None:
        with restante.connect(url, socket_timeout=1.0, patience=PATIENCE) as post:
            queue = post.queue(name, lease=1)
            while not over.is_set():
                try:
                    confirmed.append(queue.send(len(confirmed), durability="replica:1"))
                except Unconfirmed:
                    pass  # no replica follows at the moment: not promised
                except Exception as error:
                    errors.append(error)
                    return

    def consume(url: str) -> None:
        with restante.connect(url, patience=PATIENCE) as post:
            queue = post.queue(name, lease=1)
            while not over.is_set():
                try:
                    message = queue.receive(timeout=0.1)
                    if message is not None:
                        seen.append(message.id)
                        message.ack()
                except (restante.LeaseLost, Unavailable):
                    pass  # taken from the old master, settled at the new one; or its connection was closed
                except Exception as error:
                    errors.append(error)
                    return

    recoveries = []
    with watched(master, tmp_path) as url, contextlib.closing(sentinel_of(url)) as sentinel:
        threads = [threading.Thread(target=work, args=(url,)) for work in (produce, consume)]
        for thread in threads:
            thread.start()
        try:
            for number in range(failovers):
                old, new = pair if number % 2 == 0 else pair[::-1]
                recoveries.append(_fail_over(sentinel, old, new, confirmed))
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert not errors, errors
        with restante.connect(new.url) as post:
            while Admin(post).counts(name).waiting:
                seen += drain(post, name)
            verdict(
                28,
                n=len(confirmed),
                lost=missing(confirmed, seen),
                max_recovery_s=max(recoveries),
                within_s=1.0,
                failovers=failovers,
            )
            count_from_journal(post, name)


def _accepted(sentinel: redis.Redis) -> bool:
    try:
        return bool(call(sentinel, "SENTINEL", "FAILOVER", "shop"))
    except redis.ResponseError as error:
        if "NOGOODSLAVE" not in str(error):
            raise
        return False


def _fail_over(sentinel: redis.Redis, old: RedisServer, new: RedisServer, confirmed: list[str]) -> float:
    """Makes the other server the master; returns the seconds from the demotion of the old one to a call at the new."""
    loaded = len(confirmed) + 20
    wait_until(lambda: len(confirmed) > loaded, 30, "sends before the failover")
    served = script_calls(new)
    wait_until(lambda: _accepted(sentinel), 30, "a sentinel that knows the replica well enough")
    wait_until(lambda: role(old) == "slave", 30, "the demotion")
    took = wait_until(lambda: serves(new, served), 30, "a call at the new master")
    loaded = len(confirmed)
    wait_until(lambda: len(confirmed) > loaded, 30, "a send that the old master confirms as a replica")
    return took


def sentinel_of(url: str) -> redis.Redis:
    """A client of the sentinel that a URL asks."""
    return redis.Redis(port=int(url.partition("://")[2].partition("/")[0].rpartition(":")[2]))


def test_a_lagging_replica_loses_what_only_the_master_had_and_nothing_it_confirmed(tmp_path: Path, name: str) -> None:
    with (
        RedisServer(config=ALONE) as master,
        RedisServer() as replica,
        FaultProxy(master.port, raw=True) as link,
    ):
        call(replica.client(), "REPLICAOF", HOST, link.port)
        wait_until(lambda: replica.info("replication").get("master_link_status") == "up", 10, "the replica")
        with watched(master, tmp_path) as url, restante.connect(url, socket_timeout=1.0, patience=PATIENCE) as post:
            queue = post.queue(name)
            link.delay(0.1)
            confirmed = [queue.send(number, durability="replica:1") for number in range(5)]
            link.blackhole()
            with pytest.raises(Unconfirmed, match="not yet at durability replica:1") as doubt:
                queue.send("nobody confirms it", durability="replica:1")
            lagging = [queue.send(number, durability="memory") for number in range(20)]
            master.kill9()
            wait_until(lambda: role(replica) == "master", 30, "the failover")
            after = queue.send("after")
            found = drain(post, name)
            # The check of P1 sees a loss where there is one: what nobody but the dead master had is gone.
            assert missing(lagging, found) == 20
            assert not set(doubt.value.ids) & set(found)
            verdict(27, n=6, lost=missing([*confirmed, after], found), lost_at_memory=missing(lagging, found))
            count_from_journal(post, name)
