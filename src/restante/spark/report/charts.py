"""Draws charts as SVG inside HTML from plain numbers: lines, columns, heat strips, bars and sparklines.

A drawing is stretched to the available width, and all text is in HTML beside it, so letters keep their size on a phone.
Colours are names of variables in the page's style sheet. Numbers for the tooltip are in `data-` attributes. All text is
escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from html import escape

from restante.spark.report.model import Axis, Series

#: Width and height of a drawing before it is stretched. Coordinates are whole numbers, to keep the page small: less is
#: coarser than a pixel, ten times as much makes a page of many queues a third larger.
WIDTH, HEIGHT = 1000, 400
#: Most labels along the axes of time and of values: as many as fit on a phone.
TIME_LABELS, VALUE_LABELS = 6, 4
#: Ratio of the greatest to the least duration from which the scale is logarithmic: a linear one would hide medians.
LOG_FROM = 60
#: Shades of a heat strip, the palest first; the style sheet has as many.
SHADES = 8

_TIME_STEPS = (
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    3 * 3600,
    6 * 3600,
    12 * 3600,
    86400,
    2 * 86400,
    5 * 86400,
    7 * 86400,
    14 * 86400,
    30 * 86400,
    91 * 86400,
    182 * 86400,
    365 * 86400,
)
_SPANS = (
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    4 * 3600,
    6 * 3600,
    12 * 3600,
    86400,
    2 * 86400,
    5 * 86400,
    10 * 86400,
    30 * 86400,
    100 * 86400,
)
_DECADES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600, 86400.0, 10 * 86400, 1e7, 1e8)


class Unit(StrEnum):
    """The unit of a chart's numbers; the page's script knows the same ones."""

    SECONDS = "seconds"
    COUNT = "count"
    PER_MINUTE = "per-minute"
    SHARE = "share"


# -- formatting ------------------------------------------------------------------------------------------------------


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
    for size, name, below, least in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name} {rest} {least}" if rest else f"{whole // size} {name}"
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


def clock(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%d %b %H:%M}".lstrip("0") if at else "–"


def dated(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %Y %H:%M}".lstrip("0")


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


_WORDS: dict[Unit, Callable[[float], str]] = {
    Unit.SECONDS: span,
    Unit.COUNT: short,
    Unit.PER_MINUTE: short,
    Unit.SHARE: percent,
}


# -- scales ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to heights between the bottom (0) and the top (1), with the values of the grid lines."""

    low: float
    high: float
    marks: tuple[float, ...]
    log: bool = False

    def part(self, value: float) -> float:
        if self.log:
            value = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            value = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, value))


def linear(high: float, unit: Unit) -> Scale:
    """A linear scale from zero to a round number above the highest value."""
    if high <= 0:
        high = 0.01 if unit is Unit.SHARE else 1.0
    step = _round_step(high / VALUE_LABELS, unit)
    top = math.ceil(high / step - 1e-9) * step
    return Scale(0.0, top, tuple(step * number for number in range(round(top / step) + 1)))


def _round_step(least: float, unit: Unit) -> float:
    if unit is Unit.SECONDS and least > 20:
        return float(next((step for step in _SPANS if step >= least), 365 * 86400))
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


