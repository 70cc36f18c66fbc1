"""`make coverage` ends and makes its table although tests fail or hang."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import coverage_report
from scripts.coverage_report import EXCLUDED, LOW, REASONS, ROOT, Run, run_tests, table, write

#: What pytest says of four tests in two processes; the last one does not end.
SAID = """\
============================= test session starts ==============================
2 workers [4 items]

tests/core/test_a.py::test_one
tests/core/test_a.py::test_two[a b]@rabbit-1
[gw0] [ 25%] PASSED tests/core/test_a.py::test_one
tests/core/test_a.py::test_three
[gw1] [ 50%] FAILED tests/core/test_a.py::test_two[a b]@rabbit-1
[gw0] [ 75%] PASSED tests/core/test_a.py::test_three
[gw0] [ 75%] ERROR tests/core/test_a.py::test_three
tests/core/test_a.py::test_four
"""
#: Says the same and hangs; at SIGTERM it takes a while to leave its data, in a child that outlives it.
HANGING = """
import os, signal, sys, time
from pathlib import Path

def leave(*_):
    if os.fork() == 0:
        time.sleep(0.5)
        Path(os.environ["LEFT"]).write_text("data")
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
print({said!r}, end="", flush=True)
time.sleep(3600)
"""


def file(path: str, statements: int, covered: int) -> dict[str, Any]:
    share = 100 * covered / statements
    return {path: {"summary": {"num_statements": statements, "covered_lines": covered, "percent_covered": share}}}


def test_what_pytest_says_is_counted_and_failures_are_shown() -> None:
    run = Run()
    shown = [line for line in SAID.splitlines() if run.read(line)]
    assert (run.count, len(run.ended)) == (4, 3)
    assert run.failed == ["tests/core/test_a.py::test_two[a b]", "tests/core/test_a.py::test_three"]
    assert list(run.running) == ["tests/core/test_a.py::test_four"]
    assert [line for line in shown if "tests/" in line] == [
        "[gw1] [ 50%] FAILED tests/core/test_a.py::test_two[a b]@rabbit-1",
        "[gw0] [ 75%] ERROR tests/core/test_a.py::test_three",
    ]
    assert run.read("=================================== FAILURES ===================================")
    assert run.read("FAILED tests/core/test_a.py::test_two - AssertionError")
    assert len(run.failed) == 2


def test_a_run_that_hangs_is_stopped_and_leaves_its_data(tmp_path: Path) -> None:
    left = tmp_path / "left"
    program = [sys.executable, "-c", HANGING.format(said=SAID)]
    run = run_tests(program, "2", [], {**os.environ, "LEFT": str(left)}, 2.0)
    assert (run.stopped, left.read_text()) == (True, "data")
    assert list(run.running) == ["tests/core/test_a.py::test_four"]


def test_a_run_that_does_not_end_at_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage_report, "GRACE", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    run = run_tests([sys.executable, "-c", deaf], "2", [], dict(os.environ), 2.0)
    assert (run.stopped, run.code) == (True, -9)


def test_the_table_names_rooms_low_modules_and_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REASONS, "core/low.py", "runs in processes that a test kills")
    files = file("src/restante/core/low.py", 100, 50) | file("src/restante/core/high.py", 300, 300)
    run = Run(code=1, count=9, ended={"a", "b"}, failed=["tests/x.py::test_y"], running={"z": None}, stopped=True)
    lines = table(files, run.outcome()).splitlines()
    assert lines[0].endswith(": 2 tests, 1 failed.")
    assert lines[1:4] == [
        "Failed: `tests/x.py::test_y`.",
        "The run was stopped after 2 of 9 tests: the figures are incomplete.",
        "Did not end: `z`.",
    ]
    assert "| core | 400 | 87.5% |" in lines
    assert "| `core/low.py` | 100 | 50% | runs in processes that a test kills |" in lines
    assert not any("high.py" in line for line in lines)


def test_a_run_that_was_killed_from_outside_is_not_taken_for_a_whole_one() -> None:
    run = Run(code=-9, count=9, ended={"a"})
    lines = table(file("src/restante/core/high.py", 3, 3), run.outcome()).splitlines()
    assert lines[1] == "The run ended with -9 after 1 of 9 tests: the figures are incomplete."


@pytest.mark.parametrize("words", [["--again"], ["tests/core"]])
def test_chosen_tests_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    results = tmp_path / "coverage.json"
    monkeypatch.setattr(coverage_report, "RESULTS", results)
    results.write_text(json.dumps({"run": Run().outcome() | {"whole": False}, "files": {}}))
    with pytest.raises(SystemExit):
        coverage_report.main(["--write-docs", *words])
    assert "--write-docs publishes a whole run" in capsys.readouterr().err


def test_the_table_goes_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{coverage_report.BEGIN}\nold\n{coverage_report.END}\nafter\n")
    write(page, "new")
    assert page.read_text() == f"before\n{coverage_report.BEGIN}\nnew\n{coverage_report.END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="0 times, not once"):
        write(page, "new")


def test_reasons_are_of_modules_and_tests_that_exist() -> None:
    assert [path for path in REASONS if not (ROOT / "src" / "restante" / path).is_file()] == []
    assert [test for test in EXCLUDED if not (ROOT / test.partition("::")[0]).is_file()] == []
    assert LOW == 85.0
