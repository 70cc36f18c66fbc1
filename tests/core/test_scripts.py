"""configure, the operators' scripts and those that only look, by what they change.

All keys of the queue before and after, on a clock that stands still.
"""

from __future__ import annotations

from typing import Any

import pytest

from restante.core.admin import Admin
from restante.core.errors import InvalidInput
from restante.core.queue import Client
from restante.core.settings import ClientSettings
from tests.core.bench import Bench
from tests.core.contents import PACKED, dump, position, violations
from tests.core.desk import A, B, Desk, delivery, line, message
from tests.core.verbs import OPERATOR, Item, Verbs
from tests.harness.clock import START_MS as T


class TestConfigure:
    def test_the_first_call_makes_the_queue_with_its_numbers_at_zero(self, bench: Bench) -> None:
        zero = ("settings", "sequence", "sent", "received", "acked", "acked_since", "journal_skip", "version")
        made = Verbs(bench.connection).configure()
        about = made["about"]
        assert "Restante" in about
        assert made == {"about": about, **dict.fromkeys(zero, "0"), "due": "", "incarnation": str(T)}
        assert dump(bench.client, "q") == {
            "queue": {"about": about, **dict.fromkeys(zero, 0), "due": "", "incarnation": T}
        }

    def test_what_every_call_reads_comes_first_behind_a_long_value(self, bench: Bench) -> None:
        """A hash with one value over 64 bytes is a table, where a field is found without a search."""
        Verbs(bench.connection).configure()
        assert bench.client.object("encoding", "restante:{q}:queue") == b"hashtable"

    def test_settings_are_written_with_their_names_in_the_journal(self, desk: Desk) -> None:
        assert desk.changed_by(lambda: desk.verbs.configure(lease_ms="5000", max_leased="2")) == {
            "queue": {
                "lease_ms": 5000,
                "max_leased": 2,
                "version": 1,
                "configured": 1,
                "sequence": 1,
                "settings": "1\t\t\t5000\t\t\t\t2\t\t\t\t",
            },
            "journal": {"1": line("configured", "gone", None, by=OPERATOR, detail="lease_ms,max_leased")},
            "marker": {"0": 0},
        }

    def test_every_setting_has_its_place_in_the_packed_field(self, desk: Desk) -> None:
        wished = {name: str(at) for at, name in enumerate(PACKED, 1)}
        desk.verbs.configure(**wished)
        assert desk.look()["queue"]["settings"] == "\t".join(["1", *wished.values()])

    def test_an_empty_value_clears_a_setting(self, desk: Desk) -> None:
        desk.verbs.configure(lease_ms="5000")
        desk.wake()
        assert desk.changed_by(lambda: desk.verbs.configure(lease_ms="", rate="")) == {
            "queue": {"lease_ms": None, "version": 2, "configured": 2, "sequence": 2, "settings": 2},
            "journal": {"2": line("configured", "gone", None, by=OPERATOR, detail="lease_ms")},
            "marker": {"0": 0},
        }

    def test_a_queue_that_only_a_move_wrote_to_takes_settings(self, desk: Desk) -> None:
        desk.verbs.send(A)
        desk.verbs.move("other", "a")
        other = Verbs(desk.bench.connection, "other")
        assert other.receive(0).version == 0
        other.configure(max_leased="1")
        found = desk.look("other")
        assert violations(found) == []
        assert (found["queue"]["settings"], other.receive(0).version) == ("1\t\t\t\t\t\t\t1\t\t\t\t", 1)

    def test_settings_that_hold_already_change_nothing(self, desk: Desk) -> None:
        desk.verbs.configure(lease_ms="5000")
        assert desk.changed_by(lambda: desk.verbs.configure(lease_ms="5000", max_dead="")) == {}

    def test_every_pause_and_resume_is_counted(self, desk: Desk) -> None:
        with Client(desk.bench.server.url, ClientSettings()) as post:
            admin = Admin(post, operator=OPERATOR)
            for _ in range(2):
                admin.pause("q")
                admin.resume("q")
            totals = admin.counts("q").totals
        assert [entry["event"] for entry in desk.look()["journal"].values()] == ["paused", "resumed"] * 2
        assert (totals["resumed"], totals["paused"]) == (2, 2)


