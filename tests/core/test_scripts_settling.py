"""ack, nack, bury, release, extend and the unique keys they free, by what they change.

All keys of the queue before and after, on a clock that stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from restante.core.errors import InvalidInput
from restante.core.message import STATE_LETTERS, State
from tests.core.contents import position, violations
from tests.core.desk import LEASE, A, B, Desk, delivery, line
from tests.core.verbs import CONSUMER, SILENT, Item
from tests.harness.clock import START_MS as T


class TestSettling:
    """ack, nack, bury, release, extend."""

    @pytest.fixture
    def held(self, desk: Desk) -> tuple[str, str]:
        desk.verbs.send(A)
        desk.wake()
        return desk.verbs.receive().pairs[0]

    def test_ack_leaves_only_the_memory_of_the_id(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.ack(held), []) == {
            "queue": {"sequence": 3, "acked": 1, "acked_since": T},
            "journal": {"3": line("acked", "gone", A, attempts=1, by=CONSUMER)},
            "messages": {"a": None},
            "deliveries": {"a": None},
            "leased": {"a": None},
            "acked": {"a": "2-n"},
        }

    def test_ack_repeated_with_its_token_is_not_lost_and_changes_nothing(
        self, desk: Desk, held: tuple[str, str]
    ) -> None:
        desk.verbs.ack(held)
        assert desk.changed_by(lambda: desk.verbs.ack(held, held), []) == {}

    def test_ack_keeps_results_where_the_queue_keeps_them(self, desk: Desk, held: tuple[str, str]) -> None:
        desk.verbs.configure(keep_done="1")
        assert desk.changed_by(lambda: desk.verbs.ack(held), []) == {
            "queue": {"sequence": 4, "acked": 1, "acked_since": T},
            "journal": {"4": line("acked", "done", A, attempts=1, by=CONSUMER)},
            "deliveries": {"a": delivery(A, 1)},
            "leased": {"a": None},
            "done": {"a": T},
            "acked": {"a": "2-n"},
        }

    def test_a_newer_result_pushes_the_oldest_out_with_its_unique_key(self, desk: Desk) -> None:
        desk.verbs.configure(keep_done="1")
        for id in "ab":
            desk.verbs.send(Item(id, unique=f"key-{id}", letters=STATE_LETTERS[State.DONE]))
            desk.verbs.ack(*desk.verbs.receive().pairs)
            desk.advance(1)
        found = desk.look()
        assert violations(found) == []
        assert (found["done"], found["unique"], set(found["messages"])) == ({"b": T + 1}, {"key-b": "b"}, {"b"})

    def test_acked_ids_turn_over_in_two_generations(self, desk: Desk) -> None:
        desk.verbs.configure(dedup_ms="1000")
        seen = []
        for id in "abcd":
            desk.verbs.send(Item(id))
            desk.verbs.ack(*desk.verbs.receive().pairs)
            found = desk.look()
            seen.append(("".join(found["acked"]), "".join(found.get("acked_before", {}))))
            desk.advance(600)
        assert seen == [("a", ""), ("ab", ""), ("c", "ab"), ("cd", "ab")]
        desk.advance(2000)
        desk.verbs.send(Item("e"))
        desk.verbs.ack(*desk.verbs.receive().pairs)
        found = desk.look()
        assert (set(found["acked"]), "acked_before" in found) == ({"e"}, False)

    def test_without_a_window_nothing_is_remembered(self, desk: Desk, held: tuple[str, str]) -> None:
        desk.verbs.configure(dedup_ms="0")
        assert "acked" not in desk.changed_by(lambda: desk.verbs.ack(held), [])
        assert desk.verbs.send(A) == [""]

    def test_nack_makes_it_retrying_with_its_error(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.nack(held, delay=7000), ([], ["retrying"])) == {
            "queue": {"sequence": 3, "nacked": 1, "due": T + 7000},
            "journal": {"3": line("nacked", "retrying", A, attempts=1, by=CONSUMER, due=T + 7000, error="E")},
            "deliveries": {"a": delivery(A, 1)},
            "history": {"a": [["1", str(T), str(T), "nacked", CONSUMER, "E", '"no"']]},
            "leased": {"a": None},
            "retrying": {"a": T + 7000},
        }

    def test_nack_that_ends_soon_wakes_a_consumer(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.nack(held, delay=5000))["marker"] == {"0": 0}

    @pytest.mark.parametrize("delay", ["dead", "0"])
    def test_nack_of_the_last_attempt_makes_it_dead(self, desk: Desk, held: tuple[str, str], delay: str) -> None:
        if delay != "dead":
            desk.verbs.configure(max_attempts="1")
        number = desk.look()["queue"]["sequence"] + 1
        assert desk.changed_by(lambda: desk.verbs.nack(held, delay=delay), ([], ["dead"])) == {
            "queue": {"sequence": number, "nacked": 1},
            "journal": {str(number): line("nacked", "dead", A, attempts=1, by=CONSUMER, error="E")},
            "deliveries": {"a": delivery(A, 1)},
            "history": {"a": [["1", str(T), str(T), "nacked", CONSUMER, "E", '"no"']]},
            "leased": {"a": None},
            "dead": {"a": T},
        }

    def test_bury_makes_it_dead_whatever_attempts_are_left(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.bury(held), []) == {
            "queue": {"sequence": 3, "buried": 1},
            "journal": {"3": line("buried", "dead", A, attempts=1, by=CONSUMER, error="E")},
            "deliveries": {"a": delivery(A, 1)},
            "history": {"a": [["1", str(T), str(T), "buried", CONSUMER, "E", '"no"']]},
            "leased": {"a": None},
            "dead": {"a": T},
        }

    def test_release_gives_it_back_at_its_place_with_the_attempt_not_counted(
        self, desk: Desk, held: tuple[str, str]
    ) -> None:
        assert desk.changed_by(lambda: desk.verbs.release(held), []) == {
            "queue": {"sequence": 3, "released": 1},
            "journal": {"3": line("released", "ready", A, by=CONSUMER)},
            "deliveries": {"a": delivery(A, 1, attempts=0)},
            "leased": {"a": None},
            "ready": {"a": position(3, 1)},
            "marker": {"0": 0},
        }

    def test_release_with_a_delay_makes_it_scheduled(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.release(held, delay=9000), []) == {
            "queue": {"sequence": 3, "released": 1, "due": T + 9000},
            "journal": {"3": line("released", "scheduled", A, by=CONSUMER, due=T + 9000)},
            "deliveries": {"a": delivery(A, 1, attempts=0)},
            "leased": {"a": None},
            "scheduled": {"a": T + 9000},
        }

    @pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
    def test_a_place_under_max_leased_that_becomes_free_wakes_a_consumer(self, desk: Desk, verb: str) -> None:
        desk.verbs.configure(max_leased="1")
        desk.verbs.send(A, B)
        held = desk.verbs.receive(2).pairs[0]
        desk.wake()
        act: dict[str, Callable[[], Any]] = {
            "ack": lambda: desk.verbs.ack(held),
            "nack": lambda: desk.verbs.nack(held, delay=3_600_000),
            "bury": lambda: desk.verbs.bury(held),
            "release": lambda: desk.verbs.release(held, delay=3_600_000),
        }
        assert desk.changed_by(act[verb]).get("marker") == {"0": 0}

    def test_extend_counts_from_now(self, desk: Desk, held: tuple[str, str]) -> None:
        desk.advance(1000)
        until = T + 1000 + LEASE
        assert desk.changed_by(
            lambda: desk.verbs.extend(held, ("x", "1-n"), card="{}"), ([2], [], [str(until), ""])
        ) == {
            "queue": {"sequence": 3, "extended": 1},
            "journal": {"3": line("extended", "leased", A, at=T + 1000, attempts=1, by=CONSUMER, due=until)},
            "deliveries": {"a": delivery(A, 1, "2-n", until)},
            "leased": {"a": until},
            "consumers": {CONSUMER: f"{T + 1000}\t{{}}"},
        }

    def test_an_extended_lease_that_ends_sooner_lowers_the_hint(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.extend(held, lease_ms=10))["queue"]["due"] == T + 10

    @pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release", "extend"])
    @pytest.mark.parametrize("token", ["forged", "empty", "stale", "expired", "of another", "a mark"])
    def test_a_token_that_does_not_hold_changes_nothing(self, desk: Desk, verb: str, token: str) -> None:
        desk.verbs.send(A, B)
        first, other = desk.verbs.receive(2).pairs
        desk.verbs.release(first)
        second = desk.verbs.receive().pairs[0]
        pairs = {
            "forged": ("a", "99-n"),
            "empty": ("a", ""),
            "stale": first,
            "expired": second,
            "of another": ("a", other[1]),
            "a mark": ("a", SILENT),
        }
        if token in ("expired", "a mark"):
            desk.advance(LEASE)
        if token == "a mark":
            desk.verbs.receive(0)
            assert desk.look()["deliveries"]["a"]["token"] == SILENT
        act: dict[str, Callable[[], Any]] = {
            "ack": lambda: desk.verbs.ack(pairs[token]),
            "nack": lambda: desk.verbs.nack(pairs[token])[0],
            "bury": lambda: desk.verbs.bury(pairs[token]),
            "release": lambda: desk.verbs.release(pairs[token]),
            "extend": lambda: desk.verbs.extend(pairs[token])[0],
        }
        assert desk.changed_by(act[verb], [1]) == {}

    def test_a_batch_settles_what_it_holds_and_names_what_it_lost(self, desk: Desk) -> None:
        desk.verbs.send(*(Item(id) for id in "abcdefgh"))
        pairs = desk.verbs.receive(8).pairs
        wrong = ("a", "1-x")
        assert desk.verbs.ack(pairs[0], wrong, pairs[1], ("x", "1-n")) == [2, 4]
        assert desk.verbs.nack(pairs[2], wrong, pairs[3], pairs[2]) == ([2, 4], ["retrying", "", "retrying", ""])
        assert desk.verbs.bury(wrong, pairs[4], pairs[4]) == [1, 3]
        assert desk.verbs.release(pairs[5], pairs[5], wrong, pairs[6]) == [2, 3]
        found = desk.look()
        assert violations(found) == []
        assert {state: set(found[state]) for state in ("retrying", "dead", "ready", "leased")} == {
            "retrying": {"c", "d"},
            "dead": {"e"},
            "ready": {"f", "g"},
            "leased": {"h"},
        }

    def test_two_tokens_for_one_message_in_one_ack_are_judged_each(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.verbs.ack(held, ("a", "99-n"), held) == [2]

    @pytest.mark.parametrize("riding", [False, True])
    def test_more_than_a_thousand_acks_are_refused_before_anything_is_done(self, desk: Desk, riding: bool) -> None:
        desk.verbs.send(*(Item(f"m{at}") for at in range(1000)), careful=False)
        pairs = desk.verbs.receive(1000).pairs
        many = [*pairs, pairs[0]]

        def act() -> None:
            with pytest.raises(InvalidInput):
                desk.verbs.receive(1, acks=many) if riding else desk.verbs.ack(*many)

        assert desk.changed_by(act) == {}
        assert desk.verbs.ack(*pairs) == []
        assert "messages" not in desk.look()

    def test_acked_ids_do_not_age_by_a_clock_that_goes_back(self, desk: Desk) -> None:
        desk.verbs.configure(dedup_ms="1000")
        for id, wait in (("a", 900), ("b", -500_000), ("c", 900)):
            desk.verbs.send(Item(id))
            desk.verbs.ack(*desk.verbs.receive().pairs)
            desk.advance(wait)
        found = desk.look()
        assert set(found["acked"]) == {*"abc"}
        assert "acked_before" not in found
        assert found["queue"]["acked_since"] == T + 900 - 500_000
        assert desk.verbs.send(Item("a"), Item("b"), Item("c")) == ["a", "b", "c"]

    def test_the_history_of_attempts_is_bounded(self, desk: Desk) -> None:
        desk.verbs.configure(max_attempts="1000")
        desk.verbs.send(A)
        for _ in range(53):
            desk.verbs.nack(*desk.verbs.receive().pairs)
        attempts = [int(row[0]) for row in desk.look()["history"]["a"]]
        assert attempts == list(range(4, 54))

    @pytest.mark.parametrize(
        ("verb", "args"),
        [
            ("nack", ("a", "2-n", "-1", "E", '""')),
            ("nack", ("a", "2-n", "x", "E", '""')),
            ("nack", ("a", "2-n", "1e300", "E", '""')),
            ("release", ("-1", "a", "2-n")),
            ("release", ("nan", "a", "2-n")),
            ("extend", (CONSUMER, "", "a", "2-n", "0")),
            ("extend", (CONSUMER, "", "a", "2-n", "9e15")),
        ],
    )
    def test_a_bad_number_is_refused_by_the_script_too(
        self, desk: Desk, held: tuple[str, str], verb: str, args: tuple[str, ...]
    ) -> None:
        def act() -> None:
            with pytest.raises(InvalidInput):
                desk.verbs.call(verb, *args)

        assert desk.changed_by(act) == {}


class TestUniqueKeys:
    """A key is held in the states it names and free in all others, whatever verb leads there."""

    @pytest.mark.parametrize("state", [*State])
    def test_a_key_holds_in_its_state_and_is_free_elsewhere(self, desk: Desk, state: State) -> None:
        desk.verbs.configure(keep_done="5")
        item = Item("a", unique="k", letters=STATE_LETTERS[state], due="+10")
        held: dict[str, bool] = {}

        def note(where: str) -> None:
            found = desk.look()
            assert violations(found) == []
            held.setdefault(where, "unique" in found)
            assert held[where] is ("unique" in found)

        desk.verbs.send(item)
        note("scheduled")
        desk.advance(10)
        desk.verbs.receive(0)
        note("ready")
        pairs = desk.verbs.receive().pairs
        note("leased")
        desk.verbs.nack(*pairs, delay=10)
        note("retrying")
        desk.advance(10)
        pairs = desk.verbs.receive().pairs
        note("leased")
        desk.verbs.release(*pairs, delay=10)
        note("scheduled")
        desk.advance(10)
        desk.verbs.bury(*desk.verbs.receive().pairs)
        note("dead")
        desk.verbs.replay("a")
        note("ready")
        pairs = desk.verbs.receive().pairs
        desk.advance(LEASE)
        desk.verbs.receive(0)
        note("ready")
        desk.verbs.ack(*desk.verbs.receive().pairs)
        note("done")
        desk.verbs.delete("a")
        note("gone")
        assert held == {name: name == state for name in (*(other.value for other in State), "gone")}
