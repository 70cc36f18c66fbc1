"""Routes that only read: queues, messages, dead letters by error, consumers, anomalies, the audit and the journal.

Lists page by position, never by offset, so that pages neither repeat nor skip messages while the queue changes. A
filter scans a bounded number of messages per call and returns where it stopped.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse

from restante.core.admin import Admin
from restante.core.inspector import Counts
from restante.core.journal import JournalEntry
from restante.core.message import JournalEvent, Message, State
from restante.rsmq import inspector as rsmq
from restante.server import metrics, responses
from restante.server.access import Caller
from restante.server.insights import insights_out
from restante.server.journal_feed import read_position
from restante.server.journal_stream import journal_stream
from restante.server.monitor import totals_of
from restante.server.requests import NAME
from restante.server.routing import MessageName, QueueName, Reader, Route, StateDep, json_route, router
from restante.server.serializers import (
    audit_out,
    counts_out,
    message_out,
    ms,
    rsmq_out,
    settings_out,
    task_out,
    whole_out,
)
from restante.server.state import MAX_LIVE, Json, Refused, ServerState

#: Messages that a filter scans per call.
SCANNED = 5000
#: Dead messages that are scanned to group them.
GROUPED = 10_000
#: Journal lines that are scanned for the lines of one message.
LIFE = 20_000
#: Leased messages listed per consumer.
HELD = 50

api = router("looking")
Limit = Annotated[int, Query(ge=1, le=1000)]
Text = Annotated[str | None, Query(max_length=200)]
_NAMED = NAME.strip("^$")
#: The pattern of a journal position in OpenAPI.
POSITION = rf"^{_NAMED}=[0-9]{{1,18}}(,{_NAMED}=[0-9]{{1,18}})*$"
Cursor = Annotated[str | None, Query(max_length=300, pattern=r"^-?[0-9][0-9.e+]{0,30}~[A-Za-z0-9._:@/+-]{1,200}$")]


# -- queues ----------------------------------------------------------------------------------------------------------


def queue_out(state: ServerState, counts: Counts) -> dict[str, Any]:
    """A queue with its counts, settings, trouble and trends."""
    return {
        "now": ms(counts.at),
        **counts_out(counts),
        "totals": counts.totals,
        "settings": settings_out(counts.settings),
        "journal_last": counts.journal_last,
        "journal_lost": counts.journal_lost,
        "trouble": state.monitor.trouble(counts),
        "trends": state.monitor.trend(counts.queue),
    }


def _worst_first(queue: dict[str, Any]) -> tuple[Any, ...]:
    levels = [trouble["level"] for trouble in queue["trouble"]]
    states = queue["states"]
    return (
        -levels.count("bad"),
        -levels.count("warn"),
        -states["dead"] - queue["overdue"],
        -queue["waited_seconds"],
        queue["queue"],
    )


@json_route(api.get, "/queues", responses.Overview, summary="List queues, worst first")
async def queues(state: StateDep, caller: Reader) -> Json:
    """Current counts, trends of the last minutes, and problems."""

    def look() -> tuple[list[Counts], list[dict[str, Any]], int]:
        admin = state.admin(caller)
        rows = admin.all_counts()
        now = max((ms(row.at) or 0 for row in rows), default=0) or admin.now_ms()
        return rows, [rsmq_out(queue) for queue in rsmq.default_namespace_counts(state.client)], now

    rows, others, now = await state.call(look)
    listed = sorted((queue_out(state, row) for row in rows), key=_worst_first)
    return Json({"now": now, "totals": totals_of(rows), "queues": listed, "rsmq": others})


async def one_queue(state: ServerState, caller: Caller, name: str) -> dict[str, Any]:
    """The queue, or NotFound."""
    await state.existing(name)
    return queue_out(state, await state.call(state.admin(caller).counts, name))


@json_route(api.get, "/queues/{queue:name}", responses.QueueOut, summary="Show a queue")
async def queue_(state: StateDep, caller: Reader, queue: QueueName) -> Json:
    """Counts, settings, totals and trends."""
    return Json(await one_queue(state, caller, queue))


# -- messages --------------------------------------------------------------------------------------------------------


@json_route(api.get, "/queues/{queue:name}/messages", responses.MessagePage, summary="List messages of a state")
async def messages(
    state: StateDep,
    caller: Reader,
    queue: QueueName,
    message_state: Annotated[State, Query(alias="state")] = State.READY,
    kind: Text = None,
    q: Text = None,
    error_class: Text = None,
    order: Annotated[str, Query(pattern="^(oldest|newest)$")] = "oldest",
    limit: Limit = 50,
    before: Cursor = None,
) -> Json:
    """Pass `next` as `before` to get the next page; it is null at the end. `total` counts all messages of the state."""
    await state.existing(queue)
    return Json(
        await state.call(_page, state, caller, queue, message_state, kind, q, error_class, order, limit, before)
    )


def _page(
    state: ServerState,
    caller: Caller,
    queue: str,
    message_state: State,
    kind: str | None,
    q: str | None,
    error_class: str | None,
    order: str,
    limit: int,
    before: str | None,
) -> dict[str, Any]:
    admin = state.admin(caller)
    counts = admin.counts(queue)
    now = ms(counts.at) or 0
    matches: list[Message] = []
    scanned, place = 0, before
    filtered = bool(kind or q or error_class)
    while True:
        size = min(1000, SCANNED - scanned) if filtered else limit
        page = admin.messages(queue, message_state, limit=size, after=place, newest_first=order == "newest")
        place = page.next
        for message in page.messages:
            scanned += 1
            if _matches(message, kind, q, error_class):
                matches.append(message)
                if len(matches) == limit:
                    if message is not page.messages[-1]:
                        place = message.place_after
                    break
        if len(matches) >= limit or place is None or not filtered or scanned >= SCANNED:
            break
    listed = [
        message_out(message, counts.settings, state.monitor.flags(message, counts.settings, now)) for message in matches
    ]
    return {
        "now": now,
        "state": message_state.value,
        "total": getattr(counts, message_state.value),
        "messages": listed,
        "next": place,
        "scanned": scanned,
    }


def _matches(message: Message, kind: str | None, q: str | None, error_class: str | None) -> bool:
    last = message.history[-1] if message.history else None
    if kind and message.kind != kind:
        return False
    if error_class and (last is None or last.error_class != error_class):
        return False
    if not q:
        return True
    text = q.lower()
    places = (message.id, message.kind, message.consumer, message.preview.decode(errors="replace"))
    return any(text in place.lower() for place in (*places, last.error if last else ""))


@json_route(api.get, "/queues/{queue:name}/messages/{id:name}", responses.OneMessage, summary="Show a message")
async def message_(state: StateDep, caller: Reader, queue: QueueName, id: MessageName) -> Json:
    """With its payload, one entry per attempt, and its journal lines."""
    await state.existing(queue)
    return Json(await state.call(one_message, state, caller, queue, id))


def one_message(state: ServerState, caller: Caller, queue: str, id: str) -> dict[str, Any]:
    admin = state.admin(caller)
    message = admin.show(queue, id)
    counts = admin.counts(queue)
    now = ms(counts.at) or 0
    lines, complete = life(admin, queue, id)
    flags = state.monitor.flags(message, counts.settings, now)
    return {"now": now, "message": whole_out(message, counts.settings, flags, lines, complete)}


def life(admin: Admin, queue: str, id: str) -> tuple[list[JournalEntry], bool]:
    """A message's journal lines, oldest first, and whether its send is among them."""
    lines = [line for line in admin.journal(queue, limit=LIFE, newest_first=True) if line.message_id == id]
    lines.reverse()
    return lines, bool(lines) and lines[0].event is JournalEvent.SENT


