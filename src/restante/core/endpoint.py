"""Parses and checks Redis URLs: one server, a cluster, or a service that sentinels know; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from restante.core.errors import InvalidInput
from restante.core.keywords import nearest
from restante.core.scripts import pack
from restante.core.settings import ClientSettings

Address = tuple[str, int]
#: The highest TCP port.
LAST_PORT = 65535

_BAD_URL = (
    "the Redis URL is not valid: it reads redis://user:password@host:port/database, with user and password "
    "percent-encoded and the port a number"
)
_SCHEMES = "redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"
#: Options allowed in the query of a URL; the driver takes them as text.
_OPTIONS = frozenset(
    {
        "client_name",
        "db",
        "health_check_interval",
        "password",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_read_size",
        "socket_timeout",
        "username",
    }
)
#: Options for the login to the sentinels themselves.
_SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)


def _unknown_scheme(scheme: str, url: str) -> InvalidInput:
    """The error for an unknown scheme. It says where schemes of Restante, RabbitMQ and HTTP are valid."""
    first = scheme.partition("+")[0]
    if first in ("restante", "restantes"):
        return InvalidInput(
            f"the scheme {scheme}:// is for Celery's broker_url and for the bus: here use {_SCHEMES}, "
            "such as redis://localhost:6379/0"
        )
    if first in ("amqp", "amqps", "pyamqp"):
        return InvalidInput(
            f"the scheme {scheme}:// is RabbitMQ's, which carries events: give it to restante.Bus or --broker; "
            f"queues live in Redis: use {_SCHEMES}"
        )
    if first in ("http", "https"):
        return InvalidInput(
            f"the scheme {scheme}:// is a Restante server's: use restante.http.connect(); here use {_SCHEMES}"
        )
    if "://" not in url:
        return InvalidInput(f"the Redis URL has no scheme: write redis://host:port/database; known are {_SCHEMES}")
    return InvalidInput(f"the URL scheme {scheme!r} is not known: use {_SCHEMES}")


def _check_database(path: str, mode: str) -> None:
    """Refuses a database that is not a number: the driver would use 0, where other queues may be."""
    database = path.strip("/")
    if database and not (database.isascii() and database.isdecimal()):
        raise InvalidInput(f"the database {database!r} of the Redis URL is not a number: write redis://host:port/0")
    if mode == "cluster" and database.strip("0"):
        raise InvalidInput(f"a Redis Cluster has only database 0, not {database}: leave it out of the URL")


def _check_options(query: str, scheme: str) -> None:
    """Refuses unknown options, which the driver would pass on until one of its constructors fails."""
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name in _TLS_OPTIONS and scheme != "rediss":
            raise InvalidInput(f"the option {name!r} of the Redis URL needs TLS: write rediss://")
        if name not in (known := _OPTIONS | _TLS_OPTIONS | set(_SENTINEL_LOGIN)):
            raise InvalidInput(f"a Redis URL has no option {name!r}: {nearest(name, known)}")


def _seeds(netloc: str, mode: str) -> tuple[Address, ...]:
    """The addresses of the sentinels or cluster nodes that a URL lists; none for a single server."""
    if not mode:
        return ()
    seeds: list[Address] = []
    for host in netloc.rpartition("@")[2].split(","):
        name, _, port = host.partition(":")
        number = int(port) if port.isascii() and port.isdecimal() else 0
        if port and not 0 < number <= LAST_PORT:
            raise InvalidInput(_BAD_URL)
        seeds.append((name or "127.0.0.1", number or (26379 if mode == "sentinel" else 6379)))
    return tuple(seeds)


def _driver_options(url: str) -> dict[str, Any]:
    """The arguments that the driver reads from the URL of a single server."""
    try:
        return dict(parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError:
        # The driver's own words may quote part of a password.
        raise InvalidInput(_BAD_URL) from None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed Redis URL: one server, a cluster, or a service that sentinels resolve."""

    shown: str
    mode: str
    options: dict[str, Any]
    seeds: tuple[Address, ...] = ()
    service: str = ""
    #: Arguments of connections to the sentinels themselves: login and TLS.
    sentinel: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str, settings: ClientSettings) -> Endpoint:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise InvalidInput(_BAD_URL) from None
        scheme, _, mode = parts.scheme.partition("+")
        if scheme not in ("redis", "rediss", "unix") or mode not in ("", "cluster", "sentinel"):
            raise _unknown_scheme(parts.scheme, url)
        seeds = _seeds(parts.netloc, mode)
        path, service = parts.path, ""
        if mode == "sentinel":
            service, _, database = path.strip("/").partition("/")
            if not service:
                raise InvalidInput("a sentinel URL names the service: redis+sentinel://host:26379/mymaster/0")
            path = f"/{database}" if database else ""
        if scheme != "unix":
            _check_database(path, mode)
        _check_options(parts.query, scheme)
        # The driver knows neither several hosts nor the name of a service.
        login, at, hosts = parts.netloc.rpartition("@")
        one = urlunsplit((scheme, f"{login}{at}{hosts.partition(',')[0]}", path, parts.query, ""))
        options = _driver_options(one if mode else url)
        sentinel = {name.partition("_")[2]: options.pop(name) for name in _SENTINEL_LOGIN if name in options}
        if sentinel and mode != "sentinel":
            raise InvalidInput("sentinel_username and sentinel_password need sentinels: redis+sentinel://…")
        options.setdefault("socket_timeout", settings.socket_timeout)
        options.setdefault("socket_connect_timeout", settings.connect_timeout)
        if scheme != "unix":
            options.setdefault("socket_keepalive", True)
        # Without the login, because errors and logs show this text.
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return cls(shown, mode or "single", options, seeds, service, sentinel)

    def kwargs(self, address: Address | None, *, aio: bool = False) -> dict[str, Any]:
        """Returns the arguments of the driver's connection class; the driver's own retries are off."""
        arguments = {key: value for key, value in self.options.items() if key != "connection_class"}
        if address is not None:
            arguments["host"], arguments["port"] = address
        arguments["retry"] = AsyncRetry(NoBackoff(), 0) if aio else Retry(NoBackoff(), 0)
        arguments["protocol"] = 2
        return arguments

    def connection_class(self, module: Any) -> Any:
        """The driver's connection class for a server, in its synchronous or its asyncio module."""
        kind = self.options.get("connection_class")
        return module.Connection if kind is None else getattr(module, kind.__name__)

    def sentinel_kwargs(self, seed: Address, *, aio: bool = False) -> dict[str, Any]:
        """Returns the arguments for a connection to a sentinel, which has no database and its own login and TLS."""
        arguments = self.kwargs(seed, aio=aio)
        not_shared = ("db", "username", "password")
        shared = {key: value for key, value in arguments.items() if key not in not_shared and not key.startswith("ssl")}
        return shared | {key: value for key, value in self.sentinel.items() if key != "ssl"}

    def sentinel_class(self, module: Any) -> Any:
        """The driver's connection class for a sentinel."""
        return module.SSLConnection if self.sentinel.get("ssl") else module.Connection

    @property
    def sentinel_question(self) -> bytes:
        """The command that asks a sentinel for the master's address."""
        return pack(("SENTINEL", "get-master-addr-by-name", self.service))
