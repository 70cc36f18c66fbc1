"""The ladder that holds delayed messages on RabbitMQ: its rungs, their names, and the routing keys that use them.

One ladder serves every service of a virtual host, for any delay and without a timer in any process. Each rung is a
queue whose messages expire after a power of two, and an exchange of the same name in front of it. A routing key begins
with one word per rung, shortest rung first: `1` waits there, `0` passes by. The message enters at its longest rung,
goes down rung by rung, and `RETURN` routes it to the target after the mark: one queue (a retry) or, through `GATE`, a
topic (an event published with a delay):

    0.0.0.1.@.billing.on_paid  →  ladder:quorum.1s  →  …500ms  →  …250ms  →  …125ms  →  ladder:return  →  the queue

Shortest rung first, so that a rung's word has the same place however high the ladder is: declarations never remove
bindings, so a ladder that grew would otherwise route by old and new bindings at once, and deliver messages twice. For
the same reason a key ends at the rung where its message enters: no queue's arguments depend on the ladder's height, and
a longer delay in a retry policy is no mismatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from restante.core.errors import InvalidInput
from restante.core.retry import LONGEST_DELAY, RetryPolicy, seconds

#: The queue type of rungs. Quorum queues move a message to the next rung with a confirm (at least once) and are
#: replicated in a cluster. Classic queues move many messages faster, and lose some when the broker is killed.
RungType = Literal["classic", "quorum"]
RUNG_TYPES: Final[tuple[RungType, ...]] = get_args(RungType)
#: The default type; the measurements behind it are in docs/decisions/0017.
RUNGS: Final[RungType] = "quorum"

#: Seconds of the shortest rung: delays are rounded up to multiples of it. Half of it makes the ladder a rung longer.
SMALLEST = 0.125
#: Seconds a rejected message waits on the broker before it is delivered again. Less lets a message that kills every
#: consumer spin; more delays messages that were not at fault.
CRASH_DELAY = 1.0
#: Seconds; the longest time to live that every RabbitMQ accepts for a queue's messages (32 bits of milliseconds).
LONGEST_LIFE = (2**32 - 1) / 1000
#: Rungs of the highest ladder: one more would hold messages for longer than that.
MOST_RUNGS = 26
#: Seconds the highest ladder reaches, about 97 days.
REACH = SMALLEST * (2**MOST_RUNGS - 1)
#: Bytes of the longest AMQP routing key; RabbitMQ closes the connection on a longer one.
LONGEST_KEY = 255
#: The mark between a delay's bits and the queue that gets the message. Names of topics, services and handlers lack it.
TO_QUEUE = "@"
#: The mark between a delay's bits and the topic under which the message is then published.
TO_TOPIC = "~"
#: The prefix of the ladder's exchanges and queues. No service has it: their names have no colon.
LADDER = "ladder:"
#: The exchange at the foot of the ladder.
RETURN = "ladder:return"
#: The exchange between `RETURN` and `DUE`. It is not durable: a starting broker lacks it until a client connects, and
#: has read all bindings of `DUE` by then. Were it durable, an event that is due meanwhile would miss some queues.
GATE = "ladder:gate"
#: The exchange that routes events published with a delay to every subscription of their topic.
DUE = "ladder:due"


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of one type, and the routing keys onto them."""

    type: RungType = RUNGS
    #: Seconds of each rung, longest first.
    steps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.type not in RUNG_TYPES:
            raise InvalidInput(f"rungs must be {' or '.join(RUNG_TYPES)}, not {self.type!r}")

    @property
    def reach(self) -> float:
        """Seconds of the longest delay it can hold."""
        return sum(self.steps)

    def rung(self, step: float) -> str:
        """The name of a rung's exchange and queue."""
        return f"{LADDER}{self.type}.{label(step)}"

    def retry(self, delay: float, queue: str) -> tuple[str, str]:
        """Exchange and routing key that hold a message for `delay` seconds, rounded up, then route it to a queue."""
        return self._climb(delay, TO_QUEUE, queue)

    def later(self, delay: float, topic: str) -> tuple[str, str]:
        """Exchange and routing key that hold an event for `delay` seconds, and then route it by its topic."""
        return self._climb(delay, TO_TOPIC, topic)

    def _climb(self, delay: float, mark: str, target: str) -> tuple[str, str]:
        ticks = _ticks(delay)
        if ticks >= 2 ** len(self.steps):
            raise InvalidInput(
                f"{delay:g} s is beyond the ladder, which reaches {self.reach:g} s: declare it with a longer "
                "longest_delay, or wait for less"
            )
        bits = f"{ticks:b}"[::-1] if ticks else ""
        key = ".".join((*bits, mark, target))
        if len(key.encode()) > LONGEST_KEY:
            raise InvalidInput(
                f"{target!r} is too long to be delayed by {delay:g} s: its routing key would have "
                f"{len(key.encode())} bytes, and {LONGEST_KEY} is the limit; use a shorter name"
            )
        return self.rung(SMALLEST * 2 ** (len(bits) - 1)) if bits else RETURN, key


def rungs(longest: float) -> tuple[float, ...]:
    """Seconds of each rung, longest first: as many powers of two, from the smallest, as together reach `longest`."""
    return tuple(SMALLEST * 2**place for place in reversed(range(max(1, _ticks(longest).bit_length()))))


def longest_of(policies: Iterable[RetryPolicy]) -> float:
    """The longest delay that any of the policies can give."""
    return max(map(_longest, policies), default=0.0)


def target_of(key: str) -> str:
    """The topic or queue in a routing key: the key without a delay's bits and mark."""
    for mark in (TO_QUEUE, TO_TOPIC):
        before, found, target = key.rpartition(f"{mark}.")
        if found and not before.strip("01."):
            return target
    return key


def label(step: float) -> str:
    """The duration in a rung's name."""
    return f"{step:.0f}s" if step >= 1 else f"{round(step * 1000)}ms"


def rung_arguments(type: RungType, step: float, below: str) -> dict[str, Any]:
    """The arguments of a rung's queue; expired messages go to the exchange `below`."""
    holds = {"x-message-ttl": round(step * 1000), "x-dead-letter-exchange": below}
    if type == "classic":
        return holds
    # Without reject-publish RabbitMQ falls back from at-least-once to at-most-once.
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        **holds,
    }


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
