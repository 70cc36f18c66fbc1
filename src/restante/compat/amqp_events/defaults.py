"""The settings of celery-amqp-events, read from the environment on import; on failure raises InvalidInput."""

from __future__ import annotations

import os

from restante.core.errors import InvalidInput
from restante.core.keywords import check_keywords

_PREFIX = "AMQP_EVENTS_"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise InvalidInput(f"{name} must be a whole number of at least 0, not {text!r}")
    return int(text)


#: Milliseconds an event stays in the archive on RabbitMQ; 0 together with a length of 0 turns the archive off.
AMQP_EVENTS_ARCHIVED_MESSAGE_TTL = _number("AMQP_EVENTS_ARCHIVED_MESSAGE_TTL", 7 * 24 * 3600 * 1000)
#: Events that the archive on RabbitMQ keeps; a full archive refuses more, which stay on the ladder.
AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH = _number("AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH", 10_000)
#: Retries of a failed event before it is archived, after 1, 2, 4 … seconds; 0 archives at the first failure.
AMQP_EVENTS_MAX_RETRIES = _number("AMQP_EVENTS_MAX_RETRIES", 10)

_KNOWN = {name for name in globals() if name.startswith(_PREFIX)}
check_keywords(sorted(name for name in os.environ if name.startswith(_PREFIX)), _KNOWN, "celery-amqp-events")
