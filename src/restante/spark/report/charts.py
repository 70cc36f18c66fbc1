"""Draws charts as SVG inside HTML from plain numbers: lines, columns, heat strips, bars and sparklines.

A drawing is one unit wide per bucket and is stretched to the available width. All text is HTML beside it, so letters
keep their size on a phone. Colours are names of variables in the page's style sheet. Numbers for the tooltip are in
`data-` attributes. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from typing import Literal, NamedTuple, TypeVar

from restante.spark.report.formats import count
from restante.spark.report.model import Axis, Series
from restante.spark.report.scales import Scale, TimeMark, Unit, fitting, time_marks

T = TypeVar("T")

#: Height of a drawing before it is stretched. Heights are whole numbers, to keep the page small: less is coarser than a
#: pixel of a dense screen, ten times as much makes a page of many queues a third larger.
HEIGHT = 300
#: Width of a bar, which has no buckets.
BAR_WIDTH = 1000
#: Shades of a heat strip, the palest first; the style sheet has as many.
SHADES = 8


class Line(NamedTuple):
    """A series of a chart: its name, its colour, its values and their total for the legend."""

    name: str
    colour: str
    values: Series
    total: str = ""
    #: An area is a line over a filled area; a faint line lies in the background.
    style: Literal["line", "area", "columns", "faint"] = "line"


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

    @property
    def values(self) -> list[float]:
        return [value for line in self.lines for value in line.values if value is not None]

    @property
    def lacking(self) -> str:
        """The text to show instead of a drawing; empty if there is something to draw."""
        zeros_say_something = self.unit is not Unit.SECONDS
        drawable = bool(self.values) if zeros_say_something else any(self.values)
        return self.missing or ("" if drawable else self.empty)


class Drawing:
    """Draws charts over one axis of time."""

    def __init__(self, axis: Axis) -> None:
        self._buckets = axis.count
        self._marks = time_marks(axis)

    def chart(self, chart: Chart) -> str:
        """A chart with its caption, legend, drawing and both axes."""
        if chart.lacking:
            return _figure(_caption(chart), f'<p class="none">{escape(chart.lacking)}</p>')
        scale = fitting(chart.values, chart.unit)
        sums = "; ".join(f"{line.name} {line.total}" for line in chart.lines if line.total)
        drawn = [
            _grid(scale, self._buckets, self._marks),
            _marking(chart),
            *(_drawn(line, scale) for line in chart.lines),
        ]
        svg = _svg(self._buckets, "".join(drawn), f'role="img" aria-label="{escape(f"{chart.title}: {sums}")}"')
        return _figure(
            _caption(chart, "log scale" if scale.log else ""),
            f'<div class="ys">{_value_labels(scale, chart.unit)}</div>'
            f'<div class="plot" tabindex="0" data-unit="{chart.unit}">{svg}</div>{self.times()}',
        )

    def strip(self, name: str, values: Sequence[float], high: float) -> str:
        """A heat strip: the higher a value, the darker its bucket."""
        shades = [min(SHADES, math.ceil(value / high * SHADES)) if value > 0 else 0 for value in values]
        cells = [
            f'<path class="shade-{shade}" d="{_blocks(shades, shade)}"/>'
            for shade in range(1, SHADES + 1)
            if shade in shades
        ]
        read = f"<path {_read(name, 'leased', values)}/>"
        svg = _svg(self._buckets, f"{''.join(cells)}{read}", f'role="img" aria-label="{escape(name)}"')
        return f'<div class="plot strip" data-unit="share">{svg}</div>'

    def times(self) -> str:
        """The labels of the time axis."""
        labels = "".join(
            f'<span style="left:{mark.bucket / self._buckets:.1%}"{" class=day" * mark.day}>{mark.label}</span>'
            for mark in self._marks
        )
        return f'<div class="xs">{labels}</div>'


def sparkline(values: Series, colour: str, least: float = 0.0, points: int = 60) -> str:
    """A small chart without axes, of the greatest value of each group; `least` is the least value of full height."""
    size = max(1, math.ceil(len(values) / points))
    parts = [values[begin : begin + size] for begin in range(0, len(values), size)]
    highs = [max((value for value in part if value is not None), default=None) for part in parts]
    high = max((value for value in highs if value is not None), default=0.0)
    scale = Scale(0.0, (max(high, least) or 1) * 1.06)
    paths = f'<path class="wash" d="{_wash(highs, scale)}"/><path class="line" d="{_stroke(highs, scale)}"/>'
    return _svg(len(highs), paths, f'class="spark" aria-hidden="true" style="--c:var(--{colour})"')


def bar(part: float, colour: str, hatched: bool = False) -> str:
    """A bar that fills a share of its cell."""
    width = max(round(part * BAR_WIDTH), 4 if part else 0)
    kind = ' class="hatched"' if hatched else ""
    filled = f'<rect{kind} style="--c:var(--{colour})" width="{width}" height="{HEIGHT}"/>'
    return _svg(BAR_WIDTH, filled, 'class="bar" aria-hidden="true"')


# -- parts of a chart ------------------------------------------------------------------------------------------------


def _svg(width: int, drawn: str, attributes: str) -> str:
    # The size and colours are for viewers that remove the style sheet: without them every line is a black area there.
    bare = 'width="480" height="80" fill="none" stroke="black"'
    return f'<svg viewBox="0 0 {width} {HEIGHT}" preserveAspectRatio="none" {bare} {attributes}>{drawn}</svg>'


def _figure(caption: str, body: str) -> str:
    return f'<figure class="chart">{caption}<div class="frame">{body}</div></figure>'


def _caption(chart: Chart, remark: str = "") -> str:
    entries = [_legend_entry(line.name, line.total, line.colour, line.style) for line in chart.lines]
    if any(chart.marked):
        entries.append(_legend_entry(chart.marked_as, count(sum(chart.marked)), "dead", "wash"))
    tag = f" <small>{remark}</small>" if remark else ""
    legend = f"<ul>{''.join(entries)}</ul>" if entries and not chart.missing else ""
    return f"<figcaption><h4>{escape(chart.title)}{tag}</h4><p>{escape(chart.about)}</p>{legend}</figcaption>"


def _legend_entry(name: str, total: str, colour: str, style: str) -> str:
    sum_ = f" <b>{escape(total)}</b>" if total else ""
    return f'<li><i style="--c:var(--{colour})" class="{style}"></i>{escape(name)}{sum_}</li>'


def _value_labels(scale: Scale, unit: Unit) -> str:
    return "".join(f'<span style="bottom:{scale.part(mark):.1%}">{unit.label(mark)}</span>' for mark in scale.marks)


def _grid(scale: Scale, buckets: int, marks: Sequence[TimeMark]) -> str:
    across = "".join(f"M0,{_height(mark, scale)}H{buckets}" for mark in scale.marks)
    days = "".join(f"M{mark.bucket:g},0V{HEIGHT}" for mark in marks if mark.day)
    return f'<path class="grid" d="{across}"/>' + (f'<path class="grid day" d="{days}"/>' if days else "")


def _marking(chart: Chart) -> str:
    if not any(chart.marked):
        return ""
    blocks = _blocks([bool(marked) for marked in chart.marked], True)
    return f'<path class="storm" d="{blocks}" data-unit="count" {_read(chart.marked_as, "dead", chart.marked)}/>'


def _drawn(line: Line, scale: Scale) -> str:
    colour, read = f'style="--c:var(--{line.colour})"', _read(line.name, line.colour, line.values)
    if line.style == "columns":
        return f'<path class="columns" {colour} d="{_columns(line.values, scale)}" {read}/>'
    area = f'<path class="wash" {colour} d="{_wash(line.values, scale)}"/>' if line.style == "area" else ""
    style = "faint" if line.style == "faint" else "line"
    return f'{area}<path class="{style}" {colour} d="{_stroke(line.values, scale)}" {read}/>'


def _read(name: str, colour: str, values: Series) -> str:
    """The attributes from which the tooltip reads a series."""
    numbers = ",".join(_digits(value) for value in values)
    return f'data-name="{escape(name)}" data-colour="{colour}" data-values="{numbers}"'


def _digits(value: float | None) -> str:
    """Formats a value for the tooltip: three digits, or all digits of a greater number."""
    if value is None:
        return ""
    return str(round(value)) if value == 0 or abs(value) >= 100 else f"{value:.3g}"


# -- paths -----------------------------------------------------------------------------------------------------------


def _runs(values: Iterable[T]) -> Iterator[tuple[int, int, T]]:
    """Start, length and value of each run of equal values."""
    begin = 0
    for value, equal in groupby(values):
        length = sum(1 for _ in equal)
        yield begin, length, value
        begin += length


def _height(value: float, scale: Scale) -> int:
    """The distance of a value from the top of the drawing."""
    return round(HEIGHT * (1 - scale.part(value)))


def _stretches(values: Series, scale: Scale) -> Iterator[tuple[float, int, str]]:
    """Each stretch of a line without a gap, through the middle of its buckets: where it begins, and its further way."""
    for begin, length, known in _runs(value is not None for value in values):
        if known:
            heights = [_height(value, scale) for value in values[begin : begin + length] if value is not None]
            rises = (after - before for before, after in pairwise(heights))
            way = "".join(f"l{run}{run * rise:+}" if rise else f"h{run}" for _, run, rise in _runs(rises))
            yield begin + 0.5, heights[0], way


def _stroke(values: Series, scale: Scale) -> str:
    # A single point is a stroke without length, which round line caps draw as a dot.
    return "".join(f"M{x},{y}{way or 'h0'}" for x, y, way in _stretches(values, scale))


def _wash(values: Series, scale: Scale) -> str:
    """The area between a line and the bottom."""
    return "".join(f"M{x},{HEIGHT}V{y}{way}V{HEIGHT}z" for x, y, way in _stretches(values, scale))


def _columns(values: Series, scale: Scale) -> str:
    """Columns without gaps, one per bucket."""
    tops = _runs(_height(value or 0, scale) for value in values)
    return f"M0,{HEIGHT}{''.join(f'V{top}h{run}' for _, run, top in tops)}V{HEIGHT}z"


def _blocks(values: Iterable[T], shown: T) -> str:
    """Blocks of full height where the value is `shown`."""
    return "".join(f"M{begin},0h{run}v{HEIGHT}h-{run}z" for begin, run, value in _runs(values) if value == shown)
