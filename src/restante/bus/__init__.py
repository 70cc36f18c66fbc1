"""Events and calls between services, the same on Redis and on RabbitMQ; handlers are Celery tasks.

The words of the systems that it replaces, and Restante's own:

| there | Restante |
|---|---|
| event, routing key | topic |
| binding, a service's handler | subscription |
| celery_options, autoretry_for, retry_backoff, max_retries | retry policy and task options |
| rpc, the is_rpc flag | call: a message with a reply address |
| service, app name | service |
| task id, to skip duplicates | a record of (event id, subscription) |
| archive | dead |

On failure: bad input raises before anything is sent, the broker keeps the event of a failed handler, and events that
cannot be delivered are kept where an operator finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from restante.core.extras import needs_extra

with needs_extra("bus", "restante.bus"):
    from restante.bus.batch import Publishing
    from restante.bus.broker import Answer, Published
    from restante.bus.client import AsyncBusClient, BusClient
    from restante.bus.envelope import Envelope
    from restante.bus.schema import Event

if TYPE_CHECKING:
    from restante.bus.app import Bus

__all__ = ["Answer", "AsyncBusClient", "Bus", "BusClient", "Envelope", "Event", "Published", "Publishing"]


def __getattr__(name: str) -> Any:
    """Imports `Bus` on first use: it needs Celery, which publishers do not need and must not pay for."""
    if name == "Bus":
        with needs_extra("bus", "restante.Bus"):
            from restante.bus.app import Bus

        return Bus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
