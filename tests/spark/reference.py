"""The lake's tables once more in plain Python, and random legal histories on which to compare both.

Lists of dicts in, lists of dicts out, no Spark in it. Written from what each column means, for reading; speed is of no
concern here. `dt` is a column like any other.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from restante.spark.schemas import COUNTED, JOURNAL

Row = dict[str, Any]

WAITING = ("ready", "scheduled", "retrying", "leased")
ENDS = ("acked", "nacked", "buried", "released", "expired", "revoked", "cancelled")
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def seconds(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()


def grouped(rows: Iterable[Row], key: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by what the key says of them."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def dated(journal: list[Row]) -> list[Row]:
    """Adds the date under which the lake keeps each journal row."""
    return [{**row, "dt": (row["sent_at"] or row["at"]).date()} for row in journal]


def lives(journal: list[Row]) -> list[list[Row]]:
    """The lines of each message in their order."""
    about = [row for row in dated(journal) if row["message_id"]]
    found = grouped(about, lambda row: tuple(row[n] for n in ("queue", "incarnation", "message_id", "sent_at", "dt")))
    return [sorted(lines, key=lambda row: int(row["position"])) for lines in found.values()]


def before(line: Row) -> str:
    """The state in which an operator's verb found the message."""
    return str(line["detail"]).split(",")[0]


def ends(line: Row) -> bool:
    """Whether the line ends a lease: of the cancelled messages only some were leased."""
    return line["event"] in ENDS and (line["event"] != "cancelled" or before(line) == "leased")


def holder(life: list[Row]) -> str:
    """Who held the message last; an operator who stops it does not."""
    marks = [line for line in life if line["event"] == "received" or ends(line)][-2:]
    told = [line["consumer"] for line in marks if line["event"] not in ("revoked", "cancelled")]
    return str(told[-1]) if told else ""


def leases(life: list[Row]) -> list[tuple[Row, Row]]:
    """Beginnings and ends that belong together: neighbours among their kind, of the same delivery."""
    found = []
    begun: Row | None = None
    for line in life:
        if line["event"] == "received":
            begun = line
        elif ends(line):
            number = line["attempts"] + (line["event"] == "released")
            if begun is not None and begun["attempts"] == number:
                found.append((begun, line))
            begun = None
    return found


# -- silver ------------------------------------------------------------------------------------------------------


def fate_and_time(life: list[Row]) -> tuple[str, datetime | None]:
    """What became of a message, and when."""
    telling = [line for line in life if line["event"] not in ("edited", "extended")]
    line = (telling or life)[-1]
    if line["state"] in WAITING:
        return "waiting", None
    if line["event"] == "cancelled":
        return "cancelled", line["at"]
    if line["event"] in ("deleted", "purged"):
        if before(line) != "done":
            return "deleted", line["at"]
        return "acked", max((one["at"] for one in life if one["event"] == "acked"), default=line["at"])
    if line["state"] == "dead":
        return ("expired" if line["event"] == "expired" else "dead"), line["at"]
    return "acked", line["at"]


def message(life: list[Row]) -> Row:
    last = life[-1]
    events = [line["event"] for line in life]
    received = [line["at"] for line in life if line["event"] == "received"]
    due = [line["due_at"] for line in life if line["event"] == "sent" and line["state"] == "scheduled"]
    errors = [line["error_class"] for line in life if line["error_class"]]
    fate, settled_at = fate_and_time(life)
    awaited = max(due) if due else last["sent_at"]
    return {
        **{name: last[name] for name in ("queue", "incarnation", "message_id", "kind", "priority", "size", "sent_at")},
        "was_sent": "sent" in events,
        "first_received_at": min(received, default=None),
        "last_received_at": max(received, default=None),
        "settled_at": settled_at,
        "state": last["state"],
        "last_event": last["event"],
        "last_at": last["at"],
        "last_position": last["position"],
        "fate": fate,
        "deliveries": len(received),
        "failures": events.count("nacked") + events.count("buried"),
        "expiries": events.count("expired"),
        "releases": events.count("released"),
        "revocations": events.count("revoked"),
        "replays": events.count("replayed"),
        "wait_seconds": max(0.0, seconds(awaited, min(received))) if received and awaited else None,
        "run_seconds": sum((end["at"] - begin["at"] for begin, end in leases(life)), timedelta()).total_seconds(),
        "total_seconds": seconds(last["sent_at"], settled_at) if settled_at and last["sent_at"] else None,
        "consumer": holder(life),
        "error_class": errors[-1] if errors else "",
        "dt": last["dt"],
    }


