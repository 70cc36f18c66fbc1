"""Moves waiting messages from Kombu's own Redis transport, or from celery-redis-plus, to Restante, and back.

Each message keeps an id derived from its own, so a move that was killed can be repeated without duplicates: a message
is first put aside at the source, then sent, then removed there. On the way back the source stores the ids that it has
received until the move ends. On failure of the source the move ends with `Unavailable`; started again it continues.
"""

from __future__ import annotations

import base64
import difflib
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import redis
from redis.exceptions import RedisError

from restante.celery.celery_redis_plus import CeleryRedisPlus, due_header
from restante.celery.channel import Channel
from restante.celery.messages import unpack
from restante.celery.transport import Transport
from restante.core.admin import Admin
from restante.core.errors import InvalidInput, NotFound, RestanteError, Unavailable
from restante.core.message import Message, State
from restante.core.names import valid_name
from restante.core.routes import QueueInfo

#: Between a queue's name and its priority in the keys of Kombu's transport.
SEPARATOR = "\x06\x16"
STEPS = (0, 3, 6, 9)
#: Key prefix of the lists that hold a message while it moves.
ASIDE = "restante-migration:"
#: How a source stores messages, named after the transport.
KOMBU, PLUS = LAYOUTS = ("kombu", "celery-redis-plus")
#: Messages between two checks whether to stop.
PART = 100
#: Stores an id after its message: a script that fails half-way is not rolled back, and with the id stored first the
#: next try would take the message for moved.
_BACK = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
return redis.call('SADD', KEYS[1], ARGV[1])
"""

Progress = Callable[[int], None]
Stop = Callable[[], bool]
P = ParamSpec("P")
T = TypeVar("T")


def _typed(work: Callable[P, T]) -> Callable[P, T]:
    """Turns errors of the source's driver into `Unavailable`."""

    @functools.wraps(work)
    def typed(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except RedisError as error:
            raise Unavailable(
                f"the source failed: {error}; repair it and start again: the move continues where it stopped"
            ) from None

    return typed


def _silent(count: int) -> None:
    """Ignores the progress."""


@dataclass
class SourceCounts:
    """The messages at a source, counted by queue."""

    waiting: dict[str, int] = field(default_factory=dict)
    #: Messages that workers hold, or held when they were killed.
    unacked: int = 0
    #: Which of Kombu's four priorities are in use.
    steps: set[int] = field(default_factory=set)
    #: How many of all these are stored by celery-redis-plus.
    plus: int = 0

    @property
    def total(self) -> int:
        return sum(self.waiting.values())


@dataclass
class Moved:
    """The result of a move."""

    messages: int = 0
    unacked: int = 0
    #: Messages that could not be read and were left at the source.
    left: list[str] = field(default_factory=list)


class Migration:
    """Moves messages between Kombu's Redis at `source` and the broker of a Restante transport."""

    def __init__(self, source: str, transport: Transport, *, prefix: str = "", invert: bool | None = None) -> None:
        try:
            self._source: Any = redis.Redis.from_url(source, socket_timeout=10, socket_connect_timeout=3)
            self._source.ping()
        except (RedisError, ValueError, OSError) as error:
            raise Unavailable(f"the source cannot be reached: {error}; is its URL redis://host:port/db?") from None
        self._channel: Channel = transport.create_channel(transport)
        self._prefix = prefix
        self._invert = invert
        self._plus = CeleryRedisPlus(self._source, prefix)

    # -- counting ------------------------------------------------------------------------------------------------

    @_typed
    def queues(self) -> list[str]:
        """The queues at the source that have bindings or messages."""
        names: set[str] = set()
        for key in self._source.scan_iter(f"{self._prefix}_kombu.binding.*", count=1000):
            for member in self._members(key):
                names.add(member.decode().rsplit(SEPARATOR, 1)[-1])
        for key in self._source.scan_iter(f"{self._prefix}{ASIDE}*", count=1000, _type="list"):
            name = key.decode()[len(self._prefix) + len(ASIDE) :]
            names.add(name.removesuffix(":left"))
        return sorted(name for name in names | self._plus.queues() if name)

    def _members(self, key: bytes | str) -> list[bytes]:
        """The bindings of an exchange: a set in Kombu's layout, a sorted set in that of celery-redis-plus."""
        sorted_set = self._source.type(key) == b"zset"
        return list(self._source.zrange(key, 0, -1) if sorted_set else self._source.smembers(key))

    @_typed
    def look(self, queues: list[str] | None = None) -> SourceCounts:
        """Counts the messages at the source."""
        counts = SourceCounts()
        for queue in queues or self.queues():
            count = self._source.llen(f"{self._prefix}{ASIDE}{queue}")
            for step in self._steps(queue):
                count += self._source.llen(self._list(queue, step))
                counts.steps.add(step)
            plus = self._plus.waiting(queue)
            if count + plus:
                counts.waiting[queue] = count + plus
            held = sum(1 for _ in self._plus.held(queue))
            counts.plus += plus + held
            counts.unacked += held
        counts.unacked += self._source.hlen(f"{self._prefix}unacked")
        return counts

    def _steps(self, queue: str) -> list[int]:
        """The priority steps that have a list."""
        return [step for step in STEPS if self._source.type(self._list(queue, step)) == b"list"]

    def _list(self, queue: str, step: int) -> str:
        return f"{self._prefix}{queue}{SEPARATOR}{step}" if step else f"{self._prefix}{queue}"

    def check(self, counts: SourceCounts) -> None:
        """Raises if the order of priorities must be chosen first: Kombu's Redis delivers 0 first, Restante 255."""
        if len(counts.steps) > 1 and self._invert is None:
            raise InvalidInput(
                "messages of several priorities wait, and the two brokers order them in opposite directions: use "
                "--invert-priorities to keep their order, or --keep-priorities to keep their numbers"
            )
        if counts.plus and not counts.steps and self._invert:
            raise InvalidInput(
                "celery-redis-plus delivers 255 first, as Restante does: leave --invert-priorities out, or the order "
                "of the waiting messages is reversed"
            )
        for queue in counts.waiting:
            valid_name(queue)

    # -- to Restante ---------------------------------------------------------------------------------------------

    @_typed
    def move(self, queues: list[str], progress: Progress = _silent, stop: Stop = bool) -> Moved:
        """Moves the waiting messages of these queues."""
        moved = Moved()
        for queue in queues:
            aside = f"{self._prefix}{ASIDE}{queue}"
            for step in (None, *self._steps(queue)):
                while not stop():
                    raw = self._source.lindex(aside, -1)
                    if raw is None and step is not None:
                        raw = self._source.lmove(self._list(queue, step), aside, "RIGHT")
                    if raw is None:
                        break
                    if self._send(queue, raw, moved):
                        self._source.lrem(aside, -1, raw)
                    else:
                        self._source.lmove(aside, f"{aside}:left", "RIGHT")
                    progress(moved.messages)
            for tags in (self._plus.in_line, self._plus.delayed):
                self._move_tags(queue, tags(queue), moved, progress, stop)
        return moved

    def _move_tags(self, queue: str, tags: Iterator[str], moved: Moved, progress: Progress, stop: Stop) -> None:
        """Moves messages of celery-redis-plus: each is sent, then removed there; a repeated send changes nothing."""
        places = None
        for tag in tags:
            if stop():
                return
            if places is None:
                places = self._plus.places(queue, self.queues())
                self._source.set(f"{self._prefix}{ASIDE}layout", PLUS)
            payload, priority, eta = self._plus.read(tag)
            if payload is None:
                moved.left.append(f"{tag}: its payload has expired by message_ttl")
            if payload is not None and self._send(queue, payload, moved, priority=priority, eta=eta):
                self._plus.finish(tag, places)
            else:
                self._plus.set_aside(tag, places, f"{self._prefix}{ASIDE}{queue}:left")
            progress(moved.messages)

    @_typed
    def move_unacked(self, progress: Progress = _silent, stop: Stop = bool) -> Moved:
        """Moves the messages that workers hold. Stop the workers first: a running one would run its tasks twice."""
        moved = Moved()
        for queue in self.queues():
            before = moved.messages
            held = iter(list(self._plus.held(queue)))
            self._move_tags(queue, held, moved, lambda _: progress(moved.messages), stop)
            moved.unacked += moved.messages - before
        for tag, text in list(self._source.hscan_iter(f"{self._prefix}unacked", count=500)):
            if stop():
                break
            try:
                message, _, routing_key = json.loads(text)
                queues = self._queues_of(message, routing_key)
            except (ValueError, TypeError, KeyError, re.error):
                moved.left.append(tag.decode(errors="replace"))
                continue
            raw = json.dumps(message).encode()
            if all(self._send(queue, raw, moved) for queue in queues):
                pipe = self._source.pipeline()
                pipe.hdel(f"{self._prefix}unacked", tag).zrem(f"{self._prefix}unacked_index", tag).execute()
                moved.unacked += 1
                progress(moved.unacked)
        return moved

    def _queues_of(self, message: dict[str, Any], routing_key: str) -> list[str]:
        """The queues a held message may have come from, by the bindings of its exchange.

        Kombu stores a held message without the queue it was received from. Like Kombu's own recovery, this returns
        every queue that is bound for it.
        """
        exchange = message["properties"]["delivery_info"]["exchange"]
        queues = set()
        for member in self._members(f"{self._prefix}_kombu.binding.{exchange}"):
            key, pattern, queue = member.decode().split(SEPARATOR, 2)
            if key == routing_key or (pattern and re.match(pattern, routing_key)):
                queues.add(queue)
        return sorted(queues) or [str(routing_key)]

    def _send(self, queue: str, raw: bytes, moved: Moved, *, priority: int | None = None, eta: float = 0.0) -> bool:
        """Sends a Kombu message to a queue; returns False if it cannot be read. `priority` is not inverted."""
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
        if priority is not None:
            properties["priority"] = priority
            if properties.pop("eta", None) and not message["headers"].get("eta") and eta:
                message["headers"]["eta"] = due_header(eta)
        elif self._invert:
            properties["priority"] = 9 - min(9, max(0, int(properties.get("priority") or 0)))
        origin = properties.get("delivery_info", {})
        exchange, key = origin.get("exchange", ""), origin.get("routing_key", queue)
        routing = self._channel.broker.routing
        self._channel.publisher.send(routing.queue(queue) or QueueInfo(queue), message, exchange, key, id=id)
        moved.messages += 1
        return True

    # -- back to the source --------------------------------------------------------------------------------------

    def queues_here(self) -> list[str]:
        """The queues of the Restante broker."""
        broker = self._channel.broker
        prefix = broker.full_name("")
        return [name[len(prefix) :] for name in Admin(broker.client).queues() if name.startswith(prefix)]

    def waiting_here(self, queue: str) -> int:
        """Messages that wait in a queue of the Restante broker, including scheduled ones."""
        try:
            counts = Admin(self._channel.broker.client).counts(self._channel.broker.full_name(queue))
        except NotFound:
            return 0
        return counts.ready + counts.scheduled + counts.retrying

    @_typed
    def layout(self, asked: str | None = None) -> str:
        """The layout for the way back: as asked, or that of the messages moved here before, or that of the source."""
        if asked is not None and asked not in LAYOUTS:
            near = difflib.get_close_matches(asked, LAYOUTS, 1) or LAYOUTS
            known = " and ".join(LAYOUTS)
            raise InvalidInput(f"--layout {asked!r} is not known: did you mean {near[0]}? Known are {known}")
        if asked is None and self._plus.older:
            raise InvalidInput(
                "the source is used by a celery-redis-plus before 0.3, to which no messages can be moved back: update "
                "it and use --layout celery-redis-plus, or use --layout kombu for Kombu's own transport"
            )
        kept = self._source.get(f"{self._prefix}{ASIDE}layout")
        return asked or (kept.decode() if kept else PLUS if self._plus.there else KOMBU)

    @_typed
    def back(
        self, queues: list[str], progress: Progress = _silent, stop: Stop = bool, *, layout: str | None = None
    ) -> Moved:
        """Moves waiting messages from Restante to the source; leased and dead messages stay."""
        moved = Moved()
        plus = self.layout(layout) == PLUS
        seen = f"{self._prefix}{ASIDE}back"
        push = self._source.register_script(_BACK)
        admin, broker = Admin(self._channel.broker.client), self._channel.broker
        for queue in queues:
            name = broker.full_name(queue)
            for state in (State.READY, State.RETRYING, State.SCHEDULED):
                for ids in _parts(admin, name, state):
                    if stop():
                        return moved
                    for id in ids:
                        message = admin.show(name, id)
                        if plus:
                            text, _ = self._for_kombu(message, queue, plus=True)
                            at = (message.priority, message.sent_at, message.due_at)
                            self._plus.put(seen, queue, id, text, *at)
                        else:
                            text, step = self._for_kombu(message, queue)
                            push(keys=[seen, self._list(queue, step)], args=[id, text])
                        moved.messages += admin.delete(name, [id], detail="moved to Kombu's transport")
                    progress(moved.messages)
        self._source.delete(seen)
        return moved

    def _for_kombu(self, message: Message, queue: str, *, plus: bool = False) -> tuple[str, int]:
        """A message in Kombu's format as JSON, and its priority step."""
        parts = unpack(message, queue)
        body = parts["body"].encode() if isinstance(parts["body"], str) else parts["body"]
        priority = message.priority if plus else min(9, message.priority)
        if self._invert and not plus:
            priority = 9 - priority
        eta = {"eta": message.due_at.timestamp()} if plus and message.due_at is not None else {}
        properties = {
            **parts["properties"],
            **eta,
            "priority": priority,
            "body_encoding": "base64",
            "delivery_tag": message.id,
            "delivery_info": {"exchange": parts["exchange"], "routing_key": parts["routing_key"]},
        }
        text = json.dumps(
            {
                "body": base64.b64encode(body).decode(),
                "content-type": parts["content_type"],
                "headers": parts["headers"],
                "content-encoding": parts["content_encoding"],
                "properties": properties,
            }
        )
        return text, max(step for step in STEPS if step <= priority)

    def close(self) -> None:
        self._source.close()


def _parts(admin: Admin, queue: str, state: State) -> Iterator[list[str]]:
    """Ids of one state, page by page; the caller removes the messages of each page before the next."""
    before: list[str] = []
    while True:
        ids = [message.id for message in admin.messages(queue, state, limit=PART).messages]
        if not ids or ids == before:
            return
        before = ids
        yield ids
