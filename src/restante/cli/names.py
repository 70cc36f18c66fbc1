"""Queue names as arguments, completed from the server when it runs already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import restante
from restante import Admin
from restante.core.embedded import DEFAULT_DIRECTORY, EMBEDDED, answers, socket_path

#: Seconds; a person who presses Tab does not wait for a dead server.
_QUICK: dict[str, Any] = {"connect_timeout": 0.3, "socket_timeout": 0.5, "patience": 0.0}


def complete_queue(incomplete: str) -> list[str]:
    """Names that begin so. Never starts a server and never fails: then there is just nothing to complete."""
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


OneQueue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=complete_queue)]
MaybeQueue = Annotated[
    str | None, typer.Argument(metavar="[QUEUE]", help="A queue's name.", autocompletion=complete_queue)
]
