"""The queue in plain Python, with no Redis in it: what the scripts must do, said a second time.

Exact in everything but the dedup window. An acked id must be known for the window and may be known longer, so where
the model cannot tell it believes the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from restante.core.message import STATE_LETTERS
from tests.core.contents import SPAN, STATES, TIMED, position
from tests.core.entry import Entry, Full, Grave, Settings, Taken
from tests.core.lease_book import LeaseBook
from tests.core.schedule_book import ScheduleBook
from tests.core.verbs import CONSUMER, NONCE, OPERATOR, SILENT, Item, Tick, Token

#: Messages one receive promotes or reclaims per state, and results one ack drops.
BATCH = 200
_LETTERS = {state.value: letter for state, letter in STATE_LETTERS.items()}


#: When an id was acked that may be forgotten: longer ago than any window.
FORGOTTEN = -(2**62)
#: A line of the journal: every column but the format.
Line = dict[str, Any]


class Model:
    """One queue."""

    def __init__(self, name: str = "q") -> None:
        self.name = name
        self.settings = Settings()
        self.entries: dict[str, Entry] = {}
        self.unique: dict[str, str] = {}
        self.sequence = 0
        self.totals: dict[str, int] = {}
        self.graves: dict[str, Grave] = {}
        #: Results that were deleted or purged, so counted twice among the ended, and those that newer ones pushed out.
        self.done_removed = 0
        #: The lines that the journal keeps; numbered from 1 without a gap.
        self.journal: list[Line] = []
        #: Lines it did not keep.
        self.skipped = 0
        #: The stored forms it keeps beside its lines, by the number of the last line of their entry.
        self.payloads: dict[str, dict[str, Any]] = {}
        #: The consumer's lease journal.
        self.book = LeaseBook()
        self.schedules = ScheduleBook()
        #: The tokens of cancelled leases, with the time at which each lease would have ended.
        self.cancelled: dict[str, int] = {}

    # -- looking -------------------------------------------------------------------------------------------------

    def ids(self, state: str) -> list[str]:
        """The ids of a state in the order of its index."""
        found = [(entry.score, id.encode()) for id, entry in self.entries.items() if entry.state == state]
        return [id.decode() for _, id in sorted(found)]

    def index(self) -> dict[str, dict[str, int]]:
        """Every state that holds something, with its scores."""
        made: dict[str, dict[str, int]] = {}
        for state in STATES:
            ids = self.ids(state)
            if ids:
                made[state] = {id: self.entries[id].score for id in ids}
        return made

    def messages(self) -> dict[str, dict[str, Any]]:
        """What does not change about messages but by an edit."""
        return {id: entry.stored() for id, entry in self.entries.items()}

    def deliveries(self) -> dict[str, dict[str, Any]]:
        """What changes about messages once received."""
        return {
            id: {
                "token": entry.token,
                "lease_expires_at": entry.expires,
                "attempts": entry.attempts,
                "sequence": entry.place % SPAN,
                "replays": entry.replays,
                "received_at": entry.received_at,
                "consumer": entry.consumer,
                "sent_at": entry.sent_at,
                "kind": entry.item.kind,
                "priority": entry.item.priority,
                "size": len(entry.item.payload),
                "limits": entry.item.limits,
                **({"progress": entry.progress} if entry.progress else {}),
            }
            for id, entry in self.entries.items()
            if entry.place is not None
        }

    def next_due(self) -> int | None:
        """The earliest time at which something must move."""
        return min((entry.score for entry in self.entries.values() if entry.state in TIMED), default=None)

    def conserved(self) -> bool:
        """Whether every message sent is accounted for."""
        left = sum(entry.state != "done" for entry in self.entries.values())
        ended = sum(self.totals.get(event, 0) for event in ("acked", "deleted", "purged", "cancelled"))
        return self.totals.get("sent", 0) == ended - self.done_removed + left

    def known(self, id: str, now: int) -> bool | None:
        """Whether an acked id must be remembered; None if it may or may not."""
        grave = self.graves.get(id)
        if grave is None:
            return False
        return True if now - grave.at < min(grave.window, self.settings.dedup_ms) else None

    # -- parts of verbs ------------------------------------------------------------------------------------------

    def _advance(self, event: str, n: int = 1) -> int:
        self.totals[event] = self.totals.get(event, 0) + n
        self.sequence += n
        return self.sequence - n

    def _line(
        self,
        event: str,
        state: str,
        now: int,
        id: str,
        attempts: int | None = None,
        by: str = "",
        *,
        due: int | str = "",
        error: str = "",
        detail: str = "",
        terminal: bool = False,
    ) -> None:
        """Writes a line if the level keeps it; without an id one that is about the queue."""
        level = self.settings.journal
        if level not in ("full", "payloads") and not (terminal and level == "terminal"):
            self.skipped += 1
            return
        entry = self.entries.get(id)
        item = entry.item if entry else Item("", b"")
        self.journal.append(
            {
                "event": event,
                "state": state,
                "at": now,
                "message_id": id,
                "sent_at": entry.sent_at if entry else now,
                "kind": item.kind,
                "priority": item.priority,
                "size": len(item.payload),
                "attempts": (entry.attempts if entry else 0) if attempts is None else attempts,
                "consumer": by,
                "due_at": due,
                "error_class": error,
                "detail": detail,
            }
        )

    def _beside(self, *ids: str) -> None:
        """Puts stored forms beside the lines just written, where the queue journals payloads."""
        if self.settings.journal == "payloads":
            self.payloads[str(len(self.journal))] = {id: self.entries[id].stored() for id in ids}

    def _hold(self, id: str, item: Item, state: str | None) -> None:
        if item.unique is None:
            return
        if state is not None and _LETTERS[state] in item.letters:
            self.unique.setdefault(item.unique, id)
        elif self.unique.get(item.unique) == id:
            del self.unique[item.unique]

    def _put(self, id: str, state: str, score: int) -> None:
        entry = self.entries[id]
        entry.state, entry.score = state, score
        if state != "leased":
            entry.token, entry.expires, entry.progress = "", 0, ""
        self._hold(id, entry.item, state)

    def _drop(self, id: str) -> None:
        entry = self.entries.pop(id)
        self._hold(id, entry.item, None)

    def held(self, pair: Token, now: int) -> bool:
        """Whether the token still holds the message."""
        entry = self.entries.get(pair[0])
        return entry is not None and entry.state == "leased" and entry.token == pair[1] and entry.expires > now

    def _allowed(self, entry: Entry) -> int:
        return entry.item.max_attempts or self.settings.max_attempts

    def clock_went_back(self, now: int) -> None:
        """Nothing ages by a jump back: what was acked later than now counts as acked now."""
        for grave in self.graves.values():
            grave.at = min(grave.at, now)

    # -- verbs ---------------------------------------------------------------------------------------------------

    def send(
        self,
        now: int,
        items: Sequence[Item],
        *,
        careful: bool,
        said: Callable[[int], str],
        part: int = 0,
        details: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Per message "" or who stands for it; `said` is asked for what the server said where the model cannot tell.

        `part` is 1 where part of the next millisecond has passed, here and below. `details` are for the journal.
        """
        statuses: list[str] = []
        fresh: list[Item] = []
        ids: set[str] = set()
        keys: dict[str, str] = {}
        for at, item in enumerate(items):
            holder = ""
            if careful:
                known = self.known(item.id, now)
                if item.id in ids or item.id in self.entries or known or (known is None and said(at) == item.id):
                    holder = item.id
                elif item.unique is not None:
                    holder = keys.get(item.unique) or self.unique.get(item.unique, "")
                    if (
                        not holder
                        and _LETTERS["scheduled" if due_at(item, now, part) > now else "ready"] in item.letters
                    ):
                        keys[item.unique] = item.id
                if not holder:
                    ids.add(item.id)
            statuses.append(holder)
            if not holder:
                fresh.append(item)
        if not fresh:
            return statuses
        if self.settings.max_dead is not None and len(self.ids("dead")) >= self.settings.max_dead:
            raise Full
        length = sum(entry.state in ("ready", *TIMED) for entry in self.entries.values())
        if self.settings.max_length is not None and length + len(fresh) > self.settings.max_length:
            raise Full
        base = self._advance("sent", len(fresh))
        for at, item in enumerate(fresh, 1):
            due = due_at(item, now, part)
            if item.id in self.graves:
                # Sent again after its window: whether the old ack is still remembered, only the server can tell.
                self.graves[item.id].at, self.graves[item.id].window = FORGOTTEN, 0
            self.entries[item.id] = Entry(item, base + at, now, "", 0)
            if due > now:
                self._put(item.id, "scheduled", due)
                self._line("sent", "scheduled", now, item.id, due=due, detail=details.get(item.id, ""))
            else:
                self._put(item.id, "ready", position(item.priority, base + at))
                self._line("sent", "ready", now, item.id, detail=details.get(item.id, ""))
        self._beside(*(item.id for item in fresh))
        return statuses

    def ack(self, now: int, pairs: Sequence[Token], said: Callable[[int], bool]) -> list[int]:
        """The positions lost; `said` tells what the server said of a repeated ack that may be forgotten."""
        gone, lost = self._judge(now, pairs, said)
        self._settle(now, gone)
        return lost

    def _judge(self, now: int, pairs: Sequence[Token], said: Callable[[int], bool]) -> tuple[list[str], list[int]]:
        gone: list[str] = []
        lost = []
        for at, pair in enumerate(pairs, 1):
            if self.held(pair, now):
                if pair[0] not in gone:
                    gone.append(pair[0])
                continue
            grave = self.graves.get(pair[0])
            known = self.known(pair[0], now) if grave is not None and grave.token == pair[1] else False
            if known is False or (known is None and said(at)):
                lost.append(at)
        return gone, lost

    def _settle(self, now: int, gone: Sequence[str]) -> None:
        if not gone:
            return
        self._advance("acked", len(gone))
        window = self.settings.dedup_ms
        if window:
            # Generations turn over here, by the window of now.
            for grave in self.graves.values():
                grave.window = min(grave.window, window)
        for id in gone:
            state = "done" if self.settings.keep_done else "gone"
            self._line("acked", state, now, id, by=self.entries[id].consumer, terminal=True)
            if window:
                self.graves[id] = Grave(self.entries[id].token, now, window)
            if self.settings.keep_done:
                self._put(id, "done", now)
            else:
                self._drop(id)
        if self.settings.keep_done:
            done = self.ids("done")
            for id in done[: min(BATCH, max(0, len(done) - self.settings.keep_done))]:
                self._drop(id)

    def receive(
        self, now: int, n: int, *, lease_ms: int | None, acks: Sequence[Token], said: Callable[[int], bool]
    ) -> Taken:
        """Settles, promotes, reclaims, leases; the journal tells of the acks just before the leases."""
        gone, lost = self._judge(now, acks, said)
        for id in gone:
            # The verdict is given, so what it frees is free for those that are promoted or leased below.
            self._hold(id, self.entries[id].item, "done" if self.settings.keep_done else None)
        promoted = self._promote("scheduled", now) + self._promote("retrying", now)
        expired = self._reclaim(now)
        self._settle(now, gone)
        if self.settings.pause:
            n = 0
        if self.settings.max_leased is not None:
            n = max(0, min(n, self.settings.max_leased - len(self.ids("leased"))))
        ids = self.ids("ready")[:n]
        if not ids:
            return Taken(promoted, expired, 0, lost, [], [])
        base = self._advance("received", len(ids))
        taken, told = [], []
        for at, id in enumerate(ids, 1):
            entry = self.entries[id]
            entry.attempts += 1
            silent = "expired" if entry.token == SILENT else ""
            told.append("1" if entry.place is None else f"{entry.attempts} {entry.replays} {silent}")
            entry.place = entry.score
            entry.token = f"{base + at}-{NONCE}"
            entry.expires = now + (lease_ms or entry.item.lease_ms or self.settings.lease_ms)
            entry.received_at, entry.consumer = now, CONSUMER
            self._put(id, "leased", entry.expires)
            self._line("received", "leased", now, id, by=CONSUMER, due=entry.expires)
            taken.append((id, entry.attempts, entry.expires))
        return Taken(promoted, expired, base, lost, taken, told)

    def _promote(self, state: str, now: int) -> int:
        ids = [id for id in self.ids(state) if self.entries[id].score <= now][:BATCH]
        if ids:
            base = self._advance("promoted", len(ids))
            for at, id in enumerate(ids, 1):
                entry = self.entries[id]
                if entry.place is None:
                    entry.place = position(entry.item.priority, base + at)
                self._put(id, "ready", entry.place)
                self._line("promoted", "ready", now, id)
        return len(ids)

    def _reclaim(self, now: int) -> int:
        ids = [id for id in self.ids("leased") if self.entries[id].score <= now][:BATCH]
        if ids:
            self._advance("expired", len(ids))
        for id in ids:
            entry = self.entries[id]
            assert entry.place is not None
            entry.ended.append((entry.attempts, "expired", "LeaseExpired"))
            spent = entry.attempts >= self._allowed(entry)
            self._put(id, "dead" if spent else "ready", now if spent else entry.place)
            entry.token = "" if spent else SILENT
            self._line("expired", entry.state, now, id, by=entry.consumer, error="LeaseExpired", terminal=spent)
        return len(ids)

    def nack(self, now: int, pairs: Sequence[Token], delay: int | str, part: int = 0) -> tuple[list[int], list[str]]:
        lost, states = [], []
        for at, pair in enumerate(pairs, 1):
            states.append("")
            if not self.held(pair, now):
                lost.append(at)
                continue
            entry = self.entries[pair[0]]
            self._advance("nacked")
            entry.ended.append((entry.attempts, "nacked", "E"))
            if delay == "dead" or entry.attempts >= self._allowed(entry):
                self._put(pair[0], "dead", now)
            else:
                self._put(pair[0], "retrying", now + int(delay) + (part if int(delay) else 0))
            states[-1] = entry.state
            spent = entry.state == "dead"
            due = "" if spent else entry.score
            self._line("nacked", entry.state, now, pair[0], by=entry.consumer, due=due, error="E", terminal=spent)
        return lost, states

    def bury(self, now: int, pairs: Sequence[Token]) -> list[int]:
        lost = []
        for at, pair in enumerate(pairs, 1):
            if not self.held(pair, now):
                lost.append(at)
                continue
            entry = self.entries[pair[0]]
            self._advance("buried")
            entry.ended.append((entry.attempts, "buried", "E"))
            self._put(pair[0], "dead", now)
            self._line("buried", "dead", now, pair[0], by=entry.consumer, error="E", terminal=True)
        return lost

    def release(self, now: int, pairs: Sequence[Token], delay: int, part: int = 0) -> list[int]:
        lost, moved = [], 0
        for at, pair in enumerate(pairs, 1):
            if not self.held(pair, now):
                lost.append(at)
                continue
            entry = self.entries[pair[0]]
            assert entry.place is not None
            entry.attempts -= 1
            moved += 1
            self._put(pair[0], "scheduled" if delay else "ready", now + part + delay if delay else entry.place)
            self._line("released", entry.state, now, pair[0], by=entry.consumer, due=entry.score if delay else "")
        if moved:
            self._advance("released", moved)
        return lost

    def extend(self, now: int, pairs: Sequence[Token], lease_ms: int) -> tuple[list[int], list[int], list[str]]:
        lost, cancelled, until = [], [], []
        for at, pair in enumerate(pairs, 1):
            if not self.held(pair, now):
                lost.append(at)
                if pair[1] in self.cancelled:
                    cancelled.append(at)
                until.append("")
                continue
            entry = self.entries[pair[0]]
            entry.expires = entry.score = now + lease_ms
            until.append(str(entry.expires))
            self._line("extended", "leased", now, pair[0], by=entry.consumer, due=entry.expires)
        if len(lost) < len(pairs):
            self._advance("extended", len(pairs) - len(lost))
        return lost, cancelled, until

    def progress(self, now: int, pair: Token, note: str) -> int:
        if not self.held(pair, now):
            return -1 if pair[1] in self.cancelled else 0
        self.entries[pair[0]].progress = f"{now}\t{note}"
        return 1

    def ack_result(self, now: int, pair: Token, result: str, said: Callable[[int], bool]) -> list[int]:
        gone, lost = self._judge(now, [pair], said)
        if gone and self.settings.keep_done:
            entry = self.entries[pair[0]]
            entry.ended.append((entry.attempts, "acked", ""))
            entry.result = result
        self._settle(now, gone)
        return lost

    def revoke(self, now: int, ids: Sequence[str]) -> list[int]:
        reply = []
        for id in ids:
            entry = self.entries.get(id)
            leased = entry is not None and entry.state == "leased"
            reply.append(int(leased))
            if entry is not None and leased:
                assert entry.place is not None
                self._advance("revoked")
                entry.ended.append((entry.attempts, "revoked", "Revoked"))
                self._put(id, "ready", entry.place)
                self._line("revoked", "ready", now, id, by=OPERATOR, error="Revoked", detail=entry.consumer)
        return reply

    def cancel(self, now: int, ids: Sequence[str]) -> list[str]:
        reply = []
        for id in ids:
            entry = self.entries.get(id)
            reply.append(entry.state if entry else "")
            if entry is None or entry.state in ("dead", "done"):
                continue
            self._advance("cancelled")
            self._line("cancelled", "gone", now, id, by=OPERATOR, detail=entry.state, terminal=True)
            if entry.state == "leased":
                self.cancelled = {token: end for token, end in self.cancelled.items() if end > now}
                if entry.expires > now:
                    self.cancelled[entry.token] = entry.expires
            self._drop(id)
        return reply

    def replay(self, now: int, ids: Sequence[str]) -> list[int]:
        reply = []
        for id in ids:
            entry = self.entries.get(id)
            dead = entry is not None and entry.state == "dead"
            reply.append(int(dead))
            if entry is not None and dead:
                base = self._advance("replayed")
                entry.attempts, entry.replays = 0, entry.replays + 1
                entry.place = position(entry.item.priority, base + 1)
                self._put(id, "ready", entry.place)
                self._line("replayed", "ready", now, id, by=OPERATOR)
        return reply

    def delete(self, now: int, ids: Sequence[str]) -> list[str]:
        reply = []
        for id in ids:
            entry = self.entries.get(id)
            reply.append(entry.state if entry else "")
            if entry is not None and entry.state != "leased":
                self._advance("deleted")
                self._line("deleted", "gone", now, id, by=OPERATOR, detail=entry.state, terminal=True)
                self.done_removed += entry.state == "done"
                self._drop(id)
        return reply

    def move(self, now: int, target: Model, ids: Sequence[str]) -> list[str]:
        """To another queue: places anew there, with due time and errors kept and attempts at 0."""
        reply = []
        for id in ids:
            entry = self.entries.get(id)
            reply.append("" if entry is None or entry.state == "done" else entry.state)
            if entry is None or entry.state in ("leased", "done"):
                continue
            if id in target.entries:
                reply[-1] = "exists"
                continue
            due = entry.score if entry.state in ("scheduled", "retrying") else None
            self._advance("deleted")
            told = f"{entry.state}, moved to {target.name}"
            self._line("deleted", "gone", now, id, 0, OPERATOR, detail=told, terminal=True)
            self._drop(id)
            base = target._advance("sent")
            target.entries[id] = Entry(entry.item, base + 1, entry.sent_at, "", 0, ended=entry.ended)
            state = "ready" if due is None else "scheduled"
            target._put(id, state, position(entry.item.priority, base + 1) if due is None else due)
            told = f"moved from {self.name}"
            target._line("sent", state, now, id, by=OPERATOR, due="" if due is None else due, detail=told)
            target._beside(id)
        return reply

    def purge(self, now: int, state: str, limit: int) -> int:
        ids = self.ids(state)[:limit]
        if ids:
            self._advance("purged", len(ids))
            self.done_removed += len(ids) if state == "done" else 0
            for id in ids:
                self._line("purged", "gone", now, id, by=OPERATOR, detail=state, terminal=True)
                self._drop(id)
        return len(ids)

    def edit(self, now: int, item: Item, due: int | None) -> str:
        """The item must keep the unique key it was sent with."""
        entry = self.entries.get(item.id)
        if entry is None or entry.state == "done":
            return ""
        if entry.state == "leased":
            return "leased"
        self._advance("edited")
        entry.item = replace(item, due="")
        self._line("edited", entry.state, now, item.id, by=OPERATOR, due="" if due is None else due)
        self._beside(item.id)
        if entry.place is not None:
            entry.place = position(item.priority, entry.place % SPAN)
        if entry.state == "ready":
            entry.score = position(item.priority, entry.score % SPAN)
        elif due is not None and entry.state in ("scheduled", "retrying"):
            entry.score = due
        return entry.state

    def hold(self, now: int, pairs: Sequence[Token], owner: str, lasts: int) -> tuple[int, str]:
        """Copies what is still held into the lease journal."""
        rows = [
            {
                "id": id,
                "token": token,
                "attempts": self.entries[id].attempts,
                "received_at": self.entries[id].received_at,
                "stored": self.entries[id].stored(),
            }
            for id, token in pairs
            if self.held((id, token), now)
        ]
        return self.book.hold(now, owner, lasts, pairs[0][1] if pairs else None, rows)

    def schedule(self, now: int, name: str, before: str, after: str | None, rest: str, due: int | None) -> int:
        """1 where a schedule was stored or removed."""
        if not self.schedules.put(name, before, after, rest, due):
            return 0
        self._advance("configured")
        said = "" if due is None else due
        word = "removed" if after is None else "added"
        self._line(
            "configured", "gone", now, "", by=OPERATOR, due=said, detail=f"schedule {name} {word}", terminal=True
        )
        return 1

    def tick(self, now: int, ticks: Sequence[Tick]) -> list[str]:
        """What became of each schedule; raises Full where the queue has no room for their messages."""
        waiting = ("ready", "leased", "retrying", "scheduled")

        def waits(id: str) -> bool:
            return id in self.entries and self.entries[id].state in waiting

        statuses = self.schedules.judge(now, ticks, waits)
        fired = [tick for tick, status in zip(ticks, statuses, strict=True) if status == "fired"]
        items = [replace(item, due="") for tick in fired for item, _ in tick.messages]
        details = {item.id: f"schedule {tick.name}" for tick in fired for item, _ in tick.messages}
        if items:
            self.send(now, items, careful=True, said=lambda _: "", details=details)
        self.schedules.apply(ticks, statuses)
        return statuses

    def configure(self, now: int, event: str, settings: Settings) -> None:
        """A change of the journal's level is told by the level before it."""
        changed = [item.name for item in fields(Settings) if _differ(item.name, settings, self.settings)]
        if changed:
            self._advance(event)
            self._line(event, "gone", now, "", by=OPERATOR, detail=",".join(changed), terminal=True)
            self.settings = settings


def _differ(name: str, one: Settings, other: Settings) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def due_at(item: Item, now: int, part: int) -> int:
    """When it becomes ready, by the server's clock: never early by a fraction of a millisecond."""
    return now + part + int(item.due) if item.due.startswith("+") else int(item.due or now)
