"""A consumer's lease journal as its user has it: claimed, read again and again, renewed, settled and cleared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from restante.core import lease_journal
from restante.core.admin import Admin
from restante.core.errors import InUse, InvalidInput, InvalidName
from restante.core.lease_journal import VERDICTS, LeaseJournal, Row, Settlement
from restante.core.message import State
from restante.core.operations import error_parts
from restante.core.queue import Client, LeasedMessage, Queue
from restante.core.retry import fixed, no_retry
from restante.core.settings import ClientSettings
from tests.core.bench import Bench
from tests.harness.clock import START_MS as T

LEASE, LASTS = 30.0, 60.0


class Reading:
    """A queue of one server, and lease journals of consumers on it."""

    def __init__(self, bench: Bench, closing: ExitStack) -> None:
        self.bench = bench
        self._closing = closing
        self.post = self.another("spark")
        self.queue: Queue = self.post.queue("q")
        self.admin = Admin(self.post, operator="op")
        self.journal = LeaseJournal(self.post, "q", "driver")

    def another(self, consumer: str) -> Client:
        return self._closing.enter_context(Client(self.bench.server.url, ClientSettings(), consumer=consumer))

    def claim(self, count: int) -> int:
        """The number of the last row."""
        return self.journal.claim(count, lease=LEASE, lasts=LASTS)[0]

    def rows(self, after: int = 0, upto: int = 10**9) -> list[Row]:
        return list(self.journal.rows(after, upto))

    def advance(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    def states(self) -> dict[str, int]:
        counts = self.admin.counts("q")
        return {state.value: getattr(counts, state.value) for state in State if getattr(counts, state.value)}


@pytest.fixture
def reading(bench: Bench) -> Iterator[Reading]:
    with ExitStack() as closing:
        yield Reading(bench, closing)


def settlements(rows: Sequence[Row], *, delay_ms: int | None = 0, error: str = "") -> list[Settlement]:
    name, text = error_parts(error or None)
    return [Settlement(row.id, row.token, delay_ms, name, text) for row in rows]


class TestClaim:
    def test_rows_tell_what_was_leased(self, reading: Reading) -> None:
        ids = reading.queue.send_many([{"n": 1}, {"n": 2}], kind="order", priority=7, headers={"h": 1})
        assert reading.claim(5) == 2
        first, second = reading.rows()
        assert (first.number, second.number) == (1, 2)
        assert [first.id, second.id] == ids
        assert (first.attempts, first.received_ms) == (1, T)
        assert (first.stored.payload, second.stored.payload) == ({"n": 1}, {"n": 2})
        assert (first.stored.kind, first.stored.priority, first.stored.headers) == ("order", 7, {"h": 1})
        shown = reading.admin.show("q", first.id)
        assert (shown.state, shown.consumer, shown.expires_ms) == (State.LEASED, "spark", T + 30_000)

    def test_no_more_is_leased_than_asked_for_and_what_is_there(self, reading: Reading) -> None:
        reading.queue.send_many(list(range(5)))
        assert [reading.claim(count) for count in (2, 0, 9, 9)] == [2, 2, 5, 5]
        assert reading.states() == {"leased": 5}
        assert [row.stored.payload for row in reading.rows()] == [*range(5)]

    def test_a_large_claim_is_taken_in_several_calls_and_read_over_their_boundaries(self, reading: Reading) -> None:
        reading.queue.send_many(list(range(1000)))
        reading.queue.send_many(list(range(1000, 1200)))
        assert reading.claim(1100) == 1100
        entries = reading.bench.client.xlen("restante:{q}:leases:spark")
        assert entries == -(-1100 // lease_journal.CLAIM)
        assert [row.number for row in reading.rows()] == [*range(1, 1101)]
        assert [row.stored.payload for row in reading.rows()] == [*range(1100)]
        edge = lease_journal.CLAIM
        assert [row.number for row in reading.rows(edge - 2, edge + 2)] == [*range(edge - 1, edge + 3)]
        assert [row.number for row in reading.rows(edge, edge + 1)] == [edge + 1]
        assert [row.number for row in reading.rows(edge - 1, edge)] == [edge]
        assert reading.rows(7, 7) == reading.rows(9, 7) == reading.rows(1100, 2000) == []

    def test_a_claim_tells_the_leases_it_took_by_the_numbers_of_their_rows(self, reading: Reading) -> None:
        reading.queue.send_many(list(range(1000)))
        assert reading.journal.last() == 0
        for count, first in ((3, 1), (700, 4), (0, 704), (500, 704)):
            last, claimed = reading.journal.claim(count, lease=LEASE, lasts=LASTS)
            assert claimed == {row.number: (row.id, row.token) for row in reading.rows(first - 1)}
            assert list(claimed) == [*range(first, last + 1)]
            assert reading.journal.last() == last
        assert last == 1000

    def test_a_lease_that_ends_before_it_is_copied_has_no_row_and_is_not_told(
        self, reading: Reading, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = reading.queue.send_many(list(range(4)))
        receive_many = reading.queue.receive_many

        def slow(count: int, **options: Any) -> list[LeasedMessage]:
            got = receive_many(count, **options)
            if got:
                got[1].release(delay=60)
            return got

        monkeypatch.setattr(reading.journal._queue, "receive_many", slow)
        last, claimed = reading.journal.claim(3, lease=LEASE, lasts=LASTS)
        assert (last, [id for id, _ in claimed.values()]) == (2, [ids[0], ids[2]])
        assert claimed == {row.number: (row.id, row.token) for row in reading.rows()}

    def test_many_small_claims_are_read_page_by_page(self, reading: Reading) -> None:
        wanted = 2 * lease_journal.READ + 3
        for number in range(wanted):
            reading.queue.send_many([number, -number])
            reading.claim(2)
        assert [row.number for row in reading.rows()] == [*range(1, 2 * wanted + 1)]
        assert [row.number for row in reading.rows(3, 2 * wanted - 2)] == [*range(4, 2 * wanted - 1)]

    def test_a_range_reads_the_same_whatever_became_of_its_messages(self, reading: Reading) -> None:
        reading.queue.send_many(list(range(4)))
        reading.claim(4)
        before = [(row.number, row.id, row.token, row.stored.raw) for row in reading.rows()]
        one, two, three, four = reading.rows()
        for verdict, row in zip(VERDICTS, (one, two, three, four), strict=True):
            assert reading.journal.settle(verdict, settlements([row])) == []
        reading.advance(3600)
        reading.admin.purge("q")
        assert [(row.number, row.id, row.token, row.stored.raw) for row in reading.rows()] == before

    def test_what_was_leased_and_never_copied_comes_again_when_its_lease_ends(self, reading: Reading) -> None:
        reading.queue.send("x")
        assert len(reading.queue.receive_many(1, lease=LEASE)) == 1  # and here the process was killed
        assert reading.claim(1) == 0
        reading.advance(LEASE)
        assert reading.claim(1) == 1
        assert [row.attempts for row in reading.rows()] == [2]

    def test_consumers_have_journals_of_their_own(self, reading: Reading) -> None:
        reading.queue.send_many([1, 2, 3])
        other = LeaseJournal(reading.another("flink"), "q", "driver")
        assert reading.claim(2) == 2
        assert other.claim(5, lease=LEASE, lasts=LASTS)[0] == 1
        assert [row.stored.payload for row in reading.rows()] == [1, 2]
        assert [row.stored.payload for row in other.rows(0, 9)] == [3]
        assert other.name == "q"
        assert (reading.journal.consumer, other.consumer) == ("spark", "flink")


class TestOwnership:
    def test_a_second_living_owner_is_refused_and_leases_nothing(self, reading: Reading) -> None:
        reading.queue.send_many([1, 2])
        reading.claim(1)
        rival = LeaseJournal(reading.another("spark"), "q", "another-driver")
        for refused in (lambda: rival.own(LASTS), lambda: rival.claim(1, lease=LEASE, lasts=LASTS)):
            with pytest.raises(InUse, match="spark of q is alive elsewhere"):
                refused()
        assert reading.states() == {"ready": 1, "leased": 1}
        # To read and to settle it need not be the owner: executors do that.
        [row] = rival.rows(0, 9)
        assert rival.settle("ack", settlements([row])) == []
        assert reading.claim(1) == 2

    def test_after_its_time_another_owner_goes_on_with_the_numbers(self, reading: Reading) -> None:
        reading.queue.send_many([1, 2])
        reading.claim(1)
        rival = LeaseJournal(reading.another("spark"), "q", "another-driver")
        reading.advance(LASTS - 0.001)
        with pytest.raises(InUse):
            rival.own(LASTS)
        reading.advance(0.001)
        assert rival.own(LASTS) == 1
        assert rival.claim(1, lease=LEASE, lasts=LASTS)[0] == 2
        with pytest.raises(InUse):
            reading.claim(1)

    def test_an_owner_that_renews_stays(self, reading: Reading) -> None:
        assert reading.journal.own(LASTS) == 0
        for _ in range(3):
            reading.advance(LASTS * 0.9)
            assert reading.journal.own(LASTS) == 0
        with pytest.raises(InUse):
            LeaseJournal(reading.another("spark"), "q", "another-driver").own(LASTS)

    def test_the_same_owner_may_come_back_at_once(self, reading: Reading) -> None:
        reading.queue.send_many([1, 2])
        reading.claim(1)
        again = LeaseJournal(reading.another("spark"), "q", "driver")
        assert again.claim(1, lease=LEASE, lasts=LASTS)[0] == 2

    def test_without_an_owner_it_can_be_read_and_settled_but_not_claimed(self, reading: Reading) -> None:
        reading.queue.send("x")
        reading.claim(1)
        executor = LeaseJournal(reading.another("spark"), "q")
        [row] = executor.rows(0, 9)
        assert executor.settle("ack", settlements([row])) == []
        with pytest.raises(InvalidInput, match="owner"):
            executor.own(LASTS)
        with pytest.raises(InvalidName):
            LeaseJournal(reading.post, "q", "two\twords")


class TestRenew:
    def test_leases_are_extended_and_those_lost_are_named(self, reading: Reading) -> None:
        reading.queue.send_many(list(range(4)))
        reading.claim(4)
        rows = reading.rows()
        reading.journal.settle("ack", settlements(rows[:1]))
        reading.advance(20)
        held = [(row.id, row.token) for row in rows[:3]]
        assert reading.journal.renew([*held, (rows[2].id, "1-forged")], LEASE) == {rows[0].token, "1-forged"}
        reading.advance(20)
        assert reading.journal.renew([(row.id, row.token) for row in rows], LEASE) == {rows[0].token, rows[3].token}
        assert reading.journal.renew([], LEASE) == set()

    def test_more_than_one_call_takes_are_renewed_and_the_lost_found_anywhere(self, reading: Reading) -> None:
        count = lease_journal.CLAIM + 100
        reading.queue.send_many(list(range(count)))
        reading.claim(count)
        held = [(row.id, row.token) for row in reading.rows()]
        gone = [held[3], held[lease_journal.CLAIM], held[-1]]
        reading.journal.settle("bury", [Settlement(id, token, None, "", b'""') for id, token in gone])
        reading.advance(20)
        assert reading.journal.renew(held, LEASE) == {token for _, token in gone}
        reading.advance(20)
        assert reading.states() == {"leased": count - 3, "dead": 3}
        assert reading.admin.counts("q").overdue == 0


class TestSettle:
    @pytest.fixture
    def rows(self, reading: Reading) -> list[Row]:
        reading.queue.send_many(list(range(3)))
        reading.claim(3)
        return reading.rows()

    @pytest.mark.parametrize(
        ("verdict", "state"),
        [
            ("ack", {}),
            ("nack", {"retrying": 3}),
            ("bury", {"dead": 3}),
            ("release", {"ready": 3}),
        ],
    )
    def test_a_verdict_is_carried_out_and_remembered(
        self, reading: Reading, rows: list[Row], verdict: str, state: dict[str, int]
    ) -> None:
        assert reading.journal.verdicts([row.token for row in rows]) == {}
        assert reading.journal.settle(verdict, settlements(rows, delay_ms=5000, error="why")) == []
        assert reading.states() == state
        assert reading.journal.verdicts([row.token for row in rows]) == dict.fromkeys(
            [row.token for row in rows], verdict
        )

    @pytest.mark.parametrize("verdict", VERDICTS)
    def test_lost_leases_are_named_and_not_remembered(self, reading: Reading, rows: list[Row], verdict: str) -> None:
        lost = rows[1]
        reading.queue.bury_many([message_of(reading, lost)])
        forged = Settlement(rows[0].id, "1-forged", 0, "", b'""')
        given = settlements(rows, delay_ms=0)
        assert reading.journal.settle(verdict, [forged, *given]) == ["1-forged", lost.token]
        tokens = ["1-forged", *(row.token for row in rows)]
        assert reading.journal.verdicts(tokens) == {rows[0].token: verdict, rows[2].token: verdict}

    def test_a_nack_waits_as_it_is_told_or_is_the_last(self, reading: Reading, rows: list[Row]) -> None:
        later, last, now = rows
        reading.journal.settle("nack", settlements([later], delay_ms=7000, error="later"))
        reading.journal.settle("nack", settlements([last], delay_ms=None, error="never"))
        reading.journal.settle("nack", settlements([now], delay_ms=0))
        shown = reading.admin.show("q", later.id)
        assert (shown.state, shown.due_ms) == (State.RETRYING, T + 7000)
        assert [(one.error_class, one.error) for one in shown.history] == [("Error", "later")]
        assert reading.admin.show("q", last.id).state is State.DEAD
        assert reading.admin.show("q", now.id).due_ms == T

    @pytest.mark.parametrize("verdict", VERDICTS)
    def test_a_verdict_repeated_is_no_loss_and_is_carried_out_once(
        self, reading: Reading, rows: list[Row], verdict: str
    ) -> None:
        assert reading.journal.settle(verdict, settlements(rows)) == []
        before = reading.admin.counts("q")
        assert reading.journal.settle(verdict, settlements(rows)) == []
        assert reading.admin.counts("q").totals == before.totals
        other = VERDICTS[VERDICTS.index(verdict) - 1]
        assert reading.journal.settle(other, settlements(rows)) == (
            [] if other == "ack" and verdict == "ack" else [row.token for row in rows]
        )
        reading.journal.clear(3)
        # With the memory gone only an ack is still known, for the dedup window.
        left = [] if verdict == "ack" else [row.token for row in rows]
        assert reading.journal.settle(verdict, settlements(rows)) == left

    def test_verdicts_are_asked_for_in_any_number(self, reading: Reading) -> None:
        count = lease_journal.CLAIM * 2 + 1
        reading.queue.send_many(list(range(1000)))
        reading.queue.send_many(list(range(count - 1000)))
        reading.claim(count)
        rows = reading.rows()
        reading.journal.settle("ack", settlements(rows[:1000]))
        reading.journal.settle("release", settlements(rows[1000:]))
        found = reading.journal.verdicts([row.token for row in rows] + ["1-forged"])
        assert found == {row.token: "ack" if row.number <= 1000 else "release" for row in rows}
        assert reading.journal.verdicts([]) == {}

    def test_the_delay_is_the_message_s_own_or_the_queue_s(self, reading: Reading) -> None:
        reading.admin.configure("q", retry=fixed(1, 5))
        assert [reading.journal.retry_delay(attempts, "") for attempts in (1, 2, 3)] == [1000, 5000, None]
        assert reading.journal.retry_delay(1, fixed(9).text()) == 9000
        assert reading.journal.retry_delay(1, no_retry().text()) is None

    def test_verdicts_on_messages_of_a_batch_end_it(self, reading: Reading) -> None:
        with reading.post.batch("home", on_complete="end") as batch:
            for verdict in VERDICTS:
                batch.send(reading.queue, verdict)
        reading.claim(len(VERDICTS))
        rows = reading.rows()
        for verdict, row in zip(VERDICTS, rows, strict=True):
            delay = None if verdict == "nack" else 0
            assert reading.journal.settle(verdict, settlements([row], delay_ms=delay)) == []
            assert reading.journal.settle(verdict, settlements([row], delay_ms=delay)) == []
        assert (batch.status().pending, batch.status().done) == (1, 1)  # one was released
        reading.claim(1)
        (left,) = reading.rows(after=len(rows))
        assert reading.journal.settle("bury", settlements([left], error="boom")) == []
        (end,) = reading.post.queue("home").receive_many(2)
        assert (end.headers["batch"]["done"], end.headers["batch"]["dead"]) == (1, 3)


def message_of(reading: Reading, row: Row) -> LeasedMessage:
    """The lease of a row as another holder of its token has it."""
    return LeasedMessage(reading.queue, row.id, row.stored, row.attempts, T + 30_000, row.token, T)


class TestClear:
    def test_what_is_cleared_is_gone_with_its_verdicts_and_the_rest_stays(self, reading: Reading) -> None:
        for count in (3, 2, 4):
            reading.queue.send_many(list(range(count)))
            reading.claim(count)
        rows = reading.rows()
        reading.journal.settle("ack", settlements(rows))
        assert reading.journal.first() == 1
        reading.journal.clear(2)  # inside the first entry, which stays whole
        assert [row.number for row in reading.rows()] == [*range(1, 10)]
        reading.journal.clear(6)
        assert [row.number for row in reading.rows()] == [6, 7, 8, 9]
        assert reading.journal.first() == 6
        assert set(reading.journal.verdicts([row.token for row in rows])) == {row.token for row in rows[5:]}
        reading.journal.clear(9)
        assert (reading.rows(), reading.journal.first()) == ([], None)
        assert reading.bench.client.exists("restante:{q}:verdicts:spark") == 0

    def test_any_number_of_entries_is_cleared_by_one_wish(self, reading: Reading) -> None:
        wanted = 2 * lease_journal.CLEARED + 1
        for number in range(wanted):
            reading.queue.send(number)
            reading.claim(1)
        reading.journal.clear(wanted - 1)
        assert [row.number for row in reading.rows()] == [wanted]

    def test_numbers_go_on_after_a_clear(self, reading: Reading) -> None:
        reading.queue.send_many([1, 2, 3])
        reading.claim(2)
        reading.journal.clear(2)
        assert reading.claim(9) == 3
        assert [row.number for row in reading.rows()] == [3]

    def test_where_nothing_was_claimed_there_is_nothing(self, reading: Reading) -> None:
        reading.journal.clear(10)
        assert (reading.rows(), reading.journal.first(), reading.journal.verdicts(["1-n"])) == ([], None, {})

    def test_a_queue_that_is_dropped_leaves_no_lease_journal(self, reading: Reading) -> None:
        other = LeaseJournal(reading.another("host:17"), "q", "o")
        reading.queue.send_many([1, 2])
        reading.claim(1)
        other.claim(1, lease=LEASE, lasts=LASTS)
        for journal in (reading.journal, other):
            journal.settle("ack", settlements(list(journal.rows(0, 9))))
        before = set(reading.bench.client.keys("restante:{q}:*"))
        assert {b"restante:{q}:%b" % key for key in (b"leases:spark", b"verdicts:spark")} <= before
        assert {b"restante:{q}:%b" % key for key in (b"leases:host:17", b"verdicts:host:17")} <= before
        reading.admin.drop("q")
        assert reading.bench.client.keys("restante:{q}:*") == []
        # And it begins anew as any other queue.
        reading.queue.send("again")
        assert reading.claim(1) == 1
        assert [row.number for row in reading.rows()] == [1]


class TestReady:
    def test_what_is_due_counts_and_what_is_not_does_not(self, reading: Reading) -> None:
        assert reading.journal.ready() == 0
        reading.queue.send_many([1, 2])
        reading.queue.send_many([3, 4, 5], delay=10)
        assert reading.journal.ready() == 2
        reading.advance(10)
        assert reading.journal.ready() == 5
        assert reading.states() == {"ready": 5}

    def test_leases_that_ran_out_count_again(self, reading: Reading) -> None:
        reading.queue.send_many([1, 2])
        reading.claim(2)
        assert reading.journal.ready() == 0
        reading.advance(LEASE)
        assert reading.journal.ready() == 2
