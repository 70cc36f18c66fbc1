"""Servers that answer and do not serve: what each says is understood, waited for, and told with its remedy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as driver

import restante
from restante import Client, NotReady, ReadOnly, Unavailable, Unconfirmed, UnsafeServer
from restante.core import doctor, operations
from tests.cli.conftest import Cli
from tests.faults.rows import verdict
from tests.faults.test_sentinel import watched
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.pretender import Pretender
from tests.harness.proxy import FaultProxy
from tests.harness.servers import HOST, RedisServer, call, closed_port


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that a test may break."""
    with RedisServer() as running:
        yield running


def sent_when(post: Client, name: str, mend: threading.Event) -> threading.Thread:
    """Sends in a thread, patiently; it must not end before `mend` is set."""

    def send() -> None:
        post.queue(name).send("x")
        assert mend.is_set()

    running = threading.Thread(target=send)
    running.start()
    return running


def test_a_server_without_its_replicas_is_told_and_waited_for(own: RedisServer, name: str) -> None:
    with restante.connect(own.url, patience=0) as hasty, restante.connect(own.url, patience=PATIENCE) as patient:
        hasty.queue(name).send("x")
        call(own.client(), "CONFIG", "SET", "min-replicas-to-write", "1")
        with pytest.raises(ReadOnly, match="NOREPLICAS"):
            hasty.queue(name).send("x")
        mended = threading.Event()
        sending = sent_when(patient, name, mended)
        wait_until(lambda: int(own.info("stats")["total_error_replies"]) > 3)
        mended.set()
        call(own.client(), "CONFIG", "SET", "min-replicas-to-write", "0")
        sending.join()
        assert restante.Admin(patient).counts(name).ready == 2


def test_a_server_that_cannot_write_its_snapshot_is_told_by_the_doctor_too(name: str, tmp_path: Path) -> None:
    with (
        RedisServer(config={"enable-protected-configs": "yes"}) as own,
        restante.connect(own.url, patience=0) as post,
    ):
        post.queue(name).send("x")
        client = own.client()
        call(client, "CONFIG", "SET", "save", "3600 1000000")
        folder = tmp_path / "gone"
        folder.mkdir()
        call(client, "CONFIG", "SET", "dir", str(folder))
        folder.rmdir()
        call(client, "BGSAVE")
        wait_until(lambda: own.info("persistence")["rdb_last_bgsave_status"] == "err")
        with pytest.raises(ReadOnly, match="MISCONF"):
            post.queue(name).send("x")
        found = findings(post)
        call(client, "CONFIG", "SET", "save", "")  # it would not end without a last snapshot
        assert ("danger", "last snapshot write failed") in found["persistence"]


def test_a_server_busy_with_a_script_is_told_and_waited_for(own: RedisServer, name: str) -> None:
    with restante.connect(own.url, patience=0) as hasty, restante.connect(own.url, patience=PATIENCE) as patient:
        hasty.queue(name).send("x")
        patient.queue(name).send("x")
        call(own.client(), "CONFIG", "SET", "lua-time-limit", "1")

        def hang() -> None:
            with pytest.raises(driver.ResponseError):
                call(own.client(), "EVAL", "while true do end", 0)

        hanging = threading.Thread(target=hang)
        hanging.start()

        def busy() -> bool:
            try:
                call(own.client(), "PING")
            except driver.ResponseError as error:
                return "BUSY" in str(error)
            return False

        wait_until(busy)
        with pytest.raises(NotReady, match="BUSY"):
            hasty.queue(name).send("x")
        mended = threading.Event()
        sending = sent_when(patient, name, mended)
        mended.set()
        call(own.client(), "SCRIPT", "KILL")
        sending.join()
        hanging.join()
        assert restante.Admin(patient).counts(name).ready == 3


def test_a_server_without_a_free_connection_is_told_and_waited_for(own: RedisServer, name: str) -> None:
    with restante.connect(own.url, patience=0) as hasty, restante.connect(own.url, patience=PATIENCE) as patient:
        client = own.client()
        call(client, "CONFIG", "SET", "maxclients", own.info("clients")["connected_clients"])
        with pytest.raises(Unavailable, match="raise maxclients"):
            hasty.queue(name).send("x")
        mended = threading.Event()
        sending = sent_when(patient, name, mended)
        wait_until(lambda: int(own.info("stats")["rejected_connections"]) > 3)
        mended.set()
        call(client, "CONFIG", "SET", "maxclients", "100")
        sending.join()
        assert restante.Admin(patient).counts(name).ready == 1


@pytest.mark.parametrize(
    ("version", "memory", "told"),
    [("6.2.14", "", "6.2.14: Restante needs 7.0"), ("7.0.0", "maxmemory_policy:allkeys-lru", "noeviction")],
)
async def test_a_server_that_would_lose_messages_is_refused(version: str, memory: str, told: str, name: str) -> None:
    with Pretender(version, memory=memory) as server:
        with restante.connect(server.url) as post, pytest.raises(UnsafeServer, match=told):
            post.queue(name).send("x")
        async with restante.aio.connect(server.url) as awaited:
            with pytest.raises(UnsafeServer, match=told):
                await awaited.queue(name).send("x")


def test_a_replica_that_lost_its_master_is_told(own: RedisServer, name: str) -> None:
    client = own.client()
    call(client, "CONFIG", "SET", "replica-serve-stale-data", "no")
    call(client, "REPLICAOF", HOST, closed_port())
    with restante.connect(own.url, patience=0) as post, pytest.raises(NotReady, match="lost its master"):
        post.connection.command("SMEMBERS", "x", key=b"x")


