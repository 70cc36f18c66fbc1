"""One word per concept: states, events, keys and arguments are the same in Python, Lua and the lifecycle table."""

from __future__ import annotations

import importlib
import pkgutil
import re
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

import restante.core
from restante.core.call_retry import TYPES
from restante.core.journal import COLUMNS
from restante.core.keys import NAMES, QueueKeys
from restante.core.lease_journal import VERDICTS
from restante.core.message import LIFECYCLE, STATE_LETTERS, JournalEvent, State
from restante.core.scripts import PARTS, WHOLE, Script
from restante.core.settings import JOURNAL_LEVELS
from restante.server import create_app

_FOLDER: Final = resources.files("restante.core").joinpath("lua")
#: The text of every Lua file by its name.
LUA: Final = {
    file.name.removesuffix(".lua"): file.read_text() for file in _FOLDER.iterdir() if file.name.endswith(".lua")
}
#: What the verbs share: the prelude, put in front of each, and the parts that they require.
SHARED: Final = ("prelude", "moves", *sorted(frozenset().union(*PARTS.values()) - {*WHOLE.values()}))
#: The verbs: all other files.
VERBS: Final = sorted(LUA.keys() - set(SHARED))

EVENTS: Final = {event.value for event in JournalEvent}
STATES: Final = {state.value for state in State}
#: What a line of the journal says of a message that is no more.
GONE: Final = "gone"


def _scripts() -> dict[str, Script]:
    found: dict[str, Script] = {}
    for module in pkgutil.iter_modules(restante.core.__path__, "restante.core."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Script):
                found[value.name] = value
    return found


SCRIPTS: Final = _scripts()


def code(name: str) -> str:
    """A file without its comments."""
    return "\n".join(re.sub(r"--.*", "", line) for line in LUA[name].splitlines())


def header(name: str, word: str) -> str:
    """What the header says after a word such as KEYS, its continued lines joined."""
    found = re.search(rf"^-- {word}(.*(?:\n--  +.*)*)", LUA[name], re.MULTILINE)
    assert found is not None, f"{name}.lua does not document {word}"
    return re.sub(r"\n--\s+", " ", found.group(1)).strip()


def keys_of(name: str) -> str:
    """What the header says of KEYS, without remarks in brackets or about a last one that not every caller gives."""
    said = re.sub(r"\([^)]*\)", "", header(name, "KEYS:"))
    return re.sub(r", and (\w+) (?:where|as) .*", r" \1", said).strip()


def strings(text: str) -> set[str]:
    """Every quoted text in a piece of Lua."""
    return set(re.findall(r"'([^'\n]*)'", text))


def events_written(name: str) -> set[str]:
    """The events a file counts, names in a line, or puts in front of one."""
    text = code(name)
    found = set(re.findall(r"\b(?:advance|line)\('(\w+)'", text))
    # Where a line is pasted together: '1\tevent\t…'.
    found |= set(re.findall(r"'1\\t(\w+)\\t", text))
    return found


def journal_words(name: str) -> set[str]:
    said = header(name, "Journal:")
    return set() if said == "none" else set(re.findall(r"\w+", said)) & EVENTS


# The events that a file leaves to what is shared, and those its caller names.
SHARED_EVENTS: Final = {
    "ack": {"acked"},
    "ack_result": {"acked"},
    "receive": {"acked", "promoted", "expired", "deleted"},
    "batch_seal": {"sent"},
    "batch_count": {"sent"},
    "configure": {"configured", "paused", "resumed"},
    "tick": {"sent"},
}


