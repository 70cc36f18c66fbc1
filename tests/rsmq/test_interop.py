"""Restante's client with npm's rsmq in a Node process and PyRSMQ on one server: each call in both directions."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from restante.rsmq import QueueExists, QueueNotFound, Rsmq, RsmqError
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer, call
from tests.rsmq.clients import Pyrsmq
from tests.rsmq.npm_client import NodeError, NodeRsmq


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def _node(server: RedisServer) -> Iterator[NodeRsmq]:
    with NodeRsmq(server.port) as node:
        yield node


@pytest.fixture
def node(_node: NodeRsmq, server: RedisServer) -> NodeRsmq:
    """Node's client on an empty server. Its scripts are not flushed, because it does not load them again."""
    call(server.client(), "FLUSHALL")
    return _node


@pytest.fixture
def rsmq(server: RedisServer) -> Iterator[Rsmq]:
    with Rsmq(server.url) as client:
        yield client


class TestNode:
    def test_a_queue_made_by_either_is_the_others(self, node: NodeRsmq, rsmq: Rsmq) -> None:
        assert rsmq.create_queue("ours", vt=7, delay=1, maxsize=2048) == 1
        assert node("createQueue", qname="theirs", vt=8, delay=2, maxsize=-1) == 1
        assert sorted(node("listQueues")) == rsmq.list_queues() == ["ours", "theirs"]
        for name in ("ours", "theirs"):
            told = node("getQueueAttributes", qname=name)
            found = rsmq.get_queue_attributes(name)
            assert told == {key: getattr(found, key) for key in found.__slots__}
            with pytest.raises(QueueExists):
                rsmq.create_queue(name)
            with pytest.raises(NodeError) as refused:
                node("createQueue", qname=name)
            assert refused.value.name == "queueExists"

    def test_settings_changed_by_either_hold_for_both(self, node: NodeRsmq, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders")
        assert node("setQueueAttributes", qname="orders", vt=5)["vt"] == 5
        assert rsmq.set_queue_attributes("orders", delay=3).vt == 5
        assert node("getQueueAttributes", qname="orders")["delay"] == 3

    @pytest.mark.parametrize("text", ["hello", "", "naïve ☕ 𝄞 \0", "x" * 65536])
    def test_a_message_of_either_is_received_by_the_other(self, node: NodeRsmq, rsmq: Rsmq, text: str) -> None:
        rsmq.create_queue("orders")
        id = rsmq.send_message("orders", text)
        told = node("receiveMessage", qname="orders", vt=0)
        assert (told["id"], told["message"], told["rc"]) == (id, text, 1)
        again = rsmq.receive_message("orders")
        assert again is not None
        assert (again.id, again.message, again.rc, again.fr, again.sent) == (id, text, 2, told["fr"], told["sent"])
        assert node("deleteMessage", qname="orders", id=id) == 1
        id = node("sendMessage", qname="orders", message=text)
        got = rsmq.receive_message("orders", vt=0)
        assert got is not None
        assert (got.id, got.message, got.rc) == (id, text, 1)
        told = node("popMessage", qname="orders")
        assert (told["id"], told["rc"], told["fr"], told["sent"]) == (id, 2, got.fr, got.sent)
        assert rsmq.pop_message("orders") is None
        assert node("receiveMessage", qname="orders") == {}
        assert rsmq.get_queue_attributes("orders").msgs == 0

    def test_what_one_hides_the_other_does_not_see(self, node: NodeRsmq, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=60)
        id = rsmq.send_message("orders", "a")
        assert node("receiveMessage", qname="orders")["id"] == id
        assert rsmq.receive_message("orders") is None
        assert rsmq.change_message_visibility("orders", id, 0) == 1
        got = rsmq.receive_message("orders")
        assert got is not None
        assert got.rc == 2
        assert node("receiveMessage", qname="orders") == {}
        assert node("changeMessageVisibility", qname="orders", id=id, vt=0) == 1
        assert rsmq.pop_message("orders") is not None
        assert node("changeMessageVisibility", qname="orders", id=id, vt=0) == 0
        assert node("deleteMessage", qname="orders", id=id) == rsmq.delete_message("orders", id) == 0

    def test_delays_of_either_hold_for_both(self, node: NodeRsmq, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", delay=60)
        node("sendMessage", qname="orders", message="a")
        rsmq.send_message("orders", "b")
        assert node("receiveMessage", qname="orders") == {}
        assert rsmq.receive_message("orders") is None
        assert node("sendMessage", qname="orders", message="c", delay=0)
        assert rsmq.send_message("orders", "d", delay=0)
        assert {rsmq.pop_message("orders").message, node("popMessage", qname="orders")["message"]} == {"c", "d"}  # type: ignore[union-attr]

    def test_batches_moves_and_dead_letters_are_read_by_node(self, node: NodeRsmq, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=0)
        rsmq.create_queue("other")
        ids = rsmq.send_many("orders", ["a", "b", "c"])
        assert [node("receiveMessage", qname="orders", vt=9)["id"] for _ in range(3)] == ids
        assert rsmq.move("orders", "other", ids[:2]) == 2
        assert node("getQueueAttributes", qname="other")["msgs"] == 2
        assert rsmq.purge("orders") == 1
        assert node("getQueueAttributes", qname="orders")["msgs"] == 0
        node("sendMessage", qname="orders", message="poison")
        node("receiveMessage", qname="orders", vt=0)
        rsmq.delete_queue("other")
        rsmq.create_queue("dead")
        assert rsmq.receive_or_dead_letter("orders", "dead", 1) is None
        assert node("popMessage", qname="dead")["rc"] == 2

    def test_a_queue_deleted_by_either_is_gone_for_both(self, node: NodeRsmq, rsmq: Rsmq) -> None:
        for delete in (lambda: node("deleteQueue", qname="orders"), lambda: rsmq.delete_queue("orders")):
            rsmq.create_queue("orders")
            rsmq.send_message("orders", "a")
            assert delete() == 1
            for refused in (lambda: rsmq.receive_message("orders"), lambda: rsmq.delete_queue("orders")):
                with pytest.raises(QueueNotFound):
                    refused()
            with pytest.raises(NodeError) as told:
                node("receiveMessage", qname="orders")
            assert told.value.name == "queueNotFound"

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("createQueue", {"qname": ""}),
            ("createQueue", {"qname": "a b"}),
            ("createQueue", {"qname": "x" * 161}),
            ("createQueue", {"qname": "a", "vt": -20}),
            ("createQueue", {"qname": "a", "vt": 10_000_000}),
            ("createQueue", {"qname": "a", "vt": "not a number"}),
            ("createQueue", {"qname": "a", "delay": -1}),
            ("createQueue", {"qname": "a", "maxsize": 1023}),
            ("createQueue", {"qname": "a", "maxsize": 65537}),
            ("createQueue", {"qname": "a", "maxsize": -2}),
            ("createQueue", {"qname": "there"}),
            ("deleteQueue", {"qname": "nowhere"}),
            ("getQueueAttributes", {"qname": "nowhere"}),
            ("setQueueAttributes", {"qname": "there"}),
            ("setQueueAttributes", {"qname": "nowhere", "vt": 5}),
            ("setQueueAttributes", {"qname": "", "vt": 5}),
            ("setQueueAttributes", {"qname": "there", "vt": -1}),
            ("sendMessage", {"qname": "nowhere", "message": "a"}),
            ("sendMessage", {"qname": "there", "message": 7}),
            ("sendMessage", {"qname": "there", "message": "𝄞" * 513}),
            ("sendMessage", {"qname": "there", "message": "a", "delay": -1}),
            ("receiveMessage", {"qname": "nowhere"}),
            ("receiveMessage", {"qname": "there", "vt": -1}),
            ("receiveMessage", {"qname": ""}),
            ("popMessage", {"qname": "nowhere"}),
            ("deleteMessage", {"qname": "there", "id": ""}),
            ("deleteMessage", {"qname": "there", "id": "short"}),
            ("changeMessageVisibility", {"qname": "there", "id": "short", "vt": 1}),
            ("changeMessageVisibility", {"qname": "there", "id": "x" * 32, "vt": -1}),
            ("changeMessageVisibility", {"qname": "nowhere", "id": "x" * 32, "vt": 1}),
        ],
    )
    def test_both_refuse_the_same_with_the_same_name_and_text(
        self, node: NodeRsmq, rsmq: Rsmq, name: str, options: dict[str, Any]
    ) -> None:
        rsmq.create_queue("there", maxsize=1024)
        with pytest.raises(NodeError) as theirs:
            node(name, **options)
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        given = dict(options)
        first = [given.pop(key) for key in ("qname", "message", "id") if key in given]
        if name == "changeMessageVisibility":
            first.append(given.pop("vt"))
        with pytest.raises(RsmqError) as ours:
            getattr(rsmq, snake)(*first, **given)
        assert (ours.value.name, str(ours.value)) == (theirs.value.name, str(theirs.value))

    def test_realtime_of_either_says_the_same(self, node: NodeRsmq, rsmq: Rsmq, server: RedisServer) -> None:
        rsmq.create_queue("orders")
        listener = server.client().pubsub()  # type: ignore[no-untyped-call]  # the driver's
        listener.subscribe("rsmq:rt:orders")
        listener.get_message(timeout=PATIENCE)
        with NodeRsmq(server.port, realtime=True) as loud, Rsmq(server.url, realtime=True) as ours:
            told = []
            for send in (
                lambda: loud("sendMessage", qname="orders", message="a"),
                lambda: ours.send_message("orders", "b"),
            ):
                send()
                said = listener.get_message(timeout=PATIENCE)
                assert said is not None
                told.append((said["channel"], said["data"]))
        assert told == [(b"rsmq:rt:orders", b"1"), (b"rsmq:rt:orders", b"2")]
        listener.close()


