"""Row 52: a subscriber that was away gets every event since its subscription, in order, and none from before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.bus.places import OnRedis, Place, Service
from tests.faults.rows import missing, verdict
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import wait_until
from tests.harness.servers import RedisServer

Start = Callable[..., Service]
#: Events that are published while the subscriber is away, and the keys they belong to.
EVENTS, KEYS = 60, 3


def away_and_back(place: Place, service: Start, meanwhile: Callable[[], None]) -> None:
    with place.client() as client:
        client.publish("shop.order.paid", {"key": 0, "n": -1})  # nobody has subscribed yet
        with service("billing", "paid", pool="solo") as first:
            before = client.publish("shop.order.paid", {"key": 0, "n": 0})
            place.wait_rows(1, "paid")
            wait_until(lambda: place.waiting("billing", "paid") == 0)
            first.kill9()
        sent = [client.publish("shop.order.paid", {"key": n % KEYS, "n": n}).id for n in range(1, EVENTS // 2)]
        meanwhile()
        sent += [client.publish("shop.order.paid", {"key": n % KEYS, "n": n}).id for n in range(EVENTS // 2, EVENTS)]
        service("billing", "paid", pool="solo")
        rows = place.wait_rows(1 + len(sent), "paid")
    wait_until(lambda: place.waiting("billing", "paid") == 0)
    rows = place.rows("paid")
    seen = [row["id"] for row in rows]
    for key in range(KEYS):
        numbers = [row["data"]["n"] for row in rows if row["data"]["key"] == key]
        assert numbers == sorted(numbers)
    assert seen[0] == before.id
    verdict(
        52,
        n=len(sent),
        lost=missing(sent, seen),
        phantom=missing(seen, [before.id, *sent]),  # nothing from before the subscription
        dup=len(seen) - len(set(seen)),
        broker=place.kind,
    )


def test_a_subscriber_that_was_killed_gets_what_it_missed_in_order(place: Place, service: Start) -> None:
    away_and_back(place, service, lambda: None)


@pytest.fixture
def hours(tmp_path: Path) -> Iterator[tuple[OnRedis, FrozenClock]]:
    """A broker whose clock runs, and can be moved."""
    with FrozenClock() as clock:
        clock.unfreeze()
        with RedisServer(clock=clock) as server:
            yield OnRedis(tmp_path, server), clock


def test_an_hour_later_they_are_still_there(hours: tuple[OnRedis, FrozenClock]) -> None:
    place, clock = hours
    with ExitStack() as running:

        def start(name: str, *handlers: str, **told: Any) -> Service:
            return running.enter_context(Service(place, name, list(handlers), **told))

        away_and_back(place, start, lambda: clock.advance(3600))
