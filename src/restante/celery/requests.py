"""Celery's requests in a worker's main process: delays that are over, and failures that become dead letters.

On failure to tell the broker Celery logs it, and the message comes again when its lease ends.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded
from celery import Celery, signals
from celery.worker import state
from celery.worker.request import Request
from kombu.utils.imports import symbol_by_name

from restante.celery.messages import Message
from restante.core.errors import InvalidInput
from restante.core.message import RemoteError

log = logging.getLogger("restante")


class Unset(int):
    """The value of an `acks_on_…` setting that neither app nor task has chosen. True, as Celery's default is."""


#: What `install` puts in place of Celery's default, to tell it from a choice. An int, since Celery shows and pickles
#: its settings.
UNSET = Unset(True)


def skip_eta(request: Any, **_: Any) -> None:
    """Keeps a worker from waiting for an eta that the broker has waited for, by a clock that may differ from its own.

    The task itself sees the eta that was sent.
    """
    message = request._message
    if isinstance(message, Message) and message.leased is not None:
        request._eta = None


def watch() -> None:
    """Makes the workers of this process trust the broker's delays; once is enough."""
    signals.task_received.connect(skip_eta, weak=False, dispatch_uid="restante.celery.skip_eta")


class DeadLetters(Request):
    """A request whose message is dead, with the error, once its task has failed for good.

    Retries, `Ignore`, `Reject`, revoked tasks and lost pool processes end as Celery has it.
    """

    #: Why it failed, while Celery decides about the message.
    _failure: RemoteError | None = None
    _timed_out = False

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        self._failed(error, str(exc_info.traceback), isinstance(error, TimeLimitExceeded))
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            self._failure, self._timed_out = None, False

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if soft:
            return super().on_timeout(soft, timeout)
        self._failed(TimeLimitExceeded(timeout), f"TimeLimitExceeded: the hard time limit is {timeout} s", True)
        try:
            return super().on_timeout(soft, timeout)
        finally:
            self._failure, self._timed_out = None, False

    def _failed(self, error: BaseException, text: str, timed_out: bool) -> None:
        self._failure, self._timed_out = RemoteError(type(error).__name__, text), timed_out
        if self.acknowledged and not self.task.acks_late:
            _warn_of_early_ack(self.task.name)

    def acknowledge(self) -> None:
        if self._timed_out and isinstance(self.task.acks_on_timeout, Unset) and not self.acknowledged:
            # A worker that is told to end at once has not given the task its time.
            self.reject(requeue=bool(state.should_terminate))
        else:
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        if self._failure is not None and not self.acknowledged:
            self._message.failure = self._failure
        super().reject(requeue)


def bury_failures(app: Celery) -> None:
    """Gives every task of a worker that has dead letters such requests."""
    for task in app.tasks.values():
        wanted = getattr(task, "dead_letters", None)
        if wanted is None:
            wanted = getattr(app, "restante_dead_letters", False)
        if not isinstance(wanted, bool):
            raise InvalidInput(f"dead_letters of task {task.name} must be True or False, not {wanted!r}")
        if not wanted:
            continue
        if isinstance(task.acks_on_failure, Unset):
            task.acks_on_failure = False
        chosen: Any = symbol_by_name(task.Request)
        if not issubclass(chosen, DeadLetters):
            task.Request = type(chosen.__name__, (DeadLetters, chosen), {"__module__": chosen.__module__})


_warned: set[str] = set()


def _warn_of_early_ack(task: str) -> None:
    if task not in _warned:
        _warned.add(task)
        log.warning("failed after an early ack, which leaves no dead letter task=%s remedy=acks_late=True", task)
