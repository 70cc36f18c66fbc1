"""The one rule for names: queues, kinds, message ids, consumers and services."""

from __future__ import annotations

import re

from restante.core.errors import InvalidName

_NAME = re.compile(r"[A-Za-z0-9._:@/+][A-Za-z0-9._:@/+-]{0,199}", re.ASCII)


def valid_name(name: str, what: str = "queue name") -> str:
    """Returns the name if it is valid; raises InvalidName otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "…"
        raise InvalidName(
            f"{what} {shown} is not valid: use 1 to 200 letters, digits and ._:@/+- without a leading dash"
        )
    return name
