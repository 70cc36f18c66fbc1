"""Errors as text: the traceback that is stored with a failed attempt, and the place that a log line names."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

#: Share of a stored error that the text of the exception may fill if frames must be left out: a long text, such as a
#: whole response, would leave no room for the places that led to it.
TEXT_SHARE = 0.25
#: Folders of code that is not the user's: the standard library, installed packages and this room.
_FOREIGN = tuple(
    {f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {f"{Path(__file__).resolve().parent}/"}
)


def error_text(error: BaseException, most: int) -> str:
    """The traceback of an error in at most `most` characters: the innermost frames stay whole, outer ones are left out.

    The frames of the consumer that called the handler are left out too.
    """
    whole = traceback.TracebackException(type(error), error, _inner(error.__traceback__))
    text = "".join(whole.format())
    if len(text) <= most:
        return text
    exception = "".join(whole.format_exception_only())
    share = int(most * TEXT_SHARE)
    if len(exception) > share:
        exception = exception[: share - 2] + "…\n"
    frames = whole.stack.format()
    head = "Traceback (most recent call last):\n"
    room = most - len(head) - len("  … 9999 outer frames are left out\n") - len(exception)
    kept: list[str] = []
    while frames and len(frames[-1]) <= room:
        room -= len(frames[-1])
        kept.insert(0, frames.pop())
    left_out = f"  … {len(frames)} outer frames are left out\n" if frames else ""
    return f"{head}{left_out}{''.join(kept)}{exception}"[-most:]


def place(error: BaseException) -> str:
    """File and line of the innermost frame of the program's own code, else of the innermost one; empty without any."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not _is_foreign(frame.filename)]
    if not frames:
        return ""
    frame = ours[-1] if ours else frames[-1]
    return f"{frame.filename}:{frame.lineno}"


def log_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The error as `exc_info` of a log call, without the frames of the consumer that called the handler."""
    return type(error), error, _inner(error.__traceback__)


def stack_traceback(frame: FrameType | None) -> TracebackType | None:
    """The stack of a running thread as a traceback, so that an error can show where the thread is."""
    found: TracebackType | None = None
    while frame is not None:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return _inner(found)


def coroutine_traceback(coroutine: Any) -> TracebackType | None:
    """Where a coroutine waits as a traceback: its own frame and those of the coroutines that it awaits."""
    frames: list[FrameType] = []
    while coroutine is not None:
        for own, awaited in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            frame = getattr(coroutine, own, None)
            if frame is not None:
                frames.append(frame)
                coroutine = getattr(coroutine, awaited)
                break
        else:
            break
    found: TracebackType | None = None
    for frame in reversed(frames):
        found = TracebackType(found, frame, max(frame.f_lasti, 0), frame.f_lineno)
    return _inner(found)


def thread_frame(ident: int | None) -> FrameType | None:
    """The innermost frame of a running thread."""
    return sys._current_frames().get(ident or 0)


def _inner(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that lead to the handler. If there are no others, the traceback."""
    inner = trace
    while inner is not None and _is_foreign(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or trace


def _is_foreign(file: str) -> bool:
    return file.startswith(_FOREIGN) or file.startswith("<")
