"""Client for queues over HTTP, for Python programs that cannot reach Redis: `restante.http.connect(address)`.

It has the methods of `restante.connect()` that send, receive and settle, and raises the same errors. It needs only the
standard library and orjson. If the connection is lost, a receive or a verdict is not repeated, because it may have
been executed. A send is repeated: the client creates the IDs, so a repeated send stores nothing twice.
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

#: Seconds of one long poll. A longer wait takes several polls.
POLL = 20.0
#: Seconds for which a send is repeated while the server is unavailable.
PATIENCE = 4.0
#: Idle connections kept open.
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
    """A client of the server at `address`. The token defaults to RESTANTE_TOKEN. It connects with the first call."""
    return HttpClient(address, token=token or os.environ.get("RESTANTE_TOKEN"), consumer=consumer, timeout=timeout)


class HttpClient:
    """Connections to one HTTP server; safe to share between threads."""

    def __init__(self, address: str, *, token: str | None, consumer: str | None, timeout: float) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the address of the server must be http://host:port, not {address!r}")
        self._connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
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
        """The queue with this name. Options are stored at its first use, which needs the role operate."""
        queue_fields(options)
        return HttpQueue(self, name, options)

    def receive_many(
        self, queues: Sequence[str], count: int = 1, timeout: float = 0, *, lease: float | timedelta | None = None
    ) -> list[HttpMessage]:
        """Receives up to `count` messages from the first queue that has any, trying them in the given order."""
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
            messages = [
                HttpMessage(queues.get(fields["queue"]) or self.queue(fields["queue"]), fields)
                for fields in answer["messages"]
            ]
            if messages or deadline - time.monotonic() <= 0:
                return messages
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
        """Makes one API call. A call that is `safe`, or sends messages with the IDs `sends`, is repeated on failure."""
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
                status, content = answer.status, answer.read()
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
                return decode_json(content) if content else None
            failure = _error(status, content)
            if isinstance(failure, Unavailable) and (sends or safe) and time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise failure

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        if self._closed:
            raise Unavailable("this client is closed: call restante.http.connect() again")
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._connection_class(*self._at), True
            if not _ended(link):
                return link, False
            # The server closed it while it was idle. This is checked before writing, because afterwards it would be
            # unknown whether the call was executed.
            link.close()

    def _give(self, link: http.client.HTTPConnection) -> None:
        if self._closed or len(self._idle) >= IDLE:
            link.close()
        else:
            self._idle.append(link)

    def close(self) -> None:
        """Closes the client and its idle connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HttpQueue:
    """A queue of an HTTP server; its methods are those of `Queue`."""

    def __init__(self, client: HttpClient, name: str, options: QueueOptions) -> None:
        self.name = valid_name(name)
        self._client = client
        self._path = f"/api/queues/{quote(name, safe='')}"
        self._pending = options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _open(self) -> None:
        if self._pending:
            self.configure()

    def configure(self, **options: Unpack[QueueOptions]) -> QueueSettings:
        """Changes settings of the queue for all its clients."""
        queue_fields(options)
        body: dict[str, Any] = {}
        for name, value in {**self._pending, **options}.items():
            if isinstance(value, timedelta):
                value = value.total_seconds()
            body[_RENAMED.get(name, name)] = value.text() if isinstance(value, RetryPolicy) else value
        answer = self._client.ask("PUT", self._path, body, safe=True)
        self._pending = {}
        return _settings(answer)

    @property
    def settings(self) -> QueueSettings:
        """The current settings; needs the role read."""
        self._open()
        return _settings(self._client.ask("GET", self._path, safe=True))

    # -- sending -------------------------------------------------------------------------------------------------

    def send(
        self, payload: Any, *, id: str | None = None, durability: str | None = None, **options: Unpack[SendOptions]
    ) -> MessageId:
        """Sends one message and returns its ID; the options are those of `Queue.send`."""
        check_keywords(options, (*SendOptions.__annotations__, "id", "durability"), "send()")
        return self.send_many([Draft(payload, id=id, **options)], durability=durability)[0]

    def send_many(
        self, messages: Sequence[Any], *, durability: str | None = None, **options: Unpack[SendOptions]
    ) -> list[MessageId]:
        """Sends up to a thousand messages in one call, all or none. Items are payloads or `Draft`s."""
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
            answer = self._client.ask("POST", f"{self._path}/messages", body, sends=[item["id"] for item in items])
        except InvalidPayload:
            for item in items:  # its error names the place in the payload, not the one in the request
                check_json_types(item.get("payload"), "payload")
            raise
        return [
            MessageId(sent["id"]) if sent["stored"] or sent["id"] == mine else MessageId.of_earlier(sent["id"])
            for sent, mine in zip(answer["messages"], ours, strict=True)
        ]

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, timeout: float = 0, *, lease: float | timedelta | None = None) -> HttpMessage | None:
        """Receives and leases the next message; returns None if none arrives within `timeout` seconds."""
        messages = self.receive_many(1, timeout, lease=lease)
        return messages[0] if messages else None

    def receive_many(
        self,
        count: int,
        timeout: float = 0,
        *,
        lease: float | timedelta | None = None,
        acks: Sequence[HttpMessage] = (),
    ) -> list[HttpMessage]:
        """Receives up to `count` messages, waiting up to `timeout` seconds. Settles `acks` in the same call."""
        self._open()
        body: dict[str, Any] = {"count": check_count(count), "consumer": self._client.consumer, "pid": os.getpid()}
        if acks:
            body["acks"] = _tickets(acks)
        return self._client._receive(f"{self._path}/receive", body, check_timeout(timeout), lease, {self.name: self})

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _settle(self, verb: str, messages: Sequence[HttpMessage], **body: Any) -> Any:
        check_messages(messages)
        words = {name: value for name, value in body.items() if value is not None}
        answer = self._client.ask("POST", f"{self._path}/{verb}", {"messages": _tickets(messages), **words})
        if verb in _VERDICTS:
            for message in messages:
                message.settled, message.verdict = True, _VERDICTS[verb]
        return answer

    def ack_many(self, messages: Sequence[HttpMessage]) -> None:
        """Acks messages. LeaseLost lists those whose lease is lost; the others are acked."""
        self._settle("ack", messages)

    def nack_many(
        self,
        messages: Sequence[HttpMessage],
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        retry: RetryPolicy | None = None,
    ) -> list[State]:
        """Nacks messages: each is retried after `delay` or its policy's delay, or is dead after its last attempt."""
        wait = None if delay is None else seconds(delay, "delay")
        policy = retry.text() if retry else None
        answer = self._settle("nack", messages, delay_seconds=wait, retry=policy, **_failure(error))
        return [State(state) for state in answer["states"]]

    def bury_many(self, messages: Sequence[HttpMessage], *, error: BaseException | str | None = None) -> None:
        """Makes messages dead at once, without another attempt."""
        self._settle("bury", messages, **_failure(error))

    def release_many(self, messages: Sequence[HttpMessage], *, delay: float | timedelta = 0) -> None:
        """Returns messages to their old position without counting the attempt."""
        self._settle("release", messages, delay_seconds=seconds(delay, "delay"))

    def extend_many(self, messages: Sequence[HttpMessage], *, lease: float | timedelta | None = None) -> list[str]:
        """Extends leases, starting now. Returns the IDs whose lease is lost instead of raising."""
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
    """A received message, leased until `lease_expires_at`. As a context manager it acks, or nacks on an exception."""

    def __init__(self, queue: HttpQueue, fields: dict[str, Any]) -> None:
        self.source = queue  # type: ignore[assignment]  # it has the methods that a message calls on its queue
        self.id = fields["id"]
        self.queue = queue.name
        self.consumer = queue._client.consumer
        self.attempts, self.replays, self.suspect = fields["attempts"], fields["replays"], fields["suspect"]
        self.lease_token = fields["lease_token"]
        self.received_ms, self.expires_ms = fields["received_at"], fields["lease_expires_at"]
        self.lease_ms = self.expires_ms - self.received_ms
        self.stored = _stored(fields)


