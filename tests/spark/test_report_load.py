"""The figures of a report against hand-made gold tables: merging, buckets of time, levels, scales, what is wrong."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from restante.core.errors import InvalidInput
from restante.spark import schemas
from restante.spark.report import load
from restante.spark.report.findings import Level, findings
from restante.spark.report.formats import span
from restante.spark.report.load import estimate, load_figures, open_lake, quantiles
from restante.spark.report.model import BUCKETS, Axis, Figures
from restante.spark.report.scales import Unit, durations, linear
from tests.spark.sample_gold import DAY, EVE, NOON, at, events, failed, put, put_arrow, times


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pipeline runs beside these tests: what is not there will not come."""
    monkeypatch.setattr(load, "PAUSE", 0)


def figured(lake: Path, since: datetime | None = None, until: datetime | None = None) -> Figures:
    return load_figures(open_lake(str(lake)), since, until)


# -- merging ---------------------------------------------------------------------------------------------------------


def test_counts_of_a_minute_under_two_dates_add_up(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=7, acked=2), events(1, sent=1)], DAY)
    put(tmp_path, schemas.THROUGHPUT, [events(0, acked=5, nacked=2, buried=1, expired=3)], EVE)
    orders = figured(tmp_path).queues["orders"]
    assert orders.counts["sent"] == [7, 1]
    assert orders.counts["acked"] == [7, 0]
    assert orders.counts["failed"] == [6, 0]


def test_all_queues_together_are_the_sum_of_each(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, "a", sent=7), events(0, "b", sent=4), events(2, "b", sent=1)], DAY)
    assert figured(tmp_path).everything.counts["sent"] == [11, 0, 1]


def test_a_retry_storm_is_a_minute_with_ten_failures_and_more_than_acked(tmp_path: Path) -> None:
    acked = {0: 9, 1: 10, 2: 0, 3: 0, 4: 3}
    put(tmp_path, schemas.THROUGHPUT, [events(minute, acked=count) for minute, count in acked.items()], DAY)
    rows = [
        failed(0, 9, 1),
        failed(1, 10),
        failed(2, 9),
        failed(3, 4, error="A"),
        failed(3, 5, error="B"),
        failed(4, 30),
    ]
    put(tmp_path, schemas.RETRIES, rows, DAY)
    put(tmp_path, schemas.RETRIES, [failed(3, 0, 1)], EVE)
    orders = figured(tmp_path).queues["orders"]
    assert orders.storms == [1, 0, 0, 1, 1]
    assert orders.recent_storms == 3


def test_storm_minutes_are_counted_within_long_buckets(tmp_path: Path) -> None:
    minutes = range(24 * 60)
    put(tmp_path, schemas.THROUGHPUT, [events(minute, acked=1) for minute in minutes], DAY)
    put(tmp_path, schemas.RETRIES, [failed(minute, 12) for minute in (100, 101, 103, 900)], DAY)
    figures = figured(tmp_path)
    assert figures.axis is not None
    assert figures.axis.step == 300
    storms = figures.queues["orders"].storms
    assert (storms[20], storms[180], sum(storms)) == (3, 1, 4)


def test_the_percentiles_of_one_row_are_given_back(tmp_path: Path) -> None:
    put(tmp_path, schemas.LATENCY, [times(0, 100, 0.1, 2.5, 40.0), times(3, 1, 7.0, 7.0, 7.0)], DAY)
    orders = figured(tmp_path).queues["orders"]
    assert orders.timed("wait", "p50") == [0.1, None, None, 7.0]
    assert orders.timed("run", "p95") == [2.5, None, None, 7.0]
    assert orders.timed("total", "p99") == [40.0, None, None, 7.0]


def test_a_few_slow_messages_do_not_speak_for_many_fast_ones(tmp_path: Path) -> None:
    fast, slow = times(0, 9900, 0.1, 0.2, 0.3), times(0, 100, 10.0, 20.0, 30.0, "slow")
    put(tmp_path, schemas.LATENCY, [fast, slow], DAY)
    # Of 10,000: 4,950 at 0.1, 4,455 at 0.2, 495 at 0.3, 100 beyond.
    assert figured(tmp_path).queues["orders"].latency["total"] == [{"p50": 0.2, "p95": 0.3, "p99": 0.3}]


