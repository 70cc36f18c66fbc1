"""The operators' verbs: replay, delete, purge, revoke, cancel, drop, configure, pause, edit and move; no hot path.

On failure nothing is half done: each page of work is one script. A replay's progress is stored with the messages it
moves, and an interrupted replay is resumed by its task id.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

import orjson

from restante.core.batch_admin import BatchVerbs
from restante.core.batch_calls import emptying
from restante.core.errors import Corrupt, InvalidInput, MessageLeased, NotFound, RestanteError
from restante.core.inspector import SHOW, parse_message
from restante.core.keys import AUDIT, QUEUES, SCHEDULED_QUEUES
from restante.core.keywords import known_keywords, nearest
from restante.core.message import ENDED, STATE_LETTERS, Draft, Message, State, new_id
from restante.core.names import valid_name
from restante.core.operations import send_entries
from restante.core.operator_verbs import cancel_many, delete, revoke
from restante.core.queue import Client, open_queue, run_flow
from restante.core.schedule_admin import ScheduleAdmin
from restante.core.scripts import Script
from restante.core.send_options import draft_entry, due_argument
from restante.core.settings import QueueOptions, QueueSettings, milliseconds, queue_fields, whole
from restante.core.stored import encode

log = logging.getLogger("restante")

REPLAY = Script("replay", "queue journal messages deliveries ready dead unique marker tasks outbox")
PURGE = Script("purge", "queue journal messages deliveries history")
EDIT = Script("edit", "queue journal messages deliveries ready scheduled retrying dead marker")
MOVE = Script(
    "move",
    "queue journal messages deliveries history ready scheduled retrying dead leased unique outbox",
)
_MOVE_TARGET = ("queue", "journal", "messages", "deliveries", "history", "ready", "scheduled", "unique", "marker")

#: Messages per call of replay, purge, delete, revoke, cancel and move.
SLICE = 200
#: Audit entries kept.
AUDIT_KEEP = 10_000
_PURGEABLE = (State.READY, State.SCHEDULED, State.RETRYING, State.DEAD, State.DONE)


def check_ids(ids: Sequence[str]) -> None:
    """Refuses anything but a list of message ids. Each letter of a string would be taken for an id."""
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise InvalidInput(f"give a list of message ids, not {ids!r}")
    for id in ids:
        valid_name(id, "message id")


def _few(ids: Sequence[str]) -> str:
    """The first ids of a call, for the audit."""
    return ", ".join(ids[:3]) + (" …" if len(ids) > 3 else "")


def _states(states: Sequence[State | str]) -> list[State]:
    if isinstance(states, str) or not isinstance(states, Sequence):
        raise InvalidInput(f"give a list of states such as [State.DEAD], not {states!r}")
    known = [state.value for state in State]
    for state in states:
        if state not in known:
            raise InvalidInput(f"{state!r} is not a state: {nearest(str(state), known)}")
    return [State(state) for state in states]


@dataclass(slots=True)
class ReplayTask:
    """A replay and its progress, stored in Redis so that it can be resumed."""

    id: str
    queue: str
    #: Only messages that died before this time are replayed, so none that dies again is replayed twice.
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


class Admin(BatchVerbs, ScheduleAdmin):
    """The operators' verbs on a server: `Admin(client)`. The journal records `operator` as their author.

    With `audited=False` nothing is written to the audit, for programs that clean up after themselves.
    """

    @known_keywords
    def __init__(self, client: Client, *, operator: str | None = None, audited: bool = True) -> None:
        super().__init__(client)
        self._audited = audited
        # A login may contain characters that names may not; a given name must be valid as it is.
        login = "".join(ch for ch in os.environ.get("USER", "") if ch.isascii() and (ch.isalnum() or ch in "._-"))
        self.operator = valid_name(operator or login.lstrip("-")[:100] or "operator", "operator")

    def note(self, verb: str, queue: str = "", count: int = 0, detail: str = "") -> None:
        """Adds an entry to the audit. A failure is only logged, because the journal already names the operator."""
        if not self._audited:
            return
        words = ("who", self.operator, "verb", verb, "queue", queue, "count", count, "detail", detail[:500])
        try:
            self._client.connection.command("XADD", AUDIT, "MAXLEN", "~", AUDIT_KEEP, "*", *words, key=AUDIT)
        except RestanteError as error:
            log.warning("audit missed verb=%s queue=%s count=%d error=%s", verb, queue, count, error)

    # -- changing ------------------------------------------------------------------------------------------------

    def configure(self, queue: str, **options: Unpack[QueueOptions]) -> QueueSettings:
        """Changes settings of a queue, for all its clients."""
        settings = self._configure(queue, queue_fields(options), "configured")
        self.note("configure", queue, detail=", ".join(sorted(options)))
        return settings

    def _carry(self, queue: str) -> None:
        """Counts what a verb has put into the outbox of the queue; a failure is logged, and others do it later."""
        self._ref(queue).noted.clear()
        connection = self._client.connection
        try:
            run_flow(connection, emptying(queue, self._ref(queue).together))
        except RestanteError as error:
            log.warning("batch not counted yet queue=%s error=%s", queue, error)

    def pause(self, queue: str) -> None:
        """Pauses a queue: nothing is received until `resume`. Sends continue, and leases and delays keep running."""
        self._configure(queue, {"pause": "1"}, "paused")
        self.note("pause", queue)

    def resume(self, queue: str) -> None:
        """Ends the pause of a queue."""
        self._configure(queue, {"pause": ""}, "resumed")
        self.note("resume", queue)

    def _configure(self, queue: str, fields: dict[str, str], event: str) -> QueueSettings:
        ref = self._ref(queue)
        self._client.connection.command("SADD", QUEUES, queue, key=QUEUES)
        ref.pending.update(fields)
        self._client.connection.run(open_queue(ref, operator=self.operator, event=event))
        return ref.settings

    def delete(self, queue: str, ids: Sequence[str], *, detail: str = "") -> int:
        """Deletes messages by id and returns how many existed. Raises MessageLeased if any are leased; those stay."""
        check_ids(ids)
        count, held = 0, []
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            words = " ".join(detail.split())
            call = delete(self._ref(queue), part, operator=self.operator, detail=words)
            states = self._client.connection.run(call)
            for id, state in zip(part, states, strict=True):
                if state == b"leased":
                    held.append(id)
                elif state:
                    count += 1
        self._carry(queue)
        if count:
            self.note("delete", queue, count, detail)
        if held:
            raise MessageLeased(
                f"{len(held)} of {len(ids)} messages are leased and were not deleted, the first is {held[0]}"
            )
        return count

    def revoke(self, queue: str, ids: Sequence[str], *, detail: str = "") -> int:
        """Takes leased messages back from their consumers and returns how many were leased.

        They are ready again at their old position, and the attempt counts. The lease token dies at once: the consumer's
        verdict raises LeaseLost, and its next renewal sets `message.lease_lost`. What the handler did stays done, so
        the work may be done twice. A message whose attempts are spent is delivered once more.
        """
        check_ids(ids)
        words, count = " ".join(detail.split()), 0
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            call = revoke(self._ref(queue), part, operator=self.operator, detail=words)
            taken = self._client.connection.run(call)
            count += sum(taken)
        if count:
            self.note("revoke", queue, count, detail or _few(ids))
        return count

    def cancel(self, queue: str, ids: Sequence[str], *, detail: str = "") -> int:
        """Gives messages up and returns how many; those that are dead or done stay.

        A waiting message is removed at once. A leased one is removed too: its consumer's verdict raises LeaseLost, its
        next renewal sets `message.cancelled`, and a coroutine handler is cancelled.
        """
        check_ids(ids)
        words, count = " ".join(detail.split()), 0
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            call = cancel_many(self._ref(queue), part, operator=self.operator, detail=words)
            count += sum(state not in (None, *ENDED) for state in self._client.connection.run(call))
        self._carry(queue)
        if count:
            self.note("cancel", queue, count, detail or _few(ids))
        return count

    def purge(
        self, queue: str, states: Sequence[State | str] = _PURGEABLE, *, progress: Callable[[int], None] | None = None
    ) -> int:
        """Deletes every message in these states and returns how many. Leased messages cannot be purged."""
        total = 0
        for state in _states(states):
            if state is State.LEASED:
                raise InvalidInput("leased messages cannot be purged: stop the consumers, or wait for their leases")
            key = self._ref(queue).keys[state.value]
            unique = self._ref(queue).keys["unique"]
            outbox = self._ref(queue).keys["outbox"]
            while count := self._run(PURGE, queue, [self.operator, state.value, SLICE], [key, unique, outbox]):
                total += count
                if progress is not None:
                    progress(total)
        self._carry(queue)
        self.note("purge", queue, total, ", ".join(State(state).value for state in states))
        return total

    def drop(self, queue: str, *, force: bool = False) -> None:
        """Removes a queue with its messages, settings and journal.

        Raises MessageLeased while messages are leased. With `force` they are removed too, and the verdicts of their
        consumers have no effect.
        """
        if not self._client.connection.command("SISMEMBER", QUEUES, valid_name(queue), key=QUEUES):
            raise NotFound(f"no queue {queue}: {nearest(queue, self.queues())}")
        leased = self.counts(queue).leased
        if leased and not force:
            raise MessageLeased(
                f"{queue} has {leased} leased messages: stop its consumers first, or drop it with force"
            )
        self.purge(queue)
        self._cancel_leased(queue, [message.id for message in self.walk(queue, State.LEASED) if message.batch_id])
        keys = self._ref(queue).keys
        fields = self._client.connection.command("HKEYS", keys["queue"], key=keys["queue"])
        holders = [name.decode().partition(":")[2] for name in fields if name.startswith(b"holder:")]
        copies = [key for holder in holders for key in keys.lease_journal(holder)] + self._end_batches(queue)
        self._client.connection.command("UNLINK", *keys.by_name.values(), *copies, key=keys["queue"])
        self._client.connection.command("SREM", SCHEDULED_QUEUES, queue, key=SCHEDULED_QUEUES)
        self._client.connection.command("SREM", QUEUES, queue, key=QUEUES)
        self._ref(queue).opened = False
        self.note("drop", queue, leased, "by force" if leased else "")

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
        """Changes a message that is not leased; arguments that are not given leave their field as it is."""
        now = self.show(queue, id)
        if now.state is State.LEASED:
            raise MessageLeased(f"{id} is held by {now.consumer}: wait until its lease ends")
        if now.state is State.DONE:
            raise InvalidInput(f"{id} is done: send a new message instead")
        stored = now.stored
        level = now.priority if priority is None else whole(priority, "priority", 0, 255)
        limits = (stored.lease_ms, stored.max_attempts, stored.unique, stored.unique_states)
        due = ""
        if delay is not None:
            wait = timedelta(milliseconds=milliseconds(delay, "delay"))
            due_at = datetime.fromtimestamp(self.now_ms() / 1000, UTC) + wait
        if due_at is not None:
            due = due_argument(0, due_at)
        span = stored.expires_ms
        if span is not None and due and now.state is State.SCHEDULED:
            span = max(0, span - max(0, now.due_ms - stored.sent_ms))  # the rest counts from the new due time
        is_bytes = (payload is ... and stored.options.get("e") == "bytes") or isinstance(payload, bytes)
        body, _ = encode(
            now.payload if payload is ... else payload,
            kind=now.kind,
            priority=level,
            headers=now.headers if headers is None else headers,
            content_type=now.content_type if is_bytes else None,
            retry=now.retry,
            lease_ms=limits[0],
            max_attempts=limits[1],
            unique=limits[2],
            unique_states=limits[3],
            expires_ms=span,
            expires_from=int(due) if due else None,
            timeout_ms=stored.timeout_ms,
            batch=stored.batch,
        )
        state = self._run(EDIT, queue, [self.operator, id, body, str(level), due])
        if state == b"leased":
            raise MessageLeased(f"{id} was received meanwhile and was not changed")
        if not state:
            raise NotFound(f"{queue} no longer has a message {id}")
        self.note("edit", queue, 1, id)
        return self.show(queue, id)

    def move(self, queue: str, target: str, ids: Sequence[str]) -> int:
        """Moves messages that are not leased to another queue and returns how many. One script moves a whole page."""
        if queue == target:
            raise InvalidInput("source and target are the same queue")
        check_ids(ids)
        to = self._ref(target)
        if not any(self._run(SHOW, queue, [id])[1] for id in ids):
            return 0  # do not create a target that receives nothing
        self._client.connection.command("SADD", QUEUES, target, key=QUEUES)
        moved = 0
        for start in range(0, len(ids), SLICE):
            part = list(ids[start : start + SLICE])
            if self._client.connection.same_server(self._ref(queue).keys["queue"], to.keys["queue"]):
                states = self._run(MOVE, queue, [self.operator, queue, target, *part], to.keys.group(_MOVE_TARGET))
                moved += sum(1 for state in states if state not in (b"", b"leased", b"exists"))
            else:
                moved += sum(self._move_apart(queue, target, id) for id in part)
        self._carry(queue)
        if moved:
            self.note("move", queue, moved, f"to {target}")
        return moved

    def _move_apart(self, queue: str, target: str, id: str) -> bool:
        """Moves a message between cluster slots: copies, then deletes it. A crash in between leaves both copies."""
        _, state, score, stored, delivery, history = self._run(SHOW, queue, [id])
        if not state or self._run(SHOW, target, [id])[1]:
            return False
        message = parse_message(queue, id, State(state.decode()), score, stored, delivery, history)
        if message.state in (State.LEASED, State.DONE):
            return False
        if history:
            key = self._ref(target).keys["history"]
            self._client.connection.command("HSET", key, id, history, key=key)
        kept = message.stored
        letters = {letter: state for state, letter in STATE_LETTERS.items()}
        waits, span = message.state in (State.SCHEDULED, State.RETRYING), kept.expires_ms
        if waits and span is not None:
            span = max(0, kept.sent_ms + span - message.due_ms)  # counts from the due time in the target
        draft = Draft(
            message.payload,
            id=id,
            priority=message.priority,
            kind=message.kind,
            headers=message.headers,
            content_type=message.content_type if kept.options.get("e") == "bytes" else None,
            due_at=message.due_at if waits else None,
            retry=message.retry,
            max_attempts=message.max_attempts,
            lease=kept.lease_ms / 1000 if kept.lease_ms else None,
            unique=message.unique,
            unique_states=frozenset(letters[letter] for letter in kept.unique_states) or None,
            expires=None if span is None else span / 1000,
            timeout=message.timeout,
        )
        other = self._client.queue(target)
        other.ensure_open()
        (sent,) = self._client.connection.run(
            send_entries(other.ref, [draft_entry(other.ref, draft, draft.payload, kept.batch)])
        )
        if not sent.stored:
            return False
        # The tab says that the message goes on elsewhere, for its batch.
        call = delete(self._ref(queue), [id], operator=self.operator, detail=f"\tmoved to {target}")
        return self._client.connection.run(call) not in ([b""], [b"leased"])

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
        cancel: Callable[[], bool] | None = None,
    ) -> ReplayTask:
        """Moves dead messages back to ready, page by page; resets their attempts and keeps their errors.

        `rate` limits the messages per second. With `dry_run` nothing moves, and the result counts the messages that
        would. `task` resumes a cancelled or interrupted replay by its id; `name` sets the id of a new one. The replay
        stops between two pages once `cancel` returns True.
        """
        if rate is not None and not 0.01 <= rate <= 1e6:
            raise InvalidInput(f"rate must be messages per second from 0.01 to 1000000, not {rate!r}")
        work = self.task(queue, task) if task else self._new_task(queue, ids, kind, error_class, dry_run, name)
        work.status = "running"
        started, paced = time.monotonic(), 0
        size = SLICE if rate is None else max(1, min(SLICE, int(rate / 10)))
        cancelled = cancel or (lambda: False)
        while not cancelled():
            chosen, over = self._replay_page(queue, work, size)
            if over:
                work.status = "finished"
            work.replayed += len(chosen)
            if not work.dry_run:
                done = self._run(REPLAY, queue, [self.operator, work.id, orjson.dumps(asdict(work)), *chosen])
                self._carry(queue)
                work.replayed -= sum(1 for replayed in done if not replayed)
            paced += len(chosen)
            if progress is not None:
                progress(work)
            if over:
                self._note_replay(work)
                return work
            if rate is not None:
                ahead = paced / rate - (time.monotonic() - started)
                while ahead > 0 and not cancelled():
                    time.sleep(min(ahead, 0.1))
                    ahead = paced / rate - (time.monotonic() - started)
        work.status = "cancelled"
        if not work.dry_run:
            self._run(REPLAY, queue, [self.operator, work.id, orjson.dumps(asdict(work))])
        self._note_replay(work)
        return work

    def _note_replay(self, work: ReplayTask) -> None:
        if not work.dry_run:
            chosen = [f"{name} {value}" for name, value in (("kind", work.kind), ("error", work.error_class)) if value]
            self.note("replay", work.queue, work.replayed, ", ".join([*chosen, f"task {work.id} {work.status}"]))

    def _replay_page(self, queue: str, work: ReplayTask, size: int) -> tuple[list[str], bool]:
        """Returns the next messages of a task and whether they are the last; advances its cursor."""
        if work.ids is not None:
            start = int(work.cursor or 0)
            asked = work.ids[start : start + size]
            work.seen += len(asked)
            work.cursor = str(start + len(asked))
            over = work.cursor == str(len(work.ids))
            if not work.dry_run:
                return list(asked), over  # the script skips messages that are not dead
            shown = [self._run(SHOW, queue, [id]) for id in asked]
            dead = [id for id, (_, state, *_) in zip(asked, shown, strict=True) if state == State.DEAD.value.encode()]
            return dead, over
        page = self.messages(queue, State.DEAD, limit=size, after=work.cursor or None)
        fresh = [message for message in page.messages if message.settled_ms <= work.until_ms]
        work.seen += len(fresh)
        if fresh:
            work.cursor = f"{fresh[-1].settled_ms}~{fresh[-1].id}"
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
            check_ids(ids)
        id = valid_name(name, "task id") if name else new_id()
        return ReplayTask(
            id,
            queue,
            self.now_ms(),
            kind,
            error_class,
            tuple(ids) if ids is not None else None,
            total=self.counts(queue).dead if ids is None else len(ids),
            operator=self.operator,
            dry_run=dry_run,
        )

    def task(self, queue: str, id: str) -> ReplayTask:
        """Returns a replay as stored in Redis."""
        key = self._ref(queue).keys["tasks"]
        text = self._client.connection.command("HGET", key, valid_name(id, "task id"), key=key)
        if text is None:
            raise NotFound(f"{queue} has no replay task {id}")
        return _task(text)

    def tasks(self, queue: str) -> list[ReplayTask]:
        """Returns all stored replays of a queue, newest first."""
        key = self._ref(queue).keys["tasks"]
        flat = self._client.connection.command("HGETALL", key, key=key)
        return sorted((_task(text) for text in flat[1::2]), key=lambda task: task.id, reverse=True)


def _task(text: bytes) -> ReplayTask:
    try:
        values = orjson.loads(text)
        values["ids"] = tuple(values["ids"]) if values["ids"] is not None else None
        return ReplayTask(**values)
    except (ValueError, TypeError, KeyError):
        raise Corrupt("the record of a replay is damaged: delete its field of the key tasks") from None
