"""RSMQ queues when scripts are flushed, replies lost, memory is full, queues deleted or consumers killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.cluster import RedisCluster

import restante
from restante import Corrupt, InvalidInput, QueueFull, Unavailable, Unconfirmed
from restante.rsmq import AsyncRsmq, QueueExists, QueueNotFound, Rsmq
from tests.harness.clock import FrozenClock
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE, at_most, wait_until
from tests.harness.processes import PythonProcess
from tests.harness.proxy import FaultProxy
from tests.harness.servers import HOST, RedisServer, call, debian_binary, embedded_binary, require
from tests.rsmq.clients import Node
from tests.rsmq.conftest import Awaited, Bench
from tests.rsmq.test_calls import scores


class TestScripts:
    def test_a_flush_of_scripts_is_never_noticed(self, rsmq: Rsmq, bench: Bench) -> None:
        def flush() -> None:
            call(bench.client, "SCRIPT", "FLUSH")

        flush()
        rsmq.create_queue("orders", vt=0)
        rsmq.create_queue("other")
        for _ in range(2):
            flush()
            id = rsmq.send_message("orders", "a")
            for made in (
                lambda: rsmq.receive_message("orders"),
                lambda: rsmq.get_queue_attributes("orders"),
                lambda: rsmq.change_message_visibility("orders", id, 0),  # noqa: B023 (called at once)
                lambda: rsmq.receive_or_dead_letter("orders", "other", 9),
                lambda: rsmq.send_many("orders", ["a"]),
                lambda: rsmq.move("orders", "other"),
                lambda: rsmq.pop_message("other"),
                lambda: rsmq.delete_message("orders", id),  # noqa: B023
                lambda: rsmq.purge("orders"),
            ):
                flush()
                made()
        told = rsmq.get_queue_attributes("orders")
        assert (told.msgs, told.totalsent) == (0, 4)

    def test_a_flush_does_not_make_a_queue_seem_made_or_deleted(self, rsmq: Rsmq, bench: Bench) -> None:
        rsmq.create_queue("orders")
        call(bench.client, "SCRIPT", "FLUSH")
        with pytest.raises(QueueExists):
            rsmq.create_queue("orders")
        call(bench.client, "SCRIPT", "FLUSH")
        with pytest.raises(QueueNotFound):
            rsmq.delete_queue("nowhere")

    def test_flushes_under_load_lose_and_double_nothing(self, debian: Bench, ours: Rsmq) -> None:
        debian.clock.unfreeze()
        ours.create_queue("orders")
        ended = threading.Event()

        def flushing() -> None:
            client = debian.server.client()
            while not ended.wait(0.01):
                call(client, "SCRIPT", "FLUSH")

        thread = threading.Thread(target=flushing)
        thread.start()
        try:
            ids = {ours.send_message("orders", str(n)) for n in range(1000)}
            seen = []
            while (got := ours.receive_message("orders")) is not None:
                seen.append(got.id)
                assert ours.delete_message("orders", got.id) == 1
        finally:
            ended.set()
            thread.join()
        assert sorted(seen) == sorted(ids)


class TestLostAnswers:
    @pytest.fixture
    def proxy(self, debian: Bench) -> Iterator[FaultProxy]:
        with FaultProxy(debian.server.port) as proxy:
            yield proxy

    @pytest.fixture
    def far(self, proxy: FaultProxy) -> Iterator[Rsmq]:
        with Rsmq(proxy.url) as client:
            client.create_queue("orders", vt=10)
            yield client

    def test_a_send_is_not_made_again_and_says_so(self, debian: Bench, proxy: FaultProxy, far: Rsmq) -> None:
        far.send_message("orders", "the script is loaded")
        proxy.cut_before_reply(1, b"EVALSHA")
        with pytest.raises(Unconfirmed, match="may or may not be stored"):
            far.send_message("orders", "a")
        assert len(scores(debian)) == 2
        proxy.cut_before_reply(1, b"EVALSHA")
        with pytest.raises(Unconfirmed):
            far.send_many("orders", ["b"] * 3)
        assert len(scores(debian)) in (2, 5), "whole or not at all"
        assert far.send_message("orders", "later") in {id.decode() for id in scores(debian)}

    def test_a_send_that_was_never_written_is_made_again(self, debian: Bench, far: Rsmq) -> None:
        """Without a connection nothing can have been stored, so the call waits for the server."""
        far.client.connection.drive(far.client.connection.pool.remap(None))
        assert far.send_message("orders", "a")
        assert len(scores(debian)) == 1

    @pytest.mark.parametrize("kind", ["blocking", "asyncio"])
    def test_a_connection_that_ended_while_idle_leaves_no_doubt(self, kind: str) -> None:
        with RedisServer(appendonly="everysec") as server:
            client: Any = Rsmq(server.url) if kind == "blocking" else Awaited(server.url)
            client.create_queue("orders")
            client.send_message("orders", "before")
            server.restart()
            if kind == "asyncio":
                client._loop.run_until_complete(asyncio.sleep(0.05))  # it hears of the end when its loop runs
            assert client.send_message("orders", "after")
            assert client.get_queue_attributes("orders").msgs == 2
            client.close()

    def test_a_pop_whose_answer_is_lost_says_so(self, proxy: FaultProxy, far: Rsmq) -> None:
        far.send_many("orders", ["a", "b", "c"])
        assert far.pop_message("orders") is not None
        proxy.cut_before_reply(1, b"EVALSHA")
        with pytest.raises(Unconfirmed, match="popped and lost"):
            far.pop_message("orders")
        got = far.pop_message("orders")
        assert got is not None
        assert got.message == "c"

    def test_a_receive_is_made_again_and_hides_one_more(self, debian: Bench, proxy: FaultProxy, far: Rsmq) -> None:
        ids = far.send_many("orders", ["a", "b", "c"])
        far.receive_message("orders", vt=0)
        proxy.cut_before_reply(1, b"EVALSHA")
        got = far.receive_message("orders")
        assert got is not None
        assert got.id == ids[1]
        debian.clock.advance(10)
        again = [far.receive_message("orders") for _ in range(3)]
        assert {one.id for one in again if one} == set(ids), "nothing is lost: the other shows again"

    def test_queues_are_made_and_deleted_once(self, proxy: FaultProxy, far: Rsmq) -> None:
        far.create_queue("first")
        far.delete_queue("first")
        proxy.cut_before_reply(1, b"EVALSHA")
        assert far.create_queue("other", vt=5) == 1
        proxy.cut_before_reply(1, b"EVALSHA")
        assert far.delete_queue("other") == 1
        assert far.list_queues() == ["orders"]

    def test_settling_calls_are_made_again(self, proxy: FaultProxy, far: Rsmq) -> None:
        id = far.send_message("orders", "a")
        far.change_message_visibility("orders", id, 5)
        proxy.cut_before_reply(2, b"EVALSHA")
        assert far.change_message_visibility("orders", id, 0) == 1
        proxy.drop_request(2, b"EVALSHA")
        assert far.delete_message("orders", id) == 1

    async def test_the_asyncio_client_does_the_same(self, debian: Bench, proxy: FaultProxy) -> None:
        async with restante.aio.connect(proxy.url) as post:
            client = AsyncRsmq(post=post)
            await client.create_queue("orders")
            await client.send_message("orders", "a")
            proxy.cut_before_reply(1, b"EVALSHA")
            with pytest.raises(Unconfirmed):
                await client.send_message("orders", "b")
            assert len(scores(debian)) == 2
            assert await client.receive_message("orders") is not None

    def test_a_server_that_is_away_is_told_as_everywhere(self) -> None:
        with RedisServer() as server:
            url = server.url
        with restante.connect(url, patience=0.2, connect_timeout=0.2) as post, pytest.raises(Unavailable):
            Rsmq(post=post).send_message("orders", "a")


@pytest.mark.parametrize("binary", ["redis", "valkey"])
def test_at_maxmemory_sends_are_refused_and_the_queue_is_drained(binary: str) -> None:
    path: Path = debian_binary() if binary == "redis" else embedded_binary()
    with RedisServer(path) as server, Rsmq(server.url) as rsmq:
        rsmq.create_queue("orders", vt=60)
        rsmq.create_queue("dead")
        ids = rsmq.send_many("orders", ["x" * 1000] * 300)
        client = server.client()
        call(client, "CONFIG", "SET", "maxmemory", "1")
        for refused in (
            lambda: rsmq.send_message("orders", "a"),
            lambda: rsmq.send_many("orders", ["a"]),
            lambda: rsmq.create_queue("more"),
        ):
            with pytest.raises(QueueFull, match="maxmemory"):
                refused()
        seen = []
        for _ in range(50):
            got = rsmq.receive_message("orders")
            assert got is not None
            assert rsmq.change_message_visibility("orders", got.id, 30) == 1
            assert rsmq.delete_message("orders", got.id) == 1
            seen.append(got.id)
        for _ in range(50):
            popped = rsmq.pop_message("orders")
            assert popped is not None
            seen.append(popped.id)
        batch = [one.id for one in rsmq.receive_many("orders", 100)]
        assert rsmq.delete_many("orders", batch) == 100
        assert rsmq.move("orders", "dead", ids[200:250]) == 50
        while (got := rsmq.receive_or_dead_letter("orders", "dead", 3)) is not None:
            rsmq.delete_message("orders", got.id)
            seen.append(got.id)
        assert rsmq.purge("dead") == 50
        assert sorted([*seen, *batch, *ids[200:250]]) == sorted(ids)
        assert rsmq.get_queue_attributes("orders").msgs == 0
        call(client, "CONFIG", "SET", "maxmemory", "0")
        assert rsmq.send_message("orders", "a")


class TestQueues:
    def test_a_queue_deleted_between_calls_is_missing_and_nothing_is_left(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        id = rsmq.send_message("orders", "a")
        rsmq.receive_message("orders")
        with Rsmq(post=bench.post) as other:
            other.delete_queue("orders")
        for refused in (
            lambda: rsmq.send_message("orders", "a"),
            lambda: rsmq.receive_message("orders"),
            lambda: rsmq.change_message_visibility("orders", id, 1),
        ):
            with pytest.raises(QueueNotFound):
                refused()
        assert rsmq.delete_message("orders", id) == 0
        assert call(bench.client, "KEYS", "*") == []

    def test_a_key_of_another_type_is_named(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        bench.client.set("rsmq:orders", "stray")
        with pytest.raises(Corrupt, match="the key rsmq:orders holds a string"):
            rsmq.send_message("orders", "a")
        bench.client.delete("rsmq:orders", "rsmq:orders:Q")
        bench.client.zadd("rsmq:orders", {"x" * 32: 1})
        bench.client.lpush("rsmq:orders:Q", "stray")
        with pytest.raises(Corrupt, match="the key rsmq:orders:Q holds a list"):
            rsmq.receive_message("orders")


CLOCK = """
import sys, time
from restante.rsmq import Rsmq
with Rsmq(sys.argv[1]) as client:
    id = client.send_message("orders", "a", delay=5)
    client.send_message("orders", "b")
    got = client.receive_message("orders", vt=20)
    print(int(time.time()), id, got.fr, flush=True)
