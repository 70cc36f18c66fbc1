"""Reads RSMQ queues without changing anything in them, page by page, while their clients go on working.

On failure: a missing queue raises `NotFound`, keys of another type or unreadable counts raise `Corrupt`, a lost
server raises as everywhere in core once the client's patience has ended; a walk cut short is begun anew.

**Promised.** A walk returns each message at most once. It returns every message that is in the queue from the walk's
begin to its end: also one that is received meanwhile, and one whose lease or delay is cut short once. The walks of
all parts of a split together return what one walk returns, each message in exactly one part.

**Not promised.** A message sent after the begin, or removed before the end, may be returned or not. A message that
slips behind the walk twice may be missed: that takes a lease cut short during the first look and, after another
receive, again during the second; or a server whose clock is set back meanwhile. Score and payload are read one after
the other (in Redis Cluster they lie on different servers): a message received in that moment may be told as ready
with the attempt already counted. An id without a payload was removed between the two reads, or belongs to nothing a
client could deliver: it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from restante.core.connection import Connection
from restante.core.errors import Corrupt, InvalidInput, NotFound
from restante.core.message import State
from restante.core.queue import Client
from restante.core.settings import whole
from restante.rsmq.keys import DEFAULT_NAMESPACE, SETTINGS, RsmqKeys, message_fields, names_key, sent_ms

#: Messages per page. One page of payloads is in memory at a time: fewer where payloads are large.
PAGE = 1000
#: The longest page: beyond it one answer would stall the server's other clients.
MAX_PAGE = 10_000
#: The fewest ids asked for at once: half of them overlap with the answer before, and the rest must lead on.
LEAST_IDS = 2
#: Messages below which a queue is not split further: a part of less takes longer to start than to read.
SMALLEST_PART = 1000
#: The most parts of a split. Every part reads all ids, so many parts cost more than they gain.
MAX_PARTS = 1024
#: Milliseconds a client may take between asking the server's time and writing a score made from it. Too short, and a
#: lease cut short by a slow client is missed; longer only makes the second look read more ids again.
SLOWNESS_MS = 10_000
#: The last millisecond that a datetime can tell (year 9999). Scores beyond it were not written by any client.
LATEST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class RsmqMessage:
    """A message of an RSMQ queue as it lay there when its page was read. Instants are in ms of the server's clock."""

    id: str
    payload: bytes
    #: When it can be received (next): the end of its delay or of its lease.
    due_ms: int
    attempts: int
    first_received_ms: int | None
    #: As the id tells; None where the id was not made by an RSMQ client.
    sent_ms: int | None
    #: ready, scheduled or leased.
    state: State


class Place(NamedTuple):
    """Where an id stands in the sorted set; places compare as Redis orders them."""

    score: float
    id: bytes