class TestOperators:
    """replay, delete, purge, edit, move."""

    @pytest.fixture
    def dead(self, desk: Desk) -> str:
        desk.verbs.send(A)
        desk.verbs.bury(*desk.verbs.receive().pairs)
        desk.wake()
        return "a"

    def test_replay_puts_a_dead_message_at_the_end_of_the_line(self, desk: Desk, dead: str) -> None:
        assert desk.changed_by(lambda: desk.verbs.replay(dead, "x", task="t1", record='{"n":1}'), [1, 0]) == {
            "queue": {"sequence": 4, "replayed": 1},
            "journal": {"4": line("replayed", "ready", A, by=OPERATOR, detail="t1")},
            "deliveries": {"a": delivery(A, 4, attempts=0, replays=1)},
            "dead": {"a": None},
            "ready": {"a": position(3, 4)},
            "marker": {"0": 0},
            "tasks": {"t1": '{"n":1}'},
        }

    def test_replay_of_what_is_not_dead_changes_nothing(self, desk: Desk) -> None:
        desk.verbs.send(A)
        desk.wake()
        assert desk.changed_by(lambda: desk.verbs.replay("a", "x"), [0, 0]) == {}

    def test_delete_leaves_nothing(self, desk: Desk, dead: str) -> None:
        assert desk.changed_by(lambda: desk.verbs.delete(dead, "x", dead, detail="why"), ["dead", "", ""]) == {
            "queue": {"sequence": 4, "deleted": 1},
            "journal": {"4": line("deleted", "gone", A, attempts=1, by=OPERATOR, detail="dead, why")},
            "messages": {"a": None},
            "deliveries": {"a": None},
            "history": {"a": None},
            "dead": {"a": None},
        }

    def test_a_detail_cannot_break_the_line_it_stands_in(self, desk: Desk, dead: str) -> None:
        with Client(desk.bench.server.url, ClientSettings()) as post:
            admin = Admin(post, operator=OPERATOR)
            try:
                admin.delete("q", [dead], detail="one\ttwo\n1\tsent\tready")
            except InvalidInput:
                pass  # refused is as good as escaped
            assert all(entry.message_id == dead for entry in admin.journal("q"))

    def test_delete_tells_the_state_and_spares_what_is_leased(self, desk: Desk) -> None:
        desk.verbs.configure(keep_done="5")
        desk.verbs.send(*(Item(id) for id in "abcde"), Item("f", due="+10"))
        held = desk.verbs.receive(4).pairs
        desk.verbs.ack(held[0])
        desk.verbs.nack(held[1], delay=10)
        desk.verbs.bury(held[2])
        states = ["done", "retrying", "dead", "leased", "ready", "scheduled"]
        assert desk.verbs.delete(*"abcdef") == states
        found = desk.look()
        assert violations(found) == []
        assert set(found["messages"]) == {"d"}
        told = {row["message_id"]: row["detail"] for row in found["journal"].values() if row["event"] == "deleted"}
        assert told == {id: state for id, state in zip("abcdef", states, strict=True) if state != "leased"}

    def test_purge_writes_a_line_per_message_with_the_state_it_was_in(self, desk: Desk) -> None:
        desk.verbs.send(A, B, Item("c", unique="k"))
        desk.advance(7)
        assert desk.changed_by(lambda: desk.verbs.purge("ready", 2), 2) == {
            "queue": {"sequence": 5, "purged": 2},
            "journal": {
                "4": line("purged", "gone", A, at=T + 7, by=OPERATOR, detail="ready"),
                "5": line("purged", "gone", B, at=T + 7, by=OPERATOR, detail="ready"),
            },
            "messages": {"a": None, "b": None},
            "ready": {"a": None, "b": None},
        }
        assert desk.changed_by(lambda: desk.verbs.purge("ready"), 1) == {
            "queue": {"sequence": 6, "purged": 3},
            "journal": {"6": line("purged", "gone", Item("c"), at=T + 7, by=OPERATOR, detail="ready")},
            "messages": {"c": None},
            "ready": {"c": None},
            "unique": {"k": None},
        }
        assert desk.changed_by(lambda: desk.verbs.purge("ready"), 0) == {}

    def test_purge_writes_one_entry_per_call(self, desk: Desk) -> None:
        desk.verbs.send(*(Item(f"m{at}") for at in range(1000)), careful=False)
        before = desk.bench.client.xlen(desk.verbs.keys["journal"])
        assert desk.verbs.purge("ready") == 1000
        assert desk.bench.client.xlen(desk.verbs.keys["journal"]) == before + 1
        found = desk.look()
        assert violations(found) == []
        assert found["queue"]["purged"] == 1000

    def test_purge_takes_history_and_deliveries_with_it(self, desk: Desk, dead: str) -> None:
        assert desk.changed_by(lambda: desk.verbs.purge("dead"), 1) == {
            "queue": {"sequence": 4, "purged": 1},
            "journal": {"4": line("purged", "gone", A, attempts=1, by=OPERATOR, detail="dead")},
            "messages": {"a": None},
            "deliveries": {"a": None},
            "history": {"a": None},
            "dead": {"a": None},
        }

    def test_purge_takes_what_lost_its_payload_and_names_it(self, desk: Desk) -> None:
        desk.verbs.send(A, B)
        desk.bench.client.hdel(desk.verbs.keys["messages"], "a")
        assert desk.verbs.purge("ready") == 2
        first, second = (desk.look()["journal"][number] for number in ("3", "4"))
        assert first == line("purged", "gone", Item("a", b""), by=OPERATOR, detail="ready", sent_at=0)
        assert second == line("purged", "gone", B, by=OPERATOR, detail="ready")

    def test_edit_of_a_ready_message_keeps_its_place_among_its_new_equals(self, desk: Desk) -> None:
        desk.verbs.send(B, Item("c", priority=9), A)
        edited = Item("a", b"new", 9, kind="post")
        assert desk.changed_by(lambda: desk.verbs.edit(edited), "ready") == {
            "queue": {"sequence": 4, "edited": 1},
            "journal": {"4": line("edited", "ready", edited, by=OPERATOR)},
            "messages": {"a": message(edited, 3)},
            "ready": {"a": position(9, 3)},
        }

    def test_edit_of_a_waiting_message_moves_its_time(self, desk: Desk) -> None:
        desk.verbs.send(Item("a", due="+60000"))
        edited = Item("a", b"new", 9)
        assert desk.changed_by(lambda: desk.verbs.edit(edited, str(T + 10)), "scheduled") == {
            "queue": {"sequence": 2, "edited": 1, "due": T + 10},
            "journal": {"2": line("edited", "scheduled", edited, by=OPERATOR, due=T + 10)},
            "messages": {"a": message(edited, 1)},
            "scheduled": {"a": T + 10},
            "marker": {"0": 0},
        }

    def test_edit_of_a_retrying_message_keeps_its_attempts(self, desk: Desk) -> None:
        desk.verbs.send(A)
        desk.verbs.nack(*desk.verbs.receive().pairs, delay=9000)
        edited = Item("a", b"new", 9)
        assert desk.changed_by(lambda: desk.verbs.edit(edited), "retrying") == {
            "queue": {"sequence": 4, "edited": 1},
            "journal": {"4": line("edited", "retrying", edited, attempts=1, by=OPERATOR)},
            "messages": {"a": message(edited, 1)},
            "deliveries": {"a": delivery(edited, 1)},
        }

    def test_edit_of_what_is_held_or_done_or_not_there_changes_nothing(self, desk: Desk) -> None:
        desk.verbs.configure(keep_done="1")
        desk.verbs.send(A, B)
        desk.verbs.ack(*desk.verbs.receive().pairs)
        desk.verbs.receive()
        assert desk.changed_by(lambda: desk.verbs.edit(Item("b", b"new")), "leased") == {}
        assert desk.changed_by(lambda: desk.verbs.edit(Item("x", b"new")), "") == {}
        assert desk.changed_by(lambda: desk.verbs.edit(Item("a", b"new")), "") == {}

    def test_move_takes_a_dead_message_with_its_errors_to_the_other_queue(self, desk: Desk, dead: str) -> None:
        errors = desk.look()["history"]["a"]
        assert desk.changed_by(lambda: desk.verbs.move("other", dead, "x"), ["dead", ""]) == {
            "queue": {"sequence": 4, "deleted": 1},
            "journal": {"4": line("deleted", "gone", A, by=OPERATOR, detail="dead, moved to other")},
            "messages": {"a": None},
            "deliveries": {"a": None},
            "history": {"a": None},
            "dead": {"a": None},
        }
        other = desk.look("other")
        assert violations(other) == []
        assert other == {
            "queue": {"sequence": 1, "sent": 1, "incarnation": T},
            "journal": {"1": line("sent", "ready", A, by=OPERATOR, detail="moved from q")},
            "messages": {"a": message(A, 1)},
            "history": {"a": errors},
            "ready": {"a": position(3, 1)},
            "marker": {"0": 0},
        }

    def test_move_keeps_the_time_of_a_scheduled_message_and_moves_its_key(self, desk: Desk) -> None:
        item = Item("a", due="+4000", unique="k")
        desk.verbs.send(item, B)
        assert desk.verbs.move("other", "a") == ["scheduled"]
        here, there = desk.look(), desk.look("other")
        assert violations(here) + violations(there) == []
        assert "unique" not in here
        assert there == {
            "queue": {"sequence": 1, "sent": 1, "due": T + 4000, "incarnation": T},
            "journal": {"1": line("sent", "scheduled", item, by=OPERATOR, due=T + 4000, detail="moved from q")},
            "messages": {"a": message(item, 1)},
            "scheduled": {"a": T + 4000},
            "unique": {"k": "a"},
            "marker": {"0": 0},
        }

    def test_a_queue_that_a_move_made_keeps_its_incarnation(self, desk: Desk) -> None:
        desk.verbs.send(A, B)
        desk.verbs.move("other", "a")
        desk.advance(5)
        desk.verbs.move("other", "b")
        assert Verbs(desk.bench.connection, "other").configure()["incarnation"] == str(T)

    def test_move_keeps_the_time_of_a_retrying_message_which_is_scheduled_there(self, desk: Desk) -> None:
        desk.verbs.send(A)
        desk.verbs.nack(*desk.verbs.receive().pairs, delay=9000)
        assert desk.verbs.move("other", "a") == ["retrying"]
        there = desk.look("other")
        assert violations(there) == []
        assert there["scheduled"] == {"a": T + 9000}
        assert "deliveries" not in there
        desk.advance(9000)
        assert Verbs(desk.bench.connection, "other").receive().messages[0][:2] == ("a", 1)

    def test_move_leaves_what_is_held_and_what_the_target_has(self, desk: Desk) -> None:
        desk.verbs.send(A, B)
        desk.verbs.receive()
        Verbs(desk.bench.connection, "other").send(B)
        assert desk.changed_by(lambda: desk.verbs.move("other", "a", "b"), ["leased", "exists"]) == {}
        assert desk.changed_by(lambda: desk.verbs.move("q", "b"), ["exists"]) == {}