@json_route(api.get, "/queues/{queue:name}/dead", responses.DeadGroups, summary="Group dead letters by error")
async def dead(state: StateDep, caller: Reader, queue: QueueName) -> Json:
    """Groups by error class and kind, largest first."""
    await state.existing(queue)

    def look() -> dict[str, Any]:
        admin = state.admin(caller)
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        seen = 0
        for message in admin.walk(queue, State.DEAD, newest_first=True):
            last = message.history[-1] if message.history else None
            key = (last.error_class if last else "", message.kind)
            at = message.settled_ms
            group = groups.setdefault(
                key,
                {
                    "error_class": key[0],
                    "kind": key[1],
                    "count": 0,
                    "latest_at": at,
                    "oldest_at": at,
                    "example_id": message.id,
                    "example_error": last.error[-2000:] if last else "",
                },
            )
            group["count"] += 1
            group["oldest_at"] = min(group["oldest_at"], at)
            seen += 1
            if seen >= GROUPED:
                break
        ordered = sorted(groups.values(), key=lambda group: -group["count"])
        return {"now": admin.now_ms(), "total": admin.counts(queue).dead, "seen": seen, "groups": ordered}

    return Json(await state.call(look))


@json_route(api.get, "/queues/{queue:name}/replays", responses.Tasks, summary="List replays, newest first")
async def replays(state: StateDep, caller: Reader, queue: QueueName) -> Json:
    """The replays that the queue still remembers."""
    await state.existing(queue)
    return Json({"tasks": [task_out(task) for task in await state.call(state.admin(caller).tasks, queue)]})


