"""Any order of verbs, on the real server and in the model: both agree after every single step.

`RESTANTE_EXAMPLES` sets how many runs are tried; without it a fixed set, the same on every machine.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from restante.core.settings import JOURNAL_LEVELS
from tests.core.bench import Bench
from tests.core.paired import Pair
from tests.core.verbs import OWNER, RIVAL, Item, Tick, Token

#: Runs tried unless the environment says otherwise; a run is up to STEPS verbs.
EXAMPLES, CHAOS_EXAMPLES = 60, 3000
STEPS = 50

IDS = st.sampled_from([f"m{number}" for number in range(12)])
KEYS = st.none() | st.sampled_from(["k1", "k2"])
LETTERS = st.sampled_from(["lrst", "r", "s", "rs", "l", "d", "dklrst", "k"])
PRIORITIES = st.sampled_from([0, 0, 1, 5, 254, 255])
#: Milliseconds, from one to ten days.
SPANS = st.sampled_from([1, 2, 999, 1000, 5_000, 30_000, 60_000, 3_600_000, 10 * 86_400_000])
#: Absolute due times, in milliseconds from now: passed, this very one, to come.
TIMES = st.sampled_from([-3_600_000, -1, 0, 1, 1000, 5_000, 5_001, 60_000])
ITEMS = st.builds(
    Item,
    id=IDS,
    payload=st.sampled_from([b"", b"x", b"\x00\r\n\t\xff", b"y" * 300]),
    priority=PRIORITIES,
    due=st.just("") | SPANS.map(lambda ms: f"+{ms}") | TIMES.map(lambda ms: f"@{ms}"),
    kind=st.sampled_from(["", "mail"]),
    lease_ms=st.none() | SPANS,
    max_attempts=st.none() | st.integers(1, 3),
    unique=KEYS,
    letters=LETTERS,
)
STATES_TO_PURGE = st.sampled_from(["ready", "scheduled", "retrying", "dead", "done"])


class QueueMachine(RuleBasedStateMachine):
    """The verbs as rules. The server is set from outside, since hypothesis makes the machine."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.bench.clear()
        self.pair = Pair(self.bench)
        self.fresh = 0

    def _chosen(self, data: Any, least: int = 1) -> list[Token]:
        """Valid, stale and forged tokens in any mix."""
        known = self.pair.tokens[-12:]
        forged = [(id, token) for id, _ in known[:2] for token in ("1-n", "", "-", "x\ty")] + [("nobody", "1-n")]
        valid = self.pair.tokens_in_hand()
        choice = st.sampled_from(valid) | st.sampled_from(known + forged) if valid else st.sampled_from(known + forged)
        chosen: list[Token] = data.draw(st.lists(choice, min_size=least, max_size=4), label="tokens")
        return chosen

    def _timed(self, items: list[Item]) -> list[Item]:
        """With times of the form "@ms", which are drawn relative to now, made absolute."""
        return [
            replace(item, due=str(self.pair.now + int(item.due[1:]))) if item.due.startswith("@") else item
            for item in items
        ]

    def _present(self) -> st.SearchStrategy[str]:
        """Ids, mostly of messages that are there."""
        ids = sorted(self.pair.model.entries)
        return st.sampled_from(ids) | IDS if ids else IDS

    @rule(items=st.lists(ITEMS, min_size=1, max_size=4))
    def send_with_ids_and_keys_that_may_repeat(self, items: list[Item]) -> None:
        self.pair.send(*self._timed(items))

    @rule(items=st.lists(ITEMS, min_size=1, max_size=3))
    def send_new_messages(self, items: list[Item]) -> None:
        made = []
        for item in self._timed(items):
            self.fresh += 1
            made.append(replace(item, id=f"new{self.fresh}", unique=None))
        self.pair.send(*made, careful=False)

    @rule(data=st.data(), n=st.integers(0, 5), lease=st.none() | SPANS)
    def receive_with_acks_riding(self, data: Any, n: int, lease: int | None) -> None:
        self.pair.receive(n, lease_ms=lease, acks=self._chosen(data, least=0))

    @rule(n=st.integers(1, 5))
    def receive(self, n: int) -> None:
        self.pair.receive(n)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), kept=st.booleans())
    def ack(self, data: Any, kept: bool) -> None:
        self.pair.ack(*self._chosen(data), kept=kept)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), delay=st.just(0) | SPANS | st.just("dead"), kept=st.booleans())
    def nack(self, data: Any, delay: int | str, kept: bool) -> None:
        self.pair.nack(*self._chosen(data), delay=delay, kept=kept)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), kept=st.booleans())
    def bury(self, data: Any, kept: bool) -> None:
        self.pair.bury(*self._chosen(data), kept=kept)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), delay=st.just(0) | SPANS, kept=st.booleans())
    def release(self, data: Any, delay: int, kept: bool) -> None:
        self.pair.release(*self._chosen(data), delay=delay, kept=kept)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), owner=st.sampled_from([OWNER, RIVAL]), lasts=SPANS)
    def copy_leases_into_the_lease_journal(self, data: Any, owner: str, lasts: int) -> None:
        self.pair.hold(*self._chosen(data, least=0), owner=owner, lasts=lasts)

    @rule(back=st.integers(0, 4), entries=st.integers(1, 3))
    def clear_the_lease_journal(self, back: int, entries: int) -> None:
        self.pair.clear(max(0, self.pair.model.book.last - back), entries)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), lease=SPANS)
    def extend(self, data: Any, lease: int) -> None:
        self.pair.extend(*self._chosen(data), lease_ms=lease)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), note=st.sampled_from(['[0,""]', '[0.5,"half"]']))
    def progress(self, data: Any, note: str) -> None:
        self.pair.progress(self._chosen(data)[0], note)

    @precondition(lambda self: self.pair.tokens)
    @rule(data=st.data(), result=st.sampled_from(["1", '{"a":"b"}']))
    def ack_with_a_result(self, data: Any, result: str) -> None:
        self.pair.ack_result(self._chosen(data)[0], result)

    @rule(data=st.data())
    def revoke(self, data: Any) -> None:
        self.pair.revoke(*data.draw(st.lists(self._present(), min_size=1, max_size=3)))

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.pair.cancel(*data.draw(st.lists(self._present(), min_size=1, max_size=3)))

    @rule(ms=SPANS)
    def time_passes(self, ms: int) -> None:
        self.pair.advance(ms)

    @rule(us=st.sampled_from([1, 500, 999]))
    def part_of_a_millisecond_passes(self, us: int) -> None:
        self.pair.advance_micros(us)

    @rule()
    def time_passes_until_something_is_due(self) -> None:
        due = self.pair.model.next_due()
        if due is not None and due > self.pair.now:
            self.pair.advance(due - self.pair.now)

    @rule(ms=st.sampled_from([1, 1000, 7_200_000]))
    def the_clock_jumps_back(self, ms: int) -> None:
        self.pair.advance(-ms)

    @rule(data=st.data())
    def replay(self, data: Any) -> None:
        dead = self.pair.model.ids("dead")
        self.pair.replay(*data.draw(st.lists(st.sampled_from(dead) | IDS if dead else IDS, min_size=1, max_size=3)))

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        self.pair.delete(*data.draw(st.lists(self._present(), min_size=1, max_size=3)))

    @rule(state=STATES_TO_PURGE, limit=st.integers(1, 3))
    def purge(self, state: str, limit: int) -> None:
        self.pair.purge(state, limit)

    @rule(data=st.data(), item=ITEMS, delay=st.none() | st.just(0) | SPANS)
    def edit(self, data: Any, item: Item, delay: int | None) -> None:
        entry = self.pair.model.entries.get(data.draw(self._present()))
        if entry is None:
            self.pair.edit(Item("nobody", item.payload, item.priority), delay)
        else:
            kept = entry.item
            self.pair.edit(replace(item, id=kept.id, due="", unique=kept.unique, letters=kept.letters), delay)

    @rule(
        name=st.sampled_from(["s1", "s2"]),
        known=st.booleans(),
        last=st.none() | IDS,
        due=st.none() | st.just(0) | SPANS,
        removed=st.booleans(),
    )
    def store_or_remove_a_schedule(
        self, name: str, known: bool, last: str | None, due: int | None, removed: bool
    ) -> None:
        head = self.pair.model.schedules.heads.get(name, "")
        self.fresh += 1
        after = None if removed else f"{last or ''}\t{self.fresh}"
        self.pair.schedule(name, head if known else "other", after, due)

    @rule(
        names=st.lists(st.sampled_from(["s1", "s2"]), unique=True),
        known=st.booleans(),
        count=st.integers(0, 3),
        early=st.booleans(),
        overlaps=st.booleans(),
        due=st.none() | st.just(0) | SPANS,
    )
    def fire_schedules(
        self, names: list[str], known: bool, count: int, early: bool, overlaps: bool, due: int | None
    ) -> None:
        ticks = []
        for name in names:
            head = self.pair.model.schedules.heads.get(name, "") if known else "other"
            items = [Item(f"{name}@{self.fresh + number}") for number in range(1, count + 1)]
            self.fresh += 1 + count
            told = tuple((item, self.pair.now + early) for item in items)
            after = f"{items[-1].id if items else ''}\t{self.fresh}"
            next_due = None if due is None else self.pair.now + due
            ticks.append(Tick(name, head, after, "" if overlaps else f"{head}+", next_due, told))
        self.pair.tick(*ticks)

    @rule(data=st.data())
    def move(self, data: Any) -> None:
        self.pair.move(*data.draw(st.lists(self._present(), min_size=1, max_size=3)))

    @rule()
    def take_up_the_other_queue(self) -> None:
        self.pair.turn()

    @rule(level=st.sampled_from(JOURNAL_LEVELS))
    def switch_the_journal(self, level: str) -> None:
        self.pair.configure(journal=level)

    @rule()
    def pause(self) -> None:
        self.pair.configure("paused", pause=True)

    @rule()
    def resume(self) -> None:
        self.pair.configure("resumed", pause=False)

    @rule(
        name=st.sampled_from(
            ["lease_ms", "max_attempts", "max_leased", "max_length", "keep_done", "dedup_ms", "max_dead"]
        ),
        data=st.data(),
    )
    def configure(self, name: str, data: Any) -> None:
        values: dict[str, list[int | None]] = {
            "lease_ms": [30_000, 1, 5_000],
            "max_attempts": [5, 1, 2],
            "max_leased": [None, 1, 3],
            "max_length": [None, 4, 10],
            "keep_done": [0, 1, 3],
            "dedup_ms": [60_000, 0, 1000, 600_000],
            "max_dead": [None, 1, 4],
        }
        self.pair.configure(**{name: data.draw(st.sampled_from(values[name]), label=name)})

    def teardown(self) -> None:
        """Whatever happened, what is left can be drained."""
        if not hasattr(self, "pair"):
            return
        for _ in range(2):
            self._drain()
            self.pair.turn()
        self.pair.check_anew()

    def _drain(self) -> None:
        self.pair.configure(pause=False, max_leased=None)
        for _ in range(200):
            due = self.pair.model.next_due()
            pairs = self.pair.receive(5)
            if pairs:
                self.pair.ack(*pairs)
            elif due is None:
                break
            elif due > self.pair.now:
                self.pair.advance(due - self.pair.now)
        left = set(self.pair.model.index()) - {"dead", "done"}
        assert not left, f"{left} cannot be drained"


def _profile(examples: int, *, same: bool) -> settings:
    wished = os.environ.get("RESTANTE_EXAMPLES")
    return settings(
        max_examples=int(wished or examples),
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=same and wished is None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.timeout(0)
def test_the_queue_does_what_the_model_does_whatever_the_order_of_verbs(bench: Bench) -> None:
    run_state_machine_as_test(_machine(bench), settings=_profile(EXAMPLES, same=True))


@pytest.mark.chaos
@pytest.mark.timeout(0)
def test_the_queue_does_what_the_model_does_in_many_more_orders(bench: Bench) -> None:
    run_state_machine_as_test(_machine(bench), settings=_profile(CHAOS_EXAMPLES, same=False))


def _machine(bench: Bench) -> type[QueueMachine]:
    return type("QueueMachineHere", (QueueMachine,), {"bench": bench})
