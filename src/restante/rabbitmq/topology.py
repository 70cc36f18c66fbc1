"""Which exchanges, queues and bindings events and calls need on RabbitMQ: plain data. What cannot work is refused.

A virtual host has one ladder for all services (`ladder`). A service adds a queue per handler, one for calls to all
services, an archive, and its door: the exchange by which what its queues reject enters the ladder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from restante.core.errors import InvalidInput, InvalidName
from restante.core.retry import RetryPolicy, seconds
from restante.core.topics import valid_pattern, valid_topic, valid_word
from restante.rabbitmq.ladder import (
    CRASH_DELAY,
    DUE,
    GATE,
    LADDER,
    LONGEST_LIFE,
    REACH,
    RETURN,
    RUNG_TYPES,
    RUNGS,
    TO_QUEUE,
    TO_TOPIC,
    Ladder,
    RungType,
    label,
    longest_of,
    rung_arguments,
    rungs,
)

#: Priorities of a classic subscription queue. RabbitMQ spends a process and memory per step, and advises at most ten.
PRIORITIES = 10
#: `#` in one pattern. RabbitMQ tries every way to spread a topic's words over them, and its publisher waits: two take
#: milliseconds at worst, four take seconds, five take minutes.
MOST_HASHES = 2
#: Seconds the ladder reaches at least where nothing else is said: with a day it has twenty rungs.
LONGEST_DELAY = 86400.0
#: Where events are published.
EVENTS = "events"
#: The same bindings without an alternate exchange: published to with `mandatory`, it tells whether anybody listens.
KNOWN = "events.known"
#: Where events go that nobody has subscribed to.
UNROUTED = "events.unrouted"
#: Seconds an event without a subscription is kept, and how many of them, unless options say otherwise.
UNROUTED_SECONDS = 7 * 86400.0
UNROUTED_LENGTH = 10_000
#: Where services say which handlers they have, for servers and commands that have no Redis to ask.
SERVICES = "events.services"
#: Where calls are published that one service answers.
CALLS = "calls"
#: Where calls are published that every service answers.
CALLS_ALL = "calls.all"
#: How the name of a topic's call queue begins.
CALL = "call:"
#: Service names that would collide with the names above, or with RabbitMQ's own exchanges.
RESERVED_SERVICES = frozenset({"events", "calls", "amq"})
#: Handler names that would collide with a service's own objects.
RESERVED_HANDLERS = frozenset({"archive", "return", "rung", "calls"})

Arguments = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange."""

    name: str
    type: Literal["topic", "direct", "fanout"]
    arguments: Arguments = ()
    #: Whether it is there again when the broker has started.
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: Arguments = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """What an exchange hands on to a queue, or to another exchange."""

    source: str
    key: str
    target: str
    to_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line for people."""

    what: Literal["exchange", "queue", "rung", "binding"]
    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Topology:
    """What a service needs on the broker. Exchanges are declared first, then queues, then bindings."""

    service: str
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    #: Bindings of ladders that earlier versions made, declared only where their exchange is still there.
    old_bindings: tuple[Binding, ...] = ()
    #: Bindings that are taken away once all others are there: the door led elsewhere before.
    unbound: tuple[Binding, ...] = ()

    def json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "service": self.service,
            "exchanges": [
                {"name": one.name, "type": one.type, "durable": one.durable, "arguments": dict(one.arguments)}
                for one in self.exchanges
            ],
            "queues": [{"name": one.name, "arguments": dict(one.arguments)} for one in self.queues],
            "bindings": [
                {"source": one.source, "key": one.key, "target": one.target, "to_exchange": one.to_exchange}
                for one in self.bindings
            ],
        }

    def rows(self) -> list[Row]:
        """Everything for people, a rung's exchange, queue and bindings folded into one line."""
        folded = {one.name for one in self.queues if is_rung(one.name)}
        exchanges = [
            Row("exchange", one.name, _words({"type": one.type, **_transient(one), **dict(one.arguments)}))
            for one in self.exchanges
            if one.name not in folded
        ]
        queues = [Row("queue", one.name, _words(dict(one.arguments))) for one in self.queues if one.name not in folded]
        steps = [Row("rung", one.name, _step(dict(one.arguments))) for one in self.queues if one.name in folded]
        bindings = [
            Row("binding", one.source, f"{one.key or 'everything'} → {one.target}")
            for one in self.bindings
            if one.source not in folded
        ]
        return exchanges + queues + steps + bindings

    def text(self) -> str:
        """`rows()` in columns."""
        rows = self.rows()
        wide = max((len(row.name) for row in rows), default=0)
        return "\n".join(f"{row.what:<8}  {row.name:<{wide}}  {row.detail}".rstrip() for row in rows)


