"""Routes for schedules: list, show, put, pause, resume, run now and delete.

Each change calls `core.schedule_admin` under the caller's name, which the journal and the audit record. A wrong cron
expression is a 422 whose message names the field.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from restante.server import requests, responses
from restante.server.routing import MessageName, Operator, QueueName, Reader, StateDep, json_route, router
from restante.server.serializers import schedule_out
from restante.server.state import Json

#: Next ticks of a schedule that an answer holds.
TICKS = 10

api = router("schedules")

ScheduleName = MessageName


@json_route(api.get, "/schedules", responses.Schedules, summary="List schedules")
async def schedules(
    state: StateDep,
    caller: Reader,
    queue: Annotated[str | None, Query(pattern=requests.NAME, description="only those of this queue")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Json:
    """The next to tick first; those that are paused or have ended last."""
    if queue is not None:
        await state.existing(queue)
    found = await state.call(state.admin(caller).schedules, queue)
    shown = [schedule_out(one) for one in found[:limit]]
    return Json({"now": await state.now_ms(), "total": len(found), "schedules": shown})


@json_route(
    api.get,
    "/queues/{queue:name}/schedules/{id:name}",
    responses.OneSchedule,
    summary="Show a schedule and its next ticks",
)
async def show_schedule(state: StateDep, caller: Reader, queue: QueueName, id: ScheduleName) -> Json:
    """With the payload of its messages and the next ten ticks."""
    found = await state.call(state.admin(caller).schedule, queue, id)
    return Json({"schedule": schedule_out(found, ticks=TICKS)})


@json_route(
    api.put, "/queues/{queue:name}/schedules/{id:name}", responses.OneSchedule, summary="Add or change a schedule"
)
async def put_schedule(
    state: StateDep, caller: Operator, queue: QueueName, id: ScheduleName, body: requests.PutSchedule
) -> Json:
    """Creates the queue if it does not exist. The same body again changes nothing; a paused schedule stays paused."""
    stored = await state.call(state.admin(caller).add_schedule, queue, id, **body.options())
    return Json({"schedule": schedule_out(stored, ticks=TICKS)})


@json_route(
    api.post, "/queues/{queue:name}/schedules/{id:name}/pause", responses.OneSchedule, summary="Pause a schedule"
)
async def pause_schedule(
    state: StateDep, caller: Operator, queue: QueueName, id: ScheduleName, body: requests.Empty | None = None
) -> Json:
    """It does not tick until it is resumed. Messages that it has sent stay."""
    return Json({"schedule": schedule_out(await state.call(state.admin(caller).pause_schedule, queue, id))})


@json_route(
    api.post, "/queues/{queue:name}/schedules/{id:name}/resume", responses.OneSchedule, summary="Resume a schedule"
)
async def resume_schedule(
    state: StateDep, caller: Operator, queue: QueueName, id: ScheduleName, body: requests.Empty | None = None
) -> Json:
    """It ticks from now on. What passed during the pause is not made up for."""
    return Json({"schedule": schedule_out(await state.call(state.admin(caller).resume_schedule, queue, id))})


@json_route(
    api.post, "/queues/{queue:name}/schedules/{id:name}/run", responses.RunSchedule, summary="Send its message now"
)
async def run_schedule(
    state: StateDep, caller: Operator, queue: QueueName, id: ScheduleName, body: requests.Empty | None = None
) -> Json:
    """Beside its ticks, also while it is paused."""
    return Json({"id": await state.call(state.admin(caller).run_schedule, queue, id)})


@json_route(
    api.delete, "/queues/{queue:name}/schedules/{id:name}", responses.DeletedSchedule, summary="Delete a schedule"
)
async def delete_schedule(state: StateDep, caller: Operator, queue: QueueName, id: ScheduleName) -> Json:
    """Messages that it has sent stay."""
    await state.call(state.admin(caller).delete_schedule, queue, id)
    return Json({"deleted": id})
