"""What an operator does over HTTP: settings, pause, purge, replay, delete, move, edit, import and export.

Each is the core's own verb under the caller's name, so journal and audit say who it was. An import is read and checked
whole before the first message is stored.
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
from restante.server import answers, shapes
from restante.server.looking import one_message, one_queue
from restante.server.office import Json, Office, Refused
from restante.server.routing import Here, MessageName, Operator, QueueName, Reader, answering, router
from restante.server.telling import export_out, task_out

log = logging.getLogger("restante")

#: Seconds a replay may take before the answer is "it runs"; it goes on by itself.
AT_ONCE = 1.0
#: Seconds between two looks at whether a replay has begun.
LOOK_AGAIN = 0.05
#: Bytes of an import kept in memory before they go to a file.
IN_MEMORY = 8 * 1024 * 1024
#: Messages of an import sent by one call.
BATCH = 500
#: Bytes of payloads asked for by one page of an export.
WHOLE = 2**31

api = router("operating")


@answering(api.put, "/queues/{queue:name}", answers.QueueOut, summary="Change settings, or make a queue")
async def configure(here: Here, caller: Operator, queue: QueueName, body: shapes.Configure) -> Json:
    """What is not named stays; null puts a setting back to its default. They hold for every client."""
    await here.call(here.admin(caller).configure, queue, **body.options())
    return Json(await one_queue(here, caller, queue))


@answering(api.delete, "/queues/{queue:name}", answers.Counted, summary="Drop a queue with all it holds")
async def drop(here: Here, caller: Operator, queue: QueueName) -> Json:
    """Refused while messages are leased."""
    await here.existing(queue)
    await here.call(here.admin(caller).drop, queue)
    return Json({"dropped": queue})


@answering(api.post, "/queues/{queue:name}/pause", answers.QueueOut, summary="Hand nothing out")
async def pause(here: Here, caller: Operator, queue: QueueName, body: shapes.Empty | None = None) -> Json:
    """Sends go on, and leases and delays keep their times."""
    await here.existing(queue)
    await here.call(here.admin(caller).pause, queue)
    return Json(await one_queue(here, caller, queue))


@answering(api.post, "/queues/{queue:name}/resume", answers.QueueOut, summary="End a pause")
async def resume(here: Here, caller: Operator, queue: QueueName, body: shapes.Empty | None = None) -> Json:
    """Waiting receives are woken."""
    await here.existing(queue)
    await here.call(here.admin(caller).resume, queue)
    return Json(await one_queue(here, caller, queue))


@answering(api.post, "/queues/{queue:name}/purge", answers.Counted, summary="Remove every message of some states")
async def purge(here: Here, caller: Operator, queue: QueueName, body: shapes.Purge) -> Json:
    """Leased messages cannot be purged."""
    await here.existing(queue)
    return Json({"purged": await here.call(here.admin(caller).purge, queue, body.states)})


@answering(api.post, "/queues/{queue:name}/delete", answers.Counted, summary="Delete messages by id")
async def delete_many(here: Here, caller: Operator, queue: QueueName, body: shapes.Some) -> Json:
    """409 when some are held: those stay, the others are gone."""
    await here.existing(queue)
    return Json({"deleted": await here.call(here.admin(caller).delete, queue, body.ids)})


@answering(api.post, "/queues/{queue:name}/move", answers.Counted, summary="Move messages to another queue")
async def move(here: Here, caller: Operator, queue: QueueName, body: shapes.Move) -> Json:
    """Held and done messages stay."""
    await here.existing(queue)
    if body.to == queue:
        raise Refused(409, "SameQueue", f"the messages are in {queue} already", "name another queue as `to`")
    return Json({"moved": await here.call(here.admin(caller).move, queue, body.to, body.ids)})


def _tell_failure(queue: str, name: str, running: asyncio.Future[ReplayTask]) -> None:
    """Logs why a replay ended that nobody waits for any more."""
    if not running.cancelled() and (error := running.exception()) is not None:
        log.warning("replay failed queue=%s task=%s error=%s", queue, name, error)


@answering(
    api.post, "/queues/{queue:name}/replay", answers.OneTask, summary="Put dead messages back to ready",
    openapi_extra={"responses": {"202": {"description": "It runs; ask for the task."}}},
)  # fmt: skip
async def replay(here: Here, caller: Operator, queue: QueueName, body: shapes.Replay) -> Json:
    """Named ids, or all that match. With `dry_run` only counted. 202 while it still runs: see the queue's replays."""
    await here.existing(queue)
    admin = here.admin(caller)
    name = body.task or new_id()
    latest: list[ReplayTask] = []
    options: dict[str, Any] = {"rate": body.rate, "progress": latest.append, "cancel": here.closing.is_set}
    if body.task is not None:
        options["task"] = body.task
    else:
        options |= {"ids": body.ids, "kind": body.kind, "error_class": body.error_class, "dry_run": body.dry_run}
        options["name"] = name
    work = here.call_slowly(admin.replay, queue, **options)
    running = here.keep(asyncio.ensure_future(work))
    done, _ = await asyncio.wait((running,), timeout=AT_ONCE)
    while not done and not latest:
        # Until its first messages have moved it may still be refused, and nobody would hear of it after a 202.
        done, _ = await asyncio.wait((running,), timeout=LOOK_AGAIN)
    if done:
        return Json({"task": task_out(running.result())})
    running.add_done_callback(partial(_tell_failure, queue, name))
    return Json({"task": task_out(latest[-1])}, 202)


