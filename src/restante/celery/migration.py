"""Moves what waits from Kombu's own Redis transport into Restante's queues, and back.

Each message moves under an id made of its own, so that a move that was killed is repeated without doubles: it is first
put aside on the source, then sent, then removed there. Going back, the target remembers ids until the move is over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import RedisError

from restante.celery import wire
from restante.celery.channel import Channel
from restante.celery.transport import Transport
from restante.core.admin import Admin
from restante.core.errors import InvalidInput, NotFound, RestanteError, Unavailable
from restante.core.message import Message, State
from restante.core.names import valid_name
from restante.core.routes import QueueInfo

#: Between a queue's name and its priority in the keys of Kombu's transport.
SEPARATOR = "\x06\x16"
STEPS = (0, 3, 6, 9)
#: Where a message lies while it moves.
ASIDE = "restante-migration:"
#: Messages between two looks at whether to stop.
PART = 100
_BACK = """
if redis.call('SADD', KEYS[1], ARGV[1]) == 1 then redis.call('LPUSH', KEYS[2], ARGV[2]) return 1 end
return 0
"""

Progress = Callable[[int], None]


def _silent(count: int) -> None:
    """Progress that nobody watches."""


@dataclass
class Found:
    """What waits at a source, by queue."""

    waiting: dict[str, int] = field(default_factory=dict)
    #: Held by workers, or left by ones that died.
    unacked: int = 0
    #: Which of Kombu's four priorities are in use.
    steps: set[int] = field(default_factory=set)

    @property
    def total(self) -> int:
        return sum(self.waiting.values())


@dataclass
class Moved:
    """What a move did."""

    messages: int = 0
    unacked: int = 0
    #: Not understood, and left where they were.
    left: list[str] = field(default_factory=list)


class Migration:
    """From Kombu's Redis at `source` to the broker behind a connection of ours."""

    def __init__(self, source: str, transport: Transport, *, prefix: str = "", invert: bool | None = None) -> None:
        try:
            self._source: Any = redis.Redis.from_url(source, socket_timeout=10, socket_connect_timeout=3)
            self._source.ping()
        except (RedisError, ValueError, OSError) as error:
            raise Unavailable(f"the source cannot be reached: {error}; is its URL redis://host:port/db?") from None
        self._channel: Channel = transport.create_channel(transport)
        self._prefix = prefix
        self._invert = invert

    # -- looking -------------------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Queues that Kombu knows by their bindings, and those with messages."""
        names: set[str] = set()
        for key in self._source.scan_iter(f"{self._prefix}_kombu.binding.*", count=1000):
            for member in self._source.smembers(key):
                names.add(member.decode().rsplit(SEPARATOR, 1)[-1])
        for key in self._source.scan_iter(f"{self._prefix}{ASIDE}*", count=1000, _type="list"):
            names.add(key.decode()[len(self._prefix) + len(ASIDE) :])
        return sorted(name for name in names if name)

    def look(self, queues: list[str] | None = None) -> Found:
        found = Found()
        for queue in queues or self.queues():
            count = self._source.llen(f"{self._prefix}{ASIDE}{queue}")
            for step in STEPS:
                waiting = self._source.llen(self._list(queue, step))
                count += waiting
                if waiting:
                    found.steps.add(step)
            if count:
                found.waiting[queue] = count
        found.unacked = self._source.hlen(f"{self._prefix}unacked")
        return found

    def _list(self, queue: str, step: int) -> str:
        return f"{self._prefix}{queue}{SEPARATOR}{step}" if step else f"{self._prefix}{queue}"

    def check(self, found: Found) -> None:
        """Kombu's Redis serves 0 first, Restante 255 first: where priorities are used somebody must choose."""
        if len(found.steps) > 1 and self._invert is None:
            raise InvalidInput(
                "messages of several priorities wait, and the two brokers order them the other way round: say "
                "--invert-priorities to keep their order, or --keep-priorities to keep their numbers"
            )
        for queue in found.waiting:
            valid_name(queue)

    # -- there ---------------------------------------------------------------------------------------------------

    def move(self, queues: list[str], progress: Progress = _silent, stop: Callable[[], bool] = bool) -> Moved:
        """Moves everything that waits in these queues."""
        moved = Moved()
        for queue in queues:
            aside = f"{self._prefix}{ASIDE}{queue}"
            for step in STEPS:
                while not stop():
                    raw = self._source.lindex(aside, -1) or self._source.lmove(self._list(queue, step), aside, "RIGHT")
                    if raw is None:
                        break
                    if self._send(queue, raw, moved):
                        self._source.lrem(aside, -1, raw)
                    else:
                        self._source.lmove(aside, f"{aside}:left", "RIGHT")
                    progress(moved.messages)
        return moved

    def move_unacked(self, progress: Progress = _silent, stop: Callable[[], bool] = bool) -> Moved:
        """Moves what workers hold. Workers that still run would run it a second time: stop them first."""
        moved = Moved()
        for tag, text in list(self._source.hscan_iter(f"{self._prefix}unacked", count=500)):
            if stop():
                break
            try:
                message, _, routing_key = json.loads(text)
                queue = self._queue_of(message, routing_key)
            except (ValueError, TypeError, KeyError):
                moved.left.append(tag.decode(errors="replace"))
                continue
            if self._send(queue, json.dumps(message).encode(), moved):
                pipe = self._source.pipeline()
                pipe.hdel(f"{self._prefix}unacked", tag).zrem(f"{self._prefix}unacked_index", tag).execute()
                moved.unacked += 1
                progress(moved.unacked)
        return moved

    def _queue_of(self, message: dict[str, Any], routing_key: str) -> str:
        """The queue a held message came from, by the bindings of its exchange."""
        exchange = message["properties"]["delivery_info"]["exchange"]
        for member in self._source.smembers(f"{self._prefix}_kombu.binding.{exchange}"):
            key, _, queue = member.decode().split(SEPARATOR, 2)
            if key == routing_key:
                return str(queue)
        return str(routing_key)

    def _send(self, queue: str, raw: bytes, moved: Moved) -> bool:
        try:
            message = json.loads(raw)
            properties = message["properties"]
            id = valid_name(f"kombu-{properties['delivery_tag']}", "message id")
            body = message["body"]
            if properties.get("body_encoding") == "base64":
                body = base64.b64decode(body)
                if message.get("content-encoding") in ("utf-8", "utf8", None):
                    body = body.decode()
            message["body"] = body
            message.setdefault("headers", {})
        except (ValueError, TypeError, KeyError, RestanteError):
            moved.left.append(raw[:60].decode(errors="replace"))
            return False
        if self._invert:
            properties["priority"] = 9 - min(9, max(0, int(properties.get("priority") or 0)))
        came = properties.get("delivery_info", {})
        exchange, key = came.get("exchange", ""), came.get("routing_key", queue)
        routing = self._channel.desk.routing
        self._channel._send(routing.queue(queue) or QueueInfo(queue), message, exchange, key, id=id)
        moved.messages += 1
        return True

    # -- and back ------------------------------------------------------------------------------------------------

    def waiting_here(self, queue: str) -> int:
        try:
            counts = Admin(self._channel.desk.post).counts(self._channel.desk.name(queue))
        except NotFound:
            return 0
        return counts.ready + counts.scheduled + counts.retrying

    def back(self, queues: list[str], progress: Progress = _silent, stop: Callable[[], bool] = bool) -> Moved:
        """Puts what waits in Restante's queues into Kombu's lists; what is held or dead stays."""
        moved = Moved()
        seen = f"{self._prefix}{ASIDE}back"
        push = self._source.register_script(_BACK)
        admin, desk = Admin(self._channel.desk.post), self._channel.desk
        for queue in queues:
            name = desk.name(queue)
            for state in (State.READY, State.RETRYING, State.SCHEDULED):
                for ids in _parts(admin, name, state):
                    if stop():
                        return moved
                    for id in ids:
                        message = admin.show(name, id)
                        text, step = self._for_kombu(message, queue)
                        push(keys=[seen, self._list(queue, step)], args=[id, text])
                        moved.messages += admin.delete(name, [id], detail="moved to Kombu's transport")
                    progress(moved.messages)
        self._source.delete(seen)
        return moved

    def _for_kombu(self, message: Message, queue: str) -> tuple[str, int]:
        made = wire.parts(message, queue)
        body = made["body"].encode() if isinstance(made["body"], str) else made["body"]
        priority = min(9, message.priority)
        if self._invert:
            priority = 9 - priority
        properties = {
            **made["properties"], "priority": priority, "body_encoding": "base64", "delivery_tag": message.id,
            "delivery_info": {"exchange": made["exchange"], "routing_key": made["routing_key"]},
        }  # fmt: skip
        text = json.dumps({
            "body": base64.b64encode(body).decode(), "content-type": made["content_type"], "headers": made["headers"],
            "content-encoding": made["content_encoding"], "properties": properties,
        })  # fmt: skip
        return text, max(step for step in STEPS if step <= priority)

    def close(self) -> None:
        self._source.close()


def _parts(admin: Admin, queue: str, state: State) -> Iterator[list[str]]:
    """Ids of one state, page by page; what was handled is gone from the next page."""
    before: list[str] = []
    while True:
        ids = [message.id for message in admin.messages(queue, state, limit=PART).messages]
        if not ids or ids == before:
            return
        before = ids
        yield ids
