"""Follows every journal once for all who watch, and hands each of them what they asked for.

One reader per process asks Redis for new lines of all journals in one call, a few times a second while somebody watches
and seldom otherwise. A watcher has a bounded buffer: who does not keep up is told to look anew (`resync`) and goes on
from there; nobody else waits for them. A position names how far every queue was read, so a watcher that comes back,
to this process or to another, gets what it missed from the journals themselves, each line once. On failure to reach
Redis the reader waits and goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from restante.core.errors import InvalidInput, RestanteError
from restante.core.exchange import away, markers_by_slot
from restante.core.journal import JournalEntry, Position
from restante.core.keys import QUEUES, QueueKeys
from restante.core.names import valid_name
from restante.core.queue import AsyncPost
from restante.server.telling import journal_out

log = logging.getLogger("restante")

#: Seconds between two reads: while somebody watches, and for the figures alone.
WATCHED, UNWATCHED = 0.04, 0.25
#: Seconds between two looks for queues that are new or gone.
NAMES_EVERY = 1.0
#: Stream entries asked of one journal by one read.
ENTRIES = 200
#: Lines of one event of a stream.
LINES = 500
#: Lines kept for a watcher that does not keep up.
BUFFER = 5000
#: Queues that one watcher may follow: the position it sends back names each.
MAX_FOLLOWED = 1000
#: Lines of one read beyond which figures alone are not worth reading them: the reader goes to the end.
MOST_UNWATCHED = 2000


@dataclass(eq=False)
class Watcher:
    """Somebody who follows journals; `queues` None means all."""

    queues: frozenset[str] | None
    buffer: deque[tuple[str, int, dict[str, Any]]] = field(default_factory=deque)
    #: Why the buffer was emptied, until the watcher has been told.
    resync: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, lines: list[JournalEntry], told: list[dict[str, Any]]) -> None:
        wanted = self.queues
        for entry, made in zip(lines, told, strict=True):
            if wanted is None or entry.queue in wanted:
                self.buffer.append((entry.queue, entry.position.sequence, made))
        if len(self.buffer) > BUFFER:
            self.fail("slow")
        if self.buffer:
            self.woken.set()

    def fail(self, reason: str) -> None:
        self.buffer.clear()
        self.resync = reason
        self.woken.set()


class Hub:
    """The one reader of a process."""

    def __init__(self, post: AsyncPost) -> None:
        self._connection = post.connection
        self._keys: dict[str, QueueKeys] = {}
        #: Queue → number of the last line read.
        self.places: dict[str, int] = {}
        self._watchers: set[Watcher] = set()
        #: Called with the lines of each read, for figures.
        self.watchers: list[Callable[[list[JournalEntry]], None]] = []
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
                pause = 0.0 if full else WATCHED if self._watchers else UNWATCHED
            except Exception as error:  # whatever it meets, those who watch must not be left alone
                failures += 1
                pause = away(failures)
                log.warning("following failed error=%s", error, exc_info=not isinstance(error, RestanteError))
            self._stirred.clear()
            try:
                async with asyncio.timeout(pause):
                    await (self._stirred.wait() if pause > WATCHED else asyncio.sleep(pause))
            except TimeoutError:
                pass

    async def _look_for_names(self) -> None:
        names = {name.decode() for name in await self._connection.command("SMEMBERS", QUEUES, key=QUEUES)}
        begun = self._ready.is_set()
        for name in sorted(names - self.places.keys()):
            self._keys[name] = QueueKeys(name)
            # A queue that appears later is followed from its beginning.
            self.places[name] = 0 if begun else await self.end_of(name)
        for name in self.places.keys() - names:
            del self.places[name], self._keys[name]

    async def end_of(self, queue: str) -> int:
        """The number of the last line of a journal."""
        key = QueueKeys(queue)["journal"]
        rows = await self._connection.command("XREVRANGE", key, "+", "-", "COUNT", 1, key=key)
        return Position.parse(rows[0][0]).sequence if rows else 0

    async def _read(self) -> bool:
        """One read of every journal; whether there is more at once."""
        by_key = {self._keys[name]["journal"]: name for name in self.places}
        full = False
        lines: list[JournalEntry] = []
        if not by_key:
            return False
        for keys in markers_by_slot(self._connection.endpoint, sorted(by_key)):
            places = [f"0-{self.places[by_key[key]]}" for key in keys]
            answer = await self._connection.command("XREAD", "COUNT", ENTRIES, "STREAMS", *keys, *places, key=keys[0])
            for key, rows in answer or ():
                name = by_key[key]
                full = full or len(rows) == ENTRIES
                for stream_id, fields in rows:
                    block = JournalEntry.parse_block(name, stream_id, fields[1])
                    fresh = [entry for entry in block if entry.position.sequence > self.places[name]]
                    if fresh and fresh[0].position.sequence != self.places[name] + 1 and self.places[name]:
                        self._fail("trimmed", name)
                    lines += fresh
                    self.places[name] = max(self.places[name], block[-1].position.sequence)
        if full and not self._watchers and len(lines) > MOST_UNWATCHED:
            for name in self.places:
                self.places[name] = await self.end_of(name)
        if lines:
            self._tell(lines)
        return full

    def _tell(self, lines: list[JournalEntry]) -> None:
        for watch in self.watchers:
            watch(lines)
        if self._watchers:
            told = [journal_out(entry) for entry in lines]
            for watcher in self._watchers:
                watcher.hear(lines, told)

    def check(self, queue: str, last: int) -> None:
        """Told how long a journal is: shorter than what was read means that the queue was dropped and made anew."""
        if self.places.get(queue, 0) > last:
            self.places[queue] = 0
            self._fail("reset", queue)

    def _fail(self, reason: str, queue: str) -> None:
        for watcher in self._watchers:
            if watcher.queues is None or queue in watcher.queues:
                watcher.fail(reason)

    # -- watching ------------------------------------------------------------------------------------------------

    async def follow(
        self, queues: Collection[str], position: str | None
    ) -> AsyncIterator[tuple[str, str, list[dict[str, Any]]]]:
        """Events for one watcher: (name, position, lines). Nothing is told twice, and a gap is told as `resync`."""
        await self._ready.wait()
        chosen = frozenset(queues) if queues else None
        if len(chosen if chosen is not None else self.places) > MAX_FOLLOWED:
            raise InvalidInput(f"more than {MAX_FOLLOWED} queues: name those to follow by ?queue=")
        watcher = Watcher(chosen)
        here = {name: at for name, at in self.places.items() if chosen is None or name in chosen}
        self._watchers.add(watcher)
        self._stirred.set()
        try:
            if position:
                async for event in self._catch_up(read_position(position), here):
                    yield event
            yield "hello", write_position(here), []
            while True:
                await watcher.woken.wait()
                watcher.woken.clear()
                if watcher.resync:
                    reason, watcher.resync = watcher.resync, ""
                    watcher.buffer.clear()
                    here = {name: at for name, at in self.places.items() if chosen is None or name in chosen}
                    yield "resync", write_position(here), [{"reason": reason}]
                while watcher.buffer and not watcher.resync:
                    lines: list[dict[str, Any]] = []
                    while watcher.buffer and len(lines) < LINES:
                        queue, number, made = watcher.buffer.popleft()
                        if number > here.get(queue, 0):
                            here[queue] = number
                            lines.append(made)
                    if lines:
                        yield "journal", write_position(here), lines
        finally:
            self._watchers.discard(watcher)

    async def _catch_up(
        self, then: dict[str, int], here: dict[str, int]
    ) -> AsyncIterator[tuple[str, str, list[dict[str, Any]]]]:
        """What was written between a position and now."""
        place = {name: then.get(name, 0) for name in here}
        for name, until in sorted(here.items()):
            if place[name] > until:
                # Numbers went backwards: the queue was dropped, or the server lost its last seconds.
                place = dict(here)
                yield "resync", write_position(place), [{"reason": "reset"}]
                return
            while place[name] < until:
                key = QueueKeys(name)["journal"]
                rows = await self._connection.command(
                    "XRANGE", key, f"(0-{place[name]}", "+", "COUNT", ENTRIES, key=key
                )
                blocks = (JournalEntry.parse_block(name, stream_id, fields[1]) for stream_id, fields in rows)
                lines = [
                    entry for block in blocks for entry in block if place[name] < entry.position.sequence <= until
                ]  # fmt: skip
                if not lines or lines[0].position.sequence != place[name] + 1:
                    place = dict(here)
                    yield "resync", write_position(place), [{"reason": "trimmed"}]
                    return
                for start in range(0, len(lines), LINES):
                    part = lines[start : start + LINES]
                    place[name] = part[-1].position.sequence
                    yield "journal", write_position(place), [journal_out(entry) for entry in part]


def write_position(places: dict[str, int]) -> str:
    """How far each queue was read, as one word."""
    return ",".join(f"{name}={number}" for name, number in sorted(places.items()))


def read_position(text: str) -> dict[str, int]:
    """Reads `write_position` back; what is not one is refused."""
    places: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        if not number.isdecimal() or len(number) > 18:
            raise InvalidInput(f"Last-Event-ID is a position of this stream, not {text[:60]!r}")
        places[valid_name(name)] = int(number)
    if len(places) > MAX_FOLLOWED:
        raise InvalidInput(f"Last-Event-ID names more than {MAX_FOLLOWED} queues")
    return places


def event(name: str, data: Any, id: str = "") -> bytes:
    """One server-sent event."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"
