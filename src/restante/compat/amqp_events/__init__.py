"""The API of celery-amqp-events: a program written for it runs with `amqp_events` in its imports changed to
`restante.compat.amqp_events`, on RabbitMQ or, if `broker_url` says so, on Redis.

| celery-amqp-events | Restante |
|---|---|
| `events_app("billing", imports=…, broker_url=…)`, `EventsCelery` | `Bus("billing", broker_url)`; other keywords are Celery settings |
| `@app.event("order.paid")` | an `Event`: calling it runs the body, then publishes its arguments, and returns the event's ID |
| `@app.handler("order.paid")`, `@an_event.handler`, `bind=True` | `Bus.subscribe("order.paid", name="order-paid")` |
| a class of `celery.Task` as a handler, its `max_retries` and so on | the base class of the subscription's task |
| arguments spread over the handler | data `{"number": 4}`; the header `restante_positional` counts the positional arguments |
| types that Kombu's JSON supports (Decimal, datetime, UUID, bytes) | unchanged |
| queue `billing.order.paid` | queue `billing.order-paid` |
| `AMQP_EVENTS_MAX_RETRIES` (10) | `max_attempts` (11), delays 1, 2, 4 … seconds on the ladder |
| `AMQP_EVENTS_ARCHIVED_MESSAGE_TTL`, `AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH` | `archive_seconds`, `archive_length`; both 0: no archive |
| queue and exchange `billing:archived` | queue `billing.archive`; on Redis the dead messages of a subscription |
| exchanges `billing:retry.N`, `billing:recover` | the ladder |
| no result backend, late acks, confirms | the same |

In addition, `store="redis://…"` keeps records for RabbitMQ, so that an event delivered twice runs once. On failure: bad
settings and unknown keywords raise `InvalidInput` with the nearest name; a failed validation publishes nothing.
"""  # noqa: E501 - a table
