"""What the tests of the scripts share: a queue at hand, and the content of its keys spelled out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.core.bench import Bench
from tests.core.contents import Dump, changes, dump, violations
from tests.core.verbs import CONSUMER, RAW, Item, Verbs
from tests.harness.clock import START_MS as T

LEASE = 30_000


class Desk:
    """One queue with its settings made, and a way to say what a step changed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.verbs = Verbs(bench.connection)
        self.verbs.configure()

    def look(self, queue: str = "q") -> Dump:
        return dump(self.bench.client, queue)

    def changed_by(self, act: Callable[[], Any], answer: Any = ...) -> dict[str, Any]:
        """Does it, compares its answer if one is given, and tells what is different now."""
        before = self.look()
        reply = act()
        assert answer is ... or reply == answer
        after = self.look()
        assert violations(after) == []
        return changes(before, after)

    def wake(self) -> None:
        """Takes the marker, as the consumer does that it wakes."""
        self.bench.client.delete(self.verbs.keys["marker"])

    def advance(self, ms: int) -> None:
        self.bench.clock.advance(ms / 1000)


def message(item: Item, sequence: int, sent_at: int = T) -> dict[str, Any]:
    """What `messages` holds of it."""
    return {
        "sequence": sequence,
        "sent_at": sent_at,
        "kind": item.kind,
        "priority": item.priority,
        "limits": item.limits,
        "body": item.payload,
        "options": RAW,
    }


def delivery(
    item: Item,
    sequence: int,
    token: str = "",
    expires: int = 0,
    *,
    attempts: int = 1,
    received_at: int | str = T,
    replays: int = 0,
    sent_at: int = T,
    by: str = CONSUMER,
) -> dict[str, Any]:
    """What `deliveries` holds of it."""
    return {
        "lease_expires_at": expires,
        "token": token,
        "sent_at": sent_at,
        "kind": item.kind,
        "priority": item.priority,
        "size": len(item.payload),
        "attempts": attempts,
        "consumer": by,
        "sequence": sequence,
        "received_at": received_at,
        "replays": replays,
        "limits": item.limits,
    }


def line(
    event: str,
    state: str,
    item: Item | None,
    *,
    at: int = T,
    attempts: int = 0,
    by: str = "",
    due: int | str = "",
    error: str = "",
    detail: str = "",
    sent_at: int = T,
) -> dict[str, Any]:
    """One line of the journal."""
    return {
        "event": event,
        "state": state,
        "at": at,
        "message_id": item.id if item else "",
        "sent_at": sent_at if item else at,
        "kind": item.kind if item else "",
        "priority": item.priority if item else 0,
        "size": len(item.payload) if item else 0,
        "attempts": attempts,
        "consumer": by,
        "due_at": due,
        "error_class": error,
        "detail": detail,
    }


A = Item("a", b"\x00\xff\r\n", 3, kind="mail")
B = Item("b")