def _ended(link: http.client.HTTPConnection) -> bool:
    """Whether the server closed an idle connection; only that makes its socket readable."""
    if link.sock is None:
        return True
    poller = select.poll()
    poller.register(link.sock, select.POLLIN)
    return bool(poller.poll(0))


# -- JSON ---------------------------------------------------------------------------------------------------


def _settings(answer: dict[str, Any]) -> QueueSettings:
    fields = {_OURS.get(name, name): value for name, value in answer["settings"].items()}
    return QueueSettings(**{**fields, "retry": RetryPolicy.parse(fields["retry"]), "paused": answer["paused"]})


def _stored(fields: dict[str, Any]) -> Stored:
    """The stored form of a message, rebuilt from the server's JSON."""
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
    )
    return Stored(b"0\n%d\t%b" % (sent_at, body))


def _dump(body: Any) -> bytes:
    """Encodes JSON by the rules of the core: no NaN, string keys only, numbers of any size."""
    return encode_json(body)[0]


def _item(draft: Draft) -> dict[str, Any]:
    """A message in the form of the API, checked like a `Queue` checks it."""
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
    item: dict[str, Any] = {"id": new_id(), "ours": True} if draft.id is None else {"id": draft.id}
    if isinstance(draft.payload, bytes | bytearray | memoryview):
        item["payload_base64"] = base64.b64encode(draft.payload).decode()
    else:
        if type(draft.payload) not in JSON_TYPES:
            encode_json(draft.payload)
        item["payload"] = draft.payload
    plain = {
        "kind": draft.kind or None,
        "priority": draft.priority or None,
        "headers": draft.headers,
        "content_type": draft.content_type,
        "max_attempts": draft.max_attempts,
        "unique": draft.unique,
        "retry": draft.retry.text() if draft.retry else None,
    }
    item |= {name: value for name, value in plain.items() if value is not None}
    if draft.due_at is not None:
        if draft.delay:
            raise InvalidInput("give delay or due_at, not both")
        if not isinstance(draft.due_at, datetime) or draft.due_at.tzinfo is None:
            raise InvalidInput(f"due_at must be an aware datetime such as datetime.now(UTC), not {draft.due_at!r}")
        item["due_at"] = max(0, -((_EPOCH - draft.due_at) // timedelta(milliseconds=1)))
    elif draft.delay != 0 or draft.delay is False:
        item["delay_seconds"] = seconds(draft.delay, "delay")
    if draft.lease is not None:
        item["lease_seconds"] = seconds(draft.lease, "lease", least=0.001)
    if draft.expires is not None:
        item["expires_seconds"] = seconds(draft.expires, "expires")
    if draft.unique_states is not None:
        try:
            item["unique_states"] = sorted(State(state).value for state in draft.unique_states)
        except (ValueError, TypeError):
            raise InvalidInput(f"unique_states must be a set of State members, not {draft.unique_states!r}") from None
    return item


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
    """The text without characters that UTF-8 cannot encode."""
    return error.encode("utf-8", "replace").decode()


def _error(status: int, body: bytes) -> RestanteError:
    """The exception for a failure response, of the same class as on the server."""
    try:
        problem = orjson.loads(body)
        name, message = str(problem["error"]), str(problem["message"])
    except (ValueError, KeyError, TypeError):
        name, message, problem = "", f"the server answered {status}", {}
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LeaseLost | Unconfirmed):
        return kind(message, ids=problem.get("ids") or ())
    if isinstance(kind, type) and issubclass(kind, RestanteError):
        return kind(message)
    if status in (401, 403):
        return InvalidInput(f"{message}: {problem.get('hint', '')}")
    if status >= 500:
        return Unavailable(message)
    return InvalidInput(message)
