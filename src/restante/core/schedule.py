"""Schedules: rules of a queue that send a message at each tick; how they are stored, read and changed.

A schedule is a record of its queue: a line that changes with every tick (`Head`), its definition as JSON, and the
stored form of its messages. A change is refused if the record has changed since it was read, and then tried again, so
that ticks, operators and programs do not undo each other's changes. `firing` fires them. On failure nothing is half
done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypedDict, Unpack

import orjson

from restante.core import operations as ops
from restante.core.errors import Corrupt, InvalidInput, NotFound
from restante.core.flow import Flow
from restante.core.keys import SCHEDULED_QUEUES
from restante.core.keywords import check_keywords, nearest
from restante.core.message import Draft, State, tick_id
from restante.core.names import valid_name
from restante.core.queue_ref import QueueRef
from restante.core.retry import RetryPolicy
from restante.core.scripts import Argument, Command, Script, ScriptCall
from restante.core.stored import Stored
from restante.core.ticks import Timing, cron, every, instant

SCHEDULE = Script("schedule", "queue journal marker schedules ticks")
AGENDA = Script("agenda", "queue journal schedules ready scheduled retrying leased dead done")

log = logging.getLogger("restante")

#: Characters of a schedule's name: with a tick it must fit into a message id.
LONGEST_NAME: Final = 160
#: The version of the definition's JSON. A firer leaves later ones to others.
FORMAT: Final = 1
#: Schedules on one page of a list.
PAGE: Final = 500
#: How often a change is tried again when ticks or others come in between.
TRIES: Final = 100


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule's messages: those of `send` but those that the tick decides."""

    priority: int
    kind: str
    headers: dict[str, Any] | None
    content_type: str | None
    lease: float | timedelta | None
    max_attempts: int | None
    retry: RetryPolicy | None
    unique: str | None
    unique_states: frozenset[State] | None
    expires: float | timedelta | None
    timeout: float | timedelta | None


class Head(NamedTuple):
    """What changes about a schedule with every tick: the first line of its record."""

    #: The message of the last tick that fired; the scripts look for it at the start.
    last_id: str = ""
    #: active, paused or ended.
    status: str = "active"
    #: The next tick, and when it is due: later by its jitter.
    next_ms: int = 0
    due_ms: int = 0
    #: The last tick that fired, and when it did.
    last_ms: int = 0
    fired_ms: int = 0
    #: Messages sent by ticks, ticks passed over, and why the last one was: missed or overlap.
    fired: int = 0
    skipped: int = 0
    why: str = ""
    #: Counts the changes of the definition.
    revision: int = 1

    def text(self) -> str:
        return "\t".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Head:
        id, status, *numbers = text.split("\t")
        due, tick, last, fired_at, fired, skipped = map(int, (numbers[1], numbers[0], *numbers[2:6]))
        return cls(id, status, tick, due, last, fired_at, fired, skipped, numbers[6], int(numbers[7]))


@dataclass(frozen=True, slots=True)
class Definition:
    """What a user decides about a schedule."""

    timing: Timing
    priority: int
    #: The stored form of its messages, without sequence number and sent_at.
    form: bytes
    #: Who fires it: empty for everyone who works on the queue, or the name of a program that does.
    firer: str = ""
    #: Where it comes from: api, task, celery or bus.
    origin: str = "api"

    def text(self) -> bytes:
        values = {"v": FORMAT, "timing": self.timing.as_dict(), "priority": self.priority, "origin": self.origin}
        return orjson.dumps(values | ({"firer": self.firer} if self.firer else {}))


