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

if TYPE_CHECKING:
    from tests.harness.clock import FrozenClock

#: The checkout, from which children import `tests` and, below `src`, the product.
CHECKOUT: Final = Path(__file__).resolve().parents[2]

#: Seconds to wait for the last output of a child that has ended, as long as a grandchild may still write.
GRANDCHILD_TIMEOUT: Final = 10.0

#: Seconds to wait for a signal to take effect; shorter fails on a busy machine.
SIGNAL_TIMEOUT: Final = PATIENCE

# The child sets its own parent-death signal and then becomes the program, keeping its pid.
# A preexec_fn would be shorter, but it runs Python between fork and exec of a process with
# threads, which may deadlock and which Python 3.12 warns about.
_LAUNCHER: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

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
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` as the leader of its own process group; it dies when this process dies."""
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    command = [*launcher, *(str(word) for word in argv)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=dict(os.environ if env is None else env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    return _spawning_thread().submit(start).result()


def pause_process(child: subprocess.Popen[bytes], *, group: bool = False) -> None:
    """Send SIGSTOP and return once the kernel reports the child as stopped."""
    (os.killpg if group else os.kill)(child.pid, signal.SIGSTOP)
    deadline = time.monotonic() + SIGNAL_TIMEOUT
    while os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG) is None:
        if child.poll() is not None:
            raise RuntimeError(f"the child ended before it stopped, exit={child.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the child did not stop, pid={child.pid}")
        time.sleep(0.001)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class PythonProcess:
    """A Python program as a child process group whose output lines can be awaited.

    `source` is a snippet when it is a string and a script when it is a path. The child imports
    from the checkout and from its `src`. `terminate` reaches the leader only, as an operator's
    SIGTERM does; `kill9`, `stop` and `cont` reach the whole group, as a dying machine does.
    """

    def __init__(
        self,
        source: str | Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        clock: FrozenClock | None = None,
    ) -> None:
        program = ["-c", source] if isinstance(source, str) else [str(source)]
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT))),
            **(clock.env() if clock else {}),
            **(env or {}),
        }
        self._news = threading.Condition()
        self._lines: list[str] = []
        # A file, not a second pipe: it cannot fill up and block the child.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._child = spawn(
            [sys.executable, *program, *args],
            env=environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with self._news:
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def lines(self) -> list[str]:
        """The lines of standard output so far, without their line ends."""
        with self._news:
            return list(self._lines)

    @property
    def stderr(self) -> str:
        """What the child has written to standard error so far."""
        size = os.fstat(self._stderr.fileno()).st_size
        # pread leaves the offset alone, which the child shares with this descriptor.
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number after a signal, None while it runs."""
        return self._child.poll()

    def wait_line(self, containing: str = "", *, after: int = 0, timeout: float = PATIENCE) -> str:
        """The first line from index `after` on that contains the text; waits for it."""
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                for line in self._lines[after:]:
                    if containing in line:
                        return line
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise TimeoutError(
                        f"no line with {containing!r}: exit={self._child.poll()} "
                        f"stdout={self._lines[-20:]} stderr={self.stderr[-2000:]}"
                    )
                self._news.wait(left)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the leader's end and for its last output; returns the exit code."""
        code = self._child.wait(timeout)
        # A surviving grandchild may hold the pipe open: do not wait for it for long.
        self._reader.join(GRANDCHILD_TIMEOUT)
        return code

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
        """Kill what is left of the group and free the pipes."""
        self.kill9()
        self._reader.join(SIGNAL_TIMEOUT)
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._stderr.close()

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
