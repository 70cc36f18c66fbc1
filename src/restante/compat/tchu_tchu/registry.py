"""Registers the handlers of this process with its buses; on failure raises SubscriptionError.

A handler may be registered before or after the set-up of an app, so the registry connects each handler with each bus.
There is one registry per process, because tchu-tchu's decorators do not name an app.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from restante.bus.app import Bus
from restante.bus.options import TaskOptions
from restante.compat.tchu_tchu.utils.error_handling import SubscriptionError, TchuRPCException
from restante.compat.tchu_tchu.utils.json_encoder import dumps_message, loads_message
from restante.core.errors import Declined, InvalidInput
from restante.core.keywords import check_keywords
from restante.core.topics import as_word, is_topic, valid_pattern

log = logging.getLogger("restante")

#: The options of a Celery task that affect a handler; others, such as a queue's name, would have no effect.
_TASK_OPTIONS = TaskOptions.__optional_keys__ | {"countdown"}
#: Celery's defaults: no automatic retry; with `autoretry_for` three.
_DEFAULTS: dict[str, Any] = {"autoretry_for": (), "max_retries": 3}


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered handler."""

    routing_key: str
    id: str
    name: str
    function: Callable[[Any], Any]
    options: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


class Registry:
    """Handlers in the order they were registered."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._buses: list[Bus] = []

    def register(
        self,
        routing_key: str,
        id: str,
        name: str,
        function: Callable[[Any], Any],
        celery_options: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Registers a handler with every bus of the process; refuses a second handler with the same ID and key."""
        options = dict(celery_options or {})
        try:
            valid_pattern(routing_key)
            check_keywords(options, _TASK_OPTIONS, "celery_options")
        except InvalidInput as error:
            raise SubscriptionError(str(error)) from None
        if "countdown" in options:
            options.setdefault("default_retry_delay", options.pop("countdown"))
        entry = Entry(routing_key, id, name, function, {**_DEFAULTS, **options}, dict(metadata or {}))
        if any((other.id, other.routing_key) == (id, routing_key) for other in self.entries):
            raise SubscriptionError(f"{id} handles {routing_key} already: give the second one another handler_id")
        self.entries.append(entry)
        for bus in self._buses:
            _attach(bus, entry)
        return id

    def attach(self, bus: Bus) -> None:
        """Registers all present and future handlers with a bus."""
        self._buses.append(bus)
        for entry in self.entries:
            _attach(bus, entry)

    def keys(self) -> list[str]:
        """Every routing key that has a handler, once."""
        return list(dict.fromkeys(entry.routing_key for entry in self.entries))


def _attach(bus: Bus, entry: Entry) -> None:
    word = as_word(entry.id)
    if f"{bus.service}.{word}" in bus.subscriptions:  # a function may handle several keys
        word = as_word(f"{entry.id}.{entry.routing_key}".replace("*", "any").replace("#", "all"))
    bus.subscribe(entry.routing_key, name=word, **entry.options)(_event(entry))
    # A call has entry reply: that of the first handler, as in tchu-tchu.
    if is_topic(entry.routing_key) and entry.routing_key not in bus.answered:
        bus.answer(entry.routing_key, name=as_word(f"call.{entry.id}.{entry.routing_key}"))(_answer(entry))


def _event(entry: Entry) -> Callable[[Any], Any]:
    def handle(data: Any) -> Any:
        try:
            return entry.function(data)
        except TchuRPCException as refusal:
            # No caller waits for a reply, and a refusal is not retried.
            log.warning("declined handler=%s code=%s error=%s", entry.id, refusal.code, refusal)
            return None

    return handle


def _answer(entry: Entry) -> Callable[[Any], Any]:
    def answer(data: Any) -> Any:
        try:
            return loads_message(dumps_message(entry.function(data)))
        except TchuRPCException as refusal:
            raise Declined(loads_message(dumps_message(refusal.to_response_dict()))) from refusal

    return answer


_registry = Registry()


def get_registry() -> Registry:
    """The registry of this process."""
    return _registry
