"""Shows RSMQ queues to people: counts, settings, pages of messages and single messages; changes nothing.

On failure: a missing queue or message raises `NotFound`, keys of another type raise `Corrupt`. Counts, scores and
payloads are read one after the other (in Redis Cluster they may be on different servers): a message received in between
may appear as ready with the attempt already counted, and a message deleted in between is left out of its page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from restante.core.errors import AccessDenied, Corrupt, InvalidInput, InvalidName, NotFound
from restante.core.queue import Client
from restante.core.scripts import Command
from restante.core.settings import whole
from restante.rsmq import reader
from restante.rsmq.keys import DEFAULT_NAMESPACE, SETTINGS, RsmqKeys
from restante.rsmq.reader import RsmqMessage

#: Default number of messages on a page.
PAGE = 50
#: The longest page: pages hold whole payloads, and a queue without a size limit may hold large ones.
LONGEST_PAGE = 200
#: The fields of a queue's hash that are counted and shown.
_FIELDS = (*SETTINGS, "totalsent", "totalrecv", "created", "modified")


@dataclass(frozen=True, slots=True)
class RsmqCounts:
    """Settings and counts of an RSMQ queue, in Restante's words; durations in seconds, instants in ms."""

    queue: str
    namespace: str
    messages: int
    #: Messages among them that cannot be received now: scheduled or leased.
    hidden: int
    lease_seconds: int
    delay_seconds: int
    #: None if the queue has no limit.
    max_payload_bytes: int | None
    sent: int
    received: int
    created_ms: int
    modified_ms: int
    #: The server's clock at the time of reading.
    now_ms: int


@dataclass(frozen=True, slots=True)
class RsmqPage:
    """Messages by when they can be received next, and the cursor of the next page, None on the last."""

    messages: list[RsmqMessage]
    next: str | None
    total: int
    now_ms: int


