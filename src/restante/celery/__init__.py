"""A drop-in Celery broker: `broker_url = "restante://localhost:6379/0"`.

Kombu's words end at this door:

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
| reject(requeue=True) | nack with delay 0: keeps priority and place, counts an attempt |
| reject(requeue=False), undecodable | bury, or the queue's dead-letter exchange |
| delivery_limit, x-delivery-limit | max_attempts |
| restore at shutdown | release |
| fanout and topic exchanges | a copy per queue; a broadcast stream for queues that come and go |

On failure: what Celery can mend by connecting anew is a connection error; what it cannot is a typed error that names
the remedy.
"""

from __future__ import annotations

from restante.core.extras import needs_extra

with needs_extra("celery", "restante.celery"):
    import kombu_restante  # noqa: F401 - makes the URL schemes known
    from restante.celery.transport import Transport
    from restante.celery.unroutable import Unroutable
    from restante.celery.worker import install

__all__ = ["Transport", "Unroutable", "install"]
