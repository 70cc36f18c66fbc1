"""revoke, cancel, progress, ack_result and status, by what they change.

All keys of the queue before and after, on a clock that stands still.
"""

from __future__ import annotations

import pytest

from tests.core.desk import LEASE, A, B, Desk, delivery, line
from tests.core.verbs import CONSUMER, OPERATOR, Item
from tests.harness.clock import START_MS as T

TOLD = '"an operator took the message back"'


@pytest.fixture
def held(desk: Desk) -> tuple[str, str]:
    desk.verbs.send(A)
    desk.wake()
    return desk.verbs.receive().pairs[0]


class TestRevoke:
    def test_it_puts_a_leased_message_back_to_its_place_and_wakes_a_consumer(
        self, desk: Desk, held: tuple[str, str]
    ) -> None:
        ready = desk.bench.client.zscore(desk.verbs.keys["ready"], "a")
        assert ready is None
        assert desk.changed_by(lambda: desk.verbs.revoke("a", "b", detail="hangs"), [1, 0]) == {
            "queue": {"sequence": 3, "revoked": 1},
            "journal": {
                "3": line("revoked", "ready", A, attempts=1, by=OPERATOR, error="Revoked", detail=f"{CONSUMER}, hangs")
            },
            "deliveries": {"a": delivery(A, 1)},
            "history": {"a": [["1", str(T), str(T), "revoked", CONSUMER, "Revoked", TOLD]]},
            "leased": {"a": None},
            "ready": {"a": (255 - A.priority) * 2**44 + 1},
            "marker": {"0": 0},
        }

    def test_a_second_one_changes_nothing(self, desk: Desk, held: tuple[str, str]) -> None:
        desk.verbs.revoke("a")
        assert desk.changed_by(lambda: desk.verbs.revoke("a"), [0]) == {}


class TestCancel:
    def test_it_removes_a_leased_message_and_keeps_its_token(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.cancel("a", "nobody", detail="twice"), ["leased", ""]) == {
            "queue": {"sequence": 3, "cancelled": 1},
            "journal": {"3": line("cancelled", "gone", A, attempts=1, by=OPERATOR, detail="leased, twice")},
            "messages": {"a": None},
            "deliveries": {"a": None},
            "leased": {"a": None},
            "cancelled": {"2-n": T + LEASE},
        }
        assert desk.changed_by(lambda: desk.verbs.extend(held), ([1], [1], [""])) == {}
        assert desk.changed_by(lambda: desk.verbs.progress(held), -1) == {}
        assert desk.changed_by(lambda: desk.verbs.ack(held), [1]) == {}

    def test_it_removes_a_waiting_message_with_its_unique_key(self, desk: Desk) -> None:
        later = Item("b", unique="k", due="+9000")
        desk.verbs.send(later)
        assert desk.changed_by(lambda: desk.verbs.cancel("b"), ["scheduled"]) == {
            "queue": {"sequence": 2, "cancelled": 1},
            "journal": {"2": line("cancelled", "gone", later, by=OPERATOR, detail="scheduled")},
            "messages": {"b": None},
            "scheduled": {"b": None},
            "unique": {"k": None},
        }

    def test_what_has_ended_stays(self, desk: Desk) -> None:
        desk.verbs.configure(keep_done="5")
        desk.verbs.send(A, B)
        first, second = desk.verbs.receive(2).pairs
        desk.verbs.ack(first)
        desk.verbs.bury(second)
        assert desk.changed_by(lambda: desk.verbs.cancel(first[0], second[0]), ["done", "dead"]) == {}


class TestProgress:
    def test_it_stands_with_the_delivery_until_its_lease_ends(self, desk: Desk, held: tuple[str, str]) -> None:
        noted = delivery(A, 1, "2-n", T + LEASE) | {"progress": f'{T}\t[0.5,"half"]'}
        assert desk.changed_by(lambda: desk.verbs.progress(held), 1) == {"deliveries": {"a": noted}}
        desk.advance(1000)
        extended = noted | {"lease_expires_at": T + 1000 + LEASE}
        assert desk.changed_by(lambda: desk.verbs.extend(held))["deliveries"] == {"a": extended}
        assert desk.changed_by(lambda: desk.verbs.release(held))["deliveries"] == {"a": delivery(A, 1, attempts=0)}

    @pytest.mark.parametrize("token", ["99-n", "", "-"])
    def test_another_token_notes_nothing(self, desk: Desk, held: tuple[str, str], token: str) -> None:
        assert desk.changed_by(lambda: desk.verbs.progress((held[0], token)), 0) == {}


class TestResults:
    def test_a_result_is_the_last_line_of_the_history(self, desk: Desk, held: tuple[str, str]) -> None:
        desk.verbs.configure(keep_done="1")
        assert desk.changed_by(lambda: desk.verbs.ack_result(held, '{"n":1}'), []) == {
            "queue": {"sequence": 4, "acked": 1, "acked_since": T},
            "journal": {"4": line("acked", "done", A, attempts=1, by=CONSUMER)},
            "deliveries": {"a": delivery(A, 1)},
            "history": {"a": [["1", str(T), str(T), "acked", CONSUMER, "", '{"n":1}']]},
            "leased": {"a": None},
            "done": {"a": T},
            "acked": {"a": "2-n"},
        }
        assert desk.changed_by(lambda: desk.verbs.ack_result(held, "2"), []) == {}

    def test_without_keep_done_it_is_an_ack(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.changed_by(lambda: desk.verbs.ack_result(held), []) == {
            "queue": {"sequence": 3, "acked": 1, "acked_since": T},
            "journal": {"3": line("acked", "gone", A, attempts=1, by=CONSUMER)},
            "messages": {"a": None},
            "deliveries": {"a": None},
            "leased": {"a": None},
            "acked": {"a": "2-n"},
        }


class TestStatus:
    def test_it_tells_where_a_message_is_and_changes_nothing(self, desk: Desk, held: tuple[str, str]) -> None:
        desk.verbs.nack(held, delay=9000)
        found = desk.verbs.status("a")
        assert desk.changed_by(lambda: desk.verbs.status("a")) == {}
        assert (found[0], found[3]) == (b"retrying", 0)
        assert found[2].split(b"\t")[3:6] == [b"nacked", CONSUMER.encode(), b"E"]

    def test_it_knows_an_acked_message_for_the_window(self, desk: Desk, held: tuple[str, str]) -> None:
        assert desk.verbs.status("nobody") == [b"", b"", b"", 0]
        desk.verbs.ack(held)
        assert desk.verbs.status("a") == [b"", b"", b"", 1]