@json_route(api.get, "/queues/{queue:name}/replays/{id:name}", responses.OneTask, summary="Show a replay")
async def replay_task(state: StateDep, caller: Reader, queue: QueueName, id: MessageName) -> Json:
    """Its progress."""
    await state.existing(queue)
    return Json({"task": task_out(await state.call(state.admin(caller).task, queue, id))})


# -- consumers and operators -----------------------------------------------------------------------------------------


@json_route(api.get, "/consumers", responses.Consumers, summary="List consumers and the messages they hold")
async def consumers(state: StateDep, caller: Reader) -> Json:
    """Consumers seen within the last minute."""

    def look() -> dict[str, Any]:
        admin = state.admin(caller)
        now = admin.now_ms()
        known = admin.consumers()
        held: dict[str, list[dict[str, Any]]] = {}
        counted: dict[str, int] = {}
        # The processes of a consumer hold messages under names of their own.
        family = {name: consumer.name for consumer in known for name in consumer.names}
        for name in sorted({queue for consumer in known for queue in consumer.queues}):
            counts = admin.counts(name)
            if not counts.leased:
                continue
            for message in admin.messages(name, State.LEASED, limit=1000, preview=200).messages:
                holder = family.get(message.consumer, message.consumer)
                counted[holder] = counted.get(holder, 0) + 1
                if counted[holder] <= HELD:
                    flags = state.monitor.flags(message, counts.settings, now)
                    held.setdefault(holder, []).append(message_out(message, counts.settings, flags))
        listed = [
            {
                **consumer.as_dict(ms),
                "held": held.get(consumer.name, []),
                "held_count": counted.get(consumer.name, 0),
            }
            for consumer in known
        ]
        return {"now": now, "consumers": listed}

    return Json(await state.call(look))


@json_route(api.get, "/anomalies", responses.Anomalies, summary="List anomalies")
async def anomalies(state: StateDep, caller: Reader) -> Json:
    """Current anomalies, and those of the last hour that this process has seen."""
    listed = await state.call(state.monitor.anomalies, state.admin(caller))
    return Json({"now": await state.now_ms(), "anomalies": listed})


