"""Finds and removes the ladders of earlier versions: one per service and one for `events`.

Messages on an old ladder come back by themselves: its rungs lead down to its return, whose bindings stay. Queues that
still hold messages are kept and listed; run the removal again later. A removal that fails half-way loses nothing: rungs
are removed from the longest down, so no rung leads to a missing exchange.
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
    old_return_name,
    old_rung_name,
    reject_exchange,
    reject_topology,
    valid_service,
)

_STEPS = tuple(SMALLEST * 2**place for place in reversed(range(MOST_RUNGS)))


@dataclass(frozen=True, slots=True)
class Leftover:
    """A queue or exchange of an earlier version."""

    kind: str
    name: str
    #: Messages in a queue; they come back by themselves within the time of the rungs below.
    messages: int = 0

    def text(self) -> str:
        holds = f" ({self.messages} message{'s' * (self.messages != 1)} on the way back)" if self.messages else ""
        return f"{self.kind} {self.name}{holds}"


def find(connection: Connection, services: Iterable[str]) -> list[Leftover]:
    """Lists what is left of the ladders of these services and of `events`. Removes nothing."""
    with Channels(connection) as broker:
        return [leftover for owner in _owners(services) for leftover in _left(broker, owner)]


def remove(
    connection: Connection, services: Iterable[str], type: RungType = RUNGS
) -> tuple[list[Leftover], list[Leftover]]:
    """Removes empty parts of the ladders of these services and of `events`; returns what it removed and what it kept.

    Messages that the services' queues reject go to the shared ladder of this type from now on; it must exist.
    """
    removed: list[Leftover] = []
    kept: list[Leftover] = []
    owners = _owners(services)
    for owner in owners[1:]:
        declare(connection, reject_topology(owner, type))
    with Channels(connection) as broker:
        for owner in owners:
            removed += _clear(broker, owner, _left(broker, owner))
            kept += _left(broker, owner)
    return removed, kept


def _owners(services: Iterable[str]) -> list[str]:
    return [EVENTS, *sorted({valid_service(service) for service in services})]


def _left(broker: Channels, owner: str) -> list[Leftover]:
    """Rungs that exist, longest first, then the return."""
    foot = Exchange(old_return_name(owner), "topic")
    if not broker.has(foot):
        return []  # It is removed last.
    leftovers = []
    for step in _STEPS:
        name = old_rung_name(owner, step)
        counted = broker.counts(name)
        if counted is not None:
            leftovers.append(Leftover("queue", name, counted[0]))
        if name != _reject_exchange_of(owner) and broker.has(Exchange(name, "topic")):
            leftovers.append(Leftover("exchange", name))
    return [*leftovers, Leftover("exchange", foot.name)]


def _reject_exchange_of(owner: str) -> str | None:
    return None if owner == EVENTS else reject_exchange(owner)


def _clear(broker: Channels, owner: str, left: list[Leftover]) -> list[Leftover]:
    gone: list[Leftover] = []
    queues = {leftover.name: leftover for leftover in left if leftover.kind == "queue"}
    exchanges = {leftover.name: leftover for leftover in left if leftover.kind == "exchange"}
    for step in _STEPS:
        name = old_rung_name(owner, step)
        queue, exchange = queues.get(name), exchanges.get(name)
        if queue is not None and queue.messages:
            return gone
        # The exchange first: a publisher of an earlier version then gets an error instead of losing messages.
        if exchange is not None:
            broker.delete_exchange(name)
            gone.append(exchange)
        if queue is not None:
            if not broker.delete_queue(name):
                return gone  # A message arrived meanwhile. It expires to the rung below, which still exists.
            gone.append(queue)
    foot = exchanges.get(old_return_name(owner))
    if foot is not None:
        broker.delete_exchange(foot.name)
        gone.append(foot)
    return gone
