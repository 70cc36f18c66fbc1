"""Publishes and calls through the app's bus or a client of its broker; on failure raises PublishError."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from celery import current_app

from restante.bus.app import Bus
from restante.bus.client import BusClient
from restante.bus.options import PublishOptions
from restante.compat.broker import broker_of
from restante.compat.tchu_tchu.utils import error_handling
from restante.compat.tchu_tchu.utils.error_handling import PublishError, TchuError
from restante.compat.tchu_tchu.utils.json_encoder import plain
from restante.core.errors import CallFailed, CallTimeout, Declined, InvalidInput, NoHandler, RestanteError
from restante.core.keywords import check_keywords
from restante.core.topics import as_word

#: Options of `publish`: Celery's name → the bus's name.
_OPTIONS = {"countdown": "delay", "priority": "priority", "expires": "expires"}


@functools.lru_cache(maxsize=8)
def _client(url: str, source: str) -> BusClient:
    return BusClient(url, source=source)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Converts the bus's errors to those that tchu-tchu's users catch."""
    try:
        yield
    except TchuError:
        raise
    except RestanteError as error:
        raise PublishError(f"Failed to publish message: {error}") from error


class CeleryProducer:
    """Publishes and calls through the broker of a Celery app. Default: the current app."""

    def __init__(self, celery_app: Any = None) -> None:
        self._given = celery_app

    @property
    def celery_app(self) -> Any:
        """The app, looked up at each use, because a client may be created before the app."""
        return self._given or current_app._get_current_object()

    @property
    def client(self) -> BusClient:
        """The bus's client."""
        app = self.celery_app
        # Before its set-up, a `Celery` of this package is a plain Celery app.
        if isinstance(app, Bus) and hasattr(app, "service"):
            return app.client
        return _client(broker_of(app.conf.broker_url), as_word(app.main or ""))

    def publish(
        self, routing_key: str, body: Any, content_type: str = "application/json", delivery_mode: int = 2, **kwargs: Any
    ) -> str:
        """Publishes an event to all subscriptions; returns its ID. Events are always persistent."""
        return published(lambda: self.client, routing_key, body, content_type, delivery_mode, kwargs)

    def call(
        self,
        routing_key: str,
        body: Any,
        content_type: str = "application/json",
        delivery_mode: int = 2,
        timeout: float = 30,
        allow_join: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Calls the service that answers; returns its reply. `allow_join` has no effect: calls may always be nested."""
        with translated_errors():
            _checked(content_type, delivery_mode)
            check_keywords(kwargs, ("timeout", "content_type", "delivery_mode", "allow_join"), "call")
            try:
                return self.client.call(routing_key, plain(body), timeout=timeout)
            except Declined as refusal:
                return refusal.data
            except NoHandler:
                raise PublishError(f"No handlers found for routing key '{routing_key}'") from None
            except CallTimeout:
                raise error_handling.TimeoutError(
                    f"No response received within {timeout} seconds for routing key '{routing_key}'"
                ) from None
            except CallFailed as error:
                raise PublishError(f"RPC call failed: {error}") from None


def published(
    client: Callable[[], BusClient],
    routing_key: str,
    body: Any,
    content_type: str,
    delivery_mode: int,
    options: dict[str, Any],
) -> str:
    """Publishes an event; creates the client only after the arguments are checked."""
    with translated_errors():
        _checked(content_type, delivery_mode)
        check_keywords(options, _OPTIONS, "publish")
        words = {_OPTIONS[name]: value for name, value in options.items() if value is not None}
        return client().publish(routing_key, plain(body), **cast(PublishOptions, words)).id


def _checked(content_type: str, delivery_mode: int) -> None:
    if content_type != "application/json" or delivery_mode not in (1, 2):
        raise InvalidInput("content_type must be application/json, and delivery_mode 1 or 2")
