"""A consumer as users build it, without Spark: each batch overwrites its place in the sink, then gives its verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import restante
from restante import Client
from restante.core.admin import Admin
from restante.core.message import State
from restante.core.queue import Queue
from restante.core.retry import fixed
from restante.spark import leases
from restante.spark.writer import Written
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer
from tests.spark.driving import Query, Row, fresh_name, stream_reader, written

#: Seconds of a lease: far beyond any test's real time, so that only a moved clock ends one.
LEASE = 60.0
#: Seconds an ownership lasts unless renewed.
OWNED = 0.4
#: Seconds after which an ownership given back is nobody's.
MOMENT = 0.002


def ack(_: Row) -> str:
    return "ack"


def ids(rows: Sequence[Row] | None) -> list[str]:
    return [row["message_id"] for row in rows or []]


@dataclass
class Desk:
    """A server whose clock is moved by hand, and one queue of it."""

    server: RedisServer
    clock: FrozenClock
    post: Client
    queue: Queue = field(init=False)
    works: list[Work] = field(default_factory=list)

    @contextmanager
    def fresh(self) -> Iterator[Desk]:
        """With a queue of its own whose messages may fail four times; stops what a test leaves running."""
        self.fresh_queue(retry=fixed(0, 0, 0, 0))
        with pytest.MonkeyPatch.context() as patch:
            # A predecessor's end is waited for by the real clock.
            patch.setattr(leases, "OWNED_SECONDS", OWNED)
            patch.setattr(leases, "LOOK", OWNED / 20)
            yield self
            while self.works:
                self.works.pop().stop()

    def fresh_queue(self, **options: Any) -> Queue:
        self.queue = self.post.queue(fresh_name("leased"), **options)
        return self.queue

    def send(self, count: int, **options: Any) -> list[str]:
        parts = [range(start, min(start + 1000, count)) for start in range(0, count, 1000)]
        made = [self.queue.send_many([{"n": number} for number in part], **options) for part in parts]
        return [str(id) for part in made for id in part]

    def states(self) -> dict[str, int]:
        counts = Admin(self.post).counts(self.queue.name)
        return {state.value: getattr(counts, state.value) for state in State if getattr(counts, state.value)}

    def events(self) -> Counter[str]:
        entries = Admin(self.post).journal(self.queue.name, limit=1_000_000)
        return Counter(entry.event.value for entry in entries)

    def end_leases(self) -> None:
        """Lets every lease and ownership end that nobody renews."""
        self.clock.advance(LEASE + 1)

    def work(self, consumer: str = "", **told: Any) -> Work:
        return Work(self, consumer or fresh_name("scoring"), told)


@contextmanager
def opened_desk() -> Iterator[Desk]:
    with FrozenClock() as clock, RedisServer(clock=clock) as server, restante.connect(server.url) as post:
        yield Desk(server, clock, post)


class Work:
    """One query of a consumer and its sink; `judge` says a row's verdict."""

    def __init__(
        self,
        desk: Desk,
        consumer: str,
        told: dict[str, Any],
        judge: Callable[[Row], str] = ack,
        query: Query | None = None,
    ) -> None:
        self.desk = desk
        self.consumer = consumer
        self.told = told
        self.judge = judge
        self.query = query or Query(lambda: stream_reader(desk.post.url, **self._options()))
        #: What lies in the sink, by the number of the batch.
        self.sink: dict[int, list[Row]] = {}
        desk.works.append(self)

    def _options(self) -> dict[str, Any]:
        named = {"kind": "leases", "queue": self.desk.queue.name, "consumer": self.consumer, "leaseSeconds": LEASE}
        return {**named, **self.told}

    def write(self) -> list[Row]:
        """The planned batch into the sink, in the place of whatever an earlier try left there."""
        rows = [{**row, "verdict": self.judge(row)} for row in self.query.rows()]
        self.sink[self.query.checkpoint.commits] = rows
        return rows

    def settle(self, rows: Sequence[Row]) -> Written:
        needed = ("message_id", "lease_token", "attempts", "retry", "verdict")
        chosen = [{name: row[name] for name in needed} for row in rows]
        if not chosen:
            return Written()
        return written(self.desk.post.url, chosen, op="settle", queue=self.desk.queue.name, consumer=self.consumer)

    def batch(self) -> list[Row] | None:
        """One whole batch; None where there is nothing to do."""
        if not self.query.plan():
            return None
        rows = self.write()
        self.settle(rows)
        self.query.commit()
        return rows

    def drain(self, most: int = 100) -> int:
        """Batches until there is nothing to do; returns how many."""
        for count in range(most):
            if self.batch() is None:
                return count
        raise AssertionError("the query does not end")

    def crash(self) -> Work:
        """The process is gone: checkpoint, sink and Redis stay."""
        return self._again(self.query.crashed())

    def restart(self) -> Work:
        """The query ended as it does when only its driver died, or when it was stopped: its last words were heard."""
        made = self._again(self.query.restarted())
        self.desk.clock.advance(MOMENT)
        return made

    def _again(self, query: Query) -> Work:
        made = Work(self.desk, self.consumer, self.told, self.judge, query)
        made.sink = self.sink
        return made

    def stop(self) -> None:
        self.query.stop()
        self.desk.clock.advance(MOMENT)

    def acked(self) -> Counter[str]:
        """How often each message came out of the sink with success."""
        return Counter(row["message_id"] for rows in self.sink.values() for row in rows if row["verdict"] == "ack")
