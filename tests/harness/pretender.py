"""A server that answers what a test tells it, for versions and states that no installed server has."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import hiredis

HOST: Final = "127.0.0.1"

#: Gives the raw reply to a request, or None for the usual one.
Answers = Callable[[list[bytes]], bytes | None]


def bulk(text: str) -> bytes:
    """A bulk string as it goes over the wire."""
    return b"$%d\r\n%b\r\n" % (len(text.encode()), text.encode())


class Pretender:
    """A Redis of any version: it can be connected to, and everything else is up to `answers`."""

    def __init__(self, version: str, answers: Answers = lambda words: None, *, memory: str = "") -> None:
        usual = {b"INFO": bulk(f"redis_version:{version}\r\n{memory}"), b"SADD": b":1\r\n", b"CLIENT ID": b":7\r\n"}

        def answer(words: list[bytes]) -> bytes:
            told = answers(words)
            if told is not None:
                return told
            first = words[0].upper()
            return usual.get(b" ".join(words[:2]).upper()) or usual.get(first) or b"+OK\r\n"

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                reader: Any = hiredis.Reader(notEnoughData=Ellipsis)
                while data := self.request.recv(65536):
                    reader.feed(data)
                    while (words := reader.gets()) is not Ellipsis:
                        self.request.sendall(answer(words))

        self._server = socketserver.ThreadingTCPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
