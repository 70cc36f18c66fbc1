"""The bus: a Celery app by the name of a service, whose handlers are tasks and whose events and calls are messages.

An ordinary `celery -A module worker` runs it. On failure to reach or to match the broker it does not start, and says
what is wrong and how to mend it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, Unpack, cast, overload

import orjson
from celery import Celery, Task
from celery.exceptions import Retry
from celery.utils.time import rate
from kombu import Queue

from restante.bus import executor
from restante.bus.addresses import celery_url, choose_broker_url, is_rabbitmq, shown
from restante.bus.batch import Batch, Publishing
from restante.bus.broker import CALLS, Answer, Published, SendOptions
from restante.bus.celery_settings import CeleryOptions
from restante.bus.client import AsyncBusClient, BusClient, Topic, make_outgoing, open_redis
from restante.bus.dedup import WINDOW, MemoryRecords, NoRecords, Records, RedisRecords
from restante.bus.delivery import Delivery
from restante.bus.handler import Handler, RetryRule
from restante.bus.options import (
    CallOptions,
    CallTaskOptions,
    LadderOptions,
    ManyOptions,
    PublishOptions,
    TaskOptions,
    task_options,
)
from restante.bus.schema import Event as EventClass
from restante.bus.settings import Settings, agree_with_environment, celery_keywords
from restante.bus.worker import DeclareStep, HandlerStep, Request
from restante.bus.worker_redis import RedisWorker, WorkerBackend
from restante.core.errors import InvalidInput, RestanteError
from restante.core.journal import Line
from restante.core.keys import QUEUES, SUBSCRIPTIONS
from restante.core.keywords import check_keywords
from restante.core.message import JournalEvent, State
from restante.core.retry import RetryPolicy, exponential, seconds
from restante.core.topics import valid_pattern, valid_topic, valid_word
from restante.rabbitmq.topology import TopologyOptions, valid_service

if TYPE_CHECKING:
    from restante.core.queue import Client

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("restante")

#: Deliveries of an event to a handler before it is dead, and the delays between them, unless said otherwise.
MAX_ATTEMPTS = 11
RETRY = exponential(1, cap=600)
#: Handler names that a service needs for itself.
RESERVED_NAMES = frozenset(("archive", "return", "rung", "calls", "tasks"))


class HandlerTask(Task):
    """The Celery task of a handler."""

    Request = Request
    handler: Handler
    typing = False
    #: Its own request gives the verdict on a failure.
    dead_letters = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Whether acks are early, by option, setting or annotation, is known now.

        On Redis the message stays leased meanwhile: once acked, nothing could be retried. A record says instead that
        the handler was begun.
        """
        handler = cls.__dict__.get("handler")
        if handler is not None:
            handler.early = handler.early or not cls.acks_late
            if handler.early and handler.answers is None and not app.on_rabbitmq:
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
        """Ends this attempt; the event waits at the broker and comes back to this handler alone."""
        attempts = (self.request.retries or 0) + 1
        error = exc or RuntimeError("retry")
        most = self.handler.retry_rule.max_attempts if max_retries is None else max_retries + 1
        delay = countdown if countdown is not None else self.handler.retry_rule.policy.next(attempts)
        if attempts >= most or delay is None:
            raise error
        made = Retry(f"{type(error).__name__}: {error}"[:500], exc=error, when=delay)
        if throw:
            raise made
        return made


