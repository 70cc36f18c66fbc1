"""Records that let a message run once per subscription: taken before its handler, confirmed or released after it.

The same call writes to the journal what another broker does with a message, so that dashboard and Spark see it too. On
failure the caller gets the connection's typed error, and the message is retried.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from restante.core.journal import Line, Taken
from restante.core.keys import QueueKeys, once_key, reply_keys
from restante.core.scripts import Argument, Command, Script, ScriptCall

CLAIM = Script("claim", "queue journal")


#: Numbers the takes of this process; with its id, a take that is repeated is told from another one.
_takes = itertools.count(1)


def once(
    verb: str, keys: QueueKeys, id: str, attempts: int, window: float, line: Line | None = None, token: str = ""
) -> ScriptCall[Taken]:
    """Takes, confirms or releases a record, or only writes a line: verbs take, seize, confirm, release, note.

    `token` identifies the delivery that takes the record.
    """
    number = f"{os.getpid()}-{next(_takes)}" if token else ""
    args: list[Argument] = [verb, attempts, max(1, int(window * 1000)), token, number]
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
    return ScriptCall(CLAIM, (*keys.group(CLAIM.keys), once_key(keys.name, id)), args, Taken, keys.name)


def reply(token: str, answer: bytes, seconds: float) -> list[Command[Any]]:
    """Stores the reply to a call and wakes the caller; both keys expire by themselves.

    If it is repeated after a lost connection, the reply is stored twice and the caller takes the first.
    """
    answers, marker = reply_keys(token)
    span = int(seconds * 1000)
    return [
        Command(words, answers)
        for words in (
            ("RPUSH", answers, answer),
            ("PEXPIRE", answers, span),
            ("ZADD", marker, 0, 0),
            ("PEXPIRE", marker, span),
        )
    ]


def _plain(text: str) -> str:
    """Replaces tabs and line ends, which separate columns and lines of the journal."""
    return " ".join(text.split())[:200]
