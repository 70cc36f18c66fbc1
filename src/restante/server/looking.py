"""What can be seen: queues, messages, dead letters by error, consumers, anomalies, the audit and the journal.

Lists are read by place and never by count, so pages stay in step at a million messages; a filter looks through a
bounded number per call and says where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse

from restante.core.admin import Admin
from restante.core.inspector import Counts
from restante.core.journal import JournalEntry
from restante.core.message import JournalEvent, Message, State
from restante.rsmq import inspector as rsmq
from restante.server import answers, metrics
from restante.server.access import CHECKED_EVERY, Caller, Role
from restante.server.insights import insights_out
from restante.server.live import read_position, write_event
from restante.server.office import MAX_LIVE, Json, Office, Refused
from restante.server.routing import Here, MessageName, QueueName, Reader, Route, answering, router
from restante.server.sampling import totals_of
from restante.server.shapes import NAME
from restante.server.telling import (
    attempt_out,
    audit_out,
    counts_out,
    journal_out,
    message_out,
    ms,
    rsmq_out,
    settings_out,
    task_out,
    whole_out,
)

#: Messages a filter looks through by one call.
SCANNED = 5000
#: Dead messages looked through to group them.
GROUPED = 10_000
#: Lines of the journal looked through for one message's life.
LIFE = 20_000
#: Held messages told of one consumer.
HELD = 50
#: Seconds between two signs of life on a live connection.
HELLO_EVERY = 15.0

api = router("looking")
Limit = Annotated[int, Query(ge=1, le=1000)]
Text = Annotated[str | None, Query(max_length=200)]
_NAMED = NAME.strip("^$")
#: A position of the live journal, as OpenAPI says it.
POSITION = rf"^{_NAMED}=[0-9]{{1,18}}(,{_NAMED}=[0-9]{{1,18}})*$"
Cursor = Annotated[str | None, Query(max_length=300, pattern=r"^-?[0-9][0-9.e+]{0,30}~[A-Za-z0-9._:@/+-]{1,200}$")]


# -- queues ----------------------------------------------------------------------------------------------------------


def queue_out(here: Office, counts: Counts) -> dict[str, Any]:
    """A queue as pages show it."""
    return {
        "now": ms(counts.at), **counts_out(counts), "totals": counts.totals, "settings": settings_out(counts.settings),
        "journal_last": counts.journal_last, "journal_lost": counts.journal_lost,
        "trouble": here.sampler.trouble(counts), "trends": here.sampler.trend(counts.queue),
    }  # fmt: skip


def _worst_first(queue: dict[str, Any]) -> tuple[Any, ...]:
    levels = [trouble["level"] for trouble in queue["trouble"]]
    states = queue["states"]
    return (
        -levels.count("bad"), -levels.count("warn"), -states["dead"] - queue["overdue"], -queue["waited_seconds"],
        queue["queue"],
    )  # fmt: skip


@answering(api.get, "/queues", answers.Overview, summary="Every queue, worst first")
async def queues(here: Here, caller: Reader) -> Json:
    """Counts of this moment, trends of the last minutes, and what is wrong."""

    def look() -> tuple[list[Counts], list[dict[str, Any]], int]:
        admin = here.admin(caller)
        rows = admin.all_counts()
        now = max((ms(row.at) or 0 for row in rows), default=0) or admin.now_ms()
        return rows, [rsmq_out(one) for one in rsmq.default_namespace_counts(here.post)], now

    rows, others, now = await here.call(look)
    made = sorted((queue_out(here, row) for row in rows), key=_worst_first)
    return Json({"now": now, "totals": totals_of(rows), "queues": made, "rsmq": others})


async def one_queue(here: Office, caller: Caller, name: str) -> dict[str, Any]:
    """A queue that must be there."""
    await here.existing(name)
    return queue_out(here, await here.call(here.admin(caller).counts, name))


@answering(api.get, "/queues/{queue:name}", answers.QueueOut, summary="One queue")
async def queue_(here: Here, caller: Reader, queue: QueueName) -> Json:
    """Counts, settings, totals and trends."""
    return Json(await one_queue(here, caller, queue))


# -- messages --------------------------------------------------------------------------------------------------------


@answering(api.get, "/queues/{queue:name}/messages", answers.MessagePage, summary="Messages of a state, page by page")
async def messages(
    here: Here,
    caller: Reader,
    queue: QueueName,
    state: State = State.READY,
    kind: Text = None,
    q: Text = None,
    error_class: Text = None,
    order: Annotated[str, Query(pattern="^(oldest|newest)$")] = "oldest",
    limit: Limit = 50,
    before: Cursor = None,
) -> Json:
    """`next` is what to give as `before` for the page behind; null at the end. `total` counts the whole state."""
    await here.existing(queue)
    return Json(await here.call(_page, here, caller, queue, state, kind, q, error_class, order, limit, before))


def _page(
    here: Office, caller: Caller, queue: str, state: State, kind: str | None, q: str | None, error_class: str | None,
    order: str, limit: int, before: str | None,
) -> dict[str, Any]:  # fmt: skip
    admin = here.admin(caller)
    counts = admin.counts(queue)
    now = ms(counts.at) or 0
    found: list[Message] = []
    scanned, place = 0, before
    filtered = bool(kind or q or error_class)
    while True:
        size = min(1000, SCANNED - scanned) if filtered else limit
        page = admin.messages(queue, state, limit=size, after=place, newest_first=order == "newest")
        place = page.next
        for message in page.messages:
            scanned += 1
            if _matches(message, kind, q, error_class):
                found.append(message)
                if len(found) == limit:
                    if message is not page.messages[-1]:
                        place = message.place_after
                    break
        if len(found) >= limit or place is None or not filtered or scanned >= SCANNED:
            break
    made = [message_out(one, counts.settings, here.sampler.flags(one, counts.settings, now)) for one in found]
    return {
        "now": now, "state": state.value, "total": getattr(counts, state.value), "messages": made, "next": place,
        "scanned": scanned,
    }  # fmt: skip


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


@answering(api.get, "/queues/{queue:name}/messages/{id:name}", answers.OneMessage, summary="One message, whole")
async def message_(here: Here, caller: Reader, queue: QueueName, id: MessageName) -> Json:
    """With its payload, one line per attempt, and its lines of the journal."""
    await here.existing(queue)
    return Json(await here.call(one_message, here, caller, queue, id))


def one_message(here: Office, caller: Caller, queue: str, id: str) -> dict[str, Any]:
    admin = here.admin(caller)
    message = admin.show(queue, id)
    counts = admin.counts(queue)
    now = ms(counts.at) or 0
    lines, complete = life(admin, queue, id)
    flags = here.sampler.flags(message, counts.settings, now)
    return {"now": now, "message": whole_out(message, counts.settings, flags, lines, complete)}


def life(admin: Admin, queue: str, id: str) -> tuple[list[JournalEntry], bool]:
    """A message's lines, oldest first, and whether its send is among them."""
    lines = [line for line in admin.journal(queue, limit=LIFE, newest_first=True) if line.message_id == id]
    lines.reverse()
    return lines, bool(lines) and lines[0].event is JournalEvent.SENT