class TestPyrsmq:
    @pytest.fixture
    def theirs(self, server: RedisServer) -> Pyrsmq:
        client = server.client()
        call(client, "FLUSHALL")
        return Pyrsmq(client)

    def test_queues_and_settings_of_either_are_the_others(self, theirs: Pyrsmq, rsmq: Rsmq) -> None:
        rsmq.create_queue("ours", vt=7)
        theirs.create("theirs", vt=8, delay=2)
        assert theirs.smq.listQueues().execute() == {b"ours", b"theirs"}
        assert rsmq.list_queues() == ["ours", "theirs"]
        assert rsmq.get_queue_attributes("theirs").delay == 2
        assert theirs.smq.getQueueAttributes(qname="ours").execute()["vt"] == 7
        theirs.smq.setQueueAttributes(qname="ours", vt=9).execute()
        assert rsmq.set_queue_attributes("ours", delay=1).vt == 9
        assert theirs.smq.getQueueAttributes(qname="ours").execute()["delay"] == 1
        theirs.smq.deleteQueue(qname="ours").execute()
        with pytest.raises(QueueNotFound):
            rsmq.send_message("ours", "a")
        rsmq.delete_queue("theirs")
        assert theirs.smq.receiveMessage(qname="theirs").exceptions(False).execute() is False

    def test_messages_of_either_are_received_hidden_and_removed_by_the_other(self, theirs: Pyrsmq, rsmq: Rsmq) -> None:
        rsmq.create_queue("orders", vt=60)
        id = rsmq.send_message("orders", "naïve ☕")
        told = theirs.smq.receiveMessage(qname="orders").execute()
        assert (told["id"].decode(), told["message"].decode(), told["rc"]) == (id, "naïve ☕", 1)
        assert rsmq.receive_message("orders") is None
        theirs.change_visibility("orders", id, 0)
        got = rsmq.receive_message("orders")
        assert got is not None
        assert (got.id, got.rc, got.fr) == (id, 2, told["ts"])
        assert theirs.receive("orders") is None
        assert rsmq.change_message_visibility("orders", id, 0) == 1
        assert theirs.pop("orders") == id
        sent = theirs.smq.sendMessage(qname="orders", message={"total": 3}).execute()
        got = rsmq.pop_message("orders")
        assert got is not None
        assert (got.id, json.loads(got.message)) == (sent, {"total": 3})
        second = theirs.send("orders", "b", delay=0)
        assert rsmq.delete_message("orders", second) == 1
        third = rsmq.send_message("orders", "c")
        assert theirs.receive("orders") == third
        theirs.delete("orders", third)
        told_now = rsmq.get_queue_attributes("orders")
        assert (told_now.msgs, told_now.totalsent, told_now.totalrecv) == (0, 4, 5)


