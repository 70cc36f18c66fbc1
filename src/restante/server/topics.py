"""Topics: who has subscribed, how much waits for them, how long calls take, and the dead of each service with replay.

What lies on RabbitMQ is asked there, where the server was told of it; that it is away is said and stops nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Path, Query

from restante.bus.broker import UNROUTED
from restante.bus.dead import Choice, DeadEvent, DeadLetters, RedisDead, dead_letters
from restante.bus.registry import Card, cards
from restante.core.errors import NotFound, RestanteError, Unavailable
from restante.core.topics import LONGEST_WORD
from restante.server import answers, shapes
from restante.server.access import Caller
from restante.server.office import Json, Office, Refused
from restante.server.routing import Here, Operator, Reader, answering, router
from restante.server.telling import ms

log = logging.getLogger("restante")
api = router("topics")
ServiceName = Annotated[str, Path(pattern=f"^[A-Za-z0-9_][A-Za-z0-9_-]{{0,{LONGEST_WORD - 1}}}$")]
Filter = Annotated[str | None, Query(max_length=200)]
#: Seconds to wait for whoever reads an archive on RabbitMQ; a replay may take longer, a list does not.
PATIENCE = 3.0
_NO_COUNTS = {"waiting": None, "leased": None, "dead": None}


@answering(api.get, "/topics", answers.Topics, summary="Topics, who subscribes, and how they keep up")
async def topics(here: Here, caller: Reader) -> Json:
    """Events and calls by topic; `waiting`, `leased` and `dead` are null where the broker cannot be asked."""
    found = await here.call(cards, here.post)
    counts = {row.queue: row for row in await here.sampler.count()}
    far, problem = await here.call(_on_rabbitmq, here, found)
    by_topic: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for card in found:
        key = ("call", card.answers) if card.answers else ("event", card.topic or "")
        row = counts.get(card.queue)
        if card.broker == "rabbitmq":
            numbers = far.get(card.queue, dict(_NO_COUNTS))
        else:
            numbers = dict.fromkeys(_NO_COUNTS, 0)
            if row is not None:
                numbers = {"waiting": row.waiting - row.leased, "leased": row.leased, "dead": row.dead}
        by_topic.setdefault(key, []).append({
            "subscription": card.name, "service": card.service, "handler": card.handler, "pattern": key[1],
            "queue": card.queue, "broker": card.broker, "retry": card.retry, "max_attempts": card.max_attempts,
            **numbers, **{name: row.totals.get(name, 0) if row else 0 for name in ("sent", "acked", "nacked")},
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
            {"service": service, "broker": broker, "dead": _sum(found, service, broker, counts, far)}
            for service, broker in sorted({(card.service, card.broker) for card in found if card.topic})
        ],
        "unrouted": (unrouted.waiting if unrouted else 0) + (far.get(UNROUTED, {}).get("waiting") or 0),
        "problem": problem,
    })  # fmt: skip


def _sum(
    found: list[Card], service: str, broker: str, counts: dict[str, Any], far: dict[str, dict[str, int | None]]
) -> int | None:
    if broker == "rabbitmq":
        return far.get(f"{service}.archive", _NO_COUNTS)["waiting"]
    mine = [counts[card.queue] for card in found if card.service == service and card.topic and card.queue in counts]
    return sum(int(row.dead) for row in mine)


def _on_rabbitmq(here: Office, found: list[Card]) -> tuple[dict[str, dict[str, int | None]], str]:
    """What waits in queues of RabbitMQ, and why that is not known."""
    mine = [card for card in found if card.broker == "rabbitmq"]
    if not mine:
        return {}, ""
    if here.settings.broker is None:
        return {}, "some services are on RabbitMQ: start the server with --broker amqp://… to see their queues"
    from restante.bus.on_rabbitmq import counted

    names = {card.queue for card in mine} | {f"{card.service}.archive" for card in mine} | {UNROUTED}
    # What somebody reads is not counted meanwhile; during a replay, which may be long, that is near enough.
    alone = here.archives.acquire(timeout=PATIENCE)
    try:
        got = counted(here.settings.broker, sorted(names))
    except RestanteError as error:
        log.warning("RabbitMQ away error=%s", error)
        return {}, str(error)
    finally:
        if alone:
            here.archives.release()
    return {
        name: {"waiting": None if one is None else one[0], "leased": None, "dead": None} for name, one in got.items()
    }, ""


@contextmanager
def _letters(here: Office, caller: Caller, service: str) -> Iterator[DeadLetters]:
    """The dead of a service. Those on RabbitMQ to one request at a time: what one holds, no other would see."""
    mine = [card for card in cards(here.post) if card.service == service]
    if not mine:
        raise NotFound(f"no service {service} has subscribed to anything")
    if any(card.broker == "redis" for card in mine):
        yield RedisDead(here.post, service, operator=caller.name)
        return
    if here.settings.broker is None:
        raise Refused(
            503, "NoBroker", f"{service} is on RabbitMQ, of which this server was not told",
            "start the server with --broker amqp://…",
        )  # fmt: skip
    if not here.archives.acquire(timeout=PATIENCE):
        raise Refused(503, "ArchiveBusy", "an archive on RabbitMQ is being replayed", "look again when it has ended")
    try:
        yield dead_letters(here.settings.broker, service)
    except Unavailable as error:
        raise Refused(503, "NoBroker", str(error), "what lies on Redis is not affected") from None
    finally:
        here.archives.release()


def _out(one: DeadEvent) -> dict[str, Any]:
    return {**one.as_dict(), "died_at": ms(one.died_at)}


@answering(api.get, "/topics/{service}/dead", answers.DeadEvents, summary="Events a service could not handle")
async def dead_events(
    here: Here, caller: Reader, service: ServiceName, subscription: Filter = None, error_class: Filter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Json:  # fmt: skip
    """On either broker. Reading RabbitMQ's archive takes nothing out of it."""
    choice = Choice(None, subscription, error_class)

    def look() -> list[DeadEvent]:
        with _letters(here, caller, service) as letters:
            return letters.list(choice, limit)

    return Json({"service": service, "dead": [_out(one) for one in await here.call(look)]})


@answering(
    api.post, "/topics/{service}/replay", answers.ReplayedEvents, summary="Put dead events back to their service"
)
async def replay_events(here: Here, caller: Operator, service: ServiceName, body: shapes.ReplayEvents) -> Json:
    """To the subscriptions they died in and to no other, with attempts reset; with `dry_run` only counted."""
    choice = Choice(body.ids, body.subscription, body.error_class)

    def work() -> int:
        with _letters(here, caller, service) as letters:
            done = letters.replay(choice, dry_run=body.dry_run)
        # On Redis every queue that was replayed has its own line already.
        if done and not body.dry_run and not isinstance(letters, RedisDead):
            here.admin(caller).note("replay", f"{service}.archive", done, "events on RabbitMQ")
        return done

    return Json({"replayed": await here.call_slowly(work), "dry_run": body.dry_run})
