"""Drains the subscriptions of a bus: each event runs through the bus's own executor, without a Celery worker.

On failure: as in a worker, a failed event is retried by its handler's rule or dead; then the handler's error is raised
in the test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace, TracebackType
from typing import Any

from celery.exceptions import Ignore, Retry

from restante.bus import executor
from restante.bus.app import Bus
from restante.bus.delivery import Delivery
from restante.bus.handler import Handler
from restante.bus.worker import decide
from restante.core.errors import InvalidInput
from restante.core.handlers import Handling
from restante.core.inspector import Inspector
from restante.core.leased_message import LeasedMessage
from restante.core.message import RemoteError, State
from restante.core.queue import Client, Queue
from restante.core.topics import matches
from restante.rabbitmq.topology import UNROUTED
from restante.testing.draining import Attempt, Drainable, Drained, Failure
from restante.testing.sent import note_handled


def drainable_subscriptions(bus: Bus) -> Iterator[Drainable]:
    """Declares the bus, as its worker does when it starts, and yields its subscriptions."""
    client = bus.redis
    if bus.worker_backend.broker != "redis" or client is None:
        raise InvalidInput("drain needs a bus on Redis: test the handlers there, or call them as functions")
    if not bus.subscriptions:
        raise InvalidInput(f"{bus.service} subscribes to nothing: register a handler with @bus.subscribe")
    bus.declare()
    prefix = bus.conf.broker_transport_options.get("global_keyprefix", "")
    _refuse_unrouted(bus, client, prefix)
    for name, handler in bus.subscriptions.items():
        yield _Subscription(bus, handler, client.queue(prefix + name))


def _refuse_unrouted(bus: Bus, client: Client, prefix: str) -> None:
    """A forgotten declare() in a test would look like a handler that was never called."""
    topics = {message.kind for message in Inspector(client).messages(prefix + UNROUTED, State.READY).messages}
    lost = sorted(
        topic for topic in topics for handler in bus.subscriptions.values() if matches(handler.pattern or "", topic)
    )
    if lost:
        raise InvalidInput(
            f"{lost[0]} was published before {bus.service} had subscribed: call bus.declare() at the beginning of the "
            "test, as a worker does when it starts"
        )


class _Subscription(Drainable):
    def __init__(self, bus: Bus, handler: Handler, queue: Queue) -> None:
        super().__init__(queue)
        self._bus = bus
        self._handler = handler

    def attempt(self, message: LeasedMessage, drained: Drained) -> Generator[Attempt, Any, None]:
        handler, name = self._handler, self._handler.subscription
        # What a worker makes of Kombu's message: the lease and its headers are all that the bus reads.
        received = SimpleNamespace(leased=message, headers=message.headers)
        delivery = self._bus.worker_backend.delivery(name, received, message.size)
        with _Watched(handler) as watched:
            try:
                yield Attempt(Handling.of(functools.partial(self._run, delivery)), message, None)
            except Ignore:
                pass  # as Celery treats it: done
            except Exception as error:
                delay, kind = decide(error, delivery, handler, again_when_lost=False)
                cause = error.exc if isinstance(error, Retry) and error.exc is not None else error
                state = self._settle(message, delay, RemoteError(kind, str(error)))
                assert isinstance(cause, Exception)
                drained.failed.append(Failure(message, cause, state))
                raise cause.with_traceback(watched.trace or cause.__traceback__) from None
        note_handled(self.queue.connection.url, message)
        self.queue.ack_many((message,))
        drained.handled.append(message)

    def _run(self, delivery: Delivery, message: LeasedMessage) -> None:
        task = self._bus.tasks[self._handler.subscription]
        body = message.preview.decode()
        task.push_request(id=message.id, retries=message.attempts - 1, called_directly=False)
        try:
            executor.run(self._bus, self._handler, task, delivery.pack(), body)
        finally:
            task.pop_request()

    def _settle(self, message: LeasedMessage, delay: float | None, reason: RemoteError) -> State:
        if delay is None:
            self.queue.bury_many((message,), error=reason)
            return State.DEAD
        return self.queue.nack_many((message,), delay=delay, error=reason)[0]


class _Watched:
    """Keeps the traceback of the handler's error, which the executor removes: a test shows the handler's lines."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._function: Callable[..., Any] = handler.function
        self.trace: TracebackType | None = None

    def __enter__(self) -> _Watched:
        @functools.wraps(self._function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._function(*args, **kwargs)
            except Exception as error:
                self.trace = error.__traceback__
                raise

        self._handler.function = watched
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.function = self._function
