"""The Sentry hook: what is reported, with what, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

import restante
from restante import Client, Consumer, InvalidInput, LeasedMessage
from restante.hooks.sentry import Sentry
from restante.testing import drain


class Received(Transport):
    """Keeps what would go to Sentry."""

    def __init__(self) -> None:
        super().__init__({})
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [item.payload.json for item in envelope.items if item.payload.json is not None]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if "exception" in item or "logentry" in item]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction"]


@pytest.fixture
def received() -> Iterator[Received]:
    transport = Received()
    sentry_sdk.init("https://key@sentry.invalid/1", transport=transport, traces_sample_rate=1.0)
    yield transport
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


def test_a_failure_is_one_event_with_the_message_and_without_its_payload(
    received: Received, restante_client: Client
) -> None:
    restante_client.add_hook(Sentry())
    orders = restante_client.queue("orders", max_attempts=2, retry=restante.fixed(0))

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        sentry_sdk.add_breadcrumb(message="looked up the address")
        raise ValueError("no address")

    id = orders.send({"card": "4111"}, kind="order.placed")
    Consumer([orders], stop_when_empty=True).run()
    first, second = received.errors
    assert first["exception"]["values"][-1]["value"] == "no address"
    assert first["exception"]["values"][-1]["mechanism"] == {"type": "restante", "handled": False}
    assert first["contexts"]["restante"]["message_id"] == id
    assert [event["contexts"]["restante"]["attempts"] for event in (first, second)] == [1, 2]
    assert first["tags"] == {"restante.queue": "orders", "restante.kind": "order.placed"}
    assert first["transaction"] == "orders order.placed"
    assert [crumb["message"] for crumb in second["breadcrumbs"]["values"]].count("looked up the address") == 1
    assert "4111" not in str(first["contexts"]) + str(first["tags"])


def test_only_the_last_failure_is_reported_where_asked(received: Received, restante_client: Client) -> None:
    restante_client.add_hook(Sentry(report="dead"))
    orders = restante_client.queue("orders", max_attempts=2, retry=restante.fixed(0))

    @orders.handler
    async def ship(message: LeasedMessage) -> None:
        raise ValueError("no address")

    orders.send(1)
    drain(orders, raises=False)
    assert [event["contexts"]["restante"]["attempts"] for event in received.errors] == [2]


def test_the_trace_goes_from_the_sender_to_the_handler(received: Received, restante_client: Client) -> None:
    restante_client.add_hook(Sentry())
    orders = restante_client.queue("orders")
    orders.handler(lambda message: None)
    with sentry_sdk.start_transaction(name="request") as request:
        orders.send(1)
        orders.send(2, headers={"sentry-trace": "its own"})
    messages = orders.receive_many(2)
    assert messages[1].headers == {"sentry-trace": "its own"}
    orders.release_many(messages)
    drain(orders)
    handled = [event for event in received.transactions if event["transaction"] == "orders"]
    assert request.trace_id in [event["contexts"]["trace"]["trace_id"] for event in handled]
    assert handled[0]["contexts"]["trace"]["op"] == "queue.process"


def test_one_message_leaves_nothing_in_the_scope_of_the_next(received: Received, restante_client: Client) -> None:
    restante_client.add_hook(Sentry())
    orders = restante_client.queue("orders")

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        if message.payload == 1:
            sentry_sdk.set_tag("customer", "a")
        raise ValueError(message.payload)

    orders.send_many([1, 2])
    drain(orders, raises=False)
    assert ["customer" in event["tags"] for event in received.errors] == [True, False]


def test_without_init_nothing_happens(restante_client: Client) -> None:
    restante_client.add_hook(Sentry())
    orders = restante_client.queue("orders")
    orders.handler(lambda message: None)
    orders.send(1)
    assert len(drain(orders).handled) == 1


def test_what_to_report_is_one_of_two_words() -> None:
    with pytest.raises(InvalidInput, match="every or dead"):
        Sentry(report="never")  # type: ignore[arg-type]
