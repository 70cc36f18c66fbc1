"""The RabbitMQ of the tests: it answers, it keeps what it confirmed, and it leaves nobody behind."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from tests.harness import rabbitmq
from tests.harness.processes import PythonProcess, is_alive
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import HOST, ServerFailed
from tests.harness.test_harness import wait_gone


def connected(server: RabbitServer, virtual_host: str = "/") -> amqp.Connection:
    return amqp.Connection(f"{HOST}:{server.port}", "guest", "guest", virtual_host=virtual_host, confirm_publish=True)


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with RabbitServer() as running:
        yield running


def test_a_confirmed_persistent_message_survives_kill_and_stop(server: RabbitServer) -> None:
    with connected(server) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message("dear", delivery_mode=2), routing_key="kept")
    server.write_down()
    before = server.url, server.pid
    server.kill()
    assert not server.alive
    server.restart()
    assert server.url == before[0]
    assert server.pid != before[1]
    server.restart()
    with connected(server) as connection:
        found = connection.channel().basic_get("kept", no_ack=True)
        assert found is not None
        assert found.body == "dear"


def test_it_listens_on_this_machine_alone(server: RabbitServer) -> None:
    with socket.create_connection((HOST, server.port), timeout=30):
        pass
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.2", server.port), timeout=30):
        pass
    with pytest.raises(ServerFailed, match="runs already"):
        server.start()


def test_a_virtual_host_is_there_while_it_is_used(server: RabbitServer) -> None:
    with server.virtual_host("apart") as url:
        assert url.endswith("/apart")
        with connected(server, "apart") as connection:
            connection.channel().queue_declare("mine")
    with pytest.raises(amqp.exceptions.NotAllowed), connected(server, "apart"):
        pass


def test_two_servers_run_beside_each_other_and_close_leaves_no_process(server: RabbitServer) -> None:
    other = RabbitServer()
    with other:
        family = other.family()
        assert len(family) >= 2
        assert not {*family} & {*server.family()}
        assert other.port != server.port
    assert not [pid for pid in family if is_alive(pid)]
    assert not other.family()
    assert not other.directory.exists()
    assert server.alive


def test_it_dies_with_the_process_that_started_it() -> None:
    program = """
import time
from tests.harness.rabbitmq import RabbitServer
with RabbitServer() as server:
    print(server.directory, *server.family(), flush=True)
    time.sleep(600)
"""
    with PythonProcess(program) as owner:
        directory, *family = owner.wait_line().split()
        owner.kill9()
    assert owner.returncode == -signal.SIGKILL
    assert len(family) >= 2
    for pid in family:
        wait_gone(int(pid))
    shutil.rmtree(directory)


def test_a_missing_server_skips_at_home_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "DEBIAN_SCRIPT", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception):
        rabbitmq.server_script()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        rabbitmq.server_script()
