"""Runs a handler for one delivery, in a worker's pool process: takes the record, runs, confirms; or answers a call.

If the handler fails, the record is released and the broker keeps the message for its next attempt, or as dead.
"""

from __future__ import annotations

import gc
import itertools
import logging
import time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry

from restante.bus.broker import Answer
from restante.bus.delivery import Delivery
from restante.bus.handler import Handler
from restante.bus.schema import encode
from restante.core.errors import Declined, RestanteError
from restante.core.journal import Taken
from restante.core.message import MAX_ERROR, JournalEvent, State
from restante.core.tracebacks import error_text

if TYPE_CHECKING:
    from restante.bus.app import Bus

log = logging.getLogger("restante")

#: Failures between two collections of garbage. Celery's record of a failure is a reference cycle of tens of kilobytes,
#: and the collector, which counts objects and not bytes, would run only after a hundred megabytes of them.
FAILURES = 50
_failures = itertools.count(1)
#: Seconds until the next attempt of a message whose earlier delivery ended without a verdict.
RETRY_SECONDS = 1.0


def run(bus: Bus, handler: Handler, task: Any, packed: str, text: str) -> None:
    """Runs the handler for one delivery; an error that it raises is the verdict."""
    delivery = Delivery.parse(packed)
    if delivery.purpose == "event":
        handle(bus, handler, task, delivery, text)
    else:
        answer(bus, handler, task, delivery, text)


def handle(bus: Bus, handler: Handler, task: Any, delivery: Delivery, text: str) -> None:
    """Runs an event: at most once at a time, again after a failure, never again after a success."""
    envelope, name = delivery.envelope, handler.subscription
    if bus.worker_backend.is_over(delivery):
        log.info("expired subscription=%s id=%s", name, envelope.id)
        bus.note(delivery, JournalEvent.DELETED, "gone", detail="expired")
        return
    claim = bus.worker_backend.claim(handler, delivery)
    try:
        taken = claim.take(bus.worker_backend.line(delivery, JournalEvent.RECEIVED, State.LEASED))
    except RestanteError as error:
        # The handler has not run, so the event must not be dead because the store is away.
        pause = handler.retry_rule.policy.next(envelope.attempts) or RETRY_SECONDS
        raise Retry(f"the records of handled events cannot be reached: {error}", exc=error, when=pause) from None
    if taken is Taken.DONE:
        log.info("skipped reason=done subscription=%s id=%s", name, envelope.id)
        return
    if taken is Taken.ABANDONED:
        # The worker hands a job to a second process when the first died before the worker had read that it began.
        raise WorkerLostError("the process that began this event was killed")
    if taken is Taken.AT_WORK:
        _require_running(handler, delivery)
        log.info("skipped reason=running subscription=%s id=%s", name, envelope.id)
        return
    try:
        handler.run(task, envelope, handler.value(envelope, text))
    except (Ignore, Reject, Retry):
        release(bus, handler, delivery)
        raise
    except Exception as error:
        if next(_failures) % FAILURES == 0:
            gc.collect()
        release(bus, handler, delivery)
        delay = handler.retry_rule.delay(envelope.attempts, error)
        if delay is None:
            raise
        text = error_text(error, MAX_ERROR)
        # Without its traceback, whose frames would keep themselves and their variables alive until the next collection.
        raise Retry(text, exc=error.with_traceback(None), when=delay) from None
    try:
        claim.confirm(bus.worker_backend.line(delivery, JournalEvent.ACKED, "gone"))
    except RestanteError as error:
        # The handler has succeeded. Unconfirmed, a duplicate may run; failing here would run this one again for sure.
        log.warning("not confirmed subscription=%s id=%s error=%s", name, envelope.id, error)


def _require_running(handler: Handler, delivery: Delivery) -> None:
    """Raises unless the delivery that took the record may still be running."""
    if handler.early and delivery.expired:
        raise Crashed()
    if delivery.suspect:
        # That delivery ended without a verdict, so its process is gone: this counts as an attempt.
        raise Retry("its earlier delivery ended without a verdict", when=RETRY_SECONDS)


class Crashed(RestanteError):
    """The process that ran this event was killed, and its handler has acks_late=False, so it does not run again. Replay
    it if it must."""


def release(bus: Bus, handler: Handler, delivery: Delivery) -> None:
    """Releases the record of a failed run. If that fails, later attempts run all the same: their turn is higher."""
    try:
        bus.worker_backend.claim(handler, delivery).release()
    except RestanteError as error:
        log.warning("not released subscription=%s id=%s error=%s", handler.subscription, delivery.envelope.id, error)


def answer(bus: Bus, handler: Handler, task: Any, delivery: Delivery, text: str) -> None:
    """Runs a call and sends the handler's result, refusal or failure to the caller."""
    envelope = delivery.envelope
    if time.time() >= delivery.deadline:
        log.info("expired call topic=%s id=%s", envelope.topic, envelope.id)
        bus.note(delivery, JournalEvent.DELETED, "gone", detail="expired")
        return
    bus.note(delivery, JournalEvent.RECEIVED, State.LEASED)
    try:
        result = handler.run(task, envelope, handler.value(envelope, text))
        reply = Answer(handler.service, "ok", encode(result, handler.returns))
    except Declined as refusal:
        reply = Answer(handler.service, "declined", encode(refusal.data, handler.error))
    except Exception as error:
        log.exception("call failed topic=%s id=%s", envelope.topic, envelope.id)
        reply = Answer(handler.service, "failed", error_class=type(error).__name__, error=str(error)[:1000])
    bus.reply(delivery, reply)
    bus.note(delivery, JournalEvent.ACKED, "gone", error_class=reply.error_class)