def _transient(one: Exchange) -> dict[str, str]:
    return {} if one.durable else {"durable": "no"}


def _words(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _step(arguments: Mapping[str, object]) -> str:
    return f"holds {arguments['x-message-ttl']} ms, then {arguments['x-dead-letter-exchange']}"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A handler's interest: its name, which with the service's names the queue, and a pattern of topics."""

    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """What every process of a service must agree on, and for `unrouted_…` every service."""

    #: Of subscription queues. Quorum queues are replicated and know no priorities.
    queue_type: Literal["classic", "quorum"] = "classic"
    #: Of the ladder's rungs. All services of a virtual host should say the same, or it has two ladders.
    rungs: RungType = RUNGS
    #: Whether dead messages are kept.
    archive: bool = True
    #: Seconds a dead message is kept, and how many are; beyond, the archive refuses.
    archive_seconds: float = 7 * 86400
    archive_length: int = 10_000
    #: The same for events that nobody has subscribed to.
    unrouted_seconds: float = UNROUTED_SECONDS
    unrouted_length: int = UNROUTED_LENGTH
    #: Seconds the ladder reaches at least.
    longest_delay: float = LONGEST_DELAY

    def __post_init__(self) -> None:
        if self.queue_type not in ("classic", "quorum"):
            raise InvalidInput(f"queue_type must be classic or quorum, not {self.queue_type!r}")
        if self.rungs not in RUNG_TYPES:
            raise InvalidInput(f"rungs must be {' or '.join(RUNG_TYPES)}, not {self.rungs!r}")
        limits = {"archive_seconds": LONGEST_LIFE, "unrouted_seconds": LONGEST_LIFE, "longest_delay": REACH}
        for name, limit in limits.items():
            value = seconds(getattr(self, name), name, least=0.001)
            if value > limit:
                raise InvalidInput(f"{name} must be at most {limit:,.0f} seconds on RabbitMQ, not {value:,.0f}")
        for name in ("archive_length", "unrouted_length"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InvalidInput(f"{name} must be a whole number of at least 1, not {count!r}")

    def ladder(self, policies: Iterable[RetryPolicy] = ()) -> Ladder:
        """The rungs that these options and the delays of these policies need."""
        return Ladder(self.rungs, rungs(max(self.longest_delay, CRASH_DELAY, longest_of(policies))))


@dataclass(slots=True)
class _Draft:
    """Collects objects, each once, in the order they are first named."""

    exchanges: dict[Exchange, None] = field(default_factory=dict)
    queues: dict[Queue, None] = field(default_factory=dict)
    bindings: dict[Binding, None] = field(default_factory=dict)
    old_bindings: dict[Binding, None] = field(default_factory=dict)
    unbound: dict[Binding, None] = field(default_factory=dict)

    def exchange(self, name: str, type: Literal["topic", "direct", "fanout"], **arguments: str | int) -> None:
        self.exchanges[Exchange(name, type, _arguments(arguments))] = None

    def queue(self, name: str, **arguments: str | int) -> None:
        self.queues[Queue(name, _arguments(arguments))] = None

    def bind(self, source: str, key: str, target: str, *, to_exchange: bool = False) -> None:
        self.bindings[Binding(source, key, target, to_exchange)] = None

    def finished(self, service: str) -> Topology:
        return Topology(
            service,
            tuple(self.exchanges),
            tuple(self.queues),
            tuple(self.bindings),
            tuple(self.old_bindings),
            tuple(self.unbound),
        )


def _arguments(named: Mapping[str, str | int]) -> Arguments:
    return tuple((name.replace("_", "-"), value) for name, value in named.items())


def topology(
    service: str,
    subscribed: Sequence[Subscribed] = (),
    answered: Sequence[str] = (),
    policies: Iterable[RetryPolicy] = (),
    options: TopologyOptions | None = None,
) -> Topology:
    """All that a service needs on the broker: the shared part with the ladder, its door, its queues, its archive."""
    options = options or TopologyOptions()
    valid_service(service)
    draft = _Draft()
    ladder = options.ladder(policies)
    _share(draft, options, ladder)
    _open_door(draft, service, ladder)
    for one in subscribed:
        _subscribe(draft, service, one, options)
    if options.archive:
        # Refused and not dropped: what falls out at the head of a full queue is gone, and nobody hears of it.
        draft.queue(
            archive_name(service),
            x_message_ttl=_milliseconds(options.archive_seconds),
            x_max_length=options.archive_length,
            x_overflow="reject-publish",
        )
    for topic in answered:
        draft.queue(call_queue(topic))
        draft.bind(CALLS, topic, call_queue(topic))
        draft.queue(calls_queue(service))
        draft.bind(CALLS_ALL, topic, calls_queue(service))
    return draft.finished(service)


def shared(options: TopologyOptions | None = None) -> Topology:
    """The part that every service and every publisher needs."""
    draft = _Draft()
    options = options or TopologyOptions()
    _share(draft, options, options.ladder())
    return draft.finished("")


def open_gate() -> Topology:
    """What a broker that has started again lacks until somebody connects."""
    draft = _Draft()
    _open_gate(draft)
    return draft.finished("")


def door(service: str, type: RungType) -> Topology:
    """The way of what a service's queues reject onto a ladder that is there."""
    draft = _Draft()
    _open_door(draft, valid_service(service), Ladder(type))
    return draft.finished(service)


def _share(draft: _Draft, options: TopologyOptions, ladder: Ladder) -> None:
    draft.exchange(UNROUTED, "fanout")
    draft.exchange(EVENTS, "topic", alternate_exchange=UNROUTED)
    draft.exchange(KNOWN, "topic")
    draft.exchange(CALLS, "direct")
    draft.exchange(CALLS_ALL, "direct")
    draft.queue(
        UNROUTED,
        x_message_ttl=_milliseconds(options.unrouted_seconds),
        x_max_length=options.unrouted_length,
        x_overflow="reject-publish",
    )
    draft.bind(UNROUTED, "", UNROUTED)
    draft.queue(SERVICES)
    _build(draft, ladder)


def _subscribe(draft: _Draft, service: str, one: Subscribed, options: TopologyOptions) -> None:
    queue = queue_name(service, one.name)
    pattern = valid_pattern(one.pattern)
    if pattern.split(".").count("#") > MOST_HASHES:
        raise InvalidName(
            f"pattern {pattern!r} is not valid on RabbitMQ, which needs too long to match more than {MOST_HASHES} #: "
            "use several subscriptions, or * where one word is meant"
        )
    # Through the service's door and not straight onto a rung: a queue's arguments can never be changed, and must not
    # depend on the rungs' type.
    _, key = Ladder(steps=rungs(CRASH_DELAY)).retry(CRASH_DELAY, queue)
    ways: dict[str, str | int] = {"x_dead_letter_exchange": door_name(service), "x_dead_letter_routing_key": key}
    if options.queue_type == "quorum":
        # No x-delivery-limit: what reaches it is dead-lettered, here onto the ladder, and comes back with its count at
        # naught. Attempts are bounded by whoever consumes, from the message's own history, and end in the archive.
        draft.queue(queue, x_queue_type="quorum", **ways)
    else:
        draft.queue(queue, x_max_priority=PRIORITIES, **ways)
    draft.bind(EVENTS, pattern, queue)
    draft.bind(KNOWN, pattern, queue)
    draft.bind(DUE, f"#.{TO_TOPIC}.{pattern}", queue)
    draft.bind(RETURN, f"#.{TO_QUEUE}.{queue}", queue)
    # Past the gate: an earlier version had no other way.
    draft.unbound[Binding(RETURN, f"#.{TO_TOPIC}.{pattern}", queue)] = None
    # Earlier versions marked topics by what marks queues now, so their return cannot lead to ours.
    draft.old_bindings[Binding(old_return_name(EVENTS), f"#.{TO_QUEUE}.{pattern}", queue)] = None


def _build(draft: _Draft, ladder: Ladder) -> None:
    # Also what returns to a queue that was deleted meanwhile is kept.
    draft.exchange(RETURN, "topic", alternate_exchange=UNROUTED)
    draft.exchange(DUE, "topic", alternate_exchange=UNROUTED)
    _open_gate(draft)
    below = RETURN
    for place, step in enumerate(reversed(ladder.steps)):
        name = ladder.rung(step)
        draft.exchange(name, "topic")
        draft.queues[Queue(name, tuple(rung_arguments(ladder.type, step, below).items()))] = None
        draft.bind(name, "*." * place + "1.#", name)
        draft.bind(name, "*." * place + "0.#", below, to_exchange=True)
        below = name


def _open_gate(draft: _Draft) -> None:
    draft.exchanges[Exchange(GATE, "fanout", durable=False)] = None
    # In this order: an exchange that leads nowhere loses what it is given.
    draft.bind(GATE, "", DUE, to_exchange=True)
    draft.bind(RETURN, f"#.{TO_TOPIC}.#", GATE, to_exchange=True)


def _open_door(draft: _Draft, service: str, ladder: Ladder) -> None:
    """What a service's queues reject goes to the shared ladder, and no longer where it went before.

    The door has the name that earlier versions gave to the exchange of a service's rung of `CRASH_DELAY`: it stands in
    the arguments of queues that cannot be declared anew. Routing keys are the same, so that what comes down a service's
    old longer rungs goes on by the shared ladder.
    """
    door = door_name(service)
    draft.exchange(door, "topic")
    draft.bind(door, "#", ladder.rung(CRASH_DELAY), to_exchange=True)
    place = len(rungs(CRASH_DELAY)) - 1
    for type in RUNG_TYPES:
        if type != ladder.type:
            draft.unbound[Binding(door, "#", Ladder(type).rung(CRASH_DELAY), to_exchange=True)] = None
    draft.unbound[Binding(door, "*." * place + "1.#", door)] = None
    draft.unbound[Binding(door, "*." * place + "0.#", old_rung_name(service, CRASH_DELAY / 2), to_exchange=True)] = None


def _milliseconds(value: float) -> int:
    return round(value * 1000)


def valid_service(service: str) -> str:
    """The service's name itself, or InvalidName."""
    valid_word(service, "service")
    if service in RESERVED_SERVICES:
        raise InvalidName(
            f"service {service!r} is not valid: {_list(RESERVED_SERVICES)} are taken; choose another name"
        )
    return service


def queue_name(service: str, handler: str) -> str:
    """The queue of a handler's subscription."""
    valid_word(handler, "handler")
    if handler in RESERVED_HANDLERS:
        raise InvalidName(
            f"handler {handler!r} is not valid: {_list(RESERVED_HANDLERS)} are taken; choose another name"
        )
    return f"{valid_service(service)}.{handler}"


def call_queue(topic: str) -> str:
    """The queue of calls that one of the services that answer the topic takes."""
    return f"{CALL}{valid_topic(topic)}"


def calls_queue(service: str) -> str:
    """The queue of a service's calls to all services."""
    return f"{service}.calls"


def archive_name(service: str) -> str:
    """The queue of a service's dead messages."""
    return f"{service}.archive"


def door_name(service: str) -> str:
    """The exchange by which what a service's queues reject enters the ladder."""
    return old_rung_name(service, CRASH_DELAY)


def is_rung(queue: str) -> bool:
    """Whether a queue is a rung of the ladder."""
    return queue.startswith(LADDER)


def old_rung_name(owner: str, step: float) -> str:
    """The exchange and the queue of a rung in earlier versions: each service and `events` had a ladder of its own."""
    return f"{owner}.rung.{label(step)}"


def old_return_name(owner: str) -> str:
    """The exchange at the foot of such a ladder."""
    return f"{owner}.return"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
