"""Every verb of the HTTP client as a call: a generator of requests and pauses that either runner drives; no I/O.

On failure a call that is safe to repeat is repeated for `PATIENCE`. Then it raises `Unavailable` or, for a send whose
outcome is unknown, `Unconfirmed`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, Unpack
from urllib.parse import quote

from restante.core.attempts import Status
from restante.core.errors import (
    InvalidInput,
    InvalidPayload,
    LeaseLost,
    MessageCancelled,
    NotFound,
    Unavailable,
    Unconfirmed,
)
from restante.core.keywords import check_keywords
from restante.core.message import Draft, Message, MessageId, State, new_id
from restante.core.names import valid_name
from restante.core.operations import check_batch, check_messages, check_progress, encode_result
from restante.core.queue import check_count, check_timeout, queue_names
from restante.core.retry import RetryPolicy, seconds
from restante.core.send_options import JSON_TYPES, SendOptions, hooked
from restante.core.settings import QueueOptions, QueueSettings, queue_fields
from restante.core.stored import check_json_types, decode_json, encode_json
from restante.http.serializers import (
    draft_out,
    error_in,
    failure_out,
    options_out,
    problem_in,
    settings_in,
    status_in,
    tickets_out,
)

T = TypeVar("T")

#: Seconds of one long poll. A longer wait takes several polls; proxies end requests that take longer than a minute.
POLL = 20.0
#: Seconds for which a call that is safe to repeat is repeated. Shorter than a restart of the server, each is an error.
PATIENCE = 4.0
#: Seconds between two attempts of a call. Without a pause, clients would keep a server busy that just starts.
PAUSE = 0.1
_VERDICTS = {"ack": "acked", "nack": "nacked", "bury": "buried", "release": "released"}
#: Methods that HTTP declares free of effects.
_READS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to the server."""

    method: str
    path: str
    body: bytes | None = None
    #: Seconds that the server may wait before it answers.
    wait: float = 0
    idempotency_key: str | None = None


class Reply(NamedTuple):
    """What the server answered."""

    status: int
    content: bytes


class Lost(NamedTuple):
    """The request failed without a reply; `written` if it may have reached the server."""

    reason: str
    written: bool


class Pause(NamedTuple):
    """Seconds to wait before the call is repeated."""

    seconds: float


Call = Generator[Request | Pause, Any, T]


class HttpQueueRef:
    """The facts of a queue that calls need: its path, the options still to be stored, and the consumer."""

    __slots__ = ("address", "consumer", "make", "name", "path", "pending", "sending")

    def __init__(
        self, name: str, address: str, consumer: str, options: QueueOptions, make: Callable[[dict[str, Any]], Any]
    ) -> None:
        self.name = valid_name(name)
        # A segment of dots alone would be taken for a relative path.
        self.path = "/api/queues/" + (quote(name, safe="") if name.strip(".") else "%2E" * len(name))
        self.address = address
        self.consumer = consumer
        queue_fields(options)
        self.pending = options
        #: What hooks do to each message that is sent.
        self.sending: tuple[Callable[[str, Draft], Draft], ...] = ()
        #: Creates a received message from its JSON.
        self.make = make


def ask(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    wait: float = 0,
    sends: Sequence[str] = (),
    safe: bool = False,
    idempotency_key: str | None = None,
) -> Call[Any]:
    """Makes one API call and returns its JSON.

    It is repeated on failure if it sends messages with the IDs `sends`, has an `idempotency_key`, only reads, or is
    declared `safe`.
    """
    request = Request(method, path, None if body is None else encode_json(body)[0], wait, idempotency_key)
    repeatable = bool(sends) or safe or idempotency_key is not None or method in _READS
    deadline = time.monotonic() + (PATIENCE if repeatable else 0)
    doubt = False
    while True:
        reply: Reply | Lost = yield request
        if isinstance(reply, Lost):
            doubt = doubt or reply.written
            failure: Exception = Unavailable(f"{address} cannot be reached: {reply.reason}")
        elif reply.status < 300:
            return _decoded(address, reply.content)
        else:
            problem = problem_in(reply.content)
            # A proxy in front of the server may report a failure of a request that the server has carried out.
            doubt = doubt or (problem is None and reply.status >= 500)
            failure = error_in(reply.status, problem)
        if not isinstance(failure, Unavailable):
            raise failure
        if not (repeatable and time.monotonic() < deadline):
            if doubt and (sends or idempotency_key is not None):
                raise _unconfirmed(sends)
            raise failure
        yield Pause(PAUSE)


def _decoded(address: str, content: bytes) -> Any:
    try:
        return decode_json(content) if content else None
    except ValueError:
        raise Unavailable(f"{address} did not answer as a Restante server does: check the address") from None


def _unconfirmed(sends: Sequence[str]) -> Unconfirmed:
    if sends:
        return Unconfirmed(ids=sends)
    return Unconfirmed("the server's reply was lost: call again with the same Idempotency-Key")


