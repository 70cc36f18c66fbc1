"""Checks the options of a message to send and packs it as the arguments of `send.lua`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from restante.core.errors import InvalidInput, PayloadTooLarge
from restante.core.message import EPOCH, STATE_LETTERS, Draft, State, new_id
from restante.core.names import valid_name
from restante.core.queue_ref import QueueRef
from restante.core.retry import RetryPolicy, valid_retry
from restante.core.settings import milliseconds, whole
from restante.core.stored import encode, encode_plain

#: Default of `unique_states`: a unique key holds until its message is settled.
UNIQUE_STATES = frozenset({State.SCHEDULED, State.READY, State.LEASED, State.RETRYING})

#: Payload types that `encode_plain` accepts. Bytes are not among them, because they need a content type.
JSON_TYPES = frozenset({dict, list, tuple, str, int, float, bool, type(None)})


class MessageOptions(TypedDict, total=False):
    """Options that a send and a task have alike."""

    priority: int
    lease: float | timedelta | None
    max_attempts: int | None
    retry: RetryPolicy | None
    unique_states: frozenset[State] | None
    expires: float | timedelta | None
    timeout: float | timedelta | None


class EachSendOptions(MessageOptions, total=False):
    """Those that each send of a task may have too."""

    delay: float | timedelta
    due_at: datetime | None
    headers: dict[str, Any] | None
    unique: str | None


class SendOptions(EachSendOptions, total=False):
    """The options of `send_many` for all its payloads: those of `send` except `id`."""

    kind: str
    content_type: str | None


def due_ms(due_at: datetime, delay: float | timedelta) -> int:
    """`due_at` in milliseconds, rounded up; raises InvalidInput if it has no time zone, or if there is a delay too."""
    if delay:
        raise InvalidInput("give delay or due_at, not both")
    if not isinstance(due_at, datetime) or due_at.tzinfo is None:
        raise InvalidInput(f"due_at must be an aware datetime such as datetime.now(UTC), not {due_at!r}")
    return max(0, -((EPOCH - due_at) // timedelta(milliseconds=1)))


def due_argument(delay: float | timedelta, due_at: datetime | None) -> str:
    """When the message is ready, for the script: an instant, `+` and a delay, or nothing for at once."""
    if due_at is not None:
        return str(due_ms(due_at, delay))
    if type(delay) in (int, float) and delay == 0:
        return ""
    wait = milliseconds(delay, "delay")
    return f"+{wait}" if wait else ""


def valid_states(unique_states: Collection[State]) -> list[State]:
    """The states that `unique_states` names; raises InvalidInput if it is no set of them."""
    try:
        return [State(state) for state in unique_states]
    except (ValueError, TypeError):
        raise InvalidInput(f"unique_states must be a set of State members, not {unique_states!r}") from None


def checked_entry(
    ref: QueueRef,
    payload: Any,
    priority: int,
    delay: float | timedelta,
    due_at: datetime | None,
    id: str | None,
    kind: str,
    headers: dict[str, Any] | None,
    content_type: str | None,
    lease: float | timedelta | None,
    max_attempts: int | None,
    retry: RetryPolicy | None,
    unique: str | None,
    unique_states: frozenset[State] | None,
    expires: float | timedelta | None,
    timeout: float | timedelta | None,
    batch: str | None = None,
) -> tuple[str, str, int, bytes]:
    """Checks one message and returns its four script arguments."""
    if type(priority) is not int or not 0 <= priority <= 255:
        whole(priority, "priority", 0, 255)
    if id is None:
        id = new_id()
    else:
        valid_name(id, "message id")
    if retry is not None:
        valid_retry(retry)
    letters = ""
    if unique is not None:
        letters = "".join(sorted(STATE_LETTERS[state] for state in valid_states(unique_states or UNIQUE_STATES)))
    due = due_argument(delay, due_at)
    span = None if expires is None else milliseconds(expires, "expires")
    if span is not None and due.startswith("+"):
        # Counts from the due time, which the server rounds up: the wait until then must not use up `expires`.
        span += int(due) + 1
    stored, size = encode(
        payload,
        kind=kind,
        priority=priority,
        headers=headers,
        content_type=content_type,
        lease_ms=None if lease is None else milliseconds(lease, "lease", least=0.001),
        expires_ms=span,
        expires_from=int(due) if span is not None and due.isdigit() else None,
        max_attempts=None if max_attempts is None else whole(max_attempts, "max_attempts", 1, 65535),
        retry=retry,
        unique=unique,
        unique_states=letters,
        timeout_ms=None if timeout is None else milliseconds(timeout, "timeout", least=0.001),
        batch=batch,
    )
    if size > ref.settings.max_payload:
        raise too_large(ref, size)
    return id, due, priority, stored


def draft_entry(ref: QueueRef, draft: Draft, payload: Any, batch: str | None = None) -> tuple[str, str, int, bytes]:
    """`checked_entry` with the options of a draft."""
    return checked_entry(
        ref,
        payload,
        draft.priority,
        draft.delay,
        draft.due_at,
        draft.id,
        draft.kind,
        draft.headers,
        draft.content_type,
        draft.lease,
        draft.max_attempts,
        draft.retry,
        draft.unique,
        draft.unique_states,
        draft.expires,
        draft.timeout,
        batch,
    )


def plain_entry(ref: QueueRef, payload: Any, priority: int) -> tuple[str, str, int, bytes]:
    """`checked_entry` for the most common message: a JSON value without options."""
    if type(priority) is not int or not 0 <= priority <= 255:
        whole(priority, "priority", 0, 255)
    stored, size = encode_plain(payload, priority)
    if size > ref.settings.max_payload:
        raise too_large(ref, size)
    return new_id(), "", priority, stored


def too_large(ref: QueueRef, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the payload has {size} bytes and {ref.name} takes {ref.settings.max_payload}: store it elsewhere "
        "and send a reference, or raise max_payload"
    )


def hooked(ref: Any, draft: Draft) -> Draft:
    """The draft as the hooks of the queue want it sent, with an id."""
    if draft.id is None:
        draft = replace(draft, id=new_id())
    for sending in ref.sending:
        draft = sending(ref.name, draft)
        if not isinstance(draft, Draft):
            raise InvalidInput(f"the hook {sending.__qualname__} must return the draft to send, not {draft!r}")
    return draft
