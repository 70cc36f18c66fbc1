"""Extends `celery inspect scheduled` to delayed tasks that wait in Redis: a worker lists those of its queues.

Celery itself lists only the delayed tasks in the worker's memory. The tasks in Redis are listed in Celery's format, by
every worker of their queue. On failure to read a task's arguments it is listed with their representation.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

from kombu.serialization import prepare_accept_content

from restante.celery.messages import Message as KombuMessage
from restante.celery.messages import unpack
from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.message import Message, State

log = logging.getLogger("restante")

#: Tasks in one answer, those due first: an answer is one message, and the worker's loop waits while it is built.
LISTED = 1000
#: Bytes of a task's arguments that are decoded; longer ones are listed by their representation.
READ = 65_536
#: The priority that Celery shows for every task in its timer.
TIMER_PRIORITY = 6


def extend_inspect() -> None:
    """Extends Celery's `scheduled` command, in a process with remote control; further calls change nothing."""
    control = sys.modules.get("celery.worker.control")
    if control is None:
        return
    original = control.Panel.data.get("scheduled")
    if original is None or getattr(original, "lists_broker", False):
        return

    @functools.wraps(original)
    def scheduled(state: Any, **options: Any) -> list[dict[str, Any]]:
        return [*original(state, **options), *delayed_tasks(state)]

    scheduled.lists_broker = True  # type: ignore[attr-defined]
    control.Panel.register(name="scheduled", alias="dump_schedule", type="inspect")(scheduled)


def delayed_tasks(state: Any) -> list[dict[str, Any]]:
    """The delayed tasks in the queues that a worker consumes from, those due first."""
    consumer = state.consumer
    broker = getattr(getattr(consumer.connection, "transport", None), "broker", None)
    if broker is None or consumer.task_consumer is None:
        return []  # another transport, or a worker that is connecting
    accept = prepare_accept_content(consumer.app.conf.accept_content)
    tasks: list[tuple[Any, dict[str, Any]]] = []
    for queue in consumer.task_consumer.queues:
        for message in _delayed(Admin(broker.client), broker.full_name(queue.name)):
            tasks.append((message.due_at, _describe(message, queue.name, state.hostname, accept)))
    tasks.sort(key=lambda pair: pair[0])
    return [task for _, task in tasks[:LISTED]]


def _delayed(admin: Admin, queue: str) -> Iterator[Message]:
    for state in (State.SCHEDULED, State.RETRYING):
        try:
            yield from itertools.islice(admin.walk(queue, state, preview=READ), LISTED)
        except NotFound:
            return  # nothing was ever sent to this queue


def _describe(message: Message, queue: str, hostname: str, accept: Any) -> dict[str, Any]:
    """A task that no worker has received yet, in the format of Celery's `Request.info`."""
    due = message.due_at.isoformat() if message.due_at else None
    parts = unpack(message, queue)
    received = KombuMessage(None, None, "", parts, accept=accept)
    headers = received.headers
    try:
        args, kwargs = received.payload[:2]
    except Exception as error:  # a foreign message may contain anything; the others are listed nevertheless
        log.debug("arguments not decoded queue=%s id=%s error=%s", queue, message.id, error)
        args, kwargs = headers.get("argsrepr", ""), headers.get("kwargsrepr", "")
    task = headers.get("task") or message.kind
    return {
        "eta": headers.get("eta") or due,
        "priority": TIMER_PRIORITY,
        "request": {
            "id": headers.get("id") or message.id,
            "name": headers.get("shadow") or task,
            "args": args,
            "kwargs": kwargs,
            "type": task,
            "hostname": hostname,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": parts["exchange"],
                "routing_key": parts["routing_key"],
                "priority": message.priority,
                "redelivered": message.attempts > 0,
            },
            "worker_pid": None,
        },
    }