def test_percentiles_of_the_span_weigh_minutes_by_their_messages(tmp_path: Path) -> None:
    put(tmp_path, schemas.LATENCY, [times(0, 10, 1.0, 2.0, 3.0), times(5, 90, 5.0, 6.0, 8.0)], DAY)
    assert figured(tmp_path).queues["orders"].percentiles["wait"] == {"p50": 5.0, "p95": 6.0, "p99": 8.0}


def test_weighted_quantiles_are_the_least_value_with_enough_weight() -> None:
    assert quantiles([1.0, 2.0, 3.0], [50.0, 45.0, 5.0]) == {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    assert quantiles([4.0], [0.5]) == {"p50": 4.0, "p95": 4.0, "p99": 4.0}
    assert quantiles([1.0, 9.0], [0.1 + 0.2, 0.3]) == {"p50": 1.0, "p95": 9.0, "p99": 9.0}


def test_the_backlog_stays_where_nothing_changed_and_comes_from_before_the_span(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(minute) for minute in (0, 6)], DAY)
    rows = [(-90, 3, 1), (2, 10, 1), (4, 0, 2)]
    put(tmp_path, schemas.BACKLOG, [{"queue": "orders", "minute": at(m), "waiting": w, "dead": d} for m, w, d in rows])
    orders = figured(tmp_path, since=at(0)).queues["orders"]
    assert orders.waiting == [3, 3, 10, 10, 0, 0, 0]
    assert orders.peak == [3, 3, 10, 10, 10, 0, 0]
    assert orders.dead == [1, 1, 1, 1, 2, 2, 2]


def test_the_peak_of_all_queues_is_not_the_sum_of_their_peaks(tmp_path: Path) -> None:
    # Within one bucket of five minutes a goes to 100 and back, then b does.
    end = 24 * 60 - 1
    moves = [(0, "a", 100), (1, "a", 0), (2, "b", 100), (3, "b", 0), (end, "b", 0)]
    put(tmp_path, schemas.BACKLOG, [{"queue": q, "minute": at(m), "waiting": w, "dead": 0} for m, q, w in moves])
    changes = [(0, "a", 100), (1, "a", -100), (2, "b", 100), (3, "b", -100), (end, "b", 0)]
    put(tmp_path, schemas.THROUGHPUT, [events(m, q, waiting_delta=change) for m, q, change in changes], DAY)
    figures = figured(tmp_path)
    assert (figures.queues["a"].peak[0], figures.queues["b"].peak[0]) == (100, 100)
    assert figures.everything.peak[0] == 100


def test_causes_of_several_dates_are_one(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0), events(90)], DAY)
    cause = {"queue": "orders", "kind": "k", "error_class": "Boom", "event": "nacked"}
    put(tmp_path, schemas.CAUSES, [cause | {"dead": 2, "first_at": at(1), "last_at": at(9), "example_id": "m5"}], EVE)
    put(tmp_path, schemas.CAUSES, [cause | {"dead": 3, "first_at": at(5), "last_at": at(70), "example_id": "m10"}], DAY)
    (found,) = figured(tmp_path).causes
    assert (found.dead, found.first_at, found.last_at, found.example_id) == (5, at(1), at(70), "m5")


def test_the_load_of_a_consumer_is_busy_time_by_time_passed(tmp_path: Path) -> None:
    row = {"consumer": "c1", "leases": 2, "acked": 1, "failed": 1}
    put(
        tmp_path,
        schemas.CONSUMERS,
        [
            row | {"queue": "a", "minute": at(0), "busy_seconds": 30.0},
            row | {"queue": "b", "minute": at(0), "busy_seconds": 45.0},
            row | {"queue": "a", "minute": at(2), "busy_seconds": 6.0},
        ],
        DAY,
    )
    put(tmp_path, schemas.CONSUMERS, [row | {"queue": "a", "minute": at(0), "busy_seconds": 15.0}], EVE)
    (one,) = figured(tmp_path).consumers
    assert one.load == [1.5, 0.0, 0.1]
    assert (one.leases, one.failed, one.busy_seconds, one.queues) == (8, 4, 96.0, {"a", "b"})


