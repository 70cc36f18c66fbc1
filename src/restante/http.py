"""A queue over HTTP for Python programs that cannot or must not reach Redis: `restante.http.connect(address)`.

It has the methods of `restante.connect()` that send, receive and settle, and raises the same errors. It needs nothing
but the standard library and orjson. On a lost connection a receive or a verdict is not repeated (it may have been
done); a send is: ids are made here, so what was stored by the try before is found and not stored again.
"""

from __future__ import annotations

import base64
import http.client
import os
import platform
import select
import socket
import time
import traceback
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self, Unpack
from urllib.parse import quote, urlsplit

import orjson

from restante.core import errors
from restante.core.errors import InvalidInput, InvalidPayload, LeaseLost, RestanteError, Unavailable, Unconfirmed
from restante.core.keywords import check_keywords, known_keywords
from restante.core.leased_message import LeasedMessage
from restante.core.message import MAX_ERROR, Draft, MessageId, State, new_id
from restante.core.names import valid_name
from restante.core.operations import JSON_TYPES, SendOptions, check_batch, check_messages
from restante.core.queue import check_count, check_timeout, queue_names
from restante.core.retry import RetryPolicy, seconds
from restante.core.settings import QueueOptions, QueueSettings, queue_fields, whole
from restante.core.stored import Stored, check_json_types, decode_json, encode, encode_json

__all__ = ["HttpClient", "HttpMessage", "HttpQueue", "connect"]

