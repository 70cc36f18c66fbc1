"""Queue arguments, with the meaning RabbitMQ gives them; what cannot have it is refused when the queue is declared."""

from __future__ import annotations

from typing import Any

from restante.core.errors import InvalidInput
from restante.core.settings import whole

#: Whole numbers, and the least and most each may be.
_WHOLE = {
    "x-expires": (1, 2**40), "x-message-ttl": (0, 2**40), "x-max-priority": (0, 255), "x-max-length": (1, 2**40),
    "x-delivery-limit": (1, 65535),
}  # fmt: skip
_TEXT = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
#: Of RabbitMQ's own making, and without meaning on another server.
_THEIRS = {
    "x-queue-type": ("classic", "quorum"), "x-queue-mode": ("default", "lazy"), "x-queue-version": (1, 2),
    "x-quorum-initial-group-size": (), "x-queue-leader-locator": (), "x-queue-master-locator": (), "x-ha-policy": (),
}  # fmt: skip


def checked(queue: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments that have a meaning here."""
    made: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if value is None:
            continue
        if name in _WHOLE:
            made[name] = whole(value, f"{name} of queue {queue}", *_WHOLE[name])
        elif name in _TEXT:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} of queue {queue} must be text, not {value!r}")
            made[name] = value
        elif name == "x-overflow":
            if value != "reject-publish":
                raise InvalidInput(
                    f"x-overflow {value!r} of queue {queue} drops messages: this broker has 'reject-publish' only"
                )
            made[name] = value
        elif name in _THEIRS:
            if _THEIRS[name] and value not in _THEIRS[name]:
                raise InvalidInput(f"{name} {value!r} of queue {queue} has no equal here: leave it out")
        else:
            raise InvalidInput(f"queue {queue} was declared with {name}, which this broker cannot keep: leave it out")
    if "x-max-length" in made and made.get("x-overflow") != "reject-publish":
        raise InvalidInput(
            f"x-max-length of queue {queue} would drop the oldest messages: add x-overflow='reject-publish', by which "
            "a full queue refuses new ones"
        )
    if "x-dead-letter-routing-key" in made and "x-dead-letter-exchange" not in made:
        raise InvalidInput(f"queue {queue} has an x-dead-letter-routing-key without an x-dead-letter-exchange")
    return made
