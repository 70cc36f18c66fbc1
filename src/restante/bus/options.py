"""The keywords of the bus's functions: for type checkers, and to refuse unknown ones before anything is sent."""

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
    """Options of `publish_many`: `delay` and `expires` in seconds, `priority` 0–255."""

    delay: float | timedelta
    priority: int
    expires: float | timedelta | None
    headers: Mapping[str, Any] | None


class PublishOptions(ManyOptions, total=False):
    """Options of `publish`: those of `publish_many`, the event's `id`, and what to do if no service has subscribed."""

    id: str | None
    unrouted: Unrouted


class CallOptions(TypedDict, total=False):
    """Options of a call: its timeout and the caller's own headers."""

    timeout: float | timedelta
    headers: Mapping[str, Any] | None


class LadderOptions(TypedDict, total=False):
    """The ladder on which delayed events wait on RabbitMQ; as in the services' own `Bus(rabbitmq={…})`."""

    rungs: RungType
    longest_delay: float


class RabbitOptions(LadderOptions, total=False):
    """A client's options for RabbitMQ."""

    patience: float


class ConnectionOptions(RabbitOptions, total=False):
    """A client's options for its broker: `RabbitOptions` on RabbitMQ; those below and `patience` on Redis."""

    connect_timeout: float
    socket_timeout: float
    allow_eviction: bool
    idle_connections: int


class RetryOptions(TypedDict, total=False):
    """Celery's options of retries, which become the handler's retry rule."""

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

    The flags after `acks_late` accept only the value that holds anyway.
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


#: Celery's task options that have no meaning for a handler, and what to do instead.
INSTEAD = {
    **dict.fromkeys(
        ("queue", "exchange", "exchange_type", "routing_key", "delivery_mode"),
        "a handler's queue is its own, service.handler: give name= for another",
    ),
    **dict.fromkeys(
        ("priority", "expires", "countdown", "eta", "compression"), "the publisher sets it: publish(…, priority=, …)"
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
#: Flags that have one allowed value, and why.
_FIXED = {
    "ignore_result": (True, "an event has no result, and a call's goes to its caller"),
    "acks_on_failure": (False, "a failed event is retried and then dead; for one attempt give max_attempts=1"),
}
_FIXED["acks_on_failure_or_timeout"] = _FIXED["acks_on_timeout"] = _FIXED["acks_on_failure"]


def task_options(given: Mapping[str, Any], known: Iterable[str], where: str) -> dict[str, Any]:
    """Checks Celery's task options of a handler, and merges those inside `celery_options`."""
    options = dict(given)
    more = options.pop("celery_options", None) or {}
    if not isinstance(more, Mapping):
        raise InvalidInput(f"celery_options is a dict of Celery's task options, not {more!r}")
    if twice := sorted(name for name in options.keys() & more.keys() if options[name] != more[name]):
        raise InvalidInput(f"{twice[0]} is given twice, in celery_options too: give it once")
    options.update(more)
    known = set(known)
    for name in options:
        if name in INSTEAD:
            raise InvalidInput(f"{where} does not take Celery's {name}: {INSTEAD[name]}")
        if name in RetryOptions.__optional_keys__ and name not in known:
            raise InvalidInput(f"{where} does not take {name}: calls are not retried, the caller calls again")
    check_keywords(options, known | {"celery_options"}, where)
    for name, (value, why) in _FIXED.items():
        if options.pop(name, value) is not value:
            raise InvalidInput(f"{where} takes {name}={value} alone: {why}")
    for name in ("acks_late", "reject_on_worker_lost"):
        if not isinstance(options.get(name, True), bool):
            raise InvalidInput(f"{name} is True or False, not {options[name]!r}")
    for name in ("time_limit", "soft_time_limit"):
        if options.get(name) is not None:
            seconds(options[name], name)
    return options
