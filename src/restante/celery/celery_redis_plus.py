"""Reads and writes the queues of celery-redis-plus: waiting, delayed and held messages.

| Key, after its `global_keyprefix` | Type | Holds |
|---|---|---|
| `message:<tag>` | hash | `payload` (Kombu's message), `routing_key` (the queue), `priority`, `eta`, `native_delayed` |
| `queue:<queue>`, before 0.2.3 `<queue>` | sorted set | tags that wait, high priority first, then by time |
| `messages_index:<queue>`, before 0.3 `messages_index` | sorted set | every tag that is not acked |
| `_kombu.binding.<exchange>` | sorted set, before 0.4 set | routing key, pattern and queue, as Kombu has them |

A tag that is indexed and does not wait is delayed, or held by a worker. A message that is published to several queues
has one tag and one hash, which is removed with its last queue. Priorities are RabbitMQ's: 255 first, as in Restante.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

#: Tags that one call reads.
PAGE = 200
#: A message whose delay is longer than these seconds is kept out of the queue until it is due.
DELAYED = 60.0
#: Seconds until celery-redis-plus checks a message that was moved back: its visibility_timeout and its interval.
LOOK_AGAIN = 360.0
#: Distance between two priorities in the scores of celery-redis-plus since 0.2.3.
SPAN = 10**13

_FINISH = """
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
for place = 4, #KEYS do
  if redis.call('ZSCORE', KEYS[place], ARGV[1]) then return 0 end
end
return redis.call('DEL', KEYS[1])
"""
#: Stores an id after its message, as the script of `Migration.back` does for Kombu's lists.
_PUT = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end
redis.call('HSET', KEYS[2], 'payload', ARGV[2], 'routing_key', ARGV[3], 'priority', ARGV[4], 'native_delayed', ARGV[5],
  'eta', ARGV[6], 'delivery_count', '0')
redis.call('ZADD', KEYS[3], ARGV[7], ARGV[1])
if ARGV[5] == '0' then redis.call('ZADD', KEYS[4], ARGV[8], ARGV[1]) end
return redis.call('SADD', KEYS[1], ARGV[1])
"""


