"""A child process and its parent: how one starts the other, and what they tell each other through two pipes.

The parent writes how to stop; the child writes one JSON line a second. If the parent dies, however it dies, its pipe
closes and the child stops as at a first signal. If the parent does not read, reports are dropped and the child goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal

import orjson

from restante.core.restart_policy import Report

log = logging.getLogger("restante")

StartMethod = Literal["spawn", "fork"]

#: Seconds between two reports of a child. Longer lets a child exceed its limits by more; shorter only costs CPU.
REPORT_EVERY = 1.0
#: Seconds that an orphaned child gets beyond its grace before it ends itself: its handlers may hang.
ORPHAN_MARGIN = 15.0
#: Bytes of one read of reports.
READ_SIZE = 65536
#: Signals that the parent handles for the children. They are blocked until a child has its own handlers.
HANDED_ON = (signal.SIGTERM, signal.SIGINT)
#: What a new interpreter runs.
_PROGRAM = "from restante.core.child_process import main; main()"


class Stop(IntEnum):
    """How a child is told to stop."""

    #: Running handlers finish, within the grace.
    GRACEFULLY = 1
    #: Everything is handed back.
    AT_ONCE = 2


class Parent:
    """The child's end: obeys the parent's word and reports to it."""

    def __init__(self, control: int, reports: int) -> None:
        self._control, self._reports = control, reports
        os.set_blocking(reports, False)
        self.pid = os.getppid()

    def listen(self, stop: Callable[[Stop], None], grace: float) -> None:
        """Calls `stop` when the parent says so, dies, or somebody sends this process SIGTERM.

        The parent repeats no word, and a stop that is told twice must stop once: SIGTERM may reach the whole group.
        """
        signal.signal(signal.SIGTERM, lambda *_: stop(Stop.GRACEFULLY))

        def read() -> None:
            while word := os.read(self._control, 1):
                stop(Stop(int(word)))
            log.warning("stopping pid=%d: the parent process has ended", os.getpid())
            stop(Stop.GRACEFULLY)
            time.sleep(grace + ORPHAN_MARGIN)
            log.error("ended pid=%d: handlers still ran after the grace time", os.getpid())
            os._exit(1)

        threading.Thread(target=read, name="restante-parent", daemon=True).start()

    def report_regularly(self, look: Callable[[], Report]) -> None:
        """Sends a report every second, from now on."""

        def work() -> None:
            while self.report(look()):
                time.sleep(REPORT_EVERY)

        threading.Thread(target=work, name="restante-reports", daemon=True).start()

    def report(self, report: Report) -> bool:
        """Sends a report; returns False if the parent has ended."""
        return self.say(asdict(report))

    def say(self, line: dict[str, Any]) -> bool:
        """Sends one line. It is dropped if the parent does not read; a pipe takes a line of this size whole or not."""
        try:
            os.write(self._reports, orjson.dumps(line) + b"\n")
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Program:
    """What children run: a function of a module, with its parent and JSON options; it returns the exit code."""

    run: Callable[[Parent, dict[str, Any]], int]
    options: dict[str, Any]


@dataclass(slots=True)
class ChildProcess:
    """The parent's end: one running child."""

    pid: int
    control: int
    reports: int
    started_at: float
    #: Its last report, and when it came.
    report: Report = field(default_factory=Report)
    heard_at: float = 0.0
    #: Since when it has hung handlers.
    hung_since: float | None = None
    #: What it said beside its reports: what it consumes, why it failed.
    said: dict[str, Any] = field(default_factory=dict)
    _rest: bytes = b""
    #: Kept so that Python does not warn about a child that nobody waits for: the supervisor does.
    _popen: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, program: Program, method: StartMethod, inherited: Iterable[int]) -> ChildProcess:
        """Starts a child; a forked one closes the `inherited` file descriptors of its parent."""
        control_read, control = os.pipe()
        reports, reports_write = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
        try:
            popen = None
            if method == "spawn":
                popen = _spawn(program, control_read, reports_write)
                pid = popen.pid
            else:
                pid = _fork(program, control_read, reports_write, [*inherited, control, reports])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(control_read)
            os.close(reports_write)
        os.set_blocking(reports, False)
        now = time.monotonic()
        return cls(pid, control, reports, now, heard_at=now, _popen=popen)

    def tell(self, stop: Stop) -> None:
        """Tells it to stop; one that has ended or does not read is not waited for."""
        try:
            os.write(self.control, b"%d" % stop)
            if "consuming" not in self.said:
                os.kill(self.pid, signal.SIGTERM)  # it still imports its modules, and does not listen yet
        except OSError:
            pass

    def kill(self) -> None:
        """Ends it now. Its messages are redelivered when their leases end."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def read(self) -> bool:
        """Takes in what it has said; returns False at the end of its pipe."""
        while True:
            try:
                data = os.read(self.reports, READ_SIZE)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(orjson.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        self.heard_at = time.monotonic()
        if "handled" not in line:
            self.said |= line
            return
        self.report = Report(**line)
        if not self.report.hung:
            self.hung_since = None
        elif self.hung_since is None:
            self.hung_since = self.heard_at

    def silent(self, now: float) -> float:
        """Seconds since it was last heard."""
        return now - self.heard_at

    def hung(self, now: float) -> float:
        """Seconds for which it has had hung handlers."""
        return 0.0 if self.hung_since is None else now - self.hung_since

    def ended(self) -> int | None:
        """The exit code, minus the signal's number after a signal; None while it runs."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.pid, 0  # somebody else in this process waited for it
        return os.waitstatus_to_exitcode(status) if pid else None

    def close(self, code: int) -> None:
        """Frees what the parent keeps of a child that has ended."""
        os.close(self.control)
        os.close(self.reports)
        if self._popen is not None:
            self._popen.returncode = code


def _spawn(program: Program, control: int, reports: int) -> subprocess.Popen[bytes]:
    told = {
        "run": f"{program.run.__module__}:{program.run.__qualname__}",
        "control": control,
        "reports": reports,
        "options": program.options,
    }
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, orjson.dumps(told).decode()], pass_fds=(control, reports), close_fds=True
    )


def main() -> None:
    """Runs a child in the interpreter that was started for it."""
    told = orjson.loads(sys.argv[1])
    sys.argv[1:] = []
    _take_signals()
    for number in (told["control"], told["reports"]):
        os.set_inheritable(number, False)  # programs that handlers start must not keep the parent's pipes open
    module, _, name = told["run"].partition(":")
    run = getattr(importlib.import_module(module), name)
    sys.exit(_run_to_end(run, Parent(told["control"], told["reports"]), told["options"]))


def _run_to_end(run: Callable[[Parent, dict[str, Any]], int], parent: Parent, options: dict[str, Any]) -> int:
    try:
        return run(parent, options)
    finally:
        # It is ending: the parent's SIGTERM may neither break off what runs at exit nor change the exit code.
        signal.signal(signal.SIGTERM, lambda *_: None)


def _fork(program: Program, control: int, reports: int, inherited: Iterable[int]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _take_signals()
        # Otherwise this child would keep its brothers' pipes open, and none would notice the parent's death.
        for number in inherited:
            with contextlib.suppress(OSError):
                os.close(number)
        code = _run_to_end(program.run, Parent(control, reports), program.options)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # The frames of the parent below this one must not run their ends here.
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _take_signals() -> None:
    """Ctrl-C reaches the whole group, and the parent hands it on: a child obeys only the parent's word and SIGTERM."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until `listen`
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)


def memory_in_use() -> int:
    """Bytes of memory that this process uses; where the system does not say, the most that it has used."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
