"""The only module that names RSMQ's keys, hash fields and ids; on failure an invalid name raises InvalidName.

| key | type | members and scores | written by | removed by |
|---|---|---|---|---|
| `{ns}:QUEUES` | set | queue names | createQueue | deleteQueue |
| `{ns}:{q}` | zset | id by when it can next be received, in ms | send, receive, change of visibility | delete, pop |
| `{ns}:{q}:Q` | hash | settings and totals; per message `id`, `id:rc`, `id:fr` | send, receive | delete, pop |
| `{ns}:rt:{q}` | channel | length of the queue after a send, where realtime is on | send | – |
| `restante:bridge:{ns}:{q}:{id}` | string | marks a message as moved from a native queue | bridge | expires |

The names have no hash tag. In Redis Cluster the keys of one queue are in different slots, unless the namespace itself
is a hash tag such as `{rsmq}`. A command therefore names one key.
"""

from __future__ import annotations

import re

from restante.core.errors import InvalidName

#: The default namespace of all RSMQ clients.
DEFAULT_NAMESPACE = "rsmq"
#: Fields that the hash of every queue has; clients treat a queue as missing when one of them is absent.
SETTINGS = ("vt", "delay", "maxsize")
#: Characters at the start of an id that hold the time of sending: microseconds in base 36, this long until 2085.
STAMP = 10

#: The name of the set of queues. A queue of this name would overwrite the set.
_QUEUES = "QUEUES"
# The protocol's rule and the dot, which PyRSMQ allows: queues that it made must be readable.
_QUEUE = re.compile(r"[A-Za-z0-9._-]{1,160}", re.ASCII)
# Core's rule and the braces of a hash tag.
_NAMESPACE = re.compile(r"[A-Za-z0-9._:@/+{}-]{1,200}", re.ASCII)


def _refused(what: str, name: object, rule: str) -> InvalidName:
    shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "…"
    return InvalidName(f"{what} {shown} is not valid: {rule}")


def valid_queue(queue: str) -> str:
    """Returns the queue name, or raises InvalidName."""
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
        raise _refused("RSMQ queue name", queue, "use 1 to 160 letters, digits and ._-")
    if queue == _QUEUES:
        raise _refused("RSMQ queue name", queue, "its key is the set of all queue names")
    return queue


def valid_namespace(namespace: str) -> str:
    """Returns the namespace, or raises InvalidName."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise _refused("RSMQ namespace", namespace, "use 1 to 200 letters, digits and ._:@/+-{}")
    return namespace


def names_key(namespace: str) -> bytes:
    """The key of the set of all queue names of a namespace."""
    return f"{valid_namespace(namespace)}:{_QUEUES}".encode()


class RsmqKeys:
    """The keys of one queue."""

    __slots__ = ("due", "messages", "queue")

    def __init__(self, queue: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.queue = valid_queue(queue)
        #: The key of the sorted set of ids by when they are due.
        self.due = f"{valid_namespace(namespace)}:{queue}".encode()
        #: The key of the hash of settings and messages.
        self.messages = self.due + b":Q"


def message_fields(id: bytes) -> tuple[bytes, bytes, bytes]:
    """The hash fields of a message: its payload, attempts, and when it was first received."""
    return id, id + b":rc", id + b":fr"


def sent_ms(id: str) -> int | None:
    """When the message was sent, read from its id; None for an id that no RSMQ client made."""
    stamp = id[:STAMP]
    # int() alone would also accept signs, spaces and underscores.
    return int(stamp, 36) // 1000 if len(stamp) == STAMP and stamp.isascii() and stamp.isalnum() else None


def bridge_key(namespace: str, queue: str, id: str) -> bytes:
    """The key of a bridge's marker; with a hash tag in the namespace it is in the slot of the queue."""
    return f"restante:bridge:{valid_namespace(namespace)}:{valid_queue(queue)}:{id}".encode()
