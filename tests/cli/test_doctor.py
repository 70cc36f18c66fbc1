"""The doctor finds each problem on an otherwise healthy server, and gives its remedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import restante
from restante import Admin, Client
from tests.cli.conftest import Cli
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import wait_until
from tests.harness.servers import HOST, RedisServer, call, closed_port

#: The settings of a healthy server, which each test restores.
HEALTHY = {
    "maxmemory": "200mb",
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "always",
}


@pytest.fixture(scope="module")
def patient() -> Iterator[RedisServer]:
    """A healthy server."""
    with RedisServer(appendonly="always", config={"maxmemory": "200mb"}) as running:
        yield running


@pytest.fixture
def well(patient: RedisServer) -> Iterator[RedisServer]:
    yield patient
    client = patient.client()
    call(client, "REPLICAOF", "NO", "ONE")
    for name, value in HEALTHY.items():
        call(client, "CONFIG", "SET", name, value)
    call(client, "FLUSHALL")
    wait_until(lambda: patient.info("persistence")["aof_rewrite_in_progress"] == "0")


def findings(server: RedisServer, folder: Path) -> tuple[int, list[dict[str, str]]]:
    """The doctor's exit code, and what it found.

    Left out are the time of a round trip, which is the machine's, and the notice about the default user, which these
    servers have.
    """
    ran = Cli(server.url, folder).inside("doctor", "--json")
    return ran.code, [one for one in ran.json["findings"] if one["what"] not in ("round trip", "user")]


def ailing(server: RedisServer, folder: Path) -> tuple[int, list[dict[str, str]]]:
    """The same without findings that are ok."""
    code, found = findings(server, folder)
    return code, [one for one in found if one["level"] != "ok"]


def setting(name: str, value: str) -> Callable[[RedisServer], None]:
    def change(server: RedisServer) -> None:
        call(server.client(), "CONFIG", "SET", name, value)

    return change


def memory(share: float) -> Callable[[RedisServer], None]:
    """Sets maxmemory so that this share of it is used."""

    def change(server: RedisServer) -> None:
        # Enough that what connections take and give back is little of it.
        call(server.client(), "SETRANGE", "ballast", 50_000_000, "x")
        call(server.client(), "CONFIG", "SET", "maxmemory", str(round(server.used_memory() / share)))

    return change


def replica(server: RedisServer) -> None:
    call(server.client(), "REPLICAOF", HOST, closed_port())


#: How to break the server; the name and level of the expected finding; parts of its texts.
AILMENTS: dict[str, tuple[Callable[[RedisServer], None], str, str, str, str]] = {
    "all keys evicted": (
        setting("maxmemory-policy", "allkeys-lfu"),
        "eviction",
        "danger",
        "allkeys-lfu",
        "maxmemory-policy noeviction",
    ),
    "some keys evicted": (
        setting("maxmemory-policy", "volatile-lru"),
        "eviction",
        "warning",
        "volatile-lru",
        "noeviction",
    ),
    "no append-only file": (
        setting("appendonly", "no"),
        "persistence",
        "danger",
        "no append-only file",
        "appendonly yes",
    ),
    "no fsync": (setting("appendfsync", "no"), "persistence", "warning", "left to the system", "appendfsync everysec"),
    "memory used up": (memory(0.97), "memory", "danger", "97%", "raise maxmemory"),
    "memory nearly used up": (memory(0.88), "memory", "warning", "88%", "raise maxmemory"),
    "no maxmemory": (setting("maxmemory", "0"), "memory", "warning", "no maxmemory", "set maxmemory"),
    "a replica": (replica, "role", "danger", "replica", "point the URL at the master"),
}


def test_a_healthy_server_has_no_ailment(well: RedisServer, tmp_path: Path) -> None:
    code, found = findings(well, tmp_path)
    assert code == 0
    assert {one["level"] for one in found} == {"ok"}
    assert [one["what"] for one in found] == ["version", "eviction", "persistence", "memory", "clock", "role"]


@pytest.mark.parametrize("ailment", AILMENTS)
def test_each_ailment_of_a_server_is_found_alone(well: RedisServer, tmp_path: Path, ailment: str) -> None:
    infect, what, level, text, remedy = AILMENTS[ailment]
    infect(well)
    code, (found,) = ailing(well, tmp_path)
    assert (found["what"], found["level"], code) == (what, level, 5 if level == "danger" else 0)
    assert text in found["found"]
    assert remedy in found["remedy"]


def test_a_snapshot_that_failed_is_found(tmp_path: Path) -> None:
    with RedisServer(appendonly="always", config={"maxmemory": "200mb", "enable-protected-configs": "yes"}) as server:
        client = server.client()
        (tmp_path / "gone").mkdir()
        call(client, "CONFIG", "SET", "dir", str(tmp_path / "gone"))
        (tmp_path / "gone").rmdir()
        call(client, "BGSAVE")
        wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
        code, (found,) = ailing(server, tmp_path)
        call(client, "CONFIG", "SET", "dir", str(server.directory))
    assert (code, found["what"], found["level"]) == (5, "persistence", "danger")
    assert "last snapshot write failed" in found["found"]
    assert "free disk space" in found["remedy"]


def test_a_clock_that_is_wrong_is_found(tmp_path: Path) -> None:
    with FrozenClock(time.time_ns() // 1_000_000) as clock:
        clock.offset(-60)
        with RedisServer(appendonly="always", config={"maxmemory": "200mb"}, clock=clock) as server:
            code, (found,) = ailing(server, tmp_path)
    assert (code, found["what"], found["level"]) == (0, "clock", "warning")
    assert "-60.0 s" in found["found"] or "-59." in found["found"]


@pytest.fixture
def post(well: RedisServer) -> Iterator[Client]:
    with restante.connect(well.url) as opened:
        yield opened


def paused(post: Client) -> None:
    Admin(post).pause("orders")


def overdue(post: Client) -> None:
    post.queue("orders").receive(lease=0.001)
    wait_until(lambda: Admin(post).counts("orders").overdue)


def journal_lost(post: Client) -> None:
    post.connection.command("HSET", "restante:{orders}:queue", "journal_lost", 7, key=b"restante:{orders}:queue")


@pytest.mark.parametrize(
    ("infect", "text", "remedy"),
    [
        (paused, "paused", "restante resume orders"),
        (overdue, "1 leases overdue", "start one"),
        (journal_lost, "7 journal entries lost", "raise journal_cap"),
    ],
)
def test_each_ailment_of_a_queue_is_found_alone(
    well: RedisServer, post: Client, tmp_path: Path, infect: Callable[[Client], Any], text: str, remedy: str
) -> None:
    post.queue("orders").send(1)
    post.queue("mail").send(1)
    assert ailing(well, tmp_path) == (0, [])
    infect(post)
    code, (found,) = ailing(well, tmp_path)
    assert (code, found["what"], found["level"], found["found"]) == (0, "queue orders", "warning", text)
    assert remedy in found["remedy"]


def test_a_replica_with_queues_is_examined_to_the_end(well: RedisServer, post: Client, tmp_path: Path) -> None:
    post.queue("orders").send(1)
    Admin(post).pause("orders")
    call(well.client(), "CONFIG", "SET", "repl-diskless-sync-delay", "0")  # nobody else comes
    with RedisServer(appendonly="always", config={"maxmemory": "200mb"}) as other:
        call(other.client(), "REPLICAOF", HOST, well.port)
        wait_until(lambda: other.info("replication").get("master_link_status") == "up")
        code, found = ailing(other, tmp_path)
    assert code == 5
    assert [(one["what"], one["level"]) for one in found] == [("role", "danger"), ("queue orders", "warning")]
