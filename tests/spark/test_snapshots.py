"""Queues as tables: every message of every state once, whole, and nothing in Redis is touched by looking."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import restante
from restante import Client
from restante.core.admin import Admin
from restante.core.errors import InvalidInput, NotFound
from restante.core.message import Message, State, moment
from restante.core.retry import fixed
from restante.rsmq import reader
from restante.spark import snapshot
from restante.spark.schemas import RSMQ, SNAPSHOT
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer, call
from tests.rsmq.clients import Node
from tests.spark.driving import Row, batch_reader, fresh_name, read_all, read_parts, rows_of, sent_over

HOUR = 3600.0
#: A result that text and numbers could spoil on the way.
RESULT = {"sum": 2**70, "words": ["ü", "a\tb\n", None]}


@dataclass
class Desk:
    """A server whose clock stands still, and a client of it."""

    server: RedisServer
    clock: FrozenClock
    post: Client

    @property
    def url(self) -> str:
        return self.post.url

    def keys(self) -> dict[bytes, tuple[Any, int]]:
        """Everything the server holds."""
        client = self.server.client()

        def value(key: bytes) -> Any:
            # The dump of a hash follows the order of its table, which reads may change as it grows.
            return client.hgetall(key) if client.type(key) == b"hash" else call(client, "DUMP", key)

        return {key: (value(key), call(client, "PTTL", key)) for key in call(client, "KEYS", "*")}


@pytest.fixture(scope="module")
def _desk() -> Iterator[Desk]:
    with FrozenClock() as clock, RedisServer(clock=clock) as server, restante.connect(server.url) as post:
        yield Desk(server, clock, post)


@pytest.fixture
def desk(_desk: Desk) -> Desk:
    call(_desk.server.client(), "FLUSHALL")
    return _desk


def every_state(post: Client) -> str:
    """A queue with two messages in each state, of all sorts; returns its name."""
    queue = post.queue(fresh_name("states"), keep_done=10, retry=fixed(HOUR))
    admin = Admin(post)
    queue.send(b"\x00\xff" * 5000, id="dead-1", kind="blob", content_type="image/png")
    queue.send(None, id="dead-2", headers={"a": [1, "ü"]})
    for message in queue.receive_many(2):
        message.bury(error=ValueError(f"no {message.id}"))
    admin.replay(queue.name, ids=["dead-2"])
    (again,) = queue.receive_many(1)
    again.bury(error="plain words")
    queue.send([1], id="retrying-1", priority=9)
    queue.send({"k": "v" * 3000}, id="retrying-2", max_attempts=7)
    for message in queue.receive_many(2):
        message.nack(error=KeyError("k"))
    queue.send("done", id="done-1")
    queue.send(1.5, id="done-2")
    first, second = queue.receive_many(2)
    first.ack()
    second.ack(result=RESULT)
    queue.send("leased", id="leased-1", kind="held")
    queue.send("leased", id="leased-2", lease=7.5)
    for message in queue.receive_many(2, lease=HOUR):
        if message.id == "leased-1":
            message.progress(0.4, "packing ü")
    queue.send("later", id="scheduled-1", delay=HOUR)
    queue.send("later", id="scheduled-2", delay=2 * HOUR, headers={"x": "y"})
    queue.send("now", id="ready-1", priority=200, timeout=2.5)
    queue.send("now", id="ready-2", retry=fixed(1), expires=3 * HOUR)
    return queue.name


def as_row(message: Message) -> Row:
    """What a table must say of a message that core shows whole."""
    last = message.history[-1] if message.history else None
    headers, progress, lease_ms = message.headers, message.last_progress, message.stored.lease_ms
    assert message.whole
    return {
        "queue": message.queue,
        "message_id": message.id,
        "state": message.state.value,
        "kind": message.kind,
        "priority": message.priority,
        "size": message.size,
        "sent_at": message.sent_at,
        "due_at": message.due_at,
        "lease_expires_at": message.lease_expires_at,
        "settled_at": message.settled_at,
        "attempts": message.attempts,
        "max_attempts": message.max_attempts,
        "lease_seconds": lease_ms / 1000 if lease_ms else None,
        "timeout_seconds": message.timeout,
        "expires_at": message.expires_at,
        "replays": message.replays,
        "consumer": message.consumer,
        "error_class": last.error_class if last else "",
        "error": last.error if last else "",
        "progress": progress.fraction if progress else None,
        "progress_step": progress.step if progress else "",
        "progress_at": progress.at if progress else None,
        "result": message.result,
        "payload": message.preview,
        "headers": headers,
        "content_type": message.content_type,
    }


def readable(rows: list[Row]) -> dict[str, Row]:
    """Rows by id, their headers read."""
    assert Counter(row["message_id"] for row in rows).most_common(1)[0][1] == 1
    read = {"headers": "{}", "result": "null"}  # the columns of JSON text, and what an empty one stands for
    return {
        row["message_id"]: row | {name: json.loads(row[name] or empty) for name, empty in read.items()} for row in rows
    }


class TestRows:
    def test_every_message_of_every_state_is_told_as_core_shows_it(self, desk: Desk) -> None:
        queue = every_state(desk.post)
        found = readable(read_all(batch_reader(desk.url, kind="queue")))
        assert Counter(row["state"] for row in found.values()) == {state.value: 2 for state in State}
        admin = Admin(desk.post)
        for id, row in found.items():
            assert row == as_row(admin.show(queue, id)), id

    def test_limits_progress_and_results_are_told(self, desk: Desk) -> None:
        every_state(desk.post)
        found = readable(read_all(batch_reader(desk.url, kind="queue")))
        now = moment(desk.clock.now_ms)
        assert now is not None
        names = ("lease_seconds", "timeout_seconds", "expires_at", "progress", "progress_step", "progress_at", "result")
        told = {id: tuple(row[name] for name in names) for id, row in found.items()}
        empty = (None, None, None, None, "", None, None)
        assert {id: values for id, values in told.items() if values != empty} == {
            "ready-1": (None, 2.5, None, None, "", None, None),
            "leased-1": (None, None, None, 0.4, "packing ü", now, None),
            "leased-2": (7.5, None, None, None, "", None, None),
            "ready-2": (None, None, now + timedelta(hours=3), None, "", None, None),
            "done-2": (None, None, None, None, "", None, RESULT),
        }

    def test_pages_of_large_results_have_few_messages(self, desk: Desk) -> None:
        queue = desk.post.queue(fresh_name("results"), keep_done=1000)
        queue.send_many([1] * 200)
        for message in queue.receive_many(200):
            message.ack(result="x" * 50_000)
        narrow = StructType([SNAPSHOT.spark()[name] for name in ("message_id", "result")])
        reader = batch_reader(desk.url, narrow, kind="done")
        (part,) = reader.partitions()
        pages = [len(rows_of(iter([batch]))) for batch in reader.read(sent_over(part))]
        assert sum(pages) == 200
        assert max(pages) <= snapshot.FIRST_PAGE

    def test_states_can_be_chosen(self, desk: Desk) -> None:
        every_state(desk.post)
        cases: tuple[tuple[dict[str, Any], set[str]], ...] = (
            ({"kind": "dead"}, {"dead"}),
            ({"kind": "done"}, {"done"}),
            ({"kind": "queue", "states": "ready"}, {"ready"}),
            ({"kind": "queue", "states": "leased, retrying"}, {"leased", "retrying"}),
        )
        for told, wanted in cases:
            found = readable(read_all(batch_reader(desk.url, **told)))
            assert Counter(row["state"] for row in found.values()) == dict.fromkeys(wanted, 2)

    def test_several_queues_are_one_table(self, desk: Desk) -> None:
        for name in ("eu.orders", "us.orders", "mail"):
            desk.post.queue(name).send_many(["x"] * 3)
        found = read_all(batch_reader(desk.url, kind="queue", queues="*.orders"))
        assert Counter(row["queue"] for row in found) == {"eu.orders": 3, "us.orders": 3}

    def test_an_empty_state_and_an_unknown_queue_are_empty_tables(self, desk: Desk) -> None:
        desk.post.queue(fresh_name("empty")).send(1)
        assert read_all(batch_reader(desk.url, kind="dead")) == []
        assert read_all(batch_reader(desk.url, kind="queue", queues="none")) == []

    def test_a_large_payload_is_whole(self, desk: Desk) -> None:
        body = bytes(range(256)) * 8192
        desk.post.queue(fresh_name("large")).send(body)
        (row,) = read_all(batch_reader(desk.url, kind="queue"))
        assert row["payload"] == body
        assert row["size"] == len(body)

    def test_columns_beside_the_payload_are_the_same_without_it(self, desk: Desk) -> None:
        every_state(desk.post)
        names = [name for name in reversed(SNAPSHOT.names) if name != "payload"]
        narrow = StructType([SNAPSHOT.spark()[name] for name in names])
        found = read_all(batch_reader(desk.url, narrow, kind="queue"))
        assert [*found[0]] == names
        whole = read_all(batch_reader(desk.url, kind="queue"))
        assert found == [{name: row[name] for name in names} for row in whole]

    def test_columns_it_has_not_are_refused(self, desk: Desk) -> None:
        with pytest.raises(InvalidInput, match="queue has no column position bigint"):
            batch_reader(desk.url, StructType().add("position", "long"), kind="dead")


class TestParts:
    @pytest.fixture
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cuts that a few messages can show."""
        monkeypatch.setattr(snapshot, "LEAST_PART", 1)

    @pytest.mark.parametrize("count", [1, 2, 7, 40])
    def test_cuts_give_every_message_once_also_where_all_scores_are_equal(
        self, desk: Desk, small: None, count: int
    ) -> None:
        queue = desk.post.queue(fresh_name("cut"))
        queue.send_many(["x"] * count)
        for message in queue.receive_many(count):
            message.bury()  # all in one millisecond: only ids tell them apart
        queue.send_many(["y"] * count, priority=3)
        queue.send_many(["z"] * count, priority=255)
        for parts in (1, 2, 3, 7, 16, 60):
            found = read_parts(batch_reader(desk.url, kind="queue", numPartitions=parts))
            assert len(found) <= 2 * parts
            told = Counter((row["state"], row["message_id"]) for part in found for row in part)
            assert set(told.values()) == {1}
            assert told.total() == 3 * count

    def test_long_states_are_read_page_by_page_and_in_real_parts(self, desk: Desk) -> None:
        queue = desk.post.queue(fresh_name("long"))
        for start in range(0, 4500, 900):
            queue.send_many([{"n": number} for number in range(start, start + 900)])
        found = read_parts(batch_reader(desk.url, kind="queue", numPartitions=8))
        assert [len(part) for part in found] == [2250, 2250]
        sent = {row["payload"] for part in found for row in part}
        assert sent == {b'{"n":%d}' % number for number in range(4500)}

    def test_a_message_that_moves_on_between_plan_and_read_is_left_out_not_broken(self, desk: Desk) -> None:
        queue = desk.post.queue(fresh_name("moving"))
        queue.send_many(["x"] * 10)
        reader = batch_reader(desk.url, kind="queue")
        (part,) = reader.partitions()
        for message in queue.receive_many(4):
            message.ack()
        assert len(rows_of(reader.read(sent_over(part)))) == 6


