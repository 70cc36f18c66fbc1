"""Settings of queues and of clients, as values that are checked when they are given."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypedDict

from restante.core.errors import Corrupt, InvalidInput
from restante.core.keywords import check_keywords, nearest
from restante.core.retry import RetryPolicy, exponential, seconds, valid_retry

#: Default limit of a payload in bytes. Far below Redis' 512 MB, because one large value stalls every client.
DEFAULT_MAX_PAYLOAD = 16 * 1024 * 1024
#: Default number of attempts of a message.
DEFAULT_MAX_ATTEMPTS = 5
#: Default lease in seconds. Too short repeats slow work; too long delays recovery after a crash.
DEFAULT_LEASE = 30.0
#: Default retry policy.
DEFAULT_RETRY = exponential()
#: Default level at which a send is confirmed: memory (Redis has accepted it), disk, or replica:n.
DEFAULT_DURABILITY = "memory"
#: Default port of the HTTP server: 25 is the port of SMTP.
DEFAULT_HTTP_PORT = 8025
JOURNAL_LEVELS = ("full", "payloads", "terminal", "off")


class QueueOptions(TypedDict, total=False):
    """What `client.queue(name, …)` and `configure` accept; None resets a setting to its default."""

    lease: float | timedelta | None
    max_attempts: int | None
    retry: RetryPolicy | None
    max_length: int | None
    max_dead: int | None
    max_payload: int | None
    max_leased: int | None
    rate: float | None
    keep_done: int | None
    dedup: float | timedelta | None
    timeout: float | timedelta | None
    soft_timeout: float | timedelta | None
    durability: str | None
    journal: str | None
    journal_keep: int | None
    journal_cap: int | None


#: Option → field of the queue hash.
_FIELDS = {
    "lease": "lease_ms",
    "max_attempts": "max_attempts",
    "retry": "retry",
    "max_length": "max_length",
    "max_dead": "max_dead",
    "max_payload": "max_payload_bytes",
    "max_leased": "max_leased",
    "rate": "rate",
    "keep_done": "keep_done",
    "dedup": "dedup_ms",
    "timeout": "timeout_ms",
    "soft_timeout": "soft_timeout_ms",
    "durability": "durability",
    "journal": "journal",
    "journal_keep": "journal_keep",
    "journal_cap": "journal_cap",
}
#: Options that are durations; Redis stores them in milliseconds.
DURATIONS = ("lease", "dedup", "timeout", "soft_timeout")
#: Smallest and largest value of each integer option.
_WHOLE = {
    "max_attempts": (1, 65535),
    "max_length": (1, 2**40),
    "max_dead": (1, 2**40),
    "max_payload": (1, 512 * 1024 * 1024),
    "max_leased": (1, 2**31),
    "keep_done": (0, 10_000_000),
    "journal_keep": (1000, 2**40),
    "journal_cap": (1000, 2**40),
}


def whole(value: Any, name: str, least: int, most: int) -> int:
    """Returns `value` if it is an integer from `least` to `most`; raises InvalidInput with its name otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def milliseconds(value: float | timedelta, name: str, *, least: float = 0.0) -> int:
    """Converts a duration into whole milliseconds, rounded up: a message must not be early by a fraction of one."""
    # Rounding first keeps 0.1 + 0.2 from counting as more than 300 ms.
    return math.ceil(round(seconds(value, name, least=least) * 1000, 6))


def valid_durability(level: str) -> str:
    """Returns `level` if it is memory, disk or replica:n; raises InvalidInput otherwise."""
    if level in ("memory", "disk"):
        return level
    name, _, count = str(level).partition(":")
    if name == "replica" and count.isdecimal() and 1 <= int(count) <= 100:
        return level
    raise InvalidInput(f"durability must be memory, disk or replica:n, not {level!r}")


def queue_fields(options: QueueOptions) -> dict[str, str]:
    """Converts options into fields of the queue hash; an empty value clears its field."""
    stored: dict[str, str] = {}
    for name, value in options.items():
        if name not in _FIELDS:
            raise InvalidInput(f"a queue has no setting {name!r}: {nearest(name, _FIELDS)}")
        stored[_FIELDS[name]] = "" if value is None else _field_text(name, value)
    return stored


