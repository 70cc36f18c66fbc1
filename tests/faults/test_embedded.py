"""One server per directory, shared by its users and gone with the last of them, however they go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import restante
from restante.core.embedded import answers, socket_path
from tests.faults.rows import verdict, wait_until
from tests.harness.processes import PythonProcess
from tests.harness.servers import debian_binary

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
    debian_binary()
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


def test_a_directory_with_a_long_path_works(tmp_path: Path) -> None:
    debian_binary()
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with restante.connect(directory=deep) as post:
        post.queue("q").send("x")
        assert post.queue("q").receive() is not None
    wait_until(lambda: gone(deep), 10, "stopping")
