"""Refuses names that a door does not know, each with the nearest one it does."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from restante.core.errors import InvalidInput


def refuse(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises InvalidInput for the first of `given` that is not `known`."""
    choices = sorted(known)
    for name in sorted(set(given) - set(choices)):
        close = difflib.get_close_matches(name, choices, 1, 0.5)
        raise InvalidInput(f"{what} {name}: {f'did you mean {close[0]}?' if close else 'check the spelling'}")
