"""Fires schedules: finds what is due in a queue, computes the next ticks, and stores both with one script.

Every process that receives from a queue or sweeps it does this, and no leader is needed: the script leaves a schedule
alone that has changed since it was read, so of many firers one fires each tick, and a crash loses none. On failure
receiving goes on: a full queue, a schedule that this version cannot read and missing rights are logged, and it looks
again later; while the server is away it raises as the receive itself would.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from restante.core.errors import AccessDenied, Corrupt, InvalidInput, RestanteError, Unavailable
from restante.core.flow import Flow
from restante.core.message import new_id, tick_id
from restante.core.operations import SEND
from restante.core.queue_ref import QueueRef
from restante.core.schedule import TRIES, Head, Schedule, found_by, parse_schedule
from restante.core.scripts import Argument, Script, ScriptCall

log = logging.getLogger("restante")

# A generator of its own: a program that has seeded that of the module must not find it moved on.
_chance = random.Random().getrandbits

TICK = Script("tick", " ".join((*SEND.keys, "schedules", "ticks")))

#: Due schedules that one call returns. More would hold up the messages behind them.
BATCH: Final = 50
#: Calls of one `firing` on the way of a receive; what is left follows after the receive.
ROUNDS: Final = 10
#: Most seconds between two looks at the schedules of a queue: a clock that jumps is noticed after this time.
LOOK_EVERY: Final = 5.0
#: Milliseconds before their time at which schedules are read, so that a tick then takes one call.
AHEAD: Final = 6000
#: Seconds after the expected time at which what was read ahead is too old: a process that slept looks again.
STALE: Final = 1.0
#: Seconds until ticks that were refused, by a full queue say, are tried again.
REFUSED_PAUSE: Final = 1.0
#: Seconds until a client without the rights to fire looks again.
DENIED_PAUSE: Final = 300.0


class Firing(NamedTuple):
    """What to do about one schedule: its head afterwards, the same if the tick is passed over, and its messages."""

    schedule: Schedule
    after: Head
    passed: Head | None
    #: Id and due time of each message.
    messages: Sequence[tuple[str, int]]
    #: The messages' own stored forms, where they differ.
    forms: Sequence[bytes] = ()


class Fired(NamedTuple):
    """The reply of the script that fires."""

    now: int
    due: int | None
    #: fired, passed or changed per schedule.
    statuses: list[str]
    #: The schedules that are due, or if none is, due soon; None for those that this version cannot read.
    waiting: list[Schedule | None]


def tick(ref: QueueRef, /, firings: Sequence[Firing] = (), *, most: int = BATCH) -> ScriptCall[Fired]:
    """Fires schedules as computed, and returns others that are due. Repeating it is safe."""
    args: list[Argument] = [most, _chance(32), AHEAD]
    for schedule, after, passed, messages, forms in firings:
        definition = schedule.definition
        due = str(after.due_ms) if after.status == "active" and not definition.firer else ""
        args += (schedule.name, schedule.head.text(), after.text(), "" if passed is None else passed.text(), due)
        args.append(len(messages))
        for at, (id, at_ms) in enumerate(messages):
            args += (id, at_ms, definition.priority, forms[at] if forms else definition.form)

    def parse(reply: Any) -> Fired:
        now, due, statuses, *rows = reply
        waiting: list[Schedule | None] = []
        for at in range(0, len(rows), 2):
            try:
                waiting.append(parse_schedule(ref.name, rows[at], rows[at + 1], now))
            except Corrupt as error:
                log.error("%s", error)
                waiting.append(None)
        return Fired(now, int(due) if due else None, [status.decode() for status in statuses], waiting)

    return ScriptCall(TICK, ref.keys.group(TICK.keys), args, parse, ref.name)


def plan(schedule: Schedule, now: int) -> Firing:
    """What to do about a schedule that is due."""
    timing, head, name = schedule.timing, schedule.head, schedule.name
    pending = timing.pending(name, head.next_ms, now)
    due = timing.due(name, pending.next) if pending.next is not None else 0
    moved = head._replace(
        status=head.status if pending.next is not None else "ended",
        next_ms=pending.next or 0,
        due_ms=due,
        skipped=head.skipped + pending.skipped,
        why="missed" if pending.skipped else head.why,
    )
    messages = [(tick_id(name, tick), timing.due(name, tick)) for tick in pending.fire]
    after = moved
    if messages:
        after = moved._replace(
            last_id=messages[-1][0], last_ms=pending.fire[-1], fired_ms=now, fired=head.fired + len(messages)
        )
    passed = None
    if messages and not timing.overlap:
        passed = moved._replace(skipped=moved.skipped + len(messages), why="overlap")
    return Firing(schedule, after, passed, messages)


def firing(ref: QueueRef, /, rounds: int = ROUNDS) -> Flow[int]:
    """Fires what is due in a queue and returns how many schedules it fired; `ref.look_at` says when to look again."""
    done, single, refused = 0, False, False
    ahead = ref.read_ahead if time.monotonic() < ref.look_at + STALE else ()
    firings, ref.read_ahead = [plan(one, one.head.due_ms) for one in ahead], ()
    for _ in range(rounds):
        try:
            fired: Fired = yield tick(ref, firings[:1] if single else firings)
        except AccessDenied as error:
            log.warning("schedules not fired queue=%s error=%s", ref.name, error)
            ref.look_at = time.monotonic() + DENIED_PAUSE
            return done
        except Unavailable:
            raise
        except RestanteError as error:
            if not firings:
                log.warning("schedules not fired queue=%s error=%s", ref.name, error)
                ref.look_at = time.monotonic() + LOOK_EVERY
                return done
            if not single and len(firings) > 1:
                single = True  # one call stores all or nothing: alone, each schedule is refused for itself
                continue
            log.warning("schedule not fired queue=%s schedule=%s error=%s", ref.name, firings[0].schedule.name, error)
            firings, refused = firings[1:], True
            if firings:
                continue
            break
        done += fired.statuses.count("fired")
        if single and len(firings) > 1:
            firings = firings[1:]
            continue
        single = False
        known = [one for one in fired.waiting if one is not None and not one.definition.firer]
        firings = [plan(one, fired.now) for one in known if one.head.due_ms <= fired.now]
        if not firings:
            unread = fired.due is not None and fired.due <= fired.now
            ref.look_at = time.monotonic() + _pause(fired, refused or unread)
            ref.read_ahead = [one for one in known if one.head.due_ms == fired.due]
            return done
        if refused:
            break
    ref.look_at = time.monotonic() + (REFUSED_PAUSE if refused else 0.0)
    return done


def _pause(fired: Fired, refused: bool) -> float:
    """Seconds until the next look."""
    if refused:
        return REFUSED_PAUSE
    return LOOK_EVERY if fired.due is None else min(LOOK_EVERY, max(0.0, (fired.due - fired.now) / 1000))


def running_now(ref: QueueRef, /, name: str) -> Flow[str]:
    """Sends the message of a schedule now, beside its ticks, and returns its id."""
    for _ in range(TRIES):
        old = yield from found_by(ref, name)
        if old.definition.firer:
            raise InvalidInput(f"only {old.definition.firer} can make the message of {name}: send it yourself")
        id = f"{name}@now:{new_id()}"
        after = old.head._replace(last_id=id, fired_ms=old.now_ms, fired=old.head.fired + 1)
        entry = Firing(old, after, None, [(id, 0)])
        reply: Fired = yield tick(ref, [entry], most=0)
        if reply.statuses[0] == "fired":
            return id
    raise InvalidInput(f"the schedule {name} is changed by others all the time: try again")
