"""Faults observed in other Celery transports on Redis; each has a test that this transport is free of it.

| Fault | Test |
|---|---|
| 1 a delayed message is received at once | `test_workers.TestTimes`, `TestDelays` |
| 2 a time to live deletes messages with a longer delay | `TestDelays` |
| 3 two queues share one payload | `test_kombu.TestExchanges` |
| 4 messages of one priority change their order | `test_kombu.TestOrder` |
| 5 requeue and shutdown lose priority and place | `TestPlaces`, `test_verdicts`, `test_workers` |
| 6 visibility counts from the publish | `TestLeases` |
| 7 a backlog delays recovery | `TestLeases` |
| 8 client clocks decide | `TestDelays` |
| 9 any channel can ack any tag | `test_verdicts` |
| 10 broadcasts are lost around reads and reconnects | `test_kombu.TestBroadcasts` |
| 11 the delivery limit deletes messages | `test_verdicts` |
| 12 purge removes held messages, lengths are wrong, empty queues do not exist | `test_kombu.TestQueues` |
| 13 recovery needs an event loop | `TestLeases` |
| 14 a message without a bound queue is dropped silently | `test_kombu.TestExchanges` |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection, Consumer, Producer, Queue

from restante import Admin, Client, State
from restante.celery import messages
from restante.core.stored import Stored, encode
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE, at_most, wait_until
from tests.harness.processes import PythonProcess
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer

Connect = Callable[..., Connection]


def take_and_die(connection: Connection, queue: Queue) -> Any:
    """Receives a message and never settles it."""
    message = queue(connection.channel()).get()
    connection.transport.broker.holder.drop(message.leased)
    return message


class TestDelays:
    def test_a_delayed_message_is_never_early_even_where_it_is_the_only_one(self, connection: Connection) -> None:
        queue = Queue("orders")(connection.channel())
        queue.declare()
        due = datetime.now(UTC) + timedelta(seconds=0.4)
        Producer(connection).publish("later", routing_key="orders", headers={"eta": due.isoformat()})
        while (message := queue.get()) is None:
            assert datetime.now(UTC) < due + timedelta(seconds=5)
            time.sleep(0.001)
        assert datetime.now(UTC) >= due
        assert message.headers == {"eta": due.isoformat()}

    @pytest.mark.parametrize("lettered", [False, True], ids=["plain", "dead-letter exchange"])
    def test_a_delay_longer_than_every_time_to_live_is_kept(
        self, frozen: tuple[RedisServer, FrozenClock], lettered: bool
    ) -> None:
        server, clock = frozen
        url = f"{server.url.replace('redis', 'restante', 1)}/0"
        with Connection(url, transport_options={"message_ttl": 60}) as connection:
            arguments = {"x-message-ttl": 30_000, **({"x-dead-letter-exchange": "gone"} if lettered else {})}
            queue = Queue("lettered" if lettered else "plain", queue_arguments=arguments)(connection.channel())
            queue.declare()
            producer = Producer(connection)
            eta = datetime.now(UTC) + timedelta(days=400)
            for text, later in (("next year", 0), ("nobody came", 1)):
                headers = {"eta": (eta + timedelta(seconds=later)).isoformat()}
                producer.publish(text, routing_key=queue.name, headers=headers)
            clock.advance(399.9 * 86400)
            assert queue.get() is None
            clock.advance(0.1 * 86400 + 10)
            message = queue.get()
            assert message.payload == "next year"
            message.ack()
            clock.advance(31)
            assert queue.get() is None  # its time to live has counted since it was due

    @pytest.mark.parametrize("lettered", [False, True], ids=["plain", "dead-letter exchange"])
    def test_a_messages_own_expiration_counts_from_the_publish(
        self, frozen: tuple[RedisServer, FrozenClock], lettered: bool
    ) -> None:
        server, clock = frozen
        with Connection(f"{server.url.replace('redis', 'restante', 1)}/0") as connection:
            arguments = {"x-dead-letter-exchange": "gone"} if lettered else {}
            queue = Queue("own-lettered" if lettered else "own", queue_arguments=arguments)(connection.channel())
            queue.declare()
            headers = {"eta": (datetime.now(UTC) + timedelta(seconds=3600)).isoformat()}
            for text, seconds in (("over before it is due", 60), ("over soon after", 3660), ("in time", 7200)):
                Producer(connection).publish(text, routing_key=queue.name, headers=headers, expiration=seconds)
            clock.advance(3601)
            messages = [queue.get() for _ in range(2)]
            assert {message.payload for message in messages} == {"over soon after", "in time"}
            assert queue.get() is None
            for message in messages:
                message.ack()

    @pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
    def test_a_clock_that_is_wrong_does_not_change_a_delay(
        self, server: RedisServer, url: str, admin: Admin, wrong: float
    ) -> None:
        clock = FrozenClock()
        clock.offset(wrong)
        program = (
            "from celery import Celery\nimport sys\napp = Celery(broker=sys.argv[1])\n"
            "app.send_task('shop.add', countdown=60)\nprint('sent')\n"
        )
        with PythonProcess(program, url, clock=clock) as process:
            process.wait_line("sent")
        (message,) = admin.messages("celery", State.SCHEDULED).messages
        assert message.due_at is not None
        assert timedelta(seconds=58) < message.due_at - message.sent_at <= timedelta(seconds=60.1)


class TestLeases:
    def test_waiting_is_not_holding(self, connect: Connect) -> None:
        connection = connect(visibility_timeout=0.2)
        queue = Queue("orders")(connection.channel())
        queue.declare()
        Producer(connection).publish("x", routing_key="orders")
        time.sleep(0.5)
        message = queue.get()
        assert not message.delivery_info["redelivered"]
        assert "x-delivery-count" not in message.headers

    def test_a_backlog_delays_neither_recovery_nor_what_is_due(self, connect: Connect, post: Client) -> None:
        connection = connect(visibility_timeout=0.3)
        queue = Queue("orders")
        Producer(connection).publish("held", routing_key="orders", priority=5)
        take_and_die(connection, queue)
        eta = datetime.now(UTC) + timedelta(seconds=0.3)
        Producer(connection).publish("due", routing_key="orders", priority=9, headers={"eta": eta.isoformat()})
        for _ in range(20):
            post.queue("orders").send_many(["backlog"] * 1000)
        time.sleep(0.4)
        bound = queue(connection.channel())
        assert [bound.get().payload for _ in range(2)] == ["due", "held"]

    @pytest.mark.timed
    @pytest.mark.parametrize("way", ["drain", "get"])
    def test_recovery_needs_no_event_loop(self, connect: Connect, way: str) -> None:
        connection = connect(visibility_timeout=0.3)
        queue = Queue("orders")
        Producer(connection).publish("x", routing_key="orders")
        take_and_die(connection, queue)
        found: list[Any] = []
        with at_most(1.5):
            if way == "drain":
                consumer = Consumer(
                    connection.channel(), [queue], callbacks=[lambda body, message: found.append(message)]
                )
                consumer.consume()
                connection.drain_events(timeout=PATIENCE)
            else:
                bound = queue(connection.channel())
                found.append(wait_until(bound.get))
        assert found[0].delivery_info["redelivered"]
        found[0].ack()


class TestPlaces:
    def test_what_a_closed_channel_gives_back_keeps_priority_and_order(self, connect: Connect) -> None:
        connection = connect()
        for number, priority in enumerate((0, 9, 5, 9)):
            Producer(connection).publish(number, routing_key="orders", priority=priority)
        channel = connection.channel()
        consumer = Consumer(channel, [Queue("orders")], callbacks=[lambda body, message: None])
        consumer.qos(prefetch_count=4)
        consumer.consume()
        for _ in range(4):
            connection.drain_events(timeout=2)
        channel.close()
        Producer(connection).publish(4, routing_key="orders", priority=0)
        queue = Queue("orders")(connection.channel())
        assert [queue.get().payload for _ in range(5)] == [1, 3, 2, 0, 4]


class TestLostAnswers:
    @pytest.mark.parametrize("patience", [4.0, 0.0], ids=["repeated by the client", "repeated by Kombu"])
    def test_a_publish_whose_answer_was_lost_is_stored_once(
        self, proxy: FaultProxy, admin: Admin, patience: float
    ) -> None:
        url = f"{proxy.url.replace('redis', 'restante', 1)}/0"
        with Connection(url, transport_options={"patience": patience}) as connection:
            Queue("orders")(connection.channel()).declare()
            producer = Producer(connection)
            producer.publish("warm", routing_key="orders")
            proxy.cut_before_reply(3, matching=b"EVALSHA")
            policy = {"interval_start": 0.01, "interval_step": 0.0}
            producer.publish("once", routing_key="orders", retry=True, retry_policy=policy)
            assert proxy.counters.cut == 3
        assert [message.payload for message in admin.walk("orders", State.READY)] == [b"warm", b"once"]
        assert admin.counts("orders").totals["sent"] == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [name for name, _ in messages.USUAL] + ["id", "root_id", "task", "origin", "x", "kombu-", "stamps"]
)


@given(
    headers=st.dictionaries(NAMES, JSON | st.sampled_from([value for _, value in messages.USUAL]), max_size=12),
    properties=st.dictionaries(
        st.sampled_from(["correlation_id", "reply_to", "delivery_mode", "type", "app_id", "expiration"]),
        st.text(max_size=8) | st.integers(1, 2),
        max_size=4,
    ),
    body=st.text(max_size=20) | st.binary(max_size=20),
    content=st.sampled_from([("application/json", "utf-8"), ("application/data", "binary"), (None, None)]),
    exchange=st.sampled_from(["orders", "shop", ""]),
    key=st.sampled_from(["orders", "a.b", ""]),
)
def test_what_is_published_is_what_is_received(
    headers: dict[str, Any], properties: dict[str, Any], body: Any, content: tuple[Any, Any], exchange: str, key: str
) -> None:
    message = {
        "body": body,
        "headers": headers,
        "properties": {**properties, "priority": 3, "delivery_info": {}},
        "content-type": content[0],
        "content-encoding": content[1],
    }
    payload, content_type = messages.payload_of(body, *content)
    stored, _ = encode(
        payload, priority=3, headers=messages.headers_of(message, "orders", exchange, key), content_type=content_type
    )
    parts = messages.unpack(_Waiting(Stored(b"1\n0\t" + stored)), "orders")  # type: ignore[arg-type]
    assert parts["headers"] == headers
    assert parts["body"] == body
    assert type(parts["body"]) is type(body)
    assert (parts["content_type"], parts["content_encoding"]) == content
    assert (parts["exchange"], parts["routing_key"]) == (exchange, key)
    assert parts["properties"] == {**properties, "priority": 3}


class _Waiting:
    """The fields of a message that `unpack` reads."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.headers, self.content_type, self.priority = stored.headers, stored.content_type, stored.priority
