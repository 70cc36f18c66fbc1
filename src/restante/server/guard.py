"""ASGI middleware that rejects requests that are too large, too slow, compressed, or sent by a foreign page.

It wraps the whole application, so that no request is read or routed before it is checked. It answers a rejected
request itself.
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

#: Pages of the dashboard may load their own files and call their own server.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
#: The report contains its scripts and styles inline, so it runs in a sandbox without network access.
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
#: Bytes of a rejected body that are still read, and for how many seconds.
DRAIN_BYTES, DRAIN_SECONDS = 8 * 1024 * 1024, 2.0
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_JSON = ("application/json", "application/x-ndjson")
_SLASH = re.compile(r"%2f", re.IGNORECASE)


def problem(status: int, error: str, message: str, hint: str) -> tuple[int, bytes]:
    """Status and body of a rejection."""
    return status, orjson.dumps({"error": error, "message": message, "hint": hint})


class Guard:
    """The middleware; wraps the application."""

    #: The `ServerState` that the routes share.
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
        # A slash in a name is encoded as %2F and must not split the path.
        raw = scope.get("raw_path") or scope["path"].encode()
        scope["path"] = unquote(_SLASH.sub("%252F", raw.decode("latin-1")))
        protected = _protecting(send, scope["path"])
        if scope["method"] == "HEAD" and not scope["path"].startswith("/api/"):
            # Probes and proxies send HEAD. Not below /api: a stream would never end.
            scope["method"] = "GET"
            protected = _headless(protected)
        refused = self._look(scope["method"], headers)
        if refused is not None:
            await _drain(receive)
            await _answer(protected, *refused)
            return
        await self._app(scope, self._limited(receive), protected)

    def _look(self, method: str, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        """The rejection of a request, judged before its body is read; None if it may pass."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return problem(
                415,
                "UnsupportedEncoding",
                "compressed bodies are not accepted",
                "send the body without Content-Encoding",
            )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body:
            return self._too_large()
        if method not in _CHANGING:
            return None
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") or _foreign(headers):
            return problem(
                403, "ForeignSite", "pages of other sites may not change anything", "call the API from a program"
            )
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        has_body = length != b"0" or b"transfer-encoding" in headers
        if (has_body and kind not in _JSON) or (kind and kind not in _JSON):
            return problem(
                415,
                "UnsupportedMediaType",
                f"a body of type {kind[:60] or 'unknown'} is not accepted",
                "send JSON with Content-Type: application/json",
            )
        return None

    def _too_large(self) -> tuple[int, bytes]:
        return problem(
            413,
            "PayloadTooLarge",
            f"a body may have at most {self._max_body:,} bytes",
            "send smaller batches, or store the payload elsewhere and send a reference",
        )

    def _limited(self, receive: Receive) -> Receive:
        """Limits the size of the body and the time in which it must arrive."""
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
                    *problem(
                        408, "TooSlow", f"the body did not arrive within {self._body_seconds:g} s", "send it faster"
                    )
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
    """Ends a request while its body is being read; carries the response."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


def _foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether the Origin header names another site."""
    origin = headers.get(b"origin")
    if origin is None:
        return False
    return urlsplit(origin.decode("latin-1")).netloc.encode("latin-1") != headers.get(b"host", b"")


def _protecting(send: Send, path: str) -> Send:
    """Adds the security headers to every response."""
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
    """Drops the body, for responses to HEAD."""

    async def headless(message: Message) -> None:
        if message["type"] == "http.response.body":
            if message.get("more_body", False):
                return
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return headless


async def _drain(receive: Receive) -> None:
    """Reads on for a while: a client that is still sending when the connection closes never reads the response."""
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
    # The rest of the body is not read, so the connection cannot be reused.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
