"""Chooses the scales of a chart: where a value or a time is drawn, and which round ones are labelled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from restante.spark.report.formats import moment, percent, short, span
from restante.spark.report.model import Axis

#: Most labels along the axes of time and of values: as many as fit on a phone.
TIME_LABELS, VALUE_LABELS = 6, 4
#: Ratio of the greatest to the least duration from which the scale is logarithmic: a linear one would hide medians.
LOG_FROM = 60

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: Round distances in seconds between two labels, from a minute to a year.
_STEPS: Final = (
    *(_MINUTE * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY * days for days in (1, 2, 5, 7, 14, 30, 91, 182, 365)),
)
#: The labels of a logarithmic scale of seconds.
_DECADES: Final = (
    *(10.0**power for power in range(-6, 2)),
    *(_MINUTE, 10.0 * _MINUTE, _HOUR, 6.0 * _HOUR, _DAY, 10.0 * _DAY, 1e7, 1e8),
)


class Unit(StrEnum):
    """The unit of a chart's numbers; the page's script knows the same ones."""

    SECONDS = "seconds"
    COUNT = "count"
    PER_MINUTE = "per-minute"
    SHARE = "share"

    def label(self, value: float) -> str:
        """The value as a label of the axis."""
        match self:
            case Unit.SECONDS:
                return span(value)
            case Unit.SHARE:
                return percent(value)
            case _:
                return short(value)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to heights between the bottom (0) and the top (1); `marks` are the labelled values."""

    low: float
    high: float
    marks: tuple[float, ...] = ()
    log: bool = False

    def part(self, value: float) -> float:
        if self.log:
            value = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            value = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, value))


def fitting(values: list[float], unit: Unit) -> Scale:
    """The scale for these values."""
    if unit is Unit.SECONDS:
        return durations(min((value for value in values if value > 0), default=0), max(values))
    return linear(max(values), unit)


def linear(high: float, unit: Unit) -> Scale:
    """A linear scale from zero to a round number above the highest value."""
    if high <= 0:
        high = 0.01 if unit is Unit.SHARE else 1.0
    step = _round_step(high / VALUE_LABELS, unit)
    top = math.ceil(high / step - 1e-9) * step
    return Scale(0.0, top, tuple(step * number for number in range(round(top / step) + 1)))


def _round_step(least: float, unit: Unit) -> float:
    if unit is Unit.SECONDS and least > 20:
        return float(next((step for step in _STEPS if step >= least), _STEPS[-1]))
    if unit is Unit.COUNT and least < 1:
        return 1.0
    size = 10.0 ** math.floor(math.log10(least) + 1e-9)
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= least * (1 - 1e-9))


def durations(low: float, high: float) -> Scale:
    """A scale of durations: linear from zero, or logarithmic between round values if they differ much."""
    if low <= 0 or high / low < LOG_FROM:
        return linear(high, Unit.SECONDS)
    bottom = max((mark for mark in _DECADES if mark <= low), default=_DECADES[0])
    top = min((mark for mark in _DECADES if mark >= high), default=_DECADES[-1])
    marks = [mark for mark in _DECADES if bottom <= mark <= top]
    thin = math.ceil(len(marks) / (VALUE_LABELS + 2))
    return Scale(bottom, top, tuple(marks[::thin]), log=True)


@dataclass(frozen=True, slots=True)
class TimeMark:
    """A label of the time axis: in which bucket, and whether a day begins there."""

    bucket: float
    label: str
    day: bool


def time_marks(axis: Axis) -> list[TimeMark]:
    """The labels of the time axis."""
    length = axis.count * axis.step
    end = axis.first + length
    step = next((step for step in _STEPS if length / step <= TIME_LABELS), _STEPS[-1])
    marks = []
    for at in range(-(-axis.first // step) * step, end + 1, step):
        # A label at the edge would stick out.
        if 0.02 <= (at - axis.first) / length <= 0.975:
            day = at % _DAY == 0
            label = f"{moment(at):%d %b}".lstrip("0") if day else f"{moment(at):%H:%M}"
            marks.append(TimeMark((at - axis.first) / axis.step, label, day and step < _DAY))
    return marks
