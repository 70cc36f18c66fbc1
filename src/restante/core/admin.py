"""What operators do: look, count, replay, delete, purge, pause, edit and move. Apart from the hot path.

On failure nothing is half done: each page of work is one script, a replay's progress moves with its messages, and
an interrupted replay is resumed by its task id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from restante.core import operations as ops
from restante.core.errors import Held, InvalidInput, NotFound
from restante.core.journal import JournalEntry, Position
from restante.core.keys import QUEUES
from restante.core.message import STATE_LETTERS, Attempt, Event, Message, State, moment, new_id
from restante.core.names import valid_name
from restante.core.operations import MAX_BATCH, Operation, QueueRef, Script
from restante.core.queue import Post, open_queue
from restante.core.settings import QueueSettings, milliseconds, queue_fields, whole
from restante.core.stored import Stored, encode

LIST = Script("list", "queue journal messages deliveries history")
SHOW = Script("show", "queue journal messages deliveries history ready scheduled retrying leased dead done")
COUNTS = Script("counts", "queue journal ready scheduled retrying leased dead done messages")
REPLAY = Script("replay", "queue journal messages deliveries ready dead unique marker tasks")
DELETE = Script("delete", "queue journal messages deliveries history ready scheduled retrying dead done leased unique")
PURGE = Script("purge", "queue journal messages deliveries history")
EDIT = Script("edit", "queue journal messages deliveries ready scheduled retrying dead marker", when_full=False)
MOVE = Script(
    "move",
    "queue journal messages deliveries history ready scheduled retrying dead leased unique",
    when_full=False,
)
_MOVE_TARGET = ("queue", "journal", "messages", "deliveries", "history", "ready", "scheduled", "unique", "marker")

#: Messages on one page of a list.
PAGE = 100
#: Bytes of each payload a list returns.
PREVIEW = 1024
#: Seconds without a word after which a consumer is no longer shown.
CONSUMER_GONE = 60.0
#: Messages handled by one call of replay or purge.
SLICE = 200
_PURGEABLE = (State.READY, State.SCHEDULED, State.RETRYING, State.DEAD, State.DONE)


@dataclass(frozen=True, slots=True)
class Counts:
    """One queue at one moment."""

    queue: str
    at: datetime
    ready: int
    scheduled: int
    retrying: int
    leased: int
    dead: int
    done: int
    #: Leases that have ended and wait to be reclaimed.
    overdue: int
    #: Seconds since the message next in line was sent.
    waited: float
    paused: bool
    #: Events since the queue began.
    totals: dict[str, int]
    settings: QueueSettings
    #: Journal: last sequence number, and entries that were trimmed before a registered reader had them.
    journal_last: int
    journal_lost: int

    @property
    def waiting(self) -> int:
        """Messages that are neither settled nor dead."""
        return self.ready + self.scheduled + self.retrying + self.leased

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        made = {state.value: getattr(self, state.value) for state in State}
        return {
            "queue": self.queue, "at": self.at.isoformat(), **made, "overdue": self.overdue,
            "waited_seconds": self.waited, "paused": self.paused, "totals": self.totals,
            "settings": self.settings.as_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, and where the next part starts."""

    messages: list[Message]
    #: Give it as `after` for the next page; None at the end.
    next: str | None


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as the registry knows it."""

    name: str
    queues: tuple[str, ...]
    last_seen: datetime
    host: str
    pid: int
    concurrency: int


@dataclass(slots=True)
class ReplayTask:
    """A replay and how far it is; kept in Redis so that it can be resumed."""

    id: str
    queue: str
    #: Only messages that died before the task began: what dies again meanwhile is not replayed twice.
    until_ms: int
    kind: str | None = None
    error_class: str | None = None
    ids: tuple[str, ...] | None = None
    cursor: str = ""
    total: int = 0
    seen: int = 0
    replayed: int = 0
    status: str = "running"
    operator: str = ""
    dry_run: bool = False

    def matches(self, message: Message) -> bool:
        died_of = message.history[-1].error_class if message.history else ""
        return (self.kind is None or message.kind == self.kind) and self.error_class in (None, died_of)


def parse_history(text: bytes) -> tuple[Attempt, ...]:
    """The attempts a history value holds, oldest first."""
    made = []
    for line in text.decode().splitlines():
        attempt, received, ended, event, consumer, error_class, error = line.split("\t")
        ended_at = moment(int(ended))
        assert ended_at is not None
        received_at = moment(int(received or 0))
        made.append(
            Attempt(int(attempt), received_at, ended_at, Event(event), consumer, error_class, orjson.loads(error))
        )
    return tuple(made)


def parse_delivery(text: bytes) -> tuple[int, str, int, int]:
    """attempts, consumer, received_at and replays of a delivery; the layout is in prelude.lua."""
    if not text:
        return 0, "", 0, 0
    _, facts, place, _ = text.decode().split("\n")
    *_, attempts, consumer = facts.split("\t")
    _, received, replays = place.split("\t")
    return int(attempts), consumer, int(received or 0), int(replays)


def parse_message(
    queue: str, id: str, state: State, score: bytes, stored: bytes, delivery: bytes, history: bytes
) -> Message:
    """A message from what the scripts tell of it."""
    at = int(float(score))
    attempts, consumer, received, replays = parse_delivery(delivery)
    held = Stored(stored)
    held.whole = len(held.body) == held.size
    return Message(
        id, queue, held, state=state, attempts=attempts, replays=replays, consumer=consumer, received_ms=received,
        history=parse_history(history),
        due_ms=at if state in (State.SCHEDULED, State.RETRYING) else 0,
        expires_ms=at if state is State.LEASED else 0,
        settled_ms=at if state in (State.DEAD, State.DONE) else 0,
    )  # fmt: skip


def _place(cursor: str) -> tuple[float, bytes]:
    score, _, id = cursor.partition("~")
    return float(score), id.encode()


class Admin:
    """The operator's view of a server: `Admin(post)`. `operator` is who the journal names."""

    def __init__(self, post: Post, *, operator: str | None = None) -> None:
        self._post = post
        # A login may hold characters that names may not; a name given must be right as it is.
        login = "".join(ch for ch in os.environ.get("USER", "") if ch.isascii() and (ch.isalnum() or ch in "._-"))
        self.operator = valid_name(operator or login.lstrip("-")[:100] or "operator", "operator")

    def _ref(self, queue: str) -> QueueRef:
        return self._post.queue(queue)._ref

    def _run(self, script: Script, queue: str, args: list[ops.Argument], extra: Sequence[bytes] = ()) -> Any:
        keys = self._ref(queue).keys.group(script.keys) + tuple(extra)
        return self._post.connection.run(Operation(script, keys, args, lambda reply: reply, queue))

    # -- looking -------------------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """The names of all queues."""
        return sorted(name.decode() for name in self._post.connection.command("SMEMBERS", QUEUES, key=QUEUES))

    def counts(self, queue: str) -> Counts:
        """How many messages each state holds now."""
        reply = self._run(COUNTS, queue, [])
        now, ready, scheduled, retrying, leased, dead, done, overdue, first, flat = reply
        found = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
        at = moment(now)
        assert at is not None
        last = int(found.get("sequence", 0)) - int(found.get("journal_skip", 0))
        return Counts(
            queue, at, ready, scheduled, retrying, leased, dead, done, overdue,
            max(0.0, (now - int(first)) / 1000) if first else 0.0,
            found.get("pause") == "1", {event.value: int(found.get(event.value, 0)) for event in Event},
            QueueSettings.parse(found), last, int(found.get("journal_lost", 0)),
        )  # fmt: skip

    def all_counts(self) -> list[Counts]:
        """The counts of every queue."""
        return [self.counts(name) for name in self.queues()]

    def messages(
        self,
        queue: str,
        state: State | str,
        *,
        limit: int = PAGE,
        after: str | None = None,
        upto: str | None = None,
        newest_first: bool = False,
        preview: int = PREVIEW,
    ) -> Page:
        """One page of a state. Pages stay in step while messages come and go: the cursor is a place, not a count.

        `after` and `upto` are cursors; of each payload the first `preview` bytes are read.
        """
        state = State(state)
        whole(limit, "limit", 1, MAX_BATCH)
        whole(preview, "preview", 0, 2**40)
        if upto and newest_first:
            raise InvalidInput("upto is for pages that begin with the oldest")
        score, _, last = (after or "").partition("~")
        reply = self._run(
            LIST,
            queue,
            [limit, preview, score, last, "1" if newest_first else "0"],
            [self._ref(queue).keys[state.value]],
        )
        messages: list[Message] = []
        last_wanted = _place(upto) if upto else None
        for i in range(1, len(reply), 5):
            id, at, stored, delivery, line = reply[i : i + 5]
            if last_wanted and (float(at), id) > last_wanted:
                return Page(messages, None)
            if stored:
                history = line + b"\n" if line else b""
                messages.append(parse_message(queue, id.decode(), state, at, stored, delivery, history))
        end = f"{reply[-4].decode()}~{reply[-5].decode()}" if len(reply) > 5 * limit else None
        return Page(messages, end)

    def cursors(self, queue: str, state: State | str, parts: int) -> list[str]:
        """Places that cut a state into about equal parts, to be read side by side: one fewer than parts, or none."""
        whole(parts, "parts", 1, 100_000)
        key = self._ref(queue).keys[State(state).value]
        size = int(self._post.connection.command("ZCARD", key, key=key))
        found = []
        for rank in sorted({size * part // parts for part in range(1, parts)} - {0}):
            entry = self._post.connection.command("ZRANGE", key, rank - 1, rank - 1, "WITHSCORES", key=key)
            if entry:
                found.append(f"{entry[1].decode()}~{entry[0].decode()}")
        return found

    def walk(self, queue: str, state: State | str, *, newest_first: bool = False) -> Iterator[Message]:
        """Every message of a state, page by page."""
        after: str | None = None
        while True:
            page = self.messages(queue, state, after=after, newest_first=newest_first)
            yield from page.messages
            after = page.next
            if after is None:
                return

    def peek(self, queue: str, count: int = 1) -> list[Message]:
        """The messages next in line, without taking them."""
        return self.messages(queue, State.READY, limit=count).messages

    def show(self, queue: str, id: str) -> Message:
        """One message whole, with the history of its attempts."""
        _, state, score, stored, delivery, history = self._run(SHOW, queue, [valid_name(id, "message id")])
        if not state:
            raise NotFound(f"{queue} has no message {id}: it was never sent, or is settled or deleted; see the journal")
        return parse_message(queue, id, State(state.decode()), score, stored, delivery, history)

    def consumers(self) -> list[ConsumerInfo]:
        """Who has been seen taking messages within the last minute; forgets those long gone."""
        found: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
        now = self._now_ms()
        for queue in self.queues():
            key = self._ref(queue).keys["consumers"]
            flat = self._post.connection.command("HGETALL", key, key=key)
            for i in range(0, len(flat), 2):
                seen, _, card = flat[i + 1].partition(b"\t")
                if now - int(seen) > CONSUMER_GONE * 1000:
                    self._post.connection.command("HDEL", key, flat[i], key=key)
                    continue
                found.setdefault(flat[i].decode(), []).append((int(seen), queue, orjson.loads(card)))
        made = []
        for name, rows in sorted(found.items()):
            seen_at = moment(max(row[0] for row in rows))
            assert seen_at is not None
            card_ = rows[0][2]
            queues = tuple(sorted(row[1] for row in rows))
            made.append(
                ConsumerInfo(
                    name, queues, seen_at, card_.get("host", ""), card_.get("pid", 0), card_.get("concurrency", 1)
                )
            )
        return made

    def _now_ms(self) -> int:
        seconds, micros = self._post.connection.command("TIME", key=QUEUES)
        return int(seconds) * 1000 + int(micros) // 1000

    # -- the journal ---------------------------------------------------------------------------------------------

    def journal(
        self, queue: str, *, after: Position | None = None, limit: int = 1000, newest_first: bool = False
    ) -> list[JournalEntry]:
        """Entries after a position, oldest first; or the newest, newest first."""
        key = self._ref(queue).keys["journal"]
        read = after.sequence if after is not None else 0
        words = ("XREVRANGE", key, "+", f"(0-{read}") if newest_first else ("XRANGE", key, f"(0-{read}", "+")
        found: list[JournalEntry] = []
        # A stream entry holds the lines of one call, so a page may take several reads, or part of one.
        while len(found) < limit:
            rows = self._post.connection.command(*words, "COUNT", limit - len(found), key=key)
            for stream_id, fields in rows:
                lines = JournalEntry.parse_block(queue, stream_id, fields[1])
                found += reversed(lines) if newest_first else lines
            if not rows:
                break
            end = f"({rows[-1][0].decode()}"
            words = ("XREVRANGE", key, end, f"(0-{read}") if newest_first else ("XRANGE", key, end, "+")
        return [entry for entry in found if entry.position.sequence > read][:limit]

    def follow(
        self, queues: Sequence[str] = (), *, pause: float = 0.2, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[JournalEntry]:
        """Entries as they are written, from now on."""
        places: dict[str, Position] = {}
        begun = False
        while not stop():
            quiet = True
            for name in queues or self.queues():
                if name not in places:
                    # A queue that appears later is followed from its beginning.
                    newest = [] if begun else self.journal(name, limit=1, newest_first=True)
                    places[name] = newest[0].position if newest else Position(0)
                for entry in self.journal(name, after=places[name]):
                    places[name] = entry.position
                    quiet = False
                    yield entry
            begun = True
            if quiet:
                time.sleep(pause)

    def register_reader(self, queue: str, reader: str, position: Position) -> None:
        """Notes how far a reader is: the journal is not trimmed beyond the slowest, up to its hard cap."""
        key = self._ref(queue).keys["queue"]
        field_ = f"reader:{valid_name(reader, 'reader')}"
        self._post.connection.command("HSET", key, field_, position.sequence, key=key)

    def forget_reader(self, queue: str, reader: str) -> None:
        """The journal no longer waits for this reader."""
        key = self._ref(queue).keys["queue"]
        self._post.connection.command("HDEL", key, f"reader:{valid_name(reader, 'reader')}", key=key)

    # -- changing ------------------------------------------------------------------------------------------------

    def configure(self, queue: str, **options: Any) -> QueueSettings:
        """Changes settings for every client of the queue."""
        return self._configure(queue, queue_fields(options), "configured")  # type: ignore[arg-type]  # by name

    def pause(self, queue: str) -> None:
        """Nothing is received until resumed; sends go on, and leases and delays keep their times."""
        self._configure(queue, {"pause": "1"}, "paused")

    def resume(self, queue: str) -> None:
        """Ends a pause."""
        self._configure(queue, {"pause": ""}, "resumed")

    def _configure(self, queue: str, fields: dict[str, str], event: str) -> QueueSettings:
        ref = self._ref(queue)
        self._post.connection.command("SADD", QUEUES, queue, key=QUEUES)
        ref.pending.update(fields)
        self._post.connection.run(open_queue(ref, operator=self.operator, event=event))
        return ref.settings

    def delete(self, queue: str, ids: Sequence[str], *, detail: str = "") -> int:
        """Removes messages by id, in any state but leased (Held); returns how many there were."""
        for id in ids:
            valid_name(id, "message id")
        count, held = 0, []
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            states = self._run(DELETE, queue, [self.operator, " ".join(detail.split()), *part])
            for id, state in zip(part, states, strict=True):
                if state == b"leased":
                    held.append(id)
                elif state:
                    count += 1
        if held:
            raise Held(f"{len(held)} of {len(ids)} messages are held by consumers and stay, the first is {held[0]}")
        return count

    def purge(
        self, queue: str, states: Sequence[State | str] = _PURGEABLE, *, progress: Callable[[int], None] | None = None
    ) -> int:
        """Removes every message of these states; leased ones stay. Returns how many went."""
        total = 0
        for state in map(State, states):
            if state is State.LEASED:
                raise InvalidInput("leased messages cannot be purged: stop the consumers, or wait for their leases")
            key = self._ref(queue).keys[state.value]
            unique = self._ref(queue).keys["unique"]
            while count := self._run(PURGE, queue, [self.operator, state.value, SLICE], [key, unique]):
                total += count
                if progress is not None:
                    progress(total)
        return total

    def drop(self, queue: str) -> None:
        """Removes a queue with all it holds, its settings and its journal. Refused while messages are leased."""
        if self.counts(queue).leased:
            raise Held(f"{queue} has leased messages: stop its consumers first")
        self.purge(queue)
        keys = self._ref(queue).keys
        fields = self._post.connection.command("HKEYS", keys["queue"], key=keys["queue"])
        holders = [name.decode().partition(":")[2] for name in fields if name.startswith(b"holder:")]
        copies = [key for holder in holders for key in keys.lease_journal(holder)]
        self._post.connection.command("UNLINK", *keys.by_name.values(), *copies, key=keys["queue"])
        self._post.connection.command("SREM", QUEUES, queue, key=QUEUES)
        self._ref(queue).opened = False

    def edit(
        self,
        queue: str,
        id: str,
        *,
        payload: Any = ...,
        priority: int | None = None,
        headers: dict[str, Any] | None = None,
        due_at: datetime | None = None,
        delay: float | timedelta | None = None,
    ) -> Message:
        """Changes a message nobody holds; what is not named stays."""
        now = self.show(queue, id)
        if now.state is State.LEASED:
            raise Held(f"{id} is held by {now.consumer}: wait until its lease ends")
        if now.state is State.DONE:
            raise InvalidInput(f"{id} is done: send a new message instead")
        stored = now._stored
        level = now.priority if priority is None else whole(priority, "priority", 0, 255)
        limits = (stored.lease_ms, stored.max_attempts, stored.unique, stored.unique_states)
        is_bytes = (payload is ... and stored.options.get("e") == "bytes") or isinstance(payload, bytes)
        body, _ = encode(
            now.payload if payload is ... else payload,
            kind=now.kind, priority=level, headers=now.headers if headers is None else headers,
            content_type=now.content_type if is_bytes else None, retry=now.retry, lease_ms=limits[0],
            max_attempts=limits[1], unique=limits[2], unique_states=limits[3], expires_ms=stored.expires_ms,
        )  # fmt: skip
        due = ""
        if delay is not None:
            wait = timedelta(milliseconds=milliseconds(delay, "delay"))
            due_at = datetime.fromtimestamp(self._now_ms() / 1000, UTC) + wait
        if due_at is not None:
            due = ops._due(0, due_at)
        state = self._run(EDIT, queue, [self.operator, id, body, str(level), due])
        if state == b"leased":
            raise Held(f"{id} was received meanwhile and is unchanged")
        if not state:
            raise NotFound(f"{queue} has no message {id} any more")
        return self.show(queue, id)

    def move(self, queue: str, target: str, ids: Sequence[str]) -> int:
        """Moves messages that nobody holds to another queue; returns how many. One script per page on one server."""
        if queue == target:
            raise InvalidInput("source and target are the same queue")
        to = self._ref(target)
        if not any(self._run(SHOW, queue, [valid_name(id, "message id")])[1] for id in ids):
            return 0  # a target that gets nothing must not come into being
        self._post.connection.command("SADD", QUEUES, target, key=QUEUES)
        moved = 0
        for start in range(0, len(ids), SLICE):
            part = list(ids[start : start + SLICE])
            if self._post.connection.same_server(self._ref(queue).keys["queue"], to.keys["queue"]):
                states = self._run(
                    MOVE, queue, [self.operator, queue, target, *part], to.keys.group(_MOVE_TARGET)
                )  # fmt: skip
                moved += sum(1 for state in states if state not in (b"", b"leased", b"exists"))
            else:
                moved += sum(self._move_apart(queue, target, id) for id in part)
        return moved

    def _move_apart(self, queue: str, target: str, id: str) -> bool:
        """Between two slots of a cluster: copy under the same id, then delete; killed in between, both have it."""
        _, state, score, stored, delivery, history = self._run(SHOW, queue, [id])
        if not state or self._run(SHOW, target, [id])[1]:
            return False
        message = parse_message(queue, id, State(state.decode()), score, stored, delivery, history)
        if message.state in (State.LEASED, State.DONE):
            return False
        if history:
            key = self._ref(target).keys["history"]
            self._post.connection.command("HSET", key, id, history, key=key)
        kept = message._stored
        letters = {letter: state for state, letter in STATE_LETTERS.items()}
        sent = self._post.queue(target).send(
            message.payload, id=id, priority=message.priority, kind=message.kind, headers=message.headers,
            content_type=message.content_type if kept.options.get("e") == "bytes" else None,
            due_at=message.due_at if message.state is State.SCHEDULED else None, retry=message.retry,
            max_attempts=message.max_attempts, lease=kept.lease_ms / 1000 if kept.lease_ms else None,
            unique=message.unique, unique_states=frozenset(letters[one] for one in kept.unique_states) or None,
            expires=None if kept.expires_ms is None else kept.expires_ms / 1000,
        )  # fmt: skip
        return sent.stored and self.delete(queue, [id], detail=f"moved to {target}") == 1

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        kind: str | None = None,
        error_class: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        task: str | None = None,
        name: str | None = None,
        progress: Callable[[ReplayTask], None] | None = None,
        cancel: Callable[[], bool] = lambda: False,
    ) -> ReplayTask:
        """Puts dead messages back to ready, page by page, attempts reset and errors kept.

        `rate` bounds messages per second. With `dry_run` nothing moves and the count is what would. A task that
        was cancelled or killed goes on where it was with `task=` its id; `name` chooses the id of a new one.
        """
        if rate is not None and not 0.01 <= rate <= 1e6:
            raise InvalidInput(f"rate must be messages per second from 0.01 to 1000000, not {rate!r}")
        work = self.task(queue, task) if task else self._new_task(queue, ids, kind, error_class, dry_run, name)
        work.status = "running"
        started, paced = time.monotonic(), 0
        size = SLICE if rate is None else max(1, min(SLICE, int(rate / 10)))
        while not cancel():
            chosen, over = self._replay_page(queue, work, size)
            if over:
                work.status = "finished"
            work.replayed += len(chosen)
            if not work.dry_run:
                done = self._run(REPLAY, queue, [self.operator, work.id, orjson.dumps(asdict(work)), *chosen])
                work.replayed -= sum(1 for one in done if not one)
            paced += len(chosen)
            if progress is not None:
                progress(work)
            if over:
                return work
            if rate is not None:
                ahead = paced / rate - (time.monotonic() - started)
                while ahead > 0 and not cancel():
                    time.sleep(min(ahead, 0.1))
                    ahead = paced / rate - (time.monotonic() - started)
        work.status = "cancelled"
        if not work.dry_run:
            self._run(REPLAY, queue, [self.operator, work.id, orjson.dumps(asdict(work))])
        return work

    def _replay_page(self, queue: str, work: ReplayTask, size: int) -> tuple[list[str], bool]:
        """The next messages of a task, its cursor moved behind them, and whether they are the last."""
        if work.ids is not None:
            start = int(work.cursor or 0)
            asked = work.ids[start : start + size]
            work.seen += len(asked)
            work.cursor = str(start + len(asked))
            over = work.cursor == str(len(work.ids))
            if not work.dry_run:
                return list(asked), over  # the script itself passes over what is not dead
            found = [self._run(SHOW, queue, [id]) for id in asked]
            dead = [id for id, (_, state, *_) in zip(asked, found, strict=True) if state == State.DEAD.value.encode()]
            return dead, over
        page = self.messages(queue, State.DEAD, limit=size, after=work.cursor or None)
        fresh = [message for message in page.messages if message._settled_ms <= work.until_ms]
        work.seen += len(fresh)
        if fresh:
            work.cursor = f"{fresh[-1]._settled_ms}~{fresh[-1].id}"
        over = page.next is None or len(fresh) < len(page.messages)
        return [message.id for message in fresh if work.matches(message)], over

    def _new_task(
        self,
        queue: str,
        ids: Sequence[str] | None,
        kind: str | None,
        error_class: str | None,
        dry_run: bool,
        name: str | None,
    ) -> ReplayTask:
        if ids is not None:
            if kind is not None or error_class is not None:
                raise InvalidInput("name ids, or filter by kind and error class, not both")
            for id in ids:
                valid_name(id, "message id")
        id = valid_name(name, "task id") if name else new_id()
        return ReplayTask(
            id, queue, self._now_ms(), kind, error_class, tuple(ids) if ids is not None else None,
            total=self.counts(queue).dead if ids is None else len(ids), operator=self.operator, dry_run=dry_run,
        )  # fmt: skip

    def task(self, queue: str, id: str) -> ReplayTask:
        """A replay as Redis knows it."""
        key = self._ref(queue).keys["tasks"]
        text = self._post.connection.command("HGET", key, valid_name(id, "task id"), key=key)
        if text is None:
            raise NotFound(f"{queue} has no replay task {id}")
        return _task(text)

    def tasks(self, queue: str) -> list[ReplayTask]:
        """Every replay the queue remembers, newest first."""
        key = self._ref(queue).keys["tasks"]
        flat = self._post.connection.command("HGETALL", key, key=key)
        return sorted((_task(text) for text in flat[1::2]), key=lambda task: task.id, reverse=True)


def _task(text: bytes) -> ReplayTask:
    made = orjson.loads(text)
    made["ids"] = tuple(made["ids"]) if made["ids"] is not None else None
    return ReplayTask(**made)
