"""One connection per process and server: Spark's Python workers are reused, and readers must not carry sockets."""

from __future__ import annotations

import os

from restante.core.queue import Client
from restante.core.settings import ClientSettings

_posts: dict[tuple[int, str, str], Client] = {}


def post(url: str, *, consumer: str = "", patience: float = 30.0) -> Client:
    """The process's own post on a server."""
    key = (os.getpid(), url, consumer)
    found = _posts.get(key)
    if found is None:
        settings = ClientSettings(patience=patience, connect_timeout=5.0, socket_timeout=30.0)
        found = _posts[key] = Client(url, settings, consumer=consumer or None)
    return found
