"""Access rules for users of Redis 7 and Valkey: the commands and keys that each role needs, and no others; no I/O.

The server checks every command of a script, with its key, against the user who calls the script. A role's rights are
therefore derived from its scripts (`script_calls`), and a new verb brings its own rights. Commands that clients send
without a script are listed in `PLAIN`.

The rules use selectors, which allow a command only on the keys that need it. EVALSHA is allowed only for the role's own
scripts, by hash: the server refuses any other script before its first command, because Lua does not undo the commands
before a refusal. The price: scripts of another version of Restante have other hashes, so their rights must be added
before an upgrade.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from importlib import resources

from restante.core.keys import (
    AUDIT,
    NAMES,
    QUEUES,
    SCHEDULED_QUEUES,
    SESSIONS,
    SUBSCRIPTIONS,
    TOKENS,
    UNROUTABLE,
    key_pattern,
)
from restante.core.message import State
from restante.core.scripts import PARTS, WHOLE, Script


class RedisRole(enum.StrEnum):
    """The role of a Redis user; roles may be combined."""

    #: Read: counts, lists, messages, consumers, journals, the audit, the doctor.
    VIEW = "view"
    #: Send messages; store schedules and fire them.
    SEND = "send"
    #: Receive, renew and settle messages; sweep.
    CONSUME = "consume"
    #: Read journals as a registered reader, and snapshots of queues.
    PIPELINE = "pipeline"
    #: Read, and use the operators' verbs: replay, delete, purge, revoke, cancel, edit, move, drop, configure, tokens.
    OPERATE = "operate"


#: The scripts that fill, count and end batches. The end of a batch is a send, so a consumer of its messages needs the
#: rights to send too.
_BATCH = frozenset({"batch_add", "batch_check", "batch_count", "batch_open", "batch_seal", "batch_show"})
#: The scripts each role runs.
SCRIPTS: dict[RedisRole, frozenset[str]] = {
    RedisRole.VIEW: frozenset({"agenda", "batch_show", "counts", "list", "show", "status"}),
    RedisRole.SEND: frozenset({*_BATCH, "agenda", "configure", "schedule", "throttle", "send", "tick"}),
    RedisRole.CONSUME: frozenset(
        {
            *("ack", "ack_result", "agenda", "bury", "claim", "clear", "configure", "extend", "hold", "nack"),
            *("progress", "receive", "release"),
        }
    ),
    RedisRole.PIPELINE: frozenset({"counts", "list", "show"}),
    RedisRole.OPERATE: frozenset(
        {
            *_BATCH,
            *("agenda", "cancel", "configure", "counts", "delete", "edit", "list", "move", "purge", "replay", "revoke"),
            *("schedule", "send", "show", "status", "tick"),
        }
    ),
}
#: Keys of a queue that end in a further name: word in the scripts → word in `key_pattern`.
_NAMED = {
    "leases": "leases",
    "verdicts": "verdicts",
    "record": "once",
    "idempotency": "idempotency",
    "batch": "batch",
    "members": "members",
}
_STATES = frozenset(state.value for state in State)
_EVERY_KEY = frozenset({*NAMES, "leases", "verdicts", "batch", "members"})
_READS = {
    "HGETALL": {"queue", "consumers", "tasks", SUBSCRIPTIONS.decode(), UNROUTABLE.decode()},
    "HGET": {"tasks"},
    "SISMEMBER": {QUEUES.decode()},
    "SMEMBERS": {QUEUES.decode(), SCHEDULED_QUEUES.decode()},
    "XRANGE": {"journal"},
    "XREAD": {"journal"},
    "XREVRANGE": {"journal", AUDIT.decode()},
    "ZCARD": set(_STATES),
    "ZRANGE": {*_STATES, "batches", "batches_ended"},
    "ZREVRANGE": {"batches", "batches_ended"},
}
#: What carries the entries of an outbox, and looks at the members of a batch.
_CARRIES = {"ZRANGE": {"outbox"}, "ZREM": {"outbox"}, "HSCAN": {"members"}}
#: Commands that clients send without a script, with their keys: a queue's by word, other keys in full.
PLAIN: dict[RedisRole, dict[str, set[str]]] = {
    RedisRole.VIEW: _READS,
    RedisRole.SEND: {**_CARRIES, "SADD": {QUEUES.decode(), SCHEDULED_QUEUES.decode()}, "HDEL": {"queue"}},
    RedisRole.CONSUME: {
        "SADD": {QUEUES.decode()},
        "SMEMBERS": {QUEUES.decode(), SCHEDULED_QUEUES.decode()},
        "BZPOPMIN": {"marker"},
        "ZADD": {"marker"},
        "ZCARD": {"ready"},
        "XRANGE": {"leases"},
        "HGET": {"queue"},
        "HMGET": {"verdicts"},
    },
    RedisRole.PIPELINE: {
        **_READS,
        "HSETNX": {"queue"},
        "HSET": {"queue"},
        "HDEL": {"queue"},
    },
    RedisRole.OPERATE: {
        **_READS,
        **_CARRIES,
        "ZRANGE": {*_READS["ZRANGE"], "outbox"},
        "HGETALL": {*_READS["HGETALL"], TOKENS.decode()},
        "SADD": {QUEUES.decode(), SCHEDULED_QUEUES.decode()},
        "SREM": {QUEUES.decode(), SCHEDULED_QUEUES.decode()},
        "XADD": {AUDIT.decode()},
        "HKEYS": {"queue"},
        "UNLINK": set(_EVERY_KEY),
        "HSET": {"queue", "history", TOKENS.decode()},
        "HDEL": {"queue", "consumers", TOKENS.decode()},
        "GET": {SESSIONS, "idempotency"},
        "SET": {SESSIONS, "idempotency"},
        "DEL": {SESSIONS},
    },
}
#: Rights that every client needs to connect and to call scripts: login, database, INFO, scripts and cluster slots.
#: CONFIG GET is not among them, because it shows the default user's password.
_EVERY_CLIENT = [
    "+@connection",
    "-@dangerous",
    "+info",
    "+time",
    "+acl|whoami",
    "+cluster|slots",
    "+script|load",
    "+type",
]
#: Ends a consumer's wait when the next message is due.
_CONSUMERS = "+client|unblock"
#: Commands that only read: their selectors grant read access only.
READING = frozenset(
    {
        *("EXISTS", "GET"),
        *("HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN"),
        *("SISMEMBER", "SMEMBERS"),
        *("XRANGE", "XREAD", "XREVRANGE"),
        *("ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGE", "ZSCORE"),
    }
)
#: Lua files with shared functions.
SHARED = ("prelude", "moves", *sorted(frozenset().union(*PARTS.values()) - {*WHOLE.values()}))
#: Placeholder for a password's hash. A server refuses it, so a line pasted unchanged creates no user.
PLACEHOLDER = "#SHA256-OF-THE-PASSWORD"

_CALL = re.compile(r"\bcall\('([A-Z]+)'((?:,[^,()]+(?:\([^()]*\))?)*)")
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_CALLED = re.compile(r"\b(\w+)\(")
_WHOLE = re.compile(rf"\brequire\('({'|'.join(WHOLE.values())})'\)")
_COMMENT = re.compile(r"--[^\n]*")


def _text(name: str) -> str:
    text = resources.files("restante.core").joinpath("lua", f"{name}.lua").read_text()
    return _COMMENT.sub("", text)


@cache
def _functions() -> dict[str, str]:
    """The functions that verbs share, by name."""
    return {match[1]: match[0] for name in SHARED for match in _FUNCTION.finditer(_text(name))}


def _reached(text: str) -> Iterator[str]:
    """Yields a verb's text and the text of every shared function that it may call."""
    known, seen, waiting = _functions(), {""}, [text]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [_text(name) for name in _WHOLE.findall(part)]
        fresh = {name for name in _CALLED.findall(part) if name in known} - seen
        seen |= fresh
        waiting += [known[name] for name in fresh]


