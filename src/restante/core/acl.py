"""Users of Redis 7 and Valkey with the least rights for what they do: commands and keys by role; no I/O.

The server checks every command of a script, with its key, against the user who calls the script. A role's rights are
therefore read from the scripts that it runs (`script_calls`), and a new verb brings its rights with it. Commands that
clients send without a script are listed in `PLAIN`.

The rules stand in selectors, so that a command is allowed on the keys it is needed for and on no other. EVALSHA is
allowed for the role's own scripts, named by their hashes: a script that the role may not run is refused before its
first command, because Lua does not undo what a script did before a refusal. The price is that scripts of another
version of Restante have other hashes, so their rights must be added before an upgrade.
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
    SESSIONS,
    SUBSCRIPTIONS,
    TOKENS,
    UNROUTABLE,
    key_pattern,
)
from restante.core.message import State
from restante.core.operations import Script


class RedisRole(enum.StrEnum):
    """What a user of the Redis server is for; several may be combined."""

    #: Look: counts, lists, messages, consumers, journals, the audit, the doctor.
    VIEW = "view"
    #: Send messages.
    SEND = "send"
    #: Receive, renew and settle messages; sweep.
    CONSUME = "consume"
    #: Read journals as a registered reader, and snapshots of queues.
    PIPELINE = "pipeline"
    #: Look and do all that operators do: replay, delete, purge, edit, move, drop, configure, tokens.
    OPERATE = "operate"


#: The scripts each role runs.
SCRIPTS: dict[RedisRole, frozenset[str]] = {
    RedisRole.VIEW: frozenset({"counts", "list", "show"}),
    RedisRole.SEND: frozenset({"configure", "throttle", "send"}),
    RedisRole.CONSUME: frozenset(
        {"ack", "bury", "claim", "clear", "configure", "extend", "hold", "nack", "receive", "release"}
    ),
    RedisRole.PIPELINE: frozenset({"counts", "list", "show"}),
    RedisRole.OPERATE: frozenset(
        {"configure", "counts", "delete", "edit", "list", "move", "purge", "replay", "send", "show"}
    ),
}
#: Keys of a queue that carry a further name, by their word in `key_pattern` and in the scripts.
_NAMED = {"leases": "leases", "verdicts": "verdicts", "record": "once", "idempotency": "idempotency"}
_STATES = frozenset(state.value for state in State)
_EVERY_KEY = frozenset({*NAMES, "leases", "verdicts"})
_LOOKING = {
    "HGETALL": {"queue", "consumers", "tasks", SUBSCRIPTIONS.decode(), UNROUTABLE.decode()},
    "HGET": {"tasks"},
    "SISMEMBER": {QUEUES.decode()},
    "SMEMBERS": {QUEUES.decode()},
    "XRANGE": {"journal"},
    "XREAD": {"journal"},
    "XREVRANGE": {"journal", AUDIT.decode()},
    "ZCARD": set(_STATES),
    "ZRANGE": set(_STATES),
}
#: Commands that clients send without a script: the keys of a queue by their words, other keys whole.
PLAIN: dict[RedisRole, dict[str, set[str]]] = {
    RedisRole.VIEW: _LOOKING,
    RedisRole.SEND: {"SADD": {QUEUES.decode()}, "HDEL": {"queue"}},
    RedisRole.CONSUME: {
        "SADD": {QUEUES.decode()},
        "SMEMBERS": {QUEUES.decode()},
        "BZPOPMIN": {"marker"},
        "ZADD": {"marker"},
        "ZCARD": {"ready"},
        "XRANGE": {"leases"},
        "HGET": {"queue"},
        "HMGET": {"verdicts"},
    },
    RedisRole.PIPELINE: {
        **_LOOKING,
        "HSETNX": {"queue"},
        "HSET": {"queue"},
        "HDEL": {"queue"},
    },
    RedisRole.OPERATE: {
        **_LOOKING,
        "HGETALL": {*_LOOKING["HGETALL"], TOKENS.decode()},
        "SADD": {QUEUES.decode()},
        "SREM": {QUEUES.decode()},
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
#: What every client needs before its first call and between calls: login, database, what the server is, its scripts and
#: its slots. CONFIG GET is not among them: it shows the default user's password.
_EVERYBODY = [
    "+@connection",
    "-@dangerous",
    "+info",
    "+time",
    "+acl|whoami",
    "+cluster|slots",
    "+script|load",
    "+type",
]
#: Ends a consumer's sleep when the next message is due.
_CONSUMERS = "+client|unblock"
#: Commands that change nothing: their selectors give the right to read alone.
READING = frozenset(
    {
        *("EXISTS", "GET"),
        *("HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET"),
        *("SISMEMBER", "SMEMBERS"),
        *("XRANGE", "XREAD", "XREVRANGE"),
        *("ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGE", "ZSCORE"),
    }
)
#: Files of functions that verbs share.
SHARED = ("prelude", "moves", "settling")
#: Stands where a password's hash belongs. A server refuses it, so a line pasted as it is makes no user.
PLACEHOLDER = "#SHA256-OF-THE-PASSWORD"

_CALL = re.compile(r"\bcall\('([A-Z]+)'((?:,[^,()]+(?:\([^()]*\))?)*)")
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_CALLED = re.compile(r"\b(\w+)\(")
_COMMENT = re.compile(r"--[^\n]*")


def _text(name: str) -> str:
    text = resources.files("restante.core").joinpath("lua", f"{name}.lua").read_text()
    return _COMMENT.sub("", text)


@cache
def _functions() -> dict[str, str]:
    """The functions that verbs share, by name."""
    return {found[1]: found[0] for name in SHARED for found in _FUNCTION.finditer(_text(name))}


def _reached(text: str) -> Iterator[str]:
    """A verb's text, and that of every shared function it may come to."""
    known, seen, waiting = _functions(), {""}, [text]
    while waiting:
        part = waiting.pop()
        yield part
        fresh = {name for name in _CALLED.findall(part) if name in known} - seen
        seen |= fresh
        waiting += [known[name] for name in fresh]


