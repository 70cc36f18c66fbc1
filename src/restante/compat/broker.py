"""Which broker a foreign program means, and that it is still the same one when the bus starts."""

from __future__ import annotations

import os
from typing import Any

from restante.bus.addresses import celery_url, shown
from restante.bus.app import Bus
from restante.core.errors import InvalidInput

#: The broker where a program names none, as Celery has it.
LOCAL = "amqp://guest:guest@localhost:5672//"


def broker_of(given: Any) -> str:
    """The URL of the broker: Celery prefers the environment's to any setting, and so must the bus that publishes."""
    found = os.environ.get("CELERY_BROKER_URL") or given or LOCAL
    if not isinstance(found, str) or ";" in found:
        raise InvalidInput("broker_url must be one URL: a list of brokers to fall back on is not supported")
    return found


def check_broker(bus: Bus, door: str) -> None:
    """Raises InvalidInput where the app's broker was changed after the bus had taken it."""
    found = bus.conf.broker_url
    if found != celery_url(bus.broker_url):
        raise InvalidInput(
            f"broker_url was set to {shown(str(found))} after {door} had taken {shown(bus.broker_url)}: set it before"
        )
