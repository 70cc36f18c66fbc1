"""Verdicts that RabbitMQ cannot take: the event stays at the broker, also when the worker is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from restante.rabbitmq import Ladder, shared
from restante.rabbitmq.declaration import declare
from tests.bus.places import OnRabbitMQ, Service
from tests.harness.deadlines import wait_until
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer


@pytest.fixture
def place(rabbit: RabbitServer, redis: RedisServer, tmp_path: Path) -> Iterator[OnRabbitMQ]:
    """A virtual host of its own, whose ladder and archives a test may take away."""
    made = OnRabbitMQ(tmp_path, rabbit, redis)
    with rabbit.virtual_host(made.mark) as made.url:
        yield made


def on_channel(place: OnRabbitMQ, verb: Callable[[Any], Any]) -> None:
    with Connection(place.url) as connection:
        verb(connection.channel())


def test_a_retry_and_a_dead_letter_that_cannot_be_published_survive_a_killed_worker(
    place: OnRabbitMQ, service: Callable[..., Service]
) -> None:
    """The rung and the archive are gone, so neither can be settled; then the worker dies."""
    doomed = service("billing", "failing", "celery_style", delays=(1, 1, 1), options={"retry": "fixed:"})
    rung, archive = Ladder().rung(1), f"{place.named('billing')}.archive"
    on_channel(place, lambda channel: [channel.queue_delete(queue) for queue in (rung, archive)])
    with place.client() as client:
        retried = client.publish("shop.order.paid", 1)
        dead = client.publish("shop.celery", "os")
    unsettled = [f"not settled subscription={place.named('billing')}.{name}" for name in ("failing", "celery_style")]
    wait_until(lambda: all(text in doomed.stderr for text in unsettled), lambda: doomed.stderr[-3000:])
    doomed.kill9()
    place.mend()
    with Connection(place.url) as connection:
        declare(connection, shared())
    service("billing", "failing", "celery_style", delays=(1, 1, 1), options={"retry": "fixed:"})
    wait_until(lambda: retried.id in {row["id"] for row in place.rows("failing") if row["mended"]})
    assert [(one.id, one.error_class) for one in place.wait_dead("billing", 1)] == [(dead.id, "OSError")]


def test_a_message_that_is_no_event_is_kept_among_the_dead(place: OnRabbitMQ, service: Callable[..., Service]) -> None:
    service("billing", "paid", pool="solo")
    queue = f"{place.named('billing')}.paid"

    def put(channel: Any) -> None:
        import amqp

        channel.basic_publish(amqp.Message(b"\xff{", content_type="application/json", message_id="odd"), "", queue)

    on_channel(place, put)
    (dead,) = place.wait_dead("billing", 1)
    assert (dead.id, dead.subscription, dead.error_class) == ("odd", queue, "Malformed")
    assert "not JSON" in dead.error
    assert place.rows("paid") == []