class Bus(Celery):
    """A service's bus: `bus = Bus("billing", broker="restante://…")`, or `amqp://…`.

    `retry` and `max_attempts` hold for handlers that say nothing else. `dedup` says where it is kept what has run:
    "redis" (the broker's own, or for RabbitMQ the one at `store`), "memory" or "off"; for `window` seconds.
    `broker_url` is another name of `broker`. All other keywords are arguments of a Celery app or Celery's settings.
    """

    def __init__(
        self,
        service: str,
        broker: str | None = None,
        *,
        broker_url: str | None = None,
        store: str | None = None,
        dedup: Literal["redis", "memory", "off"] = "redis",
        window: float | timedelta = WINDOW,
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
            # Celery's worker would read from there whatever else is said.
            self.broker_url = os.environ["CELERY_BROKER_URL"]
        self.on_rabbitmq = is_rabbitmq(self.broker_url)
        if dedup not in ("redis", "memory", "off"):
            raise InvalidInput(f"dedup must be redis, memory or off, not {dedup!r}")
        if self.on_rabbitmq and dedup == "redis" and store is None:
            raise InvalidInput(
                "on RabbitMQ the records of what has run need a Redis: name it by store='redis://…', or choose "
                "dedup='memory' (this process alone) or dedup='off'"
            )
        self._usual = RetryRule(retry, max_attempts)
        self._dedup, self._window, self._store_url, self._prefix = dedup, seconds(window, "window"), store, prefix
        self._rabbitmq_options = dict(rabbitmq or {})
        check_keywords(self._rabbitmq_options, {one.name for one in fields(TopologyOptions)}, "Bus(rabbitmq={…})")
        #: Handlers of events, by the name of their subscription.
        self.subscriptions: dict[str, Handler] = {}
        #: Handlers of calls, by topic.
        self.answered: dict[str, Handler] = {}
        options = dict(given.pop("broker_transport_options", None) or {})
        if not self.on_rabbitmq:
            if options.get("global_keyprefix", prefix) != prefix:
                raise InvalidInput("the prefix of keys is said by Bus(prefix=…), not by global_keyprefix")
            if prefix:
                options["global_keyprefix"] = prefix
        else:
            options.setdefault("confirm_publish", True)
        agree_with_environment(self.broker_url)
        super().__init__(service, broker=celery_url(self.broker_url), **given)
        self._queues = [Queue(f"{service}.tasks", routing_key=f"{service}.tasks")]
        self._settings = Settings(self, self.broker_url, self._queues, options)
        if not self.on_rabbitmq:
            from restante.celery import install

            install(self)
        self.steps["worker"].add(DeclareStep)
        self.steps["consumer"].add(HandlerStep)

    # -- declaring -----------------------------------------------------------------------------------------------

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

        It gets the data alone, or what its annotation asks for: a model, an event's class, and an `Envelope` where a
        parameter is annotated so. Each handler is retried on its own. Celery's task options are taken by name or as
        `celery_options`: those of retries (autoretry_for, retry_backoff, max_retries, …) become its policy.
        With `acks_late=False` an event is not run again after its process was killed; a failure is retried as usual.
        """
        told = task_options({**options, "celery_options": celery_options}, TaskOptions.__optional_keys__, "subscribe")
        pattern = valid_pattern(topic.topic if isinstance(topic, type) else topic)
        hint = topic if isinstance(topic, type) else None

        def register(function: F) -> F:
            handler = self._handler(function, name, hint, retry, max_attempts, bind, told, pattern=pattern)
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
        """Makes a function answer the calls of a topic: what it returns goes back, and so does `Declined` data.

        Every instance of every service that answers the topic takes calls in turn. Calls are not retried.
        """
        told = task_options({**options, "celery_options": celery_options}, CallTaskOptions.__optional_keys__, "answer")
        found = valid_topic(topic.topic if isinstance(topic, type) else topic)
        hint = topic if isinstance(topic, type) else None

        def register(function: F) -> F:
            if found in self.answered:
                other = self.answered[found].name
                raise InvalidInput(f"{self.service} answers {found} by {other} already: a call has one answer")
            made = name or str(getattr(function, "__name__", ""))
            if name is None and f"{self.service}.{made}" in self.subscriptions:
                made = f"answer_{made}"  # one function may do both
            self.answered[found] = self._handler(function, made, hint, None, None, bind, told, answers=found)
            self._add_queue(f"call:{found}")
            self._add_queue(f"{self.service}.calls")
            return function

        return register

    def event(
        self, topic: str, *, version: str = "", **unknown: Never
    ) -> Callable[[Callable[..., Any]], Callable[..., Published]]:
        """Makes a function an event: calling it runs the body, which may raise, and then publishes what it returns, or
        its arguments by name where it returns nothing."""
        check_keywords(unknown, ("version",), "event")
        found = valid_topic(topic)

        def register(function: Callable[..., Any]) -> Callable[..., Published]:
            signature = inspect.signature(function)

            @functools.wraps(function)
            def publish(*args: Any, **kwargs: Any) -> Published:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                data = function(*args, **kwargs)
                data = dict(bound.arguments) if data is None else data
                outgoing = make_outgoing(found, data, self.service, version=version)
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
        made = valid_word(name or str(getattr(function, "__name__", "")), "handler")
        full = f"{self.service}.{made}"
        if made in RESERVED_NAMES:
            raise InvalidInput(f"a handler cannot be called {made}, which the service's own queues are: give name=")
        known = {one.subscription for one in (*self.subscriptions.values(), *self.answered.values())}
        if full in known:
            raise InvalidInput(f"{self.service} has a handler {made} already: give this one another name=")
        try:
            rate(options.get("rate_limit"))
        except (KeyError, ValueError, TypeError):
            limit = options["rate_limit"]
            raise InvalidInput(f"rate_limit is a number per second, or text such as '10/m', not {limit!r}") from None
        retry_rule = RetryRule.of(retry, max_attempts, options, self._usual)
        handler = Handler(self.service, made, function, bound=bind, retry_rule=retry_rule, hint=hint, **what)

        def run(task: Any, packed: str, text: str) -> None:
            executor.run(self, handler, task, packed, text)

        # Not by the handler's name, from which Celery would write a function: a name may have dashes or be a keyword.
        run.__doc__ = function.__doc__
        # Of this app alone: Celery would hand a task on to every other app of the process.
        told = {"ignore_result": True, "shared": False, **options}
        self.task(run, name=full, base=HandlerTask, bind=True, handler=handler, **told)
        return handler

    def _add_queue(self, name: str) -> None:
        if any(queue.name == name for queue in self._queues):
            return
        self._queues.append(Queue(name, routing_key=name))
        if "queues" in self.amqp.__dict__:
            self.amqp.queues.add(self._queues[-1])

    # -- speaking ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def client(self) -> BusClient:
        """What publishes and calls for this service."""
        self._settings.check()
        return BusClient(
            self.broker_url, source=self.service, store=self._store_url, prefix=self._prefix, **self._ladder
        )

    @functools.cached_property
    def aio(self) -> AsyncBusClient:
        """The same with await: `await bus.aio.publish(…)`, `await bus.aio.call(…)`."""
        self._settings.check()
        return AsyncBusClient(
            self.broker_url, source=self.service, store=self._store_url, prefix=self._prefix, **self._ladder
        )

    @property
    def _ladder(self) -> LadderOptions:
        """What decides on RabbitMQ where a delayed event waits."""
        if not self.on_rabbitmq:
            return {}
        names = LadderOptions.__optional_keys__
        return cast(LadderOptions, {name: value for name, value in self._rabbitmq_options.items() if name in names})

    @overload
    def publish(
        self, topic: Topic, data: Any = None, *, wait: Literal[True] = True, **options: Unpack[PublishOptions]
    ) -> Published: ...

    @overload
    def publish(
        self, topic: Topic, data: Any = None, *, wait: Literal[False], **options: Unpack[PublishOptions]
    ) -> Publishing: ...

    def publish(
        self, topic: Topic, data: Any = None, *, wait: bool = True, **options: Unpack[PublishOptions]
    ) -> Published | Publishing:
        """`BusClient.publish`, with this service as the source."""
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
    def _redis(self) -> Client | None:
        """The Redis that keeps the records, and on Redis everything else."""
        if not self.on_rabbitmq:
            return open_redis(self.broker_url)
        return open_redis(self._store_url) if self._store_url else None

    @functools.cached_property
    def records(self) -> Records:
        """What has run."""
        if self._dedup == "off":
            return NoRecords() if self._redis is None or not self.on_rabbitmq else _Journal(self._redis, self._prefix)
        if self._dedup == "memory":
            return MemoryRecords(self._window)
        assert self._redis is not None
        return RedisRecords(self._redis.connection, self._window, self._prefix)

    @functools.cached_property
    def _begun(self) -> Records:
        """What was begun by handlers with early acks, on Redis."""
        assert self._redis is not None
        return RedisRecords(self._redis.connection, self._window, self._prefix)

    def records_of(self, handler: Handler) -> Records:
        """Where it is kept what a handler has run."""
        return self._begun if handler.early and not self.on_rabbitmq else self.records

    @property
    def knows_begun(self) -> bool:
        """Whether a record tells every process that a message was begun."""
        return self._dedup == "redis"

    @functools.cached_property
    def worker_backend(self) -> WorkerBackend:
        """The broker's side of the worker."""
        if self.on_rabbitmq:
            from restante.bus.worker_rabbitmq import RabbitWorker

            return RabbitWorker(self, self._rabbitmq_options)
        assert self._redis is not None
        return RedisWorker(self, self._redis, self._prefix)

    def handles(self, queue: str) -> bool:
        """Whether a queue is one of events or calls."""
        return queue in self.subscriptions or queue == f"{self.service}.calls" or queue[:5] == "call:"

    def handler_of(self, queue: str, topic: str) -> Handler | None:
        """Who is to have a message."""
        return self.subscriptions.get(queue) or self.answered.get(topic)

    def line(self, delivery: Delivery, event: JournalEvent, state: State | str, **more: Any) -> Line | None:
        """A line for the journal, where the broker does not write its own."""
        if not self.on_rabbitmq or self._redis is None:
            return None
        return delivery.line(event, state, self._consumer, **more)

    def note(self, delivery: Delivery, event: JournalEvent, state: State | str, **more: Any) -> None:
        """Writes such a line; that it cannot be written holds nothing up."""
        line = self.line(delivery, event, state, **more)
        if line is not None:
            try:
                self.records.note(delivery.queue, delivery.envelope.id, delivery.envelope.attempts, line)
            except RestanteError as error:
                log.warning("not journalled queue=%s error=%s", delivery.queue, error)

    @property
    def _consumer(self) -> str:
        return f"{platform.node() or 'host'}:{os.getpid()}"

    def reply(self, delivery: Delivery, answer: Answer) -> None:
        """Answers a call."""
        try:
            self.worker_backend.reply(delivery, answer)
        except RestanteError as error:
            log.warning("not answered topic=%s id=%s error=%s", delivery.envelope.topic, delivery.envelope.id, error)

    def declare(self) -> None:
        """Declares the queues and bindings of this service, on RabbitMQ also the ladder. A worker does it too."""
        self._settings.check()
        self.finalize()
        self._leave_tasks_out()
        for queue in self._queues:
            queue.queue_arguments = self.worker_backend.arguments(queue.name)
        removed = self.worker_backend.declare()
        for one in removed:
            log.info("unsubscribed %s", one)
        if self._redis is not None:
            self._register(self._redis)
        log.info(
            "declared service=%s broker=%s subscriptions=%d calls=%d",
            self.service,
            shown(self.broker_url),
            len(self.subscriptions),
            len(self.answered),
        )

    def _leave_tasks_out(self) -> None:
        """A service without tasks of its own needs no queue for them: a worker that listens would make one."""
        own = [one for name, one in self.tasks.items() if name[:7] != "celery." and not isinstance(one, HandlerTask)]
        consumed = self.amqp.queues._consume_from  # by -Q; whoever names the queue gets it
        if self.on_rabbitmq and not own and consumed is None and len(self._queues) > 1:
            self.amqp.queues.deselect(f"{self.service}.tasks")

    def _register(self, redis: Client) -> None:
        """Tells pages and commands who has subscribed to what; what this service no longer has is taken out."""
        command = redis.connection.command
        flat = command("HGETALL", SUBSCRIPTIONS, key=SUBSCRIPTIONS)
        before = {flat[at].decode(): orjson.loads(flat[at + 1]) for at in range(0, len(flat), 2)}
        broker = "rabbitmq" if self.on_rabbitmq else "redis"
        now: dict[str, dict[str, Any]] = {}
        for handler in (*self.subscriptions.values(), *self.answered.values()):
            queue = handler.subscription if handler.answers is None else f"call:{handler.answers}"
            now[self._prefix + handler.subscription] = {
                "service": self.service,
                "handler": handler.name,
                "topic": handler.pattern,
                "answers": handler.answers,
                "queue": self._prefix + queue,
                "retry": handler.retry_rule.policy.text(),
                "max_attempts": handler.retry_rule.max_attempts,
                "broker": broker,
                "archive_length": self.worker_backend.archive_length,
            }
        for name, info in now.items():
            if before.get(name) != info:
                command("HSET", SUBSCRIPTIONS, name, orjson.dumps(info), key=SUBSCRIPTIONS)
            command("SADD", QUEUES, info["queue"], key=QUEUES)
        for name, info in before.items():
            if info["service"] == self.service and info["broker"] == broker and name not in now:
                command("HDEL", SUBSCRIPTIONS, name, key=SUBSCRIPTIONS)
                log.warning("no longer subscribed %s: its queue and what waits there stays until it is dropped", name)
                answered = {one["answers"] for other, one in before.items() if other != name}
                if info["answers"] and broker == "redis" and info["answers"] not in answered:
                    from restante.bus.client_redis import bind

                    bind(redis, self._prefix, CALLS, "direct", [], (f"call:{info['answers']}",))

    def close(self) -> None:
        """Closes this process's connections."""
        for name in ("client", "worker_backend", "_redis"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()
        super().close()


class _Journal(NoRecords):
    """No deduplication, but the journal."""

    def __init__(self, redis: Client, prefix: str) -> None:
        self._lines = RedisRecords(redis.connection, prefix=prefix)

    def take(self, subscription: str, id: str, attempts: int, line: Line | None = None, *, seize: bool = False) -> Any:
        if line is not None:
            self.note(subscription, id, attempts, line)
        return super().take(subscription, id, attempts)

    def confirm(self, subscription: str, id: str, attempts: int, line: Line | None = None) -> None:
        if line is not None:
            self.note(subscription, id, attempts, line)

    def note(self, subscription: str, id: str, attempts: int, line: Line) -> None:
        self._lines.note(subscription, id, attempts, line)
