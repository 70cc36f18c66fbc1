"""The behaviour that Kombu documents for transports, tested through Kombu itself, without Celery."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError

from restante import Admin, Client
from restante.celery import Unroutable
from restante.core.errors import InvalidInput, QueueFull
from tests.harness.deadlines import PATIENCE, at_most, took_at_most

Connect = Callable[..., Connection]


def drain(connection: Connection, seconds: float = 0.3) -> None:
    """Drains events until none arrives for the given time."""
    try:
        while True:
            connection.drain_events(timeout=seconds)
    except TimeoutError:
        return


class Heard:
    """A consumer that records messages, and acks them unless it should not."""

    def __init__(self, connection: Connection, *queues: Queue, ack: bool = True, prefetch: int = 0, **options: Any):
        self.bodies: list[Any] = []
        self.messages: list[Any] = []
        self.ack = ack
        self.channel = connection.channel()
        self.consumer = Consumer(self.channel, list(queues), callbacks=[self], **options)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def __call__(self, body: Any, message: Any) -> None:
        self.bodies.append(body)
        self.messages.append(message)
        if self.ack:
            message.ack()


def fail_at_one(body: Any, message: Any) -> None:
    assert 1 / (body - 1)


class TestPublishAndConsume:
    def test_a_message_comes_as_it_was_published(self, connection: Connection) -> None:
        queue = Queue("orders", Exchange("shop", "direct"), routing_key="paid")
        route = {"exchange": queue.exchange, "routing_key": "paid", "declare": [queue]}
        properties = {"correlation_id": "c1", "reply_to": "r1", "priority": 7, "type": "t", "app_id": "a"}
        headers = {"trace": "abc", "none": None}
        Producer(connection).publish({"n": 1, "text": "grüße"}, headers=headers, **route, **properties)
        message = queue(connection.channel()).get()
        assert message.payload == {"n": 1, "text": "grüße"}
        assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
        assert message.headers == {"trace": "abc", "none": None}
        wanted = {
            "correlation_id": "c1",
            "reply_to": "r1",
            "priority": 7,
            "type": "t",
            "app_id": "a",
            "delivery_mode": 2,
        }
        assert {key: message.properties.get(key) for key in wanted} == wanted
        assert message.delivery_info["exchange"] == "shop"
        assert message.delivery_info["routing_key"] == "paid"
        assert not message.delivery_info["redelivered"]

    @pytest.mark.parametrize("serializer", ["json", "pickle", "restante"])
    def test_every_serializer_and_compression_comes_back(self, connection: Connection, serializer: str) -> None:
        with connection.SimpleQueue("mixed", serializer=serializer, compression="zlib", accept=[serializer]) as queue:
            queue.put({"a": [1, 2.5, "x"]})
            message = queue.get(timeout=PATIENCE)
            assert message.decode() == {"a": [1, 2.5, "x"]}
            message.ack()

    def test_raw_bytes_stay_bytes(self, connection: Connection) -> None:
        queue = Queue("raw", Exchange(""), routing_key="raw")
        body = bytes(range(256))
        Producer(connection).publish(
            body, routing_key="raw", content_type="application/data", content_encoding="binary", declare=[queue]
        )
        message = queue(connection.channel()).get()
        assert bytes(message.body) == body

    def test_get_of_an_empty_queue_is_none(self, connection: Connection) -> None:
        queue = Queue("empty")(connection.channel())
        queue.declare()
        assert queue.get() is None

    @pytest.mark.timed
    def test_drain_ends_in_time(self, connection: Connection) -> None:
        Heard(connection, Queue("quiet"))
        begun = time.monotonic()
        with at_most(1.0), pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.2)
        assert time.monotonic() - begun >= 0.2

    def test_one_drain_hands_out_everything_that_has_arrived(self, connection: Connection) -> None:
        heard = Heard(connection, Queue("orders"))
        for n in range(3):
            Producer(connection).publish(n, routing_key="orders")
        connection.drain_events(timeout=PATIENCE)
        assert heard.bodies == [0, 1, 2]
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)

    def test_one_drain_hands_a_consumer_with_a_prefetch_count_one_message(self, connection: Connection) -> None:
        heard = Heard(connection, Queue("orders"), prefetch=3)
        for n in range(3):
            Producer(connection).publish(n, routing_key="orders")
        for n in range(3):
            connection.drain_events(timeout=PATIENCE)
            assert heard.bodies == list(range(n + 1))

    def test_a_callback_that_fails_leaves_the_rest_for_the_next_drain(self, connection: Connection) -> None:
        heard = Heard(connection, Queue("orders"))
        heard.consumer.callbacks.insert(0, fail_at_one)
        for n in range(3):
            Producer(connection).publish(n, routing_key="orders")
        with pytest.raises(ZeroDivisionError):
            connection.drain_events(timeout=PATIENCE)
        connection.drain_events(timeout=PATIENCE)
        assert heard.bodies == [0, 2]

    @pytest.mark.timed
    def test_a_message_from_elsewhere_wakes_a_drain_at_once(self, connect: Connect) -> None:
        one, other = connect(), connect()
        Heard(one, Queue("orders"))
        with pytest.raises(socket.timeout):
            one.drain_events(timeout=0.1)
        sent: list[float] = []

        def publish() -> None:
            time.sleep(0.3)
            sent.append(time.monotonic())
            Producer(other).publish("x", routing_key="orders")

        thread = threading.Thread(target=publish)
        thread.start()
        one.drain_events(timeout=PATIENCE)
        took_at_most(time.monotonic() - sent[0], 0.5)
        thread.join()

    def test_a_native_message_is_a_message_too(self, connection: Connection, post: Client) -> None:
        heard = Heard(connection, Queue("orders"))
        post.queue("orders").send({"n": 1}, kind="order", headers={"h": "v"})
        drain(connection)
        assert heard.bodies == [{"n": 1}]
        assert heard.messages[0].headers == {"h": "v"}

    def test_a_kombu_message_is_a_native_message_too(self, connection: Connection, post: Client) -> None:
        Producer(connection).publish({"n": 1}, routing_key="orders", priority=9, headers={"task": "shop.add"})
        message = post.queue("orders").receive()
        assert message is not None
        assert (message.payload, message.priority, message.kind) == ({"n": 1}, 9, "shop.add")


class TestOrder:
    def test_high_priority_comes_first_and_equals_keep_their_order(self, connection: Connection) -> None:
        producer = Producer(connection)
        for number, priority in enumerate((0, 5, 255, 5, 0, 9)):
            producer.publish(number, routing_key="orders", priority=priority)
        heard = Heard(connection, Queue("orders"))
        drain(connection)
        assert heard.bodies == [2, 5, 1, 3, 0, 4]

    def test_a_priority_out_of_range_is_the_nearest_one(self, connection: Connection, admin: Admin) -> None:
        for priority in (300, -4, 255, 0):
            Producer(connection).publish(priority, routing_key="orders", priority=priority)
        heard = Heard(connection, Queue("orders"))
        drain(connection)
        assert heard.bodies == [300, 255, -4, 0]

    def test_three_thousand_published_in_turn_come_in_turn(self, connect: Connect) -> None:
        connection = connect()
        producer = Producer(connection)
        for number in range(3000):
            producer.publish(number, routing_key="orders")
        heard = Heard(connection, Queue("orders"), no_ack=True)
        heard.ack = False
        drain(connection)
        assert heard.bodies == list(range(3000))

    def test_prefetch_bounds_what_is_held(self, connection: Connection, admin: Admin) -> None:
        for number in range(10):
            Producer(connection).publish(number, routing_key="orders")
        heard = Heard(connection, Queue("orders"), ack=False, prefetch=3)
        drain(connection, 0.2)
        assert heard.bodies == [0, 1, 2]
        assert admin.counts("orders").leased == 3
        heard.messages[0].ack()
        drain(connection, 0.2)
        assert heard.bodies == [0, 1, 2, 3]

    def test_queues_take_turns(self, connection: Connection) -> None:
        for name in ("a", "b"):
            for number in range(4):
                Producer(connection).publish(f"{name}{number}", routing_key=name)
        heard = Heard(connection, Queue("a"), Queue("b"), prefetch=1)
        drain(connection)
        assert sorted(heard.bodies) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
        assert {heard.bodies[0][0], heard.bodies[1][0]} == {"a", "b"}


class TestQueues:
    def test_a_declared_queue_exists_also_when_it_is_empty(self, connection: Connection) -> None:
        queue = Queue("empty")(connection.channel())
        with pytest.raises(ChannelError, match="NOT_FOUND - no queue 'empty'"):
            queue.queue_declare(passive=True)
        queue.declare()
        assert queue.queue_declare(passive=True).message_count == 0

    def test_counts_are_true_and_purge_leaves_what_is_held(self, connection: Connection, admin: Admin) -> None:
        queue = Queue("orders")(connection.channel())
        queue.declare()
        for number in range(5):
            Producer(connection).publish(number, routing_key="orders")
        held = queue.get()
        assert queue.queue_declare(passive=True).message_count == 4
        assert queue.purge() == 4
        assert admin.counts("orders").leased == 1
        held.ack()

    def test_a_deleted_queue_is_gone_with_its_bindings(self, connection: Connection) -> None:
        queue = Queue("orders", Exchange("shop", "topic"), routing_key="#")(connection.channel())
        queue.declare()
        queue.delete()
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            queue.queue_declare(passive=True)
        with pytest.raises(Unroutable):
            Producer(connection).publish("x", exchange="shop", routing_key="paid", mandatory=True)

    def test_delete_if_empty_and_if_unused(self, connection: Connection) -> None:
        queue = Queue("orders")(connection.channel())
        queue.declare()
        Producer(connection).publish("x", routing_key="orders")
        queue.delete(if_empty=True)
        assert queue.queue_declare(passive=True).message_count == 1
        Heard(connection, Queue("orders"))
        queue.delete(if_unused=True)
        assert queue.queue_declare(passive=True)

    def test_other_arguments_are_refused_as_rabbitmq_does(self, connection: Connection) -> None:
        Queue("orders", message_ttl=5)(connection.channel()).declare()
        with pytest.raises(ChannelError, match=r"PRECONDITION_FAILED.*x-message-ttl"):
            Queue("orders", message_ttl=6)(connection.channel()).declare()

    def test_a_time_to_live_removes_what_waited_too_long(self, connection: Connection, admin: Admin) -> None:
        queue = Queue("orders", message_ttl=0.1)(connection.channel())
        queue.declare()
        Producer(connection).publish("old", routing_key="orders")
        time.sleep(0.2)
        Producer(connection).publish("new", routing_key="orders")
        Producer(connection).publish("older", routing_key="orders", expiration=0.01)
        assert queue.get().payload == "new"
        time.sleep(0.05)
        assert queue.get() is None
        assert [line.error_class for line in admin.journal("orders") if line.event == "deleted"] == ["Lapsed"] * 2

    def test_a_priority_is_bounded_by_the_queue(self, connection: Connection) -> None:
        queue = Queue("orders", max_priority=5)(connection.channel())
        queue.declare()
        for priority in (9, 5):
            Producer(connection).publish(priority, routing_key="orders", priority=priority)
        assert [queue.get().payload for _ in range(2)] == [9, 5]

    def test_a_full_queue_refuses(self, connection: Connection) -> None:
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        Queue("orders", queue_arguments=arguments)(connection.channel()).declare()
        for _ in range(2):
            Producer(connection).publish("x", routing_key="orders")
        with pytest.raises(QueueFull):
            Producer(connection).publish("x", routing_key="orders")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"x-max-length": 5}, "reject-publish"),
            ({"x-max-length-bytes": 5}, "is not supported: leave it out"),
            ({"x-overflow": "drop-head"}, "drops messages"),
            ({"x-single-active-consumer": True}, "is not supported: leave it out"),
            ({"x-max-priority": 256}, "0 to 255"),
            ({"x-message-ttl": "soon"}, "whole number"),
            ({"x-dead-letter-routing-key": "k"}, "without an x-dead-letter-exchange"),
        ],
    )
    def test_what_cannot_be_kept_is_refused_loudly(
        self, connection: Connection, arguments: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InvalidInput, match=words):
            Queue("orders", queue_arguments=arguments)(connection.channel()).declare()

    def test_a_dead_letter_that_nobody_is_bound_for_is_dead_not_lost(self, connect: Connect, admin: Admin) -> None:
        connection = connect(unroutable="drop")
        channel = connection.channel()
        Exchange("dlx", "topic", durable=False)(channel).declare()
        queue = Queue("orders", queue_arguments={"x-dead-letter-exchange": "dlx"})(channel)
        queue.declare()
        Producer(connection).publish("x", routing_key="orders", delivery_mode=1)
        queue.get().reject()
        counts = admin.counts("orders")
        assert (counts.dead, counts.totals["acked"]) == (1, 0)

    def test_a_compressed_dead_letter_is_still_readable(self, connection: Connection) -> None:
        channel = connection.channel()
        graves = Queue("graves", Exchange("dlx", "fanout"))(channel)
        graves.declare()
        queue = Queue("orders", queue_arguments={"x-dead-letter-exchange": "dlx"})(channel)
        queue.declare()
        Producer(connection).publish({"n": 1}, routing_key="orders", compression="zlib")
        queue.get().reject()
        assert graves.get().payload == {"n": 1}

    def test_rejected_and_expired_go_to_the_dead_letter_exchange(self, connect: Connect, admin: Admin) -> None:
        connection = connect(delivery_limit=2)
        channel = connection.channel()
        graves = Queue("graves", Exchange("dlx", "topic"), routing_key="dead.#")(channel)
        graves.declare()
        arguments = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "dead.orders", "x-message-ttl": 300}
        queue = Queue("orders", queue_arguments=arguments)(channel)
        queue.declare()
        Producer(connection).publish("rejected", routing_key="orders")
        queue.get().reject()
        Producer(connection).publish("again", routing_key="orders")
        queue.get().requeue()
        queue.get().requeue()
        assert queue.get() is None
        Producer(connection).publish("late", routing_key="orders")
        time.sleep(0.4)
        assert queue.get() is None
        found = [graves.get() for _ in range(3)]
        reasons = [(message.payload, message.headers["x-death"][0]["reason"]) for message in found]
        assert reasons == [("rejected", "rejected"), ("again", "delivery_limit"), ("late", "expired")]
        assert graves.get() is None
        assert admin.counts("orders").dead == 0


class TestExchanges:
    def test_each_bound_queue_has_a_copy_of_its_own(self, connection: Connection) -> None:
        exchange = Exchange("shop", "topic")
        channel = connection.channel()
        one = Queue("one", exchange, routing_key="order.*")(channel)
        two = Queue("two", exchange, routing_key="order.#")(channel)
        one.declare()
        two.declare()
        Producer(channel, exchange).publish("paid", routing_key="order.paid")
        one.get().ack()
        assert two.get().payload == "paid"

    def test_a_hash_matches_no_word_too(self, connection: Connection) -> None:
        exchange = Exchange("shop", "topic")
        queue = Queue("one", exchange, routing_key="order.#")(connection.channel())
        queue.declare()
        Producer(connection, exchange).publish("bare", routing_key="order")
        assert queue.get().payload == "bare"

    def test_two_bindings_of_one_queue_give_one_copy(self, connection: Connection) -> None:
        exchange = Exchange("shop", "topic")
        channel = connection.channel()
        queue = Queue("one", exchange, routing_key="order.#")(channel)
        queue.declare()
        queue.bind_to(exchange, routing_key="*.paid")
        Producer(channel, exchange).publish("paid", routing_key="order.paid")
        assert queue.get().payload == "paid"
        assert queue.get() is None

    def test_a_binding_counts_from_the_moment_it_is_made_in_every_process(self, connect: Connect) -> None:
        # Connections with different options share nothing, like connections of two processes.
        publisher, service = connect(client_name="publisher"), connect(client_name="service")
        exchange = Exchange("shop", "topic")
        first = Queue("first", exchange, routing_key="#")(service.channel())
        first.declare()
        Producer(publisher, exchange).publish(1, routing_key="a")
        second = Queue("second", exchange, routing_key="#")(service.channel())
        second.declare()
        Producer(publisher, exchange).publish(2, routing_key="a")
        second.unbind_from(exchange, routing_key="#")
        Producer(publisher, exchange).publish(3, routing_key="a")
        assert [first.get().payload for _ in range(3)] == [1, 2, 3]
        assert second.get().payload == 2
        assert second.get() is None

    def test_a_queue_that_another_process_unbound_gets_nothing_more(self, connect: Connect) -> None:
        publisher, service = connect(client_name="publisher"), connect(client_name="service")
        exchange = Exchange("shop", "topic")
        queue = Queue("orders", exchange, routing_key="#")(service.channel())
        queue.declare()
        producer = Producer(publisher, exchange, routing_key="a")
        for number in range(2):
            producer.publish(number)
        queue.unbind_from(exchange, routing_key="#")
        producer.publish("nobody is bound")
        assert [queue.get().payload for _ in range(2)] == [0, 1]
        assert queue.get() is None

    def test_an_exchange_keeps_its_type(self, connection: Connection) -> None:
        Exchange("shop", "topic")(connection.channel()).declare()
        with pytest.raises(InvalidInput, match="PRECONDITION_FAILED"):
            Exchange("shop", "fanout")(connection.channel()).declare()
        with pytest.raises(InvalidInput, match="headers"):
            Exchange("other", "headers")(connection.channel()).declare()
        with pytest.raises(ChannelError, match="NOT_FOUND - no exchange 'nowhere'"):
            Exchange("nowhere", "topic")(connection.channel()).declare(passive=True)


class TestBroadcasts:
    EXCHANGE = Exchange("news", "fanout")

    def test_every_queue_has_its_own_copy_durable_or_not(self, connection: Connection) -> None:
        channel = connection.channel()
        queues = [Queue("kept", self.EXCHANGE)(channel)]
        queues += [Queue(name, self.EXCHANGE, auto_delete=True)(channel) for name in ("here", "there")]
        for queue in queues:
            queue.declare()
        Producer(channel, self.EXCHANGE).publish("hello")
        assert [queue.get().payload for queue in queues] == ["hello"] * 3
        assert [queue.get() for queue in queues] == [None] * 3

    def test_what_was_published_before_the_first_drain_arrives(self, connect: Connect) -> None:
        connection = connect()
        heard = Heard(connection, Queue("here", self.EXCHANGE, auto_delete=True), no_ack=True)
        heard.ack = False
        Producer(connect(), self.EXCHANGE).publish("early")
        drain(connection)
        assert heard.bodies == ["early"]

    def test_nothing_is_missed_between_reads_or_over_a_reconnect(self, connect: Connect) -> None:
        queue = Queue("here", self.EXCHANGE, auto_delete=True)
        bodies: list[Any] = []
        publisher = Producer(connect(), self.EXCHANGE)
        for turn in range(3):
            connection = connect()
            heard = Heard(connection, queue, no_ack=True)
            heard.ack = False
            publisher.publish(turn * 2)
            drain(connection, 0.2)
            bodies += heard.bodies
            connection.close()
            publisher.publish(turn * 2 + 1)
        assert bodies == [0, 1, 2, 3, 4]

    def test_nothing_is_heard_twice_over_a_reconnect(self, connect: Connect) -> None:
        publisher = Producer(connect(), self.EXCHANGE)
        bodies = []
        for turn in range(2):
            connection = connect()
            heard = Heard(connection, Queue("here", self.EXCHANGE, auto_delete=True), no_ack=True)
            heard.ack = False
            for number in range(3):
                publisher.publish(turn * 3 + number)
                connection.drain_events(timeout=PATIENCE)
            bodies += heard.bodies
            connection.close()
        assert bodies == list(range(6))

    def test_a_second_binding_loses_nothing_that_the_first_has_not_read(self, connection: Connection) -> None:
        exchange = Exchange("events", "topic")
        channel = connection.channel()
        queue = Queue("here", exchange, routing_key="paid", auto_delete=True)(channel)
        queue.declare()
        Producer(channel, exchange).publish(1, routing_key="paid")
        queue.bind_to(exchange, routing_key="sent")
        Producer(channel, exchange).publish(2, routing_key="sent")
        assert [queue.get().payload for _ in range(2)] == [1, 2]

    def test_a_topic_reaches_those_whose_pattern_fits(self, connection: Connection) -> None:
        exchange = Exchange("events", "topic")
        paid = Heard(connection, Queue("p", exchange, routing_key="order.paid", auto_delete=True))
        every = Heard(connection, Queue("e", exchange, routing_key="#", auto_delete=True))
        for topic in ("order.paid", "order.sent"):
            Producer(connection, exchange).publish(topic, routing_key=topic)
        drain(connection)
        assert (paid.bodies, every.bodies) == (["order.paid"], ["order.paid", "order.sent"])


def test_queues_that_programs_drop_are_nobodys_action(connect: Callable[..., Connection], admin: Admin) -> None:
    with connect().channel() as channel:
        channel.queue_declare("brief")
        channel.queue_delete("brief")
    assert "brief" not in admin.queues()
    assert admin.audit() == []
