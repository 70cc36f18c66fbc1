"""One delivery's way through a handler, without a worker: when it runs, when it runs again, and when it never does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery.exceptions import Retry
from pydantic import BaseModel

import restante
from restante import Admin, fixed
from restante.bus import Bus, BusClient, executor
from restante.bus.archive import RabbitDeadLetters
from restante.bus.broker import Answer
from restante.bus.dedup import Turn
from restante.bus.delivery import Delivery
from restante.bus.envelope import new_envelope
from restante.bus.registry import register
from restante.bus.worker_rabbitmq import attempts_of
from restante.core import errors
from tests.harness.proxy import FaultProxy
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer, closed_port


class Order(BaseModel):
    """What the handler wants."""

    number: int


class Shop:
    """A service whose handler notes what it is given, and fails while it is told to."""

    def __init__(self, broker: str, **options: Any) -> None:
        self.ran: list[int] = []
        self.answers: list[Answer] = []
        self.fails = False
        self.bus = Bus("shop", broker, retry=fixed(7, 7), **options)
        self.bus.subscribe("order.paid", name="paid")(self._paid)
        self.bus.answer("order.price", name="price")(self._price)
        self.bus.reply = lambda delivery, answer: self.answers.append(answer)  # type: ignore[method-assign]

    def _paid(self, data: Order) -> None:
        self.ran.append(data.number)
        if self.fails:
            raise ConnectionError("the bank is away")

    def _price(self, data: Order) -> int:
        self.ran.append(data.number)
        return 10

    def deliver(self, delivery: Delivery, text: str = '{"number": 1}') -> None:
        executor.handle(self.bus, self.bus.subscriptions["shop.paid"], None, delivery, text)

    def call(self, delivery: Delivery) -> None:
        executor.answer(self.bus, self.bus.answered["order.price"], None, delivery, '{"number": 2}')


@pytest.fixture(params=["redis", "memory"])
def shop(request: pytest.FixtureRequest, redis: RedisServer) -> Iterator[Shop]:
    """With its records in Redis or in this process; no broker is needed to run a handler."""
    records = {"store": f"{redis.url}/0"} if request.param == "redis" else {"dedup_store": "memory"}
    made = Shop(f"amqp://127.0.0.1:{closed_port()}//", **records)
    yield made
    made.bus.close()


def event(attempts: int = 1, **facts: Any) -> Delivery:
    return Delivery(
        replace(new_envelope("order.paid", "tests", id="e1"), attempts=attempts), queue="shop.paid", **facts
    )


def test_an_event_that_has_run_does_not_run_again_however_it_comes(shop: Shop) -> None:
    shop.deliver(event())
    shop.deliver(event())
    shop.deliver(event(suspect=True))  # its ack was lost, so the broker delivers it again
    shop.deliver(event(2, suspect=True))
    assert shop.ran == [1]


def test_an_event_that_failed_runs_again_at_its_next_attempt(shop: Shop) -> None:
    shop.fails = True
    with pytest.raises(Retry) as told:
        shop.deliver(event())
    assert told.value.when == 7
    assert "the bank is away" in str(told.value)
    shop.fails = False
    shop.deliver(event(2))
    assert shop.ran == [1, 1]


def test_the_last_attempt_ends_with_the_error_itself(shop: Shop) -> None:
    shop.fails = True
    with pytest.raises(Retry):
        shop.deliver(event(2))
    with pytest.raises(ConnectionError):
        shop.deliver(event(3))


def test_an_event_at_work_elsewhere_is_left_alone_and_one_whose_process_was_killed_is_tried_again(shop: Shop) -> None:
    records = shop.bus.records
    records.take(Turn("shop.paid", "e1", 1))
    shop.deliver(event())
    assert shop.ran == []
    with pytest.raises(Retry):
        shop.deliver(event(suspect=True))
    shop.deliver(event(2, suspect=True))
    assert shop.ran == [1]


def test_an_event_that_this_very_delivery_began_before_was_killed_and_is_not_passed_over(redis: RedisServer) -> None:
    shop = Shop(f"amqp://127.0.0.1:{closed_port()}//", store=f"{redis.url}/0")
    # Celery hands a job to a second process when the first died before the worker had read that it began.
    shop.bus.records.take(Turn("shop.paid", "e1", 1, token="first"))
    with pytest.raises(WorkerLostError):
        shop.deliver(event(token="first"))
    shop.deliver(event(token="a double"))
    assert shop.ran == []
    shop.deliver(event(2, token="second"))
    assert shop.ran == [1]
    shop.bus.close()


def test_an_event_whose_record_was_taken_by_a_call_that_lost_its_reply_runs(redis: RedisServer) -> None:
    with FaultProxy(redis.port) as proxy:
        shop = Shop(f"amqp://127.0.0.1:{closed_port()}//", store=f"{proxy.url}/0")
        shop.deliver(event(token="before"))  # the script is loaded
        proxy.cut_before_reply(2, b"EVALSHA")
        shop.deliver(replace(event(token="first"), envelope=replace(event().envelope, id="e2")))
        assert shop.ran == [1, 1]
        with restante.connect(redis.url) as client:
            lines = [line.event for line in Admin(client).journal("shop.paid") if line.message_id == "e2"]
        assert lines == ["received", "acked"]
        shop.bus.close()


def test_data_that_do_not_fit_the_model_are_not_tried_again(shop: Shop) -> None:
    with pytest.raises(errors.InvalidPayload, match="number"):
        shop.deliver(event(), '{"number": "many"}')
    assert shop.ran == []


def test_an_event_past_its_expiry_is_not_run(shop: Shop) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    made = event()
    shop.deliver(replace(made, envelope=replace(made.envelope, expires_at=past)))
    assert shop.ran == []
    shop.deliver(replace(made, envelope=replace(made.envelope, expires_at=past + timedelta(hours=1))))
    assert shop.ran == [1]


def test_a_call_past_its_deadline_is_neither_run_nor_answered(shop: Shop) -> None:
    envelope = new_envelope("order.price", "tests")
    shop.call(Delivery(envelope, "call", "call:order.price", "me", time.time() - 1))
    assert (shop.ran, shop.answers) == ([], [])
    shop.call(Delivery(envelope, "call", "call:order.price", "me", time.time() + 3600))
    assert (shop.ran, [one.text for one in shop.answers]) == ([2], [b"10"])


def test_rejections_that_the_broker_counted_are_attempts_of_their_own_queue_alone() -> None:
    deaths = [
        {"queue": "shop.paid", "reason": "rejected", "count": 2},
        {"queue": "shop.paid", "reason": "expired", "count": 5},
        {"queue": "shop.other", "reason": "rejected", "count": 9},
    ]
    assert attempts_of({}, "shop.paid") == 1
    assert attempts_of({"restante_attempts": 3, "x-death": deaths}, "shop.paid") == 6
    assert attempts_of({"x-delivery-count": 4}, "shop.paid") == 5


def test_an_event_that_could_not_be_published_is_not_left_in_the_journal_as_sent(redis: RedisServer) -> None:
    with restante.connect(f"{redis.url}/0") as post:
        shop = Shop("amqp://127.0.0.1:1//", store=f"{redis.url}/0")
        register(post, "shop", list(shop.bus.subscriptions.values()), shop.bus.worker_backend)
        shop.bus.close()
        url = f"amqp://127.0.0.1:{closed_port()}//"
        with BusClient(url, store=f"{redis.url}/0", patience=0.1) as client:
            with pytest.raises(errors.Unavailable):
                client.publish("order.paid", {"number": 1}, id="one")
            with pytest.raises(errors.Unavailable):
                client.publish("order.paid", {"number": 2}, id="two", wait=False).result()
        lines = [(line.message_id, line.event.value, line.state) for line in Admin(post).journal("shop.paid")]
    for id in ("one", "two"):
        assert [line for line in lines if line[0] == id] == [(id, "sent", "ready"), (id, "deleted", "gone")]


def test_a_replay_to_a_handler_that_is_gone_leaves_the_event_in_the_archive(rabbit: RabbitServer) -> None:
    with rabbit.virtual_host("replay-to-nobody") as url:
        shop = Shop(url, dedup=0)
        shop.bus.declare()
        headers = {"cloudEvents_id": "e1", "cloudEvents_type": "order.paid", "restante_subscription": "shop.gone"}
        broker: Any = shop.bus.client._broker
        assert broker.pool.publish(b"1", headers, {"delivery_mode": 2}, "", "shop.archive", id="e1")
        letters = RabbitDeadLetters(url, "shop")
        with pytest.raises(errors.Unavailable, match=r"the queue shop\.gone is gone"):
            letters.replay()
        assert [one.id for one in letters.list()] == ["e1"]
        shop.bus.close()
