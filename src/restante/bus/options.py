"""Which keywords each door of the bus takes: for type checkers, and to refuse what is unknown before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from restante.bus.broker import Unrouted
from restante.core.errors import InvalidInput
from restante.core.keywords import check_keywords
from restante.core.retry import seconds

if TYPE_CHECKING:
    from restante.rabbitmq.ladder import RungType


class ManyOptions(TypedDict, total=False):
    """How events are published: `delay` and `expires` in seconds, `priority` 0–255."""

    delay: float | timedelta
    priority: int
    expires: float | timedelta | None
    headers: Mapping[str, Any] | None


class PublishOptions(ManyOptions, total=False):
    """The same for one event, with its `id` and what to do where nobody has subscribed."""

    id: str | None
    unrouted: Unrouted


class CallOptions(TypedDict, total=False):
    """How a call is made: how long it may take, and the caller's own headers."""

    timeout: float | timedelta
    headers: Mapping[str, Any] | None


class LadderOptions(TypedDict, total=False):
    """Where a delayed event waits on RabbitMQ; as the services' own `Bus(rabbitmq={…})`."""

    rungs: RungType
    longest_delay: float


class RabbitOptions(LadderOptions, total=False):
    """How a client keeps to RabbitMQ."""

    patience: float


class ConnectionOptions(RabbitOptions, total=False):
    """How a client keeps to its broker: to RabbitMQ by `RabbitOptions`, to Redis by those below and `patience`."""

    connect_timeout: float
    socket_timeout: float
    allow_eviction: bool
    idle_connections: int


class RetryOptions(TypedDict, total=False):
    """Celery's words for retries, which become the handler's retry policy."""

    autoretry_for: Sequence[type[BaseException]]
    dont_autoretry_for: Sequence[type[BaseException]]
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    max_retries: int | None
    default_retry_delay: float
    retry_kwargs: Mapping[str, Any]


class CallTaskOptions(TypedDict, total=False):
    """Celery's task options that have a meaning for a handler of calls.

    The flags behind `acks_late` may only say what holds already.
    """

    acks_late: bool
    acks_on_failure: bool
    acks_on_failure_or_timeout: bool
    acks_on_timeout: bool
    ignore_result: bool
    reject_on_worker_lost: bool
    rate_limit: str | float | None
    time_limit: float | None
    soft_time_limit: float | None
    throws: tuple[type[BaseException], ...]
    send_events: bool
    trail: bool
    resultrepr_maxsize: int


class TaskOptions(RetryOptions, CallTaskOptions, total=False):
    """Celery's task options that have a meaning for a handler of events."""


#: Task options that are Celery's and mean nothing for a handler, and what to do instead.
INSTEAD = {
    **dict.fromkeys(
        ("queue", "exchange", "exchange_type", "routing_key", "delivery_mode"),
        "a handler's queue is its own, service.handler: give name= for another",
    ),
    **dict.fromkeys(
        ("priority", "expires", "countdown", "eta", "compression"), "the publisher says so: publish(…, priority=, …)"
    ),
    **dict.fromkeys(
        ("serializer", "pydantic", "pydantic_strict", "pydantic_context", "pydantic_dump_kwargs", "typing"),
        "data are JSON, by the handler's annotation: a pydantic model, a dataclass or a type hint",
    ),
    **dict.fromkeys(
        ("backend", "track_started", "store_errors_even_if_ignored", "store_eager_result"),
        "an event has no result: answer a call, or publish an event of your own",
    ),
    **dict.fromkeys(
        ("base", "on_success", "on_failure", "on_retry", "before_start", "after_return", "filter", "lazy", "shared"),
        "use Celery's signals, or try and finally in the handler",
    ),
    "retry_on_worker_lost": "an event whose process was killed is tried again by its policy",
}
#: Flags that must be as they are, and why.
_FIXED = {
    "ignore_result": (True, "an event has no result, and a call's goes to its caller"),
    "acks_on_failure": (False, "a failed event is tried again and then dead; for one attempt say max_attempts=1"),
}
_FIXED["acks_on_failure_or_timeout"] = _FIXED["acks_on_timeout"] = _FIXED["acks_on_failure"]


def task_options(given: Mapping[str, Any], known: Iterable[str], where: str) -> dict[str, Any]:
    """Celery's task options of a handler, checked; those inside `celery_options` are taken out of it."""
    made = dict(given)
    more = made.pop("celery_options", None) or {}
    if not isinstance(more, Mapping):
        raise InvalidInput(f"celery_options is a dict of Celery's task options, not {more!r}")
    if twice := sorted(name for name in made.keys() & more.keys() if made[name] != more[name]):
        raise InvalidInput(f"{twice[0]} is given twice, in celery_options too: give it once")
    made.update(more)
    known = set(known)
    for name in made:
        if name in INSTEAD:
            raise InvalidInput(f"{where} does not take Celery's {name}: {INSTEAD[name]}")
        if name in RetryOptions.__optional_keys__ and name not in known:
            raise InvalidInput(f"{where} does not take {name}: calls are not retried, the caller calls again")
    check_keywords(made, known | {"celery_options"}, where)
    for name, (value, why) in _FIXED.items():
        if made.pop(name, value) is not value:
            raise InvalidInput(f"{where} takes {name}={value} alone: {why}")
    for name in ("acks_late", "reject_on_worker_lost"):
        if not isinstance(made.get(name, True), bool):
            raise InvalidInput(f"{name} is True or False, not {made[name]!r}")
    for name in ("time_limit", "soft_time_limit"):
        if made.get(name) is not None:
            seconds(made[name], name)
    return made
