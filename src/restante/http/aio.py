"""The HTTP client for asyncio: `async with restante.http.aio.connect() as client`; raises what the other one raises."""

from __future__ import annotations

from typing import Unpack

from restante.http.client import AsyncHttpClient
from restante.http.connection import DEFAULT_ADDRESS, HttpOptions

__all__ = ["connect"]


def connect(address: str = DEFAULT_ADDRESS, **options: Unpack[HttpOptions]) -> AsyncHttpClient:
    """Returns a client for asyncio; the arguments are those of `restante.http.connect`."""
    return AsyncHttpClient(address, **options)
