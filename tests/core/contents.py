"""Everything a queue holds in Redis, decoded into plain dicts, and what must be true of it at every moment."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

import redis

from restante.core.journal import COLUMNS
from restante.core.keys import NAMES, QueueKeys
from restante.core.message import STATE_LETTERS, Event, State

Dump = dict[str, dict[str, Any]]

STATES: Final = tuple(state.value for state in State)
#: The states whose score is a time at which something must happen.
TIMED: Final = ("scheduled", "retrying", "leased")
#: Room for sequence numbers below each priority in a score of `ready`.
SPAN: Final = 2**44
#: The settings that the packed field holds behind the version, in order.
PACKED: Final = (
    "journal", "pause", "lease_ms", "max_attempts", "dedup_ms", "keep_done", "max_leased", "rate", "max_length",
    "max_dead", "max_payload_bytes",
)  # fmt: skip

_LETTERS: Final = {state.value: letter for state, letter in STATE_LETTERS.items()}
_NUMBERS: Final = frozenset(
    {
        "lease_expires_at",
        "attempts",
        "sequence",
        "received_at",
        "replays",
        "sent_at",
        "priority",
        "size",
        "at",
        "due_at",
    }
)


def position(priority: int, sequence: int) -> int:
    """The score of a ready message."""
    return (255 - priority) * SPAN + sequence


def _typed(names: tuple[str, ...], values: list[str]) -> dict[str, Any]:
    return {
        name: int(value) if name in _NUMBERS and value else value for name, value in zip(names, values, strict=True)
    }


@functools.lru_cache(maxsize=4096)
def _stored(raw: bytes) -> dict[str, Any]:
    """A message by the layout that stored.py describes, read without its help."""
    sequence, facts, limits, rest = raw.split(b"\n", 3)
    sent_at, kind, priority, size = facts.decode().split("\t")
    checksum, length = int.from_bytes(rest[:4]), int.from_bytes(rest[4:6])
    options, body = rest[6 : 6 + length], rest[6 + length :]
    made: dict[str, Any] = {
        "sequence": int(sequence),
        "sent_at": int(sent_at),
        "kind": kind,
        "priority": int(priority),
        "limits": limits.decode(),
        "body": body,
    }
    if options:
        made["options"] = json.loads(options)
    head = facts.partition(b"\t")[2] + b"\n" + limits + b"\n"
    if checksum != zlib.crc32(head + rest[4:]) or int(size) != len(body):
        made["corrupt"] = True
    return made


@functools.lru_cache(maxsize=4096)
def _delivery(raw: bytes) -> dict[str, Any]:
    lease, facts, place, limits = raw.decode().split("\n")
    expires, _, token = lease.partition(" ")
    names = ("sent_at", "kind", "priority", "size", "attempts", "consumer")
    return {
        "lease_expires_at": int(expires),
        "token": token,
        **_typed(names, facts.split("\t")),
        **_typed(("sequence", "received_at", "replays"), place.split("\t")),
        "limits": limits,
    }


@functools.lru_cache(maxsize=8192)
def _lines(id: bytes, block: bytes) -> dict[str, dict[str, Any]]:
    """The lines of one stream entry by their numbers; the entry's id is the number of its last line."""
    zero, _, last = id.decode().partition("-")
    assert zero == "0"
    lines = block.decode().split("\n")
    made = {}
    for number, line in enumerate(lines, int(last) - len(lines) + 1):
        made[str(number)] = entry = _typed(COLUMNS, line.split("\t"))
        assert entry.pop("format") == "1"
    return made


def dump(client: redis.Redis, queue: str) -> Dump:
    """Every key of the queue by its last word; keys that do not exist are left out."""
    keys = QueueKeys(queue)
    pipe = client.pipeline(transaction=False)
    kinds = {
        name: "zset" if name in (*STATES, "marker") else "stream" if name == "journal" else "hash" for name in NAMES
    }
    for name in NAMES:
        if kinds[name] == "zset":
            pipe.zrange(keys[name], 0, -1, withscores=True)
        elif kinds[name] == "stream":
            pipe.xrange(keys[name])
        else:
            pipe.hgetall(keys[name])
    made: Dump = {}
    for name, reply in zip(NAMES, pipe.execute(), strict=True):
        found: Any = reply
        if not found:
            continue
        if kinds[name] == "zset":
            made[name] = {member.decode(): int(score) for member, score in found}
        elif kinds[name] == "stream":
            blocks = [_lines(id, fields[b"e"]) for id, fields in found]
            made[name] = {number: line for block in blocks for number, line in block.items()}
            assert len(made[name]) == sum(map(len, blocks)), "two entries of the journal hold the same number"
        elif name == "messages":
            made[name] = {id.decode(): _stored(raw) for id, raw in found.items()}
        elif name == "deliveries":
            made[name] = {id.decode(): _delivery(raw) for id, raw in found.items()}
        elif name == "history":
            made[name] = {
                id.decode(): [line.split("\t") for line in raw.decode().splitlines()] for id, raw in found.items()
            }
        elif name == "queue":
            made[name] = {key.decode(): _number(value.decode()) for key, value in found.items()}
        else:
            made[name] = {key.decode(): value.decode() for key, value in found.items()}
    return made


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def hint(found: Dump) -> int | None:
    """The lower bound of the next due time that the queue keeps."""
    known = found.get("queue", {}).get("due", "")
    return None if known == "" else int(known)


