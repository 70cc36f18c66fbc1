"""When schedules tick: cron expressions over a decade of clock changes, intervals, jitter and missed ticks."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restante import InvalidInput, Message, cron, every
from restante.core.message import State, tick_id
from restante.core.stored import Stored, encode
from restante.core.ticks import LATE, MOST_MISSED, Timing, instant, instant_ms, span_ms, span_text

NOON: Final = datetime(2030, 1, 15, 12, tzinfo=UTC)
MINUTE: Final = 60_000
#: The decade that the second implementation covers.
FIRST, LAST = datetime(2019, 12, 31, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)
#: In which clocks change by an hour, by half an hour, at midnight, and twice more around Ramadan; and never.
ZONES: Final = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Africa/Casablanca",
    "Asia/Kathmandu",
)
#: At fixed times, in the gaps and overlaps of these zones and outside, and with stars, which count real time.
EXPRESSIONS: Final = (
    "30 2 * * *",
    "0,15,45 1-3 * * *",
    "0 0 * * *",
    "5 0 1 * MON",
    "30 23 28-31 3,9-11 *",
    "*/20 1-3 * * SUN",
    "15 * * 3,4,10 6,7",
)


# -- a second implementation, minute by minute -----------------------------------------------------------------------


@functools.cache
def quarters(name: str) -> list[tuple[int, datetime, int]]:
    """Each quarter of an hour of the decade, in which no clock changes: its start, its wall time and its fold."""
    zone, found = ZoneInfo(name), []
    at, stop = int(FIRST.timestamp()), int(LAST.timestamp())
    while at < stop:
        local = datetime.fromtimestamp(at, zone)
        found.append((at, local.replace(tzinfo=None, fold=0), local.fold))
        at += 900
    return found


def numbers(field: str, low: int, high: int, names: str = "") -> set[int]:
    """The numbers that a field of a cron expression names."""
    chosen: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        for number, word in enumerate(names.split()):
            span = span.replace(word, str(number))
        first, _, last = span.partition("-")
        ends = (low, high) if first == "*" else (int(first), int(last or first))
        chosen |= set(range(ends[0], ends[1] + 1, int(step or 1)))
    return chosen


class Reference:
    """A cron expression, matched against one wall time after the other, as Debian's cron does it."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.split()
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.days, self.months = numbers(day, 1, 31), numbers(month, 1, 12)
        self.weekdays = {number % 7 for number in numbers(weekday, 0, 6, "SUN MON TUE WED THU FRI SAT")}
        self.both = day.startswith("*") or weekday.startswith("*")
        self.fixed = not minute.startswith("*") and not hour.startswith("*")

    def matches_day(self, wall: datetime) -> bool:
        by_day, by_week = wall.day in self.days, (wall.weekday() + 1) % 7 in self.weekdays
        return wall.month in self.months and (by_day and by_week if self.both else by_day or by_week)

    def matches(self, wall: datetime) -> bool:
        return wall.hour in self.hours and wall.minute in self.minutes and self.matches_day(wall)

    def ticks(self, zone: str) -> Iterator[int]:
        """Every tick of the decade. A fixed time that is jumped over ticks after the jump; one that repeats, once."""
        before: datetime | None = None
        for at, wall, fold in quarters(zone):
            if self.fixed and before is not None and wall > before + timedelta(minutes=15):
                skipped = before + timedelta(minutes=15)
                missed = []
                while skipped < wall:
                    missed.append(self.matches(skipped))
                    skipped += timedelta(minutes=1)
                if any(missed) and not self.matches(wall):
                    yield at
            before = wall
            if wall.hour not in self.hours or not self.matches_day(wall) or (self.fixed and fold):
                continue
            for minute in range(15):
                if wall.minute + minute in self.minutes:
                    yield at + 60 * minute