@dataclass
class Ledger:
    """What a client reports."""

    sent: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


#: Ids that are in one of the two keys and not in the other, found in one atomic step.
DISAGREEING = """
local wrong, known = {}, {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  known[id] = true
  if redis.call('HEXISTS', KEYS[2], id) == 0 then wrong[#wrong + 1] = id end
end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  if #name >= 32 and not known[string.sub(name, 1, 32)] then wrong[#wrong + 1] = name end
end
return wrong
"""


def three_clients(server: RedisServer, node: NodeRsmq, seconds: float) -> dict[str, int]:
    """Three clients send and receive on one queue; their reports are then compared."""
    end = time.monotonic() + seconds
    books = {"ours": Ledger(), "pyrsmq": Ledger(), "batches": Ledger()}
    failures: list[str] = []
    with Rsmq(server.url) as rsmq:
        rsmq.create_queue("orders", vt=120)
        theirs = [Pyrsmq(server.client()) for _ in range(2)]

        def produce(book: Ledger, send: Any) -> None:
            while time.monotonic() < end:
                made = send(f"message {len(book.sent)}")
                book.sent += made if isinstance(made, list) else [made]
                time.sleep(0.001)

        def consume(book: Ledger, receive: Any, give_back: Any, delete: Any) -> None:
            chance, empty = random.Random(1), 0
            while time.monotonic() < end or empty < 20:
                if (got := receive()) is None:
                    empty += 1
                    time.sleep(0.01)
                    continue
                empty = 0
                for id, rc in got:
                    book.received.append(id)
                    if rc == 1 and chance.random() < 0.1:
                        give_back(id)
                    elif delete(id):
                        book.deleted.append(id)

        def ours() -> Any:
            got = rsmq.receive_message("orders")
            return None if got is None else [(got.id, got.rc)]

        def several() -> Any:
            return [(got.id, got.rc) for got in rsmq.receive_many("orders", 5)] or None

        def pyrsmq() -> Any:
            got = theirs[1].smq.receiveMessage(qname="orders").exceptions(False).execute()
            return [(got["id"].decode(), got["rc"])] if got else None

        def back(id: str) -> Any:
            return rsmq.change_message_visibility("orders", id, 0)

        def gone(id: str) -> Any:
            return rsmq.delete_message("orders", id)

        def py_back(id: str) -> Any:
            return theirs[1].change_visibility("orders", id, 0)

        def py_gone(id: str) -> Any:
            return theirs[1].smq.deleteMessage(qname="orders", id=id).execute()

        work: list[tuple[Any, ...]] = [
            (produce, books["ours"], lambda text: rsmq.send_message("orders", text)),
            (produce, books["batches"], lambda text: rsmq.send_many("orders", [text] * 3)),
            (produce, books["pyrsmq"], lambda text: theirs[0].send("orders", text)),
            (consume, books["ours"], ours, back, gone),
            (consume, books["batches"], several, back, gone),
            (consume, books["pyrsmq"], pyrsmq, py_back, py_gone),
        ]

        def run(task: Any, *args: Any) -> None:
            try:
                task(*args)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=run, args=words) for words in work]
        sending = node.start("produce", qname="orders", seconds=seconds)
        receiving = [node.start("consume", qname="orders", seconds=seconds) for _ in range(2)]
        for thread in threads:
            thread.start()
        client = server.client()
        disagreeing = 0
        while time.monotonic() < end:
            disagreeing += len(call(client, "EVAL", DISAGREEING, 2, "rsmq:orders", "rsmq:orders:Q"))
            time.sleep(0.25)
        for thread in threads:
            thread.join(PATIENCE)
        books["node"] = Ledger(sent=node.finish(sending, 60))
        for answer in receiving:
            taken = node.finish(answer, PATIENCE)
            books["node"].received += taken["received"]
            books["node"].deleted += taken["deleted"]
        left = rsmq.get_queue_attributes("orders")
        fields: Any = client.hkeys("rsmq:orders:Q")
    assert failures == []
    sent = [id for book in books.values() for id in book.sent]
    received = [id for book in books.values() for id in book.received]
    deleted = Counter(id for book in books.values() for id in book.deleted)
    violations = {
        "sent twice": len(sent) - len(set(sent)),
        "never received": len(set(sent) - set(received)),
        "received but never sent": len(set(received) - set(sent)),
        "deleted not exactly once": sum(1 for id in sent if deleted[id] != 1),
        "left in the queue": left.msgs,
        "left in the hash": len(fields) - 7,
        "keys that disagree": disagreeing,
        "total of sends": abs(left.totalsent - len(sent)),
        "total of receives": abs(left.totalrecv - len(received)),
    }
    shares = {name: (len(book.sent), len(book.received)) for name, book in books.items()}
    verdict = "fail" if any(violations.values()) else "pass"
    told = {"row": "three rsmq clients", "n": len(sent), "lost": violations["never received"], "verdict": verdict}
    print(json.dumps(told | {"sent and received": shares}), file=sys.stderr)
    assert all(made and got for made, got in shares.values()), shares
    return violations


def test_three_clients_on_one_queue_agree(server: RedisServer, node: NodeRsmq) -> None:
    violations = three_clients(server, node, 4)
    assert set(violations.values()) == {0}, violations


@pytest.mark.chaos
def test_three_clients_on_one_queue_agree_for_a_minute(server: RedisServer, node: NodeRsmq) -> None:
    violations = three_clients(server, node, 60)
    assert set(violations.values()) == {0}, violations
