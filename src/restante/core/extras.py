"""Names the extra to install when a part of Restante needs packages that are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from restante.core.errors import MissingExtra


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turns a failed import in the block into MissingExtra with the command that installs `restante[extra]`."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "restante":
            raise  # a bug in Restante, which no installation fixes
        raise MissingExtra(
            f"{what} needs {package}, which is not installed: pip install 'restante[{extra}]'", name=missing.name
        ) from missing