@answering(api.patch, "/queues/{queue:name}/messages/{id:name}", answers.OneMessage, summary="Edit a waiting message")
async def edit(here: Here, caller: Operator, queue: QueueName, id: MessageName, body: shapes.Edit) -> Json:
    """409 while somebody holds it."""
    await here.existing(queue)
    await here.call(here.admin(caller).edit, queue, id, **shapes.one_of(body))
    return Json(await here.call(one_message, here, caller, queue, id))


@answering(api.delete, "/queues/{queue:name}/messages/{id:name}", answers.Counted, summary="Delete a message")
async def delete(here: Here, caller: Operator, queue: QueueName, id: MessageName) -> Json:
    """404 when there is none, 409 while somebody holds it."""
    await here.existing(queue)
    if not await here.call(here.admin(caller).delete, queue, [id]):
        raise NotFound(f"{queue} has no message {id}")
    return Json({"deleted": 1})


# -- import and export -----------------------------------------------------------------------------------------------


@answering(
    api.post, "/queues/{queue:name}/import", answers.Imported, summary="Send a file of messages, one JSON per line",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": '{"payload": {"n": 1}}\n'}},
        }
    },
)  # fmt: skip
async def import_(here: Here, caller: Operator, request: Request, queue: QueueName) -> Json:
    """A bad line is named and nothing is stored. Lines with an id that is there already store nothing."""
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as kept:
        lines = 0
        left = b""
        async for chunk in request.stream():
            *whole, left = (left + chunk).split(b"\n")
            for line in whole:
                lines += _check(kept, line, lines)
        lines += _check(kept, left, lines)
        if not lines:
            raise InvalidInput("the file has no messages: one JSON object per line")
        kept.seek(0)
        return Json({"lines": lines, **await _send_all(here, caller.name, queue, kept, lines)})


def _check(kept: Any, line: bytes, before: int) -> int:
    if not line.strip():
        return 0
    _read(line, before + 1)
    kept.write(line.strip() + b"\n")
    return 1


def _read(line: bytes, number: int) -> shapes.SendOne:
    try:
        item = shapes.SendOne.model_validate(decode_json(line))
        item.draft()
        return item
    except (ValueError, ValidationError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(f"line {number} is not a message: {said}; nothing was stored") from None


async def _send_all(here: Office, who: str, queue: str, kept: Any, lines: int) -> dict[str, int]:
    to = here.queue(queue, f"http:{who}")
    stored = existing = 0
    batch: list[Any] = []
    for number, line in enumerate(kept, 1):
        batch.append(_read(line, number).draft())
        if len(batch) == BATCH or number == lines:
            ids = await to.send_many(batch)
            stored += sum(1 for id in ids if id.stored)
            existing += sum(1 for id in ids if not id.stored)
            batch = []
    await here.call(Admin(here.post, operator=who).note, "import", queue, stored)
    return {"stored": stored, "existing": existing}


@api.get(
    "/queues/{queue:name}/export",
    response_model=None,
    summary="Every message of a state, one JSON per line",
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
async def export(
    here: Here, caller: Reader, queue: QueueName, state: Annotated[State, Query()] = State.DEAD
) -> Response:
    """What `import` takes."""
    await here.existing(queue)
    admin = here.admin(caller)

    async def lines() -> AsyncIterator[bytes]:
        after: str | None = None
        while True:
            page = await here.call(admin.messages, queue, state, limit=PAGE, after=after, preview=WHOLE)
            yield b"".join(orjson.dumps(export_out(message)) + b"\n" for message in page.messages)
            after = page.next
            if after is None:
                return

    file = re.sub(r"[^A-Za-z0-9._-]", "_", f"{queue}-{state.value}.ndjson")
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
