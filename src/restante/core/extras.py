"""Names the extra to install when a part of Restante is used whose packages are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from restante.core.errors import MissingExtra


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turns a missing package, imported inside, into MissingExtra with the command that installs `restante[extra]`."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "restante":
            raise  # a fault of ours, which no installation mends
        raise MissingExtra(
            f"{what} needs {package}, which is not installed: pip install 'restante[{extra}]'", name=missing.name
        ) from missing
