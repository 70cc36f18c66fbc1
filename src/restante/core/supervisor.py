"""Starts the child processes of a consumer, watches, replaces and restarts them, and stops them together.

Run by the main thread, without other threads, so that it may fork. On failure: a child that ends is restarted (see
`restart_policy`), one that hangs is killed, and when the supervisor itself dies its children stop by themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from restante.core.child_process import HANDED_ON, ChildProcess, Program, StartMethod, Stop
from restante.core.restart_policy import ProcessLimits, Reason, RestartPolicy, may_replace

log = logging.getLogger("restante")

#: Seconds between two looks at all children when nothing happens.
LOOK_EVERY = 1.0
#: Seconds beyond its grace that a child gets to deliver its last acks and to end.
STOP_MARGIN = 15.0
#: Seconds that a child gets to hand everything back at once.
AT_ONCE_MARGIN = 10.0
#: At this signal the children are killed.
KILLING_SIGNAL = 3
_NEVER = float("inf")


@dataclass(slots=True)
class Slot:
    """One of the processes: the child that runs, or when the next one starts."""

    number: int
    child: ChildProcess | None = None
    starts_at: float = 0.0
    crashes: int = 0
    #: How and why the child was told to stop, and when it is killed.
    told: int = 0
    reason: Reason | None = None
    killed_at: float = _NEVER


@dataclass(frozen=True, slots=True)
class Totals:
    """What the children did. What a killed child did after its last report is missing."""

    handled: int
    failed: int


class Supervisor:
    """Keeps `processes` children of one program running until stopped: `run()` returns what they did.

    The first signal or `stop()` lets running handlers finish, the second hands everything back, the third kills.
    """

    def __init__(
        self,
        program: Callable[[int], Program],
        processes: int,
        limits: ProcessLimits,
        *,
        method: StartMethod = "spawn",
        restarts_ended: bool = True,
        awaits_change: bool = False,
        ready: Callable[[dict[str, Any]], None] = lambda said: None,
    ) -> None:
        """`program` makes what the child of a number runs. `ready` gets what the first child says that works.

        Without `restarts_ended` a child that ends by itself is not restarted. With `awaits_change` one that fails
        before it works waits for `replace_all`.
        """
        self._program = program
        self._limits = limits
        self._method = method
        self._restarts_ended = restarts_ended
        self._awaits_change = awaits_change
        self._ready = ready
        self._policy = RestartPolicy()
        self.slots = [Slot(number) for number in range(1, processes + 1)]
        self._stops = 0
        self._changes = 0
        self._seen_changes = 0
        self._handled = self._failed = 0
        self._announced = self._proved = False
        #: What made a child fail before any had received from the server: an error's name, message and code.
        self.failure: dict[str, Any] | None = None
        self._selector = selectors.DefaultSelector()
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._selector.register(self._near, selectors.EVENT_READ)

    # -- control -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops the children, each further call more urgently."""
        self._stops += 1
        self._wake()

    def replace_all(self) -> None:
        """Replaces every child, because the code has changed. Other threads may call it."""
        self._changes += 1
        self._wake()

    def run(self) -> Totals:
        """Runs the children until stopped, or until all have ended for good."""
        with self._signals():
            try:
                while self._tend(time.monotonic()):
                    self._wait()
            finally:
                for slot in self.slots:
                    if slot.child is not None:
                        slot.child.kill()  # only after an error of ours
                self._selector.close()
                self._near.close()
                self._far.close()
        return Totals(self._handled, self._failed)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: a wake-up is pending; closed: the run is over
            self._far.send(b".")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in HANDED_ON}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: self._wake())
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _wait(self) -> None:
        now = time.monotonic()
        next_at = min(slot.starts_at if slot.child is None else slot.killed_at for slot in self.slots)
        for key, _ in self._selector.select(min(LOOK_EVERY, max(0.0, next_at - now))):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    while self._near.recv(4096):
                        pass
            elif not key.data.read():
                self._selector.unregister(key.fileobj)  # the child has closed its pipe; its end is noticed apart

    # -- the children --------------------------------------------------------------------------------------------

    def _tend(self, now: float) -> bool:
        """Does for each child what is due; returns False when none is left."""
        self._reap(now)
        if self._changes > self._seen_changes:
            self._seen_changes = self._changes
            for slot in self.slots:
                slot.crashes = 0
                slot.starts_at = min(slot.starts_at, now)
                if slot.child is not None and not self._stops:
                    self._tell(slot, Stop.GRACEFULLY, Reason.RELOAD, now)
        for slot in self.slots:
            if slot.child is None:
                if not self._stops and now >= slot.starts_at:
                    self._start(slot)
            else:
                self._watch(slot, slot.child, now)
        return any(slot.child is not None for slot in self.slots) or (
            not self._stops and any(slot.starts_at < _NEVER or self._awaits_change for slot in self.slots)
        )

    def _start(self, slot: Slot) -> None:
        child = ChildProcess.start(self._program(slot.number), self._method, self._inherited())
        self._selector.register(child.reports, selectors.EVENT_READ, child)
        slot.child, slot.told, slot.reason, slot.killed_at = child, 0, None, _NEVER
        log.info("started process=%d pid=%d", slot.number, child.pid)

    def _inherited(self) -> list[int]:
        """The file descriptors that a forked child must not keep."""
        own = [self._near.fileno(), self._far.fileno()]
        if isinstance(self._selector, selectors.EpollSelector):
            own.append(self._selector.fileno())
        return own + [
            number for slot in self.slots if slot.child for number in (slot.child.control, slot.child.reports)
        ]

    def _watch(self, slot: Slot, child: ChildProcess, now: float) -> None:
        """Stops, replaces or kills a running child if that is due."""
        self._proved = self._proved or child.report.polled
        if not self._announced and "consuming" in child.said:
            self._announced = True
            self._ready(child.said)
        if self._stops >= KILLING_SIGNAL:
            self._kill(slot, child, now)
        elif self._stops:
            self._tell(slot, Stop(min(self._stops, Stop.AT_ONCE)), Reason.STOPPED, now)
        elif slot.reason is None:
            if child.silent(now) > LOOK_EVERY:
                child.read()  # perhaps it is this process that was suspended
            reason = self._limits.reason(child.report, silent=child.silent(now), hung=child.hung(now))
            stopping = sum(other.reason is not None for other in self.slots if other.child is not None)
            if reason is not None and may_replace(reason, stopping, len(self.slots)):
                log.warning(
                    "replacing process=%d pid=%d reason=%s handled=%d failed=%d running=%d hung=%d rss=%d",
                    slot.number,
                    child.pid,
                    reason,
                    child.report.handled,
                    child.report.failed,
                    child.report.running,
                    child.report.hung,
                    child.report.rss,
                )
                self._tell(slot, Stop.GRACEFULLY, reason, now)
                if reason is Reason.SILENT:
                    slot.killed_at = now  # it cannot hear
        if now >= slot.killed_at:
            self._kill(slot, child, now)

    def _tell(self, slot: Slot, stop: Stop, reason: Reason, now: float) -> None:
        if slot.told >= stop or slot.child is None:
            return
        slot.child.tell(stop)
        slot.told, slot.reason = stop, slot.reason or reason
        slot.killed_at = now + (self._limits.grace + STOP_MARGIN if stop is Stop.GRACEFULLY else AT_ONCE_MARGIN)

    def _kill(self, slot: Slot, child: ChildProcess, now: float) -> None:
        log.error("killing process=%d pid=%d running=%d", slot.number, child.pid, child.report.running)
        child.kill()
        slot.killed_at = now + LOOK_EVERY  # should the kernel need it, for example behind a file system that hangs

    def _reap(self, now: float) -> None:
        """Notices the children that have ended and, as process 1 of a container, orphans of the handlers."""
        for slot in self.slots:
            if slot.child is not None and (code := slot.child.ended()) is not None:
                self._ended(slot, slot.child, code, now)
        if os.getpid() == 1:
            known = {slot.child.pid for slot in self.slots if slot.child is not None}
            _reap_orphans(known)

    def _ended(self, slot: Slot, child: ChildProcess, code: int, now: float) -> None:
        child.read()
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.reports)
        child.close(code)
        slot.child = None
        self._handled += child.report.handled
        self._failed += child.report.failed
        self._proved = self._proved or child.report.polled
        reason = slot.reason or (Reason.ENDED if code == 0 else Reason.CRASHED)
        failed = child.said if "error" in child.said else None
        if failed is not None and not self._proved and not self._awaits_change and not self._stops:
            # As of one process: what is wrong from the beginning ends the command with its error and code.
            self.failure = failed
            self._stops = 1
        if self._stops or (reason is Reason.ENDED and not self._restarts_ended):
            slot.starts_at = _NEVER
            log.info("ended process=%d pid=%d code=%d", slot.number, child.pid, code)
            return
        if failed is not None and self._awaits_change and reason is not Reason.RELOAD:
            slot.starts_at = _NEVER
            log.error("failed process=%d error=%s: %s", slot.number, failed["error"], failed["message"])
            return
        restart = self._policy.next(reason, lived=now - child.started_at, crashes=slot.crashes)
        slot.crashes, slot.starts_at = restart.crashes, now + restart.delay
        if reason is Reason.CRASHED:
            said = f"{failed['error']}: {failed['message']}" if failed else "none"
            log.error(
                "crashed process=%d pid=%d code=%d restart_seconds=%.1f error=%s",
                slot.number,
                child.pid,
                code,
                restart.delay,
                said,
            )
        else:
            log.info(
                "ended process=%d pid=%d reason=%s restart_seconds=%.1f", slot.number, child.pid, reason, restart.delay
            )


def _reap_orphans(known: set[int]) -> None:
    """Waits for ended processes whose parents are gone; process 1 inherits them."""
    while True:
        try:
            # Without taking it: a child of ours that has ended since must stay for its own waitpid.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in known:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, 0)