def keyed(method: str, path: str, key: str | None) -> str | None:
    """Refuses an Idempotency-Key where the server would ignore it, because a repeat would then not be safe."""
    if key is not None and not (method == "POST" and path.endswith("/messages")):
        raise InvalidInput(f"only a send takes an Idempotency-Key, not {method} {path}")
    return key


# -- queues ----------------------------------------------------------------------------------------------------------


def configure(ref: HttpQueueRef, /, **options: Unpack[QueueOptions]) -> Call[QueueSettings]:
    """Changes settings of the queue for all its clients."""
    queue_fields(options)
    body = options_out({**ref.pending, **options})
    answer = yield from ask(ref.address, "PUT", ref.path, body, safe=True)
    ref.pending = {}
    return settings_in(answer)


def read_settings(ref: HttpQueueRef, /) -> Call[QueueSettings]:
    """Reads the current settings from the server; needs the role read."""
    yield from _opened(ref)
    return settings_in((yield from ask(ref.address, "GET", ref.path)))


def _opened(ref: HttpQueueRef) -> Call[None]:
    """Stores the options that the queue was opened with."""
    if ref.pending:
        yield from configure(ref)


# -- sending ---------------------------------------------------------------------------------------------------------


def send(
    ref: HttpQueueRef,
    /,
    payload: Any,
    *,
    id: str | None = None,
    durability: str | None = None,
    **options: Unpack[SendOptions],
) -> Call[MessageId]:
    """Sends one message and returns its ID; the options are those of `Queue.send`."""
    check_keywords(options, (*SendOptions.__annotations__, "id", "durability"), "send()")
    plain = id is None and not options and type(payload) in JSON_TYPES
    message = payload if plain else Draft(payload, id=id, **options)
    ids = yield from send_many(ref, [message], durability=durability)
    return ids[0]


def send_many(
    ref: HttpQueueRef, /, messages: Sequence[Any], *, durability: str | None = None, **options: Unpack[SendOptions]
) -> Call[list[MessageId]]:
    """Sends up to a thousand messages in one call, all or none. Items are payloads or `Draft`s."""
    check_batch(messages)
    if options.get("id") is not None:
        raise InvalidInput("send_many cannot give every message the same id: use Draft(payload, id=…) per message")
    check_keywords(options, (*SendOptions.__annotations__, "durability", "id"), "send_many()")
    items: list[dict[str, Any]]
    if not options and not ref.sending and all(type(item) in JSON_TYPES for item in messages):
        items = [{"id": new_id(), "payload": item} for item in messages]
        ours = [item["id"] for item in items]
    else:
        drafts = [item if type(item) is Draft else Draft(item, **options) for item in messages]
        items = [draft_out(hooked(ref, draft) if ref.sending else draft) for draft in drafts]
        ours = [item["id"] if draft.id is None else None for item, draft in zip(items, drafts, strict=True)]
    body: dict[str, Any] = {"messages": items}
    if durability is not None:
        body["durability"] = durability
    yield from _opened(ref)
    try:
        answer = yield from ask(ref.address, "POST", f"{ref.path}/messages", body, sends=[item["id"] for item in items])
    except InvalidPayload:
        for item in items:  # its error names the place in the payload, not the one in the request
            check_json_types(item.get("payload"), "payload")
        raise
    return [
        MessageId(sent["id"]) if sent["stored"] or sent["id"] == mine else MessageId.of_earlier(sent["id"])
        for sent, mine in zip(answer["messages"], ours, strict=True)
    ]


# -- receiving -------------------------------------------------------------------------------------------------------


def wanted(count: int, lease: float | timedelta | None, consumer: str) -> dict[str, Any]:
    """The body of a receive."""
    body: dict[str, Any] = {"count": check_count(count), "consumer": consumer, "pid": os.getpid()}
    if lease is not None:
        body["lease_seconds"] = seconds(lease, "lease", least=0.001)
    return body


def receive(ref: HttpQueueRef, body: dict[str, Any], timeout: float, acks: Sequence[Message] = ()) -> Call[list[Any]]:
    """Receives messages of one queue, after acking `acks`."""
    if acks:
        body["acks"] = tickets_out(acks)
    yield from _opened(ref)
    return (yield from _received(ref.address, f"{ref.path}/receive", body, timeout, ref.make))


def receive_any(
    address: str, queues: Sequence[str], body: dict[str, Any], timeout: float, make: Callable[[dict[str, Any]], Any]
) -> Call[list[Any]]:
    """Receives messages of the first queue that has any."""
    body["queues"] = list(queue_names(queues))
    return (yield from _received(address, "/api/receive", body, timeout, make))


def _received(
    address: str, path: str, body: dict[str, Any], timeout: float, make: Callable[[dict[str, Any]], Any]
) -> Call[list[Any]]:
    """Polls until messages arrive or the time is over. A poll whose reply was lost is not repeated."""
    deadline = time.monotonic() + check_timeout(timeout)
    while True:
        left = max(0.0, deadline - time.monotonic())
        body["wait_seconds"] = min(left, POLL)
        answer = yield from ask(address, "POST", path, body, wait=body["wait_seconds"])
        messages = [make(fields) for fields in answer["messages"]]
        if messages or deadline - time.monotonic() <= 0:
            return messages
        body.pop("acks", None)


