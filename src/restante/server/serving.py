"""Runs the application: in this process until told to stop, or in a thread beside other work.

On a signal it takes no new requests, ends live connections and waiting receives, lets the others finish, and stops.
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

#: Seconds that requests under way get when the server stops.
GRACE = 10
#: Bytes the kernel keeps for a client that does not read. Left to itself it would be megabytes for each.
SEND_BUFFER = 256 * 1024
#: Connections that wait to be accepted; more are refused while the server is busy.
BACKLOG = 1024
#: Seconds the server gets to begin.
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
    """Tells the application of the end before it waits for connections: live ones would never end by themselves."""

    def __init__(self, config: uvicorn.Config, closing: Any) -> None:
        super().__init__(config)
        self._closing = closing

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._closing()
        super().handle_exit(sig, frame)


class Serving:
    """A server at work: `with Serving(url, settings) as server: print(server.address)`."""

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
        """Refuses to be reached from elsewhere while anybody may do everything."""
        if is_loopback(self.settings.host):
            return
        if not Tokens(self.state.post).any():
            raise InvalidInput(
                f"{self.settings.host} can be reached from other machines and there are no tokens: make one with "
                "`restante token create NAME --role operate`, or listen on 127.0.0.1"
            )

    def bind(self) -> str:
        """Takes the port; returns the address to open in a browser."""
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections inherit it
        try:
            made.bind((self.settings.host, self.settings.port))
            # Only now is the port ours: two sockets may be bound to one port until one of them listens.
            made.listen(BACKLOG)
        except OSError as error:
            made.close()
            where = f"{self.settings.host}:{self.settings.port}"
            raise Unavailable(f"cannot listen on {where}: {error.strerror}; choose another by --port") from None
        self._socket = made
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
        """Serves until a signal or `stop`."""
        self.check()
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        self._server.run(sockets=[self._socket])

    def _close(self) -> None:
        self.state.closing.set()

    def stop(self) -> None:
        """Ends `run` from another thread."""
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
