"""The verbs of a batch as operations and flows: open, add, seal, count, check, cancel; no I/O.

A batch has a home: the queue that gets the messages of its end. Its record and its members lie in the slot of that
queue. Each script that ends a message of a batch writes so into the outbox of the message's own queue, in the same
step. The caller then carries the entry to the home (`carrying`), which counts it. On failure the entry stays in the
outbox, and whoever receives from that queue next carries it. An entry that is counted twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from restante.core.errors import BatchEnded, InvalidInput, NotFound, RestanteError
from restante.core.flow import Flow
from restante.core.keys import QueueKeys
from restante.core.message import ENDED, Draft
from restante.core.names import valid_name
from restante.core.operations import MAX_BATCH
from restante.core.operator_verbs import cancel_many
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Argument, Command, Script, ScriptCall
from restante.core.send_options import hooked
from restante.core.settings import milliseconds
from restante.core.stored import encode

log = logging.getLogger("restante")

_HOME = "queue journal messages ready marker outbox batches batches_ended"
BATCH_OPEN = Script("batch_open", "queue journal batches")
BATCH_ADD = Script("batch_add", "queue journal outbox")
BATCH_SEAL = Script("batch_seal", _HOME)
BATCH_COUNT = Script("batch_count", _HOME)
BATCH_CHECK = Script("batch_check", "queue journal messages acked acked_before")
BATCH_SHOW = Script("batch_show", "queue journal")

#: Seconds after which a message that was added to a running batch and not confirmed is asked about. Shorter ones may
#: take a slow sender for a dead one, longer ones let a batch wait for a message that was never sent.
ANNOUNCED = 15.0
#: Entries of an outbox that are read at once, and members of a batch on one page.
PAGE = 200
#: Bytes of the headers of a message that a batch sends at its end. The counts are added to them.
MAX_END_OPTIONS = 16_384
#: Bytes of the payload of such a message: the server computes its checksum.
MAX_END_PAYLOAD = 65_536
#: Sequence number of an entry that no later one of its queue follows.
_LAST = 2**53 - 1


class BatchName(NamedTuple):
    """The home queue and the id of a batch, written with a slash between them."""

    home: str
    id: str

    @classmethod
    def parse(cls, name: str) -> BatchName:
        """Reads a name; raises InvalidInput if it is none."""
        home, slash, id = name.rpartition("/") if isinstance(name, str) else ("", "", "")
        if not slash or not home or not id:
            raise InvalidInput(f"a batch is named by its home queue, a slash and its id, not {name!r}")
        return cls(valid_name(home), valid_name(id, "batch id"))

    def __str__(self) -> str:
        return f"{self.home}/{self.id}"

    @property
    def keys(self) -> QueueKeys:
        return QueueKeys(self.home)


def _call(script: Script, name: BatchName, args: Sequence[Argument], parse: Any, *more: bytes) -> ScriptCall[Any]:
    """A call of a script of the home, with the keys of the batch."""
    keys = name.keys
    record, members = keys.batch(name.id)
    own = (record,) if script is BATCH_OPEN else (record, members)
    return ScriptCall(script, (*keys.group(script.keys), *own, *more), args, parse, name.home)


def opening(name: BatchName, nonce: str, fields: Mapping[str, Argument]) -> ScriptCall[bool]:
    """Creates the record of a batch; returns False if another batch has its id."""
    args: list[Argument] = [name.id, nonce]
    for field, value in fields.items():
        args += (field, value)
    return _call(BATCH_OPEN, name, args, lambda reply: reply == 1)


def adding(name: BatchName, members: Sequence[tuple[str, str]]) -> ScriptCall[bytes]:
    """Adds messages, given as queue and id, before they are sent.

    Returns what announces them in the outbox of the home, nothing if the batch is open. Raises NotFound or BatchEnded.
    """
    args: list[Argument] = [str(name), int(ANNOUNCED * 1000)]
    for queue, id in members:
        args += (queue, id)

    def parse(reply: Any) -> bytes:
        if reply == 0:
            raise not_found(name)
        if reply == -1:
            raise BatchEnded(f"the batch {name} has ended or was cancelled: nothing was sent; open another batch")
        return bytes(reply)

    return _call(BATCH_ADD, name, args, parse)


def sealing(
    name: BatchName, verb: str, announced: bytes = b"", left_out: Sequence[str] = ()
) -> ScriptCall[tuple[str, list[bytes]]]:
    """Verbs seal, confirm and cancel. Returns the state of the batch, and what was put into the outbox of its home."""

    def parse(reply: Any) -> tuple[str, list[bytes]]:
        if not reply[0]:
            raise not_found(name)
        return reply[0].decode(), reply[1:]

    return _call(BATCH_SEAL, name, [str(name), verb, announced, *left_out], parse)


def not_found(name: BatchName) -> NotFound:
    """The error for a batch that does not exist."""
    return NotFound(f"no batch {name}: it was never opened, or ended long ago; see `restante batch ls {name.home}`")


def end_fields(event: str, home: QueueRef, draft: Draft) -> dict[str, Argument]:
    """The message that a batch sends at an event, in the parts between which the server writes the counts."""
    for option in ("delay", "due_at", "id", "unique", "expires"):
        if getattr(draft, option):
            raise InvalidInput(f"on_{event} takes no {option}: the message is sent at once, under an id of the batch")
    if home.sending:
        draft = hooked(home, draft)
    raw, size = encode(
        draft.payload,
        kind=draft.kind,
        priority=draft.priority,
        content_type=draft.content_type,
        lease_ms=None if draft.lease is None else milliseconds(draft.lease, "lease", least=0.001),
        max_attempts=draft.max_attempts,
        retry=draft.retry,
        timeout_ms=None if draft.timeout is None else milliseconds(draft.timeout, "timeout", least=0.001),
        headers={**(draft.headers or {}), "batch": None},
    )
    if size > MAX_END_PAYLOAD:
        raise InvalidInput(f"on_{event} has a payload of {size} bytes, more than {MAX_END_PAYLOAD}: send a reference")
    at = raw.index(b"\n", raw.index(b"\n") + 1) + 1
    body = at + 6 + int.from_bytes(raw[at + 4 : at + 6])
    options = orjson.loads(raw[at + 6 : body])
    headers = options.pop("h")
    headers.pop("batch")
    # The headers come last, and the counts last among them, so that the server only has to add to the text.
    text = orjson.dumps({**options, "h": {**headers, "batch": None}})[: -len(b"null}}")]
    if len(text) > MAX_END_OPTIONS:
        raise InvalidInput(f"the headers of on_{event} take {len(text)} bytes, more than {MAX_END_OPTIONS}")
    return {f"{event}_head": raw[:at], f"{event}_options": text, f"{event}_body": raw[body:]}


# -- carrying ---------------------------------------------------------------------------------------------------------


def carrying(ref: QueueRef, together: bool) -> Flow[None]:
    """Carries what calls on a queue have put into its outbox to the batches; failures are logged.

    `together`: all queues are on one server, so that one call counts the entries and removes them.
    """
    entries: list[bytes] = []
    while ref.noted:
        try:
            entries.append(ref.noted.popleft())
        except IndexError:
            break  # another thread took it
    try:
        yield from carry(ref.name, entries, together)
    except RestanteError as error:
        log.warning("batch not counted yet queue=%s entries=%d error=%s", ref.name, len(entries), error)


def carry(queue: str, entries: Sequence[bytes], together: bool) -> Flow[None]:
    """Counts entries of the outbox of a queue at the homes of their batches, and removes them from it."""
    waiting = [(queue, list(dict.fromkeys(entries)))]
    failure: RestanteError | None = None
    while waiting:
        source, batch = waiting.pop()
        for name, part in _by_batch(batch):
            try:
                noted = yield from _carry_to(name, source, part, together)
            except RestanteError as error:  # another batch may have another home
                failure = error
                continue
            if noted:
                waiting.append((name.home, noted))
    if failure is not None:
        raise failure


def _carry_to(name: BatchName, source: str, entries: Sequence[bytes], together: bool) -> Flow[list[bytes]]:
    """Counts the entries of one batch; returns what was put into the outbox of its home."""
    announced = [entry for entry in entries if _is_announced(entry)]
    for entry in announced:
        yield from _ask(name, entry, together)
    ended = [entry for entry in entries if entry not in announced]
    if not ended:
        return []
    outbox = QueueKeys(source)["outbox"]
    more = (outbox,) if together or source == name.home else ()
    noted: list[bytes] = yield _call(BATCH_COUNT, name, [str(name), source, *ended], _as_list, *more)
    if not more:
        yield Command(("ZREM", outbox, *ended), outbox)
    return noted


def _is_announced(entry: bytes) -> bool:
    return entry.split(b"\t", 3)[2] == b"announced"


def _as_list(reply: Any) -> list[bytes]:
    return list(reply)


def _by_batch(entries: Sequence[bytes]) -> Iterator[tuple[BatchName, list[bytes]]]:
    """The entries of each batch, in their order."""

    def named(entry: bytes) -> bytes:
        return entry.split(b"\t", 2)[1]

    for name, part in groupby(sorted(entries, key=named), named):
        yield BatchName.parse(name.decode()), list(part)


def emptying(queue: str, together: bool) -> Flow[None]:
    """Carries all that the outbox of a queue holds."""
    outbox = QueueKeys(queue)["outbox"]
    seen: list[bytes] = []
    while True:
        found: list[bytes] = yield Command(("ZRANGE", outbox, 0, PAGE - 1), outbox)
        entries = [entry for entry in found if not _is_announced(entry)]
        if not entries or entries == seen:
            return
        seen = entries
        yield from carry(queue, entries, together)


def _ask(name: BatchName, entry: bytes, together: bool) -> Flow[None]:
    """Asks about messages that were announced and not confirmed: those that were never sent leave the batch."""
    words = entry.split(b"\t", 4)[4].decode().split(" ")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    missing = yield from missing_of(pairs, together)
    try:
        _, noted = yield sealing(name, "confirm", entry, [id for _, id in missing])
    except NotFound:  # it ended, and was forgotten
        outbox = name.keys["outbox"]
        yield Command(("ZREM", outbox, entry), outbox)
        return
    log.warning("announced messages were not sent batch=%s count=%d", name, len(missing))
    if noted:
        yield from carry(name.home, noted, together)


def missing_of(pairs: Sequence[tuple[str, str]], together: bool) -> Flow[list[tuple[str, str]]]:
    """Which of these messages, given as queue and id, are nowhere; what ended meanwhile is counted before."""
    missing: list[tuple[str, str]] = []
    for queue, part in groupby(sorted(pairs), lambda pair: pair[0]):
        ids = [id for _, id in part]
        children = [id for id in ids if "/" in id]
        messages = [id for id in ids if "/" not in id]
        for start in range(0, len(messages), MAX_BATCH):
            keys = QueueKeys(queue).group(BATCH_CHECK.keys)
            gone: list[bytes] = yield ScriptCall(
                BATCH_CHECK, keys, messages[start : start + MAX_BATCH], _as_list, queue
            )
            missing += [(queue, id.decode()) for id in gone]
        for child in children:
            if (yield show(BatchName.parse(child))) is None:
                missing.append((queue, child))
        yield from emptying(queue, together)
    return missing


# -- reading ----------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What `batch_show` returns."""

    now: int
    fields: dict[str, str]
    #: Id and member's value of the first messages that did not succeed.
    failed: list[tuple[str, str]]


