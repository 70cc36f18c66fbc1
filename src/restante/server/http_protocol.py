"""Limits what a connection may cost before the application sees a request, and after it has answered.

uvicorn's own protocol reads heads of any size, waits for them forever, and takes any number of connections. This one
answers 408 to a head that is late, 414 to a long URL, 431 to large or many headers or trailers, and closes connections
that say nothing, never finish a body nobody reads, or do not read their answer. When all places are taken, a new
connection gets the place of the one that has waited longest for its next request; where none waits, it is answered 503.
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

#: Seconds from the first byte of a head, or from the connection, to its end. Below a second slow links cannot send one;
#: at many minutes a few hundred idle clients take every place.
HEAD_SECONDS = 15.0
#: Bytes of a request's URL. Following many queues by `?queue=` needs long ones; the parser counts in 16 bits.
MAX_URL = 64 * 1024 - 1
#: Bytes of all headers together, and of all trailers. A `Last-Event-ID` that names a thousand queues must fit.
MAX_HEADER_BYTES = 80 * 1024
#: Headers of a request.
MAX_HEADERS = 100
#: Requests that wait for their turn on one connection. Each costs about 2 kB.
MAX_PIPELINED = 100
#: Seconds in which a client must take at least one byte of what is written for it.
WRITE_SECONDS = 60.0
#: Most connections of a process, however many descriptors it may have: each costs about 10 kB.
MAX_CONNECTIONS = 8192
#: Descriptors left to Redis connections, files and threads.
RESERVED_DESCRIPTORS = 768
#: Bytes and seconds that a refused client may still send: a connection closed at once would lose the answer.
LINGER_BYTES, LINGER_SECONDS = 8 * 1024 * 1024, 2.0
#: Bytes of chunk headers per byte of body: chunks of one byte need five.
_CHUNK_OVERHEAD = 8


def default_max_connections() -> int:
    """As many as this process has descriptors for, less what it needs itself."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2)))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may cost, and how many there may be."""

    head_seconds: float = HEAD_SECONDS
    max_url: int = MAX_URL
    max_header_bytes: int = MAX_HEADER_BYTES
    max_headers: int = MAX_HEADERS
    #: Seconds for the rest of a body that nobody reads.
    body_seconds: float = 30.0
    write_seconds: float = WRITE_SECONDS
    max_connections: int = MAX_CONNECTIONS


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer given without asking the application."""

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


_NO_HTTP = Refusal(400, "BadRequest", "this is not an HTTP/1.1 request", "the API is described by /api/openapi.json")
_FULL = Refusal(503, "Busy", "the server has no room for another connection", "try again, or keep connections open")


class _TooMuchError(Exception):
    """Ends the parser inside one of its callbacks; what to answer is already noted."""


def limited(limits: ConnectionLimits) -> type[LimitedHttpProtocol]:
    """The protocol of one server: its connections share limits and places."""
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), {"limits": limits, "idle": {}})


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[ConnectionLimits]
    #: Connections without a request under way, the one that has waited longest first.
    idle: ClassVar[dict[LimitedHttpProtocol, None]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._unsent = 0
        #: Between requests, or inside the head of one.
        self._in_head = True
        #: Whether anything of the next head has come.
        self._begun = False
        #: Heads that are complete, by which a call learns whether its bytes ended one.
        self._complete = 0
        #: Bytes of the head, without the piece in which it began: that may hold the end of another request.
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
        """Ends the connection that has waited longest; False where every one has a request under way."""
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
            self._refuse(Refusal(408, "TooSlow", f"the headers did not come within {seconds:g} s", "send them at once"))
        else:
            # Nothing was asked: an answer could be taken for that of a request which is on its way.
            self.transport.close()

    def _watch_writes(self) -> None:
        """From now on the client must take something of what is written, again and again."""
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
        """A piece came and the head is not complete."""
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
        """A piece of a body came. What is not body is chunk headers and trailers, which nobody else counts."""
        self._wire_bytes += size
        overhead = self._wire_bytes - self._body_bytes
        if overhead > self.limits.max_header_bytes + _CHUNK_OVERHEAD * self._body_bytes:
            self._refuse(self._large_head())

    def _long_url(self) -> Refusal:
        return Refusal(414, "UrlTooLong", f"a URL may have {self.limits.max_url:,} bytes", "ask for less at a time")

    def _large_head(self) -> Refusal:
        most, count = self.limits.max_header_bytes, self.limits.max_headers
        return Refusal(
            431,
            "HeadersTooLarge",
            f"headers may have {most:,} bytes together, and there may be {count}",
            "send fewer or smaller headers; large values belong into the body",
        )

    @property
    def _answering(self) -> bool:
        """Whether a request is under way, or waits for its turn."""
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
        # A trailer. Added to the headers it could change what has been checked already.
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
            # The answer was given before the body had come; uvicorn's own timer ended with the first piece of it.
            self.idle[self] = None
            self._wait(self.timeout_keep_alive)

    # -- answers -----------------------------------------------------------------------------------------------------

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
        """Answers and reads no more. Requests that came before are answered first, and then there is no answer."""
        log.info("refused status=%d error=%s client=%s", refusal.status, refusal.error, (self.client or ("",))[0])
        self._refused = True
        self._leave()
        if self._answering and (self._in_head or not self.cycle.more_body):
            # The last answer says `connection: close`: its client knows that what follows was not read.
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
        self.idle[self] = None  # whoever needs the place may have it
        self._wait(LINGER_SECONDS)
