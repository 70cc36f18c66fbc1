"""How an ordinary Celery worker runs handlers: its queues are made sure of, its messages become tasks, and verdicts
are the broker's own: a retry waits there, a failure is dead there.

On failure to declare, the worker says what is wrong and does not start. A verdict that cannot be told leaves the
message with the broker, which delivers it again.
"""

from __future__ import annotations

import logging
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
from restante.bus.envelope import Malformed
from restante.bus.running import release
from restante.core.errors import RestanteError
from restante.core.message import ToldError

log = logging.getLogger("restante")

#: The part of a task message that Celery's canvas uses, and a handler does not.
_EMBED = '{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'
_LOST = (WorkerLostError, CeleryWorkerLost, TimeLimitExceeded)


class Declared(bootsteps.StartStopStep):
    """Makes sure of the broker's part before the worker asks for messages; what is wrong there stops it."""

    def start(self, worker: Any) -> None:
        worker.app.declare()


class Handing(bootsteps.StartStopStep):
    """Turns what arrives in a subscription's queue into the task of its handler."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        if not hasattr(c, "restante_handing"):
            c.restante_handing = True
            make = c.create_task_handler
            c.create_task_handler = lambda *args, **kwargs: handing(c, make(*args, **kwargs))


def handing(c: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Celery's receiver of messages with ours in front."""
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
        if bus.keeper.put_off(queue, message):
            return None
        try:
            prepare(bus, queue, message)
        except (Malformed, Spent) as error:
            log.error("buried queue=%s error=%s", queue, error)
            try:
                bus.keeper.bury(message, None, ToldError(type(error).__name__, str(error)))
            except (RestanteError, OSError) as failure:
                # Given back, or its place among those at hand would be taken for good; on RabbitMQ by the ladder.
                log.error("not buried queue=%s error=%s", queue, failure)
                message.reject_log_error(log, c.connection_errors, requeue=not bus.on_rabbitmq)
            return None
        return inner(message)

    return received


class Spent(RestanteError):
    """The attempts of this message are spent, some of them by processes that ended without a word."""


def prepare(bus: Any, queue: str, message: Any) -> None:
    """Makes a task message of an event or call, in place; what it was stays with it for the verdict."""
    message.restante_queue = queue
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
    if (message.content_type or "application/json") != "application/json":
        raise Malformed(f"the body is {message.content_type}, not application/json")
    try:
        orjson.loads(body)
        text = body.decode()
    except ValueError as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    delivery = bus.keeper.delivery(queue, message, len(body))
    handler = bus.handler_of(queue, delivery.envelope.topic)
    if handler is None:
        raise Malformed(f"no handler of {queue} is for {delivery.envelope.topic}")
    message.restante = (message.headers, message.body, delivery, handler)
    if delivery.way == "event" and delivery.envelope.attempts > handler.retrying.max_attempts:
        raise Spent()
    args = orjson.dumps([delivery.packed(), text]).decode()
    message.body = f"[{args},{{}},{_EMBED}]"
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message._decoded_cache = None
    message.headers = {
        "lang": "py", "task": handler.subscription, "id": delivery.envelope.id, "root_id": delivery.envelope.id,
        "retries": delivery.envelope.attempts - 1, "argsrepr": f"({delivery.envelope.topic})", "kwargsrepr": "{}",
        "ignore_result": True,
    }  # fmt: skip


class Request(celery_request.Request):
    """A delivery in the worker's main process, whose verdict is given by the broker's own means."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft and not self.acknowledged:
            self._verdict(TimeLimitExceeded(timeout), None)
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if not self.acknowledged and isinstance(error, Exception) and not isinstance(error, Ignore):
            self._verdict(error, exc_info)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _verdict(self, error: BaseException, info: Any) -> None:
        """Says it to the broker; afterwards Celery finds it settled."""
        message = self._message
        bus, (_, _, delivery, handler) = self._app, message.restante
        try:
            if delivery.way != "event":
                failed = Answer(handler.service, "failed", error_class=type(error).__name__, error=str(error)[:1000])
                bus.reply(delivery, failed)
                self.acknowledge()
                return
            delay: float | None = None
            attempts = delivery.envelope.attempts
            if isinstance(error, Retry):
                delay = error.when if isinstance(error.when, int | float) else 0.0
                name = type(error.exc).__name__ if error.exc is not None else "Retry"
            else:
                name = type(error).__name__
                if isinstance(error, Reject) and error.requeue and attempts < handler.retrying.max_attempts:
                    delay = 0.0
                if isinstance(error, _LOST):
                    delay = handler.retrying.delay(attempts, RuntimeError(str(error)))
            text = info.traceback if info is not None else f"{name}: {error}"
            told = ToldError(name, str(text))
            if delay is None:
                # A process that ended without a word left its record: a replay must not find it at work.
                release(bus, handler.subscription, delivery)
                bus.keeper.bury(message, self, told)
            else:
                bus.keeper.retry(message, self, delay, told)
            self.acknowledged = True
        except (RestanteError, OSError) as failure:
            # The broker has it still: given back it comes again, and if that fails too, with the end of its lease.
            log.error("verdict not told subscription=%s error=%s", handler.subscription, failure)
            self.reject(requeue=True)
