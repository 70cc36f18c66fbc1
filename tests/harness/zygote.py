"""A Python that has imported everything and forks: commands and workers that need not import it again.

A test process has one, from the first child on that asks for it. Starting an interpreter and importing Typer, Redis'
client and Celery takes a busy core half a second, more than most commands and workers need for their work. A forked
child leads a process group and has its own environment, folder, arguments and files, and it ends as a program ends.
What the imports themselves do, what depends on the environment at start (`LD_PRELOAD`) or patches modules before they
are used (gevent) needs an interpreter of its own.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.harness.deadlines import PATIENCE

#: What a child finds imported.
MODULES: Final = (
    "amqp",
    "celery.__main__",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.worker.consumer",
    "celery.app.amqp",
    "celery.backends.redis",
    "kombu.transport.pyamqp",
    "pydantic",
    "restante.aio",
    "restante.bus",
    "restante.bus.worker",
    "restante.celery.transport",
    "restante.cli.entry",
    "restante.cli.rsmqctl",
    "rich.table",
)
#: Bytes of one read from a connection.
BLOCK: Final = 65536

_started: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
_lock = threading.Lock()


class Forked:
    """A child, with as much of `subprocess.Popen` as the tests use."""

    def __init__(
        self, source: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path | None, files: Sequence[int]
    ) -> None:
        self.returncode: int | None = None
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(_address())
        job = {"source": source, "argv": list(argv), "env": dict(env), "cwd": str(cwd or Path.cwd())}
        socket.send_fds(self._link, [b"\n"], list(files))
        self._link.sendall(json.dumps(job).encode() + b"\n")
        self._lock = threading.Lock()
        self._answers = select.poll()
        self._answers.register(self._link, select.POLLIN)
        self.pid = int(self._answer())

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and self._answers.poll(0):
                self.returncode = os.waitstatus_to_exitcode(int(self._answer()))
                self._link.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0)
            self._answers.poll(None if left is None else left * 1000)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self) -> bytes:
        """The next line: the child's pid, when it leads a group, or the status it ended with."""
        said = b""
        while not said.endswith(b"\n"):
            said += (byte := self._link.recv(1))
            if not byte:
                raise RuntimeError("the zygote is gone")
        return said


def run_forked(
    source: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: bytes = b"", merged: bool = False
) -> tuple[int, str, str]:
    """Runs a program to its end: exit code, standard output, standard error; `merged` puts both into the output."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        child = Forked(source, argv, env, cwd, [given.fileno(), out.fileno(), (out if merged else err).fileno()])
        try:
            code = child.wait(PATIENCE)
        finally:
            child.kill()
        out.seek(0)
        err.seek(0)
        return code, out.read().decode(), err.read().decode()


def _address() -> str:
    """Where this process' zygote listens; started if it is not there yet."""
    from tests.harness.processes import CHECKOUT, spawn

    with _lock:
        if os.getpid() not in _started:
            path = f"{tempfile.mkdtemp(prefix='restante-zygote-')}/socket"
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("RESTANTE_", "PYTEST_"))}
            python_path = os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))
            child = spawn([sys.executable, "-m", "tests.harness.zygote", path], env={**kept, "PYTHONPATH": python_path})
            deadline = time.monotonic() + PATIENCE
            while not Path(path).exists():
                if child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the zygote does not start, exit={child.returncode}")
                time.sleep(0.01)
            _started[os.getpid()] = child, path
        return _started[os.getpid()][1]


# -- in the zygote ---------------------------------------------------------------------------------------------------


def serve(path: str) -> dict[str, Any]:
    """Forks a child per connection and tells its end; returns in each child, with what it is to do."""
    waked, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.new")
    listening.listen(64)
    os.rename(f"{path}.new", path)
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    selector.register(waked, selectors.EVENT_READ)
    children: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is waked:
                waked.recv(BLOCK)
                _tell_ends(children)
                continue
            link, _ = listening.accept()
            job, files = _request(link)
            zygote = os.getpid()
            pid = os.fork()
            if pid:
                children[pid] = link
                for file in files:
                    os.close(file)
                continue
            os.setsid()
            link.sendall(b"%d\n" % os.getpid())
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (waked, wake, listening, link, *children.values()):
                one.close()
            selector.close()
            _settle(job, files, zygote)
            return job


def _request(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _, files, _, _ = socket.recv_fds(link, 1, 3)
    said = b""
    while not said.endswith(b"\n"):
        said += link.recv(BLOCK)
    job: dict[str, Any] = json.loads(said)
    return job, files


def _tell_ends(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        link = children.pop(pid)
        try:
            link.sendall(b"%d\n" % status)
        except OSError:
            pass  # Nobody waits for it.
        link.close()


def _settle(job: dict[str, Any], files: list[int], zygote: int) -> None:
    """Makes the child look like a program that has just started."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # ends with the zygote, which ends with the tests
    if os.getppid() != zygote:
        os._exit(1)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    own = {sys.path[0], *os.environ["PYTHONPATH"].split(os.pathsep)}
    os.environ.clear()
    os.environ.update(job["env"])
    asked = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:] = ["", *asked, *(one for one in sys.path if one not in own)]
    sys.path_importer_cache.clear()
    time.tzset()
    os.chdir(job["cwd"])
    sys.argv = job["argv"]
    at_once = "PYTHONUNBUFFERED" in os.environ
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _text(1, "strict", at_once or os.isatty(1), at_once)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace", True, at_once)  # type: ignore[misc]
    if os.environ.get("PYTHONWARNINGS") == "default":
        warnings.simplefilter("default")


def _text(file: int, errors: str, lines: bool, at_once: bool) -> io.TextIOWrapper:
    raw = open(file, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=lines, write_through=at_once)


def main() -> None:
    for name in MODULES:
        __import__(name)
    gc.freeze()
    job = serve(sys.argv[1])
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    exec(compile(job["source"], "<string>", "exec"), program.__dict__)


if __name__ == "__main__":
    main()