"""


def test_the_clock_is_the_servers_alone(debian: Bench) -> None:
    with Rsmq(post=debian.post) as rsmq, FrozenClock() as wrong:
        rsmq.create_queue("orders")
        wrong.offset(-3600)
        child = PythonProcess(CLOCK, debian.server.url, clock=wrong)
        try:
            its_time, id, first = child.wait_line().split()
        finally:
            child.close()
        assert abs(int(its_time) - (time.time() - 3600)) < 900, "the child's clock was wrong, as meant"
        now = debian.clock.now_ms
        assert int(first) == now
        assert int(id[:10], 36) == debian.clock.now_us
        assert sorted(scores(debian).values()) == [now + 5000, now + 20_000]
        debian.clock.back(7200)
        assert rsmq.receive_message("orders") is None
        sent = rsmq.send_message("orders", "c")
        got = rsmq.receive_message("orders")
        assert got is not None
        assert got.id == sent


def test_a_namespace_that_is_a_hash_tag_works_on_a_cluster() -> None:
    require("redis-cli")
    with RedisCluster3() as cluster, restante.connect(cluster.url, patience=10) as post:
        with pytest.raises(InvalidInput, match="hash tag"):
            Rsmq(post=post)
        client = RedisCluster(host=HOST, port=cluster.nodes[0].port)
        namespaces = ["{rsmq}", "{a}", "{b}", "{shop}:rsmq"]
        assert len({cluster.node_of_key(f"{name}:q").port for name in namespaces}) > 1
        for name in namespaces:
            ours = Rsmq(post=post, namespace=name, realtime=True)
            ours.create_queue("orders", vt=0)
            ours.create_queue("dead")
            node = Node(client, name)
            sent = {ours.send_message("orders", "a"), *ours.send_many("orders", ["b", "c"]), node.send("orders", "d")}
            assert node.receive("orders") in sent
            got = ours.receive_waiting("orders", 1)
            assert got is not None
            assert ours.delete_message("orders", got.id) == 1
            assert len(ours.receive_many("orders", 10)) == 3
            assert ours.receive_or_dead_letter("orders", "dead", 1) is None
            assert ours.move("dead", "orders") == 3
            assert ours.pop_message("orders") is not None
            assert ours.list_queues() == ["dead", "orders"]
            assert ours.get_queue_attributes("orders").msgs == 2
            assert ours.purge("orders") == 2
            assert ours.delete_queue("orders") == 1
        client.close()


CONSUMER = """
import sys, time
from restante.rsmq import Rsmq
with Rsmq(sys.argv[1]) as client:
    def handle(message):
        print("begun", message.id, message.rc, flush=True)
        time.sleep(float(message.message))
        print("done", message.id, flush=True)
    client.consume("orders", handle, retry_delay=0).run()
