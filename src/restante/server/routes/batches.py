"""Routes for batches: send one, list, show, cancel, resume.

A batch is sent by one request. If the server dies half way, the batch stays open and is listed.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from restante.core.batch import BatchStatus
from restante.server import requests, responses
from restante.server.requests import BATCH_NAME, NAME
from restante.server.routing import Operator, Reader, Sender, StateDep, json_route, router
from restante.server.serializers import ms
from restante.server.state import Json

api = router("batches")
BatchId = Annotated[
    str,
    Path(
        pattern=BATCH_NAME, description="Home queue, slash, ID. Encode the slash as %2F.", examples=["reports/01HZY5Q3"]
    ),
]
Home = Annotated[str | None, Query(pattern=NAME, description="Only batches of this home queue.")]
Limit = Annotated[int, Query(ge=1, le=1000)]


def batch_out(status: BatchStatus) -> dict[str, Any]:
    """A batch with its counts."""
    return {
        **status.as_dict(),
        "created_at": ms(status.created_at),
        "sealed_at": ms(status.sealed_at),
        "ended_at": ms(status.ended_at),
    }


@json_route(api.post, "/batches", responses.BatchSent, status_code=201, summary="Send a batch")
async def send_batch(state: StateDep, caller: Sender, body: requests.SendBatch) -> Json:
    """Sends messages of any queues. Once all have ended, `on_complete` is sent to the queue `home`."""
    batch = state.async_client.batch(body.home, **body.options())
    async with batch:
        sent = [await batch.send(one.queue, one.draft()) for one in body.messages]
    return Json({"id": batch.id, "messages": [{"id": str(id), "stored": id.stored} for id in sent]}, 201)


@json_route(api.get, "/batches", responses.Batches, summary="List batches")
async def batches(state: StateDep, caller: Reader, home: Home = None, ended: bool = False, limit: Limit = 100) -> Json:
    """The newest first: those that have not ended or, with `ended`, those that have."""
    found = await state.call(state.admin(caller).batches, home, ended=ended, limit=limit)
    return Json({"now": await state.now_ms(), "batches": [batch_out(status) for status in found]})


@json_route(api.get, "/batches/{batch:name}", responses.BatchOut, summary="Show a batch")
async def batch(state: StateDep, caller: Reader, batch: BatchId) -> Json:
    """Its counts, and the first messages of it that did not succeed."""
    return Json(batch_out(await state.call(state.admin(caller).batch, batch)))


@json_route(api.post, "/batches/{batch:name}/cancel", responses.Cancelled, summary="Give a batch up")
async def cancel_batch(state: StateDep, caller: Operator, batch: BatchId, body: requests.Empty | None = None) -> Json:
    """Cancels its messages, also those that run, and the batches in it. No message of its end is sent."""
    return Json({"cancelled": await state.call(state.admin(caller).cancel_batch, batch)})


@json_route(api.post, "/batches/{batch:name}/resume", responses.BatchResumed, summary="Repair and seal a batch")
async def resume_batch(state: StateDep, caller: Operator, batch: BatchId, body: requests.Empty | None = None) -> Json:
    """An open batch leaves out what was never sent. A running one counts messages that are nowhere as lost."""
    return Json({"missing": await state.call(state.admin(caller).resume_batch, batch)})
