"""tchu-tchu's errors and its JSON, where its programs import them from."""

from restante.compat.tchu_tchu.utils.error_handling import (
    ConnectionError,  # noqa: A004 - their name
    SerializationError,
    TchuError,
    TchuRPCException,
)

__all__ = ["ConnectionError", "SerializationError", "TchuError", "TchuRPCException"]
