"""Values of Restante ↔ the JSON of the HTTP API: messages to send, messages received, settings and errors; no I/O."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson

from restante.core import errors
from restante.core.attempts import Status
from restante.core.errors import InvalidInput, LeaseLost, RestanteError, Unavailable, Unconfirmed
from restante.core.message import EPOCH, MAX_ERROR, Draft, Message, Progress, State, moment, new_id
from restante.core.names import valid_name
from restante.core.retry import RetryPolicy, seconds, valid_retry
from restante.core.send_options import JSON_TYPES, due_ms, valid_states
from restante.core.settings import DURATIONS, QueueOptions, QueueSettings, whole
from restante.core.stored import Stored, encode, encode_json
from restante.core.tracebacks import error_text

#: The core's name of a setting → HTTP's.
_RENAMED = {**{name: f"{name}_seconds" for name in DURATIONS}, "max_payload": "max_payload_bytes"}
_OURS = {theirs: ours for ours, theirs in _RENAMED.items()}


# -- queues ----------------------------------------------------------------------------------------------------------


def options_out(options: QueueOptions) -> dict[str, Any]:
    """Settings to change, as the body of a request."""
    body: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, timedelta):
            value = value.total_seconds()
        body[_RENAMED.get(name, name)] = value.text() if isinstance(value, RetryPolicy) else value
    return body


def settings_in(answer: dict[str, Any]) -> QueueSettings:
    """The settings of a queue from a response."""
    fields = {_OURS.get(name, name): value for name, value in answer["settings"].items()}
    return QueueSettings(**{**fields, "retry": RetryPolicy.parse(fields["retry"]), "paused": answer["paused"]})


# -- messages --------------------------------------------------------------------------------------------------------


def draft_out(draft: Draft) -> dict[str, Any]:
    """A message to send, checked like a `Queue` checks it."""
    _check(draft)
    plain = {
        "kind": draft.kind or None,
        "priority": draft.priority or None,
        "headers": draft.headers,
        "content_type": draft.content_type,
        "max_attempts": draft.max_attempts,
        "unique": draft.unique,
        "retry": draft.retry.text() if draft.retry else None,
        "lease_seconds": None if draft.lease is None else seconds(draft.lease, "lease", least=0.001),
        "expires_seconds": None if draft.expires is None else seconds(draft.expires, "expires"),
        "unique_states": _unique_states(draft),
        "timeout_seconds": None if draft.timeout is None else seconds(draft.timeout, "timeout", least=0.001),
    }
    given = {name: value for name, value in plain.items() if value is not None}
    return {"id": new_id() if draft.id is None else draft.id, **_content(draft), **given, **_due(draft)}


def _unique_states(draft: Draft) -> list[str] | None:
    return None if draft.unique_states is None else sorted(state.value for state in valid_states(draft.unique_states))


def _check(draft: Draft) -> None:
    whole(draft.priority, "priority", 0, 255)
    if draft.retry is not None:
        valid_retry(draft.retry)
    if draft.id is not None:
        valid_name(draft.id, "message id")
    encode(
        None,
        kind=draft.kind,
        headers=draft.headers,
        content_type=draft.content_type,
        retry=draft.retry,
        unique=draft.unique,
    )


def _content(draft: Draft) -> dict[str, Any]:
    if isinstance(draft.payload, bytes | bytearray | memoryview):
        return {"payload_base64": base64.b64encode(draft.payload).decode()}
    if type(draft.payload) not in JSON_TYPES:
        encode_json(draft.payload)
    return {"payload": draft.payload}


def _due(draft: Draft) -> dict[str, Any]:
    """When the message becomes ready, where that is not at once."""
    if draft.due_at is None:
        now = draft.delay == 0 and draft.delay is not False
        return {} if now else {"delay_seconds": seconds(draft.delay, "delay")}
    return {"due_at": due_ms(draft.due_at, draft.delay)}


def stored_in(fields: dict[str, Any]) -> Stored:
    """The stored form of a received message, rebuilt from a response."""
    is_bytes = "payload_base64" in fields
    content_type = fields["content_type"] if is_bytes or fields["content_type"] != "application/json" else None
    sent_at, expires_at = fields["sent_at"], fields["expires_at"]
    body, _ = encode(
        base64.b64decode(fields["payload_base64"]) if is_bytes else fields["payload"],
        kind=fields["kind"],
        priority=fields["priority"],
        headers=fields["headers"],
        content_type=content_type,
        retry=RetryPolicy.parse(fields["retry"]) if fields["retry"] else None,
        max_attempts=fields["max_attempts"],
        unique=fields["unique"],
        expires_ms=None if expires_at is None else expires_at - sent_at,
        timeout_ms=round(fields["timeout_seconds"] * 1000) if fields.get("timeout_seconds") else None,
        batch=fields.get("batch"),
    )
    return Stored(b"0\n%d\t%b" % (sent_at, body))


def status_in(answer: dict[str, Any]) -> Status:
    """Where a message is, from a response."""
    noted = answer["progress"]
    return Status(
        State(answer["state"]) if answer["state"] else None,
        answer["acked"],
        answer["attempts"],
        Progress(noted["fraction"], noted["step"], moment(noted["at"]) or EPOCH) if noted else None,
        answer["result"],
        answer["error_class"],
        answer["error"],
    )


def tickets_out(messages: Sequence[Message]) -> list[dict[str, str]]:
    """What a verdict says of each message."""
    return [{"id": message.id, "lease_token": message.lease_token} for message in messages]


# -- errors ----------------------------------------------------------------------------------------------------------


def failure_out(error: BaseException | str | None) -> dict[str, Any]:
    """Why an attempt failed."""
    if error is None:
        return {}
    if isinstance(error, BaseException):
        name = "".join(ch for ch in type(error).__name__ if ch.isalnum() or ch in "._")[:80]
        return {"error_class": name, "error": _encodable(error_text(error, MAX_ERROR))}
    return {"error": _encodable(str(error)[:MAX_ERROR])}


def _encodable(error: str) -> str:
    """The text without characters that UTF-8 cannot encode."""
    return error.encode("utf-8", "replace").decode()


def problem_in(body: bytes) -> dict[str, Any] | None:
    """What the server says about a failure; None if the body is not a Restante server's, but that of a proxy."""
    try:
        problem = orjson.loads(body)
        return {**problem, "error": str(problem["error"]), "message": str(problem["message"])}
    except (ValueError, KeyError, TypeError):
        return None


def error_in(status: int, problem: dict[str, Any] | None) -> RestanteError:
    """The exception for a failure response, of the same class as on the server."""
    name, message = (problem["error"], problem["message"]) if problem else ("", f"the server answered {status}")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LeaseLost | Unconfirmed):
        return kind(message, ids=(problem or {}).get("ids") or ())
    if isinstance(kind, type) and issubclass(kind, RestanteError):
        return kind(message)
    if status in (401, 403):
        return InvalidInput(f"{message}: {(problem or {}).get('hint', '')}")
    if status >= 500:
        return Unavailable(message)
    return InvalidInput(message)
