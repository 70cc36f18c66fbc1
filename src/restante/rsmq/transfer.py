"""The two steps by which a message crosses between an RSMQ queue and a native one, as values; nothing here does I/O.

Into the native queue is one script on one server: sent there and removed here, or neither. Into the RSMQ queue the
step leaves a marker, so that a message whose ack was lost on the way is known when it comes again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from restante.core import operations as ops
from restante.core.call_retry import TYPES
from restante.core.errors import InvalidPayload
from restante.core.message import Message, MessageId
from restante.core.operations import SEND, Operation, QueueRef, sha1
from restante.core.stored import Json, decode_json
from restante.rsmq.calls import RsmqScript
from restante.rsmq.keys import STAMP, RsmqKeys, bridge_key

#: Seconds a marker is kept while its message's ack is not known. A bridge that is killed between the two and started
#: again later than this brings the message twice.
UNSETTLED = 7 * 86400
#: Seconds a marker is kept once its message is acked: for another bridge that was stopped with the message in its
#: hands and goes on after that. Every message of this time costs a small key.
SETTLED = 600

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TAIL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#: Characters of an RSMQ id.
_ID = 32


class _Forward(RsmqScript):
    """The core's own send with what removes the message on this side behind it."""

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
) -> Operation[MessageId | None]:
    """Takes a message that had been received `attempts` times into a native queue, under its own id.

    None when it is not there as it was read: somebody received or deleted it. `stored` of the id is False where the
    native queue had the message already; it is removed from the RSMQ queue all the same.
    """
    headers = {"rsmq_queue": keys.queue}
    send = ops.send(ref, payload, id=id, headers=headers, due_at=due_at)

    def parse(reply: Any) -> MessageId | None:
        return None if reply == b"gone" else send.parse(reply)

    return Operation(
        FORWARD,
        (*send.keys, keys.due, keys.messages),
        [*send.args, str(attempts)],
        parse,
        ref.name,
        durability=send.durability,
    )


def bring(keys: RsmqKeys, namespace: str, id: str, text: str, *, channel: bytes = b"") -> Operation[str]:
    """Puts a text into an RSMQ queue under this id, once: "brought", "known", "long" or "missing"."""
    length = len(text.encode("utf-16-le")) // 2
    marker = bridge_key(namespace, keys.queue, id)
    args: list[ops.Argument] = [id, text.encode(), str(length), str(UNSETTLED), channel]
    return Operation(BRING, (keys.due, keys.messages, marker), args, lambda reply: str(reply.decode()), keys.queue)


def payload_of(body: bytes, *, decode: bool = False) -> Any:
    """What a native queue is sent of an RSMQ message: its text, with `decode` the JSON value it is, or plain bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if decode:
        try:
            decode_json(body)
            return Json(body)
        except ValueError:
            pass  # a text that is no JSON crosses as the text it is
    return text


def text_of(message: Message) -> str:
    """What an RSMQ queue is sent of a native message: its text, or the JSON text of any other value."""
    payload = message.payload
    if isinstance(payload, str):
        return payload
    body = message.stored.body
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidPayload(f"{message.id} is not text, and RSMQ carries nothing else") from None


def id_of(message: Message) -> str:
    """The RSMQ id of a native message: always the same for it, and of no other; it tells when it was sent."""
    # The sequence stands in for the microseconds, so that what was sent within one millisecond keeps its order.
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
