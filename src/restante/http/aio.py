"""The HTTP client for asyncio: `async with restante.http.aio.connect() as client`; raises what the other one raises."""

from __future__ import annotations

from datetime import timedelta

import httpx

from restante.core.keywords import known_keywords
from restante.http.client import AsyncHttpClient
from restante.http.connection import DEFAULT_ADDRESS, Certificate, Verify

__all__ = ["connect"]


@known_keywords
def connect(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    consumer: str | None = None,
    timeout: float | timedelta | httpx.Timeout = 10.0,
    verify: Verify = True,
    cert: Certificate | None = None,
    proxy: str | httpx.Proxy | None = None,
) -> AsyncHttpClient:
    """Returns a client for asyncio; the arguments are those of `restante.http.connect`."""
    return AsyncHttpClient(
        address, token=token, consumer=consumer, timeout=timeout, verify=verify, cert=cert, proxy=proxy
    )
