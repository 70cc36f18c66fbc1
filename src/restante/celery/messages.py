"""A Kombu message as a Restante message and back: what Celery sees is what was published, to the byte.

The body is the payload, the headers are the headers. What Kombu keeps besides lies under one header of ours, `kombu`,
in short names and only where it differs from what it mostly is: a waiting task should cost the server little.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any

import orjson
from kombu.transport import base

from restante.core.message import Message as Waiting
from restante.core.stored import Json

log = logging.getLogger("restante")

#: The header of ours.
KOMBU = "kombu"
#: What Celery's headers mostly are: those that are so are one bit each of one number. Append only: messages wait.
USUAL: tuple[tuple[str, Any], ...] = (
    ("shadow", None), ("eta", None), ("expires", None), ("group", None), ("group_index", None), ("parent_id", None),
    ("stamped_headers", None), ("ignore_result", None), ("lang", "py"), ("retries", 0), ("timelimit", [None, None]),
    ("replaced_task_nesting", 0), ("stamps", {}), ("kwargsrepr", "{}"), ("argsrepr", "()"), ("ignore_result", False),
)  # fmt: skip
_BITS: dict[str, list[tuple[int, Any]]] = {}
for _place, (_name, _value) in enumerate(USUAL):
    _BITS.setdefault(_name, []).append((1 << _place, _value))
#: Properties that are restored from elsewhere.
_ELSEWHERE = ("delivery_info", "delivery_tag", "body_encoding", "priority", "restante_id", "restante_new")
#: The properties of AMQP 0-9-1.
_AMQP = frozenset((
    "content_type", "content_encoding", "application_headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
))  # fmt: skip
#: Others that were warned of.
_left_out: set[str] = set()
_UNFIT = re.compile(r"[^A-Za-z0-9._:@/+-]")


def kind_of(headers: dict[str, Any]) -> str:
    """The task's name as the kind; what a kind cannot hold becomes a dash."""
    name = headers.get("task")
    return _UNFIT.sub("-", name)[:200].lstrip("-") if isinstance(name, str) else ""


def payload_of(body: Any, content_type: str | None, content_encoding: str | None) -> tuple[Any, str | None]:
    """The body as it is stored, and its content type where it is not JSON."""
    raw = body.encode() if isinstance(body, str) else bytes(body)
    if isinstance(body, str) and content_type == "application/json" and content_encoding in ("utf-8", None):
        try:
            orjson.loads(raw)
        except ValueError:
            pass  # not what it is said to be: stored as it is, for whoever receives it to judge
        else:
            return Json(raw), None
    return raw, content_type or "application/data"


def headers_of(
    message: dict[str, Any], queue: str, exchange: str, routing_key: str, delay: float = 0.0
) -> dict[str, Any]:
    """Headers and properties in one dict, without what is mostly so; the delay where a time to live needs it."""
    given, properties = message["headers"], message["properties"]
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
    if exchange != queue:
        extra["x"] = exchange
    if routing_key != queue:
        extra["k"] = routing_key
    encoding = message.get("content-encoding")
    if encoding != "utf-8":
        extra["e"] = encoding
    if message.get("content-type") != "application/json":
        extra["t"] = message.get("content-type")
    if isinstance(message["body"], bytes):
        extra["b"] = 1
    own = {name: value for name, value in properties.items() if name not in _ELSEWHERE and value is not None}
    for name in own.keys() - _AMQP:
        if not _is_json(own[name]):
            _leave_out(name, own.pop(name))
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


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def _leave_out(name: str, value: Any) -> None:
    """RabbitMQ is told of its own properties alone; what else a program gives does not hold its message back."""
    if name not in _left_out:
        _left_out.add(name)
        log.warning("property left out, AMQP has none of that name name=%s type=%s", name, type(value).__name__)


def parts(message: Waiting, queue: str) -> dict[str, Any]:
    """What `Message` is made of, from a received message."""
    headers = message.headers
    extra = headers.pop(KOMBU, None)
    if extra is None:
        # Sent by other means: as near to Kombu as it gets.
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
    """Seconds until the task's eta by this machine's clock: what counts is the time from now, not the server's date."""
    eta = headers.get("eta")
    if not eta:
        return 0.0
    try:
        at = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0.0, (at - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, AttributeError):
        return 0.0  # the worker says what is wrong with it


class Message(base.Message):
    """A received message; its headers are what was published."""

    def __init__(self, channel: Any, taken: Any, queue: str, tag: str, made: dict[str, Any], **kwargs: Any) -> None:
        #: What holds the lease, None for a broadcast.
        self.leased = taken
        #: The body as it was published: Kombu unpacks its own copy.
        self.raw = made["body"]
        #: Why its task failed, for the dead letter.
        self.failure: BaseException | None = None
        self._unreadable: BaseException | None = None
        headers, properties = made["headers"], made["properties"]
        info = {
            "exchange": made["exchange"], "routing_key": made["routing_key"],
            "priority": properties.get("priority"), "redelivered": False,
        }  # fmt: skip
        if taken is not None:
            if taken.attempts > 1:
                info["redelivered"] = True
                headers["x-delivery-count"] = taken.attempts - 1
            if taken.replays:
                headers["expires"] = None  # an operator wants it run, whatever its age
        properties["delivery_info"], properties["delivery_tag"] = info, tag
        super().__init__(
            body=made["body"], delivery_tag=tag, content_type=made["content_type"],
            content_encoding=made["content_encoding"], delivery_info=info, properties=properties, headers=headers,
            postencode="utf-8", channel=channel, **kwargs,
        )  # fmt: skip

    def _decode(self) -> Any:
        try:
            return super()._decode()
        except Exception as error:
            self._unreadable = error
            raise

    @property
    def unreadable(self) -> BaseException | None:
        """Why the body could not be read: such a message is dead, whatever is said of it."""
        return self.errors[0][1] if self.errors else self._unreadable

    def serializable(self) -> dict[str, Any]:
        """For an emergency dump."""
        return {
            "body": self.body, "properties": self.properties, "content-type": self.content_type,
            "content-encoding": self.content_encoding, "headers": dict(self.headers),
        }  # fmt: skip
