"""Checks queue arguments: those of RabbitMQ keep their meaning, or the declaration is refused."""

from __future__ import annotations

from typing import Any

from restante.core.errors import InvalidInput
from restante.core.settings import whole

#: Arguments that are whole numbers, with the least and the greatest value.
_WHOLE = {
    "x-expires": (1, 2**40),
    "x-message-ttl": (0, 2**40),
    "x-max-priority": (0, 255),
    "x-max-length": (1, 2**40),
    "x-delivery-limit": (1, 65535),
}
_TEXT = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
#: Arguments about RabbitMQ's own storage, which are ignored, with the values that may be; empty: any.
_IGNORED = {
    "x-queue-type": ("classic", "quorum"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": (1, 2),
    "x-quorum-initial-group-size": (),
    "x-queue-leader-locator": (),
    "x-queue-master-locator": (),
    "x-ha-policy": (),
}


def check_arguments(queue: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the arguments that have an effect; raises on those whose effect would be missing."""
    arguments: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if value is None:
            continue
        if name in _WHOLE:
            arguments[name] = whole(value, f"{name} of queue {queue}", *_WHOLE[name])
        elif name in _TEXT:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} of queue {queue} must be text, not {value!r}")
            arguments[name] = value
        elif name == "x-overflow":
            if value != "reject-publish":
                raise InvalidInput(
                    f"x-overflow {value!r} of queue {queue} drops messages: use 'reject-publish', the only value that "
                    "is supported"
                )
            arguments[name] = value
        elif name in _IGNORED:
            if _IGNORED[name] and value not in _IGNORED[name]:
                raise InvalidInput(f"{name} {value!r} of queue {queue} is not supported: leave it out")
        else:
            raise InvalidInput(f"{name} of queue {queue} is not supported: leave it out")
    if "x-max-length" in arguments and arguments.get("x-overflow") != "reject-publish":
        raise InvalidInput(
            f"x-max-length of queue {queue} would drop the oldest messages: add x-overflow='reject-publish', with "
            "which a full queue refuses new messages"
        )
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise InvalidInput(f"queue {queue} has an x-dead-letter-routing-key without an x-dead-letter-exchange")
    return arguments
