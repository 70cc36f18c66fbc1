"""The apps of `benchmarks.bus`: a service on the bus, and plain Celery beside it, on the broker that BROKER names."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from restante.bus import Bus

BROKER = os.environ.get("BROKER", "restante://localhost:6379/0")

bus = Bus("bench", BROKER, store=os.environ.get("STORE"), dedup_store="redis" if "STORE" in os.environ else "memory")


@bus.subscribe("bench.event")
def handled(data: Any) -> None:
    """Does nothing."""


@bus.answer("bench.call")
def answered(data: Any) -> Any:
    """Says what it was told."""
    return data


plain = Celery("plain", broker=os.environ.get("PLAIN", BROKER), backend=os.environ.get("BACKEND", "rpc://"))
plain.conf.task_default_queue = "plain"
plain.conf.broker_connection_retry_on_startup = True


@plain.task(name="plain.echo")
def echo(data: Any) -> Any:
    """Says what it was told."""
    return data


@plain.task(name="plain.noop", ignore_result=True)
def noop(data: Any) -> None:
    """Does nothing."""
