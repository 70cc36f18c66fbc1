"""The envelope of an event: CloudEvents' attributes, and how a message's headers carry them.

An invalid header raises `Malformed`: such a message is dead at once, with this as its error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from restante.core.errors import InvalidInput, RestanteError
from restante.core.message import new_id
from restante.core.names import valid_name
from restante.core.stored import encode_json
from restante.core.topics import valid_topic
from restante.core.trace import TRACE, current_trace

SPECVERSION = "1.0"
#: Attributes that the bus sets; a caller's own headers may not have these names.
RESERVED = frozenset(
    (
        "specversion",
        "id",
        "type",
        "source",
        "time",
        "schemaversion",
        "traceparent",
        "tracestate",
        "expires_at",
        "reply_to",
        "deadline_seconds",
        "attempts",
        "replays",
        "subscription",
        "error",
        "error_class",
        "archived_at",
        "kombu",
    )
)


class Malformed(RestanteError):
    """The message is not an event: its headers or its body cannot be read. Fix the publisher, then send it again."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The attributes of an event or a call, named as in CloudEvents, but `topic` for type."""

    id: str
    topic: str
    source: str = ""
    time: datetime | None = None
    #: The version of the data's schema, as the publisher gave it.
    version: str = ""
    #: W3C trace context, if the publisher had one.
    trace: Mapping[str, str] = field(default_factory=dict)
    #: The publisher's own headers.
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: Deliveries to this subscription so far, this one included.
    attempts: int = 1
    #: When the event expires.
    expires_at: datetime | None = None

    def attributes(self) -> dict[str, Any]:
        """The attributes as headers of a message."""
        attributes: dict[str, Any] = {
            "specversion": SPECVERSION,
            "id": self.id,
            "type": self.topic,
            "source": self.source,
            "time": (self.time or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        }
        if self.version:
            attributes["schemaversion"] = self.version
        if self.expires_at is not None:
            attributes["expires_at"] = self.expires_at.isoformat(timespec="milliseconds")
        return {**self.headers, **attributes, **self.trace}

    @classmethod
    def read(cls, headers: Mapping[str, Any], *, id: str = "", topic: str = "", attempts: int = 1) -> Envelope:
        """Reads a message's headers; `id` and `topic` are used where the headers have none."""
        try:
            return cls(
                id=valid_name(str(headers.get("id") or id), "event id"),
                topic=valid_topic(str(headers.get("type") or topic)),
                source=str(headers.get("source") or ""),
                time=_moment(headers.get("time")),
                version=str(headers.get("schemaversion") or ""),
                trace={name: str(headers[name]) for name in TRACE if headers.get(name)},
                headers={name: value for name, value in headers.items() if name not in RESERVED and name[:2] != "x-"},
                attempts=attempts,
                expires_at=_moment(headers.get("expires_at")),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise Malformed(f"not an event: {error}") from None

    @property
    def is_over(self) -> bool:
        """Whether the event has expired, by this machine's clock."""
        return self.expires_at is not None and datetime.now(UTC) >= self.expires_at

    def following(self) -> AbstractContextManager[Any]:
        """Makes the publisher's trace the current one, if OpenTelemetry is in use."""
        if not self.trace or "opentelemetry" not in sys.modules:
            return nullcontext()
        return _Trace(self.trace)


class _Trace:
    """Makes a handler's work a part of the publisher's trace."""

    def __init__(self, carrier: Mapping[str, str]) -> None:
        self._carrier = carrier

    def __enter__(self) -> None:
        from opentelemetry import context, propagate

        self._token = context.attach(propagate.extract(dict(self._carrier)))

    def __exit__(self, *_: object) -> None:
        from opentelemetry import context

        context.detach(self._token)


def new_envelope(
    topic: str,
    source: str,
    *,
    id: str | None = None,
    version: str = "",
    headers: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
) -> Envelope:
    """A checked envelope for a new event or call."""
    own = dict(headers or {})
    if taken := sorted(RESERVED & own.keys()):
        raise InvalidInput(f"headers cannot have the names {', '.join(taken)}: they are set by the bus")
    for name in own:
        if not isinstance(name, str) or not name or name.startswith("x-"):
            raise InvalidInput(f"a header's name is text that does not start with x-, not {name!r}")
    encode_json(own, "headers")
    return Envelope(
        id=new_id() if id is None else valid_name(id, "event id"),
        topic=valid_topic(topic),
        source=source,
        time=datetime.now(UTC),
        version=version,
        trace=current_trace(),
        headers=own,
        expires_at=expires_at,
    )


def _moment(text: Any) -> datetime | None:
    if not text:
        return None
    moment = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
