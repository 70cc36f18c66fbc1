"""The verbs of operators that need no lease, as operations: delete, revoke and cancel messages by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from restante.core.message import State
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Argument, Script, ScriptCall

DELETE = Script(
    "delete", "queue journal messages deliveries history ready scheduled retrying dead done leased unique outbox"
)
REVOKE = Script("revoke", "queue journal deliveries history ready leased unique marker")
CANCEL = Script(
    "cancel",
    "queue journal messages deliveries history ready scheduled retrying leased dead done unique marker cancelled "
    "outbox",
)


def delete(ref: QueueRef, /, ids: Sequence[str], *, operator: str, detail: str) -> ScriptCall[list[bytes]]:
    """Deletes messages by id; returns the state of each before, `leased` for one that stays, nothing for an unknown."""
    args: list[Argument] = [operator, detail, *ids]
    return ScriptCall(DELETE, ref.keys.group(DELETE.keys), args, lambda states: states, ref.name)


def revoke(ref: QueueRef, /, ids: Sequence[str], *, operator: str, detail: str) -> ScriptCall[list[bool]]:
    """Takes leased messages back from their consumers; returns which of them were leased."""
    args: list[Argument] = [operator, detail, *ids]
    return ScriptCall(
        REVOKE, ref.keys.group(REVOKE.keys), args, lambda moved: [count == 1 for count in moved], ref.name
    )


def cancel_many(ref: QueueRef, /, ids: Sequence[str], *, operator: str, detail: str) -> ScriptCall[list[State | None]]:
    """Gives messages up; returns the state of each before, dead or done for one that has ended and stays."""
    args: list[Argument] = [operator, detail, *ids]

    def parse(states: Any) -> list[State | None]:
        ref.noted.extend(states[len(ids) :])
        return [State(state.decode()) if state else None for state in states[: len(ids)]]

    return ScriptCall(CANCEL, ref.keys.group(CANCEL.keys), args, parse, ref.name)
