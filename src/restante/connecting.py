"""Finds the server a program means: the URL given, RESTANTE_URL, or an embedded one in the working directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from restante.core.embedded import Embedded
from restante.core.errors import InvalidInput
from restante.core.queue import Post
from restante.core.settings import ClientSettings


def resolve(url: str | None, directory: str | Path | None) -> tuple[str, Callable[[], None] | None]:
    """The server's URL, and what to call when the client closes."""
    if url is not None and directory is not None:
        raise InvalidInput("give a url or the directory of an embedded server, not both")
    if directory is None and (url := url or os.environ.get("RESTANTE_URL")):
        return url, None
    share = Embedded(directory)
    return share.join(), share.leave


def connect(
    url: str | None = None, *, consumer: str | None = None, directory: str | Path | None = None, **settings: Any
) -> Post:
    """A post on the server at `url`, RESTANTE_URL, or an embedded one that lives in `directory` (`.restante`).

    The server is first asked when a queue is first used. Settings are those of `ClientSettings`.
    """
    found, on_close = resolve(url, directory)
    return Post(found, ClientSettings(**settings), consumer=consumer, on_close=on_close)