def _field_text(name: str, value: Any) -> str:
    """The value of an option as Redis stores it; raises InvalidInput if it is out of range."""
    if name in _WHOLE:
        return str(whole(value, name, *_WHOLE[name]))
    match name:
        case "lease" | "timeout" | "soft_timeout":
            return str(milliseconds(value, name, least=0.001))
        case "dedup":
            return str(milliseconds(value, name))
        case "retry":
            return valid_retry(value).text()
        case "rate":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 1e6:
                raise InvalidInput(f"rate must be messages per second from 0.001 to 1000000, not {value!r}")
            return repr(float(value))
        case "durability":
            return valid_durability(str(value))
        case _:
            if value not in JOURNAL_LEVELS:
                raise InvalidInput(f"journal must be one of {', '.join(JOURNAL_LEVELS)}, not {value!r}")
            return str(value)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue's settings as stored in Redis, with defaults filled in."""

    lease: float = DEFAULT_LEASE
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry: RetryPolicy = DEFAULT_RETRY
    max_length: int | None = None
    max_dead: int | None = None
    max_payload: int = DEFAULT_MAX_PAYLOAD
    max_leased: int | None = None
    rate: float | None = None
    keep_done: int = 0
    dedup: float = 60.0
    timeout: float | None = None
    soft_timeout: float | None = None
    durability: str = DEFAULT_DURABILITY
    journal: str = "full"
    journal_keep: int = 100_000
    journal_cap: int = 1_000_000
    paused: bool = False
    version: int = 0

    @classmethod
    def parse(cls, stored: dict[str, str]) -> QueueSettings:
        """Reads the queue hash; raises Corrupt if another program has written to it."""
        try:
            return cls._parse(stored)
        except ValueError as error:
            raise Corrupt(f"the settings of a queue are not what Restante wrote: {error}; configure it again") from None

    @classmethod
    def _parse(cls, stored: dict[str, str]) -> QueueSettings:
        values: dict[str, Any] = {"paused": stored.get("pause") == "1", "version": int(stored.get("version", 0))}
        for name, key in _FIELDS.items():
            text = stored.get(key)
            if not text:
                continue
            if name in DURATIONS:
                values[name] = int(text) / 1000
            elif name == "retry":
                values[name] = RetryPolicy.parse(text)
            elif name == "rate":
                values[name] = float(text)
            elif name in _WHOLE:
                values[name] = int(text)
            else:
                values[name] = text
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """The settings as a dict for JSON and tables."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["retry"] = self.retry.text()
        return values


class ClientOptions(TypedDict, total=False):
    """What `connect(…)` accepts beside the server: the fields of `ClientSettings`."""

    connect_timeout: float | timedelta
    socket_timeout: float | timedelta
    patience: float | timedelta
    allow_eviction: bool
    idle_connections: int


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client connects to its server and how long it waits."""

    #: Seconds to wait for a connection and its first replies.
    connect_timeout: float = 1.5
    #: Seconds to wait for one reply; a half-open connection is noticed after this time.
    socket_timeout: float = 5.0
    #: Seconds over which a call is repeated while the server is away, before the error reaches the caller.
    patience: float = 4.0
    #: Accept a server that may evict keys. It silently loses messages once its memory is full.
    allow_eviction: bool = False
    #: Idle connections kept open per server.
    idle_connections: int = 16

    def __post_init__(self) -> None:
        for name, least in (("connect_timeout", 0.001), ("socket_timeout", 0.001), ("patience", 0.0)):
            object.__setattr__(self, name, seconds(getattr(self, name), name, least=least))
        whole(self.idle_connections, "idle_connections", 0, 65535)
        if not isinstance(self.allow_eviction, bool):
            raise InvalidInput(f"allow_eviction must be True or False, not {self.allow_eviction!r}")

    @classmethod
    def parse(cls, options: ClientOptions, *others: str) -> ClientSettings:
        """Checks options by name; `others` are keywords of the same call that are no client options."""
        check_keywords(options, (*_CLIENT_FIELDS, *others), "connect()")
        return cls(**options)  # type: ignore[arg-type]  # a timedelta becomes seconds


_CLIENT_FIELDS = tuple(item.name for item in fields(ClientSettings))
