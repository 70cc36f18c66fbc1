"""Children for the tests of the supervisor: they report what they are told, and do not consume anything."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from typing import Any

from restante.core.child_process import Parent, Stop
from restante.core.restart_policy import Report

#: Seconds between two reports.
PAUSE = 0.3


def behave(parent: Parent, told: dict[str, Any]) -> int:
    """Says each report in turn and the last one again and again, until stopped or until it `ends` with that code."""
    over = threading.Event()
    if told.get("sigterm_at_exit"):
        atexit.register(_stopped_at_exit)
        return int(told["ends"])  # before it has listened, as one whose modules fail

    def stop(wanted: Stop) -> None:
        if not told.get("deaf"):
            over.set()

    parent.listen(stop, grace=3600.0)
    parent.say({"consuming": ["toys"]})
    reports = [Report(**line) for line in told["reports"]]
    for report in reports:
        parent.report(report)
        over.wait(PAUSE)
    if "error" in told:
        parent.say(told["error"])
    if "ends" in told:
        return int(told["ends"])
    while not over.wait(PAUSE):
        if reports:
            parent.report(reports[-1])
    time.sleep(told.get("slow_end", 0.0))
    return 0


def _stopped_at_exit() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    print("cleaned up", flush=True)
