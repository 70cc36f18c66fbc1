"""Makes a Celery app reliable: safe defaults, dead letters for failed tasks, workers in the consumer registry."""

from __future__ import annotations

import os
import platform
from typing import Any

import orjson
from celery import Celery, bootsteps

from restante.celery.requests import UNSET, bury_failures, trust_broker_delays
from restante.core.errors import InvalidInput
from restante.core.keywords import check_keywords

#: Settings for an app that has not chosen them itself, each with its reason.
DEFAULTS: dict[str, Any] = {
    # A task is acked when it ends, not when it starts: the tasks of a killed worker run again.
    "task_acks_late": True,
    # The task of a pool process that dies is requeued at once instead of failed.
    "task_reject_on_worker_lost": True,
    # A short outage must not cancel running tasks: their leases are kept meanwhile.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry_on_startup": True,
}


#: Celery's setting that `task_acks_on_failure` and `task_acks_on_timeout` default to.
_ACKS_ON_FAILURE = "task_acks_on_failure_or_timeout"


class Consumers(bootsteps.StartStopStep):
    """Registers this worker, with the number of tasks it runs at once, in the core's consumer registry."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        bury_failures(c.app)
        c.update_strategies()  # Celery built them from the tasks' requests before this step
        broker = getattr(c.connection.transport, "broker", None)
        if broker is not None:
            concurrency = getattr(c.controller, "concurrency", None) or c.pool.num_processes or 1
            broker.process_info = orjson.dumps(
                {"host": platform.node(), "pid": os.getpid(), "concurrency": concurrency, "name": c.hostname}
            )

    def info(self, c: Any) -> dict[str, Any]:
        """For `celery inspect stats`: seconds since the worker last looked for messages."""
        seconds = getattr(c.connection.transport, "seconds_since_poll", None) if c.connection else None
        return {} if seconds is None else {"restante": {"last_poll_seconds_ago": round(seconds, 3)}}


def install(app: Celery, *, dead_letters: bool = True, **unknown: Any) -> Celery:
    """Makes an app reliable: sets each of `DEFAULTS` that the app has not chosen itself, and returns the app.

    With `dead_letters` a task that failed for good (by an exception, spent retries or a time limit) becomes a dead
    letter with its error. A task's own `dead_letters=True` or `False` overrides this. `acks_on_failure`,
    `acks_on_timeout` or `acks_on_failure_or_timeout`, set for the task or the app, override both.
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
    trust_broker_delays()
    app.steps["consumer"].add(Consumers)
    return app


def _set_defaults(sender: Celery, **_: Any) -> None:
    """Replaces Celery's own defaults; every choice of the application, in whichever way, still overrides them."""
    sender.conf.maps[-1].update({**DEFAULTS, _ACKS_ON_FAILURE: UNSET})
