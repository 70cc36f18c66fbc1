"""Everything a queue holds in Redis, decoded into plain dicts, and what must be true of it at every moment."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

import redis

from restante.core.journal import COLUMNS
from restante.core.keys import QueueKeys
from restante.core.message import STATE_LETTERS, JournalEvent, State
from tests.core.verbs import CONSUMER
from tests.harness.servers import call

Dump = dict[str, dict[str, Any]]

STATES: Final = tuple(state.value for state in State)
#: The states whose score is a time at which something must happen.
TIMED: Final = ("scheduled", "retrying", "leased")
#: Room for sequence numbers below each priority in a score of `ready`.
SPAN: Final = 2**44
#: The settings that the packed field holds behind the version, in order.
PACKED: Final = (
    "journal",
    "pause",
    "lease_ms",
    "max_attempts",
    "dedup_ms",
    "keep_done",
    "max_leased",
    "rate",
    "max_length",
    "max_dead",
    "max_payload_bytes",
)

#: Reads all keys by one call. ARGV: the kind of each key, then the entry of the journal to begin at. Returns the number
#: of the journal's entries and the content of each key. The client's own reading of a stream makes dicts, in which
#: fields of the same name vanish.
_READ: Final = """
local made, entries = {}, 0
for i, key in ipairs(KEYS) do
  if ARGV[i] == 'zset' then
    made[i] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif ARGV[i] == 'journal' then
    made[i] = redis.call('XRANGE', key, ARGV[#KEYS + 1], '+')
    entries = redis.call('XLEN', key)
  elseif ARGV[i] == 'stream' then
    made[i] = redis.call('XRANGE', key, '-', '+')
  else
    made[i] = redis.call('HGETALL', key)
  end
end
return { entries, made }
"""

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
    lease, facts, place, limits, *note = raw.decode().split("\n")
    expires, _, token = lease.partition(" ")
    names = ("sent_at", "kind", "priority", "size", "attempts", "consumer")
    return {
        "lease_expires_at": int(expires),
        "token": token,
        **_typed(names, facts.split("\t")),
        **_typed(("sequence", "received_at", "replays"), place.split("\t")),
        "limits": limits,
        **({"progress": note[0]} if note else {}),
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


@functools.lru_cache(maxsize=4096)
def _row(id: bytes, raw: bytes) -> dict[str, Any]:
    """A row of a lease journal."""
    token, facts, stored = raw.split(b"\n", 2)
    attempts, received = facts.decode().split("\t")
    return {
        "id": id.decode(),
        "token": token.decode(),
        "attempts": int(attempts),
        "received_at": int(received),
        "stored": _stored(stored),
    }


class Journal:
    """A journal as far as it was read, and what its lines add up to.

    It is kept from one dump to the next to read and to count only what is new: an entry of a stream never changes, and
    one that was removed makes the stream shorter, after which all of it is read again.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """From now on all is read again."""
        #: The lines by their numbers, and the stored forms beside them by the number of their entry's last line.
        self.lines: dict[str, Any] = {}
        self.payloads: dict[str, Any] = {}
        #: The state that the last line of each message tells, and how many lines each event has.
        self.states: dict[str, str] = {}
        self.events: dict[str, int] = {}
        #: Whether the numbers begin at 1 and leave none out.
        self.dense = True
        #: How many lines the test has compared with those it expects.
        self.compared = 0
        #: Entries read, and the last of them.
        self.entries = 0
        self.last: tuple[bytes, list[bytes]] | None = None

    @property
    def start(self) -> bytes:
        """Where to begin to read: at the last entry known, which must still be there."""
        return b"-" if self.last is None else self.last[0]

    def read(self, found: list[tuple[bytes, list[bytes]]], length: int) -> bool:
        """Takes what was found from `start` on; false if an entry read before is gone."""
        if self.last is not None:
            if not found or found[0] != self.last:
                return False
            found = found[1:]
        if self.entries + len(found) != length:
            return False
        for entry in found:
            self._add_entry(*entry)
            self.last = entry
        self.entries = length
        return True

    def add(self, lines: Mapping[str, dict[str, Any]]) -> None:
        """Counts further lines."""
        for number, line in lines.items():
            assert number not in self.lines, "two entries of the journal hold the same number"
            self.lines[number] = line
            self.dense = self.dense and int(number) == len(self.lines)
            self.states[line["message_id"]] = line["state"]
            self.events[line["event"]] = self.events.get(line["event"], 0) + 1

    def _add_entry(self, id: bytes, fields: list[bytes]) -> None:
        name, block, *beside = fields
        assert name == b"e"
        self.add(_lines(id, block))
        if beside:
            assert len(set(beside[::2])) == len(beside) // 2, "two stored forms of one message in one entry"
            forms = zip(beside[::2], beside[1::2], strict=True)
            self.payloads[id.decode().partition("-")[2]] = {key.decode(): _stored(raw) for key, raw in forms}


def _leases(entries: list[tuple[bytes, list[bytes]]]) -> dict[str, Any]:
    """The rows of a lease journal by their numbers; an entry's id is the number of its last row."""
    made: dict[str, Any] = {}
    for id, fields in entries:
        first = int(id.decode().partition("-")[2]) - len(fields) // 2 + 1
        for at, (key, raw) in enumerate(zip(fields[::2], fields[1::2], strict=True), first):
            assert str(at) not in made, "two entries of the lease journal hold the same number"
            made[str(at)] = _row(key, raw)
    return made


def _kind(name: str) -> str:
    if name in (*STATES, "marker", "cancelled", "ticks"):
        return "zset"
    return {"journal": "journal", "leases": "stream"}.get(name, "hash")


@functools.cache
def _places(queue: str) -> tuple[tuple[str, ...], tuple[bytes | str, ...]]:
    """The names of all keys of a queue and its consumer; the keys themselves, and their kinds."""
    keys = QueueKeys(queue)
    places = dict(keys.by_name)
    places["leases"], places["verdicts"] = keys.lease_journal(CONSUMER)
    return tuple(places), (*places.values(), *map(_kind, places))


def dump(client: redis.Redis, queue: str, known: Journal | None = None) -> Dump:
    """Every key of the queue by its last word; keys that do not exist are left out.

    Beside the journal, `payloads` has the stored forms of its entries; `leases` and `verdicts` are the consumer's.
    With what is `known` of the journal only the rest is read, and `known` is then all of it.
    """
    journal = known or Journal()
    names, words = _places(queue)
    length, contents = call(client, "EVAL", _READ, len(names), *words, journal.start)
    if not journal.read(contents[names.index("journal")], length):
        journal.forget()
        return dump(client, queue, journal)
    made: Dump = {}
    for name, found in zip(names, contents, strict=True):
        if name == "journal":
            made |= {key: held for key, held in (("journal", journal.lines), ("payloads", journal.payloads)) if held}
            continue
        if not found:
            continue
        pairs = zip(found[::2], found[1::2], strict=True)
        if _kind(name) == "zset":
            made[name] = {member.decode(): int(float(score)) for member, score in pairs}
        elif name == "leases":
            made[name] = _leases(found)
        elif name == "messages":
            made[name] = {id.decode(): _stored(raw) for id, raw in pairs}
        elif name == "deliveries":
            made[name] = {id.decode(): _delivery(raw) for id, raw in pairs}
        elif name == "history":
            made[name] = {id.decode(): [line.split("\t") for line in raw.decode().splitlines()] for id, raw in pairs}
        elif name == "queue":
            made[name] = {key.decode(): _number(value.decode()) for key, value in pairs}
        else:
            made[name] = {key.decode(): value.decode() for key, value in pairs}
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


def violations(found: Dump, journal: Journal | None = None) -> list[str]:
    """What is not as it must be after every call, whatever was called; empty when all is well.

    `journal` is what was given to `dump` as known, if anything was.
    """
    if journal is None:
        journal = Journal()
        journal.add(found.get("journal", {}))
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
    wrong += [
        f"{id} has a progress and is not leased"
        for id, delivery in deliveries.items()
        if "progress" in delivery and id not in found.get("leased", {})
    ]
    held = {delivery["token"] for id, delivery in deliveries.items() if id in found.get("leased", {})}
    wrong += [f"{token} is cancelled and holds a message" for token in found.get("cancelled", {}) if token in held]
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
        if len(parts) not in (4, 5) or parts[3] != key:
            wrong.append(f"the unique key {key} is held by {id}, which is gone or has another")
        elif id in places and _LETTERS[places[id][0]] not in parts[2]:
            wrong.append(f"the unique key {key} is held by {id} while it is {places[id][0]}")
    schedules = found.get("schedules", {})
    wrong += [f"{name} ticks and is no schedule" for name in found.get("ticks", {}) if name not in schedules]
    if queue.get("schedules", 0) != len(schedules):
        wrong.append(f"the queue says {queue.get('schedules', 0)} schedules, there are {len(schedules)}")
    return wrong + _settings_violations(queue) + _journal_violations(queue, journal, places) + _lease_violations(found)


def _settings_violations(queue: Mapping[str, Any]) -> list[str]:
    """The verbs read one packed field; it must say what the fields say that operators see."""
    told = [str(queue.get(name, "")) for name in PACKED]
    version = str(queue.get("version", 0))
    wished = "\t".join([version, *told]) if any(told) else version
    # A queue that only a move has written to has no settings yet.
    said = str(queue.get("settings", "0"))
    return [] if said == wished else [f"the packed settings say {said!r}, the fields {wished!r}"]


def _journal_violations(queue: Mapping[str, Any], journal: Journal, places: Mapping[str, list[str]]) -> list[str]:
    wrong: list[str] = []
    last = queue.get("sequence", 0) - queue.get("journal_skip", 0)
    if not journal.dense or len(journal.lines) != last:
        wrong.append(
            f"the journal has {len(journal.lines)} entries up to {[*journal.lines][-1:]}, the queue counted {last}"
        )
    if queue.get("journal_skip", 0) == 0:
        told, seen = journal.states, journal.events
        wrong += [
            f"{id} is {states[0]} and the journal says {told.get(id)}"
            for id, states in places.items()
            if told.get(id) != states[0]
        ]
        wrong += [
            f"the total of {event} is {queue.get(event, 0)}, the journal has {seen.get(event, 0)}"
            for event in JournalEvent
            if queue.get(event, 0) != seen.get(event, 0)
        ]
    return wrong


def _lease_violations(found: Dump) -> list[str]:
    """Rows of a lease journal are numbered without gaps up to the last that its holder knows of."""
    told = str(found.get("queue", {}).get(f"holder:{CONSUMER}", "")).split("\t")
    last, numbers = int(told[2]) if len(told) > 2 else 0, [int(number) for number in found.get("leases", {})]
    if numbers and numbers != list(range(last - len(numbers) + 1, last + 1)):
        return [f"the lease journal has the rows {numbers}, its holder knows of {last}"]
    return []
