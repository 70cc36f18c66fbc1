"""Calls beyond the protocol, in the same keys: batches, peek, move, dead letters, waiting, consuming."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from restante import InvalidInput
from restante.rsmq import AsyncRsmq, MessageTooLong, QueueNotFound, Rsmq, RsmqReceived
from tests.harness.deadlines import PATIENCE, at_most, took_at_most
from tests.rsmq.clients import Node
from tests.rsmq.conftest import Bench
from tests.rsmq.test_calls import ID, hash_of, scores


class TestBatches:
    def test_many_are_sent_by_one_call_and_received_in_order(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        texts = [f"number {n}" for n in range(1000)]
        before = bench.server.commands_processed()
        ids = rsmq.send_many("orders", texts)
        assert bench.server.commands_processed() - before < 12
        assert len(set(ids)) == 1000
        assert int(hash_of(bench)[b"totalsent"]) == 1000
        got = rsmq.receive_many("orders", 600) + rsmq.receive_many("orders", 1000)
        assert [one.id for one in got] == ids
        assert [one.message for one in got] == texts
        assert {one.rc for one in got} == {1}
        assert set(scores(bench).values()) == {bench.clock.now_ms + 10_000}
        assert rsmq.get_queue_attributes("orders").totalrecv == 1000
        assert rsmq.delete_many("orders", ids) == 1000
        assert rsmq.delete_many("orders", ids[:3]) == 0
        assert len(hash_of(bench)) == 7

    def test_a_batch_is_stored_whole_or_not_at_all(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", maxsize=1024)
        with pytest.raises(MessageTooLong):
            rsmq.send_many("orders", ["short", "x" * 1025])
        assert scores(bench) == {}
        assert b"totalsent" not in hash_of(bench)

    def test_the_queues_delay_holds_for_a_batch_unless_the_call_has_its_own(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", delay=60)
        late, now = rsmq.send_many("orders", ["late"]), rsmq.send_many("orders", ["now"], delay=0)
        assert [one.id for one in rsmq.receive_many("orders", 5)] == now
        bench.clock.advance(60)
        assert [one.id for one in rsmq.receive_many("orders", 5)] == [*now, *late]

    def test_a_batch_is_announced_by_one_word(self, debian: Bench) -> None:
        listener: Any = debian.server.client().pubsub()  # type: ignore[no-untyped-call]  # the driver's
        listener.subscribe("rsmq:rt:orders")
        listener.get_message(timeout=PATIENCE)
        with Rsmq(debian.server.url, realtime=True) as loud:
            loud.create_queue("orders")
            loud.send_many("orders", ["a", "b", "c"])
            loud.send_message("orders", "d")
        assert [listener.get_message(timeout=PATIENCE)["data"] for _ in range(2)] == [b"3", b"4"]
        listener.close()

    def test_a_batch_of_single_ones_counts_again(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=5)
        rsmq.send_many("orders", ["a", "b"], delay=0)
        first = bench.clock.now_ms
        rsmq.receive_many("orders", 2)
        bench.clock.advance(5)
        assert {(one.rc, one.fr) for one in rsmq.receive_many("orders", 5)} == {(2, first)}

    @pytest.mark.parametrize("messages", [[], "text", ["a"] * 1001])
    def test_the_length_of_a_batch_is_bounded(self, rsmq: Rsmq, messages: Any) -> None:
        rsmq.create_queue("orders")
        with pytest.raises(InvalidInput):
            rsmq.send_many("orders", messages)
        with pytest.raises(InvalidInput):
            rsmq.receive_many("orders", len(messages) if len(messages) != 4 else True)
        with pytest.raises(InvalidInput):
            rsmq.delete_many("orders", messages)


class TestLooking:
    def test_peeking_changes_nothing(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=0)
        ids = rsmq.send_many("orders", ["a", "b", "c"])
        rsmq.send_message("orders", "later", delay=60)
        now = bench.clock.now_ms
        rsmq.receive_message("orders")
        before = hash_of(bench), scores(bench)
        assert [(one.id, one.message, one.rc, one.fr) for one in rsmq.peek("orders", 10)] == [
            (ids[0], "a", 1, now),
            (ids[1], "b", 0, 0),
            (ids[2], "c", 0, 0),
        ]
        assert [one.id for one in rsmq.peek("orders")] == ids[:1]
        assert (hash_of(bench), scores(bench)) == before

    def test_purging_keeps_the_queue_its_settings_and_totals(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=7, delay=1, maxsize=2048)
        rsmq.send_many("orders", ["a", "b"], delay=0)
        rsmq.send_message("orders", "later", delay=60)
        rsmq.receive_message("orders")
        before = rsmq.get_queue_attributes("orders")
        assert rsmq.purge("orders") == 3
        after = rsmq.get_queue_attributes("orders")
        assert (after.msgs, after.hiddenmsgs) == (0, 0)
        assert [getattr(after, name) for name in ("vt", "delay", "maxsize", "totalsent", "totalrecv", "created")] == [
            getattr(before, name) for name in ("vt", "delay", "maxsize", "totalsent", "totalrecv", "created")
        ]
        assert len(hash_of(bench)) == 7
        assert rsmq.purge("orders") == 0


class TestMoving:
    def test_what_can_be_received_moves_and_is_new_there(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        rsmq.create_queue("other")
        ids = rsmq.send_many("orders", [str(n) for n in range(450)])
        held = rsmq.receive_message("orders")
        late = rsmq.send_message("orders", "late", delay=60)
        assert held is not None
        assert rsmq.move("orders", "other") == 449
        assert set(scores(bench)) == {held.id.encode(), late.encode()}
        assert {one.decode() for one in scores(bench, "other")} == set(ids) - {held.id}
        assert rsmq.get_queue_attributes("other").totalsent == 449
        assert rsmq.move("orders", "other") == 0
        got = rsmq.receive_message("other")
        assert got is not None
        assert (got.id, got.message, got.rc) == (ids[1], "1", 1)

    def test_chosen_ones_move_hidden_or_not(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        rsmq.create_queue("other")
        ids = rsmq.send_many("orders", ["a", "b", "c"])
        rsmq.receive_message("orders")
        assert rsmq.move("orders", "other", [ids[0], ids[2], ID]) == 2
        assert set(scores(bench)) == {ids[1].encode()}
        assert scores(bench, "other") == {
            ids[0].encode(): bench.clock.now_ms + 10_000,
            ids[2].encode(): bench.clock.now_ms,
        }
        assert not [field for field in (*hash_of(bench), *hash_of(bench, "other")) if field.endswith((b":rc", b":fr"))]

    def test_both_queues_must_be_there_and_differ(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        id = rsmq.send_message("orders", "a")
        with pytest.raises(QueueNotFound) as told:
            rsmq.move("orders", "nowhere", [id])
        assert told.value.queue == "nowhere"
        with pytest.raises(QueueNotFound):
            rsmq.move("nowhere", "orders")
        with pytest.raises(InvalidInput):
            rsmq.move("orders", "orders")
        assert set(scores(bench)) == {id.encode()}


class TestDeadLetters:
    def test_after_its_receives_a_message_goes_to_the_dead(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=0)
        rsmq.create_queue("dead")
        id = rsmq.send_message("orders", "poison")
        first = bench.clock.now_ms
        counts = []
        while (got := rsmq.receive_or_dead_letter("orders", "dead", 3)) is not None:
            counts.append(got.rc)
        assert counts == [1, 2, 3]
        assert scores(bench) == {}
        assert set(hash_of(bench)) == {b"vt", b"delay", b"maxsize", b"created", b"modified", b"totalsent", b"totalrecv"}
        assert rsmq.peek("dead") == [RsmqReceived(id, "poison", 3, first, bench.clock.now_us / 1000)]
        assert rsmq.get_queue_attributes("dead").totalsent == 1

    def test_what_stands_behind_dead_letters_is_received(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=0)
        rsmq.create_queue("dead")
        rsmq.send_many("orders", ["old"] * 450)
        assert len(rsmq.receive_many("orders", 450)) == 450
        bench.clock.advance(1)
        fresh = rsmq.send_message("orders", "fresh")
        got = rsmq.receive_or_dead_letter("orders", "dead", 1)
        assert got is not None
        assert got.id == fresh
        assert rsmq.get_queue_attributes("dead").msgs == 450

    def test_the_queue_for_the_dead_must_be_there(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        rsmq.send_message("orders", "a")
        with pytest.raises(QueueNotFound) as told:
            rsmq.receive_or_dead_letter("orders", "nowhere", 3)
        assert told.value.queue == "nowhere"
        with pytest.raises(InvalidInput):
            rsmq.receive_or_dead_letter("orders", "orders", 3)
        with pytest.raises(InvalidInput):
            rsmq.receive_or_dead_letter("orders", "dead", 0)
        assert b"totalrecv" not in hash_of(bench)


def later(seconds: float, action: Any, *args: Any) -> threading.Timer:
    timer = threading.Timer(seconds, action, args)
    timer.start()
    return timer


@pytest.mark.timed
class TestWaiting:
    @pytest.fixture(autouse=True)
    def _running(self, debian: Bench) -> None:
        debian.clock.unfreeze()

    def test_nothing_comes_within_the_time(self, ours: Rsmq) -> None:
        ours.create_queue("orders")
        begun = time.monotonic()
        with at_most(1):
            assert ours.receive_waiting("orders", 0.3) is None
        assert time.monotonic() - begun >= 0.3
        assert ours.receive_waiting("orders", 0) is None

    def test_what_is_delayed_comes_when_it_is_due(self, debian: Bench, ours: Rsmq) -> None:
        ours.create_queue("orders")
        id = ours.send_message("orders", "a", delay=1)
        with at_most(1.4):
            got = ours.receive_waiting("orders", PATIENCE)
        assert got is not None
        assert got.id == id
        assert got.fr >= got.sent + 999

    def test_an_empty_queue_is_looked_at_once_a_second(self, debian: Bench, ours: Rsmq) -> None:
        ours.create_queue("orders")
        timer = later(0.2, Node(debian.server.client()).send, "orders", "a")
        begun, before = time.monotonic(), debian.server.commands_processed()
        assert ours.receive_waiting("orders", PATIENCE) is not None
        took = time.monotonic() - begun
        took_at_most(took, 1.6)
        assert took > 0.8
        # Each poll is one script of a few commands, besides those of the other client and of the harness.
        assert debian.server.commands_processed() - before < 30 * max(took, 1)
        timer.join()

    def test_a_word_on_the_channel_wakes_at_once(self, debian: Bench) -> None:
        with Rsmq(debian.server.url, realtime=True) as client:
            client.create_queue("orders")
            timer = later(0.2, Node(debian.server.client(), realtime=True).send, "orders", "a")
            with at_most(0.7):
                assert client.receive_waiting("orders", PATIENCE) is not None
            timer.join()

    async def test_the_asyncio_client_is_woken_as_well(self, debian: Bench) -> None:
        async with AsyncRsmq(debian.server.url, realtime=True) as client:
            await client.create_queue("orders")
            waiting = asyncio.create_task(client.receive_waiting("orders", PATIENCE))
            await asyncio.sleep(0.2)
            with at_most(0.5):
                id = await client.send_message("orders", "a")
                got = await waiting
            assert got is not None
            assert got.id == id
            assert await client.receive_waiting("orders", 0.1) is None


class TestConsuming:
    @pytest.fixture(autouse=True)
    def _running(self, debian: Bench) -> None:
        debian.clock.unfreeze()

    def test_what_the_handler_returns_from_is_deleted(self, ours: Rsmq) -> None:
        ours.create_queue("orders")
        ours.send_many("orders", ["a", "b", "c"])
        seen: list[str] = []
        consumer = ours.consume("orders", lambda message: seen.append(message.message), stop_when_empty=True)
        consumer.run()
        assert (seen, consumer.handled, ours.get_queue_attributes("orders").msgs) == (["a", "b", "c"], 3, 0)

    def test_a_message_stays_hidden_while_its_handler_works(self, ours: Rsmq) -> None:
        ours.create_queue("orders", vt=2)
        ours.send_message("orders", "slow")
        others: list[object] = []

        def slow(message: RsmqReceived) -> None:
            until = time.monotonic() + 3.5
            while time.monotonic() < until:
                others.append(ours.receive_message("orders"))
                time.sleep(0.1)

        consumer = ours.consume("orders", slow, stop_when_empty=True)
        consumer.run()
        assert set(others) == {None}
        assert ours.get_queue_attributes("orders").totalrecv == 1

    def test_a_failed_message_comes_again_and_then_is_dead(self, ours: Rsmq) -> None:
        ours.create_queue("orders", vt=30)
        ours.create_queue("dead")
        id = ours.send_message("orders", "poison")
        seen: list[int] = []

        def failing(message: RsmqReceived) -> None:
            seen.append(message.rc)
            raise RuntimeError("no")

        options: dict[str, Any] = {"dead": "dead", "max_receives": 3, "retry_delay": 0, "stop_when_empty": True}
        consumer = ours.consume("orders", failing, **options)
        consumer.run()
        assert (seen, consumer.failed) == ([1, 2, 3], 3)
        assert [one.id for one in ours.peek("dead")] == [id]

    async def test_a_failed_message_of_an_asyncio_consumer_comes_again_and_then_is_dead(self, debian: Bench) -> None:
        async with AsyncRsmq(debian.server.url) as client:
            await client.create_queue("orders", vt=30)
            await client.create_queue("dead")
            id = await client.send_message("orders", "poison")
            seen: list[int] = []

            async def failing(message: RsmqReceived) -> None:
                seen.append(message.rc)
                raise RuntimeError("no")

            options: dict[str, Any] = {"dead": "dead", "max_receives": 3, "retry_delay": 0, "stop_when_empty": True}
            consumer = client.consume("orders", failing, **options)
            await consumer.run()
            assert (seen, consumer.failed) == ([1, 2, 3], 3)
            assert [one.id for one in await client.peek("dead")] == [id]

    def test_a_stop_lets_the_handler_finish(self, ours: Rsmq) -> None:
        ours.create_queue("orders")
        ours.send_many("orders", ["a", "b"])
        begun = threading.Event()

        def slow(message: RsmqReceived) -> None:
            begun.set()
            time.sleep(0.3)

        consumer = ours.consume("orders", slow)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        assert begun.wait(PATIENCE)
        consumer.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        told = ours.get_queue_attributes("orders")
        assert (consumer.handled, told.msgs, told.hiddenmsgs) == (1, 1, 0)

    @pytest.mark.timed
    def test_an_idle_consumer_stops_at_once(self, ours: Rsmq) -> None:
        ours.create_queue("orders")
        consumer = ours.consume("orders", print, look_every=30)
        timer = later(0.2, consumer.stop)
        with at_most(1.5):
            consumer.run()
        timer.join()

    async def test_the_asyncio_consumer_does_the_same(self, debian: Bench) -> None:
        async with AsyncRsmq(debian.server.url, realtime=True) as client:
            await client.create_queue("orders", vt=1)
            seen: list[str] = []

            async def handler(message: RsmqReceived) -> None:
                seen.append(message.message)
                if message.message == "blocking":
                    time.sleep(1.5)  # noqa: ASYNC251 (the heartbeat must not depend on the loop)
                if message.rc == 1 and message.message == "failing":
                    raise RuntimeError("the first time")

            consumer = client.consume("orders", handler, retry_delay=0)
            running = asyncio.create_task(consumer.run())
            await client.send_many("orders", ["blocking", "failing"])
            while (await client.get_queue_attributes("orders")).msgs:  # noqa: ASYNC110 (it happens in Redis)
                await asyncio.sleep(0.02)
            consumer.stop()
            await running
            assert (sorted(seen), consumer.handled, consumer.failed) == (["blocking", "failing", "failing"], 2, 1)

    def test_what_is_told_is_checked_at_once(self, ours: Rsmq) -> None:
        wrong: list[dict[str, Any]] = [
            {"vt": -1},
            {"dead": "dead"},
            {"max_receives": 3},
            {"retry_delay": -1},
            {"look_every": 0},
            {"dead": "not: one", "max_receives": 1},
            {"dead": "dead", "max_receives": 0},
        ]
        for options in wrong:
            with pytest.raises(InvalidInput):
                ours.consume("orders", print, **options)