async def test_a_master_that_became_a_replica_sends_its_clients_back_to_the_sentinels(
    own: RedisServer, name: str, tmp_path: Path
) -> None:
    """The connection stays open all the while, as after an operator's REPLICAOF: nothing but the answer tells."""
    with RedisServer() as other:
        call(other.client(), "REPLICAOF", HOST, own.port)
        wait_until(lambda: other.info("replication").get("master_link_status") == "up")
        with watched(own, tmp_path) as url, restante.connect(url, patience=PATIENCE) as post:
            queue = post.queue(name)
            queue.send("to the first", durability="replica:1")
            awaited = restante.aio.connect(url, patience=PATIENCE)
            await awaited.queue(name).send("to the first", durability="replica:1")
            port = int(url.partition("://")[2].partition("/")[0].rpartition(":")[2])
            with driver.Redis(port=port) as sentinel:
                call(other.client(), "REPLICAOF", "NO", "ONE")
                call(own.client(), "REPLICAOF", HOST, other.port)
                call(sentinel, "SENTINEL", "REMOVE", "shop")
                call(sentinel, "SENTINEL", "MONITOR", "shop", HOST, other.port, 1)
            queue.send("to the second")
            await awaited.queue(name).send("to the second")
            await awaited.close()
        with restante.connect(other.url) as post:
            found = restante.Admin(post).counts(name).ready
        # Nothing but the refusal can have told the client: its connection was never closed.
        assert "errorstat_READONLY" in own.info("errorstats")
    verdict("28b", n=4, lost=4 - found)


def findings(post: Client) -> dict[str, list[tuple[str, str]]]:
    """What the doctor says: level and finding by what it looked at."""
    made: dict[str, list[tuple[str, str]]] = {}
    for one in doctor.examine(post):
        made.setdefault(one.what, []).append((one.level, one.found))
        assert bool(one.remedy) == (one.level != "ok"), one
    return made


def test_the_doctor_sees_a_replica_and_what_its_queues_need(own: RedisServer, name: str) -> None:
    with RedisServer() as other, restante.connect(own.url) as master:
        master.queue(name).send("x")
        restante.Admin(master).pause(name)
        call(own.client(), "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        call(other.client(), "REPLICAOF", HOST, own.port)
        wait_until(lambda: other.info("replication").get("master_link_status") == "up")
        with restante.connect(other.url, patience=0) as post:
            found = findings(post)
        assert (found["role"], found[f"queue {name}"]) == ([("danger", "replica")], [("warning", "paused")])
        assert findings(master)["role"] == [("ok", "master with 1 replicas")]


def test_the_doctor_names_a_key_that_restante_did_not_write(own: RedisServer, name: str) -> None:
    with restante.connect(own.url) as post:
        post.queue(name).send("x")
        call(own.client(), "DEL", f"restante:{{{name}}}:ready")
        call(own.client(), "SET", f"restante:{{{name}}}:ready", "planted")
        found = findings(post)
    assert found["queues"] == [("danger", "cannot be counted")]


def test_the_doctor_sees_what_is_lost_stuck_late_or_nearly_full(name: str) -> None:
    with FrozenClock() as clock:
        clock.unfreeze()
        with RedisServer(clock=clock) as server, restante.connect(server.url) as post:
            view, stuck = restante.Admin(post), post.queue(f"{name}-stuck")
            post.queue(name).send("x")
            view.pause(name)
            stuck.send("x")
            assert stuck.receive(lease=1) is not None
            clock.advance(3600)
            call(server.client(), "CONFIG", "SET", "maxmemory", str(int(server.used_memory() * 1.03)))
            found = findings(post)
    assert found["persistence"] == [("danger", "no append-only file")]
    assert found[f"queue {name}"] == [("warning", "paused")]
    assert found[f"queue {name}-stuck"] == [("warning", "1 leases overdue")]
    assert [level for level, _ in found["memory"]] == ["danger"]
    assert [level for level, _ in found["clock"]] == ["warning"]


@pytest.mark.parametrize(
    ("policy", "level"), [("allkeys-lru", "danger"), ("volatile-ttl", "warning"), ("noeviction", "ok")]
)
def test_the_doctor_sees_what_a_full_server_would_delete(policy: str, level: str) -> None:
    config = {"maxmemory-policy": policy, "maxmemory": "1gb"}
    with (
        RedisServer(appendonly="always", config=config) as server,
        restante.connect(server.url, allow_eviction=True) as post,
    ):
        found = {one.what: one for one in doctor.examine(post)}
    assert (found["eviction"].level, found["eviction"].found) == (level, policy)
    assert {one.level for what, one in found.items() if what != "eviction"} <= {"ok", "notice", "warning"}
    assert ("noeviction" in found["eviction"].remedy) == (level != "ok")


def test_a_send_that_nobody_confirmed_ends_with_three(proxy: FaultProxy, tmp_path: Path, name: str) -> None:
    cli = Cli(proxy.url, tmp_path)
    assert cli("send", name, "1").code == 0
    proxy.cut_before_reply(1_000_000, matching=lambda request: operations.SEND.sha in request)
    ran = cli("send", name, "2", "--json")
    assert (ran.code, ran.out) == (3, "")
    assert f'"error":"{Unconfirmed.__name__}"' in ran.err
