"""`@subscribe`, and the two functions of a manual set-up; on failure raises SubscriptionError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from restante.compat.tchu_tchu.registry import get_registry
from restante.core.topics import matches

F = TypeVar("F", bound=Callable[..., Any])


def subscribe(
    routing_key: str,
    *,
    name: str | None = None,
    handler_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    celery_options: dict[str, Any] | None = None,
) -> Callable[[F], F]:
    """Registers a function as the handler of a topic or pattern, for events and calls; it gets the data."""

    def register(function: F) -> F:
        own = str(getattr(function, "__name__", type(function).__name__))
        id = handler_id or f"{function.__module__}.{own}"
        get_registry().register(routing_key, id, name or own, function, celery_options, metadata)
        return function

    return register


def get_subscribed_routing_keys(
    exclude_patterns: list[str] | None = None, celery_app: Any = None, force_import: bool = True
) -> list[str]:
    """The routing keys of all handlers except those that match a pattern; with an app, imports its modules first."""
    if celery_app is not None and force_import:
        celery_app.loader.import_default_modules()
    excluded = exclude_patterns or ()
    return [key for key in get_registry().keys() if not any(matches(pattern, key) for pattern in excluded)]  # noqa: SIM118


def create_topic_dispatcher(celery_app: Any, task_name: str = "tchu_tchu.dispatch_event") -> Any:
    """Turns the app into the bus of the service that its routes or queues name; returns it. Call it last."""
    from restante.compat.tchu_tchu.django.celery import setup_celery_queue

    routes = celery_app.conf.task_routes
    route = routes.get(task_name) if isinstance(routes, dict) else None
    queues = [queue.name for queue in celery_app.conf.task_queues or ()]
    chosen = (route or {}).get("queue") or next(iter(queues), None) or celery_app.main
    setup_celery_queue(celery_app, str(chosen), [])
    return celery_app
