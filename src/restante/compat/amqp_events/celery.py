"""Implements `events_app`, its app and its events. The package's docstring has the table and the failures."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from celery import Task
from celery.app.defaults import SETTING_KEYS
from kombu.utils import json as kombu_json

from restante.bus.addresses import is_rabbitmq
from restante.bus.adoption import POSITIONAL
from restante.bus.app import Bus, HandlerTask
from restante.bus.client import BusClient
from restante.bus.dedup import WINDOW, DedupStore
from restante.bus.envelope import Envelope
from restante.bus.options import RetryOptions
from restante.compat.amqp_events import defaults
from restante.compat.broker import broker_of, check_broker
from restante.core.errors import InvalidInput, InvalidPayload
from restante.core.keywords import check_keywords
from restante.core.retry import exponential
from restante.core.topics import as_word

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("restante")

#: Celery's settings of queues and routes, which the bus sets itself.
_ROUTING = frozenset(
    (
        "task_queues",
        "task_routes",
        "task_default_exchange",
        "task_default_exchange_type",
        "task_default_queue",
        "task_default_routing_key",
    )
)


class AlreadyRegistered(InvalidInput, RuntimeError):
    """A service has one handler per event. Call the second function from the first, or move it to another service."""


class Event:
    """An event declared by a function: calling it runs the function, which may raise, then publishes the arguments."""

    def __init__(self, app: EventsCelery, name: str, func: Callable[..., Any]) -> None:
        self.app = app
        self.name = name
        self.func = func
        functools.update_wrapper(self, func)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(func).parameters.values()
        self._names = [parameter.name for parameter in parameters if parameter.kind in kinds]

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Publishes the event; returns its ID."""
        self.func(*args, **kwargs)
        names = [*self._names, *map(str, range(len(self._names), len(args)))]
        try:
            data = json.loads(kombu_json.dumps({**dict(zip(names, args, strict=False)), **kwargs}))
        except (TypeError, ValueError) as error:
            raise InvalidPayload(f"{self.name} cannot be sent as JSON: {error}") from None
        return self.app.publish(self.name, data, headers={POSITIONAL: len(args)} if args else None).id

    def handler(self, func: F | None = None, *, bind: bool = False) -> Any:
        """`@an_event.handler` or `@an_event.handler(bind=True)`: `app.handler` with the name of the event."""
        register = self.app.handler(self.name, bind=bind)
        return register if func is None else register(func)


class EventsCelery(Bus):
    """The app of a service. `store`, `dedup`, `dedup_store` are those of `Bus`; other keywords are Celery settings."""

    def __init__(
        self,
        main: str,
        *,
        broker_url: str | None = None,
        store: str | None = None,
        dedup: float | timedelta | None = None,
        dedup_store: DedupStore = "redis",
        **settings: Any,
    ) -> None:
        check_keywords(settings, SETTING_KEYS | {"broker_url", "store", "dedup", "dedup_store"}, "events_app")
        if taken := sorted(_ROUTING & {name for name, value in settings.items() if value}):
            raise InvalidInput(
                f"{', '.join(taken)} cannot be set: every handler has its own queue. To separate environments, give "
                "each a virtual host, or a database of Redis"
            )
        url = broker_of(broker_url)
        if dedup is None:
            dedup = 0 if is_rabbitmq(url) and store is None and dedup_store == "redis" else WINDOW
        retries = defaults.AMQP_EVENTS_MAX_RETRIES
        super().__init__(
            as_word(main),
            url,
            store=store,
            dedup=dedup,
            dedup_store=dedup_store,
            max_attempts=retries + 1,
            retry=exponential(1, cap=_cap(retries), jitter=0),
            rabbitmq=_archive(is_rabbitmq(url)),
            broker_transport_options=settings.pop("broker_transport_options", None),
        )
        self._bases: dict[str, type[Task]] = {}
        self.conf.update(settings)

    def event(self, name: str) -> Callable[[Callable[..., Any]], Event]:  # type: ignore[override]
        """Decorates a function that declares an event."""
        return lambda func: Event(self, name, func)

    def handler(self, name: str, bind: bool = False) -> Callable[[F], F]:
        """Registers a function, or a class of `celery.Task`, as the handler of an event."""

        def register(fun_or_cls: F) -> F:
            word = as_word(name)
            full = f"{self.service}.{word}"
            if full in self.subscriptions:
                raise AlreadyRegistered(f"event handler already registered: {self.service} handles {name}")
            options: dict[str, Any] = {}
            function: Any = fun_or_cls
            bound = bind
            if _is_task(function):
                options = _class_options(function)
                # Without an empty autoretry_for, Celery would wrap the run in its own retries.
                self._bases[full] = type(function.__name__, (function, HandlerTask), {"autoretry_for": ()})
                function, bound = function.run, True
            self.subscribe(name, name=word, bind=True, **options)(_with_arguments(function, bound))
            return fun_or_cls

        return register

    def task(self, *args: Any, **options: Any) -> Any:
        """Celery's `task`; the task of a class handler has that class as its base."""
        base = self._bases.pop(options.get("name", ""), None) if "handler" in options else None
        return super().task(*args, **({**options, "base": base} if base else options))

    @functools.cached_property
    def client(self) -> BusClient:
        """`Bus.client`."""
        check_broker(self, "events_app()")
        return super().client

    def declare(self) -> None:
        """`Bus.declare`."""
        check_broker(self, "events_app()")
        super().declare()