class TestWords:
    def test_every_event_is_written_by_some_script_and_no_other_is(self) -> None:
        written = {event for name in LUA for event in events_written(name)} | SHARED_EVENTS["configure"]
        assert written == EVENTS

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_header_names_the_events_its_script_writes(self, verb: str) -> None:
        own = events_written(verb)
        named = journal_words(verb)
        assert own <= named
        # Orphans are dropped on the way of a receive and need no mention.
        assert named <= own | SHARED_EVENTS.get(verb, set())

    def test_the_scripts_name_every_state_and_no_word_that_is_not_one(self) -> None:
        told: set[str] = set()
        for name in LUA:
            text = code(name)
            # The second argument of line(): 'state', or a choice between two.
            for choice in re.findall(r"\bline\('\w+',\s*([^,]+),", text):
                told |= strings(choice)
            told |= set(re.findall(r"'1\\t\w+\\t(\w+)\\t", text))
            told |= strings(" ".join(re.findall(r"keep > 0 and ('\w+' or '\w+')", text)))
            told |= strings(" ".join(re.findall(r"states\[\w+\] = (.+)", text)))
            told |= strings(" ".join(re.findall(r"local state, due = (.+?),", text)))
        letters = {*STATE_LETTERS.values(), "g", ""}
        assert told - letters <= STATES | {GONE}
        named = {word for name in LUA for word in strings(code(name))} | {
            word for name in LUA for word in re.findall(r"\b(\w+) = KEYS\[", code(name))
        }
        pasted = {word for name in LUA for text in strings(code(name)) for word in re.findall(r"\\t(\w+)", text)}
        assert named | pasted >= STATES

    def test_unique_keys_are_held_by_the_letters_of_the_states(self) -> None:
        used: set[str] = set()
        for name in LUA:
            places = re.findall(r"hold_unique\([^\n]*\)|states\[k\] = .+", code(name))
            used |= {word for place in places for word in strings(place) if len(word) == 1}
        assert used == {*STATE_LETTERS.values(), "g"}, "g stands for gone and is in no message's letters"
        assert len(set(STATE_LETTERS.values())) == len(State)
        assert set(STATE_LETTERS) == set(State)

    def test_a_line_of_the_journal_has_the_columns_python_reads(self) -> None:
        head = re.search(r"local function line\(([^)]*)\)", LUA["moves"])
        assert head is not None
        # facts stands for sent_at, kind, priority and size; the format is put in front.
        words = [word.strip() for word in head.group(1).split(",")]
        assert words == ["event", "state", "now", "id", "facts", "attempts", "consumer", "due", "class", "detail"]
        assert len(COLUMNS) == 1 + len(words) + 3
        body = re.search(r"local function line.*?\{(.*?)\}", LUA["moves"], re.DOTALL)
        assert body is not None
        assert [word.strip() for word in body.group(1).split(",")] == ["1", *words]


class TestLifecycle:
    def test_every_state_is_entered_and_left(self) -> None:
        entered = {state for row in LIFECYCLE for state in row.targets}
        left = {state for row in LIFECYCLE for state in row.sources}
        assert entered == {*State, None}
        assert left == {*State, None}

    def test_every_event_that_moves_a_message_has_one_row(self) -> None:
        standing = {JournalEvent.EDITED, JournalEvent.CONFIGURED, JournalEvent.PAUSED, JournalEvent.RESUMED}
        events = [row.event for row in LIFECYCLE]
        assert set(events) == set(JournalEvent) - standing
        assert len(events) == len(set(events))

    def test_a_verb_s_event_is_its_past_participle(self) -> None:
        irregular = {"send": "sent", "bury": "buried", "reclaim": "expired", "cancel": "cancelled"}
        for row in LIFECYCLE:
            regular = row.verb + ("d" if row.verb.endswith("e") else "ed")
            assert row.event == irregular.get(row.verb, regular)

    @pytest.mark.parametrize("row", LIFECYCLE, ids=lambda row: row.verb)
    def test_the_script_of_a_row_tells_its_event(self, row: object) -> None:
        found = next(other for other in LIFECYCLE if other is row)
        # Promote and reclaim have no script of their own: any receive does them on its way.
        script = found.verb if found.verb in LUA else "receive"
        assert found.event in journal_words(script)

    def test_the_vocabulary_s_table_is_this_table(self) -> None:
        """The rows of the lifecycle as the vocabulary writes them; a change there is a change here."""
        rows = {row.verb: (row.sources, row.targets) for row in LIFECYCLE}
        waiting = frozenset({State.SCHEDULED, State.RETRYING})
        leased = frozenset({State.LEASED})
        assert rows == {
            "send": (frozenset({None}), frozenset({State.READY, State.SCHEDULED})),
            "promote": (waiting, frozenset({State.READY})),
            "receive": (frozenset({State.READY}), leased),
            "ack": (leased, frozenset({None, State.DONE})),
            "nack": (leased, frozenset({State.RETRYING, State.DEAD})),
            "bury": (leased, frozenset({State.DEAD})),
            "release": (leased, frozenset({State.READY, State.SCHEDULED})),
            "extend": (leased, leased),
            "reclaim": (leased, frozenset({State.READY, State.DEAD})),
            "replay": (frozenset({State.DEAD}), frozenset({State.READY})),
            "delete": (frozenset(State) - leased, frozenset({None})),
            "purge": (frozenset(State) - leased, frozenset({None})),
            "revoke": (leased, frozenset({State.READY})),
            "cancel": (waiting | leased | {State.READY}, frozenset({None})),
        }


