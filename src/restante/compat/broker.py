"""Finds the broker that a program names; on failure raises InvalidInput, also if it changed before the bus starts."""

from __future__ import annotations

import os
from typing import Any

from restante.bus.addresses import celery_url, shown
from restante.bus.app import Bus
from restante.core.errors import InvalidInput

#: Celery's default broker.
LOCAL = "amqp://guest:guest@localhost:5672//"


def broker_of(given: Any) -> str:
    """The URL of the broker. As in Celery, the environment overrides every setting."""
    url = os.environ.get("CELERY_BROKER_URL") or given or LOCAL
    if not isinstance(url, str) or ";" in url:
        raise InvalidInput("broker_url must be one URL: a list of fallback brokers is not supported")
    return url


def check_broker(bus: Bus, setup: str) -> None:
    """Raises InvalidInput if the app's broker was changed after `setup` read it."""
    url = bus.conf.broker_url
    if url != celery_url(bus.broker_url):
        raise InvalidInput(
            f"broker_url was set to {shown(str(url))} after {setup} had read {shown(bus.broker_url)}: set it before"
        )
