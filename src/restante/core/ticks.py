"""When a schedule ticks: cron expressions and intervals in a time zone, and the rule for missed ticks; no I/O.

All instants are integer milliseconds since 1970 in UTC. Every process that fires a schedule computes the same ticks
from its definition alone, jitter included, so it does not matter which of them fires. What cannot be read raises
InvalidInput.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from restante.core.errors import InvalidInput
from restante.core.keywords import nearest, resembling
from restante.core.settings import milliseconds

#: What happens to ticks that passed while nothing could fire them.
MISSED: Final = ("once", "skip", "all")
#: Shortest interval in seconds. A shorter one is a loop in a consumer, not a schedule.
SHORTEST_EVERY: Final = 0.1
#: Milliseconds after which a tick counts as missed for `missed="skip"`. Shorter, and a restart of Redis skips ticks;
#: longer, and a tick that nobody expects any more still fires.
LATE: Final = 60_000
#: Ticks that are looked at when a schedule is defined: its jitter must be shorter than each pause between them.
LOOKED_AT: Final = 50
#: Ticks that one call fires or passes over when many were missed; the next call continues.
MOST_MISSED: Final = 100
#: How far to look back for the last of very many missed ticks, in milliseconds; each step looks at a few dozen ticks.
_LOOKS_BACK: Final = (60_000, 3_600_000, 86_400_000, 32 * 86_400_000, 400 * 86_400_000, 51 * 366 * 86_400_000)
#: Short names of cron expressions.
ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
#: The last instant that a tick can have.
_LAST: Final = 253_402_300_799_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def span_ms(value: float | str | timedelta, name: str, *, least: float = 0.0) -> int:
    """Milliseconds of a number of seconds, a timedelta, or a text such as `90s`, `5m` or `1h30m`."""
    if isinstance(value, str):
        text = value.strip().lower()
        if not _SPAN.fullmatch(text):
            raise InvalidInput(f"{name} must be a duration such as '30s', '5m', '1h30m' or '1d', not {value!r}")
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)) / 1000
    return milliseconds(value, name, least=least)


def instant_ms(value: datetime, name: str) -> int:
    """Milliseconds of an aware datetime, rounded up."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{name} must be an aware datetime such as datetime.now(UTC), not {value!r}")
    return max(0, -((_EPOCH - value) // timedelta(milliseconds=1)))


def instant(ms: int) -> datetime:
    """The aware datetime of an instant."""
    return _EPOCH + timedelta(milliseconds=ms)


@functools.lru_cache(maxsize=512)
def zone(name: str) -> ZoneInfo:
    """The time zone of this name; raises InvalidInput with the nearest name for an unknown one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        known = sorted(available_timezones())
        if not known:
            raise InvalidInput(f"no time zone {name!r}: this system has no zone files; pip install tzdata") from None
        near = resembling(str(name), known)
        hint = f"did you mean {near}?" if near else "use a name such as Europe/Berlin"
        raise InvalidInput(f"no time zone {name!r}: {hint}") from None


@functools.lru_cache(maxsize=4096)
def _parsed(expression: str) -> str:
    """The expression with aliases replaced; raises InvalidInput that names the wrong field."""
    if not isinstance(expression, str):
        raise InvalidInput(f"a cron expression is a text such as '0 3 * * *', not {expression!r}")
    text = " ".join(expression.split())
    if text.startswith("@"):
        if text.lower() not in ALIASES:
            raise InvalidInput(f"no cron expression {text!r}: {nearest(text.lower(), ALIASES)}")
        return ALIASES[text.lower()]
    fields = text.split()
    if len(fields) not in (5, 6):
        raise InvalidInput(
            f"the cron expression {text!r} has {len(fields)} fields and needs 5: minute, hour, day-of-month, month and "
            "day-of-week; or 6 with the second first"
        )
    names = _FIELDS if len(fields) == 6 else _FIELDS[1:]
    try:
        parsed = CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        wrong = str(error).removeprefix("Bad ")
        value = dict(zip(names, fields, strict=True)).get(wrong)
        what = f"{wrong} {value!r}" if value is not None else str(error)
        raise InvalidInput(f"the {what} of the cron expression {text!r} is not valid{_range_of(wrong)}") from None
    if next(parsed, None) is None:
        raise InvalidInput(f"the cron expression {text!r} never matches a date: check day-of-month and month")
    return text


def _range_of(field: str) -> str:
    ranges = {
        "second": "0 to 59",
        "minute": "0 to 59",
        "hour": "0 to 23",
        "day-of-month": "1 to 31, L or LW",
        "month": "1 to 12 or JAN to DEC",
        "day-of-week": "0 to 7 or SUN to SAT, such as MON#1 for the first Monday or 5L for the last Friday",
    }
    return f": use {ranges[field]}, with * , - and /" if field in ranges else ""


def _is_fixed(expression: str) -> bool:
    """Whether it names hours and minutes; with a star in one of them, or with seconds, real time counts."""
    fields = expression.split()
    return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")


def _offset(place: ZoneInfo | None, at: int) -> int:
    """What the clocks of a zone show more than UTC at an instant, in milliseconds."""
    span = None if place is None else instant(at).astimezone(place).utcoffset()
    return 0 if span is None else span // timedelta(milliseconds=1)


def _next_by_wall(expression: str, place: ZoneInfo | None, after: int) -> int | None:
    """The first instant later than a whole second whose wall time matches.

    The library searches wall times as if no clock ever changed, and each change is looked for here: its own search in
    zones passes over the hour after a jump at midnight.
    """
    wall = after + (offset := _offset(place, after))
    while True:
        found = next(CronSim(expression, instant(wall)), None)
        if found is None:
            return None
        at = instant_ms(found, "tick") - offset
        if _offset(place, at) == offset:
            return at
        before, change = after, at
        while change - before > 1000:
            middle = (before + change) // 2000 * 1000
            before, change = (middle, change) if _offset(place, middle) == offset else (before, middle)
        # Up to the change nothing matched; from there on the wall shows another time.
        after, offset = change, _offset(place, change)
        wall = change + offset - 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule ticks. Make one with `restante.cron(…)` or `restante.every(…)`."""

    cron: str = ""
    every_ms: int = 0
    tz: str = "UTC"
    #: The first and the last instant at which it may tick; 0 for none.
    start_ms: int = 0
    end_ms: int = 0
    #: Each tick is due up to this much later, always the same for one tick.
    jitter_ms: int = 0
    missed: str = "once"
    #: Whether a tick fires while the message of the tick before is not settled.
    overlap: bool = True

    def checked(self) -> Timing:
        """This timing; raises InvalidInput if it cannot hold. Not part of making one: firers read checked ones."""
        if self.missed not in MISSED:
            raise InvalidInput(f"missed must be one of {', '.join(MISSED)}, not {self.missed!r}")
        if not isinstance(self.overlap, bool):
            raise InvalidInput(f"overlap must be True or False, not {self.overlap!r}")
        first = list(self._few(self.start_ms))
        if not first:
            raise InvalidInput("the schedule has no tick between start and end")
        shortest = min((after - before for before, after in pairwise(first)), default=0)
        if shortest and self.jitter_ms >= shortest:
            raise InvalidInput(
                f"jitter must be shorter than the shortest pause between two ticks, {span_text(shortest)}, "
                f"not {span_text(self.jitter_ms)}"
            )
        return self

    def _few(self, after: int) -> Iterator[int]:
        tick = self.next(after - 1)
        for _ in range(LOOKED_AT):
            if tick is None:
                return
            yield tick
            tick = self.next(tick)

    def next(self, after: int) -> int | None:
        """The first tick later than this instant, without jitter; None if there is none."""
        after = max(after, self.start_ms - 1)
        if self.every_ms:
            tick = self.start_ms + ((after - self.start_ms) // self.every_ms + 1) * self.every_ms
        else:
            found = self._next_by_cron(after)
            if found is None:
                return None
            tick = found
        return None if tick > (self.end_ms or _LAST) else tick

    def _next_by_cron(self, after: int) -> int | None:
        place = None if self.tz == "UTC" else zone(self.tz)
        try:
            if place is None or not _is_fixed(self.cron):
                return _next_by_wall(self.cron, place, after // 1000 * 1000)
            for found in CronSim(self.cron, instant(after).astimezone(place)):
                tick = instant_ms(found, "tick")
                if tick > after:
                    return tick
        except OverflowError:  # beyond the last year
            pass
        return None

    def due(self, schedule: str, tick: int) -> int:
        """When a tick of this schedule is due: the tick, and its share of the jitter."""
        if not self.jitter_ms:
            return tick
        digest = sha256(f"{schedule}@{tick}".encode()).digest()
        return tick + int.from_bytes(digest[:8]) % (self.jitter_ms + 1)

    def pending(self, schedule: str, tick: int, now: int, most: int = MOST_MISSED) -> Pending:
        """What to do about a schedule whose next tick is `tick`: the ticks to fire now, and the tick after them."""
        due: list[int] = []
        following: int | None = tick
        while following is not None and self.due(schedule, following) <= now and len(due) < most:
            due.append(following)
            following = self.next(following)
        if not due:
            return Pending([], 0, tick)
        if self.missed == "all":
            return Pending(due, 0, following)
        if len(due) == most and following is not None:
            last = self._last_due(schedule, following, now)
            if last is not None:
                due.append(last)
                following = self.next(last)
        late = self.missed == "skip" and now - self.due(schedule, due[-1]) > LATE
        return Pending([] if late else [due[-1]], len(due) - (not late), following)

    def _last_due(self, schedule: str, tick: int, now: int) -> int | None:
        """The last tick that is due by now, from `tick` on. Looks back from now: it need not compute each between."""
        for back in _LOOKS_BACK:
            last, found = None, self.next(max(tick - 1, now - back - self.jitter_ms))
            while found is not None and self.due(schedule, found) <= now:
                last, found = found, self.next(found)
            if last is not None:
                return last
            if now - back <= tick:
                return None
        return None

    def as_dict(self) -> dict[str, Any]:
        """The timing as JSON stores it, without what is default."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value != _DEFAULTS[name]}

    @property
    def text(self) -> str:
        """The cron expression, or the interval as `every 5m`."""
        return self.cron or f"every {span_text(self.every_ms)}"


@dataclass(frozen=True, slots=True)
class Pending:
    """The ticks to fire now, how many were passed over, and the next tick; None if the schedule has ended."""

    fire: list[int]
    skipped: int
    next: int | None


_DEFAULTS: Final = {name: field.default for name, field in Timing.__dataclass_fields__.items()}


def span_text(ms: int) -> str:
    """A duration as `span_ms` reads it: 5m, 1h30m."""
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def cron(
    expression: str,
    *,
    tz: str = "UTC",
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: float | str | timedelta = 0,
    missed: str = "once",
    overlap: bool = True,
) -> Timing:
    """Ticks at the times of a cron expression in a time zone: `cron("0 3 * * *", tz="Europe/Berlin")`.

    Five fields (minute, hour, day-of-month, month, day-of-week), or six with the second first. A time that the clock
    jumps over in spring ticks right after the jump; a time that occurs twice in autumn ticks once.
    """
    return Timing(
        cron=_parsed(expression),
        tz=_tz_name(tz),
        start_ms=0 if start is None else instant_ms(start, "start"),
        end_ms=0 if end is None else instant_ms(end, "end"),
        jitter_ms=span_ms(jitter, "jitter"),
        missed=missed,
        overlap=overlap,
    ).checked()


def every(
    interval: float | str | timedelta,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: float | str | timedelta = 0,
    missed: str = "once",
    overlap: bool = True,
) -> Timing:
    """Ticks at an interval: `every("5m")`, `every(90)` seconds or `every(timedelta(hours=1))`.

    The ticks count from `start`, or from 1970-01-01 00:00 UTC: every five minutes ticks at :00, :05 and so on.
    """
    return Timing(
        every_ms=span_ms(interval, "every", least=SHORTEST_EVERY),
        start_ms=0 if start is None else instant_ms(start, "start"),
        end_ms=0 if end is None else instant_ms(end, "end"),
        jitter_ms=span_ms(jitter, "jitter"),
        missed=missed,
        overlap=overlap,
    ).checked()


def _tz_name(tz: str) -> str:
    name = getattr(tz, "key", tz)  # a ZoneInfo
    return zone(name).key if name != "UTC" else "UTC"