@answering(api.get, "/queues/{queue:name}/dead", answers.DeadGroups, summary="Dead letters by error")
async def dead(here: Here, caller: Reader, queue: QueueName) -> Json:
    """Grouped by error class and kind, the largest group first."""
    await here.existing(queue)

    def look() -> dict[str, Any]:
        admin = here.admin(caller)
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        seen = 0
        for message in admin.walk(queue, State.DEAD, newest_first=True):
            last = message.history[-1] if message.history else None
            key = (last.error_class if last else "", message.kind)
            at = message.settled_ms
            group = groups.setdefault(key, {
                "error_class": key[0], "kind": key[1], "count": 0, "latest_at": at, "oldest_at": at,
                "example_id": message.id, "example_error": attempt_out(last)["error"][-2000:] if last else "",
            })  # fmt: skip
            group["count"] += 1
            group["oldest_at"] = min(group["oldest_at"], at)
            seen += 1
            if seen >= GROUPED:
                break
        made = sorted(groups.values(), key=lambda group: -group["count"])
        return {"now": admin.now_ms(), "total": admin.counts(queue).dead, "seen": seen, "groups": made}

    return Json(await here.call(look))


@answering(api.get, "/queues/{queue:name}/replays", answers.Tasks, summary="Replays, newest first")
async def replays(here: Here, caller: Reader, queue: QueueName) -> Json:
    """Those the queue remembers."""
    await here.existing(queue)
    return Json({"tasks": [task_out(task) for task in await here.call(here.admin(caller).tasks, queue)]})


