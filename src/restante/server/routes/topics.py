"""Routes for topics: subscriptions, backlogs, call latencies, the rungs of RabbitMQ's ladder, dead events and replay.

RabbitMQ is asked if the server has its URL. If it is unavailable, the response says so in `problem` and everything
else works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Path, Query

from restante.bus.dead import DeadEvent, DeadFilter, DeadLetters, RedisDeadLetters, dead_letters
from restante.bus.registry import HandlerInfo, registered_handlers
from restante.core.errors import NotFound, Unavailable
from restante.core.topics import LONGEST_WORD
from restante.rabbitmq.topology import UNROUTED
from restante.server import requests, responses
from restante.server.access import Caller
from restante.server.rabbitmq import PATIENCE, Seen
from restante.server.routing import Operator, Reader, StateDep, json_route, router
from restante.server.serializers import ms
from restante.server.state import Json, Refused, ServerState

api = router("topics")
ServiceName = Annotated[str, Path(pattern=f"^[A-Za-z0-9_][A-Za-z0-9_-]{{0,{LONGEST_WORD - 1}}}$")]
Filter = Annotated[str | None, Query(max_length=200)]
_NO_COUNTS = {"waiting": None, "leased": None, "dead": None}


@json_route(api.get, "/topics", responses.Topics, summary="List topics and their subscriptions")
async def topics(state: StateDep, caller: Reader) -> Json:
    """Events and calls by topic, with backlogs.

    `waiting`, `leased` and `dead` are null if the broker cannot be asked; totals are null if a bus on RabbitMQ has no
    store. Only RabbitMQ has rungs and limits of archives.
    """
    seen = await state.call(state.rabbitmq.look)
    registered = _together(await state.call(registered_handlers, state.client), seen)
    counts = {row.queue: row for row in await state.monitor.count()}
    inventory = seen.inventory
    by_topic: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for card in registered:
        key = ("call", card.answers) if card.answers else ("event", card.topic or "")
        row = counts.get(card.queue)
        if card.broker == "rabbitmq":
            numbers = {**_NO_COUNTS, "waiting": inventory.waiting_in(card.queue) if inventory else None}
        else:
            numbers = dict.fromkeys(_NO_COUNTS, 0)
            if row is not None:
                numbers = {"waiting": row.waiting - row.leased, "leased": row.leased, "dead": row.dead}
        by_topic.setdefault(key, []).append(
            {
                "subscription": card.name,
                "service": card.service,
                "handler": card.handler,
                "pattern": key[1],
                "queue": card.queue,
                "broker": card.broker,
                "retry": card.retry,
                "max_attempts": card.max_attempts,
                **numbers,
                **_totals(row, card),
                "oldest_seconds": row.waited if row and card.broker == "redis" else None,
                **state.monitor.latency(card.queue),
            }
        )
    unrouted = counts.get(UNROUTED)
    return Json(
        {
            "now": await state.now_ms(),
            "topics": [
                {"way": way, "topic": topic, "subscriptions": some} for (way, topic), some in sorted(by_topic.items())
            ],
            "archives": [
                _archive(registered, service, broker, counts, seen)
                for service, broker in sorted({(card.service, card.broker) for card in registered if card.topic})
            ],
            "unrouted": (unrouted.waiting if unrouted else 0) + (inventory.unrouted if inventory else 0),
            "rungs": [
                {"queue": rung.queue, "type": rung.type, "seconds": rung.seconds, "messages": rung.messages}
                for rung in (inventory.rungs if inventory else ())
            ],
            "problem": seen.problem,
        }
    )


def _totals(row: Any, card: HandlerInfo) -> dict[str, int | None]:
    """Totals from the journal; null for a bus on RabbitMQ without a store, which writes no journal."""
    names = ("sent", "acked", "nacked")
    if row is None:
        return dict.fromkeys(names, None if card.broker == "rabbitmq" else 0)
    return {name: row.totals.get(name, 0) for name in names}


def _together(registered: list[HandlerInfo], seen: Seen) -> list[HandlerInfo]:
    """Services registered in Redis, and those that only the broker lists because their bus has no store."""
    known = {card.name for card in registered}
    return sorted(
        [*registered, *(card for card in seen.handlers if card.name not in known)], key=lambda card: card.name
    )


def _archive(
    registered: list[HandlerInfo], service: str, broker: str, counts: dict[str, Any], seen: Seen
) -> dict[str, Any]:
    fields = {"service": service, "broker": broker, "limit": None, "fill": None, "nearly_full": False}
    if broker == "rabbitmq":
        for archive in seen.inventory.archives if seen.inventory else ():
            if archive.service == service:
                more = {"limit": archive.limit, "fill": archive.fill, "nearly_full": archive.nearly_full}
                return {**fields, "dead": archive.messages, **more}
        return {**fields, "dead": None}
    mine = [
        counts[card.queue] for card in registered if card.service == service and card.topic and card.queue in counts
    ]
    return {**fields, "dead": sum(int(row.dead) for row in mine)}


@contextmanager
def _letters(state: ServerState, caller: Caller, service: str) -> Iterator[DeadLetters]:
    """The dead events of a service. On RabbitMQ one request at a time: events held by one are invisible to others."""
    mine = [card for card in registered_handlers(state.client) if card.service == service]
    if not mine:  # the bus of a service on RabbitMQ may have no store
        mine = [card for card in state.rabbitmq.look().handlers if card.service == service]
    if not mine:
        raise NotFound(f"no service named {service} has a subscription")
    if any(card.broker == "redis" for card in mine):
        yield RedisDeadLetters(state.client, service, operator=caller.name)
        return
    if state.rabbitmq.url is None:
        raise Refused(
            503,
            "NoBroker",
            f"{service} is on RabbitMQ, and this server has no RabbitMQ URL",
            "start the server with --broker amqp://…",
        )
    if not state.rabbitmq.reading.acquire(timeout=PATIENCE):
        raise Refused(503, "ArchiveBusy", "an archive on RabbitMQ is being replayed", "retry when the replay has ended")
    try:
        yield dead_letters(state.rabbitmq.url, service)
    except Unavailable as error:
        raise Refused(503, "NoBroker", str(error), "events on Redis are not affected") from None
    finally:
        state.rabbitmq.reading.release()
        state.rabbitmq.forget()


def _out(event: DeadEvent) -> dict[str, Any]:
    return {**event.as_dict(), "died_at": ms(event.died_at)}


@json_route(api.get, "/topics/{service}/dead", responses.DeadEvents, summary="List the dead events of a service")
async def dead_events(
    state: StateDep,
    caller: Reader,
    service: ServiceName,
    subscription: Filter = None,
    error_class: Filter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Json:
    """On either broker. Reading RabbitMQ's archive removes nothing from it."""
    choice = DeadFilter(None, subscription, error_class)

    def look() -> list[DeadEvent]:
        with _letters(state, caller, service) as letters:
            return letters.list(choice, limit)

    return Json({"service": service, "dead": [_out(event) for event in await state.call(look)]})


@json_route(api.post, "/topics/{service}/replay", responses.ReplayedEvents, summary="Replay dead events of a service")
async def replay_events(state: StateDep, caller: Operator, service: ServiceName, body: requests.ReplayEvents) -> Json:
    """Returns them to the subscriptions they died in, with attempts reset. `dry_run` only counts them."""
    choice = DeadFilter(body.ids, body.subscription, body.error_class)

    def work() -> int:
        with _letters(state, caller, service) as letters:
            done = letters.replay(choice, dry_run=body.dry_run)
        # On Redis the audit has a line for each replayed queue already.
        if done and not body.dry_run and not isinstance(letters, RedisDeadLetters):
            state.admin(caller).note("replay", f"{service}.archive", done, "events on RabbitMQ")
        return done

    return Json({"replayed": await state.call_slowly(work), "dry_run": body.dry_run})
