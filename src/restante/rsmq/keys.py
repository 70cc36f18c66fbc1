"""The only place where RSMQ's keys, hash fields and ids are spelled; a name they cannot carry raises InvalidName.

| key | type | members and scores | written by | removed by |
|---|---|---|---|---|
| `{ns}:QUEUES` | set | queue names | createQueue | deleteQueue |
| `{ns}:{q}` | zset | id by the ms when it can next be received | send, receive, change of visibility | delete, pop |
| `{ns}:{q}:Q` | hash | settings and totals; per message `id`, `id:rc`, `id:fr` | send, receive | delete, pop |
| `{ns}:rt:{q}` | channel | length of the queue after a send, where realtime is on | send | – |
| `restante:bridge:{ns}:{q}:{id}` | string | this message has crossed from a native queue | bridge | ends by itself |

The names carry no hash tag: in Redis Cluster the keys of one queue lie in different slots, unless the namespace
itself is one such as `{rsmq}`. A command therefore names one key.
"""

from __future__ import annotations

import re

from restante.core.errors import InvalidName

#: The namespace all RSMQ clients use unless told otherwise.
DEFAULT_NAMESPACE = "rsmq"
#: What the hash of a queue that exists always has; a client calls the queue missing when one is absent.
SETTINGS = ("vt", "delay", "maxsize")
#: Characters at the start of an id that tell when it was sent: microseconds in base 36, this long until the year 2085.
STAMP = 10

#: The name of the set of queues, which a queue of that name would overwrite.
_QUEUES = "QUEUES"
# The protocol's rule and the dot, which PyRSMQ lets through: what it sent there must be readable.
_QUEUE = re.compile(r"[A-Za-z0-9._-]{1,160}", re.ASCII)
# Wider than core's rule by the braces of a hash tag.
_NAMESPACE = re.compile(r"[A-Za-z0-9._:@/+{}-]{1,200}", re.ASCII)


def _refused(what: str, name: object, rule: str) -> InvalidName:
    shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "…"
    return InvalidName(f"{what} {shown} is not valid: {rule}")


def valid_queue(queue: str) -> str:
    """The name itself, or InvalidName."""
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
        raise _refused("RSMQ queue name", queue, "use 1 to 160 letters, digits and ._-")
    if queue == _QUEUES:
        raise _refused("RSMQ queue name", queue, "its key would be that of the set of all queue names")
    return queue


def valid_namespace(namespace: str) -> str:
    """The namespace itself, or InvalidName."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise _refused("RSMQ namespace", namespace, "use 1 to 200 letters, digits and ._:@/+-{}")
    return namespace


def names_key(namespace: str) -> bytes:
    """The set of all queue names of a namespace."""
    return f"{valid_namespace(namespace)}:{_QUEUES}".encode()


class RsmqKeys:
    """The keys of one queue."""

    __slots__ = ("due", "messages", "queue")

    def __init__(self, queue: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.queue = valid_queue(queue)
        #: The sorted set of ids by when they are due.
        self.due = f"{valid_namespace(namespace)}:{queue}".encode()
        #: The hash of settings and messages.
        self.messages = self.due + b":Q"


def message_fields(id: bytes) -> tuple[bytes, bytes, bytes]:
    """The hash fields of a message: its payload, attempts, and when it was first received."""
    return id, id + b":rc", id + b":fr"


def sent_ms(id: str) -> int | None:
    """When the message was sent, as its id tells; None for an id that no RSMQ client made."""
    stamp = id[:STAMP]
    # int() alone would also take signs, spaces and underscores.
    return int(stamp, 36) // 1000 if len(stamp) == STAMP and stamp.isascii() and stamp.isalnum() else None


def bridge_key(namespace: str, queue: str, id: str) -> bytes:
    """That a message has crossed into an RSMQ queue; with a hash tag in the namespace it lies beside the queue."""
    return f"restante:bridge:{valid_namespace(namespace)}:{valid_queue(queue)}:{id}".encode()
