"""The same API for asyncio: `async with restante.aio.connect() as post`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from restante.connecting import resolve
from restante.core.queue import AsyncLeasedMessage, AsyncPost, AsyncQueue
from restante.core.settings import ClientSettings

__all__ = ["AsyncLeasedMessage", "AsyncPost", "AsyncQueue", "connect"]


def connect(
    url: str | None = None, *, consumer: str | None = None, directory: str | Path | None = None, **settings: Any
) -> AsyncPost:
    """A post whose calls are awaited; the arguments are those of `restante.connect`."""
    found, on_close = resolve(url, directory)
    return AsyncPost(found, ClientSettings(**settings), consumer=consumer, on_close=on_close)
