"""Messages for which no queue is bound: the rules of AMQP, and no message is lost silently."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from amqp.exceptions import NotFound
from kombu import Connection, Exchange, Producer, Queue

from restante import Admin
from restante.celery import Unroutable
from tests.celery.test_kombu import Heard, drain

Connect = Callable[..., Connection]
SHOP = Exchange("shop", "topic", durable=True)


@pytest.fixture
def channel(connection: Connection) -> Any:
    channel = connection.channel()
    SHOP(channel).declare()
    return channel


def dropped(admin: Admin) -> dict[str, int]:
    return {exchange: one.count for exchange, one in admin.unroutable().items()}


class TestByDefault:
    def test_it_is_dropped_with_one_warning_per_route_and_counted(
        self, channel: Any, admin: Admin, caplog: pytest.LogCaptureFixture
    ) -> None:
        producer = Producer(channel, SHOP)
        with caplog.at_level(logging.WARNING, "restante"):
            for _ in range(3):
                producer.publish("x", routing_key="order.paid")
            producer.publish("x", routing_key="order.sent")
        said = [record.message for record in caplog.records]
        assert [text.partition(":")[0] for text in said] == [
            "dropped because no queue is bound exchange=shop routing_key=order.paid",
            "dropped because no queue is bound exchange=shop routing_key=order.sent",
        ]
        assert dropped(admin) == {"shop": 4}
        assert admin.unroutable()["shop"].at is not None

    def test_what_is_routed_is_not_counted(self, channel: Any, admin: Admin) -> None:
        queue = Queue("orders", SHOP, routing_key="#")(channel)
        queue.declare()
        Producer(channel, SHOP).publish("x", routing_key="order.paid")
        assert queue.get().payload == "x"
        assert dropped(admin) == {}

    @pytest.mark.parametrize("transient", ["message", "exchange"])
    def test_what_is_transient_may_reach_nobody(
        self, connection: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, transient: str
    ) -> None:
        exchange = Exchange("news", "fanout", durable=transient != "exchange")
        Producer(connection, exchange).publish(
            "x", declare=[exchange], delivery_mode=1 if transient == "message" else 2
        )
        assert (dropped(admin), caplog.records) == ({}, [])

    def test_two_applications_that_share_a_server_are_counted_apart(self, connect: Connect, admin: Admin) -> None:
        for prefix in ("", "two:"):
            Producer(connect(global_keyprefix=prefix), SHOP).publish("x", routing_key="a", declare=[SHOP])
        assert dropped(admin) == {"shop": 1, "two:shop": 1}


class TestByChoice:
    def test_drop_says_nothing_and_counts(
        self, channel: Any, connect: Connect, admin: Admin, caplog: pytest.LogCaptureFixture
    ) -> None:
        Producer(connect(unroutable="drop"), SHOP).publish("x", routing_key="order.paid")
        assert (dropped(admin), caplog.records) == ({"shop": 1}, [])

    def test_raise_refuses(self, channel: Any, connect: Connect, admin: Admin) -> None:
        with pytest.raises(Unroutable, match="no queue is bound to exchange 'shop' for 'order"):
            Producer(connect(unroutable="raise"), SHOP).publish("x", routing_key="order.paid")
        assert dropped(admin) == {}

    @pytest.mark.parametrize("mandatory", [False, True])
    @pytest.mark.parametrize("unroutable", ["warn", "drop", "raise"])
    def test_the_fallback_queue_keeps_it(
        self, channel: Any, connect: Connect, admin: Admin, unroutable: str, mandatory: bool
    ) -> None:
        connection = connect(deadletter_queue="lost", unroutable=unroutable)
        Producer(connection, SHOP).publish("x", routing_key="order.paid", mandatory=mandatory)
        assert admin.counts("lost").ready == 1
        assert dropped(admin) == {}


class TestMandatory:
    @pytest.mark.parametrize("unroutable", ["warn", "drop", "raise"])
    def test_without_on_return_it_is_an_error(self, channel: Any, connect: Connect, unroutable: str) -> None:
        with pytest.raises(Unroutable, match="NO_ROUTE") as refused:
            Producer(connect(unroutable=unroutable), SHOP).publish("x", routing_key="order.paid", mandatory=True)
        assert refused.value.reply_code == 312

    def test_on_return_gets_the_message_back(self, channel: Any, admin: Admin) -> None:
        returned: list[tuple[Any, ...]] = []
        producer = Producer(channel, SHOP, on_return=lambda *told: returned.append(told))
        producer.publish({"n": 1}, routing_key="order.paid", mandatory=True, headers={"trace": "abc"})
        ((error, exchange, routing_key, message),) = returned
        assert (type(error), exchange, routing_key) == (Unroutable, "shop", "order.paid")
        assert (message.payload, message.headers) == ({"n": 1}, {"trace": "abc"})
        assert dropped(admin) == {}

    def test_what_is_routed_is_not_returned(self, channel: Any) -> None:
        queue = Queue("orders", SHOP, routing_key="#")(channel)
        queue.declare()
        Producer(channel, SHOP).publish("x", routing_key="order.paid", mandatory=True)
        assert queue.get().payload == "x"


class TestUnknownExchange:
    @pytest.mark.parametrize("retry", [False, True])
    @pytest.mark.parametrize("unroutable", ["warn", "drop", "raise"])
    def test_a_publish_is_refused_and_the_connection_stays(
        self, connect: Connect, unroutable: str, retry: bool
    ) -> None:
        connection = connect(unroutable=unroutable)
        heard = Heard(connection, Queue("orders"))
        with pytest.raises(NotFound, match="NOT_FOUND - no exchange 'nowhere'") as refused:
            Producer(connection).publish("x", exchange="nowhere", routing_key="a", retry=retry)
        assert refused.value.reply_code == 404
        Producer(connection).publish("y", routing_key="orders")
        drain(connection)
        assert heard.bodies == ["y"]

    def test_the_fallback_queue_hides_no_misspelt_exchange(self, connect: Connect) -> None:
        with pytest.raises(NotFound):
            Producer(connect(deadletter_queue="lost")).publish("x", exchange="nowhere", routing_key="a")

    def test_a_deleted_exchange_is_unknown(self, channel: Any) -> None:
        SHOP(channel).delete()
        with pytest.raises(NotFound):
            Producer(channel).publish("x", exchange="shop", routing_key="a")

    def test_a_queue_cannot_be_bound_to_it_nor_an_unknown_queue_to_an_exchange(self, channel: Any) -> None:
        queue = Queue("orders")(channel)
        queue.declare()
        with pytest.raises(NotFound, match="no exchange 'nowhere'"):
            queue.bind_to("nowhere", routing_key="a")
        with pytest.raises(NotFound, match="no queue 'missing'"):
            channel.queue_bind("missing", "shop", "a")

    def test_a_passive_declare_of_what_is_unknown_is_404(self, channel: Any) -> None:
        with pytest.raises(NotFound, match="no exchange 'nowhere'"):
            Exchange("nowhere", "topic", passive=True)(channel).declare()
        with pytest.raises(NotFound, match="no queue 'missing'") as refused:
            Queue("missing")(channel).queue_declare(passive=True)
        assert refused.value.reply_code == 404

    def test_the_exchanges_every_broker_has_need_no_declaring(self, channel: Any, admin: Admin) -> None:
        Queue("orders")(channel).declare()
        for type, key in (("direct", "paid"), ("topic", "pa*"), ("fanout", "")):
            Producer(channel).publish("nobody", exchange=f"amq.{type}", routing_key="paid")
            channel.queue_bind("orders", f"amq.{type}", key.replace("pa*", "*"))
            Producer(channel).publish(type, exchange=f"amq.{type}", routing_key="paid")
        queue = Queue("orders")(channel)
        assert [queue.get().payload for _ in range(3)] == ["direct", "topic", "fanout"]
        assert dropped(admin) == {"amq.direct": 1, "amq.topic": 1, "amq.fanout": 1}

    def test_the_exchange_without_a_name_keeps_for_a_queue_that_is_yet_to_come(
        self, connection: Connection, admin: Admin
    ) -> None:
        Producer(connection).publish("x", routing_key="early")
        assert admin.counts("early").ready == 1
