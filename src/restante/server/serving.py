"""Runs the server: in the main thread until a signal, or in a background thread.

On a signal it accepts no new requests, ends streams and waiting receives, lets other requests finish, and stops.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any, Self

import uvicorn

from restante.core.errors import InvalidInput, Unavailable
from restante.server.access import Tokens, is_loopback
from restante.server.app import create_app
from restante.server.http_protocol import ConnectionLimits, default_max_connections, limited
from restante.server.state import ServerSettings

log = logging.getLogger("restante")

#: Seconds that running requests get when the server stops.
GRACE = 10
#: Bytes that the kernel buffers for a client that does not read. Its default grows to megabytes per client.
SEND_BUFFER = 256 * 1024
#: Connections that wait to be accepted; further ones are refused.
BACKLOG = 1024
#: Seconds to wait for the server to start.
STARTING = 30.0


def _limits(settings: ServerSettings) -> ConnectionLimits:
    most = settings.max_connections
    return ConnectionLimits(
        head_seconds=settings.head_seconds,
        body_seconds=settings.body_seconds,
        write_seconds=settings.write_seconds,
        max_connections=default_max_connections() if most is None else most,
    )


class _Server(uvicorn.Server):
    """Signals the application before it waits for connections: streams would never end by themselves."""

    def __init__(self, config: uvicorn.Config, closing: Any) -> None:
        super().__init__(config)
        self._closing = closing

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._closing()
        super().handle_exit(sig, frame)


class Serving:
    """A running server: `with Serving(url, settings) as server: print(server.address)`."""

    def __init__(self, url: str, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        self._app = create_app(url, self.settings)
        self.state = self._app.state
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE,
            timeout_keep_alive=75,
            limit_concurrency=None,
            server_header=False,
            ws="none",
            backlog=BACKLOG,
            http=limited(_limits(self.settings)),
        )
        self._server = _Server(config, self._close)

    def check(self) -> None:
        """Refuses to listen beyond this machine while no token exists, since every caller could then do everything."""
        if is_loopback(self.settings.host):
            return
        if not Tokens(self.state.client).any():
            raise InvalidInput(
                f"{self.settings.host} can be reached from other machines and there are no tokens: create one with "
                "`restante token create NAME --role operate`, or listen on 127.0.0.1"
            )

    def bind(self) -> str:
        """Binds the port and returns the address to open in a browser."""
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections inherit it
        try:
            listener.bind((self.settings.host, self.settings.port))
            # Two sockets may be bound to one port until one of them listens.
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            where = f"{self.settings.host}:{self.settings.port}"
            raise Unavailable(f"cannot listen on {where}: {error.strerror}; choose another port with --port") from None
        self._socket = listener
        return self.address

    @property
    def port(self) -> int:
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        host = self.settings.host
        shown = "localhost" if is_loopback(host) else f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}"

    def run(self) -> None:
        """Serves until a signal, or until `stop` is called."""
        self.check()
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        self._server.run(sockets=[self._socket])

    def _close(self) -> None:
        self.state.closing.set()

    def stop(self) -> None:
        """Stops `run` from another thread."""
        self._server.should_exit = True
        loop = self.state.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._close)

    def __enter__(self) -> Self:
        self.check()
        if self._socket is None:
            self.bind()
        self._thread = threading.Thread(target=self.run, name="restante-server", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + STARTING
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Unavailable("the HTTP server did not start; its log says why")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join(GRACE + 5)
        if self._socket is not None:
            self._socket.close()