def changes(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Per key the members that differ, each with its value afterwards, None where it is gone."""
    made: dict[str, Any] = {}
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key, {}), after.get(key, {})
        differ = {member: new.get(member) for member in [*old, *new] if old.get(member) != new.get(member)}
        if differ:
            made[key] = differ
    return made


def violations(found: Dump) -> list[str]:
    """What is not as it must be after every call, whatever was called; empty when all is well."""
    wrong: list[str] = []
    queue = found.get("queue", {})
    messages, deliveries = found.get("messages", {}), found.get("deliveries", {})
    places: dict[str, list[str]] = {}
    for state in STATES:
        for id in found.get(state, {}):
            places.setdefault(id, []).append(state)
    wrong += [f"{id} is in {' and '.join(states)}" for id, states in places.items() if len(states) > 1]
    wrong += [f"{id} is {states[0]} without a payload" for id, states in places.items() if id not in messages]
    wrong += [f"{id} has a payload and no state" for id in messages if id not in places]
    wrong += [f"{id} is corrupt" for id, stored in messages.items() if "corrupt" in stored]
    wrong += [f"{id} has a delivery and no message" for id in deliveries if id not in messages]
    wrong += [f"{id} has a history and no message" for id in found.get("history", {}) if id not in messages]
    for id, expires in found.get("leased", {}).items():
        if id not in deliveries:
            wrong.append(f"{id} is leased without a delivery")
        elif deliveries[id]["lease_expires_at"] != expires:
            wrong.append(f"{id} is leased until {expires}, its delivery says {deliveries[id]['lease_expires_at']}")
        elif deliveries[id]["token"] in ("", "-"):
            wrong.append(f"{id} is leased without a token")
    # A mark in place of a token says that the last attempt ended without a word; it stands until the next.
    wrong += [
        f"{id} has the token {delivery['token']} of a lease it is not under"
        for id, delivery in deliveries.items()
        if id not in found.get("leased", {})
        and (delivery["lease_expires_at"] or delivery["token"] not in ("", "-" if id in found.get("ready", {}) else ""))
    ]
    for id, score in found.get("ready", {}).items():
        if id in messages and score // SPAN != 255 - messages[id]["priority"]:
            wrong.append(f"{id} of priority {messages[id]['priority']} is ready at {255 - score // SPAN}")
    waiting = [min(found[state].values()) for state in TIMED if state in found]
    known = hint(found)
    if waiting and known is None:
        wrong.append(f"something is due at {min(waiting)} and no hint says so")
    elif waiting and known is not None and known > min(waiting):
        wrong.append(f"the hint says {known}, later than {min(waiting)}")
    for key, id in found.get("unique", {}).items():
        parts = messages[id]["limits"].split("\t") if id in messages else []
        if len(parts) != 4 or parts[3] != key:
            wrong.append(f"the unique key {key} is held by {id}, which is gone or has another")
        elif id in places and _LETTERS[places[id][0]] not in parts[2]:
            wrong.append(f"the unique key {key} is held by {id} while it is {places[id][0]}")
    return wrong + _settings_violations(queue) + _journal_violations(found, places)


def _settings_violations(queue: Mapping[str, Any]) -> list[str]:
    """The verbs read one packed field; it must say what the fields say that operators see."""
    told = [str(queue.get(name, "")) for name in PACKED]
    version = str(queue.get("version", 0))
    wished = "\t".join([version, *told]) if any(told) else version
    # A queue that only a move has written to has no settings yet.
    said = str(queue.get("settings", "0"))
    return [] if said == wished else [f"the packed settings say {said!r}, the fields {wished!r}"]


def _journal_violations(found: Dump, places: Mapping[str, list[str]]) -> list[str]:
    wrong: list[str] = []
    queue, journal = found.get("queue", {}), found.get("journal", {})
    last = queue.get("sequence", 0) - queue.get("journal_skip", 0)
    numbers = [int(number) for number in journal]
    if numbers != list(range(1, last + 1)):
        wrong.append(f"the journal has {len(numbers)} entries up to {numbers[-1:]}, the queue counted {last}")
    told: dict[str, str] = {}
    seen: dict[str, int] = {}
    for entry in journal.values():
        told[entry["message_id"]] = entry["state"]
        count = int(entry["detail"].partition(":")[2]) if entry["event"] == "purged" else 1
        seen[entry["event"]] = seen.get(entry["event"], 0) + count
    if queue.get("journal_skip", 0) == 0:
        wrong += [
            f"{id} is {states[0]} and the journal says {told.get(id)}"
            for id, states in places.items()
            if told.get(id) != states[0]
        ]
        wrong += [
            f"the total of {event} is {queue.get(event, 0)}, the journal has {seen.get(event, 0)}"
            for event in Event
            if queue.get(event, 0) != seen.get(event, 0)
        ]
    return wrong
