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
    """An event or call between services failed."""

    def __init__(self, message: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = str(self)
        self.details = details or {}


class ConnectionError(TchuError):
    """The broker cannot be reached. Check the URL, the broker and the network."""


class SerializationError(TchuError, InvalidInput):
    """The data is not valid for its serializer. Correct it and send again."""


class SubscriptionError(TchuError, InvalidInput):
    """The handler cannot be registered with these options. Correct the named option."""


class PublishError(TchuError):
    """The event or call failed; the message says why."""


class TimeoutError(TchuError, builtins.TimeoutError):
    """No reply to the call arrived in time. Call again, or with a longer timeout."""


class TchuRPCException(TchuError):
    """A refusal: raised by a handler, it reaches the caller as data, the result of `to_response_dict`."""

    def __init__(self, message: str, code: str = "RPC_ERROR", details: dict[str, Any] | None = None) -> None:
        super().__init__(message, details)
        self.code = code

    def to_response_dict(self) -> dict[str, Any]:
        """The data that the caller gets; override it to change its form."""
        return {"success": False, "error_message": self.message, "error_code": self.code, "error_details": self.details}
