"""What the journal keeps by its level, and the stored forms beside its lines.

All keys of the queue before and after, on a clock that stands still.
"""

from __future__ import annotations

import pytest

from tests.core.contents import position, violations
from tests.core.desk import A, B, Desk, line, message
from tests.core.verbs import OPERATOR, Item, Verbs
from tests.harness.clock import START_MS as T


class TestJournalLevels:
    """The numbers of the journal have no gap at any level, and the queue's sequence goes on."""

    @pytest.mark.parametrize(
        ("level", "kept"),
        [
            ("full", ["configured", "sent", "sent", "received", "acked", "received", "nacked"]),
            ("payloads", ["configured", "sent", "sent", "received", "acked", "received", "nacked"]),
            ("terminal", ["configured", "acked", "nacked"]),
            ("off", ["configured"]),
        ],
    )
    def test_a_level_keeps_its_events(self, desk: Desk, level: str, kept: list[str]) -> None:
        desk.verbs.configure(journal=level)
        desk.verbs.send(A, B)
        held = desk.verbs.receive().pairs
        held = desk.verbs.receive(1, acks=held).pairs
        desk.verbs.nack(*held, delay="dead")
        found = desk.look()
        assert violations(found) == []
        assert [entry["event"] for entry in found["journal"].values()] == kept
        assert found["queue"]["sequence"] == 7
        assert found["queue"].get("journal_skip", 0) == 7 - len(kept)

    def test_the_journal_is_trimmed_behind_its_slowest_reader_and_what_the_cap_takes_is_counted(
        self, desk: Desk
    ) -> None:
        desk.verbs.configure(journal_keep="1000", journal_cap="3000")
        client, keys = desk.bench.client, desk.verbs.keys
        client.hset(keys["queue"], "reader:r", "100")
        for batch in range(5):
            desk.verbs.send(*(Item(f"m{batch}-{at}") for at in range(1000)), careful=False)
        queue = desk.look()["queue"]
        assert queue["journal_floor"] == 2001
        assert queue["journal_lost"] == 2001 - 100
        client.hset(keys["queue"], "reader:r", "5001")
        desk.verbs.send(*(Item(f"n-{at}") for at in range(1000)), careful=False)
        queue = desk.look()["queue"]
        assert (queue["journal_floor"], queue["journal_lost"]) == (5001, 2001 - 100)


class TestPayloads:
    """The level that keeps stored forms: fields behind the lines, named by message ids."""

    @pytest.fixture
    def keeping(self, desk: Desk) -> Desk:
        desk.verbs.configure(journal="payloads")
        desk.wake()
        return desk

    @pytest.mark.parametrize("careful", [False, True])
    def test_a_send_leaves_the_stored_form_beside_its_line(self, keeping: Desk, careful: bool) -> None:
        assert keeping.changed_by(lambda: keeping.verbs.send(A, careful=careful, few=not careful)) == {
            "queue": {"sequence": 2, "sent": 1},
            "journal": {"2": line("sent", "ready", A)},
            "payloads": {"2": {"a": message(A, 2)}},
            "messages": {"a": message(A, 2)},
            "ready": {"a": position(3, 2)},
            "marker": {"0": 0},
        }

    @pytest.mark.parametrize("careful", [False, True])
    def test_a_batch_is_one_entry_with_every_form(self, keeping: Desk, careful: bool) -> None:
        later = Item("e", b"later", due="+60000")  # the lines' own field has this name too
        changed = keeping.changed_by(lambda: keeping.verbs.send(A, later, B, careful=careful))
        forms = {"a": message(A, 2), "e": message(later, 3), "b": message(B, 4)}
        assert changed["payloads"] == {"4": forms}
        assert changed["messages"] == forms
        assert changed["journal"] == {
            "2": line("sent", "ready", A),
            "3": line("sent", "scheduled", later, due=T + 60_000),
            "4": line("sent", "ready", B),
        }

    def test_of_a_batch_only_what_is_stored_leaves_its_form(self, keeping: Desk) -> None:
        keeping.verbs.send(A)
        twin = Item("x", unique="k")
        changed = keeping.changed_by(lambda: keeping.verbs.send(A, twin, Item("y", unique="k")), ["a", "", "x"])
        assert changed["payloads"] == {"3": {"x": message(twin, 3)}}
        assert keeping.changed_by(lambda: keeping.verbs.send(A), ["a"]) == {}

    def test_an_edit_leaves_the_new_form(self, keeping: Desk) -> None:
        keeping.verbs.send(A)
        edited = Item("a", b"new", 9, kind="post")
        assert keeping.changed_by(lambda: keeping.verbs.edit(edited), "ready") == {
            "queue": {"sequence": 3, "edited": 1},
            "journal": {"3": line("edited", "ready", edited, by=OPERATOR)},
            "payloads": {"3": {"a": message(edited, 2)}},
            "messages": {"a": message(edited, 2)},
            "ready": {"a": position(9, 2)},
        }

    def test_a_move_leaves_the_form_in_the_target_alone_and_by_the_level_of_the_target(self, keeping: Desk) -> None:
        keeping.verbs.send(A, B)
        there = Verbs(keeping.bench.connection, "other")
        assert "payloads" not in keeping.changed_by(lambda: keeping.verbs.move("other", "a"), ["ready"])
        assert "payloads" not in keeping.look("other")
        there.configure(journal="payloads")
        keeping.verbs.configure(journal="full")
        assert "payloads" not in keeping.changed_by(lambda: keeping.verbs.move("other", "b"), ["ready"])
        assert keeping.look("other")["payloads"] == {"3": {"b": message(B, 3)}}

    def test_no_other_verb_leaves_a_form(self, keeping: Desk) -> None:
        keeping.verbs.send(*(Item(id) for id in "abcdef"), Item("g", due="+10"))
        before = keeping.look()["payloads"]
        held = keeping.verbs.receive(4).pairs
        keeping.verbs.extend(*held)
        keeping.verbs.receive(1, acks=held[:1])
        keeping.verbs.nack(held[1])
        keeping.verbs.bury(held[2])
        keeping.verbs.release(held[3])
        keeping.advance(10)
        keeping.verbs.receive(0)
        keeping.verbs.replay("c")
        keeping.verbs.delete("f")
        keeping.verbs.purge("ready")
        found = keeping.look()
        assert violations(found) == []
        assert found["payloads"] == before

    @pytest.mark.parametrize("level", ["full", "terminal", "off"])
    def test_at_any_other_level_nothing_lies_beside_the_lines(self, desk: Desk, level: str) -> None:
        desk.verbs.configure(journal=level)
        desk.verbs.send(A, B)
        desk.verbs.send(Item("c"), careful=False)
        desk.verbs.edit(Item("a", b"new"))
        assert "payloads" not in desk.look()

    def test_a_thousand_forms_fit_into_one_entry(self, keeping: Desk) -> None:
        items = [Item(f"m{at}", b"x" * 2000) for at in range(1000)]
        keeping.verbs.send(*items, careful=False)
        found = keeping.look()
        assert violations(found) == []
        assert found["payloads"] == {"1001": found["messages"]}
