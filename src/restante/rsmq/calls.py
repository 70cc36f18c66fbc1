"""Defines every RSMQ call as a value: script, keys, arguments and parser of the reply; nothing here does I/O.

One script per call checks that the queue exists, reads the server's clock and acts, as one atomic step.

On failure: if the reply is lost, the runner repeats the call. A repeated `receive_message` hides one more message until
its vt ends; a repeated `delete_message` or `move` returns what the last try did. Sends and `pop_message` are never
repeated, because that could store a second message or lose a second one unnoticed: they raise `Unconfirmed`.
"""

from __future__ import annotations

import logging
import math
import random
import string
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, TypeVar

from restante.core.errors import Corrupt, InvalidInput
from restante.core.operations import MAX_BATCH
from restante.core.scripts import Argument, Command, Operation, Script, ScriptCall, declared, sha1
from restante.core.settings import whole
from restante.rsmq import validation
from restante.rsmq.errors import InvalidValue, MessageTooLong, NoAttributeSupplied, QueueExists, QueueNotFound
from restante.rsmq.keys import STAMP
from restante.rsmq.namespace import Namespace

log = logging.getLogger("restante")
T = TypeVar("T")
#: A call of several steps: a generator that yields operations and is sent their results.
Steps = Generator[Operation[Any], Any, T]

#: The most messages that one script dead-letters or moves; more would block the server for too long.
SLICE = 200
#: The largest `max_receives`.
MOST_RECEIVES = 1_000_000

# Pairs of letters, so that an id takes half as many draws. The module `random` reseeds its generator in a forked child.
_LETTERS = string.ascii_letters + string.digits
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_HALF_A_TAIL = 11


class RsmqScript(Script):
    """The Lua script of one call, behind the room's prelude. The core's prelude needs keys that an RSMQ queue lacks."""

    def __init__(
        self, name: str, types: str, *, when_full: bool = True, reads: bool = False, parts: tuple[str, ...] = ()
    ) -> None:
        folder = resources.files("restante.rsmq").joinpath("lua")
        text = "".join(folder.joinpath(f"{file}.lua").read_text() for file in ("prelude", *parts, name))
        self.name = name
        self.keys = ()
        self.types = tuple(types.split())
        self.text = declared(text, when_full=when_full, reads=reads)
        self.sha = sha1(self.text)


SEND = RsmqScript("send", "zset hash", when_full=False, parts=("ids",))
SEND_MANY = RsmqScript("send_many", "zset hash", when_full=False, parts=("ids",))
RECEIVE = RsmqScript("receive", "zset hash")
RECEIVE_MANY = RsmqScript("receive_many", "zset hash")
RECEIVE_OR_DEAD_LETTER = RsmqScript("receive_or_dead_letter", "zset hash zset hash")
POP = RsmqScript("pop", "zset hash")
DELETE = RsmqScript("delete", "zset hash")
VISIBILITY = RsmqScript("visibility", "zset hash")
CREATE = RsmqScript("create", "set hash", when_full=False)
DROP = RsmqScript("drop", "set zset hash")
ATTRIBUTES = RsmqScript("attributes", "zset hash", reads=True)
SET_ATTRIBUTES = RsmqScript("attributes", "zset hash")
PEEK = RsmqScript("peek", "zset hash", reads=True)
PURGE = RsmqScript("purge", "zset hash")
MOVE = RsmqScript("move", "zset hash zset hash")


@dataclass(slots=True)
class RsmqReceived:
    """A received message, in the protocol's words."""

    id: str
    message: str
    #: How often it was received, including this time.
    rc: int
    #: When it was first received, in ms of the server's clock. (RSMQ's documentation calls it first visible.)
    fr: int
    #: When it was sent, in ms with a fraction, read from the id; NaN if no RSMQ client made the id.
    sent: float
    #: The stored bytes. In `message`, bytes that are not UTF-8 become replacement characters, as in Node.
    raw: bytes = field(repr=False, compare=False, default=b"")


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """A queue's settings and totals. `hiddenmsgs` is exact to the millisecond; Node counts in full seconds."""

    vt: int
    delay: int
    maxsize: int
    totalrecv: int
    totalsent: int
    created: int
    modified: int
    msgs: int
    hiddenmsgs: int


#: A send is not repeated, because that could store the message twice.
_SENT_ONCE = (
    "the server's reply was lost: the message may or may not be stored, and the protocol has no way to find out; "
    "look at the queue, or send again if a duplicate does no harm"
)
#: A pop is not repeated, because a lost reply means a lost message.
_POPPED_ONCE = (
    "the server's reply was lost, so a message may have been popped and lost: use receive_message and "
    "delete_message where no message may be lost"
)


