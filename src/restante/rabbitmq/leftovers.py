"""What earlier versions left on a broker: a ladder per service and one for `events`. Found, and removed once empty.

Messages on an old ladder come back without any help: its rungs lead down to its return, whose bindings stay. What still
holds messages is kept and named; run it again later. On failure half-way nothing is lost: rungs go from the longest
down, so that no rung leads to an exchange that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kombu import Connection

from restante.rabbitmq.declaration import Channels, declare
from restante.rabbitmq.ladder import MOST_RUNGS, RUNGS, SMALLEST, RungType
from restante.rabbitmq.topology import (
    EVENTS,
    Exchange,
    door,
    door_name,
    old_return_name,
    old_rung_name,
    valid_service,
)

_STEPS = tuple(SMALLEST * 2**place for place in reversed(range(MOST_RUNGS)))


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object of an earlier version that is still there."""

    kind: str
    name: str
    #: Messages of a queue; they come back by themselves within the time of the rungs below.
    messages: int = 0

    def text(self) -> str:
        holds = f" ({self.messages} message{'s' * (self.messages != 1)} on the way back)" if self.messages else ""
        return f"{self.kind} {self.name}{holds}"


def find(connection: Connection, services: Iterable[str]) -> list[Leftover]:
    """What is left of the ladders of these services and of `events`. Removes nothing."""
    with Channels(connection) as broker:
        return [one for owner in _owners(services) for one in _left(broker, owner)]


def remove(
    connection: Connection, services: Iterable[str], type: RungType = RUNGS
) -> tuple[list[Leftover], list[Leftover]]:
    """Removes what is empty of the ladders of these services and of `events`: what was removed, and what was kept.

    What the services' queues reject goes to the shared ladder of this type from now on, which must be there.
    """
    removed: list[Leftover] = []
    kept: list[Leftover] = []
    owners = _owners(services)
    for owner in owners[1:]:
        declare(connection, door(owner, type))
    with Channels(connection) as broker:
        for owner in owners:
            removed += _clear(broker, owner, _left(broker, owner))
            kept += _left(broker, owner)
    return removed, kept


def _owners(services: Iterable[str]) -> list[str]:
    return [EVENTS, *sorted({valid_service(one) for one in services})]


def _left(broker: Channels, owner: str) -> list[Leftover]:
    """Rungs longest first, then the return."""
    foot = Exchange(old_return_name(owner), "topic")
    if not broker.has(foot):
        return []  # It is removed last.
    made = []
    for step in _STEPS:
        name = old_rung_name(owner, step)
        counted = broker.counts(name)
        if counted is not None:
            made.append(Leftover("queue", name, counted[0]))
        if name != _door(owner) and broker.has(Exchange(name, "topic")):
            made.append(Leftover("exchange", name))
    return [*made, Leftover("exchange", foot.name)]


def _door(owner: str) -> str | None:
    return None if owner == EVENTS else door_name(owner)


def _clear(broker: Channels, owner: str, left: list[Leftover]) -> list[Leftover]:
    gone: list[Leftover] = []
    queues = {one.name: one for one in left if one.kind == "queue"}
    exchanges = {one.name: one for one in left if one.kind == "exchange"}
    for step in _STEPS:
        name = old_rung_name(owner, step)
        queue, exchange = queues.get(name), exchanges.get(name)
        if queue is not None and queue.messages:
            return gone
        # The exchange first: a publisher of an earlier version is then refused, instead of losing what no queue takes.
        if exchange is not None:
            broker.delete_exchange(name)
            gone.append(exchange)
        if queue is not None:
            if not broker.delete_queue(name):
                return gone  # One came at the last moment. It expires to the rung below, which is still there.
            gone.append(queue)
    foot = exchanges.get(old_return_name(owner))
    if foot is not None:
        broker.delete_exchange(foot.name)
        gone.append(foot)
    return gone
