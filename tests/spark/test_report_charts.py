"""The drawings of a report as SVG text: lines with gaps, columns, strips, the time axis, charts without values."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from restante.spark.report.charts import HEIGHT, Chart, Drawing, Line, bar, sparkline
from restante.spark.report.model import Axis, Series
from restante.spark.report.scales import Unit, time_marks

#: Four buckets of a minute.
AXIS = Axis(0, 240, 60)
HALF = HEIGHT // 2


def paths(drawn: str, kind: str) -> list[str]:
    """The ways of all paths of a class."""
    return re.findall(rf'<path class="{kind}"[^>]* d="([^"]*)"', drawn)


def drawn(values: Series, style: str = "line", unit: Unit = Unit.COUNT) -> str:
    line = Line("sent", "ready", values, style=style)  # type: ignore[arg-type]
    return Drawing(AXIS).chart(Chart("Sent", "messages", unit, [line]))


def test_a_line_goes_through_the_middle_of_its_buckets() -> None:
    assert paths(drawn([0, 4, 4, 2]), "line") == [f"M0.5,{HEIGHT}l1-{HEIGHT}h1l1+{HALF}"]


def test_a_line_has_a_gap_where_there_is_no_value_and_a_dot_for_a_single_one() -> None:
    assert paths(drawn([4, None, 2, 2]), "line") == [f"M0.5,0h0M2.5,{HALF}h1"]


def test_an_area_reaches_down_to_the_bottom_at_both_ends_of_each_stretch() -> None:
    expected = f"M0.5,{HEIGHT}V0V{HEIGHT}zM2.5,{HEIGHT}V{HALF}h1V{HEIGHT}z"
    assert paths(drawn([4, None, 2, 2], "area"), "wash") == [expected]


def test_columns_fill_their_buckets_and_are_empty_without_a_value() -> None:
    assert paths(drawn([4, None, 2, 2], "columns"), "columns") == [f"M0,{HEIGHT}V0h1V{HEIGHT}h1V{HALF}h2V{HEIGHT}z"]


def test_the_tooltip_reads_the_values_with_three_digits() -> None:
    assert 'data-values="0,1.23,,1235"' in drawn([0, 1.2345, None, 1234.5678], unit=Unit.PER_MINUTE)


def test_storm_minutes_are_marked_over_their_whole_buckets_and_counted() -> None:
    line = Line("failed", "retrying", [1, 2, 3, 4])
    chart = Chart("Retries", "", Unit.PER_MINUTE, [line], marked=[0, 3, 2, 0], marked_as="storm minutes")
    text = Drawing(AXIS).chart(chart)
    assert paths(text, "storm") == [f"M1,0h2v{HEIGHT}h-2z"]
    assert "storm minutes <b>5</b>" in text


def test_a_strip_is_darker_where_a_value_is_higher() -> None:
    text = Drawing(AXIS).strip("shop-1", [0.0, 0.5, 2.0, 2.0], 1.0)
    assert paths(text, "shade-4") == [f"M1,0h1v{HEIGHT}h-1z"]
    assert paths(text, "shade-8") == [f"M2,0h2v{HEIGHT}h-2z"]


def test_a_chart_of_zeros_is_drawn_and_one_of_durations_without_any_is_not() -> None:
    assert paths(drawn([0, 0, 0, 0]), "line") == [f"M0.5,{HEIGHT}h3"]
    assert "No events in this period." in drawn([None] * 4)
    assert "No events in this period." in drawn([0, None, 0, 0], unit=Unit.SECONDS)


def test_durations_that_differ_much_have_a_logarithmic_scale() -> None:
    text = drawn([0.001, 0.1, 0.1, 10.0], unit=Unit.SECONDS)
    assert "<small>log scale</small>" in text
    assert paths(text, "line") == [f"M0.5,{HEIGHT}l1-{HALF}h1l1-{HALF}"]
    assert "log scale" not in drawn([1, 2, 3, 4], unit=Unit.SECONDS)


def test_a_sparkline_shows_the_highest_value_of_each_group() -> None:
    text = sparkline([1, 9, None, None, 3, 3], "ready", points=3)
    assert 'viewBox="0 0 3 ' in text
    first, second = re.findall(r"M([\d.]+),", paths(text, "line")[0])
    assert (first, second) == ("0.5", "2.5")


def test_a_bar_of_a_small_share_is_still_seen() -> None:
    assert 'width="4"' in bar(0.0001, "dead")
    assert 'width="0"' in bar(0.0, "dead")


def test_a_label_at_midnight_is_the_date() -> None:
    begin = int(datetime(2025, 11, 14, 18, tzinfo=UTC).timestamp())
    marks = time_marks(Axis.over(begin, begin + 12 * 3600))
    assert [mark.label for mark in marks if mark.day] == ["15 Nov"]
    assert [mark.bucket for mark in marks if mark.day] == [72.0]
    assert {mark.label for mark in marks} >= {"20:00", "22:00", "02:00", "04:00"}
