"""Reads what commands take: queue names, completed from a running server, durations, JSON and name=value pairs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import restante
from restante import Admin, InvalidPayload
from restante.cli.session import WrongUsage
from restante.core.embedded import DEFAULT_DIRECTORY, EMBEDDED, answers, socket_path

#: Client settings for completion, in seconds: short, because a user who presses Tab does not wait for a dead server.
_QUICK: dict[str, Any] = {"connect_timeout": 0.3, "socket_timeout": 0.5, "patience": 0.0}

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd]?)")
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)(?:I?B)?")


def complete_queue(incomplete: str) -> list[str]:
    """Queue names that start with `incomplete`; never starts a server, and on failure returns none."""
    url = os.environ.get("RESTANTE_URL")
    if not url or url == EMBEDDED:
        socket = socket_path(Path(os.environ.get("RESTANTE_DIRECTORY") or DEFAULT_DIRECTORY).absolute())
        if not answers(socket):
            return []
        url = f"unix://{socket}"
    try:
        with restante.connect(url, **_QUICK) as post:
            return [name for name in Admin(post).queues() if name.startswith(incomplete)]
    except Exception:
        return []


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=complete_queue)]
OptionalQueueName = Annotated[
    str | None, typer.Argument(metavar="[QUEUE]", help="A queue.", autocompletion=complete_queue)
]


def parse_duration(text: str | float) -> float:
    """Seconds from `90`, `1.5`, `250ms`, `10m`, `2h` or `3d`; a number, an option's default, is returned as it is."""
    if not isinstance(text, str):
        return float(text)
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise WrongUsage(f"not a duration: {text!r}; write 90, 1.5s, 250ms, 10m, 2h or 3d")
    return float(match[1]) * _UNITS[match[2]]


def parse_size(text: str | int) -> int:
    """Bytes from `1048576`, `512K`, `512M` or `2G`; a number, an option's default, is returned as it is."""
    if not isinstance(text, str):
        return text
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None or (size := int(float(match[1]) * _SIZES[match[2]])) < 1:
        raise WrongUsage(f"not a size: {text!r}; write 512M, 2G or a number of bytes")
    return size


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parse_json(text: str | bytes, what: str) -> Any:
    """A JSON value from the command line. The fast decoder is not used: it rounds numbers beyond 64 bits."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"{what} is not JSON ({error}); a text is written '\"hello\"'") from None


def parse_pair(text: str, what: str) -> tuple[str, str]:
    """The name and the value of `name=value`."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise WrongUsage(f"{what} is written name=value, not {text!r}")
    return name, value