#: Seconds of one long poll; a longer wait is several.
POLL = 20.0
#: Seconds over which a send is repeated while the server is away.
PATIENCE = 4.0
#: Idle connections kept.
IDLE = 16
#: The core's name of a setting → HTTP's.
_RENAMED = {"lease": "lease_seconds", "dedup": "dedup_seconds", "max_payload": "max_payload_bytes"}
_OURS = {theirs: ours for ours, theirs in _RENAMED.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERDICTS = {"ack": "acked", "nack": "nacked", "bury": "buried", "release": "released"}
_LOST = (OSError, http.client.HTTPException)


@known_keywords
def connect(
    address: str = "http://localhost:8025",
    *,
    token: str | None = None,
    consumer: str | None = None,
    timeout: float = 10.0,
) -> HttpClient:
    """A post on the server at `address`; the token is given or RESTANTE_TOKEN's. Nothing is asked until it is used."""
    return HttpClient(address, token=token or os.environ.get("RESTANTE_TOKEN"), consumer=consumer, timeout=timeout)


class HttpClient:
    """Connections to one HTTP server; safe to share between threads."""

    def __init__(self, address: str, *, token: str | None, consumer: str | None, timeout: float) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the address of the server is http://host:port, not {address!r}")
        self._made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._at = (parts.hostname, parts.port)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout = timeout
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._closed = False
        self.address = address
        self.consumer = consumer or f"{platform.node() or 'host'}:{os.getpid()}"

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> HttpQueue:
        """The queue of that name. Options are stored with its first use; that needs the role operate."""
        queue_fields(options)
        return HttpQueue(self, name, options)

    def receive_many(
        self, queues: Sequence[str], count: int = 1, timeout: float = 0, *, lease: float | timedelta | None = None
    ) -> list[HttpMessage]:
        """Up to `count` messages from the first of several queues that has any, in the order given."""
        body = {
            "queues": list(queue_names(queues)),
            "count": check_count(count),
            "consumer": self.consumer,
            "pid": os.getpid(),
        }
        return self._receive("/api/receive", body, check_timeout(timeout), lease, {})

    def _receive(
        self,
        path: str,
        body: dict[str, Any],
        timeout: float,
        lease: float | timedelta | None,
        queues: dict[str, HttpQueue],
    ) -> list[HttpMessage]:
        if lease is not None:
            body["lease_seconds"] = seconds(lease, "lease", least=0.001)
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            body["wait_seconds"] = min(left, POLL)
            answer = self.ask("POST", path, body, wait=body["wait_seconds"])
            found = [
                HttpMessage(queues.get(told["queue"]) or self.queue(told["queue"]), told) for told in answer["messages"]
            ]
            if found or deadline - time.monotonic() <= 0:
                return found
            body.pop("acks", None)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        wait: float = 0,
        sends: Sequence[str] = (),
        safe: bool = False,
    ) -> Any:
        """One call of the API. One that is `safe`, or sends messages of these ids, is repeated while nobody answers."""
        text = None if body is None else _dump(body)
        deadline = time.monotonic() + (PATIENCE if sends or safe else 0)
        repeated = False
        while True:
            link, fresh = self._take()
            written = False
            try:
                if link.sock is not None:
                    link.sock.settimeout(self._timeout + wait)
                else:
                    link.timeout = self._timeout
                    link.connect()
                    assert link.sock is not None
                    link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    link.sock.settimeout(self._timeout + wait)
                written = True
                link.request(method, self._prefix + path, text, self._headers)
                answer = link.getresponse()
                status, found = answer.status, answer.read()
            except _LOST as error:
                link.close()
                if time.monotonic() < deadline:
                    if fresh:
                        time.sleep(0.1)
                    repeated = repeated or written
                    continue
                if sends and (written or repeated):
                    raise Unconfirmed(ids=sends) from None
                raise Unavailable(f"{self.address} cannot be reached: {error or type(error).__name__}") from None
            self._give(link)
            if status < 400:
                return decode_json(found) if found else None
            told = _error(status, found)
            if isinstance(told, Unavailable) and (sends or safe) and time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise told

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        if self._closed:
            raise Unavailable("this client is closed: call restante.http.connect() again")
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._made(*self._at), True
            if not _ended(link):
                return link, False
            # Closed by the server while nobody used it. Looked at before anything is written: afterwards nobody could
            # know whether the call was carried out.
            link.close()

    def _give(self, link: http.client.HTTPConnection) -> None:
        if self._closed or len(self._idle) >= IDLE:
            link.close()
        else:
            self._idle.append(link)

    def close(self) -> None:
        """Closes idle connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HttpQueue:
    """A queue behind an HTTP server."""

    def __init__(self, post: HttpClient, name: str, options: QueueOptions) -> None:
        self.name = valid_name(name)
        self._post = post
        self._path = f"/api/queues/{quote(name, safe='')}"
        self._pending = options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _open(self) -> None:
        if self._pending:
            self.configure()

    def configure(self, **options: Unpack[QueueOptions]) -> QueueSettings:
        """Changes settings for every client of the queue, from now on."""
        queue_fields(options)
        body: dict[str, Any] = {}
        for name, value in {**self._pending, **options}.items():
            if isinstance(value, timedelta):
                value = value.total_seconds()
            body[_RENAMED.get(name, name)] = value.text() if isinstance(value, RetryPolicy) else value
        told = self._post.ask("PUT", self._path, body, safe=True)
        self._pending = {}
        return _settings(told)

    @property
    def settings(self) -> QueueSettings:
        """The settings as they stand; needs the role read."""
        self._open()
        return _settings(self._post.ask("GET", self._path, safe=True))

    # -- sending -------------------------------------------------------------------------------------------------

    def send(
        self, payload: Any, *, id: str | None = None, durability: str | None = None, **options: Unpack[SendOptions]
    ) -> MessageId:
        """Puts one message in and returns its id; the options are those of `Queue.send`."""
        check_keywords(options, (*SendOptions.__annotations__, "id", "durability"), "send()")
        return self.send_many([Draft(payload, id=id, **options)], durability=durability)[0]

    def send_many(
        self, messages: Sequence[Any], *, durability: str | None = None, **options: Unpack[SendOptions]
    ) -> list[MessageId]:
        """Puts up to a thousand messages in by one call, all or none; items are payloads or `Draft`s."""
        check_batch(messages)
        if options.get("id") is not None:
            raise InvalidInput("send_many cannot give every message the same id: use Draft(payload, id=…) per message")
        check_keywords(options, (*SendOptions.__annotations__, "durability", "id"), "send_many()")
        items: list[dict[str, Any]]
        if not options and all(type(item) in JSON_TYPES for item in messages):
            items = [{"id": new_id(), "payload": item} for item in messages]
            ours = [item["id"] for item in items]
        else:
            items = [_item(item if type(item) is Draft else Draft(item, **options)) for item in messages]
            ours = [item["id"] if item.pop("ours", False) else None for item in items]
        body: dict[str, Any] = {"messages": items}
        if durability is not None:
            body["durability"] = durability
        self._open()
        try:
            answer = self._post.ask("POST", f"{self._path}/messages", body, sends=[item["id"] for item in items])
        except InvalidPayload:
            for item in items:  # the place in the payload says more than the one in the request
                check_json_types(item.get("payload"), "payload")
            raise
        return [
            MessageId(told["id"]) if told["stored"] or told["id"] == mine else MessageId.of_earlier(told["id"])
            for told, mine in zip(answer["messages"], ours, strict=True)
        ]

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, timeout: float = 0, *, lease: float | timedelta | None = None) -> HttpMessage | None:
        """The next message, leased to you, or None when none came within `timeout` seconds."""
        found = self.receive_many(1, timeout, lease=lease)
        return found[0] if found else None

    def receive_many(
        self,
        count: int,
        timeout: float = 0,
        *,
        lease: float | timedelta | None = None,
        acks: Sequence[HttpMessage] = (),
    ) -> list[HttpMessage]:
        """Up to `count` messages by one call; waits for the first up to `timeout` seconds. `acks` are settled first."""
        self._open()
        body: dict[str, Any] = {"count": check_count(count), "consumer": self._post.consumer, "pid": os.getpid()}
        if acks:
            body["acks"] = _tickets(acks)
        return self._post._receive(f"{self._path}/receive", body, check_timeout(timeout), lease, {self.name: self})

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _settle(self, verb: str, messages: Sequence[HttpMessage], **body: Any) -> Any:
        check_messages(messages)
        words = {name: value for name, value in body.items() if value is not None}
        answer = self._post.ask("POST", f"{self._path}/{verb}", {"messages": _tickets(messages), **words})
        if verb in _VERDICTS:
            for message in messages:
                message.settled, message.verdict = True, _VERDICTS[verb]
        return answer

    def ack_many(self, messages: Sequence[HttpMessage]) -> None:
        """Ends messages in success. Those whose lease is lost are named by LeaseLost; the others are acked."""
        self._settle("ack", messages)

    def nack_many(
        self,
        messages: Sequence[HttpMessage],
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        retry: RetryPolicy | None = None,
    ) -> list[State]:
        """Ends attempts in failure: each message is retrying after `delay` or its retry policy's, or dead."""
        wait = None if delay is None else seconds(delay, "delay")
        policy = retry.text() if retry else None
        answer = self._settle("nack", messages, delay_seconds=wait, retry=policy, **_failure(error))
        return [State(state) for state in answer["states"]]

    def bury_many(self, messages: Sequence[HttpMessage], *, error: BaseException | str | None = None) -> None:
        """Refuses messages for good: dead at once."""
        self._settle("bury", messages, **_failure(error))

    def release_many(self, messages: Sequence[HttpMessage], *, delay: float | timedelta = 0) -> None:
        """Gives messages back at their old position with the attempt not counted."""
        self._settle("release", messages, delay_seconds=seconds(delay, "delay"))

    def extend_many(self, messages: Sequence[HttpMessage], *, lease: float | timedelta | None = None) -> list[str]:
        """Keeps leases longer, counted from now; returns the ids whose lease was lost instead of raising."""
        span = None if lease is None else seconds(lease, "lease", least=0.001)
        try:
            answer = self._settle("extend", messages, lease_seconds=span)
        except LeaseLost as error:
            return list(error.ids)
        for message, until in zip(messages, answer["lease_expires_at"], strict=True):
            if until is not None:
                message.expires_ms = until
        return list(answer["lost"])


