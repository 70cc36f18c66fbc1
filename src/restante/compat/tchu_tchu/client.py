"""tchu-tchu's client; on failure it raises the errors of `utils.error_handling`."""

from __future__ import annotations

from typing import Any

from restante.compat.tchu_tchu.producer import CeleryProducer


class TchuClient:
    """Publishes events and calls services through the broker of a Celery app. Default: the current app."""

    def __init__(self, celery_app: Any = None) -> None:
        self.producer = CeleryProducer(celery_app)

    def publish(self, topic: str, data: Any, **kwargs: Any) -> None:
        """Publishes an event to all services; takes `countdown`, `priority` and `expires`."""
        self.producer.publish(topic, data, **kwargs)

    def call(self, topic: str, data: Any, timeout: float = 30, allow_join: bool = False, **kwargs: Any) -> Any:
        """Calls the service that answers this topic; returns its reply."""
        return self.producer.call(topic, data, timeout=timeout, allow_join=allow_join, **kwargs)
