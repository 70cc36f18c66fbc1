"""Reading RSMQ queues that other clients wrote, also while they write."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterable

import pytest
from redis.cluster import RedisCluster

import restante
from restante import Client, Corrupt, InvalidInput, InvalidName, NotFound, State
from restante.rsmq import Rsmq, RsmqMessage, queues, split, walk
from restante.rsmq.reader import MAX_PAGE, MAX_PARTS, SMALLEST_PART
from tests.harness.cluster import RedisCluster3
from tests.harness.servers import HOST, call, require
from tests.rsmq.clients import Node, Pyrsmq, RsmqClient
from tests.rsmq.conftest import Bench

READING = {"type", "hmget", "zcard", "zcount", "zrange", "zrangebyscore", "smembers", "time"}


def all_of(post: Client, queue: str, namespace: str = "rsmq", *, page: int = 1000) -> dict[str, RsmqMessage]:
    return once_each(walk(post, queue, namespace, page=page))


def once_each(pages: Iterable[list[RsmqMessage]]) -> dict[str, RsmqMessage]:
    messages = list(itertools.chain.from_iterable(pages))
    made = {message.id: message for message in messages}
    assert len(made) == len(messages), "a message was returned twice"
    return made


def contents(bench: Bench) -> tuple[object, ...]:
    """All data of the server, which has one queue named orders."""
    client = bench.client
    names = sorted(call(client, "KEYS", "*"))
    assert names == [b"rsmq:QUEUES", b"rsmq:orders", b"rsmq:orders:Q"]
    return client.smembers(names[0]), client.zrange(names[1], 0, -1, withscores=True), client.hgetall(names[2])


def test_what_our_own_client_wrote_is_read_as_any_others(bench: Bench) -> None:
    rsmq = Rsmq(post=bench.post)
    rsmq.create_queue("orders")
    ready, held = rsmq.send_many("orders", ["a", "b"])
    later = rsmq.send_message("orders", "c", delay=9)
    rsmq.change_message_visibility("orders", ready, 1)
    assert rsmq.receive_message("orders", vt=60) is not None
    bench.clock.advance(2)
    found = all_of(bench.post, "orders")
    assert {id: (one.payload, one.state, one.attempts) for id, one in found.items()} == {
        ready: (b"a", State.READY, 0),
        held: (b"b", State.LEASED, 1),
        later: (b"c", State.SCHEDULED, 0),
    }


class TestOneMessage:
    def test_a_sent_message_is_ready(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        id = writer.send("orders", "hello")
        now = bench.clock.now_ms
        assert list(walk(bench.post, "orders")) == [[RsmqMessage(id, b"hello", now, 0, None, now, State.READY)]]

    def test_a_delayed_message_is_scheduled_until_it_is_due(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders", delay=60)
        by_queue, by_call = writer.send("orders", "a"), writer.send("orders", "b", delay=5)
        now = bench.clock.now_ms
        found = all_of(bench.post, "orders")
        assert found[by_queue] == RsmqMessage(by_queue, b"a", now + 60_000, 0, None, now, State.SCHEDULED)
        assert found[by_call] == RsmqMessage(by_call, b"b", now + 5_000, 0, None, now, State.SCHEDULED)
        bench.clock.advance(5)
        assert [message.state for message in all_of(bench.post, "orders").values()] == [State.READY, State.SCHEDULED]

    def test_a_received_message_is_leased_until_its_lease_ends(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders", vt=30)
        id = writer.send("orders", "a")
        sent = bench.clock.now_ms
        bench.clock.advance(2)
        assert writer.receive("orders") == id
        first = bench.clock.now_ms
        assert all_of(bench.post, "orders")[id] == RsmqMessage(id, b"a", first + 30_000, 1, first, sent, State.LEASED)
        bench.clock.advance(29.999)
        assert all_of(bench.post, "orders")[id].state is State.LEASED
        bench.clock.advance(0.001)
        assert all_of(bench.post, "orders")[id] == RsmqMessage(id, b"a", first + 30_000, 1, first, sent, State.READY)

    def test_a_second_receive_counts_and_keeps_the_first_time(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        id = writer.send("orders", "a")
        sent = bench.clock.now_ms
        assert writer.receive("orders", vt=10) == id
        bench.clock.advance(10)
        assert writer.receive("orders", vt=7) == id
        due = bench.clock.now_ms + 7_000
        assert all_of(bench.post, "orders")[id] == RsmqMessage(id, b"a", due, 2, sent, sent, State.LEASED)

    def test_a_lease_cut_short_makes_it_ready(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        id = writer.send("orders", "a")
        writer.receive("orders")
        writer.change_visibility("orders", id, 0)
        found = all_of(bench.post, "orders")[id]
        assert (found.state, found.attempts, found.due_ms) == (State.READY, 1, bench.clock.now_ms)

    def test_deleted_and_popped_messages_are_gone(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        sent = [writer.send("orders", "a") for _ in range(4)]
        popped = writer.pop("orders")
        received = writer.receive("orders")
        assert received is not None
        writer.delete("orders", received)
        assert set(all_of(bench.post, "orders")) == set(sent) - {popped, received}

    def test_a_payload_is_the_bytes_that_were_sent(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        texts = ["naïve ☕ 𝄞 \0", "x" * 65536, " ", "12", '{"a": 1}']
        sent = {writer.send("orders", text): text.encode() for text in texts}
        sent |= {writer.send("orders", raw): raw for raw in (bytes(range(256)), b"\xff\xfe")}
        assert {id: message.payload for id, message in all_of(bench.post, "orders").items()} == sent

    def test_an_empty_payload_is_a_payload(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        id = node.send("orders", "")
        assert all_of(bench.post, "orders")[id].payload == b""

    def test_what_pyrsmq_encodes_is_read_as_its_json(self, debian: Bench) -> None:
        client = Pyrsmq(debian.client)
        client.create("orders")
        id = client.smq.sendMessage(qname="orders", message={"total": 3}).execute()
        assert json.loads(all_of(debian.post, "orders")[id].payload) == {"total": 3}

    @pytest.mark.parametrize("kind", [Pyrsmq, Node])
    @pytest.mark.parametrize("realtime", [False, True])
    def test_realtime_makes_no_difference(self, debian: Bench, kind: type[Pyrsmq | Node], realtime: bool) -> None:
        client = kind(debian.client, realtime=realtime)
        client.create("orders")
        id = client.send("orders", "a")
        now = debian.clock.now_ms
        assert all_of(debian.post, "orders") == {id: RsmqMessage(id, b"a", now, 0, None, now, State.READY)}

    def test_the_moment_of_sending_is_taken_from_the_id_down_to_the_millisecond(self, debian: Bench) -> None:
        client = Pyrsmq(debian.client)
        client.create("orders")
        debian.clock.advance(0.123_999)
        id = client.send("orders", "a")
        assert all_of(debian.post, "orders")[id].sent_ms == 2_000_000_000_123


class TestForeignData:
    def test_an_id_that_tells_no_time_has_no_moment_of_sending(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        for id in ("a:" * 16, "short", " 1_000_000" + "x" * 22, "é" * 16):
            call(bench.client, "ZADD", "rsmq:orders", 5, id)
            call(bench.client, "HSET", "rsmq:orders:Q", id, "payload")
        found = all_of(bench.post, "orders")
        assert len(found) == 4
        assert {message.sent_ms for message in found.values()} == {None}

    def test_scores_no_client_writes_stay_within_what_a_date_can_tell(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        ids = [node.send("orders", "a") for _ in range(4)]
        for id, score in zip(ids, ("-inf", "-5", "1e300", "+inf"), strict=True):
            call(bench.client, "ZADD", "rsmq:orders", score, id)
        found = all_of(bench.post, "orders", page=2)
        assert [found[id].due_ms for id in ids] == [0, 0, 253_402_300_799_999, 253_402_300_799_999]
        assert [found[id].state for id in ids] == [State.READY, State.READY, State.SCHEDULED, State.SCHEDULED]

    def test_an_id_without_a_payload_is_left_out(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        kept, bare = node.send("orders", "a"), node.send("orders", "b")
        call(bench.client, "HDEL", "rsmq:orders:Q", bare)
        assert set(all_of(bench.post, "orders")) == {kept}

    @pytest.mark.parametrize("field", ["rc", "fr"])
    def test_an_unreadable_count_is_said_with_its_message(self, bench: Bench, node: Node, field: str) -> None:
        node.create("orders")
        id = node.send("orders", "a")
        call(bench.client, "HSET", "rsmq:orders:Q", f"{id}:{field}", "many")
        with pytest.raises(Corrupt, match=id):
            list(walk(bench.post, "orders"))

    def test_keys_of_another_type_are_said_and_not_read(self, bench: Bench, node: Node) -> None:
        node.create("a")
        call(bench.client, "SET", "rsmq:QUEUES:Q", "x")
        # In the namespace rsmq:a, a queue Q would have its ids where the queue a has its hash.
        with pytest.raises(Corrupt, match="rsmq:a:Q holds a hash"):
            walk(bench.post, "Q", "rsmq:a")
        call(bench.client, "SET", "other:QUEUES", "x")
        with pytest.raises(Corrupt, match="other:QUEUES holds a string"):
            queues(bench.post, "other")
        call(bench.client, "SET", "rsmq:b:Q", "x")
        with pytest.raises(Corrupt, match="rsmq:b:Q holds a string"):
            split(bench.post, "b", 2)


class TestQueues:
    def test_queues_are_listed_by_name_and_namespace(self, bench: Bench) -> None:
        assert queues(bench.post) == []
        for namespace in ("rsmq", "shop", "{tagged}", "a:b"):
            for name in ("orders", "Mail_2", namespace.strip("{}").replace(":", "-")):
                Pyrsmq(bench.client, namespace).create(name)
        assert queues(bench.post) == ["Mail_2", "orders", "rsmq"]
        assert queues(bench.post, "shop") == ["Mail_2", "orders", "shop"]
        assert queues(bench.post, "{tagged}") == ["Mail_2", "orders", "tagged"]
        assert queues(bench.post, namespace="a:b") == ["Mail_2", "a-b", "orders"]

    def test_queues_of_one_name_in_several_namespaces_are_apart(self, bench: Bench) -> None:
        sent = {}
        for namespace in ("rsmq", "shop", "{tagged}"):
            client = Pyrsmq(bench.client, namespace)
            client.create("orders")
            sent[namespace] = {client.send("orders", namespace) for _ in range(3)}
        for namespace, ids in sent.items():
            found = all_of(bench.post, "orders", namespace)
            assert set(found) == ids
            assert {message.payload for message in found.values()} == {namespace.encode()}

    def test_a_queue_without_messages_has_no_pages(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        assert list(walk(bench.post, "orders")) == []
        assert split(bench.post, "orders", 4) == [(0, 1)]

    def test_a_missing_queue_raises_at_the_call(self, bench: Bench, writer: RsmqClient) -> None:
        writer.create("orders")
        for call_it in (lambda: walk(bench.post, "order"), lambda: split(bench.post, "orders", 1, "other")):
            with pytest.raises(NotFound):
                call_it()

    def test_a_queue_that_lost_a_setting_is_missing_as_it_is_for_its_clients(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        call(bench.client, "HDEL", "rsmq:orders:Q", "delay")
        with pytest.raises(NotFound):
            walk(bench.post, "orders")

    def test_a_dot_that_pyrsmq_lets_through_is_readable(self, debian: Bench) -> None:
        client = Pyrsmq(debian.client)
        client.create("shop.orders")
        id = client.send("shop.orders", "a")
        assert queues(debian.post) == ["shop.orders"]
        assert set(all_of(debian.post, "shop.orders")) == {id}

    def test_names_that_break_the_rule_are_listed_and_refused(self, debian: Bench) -> None:
        call(debian.client, "SADD", "rsmq:QUEUES", "two words", b"\xff", "good")
        assert queues(debian.post) == ["\\xff", "good", "two words"]
        for name in ("\\xff", "two words"):
            with pytest.raises(InvalidName):
                walk(debian.post, name)

    @pytest.mark.parametrize("name", ["", "a:b", "a b", "é", "a\n", "x" * 161, "QUEUES", None, 5, b"orders"])
    def test_a_bad_queue_name_is_refused(self, debian: Bench, name: str) -> None:
        with pytest.raises(InvalidName):
            walk(debian.post, name)
        with pytest.raises(InvalidName):
            split(debian.post, name, 2)

    @pytest.mark.parametrize("namespace", ["", "a b", "é", "rsmq\n", "x" * 201, None, b"rsmq"])
    def test_a_bad_namespace_is_refused(self, debian: Bench, namespace: str) -> None:
        with pytest.raises(InvalidName):
            queues(debian.post, namespace)
        with pytest.raises(InvalidName):
            walk(debian.post, "orders", namespace)

    def test_the_longest_name_is_readable(self, bench: Bench, node: Node) -> None:
        node.create("x" * 160)
        assert list(walk(bench.post, "x" * 160)) == []

    def test_pages_and_parts_out_of_range_are_refused(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        for page in (0, MAX_PAGE + 1, True):
            with pytest.raises(InvalidInput):
                walk(bench.post, "orders", page=page)
        for part in ((1, 1), (-1, 2), (0, 0), (0, MAX_PARTS + 1), (0,), [0, 1], None):
            with pytest.raises(InvalidInput):
                walk(bench.post, "orders", part=part)  # type: ignore[arg-type]  # that is the point
        for parts in (0, MAX_PARTS + 1):
            with pytest.raises(InvalidInput):
                split(bench.post, "orders", parts)


class TestPages:
    @pytest.mark.parametrize("page", [1, 2, 3, 30, 59, 60, 1000])
    @pytest.mark.parametrize("apart_ms", [0, 1], ids=["equal scores", "rising scores"])
    def test_pages_of_any_length_hold_every_message_once(
        self, bench: Bench, node: Node, page: int, apart_ms: int
    ) -> None:
        node.create("orders")
        ids = node.fill("orders", 60, apart_ms=apart_ms)
        pages = list(walk(bench.post, "orders", page=page))
        assert set(once_each(pages)) == set(ids)
        assert max(map(len, pages)) <= page
        assert all(message.payload == b"payload of " + message.id.encode() for one in pages for message in one)

    def test_reading_leaves_everything_as_it_was(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        node.fill("orders", 2500, apart_ms=1)
        node.receive("orders")
        before = contents(bench)
        # The first commands of new connections are not counted.
        assert queues(bench.post)
        assert bench.server.info("commandstats")
        call(bench.client, "CONFIG", "RESETSTAT")
        assert len(all_of(bench.post, "orders")) == 2500
        assert queues(bench.post) == ["orders"]
        for part in split(bench.post, "orders", 2):
            once_each(walk(bench.post, "orders", part=part))
        used = {name.removeprefix("cmdstat_") for name in bench.server.info("commandstats")}
        assert {name for name in used if not name.startswith(("config", "info"))} <= READING
        assert contents(bench) == before

    def test_a_short_queue_costs_a_handful_of_commands(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        node.fill("orders", 500, apart_ms=0)
        list(walk(bench.post, "orders"))
        before = bench.server.commands_processed()
        list(walk(bench.post, "orders"))
        # Two types, the settings, the time; then the ids, the time, the messages; and the command of the harness.
        assert bench.server.commands_processed() - before == 7 + 1


class TestWhileOthersWork:
    def test_messages_received_meanwhile_are_returned_once(self, bench: Bench, node: Node) -> None:
        node.create("orders", vt=30)
        ids = node.fill("orders", 300, apart_ms=1)
        pages = []
        for page in walk(bench.post, "orders", page=50):
            pages.append(page)
            for _ in range(30):
                node.receive("orders")
        assert set(once_each(pages)) == set(ids)

    def test_messages_that_stay_are_found_when_most_of_their_score_go(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        ids = sorted(node.fill("orders", 1000, apart_ms=0))
        bench.clock.advance(3600)  # so long ago that the second look does not come by
        pages = []
        for number, page in enumerate(walk(bench.post, "orders", page=100)):
            pages.append(page)
            if number == 5:
                # More than was read so far: the ranks of the others fall by far more than a page.
                for id in ids[:250]:
                    node.delete("orders", id)
        assert set(once_each(pages)) >= set(ids[250:])

    def test_a_message_given_back_behind_the_walk_is_found(self, bench: Bench, node: Node) -> None:
        node.create("orders", vt=3600)
        ids = node.fill("orders", 100, apart_ms=1)
        leased = [node.receive("orders") for _ in range(10)]
        ids += [node.send("orders", "later", delay=60) for _ in range(100)]
        pages, given_back = [], False
        for page in walk(bench.post, "orders", page=40):
            pages.append(page)
            if page[-1].state is State.SCHEDULED and not given_back:
                # The walk has passed the present time and has not reached the leased messages.
                given_back = True
                for id in leased:
                    assert id is not None
                    node.change_visibility("orders", id, 0)
        found = once_each(pages)
        assert set(found) == set(ids)
        assert {found[id].state for id in leased if id} == {State.READY}

    def test_messages_sent_and_deleted_meanwhile_disturb_no_other(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        ids = node.fill("orders", 300, apart_ms=1)
        gone, late, pages = set(), set(), []
        for number, page in enumerate(walk(bench.post, "orders", page=50)):
            pages.append(page)
            bench.clock.advance(0.001)
            late |= {node.send("orders", "late") for _ in range(3)}
            for id in ids[number * 40 : number * 40 + 20]:
                node.delete("orders", id)
                gone.add(id)
        found = set(once_each(pages))
        assert set(ids) - gone <= found <= set(ids) | late

    @pytest.mark.parametrize("seed", range(7))
    def test_whatever_happens_between_pages_what_stays_is_returned_once(self, debian: Bench, seed: int) -> None:
        chance = random.Random(seed)
        node = Node(debian.client)
        node.create("orders", vt=chance.choice([0, 1, 60]))
        owed = set(node.fill("orders", 60, apart_ms=chance.choice([0, 0, 1])))
        owed |= {node.send("orders", "later", delay=chance.choice([1, 1, 100])) for _ in range(20)}
        every, cut = set(owed), set[str]()
        debian.clock.advance(chance.choice([0, 30]))
        pages = []
        for page in walk(debian.post, "orders", page=chance.choice([1, 2, 3, 8, 30])):
            pages.append(page)
            for _ in range(chance.randrange(6)):
                debian.clock.advance(chance.choice([0, 0.001, 0.3]))
                id = chance.choice(sorted(every))
                verb = chance.choice(["receive", "receive", "delete", "send", "cut"])
                if verb == "receive":
                    node.receive("orders")
                elif verb == "delete":
                    node.delete("orders", id)
                    owed.discard(id)
                elif verb == "send" and len(every) < 120:
                    every.add(node.send("orders", "new", delay=chance.choice([0, 50])))
                elif verb == "cut" and id not in cut:
                    cut.add(id)
                    node.change_visibility("orders", id, 0)
        found = set(once_each(pages))
        assert owed <= found <= every

    def test_five_thousand_messages_are_read_while_a_consumer_receives(self, debian: Bench) -> None:
        debian.clock.unfreeze()
        client = Pyrsmq(debian.client)
        client.create("orders", vt=3600)
        ids = {client.send("orders", f"payload {i}") for i in range(5000)}
        received: list[str] = []
        enough = threading.Event()
        consumer = Pyrsmq(debian.server.client())

        def consume() -> None:
            while not enough.is_set() and (id := consumer.receive("orders")):
                received.append(id)

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            found = all_of(debian.post, "orders", page=250)
        finally:
            enough.set()
            thread.join()
        assert set(found) == ids
        assert received
        assert {message.state for message in found.values()} <= {State.READY, State.LEASED}
        settled = all_of(debian.post, "orders")
        assert {id for id, message in settled.items() if message.state is State.LEASED} == set(received)
        assert {message.attempts for id, message in settled.items() if id in set(received)} == {1}


class TestParts:
    def test_a_short_queue_is_not_split(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        node.fill("orders", 2 * SMALLEST_PART - 1, apart_ms=1)
        assert split(bench.post, "orders", 8) == [(0, 1)]
        node.fill("orders", 1, apart_ms=1)
        assert split(bench.post, "orders", 8) == [(0, 2), (1, 2)]
        assert split(bench.post, "orders", 1) == [(0, 1)]

    def test_parts_hold_each_message_once_while_it_moves_between_scores(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        ids = node.fill("orders", 4000, apart_ms=1)
        parts = split(bench.post, "orders", 4)
        assert len(parts) == 4
        pages = []
        walks = [walk(bench.post, "orders", part=part) for part in parts]
        for round_ in itertools.zip_longest(*walks):
            pages += [page for page in round_ if page]
            for _ in range(20):
                node.receive("orders")
        assert set(once_each(pages)) == set(ids)

    def test_parts_are_about_equal(self, bench: Bench, node: Node) -> None:
        node.create("orders")
        node.fill("orders", 4000, apart_ms=1)
        lengths = [len(once_each(walk(bench.post, "orders", part=(number, 4)))) for number in range(4)]
        assert sum(lengths) == 4000
        assert min(lengths) > 850


def test_a_queue_whose_keys_lie_on_several_servers_is_read() -> None:
    require("redis-cli")
    with RedisCluster3() as cluster, restante.connect(cluster.url, patience=10) as post:
        client = RedisCluster(host=HOST, port=cluster.nodes[0].port)
        node = Node(client)
        names = [f"q{number}" for number in range(4)]
        sent = {}
        for name in names:
            node.create(name)
            sent[name] = {*node.fill(name, 30, apart_ms=1), node.send(name, "a", delay=60)}
            node.receive(name)
        owners = {cluster.node_of_key(f"rsmq:{name}{end}").port for name in names for end in ("", ":Q")}
        assert len(owners) > 1
        assert queues(post) == names
        for name in names:
            found = all_of(post, name, page=7)
            assert set(found) == sent[name]
            states = [message.state for message in found.values()]
            assert (states.count(State.LEASED), states.count(State.SCHEDULED)) == (1, 1)
        client.close()
