"""A function over leased rows whose failures are verdicts, not crashes: one bad message must not fail its batch.

`try_map` runs the function row by row; what it returns becomes columns, what it raises becomes a verdict with its
reason. The result goes to the settle writer as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import struct
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from restante.core.errors import InvalidInput
from restante.core.operations import error_parts

#: Columns of a leased row that the settle writer needs, carried through.
_CARRIED = ("queue", "message_id", "lease_token", "attempts", "retry")
_CARRIED_DDL = "queue string, message_id string, lease_token string, attempts int, retry string"
_VERDICT_DDL = "verdict string, error_class string, error string, delay_seconds double"


class Bury(Exception):
    """Raised by a function to refuse a message for good."""


class RetryLater(Exception):
    """Raised by a function to fail a message and say itself when it is to come again."""

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = delay


def try_map(
    rows: DataFrame, function: Callable[[dict[str, Any]], dict[str, Any] | None], returns: str = ""
) -> DataFrame:
    """Applies a function to every leased row; `returns` names the columns of what it returns, as Spark DDL.

    The function gets the row as a dict, `payload` decoded (JSON, or bytes by content type) and `headers` a dict. It
    returns a dict (or None) and the verdict is ack; it raises and the verdict is nack with the error, or bury if it
    raised Bury. Failed rows have nulls in the columns it would have returned.

    +-----+----------+-----------+--------+-----+-------+-----------+-----+-------------+-----+
    |queue|message_id|lease_token|attempts|retry|verdict|error_class|error|delay_seconds|score|
    +-----+----------+-----------+--------+-----+-------+-----------+-----+-------------+-----+
    """
    missing = [name for name in _CARRIED[1:3] if name not in rows.columns]
    if missing:
        raise InvalidInput(f"try_map works on rows of kind=leases: the columns {', '.join(missing)} are missing")
    extra = StructType() if not returns else _schema(returns)
    names = extra.fieldNames()
    whole = StructType(_schema(_CARRIED_DDL).fields + _schema(_VERDICT_DDL).fields + extra.fields)
    type = pa.struct(to_arrow_schema(whole))

    def judge(leased: pa.Array) -> pa.Array:
        return pa.array([_judged(row, function, names) for row in leased.to_pylist()], type)

    # Not mapInArrow, which asks for pandas though it uses none. Not deterministic, so that Spark runs it once per row
    # and not once per column.
    verdict = arrow_udf(judge, returnType=whole).asNondeterministic()  # type: ignore[call-overload]  # takes structs
    return rows.select(verdict(struct("*")).alias("judged")).select("judged.*")


def _schema(ddl: str) -> StructType:
    found = _parse_datatype_string(ddl)
    assert isinstance(found, StructType)
    return found


def _judged(
    row: dict[str, Any], function: Callable[[dict[str, Any]], dict[str, Any] | None], names: list[str]
) -> dict[str, Any]:
    made: dict[str, Any] = {name: row.get(name) for name in _CARRIED}
    made |= {"verdict": "ack", "error_class": "", "error": "", "delay_seconds": None}
    try:
        result = function(_readable(row)) or {}
        made |= {name: result.get(name) for name in names}
    except Bury as error:
        made |= {"verdict": "bury", "error_class": "Bury", "error": str(error)}
    except RetryLater as error:
        made |= {"verdict": "nack", "error_class": "RetryLater", "error": str(error), "delay_seconds": error.delay}
    except Exception as error:
        name, text = error_parts(error)
        made |= {"verdict": "nack", "error_class": name, "error": json.loads(text)}
    return made


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    made = dict(row)
    if "payload" in row and (row.get("content_type") or "application/json").startswith("application/json"):
        made["payload"] = json.loads(row["payload"])
    if "headers" in row:
        made["headers"] = json.loads(row["headers"]) if row["headers"] else {}
    return made
