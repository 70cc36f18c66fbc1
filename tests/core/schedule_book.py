"""The schedules of a queue in plain Python: what the scripts that store and fire them must leave behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.core.verbs import Tick


class ScheduleBook:
    """Schedules by name: a head, which the scripts compare, and the rest, which they keep as it is."""

    def __init__(self) -> None:
        self.heads: dict[str, str] = {}
        self.rests: dict[str, str] = {}
        #: When the next tick of each is due.
        self.ticks: dict[str, int] = {}

    def records(self) -> dict[str, str]:
        return {name: f"{head}\n{self.rests[name]}" for name, head in self.heads.items()}

    def put(self, name: str, before: str, after: str | None, rest: str, due: int | None) -> bool:
        """Stores, changes or removes one. False if it has changed."""
        if self.heads.get(name, "") != before:
            return False
        if after is None:
            self.heads.pop(name, None)
            self.rests.pop(name, None)
        else:
            self.heads[name], self.rests[name] = after, rest
        self._due(name, due if after is not None else None)
        return True

    def judge(self, now: int, ticks: Sequence[Tick], waits: Callable[[str], bool]) -> list[str]:
        """What becomes of each: fired, passed or changed; `waits` tells whether a message is not settled."""
        made = []
        for tick in ticks:
            if self.heads.get(tick.name) != tick.before or any(due > now for _, due in tick.messages):
                made.append("changed")
            elif tick.passed and waits(tick.before.partition("\t")[0]):
                made.append("passed")
            else:
                made.append("fired")
        return made

    def apply(self, ticks: Sequence[Tick], statuses: Sequence[str]) -> None:
        for tick, status in zip(ticks, statuses, strict=True):
            if status != "changed":
                self.heads[tick.name] = tick.passed if status == "passed" else tick.after
                self._due(tick.name, tick.due)

    def waiting(self, now: int) -> list[str]:
        """Those that are due, the longest first."""
        return [name for due, name in sorted((due, name) for name, due in self.ticks.items()) if due <= now]

    def _due(self, name: str, due: int | None) -> None:
        if due is None:
            self.ticks.pop(name, None)
        else:
            self.ticks[name] = due
