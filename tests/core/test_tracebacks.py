"""Errors as text: which frames are kept when there is no room for all."""

from __future__ import annotations

import json

import pytest

from restante.core.message import MAX_ERROR
from restante.core.tracebacks import error_text, place


def raised(depth: int, text: str) -> Exception:
    """An error that was raised this deep."""

    def innermost() -> None:
        raise LookupError(text)

    def outer(left: int) -> None:
        if left:
            outer(left - 1) if left % 2 else also(left - 1)
        else:
            innermost()

    def also(left: int) -> None:
        outer(left)

    try:
        outer(depth)
    except LookupError as error:
        return error
    raise AssertionError


def test_a_short_traceback_is_kept_whole() -> None:
    text = error_text(raised(1, "no customer"), MAX_ERROR)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "raise LookupError(text)" in text
    assert text.endswith("LookupError: no customer\n")


def test_of_a_deep_traceback_the_innermost_frames_are_kept() -> None:
    text = error_text(raised(100, "no customer"), MAX_ERROR)
    assert len(text) <= MAX_ERROR
    assert "outer frames are left out" in text
    assert "in innermost\n    raise LookupError(text)" in text
    assert text.endswith("LookupError: no customer\n")
    assert text.count("Traceback") == 1
    assert all(line.startswith(("Traceback", "  ", "LookupError")) for line in text.splitlines())  # no frame is cut


def test_a_long_text_of_an_error_leaves_room_for_the_frames() -> None:
    text = error_text(raised(1, "x" * 100_000), MAX_ERROR)
    assert len(text) <= MAX_ERROR
    assert "raise LookupError(text)" in text
    assert "LookupError: xxx" in text


def test_an_error_that_was_never_raised_has_text_and_no_place() -> None:
    assert error_text(LookupError("no customer"), MAX_ERROR) == "LookupError: no customer\n"
    assert place(LookupError("no customer")) == ""


def test_the_place_of_an_error_is_the_innermost_one_in_the_program() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")  # the place to name; the error comes from inside the json module
    assert place(caught.value) == f"{__file__}:{caught.tb.tb_lineno}"
