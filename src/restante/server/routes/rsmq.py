"""Routes for RSMQ queues: settings and counts, messages page by page, delete and move.

RSMQ does not record who holds a message, so leased messages can be deleted and moved too; their consumer is not
notified. Both need the role operate, and the audit writes the queue as `rsmq:` and its name.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from restante.core.errors import NotFound
from restante.rsmq import inspector
from restante.rsmq.bridge import take_over
from restante.rsmq.client import Rsmq
from restante.rsmq.keys import DEFAULT_NAMESPACE
from restante.server import requests, responses
from restante.server.access import Caller
from restante.server.routes.read import Cursor
from restante.server.routing import Operator, Reader, StateDep, json_route, router
from restante.server.serializers import rsmq_message_out, rsmq_out, rsmq_whole_out
from restante.server.state import Json, Refused, ServerState

api = router("rsmq")
RsmqQueueName = Annotated[str, Path(pattern=requests.RSMQ_QUEUE, description="RSMQ queue name.", examples=["orders"])]
RsmqId = Annotated[str, Path(pattern=requests.RSMQ_ID, description="RSMQ message ID.")]
Namespace = Annotated[str, Query(pattern=requests.RSMQ_NAMESPACE, description="RSMQ namespace.", examples=["rsmq"])]


@json_route(api.get, "/rsmq", responses.RsmqQueues, summary="List the RSMQ queues of a namespace")
async def rsmq_queues(state: StateDep, caller: Reader, namespace: Namespace = DEFAULT_NAMESPACE) -> Json:
    """Sorted by name. `hidden` counts scheduled and leased messages, exact to the millisecond."""
    counts = await state.call(inspector.all_counts, state.client, namespace)
    return Json({"now": await state.now_ms(), "queues": [rsmq_out(queue) for queue in counts]})


@json_route(api.get, "/rsmq/{queue}", responses.OneRsmqQueue, summary="Show an RSMQ queue")
async def rsmq_queue(
    state: StateDep, caller: Reader, queue: RsmqQueueName, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """Settings, totals and counts. `max_payload_bytes` is null if the queue has no limit."""
    counts = await state.call(inspector.counts, state.client, queue, namespace)
    return Json({"now": counts.now_ms, "queue": rsmq_out(counts)})


@json_route(api.get, "/rsmq/{queue}/messages", responses.RsmqPageOut, summary="List messages of an RSMQ queue")
async def rsmq_messages(
    state: StateDep,
    caller: Reader,
    queue: RsmqQueueName,
    namespace: Namespace = DEFAULT_NAMESPACE,
    limit: Annotated[int, Query(ge=1, le=inspector.LONGEST_PAGE)] = inspector.PAGE,
    before: Cursor = None,
) -> Json:
    """Sorted by when they can next be received. Pass `next` as `before` to get the next page; it is null at the end."""
    page = await state.call(inspector.page, state.client, queue, namespace, limit=limit, after=before)
    messages = [rsmq_message_out(message, queue, namespace) for message in page.messages]
    return Json({"now": page.now_ms, "total": page.total, "messages": messages, "next": page.next})


@json_route(api.get, "/rsmq/{queue}/messages/{id}", responses.OneRsmqMessage, summary="Show a message of an RSMQ queue")
async def rsmq_message(
    state: StateDep, caller: Reader, queue: RsmqQueueName, id: RsmqId, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """With its whole payload: `payload` if it is text, else `payload_base64`."""
    message = await state.call(inspector.show, state.client, queue, id, namespace)
    return Json({"now": await state.now_ms(), "message": rsmq_whole_out(message, queue, namespace)})


@json_route(api.delete, "/rsmq/{queue}/messages/{id}", responses.Deleted, summary="Delete a message of an RSMQ queue")
async def rsmq_delete(
    state: StateDep, caller: Operator, queue: RsmqQueueName, id: RsmqId, namespace: Namespace = DEFAULT_NAMESPACE
) -> Json:
    """Returns 404 if there is no such message."""
    if not await state.call(_delete, state, caller, queue, [id], namespace):
        raise NotFound(f"the RSMQ queue {queue} has no message {id}")
    return Json({"deleted": 1})


@json_route(api.post, "/rsmq/{queue}/delete", responses.Deleted, summary="Delete messages of an RSMQ queue by ID")
async def rsmq_delete_many(
    state: StateDep,
    caller: Operator,
    queue: RsmqQueueName,
    body: requests.RsmqSome,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> Json:
    """Messages that no longer exist are not counted."""
    return Json({"deleted": await state.call(_delete, state, caller, queue, body.ids, namespace)})


def _delete(state: ServerState, caller: Caller, queue: str, ids: list[str], namespace: str) -> int:
    inspector.keys_of(state.client, queue, namespace)
    done = Rsmq(namespace=namespace, post=state.client).delete_many(queue, ids)
    if done:
        state.admin(caller).note("delete", f"rsmq:{queue}", done, _where(namespace))
    return done


@json_route(api.post, "/rsmq/{queue}/move", responses.Moved, summary="Move messages out of an RSMQ queue")
async def rsmq_move(
    state: StateDep,
    caller: Operator,
    queue: RsmqQueueName,
    body: requests.RsmqMove,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> Json:
    """Moves them to a native queue under their own IDs, or with `rsmq` to another RSMQ queue, which must exist."""
    if body.rsmq and body.to == queue:
        raise Refused(409, "SameQueue", f"the messages are already in {queue}", "name another queue as `to`")
    return Json({"moved": await state.call(_move, state, caller, queue, body, namespace)})


def _move(state: ServerState, caller: Caller, queue: str, body: requests.RsmqMove, namespace: str) -> int:
    inspector.keys_of(state.client, queue, namespace)
    if body.rsmq:
        inspector.keys_of(state.client, body.to, namespace)
        moved = Rsmq(namespace=namespace, post=state.client).move(queue, body.to, body.ids)
    else:
        moved = take_over(state.client, queue, body.to, body.ids, namespace=namespace)
    if moved:
        to = f"to {'rsmq:' if body.rsmq else ''}{body.to}"
        state.admin(caller).note("move", f"rsmq:{queue}", moved, " ".join(filter(None, (to, _where(namespace)))))
    return moved


def _where(namespace: str) -> str:
    """What the audit adds for a namespace other than the default."""
    return "" if namespace == DEFAULT_NAMESPACE else f"in the namespace {namespace}"
