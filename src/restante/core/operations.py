"""Send, receive and the verdicts as operations: script, keys, arguments and a parser of the reply; no I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

import orjson

from restante.core.errors import AlreadySettled, Corrupt, InvalidInput, LeaseLost, MessageCancelled, PayloadTooLarge
from restante.core.keys import QueueKeys
from restante.core.message import MAX_ERROR, Draft, Message, MessageId, RemoteError, State, new_ids
from restante.core.queue_ref import QueueRef
from restante.core.retry import RetryPolicy
from restante.core.scripts import Argument, Script, ScriptCall
from restante.core.send_options import (
    JSON_TYPES,
    SendOptions,
    checked_entry,
    draft_entry,
    hooked,
    plain_entry,
    too_large,
)
from restante.core.settings import milliseconds, valid_durability
from restante.core.stored import Stored, encode_json, encode_plain, sound
from restante.core.tracebacks import error_text

T = TypeVar("T")
#: Most messages in one call. A longer script would block the server, and Lua's stack limits it anyway.
MAX_BATCH = 1000
#: Most bytes of a result's JSON text. Larger ones would stall pages of done messages, which carry it.
MAX_RESULT = 65_536
#: Most characters of the step of a progress. It is written anew with each extend.
MAX_STEP = 200
_PLAIN = Draft(None)
_nonce = random.Random().getrandbits

SEND = Script(
    "send",
    "queue journal messages ready marker scheduled unique acked acked_before leased retrying dead",
)
#: The keys of a send with new ids to a queue without limits. Every key adds to the cost of every call.
FEW_KEYS = SEND.keys[:6]
RECEIVE = Script(
    "receive",
    "queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked "
    "acked_before consumers outbox",
)
ACK = Script(
    "ack", "queue journal messages deliveries history leased done unique acked acked_before ready marker outbox"
)
ACK_RESULT = Script(
    "ack_result",
    "queue journal messages deliveries history leased done unique acked acked_before ready marker outbox",
)
NACK = Script("nack", "queue journal deliveries history retrying leased dead unique marker outbox")
BURY = Script("bury", "queue journal deliveries history leased dead unique marker outbox")
RELEASE = Script("release", "queue journal deliveries ready scheduled leased unique marker")
EXTEND = Script("extend", "queue journal deliveries leased consumers cancelled")
PROGRESS = Script("progress", "queue journal deliveries cancelled")


class Received(NamedTuple):
    """The reply of a receive."""

    messages: list[Any]
    now: int
    due: int | None
    version: int
    promoted: int
    expired: int
    lost: list[str]
    #: Leased messages whose stored form is damaged; the caller buries them.
    spoiled: list[Any]


@dataclass(slots=True, eq=False)
class Ticket:
    """What a verdict needs of a leased message, for a caller that has no Message of it."""

    id: str
    lease_token: str
    attempts: int = 1
    retry: RetryPolicy | None = None
    lease_ms: int = 0
    expires_ms: int = 0
    settled: bool = False
    verdict: str = ""
    cancelled: bool = False


def error_parts(error: BaseException | str | None) -> tuple[str, bytes]:
    """Class name and JSON text of an error, both bounded, as history and journal store them."""
    if error is None:
        return "", b'""'
    if isinstance(error, RemoteError):
        name, text = error.name, error.text[-MAX_ERROR:]
    elif isinstance(error, BaseException):
        name = type(error).__name__
        text = error_text(error, MAX_ERROR)
    else:
        name, text = "Error", str(error)[:MAX_ERROR]
    name = "".join(ch for ch in name if ch.isalnum() or ch in "._")[:80] or "Error"
    return name, orjson.dumps(text.encode("utf-8", "replace").decode())


def entry_in_batch(ref: QueueRef, draft: Draft, batch: str) -> tuple[str, str, int, bytes]:
    """The script arguments of a message of a batch."""
    draft = hooked(ref, draft) if ref.sending else draft
    return draft_entry(ref, draft, draft.payload, batch)


def send_entries(
    ref: QueueRef, entries: Sequence[tuple[str, str, int, bytes]], durability: str | None = None
) -> ScriptCall[list[MessageId]]:
    """Sends messages that are encoded already, all or none. An id that is stored already is not stored again."""
    args: list[Argument] = [b"1"]
    for entry in entries:
        args += entry
    ids = [entry[0] for entry in entries]

    def parse(reply: Any) -> list[MessageId]:
        if reply[0] == 0:
            ref.first_again()
        return [
            MessageId.of_earlier(other.decode()) if other else MessageId(id)
            for id, other in zip(ids, reply[1:], strict=True)
        ]

    return _sending(ref, args, parse, ids, durability)


def _sending(
    ref: QueueRef, args: list[Argument], parse: Callable[[Any], T], ids: Sequence[str], durability: str | None
) -> ScriptCall[T]:
    settings = ref.settings
    few = args[0] == b"0" and settings.max_length is None and settings.max_dead is None
    return ScriptCall(
        SEND,
        ref.keys.group(FEW_KEYS if few else SEND.keys),
        args,
        parse,
        ref.name,
        ids,
        settings.durability if durability is None else valid_durability(durability),
        "",
        repeated_send,
    )


def repeated_send(send: ScriptCall[T], _in_doubt: bool) -> ScriptCall[T]:
    """The send with the check for an earlier message of its ids, and with every key.

    It does not matter whether an earlier attempt is in doubt: one that was refused for its few keys needs every key.
    """
    return send._replace(keys=QueueKeys(send.queue).group(SEND.keys), args=[b"1", *send.args[1:]])


def send(
    ref: QueueRef,
    /,
    payload: Any,
    *,
    priority: int = 0,
    delay: float | timedelta = 0,
    due_at: datetime | None = None,
    id: str | None = None,
    kind: str = "",
    headers: dict[str, Any] | None = None,
    content_type: str | None = None,
    lease: float | timedelta | None = None,
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    unique: str | None = None,
    unique_states: frozenset[State] | None = None,
    expires: float | timedelta | None = None,
    timeout: float | timedelta | None = None,
    durability: str | None = None,
) -> ScriptCall[MessageId]:
    """Sends one message and returns its id.

    The message waits until it is received and acked. With `delay` or `due_at` it becomes ready at that time and not
    before. With `expires` it is removed instead of delivered if it waits longer than that after it is due; without it,
    a message never expires. Sending the same `id` again stores nothing. With `unique` nothing is stored while a
    message with that key is in one of `unique_states`; the returned id is that message's, and its `stored` is False.
    With `timeout` a handler that takes longer than that many seconds is stopped, and the attempt has failed.
    """
    undelayed = delay == 0 and delay is not False and due_at is None and expires is None
    anonymous = id is None and unique is None and not kind and headers is None and content_type is None
    unlimited = lease is None and max_attempts is None and retry is None and timeout is None
    if undelayed and anonymous and unlimited and type(payload) in JSON_TYPES and not ref.sending:
        entry = plain_entry(ref, payload, priority)
    else:
        options = (
            priority,
            delay,
            due_at,
            id,
            kind,
            headers,
            content_type,
            lease,
            max_attempts,
            retry,
            unique,
            unique_states,
            expires,
            timeout,
        )
        if ref.sending:
            return _send_hooked(ref, Draft(payload, *options), durability)
        entry = checked_entry(ref, payload, *options)
    careful = id is not None or unique is not None
    return _sending(
        ref, [b"1" if careful else b"0", *entry], partial(_parse_sent, ref, entry[0]), (entry[0],), durability
    )


def _send_hooked(ref: QueueRef, draft: Draft, durability: str | None) -> ScriptCall[MessageId]:
    """`send` for a queue with hooks that see what is sent."""
    given = draft.id
    draft = hooked(ref, draft)
    careful = given is not None or draft.unique is not None
    entry = draft_entry(ref, draft, draft.payload)
    return _sending(
        ref, [b"1" if careful else b"0", *entry], partial(_parse_sent, ref, entry[0]), (entry[0],), durability
    )


def _parse_sent(ref: QueueRef, id: str, reply: Any) -> MessageId:
    if not reply or reply == [0, b""]:
        ref.first_again()
    if type(reply) is int or not reply[1]:
        return MessageId(id)
    return MessageId.of_earlier(reply[1].decode())


def first_try(ref: QueueRef, send: ScriptCall[T]) -> ScriptCall[T]:
    """The send without the check for an earlier message with its id, which is new. A repeated attempt checks again."""
    few = ref.settings.max_length is None and ref.settings.max_dead is None
    return send._replace(keys=ref.keys.group(FEW_KEYS) if few else send.keys, args=[b"0", *send.args[1:]])


def check_batch(messages: Sequence[Any]) -> None:
    """Refuses a text or a mapping, whose letters or keys would each be sent, and a list of the wrong length."""
    if type(messages) not in (list, tuple) and (
        isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Sequence)
    ):
        raise InvalidInput(
            f"send_many takes a list of payloads or Drafts, not {type(messages).__name__}: "
            "send one payload with send(value), several with send_many([…]) or send_many(list(values))"
        )
    if not 1 <= len(messages) <= MAX_BATCH:
        raise InvalidInput(f"send_many takes 1 to {MAX_BATCH} messages, not {len(messages)}")


def send_many(
    ref: QueueRef, /, messages: Sequence[Any], *, durability: str | None = None, **options: Unpack[SendOptions]
) -> ScriptCall[list[MessageId]]:
    """Sends up to a thousand messages in one call, all or none, and returns their ids in order.

    Items are payloads or `Draft`s. A `Draft` has its own options; the keyword options apply to payloads.
    """
    check_batch(messages)
    if options.get("id") is not None:
        raise InvalidInput("send_many cannot give every message the same id: use Draft(payload, id=…) per message")
    shared = Draft(None, **options)
    careful = shared.unique is not None
    args: list[Argument] = [b"0"]
    ids = []
    plain = shared == _PLAIN and not ref.sending
    most = ref.settings.max_payload
    for id, item in zip(new_ids(len(messages)), messages, strict=True):
        if plain and type(item) in JSON_TYPES:
            stored, size = encode_plain(item, 0)
            if size > most:
                raise too_large(ref, size)
            ids.append(id)
            args += (id, b"", b"0", stored)
            continue
        draft = item if type(item) is Draft else shared
        careful = careful or draft.id is not None
        if ref.sending:
            draft = hooked(ref, draft if draft is item else replace(draft, payload=item))
            entry = draft_entry(ref, draft, draft.payload)
        else:
            entry = draft_entry(ref, draft, item.payload if draft is item else item)
        careful = careful or draft.unique is not None
        ids.append(entry[0])
        args += entry
    if careful:
        args[0] = b"1"

    def parse(reply: Any) -> list[MessageId]:
        if not reply or (type(reply) is list and reply[0] == 0):
            ref.first_again()
        if type(reply) is int:
            return [MessageId(sent_id) for sent_id in ids]
        return [
            MessageId.of_earlier(other.decode()) if other else MessageId(sent_id)
            for sent_id, other in zip(ids, reply[1:], strict=True)
        ]

    return _sending(ref, args, parse, ids, durability)


def receive(
    ref: QueueRef,
    /,
    count: int,
    *,
    lease: float | timedelta | None = None,
    acks: Sequence[Message | Ticket] = (),
    presence: bytes = b"",
) -> ScriptCall[Received]:
    """Leases up to `count` messages and settles `acks` in the same call. A count of 0 only promotes and reclaims."""
    if len(acks) > MAX_BATCH:
        raise InvalidInput(f"one call settles at most {MAX_BATCH} acks, not {len(acks)}")
    nonce = f"{_nonce(32):08x}"
    span = "" if lease is None else str(milliseconds(lease, "lease", least=0.001))
    args: list[Argument] = [count, nonce, ref.consumer, span, presence]
    for message in acks:
        args += (message.id, message.lease_token)

    def parse(reply: Any) -> Received:
        now, due, version, promoted, expired, base, lost = reply[:7]
        version = int(version)
        if version != ref.settings.version:
            ref.opened = False
        good: list[Any] = []
        spoiled: list[Any] = []
        make = ref.make
        for place in range(7, len(reply), 4):
            base += 1
            id, attempts, expires, raw = reply[place : place + 4]
            message = make(id.decode(), Stored(raw), 1, int(expires), f"{base}-{nonce}", now)
            if len(attempts) > 1:
                count, replays, ended = attempts.decode().split(" ")
                message.attempts, message.replays, message.suspect = int(count), int(replays), ended == "expired"
            (good if sound(raw) else spoiled).append(message)
        return Received(
            good,
            now,
            int(due) if due else None,
            version,
            promoted,
            expired,
            [acks[index - 1].id for index in lost_leases(ref, lost)] if lost else [],
            spoiled,
        )

    return ScriptCall(RECEIVE, ref.keys.group(RECEIVE.keys), args, parse, ref.name)


def lost_leases(ref: QueueRef, lost: Sequence[Any]) -> Sequence[int]:
    """The positions of lost leases. What follows behind a 0 was put into the outbox, and is kept for a carrier."""
    if 0 not in lost:
        return lost
    end = lost.index(0)
    ref.noted.extend(lost[end + 1 :])
    return lost[:end]


def _settled(ref: QueueRef, messages: Sequence[Message | Ticket], lost: Sequence[int], verdict: str) -> None:
    """Marks messages as settled; raises LeaseLost or AlreadySettled for those whose verdict had no effect."""
    if lost:
        lost = lost_leases(ref, lost)
    late = [messages[index - 1] for index in lost]
    before = [message.verdict for message in late]
    for message in messages if not lost else [message for message in messages if message not in late]:
        message.settled, message.verdict = True, verdict
    if late:
        ids = [message.id for message in late]
        raise AlreadySettled(ids=ids, verdict=before[0]) if all(before) else LeaseLost(ids=ids)


def check_messages(messages: Sequence[Message | Ticket]) -> None:
    """Refuses anything but a list of messages that one call may settle."""
    if type(messages) not in (list, tuple) and (isinstance(messages, str) or not isinstance(messages, Sequence)):
        raise InvalidInput(f"give a list of received messages, not {type(messages).__name__}")
    if not 1 <= len(messages) <= MAX_BATCH:
        raise InvalidInput(f"give 1 to {MAX_BATCH} messages, not {len(messages)}")


def _pairs(messages: Sequence[Message | Ticket]) -> list[Argument]:
    check_messages(messages)
    args: list[Argument] = []
    try:
        for message in messages:
            args += (message.id, message.lease_token)
    except AttributeError:
        raise InvalidInput(f"give received messages, not {type(message).__name__}") from None
    return args


def ack_many(ref: QueueRef, /, messages: Sequence[Message | Ticket]) -> ScriptCall[None]:
    """Acks messages. LeaseLost lists those whose lease has ended; the others are acked."""
    return ScriptCall(
        ACK, ref.keys.group(ACK.keys), _pairs(messages), lambda lost: _settled(ref, messages, lost, "acked"), ref.name
    )


def encode_result(value: Any) -> bytes:
    """The JSON text of a result. Raises InvalidPayload if it is not JSON, PayloadTooLarge if it is too long to keep."""
    text, _ = encode_json(value, "result")
    if len(text) > MAX_RESULT:
        raise PayloadTooLarge(
            f"the result has {len(text)} bytes and a queue keeps up to {MAX_RESULT}: store it elsewhere and return "
            "a reference"
        )
    return text


def ack_result(ref: QueueRef, /, message: Message | Ticket, result: Any) -> ScriptCall[None]:
    """Acks a message and keeps its result, any JSON value, if the queue has `keep_done`; otherwise it is dropped."""
    args: list[Argument] = [encode_result(result), *_pairs((message,))]
    keys = ref.keys.group(ACK_RESULT.keys)
    return ScriptCall(ACK_RESULT, keys, args, lambda lost: _settled(ref, (message,), lost, "acked"), ref.name)


def progress(ref: QueueRef, /, message: Message | Ticket, fraction: float, step: str = "") -> ScriptCall[None]:
    """Notes how far the handler of a message is. Raises LeaseLost if its lease has ended."""
    check_progress(fraction, step)
    text = orjson.dumps([fraction, step.encode("utf-8", "replace").decode()])

    def parse(reply: Any) -> None:
        if reply != 1:
            message.cancelled = reply == -1
            raise lease_lost(message)

    args: list[Argument] = [*_pairs((message,)), text]
    return ScriptCall(PROGRESS, ref.keys.group(PROGRESS.keys), args, parse, ref.name)


def check_progress(fraction: float, step: str) -> None:
    """Refuses what is no progress."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidInput(f"progress must be a number from 0 to 1, not {fraction!r}")
    if not isinstance(step, str) or len(step) > MAX_STEP:
        raise InvalidInput(f"the step of a progress must be a text of up to {MAX_STEP} characters")