@answering(api.get, "/queues/{queue:name}/replays/{id:name}", answers.OneTask, summary="One replay")
async def replay_task(here: Here, caller: Reader, queue: QueueName, id: MessageName) -> Json:
    """How far it is."""
    await here.existing(queue)
    return Json({"task": task_out(await here.call(here.admin(caller).task, queue, id))})


# -- people and programs ---------------------------------------------------------------------------------------------


@answering(api.get, "/consumers", answers.Consumers, summary="Who consumes, and what each holds")
async def consumers(here: Here, caller: Reader) -> Json:
    """Seen within the last minute."""

    def look() -> dict[str, Any]:
        admin = here.admin(caller)
        now = admin.now_ms()
        known = admin.consumers()
        held: dict[str, list[dict[str, Any]]] = {}
        counted: dict[str, int] = {}
        for name in sorted({queue for one in known for queue in one.queues}):
            counts = admin.counts(name)
            if not counts.leased:
                continue
            for message in admin.messages(name, State.LEASED, limit=1000, preview=200).messages:
                counted[message.consumer] = counted.get(message.consumer, 0) + 1
                if counted[message.consumer] <= HELD:
                    flags = here.sampler.flags(message, counts.settings, now)
                    held.setdefault(message.consumer, []).append(message_out(message, counts.settings, flags))
        made = [
            {
                "name": one.name, "queues": list(one.queues), "last_seen_at": ms(one.last_seen), "host": one.host,
                "pid": one.pid, "concurrency": one.concurrency, "held": held.get(one.name, []),
                "held_count": counted.get(one.name, 0),
            }
            for one in known
        ]  # fmt: skip
        return {"now": now, "consumers": made}

    return Json(await here.call(look))


@answering(api.get, "/anomalies", answers.Anomalies, summary="What looks wrong")
async def anomalies(here: Here, caller: Reader) -> Json:
    """Now, and within the hour as far as this process has seen it."""
    found = await here.call(here.sampler.anomalies, here.admin(caller))
    return Json({"now": await here.now_ms(), "anomalies": found})


@answering(api.get, "/audit", answers.Audit, summary="What operators did")
async def audit(
    here: Here,
    caller: Reader,
    limit: Limit = 100,
    before: Annotated[str | None, Query(pattern="^[0-9]{1,19}-[0-9]{1,19}$")] = None,
) -> Json:
    """Newest first; give the last entry's id as `before` for what came earlier."""
    entries = await here.call(here.admin(caller).audit, limit=limit, before=before)
    return Json({
        "entries": [audit_out(entry) for entry in entries], "next": entries[-1].id if len(entries) == limit else None
    })  # fmt: skip


@answering(api.get, "/insights", answers.Insights, summary="The data pipeline's report, and how far the next one is")
async def insights(here: Here, caller: Reader) -> Json:
    """The report itself is at /insights/report."""
    return Json(await here.call(insights_out, here.settings.lake))


# -- the journal -----------------------------------------------------------------------------------------------------


