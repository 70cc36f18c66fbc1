"""Follows the journals of all queues with one reader per process, and streams the lines to every watcher.

The reader fetches new lines of all journals in one call, several times a second while there are watchers and rarely
otherwise. Each watcher has a bounded buffer. One that does not keep up gets a `resync` event, must reload its state
and continues from there; it delays nobody else. A position names the last line read of every queue. A client that
reconnects with one, to any server, gets the lines it missed from the journals, each once. If Redis is unavailable, the
reader waits and then continues where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from restante.core.call_retry import away, markers_by_slot
from restante.core.errors import Corrupt, InvalidInput, RestanteError
from restante.core.journal import JournalEntry, Position
from restante.core.keys import QUEUES, QueueKeys
from restante.core.names import valid_name
from restante.core.queue import AsyncClient
from restante.server.serializers import ms

log = logging.getLogger("restante")

#: Seconds between two reads: with watchers, and for the monitor alone.
WATCHED, UNWATCHED = 0.04, 0.25
#: Seconds added per watcher: with a thousand watchers each read costs a thousand writes.
EACH = 0.0004
#: Seconds between two checks for queues that were created or dropped.
NAMES_EVERY = 1.0
#: Stream entries fetched per read from all journals together, each of up to a thousand lines: with watchers, and for
#: the monitor alone, whose figures under load are a sample.
ENTRIES, SAMPLED = 200, 20
#: Lines parsed before other tasks get a turn. For the monitor alone a read stops there.
LINES_PER_TURN = 1000
#: Lines per event. Every client that does not read may hold one event in its connection's buffers.
LINES = 100
#: Lines buffered per watcher. Beyond it the watcher gets a `resync`.
BUFFER = 5000
#: Queues that one watcher may follow: its position, a header, names each of them.
MAX_FOLLOWED = 1000


class Batch:
    """The lines of one read, serialized once for all watchers of the same queues."""

    def __init__(self, before: dict[str, int], lines: list[JournalEntry]) -> None:
        self._before = before
        self.lines = lines
        self._written: dict[frozenset[str] | None, list[bytes]] = {}

    def events(self, queues: frozenset[str] | None) -> list[bytes]:
        """The lines as events; each event's ID is the position after its last line."""
        events = self._written.get(queues)
        if events is None:
            wanted = [line for line in self.lines if queues is None or line.queue in queues]
            place = {name: at for name, at in self._before.items() if queues is None or name in queues}
            events = self._written[queues] = list(write_lines(wanted, place))
        return events


@dataclass(eq=False)
class Watcher:
    """A client that follows journals. `queues` None means all queues."""

    queues: frozenset[str] | None
    #: Queue → last line the client has, for queues that this process had not read as far when it connected.
    ahead: dict[str, int] = field(default_factory=dict)
    buffer: deque[Batch] = field(default_factory=deque)
    held: int = 0
    #: Why lines were dropped; empty again once the `resync` event is sent.
    resync: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, batch: Batch) -> None:
        self.buffer.append(batch)
        self.held += len(batch.lines)
        if self.held > BUFFER:
            self.fail("slow")
        self.woken.set()

    def fail(self, reason: str) -> None:
        self.buffer.clear()
        self.held = 0
        self.resync = reason
        self.woken.set()

    def take(self) -> list[bytes]:
        """Removes the next batch and returns it as events."""
        batch = self.buffer.popleft()
        self.held -= len(batch.lines)
        if not self.ahead:
            return batch.events(self.queues)
        place = {name: max(at, self.ahead.get(name, 0)) for name, at in batch._before.items()}
        fresh = []
        for line in batch.lines:
            number, known = line.position.sequence, self.ahead.get(line.queue)
            if self.queues is not None and line.queue not in self.queues:
                continue
            if known is not None and number > known + 1:
                self.fail("trimmed")  # the lines between were trimmed before this process read them
                return []
            if known is None or number > known:
                fresh.append(line)
            if known is not None and number >= known:
                del self.ahead[line.queue]
        return list(write_lines(fresh, place))


