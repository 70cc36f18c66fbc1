"""Keeps one client per process, server and consumer name.

Spark reuses its Python workers, and pickles readers and writers, which therefore cannot hold sockets.
"""

from __future__ import annotations

import os

from restante.core.queue import Client
from restante.core.settings import ClientSettings

_clients: dict[tuple[int, str, str], Client] = {}


def post(url: str, *, consumer: str = "", patience: float = 30.0) -> Client:
    """This process's client of a server, connected at its first use."""
    key = (os.getpid(), url, consumer)
    client = _clients.get(key)
    if client is None:
        settings = ClientSettings(patience=patience, connect_timeout=5.0, socket_timeout=30.0)
        client = _clients[key] = Client(url, settings, consumer=consumer or None)
    return client
