"""Looks at RSMQ queues for people: counts, settings, a page of messages by place, and one message; changes nothing.

On failure: a missing queue or message raises `NotFound`, keys of another type raise `Corrupt`. Counts, scores and
payloads are read one after the other (in Redis Cluster they may lie on different servers): a message received in that
moment may be told as ready with the attempt already counted, and one deleted in that moment is left out of its page.
"""

from __future__ import annotations

from dataclasses import dataclass

from restante.core.errors import Corrupt, InvalidInput, InvalidName, NotFound
from restante.core.queue import Post
from restante.core.settings import whole
from restante.rsmq import reading
from restante.rsmq.keys import DEFAULT_NAMESPACE, RsmqKeys
from restante.rsmq.reading import RsmqMessage

#: Messages of a page unless asked otherwise.
PAGE = 50
#: The longest page: payloads come whole, and a queue without a limit on their size may hold large ones.
LONGEST_PAGE = 200


@dataclass(frozen=True, slots=True)
class RsmqCounts:
    """An RSMQ queue at a glance, told in Restante's words; durations in seconds, instants in ms."""

    queue: str
    namespace: str
    messages: int
    #: Of these, those that cannot be received now: scheduled or leased.
    hidden: int
    lease_seconds: int
    delay_seconds: int
    #: None where the queue has no limit.
    max_payload_bytes: int | None
    sent: int
    received: int
    created_ms: int
    modified_ms: int
    #: The server's clock when it was read.
    now_ms: int


@dataclass(frozen=True, slots=True)
class RsmqPage:
    """Messages by when they can be received next, and where the page behind begins; None at the end."""

    messages: list[RsmqMessage]
    next: str | None
    total: int
    now_ms: int


def counts(post: Post, queue: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqCounts:
    """One queue that must be there."""
    connection = post.connection
    keys = reading._existing(connection, queue, namespace)
    fields = ("vt", "delay", "maxsize", "totalsent", "totalrecv", "created", "modified")
    told = connection.command("HMGET", keys.messages, *fields, key=keys.messages)
    now = reading._now_ms(connection, keys)
    total = connection.command("ZCARD", keys.due, key=keys.due)
    hidden = connection.command("ZCOUNT", keys.due, f"({now}", "+inf", key=keys.due)
    try:
        lease, delay, longest, sent, received, created, modified = (int(one or 0) for one in told)
    except ValueError:
        raise Corrupt(f"the RSMQ queue {queue} has unreadable settings: {told!r}") from None
    return RsmqCounts(
        queue, namespace, total, hidden, lease, delay, None if longest < 0 else longest, sent, received,
        created * 1000, modified * 1000, now,
    )  # fmt: skip


def every_count(post: Post, namespace: str = DEFAULT_NAMESPACE) -> list[RsmqCounts]:
    """Every queue of the namespace by name; a name without a queue behind it, or that breaks the rule, is left out."""
    found = []
    for name in reading.queues(post, namespace):
        try:
            found.append(counts(post, name, namespace))
        except (InvalidName, NotFound, Corrupt):
            continue  # one that its clients half made, or spoiled, must not hide the others
    return found


def neighbours(post: Post) -> list[RsmqCounts]:
    """The queues beside the native ones, in the namespace all clients use; none where that name is something else's."""
    try:
        return every_count(post)
    except Corrupt:
        return []


def page(
    post: Post, queue: str, namespace: str = DEFAULT_NAMESPACE, *, limit: int = PAGE, after: str | None = None
) -> RsmqPage:
    """Messages by when they can be received next; `after` is the `next` of the page before.

    The cursor is a place and not a count, so a page neither repeats nor passes over what stays where it is.
    """
    whole(limit, "limit", 1, LONGEST_PAGE)
    connection = post.connection
    keys = reading._existing(connection, queue, namespace)
    place = None if after is None else _place(after)
    rank = 0
    if place is not None:
        rank = connection.command("ZCOUNT", keys.due, "-inf", f"({place.score!r}", key=keys.due)
        # In a long run of equal scores the place itself, if still there, spares reading the run from its begin.
        if float(connection.command("ZSCORE", keys.due, place.id, key=keys.due) or "nan") == place.score:
            rank = max(rank, connection.command("ZRANK", keys.due, place.id, key=keys.due) or 0)
    found: list[reading._Place] = []
    more = True
    while more and len(found) <= limit:
        flat = connection.command("ZRANGE", keys.due, rank, rank + limit, "WITHSCORES", key=keys.due)
        places = [reading._Place(float(score), id) for id, score in zip(flat[::2], flat[1::2], strict=True)]
        found += [one for one in places if place is None or one > place]
        rank += len(places)
        more = len(places) > limit
    shown = found[:limit]
    now = reading._now_ms(connection, keys)
    messages = reading._messages(connection, keys, shown, now) if shown else []
    end = f"{shown[-1].score!r}~{shown[-1].id.decode(errors='backslashreplace')}" if len(found) > limit else None
    return RsmqPage(messages, end, connection.command("ZCARD", keys.due, key=keys.due), now)


def show(post: Post, queue: str, id: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqMessage:
    """One message, whole."""
    keys = reading._existing(post.connection, queue, namespace)
    score = post.connection.command("ZSCORE", keys.due, id, key=keys.due)
    if score is not None:
        place = reading._Place(float(score), id.encode())
        now = reading._now_ms(post.connection, keys)
        if found := reading._messages(post.connection, keys, [place], now):
            return found[0]
    raise NotFound(f"the RSMQ queue {queue} has no message {id}")


def keys_of(post: Post, queue: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqKeys:
    """The keys of a queue that is there."""
    return reading._existing(post.connection, queue, namespace)


def _place(cursor: str) -> reading._Place:
    score, found, id = cursor.partition("~")
    try:
        if found:
            return reading._Place(float(score), id.encode())
    except ValueError:
        pass
    raise InvalidInput(f"not a place of an RSMQ queue: {cursor[:60]!r}; give what the page before said")
