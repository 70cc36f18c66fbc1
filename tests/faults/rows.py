"""One JSON line per row of the fault matrix: printed, and added to the file named by RESTANTE_ROWS if there is one."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from restante import Admin, Client, Corrupt, Queue, State
from restante.core.journal import JournalEntry
from restante.core.message import JournalEvent
from tests.harness import deadlines
from tests.harness.deadlines import PATIENCE, took_at_most
from tests.harness.servers import RedisServer

#: What may lie between two deliveries of a message, and by how much the second one's attempts must then be higher.
CAUSES: Final = {JournalEvent.EXPIRED: 1, JournalEvent.NACKED: 1, JournalEvent.RELEASED: 0, JournalEvent.REVOKED: 1}
#: Events after which nobody holds the message and only a replay, or nothing at all, brings it back.
ENDINGS: Final = (JournalEvent.ACKED, JournalEvent.REPLAYED, JournalEvent.BURIED, JournalEvent.CANCELLED)

#: Verdicts: only who holds the message may give one.
VERDICTS: Final = (
    JournalEvent.ACKED,
    JournalEvent.NACKED,
    JournalEvent.BURIED,
    JournalEvent.RELEASED,
    JournalEvent.EXTENDED,
)

#: Whether a lease may have run out, from the line of its delivery and the line of its end.
Excuse = Callable[[JournalEntry, JournalEntry], bool]


class JournalTrimmed(AssertionError):
    """The beginning of a journal that a test needs whole is gone."""


def verdict(
    row: int | str,
    *,
    n: int,
    lost: int | None = None,
    dup: int | None = None,
    early: int | None = None,
    phantom: int | None = None,
    stale: int | None = None,
    max_recovery_s: float = 0.0,
    within_s: float | None = None,
    **details: Any,
) -> None:
    """Says how a row went, then fails the test if it went badly. `dup` counts what nothing explains.

    A count is None where the test does not count it: `count_from_journal` may do so after the test.
    `within_s` is a bound of time, for tests marked `timed`: see tests/harness/deadlines.py.
    """
    counts = {"lost": lost, "dup": dup, "early": early, "phantom": phantom, "stale": stale}
    bad = any(counts.values()) or n <= 0
    line = {
        "row": row,
        "n": n,
        **{name: count for name, count in counts.items() if count is not None},
        "max_recovery_s": round(max_recovery_s, 3),
        "verdict": "fail" if bad else "pass",
        **details,
    }
    text = json.dumps(line)
    _tell(text)
    if left := {name for name, count in counts.items() if count is None}:
        uncounted.append((row, left))
    assert not bad, text
    if within_s is not None:
        took_at_most(max_recovery_s, within_s, text)


def _tell(text: str) -> None:
    print(text)
    if "RESTANTE_ROWS" in os.environ:
        with Path(os.environ["RESTANTE_ROWS"]).open("a") as file:
            file.write(text + "\n")


#: Rows of the test that runs, each with the names of what it has not counted.
uncounted: list[tuple[int | str, set[str]]] = []


def count_from_journal(post: Client, queue: str) -> None:
    """Counts from a queue's journal what the rows of this test did not count, and fails for any fault."""
    view = Admin(post)
    if not uncounted or queue not in view.queues():
        return
    try:
        faults = {
            **history_faults(view, queue, []),
            "lost": lost_messages(view, queue),
            "early": early_deliveries(view, queue),
        }
    except (Corrupt, JournalTrimmed):
        uncounted.clear()  # the row is about a damaged or a short journal
    for row, left in uncounted:
        _tell(json.dumps({"row": row, "n": 0, **{name: faults[name] for name in sorted(left)}}))
        assert not any(faults[name] for name in left), faults
    uncounted.clear()


def lost_messages(view: Admin, queue: str) -> int:
    """How many messages are in no state although the journal does not say that they are gone."""
    states = {line.message_id: line.state for line in journal_lines(view, queue) if line.message_id}
    stored = places(view, queue)
    lost = [id for id, state in states.items() if state != "gone" and id not in stored]
    for id in lost:
        print(f"lost: {id}, last seen {states[id]}")
    return len(lost)


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until it was true; fails when it does not become so, however busy the machine is."""
    started = time.monotonic()
    deadlines.wait_until(true, what, timeout=max(seconds, PATIENCE), poll=0.01)
    return time.monotonic() - started


def places(view: Admin, queue: str) -> dict[str, list[State]]:
    """Every message and the states it is in; one message in two states is a fault of its own."""
    found: dict[str, list[State]] = {}
    for state in State:
        for message in view.walk(queue, state):
            found.setdefault(message.id, []).append(state)
    return found


def drain(post: Client, queue: str) -> list[str]:
    """The ids of everything ready, each acked."""
    opened = post.queue(queue)
    found: list[str] = []
    while taken := opened.receive_many(1000):
        opened.ack_many(taken)
        found += [message.id for message in taken]
    return found


def script_calls(server: RedisServer) -> int:
    """Calls of scripts by clients so far; what a replica repeats of its master's is none."""
    stats = server.info("commandstats").get("cmdstat_evalsha", "'calls': 0,")
    return int(stats.split("'calls': ")[1].split(",")[0])


def missing(sent: Iterable[str], seen: Iterable[str]) -> int:
    return len(set(sent) - set(seen))


