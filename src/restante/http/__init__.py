"""Client for queues over HTTP, for Python programs that cannot reach Redis: `restante.http.connect(address)`.

It has the methods of `restante.connect()` that send, receive and settle, and raises the same errors;
`restante.http.aio.connect(address)` is the same for asyncio. If the connection is lost, a receive or a verdict is not
repeated, because it may have been executed. A send is repeated: the client creates the IDs, so a repeated send stores
nothing twice.
"""

from __future__ import annotations

from restante.core.extras import needs_extra

with needs_extra("http", "restante.http"):
    from restante.http.client import (
        AsyncHttpClient,
        AsyncHttpMessage,
        AsyncHttpQueue,
        HttpClient,
        HttpMessage,
        HttpQueue,
        connect,
    )

__all__ = [
    "AsyncHttpClient",
    "AsyncHttpMessage",
    "AsyncHttpQueue",
    "HttpClient",
    "HttpMessage",
    "HttpQueue",
    "aio",
    "connect",
]

from restante.http import aio