class TestLooking:
    def test_nothing_is_changed_not_even_what_is_overdue(self, desk: Desk) -> None:
        every_state(desk.post)
        client = Node(desk.server.client())
        client.create("old")
        for number in range(5):
            client.send("old", str(number))
        client.receive("old", vt=1)
        desk.clock.advance(10 * HOUR)
        before = desk.keys()
        found = read_all(batch_reader(desk.url, kind="queue"))
        for kind in ("dead", "done", "rsmq", "journal"):
            assert read_all(batch_reader(desk.url, kind=kind))
        assert desk.keys() == before
        assert Counter(row["state"] for row in found) == {state.value: 2 for state in State}


class TestRsmq:
    def test_rows_are_what_its_clients_stored(self, desk: Desk) -> None:
        client = Node(desk.server.client())
        client.create("old")
        now = desk.clock.now_ms
        taken = client.send("old", b"\xff\x00")
        assert client.receive("old", vt=30) == taken
        later = client.send("old", "later", delay=60)
        ready = client.send("old", "now")
        found = {row["message_id"]: row for row in read_all(batch_reader(desk.url, kind="rsmq"))}
        assert {id: (row["state"], row["payload"], row["attempts"]) for id, row in found.items()} == {
            taken: ("leased", b"\xff\x00", 1),
            later: ("scheduled", b"later", 0),
            ready: ("ready", b"now", 0),
        }
        assert {row["queue"] for row in found.values()} == {"old"}
        due = {id: round(row["due_at"].timestamp() * 1000) - now for id, row in found.items()}
        assert due == {taken: 30_000, later: 60_000, ready: 0}
        assert all(round(row["sent_at"].timestamp() * 1000) == now for row in found.values())
        first = [row["first_received_at"] for row in (found[taken], found[later], found[ready])]
        assert [at and round(at.timestamp() * 1000) for at in first] == [now, None, None]

    def test_namespace_and_queues_are_chosen(self, desk: Desk) -> None:
        for namespace, queue in (("rsmq", "a"), ("rsmq", "b"), ("shop", "a")):
            client = Node(desk.server.client(), namespace)
            client.create(queue)
            client.send(queue, f"{namespace} {queue}")

        def payloads(**told: Any) -> list[bytes]:
            return [row["payload"] for row in read_all(batch_reader(desk.url, kind="rsmq", **told))]

        assert payloads() == [b"rsmq a", b"rsmq b"]
        assert payloads(queues="b") == [b"rsmq b"]
        assert payloads(namespace="shop") == [b"shop a"]
        assert payloads(namespace="none") == []

    def test_parts_give_every_message_once(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "SMALLEST_PART", 10)
        client = Node(desk.server.client())
        client.create("long")
        ids = client.fill("long", 500, apart_ms=0)
        narrow = StructType([RSMQ.spark()[name] for name in ("payload", "message_id")])
        found = read_parts(batch_reader(desk.url, narrow, kind="rsmq", numPartitions=6))
        assert len(found) == 6
        assert all(found)
        assert sorted(row["message_id"] for part in found for row in part) == sorted(ids)
        assert all([*row] == ["payload", "message_id"] for part in found for row in part)

    def test_a_queue_that_goes_while_it_is_read_is_told(self, desk: Desk) -> None:
        client = Node(desk.server.client())
        client.create("gone")
        reader = batch_reader(desk.url, kind="rsmq")
        (part,) = reader.partitions()
        call(desk.server.client(), "DEL", "rsmq:gone", "rsmq:gone:Q")
        with pytest.raises(NotFound):
            list(reader.read(part))


class TestWithSpark:
    def test_snapshots_and_rsmq_are_tables(self, spark: SparkSession, post: Client, server: RedisServer) -> None:
        queue = every_state(post)
        client = Node(server.client())
        client.create("old")
        client.send("old", "one")
        reader = spark.read.format("restante").option("url", post.url)
        frame = reader.options(kind="queue", queues=queue).load()
        assert ", ".join(f"`{name}` {type}" for name, type in frame.dtypes) == SNAPSHOT.ddl()
        counted = {row["state"]: row["count"] for row in frame.groupBy("state").count().collect()}
        assert counted == {state.value: 2 for state in State}
        dead = spark.read.format("restante").options(url=post.url, kind="dead", queues=queue).load()
        causes = {row["message_id"]: (row["error_class"], row["payload"]) for row in dead.collect()}
        assert causes == {"dead-1": ("ValueError", b"\x00\xff" * 5000), "dead-2": ("Error", b"null")}
        old = spark.read.format("restante").options(url=post.url, kind="rsmq").load()
        assert [tuple(row) for row in old.select("queue", "payload").collect()] == [("old", b"one")]
