"""Opens a client on the given URL, on RESTANTE_URL, or on an embedded server; on failure raises InvalidInput."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from restante.core.embedded import DIRECTORY_VARIABLE, EMBEDDED, Embedded, tell_private_server
from restante.core.errors import InvalidInput
from restante.core.queue import Client
from restante.core.settings import ClientOptions, ClientSettings

#: Keywords of `connect` that are not client settings.
OWN_KEYWORDS = ("url", "consumer", "directory")


def resolve(url: str | None, directory: str | Path | None) -> tuple[str, Callable[[], None] | None]:
    """Returns the server's URL, and the function to call when the client closes."""
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"url must be text such as redis://localhost:6379/0, not {type(url).__name__}")
    if url is not None and directory is not None:
        raise InvalidInput("give a url or the directory of an embedded server, not both")
    embedded = directory is not None
    if not embedded:
        url = url or os.environ.get("RESTANTE_URL")
        if url and url != EMBEDDED:
            return url, None
        embedded = url == EMBEDDED or bool(os.environ.get(DIRECTORY_VARIABLE))
    server = Embedded(directory)
    address = server.join()
    if not embedded:
        tell_private_server(server.directory)
    return address, server.leave


def connect(
    url: str | None = None,
    *,
    consumer: str | None = None,
    directory: str | Path | None = None,
    **settings: Unpack[ClientOptions],
) -> Client:
    """Returns a client of the server at `url`, at RESTANTE_URL, or of an embedded server in `directory` (`.restante`).

    The URL `embedded` selects the embedded server. It is also the default if no server is named; then a line on
    standard error says so. The client contacts the server when a queue is first used. Settings are those of
    `ClientSettings`.
    """
    parsed = ClientSettings.parse(settings, *OWN_KEYWORDS)
    server, on_close = resolve(url, directory)
    return Client(server, parsed, consumer=consumer, on_close=on_close)
