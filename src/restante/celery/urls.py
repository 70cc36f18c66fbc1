"""Translates the broker URL that Kombu was given into the URL of the core's client."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from restante.celery.options import Options
from restante.core.errors import InvalidInput

DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379


def core_url(connection: Any, options: Options) -> str:
    """The core's URL for a Kombu connection; raises if URL and options contradict each other."""
    given = connection.hostname or ""
    if "://" not in given:
        given = _joined(connection, given)
    parts = urlsplit(given)
    scheme = parts.scheme
    if options.sentinel_kwargs and scheme != "sentinel" and not options.master_name:
        raise InvalidInput("sentinel_kwargs needs sentinels: use restante+sentinel://…, or set master_name")
    if options.ssl and scheme in ("embedded", "socket", "unix"):
        raise InvalidInput(f"ssl has no meaning for a {scheme} URL: leave it out")
    if scheme == "embedded":
        return f"embedded://{parts.netloc}{parts.path}"
    if scheme in ("socket", "unix"):
        query = parts.query.replace("virtual_host=", "db=")
        return f"unix://{parts.netloc}{parts.path}{f'?{query}' if query else ''}"
    tls = scheme in ("restantes", "rediss") or bool(options.ssl)
    netloc = parts.netloc or f"localhost:{DEFAULT_PORT}"
    if scheme == "cluster" and options.master_name:
        raise InvalidInput("master_name needs sentinels, and this is a cluster URL: leave it out")
    names_master = scheme == "sentinel" and parts.path.split("/")[1:2] == [options.master_name]
    if options.master_name and not names_master:
        return _sentinel_url(connection, options.master_name, parts, tls)
    if scheme in ("sentinel", "cluster"):
        return urlunsplit((f"{'rediss' if tls else 'redis'}+{scheme}", netloc, parts.path, parts.query, ""))
    if scheme not in ("restante", "restantes", "redis", "rediss"):
        raise InvalidInput(
            f"the broker URL scheme {scheme!r} is not known: use restante://, restantes://, "
            "restante+socket:///path, restante+sentinel://, restante+cluster:// or restante+embedded://"
        )
    return urlunsplit(("rediss" if tls else "redis", netloc, parts.path, parts.query, ""))


def _joined(connection: Any, host: str) -> str:
    """The URL that Kombu has split into its parts."""
    login = ""
    if connection.userid or connection.password:
        login = f"{quote(connection.userid or '', safe='')}:{quote(connection.password or '', safe='')}@"
    path = (connection.virtual_host or "/").lstrip("/")
    scheme = "restantes" if connection.transport_cls == "restantes" else "restante"
    port = connection.port or ("" if host else DEFAULT_PORT)
    host = f"[{host}]" if ":" in host else host or "localhost"
    return f"{scheme}://{login}{host}{f':{port}' if port else ''}{f'/{path}' if path else ''}"


def _sentinel_url(connection: Any, master: str, parts: SplitResult, tls: bool) -> str:
    """The URL for sentinels in Kombu's form: a list of URLs, one per sentinel, and the service name as an option."""
    hosts = []
    for text in connection.alt or [f"restante://{parts.netloc}"]:
        host = urlsplit(text).netloc.rpartition("@")[2]
        hosts.append(host if ":" in host else f"{host}:{_SENTINEL_PORT}")
    login = parts.netloc.rpartition("@")[0]
    netloc = f"{login}@{','.join(hosts)}" if login else ",".join(hosts)
    database = parts.path.strip("/")
    path = f"/{master}/{database}" if database else f"/{master}"
    return urlunsplit((f"{'rediss' if tls else 'redis'}+sentinel", netloc, path, parts.query, ""))
