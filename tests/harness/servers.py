"""Redis servers of our own: children on free ports, proved to be ours before the first write.

A server that does not start raises with the end of its log. A server whose port was taken in
the meantime by someone else starts again on another port, or waits for its own port when it is
a restart, because clients hold the old address.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import SIGNAL_TIMEOUT, pause_process, spawn
from tests.harness.requirements import (
    Version,
    debian_binary,
    embedded_binary,
    require,
    server_version,
)

__all__ = [
    "HOST",
    "PortTaken",
    "RedisServer",
    "ServerFailed",
    "call",
    "debian_binary",
    "embedded_binary",
    "free_port",
    "require",
]

#: Servers listen here only.
HOST: Final = "127.0.0.1"

#: Ports of servers. Below the range from which the kernel picks the ports of outgoing
#: connections, also with the cluster bus offset added: otherwise any client on the machine
#: can take a server's port while it restarts.
PORTS: Final = range(11_000, 21_000)

#: Redis puts the cluster bus this far above the port.
BUS_OFFSET: Final = 10_000

#: Times to try another port before giving up; each is a chance of 1 in thousands.
PORT_ATTEMPTS: Final = 20

#: Seconds between two looks at a starting server; longer only slows the tests.
POLL: Final = 0.005

#: Seconds until a server that still runs is sent SIGTERM again; Redis takes about one to end in order.
SIGNAL_AGAIN: Final = 2.0

#: Seconds one look may take; a stranger that accepts and stays silent costs this much.
PROBE_TIMEOUT: Final = 1.0

Fsync = Literal["everysec", "always"]


class PortTaken(Exception):
    """Another process listens on the port; start on another one."""


class ServerFailed(Exception):
    """The server ended or did not answer; its log is in the message."""


def free_port(*, bus: bool = False) -> int:
    """A port nobody listens on at this moment, with a free cluster bus port if asked."""
    for port in random.SystemRandom().sample(PORTS, PORT_ATTEMPTS * 10):
        if _is_free(port) and (not bus or _is_free(port + BUS_OFFSET)):
            return port
    raise PortTaken(f"no free port in {PORTS}")


@functools.cache
def closed_port() -> int:
    """A port that refuses connections until this process ends."""
    held = socket.socket()
    held.bind((HOST, 0))
    port = int(held.getsockname()[1])
    held.detach()  # stays bound but never listens, so no other process can take it
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def call(client: redis.Redis, *words: str | bytes | float) -> Any:
    """Run one command; redis-py leaves its own door for this untyped."""
    execute: Callable[..., Any] = client.execute_command
    return execute(*words)


class RedisServer:
    """One redis-server child. Use as a context manager, or call `start` and `close`.

    `config` holds further lines of redis.conf and wins over the defaults. `directory` keeps the
    data; without it a temporary one lives until `close`. A `clock` must run while a `cluster`
    forms, because its nodes find each other by timeouts of the wall clock.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        appendonly: Literal[False] | Fsync = False,
        maxmemory: int | None = None,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        unix_socket: bool = False,
        clock: FrozenClock | None = None,
        cluster: bool = False,
        start_timeout: float = PATIENCE,
    ) -> None:
        if clock is not None and clock.frozen and cluster:
            raise ValueError("a cluster does not form under a frozen clock")
        self.binary = binary or debian_binary()
        self.clock = clock
        self._appendonly = appendonly
        self._maxmemory = maxmemory
        self._config = dict(config or {})
        self._cluster = cluster
        self._start_timeout = start_timeout
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="restante-redis-"))
        # A folder of its own, since the path of a socket is limited to about 100 bytes.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="rs-")) if unix_socket else None
        self._child: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._admin: redis.Redis | None = None
        self._clients: list[redis.Redis] = []

    @property
    def version(self) -> Version:
        return server_version(self.binary)

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerFailed("the server was never started")
        return self._port

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def unix_socket(self) -> Path:
        """The path of the unix socket, for a server made with `unix_socket=True`."""
        if self._socket_folder is None:
            raise ServerFailed("the server was made without unix_socket=True")
        return self._socket_folder / "redis.sock"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.unix_socket}"

    @property
    def log(self) -> str:
        """Everything the server has logged in this directory, over all restarts."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, *, wait: bool = True) -> Self:
        """Start the child and prove that it answers on our port.

        With `wait=False` it returns as soon as the process is proved to be ours, which may be
        in the middle of loading its data.
        """
        if self.alive:
            raise ServerFailed(f"the server runs already, pid={self.pid}")
        if self._port is not None:
            self._start_again(self._port, wait=wait)
            return self
        for _ in range(PORT_ATTEMPTS):
            port = free_port(bus=self._cluster)
            try:
                self._start_on(port, wait=wait)
            except PortTaken:
                continue
            return self
        raise PortTaken(f"every port was taken, {PORT_ATTEMPTS} times in a row")

    def stop(self) -> None:
        """SIGTERM, as an operator does: a server with an append-only file flushes it.

        Redis refuses to end while it writes the first append-only file, and forgets the signal: it is sent again.
        """
        if self._child is None:
            return
        deadline = time.monotonic() + SIGNAL_TIMEOUT
        while self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            self._child.send_signal(signal.SIGCONT)
            try:
                self._child.wait(SIGNAL_AGAIN)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.kill9()
                raise ServerFailed(f"the server ignored SIGTERM\n{self.log[-2000:]}") from None

    def kill9(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(SIGNAL_TIMEOUT)

    def restart(self, *, wait: bool = True) -> None:
        """Start again on the same port and directory; stops the server first if it runs."""
        self.stop()
        self.start(wait=wait)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        pause_process(self._running())

    def resume(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def client(self, *, socket_timeout: float | None = 30.0) -> redis.Redis:
        """A plain client that gives bytes and never retries; closed with the server."""
        client = redis.Redis(
            host=HOST,
            port=self.port,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            socket_timeout=socket_timeout,
        )
        self._clients.append(client)
        return client

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO with every value as text."""
        answer = call(self._admin_client(), "INFO", section)
        return {str(name): str(value) for name, value in answer.items()}

    def commands_processed(self) -> int:
        """Commands since the start. The harness's own INFO is counted, after it has answered:
        two calls with nothing between them differ by one.
        """
        return int(self.info("stats")["total_commands_processed"])

    def used_memory(self) -> int:
        """Bytes the server has allocated."""
        return int(self.info("memory")["used_memory"])

    def cpu_seconds(self) -> float:
        """Processor time of the server since its start, user and system."""
        cpu = self.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def close(self) -> None:
        """Close the clients, stop the server, remove its temporary folders."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._admin is not None:
            self._admin.close()
        try:
            self.stop()
        finally:
            for folder in (self.directory if self._own_directory else None, self._socket_folder):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _log_file(self) -> Path:
        return self.directory / "redis.log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            raise ServerFailed(f"the server does not run\n{self.log[-2000:]}")
        return self._child

    def _admin_client(self) -> redis.Redis:
        if self._admin is None:
            self._admin = self.client()
        return self._admin

    def _settings(self, port: int) -> dict[str, str]:
        settings = {
            "bind": HOST,
            "port": str(port),
            "dir": f'"{self.directory}"',
            "save": '""',
            "maxmemory-policy": "noeviction",
            "appendonly": "yes" if self._appendonly else "no",
        }
        if self._appendonly:
            settings["appendfsync"] = self._appendonly
        if self._maxmemory is not None:
            settings["maxmemory"] = str(self._maxmemory)
        if self._socket_folder is not None:
            settings["unixsocket"] = f'"{self.unix_socket}"'
        if self._cluster:
            settings["cluster-enabled"] = "yes"
            settings["cluster-config-file"] = "nodes.conf"
        if self.clock is not None:
            # This thread waits until a wall-clock time; if the frozen clock is in the past it spins on a whole core.
            settings["jemalloc-bg-thread"] = "no"
        settings["enable-debug-command"] = "local"  # fault tests need DEBUG SLEEP
        return settings | self._config

    def _start_on(self, port: int, *, wait: bool) -> None:
        # A file and not arguments, whose values redis-server would take as one quoted word each.
        config = self.directory / "harness.conf"
        lines = (f"{name} {value}\n" for name, value in self._settings(port).items())
        config.write_text("".join(lines))
        environment = os.environ | (self.clock.env() if self.clock else {})
        log_start = len(self.log)
        with self._log_file.open("ab") as log:
            self._child = spawn(
                [self.binary, config],
                env=environment,
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._prove_ours(port, log_start, wait=wait)
        except BaseException:
            self.kill9()
            raise
        if self._port != port:
            self._port, self._admin = port, None

    def _start_again(self, port: int, *, wait: bool) -> None:
        deadline = time.monotonic() + self._start_timeout
        while True:
            try:
                self._start_on(port, wait=wait)
                return
            except PortTaken:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL)

    def _prove_ours(self, port: int, log_start: int, *, wait: bool) -> None:
        assert self._child is not None
        deadline = time.monotonic() + self._start_timeout
        retry = Retry(NoBackoff(), 0)
        with redis.Redis(host=HOST, port=port, retry=retry, socket_timeout=PROBE_TIMEOUT) as probe:
            while True:
                if self._child.poll() is not None:
                    log = self.log[log_start:]
                    if "Address already in use" in log or "Failed listening on port" in log:
                        raise PortTaken(f"port {port} is taken")
                    raise ServerFailed(f"exit={self._child.returncode}\n{log[-2000:]}")
                try:
                    # INFO is answered during LOADING, so the proof does not wait for the data.
                    answering = int(call(probe, "INFO", "server")["process_id"])
                    if answering != self._child.pid:
                        raise PortTaken(f"port {port} belongs to process {answering}")
                    if wait:
                        call(probe, "PING")
                    return
                except redis.RedisError:  # Refused, or LOADING: ask again.
                    if time.monotonic() > deadline:
                        log = self.log[log_start:]
                        raise ServerFailed(f"no answer on port {port}\n{log[-2000:]}") from None
                    time.sleep(POLL)
