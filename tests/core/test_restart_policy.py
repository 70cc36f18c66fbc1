"""When a child process is replaced, and when its successor starts: the decisions as values."""

from __future__ import annotations

import pytest

from restante.core.restart_policy import (
    FIRST_DELAY,
    LONGEST_DELAY,
    SILENT_AFTER,
    SOUND_AFTER,
    ProcessLimits,
    Reason,
    Report,
    Restart,
    RestartPolicy,
    may_replace,
)

LIMITS = ProcessLimits(max_tasks=100, max_memory=1000, grace=30.0)
POLICY = RestartPolicy(spread=lambda: 0.0)


@pytest.mark.parametrize(
    ("report", "silent", "hung", "expected"),
    [
        (Report(handled=60, failed=39, rss=1000, polled=True), 1.0, 0.0, None),
        (Report(handled=60, failed=40), 1.0, 0.0, Reason.MAX_TASKS),
        (Report(rss=1001), 1.0, 0.0, Reason.MAX_MEMORY),
        (Report(hung=1), 1.0, 29.0, None),
        (Report(hung=1), 1.0, 30.0, Reason.HUNG),
        (Report(hung=0), 1.0, 30.0, None),
        (Report(), SILENT_AFTER, 0.0, None),
        (Report(), SILENT_AFTER + 1, 0.0, Reason.SILENT),
        (Report(lease=600.0), SILENT_AFTER + 1, 0.0, None),
        (Report(lease=600.0), 601.0, 0.0, Reason.SILENT),
        (Report(handled=100, hung=1), 61.0, 30.0, Reason.SILENT),
    ],
)
def test_a_child_is_replaced_for_what_it_reports(
    report: Report, silent: float, hung: float, expected: Reason | None
) -> None:
    assert LIMITS.reason(report, silent=silent, hung=hung) is expected


def test_a_child_without_limits_is_not_replaced_however_much_it_did() -> None:
    assert ProcessLimits().reason(Report(handled=10**9, rss=10**12), silent=1.0, hung=0.0) is None


def test_a_routine_leaves_at_least_half_of_the_children_at_work() -> None:
    assert [may_replace(Reason.MAX_TASKS, stopping, 4) for stopping in range(4)] == [True, True, False, False]
    assert may_replace(Reason.MAX_MEMORY, 0, 1)
    assert not may_replace(Reason.MAX_MEMORY, 1, 1)
    assert may_replace(Reason.HUNG, 3, 4)
    assert may_replace(Reason.SILENT, 3, 4)


def test_a_child_that_crashes_at_once_is_restarted_with_growing_pauses() -> None:
    delays, crashes = [], 0
    for _ in range(9):
        restart = POLICY.next(Reason.CRASHED, lived=0.1, crashes=crashes)
        delays.append(restart.delay)
        crashes = restart.crashes
    assert delays == [0, FIRST_DELAY, 2, 4, 8, 16, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY]
    assert POLICY.next(Reason.CRASHED, lived=0.1, crashes=10**6).delay == LONGEST_DELAY


def test_the_restarts_of_children_that_crash_together_are_spread() -> None:
    late = RestartPolicy(spread=lambda: 1.0).next(Reason.CRASHED, lived=0.1, crashes=3)
    assert 4 < late.delay <= 5


def test_a_child_that_had_worked_is_restarted_at_once_and_begins_a_new_series() -> None:
    assert POLICY.next(Reason.CRASHED, lived=SOUND_AFTER, crashes=7) == Restart(0.0, 1)
    assert POLICY.next(Reason.ENDED, lived=SOUND_AFTER, crashes=7) == Restart(0.0, 0)


@pytest.mark.parametrize("reason", [Reason.MAX_TASKS, Reason.RELOAD, Reason.HUNG, Reason.SILENT])
def test_a_child_that_was_replaced_on_purpose_has_its_successor_at_once(reason: Reason) -> None:
    assert POLICY.next(reason, lived=0.1, crashes=7) == Restart(0.0, 0)


def test_a_child_that_is_too_large_from_the_start_is_not_replaced_without_a_pause() -> None:
    assert POLICY.next(Reason.MAX_MEMORY, lived=1.0, crashes=1) == Restart(FIRST_DELAY, 2)
    assert POLICY.next(Reason.MAX_MEMORY, lived=3600.0, crashes=0) == Restart(0.0, 0)
