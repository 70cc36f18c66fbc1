"""Celery's task options on a handler: what they promise holds on both brokers, with real workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from restante.bus.worker import Request
from restante.core.errors import Unavailable
from tests.bus.places import Place, Service
from tests.celery.workers import wait_for
from tests.harness.deadlines import ASSERTED

Start = Callable[..., Service]


@pytest.mark.timed
def test_a_failure_under_early_acks_is_retried_and_dead_as_any_other(place: Place, service: Start) -> None:
    billing = service("billing", "early", "celery_options", concurrency=3)
    with place.client() as client:
        for data in ("fail", "kill", "fine"):
            client.publish("shop.early", data)
        for topic in ("shop.fragile", "shop.soft", "shop.hard"):
            client.publish(topic, "x")
        for number in range(3):
            client.publish("shop.limited", number)
    letters = place.dead("billing")
    wait_for(lambda: len(letters.list()) >= 5, told=lambda: f"{letters.list()} {billing.stderr[-9000:]}")
    dead = {one.subscription.rpartition(".")[2]: one for one in letters.list()}
    died = Counter((one.subscription.rpartition(".")[2], one.error_class) for one in letters.list())
    # A crash is never a reason to run an event of early acks again; an error and a time limit are.
    assert died == {
        ("early", "ConnectionError"): 1,
        ("early", "WorkerLostError"): 1,
        ("fragile", "WorkerLostError"): 1,
        ("soft", "SoftTimeLimitExceeded"): 1,
        ("hard", "TimeLimitExceeded"): 1,
    }
    assert Counter(row["data"] for row in place.rows("early")) == {"fail": 3, "kill": 1, "fine": 1}
    assert [row["attempts"] for row in place.rows("early") if row["data"] == "fail"] == [1, 2, 3]
    assert (len(place.rows("fragile")), len(place.rows("soft")), len(place.rows("hard"))) == (1, 2, 2)
    limited = [row["at"] for row in place.wait_rows(3, "limited")]
    if ASSERTED:  # the worker keeps the rate; on a busy machine its processes may begin later, and then at once
        assert limited[2] - limited[0] >= 0.8  # two in a second, so the third half a second after the second

    place.mend()
    (again,) = [one.id for one in letters.list() if one.error_class == "ConnectionError"]
    assert "the carrier is away" in next(one.error for one in letters.list() if one.id == again)
    from restante.bus.dead import DeadFilter

    assert letters.replay(DeadFilter(ids=(again,))) == 1
    wait_for(lambda: len(place.rows("early")) == 6)
    wait_for(lambda: all(one.id != again for one in letters.list()))
    letters.close()
    assert set(dead) == {"early", "fragile", "soft", "hard"}


def test_early_acks_by_a_setting_of_the_app_are_the_same(place: Place, service: Start) -> None:
    service("billing", "failing", delays=(0.2,), conf={"task_acks_late": False})
    with place.client() as client:
        sent = client.publish("shop.order.paid", 1)
    (dead,) = place.wait_dead("billing", 1)
    assert (dead.id, dead.attempts, dead.error_class) == (sent.id, 2, "ConnectionError")
    assert [row["attempts"] for row in place.rows("failing")] == [1, 2]


def test_a_killed_worker_loses_what_it_had_begun_with_early_acks_and_nothing_else(place: Place, service: Start) -> None:
    conf = {"broker_transport_options": {"visibility_timeout": 1.5}} if place.kind == "redis" else {}
    first = service("billing", "early", conf=conf, concurrency=1)
    with place.client() as client:
        client.publish("shop.early", "wait")
        place.wait_rows(1, "early")
        for number in range(3):
            client.publish("shop.early", number)
    time.sleep(0.5)  # some of them are in the worker's hands by now
    first.kill9()
    service("billing", "early", conf=conf, concurrency=1)
    place.wait_rows(4, "early")
    if place.kind == "redis":
        (dead,) = place.wait_dead("billing", 1)  # on RabbitMQ nothing is left to tell of it
        assert dead.error_class == "Crashed"
    assert Counter(str(row["data"]) for row in place.rows("early")) == {"wait": 1, "0": 1, "1": 1, "2": 1}


def test_a_verdict_on_an_event_that_was_acked_early_is_told_until_the_broker_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []

    class Backend:
        def retry(self, message: Any, request: Any, delay: float, error: BaseException) -> None:
            told.append(delay)
            if len(told) < 3:
                raise Unavailable()

    monkeypatch.setattr("restante.bus.worker.SETTLE_EVERY", 0.01)
    handler = SimpleNamespace(
        subscription="s.h", early=True, retry_rule=SimpleNamespace(max_attempts=3, delay=lambda *_: 0.5)
    )
    delivery = SimpleNamespace(purpose="event", envelope=SimpleNamespace(attempts=1))
    request = Request.__new__(Request)
    request._message = SimpleNamespace(restante=({}, b"", delivery, handler))
    request._app = SimpleNamespace(worker_backend=Backend())
    request.name = "s.h"
    request.acknowledged = True
    request._task = SimpleNamespace(reject_on_worker_lost=True)
    from celery.exceptions import Retry

    request._verdict(Retry("x", exc=KeyError("x"), when=0.5), None)
    wait_for(lambda: told == [0.5] * 3)
