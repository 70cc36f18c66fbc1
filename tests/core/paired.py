"""The real queue and the model side by side: every verb is done by both, and both must agree in answer and content.

There are two queues, so that messages can be moved; verbs are for the one at hand, and `turn` takes up the other.
The marker is taken after every verb, as a sleeping consumer would do: a verb that makes work must set it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from restante.core.errors import QueueFull
from restante.core.message import JournalEvent
from restante.core.scripts import Script
from tests.core.bench import Bench
from tests.core.contents import STATES, Dump, Journal, dump, hint, violations
from tests.core.entry import Full, Settings
from tests.core.model import Model
from tests.core.verbs import CONSUMER, OWNER, SCRIPTS, Item, Tick, Token, Verbs

#: Milliseconds within which a new due time must wake a sleeper; beyond it the sleeper wakes by itself in time.
HORIZON = 5000


class Disagreement(AssertionError):
    """The queue did something else than the model, or broke a rule of its structure."""


class Side:
    """One queue, twice."""

    def __init__(self, bench: Bench, name: str, scripts: Mapping[str, Script]) -> None:
        self.real = Verbs(bench.connection, name, scripts)
        self.model = Model(name)
        #: Every pair of id and token ever given, the oldest first.
        self.tokens: list[Token] = []
        #: What was stored after the last verb.
        self.before: Dump = {}
        #: What was read of the journal.
        self.journal = Journal()


class Pair:
    """The queue at hand and another, and all that can be done with them."""

    def __init__(self, bench: Bench, scripts: Mapping[str, Script] = SCRIPTS) -> None:
        self.bench = bench
        self._here, self._there = (Side(bench, name, scripts) for name in ("q", "r"))
        self.real.configure()
        # The other comes into being by what is moved there, as for an operator.

    @property
    def real(self) -> Verbs:
        return self._here.real

    @property
    def model(self) -> Model:
        return self._here.model

    @property
    def tokens(self) -> list[Token]:
        return self._here.tokens

    def turn(self) -> None:
        """Takes up the other queue."""
        self._here, self._there = self._there, self._here
        self.real.configure()
        self.check("configure")

    @property
    def now(self) -> int:
        return self.bench.clock.now_ms

    @property
    def part(self) -> int:
        """1 where part of the next millisecond has passed."""
        return int(self.bench.clock.now_us % 1000 > 0)

    # -- verbs ---------------------------------------------------------------------------------------------------

    def send(self, *items: Item, careful: bool = True) -> None:
        """Ids and unique keys seen before need a careful send."""
        refused = False
        reply: list[str] = []
        settings = self.model.settings
        few = not careful and settings.max_length is None and settings.max_dead is None
        try:
            reply = self.real.send(*items, careful=careful, few=few)
        except QueueFull:
            refused = True
        try:
            expected = self.model.send(
                self.now, items, careful=careful, said=lambda at: reply[at] if reply else "", part=self.part
            )
        except Full:
            self._same("refused", refused, True)
        else:
            self._same("refused", refused, False)
            self._same("send", reply, expected)
        self.check("send")

    def receive(self, n: int = 1, *, lease_ms: int | None = None, acks: Sequence[Token] = ()) -> list[Token]:
        got = self.real.receive(n, lease_ms=lease_ms, acks=acks)
        expected = self.model.receive(self.now, n, lease_ms=lease_ms, acks=acks, said=lambda at: at in got.lost)
        idle = not (got.messages or got.lost or got.promoted or got.expired) and got.due is None
        # A look around that finds nothing does not ask for the time.
        self._same("now", got.now, 0 if idle and not got.now else self.now)
        self._same("lost", got.lost, expected.lost)
        self._same("promoted", got.promoted, expected.promoted)
        self._same("expired", got.expired, expected.expired)
        self._same("order", [row[:3] for row in got.messages], expected.messages)
        self._same("told", got.told, expected.told)
        if got.messages:
            self._same("base", got.base, expected.base)
        for id, _, _, stored in got.messages:
            entry = self.model.entries[id]
            self._same("stored", stored, b"%d\n%d\t%b" % (entry.sequence, entry.sent_at, entry.item.stored))
        due = self.model.next_due()
        if due is not None and (got.due is None or got.due > due):
            raise Disagreement(f"receive says the next thing is due at {got.due}, it is at {due}")
        self._here.tokens += got.pairs
        self.check("receive")
        return got.pairs

    def ack(self, *pairs: Token, kept: bool = False) -> None:
        """With `kept` the verdict is remembered, here and in the verbs below."""
        if not pairs:
            return  # refused by every client
        reply = self.real.ack(*pairs, kept=kept)
        lost = self.model.ack(self.now, pairs, lambda at: at in reply)
        self._same("ack", reply, lost)
        self._decided("ack", pairs, lost, kept)

    def nack(self, *pairs: Token, delay: int | str = 0, kept: bool = False) -> None:
        lost, states = self.model.nack(self.now, pairs, delay, self.part)
        self._same("nack", self.real.nack(*pairs, delay=delay, kept=kept), (lost, states))
        self._decided("nack", pairs, lost, kept)

    def bury(self, *pairs: Token, kept: bool = False) -> None:
        lost = self.model.bury(self.now, pairs)
        self._same("bury", self.real.bury(*pairs, kept=kept), lost)
        self._decided("bury", pairs, lost, kept)

    def release(self, *pairs: Token, delay: int = 0, kept: bool = False) -> None:
        lost = self.model.release(self.now, pairs, delay, self.part)
        self._same("release", self.real.release(*pairs, delay=delay, kept=kept), lost)
        self._decided("release", pairs, lost, kept)

    def _decided(self, verb: str, pairs: Sequence[Token], lost: Sequence[int], kept: bool) -> None:
        if kept:
            self.model.book.decided(verb, pairs, lost)
        self.check(verb)

    def hold(self, *pairs: Token, owner: str = OWNER, lasts: int = 60_000) -> None:
        expected = self.model.hold(self.now, pairs, owner, lasts)
        self._same("hold", self.real.hold(*pairs, owner=owner, lasts=lasts), expected)
        self.check("hold")

    def clear(self, upto: int, entries: int = 20) -> None:
        self._same("clear", self.real.clear(upto, entries), self.model.book.clear(upto, entries))
        self.check("clear")

    def extend(self, *pairs: Token, lease_ms: int = 30_000) -> None:
        reply = self.real.extend(*pairs, lease_ms=lease_ms)
        self._same("extend", reply, self.model.extend(self.now, pairs, lease_ms))
        self.check("extend")

    def schedule(
        self, name: str, before: str = "", after: str | None = "h1", due: int | None = None, rest: str = "rest"
    ) -> None:
        """Stores or changes a schedule; removes it where `after` is None. `due` is in milliseconds from now."""
        at = None if due is None else self.now + due
        record = "" if after is None else f"{after}\n{rest}"
        reply = self.real.schedule(name, before, record, at, "removed" if after is None else "added")
        self._same("schedule", reply, self.model.schedule(self.now, name, before, after, rest, at))
        self.check("schedule")

    def tick(self, *ticks: Tick, most: int = 100, chance: int = 0, ahead: int = 0) -> None:
        refused = False
        book, now = self.model.schedules, self.now
        try:
            at, nearest, statuses, rows = self.real.tick(*ticks, most=most, chance=chance, ahead=ahead)
        except QueueFull:
            refused = True
        try:
            expected = self.model.tick(now, ticks)
        except Full:
            self._same("refused", refused, True)
        else:
            self._same("refused", refused, False)
            waiting = book.waiting(now)
            first = chance % (len(waiting) - most + 1) if len(waiting) > most else 0
            chosen = waiting[first : first + most] if waiting else book.waiting(now + ahead)[:most]
            self._same("now", at, now)
            self._same("nearest tick", nearest, str(min(book.ticks.values())) if book.ticks else "")
            self._same("tick", statuses, expected)
            self._same("due", rows, [word for name in chosen for word in (name, book.records()[name])])
        self.check("tick")

    def progress(self, pair: Token, note: str = '[0.5,"half"]') -> None:
        self._same("progress", self.real.progress(pair, note), self.model.progress(self.now, pair, note))
        self.check("progress")

    def ack_result(self, pair: Token, result: str = "42") -> None:
        reply = self.real.ack_result(pair, result)
        self._same("ack_result", reply, self.model.ack_result(self.now, pair, result, lambda at: at in reply))
        self.check("ack_result")

    def revoke(self, *ids: str) -> None:
        self._same("revoke", self.real.revoke(*ids), self.model.revoke(self.now, ids))
        self.check("revoke")

    def cancel(self, *ids: str) -> None:
        self._same("cancel", self.real.cancel(*ids), self.model.cancel(self.now, ids))
        self.check("cancel")

    def replay(self, *ids: str) -> None:
        self._same("replay", self.real.replay(*ids), self.model.replay(self.now, ids))
        self.check("replay")

    def delete(self, *ids: str) -> None:
        self._same("delete", self.real.delete(*ids), self.model.delete(self.now, ids))
        self.check("delete")

    def purge(self, state: str, limit: int = 1000) -> None:
        self._same("purge", self.real.purge(state, limit), self.model.purge(self.now, state, limit))
        self.check("purge")

    def edit(self, item: Item, delay: int | None = None) -> None:
        due = None if delay is None else self.now + delay
        reply = self.real.edit(item, "" if due is None else str(due))
        self._same("edit", reply, self.model.edit(self.now, item, due))
        self.check("edit")

    def move(self, *ids: str) -> None:
        """To the other queue."""
        reply = self.real.move(self._there.real.name, *ids)
        self._same("move", reply, self.model.move(self.now, self._there.model, ids))
        self.check("move")
        self._check(self._there, "move")

    def configure(self, event: str = "configured", **settings: Any) -> None:
        wished = replace(self.model.settings, **settings)
        default = Settings()
        told: dict[str, str] = {}
        for item in fields(Settings):
            value = getattr(wished, item.name)
            if item.name in settings:
                text = value if isinstance(value, str) else str(int(value or 0))
                told[item.name] = "" if value == getattr(default, item.name) else text
        self.real.configure(event, **told)
        self.model.configure(self.now, event, wished)
        self.check("configure")

    def advance_micros(self, us: int) -> None:
        """Moves the clock by parts of a millisecond."""
        self.bench.clock.advance(us / 1_000_000)

    def advance(self, ms: int) -> None:
        """Moves the clock; back when negative."""
        self.bench.clock.advance(ms / 1000)
        if ms < 0:
            for side in (self._here, self._there):
                side.model.clock_went_back(self.now)

    # -- looking -------------------------------------------------------------------------------------------------

    def tokens_in_hand(self) -> list[Token]:
        """The pairs that hold a message now."""
        return [pair for pair in self.tokens if self.model.held(pair, self.now)]

    def check(self, verb: str) -> None:
        """Compares all that is stored with the model, and looks at its structure."""
        self._check(self._here, verb)

    def check_anew(self) -> None:
        """Compares all once more, and reads the journals from their beginning: no verb has altered an old line."""
        for side in (self._here, self._there):
            side.journal.forget()
            self._check(side, "look")

    def _check(self, side: Side, verb: str) -> None:
        found = dump(self.bench.client, side.real.name, side.journal)
        if "marker" in found:
            self.bench.client.delete(side.real.keys["marker"])
        elif self._must_wake(side, verb, found):
            raise Disagreement(f"{verb} made work and woke nobody")
        side.before = found
        wrong = violations(found, side.journal)
        if wrong:
            raise Disagreement("; ".join(wrong))
        model = side.model
        queue = found.get("queue", {})
        self._same("index", {state: found[state] for state in STATES if state in found}, model.index())
        self._same("deliveries", found.get("deliveries", {}), model.deliveries())
        self._same("unique", found.get("unique", {}), model.unique)
        self._same("sequence", queue.get("sequence", 0), model.sequence)
        self._same("skipped", queue.get("journal_skip", 0), model.skipped)
        self._same(
            "history", self._history(found), {id: entry.ended for id, entry in model.entries.items() if entry.ended}
        )
        self._same("messages", found.get("messages", {}), model.messages())
        self._same(
            "totals",
            {event: queue.get(event, 0) for event in JournalEvent},
            dict.fromkeys(JournalEvent, 0) | model.totals,
        )
        self._same_lines(side)
        self._same("payloads of the journal", found.get("payloads", {}), model.payloads)
        self._same("lease journal", found.get("leases", {}), model.book.rows())
        self._same("verdicts", found.get("verdicts", {}), model.book.verdicts)
        self._same("cancelled leases", found.get("cancelled", {}), model.cancelled)
        self._same(
            "results",
            {id: rows[-1][6] for id, rows in found.get("history", {}).items() if rows[-1][3] == "acked"},
            {id: entry.result for id, entry in model.entries.items() if entry.result},
        )
        self._same("schedules", found.get("schedules", {}), model.schedules.records())
        self._same("ticks", found.get("ticks", {}), model.schedules.ticks)
        self._same("holder", queue.get(f"holder:{CONSUMER}", ""), model.book.holder())
        if not model.conserved():
            raise Disagreement(f"the totals do not add up: {model.totals}")

    def _same_lines(self, side: Side) -> None:
        """Their numbers are dense, as `violations` has seen, so that the order says all. Each is compared once."""
        found, expected = side.journal.lines, side.model.journal
        for number in range(side.journal.compared, min(len(found), len(expected))):
            self._same(f"line {number + 1} of the journal", found[str(number + 1)], expected[number])
        self._same("lines of the journal", len(found), len(expected))
        side.journal.compared = len(found)

    def _must_wake(self, side: Side, verb: str, found: Dump) -> bool:
        old, limit = side.before, side.model.settings.max_leased
        ready, due = found.get("ready", {}), hint(found)
        if verb == "receive":
            taken = found["queue"].get("received", 0) > old.get("queue", {}).get("received", 0)
            return bool(taken and (ready or (due is not None and due - self.now <= HORIZON)))
        if ready.keys() - old.get("ready", {}).keys():
            return True
        if limit is not None and ready and len(found.get("leased", {})) < min(limit, len(old.get("leased", {}))):
            return True
        if verb == "schedule":
            ticks, earlier = found.get("ticks", {}), old.get("ticks", {})
            if ticks and (not earlier or min(ticks.values()) < min(earlier.values())):
                return True
        known = hint(old)
        if due is None or verb == "extend":
            return False
        return bool((known is None or due < known) and due - self.now <= HORIZON)

    @staticmethod
    def _history(found: Dump) -> dict[str, list[tuple[int, str, str]]]:
        return {id: [(int(row[0]), row[3], row[5]) for row in rows] for id, rows in found.get("history", {}).items()}

    @staticmethod
    def _same(what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise Disagreement(f"{what}: the queue says {found!r}, the model {expected!r}")