def _words(command: str, arguments: str) -> frozenset[str]:
    """The keys that a call in a script may use, by its variable names; if these name no key, those of every state."""
    given = [argument for argument in arguments.split(",") if argument.strip()]
    named = set(re.findall(r"[a-z_]+", " ".join(given[:2] if command == "RENAME" else given[:1])))
    keys = frozenset(_NAMED.get(word, word) for word in named if word in _NAMED or word in NAMES)
    return keys or (_STATES if given else frozenset())


@cache
def script_calls(name: str) -> dict[str, frozenset[str]]:
    """Returns the commands of a script, each with the words of the keys that it may use."""
    calls: dict[str, frozenset[str]] = {}
    for part in _reached(_text(name)):
        for command, arguments in _CALL.findall(part):
            calls[command] = calls.get(command, frozenset()) | _words(command, arguments)
    return calls


@cache
def _sha(name: str) -> str:
    """The hash under which a server caches a script."""
    return Script(name, "").sha.decode()


def granted(roles: Sequence[RedisRole]) -> dict[str, frozenset[str]]:
    """Returns every command with keys that these roles may use, with the words of the keys."""
    rights: dict[str, frozenset[str]] = {}
    for role in roles:
        sources: list[Mapping[str, Set[str]]] = [PLAIN[role], *map(script_calls, SCRIPTS[role])]
        for calls in sources:
            for command, words in calls.items():
                if words:
                    rights[command] = rights.get(command, frozenset()) | words
    return rights


