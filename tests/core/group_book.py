"""The book of groups in plain Python: whose turn is when, and who is held back. `model.py` drives it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tests.core.entry import Entry, Settings

#: Messages of one group let in at a time.
LET_IN = 200
#: Full buckets are forgotten at multiples of so many milliseconds.
KEEP = 10_000


@dataclass
class GroupBook:
    """The groups of one queue; the messages themselves are the model's."""

    #: The sequence number behind which turns began; None while the queue has had no group.
    since: int | None = None
    #: The turn served last by priority, and the last one given to messages without a group.
    clocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: The last turn given, by group and priority.
    turns: dict[tuple[str, int], float] = field(default_factory=dict)
    #: p for paused, w for waiting for its rate.
    flags: dict[str, set[str]] = field(default_factory=dict)
    full_at: dict[str, float] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    paused: int = 0
    #: Whether the next receive looks through what is held back.
    looking: bool = False
    #: Groups of which a message has left, in this verb.
    freed: list[str] = field(default_factory=list)
    #: How many messages each may have, where its rate says.
    wished: dict[str, int] = field(default_factory=dict)

    def turn(self, group: str | None, priority: int, settings: Settings) -> int:
        """The next turn of a group, or of all messages without one."""
        assert self.since is not None
        weights = dict(settings.group_weights)
        unit = max(1.0, *weights.values()) if weights else 1.0
        served, plain = self.clocks.get(priority, (self.since, 0))
        if group is None:
            plain = math.floor(max(served, plain) + unit)
            self.clocks[priority] = (served, plain)
            return plain
        turn = max(float(served), self.turns.get((group, priority), 0.0)) + unit / weights.get(group, 1)
        self.turns[group, priority] = turn
        return math.floor(turn)

    def serve(self, priority: int, turn: int) -> None:
        assert self.since is not None
        served, plain = self.clocks.get(priority, (self.since, 0))
        if turn > served:
            self.clocks[priority] = (turn, plain)

    def spare(self, rate: float) -> float:
        return (max(1.0, rate) - 1) * 1000 / rate

    def spend(self, group: str, rate: float, now: int) -> None:
        """One message of its rate is used."""
        self.full_at[group] = max(self.full_at.get(group, 0.0), now) + 1000 / rate
        self.waits.setdefault(group, math.ceil(self.full_at[group] / KEEP) * KEEP)

    def stopped(self, group: str, settings: Settings) -> bool:
        """Whether it is paused or waits for its rate, which is a reason only while there is one."""
        flags = self.flags.get(group, set())
        return "p" in flags or (settings.group_rate is not None and "w" in flags)

    def blocked(self, group: str, busy: int, settings: Settings, now: int) -> bool:
        """Whether none of its messages may be delivered now."""
        if self.stopped(group, settings):
            return True
        if settings.group_concurrency is not None and busy >= settings.group_concurrency:
            return True
        rate = settings.group_rate
        used = self.full_at.get(group, 0.0)
        if rate is None or used <= now + self.spare(rate) + 0.0005:
            return False
        self.wait_for_rate(group, rate)
        return True

    def wait_for_rate(self, group: str, rate: float) -> None:
        self.flags.setdefault(group, set()).add("w")
        self.waits[group] = math.ceil(self.full_at.get(group, 0.0) - self.spare(rate) - 0.0005)

    def look_again(self, now: int, settings: Settings) -> None:
        """Those whose time has come."""
        for group in [group for group, at in self.waits.items() if at <= now]:
            used, rate = self.full_at.get(group, 0.0), settings.group_rate
            if "w" in self.flags.get(group, ()):
                self.flags[group].discard("w")
                if rate is not None:
                    room = (self.spare(rate) - max(0.0, used - now)) * rate / 1000
                    self.wished[group] = math.floor(room + 1.001)
                self.freed.append(group)
            if used <= now:
                self.full_at.pop(group, None)
                del self.waits[group]
            else:
                self.waits[group] = math.ceil(used / KEEP) * KEEP

    def look_through(self, held: set[str]) -> None:
        """All that hold something back, once settings have changed or one was resumed."""
        if self.looking:
            for group in sorted(held, key=str.encode):
                self.flags.get(group, set()).discard("w")
                self.freed.append(group)
        self.looking = False

    def room(self, group: str, busy: int, settings: Settings) -> int:
        """How many may come in."""
        if self.stopped(group, settings):
            return 0
        most = settings.group_concurrency
        room = LET_IN if most is None else min(LET_IN, most - busy)
        return max(0, min(room, self.wished.get(group, room)))

    def tidy(self, waiting: set[tuple[str, int]]) -> None:
        """After a verb: rounds as it is stored, and forgets the turns of lanes in which nothing waits."""
        self.turns = {key: float(f"{turn:.4f}") for key, turn in self.turns.items() if key in waiting}
        self.full_at = {group: float(f"{used:.3f}") for group, used in self.full_at.items()}
        self.freed.clear()
        self.wished.clear()

    def records(self, entries: dict[str, Entry]) -> dict[str, Any]:
        """What the queue must hold of its groups."""
        counts: dict[str, dict[str, int]] = {}
        lanes: dict[str, tuple[int, float]] = {}
        for entry in entries.values():
            group = entry.item.group
            if group is None:
                continue
            if entry.letter == "r":
                lane = f"{entry.item.priority}\t{group}"
                lanes[lane] = lanes.get(lane, (0, 0))[0] + 1, self.turns.get((group, entry.item.priority), 0.0)
            elif entry.letter and (entry.letter != "l" or entry.counted):
                counts.setdefault(group, dict.fromkeys("sltd", 0))[entry.letter] += 1
        named = {*counts, *(group for group, flags in self.flags.items() if flags), *self.full_at}
        made: dict[str, Any] = {
            group: {
                "counts": tuple(counts.get(group, dict.fromkeys("sltd", 0)).values()),
                "flags": "".join(sorted(self.flags.get(group, ()))),
                "full_at": self.full_at.get(group, 0.0),
            }
            for group in named
        }
        return made | lanes | {f"\t{priority}": clock for priority, clock in self.clocks.items()}
