"""send and receive by what they change.

All keys of the queue before and after, on a clock that stands still.
"""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from restante.core.errors import InvalidInput, PayloadTooLarge, QueueFull, RestanteError
from restante.core.message import STATE_LETTERS, State
from restante.core.operations import FEW_KEYS, repeated_send
from restante.core.queue import Client
from restante.core.scripts import Argument, ScriptCall
from restante.core.settings import ClientSettings
from tests.core.contents import changes, position, violations
from tests.core.desk import LEASE, A, B, Desk, delivery, line, message
from tests.core.verbs import CONSUMER, SILENT, Item
from tests.harness.clock import START_MS as T
from tests.harness.servers import call


class TestSend:
    def test_a_message_without_delay_is_ready(self, desk: Desk) -> None:
        assert desk.changed_by(lambda: desk.verbs.send(A, careful=False)) == {
            "queue": {"sequence": 1, "sent": 1},
            "journal": {"1": line("sent", "ready", A)},
            "messages": {"a": message(A, 1)},
            "ready": {"a": position(3, 1)},
            "marker": {"0": 0},
        }

    def test_a_message_with_delay_is_scheduled(self, desk: Desk) -> None:
        item = Item("a", due="+60000", priority=3)
        assert desk.changed_by(lambda: desk.verbs.send(item)) == {
            "queue": {"sequence": 1, "sent": 1, "due": T + 60_000},
            "journal": {"1": line("sent", "scheduled", item, due=T + 60_000)},
            "messages": {"a": message(item, 1)},
            "scheduled": {"a": T + 60_000},
        }

    def test_the_few_keys_suffice_for_new_ids_and_no_limits(self, desk: Desk) -> None:
        items = A, Item("b", due="+60000")
        assert desk.changed_by(lambda: desk.verbs.send(*items, careful=False, few=True), ["", ""]) == {
            "queue": {"sequence": 2, "sent": 2, "due": T + 60_000},
            "journal": {"1": line("sent", "ready", A), "2": line("sent", "scheduled", items[1], due=T + 60_000)},
            "messages": {"a": message(A, 1), "b": message(items[1], 2)},
            "ready": {"a": position(3, 1)},
            "scheduled": {"b": T + 60_000},
            "marker": {"0": 0},
        }

    @pytest.mark.parametrize("why", ["careful", "max_length", "max_dead"])
    def test_with_the_few_keys_what_needs_all_is_refused_and_done_once_they_are_named(
        self, desk: Desk, why: str
    ) -> None:
        if why != "careful":
            desk.verbs.configure(**{why: "9"})
        keys, script = desk.verbs.keys, desk.verbs.scripts["send"]
        args: list[Argument] = ["1" if why == "careful" else "0", "a", "", 3, A.stored]
        few = keys.group(FEW_KEYS)

        def act() -> None:
            with pytest.raises(ResponseError, match="KEYS every key is needed"):
                call(desk.bench.client, "EVAL", script.text, len(few), *few, *args)

        assert desk.changed_by(act) == {}
        name = desk.verbs.name
        desk.bench.connection.run(ScriptCall(script, few, args, lambda reply: reply, name, repeat=repeated_send))
        assert set(desk.look()["messages"]) == {"a"}

    @pytest.mark.parametrize(
        ("us", "due", "expected"),
        [
            (0, "+1000", 1000),
            (1, "+1000", 1001),
            (999, "+1000", 1001),
            (999, f"{T + 1000}", 1000),
        ],
    )
    def test_a_delay_is_not_shorter_by_a_fraction_of_a_millisecond(
        self, desk: Desk, us: int, due: str, expected: int
    ) -> None:
        desk.bench.clock.advance(us / 1_000_000)
        desk.verbs.send(Item("a", due=due))
        assert desk.look()["scheduled"] == {"a": T + expected}

    def test_a_delay_that_ends_soon_wakes_a_consumer(self, desk: Desk) -> None:
        found = desk.changed_by(lambda: desk.verbs.send(Item("a", due="+5000")))
        assert found["marker"] == {"0": 0}
        desk.wake()
        assert "marker" not in desk.changed_by(lambda: desk.verbs.send(Item("b", due="+5000")))
        assert "marker" in desk.changed_by(lambda: desk.verbs.send(Item("c", due="+4999")))

    @pytest.mark.parametrize("due", [str(T), str(T - 1), "1"])
    def test_a_time_that_has_passed_is_now(self, desk: Desk, due: str) -> None:
        item = Item("a", due=due)
        assert desk.changed_by(lambda: desk.verbs.send(item))["ready"] == {"a": position(0, 1)}

    def test_a_batch_is_one_entry_of_the_journal_with_a_line_each(self, desk: Desk) -> None:
        items = Item("a"), Item("b", priority=255), Item("c", due="+9999")
        assert desk.changed_by(lambda: desk.verbs.send(*items)) == {
            "queue": {"sequence": 3, "sent": 3, "due": T + 9999},
            "journal": {
                "1": line("sent", "ready", items[0]),
                "2": line("sent", "ready", items[1]),
                "3": line("sent", "scheduled", items[2], due=T + 9999),
            },
            "messages": {item.id: message(item, at) for at, item in enumerate(items, 1)},
            "ready": {"a": position(0, 1), "b": position(255, 2)},
            "scheduled": {"c": T + 9999},
            "marker": {"0": 0},
        }
        assert desk.bench.client.xlen(desk.verbs.keys["journal"]) == 1

    def test_an_id_seen_before_changes_nothing_and_the_rest_is_stored(self, desk: Desk) -> None:
        desk.verbs.send(B)
        assert desk.changed_by(lambda: desk.verbs.send(Item("b", b"other")), ["b"]) == {}
        assert desk.changed_by(lambda: desk.verbs.send(Item("b"), A, A), ["b", "", "a"]) == {
            "queue": {"sequence": 2, "sent": 2},
            "journal": {"2": line("sent", "ready", A)},
            "messages": {"a": message(A, 2)},
            "ready": {"a": position(3, 2)},
        }

    def test_an_id_that_was_acked_changes_nothing_within_the_window(self, desk: Desk) -> None:
        desk.verbs.send(B)
        desk.verbs.ack(*desk.verbs.receive().pairs)
        desk.advance(59_999)
        assert desk.changed_by(lambda: desk.verbs.send(B), ["b"]) == {}

    def test_a_unique_key_is_held_and_names_its_holder(self, desk: Desk) -> None:
        first, second = Item("a", unique="k"), Item("b", unique="k")
        assert desk.changed_by(lambda: desk.verbs.send(first, second), ["", "a"]) == {
            "queue": {"sequence": 1, "sent": 1},
            "journal": {"1": line("sent", "ready", first)},
            "messages": {"a": message(first, 1)},
            "ready": {"a": position(0, 1)},
            "unique": {"k": "a"},
            "marker": {"0": 0},
        }
        assert desk.changed_by(lambda: desk.verbs.send(second), ["a"]) == {}

    def test_a_unique_key_that_is_free_in_the_first_state_is_not_held(self, desk: Desk) -> None:
        found = desk.changed_by(lambda: desk.verbs.send(Item("a", unique="k", letters="s")))
        assert "unique" not in found
        assert desk.verbs.send(Item("b", unique="k", letters="s", due="+1")) == [""]
        assert desk.look()["unique"] == {"k": "b"}

    def test_a_unique_key_holds_within_a_batch_also_for_a_time_that_has_passed(self, desk: Desk) -> None:
        ready = STATE_LETTERS[State.READY]
        first = Item("a", unique="k", letters=ready, due=str(T - 1))
        assert desk.verbs.send(first, Item("b", unique="k", letters=ready)) == ["", "a"]

    @pytest.mark.parametrize(
        ("field", "value", "error"),
        [
            ("max_length", "2", QueueFull),
            ("max_dead", "1", QueueFull),
            ("max_payload_bytes", "3", PayloadTooLarge),
        ],
    )
    def test_a_send_beyond_a_limit_is_refused_and_changes_nothing(
        self, desk: Desk, field: str, value: str, error: type[Exception]
    ) -> None:
        desk.verbs.send(Item("x"), Item("y"))
        desk.verbs.bury(*desk.verbs.receive().pairs)
        desk.verbs.configure(**{field: value})

        def act() -> None:
            with pytest.raises(error):
                desk.verbs.send(Item("a", b"four"), Item("b"))

        assert desk.changed_by(act) == {}

    def test_a_repeated_id_takes_no_room_in_a_full_queue(self, desk: Desk) -> None:
        desk.verbs.configure(max_length="2")
        desk.verbs.send(A)
        assert desk.verbs.send(A, B) == ["a", ""]
        assert desk.verbs.send(A, B) == ["a", "b"]

    @pytest.mark.parametrize(
        "args",
        [
            ("a", "", "256"),
            ("a", "", "-1"),
            ("a", "", "1.5"),
            ("a", "", "nan"),
            ("a", "", ""),
            ("a", "-1", "0"),
            ("a", "1e300", "0"),
            ("a", "x", "0"),
            ("a", "nan", "0"),
            ("a", "1.5", "0"),
        ],
    )
    def test_a_bad_number_is_refused_by_the_script_too(self, desk: Desk, args: tuple[str, str, str]) -> None:
        def act() -> None:
            with pytest.raises(InvalidInput):
                desk.verbs.call("send", "1", "good", "", "0", B.stored, *args, B.stored)

        assert desk.changed_by(act) == {}


