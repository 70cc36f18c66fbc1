"""No test in `make test` asserts that something took less than some time: a busy machine would turn it red."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
CLOCKS: Final = {"monotonic", "perf_counter", "process_time", "time"}


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and isinstance(one.func.value, ast.Name)
        and one.func.value.id == "time"
        and one.func.attr in CLOCKS
        for one in ast.walk(node)
    )


def _is_span(node: ast.AST, spans: set[str]) -> bool:
    """Whether an expression is the time that has passed since some moment."""
    if isinstance(node, ast.Name):
        return node.id in spans
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and _reads_clock(node.left)
        and not isinstance(node.right, ast.Constant)
    )


def upper_bounds(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """The lines on which a function asserts that a span of time is short."""
    spans = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _is_span(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for asserted in (node for node in ast.walk(function) if isinstance(node, ast.Assert)):
        for compared in (node for node in ast.walk(asserted.test) if isinstance(node, ast.Compare)):
            sides = [compared.left, *compared.comparators]
            for left, op, right in zip(sides, compared.ops, sides[1:], strict=False):
                small = (
                    left if isinstance(op, ast.Lt | ast.LtE) else right if isinstance(op, ast.Gt | ast.GtE) else None
                )
                # PATIENCE is the deadline of every wait, not a promise.
                limit = right if small is left else left
                waits = isinstance(limit, ast.Name) and limit.id == "PATIENCE"
                if small is not None and _is_span(small, spans) and not waits:
                    yield asserted.lineno


def _is_chaos(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("chaos" in ast.unparse(mark) for mark in function.decorator_list)


def bounds_in(source: str) -> list[int]:
    return [
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_chaos(node)
        for line in upper_bounds(node)
    ]


def test_bounds_of_time_are_stated_by_at_most() -> None:
    found = {
        str(path.relative_to(TESTS)): lines
        for path in sorted(TESTS.rglob("*.py"))
        if (lines := bounds_in(path.read_text()))
    }
    assert found == {}, "use at_most() of tests/harness/deadlines.py, or mark the test chaos"


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        ("assert time.monotonic() - begun < 5", True),
        ("assert 0.4 < time.perf_counter() - begun <= 3", True),
        ("took = time.time() - begun\n    assert 5 > took", True),
        ("assert time.monotonic() - begun >= 0.3", False),
        ("assert time.monotonic() < deadline", False),
        ("assert time.monotonic() - begun < PATIENCE", False),
        ("assert time.time() - 900 < died <= time.time()", False),
    ],
)
def test_a_bound_is_recognised(text: str, bounded: bool) -> None:
    assert bool(bounds_in(f"def test() -> None:\n    {text}\n")) is bounded
