"""tchu-tchu's client."""

from __future__ import annotations

from typing import Any

from restante.compat.tchu_tchu.producer import CeleryProducer


class TchuClient:
    """Publishes events and calls services by the broker of a Celery app, the current one where none is given."""

    def __init__(self, celery_app: Any = None) -> None:
        self.producer = CeleryProducer(celery_app)

    def publish(self, topic: str, data: Any, **kwargs: Any) -> None:
        """Publishes an event to all services; `countdown`, `priority` and `expires` hold."""
        self.producer.publish(topic, data, **kwargs)

    def call(self, topic: str, data: Any, timeout: float = 30, allow_join: bool = False, **kwargs: Any) -> Any:
        """Asks the one service that answers, and returns its answer."""
        return self.producer.call(topic, data, timeout=timeout, allow_join=allow_join, **kwargs)
