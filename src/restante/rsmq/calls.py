"""Every RSMQ call as a value: script, keys, arguments and how to read the answer; nothing here does I/O.

One script per call: whether the queue exists, the time and what is done are one atomic step by the server's clock. A
call whose answer was lost is made again by the runner, with what that means: `receive_message` hides one more message
until its vt ends, `delete_message` and `move` tell what the last try found. Sends and `pop_message` are never made
again, since a second message or a second loss could not be told from the first: they raise `Unconfirmed`.
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

from restante.core.call_retry import Plain
from restante.core.errors import Corrupt, InvalidInput
from restante.core.operations import MAX_BATCH, Argument, Operation, Script, declared, sha1
from restante.core.settings import whole
from restante.rsmq import validation
from restante.rsmq.errors import InvalidValue, MessageTooLong, NoAttributeSupplied, QueueExists, QueueNotFound
from restante.rsmq.keys import STAMP, RsmqKeys, names_key, valid_namespace

log = logging.getLogger("restante")
T = TypeVar("T")
#: A call of several steps; it is sent each one's answer.
Steps = Generator[Operation[Any], Any, T]

#: Messages that one script dead-letters or moves at most: more would hold the server too long.
SLICE = 200
#: The most receives `receive_or_dead_letter` can be told to allow.
MOST_RECEIVES = 1_000_000

# In pairs: half as many draws make an id. The module's own generator is seeded anew in a forked child.
_LETTERS = string.ascii_letters + string.digits
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_HALF_A_TAIL = 11


class RsmqScript(Script):
    """One call's Lua, without the core's prelude, whose keys RSMQ has not."""

    def __init__(self, name: str, types: str, *, when_full: bool = True, reads: bool = False) -> None:
        text = resources.files("restante.rsmq").joinpath("lua", f"{name}.lua").read_text()
        self.name = name
        self.keys = ()
        self.types = tuple(types.split())
        self.text = declared(text, when_full=when_full, reads=reads)
        self.sha = sha1(self.text)


SEND = RsmqScript("send", "zset hash", when_full=False)
SEND_MANY = RsmqScript("send_many", "zset hash", when_full=False)
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
    """A message as a receive gives it, in the protocol's words."""

    id: str
    message: str
    #: How often it was received, this time included.
    rc: int
    #: When it was received first, in ms of the server's clock. (The protocol's own pages say first visible.)
    fr: int
    #: When it was sent, in ms with a fraction, as the id tells; not a number where no RSMQ client made the id.
    sent: float
    #: The message as stored: what is not UTF-8 shows as replacement characters in `message`, as in Node.
    raw: bytes = field(repr=False, compare=False, default=b"")


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """A queue's settings and totals. `hiddenmsgs` is exact to the millisecond; Node's counts by full seconds."""

    vt: int
    delay: int
    maxsize: int
    totalrecv: int
    totalsent: int
    created: int
    modified: int
    msgs: int
    hiddenmsgs: int


class Namespace:
    """What calls need to know of a namespace: the keys of its queues, and whether sends are announced."""

    __slots__ = ("_places", "name", "names", "realtime")

    def __init__(self, name: str, realtime: bool) -> None:
        self.name = valid_namespace(name)
        self.names = names_key(name)
        self.realtime = realtime
        self._places: dict[str, tuple[bytes, bytes]] = {}

    def place(self, qname: str, item: str = "qname") -> tuple[bytes, bytes]:
        """The keys of a queue."""
        try:
            return self._places[qname]
        except (KeyError, TypeError):
            keys = RsmqKeys(validation.queue_name(qname, item), self.name)
            # A program that makes up names without end must not fill its memory with them.
            if len(self._places) >= 10_000:
                self._places.clear()
            self._places[qname] = keys.due, keys.messages
            return keys.due, keys.messages

    def channel(self, qname: str) -> str:
        """Where sends are announced; empty where they are not."""
        return f"{self.name}:rt:{qname}" if self.realtime else ""


