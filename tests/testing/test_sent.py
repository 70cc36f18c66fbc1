"""What a test asserts about messages and events that were sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import restante
from restante import Bus, Client, InvalidInput, LeasedMessage
from restante.testing import (
    Clock,
    PrivateServer,
    assert_not_sent,
    assert_published,
    assert_sent,
    drain,
    published_events,
    sent_messages,
)

# -- queues ----------------------------------------------------------------------------------------------------------


def test_a_message_is_found_in_every_state(restante_client: Client) -> None:
    orders = restante_client.queue("orders", max_attempts=1, keep_done=10)
    orders.send("leased")
    message = orders.receive()
    orders.send("dead")
    dead = orders.receive()
    orders.send("done")
    done = orders.receive()
    assert message is not None
    assert dead is not None
    assert done is not None
    dead.nack()
    done.ack()
    orders.send("scheduled", delay=60)
    orders.send("ready", kind="order.placed", headers={"tenant": "a", "locale": "de"})
    for payload in ("leased", "dead", "done", "scheduled", "ready"):
        assert assert_sent(orders, payload=payload, count=1).payload == payload
    assert assert_sent(orders, kind="order.placed", headers={"tenant": "a"}).headers["locale"] == "de"
    assert_not_sent(orders, kind="order.paid")
    with pytest.raises(AssertionError, match="with headers="):
        assert_sent(orders, headers={"tenant": "b"})


def test_a_large_payload_is_compared_as_a_whole(restante_client: Client) -> None:
    orders = restante_client.queue("orders")
    orders.send(["x" * 100_000])
    assert_sent(orders, payload=["x" * 100_000])


def test_a_drained_message_counts_once_until_the_next_test(
    restante_client: Client, restante_server: PrivateServer
) -> None:
    orders, mail = restante_client.queue("orders"), restante_client.queue("mail")

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        mail.send(message.payload)

    orders.send({"order": 1})
    drain(orders)
    assert_sent(orders, payload={"order": 1}, count=1)
    assert_sent(mail, payload={"order": 1}, count=1)
    restante_server.clear()
    assert sent_messages(orders) == sent_messages(mail) == []


def test_the_error_lists_what_was_sent_instead(restante_client: Client) -> None:
    orders = restante_client.queue("orders")
    with pytest.raises(AssertionError, match="nothing was sent at all"):
        assert_sent(orders)
    orders.send({"order": 1}, kind="order.placed")
    with pytest.raises(AssertionError) as caught:
        assert_sent(orders, kind="order.paid")
    assert str(caught.value) == (
        "no message sent to orders with kind='order.paid'; sent were:\n"
        "  kind='order.placed' payload={'order': 1} queue=orders state=ready"
    )
    with pytest.raises(AssertionError, match=r"1 message\(s\) were sent to orders"):
        assert_not_sent(orders)
    with pytest.raises(AssertionError, match="1 messages, not 2"):
        assert_sent(orders, count=2)
    with pytest.raises(InvalidInput, match="assert_not_sent"):
        assert_sent(orders, count=0)
    orders.send_many(range(30))
    with pytest.raises(AssertionError, match="and 11 more"):
        assert_sent(orders, payload="x")


def test_an_asyncio_queue_is_asked_without_await(restante_server: PrivateServer, restante_client: Client) -> None:
    restante_client.queue("orders").send(1)
    assert_sent(restante.aio.connect(restante_server.url).queue("orders"), payload=1)


def test_a_name_is_no_queue(restante_client: Client) -> None:
    with pytest.raises(InvalidInput, match="give a queue"):
        assert_sent("orders")  # type: ignore[arg-type]


# -- the bus ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bus(restante_server: PrivateServer) -> Iterator[Bus]:
    bus = Bus("billing", restante_server.url)
    yield bus
    bus.close()


def test_an_event_counts_once_however_many_subscriptions_it_has(bus: Bus, restante_client: Client) -> None:
    bus.subscribe("order.*", name="one")(lambda data: None)
    bus.subscribe("#", name="two")(lambda data: None)
    bus.declare()
    restante_client.queue("order.paid").send({"id": 1}, kind="order.paid")  # a message, not an event
    bus.publish("order.paid", {"id": 1}, headers={"tenant": "a"})
    assert assert_published(bus, "order.paid", data={"id": 1}, headers={"tenant": "a"}, count=1).kind == "order.paid"
    assert len(published_events(restante_client)) == 1
    with pytest.raises(AssertionError, match=r"on the topic order\.lost"):
        assert_published(bus, "order.lost")


def test_an_event_without_a_subscriber_counts_too(bus: Bus) -> None:
    bus.publish("order.paid", {"id": 1})
    assert_published(bus, "order.paid", data={"id": 1})


def test_the_handlers_of_a_bus_run_in_the_thread_of_the_test(bus: Bus, restante_clock: Clock) -> None:
    attempts: list[int] = []

    @bus.subscribe("order.paid", retry=restante.fixed(60), max_attempts=2, bind=True)
    def invoice(task: object, data: dict[str, int], envelope: restante.bus.Envelope) -> None:
        attempts.append(envelope.attempts)
        if data["id"] == 2:
            raise ValueError("no customer")

    bus.declare()
    bus.publish("order.paid", {"id": 1})
    assert len(drain(bus).handled) == 1
    assert_published(bus, "order.paid", data={"id": 1})
    bus.publish("order.paid", {"id": 2})
    with pytest.raises(ValueError, match="no customer") as caught:
        drain(bus)
    assert caught.traceback[-1].name == "invoice"
    assert len(drain(bus)) == 0
    restante_clock.move(61)
    assert drain(bus, raises=False).failed[0].state is restante.State.DEAD
    assert attempts == [1, 1, 2]


def test_an_event_that_was_published_too_early_is_no_silent_success(bus: Bus) -> None:
    bus.subscribe("order.paid", name="invoice")(lambda data: None)
    bus.publish("order.paid", {"id": 1})
    with pytest.raises(InvalidInput, match=r"call bus\.declare\(\)"):
        drain(bus)


def test_a_bus_that_subscribes_to_nothing_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidInput, match="subscribes to nothing"):
        drain(bus)


def test_bindings_of_an_earlier_test_are_gone(bus: Bus, restante_server: PrivateServer) -> None:
    bus.subscribe("order.paid", name="invoice")(lambda data: None)
    bus.declare()
    assert bus.publish("order.paid", {"id": 1}).subscriptions == 1
    restante_server.clear()
    assert bus.publish("order.paid", {"id": 1}).subscriptions == 0
    bus.declare()
    assert bus.publish("order.paid", {"id": 1}).subscriptions == 1