@api.get(
    "/journal",
    response_model=None,
    summary="The journal, as a page or live",
    responses={200: {"model": answers.Journal, "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def journal(
    here: Here,
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
    """Newest first as JSON. With `Accept: text/event-stream` the lines as they are written, each `id` a position to go
    on from with `Last-Event-ID` or `after`; with `counts=1` also what changed in the counts, at most twice a second."""
    if "text/event-stream" in request.headers.get("accept", ""):
        if len(here.hub) >= MAX_LIVE:
            raise Refused(503, "Busy", f"{MAX_LIVE} clients follow already", "try again later")
        after = request.headers.get("last-event-id") or after
        if after is not None:
            read_position(after)
        body = _stream(here, request, queue, after, counts=counts, lines=lines)
        return StreamingResponse(body, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
    names = [await here.existing(name) for name in queue]

    def look() -> dict[str, Any]:
        admin = here.admin(caller)
        found: list[JournalEntry] = []
        filtered = event_ is not None or message_id is not None
        for name in names or admin.queues():
            found += [
                line for line in admin.journal(name, limit=LIFE if filtered else limit, newest_first=True)
                if event_ in (None, line.event) and message_id in (None, line.message_id)
            ][:limit]  # fmt: skip
        found.sort(key=lambda line: (line.at, line.position), reverse=True)
        return {"now": admin.now_ms(), "entries": [journal_out(line) for line in found[:limit]]}

    return Json(await here.call(look))


async def _stream(
    here: Office, request: Request, queues: list[str], after: str | None, *, counts: bool, lines: bool
) -> AsyncIterator[bytes]:
    """The body of a live connection: whatever comes first of lines, counts, a sign of life, and the end.

    It ends when the server closes, and when the caller's token is revoked.
    """
    chosen = frozenset(queues)
    source = here.hub.follow(queues, after)
    woken = here.sampler.watch() if counts else None
    closing = asyncio.ensure_future(here.closing.wait())
    next_lines: asyncio.Future[bytes] | None = None
    next_counts: asyncio.Future[Any] | None = None
    seen = -1
    clock = asyncio.get_running_loop()
    check_at, hello_at = clock.time() + CHECKED_EVERY, clock.time() + HELLO_EVERY
    try:
        yield write_event("hello", {"now": await here.now_ms()})
        while True:
            if clock.time() >= check_at:
                if not await here.still_may(request, Role.READ):
                    return
                check_at = clock.time() + CHECKED_EVERY
            if woken is not None and seen != here.sampler.number:
                told, seen = _counts_since(here, chosen, seen), here.sampler.number
                yield told
            if lines and next_lines is None:
                next_lines = asyncio.ensure_future(anext(source))
            if woken is not None and next_counts is None:
                next_counts = asyncio.ensure_future(woken.wait())
            waits = [one for one in (next_lines, next_counts, closing) if one is not None]
            pause = max(0.0, min(check_at, hello_at) - clock.time())
            done, _ = await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if closing in done:
                return
            if done:
                hello_at = clock.time() + HELLO_EVERY
            elif clock.time() >= hello_at:
                yield write_event("hello", {"now": await here.now_ms()})
                hello_at = clock.time() + HELLO_EVERY
            if next_lines is not None and next_lines in done:
                found, next_lines = next_lines.result(), None
                yield found
            if woken is not None and next_counts in done:
                woken.clear()
                next_counts = None
    finally:
        if woken is not None:
            here.sampler.unwatch(woken)
        for one in (next_lines, next_counts, closing):
            if one is not None:
                one.cancel()
        if next_lines is not None:
            await asyncio.gather(next_lines, return_exceptions=True)
        await source.aclose()  # type: ignore[attr-defined]  # a generator, typed as an iterator


def _counts_since(here: Office, chosen: frozenset[str], seen: int) -> bytes:
    """What changed in the counts; all of them for one who has missed some, or asked for some queues."""
    sampler = here.sampler
    if not chosen and seen == sampler.number - 1:
        return sampler.change
    return sampler.tell([one for name, one in sampler.told.items() if not chosen or name in chosen])


# -- for other programs ----------------------------------------------------------------------------------------------

plain = router("health", Route)  # probes and scrapers may add any parameter


@plain.get(
    "/metrics", response_model=None, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def metrics_(here: Here, caller: Reader) -> Response:
    """Figures for Prometheus."""
    admin = here.admin(caller)
    rows, dropped = await here.call(admin.all_counts), await here.call(admin.unroutable)
    page = metrics.page(here, rows, dropped, await here.call(here.rabbitmq.look))
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


@answering(plain.get, "/healthz", answers.Health, summary="The process lives")
async def healthz() -> Json:
    """No token needed, nothing told."""
    return Json({"status": "ok"})


@answering(plain.get, "/readyz", answers.Health, summary="Redis answers")
async def readyz(here: Here) -> Json:
    """503 while Redis is away or the server closes; no token needed."""
    if here.closing.is_set():
        raise Refused(503, "Closing", "the server is closing", "ask another")
    await here.now_ms()
    return Json({"status": "ok"})
