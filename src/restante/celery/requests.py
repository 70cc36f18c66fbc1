"""Changes Celery's requests in a worker's main process: eta is not waited for twice, failures become dead letters.

On failure to send the verdict Celery logs the error, and the message is delivered again when its lease ends.
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
    """The value of an `acks_on_…` setting that neither app nor task has set. It is true, as Celery's default is."""


#: `install` replaces Celery's default by this value, to distinguish it from a choice. It is an int because Celery shows
#: and pickles its settings.
UNSET = Unset(True)


def skip_eta(request: Any, **_: Any) -> None:
    """Makes the worker run a received task at once: the broker has waited for its eta already.

    The worker would wait again if its clock is behind the broker's. The task itself sees the eta that was sent.
    """
    message = request._message
    if isinstance(message, Message) and message.leased is not None:
        request._eta = None


def trust_broker_delays() -> None:
    """Makes the workers of this process run received tasks at once; further calls change nothing."""
    signals.task_received.connect(skip_eta, weak=False, dispatch_uid="restante.celery.skip_eta")


class DeadLetters(Request):
    """A request whose message becomes dead, with the error, when its task has failed for good.

    Retries, `Ignore`, `Reject`, revoked tasks and lost pool processes end as they do in Celery.
    """

    #: Why the task failed, while Celery decides about the message.
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
            # A worker that must end at once has not given the task its time: the message is requeued.
            self.reject(requeue=bool(state.should_terminate))
        else:
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        if self._failure is not None and not self.acknowledged:
            self._message.failure = self._failure
        super().reject(requeue)


def bury_failures(app: Celery) -> None:
    """Gives the tasks of a worker `DeadLetters` requests, except those that have opted out."""
    for task in app.tasks.values():
        dead_letters = getattr(task, "dead_letters", None)
        if dead_letters is None:
            dead_letters = getattr(app, "restante_dead_letters", False)
        if not isinstance(dead_letters, bool):
            raise InvalidInput(f"dead_letters of task {task.name} must be True or False, not {dead_letters!r}")
        if not dead_letters:
            continue
        if isinstance(task.acks_on_failure, Unset):
            task.acks_on_failure = False
        request: Any = symbol_by_name(task.Request)
        if not issubclass(request, DeadLetters):
            task.Request = type(request.__name__, (DeadLetters, request), {"__module__": request.__module__})


_warned: set[str] = set()


def _warn_of_early_ack(task: str) -> None:
    if task not in _warned:
        _warned.add(task)
        log.warning("failed after an early ack, so there is no dead letter task=%s remedy=acks_late=True", task)
