"""Known defects of other RSMQ clients: Restante's client does not have them, and copes with their effects."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from restante import Corrupt
from restante.compat.pyrsmq import InvalidParameterValue, RedisSMQ, RedisSMQConsumerThread
from restante.rsmq import InvalidValue, MessageTooLong, QueueNotFound, Rsmq
from tests.harness.deadlines import PATIENCE, took_at_most, wait_until
from tests.harness.servers import call
from tests.rsmq.clients import Pyrsmq
from tests.rsmq.conftest import Bench

ID = "ho7047m26uqdueeIDtLbt6Uf6DLNHZ1x"


@pytest.fixture
def facade(debian: Bench) -> Iterator[RedisSMQ]:
    made = RedisSMQ(debian.client)
    yield made
    made.quit()


def hash_of(bench: Bench) -> dict[bytes, bytes]:
    found: Any = bench.client.hgetall("rsmq:orders:Q")
    return dict(found)


class TestOfPyrsmq:
    def test_the_default_maxsize_is_the_protocols(self, debian: Bench, facade: RedisSMQ) -> None:
        facade.createQueue(qname="orders").execute()
        assert hash_of(debian)[b"maxsize"] == b"65536"
        Pyrsmq(debian.client).create("theirs")
        assert debian.client.hget("rsmq:theirs:Q", "maxsize") == b"65565", "theirs is mended: the guide says otherwise"

    def test_their_maxsize_is_taken_as_it_is(self, debian: Bench, ours: Rsmq) -> None:
        Pyrsmq(debian.client).create("orders")
        assert ours.get_queue_attributes("orders").maxsize == 65565
        ours.send_message("orders", "x" * 65565)
        with pytest.raises(MessageTooLong):
            ours.send_message("orders", "x" * 65566)

    def test_sizes_are_enforced(self, facade: RedisSMQ) -> None:
        facade.createQueue(qname="orders", maxsize=1024).execute()
        with pytest.raises(MessageTooLong):
            facade.sendMessage(qname="orders", message="x" * 1025).execute()

    def test_bad_keywords_raise(self, debian: Bench, facade: RedisSMQ) -> None:
        with pytest.raises(InvalidParameterValue, match="no parameter visibility"):
            facade.createQueue(qname="orders", visibility=10)
        with pytest.raises(InvalidParameterValue, match="no parameter retries"):
            RedisSMQ(debian.client, retries=3)
        with pytest.raises(InvalidValue):
            facade.createQueue(qname="orders", vt="soon").execute()
        assert call(debian.client, "KEYS", "*") == []

    @pytest.mark.parametrize(("message", "stored"), [("", ""), (0, "0"), (False, "false"), ([], "[]"), ({}, "{}")])
    def test_falsy_messages_are_messages(self, facade: RedisSMQ, message: Any, stored: str) -> None:
        facade.createQueue(qname="orders").execute()
        facade.sendMessage(qname="orders", message=message).execute()
        assert facade.popMessage(qname="orders").execute()["message"] == stored

    def test_deleting_what_was_never_received_succeeds(self, facade: RedisSMQ) -> None:
        facade.createQueue(qname="orders").execute()
        id = facade.sendMessage(qname="orders", message="a").execute()
        assert facade.deleteMessage(qname="orders", id=id).execute() is True

    def test_setting_attributes_of_a_missing_queue_leaves_no_hash(self, debian: Bench, facade: RedisSMQ) -> None:
        with pytest.raises(QueueNotFound):
            facade.setQueueAttributes(qname="orders", vt=5).execute()
        assert call(debian.client, "KEYS", "*") == []

    def test_the_hash_that_theirs_leaves_is_no_queue_and_can_be_made_one(self, debian: Bench, ours: Rsmq) -> None:
        theirs = Pyrsmq(debian.client)
        theirs.smq.setQueueAttributes(qname="orders", delay=5).exceptions(False).execute()
        assert debian.client.exists("rsmq:orders:Q")
        with pytest.raises(QueueNotFound):
            ours.send_message("orders", "a")
        assert ours.create_queue("orders") == 1
        assert ours.get_queue_attributes("orders").vt == 30

    def test_realtime_is_published_with_the_length(self, debian: Bench, facade: RedisSMQ) -> None:
        listener = debian.server.client().pubsub()  # type: ignore[no-untyped-call]  # the driver's
        listener.subscribe("rsmq:rt:orders")
        listener.get_message(timeout=PATIENCE)
        loud = RedisSMQ(debian.client, realtime=True)
        facade.createQueue(qname="orders").execute()
        for number in (b"1", b"2"):
            loud.sendMessage(qname="orders", message="a").execute()
            told = listener.get_message(timeout=PATIENCE)
            assert told is not None
            assert told["data"] == number
        loud.quit()
        facade.sendMessage(qname="orders", message="a").execute()
        assert listener.get_message(timeout=0.05) is None
        listener.close()

    def test_created_and_modified_are_by_the_servers_clock(self, debian: Bench, facade: RedisSMQ) -> None:
        facade.createQueue(qname="orders").execute()
        made = debian.clock.now_ms // 1000
        debian.clock.advance(9)
        told = facade.setQueueAttributes(qname="orders", vt=5).execute()
        assert (told["created"], told["modified"]) == (made, made + 9)

    @pytest.mark.timed
    def test_extension_ends_when_the_processor_raises(self, debian: Bench) -> None:
        debian.clock.unfreeze()
        calls: list[float] = []

        def processor(id: str, message: Any, rc: int, ts: int) -> bool:
            calls.append(time.monotonic())
            if rc == 1:
                raise RuntimeError("the first time")
            return True

        with Rsmq(post=debian.post) as client:
            client.create_queue("orders", vt=1)
            client.send_message("orders", "a")
            thread = RedisSMQConsumerThread(
                "orders", processor, client=debian.client, vt=1, retry_delay=1, empty_queue_delay=0.05
            )
            thread.start()
            wait_until(lambda: not client.get_queue_attributes("orders").msgs)
            assert thread.stop(PATIENCE)
            thread.join(PATIENCE)
        assert len(calls) == 2
        assert calls[1] - calls[0] > 0.9
        took_at_most(calls[1] - calls[0], 4)


class TestOfOthers:
    def test_fr_is_when_it_was_first_received_not_when_it_was_first_visible(self, debian: Bench, ours: Rsmq) -> None:
        ours.create_queue("orders")
        ours.send_message("orders", "a", delay=10)
        debian.clock.advance(25)
        got = ours.receive_message("orders")
        assert got is not None
        assert got.fr == debian.clock.now_ms

    @pytest.mark.parametrize("vt", [30_000, 1000, 9_000_000])
    def test_a_vt_in_milliseconds_is_refused_with_a_warning(
        self, debian: Bench, ours: Rsmq, vt: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        rust_queue(debian, vt)
        ours.create_queue("dead")
        id = ours.send_message("orders", "a")
        with caplog.at_level(logging.WARNING, "restante"), pytest.raises(InvalidValue, match="milliseconds"):
            ours.receive_message("orders")
        assert "looks like milliseconds" in caplog.text
        for refused in (
            lambda: ours.receive_many("orders", 2),
            lambda: ours.receive_waiting("orders", 0),
            lambda: ours.receive_or_dead_letter("orders", "dead", 2),
            lambda: ours.consume("orders", print).run(),
        ):
            with pytest.raises(InvalidValue, match="milliseconds"):
                refused()
        assert debian.client.zscore("rsmq:orders", id) == debian.clock.now_ms, "nothing was hidden"

    def test_a_vt_given_with_the_call_is_taken(self, debian: Bench, ours: Rsmq) -> None:
        rust_queue(debian, 30_000)
        ours.send_message("orders", "a")
        assert ours.receive_message("orders", vt=5) is not None

    @pytest.mark.parametrize("vt", [30, 5000])
    def test_a_vt_set_by_us_is_in_seconds(self, debian: Bench, ours: Rsmq, vt: int) -> None:
        rust_queue(debian, 30_000)
        ours.send_message("orders", "a")
        assert ours.set_queue_attributes("orders", vt=vt).totalrecv == 0
        assert ours.receive_message("orders") is not None
        found: Any = debian.client.zrange("rsmq:orders", 0, -1, withscores=True)
        assert found[0][1] == debian.clock.now_ms + vt * 1000

    def test_a_delay_in_milliseconds_is_refused_too(self, debian: Bench, ours: Rsmq) -> None:
        rust_queue(debian, 30_000, delay=5000)
        with pytest.raises(InvalidValue, match="milliseconds"):
            ours.send_message("orders", "a")
        with pytest.raises(InvalidValue, match="milliseconds"):
            ours.send_many("orders", ["a"])
        assert ours.send_message("orders", "a", delay=5)

    @pytest.mark.parametrize("vt", [10_000_000, 86_400_000])
    def test_a_vt_out_of_range_is_refused_whoever_wrote_it(self, debian: Bench, ours: Rsmq, vt: int) -> None:
        ours.create_queue("orders")
        debian.client.hset("rsmq:orders:Q", "vt", vt)
        ours.send_message("orders", "a")
        with pytest.raises(InvalidValue):
            ours.receive_message("orders")

    def test_a_long_vt_of_ours_in_whole_thousands_is_no_milliseconds(self, ours: Rsmq) -> None:
        ours.create_queue("orders", vt=36_000)
        ours.send_message("orders", "a")
        assert ours.receive_message("orders") is not None

    def test_fractions_that_pyrsmq_stores_are_cut_as_node_cuts_them(self, debian: Bench, ours: Rsmq) -> None:
        ours.create_queue("orders")
        debian.client.hset("rsmq:orders:Q", mapping={"vt": "2.9", "delay": "1.9"})
        id = ours.send_message("orders", "a")
        assert debian.client.zscore("rsmq:orders", id) == debian.clock.now_ms + 1000
        debian.clock.advance(1)
        ours.receive_message("orders")
        assert debian.client.zscore("rsmq:orders", id) == debian.clock.now_ms + 2000
        assert (ours.get_queue_attributes("orders").vt, ours.get_queue_attributes("orders").delay) == (2, 1)

    def test_an_id_without_a_body_is_told_and_can_be_deleted(
        self, debian: Bench, ours: Rsmq, caplog: pytest.LogCaptureFixture
    ) -> None:
        ours.create_queue("orders")
        debian.client.zadd("rsmq:orders", {ID: 1})
        good = ours.send_message("orders", "a")
        with pytest.raises(Corrupt, match=ID):
            ours.receive_message("orders", vt=0)
        with caplog.at_level(logging.ERROR, "restante"):
            assert [got.id for got in ours.receive_many("orders", 2, vt=0)] == [good]
        assert ID in caplog.text
        ours.delete_message("orders", ID)
        assert [got.id for got in ours.peek("orders", 9)] == [good]


def rust_queue(bench: Bench, vt: int, delay: int = 0) -> None:
    """A queue as the Rust client makes it: times in milliseconds, and totals that begin with a zero."""
    now = bench.clock.now_ms // 1000
    fields: dict[Any, Any] = {"vt": vt, "delay": delay, "maxsize": 65536, "created": now, "modified": now}
    bench.client.hset("rsmq:orders:Q", mapping=fields | {"totalrecv": 0, "totalsent": 0})
    bench.client.sadd("rsmq:QUEUES", "orders")