@pytest.mark.parametrize("zone", ZONES)
def test_a_decade_of_ticks_is_that_of_a_second_implementation(zone: str) -> None:
    for expression in EXPRESSIONS:
        timing = cron(expression, tz=zone)
        expected = [at * 1000 for at in Reference(expression).ticks(zone)]
        found, tick = [], timing.next(instant_ms(FIRST, "") - 1)
        while tick is not None and tick < instant_ms(LAST, ""):
            found.append(tick)
            tick = timing.next(tick)
        # The decade begins and ends within a day of these zones; the first and last days are not compared.
        inner = slice(instant_ms(FIRST, "") + 86_400_000, instant_ms(LAST, "") - 86_400_000)
        assert [at for at in found if inner.start <= at < inner.stop] == [
            at for at in expected if inner.start <= at < inner.stop
        ], (zone, expression)


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # Spring: 02:30 does not exist, and the tick comes with the jump.
        ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00Z", ["2027-03-28T01:00Z", "2027-03-29T00:30Z"]),
        # Autumn: 02:30 occurs twice and ticks once.
        ("30 2 * * *", "Europe/Berlin", "2027-10-30T12:00Z", ["2027-10-31T00:30Z", "2027-11-01T01:30Z"]),
        # With a star real time counts: the hour that occurs twice ticks twice.
        ("0 * * * *", "Europe/Berlin", "2027-10-30T23:30Z", ["2027-10-31T00:00Z", "2027-10-31T01:00Z"]),
        ("15 30 8 1 1 *", "UTC", "2030-01-01T00:00Z", ["2030-01-01T08:30:15Z", "2031-01-01T08:30:15Z"]),
        ("@weekly", "UTC", "2030-01-01T00:00Z", ["2030-01-06T00:00Z", "2030-01-13T00:00Z"]),
        ("0 9 * * MON#1", "UTC", "2030-01-01T00:00Z", ["2030-01-07T09:00Z", "2030-02-04T09:00Z"]),
        ("0 0 LW * *", "UTC", "2030-08-01T00:00Z", ["2030-08-30T00:00Z", "2030-09-30T00:00Z"]),
    ],
)
def test_ticks_of_known_days(expression: str, zone: str, after: str, expected: list[str]) -> None:
    timing, at = cron(expression, tz=zone), instant_ms(datetime.fromisoformat(after), "")
    for text in expected:
        at = timing.next(at) or 0
        assert instant(at) == datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 25 * * *", "the hour '25' of the cron expression '0 25 * * *' is not valid: use 0 to 23"),
        ("60 * * * *", "the minute '60'"),
        ("* * 32 * *", "the day-of-month '32'"),
        ("* * * 13 *", "the month '13'"),
        ("* * * * MONDAY", "the day-of-week 'MONDAY'"),
        ("61 * * * * *", "the second '61'"),
        ("* * * *", "has 4 fields and needs 5"),
        ("@dayly", "did you mean @daily?"),
        ("0 0 31 2 *", "the day-of-month '31'"),
        ("0 0 */15 * MON#2", "never matches"),
        ("", "has 0 fields"),
        (5, "a cron expression is a text"),
    ],
)
def test_a_wrong_expression_is_refused_and_its_field_named(expression: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cron(expression)
    assert said in str(refused.value)


@given(st.text("0123456789*/,-#LWMONSU @", max_size=24))
@settings(max_examples=400, deadline=None)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        timing = cron(text)
    except InvalidInput:
        return
    first = timing.next(0)
    assert first is not None
    assert first > 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cron("0 3 * * *", tz="Europe/Berln"), "did you mean Europe/Berlin?"),
        (lambda: cron("0 3 * * *", tz="../etc/passwd"), "no time zone"),
        (lambda: cron("0 3 * * *", start=datetime(2030, 1, 1)), "start must be an aware datetime"),
        (lambda: every("5 minutes"), "every must be a duration such as '30s'"),
        (lambda: every(0.01), "every must be between 0.1"),
        (lambda: every("5m", jitter="5m"), "jitter must be shorter than the shortest pause between two ticks, 5m"),
        (lambda: every("5m", missed="never"), "missed must be one of once, skip, all"),
        (lambda: every("5m", overlap=1), "overlap must be True or False"),  # type: ignore[arg-type]
        (lambda: every("1d", start=NOON, end=NOON - timedelta(1)), "no tick between start and end"),
        (lambda: cron("0 0 1 1 *", start=NOON, end=NOON + timedelta(9)), "no tick between start and end"),
    ],
)
def test_what_cannot_hold_is_refused(make: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert said in str(refused.value)


def test_an_interval_counts_from_its_start_or_from_the_epoch() -> None:
    noon = instant_ms(NOON, "")
    assert every("5m").next(noon + 1) == noon + 5 * MINUTE
    assert every("5m").next(noon - 1) == noon
    seven = every("7m", start=NOON, end=NOON + timedelta(minutes=20))
    assert [seven.next(at) for at in (0, noon, noon + 8 * MINUTE, noon + 14 * MINUTE)] == [
        noon,
        noon + 7 * MINUTE,
        noon + 14 * MINUTE,
        None,
    ]


def test_the_first_tick_may_be_the_start_and_the_last_the_end() -> None:
    timing = cron("0 12 * * *", start=NOON, end=NOON + timedelta(days=2))
    found = [timing.next(0)]
    for _ in range(3):
        found.append(timing.next(found[-1] or 0))
    assert found == [*(instant_ms(NOON + timedelta(days=days), "") for days in range(3)), None]


@given(st.integers(1, 10**9))
def test_durations_are_read_as_they_are_written(ms: int) -> None:
    assert span_ms(span_text(ms), "x") == ms


def test_jitter_is_the_same_for_one_tick_and_spreads_many() -> None:
    timing = every("1m", jitter="30s")
    noon = instant_ms(NOON, "")
    late = [timing.due("a", noon + number * MINUTE) - noon - number * MINUTE for number in range(400)]
    assert late == [timing.due("a", noon + number * MINUTE) - noon - number * MINUTE for number in range(400)]
    assert 0 <= min(late) < 2000
    assert 28_000 < max(late) <= 30_000
    assert late != [timing.due("b", noon + number * MINUTE) - noon - number * MINUTE for number in range(400)]


# -- missed ticks ----------------------------------------------------------------------------------------------------


def ticks(*minutes: float) -> list[int]:
    return [instant_ms(NOON, "") + round(minute * MINUTE) for minute in minutes]


@pytest.mark.parametrize(
    ("missed", "now", "fire", "skipped", "following"),
    [
        ("once", -0.01, [], 0, 0),
        ("once", 0, [0], 0, 1),
        ("once", 3.5, [3], 3, 4),
        ("once", 300, [300], 100, 301),
        ("skip", 0, [0], 0, 1),
        ("skip", 0.9, [0], 0, 1),
        ("skip", 3.5, [3], 3, 4),
        ("all", 3.5, [0, 1, 2, 3], 0, 4),
        ("all", 300, list(range(MOST_MISSED)), 0, MOST_MISSED),
    ],
)
def test_what_was_missed(missed: Any, now: float, fire: list[int], skipped: int, following: int) -> None:
    (first, at, after) = ticks(0, now, following)
    pending = every("1m", missed=missed).pending("a", first, at)
    assert (pending.fire, pending.skipped, pending.next) == (ticks(*fire), skipped, after)


def test_a_tick_that_is_late_by_more_than_a_while_is_skipped() -> None:
    (first,) = ticks(0)
    daily = cron("0 12 * * *", missed="skip")
    assert daily.pending("a", first, first + LATE).fire == [first]
    pending = daily.pending("a", first, first + LATE + 1)
    assert (pending.fire, pending.skipped, pending.next) == ([], 1, first + 86_400_000)


@pytest.mark.parametrize("timing", [cron("* * * * *"), every("1s"), cron("0 0 29 2 *"), every("1m", jitter="59s")])
def test_years_of_missed_ticks_are_passed_over_at_once(timing: Timing) -> None:
    (now,) = ticks(0)
    first = timing.next(now - 20 * 366 * 86_400_000) or 0
    pending = timing.pending("a", first, now)
    (last,) = pending.fire
    assert timing.due("a", last) <= now
    assert pending.next == timing.next(last)
    assert timing.due("a", pending.next or 0) > now


def test_the_last_tick_is_followed_by_none() -> None:
    timing = every("1m", end=NOON + timedelta(minutes=2), missed="all")
    (first, now) = ticks(0, 9)
    pending = timing.pending("a", first, now)
    assert (pending.fire, pending.next) == (ticks(0, 1, 2), None)


# -- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "schedule", "tick"),
    [
        (tick_id("nightly", instant_ms(NOON, "")), "nightly", NOON),
        (tick_id("a@b", instant_ms(NOON, "") + 250), "a@b", NOON + timedelta(milliseconds=250)),
        ("nightly@now:01M7V44K5044772E06FE6985FE", None, None),
        ("nightly", None, None),
        ("nightly@2030-13-15T12:00:00Z", "nightly", None),
    ],
)
def test_a_message_tells_its_schedule_and_its_tick(id: str, schedule: str | None, tick: datetime | None) -> None:
    message = Message(id, "q", Stored(b"1\n1\t" + encode(None)[0]), state=State.READY)
    assert (message.schedule, message.tick) == (schedule, tick)


def test_zones_are_known_where_the_system_has_no_files() -> None:
    code = (
        "import zoneinfo; zoneinfo.reset_tzpath([]); from restante import cron; "
        "print(cron('0 3 * * *', tz='Europe/Berlin').next(1_700_000_000_000))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(found.stdout) == cron("0 3 * * *", tz="Europe/Berlin").next(1_700_000_000_000)
