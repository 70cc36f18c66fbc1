"""The API of tchu-tchu 3: a program written for it runs with `tchu_tchu` in its imports changed to
`restante.compat.tchu_tchu`, on RabbitMQ or, if its broker URL says so, on Redis.

| tchu-tchu | Restante |
|---|---|
| `TchuClient().publish(topic, data)` | `BusClient.publish`; with `countdown`, `priority` and `expires` |
| `TchuClient().call(topic, data, timeout=30)` | `BusClient.call`: exactly one service answers |
| `@subscribe("user.created", celery_options={…})` | `Bus.subscribe` and, for a topic without wildcards, `Bus.answer` |
| `class UserCreated(TchuEvent)` with `Meta`, `.get()`, `[]`, `in` | the same class; a handler gets an instance |
| request, response and error serializers | the same: Django REST framework's, or pydantic models |
| no `celery_options` | one attempt, then dead; with `autoretry_for` by default Celery's three retries after 180 s |
| `Celery(…).message_broker(queue_name="users")`, `setup_celery_queue`, `create_topic_dispatcher` | the app becomes the `Bus` of the service `users` |
| `result_backend = "redis://…"`, `result_expires` | on RabbitMQ `store`, and `dedup`: the same event runs once per handler |
| `ServerlessClient(broker_url=…)` | `restante.bus.BusClient` |
| `TchuRPCException` | `Declined`: the caller gets its response as data |
| `PublishError`, `TimeoutError`, `SerializationError` | the same names; all are errors of Restante, `TimeoutError` also Python's |
| UUID, datetime, set, bytes in data | text and lists, as in tchu-tchu; a Decimal becomes a float only if that is exact |

Not included: `tchu_tchu.django.auto_publish`, its model mixins, metrics and log formatters. On failure: unknown options
raise `SubscriptionError` or `PublishError` with the nearest name; if a handler fails, its event becomes dead.
"""  # noqa: E501 - a table

from restante.compat.tchu_tchu.client import TchuClient
from restante.compat.tchu_tchu.django import setup_celery_queue
from restante.compat.tchu_tchu.events import TchuEvent
from restante.compat.tchu_tchu.producer import CeleryProducer
from restante.compat.tchu_tchu.serverless_producer import ServerlessClient, ServerlessProducer
from restante.compat.tchu_tchu.subscriber import create_topic_dispatcher, get_subscribed_routing_keys, subscribe
from restante.compat.tchu_tchu.utils.error_handling import TchuRPCException

__all__ = [
    "CeleryProducer",
    "ServerlessClient",
    "ServerlessProducer",
    "TchuClient",
    "TchuEvent",
    "TchuRPCException",
    "create_topic_dispatcher",
    "get_subscribed_routing_keys",
    "setup_celery_queue",
    "subscribe",
]