class HttpMessage(LeasedMessage):
    """A received message: yours until its lease ends. As a context manager it acks, or nacks with the error."""

    def __init__(self, queue: HttpQueue, told: dict[str, Any]) -> None:
        self.source = queue  # type: ignore[assignment]  # it has the verbs that a message needs of its queue
        self.id = told["id"]
        self.queue = queue.name
        self.consumer = queue._post.consumer
        self.attempts, self.replays, self.suspect = told["attempts"], told["replays"], told["suspect"]
        self.lease_token = told["lease_token"]
        self.received_ms, self.expires_ms = told["received_at"], told["lease_expires_at"]
        self.lease_ms = self.expires_ms - self.received_ms
        self.stored = _stored(told)


def _ended(link: http.client.HTTPConnection) -> bool:
    """Whether an idle connection was closed at the other end; only that makes it readable."""
    if link.sock is None:
        return True
    poller = select.poll()
    poller.register(link.sock, select.POLLIN)
    return bool(poller.poll(0))


# -- over the wire ---------------------------------------------------------------------------------------------------


def _settings(told: dict[str, Any]) -> QueueSettings:
    made = {_OURS.get(name, name): value for name, value in told["settings"].items()}
    return QueueSettings(**{**made, "retry": RetryPolicy.parse(made["retry"]), "paused": told["paused"]})


