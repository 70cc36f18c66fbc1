"""The exchanges, queues and bindings that events and calls need on RabbitMQ, as plain data. Invalid names and options
raise.

A virtual host has one ladder for all services (`ladder`). A service adds a queue per handler, one for calls to all
services, an archive, and its reject exchange, which routes rejected messages to the ladder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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
#: `#` in a pattern. RabbitMQ tries every distribution of a topic's words over them while the publisher waits: two take
#: milliseconds at worst, four take seconds, five take minutes.
MOST_HASHES = 2
#: Seconds that the ladder reaches by default at least: a day needs twenty rungs.
LONGEST_DELAY = 86400.0
#: The exchange of events.
EVENTS = "events"
#: The exchange with the bindings of `EVENTS` and no alternate: a `mandatory` publish shows whether any queue is bound.
KNOWN = "events.known"
#: The exchange and the queue of events that no service has subscribed to.
UNROUTED = "events.unrouted"
#: By default, seconds for which such events are kept, and how many.
UNROUTED_SECONDS = 7 * 86400.0
UNROUTED_LENGTH = 10_000
#: The queue with the handlers of each service, for servers and commands that have no Redis.
SERVICES = "events.services"
#: The exchange of calls that one service answers.
CALLS = "calls"
#: The exchange of calls that every service answers.
CALLS_ALL = "calls.all"
#: The prefix of a topic's call queue.
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
    #: Whether it survives a restart of the broker.
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: Arguments = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of a queue or an exchange to an exchange."""

    source: str
    key: str
    target: str
    to_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a listing."""

    what: Literal["exchange", "queue", "rung", "binding"]
    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Topology:
    """The objects of a service on the broker. Exchanges are declared first, then queues, then bindings."""

    service: str
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    #: Bindings of the ladders of earlier versions, declared only if their exchange still exists.
    old_bindings: tuple[Binding, ...] = ()
    #: Bindings to remove once all others exist: the reject exchange of earlier versions led elsewhere.
    unbound: tuple[Binding, ...] = ()

    def json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "service": self.service,
            "exchanges": [
                {"name": item.name, "type": item.type, "durable": item.durable, "arguments": dict(item.arguments)}
                for item in self.exchanges
            ],
            "queues": [{"name": item.name, "arguments": dict(item.arguments)} for item in self.queues],
            "bindings": [
                {"source": item.source, "key": item.key, "target": item.target, "to_exchange": item.to_exchange}
                for item in self.bindings
            ],
        }

    def rows(self) -> list[Row]:
        """A listing, with a rung's exchange, queue and bindings in item line."""
        folded = {item.name for item in self.queues if is_rung(item.name)}
        exchanges = [
            Row("exchange", item.name, _words({"type": item.type, **_transient(item), **dict(item.arguments)}))
            for item in self.exchanges
            if item.name not in folded
        ]
        queues = [
            Row("queue", item.name, _words(dict(item.arguments))) for item in self.queues if item.name not in folded
        ]
        steps = [Row("rung", item.name, _step(dict(item.arguments))) for item in self.queues if item.name in folded]
        bindings = [
            Row("binding", item.source, f"{item.key or 'everything'} → {item.target}")
            for item in self.bindings
            if item.source not in folded
        ]
        return exchanges + queues + steps + bindings

    def text(self) -> str:
        """`rows()` in columns."""
        rows = self.rows()
        wide = max((len(row.name) for row in rows), default=0)
        return "\n".join(f"{row.what:<8}  {row.name:<{wide}}  {row.detail}".rstrip() for row in rows)


def _transient(item: Exchange) -> dict[str, str]:
    return {} if item.durable else {"durable": "no"}


