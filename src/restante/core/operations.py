"""Every verb as an operation: script, keys, arguments and a parser of the reply; no I/O."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import resources
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar, Unpack

import hiredis
import orjson

from restante.core.errors import AlreadySettled, Corrupt, InvalidInput, LeaseLost, MessageCancelled, PayloadTooLarge
from restante.core.keys import QueueKeys
from restante.core.message import (
    MAX_ERROR,
    STATE_LETTERS,
    Draft,
    Message,
    MessageId,
    RemoteError,
    State,
    new_id,
    new_ids,
)
from restante.core.names import valid_name
from restante.core.retry import RetryPolicy
from restante.core.settings import QueueSettings, milliseconds, valid_durability, whole
from restante.core.stored import Stored, encode, encode_json, encode_plain, sound
from restante.core.tracebacks import error_text

T = TypeVar("T")
Argument = bytes | str | int

#: Packs the words of one command for the wire. The library's own annotation allows single words only.
pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command

#: Most messages in one call. A longer script would block the server, and Lua's stack limits it anyway.
MAX_BATCH = 1000
#: Most bytes of a result's JSON text. Larger ones would stall pages of done messages, which carry it.
MAX_RESULT = 65_536
#: Most characters of the step of a progress. It is written anew with each extend.
MAX_STEP = 200
#: Default of `unique_states`: a unique key holds until its message is settled.
UNIQUE_STATES = frozenset({State.SCHEDULED, State.READY, State.LEASED, State.RETRYING})

#: Payload types that `encode_plain` accepts. Bytes are not among them, because they need a content type.
JSON_TYPES = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
_PLAIN = Draft(None)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_nonce = random.Random().getrandbits

#: Scripts that store new data are refused at maxmemory. All others run there, or a full server could not be emptied.
NEED_ROOM = frozenset({"edit", "hold", "move", "send"})
#: Scripts that only read also run on a replica and on a server whose disk is full.
READ_ONLY = frozenset({"counts", "list", "show", "status"})

#: The parts of a verb beside moves.lua: Lua files whose text runs only when the script requires them. A part costs a
#: little at each call of a verb that has it, so a verb has only those it requires.
PARTS: Mapping[str, tuple[str, ...]] = {
    "ack": ("settling",),
    "ack_result": ("settling",),
    "receive": ("settling", "sweep", "limits"),
    "send": ("repeats",),
}


def declared(body: str, *, when_full: bool, reads: bool) -> bytes:
    """Puts the flags before a script: whether it runs at maxmemory, and whether it only reads.

    Without `reads`, a replica and a server whose disk is full refuse even a script that writes nothing.
    """
    flags = " flags=no-writes" if reads else " flags=allow-oom" if when_full else ""
    return f"#!lua{flags}\n{body}".encode()


def sha1(text: bytes) -> bytes:
    """The hash under which a server caches a script."""
    return hashlib.sha1(text).hexdigest().encode()


class Script:
    """The Lua text of a verb, behind the prelude and the function `require` that runs its parts, and its hash."""

    #: The type of each key, where the key's name does not imply it.
    types: tuple[str, ...] = ()

    def __init__(self, name: str, keys: str) -> None:
        folder = resources.files("restante.core").joinpath("lua")
        names = ("moves", *PARTS.get(name, ()))
        prelude, verb, *parts = (folder.joinpath(f"{file}.lua").read_text() for file in ("prelude", name, *names))
        choice = "else".join(f"if name == '{part}' then\n{text}" for part, text in zip(names, parts, strict=True))
        require = f"require = function(name)\n{choice}end\nend\n"
        self.name = name
        self.keys = tuple(keys.split())
        self.text = declared(prelude + require + verb, when_full=name not in NEED_ROOM, reads=name in READ_ONLY)
        self.sha = sha1(self.text)


SEND = Script(
    "send",
    "queue journal messages ready marker scheduled unique acked acked_before leased retrying dead",
)
#: The keys of a send with new ids to a queue without limits. Every key adds to the cost of every call.
FEW_KEYS = SEND.keys[:6]
RECEIVE = Script(
    "receive",
    "queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked "
    "acked_before consumers",
)
ACK = Script("ack", "queue journal messages deliveries history leased done unique acked acked_before ready marker")
ACK_RESULT = Script(
    "ack_result",
    "queue journal messages deliveries history leased done unique acked acked_before ready marker",
)
NACK = Script("nack", "queue journal deliveries history retrying leased dead unique marker")
BURY = Script("bury", "queue journal deliveries history leased dead unique marker")
RELEASE = Script("release", "queue journal deliveries ready scheduled leased unique marker")
EXTEND = Script("extend", "queue journal deliveries leased consumers cancelled")
PROGRESS = Script("progress", "queue journal deliveries cancelled")
DELETE = Script("delete", "queue journal messages deliveries history ready scheduled retrying dead done leased unique")
REVOKE = Script("revoke", "queue journal deliveries history ready leased unique marker")
CANCEL = Script(
    "cancel",
    "queue journal messages deliveries history ready scheduled retrying leased dead done unique marker cancelled",
)
STATUS = Script(
    "status", "queue journal deliveries history ready scheduled retrying leased dead done acked acked_before"
)


class ScriptCall(NamedTuple, Generic[T]):
    """One call of one script. A tuple, because a frozen dataclass costs every send half a microsecond more."""

    script: Script
    keys: tuple[bytes, ...]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    #: The queue that error messages name.
    queue: str
    #: Ids of sent messages, for `Unconfirmed` when the reply is lost.
    sends: Sequence[str] = ()
    durability: str = "memory"
    #: The error message for a call that must not be repeated and whose reply was lost; empty if it may be repeated.
    once: str = ""
    #: Makes the call that a repeat sends, from this call and whether an attempt may have succeeded; None: the same.
    repeat: Callable[[ScriptCall[Any], bool], ScriptCall[Any]] | None = None
    #: A packed plain command that is sent to the same server before the call; `parse` gets both replies.
    question: bytes = b""

    def packed(self) -> bytes:
        """The call, packed for the wire."""
        return pack((b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args))


def _as_replied(reply: Any) -> Any:
    return reply


@dataclass(frozen=True)  # with slots too, Command[bytes](…) would fail
class Command(Generic[T]):
    """A plain command, run with the same retries. It may be repeated, so it must be safe to repeat."""

    words: tuple[Any, ...]
    #: The key that decides which server gets the command.
    key: bytes
    parse: Callable[[Any], T] = _as_replied

    queue: ClassVar[str] = "the server"
    sends: ClassVar[Sequence[str]] = ()
    durability: ClassVar[str] = "memory"
    once: ClassVar[str] = ""
    question: ClassVar[bytes] = b""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (self.key,)

    def packed(self) -> bytes:
        """The command, packed for the wire."""
        return pack(self.words)


#: What a runner runs: a value that says what to send and how to read the reply.
Operation = ScriptCall[T] | Command[T]


def with_question(call: ScriptCall[T], question: bytes) -> ScriptCall[tuple[Any, T]]:
    """The call with a packed plain command before it on the same server; returns the answers to both."""

    def parse(replies: Sequence[Any]) -> tuple[Any, T]:
        return replies[0], call.parse(replies[1])

    return call._replace(question=question, parse=parse)  # type: ignore[return-value, arg-type]


class SendOptions(TypedDict, total=False):
    """The options of `send_many` for all its payloads: those of `send` except `id`."""

    priority: int
    delay: float | timedelta
    due_at: datetime | None
    kind: str
    headers: dict[str, Any] | None
    content_type: str | None
    lease: float | timedelta | None
    max_attempts: int | None
    retry: RetryPolicy | None
    unique: str | None
    unique_states: frozenset[State] | None
    expires: float | timedelta | None
    timeout: float | timedelta | None


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


class QueueRef:
    """The facts of a queue that operations need: its keys, its last known settings, and the consumer."""

    __slots__ = (
        "begun",
        "consumer",
        "given",
        "keys",
        "make",
        "name",
        "opened",
        "pending",
        "presence",
        "seen",
        "sending",
        "settings",
    )

    def __init__(self, name: str, consumer: str, make: Callable[..., Any]) -> None:
        self.keys = QueueKeys(name)
        self.name = name
        self.consumer = consumer
        #: Creates a received message from its parts.
        self.make = make
        #: Settings to write to the queue hash before the next call.
        self.pending: dict[str, str] = {}
        #: The settings that this client's program gave with the queue; `reopen` writes them again.
        self.given: dict[str, str] = {}
        self.settings = QueueSettings()
        self.opened = False
        #: Whether a send of this client was the first of the queue.
        self.begun = False
        self.seen = 0.0
        self.presence = b""
        #: What hooks do to each message that is sent: empty for most queues, which costs a send nothing.
        self.sending: tuple[Callable[[str, Draft], Draft], ...] = ()

    def give(self, fields: dict[str, str]) -> None:
        """Adds settings that the next call writes."""
        self.given.update(fields)
        self.pending.update(fields)
        self.opened = False

    def reopen(self) -> None:
        """Lets the next call register the queue and write its settings again: its server was emptied."""
        self.pending = dict(self.given)
        self.opened = self.begun = False
        self.seen = 0.0

    def first_again(self) -> None:
        """Notes that a send was the queue's first. A second time means the queue was dropped: register it again."""
        self.opened = self.opened and not self.begun
        self.begun = True


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


