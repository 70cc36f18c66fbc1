"""The bus of a service: a Celery app whose handlers are tasks and whose events and calls are messages.

An ordinary `celery -A module worker` runs it. If the broker cannot be reached, or its queues differ, the worker does
not start and names the cause and the remedy.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack

from celery import Celery, Task
from celery.exceptions import Retry
from celery.utils.time import rate
from kombu import Queue

from restante.bus import executor
from restante.bus.addresses import celery_url, choose_broker_url, is_rabbitmq, shown
from restante.bus.batch import Batch, Publishing
from restante.bus.broker import Answer, Published, SendOptions, WorkerBackend
from restante.bus.celery_settings import CeleryOptions
from restante.bus.client import AsyncBusClient, BusClient, PublishMethod, Topic, make_outgoing, open_redis
from restante.bus.dedup import WINDOW, DedupStore, Records, Turn, dedup_window, open_records
from restante.bus.delivery import Delivery, purpose_of
from restante.bus.handler import Handler, RetryRule
from restante.bus.options import (
    CallOptions,
    CallTaskOptions,
    ManyOptions,
    PublishOptions,
    TaskOptions,
    task_options,
)
from restante.bus.registry import register
from restante.bus.schema import Event as EventClass
from restante.bus.settings import Settings, agree_with_environment, celery_keywords
from restante.bus.worker import DeclareStep, HandlerStep, Request
from restante.core.errors import InvalidInput, RestanteError
from restante.core.keywords import check_keywords
from restante.core.message import JournalEvent, State
from restante.core.retry import RetryPolicy, exponential
from restante.core.topics import valid_pattern, valid_topic, valid_word
from restante.rabbitmq.topology import RESERVED_HANDLERS, TopologyOptions, call_queue, calls_queue, valid_service

if TYPE_CHECKING:
    from restante.core.queue import Client

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("restante")

#: Default deliveries of an event to a handler before it is dead, and the delays between them.
MAX_ATTEMPTS = 11
RETRY = exponential(1, cap=600)
#: Handler names that a service's own queues have.
RESERVED_NAMES = RESERVED_HANDLERS | {"tasks"}


class HandlerTask(Task):
    """The Celery task of a handler."""

    Request = Request
    handler: Handler
    typing = False
    #: `Request` settles failures, not Celery's dead letters.
    dead_letters = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Sets the handler's `early`: only now are option, setting and annotation known."""
        handler = cls.__dict__.get("handler")
        if handler is not None:
            handler.early = handler.early or not cls.acks_late
            if handler.early and handler.answers is None and app.worker_backend.always_acks_late:
                cls.acks_late = True

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Ends this attempt: the broker delivers the event to this handler again after a delay."""
        attempts = (self.request.retries or 0) + 1
        error = exc or RuntimeError("retry")
        most = self.handler.retry_rule.max_attempts if max_retries is None else max_retries + 1
        delay = countdown if countdown is not None else self.handler.retry_rule.policy.next(attempts)
        if attempts >= most or delay is None:
            raise error
        retry = Retry(f"{type(error).__name__}: {error}"[:500], exc=error, when=delay)
        if throw:
            raise retry
        return retry


class Bus(PublishMethod, Celery):
    """A service's bus: `bus = Bus("billing", broker="restante://…")`, or `amqp://…`.

    `retry` and `max_attempts` are the defaults of its handlers. A handled event does not run again for `dedup` seconds;
    0 turns this off. Its records are kept in Redis (the broker's own, or for RabbitMQ the one at `store`), or with
    `dedup_store="memory"` in this process.
    `broker_url` is another name of `broker`. All other keywords are arguments of a Celery app or Celery's settings.
    """

    def __init__(
        self,
        service: str,
        broker: str | None = None,
        *,
        broker_url: str | None = None,
        store: str | None = None,
        dedup: float | timedelta = WINDOW,
        dedup_store: DedupStore = "redis",
        retry: RetryPolicy = RETRY,
        max_attempts: int = MAX_ATTEMPTS,
        prefix: str = "",
        rabbitmq: Mapping[str, Any] | None = None,
        **celery: Unpack[CeleryOptions],
    ) -> None:
        given = celery_keywords(celery)
        self.service = valid_service(service)
        self.broker_url = choose_broker_url(broker, broker_url)
        if not (broker or broker_url) and os.environ.get("CELERY_BROKER_URL") and "RESTANTE_BROKER" not in os.environ:
            # Celery's worker would read from there in any case.
            self.broker_url = os.environ["CELERY_BROKER_URL"]
        self._window, self._dedup_store = dedup_window(dedup, dedup_store), dedup_store
        self.worker_backend = worker_backend(self, store, self._window, prefix, rabbitmq or {})
        if self.has_shared_records and self.worker_backend.store_url is None:
            raise InvalidInput(
                "on RabbitMQ the records of handled events need a Redis: name it by store='redis://…', or choose "
                "dedup_store='memory' (this process alone) or dedup=0 (no deduplication)"
            )
        self._usual = RetryRule(retry, max_attempts)
        self._store_url, self._prefix = store, prefix
        #: Handlers of events, by the name of their subscription.
        self.subscriptions: dict[str, Handler] = {}
        #: Handlers of calls, by topic.
        self.answered: dict[str, Handler] = {}
        options = dict(given.pop("broker_transport_options", None) or {})
        self.worker_backend.prepare_transport(options)
        agree_with_environment(self.broker_url)
        super().__init__(service, broker=celery_url(self.broker_url), **given)
        self._queues = [Queue(f"{service}.tasks", routing_key=f"{service}.tasks")]
        self._settings = Settings(self, self.broker_url, self._queues, options)
        self.worker_backend.install()
        self.steps["worker"].add(DeclareStep)
        self.steps["consumer"].add(HandlerStep)

    # -- handlers ------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str | type[EventClass],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        max_attempts: int | None = None,
        bind: bool = False,
        celery_options: TaskOptions | None = None,
        **options: Unpack[TaskOptions],
    ) -> Callable[[F], F]:
        """Makes a function the handler of a topic or of a pattern of topics (`*` one word, `#` none or more).

        Its first parameter gets the data: a model or an event's class if annotated so. A parameter annotated `Envelope`
        gets the envelope. Each handler is retried on its own. Celery's task options are given by name or as
        `celery_options`; those of retries (autoretry_for, retry_backoff, max_retries, …) become its policy.
        With `acks_late=False` an event does not run again after its process was killed; a failure is retried as usual.
        """
        task = task_options({**options, "celery_options": celery_options}, TaskOptions.__optional_keys__, "subscribe")
        pattern = valid_pattern(topic.topic if isinstance(topic, type) else topic)
        hint = topic if isinstance(topic, type) else None

        def register(function: F) -> F:
            handler = self._handler(function, name, hint, retry, max_attempts, bind, task, pattern=pattern)
            self.subscriptions[handler.subscription] = handler
            self._add_queue(handler.subscription)
            return function

        return register

    def answer(
        self,
        topic: str | type[EventClass],
        *,
        name: str | None = None,
        bind: bool = False,
        celery_options: CallTaskOptions | None = None,
        **options: Unpack[CallTaskOptions],
    ) -> Callable[[F], F]:
        """Makes a function answer the calls of a topic: its result, or the data of `Declined`, goes to the caller.

        Every instance of every service that answers the topic takes calls in turn. Calls are not retried.
        """
        task = task_options({**options, "celery_options": celery_options}, CallTaskOptions.__optional_keys__, "answer")
        answered_topic = valid_topic(topic.topic if isinstance(topic, type) else topic)
        hint = topic if isinstance(topic, type) else None

        def register(function: F) -> F:
            if answered_topic in self.answered:
                other = self.answered[answered_topic].name
                raise InvalidInput(f"{self.service} answers {answered_topic} by {other} already: a call has one answer")
            handler_name = name or str(getattr(function, "__name__", ""))
            if name is None and f"{self.service}.{handler_name}" in self.subscriptions:
                handler_name = f"answer_{handler_name}"  # one function may do both
            self.answered[answered_topic] = self._handler(
                function, handler_name, hint, None, None, bind, task, answers=answered_topic
            )
            self._add_queue(call_queue(answered_topic))
            self._add_queue(calls_queue(self.service))
            return function

        return register

    def event(
        self, topic: str, *, version: str = "", **unknown: Never
    ) -> Callable[[Callable[..., Any]], Callable[..., Published]]:
        """Makes a function publish: a call runs its body and publishes the result, or the arguments where that is None.

        If the body raises, nothing is published.
        """
        check_keywords(unknown, ("version",), "event")
        event_topic = valid_topic(topic)

        def register(function: Callable[..., Any]) -> Callable[..., Published]:
            signature = inspect.signature(function)

            @functools.wraps(function)
            def publish(*args: Any, **kwargs: Any) -> Published:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                data = function(*args, **kwargs)
                data = dict(bound.arguments) if data is None else data
                outgoing = make_outgoing(event_topic, data, self.service, version=version)
                return self.client.send(outgoing, SendOptions())

            return publish

        return register

    def _handler(
        self,
        function: Callable[..., Any],
        name: str | None,
        hint: Any,
        retry: RetryPolicy | None,
        max_attempts: int | None,
        bind: bool,
        options: dict[str, Any],
        **what: Any,
    ) -> Handler:
        handler_name = valid_word(name or str(getattr(function, "__name__", "")), "handler")
        full = f"{self.service}.{handler_name}"
        if handler_name in RESERVED_NAMES:
            raise InvalidInput(
                f"a handler cannot be called {handler_name}, the name of a queue that the service has: give name="
            )
        known = {handler.subscription for handler in (*self.subscriptions.values(), *self.answered.values())}
        if full in known:
            raise InvalidInput(f"{self.service} has a handler {handler_name} already: give this one another name=")
        try:
            rate(options.get("rate_limit"))
        except (KeyError, ValueError, TypeError):
            limit = options["rate_limit"]
            raise InvalidInput(f"rate_limit is a number per second, or text such as '10/m', not {limit!r}") from None
        retry_rule = RetryRule.of(retry, max_attempts, options, self._usual)
        handler = Handler(self.service, handler_name, function, bound=bind, retry_rule=retry_rule, hint=hint, **what)

        def run(task: Any, packed: str, text: str) -> None:
            executor.run(self, handler, task, packed, text)

        # Not named as the handler: Celery writes a function of that name, and it may have dashes or be a keyword.
        run.__doc__ = function.__doc__
        # Not shared: Celery would add the task to every other app of the process.
        settings = {"ignore_result": True, "shared": False, **options}
        self.task(run, name=full, base=HandlerTask, bind=True, handler=handler, **settings)
        return handler

    def _add_queue(self, name: str) -> None:
        if any(queue.name == name for queue in self._queues):
            return
        self._queues.append(Queue(name, routing_key=name))
        if "queues" in self.amqp.__dict__:
            self.amqp.queues.add(self._queues[-1])

    # -- publishing ----------------------------------------------------------------------------------------------

    @functools.cached_property
    def client(self) -> BusClient:
        """The client that publishes and calls for this service."""
        self._settings.check()
        return BusClient(
            self.broker_url,
            source=self.service,
            store=self._store_url,
            prefix=self._prefix,
            **self.worker_backend.client_options,
        )

    @functools.cached_property
    def aio(self) -> AsyncBusClient:
        """The asyncio client: `await bus.aio.publish(…)`, `await bus.aio.call(…)`."""
        self._settings.check()
        return AsyncBusClient(
            self.broker_url,
            source=self.service,
            store=self._store_url,
            prefix=self._prefix,
            **self.worker_backend.client_options,
        )

    def _publish(self, topic: Topic, data: Any, wait: bool, options: PublishOptions) -> Published | Publishing:
        return self.client.publish(topic, data, wait=wait, **options)

    def batch(self) -> Batch:
        """`BusClient.batch`: `with bus.batch():` publishes without waiting for each event."""
        return self.client.batch()

    def publish_many(
        self, events: Iterable[EventClass | tuple[Topic, Any]], **options: Unpack[ManyOptions]
    ) -> list[Published]:
        """`BusClient.publish_many`, with this service as the source."""
        return self.client.publish_many(events, **options)

    def call(self, topic: Topic, data: Any = None, **options: Unpack[CallOptions]) -> Any:
        """`BusClient.call`, with this service as the source."""
        return self.client.call(topic, data, **options)

    def call_all(self, topic: Topic, data: Any = None, **options: Unpack[CallOptions]) -> dict[str, Answer]:
        """`BusClient.call_all`, with this service as the source."""
        return self.client.call_all(topic, data, **options)

    # -- for the worker ------------------------------------------------------------------------------------------

    @functools.cached_property
    def redis(self) -> Client | None:
        """The Redis of the records: the broker itself, or the store."""
        url = self.worker_backend.store_url
        return open_redis(url) if url else None

    @functools.cached_property
    def records(self) -> Records:
        """The records of handled events."""
        return open_records(self._dedup_store, self.redis, self._window, self._prefix)

    @property
    def has_shared_records(self) -> bool:
        """Whether a record tells every process that a handler has begun a message."""
        return self._window > 0 and self._dedup_store == "redis"

    def handles(self, queue: str) -> bool:
        """Whether a queue holds events or calls."""
        return queue in self.subscriptions or purpose_of(queue, self.service) != "event"

    def handler_of(self, queue: str, topic: str) -> Handler | None:
        """The handler of a message, None where there is none."""
        return self.subscriptions.get(queue) or self.answered.get(topic)

    def note(self, delivery: Delivery, event: JournalEvent, state: State | str, **more: Any) -> None:
        """Writes a line to the journal where the broker does not; a failure to write is logged and holds nothing up."""
        line = self.worker_backend.line(delivery, event, state, **more)
        if line is not None:
            try:
                self.records.note(Turn(delivery.queue, delivery.envelope.id, delivery.envelope.attempts), line)
            except RestanteError as error:
                log.warning("not journalled queue=%s error=%s", delivery.queue, error)

    def reply(self, delivery: Delivery, answer: Answer) -> None:
        """Sends the answer of a call; a failure is logged, and the caller's time runs out."""
        try:
            self.worker_backend.reply(delivery, answer)
        except RestanteError as error:
            log.warning("not answered topic=%s id=%s error=%s", delivery.envelope.topic, delivery.envelope.id, error)

    def declare(self) -> None:
        """Declares the queues and bindings of this service, on RabbitMQ also the ladder. A worker does it too."""
        self._settings.check()
        self.finalize()
        for queue in self._queues:
            queue.queue_arguments = self.worker_backend.arguments(queue.name)
        removed = self.worker_backend.declare()
        for binding in removed:
            log.info("unsubscribed %s", binding)
        if self.redis is not None:
            handlers = (*self.subscriptions.values(), *self.answered.values())
            register(self.redis, self.service, handlers, self.worker_backend, self._prefix)
        log.info(
            "declared service=%s broker=%s subscriptions=%d calls=%d",
            self.service,
            shown(self.broker_url),
            len(self.subscriptions),
            len(self.answered),
        )

    @property
    def consumes_tasks(self) -> bool:
        """Whether the worker reads the queue of plain tasks: it has such tasks, nothing else, or names queues by -Q."""
        own = [task for name, task in self.tasks.items() if name[:7] != "celery." and not isinstance(task, HandlerTask)]
        return bool(own) or self.amqp.queues._consume_from is not None or len(self._queues) == 1

    def close(self) -> None:
        """Closes this process's connections."""
        self.worker_backend.close()
        for name in ("client", "redis"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()
        super().close()


def worker_backend(
    bus: Bus, store: str | None, window: float, prefix: str, rabbitmq: Mapping[str, Any]
) -> WorkerBackend:
    """The broker's side of a bus, by its URL; it opens no connection yet."""
    check_keywords(rabbitmq, {option.name for option in fields(TopologyOptions)}, "Bus(rabbitmq={…})")
    if is_rabbitmq(bus.broker_url):
        from restante.bus.worker_rabbitmq import RabbitWorker

        return RabbitWorker(bus, store, rabbitmq)

    from restante.bus.worker_redis import RedisWorker

    return RedisWorker(bus, bus.broker_url, window, prefix)
