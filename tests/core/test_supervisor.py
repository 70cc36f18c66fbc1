"""The supervisor with children that only report: limits, hung handlers, errors, and what a child is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.deadlines import wait_until
from tests.harness.processes import PythonProcess

#: A supervisor whose children behave as the argument says; it prints what they did and why it ended.
PROGRAM = """
import dataclasses, json, logging, os, sys, threading
from restante.core.child_process import Program
from restante.core.restart_policy import ProcessLimits
from restante.core.supervisor import Supervisor
from tests.core.supervised import behave

logging.basicConfig(level=logging.INFO, format="%(message)s")
told = json.loads(sys.argv[1])
supervisor = Supervisor(
    lambda number: Program(behave, told["child"] | {"number": number}),
    told.get("processes", 1),
    ProcessLimits(**told.get("limits", {})),
    method=told["method"],
    restarts_ended=told.get("restarts_ended", True),
    ready=lambda said: print("ready", json.dumps(said), flush=True),
)
totals = supervisor.run()
print("totals", totals.handled, totals.failed)
print("failure", json.dumps(supervisor.failure))
"""


def supervising(method: str = "fork", **told: Any) -> PythonProcess:
    """A process that supervises; `child` says how its children behave."""
    return PythonProcess(PROGRAM, json.dumps({"method": method, **told}), forked=True)


def wait_said(process: PythonProcess, text: str, times: int = 1) -> None:
    wait_until(lambda: process.stderr.count(text) >= times, lambda: f"no {text!r}: {process.stderr} {process.lines}")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_end_by_themselves_are_not_restarted_when_told_so(method: str) -> None:
    child = {"reports": [{"handled": 3, "failed": 1}], "ends": 0}
    with supervising(method, child=child, processes=2, restarts_ended=False) as process:
        assert process.wait() == 0, process.stderr
        assert process.lines == ['ready {"consuming": ["toys"]}', "totals 6 2", "failure null"]
        assert process.stderr.count("started process=") == 2


def test_a_child_with_hung_handlers_is_replaced_after_the_grace() -> None:
    child = {"reports": [{"hung": 1}]}
    with supervising(child=child, limits={"grace": 0.5}) as process:
        wait_said(process, "reason=hung")
        wait_said(process, "started process=1", times=2)
        process.terminate()
        assert process.wait() == 0


def test_a_child_whose_handlers_end_after_all_is_not_replaced() -> None:
    child = {"reports": [{"hung": 1}, {"hung": 0}, {"hung": 1}, {"hung": 0, "handled": 77}]}
    with supervising(child=child, limits={"grace": 1e9, "max_tasks": 77}) as process:
        wait_said(process, "reason=max-tasks")
        assert "reason=hung" not in process.stderr


def test_a_child_that_does_not_stop_is_killed_and_replaced() -> None:
    patch = "import restante.core.supervisor; restante.core.supervisor.STOP_MARGIN = 0.5\n"
    told = {
        "method": "fork",
        "child": {"reports": [{"handled": 9}], "deaf": True},
        "limits": {"max_tasks": 9, "grace": 0.1},
    }
    with PythonProcess(patch + PROGRAM, json.dumps(told), forked=True) as process:
        wait_said(process, "killing process=1")
        wait_said(process, "started process=1", times=2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_error_before_any_child_has_worked_ends_all_with_that_error(method: str) -> None:
    child = {"reports": [], "error": {"error": "InvalidInput", "message": "no handler"}, "ends": 4}
    with supervising(method, child=child, processes=3) as process:
        assert process.wait() == 0, process.stderr
        failure = json.loads(process.lines[-1].removeprefix("failure "))
        assert (failure["error"], failure["message"]) == ("InvalidInput", "no handler")


def test_an_error_of_a_child_that_had_worked_restarts_it() -> None:
    child = {"reports": [{"polled": True}], "error": {"error": "Unavailable", "message": "away"}, "ends": 3}
    with supervising(child=child) as process:
        wait_said(process, "code=3 restart_seconds=0.0 error=Unavailable: away")
        wait_said(process, "started process=1", times=2)
        process.terminate()
        assert process.wait() == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stop_that_comes_while_a_child_ends_breaks_nothing_off(method: str) -> None:
    child = {"reports": [], "sigterm_at_exit": True, "ends": 7}
    with supervising(method, child=child) as process:
        wait_said(process, "restart_seconds=")
        assert "cleaned up" in process.lines
        assert "code=7" in process.stderr
        assert "Traceback" not in process.stderr


def test_a_routine_never_stops_all_children_at_a_time() -> None:
    child = {"reports": [{"handled": 9}], "slow_end": 0.3}
    with supervising(child=child, processes=4, limits={"max_tasks": 9}) as process:
        wait_said(process, "ended process=", times=8)
        process.terminate()
        process.wait()
        stopping = most = 0
        for part in process.stderr.split("ended process=")[:8]:
            stopping += part.count("replacing process=")
            most = max(most, stopping)
            stopping -= 1
        assert most == 2
