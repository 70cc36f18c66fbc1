"""Rows 19, 21, 24 and 25: an append-only file whose end is cut off or whose structure is damaged, and a full disk."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

import restante
from restante import Admin, Client, ReadOnly, RestanteError, State, Unavailable, Unconfirmed
from restante.core import doctor
from tests.faults.rows import count_from_journal, drain, missing, places, verdict, wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.disks import SmallDisk
from tests.harness.requirements import require
from tests.harness.servers import RedisServer, ServerFailed


def append_only_file(server: RedisServer) -> Path:
    """The file that holds the newest writes."""
    single = server.directory / "appendonly.aof"  # before Redis 7
    if single.is_file():
        return single
    (newest,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    return newest


def test_a_file_without_its_last_bytes_costs_the_last_send_and_no_other(binary: Path, name: str) -> None:
    with RedisServer(binary, appendonly="always") as server, restante.connect(server.url, patience=PATIENCE) as post:
        queue = post.queue(name)
        sent = [*queue.send_many(list(range(900))), *(queue.send(number) for number in range(100))]
        server.kill9()
        written = append_only_file(server)
        content = written.read_bytes()
        written.write_bytes(content[:-7])
        server.start()
        found = places(Admin(post), name)
        assert {*map(tuple, found.values())} == {(State.READY,)}
        assert missing(sent, found) == 1
        assert sent[-1] not in found
        # The queue goes on as if the last send had never been made: its id is free, its place in line too.
        assert queue.send(99, id=sent[-1]).stored
        assert drain(post, name) == sent
        counts = Admin(post).counts(name)
        assert (counts.totals["sent"], counts.totals["acked"], counts.waiting) == (1000, 1000, 0)
        verdict(19, n=999, lost=missing(sent[:-1], found), server=".".join(map(str, server.version)))
        count_from_journal(post, name)


def test_a_damaged_file_keeps_the_server_from_starting_and_the_runbook_saves_what_lies_before(name: str) -> None:
    repair = require("redis-check-aof")
    with RedisServer(appendonly="always") as server:
        with restante.connect(server.url) as post:
            sent = [post.queue(name).send(number) for number in range(100)]
        server.stop()
        written = append_only_file(server)
        content = bytearray(written.read_bytes())
        # The length in front of a word becomes a letter, inside the second half of what was sent.
        place = content.index(b"$", content.index(sent[50].encode()))
        content[place + 1] ^= 0x40
        written.write_bytes(content)
        with pytest.raises(ServerFailed, match="Bad file format reading the append only file"):
            server.start()
        with (
            restante.connect(server.url, patience=0.2) as post,
            pytest.raises(Unavailable, match="is the server running"),
        ):
            post.queue(name).send("nobody there")
        # docs/guide/operating.md, "When Redis does not start".
        fixing = [str(repair), "--fix", str(written.with_name("appendonly.aof.manifest"))]
        subprocess.run(fixing, input="y\n", text=True, check=True, capture_output=True)
        server.start()
        with restante.connect(server.url) as post:
            found = drain(post, name)
            assert found == sent[: len(found)]  # whole messages, none of those behind the damage
            verdict(21, n=50, lost=missing(sent[:50], found), behind_the_damage=100 - len(found))
            count_from_journal(post, name)


@pytest.mark.parametrize("megabytes", [3, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_a_full_disk_refuses_writes_until_there_is_room_and_loses_nothing(
    binary: Path, name: str, megabytes: int
) -> None:
    with (
        SmallDisk(megabytes) as disk,
        RedisServer(binary, appendonly="everysec", directory=disk.path) as server,
        restante.connect(server.url, patience=0) as hasty,
        restante.connect(server.url, patience=PATIENCE) as patient,
    ):
        sent: list[str] = []
        queue = hasty.queue(name)
        with pytest.raises(ReadOnly, match="No space left on device"):
            _fill(queue, sent)
        with pytest.raises(ReadOnly, match="MISCONF"):
            queue.receive()
        assert _ailments(hasty) >= {"last append-only file write failed"}
        mended = threading.Event()
        waiting = threading.Thread(target=lambda: sent.append(_sent_when(patient, name, mended)))
        waiting.start()
        mended.set()
        disk.grow(megabytes * 10)
        recovery = wait_until(lambda: not waiting.is_alive(), 10, "a send after there was room")
        waiting.join()
        # Also what was answered while the disk refused it: in memory first, on the disk now.
        wait_until(lambda: server.info("persistence")["aof_last_write_status"] == "ok", 10, "the file")
        server.restart()
        found = drain(patient, name)
        verdict(
            24,
            n=len(sent),
            lost=missing(sent, found),
            dup=len(found) - len(set(found)),
            max_recovery_s=recovery,
            within_s=2.0,
            server=".".join(map(str, server.version)),
        )
        count_from_journal(patient, name)


def _fill(queue: restante.Queue, sent: list[str]) -> None:
    """Sends until it is refused."""
    while True:
        sent.append(queue.send("x" * 20_000))


def _sent_when(post: Client, name: str, mended: threading.Event) -> str:
    """Sends, patiently; it must not be taken before there is room."""
    id = post.queue(name).send("when there is room")
    assert mended.is_set()
    return id


def _ailments(post: Client) -> set[str]:
    return {one.found for one in doctor.examine(post) if one.level == "danger" and "free disk space" in one.remedy}


def test_a_full_disk_ends_a_server_that_writes_at_once_and_nothing_confirmed_is_lost(binary: Path, name: str) -> None:
    with (
        SmallDisk(3) as disk,
        RedisServer(binary, appendonly="always", directory=disk.path) as server,
        restante.connect(server.url, patience=0.5) as post,
    ):
        sent: list[str] = []
        queue = post.queue(name)
        with pytest.raises(RestanteError) as told:
            _fill(queue, sent)
        wait_until(lambda: not server.alive, 10, "the server's end")
        assert isinstance(told.value, Unconfirmed)  # it may or may not have been written
        with pytest.raises((Unavailable, Unconfirmed)):
            queue.send("nobody there")
        disk.grow(30)
        server.start()
        # Sending again what is in doubt stores it once.
        again = queue.send("x" * 20_000, id=told.value.ids[0])
        found = drain(post, name)
        assert found.count(again) == 1
        verdict(
            25,
            n=len(sent),
            lost=missing(sent, found),
            dup=len(found) - len(set(found)),
            server=".".join(map(str, server.version)),
        )
        count_from_journal(post, name)
