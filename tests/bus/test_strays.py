"""Events that came down RabbitMQ's ladder while it started, before it knew its bindings again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from restante.bus.amqp_messages import amqp_message
from restante.rabbitmq import shared
from restante.rabbitmq.declaration import declare, verify
from restante.rabbitmq.ladder import GATE, RETURN, TO_QUEUE
from restante.rabbitmq.topology import UNROUTED, gate_topology
from tests.bus.places import OnRabbitMQ, Service
from tests.harness.deadlines import wait_until
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer


@pytest.fixture
def place(rabbit: RabbitServer, redis: RedisServer, tmp_path: Path) -> Iterator[OnRabbitMQ]:
    """A virtual host where nobody has subscribed to anything yet."""
    made = OnRabbitMQ(tmp_path, rabbit, redis)
    with rabbit.virtual_host(made.mark) as made.url:
        with Connection(made.url) as connection:
            declare(connection, shared())
        yield made


def put(place: OnRabbitMQ, key: str, data: int, topic: str, **headers: Any) -> None:
    """An event at the foot of the ladder, as a rung leaves it there."""
    envelope = {"cloudEvents_specversion": "1.0", "cloudEvents_id": f"e{data}", "cloudEvents_type": topic}
    message = amqp_message(b"%d" % data, {**envelope, **headers}, {"delivery_mode": 2, "message_id": f"e{data}"})
    with Connection(place.url, transport_options={"confirm_publish": True}) as connection:
        connection.channel().basic_publish(message, RETURN, key)


def unrouted(place: OnRabbitMQ) -> int:
    with Connection(place.url) as connection:
        return int(connection.channel().queue_declare(UNROUTED, passive=True).message_count)


def test_they_reach_their_handlers_when_a_worker_starts_or_connects_again(
    place: OnRabbitMQ, rabbit: RabbitServer, service: Callable[..., Service]
) -> None:
    failing, gone = f"{place.named('billing')}.failing", f"{place.named('billing')}.gone"
    put(place, "~.shop.order.paid", 1, "shop.order.paid")
    put(place, f"0.0.1.@.{failing}", 2, "shop.order.other", restante_attempts=1)
    put(place, f"1.@.{gone}", 3, "shop.order.other")
    put(place, f"1.@.{failing}", 4, "shop.order.other", restante_attempts="many")
    assert unrouted(place) == 4
    service("billing", "paid", "failing", delays=(0.2, 0.2))
    place.wait_rows(1, "paid")
    # Until their last attempts: a retry that comes down the ladder below would be one more without a way.
    last = {(1, 1), (1, 3), (2, 2), (2, 3)}
    wait_until(lambda: {(row["data"], row["attempts"]) for row in place.rows("failing")} >= last)
    assert unrouted(place) == 2  # one whose queue is gone, and one that cannot be read

    with Connection(place.url) as connection:
        channel = connection.channel()
        channel.queue_unbind(failing, RETURN, f"#.{TO_QUEUE}.{failing}")
        put(place, f"1.@.{failing}", 5, "shop.order.other")
        channel.queue_bind(failing, RETURN, f"#.{TO_QUEUE}.{failing}")
        channel.exchange_delete(GATE)  # as in a broker that has started
        put(place, "0.1.~.shop.order.paid", 6, "shop.order.paid")
    assert unrouted(place) == 4
    rabbit.evaluate('[rabbit_networking:close_connection(One, "test") || One <- rabbit_networking:connections()].')
    wait_until(lambda: {5, 6} <= {row["data"] for row in place.rows("failing")})
    assert [row["data"] for row in place.wait_rows(2, "paid")] == [1, 6]
    assert unrouted(place) == 2
    put(place, "0.1.~.shop.order.paid", 7, "shop.order.paid")
    place.wait_rows(3, "paid")


def test_a_broker_that_has_started_has_no_gate_until_somebody_connects(place: OnRabbitMQ, rabbit: RabbitServer) -> None:
    rabbit.restart()
    with Connection(place.url) as connection:
        assert verify(connection, shared()) == ["exchange ladder:gate"]
        put(place, "~.shop.order.paid", 1, "shop.order.paid")
        assert unrouted(place) == 1
        declare(connection, gate_topology())
        assert verify(connection, shared()) == []
