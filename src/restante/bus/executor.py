"""A delivery's way through a handler, in the process that runs it: read, take, run, confirm; or answer a call.

On failure the record is released and the broker keeps the message: until its next attempt, or as dead.
"""

from __future__ import annotations

import gc
import itertools
import logging
import time
import traceback
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from restante.bus.broker import Answer
from restante.bus.delivery import Delivery
from restante.bus.handler import Handler
from restante.bus.schema import encode
from restante.core.errors import Declined, RestanteError
from restante.core.journal import Taken
from restante.core.message import MAX_ERROR, JournalEvent, State

if TYPE_CHECKING:
    from restante.bus.app import Bus

log = logging.getLogger("restante")

#: Failures between two collections of garbage: Celery's record of one is a cycle of some tens of kilobytes, and the
#: collector, which counts objects and not bytes, comes for it a hundred megabytes later.
FAILURES = 50
_failures = itertools.count(1)
#: Seconds after which a message whose earlier delivery left no verdict is tried again.
AGAIN = 1.0


def run(bus: Bus, handler: Handler, task: Any, packed: str, text: str) -> None:
    """Handles one delivery; returning means it is done with."""
    delivery = Delivery.parse(packed)
    if delivery.purpose == "event":
        handle(bus, handler, task, delivery, text)
    else:
        answer(bus, handler, task, delivery, text)


def handle(bus: Bus, handler: Handler, task: Any, delivery: Delivery, text: str) -> None:
    """An event: at most once at a time, again after a failure, never again after a success."""
    envelope, name = delivery.envelope, handler.subscription
    if bus.worker_backend.is_over(delivery):
        log.info("expired subscription=%s id=%s", name, envelope.id)
        bus.note(delivery, JournalEvent.DELETED, "gone", detail="expired")
        return
    claim = bus.worker_backend.claim(handler, delivery)
    try:
        taken = claim.take(bus.worker_backend.line(delivery, JournalEvent.RECEIVED, State.LEASED))
    except RestanteError as error:
        # Nothing has run: the event is as good as before, and must not be dead because the store is away.
        pause = handler.retry_rule.policy.next(envelope.attempts) or AGAIN
        raise Retry(f"the records are away: {error}", exc=error, when=pause) from None
    if taken is Taken.DONE:
        log.info("done before subscription=%s id=%s", name, envelope.id)
        return
    if taken is Taken.AT_WORK:
        if handler.early and delivery.expired:
            raise Crashed()
        if not delivery.suspect:
            log.info("at work already subscription=%s id=%s", name, envelope.id)
            return
        # The delivery that took it left no verdict, so its process is gone: that was an attempt.
        raise Retry("its earlier delivery ended without a verdict", when=AGAIN)
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
        text = "".join(traceback.format_exception(error))[-MAX_ERROR:]
        # Without its traceback, whose frames would keep each other and everything they saw until the collector comes.
        raise Retry(text, exc=error.with_traceback(None), when=delay) from None
    try:
        claim.confirm(bus.worker_backend.line(delivery, JournalEvent.ACKED, "gone"))
    except RestanteError as error:
        # It is done: a double that comes within the window would run, which is better than this one running again.
        log.warning("not confirmed subscription=%s id=%s error=%s", name, envelope.id, error)


class Crashed(RestanteError):
    """The process that ran this event was killed, and its handler has acks_late=False: it is not run again by itself.
    Replay it if it must be."""


def release(bus: Bus, handler: Handler, delivery: Delivery) -> None:
    """Gives the record of a failed run back. One that stays hinders no later attempt, which counts one more."""
    try:
        bus.worker_backend.claim(handler, delivery).release()
    except RestanteError as error:
        log.warning("not released subscription=%s id=%s error=%s", handler.subscription, delivery.envelope.id, error)


def answer(bus: Bus, handler: Handler, task: Any, delivery: Delivery, text: str) -> None:
    """A call: what the handler returns, declines with or fails by goes back to the caller."""
    envelope = delivery.envelope
    if time.time() >= delivery.deadline:
        log.info("call too late topic=%s id=%s", envelope.topic, envelope.id)
        bus.note(delivery, JournalEvent.DELETED, "gone", detail="expired")
        return
    bus.note(delivery, JournalEvent.RECEIVED, State.LEASED)
    try:
        result = handler.run(task, envelope, handler.value(envelope, text))
        made = Answer(handler.service, "ok", encode(result, handler.returns))
    except Declined as refusal:
        made = Answer(handler.service, "declined", encode(refusal.data, handler.error))
    except Exception as error:
        log.exception("call failed topic=%s id=%s", envelope.topic, envelope.id)
        made = Answer(handler.service, "failed", error_class=type(error).__name__, error=str(error)[:1000])
    bus.reply(delivery, made)
    bus.note(delivery, JournalEvent.ACKED, "gone", error_class=made.error_class)
