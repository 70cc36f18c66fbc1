"""Defines the two operations that move a message between an RSMQ queue and a native queue; nothing here does I/O.

Into the native queue one script sends and removes the message, or does neither. Into the RSMQ queue the script also
sets a marker, so that a message whose ack was lost is recognised when it is received again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from restante.core import operations as ops
from restante.core.call_retry import TYPES
from restante.core.errors import InvalidPayload
from restante.core.message import Message, MessageId
from restante.core.operations import SEND
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Argument, ScriptCall, sha1
from restante.core.stored import Json, decode_json
from restante.rsmq.calls import RsmqScript
from restante.rsmq.keys import STAMP, RsmqKeys, bridge_key

#: Seconds a marker is kept until the message is acked. A bridge that is killed before the ack and started again later
#: than this moves the message twice.
UNSETTLED = 7 * 86400
#: Seconds a marker is kept after the ack, for another bridge that was suspended while it held the message and resumes.
#: Each message of this time costs a small key.
SETTLED = 600

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TAIL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#: Characters of an RSMQ id.
_ID = 32


class _Forward(RsmqScript):
    """The core's send script, followed by the removal from the RSMQ queue."""

    def __init__(self) -> None:
        super().__init__("forward", "zset hash", when_full=False)
        self.types = (*(TYPES[key] for key in SEND.keys), *self.types)
        flags, _, verb = self.text.partition(b"\n")
        sending = SEND.text.partition(b"\n")[2]
        self.text = flags + b"\nlocal send = function()\n" + sending + b"\nend\n" + verb
        self.sha = sha1(self.text)


FORWARD = _Forward()
BRING = RsmqScript("bring", "zset hash string", when_full=False)


def forward(
    ref: QueueRef, keys: RsmqKeys, id: str, payload: Any, attempts: int, *, due_at: datetime | None = None
) -> ScriptCall[MessageId | None]:
    """Moves a message that had been received `attempts` times into a native queue, under its own id.

    Returns None if another client received or deleted it since it was read. `stored` of the id is False if the native
    queue had the message already; it is still removed from the RSMQ queue.
    """
    headers = {"rsmq_queue": keys.queue}
    send = ops.send(ref, payload, id=id, headers=headers, due_at=due_at)

    def parse(reply: Any) -> MessageId | None:
        return None if reply == b"gone" else send.parse(reply)

    return ScriptCall(
        FORWARD,
        (*send.keys, keys.due, keys.messages),
        [*send.args, str(attempts)],
        parse,
        ref.name,
        durability=send.durability,
    )


def bring(keys: RsmqKeys, namespace: str, id: str, text: str, *, channel: bytes = b"") -> ScriptCall[str]:
    """Puts a text into an RSMQ queue under this id, once; returns "brought", "known", "long" or "missing"."""
    length = len(text.encode("utf-16-le")) // 2
    marker = bridge_key(namespace, keys.queue, id)
    args: list[Argument] = [id, text.encode(), str(length), str(UNSETTLED), channel]
    return ScriptCall(BRING, (keys.due, keys.messages, marker), args, lambda reply: str(reply.decode()), keys.queue)


def payload_of(body: bytes, *, decode: bool = False) -> Any:
    """The native payload for an RSMQ message: its text, with `decode` its JSON value, or bytes if it is not UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if decode:
        try:
            decode_json(body)
            return Json(body)
        except ValueError:
            pass  # a text that is not JSON is sent as text
    return text


def text_of(message: Message) -> str:
    """The RSMQ text for a native message: its text payload, or the JSON text of any other value."""
    payload = message.payload
    if isinstance(payload, str):
        return payload
    body = message.stored.body
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidPayload(f"{message.id} is not text: RSMQ can only store text") from None


def id_of(message: Message) -> str:
    """The RSMQ id of a native message: unique, the same on every call, and with the time when it was sent."""
    # The sequence replaces the microseconds, so that messages of one millisecond keep their order.
    micros = message.stored.sent_ms * 1000 + int(message.stored.raw.partition(b"\n")[0]) % 1000
    stamp = ""
    while micros:
        micros, digit = divmod(micros, 36)
        stamp = _DIGITS[digit] + stamp
    number = int.from_bytes(hashlib.sha256(f"{message.queue}\n{message.id}".encode()).digest())
    tail = ""
    for _ in range(_ID - STAMP):
        number, letter = divmod(number, len(_TAIL))
        tail += _TAIL[letter]
    return stamp.rjust(STAMP, "0")[-STAMP:] + tail
