"""Verdicts through Kombu: acks, rejections, recovery, and the leases of held messages."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kombu import Connection, Consumer, Producer, Queue

import restante
from restante import Admin, Client, State
from restante.core import renewal
from tests.celery.conftest import broker_url
from tests.celery.test_kombu import Heard, drain
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.servers import RedisServer

Connect = Callable[..., Connection]


def test_acked_is_gone_and_unacked_comes_back_when_the_channel_closes(connect: Connect, admin: Admin) -> None:
    connection = connect()
    for number in range(2):
        Producer(connection).publish(number, routing_key="orders")
    queue = Queue("orders")
    channel = connection.channel()
    first, second = queue(channel).get(), queue(channel).get()
    first.ack()
    assert second.payload == 1
    channel.close()
    counts = admin.counts("orders")
    assert (counts.ready, counts.leased, counts.totals["acked"], counts.totals["released"]) == (1, 0, 1, 1)
    again = queue(connection.channel()).get()
    assert (again.payload, again.delivery_info["redelivered"]) == (1, False)


def test_an_ack_outside_a_loop_is_told_at_once(connection: Connection, admin: Admin) -> None:
    Producer(connection).publish(1, routing_key="orders")
    Queue("orders")(connection.channel()).get().ack()
    assert admin.counts("orders").totals["acked"] == 1


def test_an_ack_given_while_draining_is_told_when_the_drain_ends(connection: Connection, admin: Admin) -> None:
    Producer(connection).publish(1, routing_key="orders")
    Heard(connection, Queue("orders"))
    connection.drain_events(timeout=PATIENCE)
    assert admin.counts("orders").totals["acked"] == 1


def test_an_ack_of_several_covers_all_up_to_the_one_named(connection: Connection, admin: Admin) -> None:
    for number in range(3):
        Producer(connection).publish(number, routing_key="orders")
    queue = Queue("orders")(connection.channel())
    messages = [queue.get() for _ in range(3)]
    messages[1].ack(multiple=True)
    counts = admin.counts("orders")
    assert (counts.totals["acked"], counts.leased) == (2, 1)
    messages[2].ack()


def test_what_a_cancelled_consumer_has_not_been_handed_goes_back(connection: Connection, admin: Admin) -> None:
    for number in range(3):
        Producer(connection).publish(number, routing_key="orders")
    heard = Heard(connection, Queue("orders"), prefetch=3)
    connection.drain_events(timeout=PATIENCE)
    assert (heard.bodies, admin.counts("orders").leased) == ([0], 3)
    heard.consumer.cancel()
    counts = admin.counts("orders")
    assert (counts.ready, counts.totals["released"]) == (2, 2)


def test_rejected_to_be_delivered_again_keeps_its_place_and_counts(connection: Connection) -> None:
    producer = Producer(connection)
    producer.publish("low", routing_key="orders", priority=0)
    producer.publish("high", routing_key="orders", priority=200)
    queue = Queue("orders")(connection.channel())
    high = queue.get()
    high.requeue()
    again = queue.get()
    assert (again.payload, again.delivery_info["redelivered"]) == ("high", True)
    assert again.headers["x-delivery-count"] == 1


def test_rejected_for_good_is_dead_with_its_reason(connection: Connection, admin: Admin) -> None:
    Producer(connection).publish("bad", routing_key="orders")
    Queue("orders")(connection.channel()).get().reject()
    (dead,) = admin.messages("orders", State.DEAD).messages
    assert admin.show("orders", dead.id).history[-1].error == "rejected"


def test_the_limit_of_deliveries_ends_in_dead_with_the_reason(connect: Connect, admin: Admin) -> None:
    connection = connect(delivery_limit=3)
    queue = Queue("orders")(connection.channel())
    queue.declare()
    Producer(connection).publish("again", routing_key="orders")
    for _ in range(3):
        queue.get().requeue()
    assert queue.get() is None
    (dead,) = admin.messages("orders", State.DEAD).messages
    assert [attempt.error for attempt in admin.show("orders", dead.id).history] == ["rejected with requeue"] * 3


def test_what_cannot_be_decoded_is_dead_although_it_was_acked(connection: Connection, admin: Admin) -> None:
    queue = Queue("orders")
    Producer(connection).publish(
        b"\x80not pickle",
        routing_key="orders",
        content_type="application/x-nonsense",
        content_encoding="binary",
        declare=[queue],
    )
    consumer = Consumer(
        connection.channel(),
        [queue],
        callbacks=[lambda body, message: None],
        accept=["json"],
        on_decode_error=lambda message, error: message.ack(),
    )
    consumer.consume()
    drain(connection)
    counts = admin.counts("orders")
    assert (counts.dead, counts.totals["acked"]) == (1, 0)


def test_a_native_message_that_kombu_cannot_hold_is_dead_and_the_next_one_comes(
    connection: Connection, post: Client, admin: Admin
) -> None:
    post.queue("orders").send("bad", headers={"kombu": "not ours"})
    post.queue("orders").send("good")
    assert Queue("orders")(connection.channel()).get().payload == "good"
    counts = admin.counts("orders")
    assert (counts.dead, counts.totals["acked"]) == (1, 0)


def test_a_stale_ack_has_no_effect(connect: Connect, admin: Admin, post: Client) -> None:
    connection = connect(visibility_timeout=0.3)
    Producer(connection).publish("x", routing_key="orders")
    message = Queue("orders")(connection.channel()).get()
    connection.transport.broker.holder.drop(message.leased)  # as if this process had stalled
    time.sleep(0.4)
    other = post.queue("orders").receive(timeout=PATIENCE, lease=30)
    assert other is not None
    message.ack()
    assert admin.counts("orders").leased == 1
    other.ack()


def test_a_held_message_is_nobody_elses_however_long_it_is_held(
    frozen: tuple[RedisServer, FrozenClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, clock = frozen
    monkeypatch.setattr(renewal, "RENEW_AFTER", 0.0001)  # of the lease, which the server's clock counts
    with (
        Connection(broker_url(server), transport_options={"visibility_timeout": 3600}) as connection,
        restante.connect(server.url) as post,
    ):
        Producer(connection).publish("x", routing_key="held")
        message = Queue("held")(connection.channel()).get()
        admin = Admin(post)
        for _ in range(3):
            clock.advance(3000)
            before = admin.counts("held").totals["extended"]
            wait_until(lambda before=before: admin.counts("held").totals["extended"] > before)  # type: ignore[misc]
            assert post.queue("held").receive() is None
        message.ack()
        assert admin.counts("held").totals["acked"] == 1


def test_a_lease_that_nobody_renews_ends(frozen: tuple[RedisServer, FrozenClock]) -> None:
    """Proves that the test before it can fail."""
    server, clock = frozen
    with (
        Connection(broker_url(server), transport_options={"visibility_timeout": 3600}) as connection,
        restante.connect(server.url) as post,
    ):
        Producer(connection).publish("x", routing_key="left")
        message = Queue("left")(connection.channel()).get()
        connection.transport.broker.holder.drop(message.leased)
        clock.advance(3601)
        again = post.queue("left").receive()
        assert again is not None
        again.ack()


def test_recover_gives_everything_back(connection: Connection, admin: Admin) -> None:
    for number in range(3):
        Producer(connection).publish(number, routing_key="orders")
    heard = Heard(connection, Queue("orders"), ack=False)
    drain(connection, 0.1)
    heard.ack = True
    heard.channel.basic_recover(requeue=True)
    drain(connection)
    assert sorted(heard.bodies) == [0, 0, 1, 1, 2, 2]
    assert admin.counts("orders").waiting == 0