class TestScripts:
    def test_every_file_is_a_script_and_every_script_a_file(self) -> None:
        assert sorted(SCRIPTS) == VERBS

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_prelude_and_the_parts_of_a_verb_are_in_its_script_once_and_before_it(self, verb: str) -> None:
        made = SCRIPTS[verb].text.decode()
        names = ("prelude", "moves", *PARTS.get(verb, ()), verb)
        places = [made.index(LUA[name]) for name in names]
        assert places == sorted(places)
        assert [name for name in LUA if made.count(LUA[name])] == [name for name in LUA if name in names]
        assert all(made.count(LUA[name]) == 1 for name in names)

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_verb_has_exactly_the_parts_that_it_requires(self, verb: str) -> None:
        said = {name: set(re.findall(r"require\('(\w+)'\)", code(name))) for name in LUA}
        whole = said[WHOLE[verb]] if verb in WHOLE else set()
        assert (said[verb] | whole) - {"moves"} == set(PARTS.get(verb, ()))
        # The prelude requires moves.lua, so that is in every script; a part may require nothing else.
        assert said["prelude"] | set().union(*(said[part] for part in SHARED)) <= {"moves"}

    @pytest.mark.parametrize("name", SHARED)
    def test_what_is_shared_knows_no_key_but_the_first_two(self, name: str) -> None:
        bound = re.findall(r"KEYS\[([^\]]+)\]", code(name))
        assert bound == (["1", "2"] if name == "prelude" else [])

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_verb_takes_only_moves_that_there_are(self, verb: str) -> None:
        _, _, table = code("moves").rpartition("return {")
        offered = dict(re.findall(r"(\w+) = (\w+)", table))
        assert all(name == value for name, value in offered.items())
        used = set(re.findall(r"\bm\.(\w+)\(", "".join(map(code, (verb, *PARTS.get(verb, ()))))))
        assert used <= offered.keys()

    def test_the_packed_settings_are_written_and_read_in_one_order(self) -> None:
        reader = re.search(r"function read_settings(.*?)^end$", code("prelude"), re.MULTILINE | re.DOTALL)
        kept = re.search(r"local kept = call\('HMGET', queue,(.*?)\)", LUA["configure"], re.DOTALL)
        assert reader is not None
        assert kept is not None
        order = re.findall(r"'(\w+)'", kept.group(1))
        pattern = re.search(r"string\.match\(packed,\s*'(.*)'\)", reader.group(1))
        names = re.search(r"local version, ([\w,\s]+) = string\.match", reader.group(1))
        assert pattern is not None
        assert names is not None
        assert pattern.group(1).count("(") == 1 + len(order)
        read = re.findall(r"\w+", names.group(1))
        assert [{"journal_level": "journal"}.get(word, word) for word in read] == order
        table = dict(re.findall(r"(\w+) = (\w+)", reader.group(1).rpartition("return {")[2]))
        assert table == {word: word for word in ("version", *read) if word != "journal_level"}
        for name in LUA:
            assert set(re.findall(r"\bset\.(\w+)", code(name))) <= table.keys(), f"{name}.lua reads another setting"
        assert {name for name in VERBS if "read_settings" in code(name)} == {"ack", "ack_result", "receive", "send"}

    def test_the_journal_s_levels_are_those_of_the_setting(self) -> None:
        said = re.search(r"How much the journal keeps \(([^)]*)\)", LUA["prelude"])
        assert said is not None
        assert tuple(said.group(1).split(", ")) == JOURNAL_LEVELS
        assert strings(" ".join(re.findall(r"level [=~]= ('\w+')", code("prelude")))) < set(JOURNAL_LEVELS)

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_header_documents_the_keys_in_the_order_they_are_given(self, verb: str) -> None:
        said = keys_of(verb).replace(",", " ").split()
        given = list(SCRIPTS[verb].keys)
        assert said[: len(given)] == given
        rest = " ".join(said[len(given) :])
        # What the caller adds: the index of a state, the keys of another queue, or those of a lease journal.
        record = {"batch_open": "batch", "batch_add": "batch members", "batch_seal": "batch members"}
        counted = {"batch_show": "batch members", "batch_count": "batch members source"}
        added = {
            **record,
            **counted,
            "hold": "leases",
            "claim": "record",
            "clear": "leases verdicts",
            **dict.fromkeys(VERDICTS, "verdicts"),
        }
        if verb in added:
            assert rest == added[verb]
        else:
            assert rest == "" or rest.startswith(("zset-of-the-state", "of the source then queue journal"))

    def test_the_verdicts_remembered_are_those_a_lease_may_get(self) -> None:
        told = {verb: re.findall(r"decided\([^,]+, '(\w+)'", code(verb)) for verb in VERBS}
        assert {verb: words for verb, words in told.items() if words} == {verb: [verb] for verb in VERDICTS}

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_header_says_what_goes_in_and_what_comes_out(self, verb: str) -> None:
        first = LUA[verb].splitlines()[0]
        assert re.fullmatch(r"-- [A-Z].*[.,]|-- [A-Z].*", first)
        for word in ("ARGV:", "Returns", "Journal:"):
            assert header(verb, word)

    @pytest.mark.parametrize("verb", VERBS)
    def test_every_key_is_bound_to_a_word_before_the_first_call(self, verb: str) -> None:
        text = code(verb)
        top = text.partition("call(")[0]
        bound = [int(number) for number in re.findall(r"KEYS\[(\d+)\]", top)]
        used = re.findall(r"KEYS\[([^\]]+)\]", text)
        assert len(used) == len(bound), f"{verb}.lua uses KEYS after its first lines"
        said = keys_of(verb)
        count = len(re.sub(r"of the source, then|of the target", "", said).split())
        assert sorted(bound) == list(range(3, count + 1)), "the first two are bound by the prelude"

    @pytest.mark.parametrize("verb", VERBS)
    def test_every_fixed_argument_is_bound_to_a_word_at_the_top(self, verb: str) -> None:
        _, _, below = code(verb).partition("call('HMGET', queue")
        late = [line.strip() for line in below.splitlines() if re.search(r"ARGV\[\d+\]", line)]
        # A check of a number names the raw argument, since that is what it refuses.
        assert [line for line in late if "whole(" not in line] == []

    @pytest.mark.parametrize("name", sorted(LUA))
    def test_no_script_names_a_key_by_itself(self, name: str) -> None:
        text = code(name)
        assert "restante:" not in text
        for command in re.findall(r"call\('\w+',\s*('[^']*')", text):
            pytest.fail(f"{name}.lua gives a command the key {command}")

    @pytest.mark.parametrize("name", sorted(LUA))
    def test_no_script_asks_the_clock_but_by_the_one_function(self, name: str) -> None:
        assert code(name).count("'TIME'") == (1 if name == "prelude" else 0)


