"""The names of all Redis keys. A queue's keys carry its name in braces, so that they share one Cluster slot.

| key `restante:{queue}:…` | type | members and scores | written by | removed by |
|---|---|---|---|---|
| queue | hash | settings, sequence, totals per event, due, journal bookkeeping, readers | every verb | drop |
| messages | hash | id → stored form (payload and what never changes) | send, edit | ack, delete, purge, cancel |
| deliveries | hash | id → token, lease, attempts, position, progress: what changes | receive and later | same |
| history | hash | id → one line per ended attempt, and the result | nack, bury, reclaim, revoke, ack | same |
| ready | zset | id by (255 − priority)·2⁴⁴ + sequence | send, promote, release, reclaim, revoke, replay | receive |
| scheduled, retrying | zset | id by due_at ms | send, release / nack | promote |
| leased | zset | id by lease_expires_at ms | receive, extend | ack, nack, bury, release, reclaim, revoke, cancel |
| dead, done | zset | id by time, ms | nack, bury, reclaim / ack | replay, delete, purge / newer results |
| marker | zset | one member while a consumer should look at the queue | most verbs | the consumer it wakes |
| journal | stream | one entry per call: its lines, numbered without gaps | every verb | trimming behind the readers |
| unique | hash | unique key → id that holds it | send and later verbs | leaving the states in which it holds |
| acked, acked_before | hash | id → token, two generations of the dedup window | ack | ageing |
| cancelled | zset | tokens of cancelled leases by the lease's end, ms | cancel | the next cancel after it |
| outbox | zset | how messages of batches ended, by sequence number | the verbs that end a message | batch_count |
| batches | zset | ids of batches that have not ended, by created_at | batch_open | the end of the batch |
| batches_ended | zset | ids of batches that have, by when they are forgotten | the end of the batch | the next end |
| batch:id | hash | a batch: state, counts, messages of its end | batch_open and later | expires |
| members:id | hash | message id → waiting or failed, queue, last entry | batch_add, batch_count | same, expires |
| consumers | hash | consumer → last seen and card | receive, extend | listing the consumers |
| tasks | hash | task id → progress of a replay | replay | the operator |
| schedules | hash | name → a schedule: its next and last tick, definition, message | schedule, tick | schedule |
| ticks | zset | name of an active schedule by its next due time, ms | schedule, tick | same |
| leases:consumer | stream | a lease journal: id → token, attempts, stored form; numbered rows | hold | clear |
| verdicts:consumer | hash | lease token → verdict | ack, nack, bury, release | clear |

Beside them:

| key | type | members | written by |
|---|---|---|---|
| restante:queues | set | all queue names | the first use of a queue, drop |
| restante:schedules | set | names of queues that have or had schedules | the first schedule of a queue, drop |
| restante:transient | zset | queues that are removed when unused, by time | declare |
| restante:unroutable | hash | `count:`, `at:` + exchange → unroutable messages, time of the last, ms | publish |
| restante:audit | stream | operator, verb, queue and number of messages, bounded | every operator's verb |
| restante:tokens | hash | token id → name, roles, hash of the secret | `restante token` |
| restante:session:… | string | hash of a browser's cookie → token id, expires | signing in |
| restante:subscriptions | hash | subscription → service, topic, retry policy, broker | a service that starts |
| restante:reply:{…}:answers, :marker | list, zset | replies to a call, its wake-up, expire | the service that replies |
| restante:{subscription}:once:… | string | event → running or done in this subscription, expires | the bus |
| restante:{queue}:idempotency:… | string | Idempotency-Key of an HTTP send → its request and reply, expires | send |
| restante:testing:clock | string | on a server of tests: the time that a test has set | `restante.testing` |

Exchanges of the Celery transport and of the bus:

| key `restante:exchange:{name}:…` | type | members | written by |
|---|---|---|---|
| routes | hash | version, type, and per queue and topic pattern the queue's declaration | declare, bind |
| broadcast | stream | messages for subscribers that come and go | publish |
| positions | hash | subscriber → its position | bind, reading |
| bound | set | of a queue: the exchanges and patterns of its bindings | bind |
"""

