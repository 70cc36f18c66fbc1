"""Converts values of the core to the JSON values of responses."""

from __future__ import annotations

import base64
from dataclasses import asdict
from datetime import datetime
from typing import Any

import orjson

from restante.core.admin import ReplayTask
from restante.core.attempts import Status
from restante.core.inspector import AuditEntry, Counts
from restante.core.journal import JournalEntry
from restante.core.message import Message, State
from restante.core.schedule import Schedule
from restante.core.settings import DEFAULT_MAX_ATTEMPTS, QueueSettings
from restante.rsmq.inspector import RsmqCounts
from restante.rsmq.reader import RsmqMessage
from restante.server.requests import RENAMED
from restante.server.responses import TaskOut

#: Bytes of a payload that a list shows.
GLANCE = 1024


def ms(at: datetime | None) -> int | None:
    """An instant as milliseconds."""
    return None if at is None else round(at.timestamp() * 1000)


def settings_out(settings: QueueSettings) -> dict[str, Any]:
    fields = settings.as_dict()
    for theirs, ours in RENAMED.items():
        fields[theirs] = fields.pop(ours)
    del fields["paused"], fields["version"]
    return fields


def counts_out(counts: Counts) -> dict[str, Any]:
    """The counts of a queue, which change all the time, without its settings and totals."""
    return {
        "queue": counts.queue,
        "states": {state.value: getattr(counts, state.value) for state in State},
        "overdue": counts.overdue,
        "waited_seconds": round(counts.waited, 3),
        "paused": counts.paused,
    }


def schedule_out(schedule: Schedule, *, ticks: int = 0) -> dict[str, Any]:
    """A schedule; with `ticks` also so many of its next ticks, and its payload."""
    timing = schedule.timing
    made = schedule.as_dict() | {
        "start_at": timing.start_ms or None,
        "end_at": timing.end_ms or None,
        **{name: ms(getattr(schedule, name)) for name in ("next_at", "due_at", "last_at")},
    }
    if ticks:
        made["ticks"] = [ms(at) for at in schedule.next(ticks)]
        stored = schedule.stored
        if stored.options.get("e") == "bytes":
            made["payload_base64"] = base64.b64encode(stored.body).decode()
        else:
            made["payload"] = orjson.Fragment(stored.body)
    return made


def _content(message: Message, *, checked: bool = True) -> dict[str, Any]:
    """The payload as sent, copied without decoding. One that is not `checked` is bytes unless it is JSON."""
    stored = message.stored
    if stored.options.get("e") == "bytes" or (not checked and not _is_json(stored.body)):
        return {"payload_base64": base64.b64encode(stored.body).decode()}
    return {"payload": orjson.Fragment(stored.body)}


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _facts(message: Message, max_attempts: int) -> dict[str, Any]:
    """What a message shows to its consumer and to operators."""
    return {
        "id": message.id,
        "queue": message.queue,
        "kind": message.kind,
        "priority": message.priority,
        "size": message.size,
        "attempts": message.attempts,
        "max_attempts": message.max_attempts or max_attempts,
        "replays": message.replays,
        "content_type": message.content_type,
        "headers": message.headers,
        "sent_at": message.stored.sent_ms,
        "expires_at": ms(message.expires_at),
        "unique": message.unique,
        "batch": message.batch_id,
    }


def received_out(message: Message, settings: QueueSettings) -> dict[str, Any]:
    """A message for the consumer that receives it."""
    return {
        **_facts(message, settings.max_attempts),
        "suspect": message.suspect,
        "received_at": message.received_ms,
        "lease_expires_at": message.expires_ms,
        "lease_token": message.lease_token,
        "retry": message.retry.text() if message.retry else None,
        "timeout_seconds": message.timeout,
        **_content(message),
    }


