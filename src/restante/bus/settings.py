"""A bus's Celery settings: safe defaults, and checks that its worker and its publishers use the same broker.

A setting that would separate them, or that a bus sets itself, raises `InvalidInput` before anything is published or
read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.defaults import SETTING_KEYS
from celery.app.utils import detect_settings

from restante.bus.addresses import celery_url, shown
from restante.bus.celery_settings import CeleryOptions
from restante.core.errors import InvalidInput
from restante.core.keywords import check_keywords

#: Set where the app has not chosen otherwise.
DEFAULTS: dict[str, Any] = {
    # An event is acknowledged after it is handled, and one whose process dies is delivered again.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "broker_connection_retry_on_startup": True,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # Events have no results, and a call's answer goes to its caller.
    "task_ignore_result": True,
    # Request settles a failure with the broker; Celery must not ack it.
    "task_acks_on_failure_or_timeout": False,
    # A slow handler must not hold events that another process could take.
    "worker_prefetch_multiplier": 1,
}
_URLS = ("broker_url", "broker_read_url", "broker_write_url")
_QUEUES = ("task_queues", "task_default_queue", "task_default_exchange", "task_default_routing_key")
#: Settings that a bus sets itself, and what to do instead.
_OWN = {
    **dict.fromkeys(_URLS[1:], "events are published and read over one broker: Bus(broker=…)"),
    **dict.fromkeys(_QUEUES, "a handler's queue is its own, and plain tasks of the service have service.tasks"),
    **dict.fromkeys(
        ("broker_host", "broker_port", "broker_user", "broker_password", "broker_vhost", "broker_transport"),
        "all of it is in the URL: Bus(broker=…)",
    ),
}


def celery_keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the keywords of a bus that are Celery's."""
    if "window" in given:
        raise InvalidInput("Bus does not take window: the window of deduplication is dedup=SECONDS")
    check_keywords(given, CeleryOptions.__optional_keys__ | SETTING_KEYS | _BUS, "Bus")
    for name in given:
        if name in _OWN:
            raise InvalidInput(f"Bus does not take {name}: {_OWN[name]}")
    return dict(given)


#: Keywords of a bus that are not Celery's, for the hint in the error about an unknown one.
_BUS = frozenset(("broker", "store", "dedup", "dedup_store", "retry", "max_attempts", "prefix", "rabbitmq"))


def agree(own: str, where: str, urls: Mapping[str, Any]) -> None:
    """InvalidInput if Celery's settings name another broker than the one events are published to."""
    for name, url in urls.items():
        if url and (not isinstance(url, str) or celery_url(url) != celery_url(own)):
            shown_url = shown(url) if isinstance(url, str) else url
            raise InvalidInput(
                f"{name} in {where} is {shown_url}, and this bus is on {shown(own)}: its worker would read where "
                "nothing is published. Set the broker by Bus(broker=…) alone"
            )


def agree_with_environment(own: str) -> None:
    """`agree` for environment variables, also set by options of `celery`: a worker prefers them to all settings."""
    variables = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
    agree(own, "the environment", {name: os.environ.get(name) for name in variables})


class Settings:
    """The settings that a bus sets on its Celery app."""

    def __init__(self, app: Celery, broker_url: str, queues: list[Any], transport: dict[str, Any]) -> None:
        self._app = app
        self._broker_url = broker_url
        self._queues = queues
        self._transport = transport
        #: Settings of config_from_object and its like, of those names that concern a bus.
        self._configured_values: dict[str, Any] = {}
        app.conf.broker_transport_options = transport
        for name, value in DEFAULTS.items():
            app.conf.setdefault(name, value)
        app.conf.task_default_queue = queues[0].name
        app.conf.task_queues = queues
        app.on_after_configure.connect(self._configured, weak=False)

    def _configured(self, **_: Any) -> None:
        """Lets a file of settings override the defaults; in Celery the defaults would win."""
        app = self._app
        given = detect_settings(app.prepare_config(app.loader.conf), {}, prefix=app.namespace)
        given.maps.pop()  # Celery's own defaults
        names = (*DEFAULTS, *_OWN, "broker_url", "broker_transport_options")
        self._configured_values = {name: given[name] for name in names if name in given}
        for name in DEFAULTS.keys() & self._configured_values.keys():
            if app.conf[name] == DEFAULTS[name]:
                app.conf[name] = self._configured_values[name]
        more = self._configured_values.get("broker_transport_options") or {}
        app.conf.broker_transport_options = {**more, **app.conf.broker_transport_options}

    def check(self) -> None:
        """InvalidInput if settings made after the bus separate its worker from its publishers."""
        conf = self._app.conf
        agree(self._broker_url, "the app's settings", {name: getattr(conf, name) for name in _URLS})
        agree(self._broker_url, "the app's settings", {name: self._configured_values.get(name) for name in _URLS})
        for name in _OWN:
            if self._configured_values.get(name):
                raise InvalidInput(f"{name} cannot be set in the settings of an app on a bus: {_OWN[name]}")
        if conf.task_queues is not self._queues:
            raise InvalidInput(f"task_queues cannot be set in the settings of an app on a bus: {_OWN['task_queues']}")
        options, own = conf.broker_transport_options, self._transport.get("global_keyprefix", "")
        if options.get("global_keyprefix", own) != own:
            raise InvalidInput(
                f"global_keyprefix in broker_transport_options is {options['global_keyprefix']!r}, and the bus has "
                f"prefix={own!r}: set it by Bus(prefix=…) alone"
            )
        conf.broker_transport_options = {**self._transport, **options}
