"""Topics: who has subscribed, how much waits for them, how long calls take, the rungs of RabbitMQ's ladder, and the
dead of each service with replay.

What lies on RabbitMQ is asked there, where the server was told of it; that it is away is said and stops nothing else.
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
from restante.server import answers, shapes
from restante.server.access import Caller
from restante.server.office import Json, Office, Refused
from restante.server.rabbitmq import PATIENCE, Seen
from restante.server.routing import Here, Operator, Reader, answering, router
from restante.server.telling import ms

api = router("topics")
ServiceName = Annotated[str, Path(pattern=f"^[A-Za-z0-9_][A-Za-z0-9_-]{{0,{LONGEST_WORD - 1}}}$")]
Filter = Annotated[str | None, Query(max_length=200)]
_NO_COUNTS = {"waiting": None, "leased": None, "dead": None}


@answering(api.get, "/topics", answers.Topics, summary="Topics, who subscribes, and how they keep up")
async def topics(here: Here, caller: Reader) -> Json:
    """Events and calls by topic. `waiting`, `leased` and `dead` are null where the broker cannot be asked, totals where
    a bus on RabbitMQ has no store. Rungs and limits of archives are RabbitMQ's."""
    seen = await here.call(here.rabbitmq.look)
    found = _together(await here.call(registered_handlers, here.post), seen)
    counts = {row.queue: row for row in await here.sampler.count()}
    far = seen.inventory
    by_topic: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for card in found:
        key = ("call", card.answers) if card.answers else ("event", card.topic or "")
        row = counts.get(card.queue)
        if card.broker == "rabbitmq":
            numbers = {**_NO_COUNTS, "waiting": far.waiting_in(card.queue) if far else None}
        else:
            numbers = dict.fromkeys(_NO_COUNTS, 0)
            if row is not None:
                numbers = {"waiting": row.waiting - row.leased, "leased": row.leased, "dead": row.dead}
        by_topic.setdefault(key, []).append({
            "subscription": card.name, "service": card.service, "handler": card.handler, "pattern": key[1],
            "queue": card.queue, "broker": card.broker, "retry": card.retry, "max_attempts": card.max_attempts,
            **numbers, **_totals(row, card),
            "oldest_seconds": row.waited if row and card.broker == "redis" else None,
            **here.sampler.latency(card.queue),
        })  # fmt: skip
    unrouted = counts.get(UNROUTED)
    return Json({
        "now": await here.now_ms(),
        "topics": [
            {"way": way, "topic": topic, "subscriptions": some} for (way, topic), some in sorted(by_topic.items())
        ],
        "archives": [
            _archive(found, service, broker, counts, seen)
            for service, broker in sorted({(card.service, card.broker) for card in found if card.topic})
        ],
        "unrouted": (unrouted.waiting if unrouted else 0) + (far.unrouted if far else 0),
        "rungs": [
            {"queue": one.queue, "type": one.type, "seconds": one.seconds, "messages": one.messages}
            for one in (far.rungs if far else ())
        ],
        "problem": seen.problem,
    })  # fmt: skip


def _totals(row: Any, card: HandlerInfo) -> dict[str, int | None]:
    """What the journal has counted; a bus on RabbitMQ without a store writes none."""
    names = ("sent", "acked", "nacked")
    if row is None:
        return dict.fromkeys(names, None if card.broker == "rabbitmq" else 0)
    return {name: row.totals.get(name, 0) for name in names}


def _together(told: list[HandlerInfo], seen: Seen) -> list[HandlerInfo]:
    """Services that Redis knows, and those that only the broker lists: their bus has no store."""
    known = {card.name for card in told}
    return sorted([*told, *(card for card in seen.cards if card.name not in known)], key=lambda card: card.name)


def _archive(
    found: list[HandlerInfo], service: str, broker: str, counts: dict[str, Any], seen: Seen
) -> dict[str, Any]:  # fmt: skip
    told = {"service": service, "broker": broker, "limit": None, "fill": None, "nearly_full": False}
    if broker == "rabbitmq":
        for one in seen.inventory.archives if seen.inventory else ():
            if one.service == service:
                more = {"limit": one.limit, "fill": one.fill, "nearly_full": one.nearly_full}
                return {**told, "dead": one.messages, **more}
        return {**told, "dead": None}
    mine = [counts[card.queue] for card in found if card.service == service and card.topic and card.queue in counts]
    return {**told, "dead": sum(int(row.dead) for row in mine)}


@contextmanager
def _letters(here: Office, caller: Caller, service: str) -> Iterator[DeadLetters]:
    """The dead of a service. Those on RabbitMQ to one request at a time: what one holds, no other would see."""
    mine = [card for card in registered_handlers(here.post) if card.service == service]
    if not mine:  # The bus of a service on RabbitMQ may have no store.
        mine = [card for card in here.rabbitmq.look().cards if card.service == service]
    if not mine:
        raise NotFound(f"no service {service} has subscribed to anything")
    if any(card.broker == "redis" for card in mine):
        yield RedisDeadLetters(here.post, service, operator=caller.name)
        return
    if here.rabbitmq.url is None:
        raise Refused(
            503, "NoBroker", f"{service} is on RabbitMQ, of which this server was not told",
            "start the server with --broker amqp://…",
        )  # fmt: skip
    if not here.rabbitmq.reading.acquire(timeout=PATIENCE):
        raise Refused(503, "ArchiveBusy", "an archive on RabbitMQ is being replayed", "look again when it has ended")
    try:
        yield dead_letters(here.rabbitmq.url, service)
    except Unavailable as error:
        raise Refused(503, "NoBroker", str(error), "what lies on Redis is not affected") from None
    finally:
        here.rabbitmq.reading.release()
        here.rabbitmq.forget()


def _out(one: DeadEvent) -> dict[str, Any]:
    return {**one.as_dict(), "died_at": ms(one.died_at)}


@answering(api.get, "/topics/{service}/dead", answers.DeadEvents, summary="Events a service could not handle")
async def dead_events(
    here: Here, caller: Reader, service: ServiceName, subscription: Filter = None, error_class: Filter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Json:  # fmt: skip
    """On either broker. Reading RabbitMQ's archive takes nothing out of it."""
    choice = DeadFilter(None, subscription, error_class)

    def look() -> list[DeadEvent]:
        with _letters(here, caller, service) as letters:
            return letters.list(choice, limit)

    return Json({"service": service, "dead": [_out(one) for one in await here.call(look)]})


@answering(
    api.post, "/topics/{service}/replay", answers.ReplayedEvents, summary="Put dead events back to their service"
)
async def replay_events(here: Here, caller: Operator, service: ServiceName, body: shapes.ReplayEvents) -> Json:
    """To the subscriptions they died in and to no other, with attempts reset; with `dry_run` only counted."""
    choice = DeadFilter(body.ids, body.subscription, body.error_class)

    def work() -> int:
        with _letters(here, caller, service) as letters:
            done = letters.replay(choice, dry_run=body.dry_run)
        # On Redis every queue that was replayed has its own line already.
        if done and not body.dry_run and not isinstance(letters, RedisDeadLetters):
            here.admin(caller).note("replay", f"{service}.archive", done, "events on RabbitMQ")
        return done

    return Json({"replayed": await here.call_slowly(work), "dry_run": body.dry_run})
