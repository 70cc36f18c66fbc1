"""Delays and returns on a real broker: never early, to the target alone, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection

from restante.rabbitmq import Ladder, Subscribed, TopologyOptions, rungs, target_of, topology
from restante.rabbitmq.declaration import counts, declare
from tests.harness.deadlines import took_at_most
from tests.rabbitmq.conftest import LOW, Wire

DELAYS = (0.125, 0.5, 1.0, 1.5, 2.0, 3.625)
#: Seconds in which nothing more may arrive.
QUIET = 0.4


pytestmark = pytest.mark.timed


def on_time(delay: float, took: float) -> bool:
    """Whether it did not come early; that it did not come late is asserted by `make chaos`."""
    took_at_most(took, delay * 1.2 + 0.05)
    return delay <= took


@pytest.fixture
def two(connection: Connection, service: str, topic: str) -> tuple[str, str]:
    """Two services that subscribe to the same topic; the names of their queues."""
    for name in (service, f"{service}-b"):
        declare(connection, topology(name, [Subscribed("on_paid", topic), Subscribed("paid", "x.y")], options=LOW))
    return f"{service}.on_paid", f"{service}-b.on_paid"


def test_a_retry_is_held_for_its_delay_and_reaches_its_own_service_alone(
    two: tuple[str, str], service: str, wire: Wire
) -> None:
    wire.listen(*two, f"{service}.paid", f"{service}-b.paid")
    for delay in DELAYS:
        wire.send(*LOW.ladder().retry(delay, two[0]), str(delay))
    wire.wait(len(DELAYS))
    wire.quiet(QUIET)
    assert {queue for queue, _, _ in wire.arrived} == {two[0]}
    took = {float(message.body): seconds for _, message, seconds in wire.arrived}
    print({delay: round(seconds, 4) for delay, seconds in took.items()})
    assert sorted(took) == sorted(DELAYS)
    assert {delay: seconds for delay, seconds in took.items() if not on_time(delay, seconds)} == {}


def test_a_delayed_event_reaches_every_subscriber_once_and_its_topic_can_be_read(
    two: tuple[str, str], topic: str, wire: Wire
) -> None:
    wire.listen(*two)
    for delay in (0.0, 0.25, 0.625):
        wire.send(*LOW.ladder().later(delay, topic), str(delay))
    wire.wait(6)
    wire.quiet(QUIET)
    assert sorted((queue, float(message.body)) for queue, message, _ in wire.arrived) == sorted(
        (queue, delay) for queue in two for delay in (0.0, 0.25, 0.625)
    )
    assert all(on_time(float(message.body), took) for _, message, took in wire.arrived)
    assert {target_of(message.delivery_info["routing_key"]) for _, message, _ in wire.arrived} == {topic}


def test_a_rejected_message_comes_back_to_its_queue_after_a_second_and_its_deaths_are_counted(
    two: tuple[str, str], topic: str, wire: Wire
) -> None:
    deaths: list[int] = []

    def handle(message: Any) -> None:
        found = [one for one in message.headers.get("x-death", []) if one["reason"] == "rejected"]
        deaths.append(found[0]["count"] if found else 0)
        assert [one["queue"] for one in found] in ([], [two[0]])
        if len(deaths) < 3:
            message.channel.basic_reject(message.delivery_tag, requeue=False)
        else:
            message.channel.basic_ack(message.delivery_tag)

    wire.listen(two[0], handle=handle)
    wire.send("events", topic, priority=7)
    wire.wait(3)
    wire.quiet(QUIET)
    assert deaths == [0, 1, 2]
    assert [message.properties["priority"] for _, message, _ in wire.arrived] == [7, 7, 7]
    first, second, third = (took for _, _, took in wire.arrived)
    assert on_time(1.0, second - first)
    assert on_time(1.0, third - second)
    # The other service has had its copy once, and waits for a consumer with it.
    assert len(wire.take(two[1])) == 1


def test_a_quorum_queue_takes_events_and_gets_its_rejected_messages_back(
    connection: Connection, service: str, topic: str, wire: Wire
) -> None:
    options = TopologyOptions(queue_type="quorum", longest_delay=LOW.longest_delay)
    declare(connection, topology(service, [Subscribed("on_paid", topic)], options=options))
    seen: list[int] = []

    def handle(message: Any) -> None:
        seen.append(len(message.headers.get("x-death", [])))
        if len(seen) == 1:
            message.channel.basic_reject(message.delivery_tag, requeue=False)
        else:
            message.channel.basic_ack(message.delivery_tag)

    wire.channel.basic_qos(0, 10, False)
    wire.listen(f"{service}.on_paid", handle=handle)
    wire.send("events", topic)
    wire.wait(2)
    assert seen == [0, 2]  # Rejected here, expired on the rung.
    assert on_time(1.0, wire.arrived[1][2] - wire.arrived[0][2])


def test_a_ladder_that_has_grown_still_gives_each_message_once(
    connection: Connection, service: str, topic: str, wire: Wire
) -> None:
    queue = f"{service}.on_paid"
    for longest in (1.0, 4.0):
        declare(
            connection,
            topology(service, [Subscribed("on_paid", topic)], options=TopologyOptions(longest_delay=longest)),
        )
    wire.listen(queue)
    wire.send(*Ladder(steps=rungs(1.0)).retry(0.5, queue), "0.5")
    wire.send(*Ladder(steps=rungs(4.0)).retry(0.625, queue), "0.625")
    wire.send(*Ladder(steps=rungs(4.0)).retry(2.25, queue), "2.25")
    wire.wait(3)
    wire.quiet(QUIET)
    assert all(on_time(float(message.body), took) for _, message, took in wire.arrived)


def test_an_event_nobody_listens_to_is_kept_and_one_can_know_before(
    two: tuple[str, str], connection: Connection, topic: str, wire: Wire
) -> None:
    wire.take("events.unrouted")
    wire.send("events.known", topic, mandatory=True)
    assert wire.returned == []
    wire.send("events.known", f"{topic}.nobody", mandatory=True)
    assert wire.returned == [f"{topic}.nobody"]
    wire.send("events", f"{topic}.nobody", "at once")
    wire.send(*LOW.ladder().later(0.125, f"{topic}.nobody"), "later")
    wire.send(*LOW.ladder().retry(0, "gone.queue"), "returned")
    wire.listen("events.unrouted")
    wire.wait(3)
    assert sorted(message.body for _, message, _ in wire.arrived) == ["at once", "later", "returned"]
    assert counts(connection, [two[0], two[1], "nowhere"]) == {two[0]: (1, 0), two[1]: (1, 0), "nowhere": None}
