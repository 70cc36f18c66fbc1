"""Judges a whole run from the outside: what the journal says happened, in its order, against what each client saw.

The scripts run one at a time, so the journal's numbers are the one true order of events, and a lease token begins with
the number of the lease it stands for. One pass over the journal and one over the observations; nothing is searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

#: The event that each verdict of a consumer must leave in the journal.
VERDICTS: Final = {"ack": "acked", "nack": "nacked", "bury": "buried", "release": "released"}
#: Events after which nobody holds the message any more.
ENDINGS: Final = frozenset({"acked", "nacked", "buried", "released", "expired", "revoked", "cancelled"})


@dataclass(frozen=True)
class Line:
    """What the checker reads of one journal line; times are milliseconds."""

    number: int
    event: str
    state: str
    at: int
    id: str
    priority: int = 0
    attempts: int = 0
    due: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Sent:
    """A client asked for this message to be stored. Unconfirmed: it does not know whether it was."""

    id: str
    payload: Any
    due: int = 0
    confirmed: bool = True


@dataclass(frozen=True)
class Delivered:
    """A client was given this message."""

    id: str
    token: str
    attempts: int
    payload: Any
    at: int
    consumer: str = ""


@dataclass(frozen=True)
class Settled:
    """A client gave a verdict and was told that it holds, or that the lease was lost."""

    id: str
    token: str
    verb: str
    accepted: bool


@dataclass
class History:
    """One run."""

    row: str
    lines: list[Line] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    #: The state of every message that is still there at the end.
    remaining: dict[str, str] = field(default_factory=dict)
    max_attempts: int | None = None
    #: Whether the run ended by draining the queue: only dead and done messages may be left.
    drained: bool = True


@dataclass
class Verdict:
    """Each kind of violation with the messages it befell; all empty when the run was clean."""

    row: str
    n: int = 0
    #: Second deliveries; each has a cause in the journal, else it is a violation below.
    dup: int = 0
    #: The longest time between the end of a lease and its reclaim.
    max_recovery_s: float = 0.0
    lost: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    payload: list[str] = field(default_factory=list)
    overlap: list[str] = field(default_factory=list)
    fencing: list[str] = field(default_factory=list)
    priority: list[str] = field(default_factory=list)
    fifo: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    dead_twice: list[str] = field(default_factory=list)
    conservation: list[str] = field(default_factory=list)
    not_empty: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def violations(self) -> dict[str, list[str]]:
        """The kinds that occurred."""
        kinds = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: found for name, found in kinds.items() if isinstance(found, list) and found}

    @property
    def ok(self) -> bool:
        return not self.violations

    def as_json(self) -> str:
        """The line that a row of the fault matrix prints."""
        return json.dumps(
            {
                "row": self.row,
                "n": self.n,
                "lost": len(self.lost),
                "dup": self.dup,
                "early": len(self.early),
                "max_recovery_s": round(self.max_recovery_s, 3),
                "verdict": "pass" if self.ok else "fail",
            }
        )


@dataclass
class _Track:
    """One message as the journal tells it so far."""

    state: str
    attempts: int
    #: The line that made it ready, which is its place in line until its first delivery.
    ready: int
    due: int
    priority: int
    #: The number of the lease that holds it, and when that ends.
    lease: int = 0
    expires: int = 0
    delivered: bool = False
    #: Whether its place is no longer that of its line: edited, so free of the check of order.
    moved: bool = False


class _Pass:
    """The pass over the journal."""

    def __init__(self, history: History, verdict: Verdict) -> None:
        self.verdict = verdict
        self.limit = history.max_attempts
        self.tracks: dict[str, _Track] = {}
        self.gone: set[str] = set()
        #: How each lease ended.
        self.endings: dict[int, str] = {}
        #: The message of each lease and its attempt.
        self.leases: dict[int, tuple[str, int]] = {}
        self.extended: set[int] = set()
        self.totals = {"sent": 0, "acked": 0, "deleted": 0, "purged": 0, "cancelled": 0}
        self._ready: dict[int, int] = {}
        self._last_first: dict[int, int] = {}
        self.done_removed = 0

    def _place(self, track: _Track, state: str) -> None:
        if track.state == "ready":
            self._ready[track.priority] -= 1
            if not self._ready[track.priority]:
                del self._ready[track.priority]
        track.state = state
        if state == "ready":
            self._ready[track.priority] = self._ready.get(track.priority, 0) + 1

    def run(self, lines: Iterable[Line]) -> None:
        expected = 1
        for line in lines:
            if line.number != expected:
                self.verdict.gaps.append(f"{expected}..{line.number - 1}")
            expected = line.number + 1
            handler = getattr(self, f"_{line.event}", None)
            if handler is not None and line.id:
                handler(line)

    def _known(self, line: Line, *states: str) -> _Track | None:
        track = self.tracks.get(line.id)
        if track is None:
            self.verdict.phantom.append(f"{line.id} {line.event} at {line.number} without being there")
            return None
        if states and track.state not in states:
            kind = {
                "received": self.verdict.overlap if track.state == "leased" else self.verdict.early,
                "promoted": self.verdict.overlap,
                "replayed": self.verdict.dead_twice,
            }.get(line.event, self.verdict.fencing)
            kind.append(f"{line.id} {line.event} at {line.number} while {track.state}")
        return track

    def _sent(self, line: Line) -> None:
        self.totals["sent"] += 1
        if line.id in self.tracks:
            self.verdict.phantom.append(f"{line.id} stored twice at {line.number}")
        track = _Track("", 0, line.number, line.due if line.state == "scheduled" else 0, line.priority)
        self.tracks[line.id] = track
        self.gone.discard(line.id)
        self._place(track, line.state)

    def _promoted(self, line: Line) -> None:
        track = self._known(line, "scheduled", "retrying")
        if track is None:
            return
        if line.at < track.due:
            self.verdict.early.append(f"{line.id} promoted {track.due - line.at} ms early")
        if not track.delivered:
            track.ready = line.number
        self._place(track, "ready")

    def _received(self, line: Line) -> None:
        track = self._known(line, "ready")
        if track is None:
            return
        if line.attempts != track.attempts + 1:
            self.verdict.attempts.append(f"{line.id} attempt {line.attempts} after {track.attempts}")
        if track.state == "ready":
            highest = max(self._ready)
            if highest > track.priority:
                self.verdict.priority.append(f"{line.id} of {track.priority} before one of {highest}")
        if not track.delivered and not track.moved:
            if track.ready < self._last_first.get(track.priority, 0):
                self.verdict.fifo.append(f"{line.id} at {line.number}")
            self._last_first[track.priority] = max(track.ready, self._last_first.get(track.priority, 0))
        self.verdict.dup += track.delivered
        track.delivered = True
        track.attempts, track.lease, track.expires = line.attempts, line.number, line.due
        self.leases[line.number] = (line.id, line.attempts)
        self._place(track, "leased")

    def _end(self, line: Line) -> _Track | None:
        """What every end of a lease has in common."""
        track = self._known(line, "leased")
        if track is None:
            return None
        if track.state == "leased":
            if line.event != "expired" and line.at >= track.expires:
                self.verdict.fencing.append(f"{line.id} {line.event} {line.at - track.expires} ms after its lease")
            if line.event == "expired" and line.at < track.expires:
                self.verdict.overlap.append(f"{line.id} reclaimed {track.expires - line.at} ms before its lease ended")
            self.endings[track.lease] = line.event
        return track

    def _acked(self, line: Line) -> None:
        track = self._end(line)
        self.totals["acked"] += 1
        if track is not None:
            if line.state == "done":
                self._place(track, "done")
            else:
                self._remove(line.id)

    def _fail(self, line: Line) -> None:
        track = self._end(line)
        if track is None:
            return
        if line.attempts != track.attempts:
            self.verdict.attempts.append(f"{line.id} {line.event} as attempt {line.attempts} of {track.attempts}")
        if line.state == "dead" and track.state == "dead":
            self.verdict.dead_twice.append(line.id)
        if line.event == "expired":
            self.verdict.max_recovery_s = max(self.verdict.max_recovery_s, (line.at - track.expires) / 1000)
        if self.limit is not None and line.state != "dead" and track.attempts >= self.limit:
            self.verdict.attempts.append(f"{line.id} goes on after {track.attempts} attempts")
        if self.limit is not None and line.event == "expired" and line.state == "dead" and track.attempts < self.limit:
            self.verdict.attempts.append(f"{line.id} dead after {track.attempts} attempts")
        track.due = line.due if line.state == "retrying" else 0
        self._place(track, line.state)

    _nacked = _fail
    _expired = _fail

    def _buried(self, line: Line) -> None:
        if self.tracks.get(line.id) is not None and self.tracks[line.id].state == "dead":
            self.verdict.dead_twice.append(line.id)
        track = self._end(line)
        if track is not None:
            self._place(track, "dead")

    def _released(self, line: Line) -> None:
        track = self._end(line)
        if track is not None:
            track.attempts -= 1
            if line.attempts != track.attempts:
                self.verdict.attempts.append(f"{line.id} released as {line.attempts}, not {track.attempts}")
            track.due = line.due if line.state == "scheduled" else 0
            self._place(track, line.state)

    def _extended(self, line: Line) -> None:
        track = self._known(line, "leased")
        if track is not None:
            if line.at >= track.expires:
                self.verdict.fencing.append(f"{line.id} extended {line.at - track.expires} ms after its lease")
            track.expires = line.due
            self.extended.add(track.lease)

    def _replayed(self, line: Line) -> None:
        track = self._known(line, "dead")
        if track is not None:
            track.attempts = 0
            self._place(track, "ready")

    def _edited(self, line: Line) -> None:
        track = self._known(line)
        if track is not None:
            state, track.moved = track.state, True
            self._place(track, "")
            track.priority = line.priority
            self._place(track, state)
            if line.due and state in ("scheduled", "retrying"):
                track.due = line.due

    def _deleted(self, line: Line) -> None:
        track = self._known(line, "ready", "scheduled", "retrying", "dead", "done")
        self.totals[line.event] += 1
        if track is not None:
            # Where an index had lost its payload, nothing is said.
            said = line.detail.partition(",")[0]
            if said and said != track.state:
                self.verdict.conservation.append(
                    f"{line.id} {line.event} at {line.number} as {said}, not {track.state}"
                )
            self.done_removed += track.state == "done"
            self._remove(line.id)

    _purged = _deleted

    def _revoked(self, line: Line) -> None:
        """An operator may take back also what is overdue; the attempt counts and may have been the last."""
        track = self._known(line, "leased")
        if track is not None:
            if line.attempts != track.attempts:
                self.verdict.attempts.append(f"{line.id} revoked as attempt {line.attempts} of {track.attempts}")
            self.endings[track.lease] = line.event
            self._place(track, "ready")

    def _cancelled(self, line: Line) -> None:
        track = self._known(line, "ready", "scheduled", "retrying", "leased")
        self.totals["cancelled"] += 1
        if track is not None:
            if line.detail.partition(",")[0] != track.state:
                self.verdict.conservation.append(f"{line.id} cancelled as {line.detail}, not {track.state}")
            if track.state == "leased":
                self.endings[track.lease] = line.event
            self._remove(line.id)

    def _remove(self, id: str) -> None:
        self._place(self.tracks[id], "")
        del self.tracks[id]
        self.gone.add(id)


def check(history: History) -> Verdict:
    """The whole judgement."""
    verdict = Verdict(history.row, n=len(history.sent))
    told = _Pass(history, verdict)
    told.run(history.lines)
    _check_sends(history, told, verdict)
    _check_deliveries(history, told, verdict)
    _check_verdicts(history, told, verdict)
    _check_end(history, told, verdict)
    return verdict


def _check_sends(history: History, told: _Pass, verdict: Verdict) -> None:
    asked = {sent.id for sent in history.sent}
    for sent in history.sent:
        if sent.confirmed and sent.id not in told.tracks and sent.id not in told.gone:
            verdict.lost.append(f"{sent.id} was confirmed and never stored")
    stored = told.tracks.keys() | told.gone
    verdict.phantom += [f"{id} is stored and nobody sent it" for id in sorted(stored - asked)]


def _check_deliveries(history: History, told: _Pass, verdict: Verdict) -> None:
    sent = {item.id: item for item in history.sent}
    seen: set[int] = set()
    for got in history.delivered:
        original = sent.get(got.id)
        if original is None:
            verdict.phantom.append(f"{got.id} was delivered and nobody sent it")
            continue
        if got.payload != original.payload:
            verdict.payload.append(got.id)
        if got.at < original.due:
            verdict.early.append(f"{got.id} delivered {original.due - got.at} ms early")
        number = int(got.token.partition("-")[0])
        lease = told.leases.get(number)
        if lease is None or lease[0] != got.id:
            verdict.phantom.append(f"{got.id} was delivered under {got.token}, of which the journal knows nothing")
        elif lease[1] != got.attempts:
            verdict.attempts.append(f"{got.id} delivered as attempt {got.attempts}, journal {lease[1]}")
        if number in seen:
            verdict.overlap.append(f"{got.id} was delivered twice under {got.token}")
        seen.add(number)


def _check_verdicts(history: History, told: _Pass, verdict: Verdict) -> None:
    for given in history.settled:
        if not given.accepted:
            continue
        number = int(given.token.partition("-")[0] or 0)
        if told.leases.get(number, ("", 0))[0] != given.id:
            verdict.fencing.append(f"{given.verb} of {given.id} was accepted under the forged {given.token}")
        elif given.verb == "extend":
            if number not in told.extended:
                verdict.fencing.append(f"extend of {given.id} was accepted and never happened")
        elif told.endings.get(number) != VERDICTS[given.verb]:
            ended = told.endings.get(number, "not at all")
            verdict.fencing.append(f"{given.verb} of {given.id} was accepted, its lease ended {ended}")


def _check_end(history: History, told: _Pass, verdict: Verdict) -> None:
    missing = [id for id in told.tracks if id not in history.remaining and told.tracks[id].state != "done"]
    verdict.lost += [f"{id} was {told.tracks[id].state} and is not there" for id in missing]
    for id, state in history.remaining.items():
        track = told.tracks.get(id)
        if track is None:
            verdict.phantom.append(f"{id} is {state} and the journal ended it")
        elif track.state != state:
            verdict.conservation.append(f"{id} is {state} and the journal says {track.state}")
        if history.drained and state not in ("dead", "done"):
            verdict.not_empty.append(f"{id} is still {state}")
    left = sum(state != "done" for state in history.remaining.values())
    ended = sum(told.totals[event] for event in ("acked", "deleted", "purged", "cancelled")) - told.done_removed
    if told.totals["sent"] != ended + left:
        verdict.conservation.append(f"{told.totals['sent']} sent, {ended} ended, {left} left")


def lines_of(journal: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """The journal of `contents.dump` as the checker reads it."""
    return [
        Line(
            int(number),
            line["event"],
            line["state"],
            line["at"],
            line["message_id"],
            line["priority"],
            line["attempts"],
            line["due_at"] or 0,
            line["detail"],
        )
        for number, line in journal.items()
    ]
