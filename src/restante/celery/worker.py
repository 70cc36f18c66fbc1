"""Safe defaults for an app, dead letters for its failed tasks, and a worker that shows itself among the consumers."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import orjson
from celery import Celery, bootsteps

from restante.celery.requests import UNSET, bury_failures, watch
from restante.core.errors import InvalidInput
from restante.core.keywords import check_keywords

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


#: Celery's setting from which `task_acks_on_failure` and `task_acks_on_timeout` come where they are not set.
_ACKS_ON_FAILURE = "task_acks_on_failure_or_timeout"


class Consumers(bootsteps.StartStopStep):
    """Tells the core's registry who this worker is and how many tasks it runs at once."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        bury_failures(c.app)
        c.update_strategies()  # made of the tasks' requests before this step
        broker = getattr(c.connection.transport, "broker", None)
        if broker is not None:
            concurrency = getattr(c.controller, "concurrency", None) or c.pool.num_processes or 1
            broker.process_info = orjson.dumps(
                {"host": platform.node(), "pid": os.getpid(), "concurrency": concurrency, "name": c.hostname}
            )

    def info(self, c: Any) -> dict[str, Any]:
        """For `celery inspect stats`: how old the last look at the broker is."""
        broker = getattr(c.connection.transport, "_broker", None) if c.connection else None
        if broker is None:
            return {}
        return {"restante": {"last_poll_seconds_ago": round(time.monotonic() - broker.polled_at, 3)}}


def install(app: Celery, *, dead_letters: bool = True, **unknown: Any) -> Celery:
    """Makes an app reliable: sets the defaults above where it has not chosen otherwise, and returns it.

    With `dead_letters` a task that failed for good, by an exception, spent retries or a time limit, is a dead letter
    with its error. A task's own `dead_letters=True` or `False` wins, and `acks_on_failure`, `acks_on_timeout` or
    `acks_on_failure_or_timeout`, set for the task or the app, win over both.
    """
    if setting := next((name for name in unknown if name in DEFAULTS), None):
        raise InvalidInput(f"{setting} is a setting of the app, not of install(): app.conf.{setting} = …")
    check_keywords(unknown, ("dead_letters",), "install()")
    if not isinstance(dead_letters, bool):
        raise InvalidInput(f"dead_letters must be True or False, not {dead_letters!r}")
    if app.configured:
        _set_defaults(app)
    else:
        app.on_after_configure.connect(_set_defaults, sender=app, weak=False)
    app.restante_dead_letters = dead_letters
    watch()
    app.steps["consumer"].add(Consumers)
    return app


def _set_defaults(sender: Celery, **_: Any) -> None:
    """Replaces Celery's own defaults: whatever the application chooses, in whichever way, lies above them."""
    sender.conf.maps[-1].update({**DEFAULTS, _ACKS_ON_FAILURE: UNSET})