class TestLooking:
    """list, show and counts change nothing."""

    @pytest.mark.parametrize("back", [False, True])
    def test_list_goes_through_a_state_page_by_page(self, desk: Desk, back: bool) -> None:
        ids = [f"m{number}" for number in range(7)]
        desk.verbs.send(*(Item(id, due="+10") for id in ids[:4]), *(Item(id, due="+20") for id in ids[4:]))
        seen: list[str] = []
        after: tuple[int, str] | None = None

        def act() -> None:
            nonlocal after
            while True:
                now, *flat = desk.verbs.list("scheduled", 2, after=after, back=back)
                assert now == T
                if not flat:
                    return
                seen.extend(part.decode() for part in flat[::5])
                after = int(flat[-4]), flat[-5].decode()

        assert desk.changed_by(act) == {}
        assert seen == (ids[::-1] if back else ids)

    def test_a_page_goes_on_where_it_ended_though_messages_came_and_went(self, desk: Desk) -> None:
        desk.verbs.send(*(Item(f"m{number}", due="+10") for number in (1, 3, 5, 7)))
        first = desk.verbs.list("scheduled", 2)
        assert [part.decode() for part in first[1::5]] == ["m1", "m3"]
        desk.verbs.delete("m3", "m1")
        desk.verbs.send(Item("m2", due="+10"), Item("m4", due="+10"))
        second = desk.verbs.list("scheduled", 9, after=(int(first[-4]), first[-5].decode()))
        assert [part.decode() for part in second[1::5]] == ["m4", "m5", "m7"]

    def test_list_tells_of_each_its_delivery_and_last_error_and_cuts_the_payload(self, desk: Desk) -> None:
        item = Item("a", b"p" * 500)
        desk.verbs.send(item)
        for error in ("First", "Second"):
            desk.verbs.nack(*desk.verbs.receive().pairs, delay=0, error=error)
        found = desk.look()
        _, id, score, stored, given, last = desk.verbs.list("retrying", 5, cut=60)
        assert (id, int(score), stored) == (b"a", T, (b"1\n%d\t%b" % (T, item.stored))[:-440])
        assert last.decode().split("\t") == found["history"]["a"][-1]
        assert b"a" in desk.bench.client.hkeys(desk.verbs.keys["deliveries"])
        assert given == desk.bench.client.hget(desk.verbs.keys["deliveries"], "a")

    def test_show_tells_everything_of_one_message(self, desk: Desk) -> None:
        desk.verbs.send(A)
        client, keys = desk.bench.client, desk.verbs.keys
        stored = b"1\n%d\t%b" % (T, A.stored)
        score = str(position(3, 1)).encode()
        assert desk.changed_by(lambda: desk.verbs.show("a"), [T, b"ready", score, stored, b"", b""]) == {}
        desk.verbs.nack(*desk.verbs.receive().pairs, delay=5)
        expected = [
            T,
            b"retrying",
            b"%d" % (T + 5),
            stored,
            client.hget(keys["deliveries"], "a"),
            client.hget(keys["history"], "a"),
        ]
        assert desk.changed_by(lambda: desk.verbs.show("a"), expected) == {}
        assert desk.verbs.show("x") == [T, b"", b"", b"", b"", b""]

    def test_counts_tells_how_many_each_state_holds(self, desk: Desk) -> None:
        desk.verbs.configure(keep_done="5")
        desk.verbs.send(*(Item(id, lease_ms=100 if id == "d" else None) for id in "abcdefg"), Item("h", due="+10"))
        held = desk.verbs.receive(5).pairs
        desk.verbs.ack(held[0])
        desk.verbs.nack(held[1], delay=10)
        desk.verbs.bury(held[2])
        desk.advance(100)
        found: Any = None

        def act() -> None:
            nonlocal found
            found = desk.verbs.counts()

        assert desk.changed_by(act) == {}
        now, ready, scheduled, retrying, leased, dead, done, overdue, first, flat, edges = found
        assert (now, ready, scheduled, retrying, leased, dead, done, overdue) == (T + 100, 2, 1, 1, 2, 1, 1, 1)
        assert int(first) == T
        assert dict(zip(flat[::2], flat[1::2], strict=True))["sent"] == "8"
        assert [int(edge) - T for edge in edges] == [10, 10, 100, 0, 0]

    def test_counts_of_an_empty_queue_are_zero(self, desk: Desk) -> None:
        assert desk.verbs.counts()[:9] == [T, 0, 0, 0, 0, 0, 0, 0, ""]
