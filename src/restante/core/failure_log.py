"""Writes a line to the log for each failed attempt: the error, where it was raised, what becomes of the message."""

from __future__ import annotations

import logging

from restante.core.hooks import Hook
from restante.core.message import Message, State
from restante.core.tracebacks import log_info, place

log = logging.getLogger("restante")


class FailureLog(Hook):
    """Logs failures: a warning while the message is tried again, an error with the traceback when it is dead."""

    def failed(self, message: Message, error: BaseException, state: State | None) -> None:
        """One line; `at` is the innermost place in the program's own code."""
        word = {State.DEAD: "dead", State.RETRYING: "nacked"}.get(state, "failed") if state else "failed"
        log.log(
            logging.ERROR if state is State.DEAD else logging.WARNING,
            "%s queue=%s id=%s attempt=%d at=%s error=%s: %s",
            word,
            message.queue,
            message.id,
            message.attempts,
            place(error) or "-",
            type(error).__name__,
            error,
            exc_info=log_info(error) if state is State.DEAD else None,
        )
