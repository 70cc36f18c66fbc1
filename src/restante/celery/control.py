"""`celery inspect scheduled` for a broker that holds delayed tasks itself: the worker answers for its queues.

Celery lists the delayed tasks in the worker's memory. Here they wait in Redis, so every worker of a queue lists the
queue's, in Celery's format. A task whose arguments cannot be read is listed with their representation.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

from kombu.serialization import prepare_accept_content

from restante.celery import messages
from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.message import Message, State

log = logging.getLogger("restante")

#: Tasks one answer lists, those due first: an answer is one message, made while the worker's loop waits.
LISTED = 1000
#: Bytes of a task's arguments that are read; longer ones are listed by their representation.
READ = 65_536
#: What Celery shows as the priority of a task that waits in its timer; it is the same for all.
TIMER_PRIORITY = 6


def extend_inspect() -> None:
    """Extends Celery's own `scheduled` command, in a process that has remote control; once is enough."""
    control = sys.modules.get("celery.worker.control")
    if control is None:
        return
    celerys = control.Panel.data.get("scheduled")
    if celerys is None or getattr(celerys, "lists_broker", False):
        return

    @functools.wraps(celerys)
    def scheduled(state: Any, **told: Any) -> list[dict[str, Any]]:
        return [*celerys(state, **told), *waiting_tasks(state)]

    scheduled.lists_broker = True  # type: ignore[attr-defined]
    control.Panel.register(name="scheduled", alias="dump_schedule", type="inspect")(scheduled)


def waiting_tasks(state: Any) -> list[dict[str, Any]]:
    """The delayed tasks of the queues a worker consumes from, those due first."""
    consumer = state.consumer
    broker = getattr(getattr(consumer.connection, "transport", None), "broker", None)
    if broker is None or consumer.task_consumer is None:
        return []  # another transport, or a worker that is just connecting
    accept = prepare_accept_content(consumer.app.conf.accept_content)
    found: list[tuple[Any, dict[str, Any]]] = []
    for queue in consumer.task_consumer.queues:
        for message in _delayed(Admin(broker.client), broker.full_name(queue.name)):
            found.append((message.due_at, _task_out(message, queue.name, state.hostname, accept)))
    found.sort(key=lambda pair: pair[0])
    return [task for _, task in found[:LISTED]]


def _delayed(admin: Admin, queue: str) -> Iterator[Message]:
    for kind in (State.SCHEDULED, State.RETRYING):
        pages: Iterator[Message] = _walk(admin, queue, kind)
        yield from itertools.islice(pages, LISTED)


def _walk(admin: Admin, queue: str, state: State) -> Iterator[Message]:
    after: str | None = None
    while True:
        try:
            page = admin.messages(queue, state, after=after, preview=READ)
        except NotFound:
            return  # nothing was ever sent there
        yield from page.messages
        after = page.next
        if after is None:
            return


def _task_out(message: Message, queue: str, hostname: str, accept: Any) -> dict[str, Any]:
    """As Celery's `Request.info`, for a task that no worker has yet."""
    due = message.due_at.isoformat() if message.due_at else None
    made = messages.parts(message, queue)
    received = messages.Message(None, None, queue, "", made, accept=accept)
    headers = received.headers
    try:
        args, kwargs = received.payload[:2]
    except Exception as error:  # whatever a foreign message is made of, the others are to be listed
        log.debug("arguments not read queue=%s id=%s error=%s", queue, message.id, error)
        args, kwargs = headers.get("argsrepr", ""), headers.get("kwargsrepr", "")
    task = headers.get("task") or message.kind
    return {
        "eta": headers.get("eta") or due,
        "priority": TIMER_PRIORITY,
        "request": {
            "id": headers.get("id") or message.id, "name": headers.get("shadow") or task, "args": args,
            "kwargs": kwargs, "type": task, "hostname": hostname, "time_start": None, "acknowledged": False,
            "delivery_info": {
                "exchange": made["exchange"], "routing_key": made["routing_key"], "priority": message.priority,
                "redelivered": message.attempts > 0,
            },
            "worker_pid": None,
        },
    }  # fmt: skip