def show(name: BatchName) -> ScriptCall[Record | None]:
    """Reads the record of a batch; None if there is none."""

    def parse(reply: Any) -> Record | None:
        now, flat, *rest = reply
        texts = [text.decode("utf-8", "replace") for text in flat]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        failed = [text.decode("utf-8", "replace") for text in rest]
        return Record(now, fields, list(zip(failed[::2], failed[1::2], strict=True))) if fields else None

    return _call(BATCH_SHOW, name, [], parse)


def waiting_members(name: BatchName) -> Flow[list[tuple[str, str]]]:
    """Queue and id of every message of a batch that has not ended."""
    _, members = name.keys.batch(name.id)
    cursor: Any = 0
    found: dict[str, str] = {}
    while True:
        cursor, flat = yield Command(("HSCAN", members, cursor, "COUNT", PAGE), members)
        for id, value in zip(flat[::2], flat[1::2], strict=True):
            letter, queue, *_ = value.decode().split(" ")
            if letter == "p":
                found[id.decode()] = queue
        if int(cursor) == 0:
            return [(queue, id) for id, queue in found.items()]


# -- operators --------------------------------------------------------------------------------------------------------


def cancelling(name: BatchName, operator: str, together: bool) -> Flow[int]:
    """Gives a batch up: cancels all messages of it that wait or run, and the batches in it. Returns how many."""
    cancelled = 0
    _, noted = yield sealing(name, "cancel")
    yield from carry(name.home, noted, together)
    waiting = yield from waiting_members(name)
    for queue, part in groupby(sorted(waiting), lambda pair: pair[0]):
        ids = [id for _, id in part]
        for child in (id for id in ids if "/" in id):
            if (yield show(BatchName.parse(child))) is not None:
                cancelled += yield from cancelling(BatchName.parse(child), operator, together)
        ref = QueueRef(queue, operator, Draft)
        messages = [id for id in ids if "/" not in id]
        for start in range(0, len(messages), PAGE):
            part_ids = messages[start : start + PAGE]
            states = yield cancel_many(ref, part_ids, operator=operator, detail=f"batch {name}")
            cancelled += sum(state not in (None, *ENDED) for state in states)
            yield from carrying(ref, together)
    yield from _settle_missing(name, "unsent", together)
    return cancelled


def resuming(name: BatchName, together: bool) -> Flow[int]:
    """Repairs a batch that waits for messages which are nowhere, and seals it. Returns how many there were.

    In an open batch they were never sent, because its producer died: they leave the batch. In a running one the server
    forgot how they ended: they are counted as lost.
    """
    found = yield show(name)
    if found is None:
        raise not_found(name)
    if "ended_at" in found.fields:
        return 0
    count = yield from _settle_missing(name, "unsent" if found.fields["state"] == "open" else "lost", together)
    _, noted = yield sealing(name, "seal")
    yield from carry(name.home, noted, together)
    return count


def _settle_missing(name: BatchName, how: str, together: bool) -> Flow[int]:
    """Counts messages of a batch that are nowhere; returns how many."""
    missing = yield from missing_of((yield from waiting_members(name)), together)
    for queue, part in groupby(missing, lambda pair: pair[0]):
        entries = [f"{_LAST}\t{name}\t{how}\t{id}\t".encode() for _, id in part]
        for start in range(0, len(entries), PAGE):
            chunk = entries[start : start + PAGE]
            noted = yield _call(BATCH_COUNT, name, [str(name), queue, *chunk], _as_list)
            yield from carry(name.home, noted, together)
    return len(missing)
