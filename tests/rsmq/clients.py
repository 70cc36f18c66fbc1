"""RSMQ clients that fill the queues to be read: PyRSMQ itself, and what npm's rsmq writes, command by command."""

from __future__ import annotations

import random
import string
from typing import Any, Protocol

import redis
from rsmq import RedisSMQ  # type: ignore[import-untyped]  # it has no types

from tests.harness.servers import call

_DIGITS = string.digits + string.ascii_lowercase
_TAIL = string.ascii_letters + string.digits


class RsmqClient(Protocol):
    """The calls that the tests use of every client; ids are text."""

    def create(self, queue: str, vt: int = 30, delay: int = 0) -> None: ...

    def send(self, queue: str, message: str | bytes, delay: int | None = None) -> str: ...

    def receive(self, queue: str, vt: int | None = None) -> str | None: ...

    def pop(self, queue: str) -> str | None: ...

    def delete(self, queue: str, id: str) -> None: ...

    def change_visibility(self, queue: str, id: str, vt: int) -> None: ...


class Pyrsmq:
    """PyRSMQ, called with keywords."""

    def __init__(self, client: redis.Redis, namespace: str = "rsmq", *, realtime: bool = False) -> None:
        self.smq: Any = RedisSMQ(client=client, ns=namespace, realtime=realtime)

    def create(self, queue: str, vt: int = 30, delay: int = 0) -> None:
        assert self.smq.createQueue(qname=queue, vt=vt, delay=delay).execute() is True

    def send(self, queue: str, message: str | bytes, delay: int | None = None) -> str:
        options = {} if delay is None else {"delay": delay}
        id = self.smq.sendMessage(qname=queue, message=message, **options).execute()
        assert isinstance(id, str)
        return id

    def receive(self, queue: str, vt: int | None = None) -> str | None:
        options = {} if vt is None else {"vt": vt}
        return self._id(self.smq.receiveMessage(qname=queue, **options).exceptions(False).execute())

    def pop(self, queue: str) -> str | None:
        return self._id(self.smq.popMessage(qname=queue).exceptions(False).execute())

    def delete(self, queue: str, id: str) -> None:
        self.smq.deleteMessage(qname=queue, id=id).execute()

    def change_visibility(self, queue: str, id: str, vt: int) -> None:
        assert self.smq.changeMessageVisibility(qname=queue, id=id, vt=vt).execute() is True

    @staticmethod
    def _id(got: Any) -> str | None:
        return got["id"].decode() if got else None


class Node:
    """The commands of npm's rsmq, one by one, so that it also writes to a cluster."""

    def __init__(self, client: Any, namespace: str = "rsmq", *, realtime: bool = False) -> None:
        self._client = client
        self._namespace = namespace
        self._realtime = realtime
        self._random = random.Random(7)

    def _call(self, *words: str | bytes | float) -> Any:
        return call(self._client, *words)

    def _now_us(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def _keys(self, queue: str) -> tuple[str, str]:
        return f"{self._namespace}:{queue}", f"{self._namespace}:{queue}:Q"

    def create(self, queue: str, vt: int = 30, delay: int = 0) -> None:
        _, messages = self._keys(queue)
        now = self._now_us() // 1_000_000
        for field, value in (("vt", vt), ("delay", delay), ("maxsize", 65536), ("created", now), ("modified", now)):
            assert self._call("HSETNX", messages, field, value)
        self._call("SADD", f"{self._namespace}:QUEUES", queue)

    def new_id(self, now_us: int) -> str:
        stamp = ""
        while now_us:
            now_us, digit = divmod(now_us, 36)
            stamp = _DIGITS[digit] + stamp
        return stamp + "".join(self._random.choices(_TAIL, k=22))

    def send(self, queue: str, message: str | bytes, delay: int | None = None) -> str:
        due, messages = self._keys(queue)
        if delay is None:
            delay = int(self._call("HGET", messages, "delay"))
        now = self._now_us()
        id = self.new_id(now)
        # The body first: npm's client sends both in one MULTI, so no consumer sees an id without a body.
        self._call("HSET", messages, id, message)
        self._call("ZADD", due, now // 1000 + delay * 1000, id)
        self._call("HINCRBY", messages, "totalsent", 1)
        if self._realtime:
            self._call("PUBLISH", f"{self._namespace}:rt:{queue}", self._call("ZCARD", due))
        return id

    def fill(self, queue: str, count: int, *, apart_ms: int) -> list[str]:
        """Sends many ready messages at once; their scores end now, at this distance."""
        due, messages = self._keys(queue)
        now = self._now_us() // 1000
        scores = [now - apart_ms * (count - 1 - i) for i in range(count)]
        ids = [self.new_id(score * 1000) for score in scores]
        self._call("ZADD", due, *(word for pair in zip(scores, ids, strict=True) for word in pair))
        self._call("HSET", messages, *(word for id in ids for word in (id, "payload of " + id)))
        return ids

    def _take(self, queue: str) -> tuple[str, int] | None:
        due, _ = self._keys(queue)
        now = self._now_us() // 1000
        found = self._call("ZRANGEBYSCORE", due, "-inf", now, "LIMIT", 0, 1)
        return (found[0].decode(), now) if found else None

    def receive(self, queue: str, vt: int | None = None) -> str | None:
        due, messages = self._keys(queue)
        if (taken := self._take(queue)) is None:
            return None
        id, now = taken
        if vt is None:
            vt = int(self._call("HGET", messages, "vt"))
        self._call("ZADD", due, now + vt * 1000, id)
        self._call("HINCRBY", messages, "totalrecv", 1)
        if self._call("HINCRBY", messages, f"{id}:rc", 1) == 1:
            self._call("HSET", messages, f"{id}:fr", now)
        return id

    def pop(self, queue: str) -> str | None:
        if (taken := self._take(queue)) is None:
            return None
        self.delete(queue, taken[0])
        return taken[0]

    def delete(self, queue: str, id: str) -> None:
        due, messages = self._keys(queue)
        self._call("ZREM", due, id)
        self._call("HDEL", messages, id, f"{id}:rc", f"{id}:fr")

    def change_visibility(self, queue: str, id: str, vt: int) -> None:
        due, _ = self._keys(queue)
        self._call("ZADD", due, "XX", self._now_us() // 1000 + vt * 1000, id)
