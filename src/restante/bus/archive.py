"""A service's archive on RabbitMQ: lists dead events, and replays them into the queue they died in.

A replay publishes first and removes afterwards. On failure in between the event is in both places, and runs once where
the bus keeps records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import amqp
from kombu import Connection

from restante.bus.amqp_messages import from_headers, unreachable
from restante.bus.client_rabbitmq import CONFIRM, ConnectionPool
from restante.bus.dead import ALL, PAGE, DeadEvent, DeadFilter
from restante.core.errors import NotFound, Unavailable
from restante.rabbitmq.topology import archive_name

#: Headers that the archive adds to a message, and a replay removes.
_ADDED = ("restante_attempts", "restante_subscription", "restante_archived_at", "restante_error_class")


class RabbitDeadLetters:
    """Dead events in a service's archive."""

    def __init__(self, broker: str, service: str) -> None:
        self.service = service
        self._url = broker
        self._queue = archive_name(service)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        """A new channel: messages that it got and did not ack return to their places when it closes."""
        try:
            with Connection(self._url, transport_options={"confirm_publish": True}, connect_timeout=5) as connection:
                yield connection.channel()
        except amqp.exceptions.NotFound:
            raise NotFound(f"RabbitMQ has no archive {self._queue}: no service {self.service} has started") from None
        except ConnectionPool.LOST as error:
            raise unreachable(self._url, error) from None

    def _each(self, channel: Any) -> Iterator[tuple[Any, DeadEvent]]:
        """Every message that is there now, once: those that arrive meanwhile are behind the count."""
        count = channel.queue_declare(self._queue, passive=True).message_count
        for _ in range(count):
            message = channel.basic_get(self._queue)
            if message is None:
                return
            yield message, _dead(message)

    def counts(self) -> dict[str, int]:
        with self._channel() as channel:
            return {self._queue: channel.queue_declare(self._queue, passive=True).message_count}

    def list(self, choice: DeadFilter = ALL, limit: int = PAGE) -> list[DeadEvent]:
        with self._channel() as channel:
            events = []
            for _, event in self._each(channel):
                if choice.matches(event):
                    events.append(event)
                    if len(events) >= limit:
                        break
            return events

    def replay(
        self, choice: DeadFilter = ALL, *, dry_run: bool = False, progress: Callable[[int], None] | None = None
    ) -> int:
        with self._channel() as channel:
            returned: list[Any] = []
            channel.events["basic_return"].add(lambda *returns: returned.append(returns))
            done = 0
            for message, event in self._each(channel):
                if not choice.matches(event):
                    continue
                if not dry_run:
                    again = _again(message)
                    channel.basic_publish(again, "", event.subscription, mandatory=True, confirm_timeout=CONFIRM)
                    if returned:
                        raise Unavailable(
                            f"the queue {event.subscription} is gone, and {event.id} stays in the archive: start the "
                            "service with this handler, or choose others by --subscription"
                        )
                    channel.basic_ack(message.delivery_tag)
                done += 1
                if progress is not None:
                    progress(done)
            return done

    def close(self) -> None:
        pass


def _dead(message: Any) -> DeadEvent:
    headers: Mapping[str, Any] = from_headers(message.headers or {})  # a foreign message may have none
    errors = headers.get("restante_errors") or [{}]
    archived = headers.get("restante_archived_at")
    body = message.body if isinstance(message.body, str) else bytes(message.body).decode(errors="replace")
    return DeadEvent(
        str(headers.get("id") or message.properties.get("message_id") or ""),
        str(headers.get("restante_subscription") or ""),
        str(headers.get("type") or message.properties.get("type") or ""),
        str(headers.get("source") or ""),
        int(headers.get("restante_attempts") or 0),
        datetime.fromisoformat(archived) if archived else None,
        str(headers.get("restante_error_class") or ""),
        str(errors[-1].get("error") or ""),
        body[:10_000],
        int(headers.get("restante_replays") or 0),
    )


def _again(message: Any) -> amqp.Message:
    """The event without its history, so that its attempts start at one."""
    headers = {
        name: value
        for name, value in (message.headers or {}).items()
        if name not in _ADDED and not name.startswith("x-")
    }
    headers["restante_replays"] = int(headers.get("restante_replays") or 0) + 1
    kept = {
        name: message.properties[name]
        for name in ("content_type", "content_encoding", "message_id", "type", "app_id", "timestamp", "priority")
        if message.properties.get(name) is not None
    }
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
    return amqp.Message(body, application_headers=headers, delivery_mode=2, **kept)
