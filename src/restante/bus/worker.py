"""Runs handlers in an ordinary Celery worker: declares the queues, turns messages into tasks, and settles them with the
broker, where retries wait and dead events are kept.

If declaring fails, the worker names the cause and does not start. If a message cannot be settled, it stays with the
broker, which delivers it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import bootsteps
from celery.exceptions import Ignore, Reject, Retry
from celery.exceptions import WorkerLostError as CeleryWorkerLost
from celery.worker import request as celery_request

from restante.bus.broker import Answer
from restante.bus.delivery import Delivery
from restante.bus.envelope import Malformed
from restante.bus.executor import release
from restante.bus.handler import Handler
from restante.core.errors import RestanteError
from restante.core.message import RemoteError

log = logging.getLogger("restante")

#: The part of a task message that Celery's canvas uses, and a handler does not.
_EMBED = '{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'
_LOST = (WorkerLostError, CeleryWorkerLost)
#: Seconds between two attempts to settle an event that was acknowledged early.
SETTLE_EVERY = 1.0


class DeclareStep(bootsteps.StartStopStep):
    """Declares queues and bindings before the worker consumes; an error stops the worker."""

    def start(self, worker: Any) -> None:
        worker.app.declare()


class HandlerStep(bootsteps.StartStopStep):
    """Puts `handler_receiver` before Celery's receiver of messages."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        c.app.worker_backend.connected()
        if not hasattr(c, "restante_receiver"):
            c.restante_receiver = True
            make = c.create_task_handler
            c.create_task_handler = lambda *args, **kwargs: handler_receiver(c, make(*args, **kwargs))


def handler_receiver(c: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A receiver that turns events and calls into tasks and hands them, with all other messages, to Celery's own."""
    bus = c.app
    queues: dict[str, str] = {}

    def received(message: Any) -> Any:
        tag = message.delivery_info.get("consumer_tag", "")
        queue = queues.get(tag)
        if queue is None:
            queues.clear()
            queues.update({tag: name for name, tag in c.task_consumer._active_tags.items()})
            queue = queues.get(tag, "")
        if not bus.handles(queue):
            return inner(message)
        if bus.worker_backend.defer(queue, message):
            return None
        try:
            prepare(bus, queue, message)
        except (Malformed, Spent) as error:
            log.error("buried queue=%s error=%s", queue, error)
            try:
                bus.worker_backend.bury(message, None, RemoteError(type(error).__name__, str(error)))
            except (RestanteError, OSError) as failure:
                # Else the message would hold its place among those of the prefetch limit for good.
                log.error("not buried queue=%s error=%s", queue, failure)
                bus.worker_backend.give_back(message, c.connection_errors)
            return None
        return inner(message)

    return received


class Spent(RestanteError):
    """The attempts of this message are spent, some of them by processes that were killed."""


def prepare(bus: Any, queue: str, message: Any) -> None:
    """Turns the message of an event or call into a task message, in place; the original stays on it for the verdict."""
    message.restante_queue = queue
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
    if (message.content_type or "application/json") != "application/json":
        raise Malformed(f"the body is {message.content_type}, not application/json")
    try:
        orjson.loads(body)
        text = body.decode()
    except ValueError as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    delivery = bus.worker_backend.delivery(queue, message, len(body))
    handler = bus.handler_of(queue, delivery.envelope.topic)
    if handler is None:
        raise Malformed(f"no handler of {queue} is for {delivery.envelope.topic}")
    message.restante = (message.headers, message.body, delivery, handler)
    if delivery.purpose == "event" and delivery.envelope.attempts > handler.retry_rule.max_attempts:
        raise Spent()
    args = orjson.dumps([delivery.pack(), text]).decode()
    message.body = f"[{args},{{}},{_EMBED}]"
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message._decoded_cache = None
    message.headers = {
        "lang": "py",
        "task": handler.subscription,
        "id": delivery.envelope.id,
        "root_id": delivery.envelope.id,
        "retries": delivery.envelope.attempts - 1,
        "argsrepr": f"({delivery.envelope.topic})",
        "kwargsrepr": "{}",
        "ignore_result": True,
    }


def decide(
    error: BaseException, delivery: Delivery, handler: Handler, *, again_when_lost: bool
) -> tuple[float | None, str]:
    """Seconds until the next attempt of an event that failed, or None for dead; and the error's name."""
    attempts = delivery.envelope.attempts
    if isinstance(error, Retry):
        delay = error.when if isinstance(error.when, int | float) else 0.0
        return delay, type(error.exc).__name__ if error.exc is not None else "Retry"
    if isinstance(error, Reject) and error.requeue and attempts < handler.retry_rule.max_attempts:
        return 0.0, type(error).__name__
    if isinstance(error, TimeLimitExceeded) or (isinstance(error, _LOST) and again_when_lost):
        return handler.retry_rule.delay(attempts, RuntimeError(str(error))), type(error).__name__
    return None, type(error).__name__


class Request(celery_request.Request):
    """A delivery in the worker's main process, which settles it with the broker.

    With early acks on RabbitMQ the delivery is gone by the time the handler fails: the retry or the dead event is then
    published until the broker confirms it.
    """

    #: Whether the delivery was settled, or is being settled.
    has_verdict = False

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft and not self.has_verdict:
            self._verdict(TimeLimitExceeded(timeout), None)
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if not self.has_verdict and isinstance(error, Exception) and not isinstance(error, Ignore):
            self._verdict(error, exc_info)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _verdict(self, error: BaseException, info: Any) -> None:
        """Settles the message with the broker, so that Celery treats it as acknowledged."""
        message = self._message
        bus, (_, _, delivery, handler) = self._app, message.restante
        self.has_verdict = True
        if delivery.purpose != "event":
            failed = Answer(handler.service, "failed", error_class=type(error).__name__, error=str(error)[:1000])
            bus.reply(delivery, failed)
            self.acknowledge()
            return
        again = bool(self.task.reject_on_worker_lost) and not handler.early
        delay, name = decide(error, delivery, handler, again_when_lost=again)
        reason = RemoteError(name, str(info.traceback if info is not None else f"{name}: {error}"))
        try:
            self._settle(delay, reason)
            self.acknowledged = True
        except (RestanteError, OSError) as failure:
            log.error("not settled subscription=%s error=%s", handler.subscription, failure)
            if self.acknowledged:
                # Acknowledged early: the broker no longer has it, so this process must keep trying.
                threading.Thread(
                    target=self._settle_until_done, args=(delay, reason), name="restante-verdict", daemon=True
                ).start()
            else:
                # The broker still has it and delivers it again: at once, or if that fails too, when its lease ends.
                self.reject(requeue=True)

    def _settle(self, delay: float | None, reason: RemoteError) -> None:
        message = self._message
        bus, (_, _, delivery, handler) = self._app, message.restante
        if delay is None:
            # A killed process left its record taken, which would make a replay wait.
            release(bus, handler, delivery)
            bus.worker_backend.bury(message, self, reason)
        else:
            bus.worker_backend.retry(message, self, delay, reason)

    def _settle_until_done(self, delay: float | None, reason: RemoteError) -> None:
        while True:
            try:
                return self._settle(delay, reason)
            except (RestanteError, OSError) as failure:
                log.error("not settled yet task=%s error=%s", self.name, failure)
                time.sleep(SETTLE_EVERY)
