"""Records by which a message runs once per subscription: taken at its start, confirmed or released at its end.

The same call notes in the journal what another broker does with a message, so that pages and Spark see it beside the
rest. On failure the caller gets the connection's typed error, and the message is tried again.
"""

from __future__ import annotations

from typing import Any

from restante.core.call_retry import Plain
from restante.core.journal import Line, Taken
from restante.core.keys import QueueKeys, once_key, reply_keys
from restante.core.operations import Argument, Operation, Script

CLAIM = Script("claim", "queue journal")


def once(
    verb: str, keys: QueueKeys, id: str, attempts: int, window: float, line: Line | None = None
) -> Operation[Taken]:
    """Takes, confirms or releases a record, or only notes a line: verbs take, seize, confirm, release, note."""
    args: list[Argument] = [verb, attempts, max(1, int(window * 1000))]
    if line is not None:
        args += (
            line.event.value,
            str(getattr(line.state, "value", line.state)),
            id,
            line.kind,
            line.priority,
            line.size,
            "" if line.sent_ms is None else line.sent_ms,
            line.consumer,
            "" if line.delay is None else int(line.delay * 1000),
            _plain(line.error_class),
            _plain(line.detail),
        )
    return Operation(CLAIM, (*keys.group(CLAIM.keys), once_key(keys.name, id)), args, Taken, keys.name)


def reply(token: str, answer: bytes, seconds: float) -> list[Operation[Any]]:
    """Puts an answer where its caller looks, then wakes the caller; both end by themselves.

    Repeated after a lost connection it is there twice, and the caller takes the first.
    """
    answers, marker = reply_keys(token)
    span = int(seconds * 1000)
    return [
        Plain(words, answers)
        for words in (
            ("RPUSH", answers, answer),
            ("PEXPIRE", answers, span),
            ("ZADD", marker, 0, 0),
            ("PEXPIRE", marker, span),
        )
    ]


def _plain(text: str) -> str:
    """A journal's line has no tabs and no line ends."""
    return " ".join(text.split())[:200]
