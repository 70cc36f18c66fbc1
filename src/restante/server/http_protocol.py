"""Limits the size, time and number of connections, before the application sees a request and after its response.

uvicorn's own protocol reads request heads of any size, waits for them forever, and accepts any number of connections.
This one responds 408 to a late head, 414 to a long URL, and 431 to large or many headers or trailers. It closes
connections that send nothing, never finish a body that nobody reads, or do not read their response. At the limit of
connections a new one replaces the connection that has been idle longest; if none is idle, it gets a 503.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

log = logging.getLogger("restante")

#: Seconds from the first byte of a head, or from the connection, to the end of the head. Below a second slow clients
#: cannot send one; at many minutes a few hundred idle clients use up all connections.
HEAD_SECONDS = 15.0
#: Bytes of a request's URL. Following many queues with `?queue=` needs long ones; the parser counts in 16 bits.
MAX_URL = 64 * 1024 - 1
#: Bytes of all headers together, and of all trailers. A `Last-Event-ID` with a thousand queues must fit.
MAX_HEADER_BYTES = 80 * 1024
#: Headers of a request.
MAX_HEADERS = 100
#: Pipelined requests of one connection. Each costs about 2 kB.
MAX_PIPELINED = 100
#: Seconds within which a client must read at least one byte of its response.
WRITE_SECONDS = 60.0
#: Connections of a process, however many file descriptors it may open. Each costs about 10 kB.
MAX_CONNECTIONS = 8192
#: File descriptors reserved for Redis connections, files and threads.
RESERVED_DESCRIPTORS = 768
#: Bytes and seconds that a rejected client may still send: closing at once would lose the response.
LINGER_BYTES, LINGER_SECONDS = 8 * 1024 * 1024, 2.0
#: Bytes of chunk headers allowed per byte of body: chunks of one byte need five.
_CHUNK_OVERHEAD = 8


def default_max_connections() -> int:
    """The connections that this process has file descriptors for, after a reserve."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2)))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of each connection, and of their number."""

    head_seconds: float = HEAD_SECONDS
    max_url: int = MAX_URL
    max_header_bytes: int = MAX_HEADER_BYTES
    max_headers: int = MAX_HEADERS
    #: Seconds for the rest of a body after the response.
    body_seconds: float = 30.0
    write_seconds: float = WRITE_SECONDS
    max_connections: int = MAX_CONNECTIONS


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that does not involve the application."""

    status: int
    error: str
    message: str
    hint: str

    def answer(self) -> bytes:
        body = orjson.dumps({"error": self.error, "message": self.message, "hint": self.hint})
        again = b"retry-after: 1\r\n" if self.status == 503 else b""
        return b"".join(
            (
                STATUS_LINE[self.status],
                b"content-type: application/json\r\nx-content-type-options: nosniff\r\n",
                again,
                b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
                body,
            )
        )


_NO_HTTP = Refusal(400, "BadRequest", "this is not an HTTP/1.1 request", "see /api/openapi.json for the API")
_FULL = Refusal(503, "Busy", "the server has reached its limit of connections", "retry later, and reuse connections")


class _TooMuchError(Exception):
    """Stops the parser from within a callback; `_refusal` holds the response."""


def limited(limits: ConnectionLimits) -> type[LimitedHttpProtocol]:
    """The protocol class of one server, whose connections share limits and the list of idle ones."""
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), {"limits": limits, "idle": {}})


class LimitedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection with limits."""

    limits: ClassVar[ConnectionLimits]
    #: Connections without a running request, the longest idle first.
    idle: ClassVar[dict[LimitedHttpProtocol, None]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._unsent = 0
        #: Between requests, or inside a request's head.
        self._in_head = True
        #: Whether a part of the next head has arrived.
        self._begun = False
        #: Number of completed heads: `data_received` compares it to learn whether its bytes ended one.
        self._complete = 0
        #: Bytes of the head, without the chunk in which it began: that may hold the end of another request.
        self._head_bytes = 0
        self._fresh = False
        self._body_bytes = self._wire_bytes = self._trailer_bytes = 0
        self._refusal: Refusal | None = None
        self._refused = False
        self._lingered = 0

    # -- connections -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections and not self._make_room():
            self._refused = True
            transport.write(_FULL.answer())
            transport.close()
            return
        self.idle[self] = None
        self._wait(self.limits.head_seconds)

    def _make_room(self) -> bool:
        """Closes the connection that has been idle longest; False if every connection has a running request."""
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        oldest._leave()
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._stalled is not None:
            self._stalled.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _leave(self) -> None:
        self.idle.pop(self, None)
        self._wait(None)

    # -- deadlines -------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._refused or not self._in_head:
            self.transport.abort()
        elif self._begun:
            seconds = self.limits.head_seconds
            self._refuse(
                Refusal(408, "TooSlow", f"the headers did not arrive within {seconds:g} s", "send them at once")
            )
        else:
            # No request has begun. A response could be taken for that of a request still on its way.
            self.transport.close()

    def _watch_writes(self) -> None:
        """Starts or restarts the deadline for the client to read a part of what is buffered for it."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent:
            self._stalled = self.loop.call_later(self.limits.write_seconds, self._look_at_writes)

    def _look_at_writes(self) -> None:
        self._stalled = None
        if self.transport.get_write_buffer_size() >= self._unsent:
            self.transport.abort()
        else:
            self._watch_writes()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_writes()

    # -- reading ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES and not self._answering:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        complete, in_body = self._complete, not self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        except httptools.HttpParserError:
            self._refuse(self._refusal or _NO_HTTP)
            return
        if not self._in_head:
            if in_body and complete == self._complete:
                self._count_body(len(data))
        elif self._begun or (complete == self._complete and not in_body):
            self._count_head(len(data))

    def _count_head(self, size: int) -> None:
        """Limits a head that is not complete yet."""
        self._begun = True
        self._head_bytes += 0 if self._fresh else size
        self._fresh = False
        if len(self.url) > self.limits.max_url:
            self._refuse(self._long_url())
        elif self._head_bytes > self.limits.max_header_bytes + self.limits.max_url:
            self._refuse(self._large_head())
        elif self._deadline is None and not self._answering:
            self._wait(self.limits.head_seconds)

    def _count_body(self, size: int) -> None:
        """Limits the bytes of chunk headers and trailers, which arrive with a body and which nothing else counts."""
        self._wire_bytes += size
        overhead = self._wire_bytes - self._body_bytes
        if overhead > self.limits.max_header_bytes + _CHUNK_OVERHEAD * self._body_bytes:
            self._refuse(self._large_head())

    def _long_url(self) -> Refusal:
        return Refusal(
            414, "UrlTooLong", f"a URL may have at most {self.limits.max_url:,} bytes", "use fewer query parameters"
        )

    def _large_head(self) -> Refusal:
        most, count = self.limits.max_header_bytes, self.limits.max_headers
        return Refusal(
            431,
            "HeadersTooLarge",
            f"headers may have at most {most:,} bytes together, and there may be at most {count}",
            "send fewer or smaller headers; put large values into the body",
        )

    @property
    def _answering(self) -> bool:
        """Whether a request is running, or waits for its turn."""
        return self.cycle is not None and not self.cycle.response_complete

    # -- called by the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun = self._fresh = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        # A trailer. Added to the headers, it could change what was already checked.
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self.limits.max_header_bytes:
            self._give_up(self._large_head())

    def on_headers_complete(self) -> None:
        if len(self.url) > self.limits.max_url:
            self._give_up(self._long_url())
        size = sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > self.limits.max_header_bytes or len(self.headers) > self.limits.max_headers:
            self._give_up(self._large_head())
        if len(self.pipeline) >= MAX_PIPELINED:
            self._give_up(_FULL)
        super().on_headers_complete()
        self._in_head = self._begun = False
        self._complete += 1
        self._body_bytes = self._wire_bytes = self._trailer_bytes = 0
        self._leave()

    def _give_up(self, refusal: Refusal) -> None:
        self._refusal = refusal
        raise _TooMuchError

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0
        if self.cycle.response_complete:
            # The response came before the end of the body, and uvicorn's own timer ended with the body's first bytes.
            self.idle[self] = None
            self._wait(self.timeout_keep_alive)

    # -- responses -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_writes()
        if self.transport.is_closing() or self._refused or self._answering:
            return
        if not self._in_head:
            self._wait(self.limits.body_seconds)
            return
        self.idle[self] = None
        if self._begun:
            self._wait(self.limits.head_seconds)

    def _refuse(self, refusal: Refusal) -> None:
        """Sends the refusal and stops reading. If earlier requests are running, only they get their responses."""
        log.info("refused status=%d error=%s client=%s", refusal.status, refusal.error, (self.client or ("",))[0])
        self._refused = True
        self._leave()
        if self._answering and (self._in_head or not self.cycle.more_body):
            # The last response says `connection: close`, so the client knows that later requests were not read.
            self.cycle.keep_alive = False
            return
        if self._answering:
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(refusal.answer())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.idle[self] = None  # a new connection may replace this one
        self._wait(LINGER_SECONDS)
