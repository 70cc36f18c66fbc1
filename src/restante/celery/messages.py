"""Translates a Kombu message to a Restante message and back: Celery receives what was published, to the byte.

The body is the payload, the headers are the headers. Everything else of Kombu's is stored under one more header,
`kombu`, with short names and only where it differs from the usual value: a waiting task should cost the server little.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any

import orjson
from kombu.transport import base

from restante.core.message import Message as CoreMessage
from restante.core.stored import Json

log = logging.getLogger("restante")

#: The header that holds what has no place of its own in a Restante message.
KOMBU = "kombu"
#: The usual values of Celery's headers. A header with its usual value is stored as one bit of a number, by its place in
#: this list. Append only: stored messages refer to the places.
USUAL: tuple[tuple[str, Any], ...] = (
    ("shadow", None),
    ("eta", None),
    ("expires", None),
    ("group", None),
    ("group_index", None),
    ("parent_id", None),
    ("stamped_headers", None),
    ("ignore_result", None),
    ("lang", "py"),
    ("retries", 0),
    ("timelimit", [None, None]),
    ("replaced_task_nesting", 0),
    ("stamps", {}),
    ("kwargsrepr", "{}"),
    ("argsrepr", "()"),
    ("ignore_result", False),
)
_BITS: dict[str, list[tuple[int, Any]]] = {}
for _place, (_name, _value) in enumerate(USUAL):
    _BITS.setdefault(_name, []).append((1 << _place, _value))
#: Properties that are not stored here: each message has them by other means.
_ELSEWHERE = (
    "delivery_info",
    "delivery_tag",
    "body_encoding",
    "priority",
    "restante_id",
    "restante_new",
    "restante_fire",
)
#: The properties of AMQP 0-9-1.
_AMQP = frozenset(
    {
        "app_id",
        "application_headers",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    }
)
#: Dropped properties for which a warning was logged.
_logged: set[str] = set()
_UNFIT = re.compile(r"[^A-Za-z0-9._:@/+-]")


def kind_of(headers: dict[str, Any]) -> str:
    """The task's name as a kind; characters that a kind cannot contain become dashes."""
    name = headers.get("task")
    return _UNFIT.sub("-", name)[:200].lstrip("-") if isinstance(name, str) else ""


def payload_of(body: Any, content_type: str | None, content_encoding: str | None) -> tuple[Any, str | None]:
    """The body as it is stored, and its content type unless it is JSON."""
    raw = body.encode() if isinstance(body, str) else bytes(body)
    if isinstance(body, str) and content_type == "application/json" and content_encoding in ("utf-8", None):
        try:
            orjson.loads(raw)
        except ValueError:
            pass  # not JSON despite its content type: stored as it is, and the receiver decides
        else:
            return Json(raw), None
    return raw, content_type or "application/data"


def headers_of(
    message: dict[str, Any], queue: str, exchange: str, routing_key: str, delay: float = 0.0
) -> dict[str, Any]:
    """Headers and properties in one dict, without usual values; `delay` is included if a time to live needs it."""
    headers, extra = _unusual(message["headers"])
    if exchange != queue:
        extra["x"] = exchange
    if routing_key != queue:
        extra["k"] = routing_key
    encoding, content_type = message.get("content-encoding"), message.get("content-type")
    if encoding != "utf-8":
        extra["e"] = encoding
    if content_type != "application/json":
        extra["t"] = content_type
    if isinstance(message["body"], bytes):
        extra["b"] = 1
    own = _own_properties(message["properties"])
    if own.get("delivery_mode") == 2:
        del own["delivery_mode"]
        extra["m"] = 1
    if headers.get("id") is not None and own.get("correlation_id") == headers["id"]:
        del own["correlation_id"]
        extra["c"] = 1
    if own:
        extra["p"] = own
    if delay:
        extra["d"] = delay
    headers[KOMBU] = extra
    return headers


