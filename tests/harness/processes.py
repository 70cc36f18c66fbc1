"""Child processes that never outlive the test run, and Python programs run as such children.

A child dies by SIGKILL when the test process dies, however it dies. When a child ends early its
output is kept, so that the failing test can show it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, Self

from tests.harness.deadlines import PATIENCE
from tests.harness.zygote import Forked

if TYPE_CHECKING:
    from tests.harness.clock import FrozenClock

#: The checkout, from which children import `tests` and, below `src`, the product.
CHECKOUT: Final = Path(__file__).resolve().parents[2]

#: Seconds between two looks at what a child has written.
LOOK_AGAIN: Final = 0.005

#: Seconds to wait for a signal to take effect; shorter fails on a busy machine.
SIGNAL_TIMEOUT: Final = PATIENCE

# The child sets its own parent-death signal and then becomes the program, keeping its pid.
# A preexec_fn would be shorter, but it runs Python between fork and exec of a process with
# threads, which may deadlock and which Python 3.12 warns about.
_LAUNCHER: Final = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')

_spawner: ThreadPoolExecutor | None = None
_spawner_pid = 0
_spawner_lock = threading.Lock()


def _spawning_thread() -> ThreadPoolExecutor:
    """The one thread that starts children.

    The kernel sends the parent-death signal when the *thread* that forked ends, so a server
    started from a short-lived thread would be killed in the middle of a test.
    """
    global _spawner, _spawner_pid
    with _spawner_lock:
        if _spawner is None or _spawner_pid != os.getpid():
            _spawner = ThreadPoolExecutor(1, thread_name_prefix="harness-spawner")
            _spawner_pid = os.getpid()
        return _spawner


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` as the leader of its own process group; it dies when this process dies."""
    command = [*_LAUNCHER, str(os.getpid()), *(str(word) for word in argv)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=dict(os.environ if env is None else env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    return _spawning_thread().submit(start).result()


def pause_process(child: subprocess.Popen[bytes] | Forked, *, group: bool = False) -> None:
    """Send SIGSTOP and return once the kernel reports the child as stopped."""
    (os.killpg if group else os.kill)(child.pid, signal.SIGSTOP)
    deadline = time.monotonic() + SIGNAL_TIMEOUT
    while _state(child.pid) != "T":
        if child.poll() is not None:
            raise RuntimeError(f"the child ended before it stopped, exit={child.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the child did not stop, pid={child.pid}")
        time.sleep(0.001)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """The kernel's letter for what a process does; X where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _contents(file: IO[bytes], begin: int = 0) -> bytes:
    """What a file that a child writes to holds from `begin` on; pread leaves the offset alone, which both share."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size - begin, begin)


class PythonProcess:
    """A Python program as a child process group whose output lines can be awaited.

    `source` is a snippet when it is a string and a script when it is a path. The child imports from the checkout and
    from its `src`; a snippet that is `forked` finds most of it imported (`zygote`). `terminate` reaches the leader,
    as an operator's SIGTERM does; `kill9`, `stop` and `cont` reach the whole group, as a dying machine does.
    """

    def __init__(
        self,
        source: str | Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        clock: FrozenClock | None = None,
        forked: bool = False,
    ) -> None:
        program = ["-c", source] if isinstance(source, str) else [str(source)]
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT))),
            **(clock.env() if clock else {}),
            **(env or {}),
        }
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._read_bytes = 0
        self._last_words = ""
        # Files, not pipes: they never block the child, and what it wrote before a change that a test has seen
        # elsewhere, say in Redis, can be read at once.
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._child: subprocess.Popen[bytes] | Forked
        if forked:
            assert isinstance(source, str)
            assert clock is None
            with open(os.devnull, "rb") as nothing:
                files = [nothing.fileno(), self._stdout.fileno(), self._stderr.fileno()]
                self._child = Forked(source, ["-c", *args], environment, cwd, files)
        else:
            self._child = spawn(
                [sys.executable, *program, *args], env=environment, cwd=cwd, stdout=self._stdout, stderr=self._stderr
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def lines(self) -> list[str]:
        """The lines of standard output so far, without their line ends."""
        with self._lock:
            self._read_lines()
            return list(self._lines)

    @property
    def stderr(self) -> str:
        """What the child has written to standard error so far."""
        return self._last_words if self._stderr.closed else _contents(self._stderr).decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number after a signal, None while it runs."""
        return self._child.poll()

    def wait_line(self, containing: str = "", *, after: int = 0, timeout: float = PATIENCE) -> str:
        """The first line from index `after` on that contains the text; waits for it."""
        deadline = time.monotonic() + timeout
        while True:
            over = self._child.poll() is not None or time.monotonic() > deadline
            lines = self.lines
            for line in lines[after:]:
                if containing in line:
                    return line
            if over:
                raise TimeoutError(
                    f"no line with {containing!r}: exit={self._child.poll()} "
                    f"stdout={lines[-20:]} stderr={self.stderr[-2000:]}"
                )
            time.sleep(LOOK_AGAIN)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the leader's end; returns the exit code."""
        return self._child.wait(timeout)

    def terminate(self) -> None:
        """SIGTERM to the leader; does not wait."""
        self._child.send_signal(signal.SIGTERM)

    def kill9(self) -> None:
        """SIGKILL to the group; returns when the leader is gone."""
        self._signal_group(signal.SIGKILL)
        self._child.wait(SIGNAL_TIMEOUT)

    def stop(self) -> None:
        """SIGSTOP to the group; returns when the leader stands still."""
        pause_process(self._child, group=True)

    def cont(self) -> None:
        """SIGCONT to the group."""
        self._signal_group(signal.SIGCONT)

    def close(self) -> None:
        """Kill what is left of the group; what it has said stays."""
        self.kill9()
        with self._lock:
            self._read_lines()
            self._stdout.close()
        self._last_words = self.stderr
        self._stderr.close()

    def _read_lines(self) -> None:
        if self._stdout.closed:
            return
        ended = self._child.poll() is not None
        fresh = _contents(self._stdout, self._read_bytes)
        # The last line may still be on its way, unless nobody is left to write it.
        whole = fresh if ended else fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        if whole:
            self._lines += whole.decode(errors="replace").removesuffix("\n").split("\n")

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            pass  # The whole group is gone already, which is what a killer wants.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