def events_app(main: str, **kwargs: Any) -> EventsCelery:
    """The app of the service `main`; keywords are those of `EventsCelery`."""
    return EventsCelery(main, **kwargs)


def _archive(on_rabbitmq: bool) -> dict[str, Any]:
    """The archive settings of the bus."""
    life, length = defaults.AMQP_EVENTS_ARCHIVED_MESSAGE_TTL, defaults.AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH
    if not on_rabbitmq:
        names = [name for name in os.environ if name.startswith("AMQP_EVENTS_ARCHIVED_")]
        if names:
            log.warning(
                "ignored settings=%s reason=%r", ",".join(names), "on Redis dead events stay until replayed or purged"
            )
        return {}
    if not life and not length:
        return {"archive": False}
    if not life or not length:
        raise InvalidInput(
            "AMQP_EVENTS_ARCHIVED_MESSAGE_TTL and AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH must both be 0, which turns the "
            "archive off, or both be above 0"
        )
    return {"archive_seconds": life / 1000, "archive_length": length}


def _is_task(handler: Any) -> bool:
    return isinstance(handler, type) and issubclass(handler, Task)


def _class_options(cls: type[Task]) -> dict[str, Any]:
    """The retry options that a handler's class sets, over the defaults; options of Celery's own Task are ignored."""
    own = [kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] != "celery"]
    chosen = {
        name: getattr(cls, name)
        for name in sorted(RetryOptions.__optional_keys__)
        if any(name in vars(kind) for kind in own)
    }
    retries = defaults.AMQP_EVENTS_MAX_RETRIES
    defaults_ = {"retry_backoff": 1, "retry_backoff_max": _cap(retries), "retry_jitter": False, "max_retries": retries}
    return {**defaults_, **chosen} if chosen else {}


def _cap(retries: int) -> float:
    """Seconds of the last of `retries` delays that double from one second on."""
    return 2.0 ** max(0, retries - 1)


def _with_arguments(function: Callable[..., Any], bound: bool) -> Callable[..., Any]:
    """Adapts a function for a subscription: passes the data as its arguments."""

    def run(task: Any, data: Any, envelope: Envelope) -> Any:
        data = kombu_json.loads(kombu_json.dumps(data))
        args: list[Any] = [task] if bound else []
        kwargs: dict[str, Any] = {}
        if isinstance(data, dict):
            count = int(envelope.headers.get(POSITIONAL, 0))
            args += list(data.values())[:count]
            kwargs = dict(list(data.items())[count:])
        else:
            args.append(data)
        return function(*args, **kwargs)

    run.__name__, run.__doc__ = getattr(function, "__name__", "run"), function.__doc__
    return run
