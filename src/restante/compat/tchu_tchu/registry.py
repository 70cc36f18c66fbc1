"""The handlers of this process, and the buses they belong to.

Decorators register a handler before the app is set up as well as after it, so each handler meets each bus here. One
registry per process, because tchu-tchu's decorators name no app.
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

#: The options of a Celery task that mean something to a handler; others, such as a queue's name, would do nothing.
_TASK_OPTIONS = TaskOptions.__optional_keys__ | {"countdown"}
#: What a Celery task has where nothing is said: no automatic retry; with `autoretry_for` three.
_USUAL: dict[str, Any] = {"autoretry_for": (), "max_retries": 3}


@dataclass(frozen=True, slots=True)
class Entry:
    """One handler."""

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
        """Registers a handler with every bus of the process; a second one of the same ID and key is refused."""
        options = dict(celery_options or {})
        try:
            valid_pattern(routing_key)
            check_keywords(options, _TASK_OPTIONS, "celery_options")
        except InvalidInput as error:
            raise SubscriptionError(str(error)) from None
        if "countdown" in options:
            options.setdefault("default_retry_delay", options.pop("countdown"))
        made = Entry(routing_key, id, name, function, {**_USUAL, **options}, dict(metadata or {}))
        if any((one.id, one.routing_key) == (id, routing_key) for one in self.entries):
            raise SubscriptionError(f"{id} handles {routing_key} already: give the second one another handler_id")
        self.entries.append(made)
        for bus in self._buses:
            _attach(bus, made)
        return id

    def attach(self, bus: Bus) -> None:
        """Gives a bus all handlers there are, and those to come."""
        self._buses.append(bus)
        for one in self.entries:
            _attach(bus, one)

    def keys(self) -> list[str]:
        """Every routing key that has a handler, once."""
        return list(dict.fromkeys(one.routing_key for one in self.entries))


def _attach(bus: Bus, one: Entry) -> None:
    word = as_word(one.id)
    if f"{bus.service}.{word}" in bus.subscriptions:  # one function may handle several keys
        word = as_word(f"{one.id}.{one.routing_key}".replace("*", "any").replace("#", "all"))
    bus.subscribe(one.routing_key, name=word, **one.options)(_event(one))
    # A call has one answer: the first handler's, as there.
    if is_topic(one.routing_key) and one.routing_key not in bus.answered:
        bus.answer(one.routing_key, name=as_word(f"call.{one.id}.{one.routing_key}"))(_answer(one))


def _event(one: Entry) -> Callable[[Any], Any]:
    def handle(data: Any) -> Any:
        try:
            return one.function(data)
        except TchuRPCException as refusal:
            # Nobody waits for an answer, and it is none of the errors that are tried again.
            log.warning("declined handler=%s code=%s error=%s", one.id, refusal.code, refusal)
            return None

    return handle


def _answer(one: Entry) -> Callable[[Any], Any]:
    def answer(data: Any) -> Any:
        try:
            return loads_message(dumps_message(one.function(data)))
        except TchuRPCException as refusal:
            raise Declined(loads_message(dumps_message(refusal.to_response_dict()))) from refusal

    return answer


_registry = Registry()


def get_registry() -> Registry:
    """The registry of this process."""
    return _registry