def _unusual(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The headers that do not have their usual values, and what `KOMBU` says about the others."""
    headers: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    bits = 0
    for name, value in given.items():
        for bit, usual in _BITS.get(name, ()):
            if type(value) is type(usual) and value == usual:
                bits |= bit
                break
        else:
            headers[name] = value
    if bits:
        extra["u"] = bits
    if "id" in headers and "root_id" in headers and headers["root_id"] == headers["id"]:
        del headers["root_id"]
        extra["r"] = 1
    return headers, extra


def _own_properties(properties: dict[str, Any]) -> dict[str, Any]:
    """The properties to be stored, without those that could not be read again."""
    own = {name: value for name, value in properties.items() if name not in _ELSEWHERE and value is not None}
    for name in own.keys() - _AMQP:
        if not _is_json(own[name]):
            _log_dropped(name, own.pop(name))
    return own


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def _log_dropped(name: str, value: Any) -> None:
    """Logs once per name that a property is not stored: AMQP does not know it, and its value is not JSON."""
    if name not in _logged:
        _logged.add(name)
        log.warning("property dropped name=%s type=%s reason=unknown_to_amqp", name, type(value).__name__)


def unpack(message: CoreMessage, queue: str) -> dict[str, Any]:
    """The parts of a Kombu message (body, headers, properties, …) from a message of the core."""
    headers = message.headers
    extra = headers.pop(KOMBU, None)
    if extra is None:
        # Sent by a native client: as close to a Kombu message as it can be.
        extra = {} if message.content_type == "application/json" else {"t": message.content_type, "e": "binary", "b": 1}
    bits = extra.get("u", 0)
    if bits:
        for place, (name, value) in enumerate(USUAL):
            if bits >> place & 1:
                headers[name] = value.copy() if type(value) in (list, dict) else value
    if extra.get("r"):
        headers["root_id"] = headers["id"]
    properties: dict[str, Any] = dict(extra.get("p", ()))
    if extra.get("c"):
        properties["correlation_id"] = headers.get("id")
    if extra.get("m"):
        properties["delivery_mode"] = 2
    properties["priority"] = message.priority
    raw = message.stored.body
    return {
        "body": raw if extra.get("b") else raw.decode(),
        "content_type": extra.get("t", "application/json"),
        "content_encoding": extra.get("e", "utf-8"),
        "headers": headers,
        "properties": properties,
        "exchange": extra.get("x", queue),
        "routing_key": extra.get("k", queue),
        "waited": extra.get("d", 0.0),
    }


def delay_of(headers: dict[str, Any]) -> float:
    """Seconds until the task's eta by this machine's clock: a countdown must not depend on the server's clock."""
    eta = headers.get("eta")
    if not eta:
        return 0.0
    try:
        at = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0.0, (at - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, AttributeError):
        return 0.0  # the worker reports the invalid eta


#: The priority warning was logged.
_clamped = False


def priority_of(given: Any, most: int) -> int:
    """A priority from 0 to 255, high first; values out of range become the nearest one, with one warning."""
    global _clamped
    try:
        wanted = int(given or 0)
    except (TypeError, ValueError):
        wanted = 0
    priority = max(0, min(255, wanted))
    if priority != wanted and not _clamped:
        _clamped = True
        log.warning("priority out of range given=%d used=%d", wanted, priority)
    return min(priority, most)


class Message(base.Message):
    """A received message; its headers are what was published."""

    def __init__(self, channel: Any, leased: Any, tag: str, parts: dict[str, Any], **kwargs: Any) -> None:
        #: The leased message of the core, None for a broadcast.
        self.leased = leased
        #: The body as it was published; Kombu decompresses its own copy.
        self.raw = parts["body"]
        #: Why its task failed, for the dead letter.
        self.failure: BaseException | None = None
        self._unreadable: BaseException | None = None
        headers, properties = parts["headers"], parts["properties"]
        info = {
            "exchange": parts["exchange"],
            "routing_key": parts["routing_key"],
            "priority": properties.get("priority"),
            "redelivered": False,
        }
        if leased is not None:
            if leased.attempts > 1:
                info["redelivered"] = True
                headers["x-delivery-count"] = leased.attempts - 1
            if leased.replays:
                headers["expires"] = None  # an operator wants it to run, whatever its age
        properties["delivery_info"], properties["delivery_tag"] = info, tag
        super().__init__(
            body=parts["body"],
            delivery_tag=tag,
            content_type=parts["content_type"],
            content_encoding=parts["content_encoding"],
            delivery_info=info,
            properties=properties,
            headers=headers,
            postencode="utf-8",
            channel=channel,
            **kwargs,
        )

    def _decode(self) -> Any:
        try:
            return super()._decode()
        except Exception as error:
            self._unreadable = error
            raise

    @property
    def unreadable(self) -> BaseException | None:
        """Why the body could not be decoded; such a message becomes dead whether it is acked or rejected."""
        return self.errors[0][1] if self.errors else self._unreadable

    def as_published(self) -> dict[str, Any]:
        """The message in the form in which a channel publishes it again."""
        return {
            "body": self.raw,
            "content-type": self.content_type,
            "content-encoding": self.content_encoding,
            "headers": dict(self.headers),
            "properties": {name: value for name, value in self.properties.items() if name != "delivery_tag"},
            "due": True,
        }

    def serializable(self) -> dict[str, Any]:
        """For Kombu's emergency dump."""
        return {
            "body": self.body,
            "properties": self.properties,
            "content-type": self.content_type,
            "content-encoding": self.content_encoding,
            "headers": dict(self.headers),
        }