def lease_lost(message: Message | Ticket) -> LeaseLost:
    """The error for a lease that has ended."""
    return MessageCancelled(ids=(message.id,)) if message.cancelled else LeaseLost(ids=(message.id,))


def nack_many(
    ref: QueueRef,
    /,
    messages: Sequence[Message | Ticket],
    *,
    delay: float | timedelta | None = None,
    error: BaseException | str | None = None,
    retry: RetryPolicy | None = None,
) -> ScriptCall[list[State]]:
    """Fails the attempts: each message retries after `delay` or its retry policy's delay, or is dead at its limit."""
    _pairs(messages)
    name, text = error_parts(error)
    fixed = None if delay is None else str(milliseconds(delay, "delay"))
    args: list[Argument] = []
    for message in messages:
        wait = fixed
        if wait is None:
            chosen = (retry or message.retry or ref.settings.retry).next(message.attempts)
            wait = "dead" if chosen is None else str(milliseconds(max(chosen, 0.0), "delay"))
        args += (message.id, message.lease_token, wait, name, text)

    def parse(reply: Any) -> list[State]:
        _settled(ref, messages, reply[0], "nacked")
        return [State(state.decode()) for state in reply[1:]]

    return ScriptCall(NACK, ref.keys.group(NACK.keys), args, parse, ref.name)


