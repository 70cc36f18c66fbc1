"""The fault matrix is whole: every row has tests that are there, each runs once, and results become tables."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.chaos import table
from tests.chaos.__main__ import chosen, main
from tests.chaos.matrix import ALONE, ROWS, Row
from tests.chaos.running import ROOT, Ended, Part, Result, run_all, summed


@cache
def names(path: str) -> frozenset[str]:
    """The tests and classes of a file, as pytest names them behind `::`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return frozenset(found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_the_tests_of_a_row_are_there(row: Row) -> None:
    assert row.tests
    for test in row.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), path
        assert not name or name in names(path), test


def test_rows_are_numbered_from_one_without_a_gap_and_all_sixty_of_the_matrix_are_there() -> None:
    numbers = [row.number for row in ROWS]
    assert numbers == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 60


def test_rows_are_chosen_by_numbers_and_spans() -> None:
    assert [row.number for row in chosen("3,20-22")] == [3, 20, 21, 22]
    assert len(chosen("")) == len(ROWS)
    with pytest.raises(SystemExit, match="there is no row 99"):
        chosen("99")
    with pytest.raises(SystemExit, match="not 'x'"):
        chosen("1,x")


@pytest.mark.parametrize(
    ("code", "output", "lines", "verdict"),
    [
        (0, "1 passed in 1s", ['{"n": 0, "lost": 0}'], "fail"),
        (0, "2 passed in 1s", ['{"n": 5}'], "pass"),
        (0, "2 passed in 1s", ['{"n": 5, "lost": 1}'], "fail"),
        (0, "2 passed in 1s", ['{"n": 5, "stale": 1}'], "fail"),
        (1, "FAILED tests/a.py::test_b - x\n1 passed", ['{"n": 5}'], "fail"),
        (5, "no tests ran", [], "fail"),
        (0, "3 skipped", [], "fail"),
    ],
)
def test_a_row_passes_only_if_its_tests_did_and_counted_nothing_bad(
    code: int, output: str, lines: list[str], verdict: str
) -> None:
    assert summed(1, [Ended(code, output, lines, 1.0)]).verdict == verdict


def test_counts_are_added_up_and_the_slowest_recovery_is_kept() -> None:
    lines = ['{"n": 5, "dup": 1, "max_recovery_s": 0.5}', '{"n": 7, "early": 2, "max_recovery_s": 0.25}']
    parts = [Ended(1, "FAILED tests/a.py::test_b - x\n3 passed", lines, 2.0), Ended(0, "2 passed", [], 1.5)]
    result = summed(9, parts)
    assert (result.n, result.doubled, result.early, result.max_recovery_s, result.seconds) == (15, 1, 2, 0.5, 3.5)
    assert (result.lost, result.stale) == (None, None)
    assert result.failed == ["tests/a.py::test_b"]


def test_a_row_of_which_one_part_failed_fails() -> None:
    assert (
        summed(9, [Ended(0, "2 passed", [], 1.0), Ended(1, "FAILED tests/a.py::test_b - x", [], 1.0)]).verdict == "fail"
    )


def test_tests_of_two_rows_run_once_and_those_that_measure_the_machine_run_alone() -> None:
    alone = f"{ALONE[0]}::test_b"
    rows = [
        Row(1, "one", ("tests/a.py::test_a", "tests/b.py", "tests/a.py::test_c")),
        Row(2, "two", ("tests/b.py",)),
        Row(3, "three", (alone, "tests/b.py")),
    ]
    ran: list[Part] = []

    def run(part: Part, slower: float) -> Ended:
        if part == (alone,):
            assert len(ran) == 2
        ran.append(part)
        return Ended(0, "1 passed", [], slower)

    results = {result.row: result for result in run_all(rows, slower=2.0, run=run)}
    assert sorted(ran) == sorted([("tests/a.py::test_a", "tests/a.py::test_c"), ("tests/b.py",), (alone,)])
    assert [(row, results[row].n, results[row].seconds) for row in (1, 2, 3)] == [(1, 2, 4.0), (2, 1, 2.0), (3, 2, 4.0)]


def test_a_part_of_the_rows_is_not_published_as_a_full_run() -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "1", "--write-docs"])


def test_results_become_tables(tmp_path: Path) -> None:
    results = [
        Result(1, n=1500, lost=0, doubled=0, early=0, max_recovery_s=1.25, verdict="pass"),
        Result(2, n=3, lost=1),
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, table.whole(results, "Told."))
    assert "| 1 | consumers killed at random moments | 1,500 | 0 | 0 |  | 0 |  | 1.25 | pass |" in page.read_text()
    assert "| 2 | consumer killed between receive and handler | 3 | 1 |  |  |  |  |  | fail |" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    table.write(page, table.short(results, "Told."))
    assert "| 2 | 1 | 1,503 | 1 | 0 | 0 |" in page.read_text()
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="0 times, not once"):
        table.write(page, "x")
