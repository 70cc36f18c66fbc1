"""RSMQ queues: their settings and counts, their messages page by page, and deleting and moving them.

The protocol knows no holder of a message, so what is leased can be deleted and moved as well; its consumer is told
nothing. Both are an operator's, and the audit names the queue as `rsmq:` and its name.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from restante.core.errors import NotFound
from restante.rsmq import viewing
from restante.rsmq.bridge import take_over
from restante.rsmq.client import Rsmq
from restante.rsmq.keys import DEFAULT_NAMESPACE
from restante.server import requests, responses
from restante.server.access import Caller
from restante.server.routes.read import Cursor
from restante.server.routing import Operator, Reader, StateDep, answering, router
from restante.server.serializers import rsmq_message_out, rsmq_out, rsmq_whole_out
from restante.server.state import Json, Refused, ServerState

api = router("rsmq")
RsmqQueueName = Annotated[
    str, Path(pattern=requests.RSMQ_QUEUE, description="An RSMQ queue's name.", examples=["orders"])
]
RsmqId = Annotated[str, Path(pattern=requests.RSMQ_ID, description="An RSMQ message's id.")]
Namespace = Annotated[
    str, Query(pattern=requests.RSMQ_NAMESPACE, description="Where its clients keep their queues.", examples=["rsmq"])
]


@answering(api.get, "/rsmq", responses.RsmqQueues, summary="Every RSMQ queue of a namespace")
async def rsmq_queues(state: StateDep, caller: Reader, namespace: Namespace = DEFAULT_NAMESPACE) -> Json:
    """By name; `hidden` counts what is scheduled or leased, exact to the millisecond."""
    found = await state.call(viewing.every_count, state.post, namespace)
    return Json({"now": await state.now_ms(), "queues": [rsmq_out(one) for one in found]})


@answering(api.get, "/rsmq/{queue}", responses.OneRsmqQueue, summary="One RSMQ queue")
async def rsmq_queue(
    state: StateDep, caller: Reader, queue: RsmqQueueName, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """Settings, totals and counts; `max_payload_bytes` is null where the queue has no limit."""
    found = await state.call(viewing.counts, state.post, queue, namespace)
    return Json({"now": found.now_ms, "queue": rsmq_out(found)})


@answering(api.get, "/rsmq/{queue}/messages", responses.RsmqPageOut, summary="Messages of an RSMQ queue, page by page")
async def rsmq_messages(
    state: StateDep,
    caller: Reader,
    queue: RsmqQueueName,
    namespace: Namespace = DEFAULT_NAMESPACE,
    limit: Annotated[int, Query(ge=1, le=viewing.LONGEST_PAGE)] = viewing.PAGE,
    before: Cursor = None,
) -> Json:
    """By when they can be received next. `next` is what to give as `before` for the page behind; null at the end."""
    page = await state.call(viewing.page, state.post, queue, namespace, limit=limit, after=before)
    made = [rsmq_message_out(one, queue, namespace) for one in page.messages]
    return Json({"now": page.now_ms, "total": page.total, "messages": made, "next": page.next})


@answering(api.get, "/rsmq/{queue}/messages/{id}", responses.OneRsmqMessage, summary="One message of an RSMQ queue")
async def rsmq_message(
    state: StateDep, caller: Reader, queue: RsmqQueueName, id: RsmqId, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """With its whole payload: `payload` where it is text, else `payload_base64`."""
    found = await state.call(viewing.show, state.post, queue, id, namespace)
    return Json({"now": await state.now_ms(), "message": rsmq_whole_out(found, queue, namespace)})


@answering(api.delete, "/rsmq/{queue}/messages/{id}", responses.Counted, summary="Delete a message of an RSMQ queue")
async def rsmq_delete(
    state: StateDep, caller: Operator, queue: RsmqQueueName, id: RsmqId, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """404 when there is none."""
    if not await state.call(_delete, state, caller, queue, [id], namespace):
        raise NotFound(f"the RSMQ queue {queue} has no message {id}")
    return Json({"deleted": 1})


@answering(api.post, "/rsmq/{queue}/delete", responses.Counted, summary="Delete messages of an RSMQ queue by id")
async def rsmq_delete_many(
    state: StateDep,
    caller: Operator,
    queue: RsmqQueueName,
    body: requests.RsmqSome,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> Json:
    """Those that are no longer there are not counted."""
    return Json({"deleted": await state.call(_delete, state, caller, queue, body.ids, namespace)})


def _delete(state: ServerState, caller: Caller, queue: str, ids: list[str], namespace: str) -> int:
    viewing.keys_of(state.post, queue, namespace)
    done = Rsmq(namespace=namespace, post=state.post).delete_many(queue, ids)
    if done:
        state.admin(caller).note("delete", f"rsmq:{queue}", done, _where(namespace))
    return done


@answering(api.post, "/rsmq/{queue}/move", responses.Counted, summary="Move messages out of an RSMQ queue")
async def rsmq_move(
    state: StateDep,
    caller: Operator,
    queue: RsmqQueueName,
    body: requests.RsmqMove,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> Json:
    """Into a native queue, each under its own id, or with `rsmq` into another RSMQ queue, which must be there."""
    if body.rsmq and body.to == queue:
        raise Refused(409, "SameQueue", f"the messages are in {queue} already", "name another queue as `to`")
    return Json({"moved": await state.call(_move, state, caller, queue, body, namespace)})


def _move(state: ServerState, caller: Caller, queue: str, body: requests.RsmqMove, namespace: str) -> int:
    viewing.keys_of(state.post, queue, namespace)
    if body.rsmq:
        viewing.keys_of(state.post, body.to, namespace)
        moved = Rsmq(namespace=namespace, post=state.post).move(queue, body.to, body.ids)
    else:
        moved = take_over(state.post, queue, body.to, body.ids, namespace=namespace)
    if moved:
        to = f"to {'rsmq:' if body.rsmq else ''}{body.to}"
        state.admin(caller).note("move", f"rsmq:{queue}", moved, " ".join(filter(None, (to, _where(namespace)))))
    return moved


def _where(namespace: str) -> str:
    """What the audit adds where the namespace is not the one all clients use."""
    return "" if namespace == DEFAULT_NAMESPACE else f"in the namespace {namespace}"