def _created_again(create: ScriptCall[int], in_doubt: bool) -> ScriptCall[int]:
    """A queue that exists when the call is repeated may be the one that it created."""
    return create._replace(args=[*create.args[:-1], "1"]) if in_doubt else create


def _deleted_again(delete: ScriptCall[int], in_doubt: bool) -> ScriptCall[int]:
    """A queue that is missing when the call is repeated may be the one that it deleted."""
    return delete._replace(parse=lambda reply: 1) if in_doubt else delete


def _tail() -> str:
    return "".join(random.choices(_PAIRS, k=_HALF_A_TAIL))


def _out_of_range(qname: str) -> InvalidValue:
    why = (
        f"the vt or delay of the queue {qname} is out of this range or looks like milliseconds, as the Rust client "
        "wrote them; set it in seconds by set_queue_attributes, or give vt= or delay= with the call"
    )
    log.warning("refused queue=%s error=invalidValue reason=%r", qname, "its vt or delay looks like milliseconds")
    return InvalidValue("vt", 0, validation.LONGEST, why)


def _refused(code: int, qname: str) -> Exception:
    if code == 0:
        return QueueNotFound(qname)
    return MessageTooLong() if code == 1 else _out_of_range(qname)


def _sent(id: str) -> float:
    try:
        return int(id[:STAMP], 36) / 1000
    except ValueError:
        return math.nan


def _received_message(id: bytes, raw: bytes, rc: int, fr: bytes | int) -> RsmqReceived:
    text = id.decode("utf-8", "replace")
    try:
        message = raw.decode()
    except UnicodeDecodeError:
        message = raw.decode("utf-8", "replace")
    return RsmqReceived(text, message, int(rc), _first_received(fr), _sent(text), raw)


def _first_received(fr: bytes | int) -> int:
    """The time in ms, or 0 if it is unreadable: a message that is received already must reach its caller."""
    try:
        return int(fr)
    except ValueError:
        return 0


def _parse_one(reply: Any, qname: str) -> RsmqReceived | None:
    if not reply:
        if reply == 0:
            raise QueueNotFound(qname)
        return None
    if type(reply) is int:
        raise _refused(reply, qname)
    if reply[1] is None:
        shown = reply[0].decode("utf-8", "replace")
        raise Corrupt(f"message {shown} of the RSMQ queue {qname} has no body: delete_message() removes the rest of it")
    return _received_message(*reply)


def _parse_many(reply: Any, qname: str) -> list[RsmqReceived]:
    if type(reply) is int:
        raise _refused(reply, qname)
    messages = []
    for place in range(0, len(reply), 4):
        if reply[place + 1] is None:
            log.error("skipped queue=%s id=%r error=Corrupt reason=%r", qname, reply[place], "it has no body")
        else:
            messages.append(_received_message(*reply[place : place + 4]))
    return messages


# -- queues ----------------------------------------------------------------------------------------------------------


def create_queue(
    namespace: Namespace,
    qname: str,
    *,
    vt: int = validation.DEFAULT_VT,
    delay: int = validation.DEFAULT_DELAY,
    maxsize: int = validation.DEFAULT_MAXSIZE,
) -> ScriptCall[int]:
    """Creates a queue; returns 1, or raises QueueExists."""
    _, messages = namespace.place(qname)
    args: list[Argument] = [
        qname,
        validation.seconds(vt, "vt"),
        validation.seconds(delay, "delay"),
        validation.maxsize(maxsize),
        "0",
    ]

    def parse(reply: int) -> int:
        if not reply:
            raise QueueExists(qname)
        return 1

    return ScriptCall(CREATE, (namespace.names, messages), args, parse, qname, repeat=_created_again)


def delete_queue(namespace: Namespace, qname: str) -> ScriptCall[int]:
    """Removes a queue and every message in it; returns 1, or raises QueueNotFound."""
    due, messages = namespace.place(qname)

    def parse(reply: int) -> int:
        if not reply:
            raise QueueNotFound(qname)
        return 1

    return ScriptCall(DROP, (namespace.names, due, messages), [qname], parse, qname, repeat=_deleted_again)


def list_queues(namespace: Namespace) -> Command[list[str]]:
    """Returns the names of all queues, sorted."""

    def parse(reply: list[bytes]) -> list[str]:
        return sorted(name.decode("utf-8", "backslashreplace") for name in reply)

    return Command(("SMEMBERS", namespace.names), namespace.names, parse)


def get_queue_attributes(namespace: Namespace, qname: str) -> ScriptCall[QueueAttributes]:
    """Returns the settings, totals and counts of a queue."""
    return _attributes(namespace.place(qname), [], qname)