def messages(journal: list[Row]) -> list[Row]:
    return [message(life) for life in lives(journal)]


def attempts(journal: list[Row]) -> list[Row]:
    return [
        {
            **{name: end[name] for name in ("queue", "incarnation", "message_id", "kind", "sent_at")},
            "consumer": begin["consumer"],
            "attempt": begin["attempts"],
            "received_at": begin["at"],
            "ended_at": end["at"],
            "ended_by": end["event"],
            "run_seconds": seconds(begin["at"], end["at"]),
            "error_class": end["error_class"],
            "dt": end["dt"],
        }
        for life in lives(journal)
        for begin, end in leases(life)
    ]


# -- gold --------------------------------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float | None:
    """The value below which this share lies, on the line between the two ranks next to it."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def latency(messages: list[Row]) -> list[Row]:
    acked = [row for row in messages if row["fate"] == "acked" and row["sent_at"] is not None]
    found = grouped(acked, lambda row: (row["queue"], row["kind"], minute(row["sent_at"]), row["dt"]))
    return [
        {
            "queue": queue,
            "kind": kind,
            "minute": begin,
            "messages": len(rows),
            "dt": dt,
            **{
                f"{word}_{name}_seconds": percentile(
                    [row[f"{word}_seconds"] for row in rows if row[f"{word}_seconds"] is not None], share
                )
                for word in ("wait", "run", "total")
                for name, share in PERCENTILES.items()
            },
        }
        for (queue, kind, begin, dt), rows in found.items()
    ]


def died(line: Row) -> bool:
    return line["event"] in ("nacked", "buried", "expired") and line["state"] == "dead"


def waiting_delta(line: Row) -> int:
    if line["event"] in ("sent", "replayed"):
        return 1
    removed = line["event"] in ("deleted", "purged", "cancelled") and before(line) not in ("dead", "done")
    return -1 if line["event"] == "acked" or died(line) or removed else 0


def dead_delta(line: Row) -> int:
    if died(line):
        return 1
    removed = line["event"] in ("deleted", "purged", "cancelled") and before(line) == "dead"
    return -1 if line["event"] == "replayed" or removed else 0


def by_minute(journal: list[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    return grouped(journal, lambda row: (row["queue"], *(row[n] for n in names), minute(row["at"]), row["dt"]))


def count(lines: list[Row], *events: str) -> int:
    return sum(line["event"] in events for line in lines)


def throughput(journal: list[Row]) -> list[Row]:
    counted = [line for line in dated(journal) if line["event"] in COUNTED]
    return [
        {
            "queue": queue,
            "minute": begin,
            "dt": dt,
            **{event: count(lines, event) for event in COUNTED},
            "died": sum(map(died, lines)),
            "waiting_delta": sum(map(waiting_delta, lines)),
            "dead_delta": sum(map(dead_delta, lines)),
        }
        for (queue, begin, dt), lines in by_minute(counted).items()
    ]


def retries(journal: list[Row]) -> list[Row]:
    failed = [line for line in dated(journal) if line["event"] in ("nacked", "buried", "expired")]
    return [
        {
            "queue": queue,
            "kind": kind,
            "error_class": error_class,
            "minute": begin,
            "dt": dt,
            "nacked": count(lines, "nacked", "buried"),
            "expired": count(lines, "expired"),
            "worst_attempts": max(line["attempts"] for line in lines),
        }
        for (queue, kind, error_class, begin, dt), lines in by_minute(failed, "kind", "error_class").items()
    ]


def overdue(journal: list[Row]) -> list[Row]:
    events = ("received", "extended", "expired")
    told = [line for line in dated(journal) if line["event"] in events]
    return [
        {"queue": queue, "minute": begin, "dt": dt, **{event: count(lines, event) for event in events}}
        for (queue, begin, dt), lines in by_minute(told).items()
    ]


def causes(journal: list[Row]) -> list[Row]:
    deaths = [line for line in dated(journal) if died(line)]
    names = ("queue", "kind", "error_class", "event", "dt")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "dead": len(lines),
            "first_at": min(line["at"] for line in lines),
            "last_at": max(line["at"] for line in lines),
            "example_id": max(line["message_id"] for line in lines),
        }
        for key, lines in grouped(deaths, lambda row: tuple(row[n] for n in names)).items()
    ]


def consumers(attempts: list[Row]) -> list[Row]:
    found = grouped(attempts, lambda row: (row["consumer"], row["queue"], minute(row["ended_at"]), row["dt"]))
    return [
        {
            "consumer": consumer,
            "queue": queue,
            "minute": begin,
            "dt": dt,
            "leases": len(rows),
            "acked": sum(row["ended_by"] == "acked" for row in rows),
            "failed": sum(row["ended_by"] in ("nacked", "buried", "expired") for row in rows),
            "busy_seconds": sum((row["ended_at"] - row["received_at"] for row in rows), timedelta()).total_seconds(),
        }
        for (consumer, queue, begin, dt), rows in found.items()
    ]


def audit(messages: list[Row]) -> list[Row]:
    found = grouped(
        messages,
        lambda row: (row["queue"], row["incarnation"], hour(row["sent_at"] or row["last_at"]), row["dt"]),
    )
    made = []
    for (queue, incarnation, begin, dt), rows in found.items():
        sent = [row["fate"] for row in rows if row["was_sent"]]
        fates = {fate: sent.count(fate) for fate in ("acked", "dead", "expired", "deleted", "cancelled", "waiting")}
        made.append(
            {
                "queue": queue,
                "incarnation": incarnation,
                "hour": begin,
                "dt": dt,
                "sent": len(sent),
                **fates,
                "unsent": len(rows) - len(sent),
            }
        )
    return made


# -- summed over dates -------------------------------------------------------------------------------------------


def backlog(throughput: list[Row]) -> list[Row]:
    made = []
    for (queue,), rows in grouped(throughput, lambda row: (row["queue"],)).items():
        waiting = dead = 0
        for (begin,), of_minute in sorted(grouped(rows, lambda row: (row["minute"],)).items()):
            changes = sum(row["waiting_delta"] for row in of_minute), sum(row["dead_delta"] for row in of_minute)
            waiting, dead = waiting + changes[0], dead + changes[1]
            if changes != (0, 0):
                made.append({"queue": queue, "minute": begin, "waiting": waiting, "dead": dead})
    return made


def drain(throughput: list[Row]) -> list[Row]:
    if not throughput:
        return []
    end = max(row["minute"] for row in throughput) + timedelta(minutes=1)
    made = []
    for (queue,), rows in grouped(throughput, lambda row: (row["queue"],)).items():
        recent = [row for row in rows if row["minute"] >= end - timedelta(minutes=15)]
        waiting = sum(row["waiting_delta"] for row in rows)
        came = sum(row["sent"] + row["replayed"] for row in recent)
        went = came - sum(row["waiting_delta"] for row in recent)
        until = None
        if waiting == 0:
            until = 0.0
        elif waiting > 0 and went > came:
            until = waiting / ((went - came) / 900)
        made.append(
            {
                "queue": queue,
                "at": end,
                "waiting": waiting,
                "arrival_per_second": came / 900,
                "settle_per_second": went / 900,
                "drain_seconds": until,
            }
        )
    return made


# -- histories ---------------------------------------------------------------------------------------------------

#: Late enough that a story of some hours passes midnight.
BEGIN = datetime(2025, 11, 14, 22, 30, tzinfo=UTC)
QUEUES = ("orders", "mail", "thumbnails")
#: Seconds that pass between two moves: mostly none or few, sometimes enough for another minute, hour or day.
STEPS = (0.0, 0.0, 0.0, 0.001, 0.25, 1.5, 1.5, 20.0, 61.0, 400.0, 7000.0)


@dataclass
class Held:
    """A message that lies in a queue."""

    id: str
    sent_at: datetime | None
    kind: str
    priority: int
    size: int
    state: str = ""
    attempts: int = 0
    consumer: str = ""


@dataclass
class Desk:
    """A queue of a story: what lies in it and what its journal says."""

    name: str
    incarnation: int
    keeps_results: bool
    held: dict[str, Held] = field(default_factory=dict)
    journal: list[Row] = field(default_factory=list)

    def some(self, *states: str) -> list[Held]:
        return [one for one in self.held.values() if one.state in states]


class Story:
    """Plays moves that the lifecycle allows, chosen by chance, and writes down what the journals would say."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = BEGIN + timedelta(seconds=self.chance.randrange(3600))
        self.desks = [Desk(name, 1_763_000_000_000 + n, self.chance.random() < 0.5) for n, name in enumerate(QUEUES)]
        self.closed: list[Desk] = []

    def play(self, moves: int) -> list[Row]:
        for _ in range(moves):
            self.now += timedelta(seconds=self.chance.choice(STEPS))
            desk = self.chance.choice(self.desks)
            one = self.chance.choice([*desk.held.values()]) if desk.held and self.chance.random() < 0.8 else None
            if one is not None:
                self.move_on(desk, one)
            elif self.chance.random() < 0.9:
                self.send(desk)
            else:
                self.operate(desk)
        return [row for desk in (*self.closed, *self.desks) for row in self.surviving(desk.journal)]

    def write(self, desk: Desk, event: str, one: Held | None, state: str, **more: Any) -> None:
        if one is not None:
            one.state = state
            if state == "gone":
                del desk.held[one.id]
        about = one or Held("", None, "", 0, 0)
        line: Row = dict.fromkeys(JOURNAL.names)
        line |= {
            "queue": desk.name,
            "incarnation": desk.incarnation,
            "position": len(desk.journal) + 1,
            "event": event,
            "state": state,
            "at": self.now,
            "message_id": about.id,
            "sent_at": about.sent_at,
            "kind": about.kind,
            "priority": about.priority,
            "size": about.size,
            "attempts": about.attempts,
            "consumer": "",
            "error_class": "",
            "detail": "",
        }
        desk.journal.append(line | more)

    def send(self, desk: Desk) -> None:
        for _ in range(self.chance.choice((1, 1, 1, 3))):
            # Few ids, so that some are sent again once their first life is over. Never twice at one instant.
            id = f"{self.chance.choice('abcé')}{self.chance.randrange(40)}"
            if id in desk.held or any(row["message_id"] == id and row["sent_at"] == self.now for row in desk.journal):
                continue
            sent_at = None if self.chance.random() < 0.02 else self.now
            one = Held(id, sent_at, self.chance.choice(("", "order", "refund")), self.chance.choice((0, 0, 9)), 10)
            self.put(desk, one, self.chance.random() < 0.2)

    def put(self, desk: Desk, one: Held, later: bool, detail: str = "") -> None:
        desk.held[one.id] = one
        due_at = self.now + timedelta(seconds=self.chance.choice((5, 90, 9000))) if later else None
        self.write(desk, "sent", one, "scheduled" if later else "ready", due_at=due_at, detail=detail)

    def move_on(self, desk: Desk, one: Held) -> None:
        if self.chance.random() < 0.04 and one.state not in ("leased", "done"):
            one.priority, one.size = self.chance.randrange(256), self.chance.randrange(1000)
            self.write(desk, "edited", one, one.state, consumer="operator")
        elif self.chance.random() < (0.3 if one.state in ("dead", "done") else 0.06) and one.state != "leased":
            self.remove(desk, one)
        elif one.state in ("scheduled", "retrying"):
            self.write(desk, "promoted", one, "ready")
        elif one.state == "ready":
            one.attempts += 1
            one.consumer = self.chance.choice(("shop-1", "shop-2", "night"))
            due_at = self.now + timedelta(seconds=30)
            self.write(desk, "received", one, "leased", consumer=one.consumer, due_at=due_at)
        elif one.state == "dead":
            one.attempts = 0
            self.write(desk, "replayed", one, "ready", consumer="operator", detail="task-1")
        elif one.state == "leased":
            self.end(desk, one)

    def end(self, desk: Desk, one: Held) -> None:
        """A lease ends, or is extended."""
        by = {"consumer": one.consumer}
        error = {"error_class": self.chance.choice(("", "ValueError", "KeyError"))}
        spent = one.attempts >= 3 or self.chance.random() < 0.1
        event = self.chance.choice(
            ("acked", "acked", "acked", "nacked", "buried", "released", "expired", "extended", "revoked", "cancelled")
        )
        if event == "acked":
            self.write(desk, event, one, "done" if desk.keeps_results else "gone", **by)
        elif event == "nacked":
            self.write(desk, event, one, "dead" if spent else "retrying", **by, **error)
        elif event == "buried":
            self.write(desk, event, one, "dead", **by, **error)
        elif event == "revoked":
            self.write(desk, event, one, "ready", consumer="operator", error_class="Revoked", detail=one.consumer)
        elif event == "cancelled":
            self.write(desk, event, one, "gone", consumer="operator", detail="leased")
        elif event == "released":
            one.attempts -= 1
            self.write(desk, event, one, self.chance.choice(("ready", "scheduled")), **by)
        elif event == "expired":
            self.write(desk, event, one, "dead" if spent else "ready", **by, error_class="LeaseExpired")
        else:
            self.write(desk, event, one, "leased", **by, due_at=self.now + timedelta(seconds=60))

    def remove(self, desk: Desk, one: Held) -> None:
        """An operator deletes, purges or moves; or the payload is missing and nobody knows the state."""
        state, how = one.state, self.chance.randrange(5)
        target = self.chance.choice(self.desks)
        if how == 0:
            for other in desk.some(state):
                self.write(desk, "purged", other, "gone", consumer="operator", detail=state)
        elif how == 1 and target is not desk and one.id not in target.held and state != "done":
            moved = Held(one.id, one.sent_at, one.kind, one.priority, one.size)
            self.put(target, moved, state in ("scheduled", "retrying"), f"moved from {desk.name}")
            self.write(desk, "deleted", one, "gone", consumer="operator", detail=f"{state}, moved to {target.name}")
        elif how == 3 and state not in ("dead", "done"):
            self.write(desk, "cancelled", one, "gone", consumer="operator", detail=f"{state}, ordered twice")
        elif how == 2 and state in WAITING:
            self.write(desk, "deleted", one, "gone", error_class="PayloadMissing")
        else:
            self.write(desk, "deleted", one, "gone", consumer="operator", detail=state)

    def operate(self, desk: Desk) -> None:
        """Events of the queue itself; now and then it is removed by hand and opened anew."""
        if self.chance.random() < 0.2:
            self.closed.append(desk)
            self.desks[self.desks.index(desk)] = Desk(desk.name, desk.incarnation + 1000, desk.keeps_results)
        else:
            event = self.chance.choice(("configured", "paused", "resumed"))
            self.write(desk, event, None, "gone", consumer="operator", sent_at=self.chance.choice((None, self.now)))

    def surviving(self, journal: list[Row]) -> list[Row]:
        """What of a journal reached the lake: mostly all; or not its beginning, or not some lines, or only ends."""
        case = self.chance.random()
        begin, end = sorted(self.chance.randrange(len(journal) + 1) for _ in range(2))
        if case < 0.6:
            return journal
        if case < 0.8:
            return journal[begin:]
        if case < 0.9:
            return journal[:begin] + journal[end:]
        return [line for line in journal if line["event"] in ("acked", "deleted", "purged", "cancelled") or died(line)]


@dataclass(frozen=True)
class History:
    """A random journal, given by the numbers that reproduce it."""

    seed: int
    moves: int

    def rows(self) -> list[Row]:
        """Rows of the journal table, out of order."""
        rows = Story(self.seed).play(self.moves)
        random.Random(self.seed).shuffle(rows)
        return rows


def histories(most: int = 1500) -> st.SearchStrategy[History]:
    """Histories of up to so many moves; a failing one is shown with few moves."""
    return st.builds(History, seed=st.integers(0, 2**32 - 1), moves=st.integers(0, most))
