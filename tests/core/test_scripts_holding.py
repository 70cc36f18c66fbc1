"""hold, clear, and the verdicts that ack, nack, bury and release remember, by what they change.

All keys of the queue before and after, on a clock that stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from restante.core.errors import InvalidInput
from tests.core.contents import violations
from tests.core.desk import LEASE, A, B, Desk, message
from tests.core.verbs import CONSUMER, OWNER, RIVAL, Item, Token
from tests.harness.clock import START_MS as T

#: The field of the queue that says who holds the lease journal, until when, the number of its last row, and the first
#: token that was asked for last.
HOLDER = f"holder:{CONSUMER}"
#: Milliseconds an ownership lasts where a test does not say.
LASTS = 60_000


def row(item: Item, sequence: int, token: str, *, attempts: int = 1, received_at: int = T) -> dict[str, Any]:
    """What the lease journal holds of a lease."""
    return {
        "id": item.id,
        "token": token,
        "attempts": attempts,
        "received_at": received_at,
        "stored": message(item, sequence),
    }


def holder(last: int, begun: str = "", *, owner: str = OWNER, until: int = T + LASTS) -> dict[str, Any]:
    return {HOLDER: f"{owner}\t{until}\t{last}\t{begun}"}


@pytest.fixture
def held(desk: Desk) -> list[Token]:
    """Two messages, leased, and nothing copied yet."""
    desk.verbs.send(A, B)
    pairs = desk.verbs.receive(2).pairs
    desk.wake()
    return pairs


class TestHold:
    def test_leases_are_copied_with_what_was_sent(self, desk: Desk, held: list[Token]) -> None:
        assert held == [("a", "3-n"), ("b", "4-n")]
        assert desk.changed_by(lambda: desk.verbs.hold(*held), (2, OWNER)) == {
            "queue": holder(2, "3-n"),
            "leases": {"1": row(A, 1, "3-n"), "2": row(B, 2, "4-n")},
        }

    def test_rows_are_numbered_on_from_call_to_call(self, desk: Desk, held: list[Token]) -> None:
        desk.verbs.hold(held[0])
        desk.advance(10)
        desk.verbs.nack(held[1])
        desk.advance(5)
        again = desk.verbs.receive().pairs
        assert desk.changed_by(lambda: desk.verbs.hold(*again), (2, OWNER)) == {
            "queue": holder(2, again[0][1], until=T + 15 + LASTS),
            "leases": {"2": row(B, 2, again[0][1], attempts=2, received_at=T + 15)},
        }

    def test_without_messages_only_the_ownership_is_renewed(self, desk: Desk) -> None:
        assert desk.changed_by(desk.verbs.hold, (0, OWNER)) == {"queue": holder(0)}
        desk.advance(10)
        assert desk.changed_by(lambda: desk.verbs.hold(lasts=7), (0, OWNER)) == {"queue": holder(0, until=T + 17)}

    @pytest.mark.parametrize("token", ["forged", "empty", "expired", "settled", "of another", "a mark"])
    def test_what_is_not_held_is_not_copied(self, desk: Desk, held: list[Token], token: str) -> None:
        pairs = {
            "forged": ("a", "99-n"),
            "empty": ("a", ""),
            "expired": held[0],
            "settled": held[0],
            "of another": ("a", held[1][1]),
            "a mark": ("a", "-"),
        }
        if token == "settled":
            desk.verbs.ack(held[0])
        if token in ("expired", "a mark"):
            desk.advance(LEASE)
        if token == "a mark":
            desk.verbs.receive(0)
        changed = desk.changed_by(lambda: desk.verbs.hold(pairs[token], ("nobody", "1-n")), (0, OWNER))
        assert changed == {"queue": holder(0, pairs[token][1], until=desk.bench.clock.now_ms + LASTS)}

    def test_between_leases_that_are_lost_the_others_are_numbered_without_a_gap(
        self, desk: Desk, held: list[Token]
    ) -> None:
        assert desk.changed_by(lambda: desk.verbs.hold(("a", "1-n"), held[1], ("x", "1-n"), held[0]), (2, OWNER)) == {
            "queue": holder(2, "1-n"),
            "leases": {"1": row(B, 2, "4-n"), "2": row(A, 1, "3-n")},
        }

    def test_another_owner_is_refused_while_the_first_lives(self, desk: Desk, held: list[Token]) -> None:
        desk.verbs.hold(held[0])
        desk.advance(LASTS - 1)
        assert desk.changed_by(lambda: desk.verbs.hold(held[1], owner=RIVAL), (1, "")) == {}

    def test_another_owner_goes_on_with_the_numbers_once_the_time_is_over(self, desk: Desk, held: list[Token]) -> None:
        desk.verbs.extend(*held, lease_ms=LASTS * 2)
        desk.verbs.hold(held[0])
        desk.advance(LASTS)
        now = T + LASTS
        assert desk.changed_by(lambda: desk.verbs.hold(held[1], owner=RIVAL), (2, RIVAL)) == {
            "queue": holder(2, "4-n", owner=RIVAL, until=now + LASTS),
            "leases": {"2": row(B, 2, "4-n")},
        }
        assert desk.changed_by(lambda: desk.verbs.hold(held[1]), (2, "")) == {}

    def test_an_owner_that_renews_keeps_the_others_out(self, desk: Desk) -> None:
        desk.verbs.hold(lasts=1000)
        for _ in range(5):
            desk.advance(999)
            assert desk.verbs.hold(lasts=1000) == (0, OWNER)
            assert desk.verbs.hold(owner=RIVAL) == (0, "")

    def test_a_repeated_call_makes_no_rows_again(self, desk: Desk, held: list[Token]) -> None:
        """The first answer may have been lost."""
        desk.verbs.hold(*held)
        desk.advance(5)
        assert desk.changed_by(lambda: desk.verbs.hold(*held), (2, OWNER)) == {
            "queue": holder(2, "3-n", until=T + 5 + LASTS),
        }

    def test_a_call_is_known_as_a_repeated_one_though_its_first_lease_ended(
        self, desk: Desk, held: list[Token]
    ) -> None:
        desk.verbs.hold(*held)
        desk.verbs.ack(held[0])
        assert desk.changed_by(lambda: desk.verbs.hold(*held), (2, OWNER)) == {}

    def test_a_renewal_between_does_not_hide_that_a_call_is_repeated(self, desk: Desk, held: list[Token]) -> None:
        desk.verbs.hold(*held)
        assert desk.changed_by(lambda: [desk.verbs.hold(), desk.verbs.hold(*held)], [(2, OWNER)] * 2) == {}

    def test_the_next_lease_of_a_message_is_another_row(self, desk: Desk, held: list[Token]) -> None:
        desk.verbs.hold(held[0])
        desk.verbs.release(held[0])
        again = desk.verbs.receive().pairs
        assert again[0][0] == "a"
        assert desk.verbs.hold(*again, held[1]) == (3, OWNER)
        assert [row["token"] for row in desk.look()["leases"].values()] == [held[0][1], again[0][1], held[1][1]]

    @pytest.mark.parametrize("token", ["x\ty", "x\ny", "\t", "1\t2\t3"])
    def test_a_forged_token_of_any_form_leaves_owner_and_numbers_as_they_are(
        self, desk: Desk, held: list[Token], token: str
    ) -> None:
        assert desk.verbs.hold(("a", token), held[0]) == (1, OWNER)
        assert desk.verbs.hold(held[1], owner=RIVAL) == (1, "")
        assert desk.verbs.hold(held[1]) == (2, OWNER)

    def test_without_an_owner_it_is_refused(self, desk: Desk, held: list[Token]) -> None:
        def act() -> None:
            with pytest.raises(InvalidInput, match="owner"):
                desk.verbs.hold(*held, owner="")

        assert desk.changed_by(act) == {}

    @pytest.mark.parametrize("lasts", ["0", "-1", "1.5", "x", "", "nan", "inf", "1e300"])
    def test_an_ownership_that_lasts_no_time_is_refused(self, desk: Desk, held: list[Token], lasts: str) -> None:
        def act() -> None:
            with pytest.raises(InvalidInput):
                desk.verbs.hold(*held, lasts=lasts)

        assert desk.changed_by(act) == {}

    def test_a_row_stays_when_its_message_is_gone(self, desk: Desk, held: list[Token]) -> None:
        desk.verbs.hold(*held)
        desk.verbs.ack(held[0])
        desk.verbs.bury(held[1])
        desk.verbs.purge("dead")
        found = desk.look()
        assert "messages" not in found
        assert found["leases"] == {"1": row(A, 1, "3-n"), "2": row(B, 2, "4-n")}


class TestVerdicts:
    """What the four verbs remember where the caller names the key."""

    @pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
    def test_a_verdict_is_remembered_by_its_token(self, desk: Desk, held: list[Token], verb: str) -> None:
        act: Callable[..., Any] = getattr(desk.verbs, verb)
        changed = desk.changed_by(lambda: act(*held, kept=True))
        assert changed["verdicts"] == {"3-n": verb, "4-n": verb}
        assert {"queue", "journal", "deliveries", "leased"} <= changed.keys()

    @pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
    def test_nobody_remembers_where_no_key_is_named(self, desk: Desk, held: list[Token], verb: str) -> None:
        act: Callable[..., Any] = getattr(desk.verbs, verb)
        assert "verdicts" not in desk.changed_by(lambda: act(*held))

    @pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
    def test_a_lost_lease_is_not_remembered_wherever_it_stands(self, desk: Desk, verb: str) -> None:
        desk.verbs.send(*(Item(id) for id in "abcd"))
        pairs = desk.verbs.receive(4).pairs
        wrong = ("d", "99-n")
        act: Callable[..., Any] = getattr(desk.verbs, verb)
        changed = desk.changed_by(
            lambda: act(wrong, pairs[0], wrong, ("x", "1-n"), pairs[1], pairs[2], wrong, kept=True)
        )
        assert changed["verdicts"] == {token: verb for _, token in pairs[:3]}

    @pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
    def test_a_lease_that_ran_out_is_not_remembered(self, desk: Desk, held: list[Token], verb: str) -> None:
        desk.advance(LEASE)
        act: Callable[..., Any] = getattr(desk.verbs, verb)
        assert desk.changed_by(lambda: act(*held, kept=True)) == {}

    def test_an_ack_repeated_is_remembered_still(self, desk: Desk, held: list[Token]) -> None:
        """The first answer may have been lost."""
        desk.verbs.ack(held[0])
        assert desk.changed_by(lambda: desk.verbs.ack(held[0], kept=True), []) == {"verdicts": {"3-n": "ack"}}
        assert desk.changed_by(lambda: desk.verbs.ack(held[0], kept=True), []) == {}

    @pytest.mark.parametrize("verb", ["nack", "bury", "release"])
    def test_a_verdict_repeated_is_lost_and_its_memory_stays(self, desk: Desk, held: list[Token], verb: str) -> None:
        act: Callable[..., Any] = getattr(desk.verbs, verb)
        act(held[0], kept=True)
        assert desk.changed_by(lambda: act(held[0], kept=True)) == {}
        assert desk.look()["verdicts"] == {"3-n": verb}

    def test_the_next_lease_of_a_message_has_a_verdict_of_its_own(self, desk: Desk) -> None:
        desk.verbs.send(A)
        first = desk.verbs.receive().pairs[0]
        desk.verbs.nack(first, kept=True)
        second = desk.verbs.receive().pairs[0]
        desk.verbs.ack(second, kept=True)
        assert desk.look()["verdicts"] == {first[1]: "nack", second[1]: "ack"}

    def test_a_thousand_verdicts_are_remembered_at_once(self, desk: Desk) -> None:
        desk.verbs.send(*(Item(f"m{at}") for at in range(1000)), careful=False)
        pairs = desk.verbs.receive(1000).pairs
        assert desk.verbs.ack(*pairs, kept=True) == []
        assert desk.look()["verdicts"] == {token: "ack" for _, token in pairs}


class TestClear:
    @pytest.fixture
    def copied(self, desk: Desk) -> list[Token]:
        """Rows 1 to 5 in entries of two, two and one, all with verdicts."""
        desk.verbs.send(*(Item(id) for id in "abcde"))
        pairs = desk.verbs.receive(5).pairs
        for first, last in ((0, 2), (2, 4), (4, 5)):
            desk.verbs.hold(*pairs[first:last])
        desk.verbs.ack(*pairs, kept=True)
        desk.wake()
        return pairs

    def test_rows_and_their_verdicts_are_forgotten_up_to_a_number(self, desk: Desk, copied: list[Token]) -> None:
        assert desk.changed_by(lambda: desk.verbs.clear(4), 2) == {
            "leases": dict.fromkeys("1234"),
            "verdicts": {token: None for _, token in copied[:4]},
        }
        assert desk.changed_by(lambda: desk.verbs.clear(4), 0) == {}

    @pytest.mark.parametrize("upto", [0, 1])
    def test_an_entry_that_reaches_beyond_stays_whole(self, desk: Desk, copied: list[Token], upto: int) -> None:
        assert desk.changed_by(lambda: desk.verbs.clear(upto), 0) == {}
        assert desk.changed_by(lambda: desk.verbs.clear(upto + 2), 1)["leases"] == dict.fromkeys("12")

    def test_a_call_forgets_no_more_entries_than_it_may(self, desk: Desk, copied: list[Token]) -> None:
        seen = []
        while count := desk.verbs.clear(5, entries=1):
            seen.append((count, sorted(desk.look().get("leases", {}))))
        assert seen == [(1, ["3", "4", "5"]), (1, ["5"]), (1, [])]
        assert "verdicts" not in desk.look()

    def test_verdicts_on_leases_that_were_not_copied_stay(self, desk: Desk, copied: list[Token]) -> None:
        desk.verbs.send(Item("f"))
        other = desk.verbs.receive().pairs[0]
        desk.verbs.release(other, kept=True)
        desk.verbs.clear(99)
        assert desk.look()["verdicts"] == {other[1]: "release"}

    def test_numbers_go_on_after_everything_was_forgotten(self, desk: Desk, copied: list[Token]) -> None:
        desk.verbs.clear(99)
        desk.verbs.send(Item("f"))
        pairs = desk.verbs.receive().pairs
        assert desk.verbs.hold(*pairs) == (6, OWNER)
        found = desk.look()
        assert violations(found) == []
        assert set(found["leases"]) == {"6"}

    def test_where_there_is_nothing_nothing_is_forgotten(self, desk: Desk) -> None:
        assert desk.changed_by(lambda: desk.verbs.clear(10), 0) == {}

    @pytest.mark.parametrize("upto", ["-1", "1.5", "x", "", "nan", "inf", "1e300"])
    def test_a_number_that_is_none_is_refused(self, desk: Desk, copied: list[Token], upto: str) -> None:
        def act() -> None:
            with pytest.raises(InvalidInput):
                desk.verbs.clear(upto)

        assert desk.changed_by(act) == {}