class CeleryRedisPlus:
    """The queues of celery-redis-plus at one source."""

    def __init__(self, source: Any, prefix: str) -> None:
        self._source = source
        self._prefix = prefix
        self._finish = source.register_script(_FINISH)
        self._put = source.register_script(_PUT)
        self._score = 0

    # -- counting ------------------------------------------------------------------------------------------------

    def queues(self) -> set[str]:
        """Queues with waiting or indexed messages."""
        names: set[str] = set()
        for lead in ("queue:", "messages_index:"):
            for key in self._source.scan_iter(f"{_literal(self._prefix + lead)}*", count=1000, _type="zset"):
                names.add(key.decode()[len(self._prefix) + len(lead) :])
        if self.older:
            names.update(queue for _, queue in self._indexed_by_all())
        return names

    @property
    def there(self) -> bool:
        """Whether celery-redis-plus has used this source."""
        bindings = self._source.scan_iter(f"{_literal(self._prefix)}_kombu.binding.*", count=1000, _type="zset")
        return self.older or bool(self.queues()) or any(True for _ in bindings)

    @property
    def older(self) -> bool:
        """Whether the source has the single index of versions before 0.3."""
        return bool(self._source.type(f"{self._prefix}messages_index") == b"zset")

    def waiting(self, queue: str) -> int:
        """Messages that wait or are delayed."""
        in_line = sum(int(self._source.zcard(key)) for key in self._lines(queue))
        return in_line + sum(1 for _ in self.delayed(queue))

    def _lines(self, queue: str) -> list[str]:
        """The sorted sets that hold the waiting tags of a queue."""
        keys = (f"{self._prefix}queue:{queue}", f"{self._prefix}{queue}")
        return [key for key in keys if self._source.type(key) == b"zset"]

    def _index(self, queue: str) -> str:
        own = f"{self._prefix}messages_index:{queue}"
        return f"{self._prefix}messages_index" if self.older and not self._source.exists(own) else own

    # -- tags ----------------------------------------------------------------------------------------------------

    def in_line(self, queue: str) -> Iterator[str]:
        """Waiting tags in their order; the caller must finish or set aside each before the next."""
        for key in self._lines(queue):
            while tags := self._source.zrange(key, 0, 0):
                yield tags[0].decode()

    def delayed(self, queue: str) -> Iterator[str]:
        """Tags that are due later and do not wait in the queue."""
        return (tag for tag, delayed in self._beside(queue) if delayed)

    def held(self, queue: str) -> Iterator[str]:
        """Tags that workers hold, or held when they were killed."""
        return (tag for tag, delayed in self._beside(queue) if not delayed)

    def _beside(self, queue: str) -> Iterator[tuple[str, bool]]:
        """Tags that are indexed and do not wait, and whether they are delayed."""
        lines, seen = self._lines(queue), set()
        for tags in _pages(self._source.zscan_iter(self._index(queue), count=PAGE)):
            pipe = self._source.pipeline(transaction=False)
            for tag in tags:
                pipe.hmget(f"{self._prefix}message:{tag}", "routing_key", "native_delayed", "delayed", "payload")
                for key in lines:
                    pipe.zscore(key, tag)
            answers = iter(pipe.execute())
            for tag in tags:
                routed, native, early, payload = next(answers)
                waits = [next(answers) for _ in lines]
                elsewhere = self.older and routed is not None and routed.decode() != queue
                waits_or_seen = tag in seen or any(score is not None for score in waits)
                seen.add(tag)  # a scan may return a tag twice
                if payload is not None and not elsewhere and not waits_or_seen:
                    yield tag, b"1" in (native, early)

    def _indexed_by_all(self) -> Iterator[tuple[str, str]]:
        for tags in _pages(self._source.zscan_iter(f"{self._prefix}messages_index", count=PAGE)):
            pipe = self._source.pipeline(transaction=False)
            for tag in tags:
                pipe.hget(f"{self._prefix}message:{tag}", "routing_key")
            for tag, queue in zip(tags, pipe.execute(), strict=True):
                if queue is not None:
                    yield tag, queue.decode()

    # -- moving --------------------------------------------------------------------------------------------------

    def read(self, tag: str) -> tuple[bytes | None, int, float]:
        """The payload, the priority and the due time as a timestamp, 0 for none."""
        payload, priority, eta = self._source.hmget(f"{self._prefix}message:{tag}", "payload", "priority", "eta")
        return payload, int(priority or 0), float(eta or 0)

    def places(self, queue: str, queues: list[str]) -> tuple[list[str], str, list[str]]:
        """The keys with a queue's tags: its lines, its index, and those of other queues that may have the message."""
        others = [name for name in queues if name != queue]
        rest = [key for name in others for key in (*self._lines(name), f"{self._prefix}messages_index:{name}")]
        return self._lines(queue) or [f"{self._prefix}queue:{queue}"], self._index(queue), rest

    def finish(self, tag: str, places: tuple[list[str], str, list[str]]) -> None:
        """Removes a tag from its queue, and its message unless another queue has it."""
        lines, index, rest = places
        for line in lines:
            self._finish(keys=[f"{self._prefix}message:{tag}", line, index, *rest], args=[tag])

    def set_aside(self, tag: str, places: tuple[list[str], str, list[str]], left: str) -> None:
        """Removes an unreadable tag from its queue; its message stays and does not expire."""
        lines, index, _ = places
        pipe = self._source.pipeline()
        pipe.rpush(left, tag).persist(f"{self._prefix}message:{tag}").zrem(index, tag)
        for line in lines:
            pipe.zrem(line, tag)
        pipe.execute()

    def put(
        self, seen: str, queue: str, tag: str, payload: str, priority: int, sent: datetime, due: datetime | None
    ) -> None:
        """Stores a message once, in the layout of version 0.3 and newer."""
        now = time.time()
        eta = due.timestamp() if due is not None else 0.0
        delayed = eta - now > DELAYED
        # Equal scores would be ordered by tag.
        self._score = max(self._score + 1, int(sent.timestamp() * 1000))
        score = (255 - priority) * SPAN + self._score
        names = (f"message:{tag}", f"messages_index:{queue}", f"queue:{queue}")
        keys = [seen, *(self._prefix + name for name in names)]
        look_at = eta if delayed else now + LOOK_AGAIN
        self._put(keys=keys, args=[tag, payload, queue, priority, int(delayed), eta, look_at, score])


def due_header(eta: float) -> str:
    """A due time in the format of Celery's eta header."""
    return datetime.fromtimestamp(eta, UTC).isoformat()


def _literal(text: str) -> str:
    """Escapes the characters that have a meaning in a pattern of SCAN."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)


def _pages(members: Any) -> Iterator[list[str]]:
    """The tags of a scan, `PAGE` at a time."""
    page: list[str] = []
    for tag, _ in members:
        page.append(tag.decode())
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page
