"""Applies a function to leased rows and turns its failures into verdicts, so that one bad message fails no batch.

`try_map` runs the function row by row: a returned dict becomes columns, an exception becomes a verdict with its reason.
The settle writer takes the result as it is.
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

#: Columns of a leased row that the result keeps, because the settle writer needs them.
_CARRIED = ("queue", "message_id", "lease_token", "attempts", "retry")
_CARRIED_DDL = "queue string, message_id string, lease_token string, attempts int, retry string"
_VERDICT_DDL = "verdict string, error_class string, error string, delay_seconds double"


class Bury(Exception):
    """Raise this in a function to bury the message."""


class RetryLater(Exception):
    """Raise this in a function to nack the message and set the delay until its next attempt."""

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = delay


def try_map(
    rows: DataFrame, function: Callable[[dict[str, Any]], dict[str, Any] | None], returns: str = ""
) -> DataFrame:
    """Applies a function to every leased row; `returns` names the columns of its result, as Spark DDL.

    The function gets the row as a dict: `payload` is decoded (JSON, or bytes by content type) and `headers` is a dict.
    If it returns a dict or None, the verdict is ack. If it raises, the verdict is nack with the error, or bury for
    Bury. Failed rows have nulls in the columns of the result.

    +-----+----------+-----------+--------+-----+-------+-----------+-----+-------------+-----+
    |queue|message_id|lease_token|attempts|retry|verdict|error_class|error|delay_seconds|score|
    +-----+----------+-----------+--------+-----+-------+-----------+-----+-------------+-----+
    """
    missing = [name for name in _CARRIED[1:3] if name not in rows.columns]
    if missing:
        raise InvalidInput(f"try_map needs rows of kind=leases: the columns {', '.join(missing)} are missing")
    extra = StructType() if not returns else _schema(returns)
    names = extra.fieldNames()
    whole = StructType(_schema(_CARRIED_DDL).fields + _schema(_VERDICT_DDL).fields + extra.fields)
    type = pa.struct(to_arrow_schema(whole))

    def judge(leased: pa.Array) -> pa.Array:
        return pa.array([_judged(row, function, names) for row in leased.to_pylist()], type)

    # Not mapInArrow, which requires pandas though it uses none. Non-deterministic, or Spark would run it once per
    # column instead of once per row.
    verdict = arrow_udf(judge, returnType=whole).asNondeterministic()  # type: ignore[call-overload]  # takes structs
    return rows.select(verdict(struct("*")).alias("judged")).select("judged.*")


def _schema(ddl: str) -> StructType:
    schema = _parse_datatype_string(ddl)
    assert isinstance(schema, StructType)
    return schema


def _judged(
    row: dict[str, Any], function: Callable[[dict[str, Any]], dict[str, Any] | None], names: list[str]
) -> dict[str, Any]:
    judged: dict[str, Any] = {name: row.get(name) for name in _CARRIED}
    judged |= {"verdict": "ack", "error_class": "", "error": "", "delay_seconds": None}
    try:
        result = function(_readable(row)) or {}
        judged |= {name: result.get(name) for name in names}
    except Bury as error:
        judged |= {"verdict": "bury", "error_class": "Bury", "error": str(error)}
    except RetryLater as error:
        judged |= {"verdict": "nack", "error_class": "RetryLater", "error": str(error), "delay_seconds": error.delay}
    except Exception as error:
        name, text = error_parts(error)
        judged |= {"verdict": "nack", "error_class": name, "error": json.loads(text)}
    return judged


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    readable = dict(row)
    if "payload" in row and (row.get("content_type") or "application/json").startswith("application/json"):
        readable["payload"] = json.loads(row["payload"])
    if "headers" in row:
        readable["headers"] = json.loads(row["headers"]) if row["headers"] else {}
    return readable
