"""A process whose broker is out of reach: failed acks and releases are repeated until they arrive."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Producer, Queue

from restante import Admin, RestanteError
from restante.core import operations
from tests.celery.conftest import drop_calls
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.proxy import FaultProxy

#: Whether the connection is closed while its calls fail: Celery does so at every outage.
CLOSED = pytest.mark.parametrize("closed", [False, True], ids=["open", "closed meanwhile"])


@CLOSED
def test_an_ack_that_failed_is_repeated_until_it_arrives(
    through: Connection, proxy: FaultProxy, admin: Admin, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    Producer(through).publish("x", routing_key="orders")
    message = Queue("orders")(through.channel()).get()
    drop_calls(proxy, operations.ACK)
    with suppress(RestanteError):
        message.ack()
    if closed:
        through.release()
    wait_until(lambda: "verdicts delayed" in caplog.text)
    assert admin.counts("orders").leased == 1
    proxy.pass_through()
    wait_until(lambda: admin.counts("orders").leased == 0)
    assert admin.counts("orders").totals["acked"] == 1


def test_an_ack_sent_with_a_receive_that_failed_is_repeated(
    through: Connection, proxy: FaultProxy, admin: Admin
) -> None:
    Producer(through).publish("x", routing_key="orders")
    channel = through.channel()

    def ack_and_ask(body: str, message: object) -> None:
        message.ack()  # type: ignore[attr-defined]  # it waits for the next receive
        drop_calls(proxy, operations.RECEIVE)
        Queue("orders")(channel).get()

    with (
        Consumer(channel, [Queue("orders")], callbacks=[ack_and_ask]),
        suppress(RestanteError),
    ):
        through.drain_events(timeout=PATIENCE)
    assert proxy.counters.dropped > 0
    wait_until(lambda: admin.counts("orders").leased == 0)
    assert admin.counts("orders").totals["acked"] == 1


@CLOSED
def test_a_release_that_failed_is_repeated_until_it_arrives(
    through: Connection, proxy: FaultProxy, admin: Admin, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    for number in range(3):
        Producer(through).publish(number, routing_key="orders")
    channel = through.channel()
    assert [Queue("orders")(channel).get().payload for _ in range(3)] == [0, 1, 2]
    drop_calls(proxy, operations.RELEASE)
    channel.close()
    if closed:
        through.release()
    wait_until(lambda: "verdicts delayed" in caplog.text)
    assert admin.counts("orders").leased == 3
    proxy.pass_through()
    wait_until(lambda: admin.counts("orders").ready == 3)
    assert admin.counts("orders").totals["released"] == 3