def _stored(told: dict[str, Any]) -> Stored:
    """The message as it lies in Redis, put together from what the server told of it."""
    is_bytes = "payload_base64" in told
    content_type = told["content_type"] if is_bytes or told["content_type"] != "application/json" else None
    sent_at, expires_at = told["sent_at"], told["expires_at"]
    body, _ = encode(
        base64.b64decode(told["payload_base64"]) if is_bytes else told["payload"],
        kind=told["kind"],
        priority=told["priority"],
        headers=told["headers"],
        content_type=content_type,
        retry=RetryPolicy.parse(told["retry"]) if told["retry"] else None,
        max_attempts=told["max_attempts"],
        unique=told["unique"],
        expires_ms=None if expires_at is None else expires_at - sent_at,
    )
    return Stored(b"0\n%d\t%b" % (sent_at, body))


def _dump(body: Any) -> bytes:
    """JSON as the queue itself checks it: no NaN, string keys only, numbers of any size."""
    return encode_json(body)[0]


def _item(draft: Draft) -> dict[str, Any]:
    """A message as the API takes it, checked as the queue itself would check it."""
    whole(draft.priority, "priority", 0, 255)
    if draft.retry is not None and not isinstance(draft.retry, RetryPolicy):
        raise InvalidInput(f"retry must be a RetryPolicy such as restante.exponential(1), not {draft.retry!r}")
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
    made: dict[str, Any] = {"id": new_id(), "ours": True} if draft.id is None else {"id": draft.id}
    if isinstance(draft.payload, bytes | bytearray | memoryview):
        made["payload_base64"] = base64.b64encode(draft.payload).decode()
    else:
        if type(draft.payload) not in JSON_TYPES:
            encode_json(draft.payload)
        made["payload"] = draft.payload
    plain = {
        "kind": draft.kind or None,
        "priority": draft.priority or None,
        "headers": draft.headers,
        "content_type": draft.content_type,
        "max_attempts": draft.max_attempts,
        "unique": draft.unique,
        "retry": draft.retry.text() if draft.retry else None,
    }
    made |= {name: value for name, value in plain.items() if value is not None}
    if draft.due_at is not None:
        if draft.delay:
            raise InvalidInput("give delay or due_at, not both")
        if not isinstance(draft.due_at, datetime) or draft.due_at.tzinfo is None:
            raise InvalidInput(f"due_at must be an aware datetime such as datetime.now(UTC), not {draft.due_at!r}")
        made["due_at"] = max(0, -((_EPOCH - draft.due_at) // timedelta(milliseconds=1)))
    elif draft.delay != 0 or draft.delay is False:
        made["delay_seconds"] = seconds(draft.delay, "delay")
    if draft.lease is not None:
        made["lease_seconds"] = seconds(draft.lease, "lease", least=0.001)
    if draft.expires is not None:
        made["expires_seconds"] = seconds(draft.expires, "expires")
    if draft.unique_states is not None:
        try:
            made["unique_states"] = sorted(State(state).value for state in draft.unique_states)
        except (ValueError, TypeError):
            raise InvalidInput(f"unique_states must be a set of State members, not {draft.unique_states!r}") from None
    return made


def _tickets(messages: Sequence[HttpMessage]) -> list[dict[str, str]]:
    return [{"id": message.id, "lease_token": message.lease_token} for message in messages]


def _failure(error: BaseException | str | None) -> dict[str, Any]:
    if error is None:
        return {}
    if isinstance(error, BaseException):
        name = "".join(ch for ch in type(error).__name__ if ch.isalnum() or ch in "._")[:80]
        return {"error_class": name, "error": _text("".join(traceback.format_exception(error))[-MAX_ERROR:])}
    return {"error": _text(str(error)[:MAX_ERROR])}


def _text(error: str) -> str:
    """The text without what UTF-8 cannot say."""
    return error.encode("utf-8", "replace").decode()


def _error(status: int, body: bytes) -> RestanteError:
    """The error the server told, as the class it is here."""
    try:
        told = orjson.loads(body)
        name, message = str(told["error"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        name, message, told = "", f"the server answered {status}", {}
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LeaseLost | Unconfirmed):
        return kind(message, ids=told.get("ids") or ())
    if isinstance(kind, type) and issubclass(kind, RestanteError):
        return kind(message)
    if status in (401, 403):
        return InvalidInput(f"{message}: {told.get('hint', '')}")
    if status >= 500:
        return Unavailable(message)
    return InvalidInput(message)
