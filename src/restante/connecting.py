"""Finds the server a program means: the URL given, RESTANTE_URL, or an embedded one in the working directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from restante.core.embedded import DIRECTORY_VARIABLE, EMBEDDED, Embedded, tell_private_server
from restante.core.errors import InvalidInput
from restante.core.queue import Client
from restante.core.settings import ClientOptions, ClientSettings

#: Keywords of `connect` that are not settings of the client.
OWN_KEYWORDS = ("url", "consumer", "directory")


def resolve(url: str | None, directory: str | Path | None) -> tuple[str, Callable[[], None] | None]:
    """The server's URL, and what to call when the client closes."""
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"url must be text such as redis://localhost:6379/0, not {type(url).__name__}")
    if url is not None and directory is not None:
        raise InvalidInput("give a url or the directory of an embedded server, not both")
    wanted = directory is not None
    if not wanted:
        url = url or os.environ.get("RESTANTE_URL")
        if url and url != EMBEDDED:
            return url, None
        wanted = url == EMBEDDED or bool(os.environ.get(DIRECTORY_VARIABLE))
    share = Embedded(directory)
    found = share.join()
    if not wanted:
        tell_private_server(share.directory)
    return found, share.leave


def connect(
    url: str | None = None,
    *,
    consumer: str | None = None,
    directory: str | Path | None = None,
    **settings: Unpack[ClientOptions],
) -> Client:
    """A post on the server at `url`, RESTANTE_URL, or an embedded one that lives in `directory` (`.restante`).

    The URL `embedded` asks for the embedded server by name; where nothing names a server it is taken as well, and a
    line on standard error says so. The server is first asked when a queue is first used. Settings are those of
    `ClientSettings`.
    """
    client = ClientSettings.parse(settings, *OWN_KEYWORDS)
    found, on_close = resolve(url, directory)
    return Client(found, client, consumer=consumer, on_close=on_close)