class Hub:
    """The journal reader of a process."""

    def __init__(self, client: AsyncClient) -> None:
        self._connection = client.connection
        self._keys: dict[str, QueueKeys] = {}
        #: Queue → number of the last line read.
        self.places: dict[str, int] = {}
        self._watchers: set[Watcher] = set()
        #: Called with the lines of each read.
        self.listeners: list[Callable[[list[JournalEntry]], None]] = []
        self._ready = asyncio.Event()
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        return len(self._watchers)

    async def run(self) -> None:
        """Reads until cancelled."""
        failures, looked = 0, float("-inf")
        clock = asyncio.get_running_loop()
        while True:
            try:
                if clock.time() - looked > NAMES_EVERY:
                    await self._look_for_names()
                    looked = clock.time()
                full = await self._read()
                self._ready.set()
                failures = 0
                pause = 0.0 if full else max(WATCHED, EACH * len(self._watchers)) if self._watchers else UNWATCHED
            except Exception as error:  # an unforeseen error must not end the streams of all watchers
                failures += 1
                pause = away(failures)
                log.warning("journal read failed error=%s", error, exc_info=not isinstance(error, RestanteError))
            self._stirred.clear()
            try:
                async with asyncio.timeout(pause):
                    await (self._stirred.wait() if pause == UNWATCHED else asyncio.sleep(pause))
            except TimeoutError:
                pass

    async def _look_for_names(self) -> None:
        names = {name.decode() for name in await self._connection.command("SMEMBERS", QUEUES, key=QUEUES)}
        begun = self._ready.is_set()
        for name in sorted(names - self.places.keys()):
            self._keys[name] = QueueKeys(name)
            # A queue created later is followed from its first line.
            self.places[name] = 0 if begun else await self.end_of(name)
        for name in self.places.keys() - names:
            del self.places[name], self._keys[name]

    async def end_of(self, queue: str) -> int:
        """The number of the last line of a journal."""
        key = QueueKeys(queue)["journal"]
        rows = await self._connection.command("XREVRANGE", key, "+", "-", "COUNT", 1, key=key)
        return Position.parse(rows[0][0]).sequence if rows else 0

    async def _read(self) -> bool:
        """Reads every journal once; returns whether more lines are waiting.

        Places advance only when the read is complete and its lines are handed out, so that a watcher that connects
        meanwhile starts before them.
        """
        by_key = {self._keys[name]["journal"]: name for name in self.places}
        if not by_key:
            return False
        before, places = dict(self.places), dict(self.places)
        lines: list[JournalEntry] = []
        most = max(1, (ENTRIES if self._watchers else SAMPLED) // len(by_key))
        behind: list[str] = []
        rested = 0
        for keys in markers_by_slot(self._connection.endpoint, sorted(by_key)):
            words = ("XREAD", "COUNT", most, "STREAMS", *keys, *(f"0-{places[by_key[key]]}" for key in keys))
            for key, rows in await self._connection.command(*words, key=keys[0]) or ():
                name = by_key[key]
                if len(rows) == most:
                    behind.append(name)
                for stream_id, fields in rows:
                    if len(lines) - rested >= LINES_PER_TURN:
                        if not self._watchers:
                            behind.append(name)  # enough for the monitor; the rest is skipped below
                            break
                        rested = len(lines)
                        await asyncio.sleep(0)
                    lines += self._parse(name, stream_id, fields[1], places)
        ends = {} if self._watchers else {name: await self.end_of(name) for name in behind}
        for name, at in places.items():
            if self.places.get(name) == before[name]:  # else the queue was dropped or created anew
                self.places[name] = at if self._watchers else ends.get(name, at)
        if lines:
            self._publish(before, lines)
        return bool(behind and self._watchers)

    def _parse(self, name: str, stream_id: bytes, text: bytes, places: dict[str, int]) -> list[JournalEntry]:
        """The lines of one entry behind the queue's place, which advances. A gap fails the queue's watchers."""
        try:
            block = JournalEntry.parse_block(name, stream_id, text)
        except Corrupt as error:
            # One damaged entry must not block the lines of all queues.
            log.warning("skipped queue=%s error=%s", name, error)
            places[name] = max(places[name], Position.parse(stream_id).sequence)
            self._fail("trimmed", name)
            return []
        fresh = [entry for entry in block if entry.position.sequence > places[name]]
        if fresh and fresh[0].position.sequence != places[name] + 1 and places[name]:
            self._fail("trimmed", name)
        places[name] = max(places[name], block[-1].position.sequence)
        return fresh

    def _publish(self, before: dict[str, int], lines: list[JournalEntry]) -> None:
        for listener in self.listeners:
            listener(lines)
        batch = Batch(before, lines)
        touched = {line.queue for line in lines}
        for watcher in self._watchers:
            if watcher.queues is None or not watcher.queues.isdisjoint(touched):
                watcher.add(batch)

    def check(self, queue: str, last: int, before: Mapping[str, int]) -> None:
        """Compares the last line number of a journal, read after the places were `before`, with what was read by then.

        A smaller number means that the queue was dropped and created anew: its watchers get a `resync`.
        """
        then = before.get(queue, 0)
        if then > last and self.places.get(queue, 0) >= then:
            self.places[queue] = 0
            self._fail("reset", queue)

    def _fail(self, reason: str, queue: str) -> None:
        for watcher in self._watchers:
            if watcher.queues is None or queue in watcher.queues:
                watcher.fail(reason)

    # -- watching ------------------------------------------------------------------------------------------------

    async def follow(self, queues: Collection[str], position: str | None) -> AsyncIterator[bytes]:
        """The events of one watcher. No line comes twice, and a gap is reported by a `resync` event."""
        await self._ready.wait()
        chosen = frozenset(queues) if queues else None
        then = read_position(position) if position else {}
        for name in then.keys() - self.places.keys():
            # Another process knows a queue that is newer than the last check of this one.
            if await self._connection.command("SISMEMBER", QUEUES, name, key=QUEUES):
                self._keys.setdefault(name, QueueKeys(name))
                self.places.setdefault(name, 0)
        if len(chosen if chosen is not None else self.places) > MAX_FOLLOWED:
            raise InvalidInput(f"there are more than {MAX_FOLLOWED} queues: name those to follow with ?queue=")
        watcher = Watcher(chosen)
        present = self._places_of(chosen)
        self._watchers.add(watcher)
        self._stirred.set()
        try:
            if position:
                async for event in self._catch_up(then, present, watcher):
                    yield event
            else:
                yield write_event("position", {}, write_position(present))
            while True:
                await watcher.woken.wait()
                watcher.woken.clear()
                if watcher.resync:
                    reason, watcher.resync = watcher.resync, ""
                    watcher.ahead.clear()
                    yield write_event("resync", {"reason": reason}, write_position(self._places_of(chosen)))
                while watcher.buffer and not watcher.resync:
                    for event in watcher.take():
                        yield event
        finally:
            self._watchers.discard(watcher)

    def _places_of(self, chosen: frozenset[str] | None) -> dict[str, int]:
        return {name: at for name, at in self.places.items() if chosen is None or name in chosen}

    async def _catch_up(self, then: dict[str, int], present: dict[str, int], watcher: Watcher) -> AsyncIterator[bytes]:
        """The lines between a position and the present."""
        place = {name: then.get(name, 0) for name in present}
        for name, until in sorted(present.items()):
            if place[name] > until:
                if await self.end_of(name) < place[name]:
                    # The numbers went back: the queue was dropped, or Redis lost its last seconds.
                    yield write_event("resync", {"reason": "reset"}, write_position(present))
                    return
                watcher.ahead[name] = place[name]  # the other process had read further than this one
            while place[name] < until:
                key = QueueKeys(name)["journal"]
                rows = await self._connection.command(
                    "XRANGE", key, f"(0-{place[name]}", "+", "COUNT", ENTRIES, key=key
                )
                try:
                    blocks = [JournalEntry.parse_block(name, stream_id, fields[1]) for stream_id, fields in rows]
                except Corrupt:
                    blocks = []
                lines = [entry for block in blocks for entry in block if place[name] < entry.position.sequence <= until]
                if not lines or lines[0].position.sequence != place[name] + 1:
                    yield write_event("resync", {"reason": "trimmed"}, write_position(present))
                    return
                for event in write_lines(lines, place):
                    yield event
                place[name] = lines[-1].position.sequence


def write_lines(lines: list[JournalEntry], place: dict[str, int]) -> Iterator[bytes]:
    """The lines as events of at most LINES lines. Advances `place`, which is the ID of each event."""
    for start in range(0, len(lines), LINES):
        part = lines[start : start + LINES]
        for line in part:
            place[line.queue] = line.position.sequence
        yield write_event("journal", [line.as_dict(ms) for line in part], write_position(place))


def write_position(places: dict[str, int]) -> str:
    """A position as text: the last line read of each queue."""
    return ",".join(f"{name}={number}" for name, number in sorted(places.items()))


def read_position(text: str) -> dict[str, int]:
    """Parses the text of `write_position`; raises InvalidInput for any other."""
    places: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        if not number.isdecimal() or len(number) > 18:
            raise InvalidInput(f"Last-Event-ID must be the id of an event of this stream, not {text[:60]!r}")
        places[valid_name(name)] = int(number)
    if len(places) > MAX_FOLLOWED:
        raise InvalidInput(f"Last-Event-ID names more than {MAX_FOLLOWED} queues")
    return places


def write_event(name: str, data: Any, id: str = "") -> bytes:
    """Serializes one server-sent event."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"