def _words(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _step(arguments: Mapping[str, object]) -> str:
    return f"holds {arguments['x-message-ttl']} ms, then {arguments['x-dead-letter-exchange']}"


class Subscribed(NamedTuple):
    """A subscription: the handler's name, which with the service's names the queue, and its pattern of topics."""

    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """Options that every process of a service must share, and for `unrouted_…` every service."""

    #: The type of subscription queues. Quorum queues are replicated and have no priorities.
    queue_type: Literal["classic", "quorum"] = "classic"
    #: The type of the ladder's rungs. If services of a virtual host differ, it has two ladders.
    rungs: RungType = RUNGS
    #: Whether dead messages are kept.
    archive: bool = True
    #: Seconds for which a dead message is kept, and how many; a full archive refuses more.
    archive_seconds: float = 7 * 86400
    archive_length: int = 10_000
    #: The same for events that no service has subscribed to.
    unrouted_seconds: float = UNROUTED_SECONDS
    unrouted_length: int = UNROUTED_LENGTH
    #: Seconds that the ladder reaches at least.
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
        """The ladder that these options and the delays of these policies need."""
        return Ladder(self.rungs, rungs(max(self.longest_delay, CRASH_DELAY, longest_of(policies))))


@dataclass(slots=True)
class _Builder:
    """Collects objects, each once, in the order of their first mention."""

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

    def build(self, service: str) -> Topology:
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
    """All objects of a service: the shared part with the ladder, its reject exchange, its queues and its archive."""
    options = options or TopologyOptions()
    valid_service(service)
    builder = _Builder()
    ladder = options.ladder(policies)
    _add_shared(builder, options, ladder)
    _add_reject_exchange(builder, service, ladder)
    for subscription in subscribed:
        _add_subscription(builder, service, subscription, options)
    if options.archive:
        # A full archive refuses: dropping the oldest would lose messages without an error.
        builder.queue(
            archive_name(service),
            x_message_ttl=_milliseconds(options.archive_seconds),
            x_max_length=options.archive_length,
            x_overflow="reject-publish",
        )
    for topic in answered:
        builder.queue(call_queue(topic))
        builder.bind(CALLS, topic, call_queue(topic))
        builder.queue(calls_queue(service))
        builder.bind(CALLS_ALL, topic, calls_queue(service))
    return builder.build(service)


def shared(options: TopologyOptions | None = None) -> Topology:
    """The objects that every service and every publisher needs."""
    builder = _Builder()
    options = options or TopologyOptions()
    _add_shared(builder, options, options.ladder())
    return builder.build("")


def gate_topology() -> Topology:
    """The objects that a restarted broker lacks until a client declares them."""
    builder = _Builder()
    _add_gate(builder)
    return builder.build("")


def reject_topology(service: str, type: RungType) -> Topology:
    """A service's reject exchange, bound to an existing ladder of this type."""
    builder = _Builder()
    _add_reject_exchange(builder, valid_service(service), Ladder(type))
    return builder.build(service)


def _add_shared(builder: _Builder, options: TopologyOptions, ladder: Ladder) -> None:
    builder.exchange(UNROUTED, "fanout")
    builder.exchange(EVENTS, "topic", alternate_exchange=UNROUTED)
    builder.exchange(KNOWN, "topic")
    builder.exchange(CALLS, "direct")
    builder.exchange(CALLS_ALL, "direct")
    builder.queue(
        UNROUTED,
        x_message_ttl=_milliseconds(options.unrouted_seconds),
        x_max_length=options.unrouted_length,
        x_overflow="reject-publish",
    )
    builder.bind(UNROUTED, "", UNROUTED)
    builder.queue(SERVICES)
    _add_ladder(builder, ladder)


def _add_subscription(builder: _Builder, service: str, subscription: Subscribed, options: TopologyOptions) -> None:
    queue = queue_name(service, subscription.name)
    pattern = valid_pattern(subscription.pattern)
    if pattern.split(".").count("#") > MOST_HASHES:
        raise InvalidName(
            f"pattern {pattern!r} is not valid on RabbitMQ, which needs too long to match more than {MOST_HASHES} #: "
            "use several subscriptions, or * where one word is meant"
        )
    # Through the reject exchange and not straight to a rung: a queue's arguments can never be changed, and must not
    # depend on the rungs' type.
    _, key = Ladder(steps=rungs(CRASH_DELAY)).retry(CRASH_DELAY, queue)
    ways: dict[str, str | int] = {"x_dead_letter_exchange": reject_exchange(service), "x_dead_letter_routing_key": key}
    if options.queue_type == "quorum":
        # No x-delivery-limit: a message that reaches it is dead-lettered, here to the ladder, and comes back with a
        # count of zero. The worker limits attempts, by the message's headers, and buries it in the archive.
        builder.queue(queue, x_queue_type="quorum", **ways)
    else:
        builder.queue(queue, x_max_priority=PRIORITIES, **ways)
    builder.bind(EVENTS, pattern, queue)
    builder.bind(KNOWN, pattern, queue)
    builder.bind(DUE, f"#.{TO_TOPIC}.{pattern}", queue)
    builder.bind(RETURN, f"#.{TO_QUEUE}.{queue}", queue)
    # An earlier version had this binding past the gate.
    builder.unbound[Binding(RETURN, f"#.{TO_TOPIC}.{pattern}", queue)] = None
    # Earlier versions used the mark of queues for topics, so their return cannot lead to this one.
    builder.old_bindings[Binding(old_return_name(EVENTS), f"#.{TO_QUEUE}.{pattern}", queue)] = None


def _add_ladder(builder: _Builder, ladder: Ladder) -> None:
    # The alternate keeps messages whose queue was deleted meanwhile.
    builder.exchange(RETURN, "topic", alternate_exchange=UNROUTED)
    builder.exchange(DUE, "topic", alternate_exchange=UNROUTED)
    _add_gate(builder)
    below = RETURN
    for place, step in enumerate(reversed(ladder.steps)):
        name = ladder.rung(step)
        builder.exchange(name, "topic")
        builder.queues[Queue(name, tuple(rung_arguments(ladder.type, step, below).items()))] = None
        builder.bind(name, "*." * place + "1.#", name)
        builder.bind(name, "*." * place + "0.#", below, to_exchange=True)
        below = name


def _add_gate(builder: _Builder) -> None:
    builder.exchanges[Exchange(GATE, "fanout", durable=False)] = None
    # In this order: an exchange without bindings drops messages.
    builder.bind(GATE, "", DUE, to_exchange=True)
    builder.bind(RETURN, f"#.{TO_TOPIC}.#", GATE, to_exchange=True)


def _add_reject_exchange(builder: _Builder, service: str, ladder: Ladder) -> None:
    """Routes messages that a service's queues reject to the shared ladder, and no longer to an old one.

    The reject exchange has the name of the exchange of a service's rung of `CRASH_DELAY` in earlier versions: queues,
    whose arguments cannot change, name it. Routing keys are the same, so messages on a service's old longer rungs
    continue on the shared ladder.
    """
    exchange = reject_exchange(service)
    builder.exchange(exchange, "topic")
    builder.bind(exchange, "#", ladder.rung(CRASH_DELAY), to_exchange=True)
    place = len(rungs(CRASH_DELAY)) - 1
    for type in RUNG_TYPES:
        if type != ladder.type:
            builder.unbound[Binding(exchange, "#", Ladder(type).rung(CRASH_DELAY), to_exchange=True)] = None
    builder.unbound[Binding(exchange, "*." * place + "1.#", exchange)] = None
    builder.unbound[
        Binding(exchange, "*." * place + "0.#", old_rung_name(service, CRASH_DELAY / 2), to_exchange=True)
    ] = None


def _milliseconds(value: float) -> int:
    return round(value * 1000)


def valid_service(service: str) -> str:
    """Returns the service's name; InvalidName if it is not valid."""
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
    """The queue of a topic's calls, shared by the services that answer it."""
    return f"{CALL}{valid_topic(topic)}"


def calls_queue(service: str) -> str:
    """The queue of a service's calls to all services."""
    return f"{service}.calls"


def archive_name(service: str) -> str:
    """The queue of a service's dead messages."""
    return f"{service}.archive"


def reject_exchange(service: str) -> str:
    """The exchange that routes messages that a service's queues reject to the ladder."""
    return old_rung_name(service, CRASH_DELAY)


def is_rung(queue: str) -> bool:
    """Whether a queue is a rung of the ladder."""
    return queue.startswith(LADDER)


def old_rung_name(owner: str, step: float) -> str:
    """The exchange and the queue of a rung in earlier versions, where each service and `events` had its own ladder."""
    return f"{owner}.rung.{label(step)}"


def old_return_name(owner: str) -> str:
    """The last exchange of a ladder in earlier versions."""
    return f"{owner}.return"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