@json_route(api.get, "/audit", responses.Audit, summary="List the actions of operators")
async def audit(
    state: StateDep,
    caller: Reader,
    limit: Limit = 100,
    before: Annotated[str | None, Query(pattern="^[0-9]{1,19}-[0-9]{1,19}$")] = None,
) -> Json:
    """Newest first. Pass `next` as `before` to get earlier entries."""
    entries = await state.call(state.admin(caller).audit, limit=limit, before=before)
    return Json(
        {"entries": [audit_out(entry) for entry in entries], "next": entries[-1].id if len(entries) == limit else None}
    )


@json_route(api.get, "/insights", responses.Insights, summary="Show the data pipeline's report and progress")
async def insights(state: StateDep, caller: Reader) -> Json:
    """The report itself is at `/insights/report`."""
    return Json(await state.call(insights_out, state.settings.lake))


# -- the journal -----------------------------------------------------------------------------------------------------


@api.get(
    "/journal",
    response_model=None,
    summary="Read the journal, as a page or as a stream",
    responses={200: {"model": responses.Journal, "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def journal(
    state: StateDep,
    caller: Reader,
    request: Request,
    queue: Annotated[list[Annotated[str, Query(pattern=NAME)]], Query(max_length=100)] = [],  # noqa: B006  # FastAPI copies it
    event_: Annotated[JournalEvent | None, Query(alias="event")] = None,
    message_id: Annotated[str | None, Query(pattern=NAME)] = None,
    limit: Limit = 200,
    counts: bool = False,
    lines: Annotated[bool, Query(alias="journal")] = True,
    after: Annotated[str | None, Query(max_length=60_000, pattern=POSITION)] = None,
) -> Response:
    """Newest first as JSON. `Accept: text/event-stream` streams lines as they are written.

    Pass the `id` of an event as `Last-Event-ID` or `after` to resume right after it. `counts=1` adds changes of the
    counts, at most twice a second.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        if len(state.hub) >= MAX_LIVE:
            raise Refused(503, "Busy", f"{MAX_LIVE} clients already follow the journal", "retry later")
        after = request.headers.get("last-event-id") or after
        if after is not None:
            read_position(after)
        body = journal_stream(state, request, queue, after, counts=counts, lines=lines)
        return StreamingResponse(body, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
    names = [await state.existing(name) for name in queue]

    def look() -> dict[str, Any]:
        admin = state.admin(caller)
        entries: list[JournalEntry] = []
        filtered = event_ is not None or message_id is not None
        for name in names or admin.queues():
            entries += [
                line
                for line in admin.journal(name, limit=LIFE if filtered else limit, newest_first=True)
                if event_ in (None, line.event) and message_id in (None, line.message_id)
            ][:limit]
        entries.sort(key=lambda line: (line.at, line.position), reverse=True)
        return {"now": admin.now_ms(), "entries": [line.as_dict(ms) for line in entries[:limit]]}

    return Json(await state.call(look))


# -- metrics and probes ----------------------------------------------------------------------------------------------

plain = router("health", Route)  # probes and scrapers may add parameters of their own


@plain.get(
    "/metrics",
    summary="Prometheus metrics",
    response_model=None,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics_(state: StateDep, caller: Reader) -> Response:
    """Counts, trends and histograms in Prometheus text format."""
    admin = state.admin(caller)
    rows, dropped = await state.call(admin.all_counts), await state.call(admin.unroutable)
    page = metrics.page(state, rows, dropped, await state.call(state.rabbitmq.look))
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


@json_route(plain.get, "/healthz", responses.Health, summary="Liveness probe")
async def healthz() -> Json:
    """Returns 200 while the process runs. Needs no token."""
    return Json({"status": "ok"})


@json_route(plain.get, "/readyz", responses.Health, summary="Readiness probe")
async def readyz(state: StateDep) -> Json:
    """Returns 503 while Redis is unavailable or the server is closing. Needs no token."""
    if state.closing.is_set():
        raise Refused(503, "Closing", "the server is closing", "use another server")
    await state.now_ms()
    return Json({"status": "ok"})
