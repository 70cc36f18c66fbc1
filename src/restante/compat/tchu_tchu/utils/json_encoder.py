"""Writes data as JSON in tchu-tchu's form; on failure, also if a value would be rounded, raises SerializationError."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from restante.compat.tchu_tchu.utils.error_handling import SerializationError


def dumps_message(obj: Any, **kwargs: Any) -> str:
    """Returns JSON text; UUIDs, dates, sets, bytes and exact decimals have tchu-tchu's form."""
    try:
        return json.dumps(obj, default=_plain, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError(f"the data cannot be sent as JSON: {error}") from None


def loads_message(s: str | bytes, **kwargs: Any) -> Any:
    """Returns the value of a JSON text."""
    try:
        return json.loads(s, **kwargs)
    except ValueError as error:
        raise SerializationError(f"the data is not JSON: {error}") from None


def plain(data: Any) -> Any:
    """Returns the data as it arrives at the receiver; text and bytes must be JSON."""
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
            raise SerializationError(f"{value} would be rounded as a JSON number: send it as text, str(value)")
        return float(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