def due_argument(delay: float | timedelta, due_at: datetime | None) -> str:
    if due_at is not None:
        if delay:
            raise InvalidInput("give delay or due_at, not both")
        if not isinstance(due_at, datetime) or due_at.tzinfo is None:
            raise InvalidInput(f"due_at must be an aware datetime such as datetime.now(UTC), not {due_at!r}")
        return str(max(0, -((_EPOCH - due_at) // timedelta(milliseconds=1))))
    if type(delay) in (int, float) and delay == 0:
        return ""
    wait = milliseconds(delay, "delay")
    return f"+{wait}" if wait else ""


def _entry(
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
) -> tuple[str, str, int, bytes]:
    """Checks one message and returns its four script arguments."""
    if type(priority) is not int or not 0 <= priority <= 255:
        whole(priority, "priority", 0, 255)
    if id is None:
        id = new_id()
    else:
        valid_name(id, "message id")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidInput(f"retry must be a RetryPolicy such as restante.exponential(1), not {retry!r}")
    letters = ""
    if unique is not None:
        try:
            letters = "".join(sorted(STATE_LETTERS[State(state)] for state in unique_states or UNIQUE_STATES))
        except (ValueError, TypeError):
            raise InvalidInput(f"unique_states must be a set of State members, not {unique_states!r}") from None
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
    )
    if size > ref.settings.max_payload:
        raise _too_large(ref, size)
    return id, due, priority, stored


def _entry_of(ref: QueueRef, draft: Draft, payload: Any) -> tuple[str, str, int, bytes]:
    """`_entry` with the options of a draft."""
    return _entry(
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
    )


def _plain(ref: QueueRef, payload: Any, priority: int) -> tuple[str, str, int, bytes]:
    """`_entry` for the most common message: a JSON value without options."""
    if type(priority) is not int or not 0 <= priority <= 255:
        whole(priority, "priority", 0, 255)
    stored, size = encode_plain(payload, priority)
    if size > ref.settings.max_payload:
        raise _too_large(ref, size)
    return new_id(), "", priority, stored


def _too_large(ref: QueueRef, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the payload has {size} bytes and {ref.name} takes {ref.settings.max_payload}: store it elsewhere "
        "and send a reference, or raise max_payload"
    )


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
        entry = _plain(ref, payload, priority)
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
        entry = _entry(ref, payload, *options)
    careful = id is not None or unique is not None
    return _sending(
        ref, [b"1" if careful else b"0", *entry], partial(_parse_sent, ref, entry[0]), (entry[0],), durability
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


def _send_hooked(ref: QueueRef, draft: Draft, durability: str | None) -> ScriptCall[MessageId]:
    """`send` for a queue with hooks that see what is sent."""
    given = draft.id
    draft = hooked(ref, draft)
    careful = given is not None or draft.unique is not None
    entry = _entry_of(ref, draft, draft.payload)
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
                raise _too_large(ref, size)
            ids.append(id)
            args += (id, b"", b"0", stored)
            continue
        draft = item if type(item) is Draft else shared
        careful = careful or draft.id is not None
        if ref.sending:
            draft = hooked(ref, draft if draft is item else replace(draft, payload=item))
            entry = _entry_of(ref, draft, draft.payload)
        else:
            entry = _entry_of(ref, draft, item.payload if draft is item else item)
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
            [acks[index - 1].id for index in lost] if lost else [],
            spoiled,
        )

    return ScriptCall(RECEIVE, ref.keys.group(RECEIVE.keys), args, parse, ref.name)


def _settled(messages: Sequence[Message | Ticket], lost: Sequence[int], verdict: str) -> None:
    """Marks messages as settled; raises LeaseLost or AlreadySettled for those whose verdict had no effect."""
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
        ACK, ref.keys.group(ACK.keys), _pairs(messages), lambda lost: _settled(messages, lost, "acked"), ref.name
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
    return ScriptCall(ACK_RESULT, keys, args, lambda lost: _settled((message,), lost, "acked"), ref.name)


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
        _settled(messages, reply[0], "nacked")
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
    return ScriptCall(BURY, ref.keys.group(BURY.keys), args, lambda lost: _settled(messages, lost, "buried"), ref.name)


def bury_corrupt(ref: QueueRef, /, messages: Sequence[Message | Ticket]) -> ScriptCall[int]:
    """Buries messages whose stored form is damaged; returns how many.

    It does not raise LeaseLost, because the damage may be in the lease itself and end it at once. Such a message is
    received and buried again, and the intact messages of the same receive reach their caller.
    """
    bury = bury_many(ref, messages, error=Corrupt("the stored message is damaged"))
    return ScriptCall(BURY, bury.keys, bury.args, lambda lost: len(messages) - len(lost), ref.name)


def release_many(
    ref: QueueRef, /, messages: Sequence[Message | Ticket], *, delay: float | timedelta = 0
) -> ScriptCall[None]:
    """Returns messages to their old position in the queue and does not count the attempt."""
    args: list[Argument] = [str(milliseconds(delay, "delay")), *_pairs(messages)]
    return ScriptCall(
        RELEASE, ref.keys.group(RELEASE.keys), args, lambda lost: _settled(messages, lost, "released"), ref.name
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


def delete(ref: QueueRef, /, ids: Sequence[str], *, operator: str, detail: str) -> ScriptCall[list[bytes]]:
    """Deletes messages by id; returns the state of each before, `leased` for one that stays, nothing for an unknown."""
    args: list[Argument] = [operator, detail, *ids]
    return ScriptCall(DELETE, ref.keys.group(DELETE.keys), args, lambda states: states, ref.name)


def revoke(ref: QueueRef, /, ids: Sequence[str], *, operator: str, detail: str) -> ScriptCall[list[bool]]:
    """Takes leased messages back from their consumers; returns which of them were leased."""
    args: list[Argument] = [operator, detail, *ids]
    return ScriptCall(
        REVOKE, ref.keys.group(REVOKE.keys), args, lambda moved: [count == 1 for count in moved], ref.name
    )


def cancel_many(ref: QueueRef, /, ids: Sequence[str], *, operator: str, detail: str) -> ScriptCall[list[State | None]]:
    """Gives messages up; returns the state of each before, dead or done for one that has ended and stays."""
    args: list[Argument] = [operator, detail, *ids]

    def parse(states: Any) -> list[State | None]:
        return [State(state.decode()) if state else None for state in states]

    return ScriptCall(CANCEL, ref.keys.group(CANCEL.keys), args, parse, ref.name)