def set_queue_attributes(
    namespace: Namespace, qname: str, *, vt: int | None = None, delay: int | None = None, maxsize: int | None = None
) -> ScriptCall[QueueAttributes]:
    """Changes at least one setting; returns the attributes after the change."""
    if vt is None and delay is None and maxsize is None:
        raise NoAttributeSupplied
    place = namespace.place(qname)
    args: list[Argument] = []
    if vt is not None:
        args += ("vt", validation.seconds(vt, "vt"))
    if maxsize is not None:
        args += ("maxsize", validation.maxsize(maxsize))
    if delay is not None:
        args += ("delay", validation.seconds(delay, "delay"))
    return _attributes(place, args, qname)


def vt_of(namespace: Namespace, qname: str) -> ScriptCall[int]:
    """Returns the queue's vt; raises InvalidValue where a receive would refuse it."""
    read = _attributes(namespace.place(qname), [], qname)

    def parse(reply: Any) -> int:
        vt = read.parse(reply).vt
        if not 0 <= vt <= validation.LONGEST or (reply[3] == b"0" and vt >= 1000 and vt % 1000 == 0):
            raise _out_of_range(qname)
        return vt

    return ScriptCall(ATTRIBUTES, read.keys, [], parse, qname)


def _attributes(place: tuple[bytes, bytes], args: list[Argument], qname: str) -> ScriptCall[QueueAttributes]:
    def parse(reply: Any) -> QueueAttributes:
        if reply == 0:
            raise QueueNotFound(qname)
        try:
            # PyRSMQ stores fractions of seconds; Node cuts them off.
            return QueueAttributes(*(int(float(value or 0)) for value in reply))
        except (ValueError, OverflowError):
            raise Corrupt(f"the RSMQ queue {qname} has settings that are not numbers: {reply!r}") from None

    return ScriptCall(SET_ATTRIBUTES if args else ATTRIBUTES, place, args, parse, qname)


# -- messages --------------------------------------------------------------------------------------------------------


def send_message(namespace: Namespace, qname: str, message: str, *, delay: int | None = None) -> ScriptCall[str]:
    """Stores a message; returns its id. If the reply is lost it raises Unconfirmed and does not retry."""
    place = namespace.place(qname)
    wait = "" if delay is None else validation.seconds(delay, "delay")
    size, stored = validation.body(message)

    def parse(reply: Any) -> str:
        if type(reply) is int:
            raise _refused(reply, qname)
        return reply.decode()  # type: ignore[no-any-return]

    args: list[Argument] = [_tail(), size, wait, namespace.channel(qname), stored]
    return ScriptCall(SEND, place, args, parse, qname, once=_SENT_ONCE)


def send_many(
    namespace: Namespace, qname: str, messages: Sequence[str], *, delay: int | None = None
) -> ScriptCall[list[str]]:
    """Stores up to a thousand messages, all or none, to be received in this order; returns their ids."""
    place = namespace.place(qname)
    args: list[Argument] = [validation.optional_seconds(delay, "delay"), namespace.channel(qname)]
    if isinstance(messages, str) or not 1 <= len(messages) <= MAX_BATCH:
        raise InvalidInput(f"send_many takes a list of 1 to {MAX_BATCH} messages")
    for message in messages:
        args += (_tail(), *validation.body(message))

    def parse(reply: Any) -> list[str]:
        if type(reply) is int:
            raise _refused(reply, qname)
        return [id.decode() for id in reply]

    return ScriptCall(SEND_MANY, place, args, parse, qname, once=_SENT_ONCE)


def receive_message(namespace: Namespace, qname: str, *, vt: int | None = None) -> ScriptCall[RsmqReceived | None]:
    """Receives the next message, or None, and hides it for vt seconds (default: the queue's vt)."""
    args: list[Argument] = ["" if vt is None else validation.seconds(vt, "vt"), "0"]
    return ScriptCall(RECEIVE, namespace.place(qname), args, lambda reply: _parse_one(reply, qname), qname)


def receive_or_wait(namespace: Namespace, qname: str, vt: int | None) -> ScriptCall[RsmqReceived | float | None]:
    """Receives the next message; else returns the seconds until one is due, or None if the queue is empty."""
    args: list[Argument] = [validation.optional_seconds(vt, "vt"), "1"]

    def parse(reply: Any) -> RsmqReceived | float | None:
        if type(reply) is list and len(reply) <= 2:
            now, score = reply if len(reply) == 2 else (reply[0], None)
            return None if score is None else max(0.0, (float(score) - now) / 1000)
        return _parse_one(reply, qname)

    return ScriptCall(RECEIVE, namespace.place(qname), args, parse, qname)


def receive_many(
    namespace: Namespace, qname: str, count: int, *, vt: int | None = None
) -> ScriptCall[list[RsmqReceived]]:
    """Receives up to `count` messages in one call."""
    args: list[Argument] = [validation.optional_seconds(vt, "vt"), validation.count(count)]
    return ScriptCall(RECEIVE_MANY, namespace.place(qname), args, lambda reply: _parse_many(reply, qname), qname)