def _words(command: str, arguments: str) -> frozenset[str]:
    """The keys that a call in a script may mean, by the names of its variables; every state where that says nothing."""
    given = [one for one in arguments.split(",") if one.strip()]
    named = set(re.findall(r"[a-z_]+", " ".join(given[:2] if command == "RENAME" else given[:1])))
    found = frozenset(_NAMED.get(word, word) for word in named if word in _NAMED or word in NAMES)
    return found or (_STATES if given else frozenset())


@cache
def script_calls(name: str) -> dict[str, frozenset[str]]:
    """The commands of a script, each with the words of the keys it may use."""
    made: dict[str, frozenset[str]] = {}
    for part in _reached(_text(name)):
        for command, arguments in _CALL.findall(part):
            made[command] = made.get(command, frozenset()) | _words(command, arguments)
    return made


@cache
def _sha(name: str) -> str:
    """The hash by which a server knows a script."""
    return Script(name, "").sha.decode()


def granted(roles: Sequence[RedisRole]) -> dict[str, frozenset[str]]:
    """Every keyed command that these roles may use, with the words of the keys."""
    made: dict[str, frozenset[str]] = {}
    for role in roles:
        sources: list[Mapping[str, Set[str]]] = [PLAIN[role], *map(script_calls, SCRIPTS[role])]
        for calls in sources:
            for command, words in calls.items():
                if words:
                    made[command] = made.get(command, frozenset()) | words
    return made


def _patterns(word: str, queues: Sequence[str]) -> list[str]:
    if word not in NAMES and word not in _NAMED.values():
        return [word]
    return [key_pattern(word, queue, named=word in _NAMED.values()) for queue in queues]


def rules(roles: Sequence[RedisRole], queues: Sequence[str] = ()) -> list[str]:
    """The rules of a user with these roles, for the queues named or for all."""
    chosen = queues or ("*",)
    made = [*_EVERYBODY, *([_CONSUMERS] if RedisRole.CONSUME in roles else [])]
    made += [f"+evalsha|{_sha(name)}" for name in sorted(frozenset().union(*(SCRIPTS[role] for role in roles)))]
    made += [f"~{key_pattern('*', queue)}" for queue in chosen]
    selectors: dict[tuple[bool, frozenset[str]], list[str]] = {}
    for command, words in sorted(granted(roles).items()):
        selectors.setdefault((command not in READING, words), []).append(command)
    for (writes, words), commands in sorted(selectors.items(), key=lambda one: (one[0][0], one[1])):
        mark = "~" if writes else "%R~"
        keys = [f"{mark}{pattern}" for word in sorted(words) for pattern in _patterns(word, chosen)]
        made.append(f"({' '.join(keys + [f'+{command.lower()}' for command in commands])})")
    return made


def set_user(user: str, roles: Sequence[RedisRole], queues: Sequence[str] = (), password: str | None = None) -> str:
    """The command that makes the user. The password's hash stands in it, never the password."""
    secret = PLACEHOLDER if password is None else f"#{hashlib.sha256(password.encode()).hexdigest()}"
    return " ".join(["ACL SETUSER", user, "reset", "on", secret, *rules(roles, queues)])


def add_rights(user: str, roles: Sequence[RedisRole], queues: Sequence[str] = ()) -> str:
    """The command that gives a user these rights beside those it has: before an upgrade, for both versions."""
    return " ".join(["ACL SETUSER", user, *rules(roles, queues)])


def role_for_script(name: str) -> RedisRole | None:
    """The first role that may run a script of the core."""
    return next((role for role in RedisRole if name in SCRIPTS[role]), None)


def role_for_command(command: str, key: bytes) -> RedisRole | None:
    """The first role that may use a plain command on a key."""
    text = key.decode("utf-8", "replace")
    word = text.rpartition("}:")[2].partition(":")[0] if "}:" in text else text
    return next((role for role in RedisRole if word in PLAIN[role].get(command, ())), None)
