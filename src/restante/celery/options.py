"""The transport's options: every one with its default, checked when the connection is made.

An unknown option is an error that suggests the nearest name: a misspelt `visibility_timeout` must not go unnoticed.
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

#: Read by Kombu or Celery themselves.
_THEIRS = frozenset((
    "max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout", "errback", "callback",
    "confirm_publish", "confirm_timeout", "polling_interval", "body_encoding", "client_properties", "retry_policy",
))  # fmt: skip
#: Options of Kombu's own Redis transport that have nothing to do here, and why.
_NEEDLESS = {
    "fanout_prefix": "broadcasts never cross databases here",
    "fanout_patterns": "topics are always matched here",
    "unacked_key": "leases lie in the queue", "unacked_index_key": "leases lie in the queue",
    "unacked_mutex_key": "recovery needs no lock", "unacked_mutex_expire": "recovery needs no lock",
    "unacked_restore_limit": "recovery is exact", "unacked_restore_throttle": "recovery is exact",
    "priority_steps": "all 256 priorities are kept apart", "sep": "priorities are no keys of their own",
    "health_check_interval": "a sleep ends within 8 seconds, which shows a dead connection sooner",
    "retry_on_timeout": "calls are repeated until `patience` is over, without doubles",
    "max_connections": "a process keeps as many connections as it uses at once",
    "polling_interval": "a sleeping consumer is woken, and looks by itself every 5 seconds",
    "blocking_timeout": "a sleeping consumer is woken, and looks by itself every 5 seconds",
    "stream_read_count": "broadcasts are read in parts", "stream_max_age": "broadcasts are read on from where it was",
    "message_key_prefix": "messages lie in their queue",
}  # fmt: skip
#: Options of other transports whose effect would be missed, and what has it here.
_REFUSED = {
    "queue_expires": "declare the queue with x-expires (Queue(…, expires=seconds))",
    "credential_provider": "put user and password into the broker URL",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a transport is told by `broker_transport_options`."""

    #: Seconds a lease lasts; held messages are renewed at a third of it, so it is how soon a dead worker's come back.
    visibility_timeout: float = 300.0
    #: Deliveries after which a message is dead instead of delivered again.
    delivery_limit: int = 20
    #: Seconds after which a waiting message is removed; None: never.
    message_ttl: float | None = None
    #: Entries a broadcast keeps for subscribers that are slow.
    stream_maxlen: int = 10_000
    #: In front of every queue's and exchange's name, so that two applications can share a server.
    global_keyprefix: str = ""
    #: In which order a worker looks at its queues: round_robin, priority (as listed) or sorted (by name).
    queue_order_strategy: str = "round_robin"
    #: What happens to a message that no queue is bound for: warn (once per route) and drop, drop, or raise.
    unroutable: str = "warn"
    #: The queue that takes such messages instead.
    deadletter_queue: str | None = None
    #: Seconds over which a call is repeated while the server is away, before Celery is told.
    patience: float = 4.0
    socket_timeout: float | None = None
    socket_connect_timeout: float | None = None
    socket_keepalive: bool | None = None
    #: Socket option → value, such as {socket.TCP_KEEPIDLE: 60}.
    socket_keepalive_options: Any = None
    #: How this client is called in Redis' CLIENT LIST.
    client_name: str | None = None
    #: True, or the arguments of redis-py's SSL connection (ssl_ca_certs, ssl_certfile, …).
    ssl: Any = False
    #: The service name, where the URL lists sentinels.
    master_name: str | None = None
    #: Login and TLS of the sentinels themselves: {"username": …, "password": …, "ssl": True, "ssl_ca_certs": …}.
    sentinel_kwargs: Any = None
    #: Work with a server that may evict keys: it will lose messages once its memory is full.
    allow_eviction: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> Options:
        made: dict[str, Any] = {}
        known = {field.name for field in fields(cls)}
        for name, value in (given or {}).items():
            if name in known:
                made[name] = value
            elif name in _NEEDLESS:
                _log_once(name)
            elif name in _REFUSED:
                raise InvalidInput(f"broker_transport_options has no option {name!r}: {_REFUSED[name]}")
            elif name not in _THEIRS:
                check_keywords([name], [*known, *_NEEDLESS, *_THEIRS], "broker_transport_options")
        options = cls(**made)
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
        """The same with another `ssl`, checked."""
        if not isinstance(ssl, bool):
            _arguments(ssl, "ssl", _TLS)
        return replace(self, ssl=ssl)


#: What redis-py's connections take, for the options that are handed on to them.
_TLS = frozenset(name for name in inspect.signature(redis.SSLConnection).parameters if name.startswith("ssl_"))
_SENTINEL = _TLS | {
    "username", "password", "ssl", "socket_timeout", "socket_connect_timeout", "socket_keepalive",
    "socket_keepalive_options", "client_name",
}  # fmt: skip


def _arguments(given: Any, option: str, known: frozenset[str]) -> None:
    """Refuses what the driver would refuse later, and less helpfully."""
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
        log.info("transport option without effect name=%s because=%s", name, _NEEDLESS[name].replace(" ", "_"))
