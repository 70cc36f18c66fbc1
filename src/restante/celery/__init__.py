"""A drop-in Celery broker: `broker_url = "restante://localhost:6379/0"`.

Kombu's terms are translated here and appear nowhere below this room:

| Kombu, Celery | Restante |
|---|---|
| queue name, routing key | queue |
| header `task` | kind |
| body, headers | payload, headers |
| eta, countdown | due_at, on the broker |
| expires, expiration, x-message-ttl | expires |
| priority 0–255, high first | priority |
| visibility_timeout | lease |
| delivery_tag | the delivery's lease |
| redelivered, x-delivery-count | attempts > 1, attempts − 1 |
| basic_ack | ack |
| reject(requeue=True) | nack with delay 0: priority and place stay, the attempt counts |
| reject(requeue=False), undecodable | bury, or the queue's dead-letter exchange |
| delivery_limit, x-delivery-limit | max_attempts |
| restore at shutdown | release |
| fanout and topic exchanges | a copy per durable queue; a broadcast stream for transient queues |

On failure Celery gets a connection error if a reconnect can cure it, and otherwise a typed error that names the
remedy.
"""

from __future__ import annotations

from restante.core.extras import needs_extra

with needs_extra("celery", "restante.celery"):
    import kombu_restante  # noqa: F401 - registers the URL schemes
    from restante.celery.transport import Transport
    from restante.celery.unroutable import Unroutable
    from restante.celery.worker import install

__all__ = ["Transport", "Unroutable", "install"]