class TestReceive:
    def test_the_first_in_line_is_leased(self, desk: Desk) -> None:
        desk.verbs.send(B, A)
        desk.wake()
        got = None

        def act() -> None:
            nonlocal got
            got = desk.verbs.receive()

        assert desk.changed_by(act) == {
            "queue": {"sequence": 3, "received": 1, "due": T + LEASE},
            "journal": {"3": line("received", "leased", A, attempts=1, by=CONSUMER, due=T + LEASE)},
            "deliveries": {"a": delivery(A, 2, "3-n", T + LEASE)},
            "leased": {"a": T + LEASE},
            "ready": {"a": None},
            "marker": {"0": 0},
        }
        assert got is not None
        assert (got.now, got.due, got.version, got.promoted, got.expired, got.base, got.lost) == (
            T,
            T + LEASE,
            0,
            0,
            0,
            2,
            [],
        )
        assert got.messages == [("a", 1, T + LEASE, b"2\n%d\t%b" % (T, A.stored))]
        assert got.told == ["1"]

    def test_from_the_second_delivery_on_it_tells_of_the_ones_before(self, desk: Desk) -> None:
        desk.verbs.send(A)
        told = []
        for verb in ("nack", "release", "expire", "bury", "expire", "ack"):
            got = desk.verbs.receive()
            told += got.told
            if verb == "expire":
                desk.advance(LEASE)
            else:
                getattr(desk.verbs, verb)(*got.pairs)
            if verb == "bury":
                desk.verbs.replay("a")
        assert told == ["1", "2 0 ", "2 0 ", "3 0 expired", "1 1 ", "2 1 expired"]

    def test_an_empty_queue_gives_nothing_and_changes_nothing(self, desk: Desk) -> None:
        assert desk.changed_by(lambda: desk.verbs.receive(5).messages, []) == {}

    def test_a_look_at_an_empty_queue_still_shows_the_consumer_and_judges_acks(self, desk: Desk) -> None:
        assert desk.changed_by(lambda: desk.verbs.receive(1, card="{}").now, T) == {
            "consumers": {CONSUMER: f"{T}\t{{}}"}
        }
        assert desk.verbs.receive(1, acks=[("a", "1-n")]).lost == [1]

    def test_the_last_message_sets_no_marker(self, desk: Desk) -> None:
        desk.verbs.send(B)
        desk.wake()
        assert "marker" not in desk.changed_by(lambda: desk.verbs.receive(1))

    @pytest.mark.parametrize(
        ("own", "asked", "queue", "expected"),
        [
            (None, None, "", LEASE),
            (None, None, "7", 7),
            (5, None, "7", 5),
            (5, 9, "7", 9),
        ],
    )
    def test_the_lease_is_the_caller_s_or_the_message_s_or_the_queue_s(
        self, desk: Desk, own: int | None, asked: int | None, queue: str, expected: int
    ) -> None:
        desk.verbs.configure(lease_ms=queue)
        desk.verbs.send(Item("a", lease_ms=own))
        desk.verbs.receive(lease_ms=asked)
        assert desk.look()["leased"] == {"a": T + expected}

    def test_it_promotes_what_is_due_and_not_what_is_due_a_millisecond_later(self, desk: Desk) -> None:
        early, late = Item("a", due="+1000"), Item("b", due="+1001")
        desk.verbs.send(late, early)
        desk.advance(1000)
        assert desk.changed_by(lambda: desk.verbs.receive(0).promoted, 1) == {
            "queue": {"sequence": 3, "promoted": 1, "due": T + 1001},
            "journal": {"3": line("promoted", "ready", early, at=T + 1000)},
            "deliveries": {"a": delivery(early, 3, attempts=0, received_at="", by="")},
            "ready": {"a": position(0, 3)},
            "scheduled": {"a": None},
        }

    def test_it_reclaims_an_ended_lease_at_its_old_place(self, desk: Desk) -> None:
        desk.verbs.send(A)
        desk.verbs.receive()
        desk.advance(LEASE)
        assert desk.changed_by(lambda: desk.verbs.receive(0).expired, 1) == {
            "queue": {"sequence": 3, "expired": 1, "due": ""},
            "journal": {"3": line("expired", "ready", A, at=T + LEASE, attempts=1, by=CONSUMER, error="LeaseExpired")},
            "deliveries": {"a": delivery(A, 1, SILENT)},
            "history": {
                "a": [["1", str(T), str(T + LEASE), "expired", CONSUMER, "LeaseExpired", '"the lease ran out"']]
            },
            "ready": {"a": position(3, 1)},
            "leased": {"a": None},
        }

    def test_it_buries_what_was_lost_on_its_last_attempt(self, desk: Desk) -> None:
        last = Item("a", max_attempts=1)
        desk.verbs.send(last)
        desk.verbs.receive()
        desk.advance(LEASE)
        reason = '"the lease ran out on the last attempt"'
        assert desk.changed_by(lambda: desk.verbs.receive(1).expired, 1) == {
            "queue": {"sequence": 3, "expired": 1, "due": ""},
            "journal": {
                "3": line("expired", "dead", last, at=T + LEASE, attempts=1, by=CONSUMER, error="LeaseExpired")
            },
            "deliveries": {"a": delivery(last, 1)},
            "history": {"a": [["1", str(T), str(T + LEASE), "expired", CONSUMER, "LeaseExpired", reason]]},
            "dead": {"a": T + LEASE},
            "leased": {"a": None},
        }

    def test_acks_ride_along_and_the_lost_ones_are_named(self, desk: Desk) -> None:
        desk.verbs.send(A, B)
        held = desk.verbs.receive().pairs
        got: list[int] = []
        assert desk.changed_by(
            lambda: got.extend(desk.verbs.receive(1, acks=[("b", "2-n"), *held], card='{"pid":1}').lost)
        ) == {
            "queue": {"sequence": 5, "acked": 1, "received": 2, "acked_since": T},
            "journal": {
                "4": line("acked", "gone", A, attempts=1, by=CONSUMER),
                "5": line("received", "leased", B, attempts=1, by=CONSUMER, due=T + LEASE),
            },
            "messages": {"a": None},
            "deliveries": {"a": None, "b": delivery(B, 2, "5-n", T + LEASE)},
            "ready": {"b": None},
            "leased": {"a": None, "b": T + LEASE},
            "acked": {"a": "3-n"},
            "consumers": {CONSUMER: f'{T}\t{{"pid":1}}'},
        }
        assert got == [1]

    def test_more_acks_than_a_call_takes_are_refused_or_settled_but_not_half(self, desk: Desk) -> None:
        with Client(desk.bench.server.url, ClientSettings()) as post:
            queue = post.queue("q")
            for _ in range(5):
                queue.send_many([0] * 1000)
            held = [message for _ in range(5) for message in queue.receive_many(1000)]
            try:
                queue.receive_many(1, acks=held)
            except InvalidInput:
                pass  # said before anything was done
            except RestanteError as error:
                pytest.fail(f"refused by the server in the middle: {error}")
        assert violations(desk.look()) == []

    def test_it_settles_promotes_reclaims_and_leases_in_one_call(self, desk: Desk) -> None:
        w, x, y, z = Item("w", lease_ms=1000), Item("x"), Item("y", due="+500"), Item("z", priority=9)
        desk.verbs.send(w, x, y)
        held = desk.verbs.receive(2).pairs
        desk.verbs.nack(held[1], delay=900)
        desk.verbs.send(z)
        hold = desk.verbs.receive().pairs
        desk.advance(1000)
        now = T + 1000
        before = desk.look()["queue"]["sequence"]
        assert before == 8
        assert desk.changed_by(lambda: [pair[0] for pair in desk.verbs.receive(3, acks=hold).pairs], [*"wxy"]) == {
            "queue": {
                "sequence": 15,
                "promoted": 2,
                "expired": 1,
                "acked": 1,
                "received": 6,
                "due": now + 1000,
                "acked_since": now,
            },
            "journal": {
                "9": line("promoted", "ready", y, at=now),
                "10": line("promoted", "ready", x, at=now, attempts=1),
                "11": line("expired", "ready", w, at=now, attempts=1, by=CONSUMER, error="LeaseExpired"),
                "12": line("acked", "gone", z, at=now, attempts=1, by=CONSUMER),
                "13": line("received", "leased", w, at=now, attempts=2, by=CONSUMER, due=now + 1000),
                "14": line("received", "leased", x, at=now, attempts=2, by=CONSUMER, due=now + LEASE),
                "15": line("received", "leased", y, at=now, attempts=1, by=CONSUMER, due=now + LEASE),
            },
            "messages": {"z": None},
            "deliveries": {
                "w": delivery(w, 1, "13-n", now + 1000, attempts=2, received_at=now),
                "x": delivery(x, 2, "14-n", now + LEASE, attempts=2, received_at=now),
                "y": delivery(y, 9, "15-n", now + LEASE, received_at=now),
                "z": None,
            },
            "history": {"w": [["1", str(T), str(now), "expired", CONSUMER, "LeaseExpired", '"the lease ran out"']]},
            "scheduled": {"y": None},
            "retrying": {"x": None},
            "leased": {"w": now + 1000, "x": now + LEASE, "y": now + LEASE, "z": None},
            "acked": {"z": "8-n"},
        }

    def test_a_lease_taken_together_with_a_promotion_is_reclaimed_when_it_ends(self, desk: Desk) -> None:
        desk.verbs.send(Item("a", due="+1"))
        desk.advance(1)
        assert desk.verbs.receive(1).pairs
        assert desk.look()["queue"]["due"] == T + 1 + LEASE
        desk.advance(LEASE)
        assert desk.verbs.receive(1).messages[0][:2] == ("a", 2)

    def test_a_paused_queue_gives_nothing_and_keeps_its_times(self, desk: Desk) -> None:
        desk.verbs.send(A, Item("b", due="+1"))
        desk.verbs.configure("paused", pause="1")
        desk.advance(1)
        found = desk.changed_by(lambda: desk.verbs.receive(5).messages, [])
        assert set(found) == {"queue", "journal", "deliveries", "ready", "scheduled"}
        desk.verbs.configure("resumed", pause="")
        assert [row[0] for row in desk.verbs.receive(5).messages] == ["a", "b"]

    def test_max_leased_bounds_what_is_held_at_once(self, desk: Desk) -> None:
        desk.verbs.configure(max_leased="2")
        desk.verbs.send(*(Item(id) for id in "abcd"))
        held = desk.verbs.receive(9).pairs
        assert len(held) == 2
        assert desk.changed_by(lambda: desk.verbs.receive(9).messages, []) == {}
        assert [row[0] for row in desk.verbs.receive(9, acks=held[:1]).messages] == ["c"]

    def test_a_rate_gives_so_many_per_second_and_tells_when_the_next_is_due(self, desk: Desk) -> None:
        desk.verbs.configure(rate="2")
        desk.verbs.send(*(Item(id) for id in "abcde"))
        assert desk.changed_by(lambda: len(desk.verbs.receive(9).messages), 2)["queue"]["tokens"] == 0
        got = desk.verbs.receive(9)
        assert (got.messages, got.due) == ([], T + 500)
        desk.advance(499)
        assert desk.verbs.receive(9).messages == []
        desk.advance(1)
        assert len(desk.verbs.receive(9).messages) == 1
        desk.advance(10_000)
        assert len(desk.verbs.receive(9).messages) == 2

    def test_no_more_than_a_batch_is_promoted_in_one_call(self, desk: Desk) -> None:
        desk.verbs.send(*(Item(f"m{at:03}", due="+1") for at in range(250)))
        desk.advance(1)
        first, second = desk.verbs.receive(0), desk.verbs.receive(0)
        assert (first.promoted, first.due, second.promoted, second.due) == (200, T + 1, 50, None)
        assert [row[0] for row in desk.verbs.receive(250).messages] == [f"m{at:03}" for at in range(250)]

    def test_an_entry_whose_payload_was_removed_by_hand_is_dropped_and_said_so(self, desk: Desk) -> None:
        desk.verbs.send(A, B)
        desk.bench.client.hdel(desk.verbs.keys["messages"], "a")
        before = desk.look()
        got = desk.verbs.receive()
        assert (got.messages, got.due) == ([], T)
        after = desk.look()
        assert changes(before, after) == {
            "queue": {"sequence": 3, "deleted": 1},
            "journal": {"3": line("deleted", "gone", Item("a", b""), error="PayloadMissing")},
            "ready": {"a": None},
        }
        assert desk.verbs.receive().messages[0][0] == "b"

    @pytest.mark.parametrize(
        ("n", "lease"),
        [
            ("-1", ""),
            ("1001", ""),
            ("x", ""),
            ("1.5", ""),
            ("1", "0"),
            ("1", "-5"),
            ("1", "nan"),
            ("1", "9e15"),
        ],
    )
    def test_a_bad_number_is_refused_by_the_script_too(self, desk: Desk, n: str, lease: str) -> None:
        desk.verbs.send(A)

        def act() -> None:
            with pytest.raises(InvalidInput):
                desk.verbs.call("receive", n, "n", CONSUMER, lease, "")

        assert desk.changed_by(act) == {}
