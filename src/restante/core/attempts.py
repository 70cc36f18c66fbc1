"""Reads what the scripts store of a message's attempts: its delivery, and its history with the result.

Damaged values, which another program may have written, are read as if they were missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from restante.core.message import ENDED, EPOCH, Attempt, JournalEvent, Progress, State, moment
from restante.core.stored import decode_json


@dataclass(frozen=True, slots=True)
class Status:
    """Where a message is, as its sender sees it."""

    #: None if there is no such message: it has ended and was not kept, or was never sent.
    state: State | None
    #: Whether a message that is gone was acked within the dedup window.
    acked: bool = False
    attempts: int = 0
    #: How far its handler is, while it is leased.
    progress: Progress | None = None
    #: What a done message was acked with.
    result: Any = None
    #: The error of its last attempt.
    error_class: str = ""
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether no handler will run it any more."""
        return self.state is None or self.state in ENDED


def parse_status(state: bytes, delivery: bytes, line: bytes, acked: int) -> Status:
    """Reads the reply of status.lua."""
    known = State(state.decode()) if state else None
    attempts = parse_delivery(delivery)[0] if delivery else 0
    last = parse_history(line)
    return Status(
        known,
        acked == 1,
        attempts,
        parse_progress(delivery) if known is State.LEASED else None,
        parse_result(line) if known is State.DONE else None,
        last[-1].error_class if last else "",
        last[-1].error if last else "",
    )


def parse_history(text: bytes) -> tuple[Attempt, ...]:
    """Parses the attempts of a history value, oldest first; skips lines that cannot be read."""
    attempts = []
    # Not splitlines(): an error's text may contain other characters that it takes for line ends.
    for line in text.decode("utf-8", "replace").split("\n"):
        try:
            attempt, received, ended, event, consumer, error_class, error = line.split("\t")
            if event == JournalEvent.ACKED:
                continue  # the line of a result
            ended_at, received_at = moment(int(ended)) or EPOCH, moment(int(received or 0))
            error_text = str(orjson.loads(error))
            attempts.append(
                Attempt(int(attempt), received_at, ended_at, JournalEvent(event), consumer, error_class, error_text)
            )
        except ValueError:
            continue
    return tuple(attempts)


def parse_result(history: bytes) -> Any:
    """The result of a done message, in the last line of its history; None if it has none."""
    parts = history.rstrip(b"\n").rpartition(b"\n")[2].split(b"\t")
    if len(parts) != 7 or parts[3] != b"acked":
        return None
    try:
        return decode_json(parts[6])
    except ValueError:
        return None


def parse_progress(delivery: bytes) -> Progress | None:
    """How far the handler of a leased message is, if it has noted it. moves.lua describes the layout."""
    *_, note = delivery.split(b"\n", 4)
    try:
        at, _, text = note.partition(b"\t")
        fraction, step = orjson.loads(text)
        return Progress(float(fraction), str(step), moment(int(at)) or EPOCH) if delivery.count(b"\n") > 3 else None
    except (ValueError, TypeError):
        return None


def parse_delivery(text: bytes) -> tuple[int, str, int, int]:
    """Returns attempts, consumer, received_at and replays of a delivery; zeros if there is none or it is unreadable.

    moves.lua describes the layout.
    """
    try:
        _, facts, place, _, *_ = text.decode("utf-8", "replace").split("\n")
        *_, attempts, consumer = facts.split("\t")
        _, received, replays = place.split("\t")
        return int(attempts), consumer, int(received or 0), int(replays)
    except ValueError:
        return 0, "", 0, 0
