"""Which exchanges, queues and bindings events and calls need on RabbitMQ: plain data. What cannot work is refused.

A ladder holds a message for any delay without a timer in any process. Each rung is a queue whose messages expire
after a power of two, and an exchange of the same name in front of it. A routing key begins with one word per rung,
shortest rung first: `1` waits there, `0` passes by. The message enters at its longest rung, goes down rung by rung,
and `return` hands it to the target that stands behind the mark:

    0.0.0.1.@.billing.on_paid  →  billing.rung.1s  →  …500ms  →  …250ms  →  …125ms  →  billing.return  →  the queue

Shortest first and not longest first, so that a rung's word stands in the same place however high the ladder is:
bindings are never undone by a declaration, so a ladder that grew would otherwise route by its old and new bindings at
once, and doubles would come out. For the same reason a key ends at the rung where its message enters: no queue's
arguments depend on the ladder's height, and a longer delay in a retry policy is no mismatch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from restante.core.errors import InvalidInput, InvalidName
from restante.core.retry import LONGEST_DELAY, RetryPolicy, seconds
from restante.core.topics import valid_pattern, valid_topic, valid_word

#: Seconds of the shortest rung: delays are rounded up to multiples of it. Half of it makes every ladder a rung longer.
SMALLEST = 0.125
#: Seconds a rejected message waits on the broker before it comes back: a consumer that dies on each delivery must not
#: spin, and a message that was merely unlucky must not wait for long.
CRASH_DELAY = 1.0
#: Seconds; the longest time to live of a queue's messages that every RabbitMQ takes (32 bits of milliseconds).
LONGEST_LIFE = (2**32 - 1) / 1000
#: Rungs of the highest ladder: one more would hold messages for longer than that.
MOST_RUNGS = 26
#: Seconds the highest ladder reaches, about 97 days.
REACH = SMALLEST * (2**MOST_RUNGS - 1)
#: Bytes of an AMQP routing key; RabbitMQ closes the connection beyond.
LONGEST_KEY = 255
#: Priorities of a classic subscription queue. RabbitMQ spends a process and memory per step, and advises at most ten.
PRIORITIES = 10
#: `#` in one pattern. RabbitMQ tries every way to spread a topic's words over them, and its publisher waits: two take
#: milliseconds at worst, four take seconds, five take minutes.
MOST_HASHES = 2
#: Stands between a delay's bits and the target. No topic, service or handler has this character in a word.
MARK = "@"
#: Where events are published, and the owner of the ladder that delays them.
EVENTS = "events"
#: The same bindings without an alternate exchange: published to with `mandatory`, it tells whether anybody listens.
KNOWN = "events.known"
#: Where events go that nobody has subscribed to.
UNROUTED = "events.unrouted"
#: Where calls are published that one service answers.
CALLS = "calls"
#: Where calls are published that every service answers.
CALLS_ALL = "calls.all"
#: Service names that would collide with the names above, or with RabbitMQ's own exchanges.
RESERVED_SERVICES = frozenset({"events", "calls", "amq"})
#: Handler names that would collide with a service's own objects.
RESERVED_HANDLERS = frozenset({"archive", "return", "rung", "calls"})

_RUNG = re.compile(r"(.+)\.rung\.([^.]+)")

Arguments = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: Literal["topic", "direct", "fanout"]
    arguments: Arguments = ()


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

    def json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "service": self.service,
            "exchanges": [
                {"name": one.name, "type": one.type, "arguments": dict(one.arguments)} for one in self.exchanges
            ],
            "queues": [{"name": one.name, "arguments": dict(one.arguments)} for one in self.queues],
            "bindings": [
                {"source": one.source, "key": one.key, "target": one.target, "to_exchange": one.to_exchange}
                for one in self.bindings
            ],
        }

    def rows(self) -> list[Row]:
        """Everything for people, a rung's exchange, queue and bindings folded into one line."""
        folded = {one.name for one in self.queues if _RUNG.fullmatch(one.name)}
        exchanges = [
            Row("exchange", one.name, _words({"type": one.type, **dict(one.arguments)}))
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
    #: Whether dead messages are kept.
    archive: bool = True
    #: Seconds a dead message is kept, and how many are; beyond, the archive refuses.
    archive_seconds: float = 7 * 86400
    archive_length: int = 10_000
    #: The same for events that nobody has subscribed to.
    unrouted_seconds: float = 7 * 86400
    unrouted_length: int = 10_000
    #: Seconds the ladders reach at least.
    longest_delay: float = 86400

    def __post_init__(self) -> None:
        if self.queue_type not in ("classic", "quorum"):
            raise InvalidInput(f"queue_type must be classic or quorum, not {self.queue_type!r}")
        limits = {"archive_seconds": LONGEST_LIFE, "unrouted_seconds": LONGEST_LIFE, "longest_delay": REACH}
        for name, limit in limits.items():
            value = seconds(getattr(self, name), name, least=0.001)
            if value > limit:
                raise InvalidInput(f"{name} must be at most {limit:,.0f} seconds on RabbitMQ, not {value:,.0f}")
        for name in ("archive_length", "unrouted_length"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InvalidInput(f"{name} must be a whole number of at least 1, not {count!r}")


@dataclass(slots=True)
class _Draft:
    """Collects objects, each once, in the order they are first named."""

    exchanges: dict[Exchange, None] = field(default_factory=dict)
    queues: dict[Queue, None] = field(default_factory=dict)
    bindings: dict[Binding, None] = field(default_factory=dict)

    def exchange(self, name: str, type: Literal["topic", "direct", "fanout"], **arguments: str | int) -> None:
        self.exchanges[Exchange(name, type, _arguments(arguments))] = None

    def queue(self, name: str, **arguments: str | int) -> None:
        self.queues[Queue(name, _arguments(arguments))] = None

    def bind(self, source: str, key: str, target: str, *, to_exchange: bool = False) -> None:
        self.bindings[Binding(source, key, target, to_exchange)] = None

    def finished(self, service: str) -> Topology:
        return Topology(service, tuple(self.exchanges), tuple(self.queues), tuple(self.bindings))


def _arguments(named: Mapping[str, str | int]) -> Arguments:
    return tuple((name.replace("_", "-"), value) for name, value in named.items())


def topology(
    service: str,
    subscribed: Sequence[Subscribed] = (),
    answered: Sequence[str] = (),
    policies: Iterable[RetryPolicy] = (),
    options: TopologyOptions | None = None,
) -> Topology:
    """All that a service needs on the broker: the shared part, its ladder, its queues, its archive."""
    options = options or TopologyOptions()
    valid_service(service)
    draft = _Draft()
    _share(draft, options)
    _build_ladder(draft, service, rungs(max(options.longest_delay, CRASH_DELAY, *map(_longest, policies))))
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
        draft.queue(f"{service}.calls")
        draft.bind(CALLS_ALL, topic, f"{service}.calls")
    return draft.finished(service)


def shared(options: TopologyOptions | None = None) -> Topology:
    """The part that every service and every publisher needs."""
    draft = _Draft()
    _share(draft, options or TopologyOptions())
    return draft.finished("")


def _share(draft: _Draft, options: TopologyOptions) -> None:
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
    _build_ladder(draft, EVENTS, rungs(options.longest_delay))


def _subscribe(draft: _Draft, service: str, one: Subscribed, options: TopologyOptions) -> None:
    queue = queue_name(service, one.name)
    pattern = valid_pattern(one.pattern)
    if pattern.split(".").count("#") > MOST_HASHES:
        raise InvalidName(
            f"pattern {pattern!r} is not valid on RabbitMQ, which needs too long to match more than {MOST_HASHES} #: "
            "use several subscriptions, or * where one word is meant"
        )
    exchange, key = climb(service, CRASH_DELAY, queue, rungs(CRASH_DELAY))
    ways: dict[str, str | int] = {"x_dead_letter_exchange": exchange, "x_dead_letter_routing_key": key}
    if options.queue_type == "quorum":
        # No x-delivery-limit: what reaches it is dead-lettered, here onto the ladder, and comes back with its count at
        # naught. Attempts are bounded by whoever consumes, from the message's own history, and end in the archive.
        draft.queue(queue, x_queue_type="quorum", **ways)
    else:
        draft.queue(queue, x_max_priority=PRIORITIES, **ways)
    draft.bind(EVENTS, pattern, queue)
    draft.bind(KNOWN, pattern, queue)
    draft.bind(return_name(EVENTS), f"#.{MARK}.{pattern}", queue)
    draft.bind(return_name(service), f"#.{MARK}.{queue}", queue)


def _build_ladder(draft: _Draft, owner: str, steps: Sequence[float]) -> None:
    # Also what returns to a queue that was deleted meanwhile is kept.
    draft.exchange(return_name(owner), "topic", alternate_exchange=UNROUTED)
    below = return_name(owner)
    for place, step in enumerate(reversed(steps)):
        name = rung_name(owner, step)
        draft.exchange(name, "topic")
        draft.queue(name, x_message_ttl=_milliseconds(step), x_dead_letter_exchange=below)
        draft.bind(name, "*." * place + "1.#", name)
        draft.bind(name, "*." * place + "0.#", below, to_exchange=True)
        below = name


def rungs(longest: float) -> tuple[float, ...]:
    """Seconds of each rung, longest first: powers of two, from the smallest up to what together reaches `longest`."""
    return tuple(SMALLEST * 2**place for place in reversed(range(max(1, _ticks(longest).bit_length()))))


def climb(owner: str, delay: float, target: str, rungs: Sequence[float]) -> tuple[str, str]:
    """Exchange and routing key that hold a message for `delay` seconds, rounded up, and then hand it to `target`.

    The target is a topic on the ladder of `events`, and a queue's name on that of a service.
    """
    ticks = _ticks(delay)
    if ticks >= 2 ** len(rungs):
        reach = SMALLEST * (2 ** len(rungs) - 1)
        raise InvalidInput(
            f"{delay:g} s is beyond the ladder of {owner}, which reaches {reach:g} s: declare it with a longer "
            "longest_delay, or wait for less"
        )
    bits = f"{ticks:b}"[::-1] if ticks else ""
    key = ".".join((*bits, MARK, target))
    if len(key.encode()) > LONGEST_KEY:
        raise InvalidInput(
            f"{target!r} is too long to be delayed by {delay:g} s: its routing key would have {len(key.encode())} "
            f"bytes, and {LONGEST_KEY} is the limit; use a shorter name"
        )
    return rung_name(owner, SMALLEST * 2 ** (len(bits) - 1)) if bits else return_name(owner), key


def target_of(key: str) -> str:
    """The topic or queue that a routing key leads to: the key without a delay's bits."""
    before, mark, target = key.rpartition(f"{MARK}.")
    return target if mark and not before.strip("01.") else key


def _ticks(delay: float) -> int:
    """The delay in smallest rungs, rounded up."""
    delay = seconds(delay, "delay")
    if delay > REACH:
        raise InvalidInput(f"{delay:g} s is too long for RabbitMQ, where a ladder reaches {REACH:g} s: wait for less")
    return math.ceil(delay / SMALLEST)


def _longest(policy: RetryPolicy) -> float:
    """The longest delay a policy can give."""
    if policy.delays is not None:
        return max(policy.delays, default=0.0)
    top = policy.cap if policy.factor > 1 else min(policy.cap, policy.base)
    return min(LONGEST_DELAY, top * (1 + policy.jitter))


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
    return f"call:{valid_topic(topic)}"


def archive_name(service: str) -> str:
    """The queue of a service's dead messages."""
    return f"{service}.archive"


def return_name(owner: str) -> str:
    """The exchange at the foot of a ladder."""
    return f"{owner}.return"


def rung_name(owner: str, step: float) -> str:
    """The exchange and the queue of a rung."""
    return f"{owner}.rung.{step:.0f}s" if step >= 1 else f"{owner}.rung.{_milliseconds(step)}ms"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