def test_the_overdue_rate_is_of_leases_begun_and_at_most_all(tmp_path: Path) -> None:
    row = {"queue": "orders", "extended": 0}
    put(tmp_path, schemas.OVERDUE, [row | {"minute": at(0), "received": 90, "expired": 4}], DAY)
    put(tmp_path, schemas.OVERDUE, [row | {"minute": at(0), "received": 10, "expired": 1}], EVE)
    assert figured(tmp_path).queues["orders"].overdue_rate == 0.05
    put(tmp_path, schemas.OVERDUE, [row | {"minute": at(0), "received": 0, "expired": 200}], EVE)
    assert figured(tmp_path).queues["orders"].overdue_rate == 1.0


def test_what_one_incarnation_has_too_many_does_not_make_up_for_another(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=20)], DAY)
    row = dict.fromkeys((*schemas.FATES, "unsent"), 0) | {"queue": "orders", "hour": NOON}
    rows = [row | {"incarnation": 1, "sent": 10, "acked": 8}, row | {"incarnation": 2, "sent": 10, "acked": 12}]
    put(tmp_path, schemas.AUDIT, rows, DAY)
    figures = figured(tmp_path)
    assert [one.missing for one in figures.audit] == [2, -2]
    (found,) = [one for one in findings(figures, at(1)) if one.level is Level.WRONG]
    assert "2 sent without a known fate and 2 more than sent" in found.text


def test_counts_that_an_earlier_version_did_not_write_are_none(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=20, acked=20)], DAY)
    zeros = dict.fromkeys((*schemas.FATES, "unsent"), 0)
    row = zeros | {"queue": "orders", "hour": NOON, "incarnation": 1, "sent": 20, "acked": 20}
    older = pa.Table.from_pylist([row], schema=schemas.AUDIT.arrow()).drop_columns(["cancelled"])
    put_arrow(tmp_path, schemas.AUDIT, older, DAY)
    assert [(one.cancelled, one.missing) for one in figured(tmp_path).audit] == [(0, 0)]


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "step"),
    [
        (timedelta(hours=5), 60),
        (timedelta(hours=6), 300),
        (timedelta(days=1), 300),
        (timedelta(days=3), 900),
        (timedelta(days=12), 3600),
        (timedelta(days=30), 10800),
        (timedelta(days=200), 86400),
    ],
)
def test_long_spans_get_longer_buckets(length: timedelta, step: int) -> None:
    axis = Axis.over(0, int(length.total_seconds()))
    assert axis.step == step
    assert axis.count <= BUCKETS


def test_ten_years_are_cut_into_weeks() -> None:
    axis = Axis.over(0, 3650 * 86400)
    assert axis.step % (7 * 86400) == 0
    assert axis.count <= BUCKETS


def test_a_bucket_at_the_edge_counts_only_its_minutes_within_the_span() -> None:
    axis = Axis(begin=420, end=1500, step=300)
    assert [axis.minutes(bucket) for bucket in range(axis.count)] == [3.0, 5.0, 5.0, 5.0]
    assert axis.first == 300


def test_minutes_are_gathered_into_their_bucket(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(minute, sent=minute % 7) for minute in range(24 * 60)], DAY)
    sent = figured(tmp_path).queues["orders"].counts["sent"]
    assert len(sent) == 288
    assert sent[0] == 0 + 1 + 2 + 3 + 4
    assert sent[1] == 5 + 6 + 0 + 1 + 2
    assert sum(sent) == sum(minute % 7 for minute in range(24 * 60))


def test_since_and_until_cut_the_span(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(minute, sent=1) for minute in range(60)], DAY)
    figures = figured(tmp_path, since=at(10), until=at(20))
    assert figures.axis == Axis(int(at(10).timestamp()), int(at(20).timestamp()), 60)
    assert figures.everything.total("sent") == 10
    assert figured(tmp_path, since=at(100)).axis is None


