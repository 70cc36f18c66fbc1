"""tchu-tchu's errors and JSON functions, under the names that its programs import."""

from restante.compat.tchu_tchu.utils.error_handling import (
    ConnectionError,  # noqa: A004 - their name
    SerializationError,
    TchuError,
    TchuRPCException,
)

__all__ = ["ConnectionError", "SerializationError", "TchuError", "TchuRPCException"]