def _patterns(word: str, queues: Sequence[str]) -> list[str]:
    if word not in NAMES and word not in _NAMED.values():
        return [word]
    return [key_pattern(word, queue, named=word in _NAMED.values()) for queue in queues]


def rules(roles: Sequence[RedisRole], queues: Sequence[str] = ()) -> list[str]:
    """Returns the access rules for these roles, for the given queues or for all."""
    chosen = queues or ("*",)
    texts = [*_EVERY_CLIENT, *([_CONSUMERS] if RedisRole.CONSUME in roles else [])]
    texts += [f"+evalsha|{_sha(name)}" for name in sorted(frozenset().union(*(SCRIPTS[role] for role in roles)))]
    texts += [f"~{key_pattern('*', queue)}" for queue in chosen]
    selectors: dict[tuple[bool, frozenset[str]], list[str]] = {}
    for command, words in sorted(granted(roles).items()):
        selectors.setdefault((command not in READING, words), []).append(command)
    for (writes, words), commands in sorted(selectors.items(), key=lambda item: (item[0][0], item[1])):
        mark = "~" if writes else "%R~"
        keys = [f"{mark}{pattern}" for word in sorted(words) for pattern in _patterns(word, chosen)]
        texts.append(f"({' '.join(keys + [f'+{command.lower()}' for command in commands])})")
    return texts


def set_user(user: str, roles: Sequence[RedisRole], queues: Sequence[str] = (), password: str | None = None) -> str:
    """The command that creates the user. It contains the password's hash, never the password."""
    secret = PLACEHOLDER if password is None else f"#{hashlib.sha256(password.encode()).hexdigest()}"
    return " ".join(["ACL SETUSER", user, "reset", "on", secret, *rules(roles, queues)])


def add_rights(user: str, roles: Sequence[RedisRole], queues: Sequence[str] = ()) -> str:
    """The command that adds these rights to a user's existing ones, so that both versions work during an upgrade."""
    return " ".join(["ACL SETUSER", user, *rules(roles, queues)])


def role_for_script(name: str) -> RedisRole | None:
    """The first role that may run a script of the core, or None."""
    return next((role for role in RedisRole if name in SCRIPTS[role]), None)


def role_for_command(command: str, key: bytes) -> RedisRole | None:
    """The first role that may use a plain command on a key, or None."""
    text = key.decode("utf-8", "replace")
    word = text.rpartition("}:")[2].partition(":")[0] if "}:" in text else text
    return next((role for role in RedisRole if word in PLAIN[role].get(command, ())), None)
