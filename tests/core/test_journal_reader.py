"""The journal in raw blocks: complete and without gaps, or an error that names what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import restante
from restante.core import journal_reader
from restante.core.admin import Admin
from restante.core.errors import InvalidName, JournalLost
from restante.core.journal import JournalEntry, Position
from restante.core.journal_reader import Block, JournalReader, Place
from restante.core.queue import Client, Queue
from restante.core.settings import ClientSettings
from restante.core.stored import Stored
from tests.core.bench import Bench
from tests.harness.clock import START_MS as T

JOURNAL = "restante:{q}:journal"


@dataclass
class Library:
    """A queue, and those who read its journal."""

    bench: Bench
    post: Client
    queue: Queue
    reader: JournalReader
    admin: Admin

    def blocks(self, after: int, upto: int) -> list[Block]:
        return [block for page in self.reader.blocks("q", after, upto) for block in page]

    def spans(self, after: int, upto: int) -> list[tuple[int, int]]:
        return [(block.first, block.last) for block in self.blocks(after, upto)]

    def until_lost(self, after: int, upto: int) -> tuple[list[tuple[int, int]], str]:
        """What is read before the loss, and what is said of it."""
        seen: list[tuple[int, int]] = []
        try:
            for page in self.reader.blocks("q", after, upto):
                seen += [(block.first, block.last) for block in page]
        except JournalLost as error:
            return seen, str(error)
        return seen, "nothing is lost"

    def remove(self, *last: int) -> None:
        """Takes entries out of the stream by the number of their last line."""
        assert self.bench.client.xdel(JOURNAL, *(f"0-{number}" for number in last)) == len(last)


@pytest.fixture
def library(bench: Bench) -> Iterator[Library]:
    with Client(bench.server.url, ClientSettings()) as post:
        queue = post.queue("q")
        yield Library(bench, post, queue, JournalReader(post), Admin(post, operator="op"))


@pytest.fixture
def shelf(library: Library) -> Library:
    """Entries of lines 1–10, 11, 12–16, 17 and 18–20."""
    for count in (10, 1, 5, 1, 3):
        library.queue.send_many(["x"] * count)
    return library


EVERY = [(1, 10), (11, 11), (12, 16), (17, 17), (18, 20)]


class TestBlocks:
    def test_every_entry_is_a_block_with_the_numbers_of_its_lines(self, shelf: Library) -> None:
        assert shelf.spans(0, 20) == EVERY

    @pytest.mark.parametrize(
        ("after", "upto", "found"),
        [
            (3, 7, [(1, 10)]),
            (9, 11, [(1, 10), (11, 11)]),
            (10, 11, [(11, 11)]),
            (10, 12, [(11, 11), (12, 16)]),
            (5, 14, [(1, 10), (11, 11), (12, 16)]),
            (13, 14, [(12, 16)]),
            (16, 17, [(17, 17)]),
            (19, 20, [(18, 20)]),
            (0, 1, [(1, 10)]),
        ],
    )
    def test_the_first_and_the_last_may_reach_beyond_the_bounds(
        self, shelf: Library, after: int, upto: int, found: list[tuple[int, int]]
    ) -> None:
        assert shelf.spans(after, upto) == found

    @pytest.mark.parametrize(("after", "upto"), [(0, 0), (20, 20), (9, 9), (15, 3)])
    def test_an_empty_stretch_has_no_blocks(self, shelf: Library, after: int, upto: int) -> None:
        assert list(shelf.reader.blocks("q", after, upto)) == []

    def test_an_empty_journal_has_no_blocks(self, library: Library) -> None:
        assert list(library.reader.blocks("q", 0, 0)) == []

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
    def test_pages_of_any_size_make_the_same_blocks(
        self, shelf: Library, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        monkeypatch.setattr(journal_reader, "READ", size)
        assert shelf.spans(0, 20) == EVERY
        assert shelf.spans(10, 19) == EVERY[1:]
        assert all(0 < len(page) <= size for page in shelf.reader.blocks("q", 0, 20))

    def test_the_lines_are_those_an_operator_reads(self, shelf: Library) -> None:
        shelf.queue.ack_many(shelf.queue.receive_many(4))
        shelf.admin.purge("q")
        last = shelf.admin.counts("q").journal_last
        read = [
            entry
            for block in shelf.blocks(0, last)
            for entry in JournalEntry.parse_block("q", b"0-%d" % block.last, block.lines)
        ]
        assert read == shelf.admin.journal("q", limit=1000)
        assert len(read) == last == 20 + 8 + 16

    def test_a_journal_whose_level_changed_has_no_gap(self, shelf: Library) -> None:
        for level in ("terminal", "off", "payloads", "full"):
            shelf.admin.configure("q", journal=level)
            shelf.queue.send_many([level] * 2)
            shelf.queue.ack_many(shelf.queue.receive_many(2))
        place = shelf.reader.place("q")
        assert place is not None
        spans = shelf.spans(0, place.last)
        assert spans[0][0] == 1
        assert spans[-1][1] == place.last
        assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(spans))


class TestLoss:
    def test_a_trimmed_beginning_is_named(self, shelf: Library) -> None:
        shelf.remove(10, 11)
        seen, said = shelf.until_lost(0, 20)
        assert seen == []
        assert "the journal of q no longer has lines 1 to 11" in said
        assert "journal_cap" in said
        assert shelf.until_lost(10, 20)[1].count("11 to 11") == 1
        assert shelf.spans(11, 20) == EVERY[2:]

    def test_what_the_server_itself_trimmed_is_named(self, library: Library) -> None:
        library.admin.configure("q", journal_keep=1000, journal_cap=1000)
        for _ in range(4):
            library.queue.send_many(["x"] * 1000)
        place = library.reader.place("q")
        assert place is not None
        assert place.floor > 1000
        first = library.admin.journal("q", limit=1)[0].position.sequence
        _, said = library.until_lost(0, place.last)
        assert f"no longer has lines 1 to {first - 1}" in said
        assert library.spans(first - 1, place.last)[0][0] == first

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_a_hole_in_the_middle_is_named_after_what_lies_before_it(
        self, shelf: Library, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        monkeypatch.setattr(journal_reader, "READ", size)
        shelf.remove(16)
        seen, said = shelf.until_lost(0, 20)
        assert seen == EVERY[:2]
        assert "12 to 16" in said
        assert shelf.spans(0, 11) == EVERY[:2]
        assert shelf.spans(16, 20) == EVERY[3:]

    def test_two_entries_missing_side_by_side_are_one_hole(self, shelf: Library) -> None:
        shelf.remove(11, 16)
        assert "11 to 16" in shelf.until_lost(0, 20)[1]

    @pytest.mark.parametrize(
        ("after", "upto", "said"), [(11, 13, "12 to 13"), (13, 20, "14 to 16"), (13, 14, "14 to 14")]
    )
    def test_no_number_is_named_that_was_not_asked_for(self, shelf: Library, after: int, upto: int, said: str) -> None:
        shelf.remove(16)
        assert said in shelf.until_lost(after, upto)[1]

    def test_a_missing_end_is_named(self, shelf: Library) -> None:
        shelf.remove(20)
        seen, said = shelf.until_lost(0, 20)
        assert seen == EVERY[:4]
        assert "18 to 20" in said

    def test_a_journal_that_is_gone_is_lost_whole(self, shelf: Library) -> None:
        shelf.bench.client.delete(JOURNAL)
        seen, said = shelf.until_lost(4, 20)
        assert seen == []
        assert "5 to 20" in said

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_whoever_passes_gaps_reads_all_that_is_left(
        self, shelf: Library, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        monkeypatch.setattr(journal_reader, "READ", size)

        def left(after: int, upto: int) -> list[tuple[int, int]]:
            pages = shelf.reader.blocks("q", after, upto, pass_gaps=True)
            return [(block.first, block.last) for page in pages for block in page]

        assert left(0, 20) == EVERY
        shelf.remove(10, 16)
        assert left(0, 20) == [(11, 11), (17, 17), (18, 20)]
        assert left(0, 9) == left(12, 15) == []
        assert left(3, 13) == [(11, 11)]
        shelf.remove(20)
        assert left(0, 20) == [(11, 11), (17, 17)]
        shelf.remove(11, 17)
        assert left(0, 20) == []

    def test_the_error_is_a_public_one(self) -> None:
        assert restante.JournalLost is JournalLost
        assert issubclass(JournalLost, restante.RestanteError)
        assert "failOnDataLoss" in str(JournalLost())


class TestPayloads:
    def test_blocks_carry_stored_forms_by_message(self, library: Library) -> None:
        library.admin.configure("q", journal="payloads")
        ids = library.queue.send_many([{"n": 1}, b"\x00\n\t"])
        library.queue.send("named as the lines' own field", id="e")
        library.queue.send("again", id="e")
        library.admin.edit("q", ids[0], payload={"n": 2})
        library.queue.receive()
        configured, sent, odd, edited, received = library.blocks(0, 6)
        assert (configured.stored, received.stored) == ({}, {})
        assert {id.decode(): Stored(raw).payload for id, raw in sent.stored.items()} == {
            ids[0]: {"n": 1},
            ids[1]: b"\x00\n\t",
        }
        assert Stored(odd.stored[b"e"]).payload == "named as the lines' own field"
        assert Stored(edited.stored[ids[0].encode()]).payload == {"n": 2}
        assert [entry.event.value for entry in library.admin.journal("q")] == [
            "configured",
            "sent",
            "sent",
            "sent",
            "edited",
            "received",
        ]

    def test_a_message_moved_in_brings_its_form(self, library: Library) -> None:
        library.admin.configure("q", journal="payloads")
        id = library.post.queue("source").send({"n": 1}, headers={"h": 1})
        assert library.admin.move("source", "q", [id]) == 1
        block = library.blocks(1, 2)[0]
        form = Stored(block.stored[id.encode()])
        assert (form.payload, form.headers) == ({"n": 1}, {"h": 1})
        assert library.bench.client.xlen("restante:{source}:journal") == 2


class TestPlaces:
    def test_a_place_tells_where_a_journal_stands(self, shelf: Library) -> None:
        assert shelf.reader.place("q") == Place(T, 20, 0, 0, {})

    def test_what_the_level_leaves_out_has_no_number(self, shelf: Library) -> None:
        shelf.admin.configure("q", journal="off")
        shelf.queue.send_many(["x"] * 5)
        place = shelf.reader.place("q")
        assert place is not None
        assert place.last == 21 == shelf.admin.counts("q").journal_last

    def test_readers_are_told_with_how_far_they_are(self, shelf: Library) -> None:
        shelf.reader.register("q", "lake", 7)
        shelf.admin.register_reader("q", "audit:2", Position(3))
        place = shelf.reader.place("q")
        assert place is not None
        assert place.readers == {"lake": 7, "audit:2": 3}
        shelf.reader.register("q", "lake", 9)
        shelf.reader.forget("q", "audit:2")
        place = shelf.reader.place("q")
        assert place is not None
        assert place.readers == {"lake": 9}
        with pytest.raises(InvalidName):
            shelf.reader.register("q", "not a name", 1)
        with pytest.raises(InvalidName):
            shelf.reader.forget("q", "not a name")

    def test_a_registered_reader_that_loses_lines_is_told_how_many(self, library: Library) -> None:
        library.admin.configure("q", journal_keep=1000, journal_cap=2000)
        library.reader.register("q", "lake", 100)
        for _ in range(5):
            library.queue.send_many(["x"] * 1000)
        place = library.reader.place("q")
        assert place is not None
        assert place.floor == place.lost + 100 > 100

    def test_places_leave_out_what_does_not_exist(self, shelf: Library) -> None:
        shelf.post.queue("other").configure(lease=5)
        assert shelf.reader.place("nowhere") is None
        found = shelf.reader.places(["q", "nowhere", "other"])
        assert {name: place.last for name, place in found.items()} == {"q": 20, "other": 1}
        assert shelf.bench.client.exists("restante:{nowhere}:queue") == 0

    def test_a_queue_that_only_a_move_wrote_to_has_its_place(self, shelf: Library) -> None:
        id = shelf.queue.send("moved")
        shelf.admin.move("q", "target", [id])
        assert shelf.reader.place("target") == Place(T, 1, 0, 0, {})

    def test_a_queue_dropped_and_made_again_is_another_journal(self, shelf: Library) -> None:
        before = shelf.reader.place("q")
        shelf.admin.drop("q")
        assert shelf.reader.place("q") is None
        shelf.bench.clock.advance(1)
        shelf.queue.send("again")
        after = shelf.reader.place("q")
        assert before is not None
        assert after is not None
        assert (before.incarnation, after.incarnation) == (T, T + 1000)
        assert after.last == 1


class TestClaim:
    """A reader that has read nothing begins where the journal begins."""

    @pytest.fixture
    def trimmed(self, library: Library) -> Library:
        library.admin.configure("q", journal_keep=1000, journal_cap=1000)
        for _ in range(5):
            library.queue.send_many(["x"] * 700)
        return library

    def test_a_claim_again_keeps_the_reader_s_place(self, trimmed: Library) -> None:
        first = trimmed.reader.claim("q", "lake")
        assert first is not None
        assert 0 < first.floor == first.readers["lake"]
        trimmed.reader.register("q", "lake", first.floor + 100)
        again = trimmed.reader.claim("q", "lake")
        assert again is not None
        assert again.readers == {"lake": first.floor + 100}

    def test_a_claim_of_a_queue_made_anew_meanwhile_begins_at_its_first_line(
        self, trimmed: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = trimmed.post.connection.command

        def renewed(*words: Any, key: bytes = b"") -> Any:
            if words[0] == "HSETNX":
                monkeypatch.undo()
                trimmed.admin.drop("q")
                trimmed.bench.clock.advance(1)
                trimmed.queue.send_many(["again"] * 3)
            return command(*words, key=key)

        monkeypatch.setattr(trimmed.post.connection, "command", renewed)
        place = trimmed.reader.claim("q", "lake")
        assert place is not None
        assert (place.incarnation, place.readers) == (T + 1000, {"lake": 0})


class TestSeek:
    """The last line before a moment."""

    @pytest.fixture
    def aged(self, library: Library) -> Library:
        """Entries of one to four lines, some of them of the same millisecond."""
        for number in range(30):
            library.queue.send_many(["x"] * (1 + number % 4))
            library.bench.clock.advance((number % 3) * 0.01)
        return library

    def expected(self, library: Library, at_ms: int, floor: int) -> int:
        """By reading everything."""
        entries = library.admin.journal("q", limit=1000)
        before = [entry.position.sequence for entry in entries if round(entry.at.timestamp() * 1000) < at_ms]
        return max(before, default=floor)

    @pytest.mark.parametrize("level", ["full", "payloads"])
    def test_every_moment_is_found(self, aged: Library, level: str) -> None:
        aged.admin.configure("q", journal=level)
        aged.queue.send_many(["y"] * 3)
        place = aged.reader.place("q")
        assert place is not None
        end = aged.bench.clock.now_ms
        for at_ms in (0, T - 1, *range(T, end + 2), end + 10**9):
            assert aged.reader.seek("q", place, at_ms) == self.expected(aged, at_ms, 0), at_ms - T

    def test_before_a_trimmed_beginning_it_is_the_floor(self, library: Library) -> None:
        library.admin.configure("q", journal_keep=1000, journal_cap=1000)
        for _ in range(5):
            library.queue.send_many(["x"] * 700)
            library.bench.clock.advance(0.01)
        place = library.reader.place("q")
        assert place is not None
        assert place.floor > 0
        assert library.reader.seek("q", place, 0) == place.floor
        assert library.reader.seek("q", place, T + 10**6) == place.last
        assert library.reader.seek("q", place, T + 40) == place.last - 700

    def test_an_empty_journal_has_its_end_only(self, library: Library) -> None:
        library.admin.configure("q", journal="off")
        place = library.reader.place("q")
        assert place is not None
        assert library.reader.seek("q", place._replace(last=0), T) == 0