def bury_many(
    ref: QueueRef, /, messages: Sequence[Message | Ticket], *, error: BaseException | str | None = None
) -> ScriptCall[None]:
    """Dead-letters messages at once, whatever attempts are left."""
    _pairs(messages)
    name, text = error_parts(error)
    args: list[Argument] = []
    for message in messages:
        args += (message.id, message.lease_token, name, text)
    return ScriptCall(
        BURY, ref.keys.group(BURY.keys), args, lambda lost: _settled(ref, messages, lost, "buried"), ref.name
    )


def bury_corrupt(ref: QueueRef, /, messages: Sequence[Message | Ticket]) -> ScriptCall[int]:
    """Buries messages whose stored form is damaged; returns how many.

    It does not raise LeaseLost, because the damage may be in the lease itself and end it at once. Such a message is
    received and buried again, and the intact messages of the same receive reach their caller.
    """
    bury = bury_many(ref, messages, error=Corrupt("the stored message is damaged"))
    return ScriptCall(BURY, bury.keys, bury.args, lambda lost: len(messages) - len(lost_leases(ref, lost)), ref.name)


def release_many(
    ref: QueueRef, /, messages: Sequence[Message | Ticket], *, delay: float | timedelta = 0
) -> ScriptCall[None]:
    """Returns messages to their old position in the queue and does not count the attempt."""
    args: list[Argument] = [str(milliseconds(delay, "delay")), *_pairs(messages)]
    return ScriptCall(
        RELEASE, ref.keys.group(RELEASE.keys), args, lambda lost: _settled(ref, messages, lost, "released"), ref.name
    )


def extend_many(
    ref: QueueRef, /, messages: Sequence[Message | Ticket], *, lease: float | timedelta | None = None
) -> ScriptCall[list[str]]:
    """Extends leases, counted from now. Returns the ids whose lease was lost instead of raising LeaseLost."""
    given = None if lease is None else milliseconds(lease, "lease", least=0.001)
    _pairs(messages)
    return renew(ref, messages, given, b"")


def renew(
    ref: QueueRef, messages: Sequence[Message | Ticket], span: int | None, presence: bytes
) -> ScriptCall[list[str]]:
    """`extend_many` for a consumer's renewal, which also updates its registry entry."""
    args: list[Argument] = [ref.consumer, presence]
    for message in messages:
        args += (message.id, message.lease_token, str(span or message.lease_ms or int(ref.settings.lease * 1000)))

    def parse(reply: Any) -> list[str]:
        lost, cancelled, *ends = reply
        for message, until in zip(messages, ends, strict=True):
            if until:
                message.expires_ms = int(until)
        for index in cancelled:
            messages[index - 1].cancelled = True
        return [messages[index - 1].id for index in lost]

    return ScriptCall(EXTEND, ref.keys.group(EXTEND.keys), args, parse, ref.name)
