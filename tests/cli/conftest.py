"""The real command as a child process, beside a real server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest.mock
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import restante
from restante import Admin, Client
from restante.cli.entry import run
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.processes import is_alive, spawn
from tests.harness.servers import RedisServer, call
from tests.harness.zygote import run_forked

#: The command as it is installed beside this interpreter.
RESTANTE = Path(sys.executable).with_name("restante")
#: The program as a script for `python -c`.
SCRIPT = "import sys; from restante.cli import main; sys.exit(main())"


class Ran:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """The only document on standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def ndjson(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The only line on standard error."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: "), line
        return line


class Running:
    """A running command in its own process group."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._child = spawn([RESTANTE, *words], env=env, cwd=cwd, stdout=self._out, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        size = os.fstat(self._out.fileno()).st_size
        return os.pread(self._out.fileno(), size, 0).decode(errors="replace")

    def wait_for(self, text: str, timeout: float = PATIENCE) -> str:
        """Waits until the output contains the text."""
        wait_until(
            lambda: text in self.output or self._child.poll() is not None,
            lambda: f"no {text!r} in {self.output}",
            timeout=timeout,
        )
        assert text in self.output, f"ended with {self._child.returncode}: {self.output}"
        return self.output

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole group."""
        os.killpg(self._child.pid, signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        return self._child.wait(timeout)

    def close(self) -> None:
        self._child.kill()
        self._child.wait(PATIENCE)
        self._out.close()


class Cli:
    """Runs commands against one server, in one directory."""

    def __init__(self, url: str | None, cwd: Path) -> None:
        self.cwd = cwd
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("RESTANTE_", "COLUMNS"))}
        self._mark = f"RESTANTE_TEST_MARK={uuid.uuid4().hex}"
        self.env |= {"TERM": "dumb", "USER": "tester", "RESTANTE_TEST_MARK": self._mark.partition("=")[2]}
        if url is not None:
            self.env["RESTANTE_URL"] = url
        self._running: list[Running] = []

    def __call__(self, *words: str, stdin: str | bytes = "", **env: str) -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        code, out, err = run_forked(SCRIPT, [str(RESTANTE), *words], env=self.env | env, cwd=self.cwd, stdin=data)
        assert "Traceback" not in out + err, err
        return Ran(code, out, err)

    def inside(self, *words: str) -> Ran:
        """Runs a command in this process, where a new interpreter would prove nothing more."""
        out, err = io.StringIO(), io.StringIO()
        with (
            unittest.mock.patch.dict(os.environ, self.env, clear=True),
            contextlib.chdir(self.cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run(words)
        assert "unexpected" not in err.getvalue(), err.getvalue()
        return Ran(code, out.getvalue(), err.getvalue())

    def start(self, *words: str) -> Running:
        made = Running(list(words), self.cwd, self.env)
        self._running.append(made)
        return made

    def family(self) -> list[int]:
        """Every living descendant of these commands, adopted ones too."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return [pid for pid in found if is_alive(pid)]

    def leaves_nobody(self) -> None:
        """Waits until no process is left, and asserts it."""
        wait_until(
            lambda: not self.family(),
            lambda: [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.family()],
        )

    def close(self) -> None:
        for one in self._running:
            one.close()
        for pid in self.family():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture(scope="session")
def _server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(_server: RedisServer) -> RedisServer:
    """An empty server."""
    call(_server.client(), "FLUSHALL")
    return _server


@pytest.fixture
def post(server: RedisServer) -> Iterator[Client]:
    with restante.connect(server.url) as post:
        yield post


@pytest.fixture
def admin(post: Client) -> Admin:
    return Admin(post)


@pytest.fixture
def cli(server: RedisServer, tmp_path: Path) -> Iterator[Cli]:
    """The command, with the server in RESTANTE_URL."""
    made = Cli(server.url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def lone_cli(tmp_path: Path) -> Iterator[Cli]:
    """The command without a server: it starts an embedded one."""
    made = Cli(None, tmp_path)
    yield made
    made.close()
