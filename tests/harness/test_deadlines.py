"""Waits end at their condition; bounds of time need the mark and are asserted by `make chaos` alone."""

from __future__ import annotations

import pytest

from tests.harness import deadlines
from tests.harness.deadlines import at_most, took_at_most, wait_until, wait_until_async


async def test_a_wait_ends_with_the_first_true_value_or_with_what_was_missing() -> None:
    values = iter(["", "", "there"])
    assert wait_until(lambda: next(values)) == "there"
    numbers = iter([0, 7])
    assert await wait_until_async(lambda: next(numbers)) == 7
    with pytest.raises(AssertionError, match=r"not within 0 s: the lines"):
        wait_until(lambda: False, lambda: "the lines", timeout=0)
    with pytest.raises(AssertionError, match="not within 0 s: a word"):
        await wait_until_async(lambda: False, "a word", timeout=0)


def test_a_bound_needs_the_mark_so_that_make_chaos_runs_the_test() -> None:
    with pytest.raises(AssertionError, match="timed"):
        took_at_most(0, 1)


@pytest.mark.timed
def test_a_bound_is_asserted_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "ASSERTED", False)
    took_at_most(2, 1)
    monkeypatch.setattr(deadlines, "ASSERTED", True)
    took_at_most(1, 1)
    with pytest.raises(AssertionError, match=r"starting took 2.000 s, allowed are 1 s"):
        took_at_most(2, 1, "starting")
    with pytest.raises(AssertionError, match="allowed"), at_most(-1):
        pass
