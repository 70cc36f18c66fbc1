"""What the RSMQ protocol allows as names, ids, times, sizes and messages; the rest raises before a call is made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from restante.core.errors import InvalidInput
from restante.core.operations import MAX_BATCH
from restante.rsmq.errors import InvalidFormat, InvalidValue, MessageNotString, MissingParameter, ReservedName

#: Seconds; the longest vt and delay of the protocol, 115 days.
LONGEST = 9_999_999
#: UTF-16 units; the least and the most a queue's maxsize can be, besides UNLIMITED.
SMALLEST_MAXSIZE, LARGEST_MAXSIZE = 1024, 65536
#: The maxsize of a queue that takes messages of any length.
UNLIMITED = -1
#: What a queue is made with unless told otherwise: seconds, seconds, UTF-16 units.
DEFAULT_VT, DEFAULT_DELAY, DEFAULT_MAXSIZE = 30, 0, LARGEST_MAXSIZE

_QUEUE = re.compile(r"[a-zA-Z0-9_-]{1,160}", re.ASCII)
_ID = re.compile(r"[a-zA-Z0-9:]{32}", re.ASCII)
#: The one name that passes the rule and names a key of another kind.
_RESERVED = "QUEUES"


def queue_name(name: Any, item: str = "qname") -> str:
    """The queue's name."""
    if name is None or name == "":
        raise MissingParameter(item)
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidFormat(item)
    if name == _RESERVED:
        raise ReservedName(name)
    return name


def message_id(id: Any) -> str:
    """A message's id."""
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise MissingParameter("id") if id is None or id == "" else InvalidFormat("id")


def message_ids(ids: Sequence[str]) -> list[str]:
    """The ids of one call."""
    if isinstance(ids, str) or not 1 <= len(ids) <= MAX_BATCH:
        raise InvalidInput(f"give a list of 1 to {MAX_BATCH} ids")
    return [message_id(id) for id in ids]


def seconds(value: Any, item: str) -> int:
    """A vt or a delay. Only whole numbers: what Node would cut off silently is refused."""
    if type(value) is not int or not 0 <= value <= LONGEST:
        raise InvalidValue(item, 0, LONGEST)
    return value


def optional_seconds(value: Any, item: str) -> int | str:
    """The same, or the empty word by which scripts take the queue's own."""
    return "" if value is None else seconds(value, item)


def maxsize(value: Any) -> int:
    """The longest message a queue takes."""
    if type(value) is not int or (value != UNLIMITED and not SMALLEST_MAXSIZE <= value <= LARGEST_MAXSIZE):
        raise InvalidValue("maxsize", SMALLEST_MAXSIZE, LARGEST_MAXSIZE)
    return value


def body(message: Any) -> tuple[int, bytes]:
    """Length in UTF-16 units, as the Node client counts it, and the bytes that are stored."""
    if not isinstance(message, str):
        raise MessageNotString
    try:
        stored = message.encode()
    except UnicodeEncodeError:
        raise MessageNotString("Message must be a string: half of a surrogate pair is no text") from None
    size = len(message)
    # Most messages are plain ASCII, which a comparison of lengths tells.
    if len(stored) != size and max(message) > "\uffff":
        size = len(message.encode("utf-16-le")) // 2
    return size, stored


def count(value: Any, item: str = "count") -> int:
    """How many messages one call may take."""
    if type(value) is not int or not 1 <= value <= MAX_BATCH:
        raise InvalidInput(f"{item} must be a whole number from 1 to {MAX_BATCH}, not {value!r}")
    return value
