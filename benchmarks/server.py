"""Start a redis-server of our own for a measure; it dies with the process that started it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from types import TracebackType

import redis

#: Seconds a new server may take to answer; a loaded machine needs more than the usual 50 ms.
START_SECONDS = 10.0


def dying_with_parent(command: list[str], signal_name: str = "KILL") -> list[str]:
    """Wrap a command so that the kernel signals it when the starting thread ends."""
    setpriv = shutil.which("setpriv")
    # Without setpriv (not Linux) only an orderly end stops the child.
    return [setpriv, "--pdeathsig", signal_name, "--", *command] if setpriv else command


def free_port() -> int:
    """Return a TCP port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A private redis-server child without persistence, as a context manager."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = tempfile.TemporaryDirectory(prefix="bench-redis-")
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", self._directory.name]
        self._process = subprocess.Popen(dying_with_parent(command), stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                pid = self.client.info("server")["process_id"]
                break
            except redis.ConnectionError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)
        # Another server may have taken the port in between: never flush what is not ours.
        if pid != self._process.pid:
            raise RuntimeError(f"port {self.port} answers as process {pid}, not our own child")

    def flush(self) -> None:
        """Empty the server between two measures."""
        self.client.flushall()
        self.client.script_flush()

    def stop(self) -> None:
        """End the server and remove its directory."""
        self.client.close()
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
