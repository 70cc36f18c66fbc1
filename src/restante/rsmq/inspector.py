"""Looks at RSMQ queues for people: counts, settings, a page of messages by place, and one message; changes nothing.

On failure: a missing queue or message raises `NotFound`, keys of another type raise `Corrupt`. Counts, scores and
payloads are read one after the other (in Redis Cluster they may lie on different servers): a message received in that
moment may be told as ready with the attempt already counted, and one deleted in that moment is left out of its page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from restante.core.call_retry import Plain
from restante.core.errors import AccessDenied, Corrupt, InvalidInput, InvalidName, NotFound
from restante.core.queue import Client
from restante.core.settings import whole
from restante.rsmq import reader
from restante.rsmq.keys import DEFAULT_NAMESPACE, SETTINGS, RsmqKeys
from restante.rsmq.reader import RsmqMessage

#: Messages of a page unless asked otherwise.
PAGE = 50
#: The longest page: payloads come whole, and a queue without a limit on their size may hold large ones.
LONGEST_PAGE = 200
#: What a queue's hash tells of it.
_FIELDS = (*SETTINGS, "totalsent", "totalrecv", "created", "modified")


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


def counts(post: Client, queue: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqCounts:
    """One queue that must be there."""
    keys = reader.existing(post.connection, queue, namespace)
    now = reader.now_ms(post.connection, keys)
    return _counted(keys, namespace, now, [post.connection.run(one) for one in _counting(keys, now)])


def _counting(keys: RsmqKeys, now: int) -> list[Plain]:
    """What is asked of a queue to count it."""
    return [
        Plain(("HMGET", keys.messages, *_FIELDS), keys.messages),
        Plain(("ZCARD", keys.due), keys.due),
        Plain(("ZCOUNT", keys.due, f"({now}", "+inf"), keys.due),
    ]


def _counted(keys: RsmqKeys, namespace: str, now: int, replies: list[Any]) -> RsmqCounts:
    told, total, hidden = replies
    if None in told[: len(SETTINGS)]:
        raise NotFound(f"the namespace {namespace} has no RSMQ queue {keys.queue}: check both names")
    try:
        # PyRSMQ stores fractions of seconds; other clients read the whole ones.
        lease, delay, longest, sent, received, created, modified = (int(float(one or 0)) for one in told)
    except (ValueError, OverflowError):
        raise Corrupt(f"the RSMQ queue {keys.queue} has unreadable settings: {told!r}") from None
    return RsmqCounts(
        keys.queue,
        namespace,
        total,
        hidden,
        lease,
        delay,
        None if longest < 0 else longest,
        sent,
        received,
        created * 1000,
        modified * 1000,
        now,
    )


def every_count(post: Client, namespace: str = DEFAULT_NAMESPACE) -> list[RsmqCounts]:
    """Every queue of the namespace by name; a name without a queue behind it, or that breaks the rule, is left out."""
    all_keys = list(_sound(reader.queues(post, namespace), namespace))
    if not all_keys:
        return []
    now = reader.now_ms(post.connection, all_keys[0])
    asked = [one for keys in all_keys for one in _counting(keys, now)]
    found = []
    try:
        replies = post.connection.run_all(asked)
    except Corrupt:
        # A key of another type is among them: one by one, so that it hides no other queue.
        replies = []
    for place, keys in enumerate(all_keys):
        try:
            if replies:
                found.append(_counted(keys, namespace, now, replies[3 * place : 3 * place + 3]))
            else:
                found.append(counts(post, keys.queue, namespace))
        except (NotFound, Corrupt):
            continue  # one that its clients half made, or somebody spoiled
    return found


def _sound(names: list[str], namespace: str) -> Iterator[RsmqKeys]:
    for name in names:
        try:
            yield RsmqKeys(name, namespace)
        except InvalidName:
            continue


def any_queue(post: Client) -> bool:
    """Whether there are RSMQ queues in the namespace all clients use."""
    try:
        return bool(reader.queues(post))
    except (Corrupt, AccessDenied):
        return False


def neighbours(post: Client) -> list[RsmqCounts]:
    """The queues beside the native ones, in the namespace all clients use; none where that name is something else's.

    A user with a role of `restante acl` may not read them, and still sees its own queues.
    """
    try:
        return every_count(post)
    except (Corrupt, AccessDenied):
        return []


def page(
    post: Client, queue: str, namespace: str = DEFAULT_NAMESPACE, *, limit: int = PAGE, after: str | None = None
) -> RsmqPage:
    """Messages by when they can be received next; `after` is the `next` of the page before.

    The cursor is a place and not a count, so a page neither repeats nor passes over what stays where it is.
    """
    whole(limit, "limit", 1, LONGEST_PAGE)
    connection = post.connection
    keys = reader.existing(connection, queue, namespace)
    place = None if after is None else _place(after)
    rank = 0
    if place is not None:
        rank = connection.command("ZCOUNT", keys.due, "-inf", f"({place.score!r}", key=keys.due)
        # In a long run of equal scores the place itself, if still there, spares reading the run from its begin.
        if float(connection.command("ZSCORE", keys.due, place.id, key=keys.due) or "nan") == place.score:
            rank = max(rank, connection.command("ZRANK", keys.due, place.id, key=keys.due) or 0)
    found: list[reader.Place] = []
    more = True
    while more and len(found) <= limit:
        flat = connection.command("ZRANGE", keys.due, rank, rank + limit, "WITHSCORES", key=keys.due)
        places = [reader.Place(float(score), id) for id, score in zip(flat[::2], flat[1::2], strict=True)]
        found += [one for one in places if place is None or one > place]
        rank += len(places)
        more = len(places) > limit
    shown = found[:limit]
    now = reader.now_ms(connection, keys)
    messages = reader.messages_at(connection, keys, shown, now) if shown else []
    end = f"{shown[-1].score!r}~{shown[-1].id.decode(errors='backslashreplace')}" if len(found) > limit else None
    return RsmqPage(messages, end, connection.command("ZCARD", keys.due, key=keys.due), now)


def show(post: Client, queue: str, id: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqMessage:
    """One message, whole."""
    found = find(post, keys_of(post, queue, namespace), id)
    if found is None:
        raise NotFound(f"the RSMQ queue {queue} has no message {id}")
    return found


def find(post: Client, keys: RsmqKeys, id: str) -> RsmqMessage | None:
    """One message, or None, of a queue that is known to be there."""
    score = post.connection.command("ZSCORE", keys.due, id, key=keys.due)
    if score is None:
        return None
    now = reader.now_ms(post.connection, keys)
    found = reader.messages_at(post.connection, keys, [reader.Place(float(score), id.encode())], now)
    return found[0] if found else None


def keys_of(post: Client, queue: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqKeys:
    """The keys of a queue that is there."""
    return reader.existing(post.connection, queue, namespace)


def _place(cursor: str) -> reader.Place:
    score, found, id = cursor.partition("~")
    try:
        if found:
            return reader.Place(float(score), id.encode())
    except ValueError:
        pass
    raise InvalidInput(f"not a place of an RSMQ queue: {cursor[:60]!r}; give what the page before said")
