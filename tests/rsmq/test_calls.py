"""Every call: what it returns, writes and refuses, by the server's clock, key by key."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from restante import InvalidInput, NotFound, PayloadTooLarge, RestanteError
from restante.rsmq import (
    AsyncRsmq,
    InvalidFormat,
    InvalidValue,
    MessageNotString,
    MessageTooLong,
    MissingParameter,
    NoAttributeSupplied,
    QueueAttributes,
    QueueExists,
    QueueNotFound,
    ReservedName,
    Rsmq,
    RsmqError,
    RsmqReceived,
)
from tests.harness.servers import call
from tests.rsmq.conftest import Bench

ID = "ho7047m26uqdueeIDtLbt6Uf6DLNHZ1x"


def hash_of(bench: Bench, queue: str = "orders") -> dict[bytes, bytes]:
    found: Any = bench.client.hgetall(f"rsmq:{queue}:Q")
    return dict(found)


def scores(bench: Bench, queue: str = "orders") -> dict[bytes, float]:
    found: Any = bench.client.zrange(f"rsmq:{queue}", 0, -1, withscores=True)
    return dict(found)


class TestQueues:
    def test_a_new_queue_has_exactly_five_fields_and_a_name(self, bench: Bench, rsmq: Rsmq) -> None:
        assert rsmq.create_queue("orders") == 1
        now = b"%d" % (bench.clock.now_ms // 1000)
        told = {b"vt": b"30", b"delay": b"0", b"maxsize": b"65536", b"created": now, b"modified": now}
        assert hash_of(bench) == told
        assert sorted(call(bench.client, "KEYS", "*")) == [b"rsmq:QUEUES", b"rsmq:orders:Q"]
        assert bench.client.smembers("rsmq:QUEUES") == {b"orders"}

    def test_a_queue_is_made_with_what_it_is_told(self, bench: Bench, rsmq: Rsmq) -> None:
        assert rsmq.create_queue("a", vt=0, delay=9_999_999, maxsize=-1) == 1
        assert rsmq.create_queue("b", vt=9_999_999, delay=1, maxsize=1024) == 1
        assert [hash_of(bench, "a")[name] for name in (b"vt", b"delay", b"maxsize")] == [b"0", b"9999999", b"-1"]
        assert [hash_of(bench, "b")[name] for name in (b"vt", b"delay", b"maxsize")] == [b"9999999", b"1", b"1024"]

    def test_a_second_of_the_same_name_is_refused_and_changes_nothing(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        before = hash_of(bench)
        bench.clock.advance(5)
        with pytest.raises(QueueExists, match=r"^Queue exists$") as refused:
            rsmq.create_queue("orders", vt=20)
        assert refused.value.name == "queueExists"
        assert hash_of(bench) == before

    def test_deleting_a_queue_leaves_no_key(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        rsmq.send_message("orders", "a")
        assert rsmq.delete_queue("orders") == 1
        assert call(bench.client, "KEYS", "*") == []
        with pytest.raises(QueueNotFound, match=r"^Queue not found$"):
            rsmq.delete_queue("orders")

    def test_queues_are_listed(self, rsmq: Rsmq) -> None:
        assert rsmq.list_queues() == []
        for name in ("b", "a", "c_-9"):
            rsmq.create_queue(name)
        assert rsmq.list_queues() == ["a", "b", "c_-9"]

    def test_attributes_count_what_happened(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        made = bench.clock.now_ms // 1000
        assert rsmq.get_queue_attributes("orders") == QueueAttributes(10, 0, 65536, 0, 0, made, made, 0, 0)
        for delay in (0, 0, 5):
            rsmq.send_message("orders", "a", delay=delay)
        rsmq.receive_message("orders")
        assert rsmq.get_queue_attributes("orders") == QueueAttributes(10, 0, 65536, 1, 3, made, made, 3, 2)

    def test_hidden_messages_are_counted_to_the_millisecond(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        bench.clock.advance(0.5)
        rsmq.send_message("orders", "a", delay=1)
        bench.clock.advance(0.999)
        assert rsmq.get_queue_attributes("orders").hiddenmsgs == 1
        bench.clock.advance(0.001)
        assert rsmq.get_queue_attributes("orders").hiddenmsgs == 0
        assert rsmq.receive_message("orders") is not None

    def test_setting_changes_what_is_named_and_when_it_was_modified(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        made = bench.clock.now_ms // 1000
        bench.clock.advance(3)
        assert rsmq.set_queue_attributes("orders", vt=7) == QueueAttributes(7, 0, 65536, 0, 0, made, made + 3, 0, 0)
        told = rsmq.set_queue_attributes("orders", delay=2, maxsize=2048)
        assert (told.vt, told.delay, told.maxsize) == (7, 2, 2048)
        assert rsmq.set_queue_attributes("orders", vt=0, maxsize=-1).maxsize == -1

    def test_setting_nothing_is_refused_before_the_name_is_looked_at(self, rsmq: Rsmq) -> None:
        with pytest.raises(NoAttributeSupplied, match=r"^No attribute was supplied$"):
            rsmq.set_queue_attributes("not: a name")


class TestMessages:
    def test_a_sent_message_is_one_member_one_field_and_one_in_the_total(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        id = rsmq.send_message("orders", "hello")
        assert re.fullmatch(r"[0-9a-z]{10}[A-Za-z0-9]{22}", id)
        assert int(id[:10], 36) == bench.clock.now_us
        assert scores(bench) == {id.encode(): bench.clock.now_ms}
        fields = hash_of(bench)
        assert fields[id.encode()] == b"hello"
        assert fields[b"totalsent"] == b"1"
        assert len(fields) == 7
        assert sorted(call(bench.client, "KEYS", "*")) == [b"rsmq:QUEUES", b"rsmq:orders", b"rsmq:orders:Q"]

    def test_ids_differ_within_one_microsecond(self, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        assert len({rsmq.send_message("orders", "a") for _ in range(100)}) == 100

    def test_received_is_counted_timed_and_hidden(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        id = rsmq.send_message("orders", "hé 𝄞")
        sent = bench.clock.now_us / 1000
        bench.clock.advance(2)
        first = bench.clock.now_ms
        assert rsmq.receive_message("orders") == RsmqReceived(id, "hé 𝄞", 1, first, sent)
        assert scores(bench) == {id.encode(): first + 10_000}
        fields = hash_of(bench)
        assert (fields[id.encode() + b":rc"], fields[id.encode() + b":fr"]) == (b"1", b"%d" % first)
        assert (fields[b"totalrecv"], len(fields)) == (b"1", 10)
        assert rsmq.receive_message("orders") is None
        bench.clock.advance(9.999)
        assert rsmq.receive_message("orders") is None
        bench.clock.advance(0.001)
        assert rsmq.receive_message("orders") == RsmqReceived(id, "hé 𝄞", 2, first, sent)
        fields = hash_of(bench)
        assert (fields[id.encode() + b":rc"], fields[id.encode() + b":fr"]) == (b"2", b"%d" % first)
        assert fields[b"totalrecv"] == b"2"

    def test_a_call_may_have_its_own_vt_and_zero_hides_nothing(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=10)
        id = rsmq.send_message("orders", "a")
        assert [rsmq.receive_message("orders", vt=0).rc for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]
        rsmq.receive_message("orders", vt=60)
        assert scores(bench) == {id.encode(): bench.clock.now_ms + 60_000}

    def test_the_queues_delay_holds_unless_the_call_has_its_own(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", delay=60)
        late, now = rsmq.send_message("orders", "late"), rsmq.send_message("orders", "now", delay=0)
        assert scores(bench) == {late.encode(): bench.clock.now_ms + 60_000, now.encode(): bench.clock.now_ms}
        assert rsmq.receive_message("orders").id == now  # type: ignore[union-attr]
        assert rsmq.receive_message("orders") is None
        bench.clock.advance(60)
        assert [rsmq.receive_message("orders").id for _ in range(2)] == [now, late]  # type: ignore[union-attr]

    def test_popped_is_gone_and_counted(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=0)
        id = rsmq.send_message("orders", "a")
        first = bench.clock.now_ms
        rsmq.receive_message("orders")
        bench.clock.advance(1)
        assert rsmq.pop_message("orders") == RsmqReceived(id, "a", 2, first, bench.clock.now_us / 1000 - 1000)
        assert rsmq.pop_message("orders") is None
        assert set(hash_of(bench)) == {b"vt", b"delay", b"maxsize", b"created", b"modified", b"totalsent", b"totalrecv"}
        assert hash_of(bench)[b"totalrecv"] == b"2"
        assert not bench.client.exists("rsmq:orders")

    def test_popped_at_once_was_first_received_then(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        id = rsmq.send_message("orders", "a")
        bench.clock.advance(3)
        now = bench.clock.now_ms
        assert rsmq.pop_message("orders") == RsmqReceived(id, "a", 1, now, now - 3000)

    @pytest.mark.parametrize("received", [True, False])
    def test_deleting_leaves_nothing_of_a_message(self, bench: Bench, rsmq: Rsmq, received: bool) -> None:
        rsmq.create_queue("orders")
        before = hash_of(bench)
        id = rsmq.send_message("orders", "a")
        if received:
            rsmq.receive_message("orders")
        assert rsmq.delete_message("orders", id) == 1
        assert rsmq.delete_message("orders", id) == 0
        totals = {b"totalsent": b"1"} | ({b"totalrecv": b"1"} if received else {})
        assert hash_of(bench) == before | totals
        assert not bench.client.exists("rsmq:orders")

    def test_deleting_from_a_missing_queue_deletes_nothing(self, rsmq: Rsmq) -> None:
        assert rsmq.delete_message("nowhere", ID) == 0

    def test_visibility_counts_from_now(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        id = rsmq.send_message("orders", "a")
        rsmq.receive_message("orders")
        bench.clock.advance(5)
        assert rsmq.change_message_visibility("orders", id, 60) == 1
        assert scores(bench) == {id.encode(): bench.clock.now_ms + 60_000}
        assert rsmq.change_message_visibility("orders", id, 0) == 1
        assert rsmq.receive_message("orders").rc == 2  # type: ignore[union-attr]
        assert rsmq.change_message_visibility("orders", ID, 5) == 0
        assert len(scores(bench)) == 1

    def test_messages_come_in_the_order_they_are_due(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        sent = []
        for number in range(20):
            sent.append(rsmq.send_message("orders", str(number)))
            bench.clock.advance(0.001)
        assert [rsmq.receive_message("orders").id for _ in range(20)] == sent  # type: ignore[union-attr]

    @pytest.mark.parametrize("text", ["", " ", "0", "null", "a\0b\r\n", "☕" * 1000, "𝄞", '{"a": 1}', "x" * 65536])
    def test_a_text_comes_back_as_it_was(self, rsmq: Rsmq, text: str) -> None:
        rsmq.create_queue("orders")
        rsmq.send_message("orders", text)
        got = rsmq.receive_message("orders")
        assert got is not None
        assert (got.message, got.raw) == (text, text.encode())

    def test_bytes_that_are_no_text_are_shown_as_node_shows_them(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        bench.client.hset("rsmq:orders:Q", ID, b"\xff\xfea")
        bench.client.zadd("rsmq:orders", {ID: 1})
        got = rsmq.receive_message("orders")
        assert got is not None
        assert (got.message, got.raw) == ("\ufffd\ufffda", b"\xff\xfea")


class TestLimits:
    @pytest.mark.parametrize(
        ("message", "fits"),
        [
            ("x" * 1024, True),
            ("x" * 1025, False),
            ("é" * 1024, True),
            ("☕" * 1024, True),
            ("𝄞" * 512, True),
            ("𝄞" * 513, False),
            ("𝄞" * 511 + "xy", True),
            ("𝄞" * 511 + "xyz", False),
        ],
    )
    def test_sizes_are_in_utf_16_units_as_in_node(self, bench: Bench, rsmq: Rsmq, message: str, fits: bool) -> None:
        rsmq.create_queue("orders", maxsize=1024)
        if fits:
            assert rsmq.send_message("orders", message)
            return
        with pytest.raises(MessageTooLong, match=r"^Message too long$") as refused:
            rsmq.send_message("orders", message)
        assert isinstance(refused.value, PayloadTooLarge)
        assert b"totalsent" not in hash_of(bench)

    def test_a_queue_without_a_limit_takes_any_length(self, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", maxsize=-1)
        assert rsmq.send_message("orders", "x" * 200_000)
        rsmq.create_queue("short")
        with pytest.raises(MessageTooLong):
            rsmq.send_message("short", "x" * 65_537)

    @pytest.mark.parametrize("message", [None, 1, b"a", ["a"], {"a": 1}, True])
    def test_a_message_is_a_string(self, rsmq: Rsmq, message: Any) -> None:
        rsmq.create_queue("orders")
        with pytest.raises(MessageNotString, match=r"^Message must be a string$"):
            rsmq.send_message("orders", message)

    def test_half_of_a_pair_is_no_text(self, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        with pytest.raises(MessageNotString, match="surrogate"):
            rsmq.send_message("orders", "a\ud800")

    @pytest.mark.parametrize("value", [-1, 10_000_000, "not a number", 1.5, True, float("nan"), 2**70])
    @pytest.mark.parametrize("item", ["vt", "delay"])
    def test_times_are_whole_seconds_in_range(self, bench: Bench, rsmq: Rsmq, item: str, value: Any) -> None:
        text = f"^{item} must be between 0 and 9999999$"
        with pytest.raises(InvalidValue, match=text) as refused:
            rsmq.create_queue("orders", **{item: value})
        assert (refused.value.name, refused.value.item) == ("invalidValue", item)
        assert call(bench.client, "KEYS", "*") == []
        rsmq.create_queue("orders")
        with pytest.raises(InvalidValue, match=text):
            rsmq.set_queue_attributes("orders", **{item: value})
        calls: dict[str, list[Callable[[], Any]]] = {
            "vt": [
                lambda: rsmq.receive_message("orders", vt=value),
                lambda: rsmq.receive_many("orders", 2, vt=value),
                lambda: rsmq.change_message_visibility("orders", ID, value),
            ],
            "delay": [
                lambda: rsmq.send_message("orders", "a", delay=value),
                lambda: rsmq.send_many("orders", ["a"], delay=value),
            ],
        }
        for refused_call in calls[item]:
            with pytest.raises(InvalidValue, match=text):
                refused_call()

    @pytest.mark.parametrize("value", [0, 1023, 65537, -2, "x", 2000.0])
    def test_a_maxsize_is_in_range_or_minus_one(self, rsmq: Rsmq, value: Any) -> None:
        with pytest.raises(InvalidValue, match=r"^maxsize must be between 1024 and 65536$"):
            rsmq.create_queue("orders", maxsize=value)

    @pytest.mark.parametrize("name", ["a b", "a:Q", "*", "{x}", "é", "a\n", "../a", "a.b", "x" * 161, 7, b"a"])
    def test_a_name_out_of_the_rule_is_refused_by_every_call(self, bench: Bench, rsmq: Rsmq, name: Any) -> None:
        for refused in every_call(rsmq, name):
            with pytest.raises(InvalidFormat, match=r"^Invalid qname format$"):
                refused()
        assert call(bench.client, "KEYS", "*") == []

    @pytest.mark.parametrize("name", [None, ""])
    def test_no_name_is_missing_in_every_call(self, rsmq: Rsmq, name: Any) -> None:
        for refused in every_call(rsmq, name):
            with pytest.raises(MissingParameter, match=r"^No qname supplied$"):
                refused()

    def test_the_name_of_the_set_of_names_is_refused_with_the_reason(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        for refused in every_call(rsmq, "QUEUES"):
            with pytest.raises(ReservedName, match="set of all queue names"):
                refused()
        assert bench.client.smembers("rsmq:QUEUES") == {b"orders"}

    def test_the_longest_name_works(self, rsmq: Rsmq) -> None:
        name = "x" * 160
        rsmq.create_queue(name)
        rsmq.send_message(name, "a")
        assert rsmq.pop_message(name) is not None

    @pytest.mark.parametrize(
        ("id", "kind"),
        [
            (None, MissingParameter),
            ("", MissingParameter),
            ("short", InvalidFormat),
            (ID + "x", InvalidFormat),
            (ID[:-1] + "-", InvalidFormat),
            (7, InvalidFormat),
            (ID[:-1] + "\n", InvalidFormat),
        ],
    )
    def test_an_id_is_checked(self, rsmq: Rsmq, id: Any, kind: type[RsmqError]) -> None:
        rsmq.create_queue("orders")
        with pytest.raises(kind, match="id"):
            rsmq.delete_message("orders", id)
        with pytest.raises(kind, match="id"):
            rsmq.change_message_visibility("orders", id, 1)

    def test_an_id_with_a_colon_is_an_id(self, rsmq: Rsmq) -> None:
        assert rsmq.delete_message("orders", ":" * 32) == 0

    def test_a_missing_queue_is_told_by_every_call_but_delete(self, bench: Bench, rsmq: Rsmq) -> None:
        for refused in every_call(rsmq, "nowhere")[1:-1]:
            with pytest.raises(QueueNotFound, match=r"^Queue not found$") as told:
                refused()
            assert isinstance(told.value, NotFound)
            assert (told.value.name, told.value.queue) == ("queueNotFound", "nowhere")
        assert every_call(rsmq, "nowhere")[-1]() == 0
        assert call(bench.client, "KEYS", "*") == []

    @pytest.mark.parametrize("lacking", ["vt", "delay", "maxsize"])
    def test_a_queue_lacking_a_setting_is_missing(self, bench: Bench, rsmq: Rsmq, lacking: str) -> None:
        rsmq.create_queue("orders")
        bench.client.hdel("rsmq:orders:Q", lacking)
        before = hash_of(bench)
        for refused in every_call(rsmq, "orders")[2:-1]:
            with pytest.raises(QueueNotFound):
                refused()
        assert hash_of(bench) == before


def every_call(rsmq: Rsmq, name: str) -> list[Any]:
    """Every call on a queue of this name; the first creates it and the last deletes it."""
    return [
        lambda: rsmq.create_queue(name),
        lambda: rsmq.delete_queue(name),
        lambda: rsmq.get_queue_attributes(name),
        lambda: rsmq.set_queue_attributes(name, vt=1),
        lambda: rsmq.send_message(name, "a"),
        lambda: rsmq.send_many(name, ["a", "b"]),
        lambda: rsmq.receive_message(name),
        lambda: rsmq.receive_many(name, 2),
        lambda: rsmq.receive_waiting(name, 0),
        lambda: rsmq.pop_message(name),
        lambda: rsmq.change_message_visibility(name, ID, 1),
        lambda: rsmq.peek(name),
        lambda: rsmq.purge(name),
        lambda: rsmq.delete_message(name, ID),
    ]


class TestBothClients:
    def test_the_asyncio_client_has_the_same_calls_with_the_same_parameters(self) -> None:
        public = {name for name in dir(Rsmq) if not name.startswith("_")}
        assert public == {name for name in dir(AsyncRsmq) if not name.startswith("_")}
        for name in public - {"close", "namespace", "realtime", "consume"}:
            one, other = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (Rsmq, AsyncRsmq))
            assert one == other, name

    def test_namespaces_are_apart(self, bench: Bench, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        with Rsmq(bench.server.url, namespace="other") as other:
            assert other.list_queues() == []
            other.create_queue("orders", vt=5)
            other.send_message("orders", "a")
            assert rsmq.receive_message("orders") is None
            assert sorted(other.list_queues()) == ["orders"]
            assert bench.client.exists("other:orders")

    def test_an_open_post_is_used_and_left_open(self, bench: Bench) -> None:
        with Rsmq(post=bench.post) as client:
            client.create_queue("orders")
        assert Rsmq(post=bench.post).list_queues() == ["orders"]
        with pytest.raises(InvalidInput):
            Rsmq(bench.server.url, post=bench.post)

    def test_all_errors_are_of_one_root(self) -> None:
        assert issubclass(RsmqError, RestanteError)
        for kind in RsmqError.__subclasses__():
            assert kind.__name__.lower() == kind.name.lower() or kind.name == "rsmqError" or "Message" in kind.__name__
