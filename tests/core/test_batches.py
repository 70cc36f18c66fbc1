"""Random walks over batches against a model of them, and faults in the scripts that the walks must notice."""

from __future__ import annotations

import pytest

from restante.core import batch_calls, operations
from restante.core.errors import RestanteError
from restante.core.scripts import Script
from tests.core.batch_walk import Walk
from tests.core.bench import Bench
from tests.core.test_mutants import Mutant, mutant
from tests.core.verbs import SCRIPTS

#: Walks of `make test` and of `make long`, and steps of each.
WALKS, LONG_WALKS, STEPS = 4, 200, 60
#: Of the planted faults `make test` tries one in so many.
ALWAYS = 5


def walk(bench: Bench, seed: int) -> None:
    bench.clear()
    made = Walk(bench, seed)
    try:
        made.play(STEPS)
        made.tell()
    finally:
        made.close()


@pytest.mark.parametrize(
    "seed", [*range(WALKS), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(WALKS, LONG_WALKS))]
)
def test_what_is_counted_is_what_happened(debian: Bench, seed: int) -> None:
    walk(debian, seed)


ENDED = "m.note(outbox, limits, id, "
MUTANTS = (
    mutant("an ack is not noted", "ack receive", (ENDED + "'acked', '', now, base + count)", "")),
    mutant(
        "a dead message is not noted", "bury nack receive", ("note(k.outbox, d.limits, id, 'dead', class, now)", "")
    ),
    mutant("a cancel is not noted", "cancel", (ENDED + "'cancelled', '', now)", "")),
    mutant("a delete is not noted", "delete", (ENDED + "target and 'moved' or 'deleted', target or '', now)", "")),
    mutant("a purge is not noted", "purge", ("m.note(outbox, limits, id, 'purged', '', now)", "local _ = id")),
    mutant("a replay is not noted", "replay", (ENDED + "'replayed', '', now)", "")),
    mutant("a move is not noted", "move", (ENDED + "'moved', target, now)", "")),
    mutant("a lapsed message is not noted", "receive", (ENDED + "'lapsed', 'Lapsed', now, base + i)", "")),
    mutant(
        "the outbox has no hint", "ack bury receive", ("call('HSET', queue, 'due', format('%d', now + CARRY_MS))", "")
    ),
    mutant(
        "a sweep does not look into the outbox",
        "receive",
        ("if #entries == 0 then return nil end", "do return nil end"),
    ),
    mutant(
        "announced messages are forgotten",
        "receive",
        ("if not at or tonumber(at) <= now then", "if not at then"),
    ),
    mutant(
        "entries counted twice",
        "batch_count",
        (
            "if sequence <= tonumber(place == source and last or left_with(k, id, source)) then return end",
            "",
        ),
    ),
    mutant(
        "news of a queue that the message has left",
        "batch_count",
        ("(place == source and last or left_with(k, id, source))", "(place == source and last or '0')"),
    ),
    mutant("a late move counts", "batch_count", ("if returns and place ~= source then return end", "")),
    mutant(
        "a moved message keeps its number", "batch_count", ("to, upto = class, left_with(k, id, class)", "to = class")
    ),
    mutant("an ended message is not counted off", "batch_count", ("call('HINCRBY', k.batch, before, -1)", "")),
    mutant("the end without its sealing", "batch_count", ("(state ~= 'running' and state ~= 'cancelled')", "false")),
    mutant(
        "a batch ends again after a replay",
        "batch_count",
        ("if ended or (tonumber(pending)", "if (tonumber(pending)"),
        ("(state ~= 'running' and state ~= 'cancelled')", "state == 'open'"),
        ("if state == 'running' then", "if true then"),
    ),
    mutant(
        "the end before the last message",
        "batch_count",
        ("(tonumber(pending) or 0) > 0", "(tonumber(pending) or 0) > 1"),
    ),
    mutant("an empty batch does not end", "batch_seal", ("b.finish(k, name, now)", "")),
    mutant(
        "a child does not tell its parent",
        "batch_count",
        ("m.note(k.outbox, '\\t\\t\\t\\t' .. record.parent", "local _ = ({ record.parent"),
    ),
    mutant(
        "every dead message sends an alarm",
        "batch_count",
        ("call('HSETNX', k.batch, 'first_dead_at', format('%d', now)) == 1", "true"),
    ),
    mutant("a message that was never sent stays", "batch_seal", ("b.leave_out(k, ARGV[i])", "local _ = i")),
    mutant(
        "a batch takes messages after its end",
        "batch_add",
        ("if state ~= 'open' and state ~= 'running' then return -1 end", ""),
    ),
    mutant(
        "what was carried stays in the outbox",
        "batch_count",
        ("call('ZREM', outbox, unpack(ARGV, 3))", "local _ = outbox"),
    ),
)


def planted(monkeypatch: pytest.MonkeyPatch, fault: Mutant) -> None:
    """Puts the fault into the scripts that the clients of this process call."""
    for verb, script in fault.plant().items():
        original: Script = SCRIPTS[verb]
        monkeypatch.setattr(original, "text", script.text)
        monkeypatch.setattr(original, "sha", script.sha)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name.replace(" ", "-"), marks=[pytest.mark.chaos] if number % ALWAYS else [])
        for number, fault in enumerate(MUTANTS)
    ],
)
def test_a_fault_in_a_script_is_noticed(debian: Bench, monkeypatch: pytest.MonkeyPatch, fault: Mutant) -> None:
    assert {operations.ACK, batch_calls.BATCH_COUNT} <= set(SCRIPTS.values())
    planted(monkeypatch, fault)

    def walks() -> None:
        for seed in range(40):
            walk(debian, seed)

    with pytest.raises((AssertionError, RestanteError)):
        walks()