def queues(post: Client, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """The names of all queues in the namespace, sorted, as their clients registered them.

    PyRSMQ registers names that break the rule: they are listed, and `walk` refuses them, so that none is silently
    left out of what was meant to be everything.
    """
    key = names_key(namespace)
    _check_type(post.connection, key, b"set")
    return sorted(name.decode(errors="backslashreplace") for name in post.connection.command("SMEMBERS", key, key=key))


def split(post: Client, queue: str, parts: int, namespace: str = DEFAULT_NAMESPACE) -> list[tuple[int, int]]:
    """What to give `walk` as `part` so that up to `parts` walks share the queue; fewer where it is short.

    Parts share by id and not by score: scores move while parts are read, and a message could slip from a part that
    has not come to it into one that is past it.
    """
    whole(parts, "parts", 1, MAX_PARTS)
    keys = existing(post.connection, queue, namespace)
    length = post.connection.command("ZCARD", keys.due, key=keys.due)
    count = max(1, min(parts, length // SMALLEST_PART))
    return [(number, count) for number in range(count)]


def walk(
    post: Client,
    queue: str,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    page: int = PAGE,
    part: tuple[int, int] = (0, 1),
) -> Iterator[list[RsmqMessage]]:
    """Every message of the queue, or of one part of it, in pages of at most `page`, in order of due_ms mostly.

    `part` is (number, parts) as `split` gives it. Bad arguments and a missing queue raise at the call. The walk
    remembers the ids it returned: about 120 bytes each. What is promised is said above, in the module's docstring.
    """
    whole(page, "page", 1, MAX_PAGE)
    if not isinstance(part, tuple) or len(part) != 2:
        raise InvalidInput(f"part must be (number, parts) as split() gives it, not {part!r}")
    number, parts = part
    whole(parts, "parts", 1, MAX_PARTS)
    whole(number, "number of the part", 0, parts - 1)
    return _pages(post.connection, existing(post.connection, queue, namespace), page, number, parts)


def existing(connection: Connection, queue: str, namespace: str) -> RsmqKeys:
    """The keys of a queue that is there."""
    keys = RsmqKeys(queue, namespace)
    _check_type(connection, keys.due, b"zset")
    _check_type(connection, keys.messages, b"hash")
    if None in connection.command("HMGET", keys.messages, *SETTINGS, key=keys.messages):
        raise NotFound(f"the namespace {namespace} has no RSMQ queue {queue}: check both names")
    return keys


def _check_type(connection: Connection, key: bytes, expected: bytes) -> None:
    # Asked first: a namespace with a colon in it can make one queue's key another's.
    found = connection.command("TYPE", key, key=key)
    if found not in (expected, b"none"):
        raise Corrupt(f"the key {key.decode()} holds a {found.decode()}, which RSMQ did not write: check the namespace")


def _pages(connection: Connection, keys: RsmqKeys, page: int, number: int, parts: int) -> Iterator[list[RsmqMessage]]:
    seen: set[bytes] = set()
    begun = now_ms(connection, keys)
    # Receiving moves a message up, ahead of the walk, where it is met again. Only a lease or delay cut short
    # moves one down, never below the time of that moment: the second look finds there what slipped behind the first.
    for start in (b"-inf", b"%d" % (begun - SLOWNESS_MS)):
        answers = 0
        for places in _places(connection, keys.due, start, max(page, LEAST_IDS)):
            answers += 1
            now = now_ms(connection, keys)
            fresh = [place for place in places if place.id not in seen and crc32(place.id) % parts == number]
            seen.update(place.id for place in fresh)
            for i in range(0, len(fresh), page):
                if messages := messages_at(connection, keys, fresh[i : i + page], now):
                    yield messages
        if answers <= 1:
            return  # one answer held the whole queue, so nothing can have slipped


def _places(connection: Connection, key: bytes, start: bytes, count: int) -> Iterator[list[Place]]:
    """All places from a score on, `count` at a time, overlapping: whatever stays where it is, is in one of them.

    They are found by score and not by rank, since each message received ahead of them moves all ranks. Within a run
    of equal scores there is only a number to go by, which moves as well: there each answer must reach back to a place
    that was read before, or it is asked for again from further back.
    """
    reached = Place(float("-inf"), b"")
    low, skip = start, 0
    while True:
        flat = _range(connection, key, low, skip, count)
        scores = flat[1::2]
        places = [Place(float(score), id) for score, id in zip(scores, flat[::2], strict=True)]
        if skip and (not places or places[0] > reached):
            skip //= 2
            continue
        yield places
        if len(places) < count:
            return
        reached = max(reached, places[-1])
        run = scores.count(scores[-1]) + (skip if scores[0] == scores[-1] == low else 0)
        # The overlap is room for what is received between two commands; a run shorter than it is read again whole.
        low, skip = scores[-1], max(0, run - count // 2)


def _range(connection: Connection, key: bytes, low: bytes, skip: int, count: int) -> list[bytes]:
    """Ids and scores from a score on, after stepping over some."""
    if not skip:
        words: tuple[str | bytes | int, ...] = ("ZRANGEBYSCORE", key, low, "+inf", "WITHSCORES", "LIMIT", 0, count)
    else:
        # By rank, since LIMIT steps over one after the other: too long for the server's other clients in a long run.
        first = connection.command("ZCOUNT", key, "-inf", b"(" + low, key=key) + skip
        words = ("ZRANGE", key, first, first + count - 1, "WITHSCORES")
    found: list[bytes] = connection.command(*words, key=key)
    return found


def messages_at(connection: Connection, keys: RsmqKeys, places: list[Place], now: int) -> list[RsmqMessage]:
    """The messages at these places that are still there."""
    fields = [field for place in places for field in message_fields(place.id)]
    flat = connection.command("HMGET", keys.messages, *fields, key=keys.messages)
    return [
        _message(keys.queue, place, now, *flat[3 * i : 3 * i + 3])
        for i, place in enumerate(places)
        if flat[3 * i] is not None
    ]


def _message(
    queue: str, place: Place, now: int, payload: bytes, attempts: bytes | None, received: bytes | None
) -> RsmqMessage:
    id = place.id.decode(errors="backslashreplace")
    try:
        count = int(attempts or 0)
        first = None if received is None else int(received)
    except ValueError:
        raise Corrupt(f"message {id} of RSMQ queue {queue} has unreadable counts: {attempts!r}, {received!r}") from None
    due = int(min(max(place.score, 0.0), LATEST_MS))
    return RsmqMessage(id, payload, due, count, first, sent_ms(id), _state(place.score, now, count))


def _state(score: float, now: int, attempts: int) -> State:
    if score <= now:
        return State.READY
    return State.LEASED if attempts else State.SCHEDULED


def now_ms(connection: Connection, keys: RsmqKeys) -> int:
    """The clock of the server that holds the scores; asked after they were read, none just sent looks scheduled."""
    seconds, micros = connection.command("TIME", key=keys.due)
    return int(seconds) * 1000 + int(micros) // 1000