@lru_cache(maxsize=16_384)
def _definition(text: bytes, form: bytes) -> Definition | None:
    """Reads a definition; None if a later version wrote it. Cached, because firing reads it at every tick."""
    values = orjson.loads(text)
    if values["v"] != FORMAT:
        return None
    return Definition(
        Timing(**values["timing"]), values["priority"], form, values.get("firer", ""), values.get("origin", "api")
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as stored on the server, at one moment."""

    name: str
    queue: str
    definition: Definition
    head: Head
    #: The server's clock when it was read.
    now_ms: int
    #: The state of the last tick's message; None if it has left the queue: acked, or removed by an operator.
    last_state: State | None = None

    @property
    def timing(self) -> Timing:
        """When it ticks."""
        return self.definition.timing

    @property
    def status(self) -> str:
        """active, paused, or ended if no tick is left."""
        return self.head.status

    @property
    def stored(self) -> Stored:
        """The message of each tick."""
        return Stored(b"0\n0\t" + self.definition.form)

    @property
    def payload(self) -> Any:
        """The payload of its messages."""
        return self.stored.payload

    @property
    def kind(self) -> str:
        """The kind of its messages."""
        return self.stored.kind

    @property
    def priority(self) -> int:
        """The priority of its messages."""
        return self.definition.priority

    @property
    def origin(self) -> str:
        """Where it was defined: api, task, celery or bus."""
        return self.definition.origin

    @property
    def next_at(self) -> datetime | None:
        """The next tick; None if it is paused or has ended."""
        return instant(self.head.next_ms) if self.head.next_ms and self.status == "active" else None

    @property
    def due_at(self) -> datetime | None:
        """When the next tick fires: the tick and its jitter."""
        return instant(self.head.due_ms) if self.head.due_ms and self.status == "active" else None

    @property
    def last_at(self) -> datetime | None:
        """The last tick that fired."""
        return instant(self.head.last_ms) if self.head.last_ms else None

    @property
    def last_id(self) -> str:
        """The id of its message."""
        return self.head.last_id

    @property
    def fired(self) -> int:
        """How many messages its ticks have sent."""
        return self.head.fired

    @property
    def skipped(self) -> int:
        """How many ticks were passed over, at least: missed, or because the last message was not settled."""
        return self.head.skipped

    def next(self, count: int = 5) -> list[datetime]:
        """The next ticks, without jitter; those it would have if it is paused."""
        tick: int | None = self.head.next_ms or None
        if self.status != "active":
            tick = self.timing.next(self.now_ms)
        found: list[datetime] = []
        while tick is not None and len(found) < count:
            found.append(instant(tick))
            tick = self.timing.next(tick)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The schedule as a dict for JSON, instants as ISO text; without the payload, which may be large or bytes."""
        timing = self.timing

        def text(at: datetime | None) -> str | None:
            return None if at is None else at.isoformat()

        return {
            "queue": self.queue,
            "name": self.name,
            "status": self.status,
            "cron": timing.cron or None,
            "every_seconds": timing.every_ms / 1000 or None,
            "tz": timing.tz,
            "start_at": text(instant(timing.start_ms)) if timing.start_ms else None,
            "end_at": text(instant(timing.end_ms)) if timing.end_ms else None,
            "jitter_seconds": timing.jitter_ms / 1000,
            "missed": timing.missed,
            "overlap": timing.overlap,
            "kind": self.kind,
            "priority": self.priority,
            "next_at": text(self.next_at),
            "due_at": text(self.due_at),
            "last_at": text(self.last_at),
            "last_id": self.last_id or None,
            "last_state": self.last_state.value if self.last_state else None,
            "fired": self.fired,
            "skipped": self.skipped,
            "skipped_why": self.head.why or None,
            "origin": self.origin,
        }

    def __repr__(self) -> str:
        return f"<Schedule {self.name} queue={self.queue} {self.timing.text} {self.status} next={self.next_at}>"


def parse_schedule(queue: str, name: bytes, record: bytes, now_ms: int, state: bytes = b"") -> Schedule | None:
    """Reads a record; None if a later version wrote it."""
    try:
        head, text, form = record.split(b"\n", 2)
        definition = _definition(text, form)
        if definition is None:
            return None
        found = State(state.decode()) if state else None
        return Schedule(name.decode(), queue, definition, Head.parse(head.decode()), now_ms, found)
    except (ValueError, KeyError, TypeError, IndexError):
        raise Corrupt(
            f"the schedule {name.decode('utf-8', 'replace')} of {queue} is damaged: remove it and define it again"
        ) from None


# -- reading and changing --------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """One page of the schedules of a queue."""

    now_ms: int
    cursor: str
    #: Without those that cannot be read: damaged, or written by a later version.
    schedules: list[Schedule]
    #: The heads of all as they are stored, by name.
    heads: dict[str, bytes]


def agenda(ref: QueueRef, /, names: Sequence[str] = (), *, cursor: str = "0", count: int = PAGE) -> ScriptCall[Page]:
    """Reads the schedules with these names, or a page of all, in no order."""

    def parse(reply: Any) -> Page:
        now, following, *rows = reply
        found: list[Schedule] = []
        heads: dict[str, bytes] = {}
        for at in range(0, len(rows), 3):
            name, record, state = rows[at : at + 3]
            heads[name.decode()] = record.partition(b"\n")[0]
            try:
                one = parse_schedule(ref.name, name, record, now, state)
            except Corrupt as error:
                log.error("%s", error)
            else:
                found += [] if one is None else [one]
        return Page(now, following.decode(), found, heads)

    return ScriptCall(AGENDA, ref.keys.group(AGENDA.keys), [cursor, count, *names], parse, ref.name)


def check_name(name: str) -> str:
    """Returns the name of a schedule if it is valid."""
    valid_name(name, "schedule name")
    if len(name) > LONGEST_NAME:
        raise InvalidInput(f"a schedule name has at most {LONGEST_NAME} characters, not {len(name)}")
    return name


def _store(
    ref: QueueRef, before: bytes | str, after: Schedule | None, name: str, author: str, word: str
) -> ScriptCall[bool]:
    """Stores a schedule that was read as `before`, or removes it; False if it has changed meanwhile."""
    record, due = b"", ""
    if after is not None:
        definition = after.definition
        record = b"%b\n%b\n%b" % (after.head.text().encode(), definition.text(), definition.form)
        due = str(after.head.due_ms) if after.status == "active" and not after.definition.firer else ""
    args: list[Argument] = [author, f"schedule {name} {word}", name, before, record, due]
    return ScriptCall(SCHEDULE, ref.keys.group(SCHEDULE.keys), args, lambda reply: reply == 1, ref.name)


def define(
    ref: QueueRef, /, name: str, timing: Timing, payload: Any, origin: str, options: ScheduleOptions, firer: str = ""
) -> Definition:
    """The definition of a schedule, checked as its messages' sends would be."""
    check_name(name)
    check_keywords(options, tuple(ScheduleOptions.__annotations__), "schedule()")
    plain = QueueRef(ref.name, "", Draft)
    plain.settings = ref.settings
    _, _, _, priority, form = ops.send(plain, payload, id=tick_id(name, 0), **options).args
    return Definition(timing, int(priority), bytes(form), firer, origin)  # type: ignore[arg-type]


def defining(ref: QueueRef, /, name: str, definition: Definition, author: str) -> Flow[Schedule]:
    """Stores a schedule, or changes the one of that name; an equal one stays as it is.

    A change of timing counts from now. Its counts stay, and so does a pause: a new version of a program must not resume
    what an operator has paused.
    """
    yield Command(("SADD", SCHEDULED_QUEUES, ref.name), SCHEDULED_QUEUES)
    for _ in range(TRIES):
        page: Page = yield agenda(ref, [name])
        old = page.schedules[0] if page.schedules else None
        if old is not None and old.definition == definition:
            ref.scheduled = True
            return old
        head = Head() if old is None else old.head._replace(revision=old.head.revision + 1)
        if old is None or old.timing != definition.timing or old.status == "ended":
            head = _from_now(name, definition.timing, head, page.now_ms)
        new = Schedule(name, ref.name, definition, head, page.now_ms)
        if (yield _store(ref, page.heads.get(name, ""), new, name, author, "added" if old is None else "edited")):
            ref.scheduled, ref.look_at = True, 0.0
            return new
    raise InvalidInput(f"the schedule {name} is changed by others all the time: define it in one place")


def _from_now(name: str, timing: Timing, head: Head, now: int) -> Head:
    """The head of a schedule whose timing begins now: later than the last tick, if the clock went back."""
    tick = timing.next(max(now, head.last_ms))
    status = "ended" if tick is None else "active" if head.status == "ended" else head.status
    return head._replace(status=status, next_ms=tick or 0, due_ms=timing.due(name, tick) if tick else 0)


def found_by(ref: QueueRef, name: str) -> Flow[Schedule]:
    """Reads one schedule; raises NotFound with the nearest name."""
    page: Page = yield agenda(ref, [check_name(name)])
    if page.schedules:
        return page.schedules[0]
    every_one = yield from schedules(ref)
    raise NotFound(f"{ref.name} has no schedule {name}: {nearest(name, [one.name for one in every_one])}")


def schedules(ref: QueueRef, /) -> Flow[list[Schedule]]:
    """Reads all schedules of a queue, the next to tick first and those that do not tick last."""
    found: dict[str, Schedule] = {}
    cursor = ""
    while cursor != "0":
        page: Page = yield agenda(ref, cursor=cursor or "0")
        found.update((one.name, one) for one in page.schedules)
        cursor = page.cursor
    return sorted(found.values(), key=lambda one: (one.next_at is None, one.head.due_ms, one.name))


def changing(ref: QueueRef, /, name: str, word: str, author: str) -> Flow[Schedule]:
    """Pauses or resumes a schedule: `word` is paused or resumed."""
    for _ in range(TRIES):
        old = yield from found_by(ref, name)
        new = old
        if word == "paused" and old.status == "active":
            new = replace(old, head=old.head._replace(status="paused"))
        elif word == "resumed" and old.status == "paused":
            # What passed during the pause was not missed: it counts from now.
            head = _from_now(name, old.timing, old.head._replace(status="active"), old.now_ms)
            new = replace(old, head=head)
        if new is old or (yield _store(ref, old.head.text(), new, name, author, word)):
            return new
    raise InvalidInput(f"the schedule {name} is changed by others all the time: try again")


def removing(ref: QueueRef, /, name: str, author: str) -> Flow[None]:
    """Removes a schedule, also one that cannot be read."""
    for _ in range(TRIES):
        page: Page = yield agenda(ref, [check_name(name)])
        if name not in page.heads:
            yield from found_by(ref, name)
        elif (yield _store(ref, page.heads[name], None, name, author, "removed")):
            return
    raise InvalidInput(f"the schedule {name} is changed by others all the time: try again")


def timing_from(
    cron_or_timing: str | Timing | None, every_: float | str | timedelta | None, options: dict[str, Any]
) -> Timing:
    """The timing that `schedule(…)` was given: a cron expression, `every`, or a `Timing`."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(cron_or_timing, Timing):
        if every_ is not None or given:
            extra = "every" if every_ is not None else next(iter(given))
            raise InvalidInput(f"the timing says all: give {extra} to cron(…) or every(…), not beside it")
        return cron_or_timing
    if (cron_or_timing is None) == (every_ is None):
        raise InvalidInput("give a cron expression such as '0 3 * * *', or every='5m'")
    if every_ is None:
        return cron(cron_or_timing, **given)  # type: ignore[arg-type]  # not None: one of both is given
    if "tz" in given:
        raise InvalidInput("an interval has no time zone: give tz with a cron expression")
    return every(every_, **given)


def schedule(
    ref: QueueRef,
    /,
    name: str,
    cron: str | Timing | None = None,
    *,
    payload: Any = None,
    every: float | str | timedelta | None = None,
    tz: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: float | str | timedelta | None = None,
    missed: str | None = None,
    overlap: bool | None = None,
    **options: Unpack[ScheduleOptions],
) -> Flow[Schedule]:
    """Sends a message at each tick of a cron expression or an interval, until the schedule is removed.

    The schedule is stored on the server, and any process that receives from the queue or sweeps it fires it. The id of
    a tick's message is the name and the tick, and each tick is sent once. The same call again changes nothing; with
    other options it changes the schedule of that name. `missed` says what becomes of ticks that passed while nothing
    ran: `once` sends the last of them, `skip` none, `all` each. With `overlap=False` a tick is passed over while the
    message of the tick before is not settled.
    """
    given = {"tz": tz, "start": start, "end": end, "jitter": jitter, "missed": missed, "overlap": overlap}
    timing = timing_from(cron, every, given)
    return defining(ref, name, define(ref, name, timing, payload, "api", options), ref.consumer)


def unschedule(ref: QueueRef, /, name: str) -> Flow[None]:
    """Removes a schedule. Messages that its ticks have sent stay."""
    yield from removing(ref, name, ref.consumer)


def storing_of_tasks(ref: QueueRef) -> Flow[list[str]]:
    """Stores the schedules of the tasks of a queue. Returns the stored ones of tasks that this program does not have.

    Those are left as they are: another program, or an older version that still runs, may have their tasks.
    """
    for name, made in ref.task_schedules.items():
        timing, payload, options = made()
        yield from defining(ref, name, define(ref, name, timing, payload, "task", options), ref.consumer)
    stored = yield from schedules(ref)
    return [one.name for one in stored if one.origin == "task" and one.name not in ref.task_schedules]