def _time_marks(axis: Axis) -> list[tuple[float, str, bool]]:
    """Positions (0 to 1) and labels of the time axis, and whether a day begins there."""
    begin, end = axis.first, axis.first + axis.count * axis.step
    step = next((step for step in _TIME_STEPS if (end - begin) / step <= TIME_LABELS), _TIME_STEPS[-1])
    marks = []
    for at in range(-(-begin // step) * step, end + 1, step):
        place = (at - begin) / (end - begin)
        # A label at the edge would stick out.
        if 0.02 <= place <= 0.975:
            day = at % 86400 == 0
            label = f"{moment(at):%d %b}".lstrip("0") if day else f"{moment(at):%H:%M}"
            marks.append((place, label, day and step < 86400))
    return marks


# -- paths -----------------------------------------------------------------------------------------------------------


def rate(value: float) -> str:
    """Formats a rate with three digits, from a hundred on as a whole number; never with an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    return str(round(value))


def _value(value: float | None) -> str:
    """Formats a value for the tooltip: three digits, or all digits of a greater number."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return str(round(value)) if abs(value) >= 100 else f"{value:.3g}"


def _line(values: Series, scale: Scale) -> str:
    """The path of a line through the middle of each bucket, interrupted where there is no value."""
    step = WIDTH / max(len(values), 1)
    path, pen, level = [], False, ""
    for place, value in enumerate(values):
        if value is None:
            pen = False
            continue
        x, y = _number((place + 0.5) * step), _number(HEIGHT * (1 - scale.part(value)))
        following = values[place + 1] if place + 1 < len(values) else None
        if pen and y == level and following is not None and _number(HEIGHT * (1 - scale.part(following))) == y:
            continue
        # A single point is a stroke without length, which round line caps draw as a dot.
        path.append(f"L{x},{y}" if pen else f"M{x},{y}h0")
        pen, level = True, y
    return "".join(path)


def _wash(stroke: str) -> str:
    """The area under a stroke: each of its pieces is led down to the bottom and closed."""
    pieces = []
    for piece in stroke.split("M")[1:]:
        begin, end = piece.partition(",")[0], piece.rpartition("L")[2].partition(",")[0]
        pieces.append(f"M{begin},{HEIGHT}L{piece.replace('h0', '', 1)}L{end},{HEIGHT}Z")
    return "".join(pieces)


def _steps(values: Series, scale: Scale) -> str:
    """The path of columns without gaps, closed along the bottom."""
    step = WIDTH / max(len(values), 1)
    path, level = [f"M0,{HEIGHT}"], str(HEIGHT)
    for place, value in enumerate(values):
        y = _number(HEIGHT * (1 - scale.part(value or 0)))
        if y != level:
            path.append(f"H{_number(place * step)}V{y}")
            level = y
    return "".join(path) + f"H{WIDTH}V{HEIGHT}Z"


def _runs(values: Sequence[bool]) -> Iterable[tuple[int, int]]:
    """Start and length of each run of true values."""
    begin = None
    for place, value in enumerate((*values, False)):
        if value and begin is None:
            begin = place
        elif not value and begin is not None:
            yield begin, place - begin
            begin = None


def _blocks(values: Sequence[bool]) -> str:
    step = WIDTH / max(len(values), 1)
    return "".join(
        f"M{_number(begin * step)},0h{_number(length * step)}v{HEIGHT}h-{_number(length * step)}z"
        for begin, length in _runs(values)
    )


# -- charts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a chart: its name, its colour, its values and their total for the legend."""

    name: str
    colour: str
    values: Series
    total: str = ""
    #: line, area (a line over a filled area), columns, or faint (a thin line in the background).
    style: str = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """The content of a chart; `marked` buckets are shaded and named in the tooltip."""

    title: str
    about: str
    unit: Unit
    lines: Sequence[Line]
    marked: Sequence[int] = ()
    marked_as: str = ""
    #: The text to show if there is nothing to draw.
    empty: str = "No events in this period."
    missing: str = ""


class Drawing:
    """Draws charts over one axis of time."""

    def __init__(self, axis: Axis) -> None:
        self._marks = _time_marks(axis)

    def chart(self, chart: Chart) -> str:
        """A chart with its caption, legend, drawing and both axes."""
        values = [value for line in chart.lines for value in line.values if value is not None]
        lacking = chart.missing or ("" if any(values) or (values and chart.unit is not Unit.SECONDS) else chart.empty)
        if lacking:
            head = _caption(chart, "")
            return (
                f'<figure class="chart">{head}<div class="frame"><p class="none">{escape(lacking)}</p></div></figure>'
            )
        scale = linear(max(values), chart.unit)
        if chart.unit is Unit.SECONDS:
            scale = durations(min((value for value in values if value > 0), default=0), max(values))
        sums = "; ".join(f"{line.name} {line.total}" for line in chart.lines if line.total)
        return (
            f'<figure class="chart">{_caption(chart, "log scale" if scale.log else "")}<div class="frame">'
            f'<div class="ys">{self._value_labels(scale, chart.unit)}</div>'
            f'<div class="plot" tabindex="0" data-unit="{chart.unit}">'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
            f'aria-label="{escape(f"{chart.title}: {sums}")}">{self._grid(scale)}{self._marking(chart)}'
            f"{''.join(_drawn(line, scale) for line in chart.lines)}</svg></div>"
            f'<div class="xs">{self._time_labels()}</div></div></figure>'
        )

    def strip(self, name: str, values: Sequence[float], high: float) -> str:
        """A heat strip: the higher a value, the darker its bucket."""
        shades = [min(SHADES, math.ceil(value / high * SHADES)) if value > 0 else 0 for value in values]
        cells = "".join(
            f'<path class="shade-{shade}" d="{_blocks([other == shade for other in shades])}"/>'
            for shade in range(1, SHADES + 1)
            if shade in shades
        )
        return (
            f'<div class="plot strip" data-unit="share"><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
            f'role="img" aria-label="{escape(name)}">{cells}<path data-name="{escape(name)}" data-colour="leased" '
            f'data-values="{_listed(values)}"/></svg></div>'
        )

    def times(self) -> str:
        """The time axis alone, to put below heat strips."""
        return f'<div class="xs">{self._time_labels()}</div>'

    def _time_labels(self) -> str:
        return "".join(
            f'<span style="left:{place:.1%}"{" class=day" if day else ""}>{label}</span>'
            for place, label, day in self._marks
        )

    def _value_labels(self, scale: Scale, unit: Unit) -> str:
        words = _WORDS[unit]
        return "".join(f'<span style="bottom:{scale.part(mark):.1%}">{words(mark)}</span>' for mark in scale.marks)

    def _grid(self, scale: Scale) -> str:
        across = "".join(f"M0,{_number(HEIGHT * (1 - scale.part(mark)))}H{WIDTH}" for mark in scale.marks)
        days = "".join(f"M{_number(place * WIDTH)},0V{HEIGHT}" for place, _, day in self._marks if day)
        return f'<path class="grid" d="{across}"/>' + (f'<path class="grid day" d="{days}"/>' if days else "")

    def _marking(self, chart: Chart) -> str:
        if not any(chart.marked):
            return ""
        return (
            f'<path class="storm" d="{_blocks([bool(marked) for marked in chart.marked])}" '
            f'data-name="{escape(chart.marked_as)}" data-colour="dead" data-unit="count" '
            f'data-values="{_listed(chart.marked)}"/>'
        )


def _caption(chart: Chart, remark: str) -> str:
    legend = "".join(
        f'<li><i style="--c:var(--{line.colour})" class="{line.style}"></i>{escape(line.name)}'
        f"{f' <b>{escape(line.total)}</b>' if line.total else ''}</li>"
        for line in chart.lines
    )
    if any(chart.marked) and legend:
        marked = f"{escape(chart.marked_as)} <b>{count(sum(chart.marked))}</b>"
        legend += f'<li><i style="--c:var(--dead)" class="wash"></i>{marked}</li>'
    tag = f" <small>{remark}</small>" if remark else ""
    return (
        f"<figcaption><h4>{escape(chart.title)}{tag}</h4><p>{escape(chart.about)}</p>"
        f"{f'<ul>{legend}</ul>' if legend and not chart.missing else ''}</figcaption>"
    )


def _listed(values: Series) -> str:
    return ",".join(_value(value) for value in values)


def _drawn(line: Line, scale: Scale) -> str:
    read = f'data-name="{escape(line.name)}" data-colour="{line.colour}" data-values="{_listed(line.values)}"'
    colour = f'style="--c:var(--{line.colour})"'
    if line.style == "columns":
        return f'<path class="columns" {colour} d="{_steps(line.values, scale)}" {read}/>'
    stroke = _line(line.values, scale)
    wash = ""
    if line.style == "area":
        wash = f'<path class="wash" {colour} d="{_wash(stroke)}"/>'
    return f'{wash}<path class="{"faint" if line.style == "faint" else "line"}" {colour} d="{stroke}" {read}/>'


def sparkline(values: Series, colour: str, least: float = 0.0, points: int = 60) -> str:
    """A small chart without axes, of the greatest value of each group; `least` is the least value of full height."""
    size = max(1, math.ceil(len(values) / points))
    parts = [values[begin : begin + size] for begin in range(0, len(values), size)]
    highs = [max((value for value in part if value is not None), default=None) for part in parts]
    high = max((value for value in highs if value is not None), default=0.0)
    stroke = _line(highs, Scale(0.0, (max(high, least) or 1) * 1.06, ()))
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true" '
        f'style="--c:var(--{colour})"><path class="wash" d="{_wash(stroke)}"/><path class="line" d="{stroke}"/></svg>'
    )


def bar(part: float, colour: str, hatched: bool = False) -> str:
    """A bar that fills a share of its cell."""
    width = _number(max(part * WIDTH, 4 if part else 0))
    kind = ' class="hatched"' if hatched else ""
    return (
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect{kind} style="--c:var(--{colour})" width="{width}" height="{HEIGHT}"/></svg>'
    )
