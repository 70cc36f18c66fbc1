"""The harness itself: a fault test proves nothing when its fault was never injected."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.harness import requirements
from tests.harness.clock import START_MS, FrozenClock, shim
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE, at_most, wait_until
from tests.harness.ledger import note, read_ledger
from tests.harness.processes import CHECKOUT, PythonProcess, is_alive
from tests.harness.proxy import FaultProxy, RequestFramer
from tests.harness.servers import (
    HOST,
    PORTS,
    PortTaken,
    RedisServer,
    ServerFailed,
    call,
    closed_port,
    debian_binary,
    embedded_binary,
    free_port,
    require,
)

#: Seconds in which something must not happen.
QUIET = 0.3


def wait_gone(pid: int) -> None:
    wait_until(lambda: not is_alive(pid), f"{pid} is alive")


def impatient(port: int, timeout: float = PATIENCE) -> redis.Redis:
    return redis.Redis(host=HOST, port=port, retry=Retry(NoBackoff(), 0), socket_timeout=timeout)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    call(server.client(), "FLUSHALL")
    with FaultProxy(server.port) as running:
        yield running


@pytest.fixture(params=[debian_binary, embedded_binary], ids=["debian", "embedded"])
def binary(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param()
    return found


class TestRequirements:
    def test_the_installed_server_and_the_one_of_the_wheel_are_two(self) -> None:
        assert requirements.server_version(debian_binary()) >= (7, 0, 0)
        assert requirements.server_version(embedded_binary()) >= (9, 0, 0)
        assert debian_binary().name != embedded_binary().name

    def test_a_missing_program_skips_at_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception):
            require("no-such-program")

    def test_a_missing_program_fails_in_ci(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CI", "true")
        with pytest.raises(pytest.fail.Exception):
            require("no-such-program")


class TestRedisServer:
    def test_it_answers_on_its_port_and_is_our_child(self, server: RedisServer) -> None:
        client = server.client()
        assert call(client, "PING") is True
        assert int(server.info("server")["process_id"]) == server.pid
        assert call(client, "CONFIG", "GET", "maxmemory-policy")[b"maxmemory-policy"] == (b"noeviction")
        assert call(client, "CONFIG", "GET", "save")[b"save"] == b""
        assert server.url == f"redis://127.0.0.1:{server.port}"
        assert server.port in PORTS

    def test_it_serves_a_unix_socket_and_takes_extra_configuration(self) -> None:
        limits = {"client-output-buffer-limit": "normal 1mb 0 0"}
        with (
            RedisServer(unix_socket=True, maxmemory=50_000_000, config=limits) as server,
            redis.Redis(unix_socket_path=str(server.unix_socket)) as client,
        ):
            call(client, "SET", "a", "1")
            assert call(server.client(), "GET", "a") == b"1"
            assert call(client, "CONFIG", "GET", "maxmemory")[b"maxmemory"] == b"50000000"
            limit = call(client, "CONFIG", "GET", "client-output-buffer-limit")
            assert b"normal 1048576 0 0" in limit[b"client-output-buffer-limit"]
        assert not server.directory.exists()
        assert not server.unix_socket.parent.exists()

    def test_it_keeps_its_data_over_kill_9_with_an_append_only_file(self, binary: Path) -> None:
        with RedisServer(binary, appendonly="always") as server:
            port, pid = server.port, server.pid
            client = server.client()
            call(client, "SET", "a", "1")
            server.kill9()
            assert not server.alive
            server.restart()
            assert (server.port, server.pid != pid) == (port, True)
            assert call(client, "GET", "a") == b"1"
            server.restart()
            assert call(client, "GET", "a") == b"1"
            assert server.commands_processed() > 0

    def test_it_loses_its_data_over_kill_9_without_one(self) -> None:
        with RedisServer() as server:
            call(server.client(), "SET", "a", "1")
            server.kill9()
            server.start()
            assert call(server.client(), "GET", "a") is None

    def test_a_restart_without_waiting_shows_the_loading(self) -> None:
        slowly = {"key-load-delay": "200", "loading-process-events-interval-bytes": "1024"}
        with RedisServer(appendonly="everysec", config=slowly) as server:
            client = server.client()
            call(client, "DEBUG", "POPULATE", 20_000)
            call(client, "BGREWRITEAOF")
            wait_until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0")
            server.restart(wait=False)
            with pytest.raises(redis.exceptions.BusyLoadingError):
                call(server.client(), "GET", "a")

    def test_a_paused_server_is_silent_and_answers_when_resumed(self) -> None:
        with RedisServer() as server:
            client = server.client(socket_timeout=QUIET)
            call(client, "SET", "a", "1")
            server.pause()
            with pytest.raises(redis.TimeoutError):
                call(client, "GET", "a")
            server.resume()
            assert call(client, "GET", "a") == b"1"
            server.pause()
        assert not server.alive

    def test_it_measures_commands_memory_and_processor_time(self, server: RedisServer) -> None:
        client = server.client()
        call(client, "PING")
        commands, memory, cpu = (
            server.commands_processed(),
            server.used_memory(),
            server.cpu_seconds(),
        )
        assert server.commands_processed() - commands == 3
        call(client, "SET", "big", b"x" * 2_000_000)
        assert server.used_memory() - memory > 2_000_000
        call(client, "EVAL", "for i = 1, 3000000 do end", 0)
        assert server.cpu_seconds() > cpu
        call(client, "DEL", "big")

    def test_a_taken_port_is_left_for_another_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as squatter:
            taken = free_port()
            squatter.bind((HOST, taken))
            squatter.listen()
            offered = iter([taken, taken, free_port()])
            monkeypatch.setattr("tests.harness.servers.free_port", lambda bus: next(offered))
            with RedisServer() as server:
                assert server.port != taken
                assert call(server.client(), "PING") is True

    def test_a_strange_server_on_the_port_is_never_taken_for_ours(self, server: RedisServer) -> None:
        other = RedisServer()
        try:
            before = call(server.client(), "DBSIZE")
            with pytest.raises(PortTaken):
                other._start_on(server.port, wait=True)
            assert call(server.client(), "DBSIZE") == before
        finally:
            other.close()

    def test_a_server_that_cannot_start_shows_its_log(self) -> None:
        with pytest.raises(ServerFailed, match="no-such-setting"):
            RedisServer(config={"no-such-setting": "1"}).__enter__()

    def test_it_outlives_the_thread_that_started_it(self) -> None:
        server = RedisServer()
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        try:
            time.sleep(0.1)
            assert server.alive
        finally:
            server.close()

    def test_it_dies_with_the_test_process(self) -> None:
        program = (
            "from tests.harness.servers import RedisServer\n"
            "import time\n"
            "server = RedisServer().start()\n"
            "print(server.pid, server.directory)\n"
            "time.sleep(60)\n"
        )
        with PythonProcess(program) as test_run:
            pid, directory = test_run.wait_line().split()
            # Only the leader: the server is in a group of its own and must die by itself.
            os.kill(test_run.pid, signal.SIGKILL)
            wait_gone(int(pid))
            for file in Path(directory).iterdir():
                file.unlink()
            Path(directory).rmdir()


class TestFaultProxy:
    def test_it_passes_everything_and_counts(self, proxy: FaultProxy) -> None:
        payload = os.urandom(3_000_000)
        with redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client:
            call(client, "SET", "a", payload)
            assert call(client, "GET", "a") == payload
            counters = proxy.counters
            assert (counters.connections, counters.open) == (1, 1)
            assert counters.bytes_to_server > len(payload)
            assert counters.bytes_to_client > len(payload)

    def test_a_cut_without_a_filter_hits_whatever_comes_next(self, proxy: FaultProxy) -> None:
        with impatient(proxy.port) as client:
            proxy.cut_before_reply(2)
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    call(client, "PING")
            assert call(client, "PING") is True
            assert proxy.counters.cut == 2

    def test_a_cut_hits_only_matching_requests_and_leaves_their_writes_done(
        self, proxy: FaultProxy, server: RedisServer
    ) -> None:
        with impatient(proxy.port) as client:
            proxy.cut_before_reply(3, b"INCR")
            for _ in range(3):
                call(client, "PING")
                with pytest.raises(redis.ConnectionError):
                    call(client, "INCR", "a")
            assert call(client, "INCR", "a") == 4
        assert (proxy.counters.cut, proxy.counters.dropped) == (3, 0)

    def test_a_cut_in_a_pipeline_waits_for_the_reply_of_its_own_request(
        self, proxy: FaultProxy, server: RedisServer
    ) -> None:
        with impatient(proxy.port) as client:
            proxy.cut_before_reply(1, lambda request: b"EVAL" in request)
            pipeline = client.pipeline(transaction=False)
            pipeline.incr("a")
            pipeline.execute_command("EVAL", "for i = 1, 5e6 do end redis.call('INCR', 'b')", 0)
            with pytest.raises(redis.ConnectionError):
                pipeline.execute()
        assert call(server.client(), "MGET", "a", "b") == [b"1", b"1"]

    def test_a_cut_waits_for_a_script_that_was_executed(self, proxy: FaultProxy, server: RedisServer) -> None:
        script = "return redis.call('INCR', KEYS[1])"
        with impatient(proxy.port) as client:
            proxy.cut_before_reply(1, b"EVALSHA")
            sha = hashlib.sha1(script.encode()).hexdigest()
            with pytest.raises(redis.exceptions.NoScriptError):
                call(client, "EVALSHA", sha, 1, "a")
            assert proxy.counters.cut == 0
            call(client, "SCRIPT", "LOAD", script)
            with pytest.raises(redis.ConnectionError):
                call(client, "EVALSHA", sha, 1, "a")
            assert call(client, "EVALSHA", sha, 1, "a") == 2

    def test_a_dropped_request_never_reaches_the_server(self, proxy: FaultProxy, server: RedisServer) -> None:
        with impatient(proxy.port) as client:
            proxy.drop_request(2, b"INCR")
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    call(client, "INCR", "a")
            assert call(client, "INCR", "a") == 1
        assert (proxy.counters.cut, proxy.counters.dropped) == (0, 2)

    def test_requests_before_a_dropped_one_are_executed(self, proxy: FaultProxy, server: RedisServer) -> None:
        with impatient(proxy.port) as client:
            proxy.drop_request(1, b"INCRBY")
            pipeline = client.pipeline(transaction=False)
            pipeline.set("a", "1").incr("b", 5).set("c", "1")
            with pytest.raises(redis.ConnectionError):
                pipeline.execute()
        wait_until(lambda: call(server.client(), "EXISTS", "a"))
        assert call(server.client(), "EXISTS", "b", "c") == 0

    def test_a_blackhole_leaves_its_connections_half_open_for_good(
        self, proxy: FaultProxy, server: RedisServer
    ) -> None:
        with (
            impatient(proxy.port, QUIET) as old,
            impatient(proxy.port, QUIET) as new,
            impatient(proxy.port) as patient,
        ):
            connection = old.connection_pool.get_connection()
            connection.send_command("PING")
            assert connection.read_response() == b"PONG"
            proxy.blackhole()
            connection.send_command("SET", "a", "1")
            with pytest.raises(redis.TimeoutError):
                connection.read_response(disconnect_on_error=False)
            with pytest.raises(redis.TimeoutError):
                call(new, "PING")
            proxy.heal()
            with pytest.raises(redis.TimeoutError):
                connection.read_response(disconnect_on_error=False)
            assert call(patient, "PING") is True
            assert call(server.client(), "EXISTS", "a") == 0
            before = int(server.info("clients")["connected_clients"])
            connection.disconnect()
            time.sleep(QUIET)
            assert int(server.info("clients")["connected_clients"]) == before
        assert proxy.counters.discarded_bytes > 0

    def test_a_blackhole_swallows_the_reply_of_a_blocked_request(self, proxy: FaultProxy, server: RedisServer) -> None:
        with impatient(proxy.port) as client:
            connection = client.connection_pool.get_connection()
            connection.send_command("BLPOP", "list", 0)
            direct = server.client()
            wait_until(lambda: int(server.info("clients")["blocked_clients"]))
            proxy.blackhole()
            call(direct, "RPUSH", "list", "x")
            assert call(direct, "LLEN", "list") == 0
            assert not connection.can_read(QUIET)

    @pytest.mark.timed
    def test_a_delay_holds_both_directions_and_keeps_the_order(self, proxy: FaultProxy) -> None:
        with impatient(proxy.port) as client:
            call(client, "PING")
            proxy.delay(0.1, jitter=0.05)
            started = time.monotonic()
            call(client, "PING")
            assert time.monotonic() - started >= 0.2
            pipeline = client.pipeline(transaction=False)
            for number in range(2000):
                pipeline.execute_command("ECHO", str(number) * 50)
            expected = [str(number).encode() * 50 for number in range(2000)]
            assert pipeline.execute() == expected
            proxy.delay(0)
            with at_most(0.2):
                call(client, "PING")

    def test_split_sends_single_bytes(self, proxy: FaultProxy) -> None:
        proxy.split(gap=0.002)
        with socket.create_connection((HOST, proxy.port)) as raw:
            raw.sendall(b"*2\r\n$4\r\nECHO\r\n$50\r\n" + b"x" * 50 + b"\r\n")
            raw.settimeout(2.0)
            expected = b"$50\r\n" + b"x" * 50 + b"\r\n"
            reads: list[bytes] = []
            while len(b"".join(reads)) < len(expected):
                reads.append(raw.recv(4096))
        assert b"".join(reads) == expected
        assert len(reads) > 5

    def test_reset_all_resets_every_connection_at_once(self, proxy: FaultProxy) -> None:
        connections = [socket.create_connection((HOST, proxy.port)) for _ in range(5)]
        for connection in connections:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"
        assert proxy.reset_all() == 5
        for connection in connections:
            connection.settimeout(1.0)
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
            connection.close()
        assert proxy.counters.open == 0
        with impatient(proxy.port) as client:
            assert call(client, "PING") is True

    def test_a_server_that_is_gone_closes_the_connection(self) -> None:
        with (
            FaultProxy(closed_port()) as proxy,
            impatient(proxy.port) as client,
            pytest.raises(redis.ConnectionError),
        ):
            call(client, "PING")

    def test_a_raw_proxy_carries_any_protocol(self) -> None:
        with (
            socket.create_server((HOST, 0)) as listener,
            FaultProxy(listener.getsockname()[1], raw=True) as proxy,
            socket.create_connection((HOST, proxy.port)) as client,
        ):
            client.sendall(b"no line end")
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(100) == b"no line end"
                accepted.sendall(b"\x00\xff")
                assert client.recv(100) == b"\x00\xff"

    def test_requests_are_framed_wherever_the_stream_is_cut(self) -> None:
        requests = [b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n*1\r\n", b"PING\r\n", b"*1\r\n$0\r\n\r\n"]
        stream = b"".join(requests)
        for size in range(1, len(stream) + 1):
            framer = RequestFramer()
            pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
            assert [one for piece in pieces for one in framer.feed(piece)] == requests


class TestFrozenClock:
    def test_the_server_sees_the_time_only_move_as_told(self, binary: Path) -> None:
        with FrozenClock() as clock, RedisServer(binary, clock=clock) as server:
            client = server.client()

            def shown_ms() -> int:
                seconds, micros = call(client, "TIME")
                if clock.frozen:
                    in_script = call(client, "EVAL", "return redis.call('TIME')", 0)
                    assert [int(word) for word in in_script] == [seconds, micros]
                return int(seconds) * 1000 + int(micros) // 1000

            assert shown_ms() == clock.now_ms == START_MS
            time.sleep(0.15)
            assert shown_ms() == START_MS
            clock.advance(1.5)
            assert shown_ms() == START_MS + 1500
            clock.back(7200)
            assert shown_ms() == START_MS + 1500 - 7_200_000
            clock.set(1_000)
            assert shown_ms() == clock.now_ms == 1_000
            for offset in (0, 3600):
                clock.offset(offset)
                before = time.time_ns() // 1_000_000
                assert before <= shown_ms() - offset * 1000 <= time.time() * 1000 + 1

    def test_keys_expire_by_the_frozen_time(self, binary: Path) -> None:
        with FrozenClock() as clock, RedisServer(binary, clock=clock) as server:
            client = server.client()
            call(client, "SET", "a", "1", "PX", 50)
            time.sleep(0.2)
            assert call(client, "PTTL", "a") == 50
            clock.advance(0.051)
            assert call(client, "GET", "a") is None

    def test_a_blocking_timeout_ends_only_when_the_clock_is_advanced(self, binary: Path) -> None:
        with (
            FrozenClock() as clock,
            RedisServer(binary, clock=clock) as server,
            ThreadPoolExecutor(1) as thread,
        ):
            blocked = thread.submit(call, server.client(), "BZPOPMIN", "zset", 0.2)
            with pytest.raises(TimeoutError):
                blocked.result(0.5)
            clock.advance(0.3)
            assert blocked.result(PATIENCE) is None

            blocked = thread.submit(call, server.client(), "BZPOPMIN", "zset", 0.2)
            with pytest.raises(TimeoutError):
                blocked.result(0.1)
            clock.back(3600)
            call(server.client(), "ZADD", "zset", 1, "member")
            assert blocked.result(PATIENCE)[:2] == (b"zset", b"member")

    def test_the_server_restarts_and_persists_under_the_clock(self, binary: Path) -> None:
        with (
            FrozenClock() as clock,
            RedisServer(binary, clock=clock, appendonly="everysec") as server,
        ):
            client = server.client()
            call(client, "SET", "a", "1", "PX", 1000)
            server.kill9()
            server.restart()
            assert call(client, "PTTL", "a") == 1000
            clock.advance(2)
            server.restart()
            assert call(client, "GET", "a") is None

    def test_a_python_process_runs_an_hour_off(self) -> None:
        program = (
            "import time, threading, datetime\n"
            "before = time.monotonic()\n"
            "threading.Event().wait(0.05)\n"
            "time.sleep(0.05)\n"
            "slept = time.monotonic() - before\n"
            "print(time.time(), datetime.datetime.now().timestamp(), slept)\n"
        )
        for hour in (3600.25, -3600.25):
            begun = time.time()
            with FrozenClock() as clock:
                clock.offset(hour)
                with PythonProcess(program, clock=clock) as child:
                    now, also_now, slept = map(float, child.wait_line().split())
            ended = time.time()
            assert begun <= now - hour <= ended
            assert now <= also_now <= ended + hour
            assert 0.1 <= slept <= ended - begun

    def test_a_time_before_the_epoch_is_refused(self) -> None:
        with FrozenClock(1000) as clock:
            with pytest.raises(ValueError, match="epoch"):
                clock.back(1)
            with pytest.raises(ValueError, match="epoch"):
                clock.set(0)
            assert clock.now_ms == 1000

    def test_the_shim_is_compiled_once(self) -> None:
        built = shim().stat().st_mtime_ns
        shim.cache_clear()
        assert shim().stat().st_mtime_ns == built

    def test_a_cluster_under_a_frozen_clock_is_refused(self) -> None:
        with FrozenClock() as clock, pytest.raises(ValueError, match="cluster"):
            RedisServer(clock=clock, cluster=True)

    def test_a_cluster_that_has_formed_goes_on_when_its_clock_stops_and_leaps(self) -> None:
        require("redis-cli")
        with FrozenClock() as clock:
            clock.unfreeze()
            with RedisCluster3(clock=clock) as cluster:
                clock.set(START_MS)
                for leap in (0, 3600, 10 * 365 * 86_400, -86_400):
                    clock.advance(leap)
                    for key in ("a", "b", "c"):
                        node = cluster.node_of_key(key)
                        call(node.client(), "SET", key, leap)
                        assert call(node.client(), "TIME")[0] * 1000 == clock.now_ms


class TestRedisCluster:
    def test_a_slot_moves_with_its_keys_while_clients_use_it(self) -> None:
        with RedisCluster3() as cluster:
            assert cluster.url == f"redis+cluster://127.0.0.1:{cluster.nodes[0].port}"
            owners = {cluster.node_of_slot(slot).port for slot in (0, 8000, 16383)}
            assert owners == {node.port for node in cluster.nodes}

            slot = cluster.slot_of("{orders}:0")
            source = cluster.node_of_key("{orders}:0")
            target = next(node for node in cluster.nodes if node is not source)
            with redis.RedisCluster(host=HOST, port=cluster.nodes[0].port) as client:
                for number in range(25):
                    client.set(f"{{orders}}:{number}", str(number))
                mover = threading.Thread(target=cluster.move_slot, args=(slot, target), kwargs={"pause": 0.1})
                mover.start()
                redirected = False
                direct = source.client()
                while mover.is_alive():
                    try:
                        call(direct, "GET", "{orders}:0")
                    except redis.exceptions.AskError:
                        redirected = True
                    except redis.exceptions.MovedError:
                        pass
                    assert client.get("{orders}:7") == b"7"
                mover.join()
                assert redirected
                assert cluster.node_of_slot(slot) is target
                assert call(source.client(), "DBSIZE") == 0
                assert [client.get(f"{{orders}}:{number}") for number in range(25)] == [
                    str(number).encode() for number in range(25)
                ]
            assert cluster.move_slot(slot, target) == 0
            assert cluster.move_slot(slot, source, batch=4) == 25
            assert all(
                call(node.client(), "CLUSTER", "COUNTKEYSINSLOT", slot) == (25 * (node is source))
                for node in cluster.nodes
            )


class TestPythonProcess:
    def test_its_lines_exit_code_and_errors_are_kept(self) -> None:
        program = "import sys; print('one'); print('two', sys.argv[1]); sys.exit('bad')"
        with PythonProcess(program, "arg") as child:
            assert child.wait_line("two") == "two arg"
            assert child.wait() == 1
            assert child.lines == ["one", "two arg"]
            assert child.stderr == "bad\n"
            with pytest.raises(TimeoutError, match="bad"):
                child.wait_line("three")

    def test_a_script_imports_from_the_checkout(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("import tests.harness; print(tests.harness.__file__)")
        with PythonProcess(script) as child:
            assert Path(child.wait_line()).is_relative_to(CHECKOUT)

    def test_kill_9_reaches_the_whole_group(self) -> None:
        program = (
            "import subprocess, sys, time\n"
            "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print(inner.pid)\n"
            "time.sleep(60)\n"
        )
        with PythonProcess(program) as child:
            inner = int(child.wait_line())
            child.kill9()
            assert child.returncode == -signal.SIGKILL
            wait_gone(inner)

    def test_terminate_lets_the_program_finish(self) -> None:
        program = (
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
            "print('ready')\n"
            "time.sleep(60)\n"
        )
        with PythonProcess(program) as child:
            child.wait_line("ready")
            child.terminate()
            assert child.wait() == 7

    def test_a_stopped_program_stands_still_until_continued(self) -> None:
        program = "import time\nwhile True:\n    print('tick')\n    time.sleep(0.01)\n"
        with PythonProcess(program) as child:
            child.wait_line("tick")
            child.stop()
            time.sleep(QUIET)  # what it wrote before is read meanwhile
            count = len(child.lines)
            time.sleep(0.1)
            assert len(child.lines) == count
            child.cont()
            child.wait_line("tick", after=count)

    def test_it_dies_with_the_test_process(self) -> None:
        program = (
            "from tests.harness.processes import PythonProcess\n"
            "import time\n"
            "print(PythonProcess('import time; time.sleep(60)').pid)\n"
            "time.sleep(60)\n"
        )
        with PythonProcess(program) as test_run:
            inner = int(test_run.wait_line())
            os.kill(test_run.pid, signal.SIGKILL)
            wait_gone(inner)


def test_no_children_are_left_behind() -> None:
    before = _children()
    with RedisServer(), PythonProcess("import time; time.sleep(60)"):
        assert len(_children() - before) == 2
    assert _children() <= before  # others' children may have ended meanwhile


def _children() -> set[str]:
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for children in lists for pid in children.read_text().split()}


def test_a_ledger_loses_nothing_but_a_line_that_was_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    monkeypatch.setenv("LEDGER", str(path))
    assert read_ledger(path) == []
    note("done", number=1)
    with path.open("a") as file:
        file.write('\n{"kind": "done", "data": {"n": 2}')  # as a process leaves it that is killed in the middle
    note("done", number=3)
    assert [row["number"] for row in read_ledger(path)] == [1, 3]