class _Once(Operation[T]):
    """A send, which would be stored twice if it were made again."""

    __slots__ = ()
    once = (
        "the message may or may not be stored: the server's answer never came, and the protocol cannot be asked; look "
        "at the queue, or send again where a second one does no harm"
    )


class _Pop(Operation[T]):
    """A pop, whose message is gone with its answer."""

    __slots__ = ()
    once = (
        "a message may have been popped and lost: the server's answer never came; use receive_message and "
        "delete_message where each one matters"
    )


class _Repeatable(Operation[T]):
    """A call that may find its own work done when it is made again after a lost answer."""

    __slots__ = ("again",)

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.again = False

    def doubt(self) -> None:
        self.again = True
        if self.script is CREATE:
            self.args[-1] = "1"


def _tail() -> str:
    return "".join(random.choices(_PAIRS, k=_HALF_A_TAIL))


def _out_of_range(qname: str) -> InvalidValue:
    why = (
        f"the queue {qname} has a vt or delay beyond that, or in milliseconds as the Rust client wrote them; set them "
        "in seconds by set_queue_attributes, or give vt= or delay= with the call"
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


def _received(id: bytes, raw: bytes, rc: int, fr: bytes | int) -> RsmqReceived:
    text = id.decode("utf-8", "replace")
    try:
        message = raw.decode()
    except UnicodeDecodeError:
        message = raw.decode("utf-8", "replace")
    return RsmqReceived(text, message, int(rc), _first_received(fr), _sent(text), raw)


def _first_received(fr: bytes | int) -> int:
    """Its own time, or 0 where somebody wrote what is none: a message that is taken already must reach its caller."""
    try:
        return int(fr)
    except ValueError:
        return 0


def _one(reply: Any, qname: str) -> RsmqReceived | None:
    if not reply:
        if reply == 0:
            raise QueueNotFound(qname)
        return None
    if type(reply) is int:
        raise _refused(reply, qname)
    if reply[1] is None:
        shown = reply[0].decode("utf-8", "replace")
        raise Corrupt(f"message {shown} of the RSMQ queue {qname} has no body: delete_message() removes what is left")
    return _received(*reply)


def _several(reply: Any, qname: str) -> list[RsmqReceived]:
    if type(reply) is int:
        raise _refused(reply, qname)
    made = []
    for place in range(0, len(reply), 4):
        if reply[place + 1] is None:
            log.error("passed over queue=%s id=%r error=Corrupt reason=%r", qname, reply[place], "it has no body")
        else:
            made.append(_received(*reply[place : place + 4]))
    return made


# -- queues ----------------------------------------------------------------------------------------------------------


def create_queue(
    namespace: Namespace,
    qname: str,
    *,
    vt: int = validation.DEFAULT_VT,
    delay: int = validation.DEFAULT_DELAY,
    maxsize: int = validation.DEFAULT_MAXSIZE,
) -> Operation[int]:
    """Makes a queue; 1, or QueueExists."""
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

    return _Repeatable(CREATE, (namespace.names, messages), args, parse, qname)


def delete_queue(namespace: Namespace, qname: str) -> Operation[int]:
    """Removes a queue and every message in it; 1, or QueueNotFound."""
    due, messages = namespace.place(qname)

    def parse(reply: int) -> int:
        if not reply and not op.again:
            raise QueueNotFound(qname)
        return 1

    op: _Repeatable[int] = _Repeatable(DROP, (namespace.names, due, messages), [qname], parse, qname)
    return op


def list_queues(namespace: Namespace) -> Operation[list[str]]:
    """The names of all queues, sorted."""
    op = Plain(("SMEMBERS", namespace.names), namespace.names)
    op.parse = lambda reply: sorted(name.decode("utf-8", "backslashreplace") for name in reply)
    return op


def get_queue_attributes(namespace: Namespace, qname: str) -> Operation[QueueAttributes]:
    """Settings, totals and counts of a queue."""
    return _attributes(namespace.place(qname), [], qname)


def set_queue_attributes(
    namespace: Namespace, qname: str, *, vt: int | None = None, delay: int | None = None, maxsize: int | None = None
) -> Operation[QueueAttributes]:
    """Changes at least one setting; gives what holds now."""
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


def vt_of(namespace: Namespace, qname: str) -> Operation[int]:
    """How long the queue hides what is received from it; refused where a receive would refuse it."""
    op: Operation[Any] = _attributes(namespace.place(qname), [], qname)
    read = op.parse

    def parse(reply: Any) -> int:
        vt: int = read(reply).vt
        if not 0 <= vt <= validation.LONGEST or (reply[3] == b"0" and vt >= 1000 and vt % 1000 == 0):
            raise _out_of_range(qname)
        return vt

    op.parse = parse
    return op


def _attributes(place: tuple[bytes, bytes], args: list[Argument], qname: str) -> Operation[QueueAttributes]:
    def parse(reply: Any) -> QueueAttributes:
        if reply == 0:
            raise QueueNotFound(qname)
        try:
            # PyRSMQ stores fractions of seconds; Node reads the whole ones.
            return QueueAttributes(*(int(float(value or 0)) for value in reply))
        except (ValueError, OverflowError):
            raise Corrupt(f"the RSMQ queue {qname} has settings that are no numbers: {reply!r}") from None

    return Operation(SET_ATTRIBUTES if args else ATTRIBUTES, place, args, parse, qname)


# -- messages --------------------------------------------------------------------------------------------------------


def send_message(namespace: Namespace, qname: str, message: str, *, delay: int | None = None) -> Operation[str]:
    """Stores a message and returns its id. When the answer is lost it raises Unconfirmed, and does not try again."""
    place = namespace.place(qname)
    wait = "" if delay is None else validation.seconds(delay, "delay")
    size, stored = validation.body(message)

    def parse(reply: Any) -> str:
        if type(reply) is int:
            raise _refused(reply, qname)
        return reply.decode()  # type: ignore[no-any-return]

    return _Once(SEND, place, [_tail(), size, wait, namespace.channel(qname), stored], parse, qname)


def send_many(
    namespace: Namespace, qname: str, messages: Sequence[str], *, delay: int | None = None
) -> Operation[list[str]]:
    """Stores up to a thousand messages, all or none, received in this order; returns their ids."""
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

    return _Once(SEND_MANY, place, args, parse, qname)


def receive_message(namespace: Namespace, qname: str, *, vt: int | None = None) -> Operation[RsmqReceived | None]:
    """The next message, hidden from others for vt seconds (else the queue's), or None."""
    args: list[Argument] = ["" if vt is None else validation.seconds(vt, "vt"), "0"]
    return Operation(RECEIVE, namespace.place(qname), args, lambda reply: _one(reply, qname), qname)


def receive_or_wait(namespace: Namespace, qname: str, vt: int | None) -> Operation[RsmqReceived | float | None]:
    """The next message, or the seconds until one is due, or None where the queue is empty."""
    args: list[Argument] = [validation.optional_seconds(vt, "vt"), "1"]

    def parse(reply: Any) -> RsmqReceived | float | None:
        if type(reply) is list and len(reply) <= 2:
            now, score = reply if len(reply) == 2 else (reply[0], None)
            return None if score is None else max(0.0, (float(score) - now) / 1000)
        return _one(reply, qname)

    return Operation(RECEIVE, namespace.place(qname), args, parse, qname)


def receive_many(
    namespace: Namespace, qname: str, count: int, *, vt: int | None = None
) -> Operation[list[RsmqReceived]]:
    """Up to `count` messages by one call."""
    args: list[Argument] = [validation.optional_seconds(vt, "vt"), validation.count(count)]
    return Operation(RECEIVE_MANY, namespace.place(qname), args, lambda reply: _several(reply, qname), qname)


def pop_message(namespace: Namespace, qname: str) -> Operation[RsmqReceived | None]:
    """The next message, removed at once, or None. When the answer is lost it raises Unconfirmed: so may be the message.

    A program that must not lose any receives, works and deletes.
    """
    return _Pop(POP, namespace.place(qname), [], lambda reply: _one(reply, qname), qname)


def delete_message(namespace: Namespace, qname: str, id: str) -> Operation[int]:
    """Removes a message; 0 where there is none, and where there is no such queue."""
    place = namespace.place(qname)
    return Operation(DELETE, place, [validation.message_id(id)], _whole, qname)


def delete_many(namespace: Namespace, qname: str, ids: Sequence[str]) -> Operation[int]:
    """Removes up to a thousand messages; how many were there."""
    return Operation(DELETE, namespace.place(qname), [*validation.message_ids(ids)], _whole, qname)


def change_message_visibility(namespace: Namespace, qname: str, id: str, vt: int) -> Operation[int]:
    """Hides a message for vt seconds from now; 0 where there is none."""
    place = namespace.place(qname)
    args: list[Argument] = [validation.message_id(id), validation.seconds(vt, "vt")]
    return Operation(VISIBILITY, place, args, _counted(qname), qname)


def _whole(reply: int) -> int:
    return reply


def _counted(qname: str, target: str = "") -> Callable[[int], int]:
    def parse(reply: int) -> int:
        if reply < 0:
            raise QueueNotFound(qname if reply == -1 else target)
        return reply

    return parse


def peek(namespace: Namespace, qname: str, count: int = 1) -> Operation[list[RsmqReceived]]:
    """What the next receives would get. Nothing is hidden or counted: rc and fr are those so far, 0 if never."""
    return Operation(
        PEEK, namespace.place(qname), [validation.count(count)], lambda reply: _several(reply, qname), qname
    )


def purge(namespace: Namespace, qname: str) -> Operation[int]:
    """Removes every message, also hidden ones, and keeps the queue, its settings and totals; how many there were."""
    return Operation(PURGE, namespace.place(qname), [], _counted(qname), qname)


# -- calls of several steps ------------------------------------------------------------------------------------------


def move(namespace: Namespace, qname: str, target: str, ids: Sequence[str] | None = None) -> Steps[int]:
    """Moves messages to another queue, each atomically, as if never received there; returns how many.

    With `ids` exactly these, hidden or not. Without, all that can be received now: what a consumer works on and
    what is delayed stays. Ids and times are kept; the target's maxsize is not asked.
    """
    places = namespace.place(qname) + namespace.place(target, "target")
    if qname == target:
        raise InvalidInput("the target must be another queue")
    parse = _counted(qname, target)
    moved = 0
    if ids is not None:
        chosen = validation.message_ids(ids)
        for start in range(0, len(chosen), SLICE):
            moved += yield Operation(MOVE, places, ["0", *chosen[start : start + SLICE]], parse, qname)
        return moved
    found: QueueAttributes = yield get_queue_attributes(namespace, qname)
    # Not more than there were, so that it ends also where producers are quicker.
    while (left := found.msgs - found.hiddenmsgs - moved) > 0 or not moved:
        count: int = yield Operation(MOVE, places, [max(1, min(left, SLICE))], parse, qname)
        moved += count
        if not count:
            break
    return moved


def receive_or_dead_letter(
    namespace: Namespace, qname: str, dead: str, max_receives: int, *, vt: int | None = None
) -> Steps[RsmqReceived | None]:
    """The next message that was received fewer than `max_receives` times; those of more go to the queue `dead`.

    There they keep their counts, so that they tell how often they were tried.
    """
    places = namespace.place(qname) + namespace.place(dead, "dead")
    if qname == dead:
        raise InvalidInput("the queue for dead letters must be another one")
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
        return _one(reply, qname)

    while True:
        got = yield Operation(RECEIVE_OR_DEAD_LETTER, places, args, parse, qname)
        if type(got) is not list:
            return got  # type: ignore[no-any-return]
