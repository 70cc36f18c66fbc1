"""Finds what was sent: messages that are on the server in any state, and those that `drain` has handled.

On failure an AssertionError that lists what was sent instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from restante.core.errors import InvalidInput
from restante.core.inspector import Inspector
from restante.core.message import Message, State
from restante.core.queue import AsyncQueue, Client, Queue

if TYPE_CHECKING:
    from restante.bus.app import Bus

#: Stands for "not asked for", since None is a payload.
ANY: Final[Any] = type("ANY", (), {"__repr__": lambda self: "ANY"})()
#: Bytes of a payload that are read, more than a server takes.
_WHOLE: Final = 2**31
#: Messages that an error lists.
_LISTED: Final = 20

#: Messages that `drain` has acked since the last clearing, with the server's URL. They are no longer on the server.
_handled: list[tuple[str, Message]] = []


class _Server(Protocol):
    url: str
    settings: Any


def note_handled(url: str, message: Message) -> None:
    """Keeps a message that `drain` is about to ack, for `assert_sent`."""
    _handled.append((url, message))


def forget_handled() -> None:
    """Forgets them: the server was cleared."""
    _handled.clear()


def sent_messages(queue: Queue | AsyncQueue, *, kind: str | None = None, payload: Any = ANY) -> list[Message]:
    """The messages that were sent to a queue and match, oldest first.

    A message counts as long as the server has it, in whatever state, and after `drain` has handled it. One that was
    acked in another way, that has expired or was deleted is gone.
    """
    return [message for message in _all_of(queue) if _matches(message, kind, payload, None)]


def assert_sent(
    queue: Queue | AsyncQueue,
    *,
    kind: str | None = None,
    payload: Any = ANY,
    headers: Mapping[str, Any] | None = None,
    count: int | None = None,
) -> Message:
    """Asserts that a matching message was sent to the queue, or exactly `count` of them; returns the newest.

    `payload` is compared as a whole. Of the message's headers, only those given are compared.
    """
    __tracebackhide__ = True
    everything = _all_of(queue)
    found = [message for message in everything if _matches(message, kind, payload, headers)]
    _judge(found, everything, count, f"to {queue.name}", _wanted(kind=kind, payload=payload, headers=headers))
    return found[-1]


def assert_not_sent(queue: Queue | AsyncQueue, *, kind: str | None = None, payload: Any = ANY) -> None:
    """Asserts that no matching message was sent to the queue."""
    __tracebackhide__ = True
    found = sent_messages(queue, kind=kind, payload=payload)
    if found:
        wanted = _wanted(kind=kind, payload=payload)
        raise AssertionError(f"{len(found)} message(s) were sent to {queue.name}{wanted}:\n{_listed(found)}")


def published_events(bus: Bus | Client, topic: str | None = None, *, data: Any = ANY) -> list[Message]:
    """The events that were published and match, oldest first, each once however many subscriptions got it."""
    return [event for event in _all_events(bus) if _matches(event, topic, data, None)]


def assert_published(
    bus: Bus | Client,
    topic: str,
    *,
    data: Any = ANY,
    headers: Mapping[str, Any] | None = None,
    count: int | None = None,
) -> Message:
    """`assert_sent` for an event of the bus: `topic` is its kind, `data` its payload. Returns the newest.

    An event counts whether or not a service has subscribed to it.
    """
    __tracebackhide__ = True
    everything = _all_events(bus)
    found = [event for event in everything if _matches(event, topic, data, headers)]
    _judge(found, everything, count, f"on the topic {topic}", _wanted(data=data, headers=headers))
    return found[-1]


def _judge(found: list[Message], everything: list[Message], count: int | None, where: str, wanted: str) -> None:
    __tracebackhide__ = True
    if count is not None and count < 1:
        raise InvalidInput("count must be at least 1: use assert_not_sent for none")
    if not found or (count is not None and len(found) != count):
        number = "no message" if not found else f"{len(found)} messages"
        expected = "" if count is None else f", not {count}"
        rest = f"sent were:\n{_listed(everything)}" if everything else "nothing was sent at all"
        raise AssertionError(f"{number}{expected} sent {where}{wanted}; {rest}")


def _matches(message: Message, kind: str | None, payload: Any, headers: Mapping[str, Any] | None) -> bool:
    if kind is not None and message.kind != kind:
        return False
    if payload is not ANY and message.payload != payload:
        return False
    return headers is None or all(message.headers.get(name, ANY) == value for name, value in headers.items())


def _wanted(**asked: Any) -> str:
    words = [f"{name}={value!r}" for name, value in asked.items() if value is not ANY and value is not None]
    return f" with {', '.join(words)}" if words else ""


def _listed(messages: list[Message]) -> str:
    lines = [
        f"  kind={message.kind!r} payload={_short(message.payload)} queue={message.queue} "
        f"state={message.verdict or message.state}"
        for message in messages[:_LISTED]
    ]
    if len(messages) > _LISTED:
        lines.append(f"  and {len(messages) - _LISTED} more")
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _all_of(queue: Queue | AsyncQueue) -> list[Message]:
    if not isinstance(queue, Queue | AsyncQueue):
        raise InvalidInput(f"give a queue, such as client.queue('orders'), not {queue!r}")
    handled = [message for url, message in _handled if url == queue.connection.url and message.queue == queue.name]
    with _inspecting(queue.connection) as inspector:
        return _in_order([*handled, *_present(inspector, queue.name)])


def _all_events(bus: Bus | Client) -> list[Message]:
    client = bus if isinstance(bus, Client) else bus.redis
    if client is None:
        raise InvalidInput("this bus is on RabbitMQ: test its handlers on Redis, or call them as functions")
    by_id: dict[str, Message] = {}
    with _inspecting(client.connection) as inspector:
        known = [message for url, message in _handled if url == client.connection.url]
        for queue in inspector.queues():
            known += _present(inspector, queue)
    for message in known:
        if "specversion" in message.headers:
            by_id.setdefault(message.id, message)
    return _in_order(list(by_id.values()))


@contextlib.contextmanager
def _inspecting(server: _Server) -> Iterator[Inspector]:
    # A client of its own, since that of an AsyncQueue belongs to an event loop.
    with Client(server.url, server.settings) as client:
        yield Inspector(client)


def _present(inspector: Inspector, queue: str) -> Iterator[Message]:
    for state in State:
        yield from inspector.walk(queue, state, preview=_WHOLE)


def _in_order(messages: list[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: (message.stored.sent_ms, message.id))
