"""Safe defaults for an app, and a worker that shows itself among Restante's consumers."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import orjson
from celery import Celery, bootsteps

#: Set where the app has not chosen otherwise, and why.
DEFAULTS: dict[str, Any] = {
    # A task is signed for when it is done, not when it is begun: a killed worker's tasks run again.
    "task_acks_late": True,
    # A pool process that dies hands its task back at once instead of calling it failed.
    "task_reject_on_worker_lost": True,
    # A short outage must not cancel tasks at work: their leases are kept meanwhile.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry_on_startup": True,
}


class Consumers(bootsteps.StartStopStep):
    """Tells the core's registry who this worker is and how many tasks it runs at once."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        desk = getattr(c.connection.transport, "desk", None)
        if desk is not None:
            concurrency = getattr(c.controller, "concurrency", None) or c.pool.num_processes or 1
            desk.card = orjson.dumps(
                {"host": platform.node(), "pid": os.getpid(), "concurrency": concurrency, "name": c.hostname}
            )

    def info(self, c: Any) -> dict[str, Any]:
        """For `celery inspect stats`: how old the last look at the broker is."""
        desk = getattr(c.connection.transport, "_desk", None) if c.connection else None
        if desk is None:
            return {}
        return {"restante": {"last_poll_seconds_ago": round(time.monotonic() - desk.polled_at, 3)}}


def install(app: Celery) -> Celery:
    """Gives an app the defaults above where it has not chosen otherwise, and its workers the step; returns the app."""
    chosen = app.conf.changes if app.configured else app._preconf
    for name, value in DEFAULTS.items():
        if name not in chosen:
            app.conf[name] = value
    app.steps["consumer"].add(Consumers)
    return app