print("ended", flush=True)
"""


@pytest.fixture
def running() -> Iterator[tuple[RedisServer, Rsmq]]:
    with RedisServer() as server, Rsmq(server.url) as rsmq:
        rsmq.create_queue("orders", vt=1)
        yield server, rsmq


@pytest.mark.timed
def test_what_a_killed_consumer_held_is_received_again(running: tuple[RedisServer, Rsmq]) -> None:
    server, rsmq = running
    id = rsmq.send_message("orders", "30")
    first = PythonProcess(CONSUMER, server.url, forked=True)
    try:
        first.wait_line(f"begun {id} 1")
        time.sleep(1.2)  # longer than its vt: the heartbeat keeps it hidden
        assert rsmq.receive_message("orders") is None
        first.kill9()
        with at_most(1 + 1):
            got = rsmq.receive_waiting("orders", PATIENCE)
        assert got is not None
        assert (got.id, got.rc) == (id, 2)
    finally:
        first.close()


def test_sigterm_lets_a_consumer_finish_and_leaves_the_rest(running: tuple[RedisServer, Rsmq]) -> None:
    server, rsmq = running
    ids = rsmq.send_many("orders", ["0.5", "0.5"])
    child = PythonProcess(CONSUMER, server.url, forked=True)
    try:
        child.wait_line(f"begun {ids[0]}")
        child.terminate()
        child.wait_line("ended")
        assert child.wait() == 0
        assert [line.split()[0] for line in child.lines] == ["begun", "done", "ended"]
    finally:
        child.close()
    left: Any = [one.id for one in rsmq.peek("orders", 5)]
    assert left == ids[1:]


def test_a_consumer_waits_for_a_server_that_was_away() -> None:
    seen: list[str] = []
    with RedisServer(appendonly="everysec") as server, restante.connect(server.url, patience=0.1) as post:
        rsmq = Rsmq(post=post)
        rsmq.create_queue("orders")
        consumer = rsmq.consume("orders", lambda message: seen.append(message.message), look_every=0.1)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        for text in ("before", "after"):
            Node(server.client()).send("orders", text)
            wait_until(lambda text=text: text in seen)  # type: ignore[misc]
            if text == "before":
                server.stop()
                time.sleep(0.4)
                server.start()
        consumer.stop()
        thread.join(PATIENCE)
    assert seen == ["before", "after"]
