"""Refuses unknown keyword arguments, settings and queue names, and suggests the nearest known one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from restante.core.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")

#: Known words listed in a message if none is near; a longer list hides its point.
LISTED = 20


def nearest(word: str, known: Collection[str]) -> str:
    """Returns a hint for an unknown word: the known word it resembles, or a list of known words."""
    near = resembling(word, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"known are {', '.join(sorted(known)[:LISTED])}" if known else "there are none yet"


def resembling(word: str, known: Collection[str]) -> str | None:
    """Returns the known word that `word` may be a misspelling of, or None."""
    matches = difflib.get_close_matches(word, known, 1)
    return matches[0] if matches else None


def check_keywords(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises InvalidInput for the first keyword that is not known; `what` names the call."""
    for name in given:
        if name not in known:
            raise InvalidInput(f"{what} has no option {name!r}: {nearest(name, known)}")


def parameters(function: Callable[..., object]) -> list[str]:
    """Returns the parameters that a function accepts by name."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    every = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in every if parameter.kind in by_name and parameter.name != "self"]


def known_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Raises InvalidInput with the nearest known keyword for an unknown one, instead of a bare TypeError.

    For functions that are called rarely, because it checks every keyword of every call.
    """
    known = frozenset(parameters(function))
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(kwargs, known, what)
        return function(*args, **kwargs)

    return checked
