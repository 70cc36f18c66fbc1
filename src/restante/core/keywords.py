"""Refuses unknown words with the nearest known one: keyword arguments, settings and queue names."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from restante.core.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")

#: Known words listed where none is near; a longer list hides the point of the message.
LISTED = 20


def nearest(word: str, known: Collection[str]) -> str:
    """A hint for an unknown word: the known word it resembles, or the words there are."""
    near = resembling(word, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"known are {', '.join(sorted(known)[:LISTED])}" if known else "there are none yet"


def resembling(word: str, known: Collection[str]) -> str | None:
    """The known word of which this may be a misspelling."""
    found = difflib.get_close_matches(word, known, 1)
    return found[0] if found else None


def check_keywords(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises InvalidInput for the first keyword that `what` does not have."""
    for name in given:
        if name not in known:
            raise InvalidInput(f"{what} has no option {name!r}: {nearest(name, known)}")


def parameters(function: Callable[..., object]) -> list[str]:
    """The keywords a function takes by name."""
    taken = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.kind in taken and one.name != "self"]


def known_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Makes an unknown keyword an InvalidInput that names the nearest one, instead of a bare TypeError.

    For what is called seldom: it looks at every keyword of every call.
    """
    known = frozenset(parameters(function))
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(kwargs, known, what)
        return function(*args, **kwargs)

    return checked