def pop_message(namespace: Namespace, qname: str) -> ScriptCall[RsmqReceived | None]:
    """Receives the next message and deletes it at once; None if there is none.

    If the reply is lost it raises Unconfirmed, and the message may be lost with it. A program that must not lose
    messages uses receive_message and delete_message.
    """
    place = namespace.place(qname)
    return ScriptCall(POP, place, [], lambda reply: _parse_one(reply, qname), qname, once=_POPPED_ONCE)


def delete_message(namespace: Namespace, qname: str, id: str) -> ScriptCall[int]:
    """Removes a message; returns 0 if the message or the queue does not exist."""
    place = namespace.place(qname)
    return ScriptCall(DELETE, place, [validation.message_id(id)], _whole, qname)


def delete_many(namespace: Namespace, qname: str, ids: Sequence[str]) -> ScriptCall[int]:
    """Removes up to a thousand messages; returns how many existed."""
    return ScriptCall(DELETE, namespace.place(qname), [*validation.message_ids(ids)], _whole, qname)


def change_message_visibility(namespace: Namespace, qname: str, id: str, vt: int) -> ScriptCall[int]:
    """Hides a message for vt seconds from now; returns 0 if it does not exist."""
    place = namespace.place(qname)
    args: list[Argument] = [validation.message_id(id), validation.seconds(vt, "vt")]
    return ScriptCall(VISIBILITY, place, args, _counted(qname), qname)


def _whole(reply: int) -> int:
    return reply


def _counted(qname: str, target: str = "") -> Callable[[int], int]:
    def parse(reply: int) -> int:
        if reply < 0:
            raise QueueNotFound(qname if reply == -1 else target)
        return reply

    return parse


def peek(namespace: Namespace, qname: str, count: int = 1) -> ScriptCall[list[RsmqReceived]]:
    """Returns the messages that the next receives would get, and hides and counts nothing.

    rc and fr are 0 for a message that was never received.
    """
    return ScriptCall(
        PEEK, namespace.place(qname), [validation.count(count)], lambda reply: _parse_many(reply, qname), qname
    )


def purge(namespace: Namespace, qname: str) -> ScriptCall[int]:
    """Removes every message, hidden ones too; keeps the queue, its settings and totals; returns how many it removed."""
    return ScriptCall(PURGE, namespace.place(qname), [], _counted(qname), qname)


# -- calls of several steps ------------------------------------------------------------------------------------------


def move(namespace: Namespace, qname: str, target: str, ids: Sequence[str] | None = None) -> Steps[int]:
    """Moves messages to another queue, each atomically, with their receive counts reset; returns how many.

    With `ids` it moves exactly these, hidden or not. Without, it moves all that can be received now: delayed messages
    and those a consumer works on stay. Ids and times are kept; the target's maxsize is not checked.
    """
    places = namespace.place(qname) + namespace.place(target, "target")
    if qname == target:
        raise InvalidInput("the target must be another queue")
    parse = _counted(qname, target)
    moved = 0
    if ids is not None:
        chosen = validation.message_ids(ids)
        for start in range(0, len(chosen), SLICE):
            moved += yield ScriptCall(MOVE, places, ["0", *chosen[start : start + SLICE]], parse, qname)
        return moved
    attributes: QueueAttributes = yield get_queue_attributes(namespace, qname)
    # At most as many as there were at the start, so that it ends even if producers are faster.
    while (left := attributes.msgs - attributes.hiddenmsgs - moved) > 0 or not moved:
        count: int = yield ScriptCall(MOVE, places, [max(1, min(left, SLICE))], parse, qname)
        moved += count
        if not count:
            break
    return moved


def receive_or_dead_letter(
    namespace: Namespace, qname: str, dead: str, max_receives: int, *, vt: int | None = None
) -> Steps[RsmqReceived | None]:
    """Receives the next message that was received fewer than `max_receives` times; moves the others to `dead`.

    Moved messages keep their receive counts, which show how often they were tried.
    """
    places = namespace.place(qname) + namespace.place(dead, "dead")
    if qname == dead:
        raise InvalidInput("the queue for dead letters must be another queue")
    args: list[Argument] = [
        validation.optional_seconds(vt, "vt"),
        whole(max_receives, "max_receives", 1, MOST_RECEIVES),
        SLICE,
    ]

    def parse(reply: Any) -> Any:
        if reply == [1]:
            return reply
        if reply == 3:
            raise QueueNotFound(dead)
        return _parse_one(reply, qname)

    while True:
        got = yield ScriptCall(RECEIVE_OR_DEAD_LETTER, places, args, parse, qname)
        if type(got) is not list:
            return got  # type: ignore[no-any-return]
