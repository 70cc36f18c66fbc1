"""The first to see a request: refuses what is too large, too slow, packed, or sent by another site's page.

It is plain ASGI around the application, so that nothing is read or routed before it has been looked at.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: What a page of ours may do: use its own files and talk to its own server.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
#: The report brings its scripts and styles inside, so it runs in a box that can reach nothing.
REPORT_CSP = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'self'"
)
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
#: How much of a refused body is read, and for how long.
DRAIN_BYTES, DRAIN_SECONDS = 8 * 1024 * 1024, 2.0
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_JSON = ("application/json", "application/x-ndjson")
_SLASH = re.compile(r"%2f", re.IGNORECASE)


def problem(status: int, error: str, message: str, hint: str) -> tuple[int, bytes]:
    """Status and body of a refusal."""
    return status, orjson.dumps({"error": error, "message": message, "hint": hint})


class Guard:
    """Wraps the application."""

    #: What the routes share.
    state: Any = None

    def __init__(self, app: App, *, max_body: int, body_seconds: float) -> None:
        self._app = app
        self._max_body = max_body
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        # A name may hold a slash, which travels as %2F: it must not become a step of the path.
        raw = scope.get("raw_path") or scope["path"].encode()
        scope["path"] = unquote(_SLASH.sub("%252F", raw.decode("latin-1")))
        protected = _protecting(send, scope["path"])
        if scope["method"] == "HEAD" and not scope["path"].startswith("/api/"):
            # Probes and proxies ask so; a live stream, which would never end, is below /api.
            scope["method"] = "GET"
            protected = _headless(protected)
        refused = self._look(scope["method"], headers)
        if refused is not None:
            await _drain(receive)
            await _answer(protected, *refused)
            return
        await self._app(scope, self._limited(receive), protected)

    def _look(self, method: str, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        """What is wrong with the request before its body is read."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return problem(
                415, "UnsupportedEncoding", "packed bodies are not taken", "send the body without Content-Encoding"
            )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body:
            return self._too_large()
        if method not in _CHANGING:
            return None
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") or _foreign(headers):
            return problem(403, "ForeignSite", "a page of another site may not do this", "call the API from a program")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        has_body = length != b"0" or b"transfer-encoding" in headers
        if (has_body and kind not in _JSON) or (kind and kind not in _JSON):
            return problem(
                415,
                "UnsupportedMediaType",
                f"a body of type {kind[:60] or 'unknown'} is not taken",
                "send JSON with Content-Type: application/json",
            )
        return None

    def _too_large(self) -> tuple[int, bytes]:
        return problem(
            413,
            "PayloadTooLarge",
            f"a body may have {self._max_body:,} bytes",
            "send smaller batches, or a reference to what is stored elsewhere",
        )

    def _limited(self, receive: Receive) -> Receive:
        """Counts the body as it comes, and the time it takes."""
        seen = 0
        over = False
        deadline: float | None = None

        async def limited() -> Message:
            nonlocal seen, over, deadline
            if over:
                return await receive()
            clock = asyncio.get_running_loop()
            deadline = clock.time() + self._body_seconds if deadline is None else deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyRefused(
                    *problem(408, "TooSlow", f"the body did not come within {self._body_seconds:g} s", "send it faster")
                ) from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                over = not message.get("more_body", False)
                if seen > self._max_body:
                    await _drain(receive)
                    raise BodyRefused(*self._too_large())
            else:
                over = True
            return message

        return limited


class BodyRefused(HTTPException):
    """A body was given up half way; carries the answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


def _foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether the browser says that the request comes from a page of another origin."""
    origin = headers.get(b"origin")
    if origin is None:
        return False
    return urlsplit(origin.decode("latin-1")).netloc.encode("latin-1") != headers.get(b"host", b"")


def _protecting(send: Send, path: str) -> Send:
    """Adds what every answer must carry."""
    report = path == "/insights/report"
    extra = dict(_HEADERS)
    extra[b"content-security-policy"] = (REPORT_CSP if report else CSP).encode()
    extra[b"x-frame-options"] = b"SAMEORIGIN" if report else b"DENY"
    if not path.startswith("/assets/"):
        extra[b"cache-control"] = b"no-store"

    async def protected(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *((name, value) for name, value in extra.items() if name not in present),
            ]
        await send(message)

    return protected


def _headless(send: Send) -> Send:
    """The answer without its body."""

    async def headless(message: Message) -> None:
        if message["type"] == "http.response.body":
            if message.get("more_body", False):
                return
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return headless


async def _drain(receive: Receive) -> None:
    """Reads on for a while: who is still sending when the connection closes sees it broken, and not the answer."""
    read = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while read < DRAIN_BYTES:
                message = await receive()
                read += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        pass


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    # What is left of the body is not worth reading.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
