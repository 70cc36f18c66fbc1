"""The application. Nothing but the broker's URL and one call differs from any other Celery application."""

from __future__ import annotations

import os

from celery import Celery, Task

import restante.celery

app = Celery("shop", broker=os.environ.get("BROKER", "restante+embedded://"))
app.conf.broker_transport_options = {"visibility_timeout": 30, "delivery_limit": 5}
restante.celery.install(app)  # late acks: a killed worker's tasks run again; failed tasks are dead letters


@app.task
def charge(order: int) -> None:
    print(f"charged order {order}", flush=True)
    ship.apply_async((order,), countdown=0.5)  # waits on the broker, not in the worker


@app.task(bind=True, max_retries=3)
def ship(self: Task, order: int) -> None:
    if self.request.retries == 0:
        raise self.retry(countdown=0.2, exc=ConnectionError("the carrier does not answer"))
    print(f"shipped order {order} at the second try", flush=True)


@app.task
def audit(order: int) -> None:
    raise ValueError(f"order {order} has no price")
