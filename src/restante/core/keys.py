"""The only place where Redis keys are named; every key of a queue carries its name in braces, so it lives in one slot.

| key `restante:{queue}:…` | type | members and scores | written by | removed by |
|---|---|---|---|---|
| queue | hash | settings, sequence, totals per event, due, journal bookkeeping, readers | every verb | drop |
| messages | hash | id → stored form (payload and what never changes) | send, edit | ack, delete, purge |
| deliveries | hash | id → token, lease, attempts, position: what changes once received | receive and later | same |
| history | hash | id → one line per ended attempt | nack, bury, reclaim | same |
| ready | zset | id by (255 − priority)·2⁴⁴ + sequence | send, promote, release, reclaim, replay | receive |
| scheduled, retrying | zset | id by due_at ms | send, release / nack | promote |
| leased | zset | id by lease_expires_at ms | receive, extend | ack, nack, bury, release, reclaim |
| dead, done | zset | id by when, ms | nack, bury, reclaim / ack | replay, delete, purge / newer results |
| marker | zset | one member while there is something to look at | most verbs | the consumer it wakes |
| journal | stream | one entry per call: its lines, numbered without gaps | every verb | trimming behind the readers |
| unique | hash | unique key → id that holds it | send and later verbs | leaving the states it holds in |
| acked, acked_before | hash | id → token, two generations of the dedup window | ack | ageing |
| consumers | hash | consumer → last seen and card | receive, extend | the registry's own tidying |
| tasks | hash | task id → progress of a replay | replay | the operator |
| leases:consumer | stream | a lease journal: id → token, attempts, stored form; numbered rows | hold | clear |
| verdicts:consumer | hash | lease token → verdict | ack, nack, bury, release | clear |

Beside them:

| key | type | members | written by |
|---|---|---|---|
| restante:queues | set | all queue names | the first use of a queue, drop |
| restante:transient | zset | queues that end when nobody uses them, by when | declare |
| restante:unroutable | hash | `count:`, `at:` + exchange → messages no queue was bound for, when last, ms | publish |
| restante:audit | stream | who did what to which queue and how many messages, bounded | every operator's verb |
| restante:tokens | hash | token id → name, roles, hash of the secret | `restante token` |
| restante:session:… | string | hash of a browser's cookie → token id, ends by itself | signing in |
| restante:subscriptions | hash | subscription → service, topic, retry policy, broker | a service that starts |
| restante:reply:{…}:answers, :marker | list, zset | answers to a call, its wake-up, end by themselves | who answers |
| restante:{subscription}:once:… | string | event → at work or done by this subscription, ends by itself | the bus |
| restante:{queue}:idempotency:… | string | Idempotency-Key of a send over HTTP → what it was, ends by itself | send |

and what the doors route by:

| key `restante:exchange:{name}:…` | type | members | written by |
|---|---|---|---|
| routes | hash | version, type, and per queue and topic pattern what is known of the queue | declare, bind |
| broadcast | stream | messages for subscribers that come and go | publish |
| positions | hash | subscriber → how far it has read | bind, reading |
| bound | set | of a queue: the exchanges and patterns it is bound by | bind |
"""

from __future__ import annotations

from restante.core.names import valid_name

#: The set of all queue names.
QUEUES = b"restante:queues"

#: Queues that end when nobody uses them, by when.
TRANSIENT = b"restante:transient"

#: Messages that were dropped because no queue was bound for them, by exchange.
UNROUTABLE = b"restante:unroutable"

#: What operators did.
AUDIT = b"restante:audit"

#: Who may use the HTTP API.
TOKENS = b"restante:tokens"

#: Browsers that have signed in, as access rules match them.
SESSIONS = "restante:session:*"

#: What services have subscribed to, and on which broker.
SUBSCRIPTIONS = b"restante:subscriptions"

#: Every key a queue may have, by its last word.
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
    "consumers",
    "tasks",
)


class QueueKeys:
    """The keys of one queue, made once per queue object."""

    __slots__ = ("_groups", "by_name", "name")

    def __init__(self, name: str) -> None:
        self.name = valid_name(name)
        self.by_name = {key: f"restante:{{{name}}}:{key}".encode() for key in NAMES}
        self._groups: dict[tuple[str, ...], tuple[bytes, ...]] = {}

    def __getitem__(self, key: str) -> bytes:
        return self.by_name[key]

    def lease_journal(self, consumer: str) -> tuple[bytes, bytes]:
        """The two keys of a consumer's lease journal: its rows and its verdicts."""
        return tuple(f"restante:{{{self.name}}}:{key}:{consumer}".encode() for key in ("leases", "verdicts"))  # type: ignore[return-value]

    def group(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        """The keys a script declares, in its order."""
        found = self._groups.get(names)
        if found is None:
            found = self._groups[names] = tuple(self.by_name[name] for name in names)
        return found


def key_pattern(word: str, queue: str = "*", *, named: bool = False) -> str:
    """A key of one queue or of all, as a server's access rules match it; `named` keys carry a further name."""
    return f"restante:{{{queue}}}:{word}{':*' if named else ''}"


def session_key(digest: str) -> bytes:
    """A browser that has signed in."""
    return f"restante:session:{digest}".encode()


def idempotency_key(queue: str, digest: str) -> bytes:
    """A send over HTTP that must not be done twice."""
    return f"restante:{{{queue}}}:idempotency:{digest}".encode()


def reply_keys(token: str) -> tuple[bytes, bytes]:
    """Where the answers to a call are put, and what wakes its caller."""
    return f"restante:reply:{{{token}}}:answers".encode(), f"restante:reply:{{{token}}}:marker".encode()


def once_key(subscription: str, id: str) -> bytes:
    """Whether a subscription has done an event."""
    return f"restante:{{{subscription}}}:once:{id}".encode()


def exchange_key(name: str, word: str) -> bytes:
    """A key of an exchange, or of a queue's bindings: routes, broadcast, positions or bound."""
    return f"restante:exchange:{{{name}}}:{word}".encode()
