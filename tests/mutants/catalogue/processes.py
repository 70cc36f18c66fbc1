"""Faults planted in consumers of several processes."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_POLICY = ("tests/core/test_restart_policy.py",)
_SUPERVISOR = "tests/core/test_supervisor.py"
_FAULTS = "tests/faults/test_processes.py"
_CONSUME = "tests/cli/test_consume.py"

FAULTS: Final = (
    Fault(
        "core",
        "a process that keeps crashing is restarted every second",
        "RestartPolicy.next",
        "LONGEST_DELAY), crashes + 1)",
        "LONGEST_DELAY), crashes)",
        _POLICY,
    ),
    Fault(
        "core",
        "all processes are replaced at the same time",
        "may_replace",
        "max(1, processes // 2)",
        "processes",
        _POLICY,
    ),
    Fault(
        "core",
        "failures do not count for --max-tasks",
        "ProcessLimits.reason",
        "report.handled + report.failed",
        "report.handled",
        _POLICY,
    ),
    Fault(
        "core",
        "a silent process is killed while it may still hold leases",
        "ProcessLimits.reason",
        "max(SILENT_AFTER, report.lease)",
        "SILENT_AFTER",
        _POLICY,
    ),
    Fault(
        "core",
        "a forked child keeps the pipes of its parent open",
        "_fork",
        "os.close(number)",
        "pass",
        (_FAULTS, "-k", "parent_was_killed and fork"),
    ),
    Fault(
        "core",
        "the second signal is not handed on",
        "Supervisor._watch",
        "Stop(min(self._stops, Stop.AT_ONCE))",
        "Stop.GRACEFULLY",
        (_FAULTS, "-k", "second_signal and fork"),
    ),
    Fault(
        "core",
        "an error of a process that had worked ends the command",
        "Supervisor._ended",
        "failed is not None and not self._proved and ",
        "failed is not None and ",
        (_SUPERVISOR, "-k", "had_worked"),
    ),
    Fault(
        "core",
        "process 1 leaves orphans unreaped",
        "Supervisor._reap",
        "if os.getpid() == 1:",
        "if False:",
        (_FAULTS, "-k", "process_1"),
    ),
    Fault(
        "core",
        "processes of one parent are listed as consumers of their own",
        "_consumers",
        "parent if isinstance(parent, str) else name",
        "name",
        (_CONSUME, "-k", "named"),
    ),
    Fault(
        "cli",
        "a signal that reaches the whole group stops a process twice",
        "_stopping.stop",
        "while told < wanted:",
        "for _ in range(wanted):",
        (_FAULTS, "-k", "one_signal_too"),
    ),
    Fault(
        "core",
        "a stop that comes while a child ends breaks off what it does at exit",
        "_run_to_end",
        "signal.signal(signal.SIGTERM, lambda *_: None)",
        "pass",
        (_SUPERVISOR, "-k", "breaks_nothing_off"),
    ),
    Fault(
        "cli",
        "a field of a log line hides its level",
        "JsonLines.format",
        "{**fields(record), **extra, **line}",
        "{**line, **fields(record), **extra}",
        ("tests/cli/test_json_log.py",),
    ),
)
