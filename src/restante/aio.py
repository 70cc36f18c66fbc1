"""The API for asyncio: `async with restante.aio.connect() as post`; on failure `connect` raises InvalidInput."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from restante.connecting import OWN_KEYWORDS, resolve
from restante.core.queue import AsyncClient, AsyncLeasedMessage, AsyncQueue
from restante.core.settings import ClientOptions, ClientSettings
from restante.core.task import AsyncTask

__all__ = ["AsyncClient", "AsyncLeasedMessage", "AsyncQueue", "AsyncTask", "connect"]


def connect(
    url: str | None = None,
    *,
    consumer: str | None = None,
    directory: str | Path | None = None,
    **settings: Unpack[ClientOptions],
) -> AsyncClient:
    """Returns a client for asyncio; the arguments are those of `restante.connect`."""
    parsed = ClientSettings.parse(settings, *OWN_KEYWORDS)
    server, on_close = resolve(url, directory)
    return AsyncClient(server, parsed, consumer=consumer, on_close=on_close)
