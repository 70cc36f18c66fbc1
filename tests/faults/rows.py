"""One JSON line per row of the fault matrix: printed, and added to the file named by RESTANTE_ROWS if there is one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from restante import Admin, Post, State
from tests.harness import deadlines
from tests.harness.deadlines import PATIENCE, took_at_most


def verdict(
    row: int | str,
    *,
    n: int,
    lost: int = 0,
    dup: int = 0,
    early: int = 0,
    max_recovery_s: float = 0.0,
    within_s: float | None = None,
    dup_allowed: bool = False,
    **details: Any,
) -> None:
    """Says how a row went, then fails the test if it went badly. `dup` counts what nothing explains.

    `within_s` is a bound of time, for tests marked `timed`: see tests/harness/deadlines.py.
    """
    bad = bool(lost or early or (dup and not dup_allowed) or n <= 0)
    line = {
        "row": row, "n": n, "lost": lost, "dup": dup, "early": early, "max_recovery_s": round(max_recovery_s, 3),
        "verdict": "fail" if bad else "pass", **details,
    }  # fmt: skip
    text = json.dumps(line)
    print(text)
    if "RESTANTE_ROWS" in os.environ:
        with Path(os.environ["RESTANTE_ROWS"]).open("a") as file:
            file.write(text + "\n")
    assert not bad, text
    if within_s is not None:
        took_at_most(max_recovery_s, within_s, text)


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until it was true; fails when it does not become so, however busy the machine is."""
    started = time.monotonic()
    deadlines.wait_until(true, what, timeout=max(seconds, PATIENCE), poll=0.01)
    return time.monotonic() - started


def places(view: Admin, queue: str) -> dict[str, list[State]]:
    """Every message and the states it is in; one message in two states is a fault of its own."""
    found: dict[str, list[State]] = {}
    for state in State:
        for message in view.walk(queue, state):
            found.setdefault(message.id, []).append(state)
    return found


def drain(post: Post, queue: str) -> list[str]:
    """The ids of everything ready, each acked."""
    opened = post.queue(queue)
    found: list[str] = []
    while taken := opened.receive_many(1000):
        opened.ack_many(taken)
        found += [message.id for message in taken]
    return found


def missing(sent: Iterable[str], seen: Iterable[str]) -> int:
    return len(set(sent) - set(seen))