def keep_whole_journal(queue: Queue) -> None:
    """For queues whose journal is read from its beginning after long runs."""
    queue.configure(journal_keep=10_000_000, journal_cap=10_000_000)


def journal_lines(view: Admin, queue: str) -> Iterator[JournalEntry]:
    """Every line of a queue's journal, oldest first; fails if the beginning is gone."""
    last = None
    while entries := view.journal(queue, after=last, limit=1000):
        if last is None and entries[0].position.sequence != 1:
            raise JournalTrimmed(f"the journal of {queue} begins at {entries[0].position}")
        last = entries[-1].position
        yield from entries


def history_faults(
    view: Admin,
    queue: str,
    runs: Iterable[tuple[str, int]],
    *,
    excused: Excuse = lambda received, expired: True,
) -> dict[str, int]:
    """What the journal and the handlers show that must not be, counted as `verdict` takes it; each is printed.

    `runs` are the message id and attempts that each handler saw when it started.

    - `dup`: second deliveries and runs without a cause. A message is delivered again only after its lease expired, a
      nack, a release, a revoke or a replay, and its attempts say so. A handler runs once per delivery; a message
      that was released had not begun. `excused` says which leases may have run out: where only killed
      consumers lose leases, another consumer's expired lease is a double of its own.
    - `phantom`: deliveries and runs of messages that nobody sent.
    - `stale`: verdicts on a message that nobody held, or that another consumer held.
    """
    found: dict[str, list[str]] = {"dup": [], "phantom": [], "stale": []}
    allowed: Counter[tuple[str, int]] = Counter()
    replays: Counter[str] = Counter()
    known: set[str] = set()
    last: dict[str, JournalEntry] = {}
    held: dict[str, JournalEntry] = {}
    ended: dict[str, JournalEntry] = {}
    for line in journal_lines(view, queue):
        id = line.message_id
        if line.event is JournalEvent.SENT:
            known.add(id)
        elif line.event is JournalEvent.RECEIVED:
            if id not in known:
                found["phantom"].append(f"{id}: delivered, and never sent")
            found["dup"] += _without_cause(line, last.get(id), ended.pop(id, None), excused)
            last[id] = held[id] = line
            allowed[id, line.attempts] = 1 + replays[id]
        if line.event in VERDICTS:
            found["stale"] += _without_lease(line, held.get(id))
        if line.event in CAUSES or line.event in ENDINGS:
            ended[id] = line
            held.pop(id, None)
            replays[id] += line.event is JournalEvent.REPLAYED
    for run, times in Counter(runs).items():
        if run[0] not in known:
            found["phantom"].append(f"{run[0]}: run, and never sent")
            continue
        found["dup"] += [f"{run[0]} attempt {run[1]}: run {times} times for {allowed[run]} deliveries"] * (
            times - allowed[run]
        )
    for name, texts in found.items():
        for text in texts:
            print(f"{name}: {text}")
    return {name: len(texts) for name, texts in found.items()}


def _without_lease(line: JournalEntry, held: JournalEntry | None) -> list[str]:
    """What is wrong with a verdict, given the delivery that holds the message."""
    if held is None:
        return [f"{line.message_id}: {line.event} while nobody held it"]
    if line.consumer != held.consumer:
        return [f"{line.message_id}: {line.event} by {line.consumer} while {held.consumer} held it"]
    return []


def never_run(runs: Iterable[tuple[str, int]]) -> Excuse:
    """Excuses the leases whose delivery no handler ran: the answer that brought it was lost."""
    ran = set(runs)
    return lambda received, expired: (received.message_id, received.attempts) not in ran


def _without_cause(
    line: JournalEntry, before: JournalEntry | None, cause: JournalEntry | None, excused: Excuse
) -> list[str]:
    """What is wrong with a delivery, given the one before it and what ended that one."""
    told = f"{line.message_id} attempt {line.attempts}:"
    expected = 1
    if before is not None:
        if cause is None:
            return [f"{told} delivered while attempt {before.attempts} was held"]
        if cause.event in CAUSES:
            expected = before.attempts + CAUSES[cause.event]
        elif cause.event is not JournalEvent.REPLAYED:
            return [f"{told} delivered after it was {cause.event}"]
        if cause.event is JournalEvent.EXPIRED and not excused(before, cause):
            return [f"{told} the lease of {before.consumer} ran out, and nothing explains it"]
    return [] if line.attempts == expected else [f"{told} {expected} expected"]


def early_deliveries(view: Admin, queue: str, *, delayed: int | None = None) -> int:
    """How many deliveries came before they were due, by the journal, which must know of `delayed` delayed sends."""
    due: dict[str, datetime] = {}
    sends = early = 0
    for line in journal_lines(view, queue):
        if line.event in (JournalEvent.SENT, JournalEvent.NACKED, JournalEvent.RELEASED) and line.due_at is not None:
            due[line.message_id] = line.due_at
            sends += line.event is JournalEvent.SENT
        elif line.event in (JournalEvent.EDITED, JournalEvent.REPLAYED):
            due.pop(line.message_id, None)  # due at another time
        elif line.event is JournalEvent.RECEIVED and (at := due.pop(line.message_id, None)) is not None:
            early += line.at < at
    assert delayed in (None, sends), f"{sends} delayed sends in the journal, {delayed} expected"
    return early
