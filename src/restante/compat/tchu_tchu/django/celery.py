"""A Celery app that becomes a bus at its set-up, when its broker is known; on failure raises InvalidInput."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from celery import Celery as PlainCelery

from restante.bus.addresses import celery_url, is_rabbitmq
from restante.bus.app import Bus
from restante.bus.client import BusClient
from restante.bus.dedup import WINDOW
from restante.bus.settings import DEFAULTS
from restante.compat.broker import broker_of, check_broker
from restante.compat.tchu_tchu.registry import get_registry
from restante.core.errors import InvalidInput
from restante.core.retry import no_retry
from restante.core.topics import as_word


class _ExistingApp(PlainCelery):
    """Between `Bus` and Celery: skips Celery's constructor for an app that exists already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "main" not in vars(self):
            super().__init__(*args, **kwargs)


class Celery(Bus, _ExistingApp):
    """A Celery app with `message_broker`; until that call it is a plain Celery app."""

    def __init__(self, main: str | None = None, *args: Any, **kwargs: Any) -> None:
        PlainCelery.__init__(self, main, *args, **kwargs)
        self.tchu_include = list(kwargs.get("include") or ())

    def message_broker(
        self,
        queue_name: str,
        include: Iterable[str] | None = None,
        exchange_name: str = "tchu_events",
        exchange_type: str = "topic",
        durable: bool = True,
        auto_delete: bool = False,
    ) -> None:
        """Turns the app into the bus of a service whose handlers are in the modules of `include`."""
        modules = self.tchu_include if include is None else include
        setup_celery_queue(self, queue_name, modules, exchange_name, exchange_type, durable, auto_delete)

    @functools.cached_property
    def client(self) -> BusClient:
        """`Bus.client`."""
        check_broker(self, "the set-up")
        return super().client

    def declare(self) -> None:
        """`Bus.declare`."""
        check_broker(self, "the set-up")
        if self.conf.task_queues is not self._queues:
            raise InvalidInput("task_queues was changed after the set-up and replaced its queues: set up the app last")
        super().declare()


def setup_celery_queue(
    celery_app: Any,
    queue_name: str,
    subscriber_modules: Iterable[str],
    exchange_name: str = "tchu_events",
    exchange_type: str = "topic",
    durable: bool = True,
    auto_delete: bool = False,
) -> None:
    """Turns a Celery app into the bus of the service `queue_name`; its worker imports the handlers' modules."""
    if exchange_name != "tchu_events":
        raise InvalidInput("exchange_name cannot be changed: to separate environments, give each a virtual host")
    if exchange_type != "topic" or not durable or auto_delete:
        raise InvalidInput("events use a topic exchange and durable queues: leave out the other arguments")
    if getattr(celery_app, "service", None):
        raise InvalidInput(f"this app is the bus of {celery_app.service} already: set it up once")
    conf = celery_app.conf
    url, backend = broker_of(conf.broker_url), str(conf.result_backend or "")
    store = backend if is_rabbitmq(url) and backend.startswith(("redis://", "rediss://")) else None
    expires = conf.result_expires
    window = expires if isinstance(expires, int | float | timedelta) and expires else WINDOW
    unset = [name for name in DEFAULTS if not _is_set(conf, name)]
    # The object stays the same, so that modules that imported it, and the worker that finds it by name, have the bus.
    celery_app.__class__ = Celery
    Bus.__init__(
        celery_app,
        as_word(queue_name),
        url,
        store=store,
        retry=no_retry(),
        max_attempts=1,
        dedup=0 if is_rabbitmq(url) and store is None else window,
        broker_transport_options=conf.broker_transport_options,
    )
    conf.broker_url = celery_url(url)
    conf.update({name: DEFAULTS[name] for name in unset})
    conf.include = tuple(dict.fromkeys((*(conf.include or ()), *subscriber_modules)))
    get_registry().attach(celery_app)


def _is_set(conf: Any, name: str) -> bool:
    """Whether the program set a setting: the last of Celery's maps has the defaults."""
    names = (name, name.upper(), f"{conf.prefix or ''}{name}".upper())
    return any(spelling in settings for settings in conf.maps[:-1] for spelling in names)
