"""The transport's options with their defaults, checked when a connection is opened.

An unknown option is an error that suggests the nearest name, so that a misspelt `visibility_timeout` is noticed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import redis

from restante.core.errors import InvalidInput
from restante.core.keywords import check_keywords
from restante.core.settings import milliseconds, whole

log = logging.getLogger("restante")

#: Options that Kombu or Celery read themselves.
_OF_KOMBU = frozenset(
    {
        "body_encoding",
        "callback",
        "client_properties",
        "confirm_publish",
        "confirm_timeout",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "polling_interval",
        "retry_policy",
    }
)
#: Options of Kombu's own Redis transport that this one does not need, and why.
_WITHOUT_EFFECT = {
    "fanout_prefix": "broadcasts never cross databases",
    "fanout_patterns": "topics are always matched",
    "unacked_key": "leases are stored in the queue",
    "unacked_index_key": "leases are stored in the queue",
    "unacked_mutex_key": "recovery needs no lock",
    "unacked_mutex_expire": "recovery needs no lock",
    "unacked_restore_limit": "recovery is exact",
    "unacked_restore_throttle": "recovery is exact",
    "priority_steps": "there are 256 separate priorities",
    "sep": "priorities have no keys of their own",
    "health_check_interval": "a wait ends within 8 seconds and shows a dead connection sooner",
    "retry_on_timeout": "calls are repeated until `patience` is over, without duplicates",
    "max_connections": "a process keeps as many connections as it uses at once",
    "polling_interval": "an idle consumer is woken, and also looks every 5 seconds",
    "blocking_timeout": "an idle consumer is woken, and also looks every 5 seconds",
    "stream_read_count": "broadcasts are read in parts",
    "stream_max_age": "broadcasts are read from the last position",
    "message_key_prefix": "messages are stored in their queue",
}
#: Options of other transports whose effect would be missing, and what replaces them.
_REFUSED = {
    "queue_expires": "declare the queue with x-expires (Queue(…, expires=seconds))",
    "credential_provider": "put user and password into the broker URL",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The values of `broker_transport_options`."""

    #: Seconds a lease lasts. Leases of held messages are extended after a third of it; the messages of a killed worker
    #: are delivered again after this time.
    visibility_timeout: float = 300.0
    #: Deliveries after which a message becomes dead instead of being delivered again.
    delivery_limit: int = 20
    #: Seconds after which a waiting message is removed; None: never.
    message_ttl: float | None = None
    #: Entries that a broadcast stream keeps for slow subscribers.
    stream_maxlen: int = 10_000
    #: Prefix of every queue's and exchange's name, so that two applications can share a server.
    global_keyprefix: str = ""
    #: The order in which a worker receives from its queues: round_robin, priority (as listed) or sorted (by name).
    queue_order_strategy: str = "round_robin"
    #: What happens to a message for which no queue is bound: warn (drop it with one warning per route), drop or raise.
    unroutable: str = "warn"
    #: The queue that receives such messages instead.
    deadletter_queue: str | None = None
    #: Seconds for which a call is repeated while the server is away, before Celery gets an error.
    patience: float = 4.0
    socket_timeout: float | None = None
    socket_connect_timeout: float | None = None
    socket_keepalive: bool | None = None
    #: Socket option → value, such as {socket.TCP_KEEPIDLE: 60}.
    socket_keepalive_options: Any = None
    #: The client's name in Redis' CLIENT LIST.
    client_name: str | None = None
    #: True, or the arguments of redis-py's SSL connection (ssl_ca_certs, ssl_certfile, …).
    ssl: Any = False
    #: The service name, if the URL lists sentinels.
    master_name: str | None = None
    #: Login and TLS for the sentinels themselves: {"username": …, "password": …, "ssl": True, "ssl_ca_certs": …}.
    sentinel_kwargs: Any = None
    #: Accept a server that may evict keys: it loses messages when its memory is full.
    allow_eviction: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> Options:
        """Checks `broker_transport_options`; raises on unknown names and invalid values."""
        chosen: dict[str, Any] = {}
        known = {field.name for field in fields(cls)}
        for name, value in (given or {}).items():
            if name in known:
                chosen[name] = value
            elif name in _WITHOUT_EFFECT:
                _log_once(name)
            elif name in _REFUSED:
                raise InvalidInput(f"broker_transport_options has no option {name!r}: {_REFUSED[name]}")
            elif name not in _OF_KOMBU:
                check_keywords([name], [*known, *_WITHOUT_EFFECT, *_OF_KOMBU], "broker_transport_options")
        options = cls(**chosen)
        milliseconds(options.visibility_timeout, "visibility_timeout", least=0.1)
        whole(options.delivery_limit, "delivery_limit", 1, 65535)
        whole(options.stream_maxlen, "stream_maxlen", 1, 2**40)
        if options.message_ttl is not None:
            milliseconds(options.message_ttl, "message_ttl")
        _choice(options.queue_order_strategy, "queue_order_strategy", ("round_robin", "priority", "sorted"))
        for name in ("socket_timeout", "socket_connect_timeout", "patience"):
            if getattr(options, name) is not None:
                milliseconds(getattr(options, name), name, least=0.0 if name == "patience" else 0.001)
        name = options.client_name or ""
        if not isinstance(name, str) or not name.isprintable() or " " in name:
            raise InvalidInput(f"client_name must be a word without spaces, not {name!r}")
        options.with_tls(options.ssl)
        if options.sentinel_kwargs is not None:
            _arguments(options.sentinel_kwargs, "sentinel_kwargs", _SENTINEL)
        if options.socket_keepalive_options is not None and not isinstance(options.socket_keepalive_options, Mapping):
            raise InvalidInput("socket_keepalive_options must be a dict such as {socket.TCP_KEEPIDLE: 60}")
        _choice(options.unroutable, "unroutable", ("raise", "warn", "drop"))
        return options

    def with_tls(self, ssl: Any) -> Options:
        """These options with another `ssl`, checked."""
        if not isinstance(ssl, bool):
            _arguments(ssl, "ssl", _TLS)
        return replace(self, ssl=ssl)


#: The arguments of redis-py's connections, for options that are passed on to them.
_TLS = frozenset(name for name in inspect.signature(redis.SSLConnection).parameters if name.startswith("ssl_"))
_SENTINEL = _TLS | {
    "client_name",
    "password",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_timeout",
    "ssl",
    "username",
}


def _arguments(given: Any, option: str, known: frozenset[str]) -> None:
    """Raises on arguments that the driver would refuse later with a less helpful error."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{option} must be a dict, not {given!r}")
    check_keywords(map(str, given), known, option)


def _choice(value: str, name: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise InvalidInput(f"{name} must be one of {', '.join(words)}, not {value!r}")


_logged: set[str] = set()


def _log_once(name: str) -> None:
    if name not in _logged:
        _logged.add(name)
        log.info("transport option without effect name=%s reason=%s", name, _WITHOUT_EFFECT[name].replace(" ", "_"))
