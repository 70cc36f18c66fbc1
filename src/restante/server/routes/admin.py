"""Routes for operators: settings, pause, purge, replay, delete, revoke, cancel, move, edit, import and export.

Each calls the verb of `core.admin` under the caller's name, which the journal and the audit record. An import is
read and checked completely before the first message is stored.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import Query, Request
from pydantic import ValidationError
from starlette.responses import Response, StreamingResponse

from restante.core.admin import Admin, ReplayTask
from restante.core.errors import InvalidInput, NotFound
from restante.core.inspector import PAGE
from restante.core.message import State, new_id
from restante.core.stored import decode_json
from restante.server import requests, responses
from restante.server.routes.read import one_message, one_queue
from restante.server.routing import MessageName, Operator, QueueName, Reader, StateDep, json_route, router
from restante.server.serializers import export_out, task_out
from restante.server.state import Json, Refused, ServerState

log = logging.getLogger("restante")

#: Seconds to wait for a replay before the response is 202. The replay continues in the background.
AT_ONCE = 1.0
#: Seconds between two checks whether a replay has started.
LOOK_AGAIN = 0.05
#: Bytes of an import kept in memory; a larger one is written to a temporary file.
IN_MEMORY = 8 * 1024 * 1024
#: Messages of an import sent per call.
BATCH = 500
#: Bytes of payload per message of an export: no payload is cut.
WHOLE = 2**31

api = router("operating")


@json_route(api.put, "/queues/{queue:name}", responses.QueueOut, summary="Change settings, or create a queue")
async def configure(state: StateDep, caller: Operator, queue: QueueName, body: requests.Configure) -> Json:
    """Settings that are not named stay; null restores the default. They apply to every client."""
    await state.call(state.admin(caller).configure, queue, **body.options())
    return Json(await one_queue(state, caller, queue))


@json_route(api.delete, "/queues/{queue:name}", responses.Dropped, summary="Drop a queue and all its messages")
async def drop(state: StateDep, caller: Operator, queue: QueueName) -> Json:
    """Rejected while messages are leased."""
    await state.operate(caller, Admin.drop, queue)
    return Json({"dropped": queue})


@json_route(api.post, "/queues/{queue:name}/pause", responses.QueueOut, summary="Pause a queue")
async def pause(state: StateDep, caller: Operator, queue: QueueName, body: requests.Empty | None = None) -> Json:
    """No message is delivered until `resume`. Sends continue, and leases and delays keep running."""
    await state.operate(caller, Admin.pause, queue)
    return Json(await one_queue(state, caller, queue))


@json_route(api.post, "/queues/{queue:name}/resume", responses.QueueOut, summary="Resume a queue")
async def resume(state: StateDep, caller: Operator, queue: QueueName, body: requests.Empty | None = None) -> Json:
    """Wakes waiting receives."""
    await state.operate(caller, Admin.resume, queue)
    return Json(await one_queue(state, caller, queue))


@json_route(api.post, "/queues/{queue:name}/purge", responses.Purged, summary="Purge messages by state")
async def purge(state: StateDep, caller: Operator, queue: QueueName, body: requests.Purge) -> Json:
    """Removes every message in the given states. Leased messages cannot be purged."""
    return Json({"purged": await state.operate(caller, Admin.purge, queue, body.states)})


@json_route(api.post, "/queues/{queue:name}/delete", responses.Deleted, summary="Delete messages by ID")
async def delete_many(state: StateDep, caller: Operator, queue: QueueName, body: requests.Some) -> Json:
    """Returns 409 if some are leased: those stay, the others are deleted."""
    return Json({"deleted": await state.operate(caller, Admin.delete, queue, body.ids)})


@json_route(api.post, "/queues/{queue:name}/revoke", responses.Revoked, summary="Take leased messages back")
async def revoke_many(state: StateDep, caller: Operator, queue: QueueName, body: requests.Some) -> Json:
    """They are ready again, and the attempt counts. Their lease tokens die at once; messages not leased stay."""
    return Json({"revoked": await state.operate(caller, Admin.revoke, queue, body.ids)})


@json_route(api.post, "/queues/{queue:name}/cancel", responses.Cancelled, summary="Give messages up by ID")
async def cancel_many(state: StateDep, caller: Operator, queue: QueueName, body: requests.Some) -> Json:
    """Removes waiting and leased messages; dead and done ones stay. Consumers learn it by their next extend."""
    return Json({"cancelled": await state.operate(caller, Admin.cancel, queue, body.ids)})


@json_route(api.post, "/queues/{queue:name}/move", responses.Moved, summary="Move messages to another queue")
async def move(state: StateDep, caller: Operator, queue: QueueName, body: requests.Move) -> Json:
    """Leased and done messages stay."""
    await state.existing(queue)
    if body.to == queue:
        raise Refused(409, "SameQueue", f"the messages are already in {queue}", "name another queue as `to`")
    return Json({"moved": await state.call(state.admin(caller).move, queue, body.to, body.ids)})


def _tell_failure(queue: str, name: str, running: asyncio.Future[ReplayTask]) -> None:
    """Logs the error of a replay whose client already has its 202."""
    if not running.cancelled() and (error := running.exception()) is not None:
        log.warning("replay failed queue=%s task=%s error=%s", queue, name, error)


@json_route(
    api.post,
    "/queues/{queue:name}/replay",
    responses.OneTask,
    summary="Replay dead messages",
    openapi_extra={"responses": {"202": {"description": "The replay is running; poll its task."}}},
)
async def replay(state: StateDep, caller: Operator, queue: QueueName, body: requests.Replay) -> Json:
    """Makes the named messages ready again, or all that match. `dry_run` only counts them.

    The response is 202 while the replay is still running; its progress is among the queue's replays.
    """
    await state.existing(queue)
    admin = state.admin(caller)
    name = body.task or new_id()
    latest: list[ReplayTask] = []
    options: dict[str, Any] = {"rate": body.rate, "progress": latest.append, "cancel": state.closing.is_set}
    if body.task is not None:
        options["task"] = body.task
    else:
        options |= {"ids": body.ids, "kind": body.kind, "error_class": body.error_class, "dry_run": body.dry_run}
        options["name"] = name
    work = state.call_slowly(admin.replay, queue, **options)
    running = state.keep(asyncio.ensure_future(work))
    done, _ = await asyncio.wait((running,), timeout=AT_ONCE)
    while not done and not latest:
        # Until its first messages have moved it may still be rejected, and a 202 would hide that.
        done, _ = await asyncio.wait((running,), timeout=LOOK_AGAIN)
    if done:
        return Json({"task": task_out(running.result())})
    running.add_done_callback(partial(_tell_failure, queue, name))
    return Json({"task": task_out(latest[-1])}, 202)


@json_route(
    api.patch, "/queues/{queue:name}/messages/{id:name}", responses.OneMessage, summary="Edit a waiting message"
)
async def edit(state: StateDep, caller: Operator, queue: QueueName, id: MessageName, body: requests.Edit) -> Json:
    """Returns 409 while the message is leased."""
    await state.operate(caller, Admin.edit, queue, id, **requests.changes_of(body))
    return Json(await state.call(one_message, state, caller, queue, id))


@json_route(
    api.post, "/queues/{queue:name}/messages/{id:name}/revoke", responses.Revoked, summary="Take a leased message back"
)
async def revoke(
    state: StateDep, caller: Operator, queue: QueueName, id: MessageName, body: requests.Empty | None = None
) -> Json:
    """Returns 404 if it is not leased."""
    if not await state.operate(caller, Admin.revoke, queue, [id]):
        raise NotFound(f"{queue} has no leased message {id}: nobody holds it now")
    return Json({"revoked": 1})


@json_route(
    api.post, "/queues/{queue:name}/messages/{id:name}/cancel", responses.Cancelled, summary="Give a message up"
)
async def cancel(
    state: StateDep, caller: Operator, queue: QueueName, id: MessageName, body: requests.Empty | None = None
) -> Json:
    """Returns 404 if it has ended: it is done, dead or gone."""
    if not await state.operate(caller, Admin.cancel, queue, [id]):
        raise NotFound(f"{queue} has no message {id} that waits or runs: it has ended, or was never sent")
    return Json({"cancelled": 1})


@json_route(api.delete, "/queues/{queue:name}/messages/{id:name}", responses.Deleted, summary="Delete a message")
async def delete(state: StateDep, caller: Operator, queue: QueueName, id: MessageName) -> Json:
    """Returns 404 if there is no such message, and 409 while it is leased."""
    if not await state.operate(caller, Admin.delete, queue, [id]):
        raise NotFound(f"{queue} has no message {id}")
    return Json({"deleted": 1})


# -- import and export -----------------------------------------------------------------------------------------------


@json_route(
    api.post,
    "/queues/{queue:name}/import",
    responses.Imported,
    summary="Import messages, one JSON object per line",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": '{"payload": {"n": 1}}\n'}},
        }
    },
)
async def import_(state: StateDep, caller: Operator, request: Request, queue: QueueName) -> Json:
    """If a line is invalid the error names it and nothing is stored. A line whose ID exists already stores nothing."""
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as kept:
        lines = 0
        left = b""
        async for chunk in request.stream():
            *whole, left = (left + chunk).split(b"\n")
            for line in whole:
                lines += _check(kept, line, lines)
        lines += _check(kept, left, lines)
        if not lines:
            raise InvalidInput("the file has no messages: write one JSON object per line")
        kept.seek(0)
        return Json({"lines": lines, **await _send_all(state, caller.name, queue, kept, lines)})


def _check(kept: Any, line: bytes, before: int) -> int:
    if not line.strip():
        return 0
    _read(line, before + 1)
    kept.write(line.strip() + b"\n")
    return 1


def _read(line: bytes, number: int) -> requests.SendOne:
    try:
        item = requests.SendOne.model_validate(decode_json(line))
        item.draft()
        return item
    except (ValueError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(f"line {number} is not a message: {reason}; nothing was stored") from None


async def _send_all(state: ServerState, who: str, queue: str, kept: Any, lines: int) -> dict[str, int]:
    to = state.queue(queue, f"http:{who}")
    stored = existing = 0
    batch: list[Any] = []
    for number, line in enumerate(kept, 1):
        batch.append(_read(line, number).draft())
        if len(batch) == BATCH or number == lines:
            ids = await to.send_many(batch)
            stored += sum(1 for id in ids if id.stored)
            existing += sum(1 for id in ids if not id.stored)
            batch = []
    await state.call(Admin(state.client, operator=who).note, "import", queue, stored)
    return {"stored": stored, "existing": existing}


@api.get(
    "/queues/{queue:name}/export",
    response_model=None,
    summary="Export messages of a state, one JSON object per line",
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
async def export(
    state: StateDep,
    caller: Reader,
    queue: QueueName,
    message_state: Annotated[State, Query(alias="state")] = State.DEAD,
) -> Response:
    """Writes the format that `import` reads."""
    await state.existing(queue)
    admin = state.admin(caller)

    async def lines() -> AsyncIterator[bytes]:
        after: str | None = None
        while True:
            page = await state.call(admin.messages, queue, message_state, limit=PAGE, after=after, preview=WHOLE)
            yield b"".join(orjson.dumps(export_out(message)) + b"\n" for message in page.messages)
            after = page.next
            if after is None:
                return

    file = re.sub(r"[^A-Za-z0-9._-]", "_", f"{queue}-{message_state.value}.ndjson")
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
