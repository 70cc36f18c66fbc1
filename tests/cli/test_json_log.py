"""Log lines as JSON: the fields of a template, whatever their values contain."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from restante.cli.json_log import JsonLines


def line(template: str, *arguments: object, **more: Any) -> dict[str, Any]:
    """A record as it is written."""
    record = logging.LogRecord("shop", logging.WARNING, "shop.py", 1, template, arguments, more.pop("exc_info", None))
    vars(record).update(more)
    written = JsonLines().format(record)
    assert "\n" not in written
    found: dict[str, Any] = json.loads(written)
    return found


def test_a_line_has_time_level_logger_message_and_its_fields_with_numbers_as_numbers() -> None:
    found = line("nacked queue=%s id=%s count=%d took=%.1f", "orders", "o-1", 3, 0.25)
    assert (found["level"], found["logger"]) == ("WARNING", "shop")
    assert found["message"] == "nacked queue=orders id=o-1 count=3 took=0.2"
    assert (found["queue"], found["id"], found["count"], found["took"]) == ("orders", "o-1", 3, 0.25)
    assert found["time"].endswith("+00:00")


def test_a_value_that_looks_like_fields_is_one_value() -> None:
    found = line("nacked queue=%s error=%s: %s", "orders", "ValueError", "no id=7 level=high\nsecond line")
    assert found["error"] == "ValueError: no id=7 level=high\nsecond line"
    assert "id" not in found


def test_text_behind_a_field_is_part_of_the_message_alone() -> None:
    found = line("paused queue=%s: nothing is received, 100%% sure", "orders")
    assert found["queue"] == "orders"
    assert found["message"] == "paused queue=orders: nothing is received, 100% sure"


def test_a_field_never_hides_what_the_record_says() -> None:
    found = line("odd level=%s message=%s", "none", "mine")
    assert (found["level"], found["message"]) == ("WARNING", "odd level=none message=mine")


def test_extra_attributes_and_exceptions_are_fields() -> None:
    try:
        raise LookupError("no such customer")
    except LookupError:
        found = line("failed", exc_info=sys.exc_info(), trace_id="7f3a", order={"at": object}, numbers={1: 2})
    assert found["trace_id"] == "7f3a"
    assert found["exception"].endswith("LookupError: no such customer")
    assert found["order"]["at"] == "<class 'object'>"


def test_a_line_whose_arguments_are_a_mapping_or_none_is_written_too() -> None:
    record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, "told a=%(a)s", ({"a": 1},), None)
    assert json.loads(JsonLines().format(record))["message"] == "told a=1"
    assert line("no fields")["message"] == "no fields"
    assert line("key=value without arguments")["message"] == "key=value without arguments"