# -- verdicts --------------------------------------------------------------------------------------------------------


def _settle(ref: HttpQueueRef, verb: str, messages: Sequence[Message], **body: Any) -> Call[Any]:
    check_messages(messages)
    words = {name: value for name, value in body.items() if value is not None}
    answer = yield from ask(ref.address, "POST", f"{ref.path}/{verb}", {"messages": tickets_out(messages), **words})
    if verb in _VERDICTS:
        for message in messages:
            message.settled, message.verdict = True, _VERDICTS[verb]
    return answer


def ack_result(ref: HttpQueueRef, /, message: Message, result: Any) -> Call[None]:
    """Acks a message and keeps its result, any JSON value, if the queue has `keep_done`; otherwise it is dropped."""
    encode_result(result)
    yield from ask(
        ref.address,
        "POST",
        f"{_message_path(ref, message.id)}/ack",
        {"lease_token": message.lease_token, "result": result},
    )
    message.settled, message.verdict = True, "acked"


def progress(ref: HttpQueueRef, /, message: Message, fraction: float, step: str = "") -> Call[None]:
    """Notes how far the handler of a message is. Raises LeaseLost if its lease has ended."""
    check_progress(fraction, step)
    body = {"lease_token": message.lease_token, "fraction": fraction, "step": step}
    try:
        yield from ask(ref.address, "POST", f"{_message_path(ref, message.id)}/progress", body)
    except MessageCancelled:
        message.cancelled = True
        raise


def status(ref: HttpQueueRef, /, id: str, *, wait: float = 0) -> Call[Status]:
    """Reads where a message is, once it has ended or after `wait` seconds; needs the role read."""
    span = min(max(wait, 0.0), POLL)
    path = f"{_message_path(ref, valid_name(id, 'message id'))}/status"
    query = f"?wait_seconds={span:g}" if span else ""
    return status_in((yield from ask(ref.address, "GET", path + query, wait=span)))


def cancel(ref: HttpQueueRef, /, id: str) -> Call[bool]:
    """Gives a message up; returns False if it has ended already. Needs the role operate."""
    path = f"{_message_path(ref, valid_name(id, 'message id'))}/cancel"
    try:
        answer = yield from ask(ref.address, "POST", path, {}, safe=True)
    except NotFound:
        return False
    return bool(answer["cancelled"])


def _message_path(ref: HttpQueueRef, id: str) -> str:
    # A segment of dots alone would be taken for a relative path.
    return f"{ref.path}/messages/{quote(id, safe='') if id.strip('.') else '%2E' * len(id)}"


def ack_many(ref: HttpQueueRef, /, messages: Sequence[Message]) -> Call[None]:
    """Acks messages. LeaseLost lists those whose lease is lost; the others are acked."""
    yield from _settle(ref, "ack", messages)


def nack_many(
    ref: HttpQueueRef,
    /,
    messages: Sequence[Message],
    *,
    delay: float | timedelta | None = None,
    error: BaseException | str | None = None,
    retry: RetryPolicy | None = None,
) -> Call[list[State]]:
    """Nacks messages: each is retried after `delay` or its policy's delay, or is dead after its last attempt."""
    wait = None if delay is None else seconds(delay, "delay")
    policy = retry.text() if retry else None
    answer = yield from _settle(ref, "nack", messages, delay_seconds=wait, retry=policy, **failure_out(error))
    return [State(state) for state in answer["states"]]


def bury_many(
    ref: HttpQueueRef, /, messages: Sequence[Message], *, error: BaseException | str | None = None
) -> Call[None]:
    """Makes messages dead at once, without another attempt."""
    yield from _settle(ref, "bury", messages, **failure_out(error))


def release_many(ref: HttpQueueRef, /, messages: Sequence[Message], *, delay: float | timedelta = 0) -> Call[None]:
    """Returns messages to their old position without counting the attempt."""
    yield from _settle(ref, "release", messages, delay_seconds=seconds(delay, "delay"))


def extend_many(
    ref: HttpQueueRef, /, messages: Sequence[Message], *, lease: float | timedelta | None = None
) -> Call[list[str]]:
    """Extends leases, starting now. Returns the IDs whose lease is lost instead of raising."""
    span = None if lease is None else seconds(lease, "lease", least=0.001)
    try:
        answer = yield from _settle(ref, "extend", messages, lease_seconds=span)
    except LeaseLost as error:
        messages[0].cancelled = isinstance(error, MessageCancelled)
        return list(error.ids)
    for message, until in zip(messages, answer["lease_expires_at"], strict=True):
        if until is not None:
            message.expires_ms = until
        message.cancelled = message.cancelled or message.id in answer.get("cancelled", ())
    return list(answer["lost"])
