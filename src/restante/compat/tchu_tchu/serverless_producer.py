"""Publishes from short-lived processes without a Celery app; on failure raises PublishError."""

from __future__ import annotations

from typing import Any, Self

from restante.bus.client import BusClient
from restante.compat.tchu_tchu.producer import published
from restante.core.errors import InvalidInput


class ServerlessProducer:
    """Publishes over its own connection, which the first event opens."""

    def __init__(self, broker_url: str, exchange_name: str = "tchu_events", connection_timeout: float = 10) -> None:
        if exchange_name != "tchu_events":
            raise InvalidInput("exchange_name cannot be changed: to separate environments, give each a virtual host")
        self.broker_url = broker_url
        self.connection_timeout = connection_timeout
        self._client: BusClient | None = None

    def _opened(self) -> BusClient:
        if self._client is None:
            self._client = BusClient(self.broker_url, source="serverless", patience=float(self.connection_timeout))
        return self._client

    def publish(
        self, routing_key: str, body: Any, content_type: str = "application/json", delivery_mode: int = 2, **kwargs: Any
    ) -> str:
        """Publishes an event to all services; returns its ID."""
        return published(self._opened, routing_key, body, content_type, delivery_mode, kwargs)

    def close(self) -> None:
        """Closes the connection; a later event opens it again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerlessClient:
    """Publishes as `TchuClient` does, for processes without a Celery app."""

    def __init__(self, broker_url: str, exchange_name: str = "tchu_events", connection_timeout: float = 10) -> None:
        self.producer = ServerlessProducer(broker_url, exchange_name, connection_timeout)

    def publish(self, topic: str, data: Any, **kwargs: Any) -> None:
        """Publishes an event to all services."""
        self.producer.publish(topic, data, **kwargs)

    def close(self) -> None:
        """Closes the connection."""
        self.producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
