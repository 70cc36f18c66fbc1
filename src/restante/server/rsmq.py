"""RSMQ queues: their settings and counts, their messages page by page, and deleting and moving them.

The protocol knows no holder of a message, so what is leased can be deleted and moved as well; its consumer is told
nothing. Both are an operator's, and the audit names the queue as `rsmq:` and its name.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from restante.core.errors import NotFound
from restante.rsmq import inspector
from restante.rsmq.bridge import take_over
from restante.rsmq.client import Rsmq
from restante.rsmq.keys import DEFAULT_NAMESPACE
from restante.server import answers, shapes
from restante.server.access import Caller
from restante.server.looking import Cursor
from restante.server.office import Json, Office, Refused
from restante.server.routing import Here, Operator, Reader, answering, router
from restante.server.telling import rsmq_message_out, rsmq_out, rsmq_whole_out

api = router("rsmq")
RsmqQueueName = Annotated[
    str, Path(pattern=shapes.RSMQ_QUEUE, description="An RSMQ queue's name.", examples=["orders"])
]
RsmqId = Annotated[str, Path(pattern=shapes.RSMQ_ID, description="An RSMQ message's id.")]
Namespace = Annotated[
    str, Query(pattern=shapes.RSMQ_NAMESPACE, description="Where its clients keep their queues.", examples=["rsmq"])
]


@answering(api.get, "/rsmq", answers.RsmqQueues, summary="Every RSMQ queue of a namespace")
async def rsmq_queues(here: Here, caller: Reader, namespace: Namespace = DEFAULT_NAMESPACE) -> Json:
    """By name; `hidden` counts what is scheduled or leased, exact to the millisecond."""
    found = await here.call(inspector.all_counts, here.post, namespace)
    return Json({"now": await here.now_ms(), "queues": [rsmq_out(one) for one in found]})


@answering(api.get, "/rsmq/{queue}", answers.OneRsmqQueue, summary="One RSMQ queue")
async def rsmq_queue(
    here: Here, caller: Reader, queue: RsmqQueueName, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """Settings, totals and counts; `max_payload_bytes` is null where the queue has no limit."""
    found = await here.call(inspector.counts, here.post, queue, namespace)
    return Json({"now": found.now_ms, "queue": rsmq_out(found)})


@answering(api.get, "/rsmq/{queue}/messages", answers.RsmqPageOut, summary="Messages of an RSMQ queue, page by page")
async def rsmq_messages(
    here: Here, caller: Reader, queue: RsmqQueueName, namespace: Namespace = DEFAULT_NAMESPACE,
    limit: Annotated[int, Query(ge=1, le=inspector.LONGEST_PAGE)] = inspector.PAGE, before: Cursor = None,
) -> Json:  # fmt: skip
    """By when they can be received next. `next` is what to give as `before` for the page behind; null at the end."""
    page = await here.call(inspector.page, here.post, queue, namespace, limit=limit, after=before)
    made = [rsmq_message_out(one, queue, namespace) for one in page.messages]
    return Json({"now": page.now_ms, "total": page.total, "messages": made, "next": page.next})


@answering(api.get, "/rsmq/{queue}/messages/{id}", answers.OneRsmqMessage, summary="One message of an RSMQ queue")
async def rsmq_message(
    here: Here, caller: Reader, queue: RsmqQueueName, id: RsmqId, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """With its whole payload: `payload` where it is text, else `payload_base64`."""
    found = await here.call(inspector.show, here.post, queue, id, namespace)
    return Json({"now": await here.now_ms(), "message": rsmq_whole_out(found, queue, namespace)})


@answering(api.delete, "/rsmq/{queue}/messages/{id}", answers.Counted, summary="Delete a message of an RSMQ queue")
async def rsmq_delete(
    here: Here, caller: Operator, queue: RsmqQueueName, id: RsmqId, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """404 when there is none."""
    if not await here.call(_delete, here, caller, queue, [id], namespace):
        raise NotFound(f"the RSMQ queue {queue} has no message {id}")
    return Json({"deleted": 1})


@answering(api.post, "/rsmq/{queue}/delete", answers.Counted, summary="Delete messages of an RSMQ queue by id")
async def rsmq_delete_many(
    here: Here, caller: Operator, queue: RsmqQueueName, body: shapes.RsmqSome, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """Those that are no longer there are not counted."""
    return Json({"deleted": await here.call(_delete, here, caller, queue, body.ids, namespace)})


def _delete(here: Office, caller: Caller, queue: str, ids: list[str], namespace: str) -> int:
    inspector.keys_of(here.post, queue, namespace)
    done = Rsmq(namespace=namespace, post=here.post).delete_many(queue, ids)
    if done:
        here.admin(caller).note("delete", f"rsmq:{queue}", done, _where(namespace))
    return done


@answering(api.post, "/rsmq/{queue}/move", answers.Counted, summary="Move messages out of an RSMQ queue")
async def rsmq_move(
    here: Here, caller: Operator, queue: RsmqQueueName, body: shapes.RsmqMove, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """Into a native queue, each under its own id, or with `rsmq` into another RSMQ queue, which must be there."""
    if body.rsmq and body.to == queue:
        raise Refused(409, "SameQueue", f"the messages are in {queue} already", "name another queue as `to`")
    return Json({"moved": await here.call(_move, here, caller, queue, body, namespace)})


def _move(here: Office, caller: Caller, queue: str, body: shapes.RsmqMove, namespace: str) -> int:
    inspector.keys_of(here.post, queue, namespace)
    if body.rsmq:
        inspector.keys_of(here.post, body.to, namespace)
        moved = Rsmq(namespace=namespace, post=here.post).move(queue, body.to, body.ids)
    else:
        moved = take_over(here.post, queue, body.to, body.ids, namespace=namespace)
    if moved:
        to = f"to {'rsmq:' if body.rsmq else ''}{body.to}"
        here.admin(caller).note("move", f"rsmq:{queue}", moved, " ".join(filter(None, (to, _where(namespace)))))
    return moved


def _where(namespace: str) -> str:
    """What the audit adds where the namespace is not the one all clients use."""
    return "" if namespace == DEFAULT_NAMESPACE else f"in the namespace {namespace}"
