"""Formats the numbers of a report for people: durations, counts, shares, rates and times."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def span(seconds: float | None) -> str:
    """Formats a duration: 350 ms, 12 s, 4 m 10 s, 3 h 5 m, 2 d 4 h."""
    if seconds is None:
        return "–"
    if seconds == 0:
        return "0 s"
    if seconds < 1:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0", "")
    whole = round(seconds)
    for (size, name), (below, least) in pairwise(_UNITS):
        if whole >= size:
            number, rest = divmod(whole // below, size // below)
            return f"{number} {name} {rest} {least}" if rest else f"{number} {name}"
    return f"{whole} s"


def count(number: float | None) -> str:
    """Formats a number with all digits and thousands separators."""
    return "–" if number is None else f"{number:,.0f}"


def short(number: float) -> str:
    """Formats a number for an axis: 0, 0.5, 250, 1.5k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def percent(part: float | None) -> str:
    if part is None:
        return "–"
    hundred = part * 100
    return f"{hundred:.0f} %" if hundred >= 10 or hundred == 0 else f"{hundred:.2g} %"


def rate(value: float) -> str:
    """Formats a rate with three digits, from a hundred on as a whole number; never with an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def clock(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%d %b %H:%M}".lstrip("0") if at else "–"


def dated(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %Y %H:%M}".lstrip("0")


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
