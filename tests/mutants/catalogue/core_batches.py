"""Faults planted in batches: what is buffered, added, announced, carried, cancelled and repaired."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_BATCHES = "tests/contract/test_batches.py"


def _fault(name: str, where: str, old: str, new: str, test: str) -> Fault:
    return Fault("core", name, where, old, new, (_BATCHES, "-k", f"{test} and sync"))


FAULTS: Final = (
    _fault("a block that raises sends", "Batch.__exit__", "self._abandon()", "self.commit()", "nothing_is_sent"),
    _fault("a block sends at once", "_Filling._buffering", 'self._stage == "committed"', "True", "nothing_is_sent"),
    _fault("a batch takes the ids of others", "_Batch._entry", "draft.id is not None", "False", "misuse"),
    _fault("a batch sends for another client", "_Batch._queue", "is not self._client", "is None", "misuse"),
    _fault(
        "what a unique key refused is waited for", "_send", "left_out.append(str(id))", "pass", "a_unique_key_refuses"
    ),
    _fault(
        "an inner batch does not know the outer",
        "_Filling.__init__",
        '"parent": str(self._parent or "")',
        '"parent": ""',
        "a_parent_ends",
    ),
    _fault("a block is not sealed", "_Filling._committing", '"seal"', '"confirm"', "an_empty_batch"),
    _fault(
        "what was announced stays announced",
        "_Batch._adding",
        "if announced or left_out:",
        "if left_out:",
        "a_handler_adds",
    ),
    _fault("what is missing stays in the batch", "_ask", "[id for _, id in missing]", "[]", "announced_and_never_sent"),
    _fault(
        "entries are not carried",
        "carrying",
        "yield from carry(ref.name, entries, together)",
        "yield from ()",
        "comes_after",
    ),
    _fault(
        "an end with a delay is accepted",
        "end_fields",
        "if getattr(draft, option):",
        "if False:",
        "options_that_cannot_be",
    ),
    _fault(
        "a cancel forgets the batches inside", "cancelling", 'if "/" in id)', "if False)", "takes_its_messages_with_it"
    ),
    _fault(
        "a cancel counts what had ended",
        "cancelling",
        "state not in (None, *ENDED)",
        "True",
        "counts_only_what_was_sent",
    ),
    _fault("a resume seals nothing", "resuming", '"seal"', '"confirm"', "producer_died"),
    _fault(
        "an edit takes a message out of its batch",
        "Admin.edit",
        "batch=stored.batch",
        "batch=None",
        "an_edited_message",
    ),
    _fault(
        "a move to another server ends a message", "Admin._move_apart", "\\tmoved to", "moved to", "a_moved_message"
    ),
)
