"""Data as tchu-tchu writes it in JSON. What would arrive changed in value is refused, not rounded."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from restante.compat.tchu_tchu.utils.error_handling import SerializationError


def dumps_message(obj: Any, **kwargs: Any) -> str:
    """JSON text; UUID, dates, sets, bytes and exact decimals in tchu-tchu's form."""
    try:
        return json.dumps(obj, default=_plain, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError(f"the data cannot be sent as JSON: {error}") from None


def loads_message(s: str | bytes, **kwargs: Any) -> Any:
    """The value of JSON text."""
    try:
        return json.loads(s, **kwargs)
    except ValueError as error:
        raise SerializationError(f"the data is not JSON: {error}") from None


def plain(data: Any) -> Any:
    """Data as it arrives; text and bytes are JSON already."""
    return loads_message(data if isinstance(data, str | bytes) else dumps_message(data))


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        if Decimal(str(float(value))) != value:
            raise SerializationError(f"{value} would be rounded as a number of JSON: send it as text, str(value)")
        return float(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
