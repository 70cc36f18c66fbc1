"""Faults planted in what follows and stops work: results, progress, handles, revoke and cancel."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_CONTROL = "tests/contract/test_control.py"
_RESULTS = "tests/contract/test_results.py"
_HOLDERS = ("tests/faults/test_control.py",)

FAULTS: Final = (
    Fault(
        "core",
        "a cancelled lease is only lost",
        "renew",
        "for index in cancelled:",
        "for index in []:",
        (_CONTROL, "-k", "many_extended_leases and sync"),
    ),
    Fault(
        "core",
        "the renewal tells no handler of a cancel",
        "Renewal._extend",
        "message.on_cancel()",
        "pass",
        (*_HOLDERS, "-k", "on_cancel"),
    ),
    Fault(
        "core",
        "a message taken back counts as cancelled",
        "Renewal._extend",
        "if message.cancelled and message.on_cancel is not None:",
        "if message.on_cancel is not None:",
        (*_HOLDERS, "-k", "on_cancel"),
    ),
    Fault(
        "core",
        "a revoke is not audited",
        "Admin.revoke",
        'self.note("revoke", queue, count, detail or _few(ids))',
        "pass",
        (_CONTROL, "-k", "audit and sync"),
    ),
    Fault(
        "core",
        "a cancel counts what has ended",
        "Admin.cancel",
        "state not in (None, *ENDED)",
        "state is not None",
        (_CONTROL, "-k", "has_ended and sync"),
    ),
    Fault(
        "core",
        "a result of any size is kept",
        "encode_result",
        "if len(text) > MAX_RESULT:",
        "if False:",
        (_RESULTS, "-k", "cannot_be_kept and sync"),
    ),
    Fault(
        "core",
        "a result is read as an attempt",
        "parse_history",
        "if event == JournalEvent.ACKED:",
        "if False:",
        (_RESULTS, "-k", "last_run and sync"),
    ),
    Fault(
        "core",
        "a program that cancels is told the opposite",
        "cancel",
        "not in (None, *ENDED)",
        "in (None, *ENDED)",
        (_CONTROL, "-k", "program_cancels and sync"),
    ),
    Fault(
        "core",
        "a dead message has the result None",
        "_Handle._outcome",
        "if found.state is State.DEAD:",
        "if False:",
        (_RESULTS, "-k", "dead_message_raises and sync"),
    ),
)
