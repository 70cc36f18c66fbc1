"""The bridge between RSMQ and native queues: each message arrives, and none twice, whatever is killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import restante
from restante import Admin, Client, NotFound, QueueFull
from restante.core.errors import InvalidInput
from restante.rsmq import inspector, transfer
from restante.rsmq.bridge import Bridge, Bridged, take_over
from restante.rsmq.client import Rsmq
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.processes import PythonProcess
from tests.harness.requirements import require
from tests.harness.servers import RedisServer, call
from tests.rsmq.conftest import Bench

#: Kills of the normal run and of the long one, and messages each way per kill.
KILLS, MANY_KILLS, PER_KILL = 10, 80, 150
#: Seconds after which a killed bridge's messages are received again.
LEASE = 1
BRIDGE = """
import sys, restante
from restante.rsmq.bridge import Bridge
with restante.connect(sys.argv[1]) as post:
    bridge = Bridge(post, sys.argv[2], sys.argv[3], back=sys.argv[4] == "back", lease=int(sys.argv[5]))
    print("carrying", flush=True)
    bridge.run()
"""


@pytest.fixture
def rsmq(bench: Bench) -> Rsmq:
    made = Rsmq(post=bench.post)
    made.create_queue("in")
    return made


def payloads(post: Client, queue: str) -> list[Any]:
    taken = post.queue(queue).receive_many(1000)
    if taken:
        post.queue(queue).ack_many(taken)
    return [message.payload for message in taken]


def left(bench: Bench, queue: str) -> tuple[int, set[bytes]]:
    """The length of the sorted set, and the hash without settings and totals."""
    fields = set(call(bench.client, "HKEYS", f"rsmq:{queue}:Q"))
    known = {b"vt", b"delay", b"maxsize", b"created", b"modified", b"totalsent", b"totalrecv"}
    return call(bench.client, "ZCARD", f"rsmq:{queue}"), fields - known


class TestInto:
    def test_messages_go_over_under_their_ids_and_leave_nothing_behind(self, bench: Bench, rsmq: Rsmq) -> None:
        texts = ["hello", '{"n": 1}', "", "12345678901234567890123", "日本"]
        ids = [rsmq.send_message("in", text) for text in texts]
        rsmq.send_message("in", "later", delay=5)
        assert Bridge(bench.post, "in", "orders").drain() == Bridged(moved=5)
        taken = bench.post.queue("orders").receive_many(10)
        assert {message.id: message.payload for message in taken} == dict(zip(ids, texts, strict=True))
        assert taken[0].headers == {"rsmq_queue": "in"}
        bench.clock.advance(5)
        assert Bridge(bench.post, "in", "orders").drain() == Bridged(moved=1)
        assert left(bench, "in") == (0, set())

    def test_a_text_that_is_json_can_arrive_as_its_value(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.send_many("in", ['{"n": 12345678901234567890123}', "[1", "3"])  # a batch keeps its order
        Bridge(bench.post, "in", "orders", decode=True).drain()
        assert payloads(bench.post, "orders") == [{"n": 12345678901234567890123}, "[1", 3]

    def test_what_is_not_text_arrives_as_bytes(self, bench: Bench, rsmq: Rsmq) -> None:
        id = rsmq.send_message("in", "x")
        call(bench.client, "HSET", "rsmq:in:Q", id, b"\xff\xfe")
        Bridge(bench.post, "in", "orders").drain()
        assert payloads(bench.post, "orders") == [b"\xff\xfe"]

    def test_what_another_consumer_received_meanwhile_stays_with_it(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.send_message("in", "x")
        held = rsmq.receive_message("in", vt=1)
        assert held is not None
        bench.clock.advance(2)
        assert rsmq.receive_message("in", vt=60) is not None
        queue = bench.post.queue("orders")
        keys = inspector.keys_of(bench.post, "in")
        queue.ensure_open()
        assert bench.post.connection.run(transfer.forward(queue.ref, keys, held.id, "x", held.rc)) is None
        assert (inspector.counts(bench.post, "in").messages, payloads(bench.post, "orders")) == (1, [])

    def test_what_the_native_queue_has_already_is_only_removed(self, bench: Bench, rsmq: Rsmq) -> None:
        id = rsmq.send_message("in", "x")
        bench.post.queue("orders").send("x", id=id)
        assert Bridge(bench.post, "in", "orders").drain() == Bridged(repeated=1)
        assert payloads(bench.post, "orders") == ["x"]
        assert left(bench, "in") == (0, set())

    def test_what_the_native_queue_does_not_take_stays_and_holds_up_nobody(self, bench: Bench, rsmq: Rsmq) -> None:
        bench.post.queue("orders", max_payload=100)
        rsmq.send_many("in", ["x" * 200, "small"])
        bridge = Bridge(bench.post, "in", "orders", lease=1)
        assert bridge.drain() == Bridged(moved=1, refused=1)
        bench.clock.advance(2)
        assert bridge.drain() == Bridged()
        assert (inspector.counts(bench.post, "in").messages, payloads(bench.post, "orders")) == (1, ["small"])

    def test_a_full_queue_refuses_and_nothing_is_lost(self, bench: Bench, rsmq: Rsmq) -> None:
        bench.post.queue("orders", max_length=2)
        rsmq.send_many("in", ["a", "b", "c"])
        with pytest.raises(QueueFull):
            Bridge(bench.post, "in", "orders").run_once()
        assert inspector.counts(bench.post, "in").messages == 1
        assert payloads(bench.post, "orders") == ["a", "b"]
        bench.clock.advance(31)
        assert Bridge(bench.post, "in", "orders").drain() == Bridged(moved=1)


class TestBack:
    def test_messages_come_back_as_texts_that_tell_when_they_were_sent(self, bench: Bench, rsmq: Rsmq) -> None:
        queue = bench.post.queue("out")
        for payload in ("hello", {"n": 1}, b"plain text", ""):
            queue.send(payload)
        assert Bridge(bench.post, "in", "out", back=True).drain() == Bridged(moved=4)
        got = rsmq.receive_many("in", 10)
        assert [one.message for one in got] == ["hello", '{"n":1}', "plain text", ""]
        assert {round(one.sent) // 1000 for one in got} == {inspector.counts(bench.post, "in").now_ms // 1000}
        assert Admin(bench.post).counts("out").waiting == 0
        assert inspector.counts(bench.post, "in").sent == 4

    @pytest.mark.parametrize("consumed", [False, True])
    def test_killed_before_the_ack_it_is_known_when_it_comes_again(
        self, bench: Bench, rsmq: Rsmq, consumed: bool
    ) -> None:
        queue = bench.post.queue("out")
        queue.send("x")
        message = queue.receive(lease=1)
        assert message is not None
        keys = inspector.keys_of(bench.post, "in")
        bring = transfer.bring(keys, "rsmq", transfer.id_of(message), "x")
        assert bench.post.connection.run(bring) == "brought"
        if consumed:
            assert rsmq.pop_message("in") is not None
        bench.clock.advance(2)
        assert Bridge(bench.post, "in", "out", back=True).drain() == Bridged(repeated=1)
        assert inspector.counts(bench.post, "in").messages == (0 if consumed else 1)
        assert Admin(bench.post).counts("out").waiting == 0

    def test_one_that_was_stopped_with_a_message_in_hand_does_not_bring_it_again(
        self, bench: Bench, rsmq: Rsmq
    ) -> None:
        queue = bench.post.queue("out")
        queue.send("x")
        held = queue.receive(lease=1)
        assert held is not None
        bench.clock.advance(2)
        assert Bridge(bench.post, "in", "out", back=True).drain() == Bridged(moved=1)
        assert rsmq.pop_message("in") is not None
        late = transfer.bring(inspector.keys_of(bench.post, "in"), "rsmq", transfer.id_of(held), "x")
        assert bench.post.connection.run(late) == "known"
        (marker,) = call(bench.client, "KEYS", "restante:bridge:*")
        assert 0 < call(bench.client, "TTL", marker) <= transfer.SETTLED

    def test_what_rsmq_cannot_carry_is_dead_with_the_reason(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.set_queue_attributes("in", maxsize=1024)
        queue = bench.post.queue("out")
        for payload in (b"\xff", "x" * 1025, "😀" * 512):
            queue.send(payload)
        assert Bridge(bench.post, "in", "out", back=True).drain() == Bridged(moved=1, refused=2)
        dead = Admin(bench.post).messages("out", "dead").messages
        assert sorted(one.history[-1].error_class for one in dead) == ["InvalidPayload", "PayloadTooLarge"]

    def test_a_queue_deleted_meanwhile_ends_the_bridge_and_nothing_is_lost(self, bench: Bench, rsmq: Rsmq) -> None:
        bridge = Bridge(bench.post, "in", "out", back=True)
        bench.post.queue("out").send_many([1, 2])
        rsmq.delete_queue("in")
        with pytest.raises(NotFound):
            bridge.run_once()
        counts = Admin(bench.post).counts("out")
        assert (counts.ready, counts.leased) == (2, 0)
        with pytest.raises(NotFound):
            Bridge(bench.post, "in", "out", back=True)


class TestTakingOver:
    def test_chosen_messages_go_and_keep_the_time_they_are_due(self, bench: Bench, rsmq: Rsmq) -> None:
        ready, later, held = (rsmq.send_message("in", text, delay=d) for text, d in (("a", 0), ("b", 60), ("c", 0)))
        stays = rsmq.send_message("in", "d")
        rsmq.change_message_visibility("in", held, 30)
        assert take_over(bench.post, "in", "orders", [ready, later, held, "0" * 32]) == 3
        counts = Admin(bench.post).counts("orders")
        assert (counts.ready, counts.scheduled) == (1, 2)
        bench.clock.advance(31)
        assert payloads(bench.post, "orders") == ["a", "c"]
        assert left(bench, "in") == (1, {stays.encode()})

    def test_a_target_that_gets_nothing_does_not_come_into_being(self, bench: Bench, rsmq: Rsmq) -> None:
        assert take_over(bench.post, "in", "orders", ["0" * 32]) == 0
        assert Admin(bench.post).queues() == []


def test_a_lease_that_makes_no_sense_is_refused(bench: Bench, rsmq: Rsmq) -> None:
    for lease in (0, 1.5, 10_000_000):
        with pytest.raises(InvalidInput):
            Bridge(bench.post, "in", "orders", lease=lease)  # type: ignore[arg-type]


def test_in_a_cluster_it_goes_both_ways_too() -> None:
    require("redis-cli")
    with RedisCluster3() as cluster, restante.connect(cluster.url, patience=10) as post:
        rsmq = Rsmq(post=post, namespace="{rsmq}")
        rsmq.create_queue("in")
        rsmq.send_many("in", ["a", "b"])
        assert Bridge(post, "in", "orders", namespace="{rsmq}").drain() == Bridged(moved=2)
        assert Bridge(post, "in", "orders", namespace="{rsmq}", back=True).drain() == Bridged(moved=2)
        assert [one.message for one in rsmq.receive_many("in", 10)] == ["a", "b"]
        assert take_over(post, "in", "orders", [rsmq.send_message("in", "c")], namespace="{rsmq}") == 1


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def test_connections_cut_again_and_again_lose_and_double_nothing(server: RedisServer) -> None:
    texts = [f"m{number}" for number in range(600)]
    with restante.connect(server.url) as post:
        rsmq = Rsmq(post=post)
        rsmq.create_queue("in")
        rsmq.create_queue("results")
        bridges = [Bridge(post, "in", "orders", lease=1), Bridge(post, "results", "orders", back=True, lease=1)]
        running = [threading.Thread(target=bridge.run, daemon=True) for bridge in bridges]
        for thread in running:
            thread.start()
        admin = server.client()
        for place in range(0, len(texts), 20):
            rsmq.send_many("in", texts[place : place + 20])
            call(admin, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.02)
        got: Counter[str] = Counter()
        deadline = time.monotonic() + PATIENCE
        while len(got) < len(texts):
            assert time.monotonic() < deadline, len(got)
            for one in rsmq.receive_many("results", 100, vt=60):
                got[one.message] += 1
                rsmq.delete_message("results", one.id)
            time.sleep(0.02)
        for bridge in bridges:
            bridge.stop()
        for thread in running:
            thread.join(PATIENCE)
        assert got == Counter(dict.fromkeys(texts, 1))
        assert rsmq.get_queue_attributes("results").msgs == 0


# -- killed --------------------------------------------------------------------------------------------------------


class Traffic:
    """A producer and a consumer on either side of two bridges, and what the consumers got."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count = url, count
        self.into: Counter[Any] = Counter()
        self.back: Counter[Any] = Counter()
        self._stop = threading.Event()
        work = (self._send_rsmq, self._send_native, self._take_native, self._take_rsmq)
        self._threads = [threading.Thread(target=self._with_post, args=(one,), daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def _with_post(self, work: Callable[[Client], None]) -> None:
        with restante.connect(self._url) as post:
            work(post)

    def _send_rsmq(self, post: Client) -> None:
        rsmq = Rsmq(post=post)
        for number in range(0, self._count, 10):
            rsmq.send_many("in", [f"m{n}" for n in range(number, number + 10)])
            time.sleep(0.03)

    def _send_native(self, post: Client) -> None:
        queue = post.queue("out")
        for number in range(0, self._count, 10):
            queue.send_many([f"m{n}" for n in range(number, number + 10)])
            time.sleep(0.03)

    def _take_native(self, post: Client) -> None:
        queue = post.queue("orders")
        while not self._stop.is_set():
            if taken := queue.receive_many(50, 0.2, lease=60):
                self.into.update(message.payload for message in taken)
                queue.ack_many(taken)

    def _take_rsmq(self, post: Client) -> None:
        rsmq = Rsmq(post=post)
        while not self._stop.is_set():
            got = rsmq.receive_many("results", 50, vt=60)
            self.back.update(one.message for one in got)
            if got:
                rsmq.delete_many("results", [one.id for one in got])
            else:
                time.sleep(0.05)

    @property
    def all_there(self) -> bool:
        return len(self.into) >= self._count and len(self.back) >= self._count

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.chaos)])
def test_killed_again_and_again_each_message_arrives_once(server: RedisServer, kills: int) -> None:
    rng = random.Random()
    count = kills * PER_KILL
    ways = (("in", "orders", "into"), ("results", "out", "back"))
    with ExitStack() as opened:
        post = opened.enter_context(restante.connect(server.url))
        rsmq = Rsmq(post=post)
        rsmq.create_queue("in")
        rsmq.create_queue("results")
        # A kill while a message is held counts as an attempt, and no message may become dead in this test.
        post.queue("out", max_attempts=1000).ensure_open()

        def start(way: tuple[str, ...]) -> PythonProcess:
            return opened.enter_context(PythonProcess(BRIDGE, server.url, *way, str(LEASE), forked=True))

        running = {way: start(way) for way in ways}
        traffic = Traffic(server.url, count)
        opened.callback(traffic.close)
        for kill in range(kills):
            way = ways[kill % 2]
            running[way].wait_line("carrying")
            time.sleep(rng.random() * 0.25)
            running[way].kill9()
            running[way] = start(way)
        wait_until(lambda: traffic.all_there, lambda: (len(traffic.into), len(traffic.back)))
        time.sleep(2 * LEASE + 0.5)  # what a killed bridge held would come again now
        for process in running.values():
            process.terminate()
        traffic.close()
        wanted = Counter({f"m{number}": 1 for number in range(count)})
        assert traffic.into == wanted
        assert traffic.back == wanted
        for name in ("in", "results"):
            assert inspector.counts(post, name).messages == 0
        for counts in (Admin(post).counts(name) for name in ("orders", "out")):
            assert (counts.waiting, counts.dead) == (0, 0)