def counts(post: Client, queue: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqCounts:
    """Returns the counts of a queue; raises NotFound if it does not exist."""
    keys = reader.existing(post.connection, queue, namespace)
    now = reader.now_ms(post.connection, keys)
    return _counts(keys, namespace, now, [post.connection.run(command) for command in _count_commands(keys, now)])


def _count_commands(keys: RsmqKeys, now: int) -> list[Command[Any]]:
    """The commands that count a queue."""
    return [
        Command(("HMGET", keys.messages, *_FIELDS), keys.messages),
        Command(("ZCARD", keys.due), keys.due),
        Command(("ZCOUNT", keys.due, f"({now}", "+inf"), keys.due),
    ]


def _counts(keys: RsmqKeys, namespace: str, now: int, replies: list[Any]) -> RsmqCounts:
    fields, total, hidden = replies
    if None in fields[: len(SETTINGS)]:
        raise NotFound(f"the namespace {namespace} has no RSMQ queue {keys.queue}: check both names")
    try:
        # PyRSMQ stores fractions of seconds; other clients cut them off.
        lease, delay, longest, sent, received, created, modified = (int(float(field or 0)) for field in fields)
    except (ValueError, OverflowError):
        raise Corrupt(f"the RSMQ queue {keys.queue} has unreadable settings: {fields!r}") from None
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


def all_counts(post: Client, namespace: str = DEFAULT_NAMESPACE) -> list[RsmqCounts]:
    """Returns the counts of every queue of the namespace, by name; skips names that are invalid or have no queue."""
    all_keys = list(_valid_keys(reader.queues(post, namespace), namespace))
    if not all_keys:
        return []
    now = reader.now_ms(post.connection, all_keys[0])
    commands = [command for keys in all_keys for command in _count_commands(keys, now)]
    rows = []
    try:
        replies = post.connection.run_all(commands)
    except Corrupt:
        # One of the keys has another type: count the queues one by one, so that it hides no other queue.
        replies = []
    for place, keys in enumerate(all_keys):
        try:
            if replies:
                rows.append(_counts(keys, namespace, now, replies[3 * place : 3 * place + 3]))
            else:
                rows.append(counts(post, keys.queue, namespace))
        except (NotFound, Corrupt):
            continue  # a queue that its client created only in part, or with damaged keys
    return rows


def _valid_keys(names: list[str], namespace: str) -> Iterator[RsmqKeys]:
    for name in names:
        try:
            yield RsmqKeys(name, namespace)
        except InvalidName:
            continue


def has_queues(post: Client) -> bool:
    """Whether there are RSMQ queues in the default namespace."""
    try:
        return bool(reader.queues(post))
    except (Corrupt, AccessDenied):
        return False


def default_namespace_counts(post: Client) -> list[RsmqCounts]:
    """Returns the counts of the queues in the default namespace, to list them beside the native queues.

    The list is empty if the namespace's key is not RSMQ's, or if the Redis user may not read it: a user with a role of
    `restante acl` still sees the native queues.
    """
    try:
        return all_counts(post)
    except (Corrupt, AccessDenied):
        return []


def page(
    post: Client, queue: str, namespace: str = DEFAULT_NAMESPACE, *, limit: int = PAGE, after: str | None = None
) -> RsmqPage:
    """Returns a page of messages by when they can be received next; `after` is the `next` of the previous page.

    The cursor is a place, not a count, so pages neither repeat nor skip messages that do not move.
    """
    whole(limit, "limit", 1, LONGEST_PAGE)
    connection = post.connection
    keys = reader.existing(connection, queue, namespace)
    place = None if after is None else _place(after)
    rank = 0
    if place is not None:
        rank = connection.command("ZCOUNT", keys.due, "-inf", f"({place.score!r}", key=keys.due)
        # In a long run of equal scores the rank of the place, if it exists, saves reading the run from its start.
        if float(connection.command("ZSCORE", keys.due, place.id, key=keys.due) or "nan") == place.score:
            rank = max(rank, connection.command("ZRANK", keys.due, place.id, key=keys.due) or 0)
    behind: list[reader.Place] = []
    more = True
    while more and len(behind) <= limit:
        flat = connection.command("ZRANGE", keys.due, rank, rank + limit, "WITHSCORES", key=keys.due)
        places = [reader.Place(float(score), id) for id, score in zip(flat[::2], flat[1::2], strict=True)]
        behind += [other for other in places if place is None or other > place]
        rank += len(places)
        more = len(places) > limit
    shown = behind[:limit]
    now = reader.now_ms(connection, keys)
    messages = reader.messages_at(connection, keys, shown, now) if shown else []
    end = f"{shown[-1].score!r}~{shown[-1].id.decode(errors='backslashreplace')}" if len(behind) > limit else None
    return RsmqPage(messages, end, connection.command("ZCARD", keys.due, key=keys.due), now)


def show(post: Client, queue: str, id: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqMessage:
    """Returns one message; raises NotFound if the queue or the message does not exist."""
    message = find(post, keys_of(post, queue, namespace), id)
    if message is None:
        raise NotFound(f"the RSMQ queue {queue} has no message {id}")
    return message


def find(post: Client, keys: RsmqKeys, id: str) -> RsmqMessage | None:
    """Returns one message, or None, of a queue that is known to exist."""
    score = post.connection.command("ZSCORE", keys.due, id, key=keys.due)
    if score is None:
        return None
    now = reader.now_ms(post.connection, keys)
    messages = reader.messages_at(post.connection, keys, [reader.Place(float(score), id.encode())], now)
    return messages[0] if messages else None


def keys_of(post: Client, queue: str, namespace: str = DEFAULT_NAMESPACE) -> RsmqKeys:
    """Returns the keys of a queue; raises NotFound if it does not exist."""
    return reader.existing(post.connection, queue, namespace)


def _place(cursor: str) -> reader.Place:
    score, separator, id = cursor.partition("~")
    try:
        if separator:
            return reader.Place(float(score), id.encode())
    except ValueError:
        pass
    raise InvalidInput(
        f"not a place of an RSMQ queue: {cursor[:60]!r}; give the cursor that the previous page returned"
    )
