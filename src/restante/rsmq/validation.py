"""Checks names, ids, times, sizes and messages against the RSMQ protocol; on failure raises before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from restante.core.errors import InvalidInput
from restante.core.operations import MAX_BATCH
from restante.rsmq.errors import InvalidFormat, InvalidValue, MessageNotString, MissingParameter, ReservedName

#: Seconds; the longest vt and delay of the protocol, 115 days.
LONGEST = 9_999_999
#: UTF-16 units; the smallest and the largest maxsize, besides UNLIMITED.
SMALLEST_MAXSIZE, LARGEST_MAXSIZE = 1024, 65536
#: The maxsize of a queue that takes messages of any length.
UNLIMITED = -1
#: Defaults of a new queue: seconds, seconds, UTF-16 units.
DEFAULT_VT, DEFAULT_DELAY, DEFAULT_MAXSIZE = 30, 0, LARGEST_MAXSIZE

_QUEUE = re.compile(r"[a-zA-Z0-9_-]{1,160}", re.ASCII)
_ID = re.compile(r"[a-zA-Z0-9:]{32}", re.ASCII)
#: The only name that passes the rule and collides with another key: the set of queue names.
_RESERVED = "QUEUES"


def queue_name(name: Any, item: str = "qname") -> str:
    """Returns a valid queue name."""
    if name is None or name == "":
        raise MissingParameter(item)
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidFormat(item)
    if name == _RESERVED:
        raise ReservedName(name)
    return name


def message_id(id: Any) -> str:
    """Returns a valid message id."""
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise MissingParameter("id") if id is None or id == "" else InvalidFormat("id")


def message_ids(ids: Sequence[str]) -> list[str]:
    """Returns the valid ids of one call."""
    if isinstance(ids, str) or not 1 <= len(ids) <= MAX_BATCH:
        raise InvalidInput(f"give a list of 1 to {MAX_BATCH} ids")
    return [message_id(id) for id in ids]


def seconds(value: Any, item: str) -> int:
    """Returns a valid vt or delay. Fractions, which Node silently cuts off, are refused."""
    if type(value) is not int or not 0 <= value <= LONGEST:
        raise InvalidValue(item, 0, LONGEST)
    return value


def optional_seconds(value: Any, item: str) -> int | str:
    """The same for an optional value; for None the empty string, for which scripts use the queue's setting."""
    return "" if value is None else seconds(value, item)


def maxsize(value: Any) -> int:
    """Returns a valid maxsize."""
    if type(value) is not int or (value != UNLIMITED and not SMALLEST_MAXSIZE <= value <= LARGEST_MAXSIZE):
        raise InvalidValue("maxsize", SMALLEST_MAXSIZE, LARGEST_MAXSIZE)
    return value


def body(message: Any) -> tuple[int, bytes]:
    """Returns a message's length in UTF-16 units, as the Node client counts it, and the bytes to store."""
    if not isinstance(message, str):
        raise MessageNotString
    try:
        stored = message.encode()
    except UnicodeEncodeError:
        raise MessageNotString("Message must be a string: half of a surrogate pair is not text") from None
    size = len(message)
    # Most messages are plain ASCII: their length in bytes equals their length in characters.
    if len(stored) != size and max(message) > "\uffff":
        size = len(message.encode("utf-16-le")) // 2
    return size, stored


def count(value: Any, item: str = "count") -> int:
    """Returns a valid number of messages for one call."""
    if type(value) is not int or not 1 <= value <= MAX_BATCH:
        raise InvalidInput(f"{item} must be a whole number from 1 to {MAX_BATCH}, not {value!r}")
    return value
