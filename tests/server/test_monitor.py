"""The figures of the last minutes, from counts and journal lines made here: no server, and no clock but theirs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from restante.core.inspector import Counts
from restante.core.journal import JournalEntry, Position
from restante.core.message import JournalEvent, State
from restante.core.settings import QueueSettings
from restante.server.monitor import BURST, UNATTENDED, Monitor, Trend

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def counts(second: float = 0, **facts: Any) -> Counts:
    """A queue at some second; everything that is not said is naught."""
    totals = {event.value: 0 for event in JournalEvent} | facts.pop("totals", {})
    settings = facts.pop("settings", QueueSettings())
    numbers = {state.value: facts.pop(state.value, 0) for state in State}
    told = {"overdue": 0, "waited": 0.0, "paused": False, "journal_last": 0, "journal_lost": 0, **facts}
    at = BEGIN + timedelta(seconds=second)
    return Counts(queue="orders", at=at, totals=totals, settings=settings, edges={}, **numbers, **told)


def line(event: JournalEvent, second: float, **facts: Any) -> JournalEntry:
    told: dict[str, Any] = {"message_id": "m1", "attempts": 1, "consumer": "shop-1", "state": "gone", "sent_at": BEGIN}
    told |= facts
    return JournalEntry(
        queue="orders",
        position=Position(1),
        event=event,
        at=BEGIN + timedelta(seconds=second),
        kind="",
        priority=0,
        size=1,
        due_at=None,
        error_class="",
        detail="",
        **told,
    )


@pytest.fixture
def monitor() -> Monitor:
    state: Any = SimpleNamespace(sweeper=SimpleNamespace(expect=lambda queue, seconds: None))
    return Monitor(state)


def test_rates_are_per_second_whatever_lies_between_two_samples() -> None:
    trend = Trend()
    trend.add(counts(0, totals={"sent": 100, "acked": 50}))
    trend.add(counts(2, ready=7, totals={"sent": 120, "acked": 53, "nacked": 4, "expired": 2}))
    trend.add(counts(12, ready=3, totals={"sent": 120, "acked": 153, "nacked": 4, "expired": 2, "buried": 10}))
    told = trend.as_dict()
    assert (told["sent"], told["acked"], told["failed"]) == ([10.0, 0.0], [1.5, 10.0], [3.0, 1.0])
    assert told["ready"] == [7, 3]
    assert [at - told["at"][0] for at in told["at"]] == [0, 10_000]


def test_totals_that_begin_anew_are_no_negative_rate() -> None:
    trend = Trend()
    trend.add(counts(0, totals={"sent": 100}))
    trend.add(counts(2, totals={"sent": 3}))
    assert trend.as_dict()["sent"] == [0.0]


def test_the_middle_and_the_slow_end_are_told_apart(monitor: Monitor) -> None:
    assert monitor.latency("orders") == {"p50_ms": None, "p95_ms": None}
    monitor.observe([line(JournalEvent.ACKED, number / 1000, message_id=f"m{number}") for number in range(100, 0, -1)])
    assert monitor.latency("orders") == {"p50_ms": 51.0, "p95_ms": 96.0}


@pytest.mark.parametrize(
    ("facts", "seen", "trouble"),
    [
        ({"ready": 1, "waited": UNATTENDED + 1}, False, [("bad", "no consumers, next message waiting for 31 s")]),
        ({"ready": 1, "waited": UNATTENDED + 1}, True, []),
        ({"ready": 1, "waited": UNATTENDED - 1}, False, []),
        ({"ready": 1, "waited": UNATTENDED + 1, "paused": True}, False, [("warn", "paused")]),
        ({"dead": 2}, True, [("bad", "2 dead letters")]),
        ({"overdue": 1}, True, [("bad", "1 overdue")]),
        ({"retrying": 3}, True, [("warn", "3 retrying")]),
        ({"ready": 8, "settings": QueueSettings(max_length=10)}, True, [("warn", "8 of at most 10 messages")]),
        ({"ready": 10, "settings": QueueSettings(max_length=10)}, True, [("bad", "10 of at most 10 messages")]),
        ({"journal_lost": 5}, True, [("warn", "5 journal lines trimmed before being read")]),
        ({}, False, []),
    ],
)
def test_what_is_wrong_with_a_queue_is_named(
    monitor: Monitor, facts: dict[str, Any], seen: bool, trouble: list[tuple[str, str]]
) -> None:
    monitor.seen = {"orders": 1.0} if seen else {}
    assert [(one["level"], one["text"]) for one in monitor.trouble(counts(**facts))] == trouble


def test_a_burst_is_named_with_who_took_most_and_the_usual_is_none(monitor: Monitor) -> None:
    def received(second: int, count: int, consumer: str) -> list[JournalEntry]:
        return [
            line(JournalEvent.RECEIVED, second, message_id=f"{second}-{consumer}-{n}", consumer=consumer)
            for n in range(count)
        ]

    for second in range(5):
        monitor.observe(received(second, 5, "steady"))
    assert list(monitor._past) == []
    monitor.observe([*received(5, BURST, "greedy"), *received(5, 5, "steady"), *received(6, 1, "steady")])
    (burst,) = monitor._past
    assert (burst.kind, burst.who, burst.count) == ("burst", "greedy", BURST + 5)


def test_a_purge_of_many_lines_is_one_anomaly_with_its_count(monitor: Monitor) -> None:
    for second in (0, 1):
        monitor.observe(
            [line(JournalEvent.PURGED, second, message_id=f"{second}-{n}", consumer="ann") for n in range(20)]
        )
    monitor.observe([line(JournalEvent.DELETED, 2, message_id=f"d{n}", consumer="ann") for n in range(9)])
    (purge,) = monitor._past
    assert (purge.kind, purge.who, purge.count, purge.text) == ("purge", "ann", 40, "ann purged 40 messages")
