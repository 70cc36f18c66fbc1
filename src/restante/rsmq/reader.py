"""Reads RSMQ queues page by page, without changing them, while their clients go on working.

On failure: a missing queue raises `NotFound`; keys of another type or unreadable counts raise `Corrupt`; a lost server
raises as everywhere in core when the client's patience has ended. An interrupted walk must start again.

**Promised.** A walk returns each message at most once. It returns every message that is in the queue from the start of
the walk to its end, including a message that is received meanwhile, or whose lease or delay is shortened once. The
walks of all parts of a split together return what one walk returns, each message in exactly one part.

**Not promised.** A message sent after the start, or removed before the end, may be returned or not. A message that
moves behind the walk twice may be missed: its lease is shortened during the first pass and, after another receive,
again during the second; or the server's clock is set back. Score and payload are read one after the other (in Redis
Cluster they are on different servers): a message received in between may appear as ready with the attempt already
counted. An id without a payload is left out: it was removed between the two reads, or no client could deliver it.
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

#: Messages per page. One page of payloads is in memory at a time: use smaller pages for large payloads.
PAGE = 1000
#: The longest page: a longer reply would stall the server's other clients.
MAX_PAGE = 10_000
#: The fewest ids requested at once: half of them overlap with the previous reply, the rest must make progress.
LEAST_IDS = 2
#: Messages per part below which a queue is not split further: a smaller part takes longer to start than to read.
SMALLEST_PART = 1000
#: The most parts of a split. Every part reads all ids, so many parts cost more than they gain.
MAX_PARTS = 1024
#: Milliseconds a client may take between reading the server's time and writing a score computed from it. Too short, and
#: a lease shortened by a slow client is missed; longer only makes the second pass read more ids again.
SLOWNESS_MS = 10_000
#: The last millisecond that a datetime can represent (year 9999). No client writes a later score.
LATEST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class RsmqMessage:
    """A message of an RSMQ queue as it was when its page was read. Instants are in ms of the server's clock."""

    id: str
    payload: bytes
    #: When it can be received next: the end of its delay or of its lease.
    due_ms: int
    attempts: int
    first_received_ms: int | None
    #: Read from the id; None if no RSMQ client made the id.
    sent_ms: int | None
    #: ready, scheduled or leased.
    state: State


class Place(NamedTuple):
    """The position of an id in the sorted set; places compare as Redis orders them."""

    score: float
    id: bytes


def queues(post: Client, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """Returns the names of all queues in the namespace, sorted, as their clients registered them.

    PyRSMQ registers names that break the protocol's rule. They are listed, and `walk` refuses them, so that a caller
    who wants every queue does not miss one silently.
    """
    key = names_key(namespace)
    _check_type(post.connection, key, b"set")
    return sorted(name.decode(errors="backslashreplace") for name in post.connection.command("SMEMBERS", key, key=key))


def split(post: Client, queue: str, parts: int, namespace: str = DEFAULT_NAMESPACE) -> list[tuple[int, int]]:
    """Returns values for the `part` of `walk`, so that up to `parts` walks share the queue; fewer for a short queue.

    Parts are divided by id, not by score: scores change while parts are read, and a message could move from a part
    that has not reached it to a part that has passed it.
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
    """Iterates over all messages of the queue, or of one part, in pages of at most `page`, mostly in order of due_ms.

    `part` is (number, parts) as returned by `split`. Bad arguments and a missing queue raise at the call. The walk
    keeps the ids it returned, about 120 bytes each. The module's docstring says what it promises.
    """
    whole(page, "page", 1, MAX_PAGE)
    if not isinstance(part, tuple) or len(part) != 2:
        raise InvalidInput(f"part must be (number, parts) as returned by split(), not {part!r}")
    number, parts = part
    whole(parts, "parts", 1, MAX_PARTS)
    whole(number, "number of the part", 0, parts - 1)
    return _pages(post.connection, existing(post.connection, queue, namespace), page, number, parts)


def existing(connection: Connection, queue: str, namespace: str) -> RsmqKeys:
    """Returns the keys of a queue that exists; else raises NotFound."""
    keys = RsmqKeys(queue, namespace)
    _check_type(connection, keys.due, b"zset")
    _check_type(connection, keys.messages, b"hash")
    if None in connection.command("HMGET", keys.messages, *SETTINGS, key=keys.messages):
        raise NotFound(f"the namespace {namespace} has no RSMQ queue {queue}: check both names")
    return keys


def _check_type(connection: Connection, key: bytes, expected: bytes) -> None:
    # A namespace that contains a colon can make the key of one queue the key of another.
    kind = connection.command("TYPE", key, key=key)
    if kind not in (expected, b"none"):
        raise Corrupt(f"the key {key.decode()} holds a {kind.decode()}, which RSMQ did not write: check the namespace")


def _pages(connection: Connection, keys: RsmqKeys, page: int, number: int, parts: int) -> Iterator[list[RsmqMessage]]:
    seen: set[bytes] = set()
    begun = now_ms(connection, keys)
    # A receive moves a message up, ahead of the walk, which meets it again. Only a shortened lease or delay moves a
    # message down, never below the time of that change: the second pass finds it there.
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
            return  # one reply held the whole queue, so no message can have moved behind the walk


def _places(connection: Connection, key: bytes, start: bytes, count: int) -> Iterator[list[Place]]:
    """Iterates over all places from a score on, `count` at a time, overlapping, so that no unmoved message is missed.

    It continues by score, not by rank, because each receive ahead of it changes all ranks. Within a run of equal
    scores it can only continue by an offset, which changes too: there each reply must reach back to a place that was
    read before; else it is requested again from further back.
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
        # The overlap allows for receives between two commands. A run shorter than the overlap is read again as a whole.
        low, skip = scores[-1], max(0, run - count // 2)


def _range(connection: Connection, key: bytes, low: bytes, skip: int, count: int) -> list[bytes]:
    """Returns ids and scores from a score on, after skipping `skip` of them."""
    if not skip:
        words: tuple[str | bytes | int, ...] = ("ZRANGEBYSCORE", key, low, "+inf", "WITHSCORES", "LIMIT", 0, count)
    else:
        # By rank, because LIMIT skips one by one, which blocks the server's other clients in a long run.
        first = connection.command("ZCOUNT", key, "-inf", b"(" + low, key=key) + skip
        words = ("ZRANGE", key, first, first + count - 1, "WITHSCORES")
    flat: list[bytes] = connection.command(*words, key=key)
    return flat


def messages_at(connection: Connection, keys: RsmqKeys, places: list[Place], now: int) -> list[RsmqMessage]:
    """Returns the messages at these places that still exist."""
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
    """Returns the clock of the server that holds the scores.

    Read it after the scores, so that a message just sent does not appear as scheduled.
    """
    seconds, micros = connection.command("TIME", key=keys.due)
    return int(seconds) * 1000 + int(micros) // 1000