class TestKeys:
    def test_every_state_has_its_index(self) -> None:
        assert set(NAMES) >= STATES
        assert all(TYPES[state] == "zset" for state in STATES)

    def test_every_key_has_a_type_and_lives_in_the_queue_s_slot(self) -> None:
        assert {*NAMES, "leases", "verdicts", "batch", "members", "queues"} == set(TYPES)
        keys = QueueKeys("orders")
        assert all(keys[name] == f"restante:{{orders}}:{name}".encode() for name in NAMES)

    def test_a_lease_journal_lives_in_the_queue_s_slot_and_in_no_other_consumer_s_key(self) -> None:
        keys = QueueKeys("orders")
        assert keys.lease_journal("host:1") == (
            b"restante:{orders}:leases:host:1",
            b"restante:{orders}:verdicts:host:1",
        )
        others = [*keys.by_name.values(), *keys.lease_journal("host"), *keys.lease_journal("host:1")]
        assert len(set(others)) == len(others)

    def test_every_key_a_script_asks_for_is_one_of_the_table(self) -> None:
        assert {key for script in SCRIPTS.values() for key in script.keys} <= set(NAMES)


class TestPages:
    """The dashboard and the API speak the same words."""

    folder = Path(__file__).parents[2] / "dashboard" / "src"

    def test_the_dashboard_has_every_state_and_event(self) -> None:
        text = (self.folder / "lifecycle.ts").read_text()
        for name, words in (("STATES", STATES), ("EVENTS", EVENTS)):
            found = re.search(rf"{name} = \[(.*?)\]", text, re.DOTALL)
            assert found is not None
            assert set(re.findall(r'"(\w+)"', found.group(1))) == words

    def test_the_stylesheet_has_a_colour_for_every_state(self) -> None:
        text = (self.folder / "styles" / "tokens.css").read_text()
        assert set(re.findall(r"\.state-(\w+)", text)) == STATES | {GONE}
        for state in STATES:
            assert len(re.findall(rf"--{state}: #", text)) >= 2, f"{state} in light and dark"

    def test_the_api_describes_every_state_and_event(self) -> None:
        known = create_app("redis://localhost:1")._app.openapi()["components"]["schemas"]  # type: ignore[attr-defined]
        assert set(known["State"]["enum"]) == STATES
        assert set(known["JournalEvent"]["enum"]) == EVENTS
        assert set(known["StateCounts"]["properties"]) == STATES