from __future__ import annotations

from restante.core.names import valid_name

#: The set of all queue names.
QUEUES = b"restante:queues"

#: The queues that have or had schedules: a sweeper looks at these.
SCHEDULED_QUEUES = b"restante:schedules"

#: Queues that are removed when unused, by time.
TRANSIENT = b"restante:transient"

#: Messages that were dropped because no queue was bound for them, by exchange.
UNROUTABLE = b"restante:unroutable"

#: The audit of operators' actions.
AUDIT = b"restante:audit"

#: Tokens of the HTTP API.
TOKENS = b"restante:tokens"

#: Sessions of signed-in browsers, as a pattern for access rules.
SESSIONS = "restante:session:*"

#: The clock of a test: = and a time, or + and an offset from the server's, in microseconds.
TEST_CLOCK = b"restante:testing:clock"

#: Subscriptions of services, with their broker.
SUBSCRIPTIONS = b"restante:subscriptions"

#: The last word of every key of a queue.
NAMES = (
    "queue",
    "journal",
    "messages",
    "deliveries",
    "history",
    "ready",
    "scheduled",
    "retrying",
    "leased",
    "dead",
    "done",
    "marker",
    "unique",
    "acked",
    "acked_before",
    "cancelled",
    "consumers",
    "tasks",
    "schedules",
    "ticks",
    "outbox",
    "batches",
    "batches_ended",
)


class QueueKeys:
    """The keys of one queue, built once per queue object."""

    __slots__ = ("_groups", "by_name", "name")

    def __init__(self, name: str) -> None:
        self.name = valid_name(name)
        self.by_name = {key: f"restante:{{{name}}}:{key}".encode() for key in NAMES}
        self._groups: dict[tuple[str, ...], tuple[bytes, ...]] = {}

    def __getitem__(self, key: str) -> bytes:
        return self.by_name[key]

    def lease_journal(self, consumer: str) -> tuple[bytes, bytes]:
        """Returns the two keys of a consumer's lease journal: rows and verdicts."""
        return tuple(f"restante:{{{self.name}}}:{key}:{consumer}".encode() for key in ("leases", "verdicts"))  # type: ignore[return-value]

    def batch(self, id: str) -> tuple[bytes, bytes]:
        """Returns the two keys of a batch whose home is this queue: its record and its members."""
        return tuple(f"restante:{{{self.name}}}:{key}:{id}".encode() for key in ("batch", "members"))  # type: ignore[return-value]

    def group(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        """Returns the keys that a script declares, in its order."""
        keys = self._groups.get(names)
        if keys is None:
            keys = self._groups[names] = tuple(self.by_name[name] for name in names)
        return keys


def key_pattern(word: str, queue: str = "*", *, named: bool = False) -> str:
    """Returns a pattern of access rules for a key of one queue or of all; `named` keys end in another name."""
    return f"restante:{{{queue}}}:{word}{':*' if named else ''}"


def session_key(digest: str) -> bytes:
    """The key of a signed-in browser's session."""
    return f"restante:session:{digest}".encode()


def idempotency_key(queue: str, digest: str) -> bytes:
    """The key that records a send over HTTP, so that it is done only once."""
    return f"restante:{{{queue}}}:idempotency:{digest}".encode()


def reply_keys(token: str) -> tuple[bytes, bytes]:
    """The keys of a call's replies and of the marker that wakes its caller."""
    return f"restante:reply:{{{token}}}:answers".encode(), f"restante:reply:{{{token}}}:marker".encode()


def once_key(subscription: str, id: str) -> bytes:
    """The key that records whether a subscription has run an event."""
    return f"restante:{{{subscription}}}:once:{id}".encode()


def exchange_key(name: str, word: str) -> bytes:
    """A key of an exchange or of a queue's bindings: routes, broadcast, positions or bound."""
    return f"restante:exchange:{{{name}}}:{word}".encode()
