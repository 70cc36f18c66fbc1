"""The holder of leases: acks keep their place and their leases until they are delivered, releases may be repeated."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import restante
from restante import Admin, Client, LeasedMessage, Queue, Unavailable
from restante.core import renewal
from restante.core.holder import LeaseHolder
from tests.core.bench import Bench
from tests.harness.deadlines import wait_until


@pytest.fixture
def client(debian: Bench) -> Iterator[Client]:
    with restante.connect(debian.server.url) as opened:
        yield opened


@pytest.fixture
def holder(client: Client) -> Iterator[LeaseHolder]:
    holder = LeaseHolder(client.connection)
    yield holder
    holder.close()


def receive(holder: LeaseHolder, queue: Queue, count: int, lease: float | None = None) -> list[LeasedMessage]:
    got, _ = holder.receive(queue, count, lease=lease)
    assert got is not None
    messages: list[LeasedMessage] = got.messages
    holder.hold(queue, messages)
    return messages


def fail(monkeypatch: pytest.MonkeyPatch, queue: Queue, *verbs: str) -> None:
    """Lets calls of a queue fail as if its server were away."""

    def raise_unavailable(*_: Any, **__: Any) -> None:
        raise Unavailable("away")

    for verb in verbs:
        monkeypatch.setattr(queue, verb, raise_unavailable)


class TestAcks:
    def test_a_queued_ack_travels_with_the_next_receive(self, client: Client, holder: LeaseHolder) -> None:
        orders = client.queue("orders")
        orders.send_many([1, 2])
        (first,) = receive(holder, orders, 1)
        holder.queue_ack(first)
        assert holder.has_acks
        got, acked = holder.receive(orders, 1)
        assert got is not None
        assert (acked, [message.payload for message in got.messages]) == (1, [2])
        assert not holder.has_acks
        assert Admin(client).counts("orders").totals["acked"] == 1

    def test_a_flush_returns_the_messages_whose_acks_came_in_time(
        self, debian: Bench, client: Client, holder: LeaseHolder, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders = client.queue("orders")
        orders.send_many(["late", "in time"])
        (late,) = receive(holder, orders, 1, lease=1)
        (in_time,) = receive(holder, orders, 1, lease=3600)
        for message in (late, in_time):
            holder.drop(message)  # as if this process had stalled
            holder.queue_ack(message)
        debian.clock.advance(2)
        assert holder.flush(orders) == [in_time]
        assert f"lease lost before ack queue=orders ids={late.id}" in caplog.text

    def test_acks_of_every_queue_are_delivered(self, client: Client, holder: LeaseHolder) -> None:
        for name in ("orders", "mail"):
            client.queue(name).send(name)
            holder.queue_ack(receive(holder, client.queue(name), 1)[0])
        holder.flush_all()
        assert not holder.in_use
        assert [Admin(client).counts(name).totals["acked"] for name in ("orders", "mail")] == [1, 1]

    def test_the_lease_of_a_queued_ack_is_renewed_until_it_is_delivered(
        self, debian: Bench, client: Client, holder: LeaseHolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "RENEW_AFTER", 0.0001)  # of the lease, which the server's clock counts
        orders, admin = client.queue("orders"), Admin(client)
        orders.send("x")
        holder.queue_ack(receive(holder, orders, 1, lease=3600)[0])
        with monkeypatch.context() as away:
            fail(away, orders, "ack_many")
            for _ in range(2):
                debian.clock.advance(3000)
                before = admin.counts("orders").totals["extended"]
                wait_until(lambda before=before: admin.counts("orders").totals["extended"] > before)  # type: ignore[misc]
                with pytest.raises(Unavailable):
                    holder.flush_all()
        assert len(holder.flush(orders)) == 1
        counts = admin.counts("orders")
        assert (counts.totals["received"], counts.totals["acked"]) == (1, 1)
        assert not holder.in_use


class TestReleases:
    def test_messages_of_several_queues_are_released_to_their_own(self, client: Client, holder: LeaseHolder) -> None:
        held = []
        for name in ("orders", "mail"):
            client.queue(name).send_many([1, 2])
            held += receive(holder, client.queue(name), 2)
        holder.release_all(held[1:])
        counts = [Admin(client).counts(name) for name in ("orders", "mail")]
        assert [(one.ready, one.leased) for one in counts] == [(1, 1), (2, 0)]
        assert holder.in_use

    @pytest.mark.parametrize("insist", [False, True])
    def test_a_release_that_fails_is_repeated_only_where_that_is_asked_for(
        self, client: Client, holder: LeaseHolder, monkeypatch: pytest.MonkeyPatch, insist: bool
    ) -> None:
        orders = client.queue("orders")
        orders.send_many([1, 2])
        held = receive(holder, orders, 2)
        with monkeypatch.context() as away:
            fail(away, orders, "release_many")
            holder.release(orders, held, insist=insist)
            assert holder.has_late_releases == holder.in_use == insist
            if insist:
                with pytest.raises(Unavailable):
                    holder.release_late()
        holder.release_late()
        assert Admin(client).counts("orders").totals["released"] == (2 if insist else 0)
        assert not holder.in_use


@pytest.mark.parametrize("verb", ["nack", "bury", "release"])
def test_a_verdict_that_comes_too_late_is_logged(
    debian: Bench, client: Client, holder: LeaseHolder, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    caplog.set_level(logging.WARNING, "restante")
    orders = client.queue("orders")
    orders.send("x")
    (message,) = receive(holder, orders, 1, lease=1)
    holder.drop(message)
    debian.clock.advance(2)
    if verb == "nack":
        holder.nack(message, delay=0, error="no")
    elif verb == "bury":
        holder.bury(message, error="no")
    else:
        holder.release(orders, [message])
    assert f"lease lost before {verb} queue=orders" in caplog.text
    assert not holder.in_use
