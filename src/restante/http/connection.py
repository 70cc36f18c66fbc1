"""Two thin runners on httpx, synchronous and asyncio: send a request, read the reply, pause.

On failure a runner returns `Lost`, and the call decides what follows. httpx looks at an idle connection before it
writes, so a connection that the server closed in between is replaced and no request is lost on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import re
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypedDict
from urllib.parse import urlsplit

import httpx

from restante.core.errors import InvalidInput, MissingExtra, Unavailable
from restante.core.retry import seconds
from restante.core.trace import current_trace
from restante.http.calls import Lost, Pause, Reply, Request

DEFAULT_ADDRESS = "http://localhost:8025"
#: Seconds to wait for the server. Shorter than its slowest answer, calls fail that were carried out.
TIMEOUT = 10.0
#: Idle connections kept open. With fewer, threads that send at the same time would connect for each call.
IDLE = 16
#: Seconds that an idle connection is kept. The server closes it later than that, so the two rarely coincide.
KEEP_ALIVE = 60.0
#: Parsed URLs that are kept: one per queue and verb in use. Beyond it each call parses its URL again.
URLS = 1024
_url = functools.lru_cache(URLS)(httpx.URL)
#: Failures before the first byte of the request was written.
_NOT_WRITTEN = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class HttpOptions(TypedDict, total=False):
    """The options of `restante.http.connect`."""

    #: The token; without it RESTANTE_TOKEN.
    token: str | None
    #: The name shown in the registry of consumers; without it host name and process ID.
    consumer: str | None
    #: Seconds to connect, and to wait for each part of a reply beyond a receive's own wait.
    timeout: float | timedelta | httpx.Timeout
    #: Who may sign the server's certificate: the system's authorities, those of a file or folder, or no check.
    verify: bool | str | os.PathLike[str] | ssl.SSLContext
    #: The client's certificate: a path, or certificate, key and password.
    cert: str | tuple[str, str] | tuple[str, str, str] | None
    #: The URL of a proxy; without it the proxies of the environment apply.
    proxy: str | httpx.Proxy | None


class HttpEndpoint:
    """One server's address, what each request carries, and the options of the connections to it."""

    def __init__(self, address: str, options: HttpOptions) -> None:
        host, port, scheme, path = _parts(address)
        where = f"[{host}]" if ":" in host else host
        #: The address without a login, for texts and requests.
        self.address = f"{scheme}://{where}{f':{port}' if port else ''}{path}"
        self._timeout = _timeout(options)
        self._headers = _headers(options.get("token") or os.environ.get("RESTANTE_TOKEN"))
        #: The arguments of `httpx.Client` and `httpx.AsyncClient`.
        self.options: dict[str, Any] = {
            "verify": _tls(options) if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            "proxy": _proxy(options.get("proxy")),
            # A proxy of the environment cannot reach this machine by its loopback address.
            "trust_env": not _loopback(host),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=IDLE, keepalive_expiry=KEEP_ALIVE),
        }

    def build(self, request: Request) -> httpx.Request:
        """The request for the wire."""
        headers = {**self._headers, **current_trace()}
        if request.idempotency_key is not None:
            headers = {**headers, "Idempotency-Key": request.idempotency_key}
        timeout = self._timeout
        if request.wait and timeout["read"] is not None:
            timeout = {**timeout, "read": timeout["read"] + request.wait}
        return httpx.Request(
            request.method,
            _url(self.address + request.path),
            headers=headers,
            content=request.body,
            extensions={"timeout": timeout},
        )


def _parts(address: str) -> tuple[str, int | None, str, str]:
    """Host, port, scheme and path of an address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        httpx.URL(address)
    except (ValueError, TypeError, AttributeError, httpx.InvalidURL):
        host = None
    if not host or parts.scheme not in ("http", "https"):
        shown = re.sub(r"//[^/]*@", "//", str(address))
        raise InvalidInput(f"the address of the server must be http://host:port, not {shown!r}")
    return host, port, parts.scheme, parts.path.rstrip("/")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _timeout(options: HttpOptions) -> dict[str, float | None]:
    given = options.get("timeout", TIMEOUT)
    if not isinstance(given, httpx.Timeout):
        given = httpx.Timeout(seconds(given, "timeout", least=0.001))
    return given.as_dict()


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "restante"}
    if token:
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise InvalidInput("the token has characters that no token has: copy it again")
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _tls(options: HttpOptions) -> ssl.SSLContext:
    """How connections check the server's certificate and show their own."""
    verify, cert = options.get("verify", True), options.get("cert")
    try:
        if isinstance(verify, ssl.SSLContext):
            context = verify
        elif isinstance(verify, bool):
            # The system's authorities, among which a company's own are, and not httpx's bundle.
            context = ssl.create_default_context()
            if not verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
        else:
            folder = os.path.isdir(verify)
            context = ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
        if cert is not None:
            context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    except (OSError, TypeError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidInput(
            f"verify={verify!r} or the files of cert cannot be used: {error}; verify takes True, False, the path of "
            "authorities or an SSLContext, cert a path or a tuple of certificate, key and password"
        ) from None
    return context


def _proxy(proxy: str | httpx.Proxy | None) -> httpx.Proxy | None:
    if proxy is None or isinstance(proxy, httpx.Proxy):
        return proxy
    try:
        return httpx.Proxy(proxy)
    except (ValueError, TypeError, httpx.InvalidURL):  # their texts would show its login
        raise InvalidInput("proxy must be a URL such as http://host:3128, or a httpx.Proxy") from None


@contextlib.contextmanager
def _needs_socks() -> Iterator[None]:
    """Names the package that a SOCKS proxy needs; it may come from the environment."""
    try:
        yield
    except ImportError as missing:
        raise MissingExtra(
            "a SOCKS proxy needs socksio, which is not installed: pip install 'httpx[socks]'", name="socksio"
        ) from missing


def _lost(error: httpx.RequestError) -> Lost:
    reason = "timed out" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        reason += ": pass verify= with the path of the authority that signed it"
    return Lost(reason, written=not isinstance(error, _NOT_WRITTEN))


def _closed() -> Unavailable:
    return Unavailable("this client is closed: call connect() again")


class HttpConnection:
    """The synchronous runner; threads may share it."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        with _needs_socks():
            self._http = httpx.Client(**endpoint.options)

    def perform(self, step: Request | Pause) -> Reply | Lost | None:
        """Performs one step of a call."""
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if self._http.is_closed:
            raise _closed()
        try:
            response = self._http.send(self._endpoint.build(step))
        except httpx.RequestError as error:
            return _lost(error)
        return Reply(response.status_code, response.content)

    def close(self) -> None:
        self._http.close()


class AsyncHttpConnection:
    """The runner for asyncio; tasks of one event loop may share it."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        with _needs_socks():
            self._http = httpx.AsyncClient(**endpoint.options)

    async def perform(self, step: Request | Pause) -> Reply | Lost | None:
        """Performs one step of a call."""
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if self._http.is_closed:
            raise _closed()
        try:
            response = await self._http.send(self._endpoint.build(step))
        except httpx.RequestError as error:
            return _lost(error)
        return Reply(response.status_code, response.content)

    async def close(self) -> None:
        await self._http.aclose()