def test_a_moment_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        figured(tmp_path, since=datetime(2025, 3, 1))


def test_the_drain_is_the_lakes_own_at_its_end_and_estimated_at_an_earlier_one(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(m, sent=2, acked=1, waiting_delta=1) for m in range(30)], DAY)
    put(
        tmp_path,
        schemas.BACKLOG,
        [{"queue": "orders", "minute": at(m), "waiting": m + 1, "dead": 0} for m in range(30)],
    )
    row = {"queue": "orders", "at": at(30), "waiting": 30, "arrival_per_second": 7.0, "settle_per_second": 8.0}
    put(tmp_path, schemas.DRAIN, [row | {"drain_seconds": 30.0}])
    own = figured(tmp_path).queues["orders"].drain
    assert own is not None
    assert (own.arrival, own.seconds) == (7.0, 30.0)
    earlier = figured(tmp_path, until=at(20)).queues["orders"].drain
    assert earlier is not None
    assert (earlier.waiting, earlier.arrival, earlier.settle, earlier.seconds) == (20, 30 / 900, 15 / 900, None)


def test_a_drain_says_whether_a_queue_grows_or_keeps_up() -> None:
    assert estimate(0, 5.0, 1.0).words == "empty"
    assert estimate(100, 1.0, 3.0).seconds == 50.0
    assert estimate(100, 1.0, 3.0).words == ""
    assert estimate(100, 3.0, 1.0).words == "growing"
    assert estimate(59, 3.0, 1.0).words == "keeps up"


# -- scales and words ------------------------------------------------------------------------------------------------


def test_scales_end_at_round_numbers() -> None:
    assert linear(7, Unit.COUNT).marks == (0, 2, 4, 6, 8)
    assert linear(1, Unit.COUNT).marks == (0, 1)
    assert linear(1234, Unit.PER_MINUTE).high == 1500
    assert linear(0, Unit.SHARE).high == 0.01
    assert linear(500, Unit.SECONDS).marks == (0, 300, 600)
    assert durations(0.5, 2.0).log is False
    assert durations(0.002, 45.0) == durations(0.001, 60.0)
    assert durations(0.002, 45.0).log is True


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.35, "350 ms"),
        (3.21, "3.2 s"),
        (12, "12 s"),
        (250, "4 m 10 s"),
        (11100, "3 h 5 m"),
        (187200, "2 d 4 h"),
        (None, "–"),
    ],
)
def test_durations_are_said_at_a_glance(seconds: float | None, words: str) -> None:
    assert span(seconds) == words


# -- what is wrong ---------------------------------------------------------------------------------------------------


def test_messages_that_nobody_receives_are_a_warning(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=5, waiting_delta=5), events(20, sent=1, waiting_delta=1)], DAY)
    rows = [{"queue": "orders", "minute": at(m), "waiting": w, "dead": 0} for m, w in ((0, 5), (20, 6))]
    put(tmp_path, schemas.BACKLOG, rows)
    (found,) = findings(figured(tmp_path), at(21))
    assert found.level is Level.WARNING
    assert "6 wait and none was received" in found.text


def test_a_backlog_below_zero_is_explained(tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, acked=5, waiting_delta=-5)], DAY)
    put(tmp_path, schemas.BACKLOG, [{"queue": "orders", "minute": at(0), "waiting": -5, "dead": 0}])
    (found,) = findings(figured(tmp_path), at(1))
    assert (found.level, found.text.split(":")[0]) == (Level.NOTE, "Counts fall below zero")


def test_a_table_that_is_being_made_anew_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=4, waiting_delta=4)], DAY)

    def pause(_seconds: float) -> None:
        put(tmp_path, schemas.BACKLOG, [{"queue": "orders", "minute": at(0), "waiting": 4, "dead": 0}])

    # Of this module alone: other threads of the test process sleep too, and would write the table while it is read.
    monkeypatch.setattr("restante.spark.report.load.time", SimpleNamespace(sleep=pause))
    assert figured(tmp_path).queues["orders"].waiting == [4]
