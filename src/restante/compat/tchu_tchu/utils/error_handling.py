"""tchu-tchu's errors; each is an error of Restante too."""

from __future__ import annotations

import builtins
from typing import Any

from restante.core.errors import InvalidInput, RestanteError

__all__ = [
    "ConnectionError",
    "PublishError",
    "SerializationError",
    "SubscriptionError",
    "TchuError",
    "TchuRPCException",
    "TimeoutError",
]


class TchuError(RestanteError):
    """Something went wrong between services."""

    def __init__(self, message: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = str(self)
        self.details = details or {}


class ConnectionError(TchuError):
    """The broker cannot be reached. Check the URL, that the broker runs, and the network between."""


class SerializationError(TchuError, InvalidInput):
    """The data does not fit its serializer. Correct it and send again."""


class SubscriptionError(TchuError, InvalidInput):
    """The handler cannot be registered as asked. Correct the named option."""


class PublishError(TchuError):
    """The event or call was not handled as asked; the text says why."""


class TimeoutError(TchuError, builtins.TimeoutError):
    """The call was not answered in time. Call again, or wait longer."""


class TchuRPCException(TchuError):
    """An answer that says no: raised by a handler, it reaches the caller as data, by `to_response_dict`."""

    def __init__(self, message: str, code: str = "RPC_ERROR", details: dict[str, Any] | None = None) -> None:
        super().__init__(message, details)
        self.code = code

    def to_response_dict(self) -> dict[str, Any]:
        """What the caller gets; override it for another shape."""
        return {"success": False, "error_message": self.message, "error_code": self.code, "error_details": self.details}
