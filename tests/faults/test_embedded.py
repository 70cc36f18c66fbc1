"""One server per directory, shared by its users and gone with the last of them, however they go."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import restante
from restante import Unavailable
from restante.core import embedded
from restante.core.embedded import answers, socket_path
from tests.faults.rows import verdict, wait_until
from tests.harness.processes import PythonProcess
from tests.harness.servers import debian_binary, embedded_binary

USER = """
import sys, time, restante
post = restante.connect(directory=sys.argv[1])
queue = post.queue("shared")
print("sent", queue.send(sys.argv[2]), flush=True)
print("pid", int(post.connection.command("INFO", "server").split(b"process_id:")[1].split()[0]), flush=True)
if sys.argv[3] == "wait":
    time.sleep(600)
post.close()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    embedded_binary()
    return tmp_path / "data"


def gone(directory: Path) -> bool:
    return not answers(socket_path(directory))


def test_two_processes_share_one_server_and_it_stops_after_the_last(directory: Path) -> None:
    with PythonProcess(USER, str(directory), "a", "wait") as first:
        pid = first.wait_line("pid")
        with PythonProcess(USER, str(directory), "b", "go") as second:
            assert second.wait_line("pid") == pid
            assert second.wait() == 0, second.stderr
        time.sleep(0.5)
        assert not gone(directory)
        with restante.connect(directory=directory) as post:
            queue = post.queue("shared")
            assert sorted(message.payload for message in queue.receive_many(10)) == ["a", "b"]
        first.kill9()
        took = wait_until(lambda: gone(directory), 10, "stopping")
    verdict("embedded", n=2, max_recovery_s=took)


def test_users_that_are_killed_all_at_once_leave_no_server_and_lose_nothing(directory: Path) -> None:
    users = [PythonProcess(USER, str(directory), str(number), "wait") for number in range(3)]
    try:
        for user in users:
            user.wait_line("pid")
        for user in users:
            user.kill9()
        wait_until(lambda: gone(directory), 10, "stopping")
    finally:
        for user in users:
            user.close()
    with restante.connect(directory=directory) as post:
        found = sorted(message.payload for message in post.queue("shared").receive_many(10))
    wait_until(lambda: gone(directory), 10, "stopping again")
    verdict("embedded killed", n=3, lost=3 - len(found))
    assert found == ["0", "1", "2"]


def test_many_users_that_start_together_find_one_server(directory: Path) -> None:
    users = [PythonProcess(USER, str(directory), str(number), "wait") for number in range(4)]
    try:
        # All of them stay, so the server of the first is there for the last.
        pids = {user.wait_line("pid") for user in users}
    finally:
        for user in users:
            user.close()
    wait_until(lambda: gone(directory), 10, "stopping")
    with restante.connect(directory=directory) as post:
        found = sorted(message.payload for message in post.queue("shared").receive_many(10))
    wait_until(lambda: gone(directory), 10, "stopping again")
    verdict("embedded together", n=4, lost=4 - len(found), dup=len(pids) - 1)


def test_two_that_start_together_at_the_worst_moment_start_one_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks whether a server answers only once the other looks too, or, since it must wait, after a second."""
    both, starts = threading.Barrier(2), []
    look, start = embedded.answers, embedded.Embedded._start

    def looking(socket: Path) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)
        return look(socket)

    def starting(self: embedded.Embedded, binary: str) -> None:
        starts.append(binary)
        start(self, binary)

    monkeypatch.setattr(embedded, "answers", looking)
    monkeypatch.setattr(embedded.Embedded, "_start", starting)
    users = [embedded.Embedded(directory) for _ in range(2)]
    try:
        with ThreadPoolExecutor(2) as threads:
            urls = list(threads.map(lambda user: user.join(), users))
    finally:
        for user in users:
            user.leave()
    assert len(starts) == 1
    assert urls[0] == urls[1]


def test_a_directory_with_a_long_path_works(tmp_path: Path) -> None:
    debian_binary()
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with restante.connect(directory=deep) as post:
        post.queue("q").send("x")
        assert post.queue("q").receive() is not None
    wait_until(lambda: gone(deep), 10, "stopping")


class TestTheServer:
    """Which program is started. It reads the one file that Redis 6.2 wrote, and the several that Redis 7 writes."""

    def test_it_is_the_valkey_of_the_wheel_whatever_is_installed(self, directory: Path) -> None:
        debian_binary()
        assert embedded.find_server() == str(embedded_binary())
        with restante.connect(directory=directory) as post:
            told = post.connection.command("INFO", "server").decode()
        assert "server_name:valkey" in told

    def test_without_the_wheel_it_is_the_newest_on_the_path(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(embedded, "wheel_server", lambda: None)
        for name, version in (("old", "6.2.14"), ("new", "7.4.1"), ("broken", "")):
            program = tmp_path / name / "redis-server"
            program.parent.mkdir()
            program.write_text(f"#!/bin/sh\n{f'echo Redis server v={version} sha=0' if version else 'exit 1'}\n")
            program.chmod(0o755)
        folders = [tmp_path / name for name in ("old", "new", "broken")]
        monkeypatch.setenv("PATH", ":".join(map(str, folders)))
        assert embedded.find_server() == str(tmp_path / "new" / "redis-server")
        monkeypatch.setenv("PATH", f"{folders[0]}:{folders[2]}")
        assert embedded.find_server() is None
        with pytest.raises(Unavailable, match=r"pip install 'restante\[embedded\]'.*redis-server 7\.0"):
            restante.connect(directory=tmp_path / "data").queue("orders").send(1)

    @pytest.mark.parametrize("multi_part", [False, True], ids=["one file", "several files"])
    def test_it_reads_what_an_older_server_wrote(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, multi_part: bool
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "wheel_server", lambda: None)
            patch.setenv("PATH", str(debian_binary().parent), prepend=":")
            with restante.connect(directory=directory) as post:
                assert "valkey" not in post.connection.command("INFO", "server").decode()
                post.queue("orders").send("kept", id="kept")
        wait_until(lambda: gone(directory), 10, "stopping")
        if not multi_part:
            parts = directory / "appendonlydir"
            lines = b"".join(part.read_bytes() for part in sorted(parts.glob("*.incr.aof")))
            assert b"kept" in lines
            (directory / "appendonly.aof").write_bytes(lines)
            for part in parts.iterdir():
                part.unlink()
            parts.rmdir()
        with restante.connect(directory=directory) as post:
            assert "server_name:valkey" in post.connection.command("INFO", "server").decode()
            message = post.queue("orders").receive()
            assert message is not None
            assert message.payload == "kept"