def message_out(message: Message, settings: QueueSettings | None, anomalies: list[str]) -> dict[str, Any]:
    """A message for lists, with the start of its payload."""
    last = message.history[-1] if message.history else None
    lines = last.error.strip().splitlines() if last else []
    return {
        **_facts(message, settings.max_attempts if settings else DEFAULT_MAX_ATTEMPTS),
        "state": message.state.value,
        "consumer": message.consumer,
        "due_at": ms(message.due_at),
        "lease_expires_at": ms(message.lease_expires_at),
        "received_at": ms(message.received_at),
        "settled_at": ms(message.settled_at),
        "preview": message.preview[:GLANCE].decode(errors="replace"),
        "whole": message.whole,
        "error_class": last.error_class if last else "",
        "error": lines[-1][:500] if lines else "",
        "progress": message.last_progress.as_dict(ms) if message.last_progress else None,
        "anomalies": anomalies,
    }


def whole_out(
    message: Message, settings: QueueSettings, anomalies: list[str], journal: list[JournalEntry], complete: bool
) -> dict[str, Any]:
    """A message with its payload, attempts and journal lines."""
    return {
        **message_out(message, settings, anomalies),
        **_content(message, checked=False),
        "retry": message.retry.text() if message.retry else None,
        "result": message.result,
        "timeout_seconds": message.timeout,
        "history": [attempt.as_dict(ms) for attempt in message.history],
        "journal": [entry.as_dict(ms) for entry in journal],
        "journal_complete": complete,
    }


def status_out(queue: str, id: str, status: Status) -> dict[str, Any]:
    """Where a message is, for its sender."""
    return {
        "id": id,
        "queue": queue,
        "state": status.state.value if status.state else None,
        "acked": status.acked,
        "attempts": status.attempts,
        "progress": status.progress.as_dict(ms) if status.progress else None,
        "result": status.result,
        "error_class": status.error_class,
        "error": status.error,
    }


def task_out(task: ReplayTask) -> dict[str, Any]:
    return {name: getattr(task, name) for name in TaskOut.model_fields}


def audit_out(entry: AuditEntry) -> dict[str, Any]:
    return {**entry.as_dict(), "at": ms(entry.at)}


def rsmq_out(counts: RsmqCounts) -> dict[str, Any]:
    """An RSMQ queue with its counts."""
    fields = asdict(counts)
    del fields["now_ms"]
    created, modified = fields.pop("created_ms"), fields.pop("modified_ms")
    return {**fields, "created_at": created, "modified_at": modified}


def rsmq_message_out(message: RsmqMessage, queue: str, namespace: str) -> dict[str, Any]:
    """A message of an RSMQ queue for lists, with the start of its payload."""
    start = message.payload[:GLANCE].decode(errors="replace")
    return {
        "id": message.id,
        "queue": queue,
        "namespace": namespace,
        "state": message.state.value,
        "size": len(message.payload),
        "attempts": message.attempts,
        "sent_at": message.sent_ms,
        "first_received_at": message.first_received_ms,
        "due_at": message.due_ms,
        "preview": start,
        "whole": len(message.payload) <= GLANCE,
    }


def rsmq_whole_out(message: RsmqMessage, queue: str, namespace: str) -> dict[str, Any]:
    """A message of an RSMQ queue with its payload, as text or as bytes."""
    fields = rsmq_message_out(message, queue, namespace)
    try:
        return fields | {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        return fields | {"payload_base64": base64.b64encode(message.payload).decode()}


def export_out(message: Message) -> dict[str, Any]:
    """A line of an export: the fields that an import needs to send the message again."""
    stored = message.stored
    line: dict[str, Any] = {"id": message.id, **_content(message, checked=False)}
    if message.content_type != "application/json":
        line["content_type"] = message.content_type
    optional = {
        "kind": message.kind or None,
        "priority": message.priority or None,
        "headers": message.headers or None,
        "due_at": ms(message.due_at) if message.state is State.SCHEDULED else None,
        "lease_seconds": stored.lease_ms / 1000 if stored.lease_ms else None,
        "max_attempts": message.max_attempts,
        "retry": message.retry.text() if message.retry else None,
        "unique": message.unique,
        "timeout_seconds": message.timeout,
    }
    return line | {name: value for name, value in optional.items() if value is not None}
