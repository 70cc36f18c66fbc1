"""The sample app of the tests. Each task writes one JSON line about its run to a ledger outside the broker."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject
from kombu import Exchange, Queue

import restante.celery
from tests.harness.ledger import note


def make_app(told: dict[str, Any]) -> Celery:
    made = Celery("shop", broker=told["broker"], backend=told["backend"])
    made.conf.broker_transport_options = told["options"]
    made.conf.worker_hijack_root_logger = False
    made.conf.update(told["conf"])
    if told["bind"]:
        made.conf.task_queues = [
            Queue(name, Exchange(exchange, "topic"), routing_key=key) for name, (exchange, key) in told["bind"].items()
        ]
    if told.get("dead_letter_to"):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": told["dead_letter_to"]}
        made.conf.task_queues = [Queue("lettered", queue_arguments=arguments)]
    if told["broker"].startswith("restante") and told.get("install", True):
        restante.celery.install(made, dead_letters=told.get("dead_letters", True))
    return made


app = make_app(json.loads(os.environ["SHOP"])) if "SHOP" in os.environ else Celery("shop", set_as_current=False)


@app.task(name="shop.add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="shop.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="shop.note", bind=True)
def written(self: Any, number: Any = None, seconds: float = 0.0) -> None:
    note("begun", number=number, id=self.request.id)
    time.sleep(seconds)
    info = self.request.delivery_info
    note(
        "done",
        number=number,
        id=self.request.id,
        redelivered=info.get("redelivered"),
        count=getattr(self.request, "x-delivery-count", None) or (self.request.headers or {}).get("x-delivery-count"),
    )


@app.task(name="shop.flaky", bind=True, max_retries=5)
def flaky(self: Any, fails: int, countdown: float) -> str:
    note("tried", number=self.request.retries)
    if self.request.retries < fails:
        raise self.retry(countdown=countdown)
    return "ok"


@app.task(name="shop.auto", autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0.2, max_retries=2)
def auto() -> None:
    note("tried")
    raise KeyError("price")


@app.task(name="shop.reject", bind=True)
def reject(self: Any, requeue: bool) -> None:
    note("rejecting", id=self.request.id)
    raise Reject("no", requeue=requeue)


@app.task(name="shop.die", bind=True)
def die(self: Any, times: int) -> str:
    """Kills its own process, as a crash in C does, on its first runs."""
    note("dying", id=self.request.id)
    lines = Path(os.environ["LEDGER"]).read_text().splitlines()
    if len([line for line in lines if self.request.id in line and "dying" in line]) <= times:
        os.kill(os.getpid(), 9)
    note("survived", id=self.request.id)
    return "alive"


@app.task(name="shop.limited", rate_limit="5/s")
def limited(number: int) -> None:
    note("limited", number=number)


@app.task(name="shop.slow", time_limit=1)
def slow() -> None:
    note("slow")
    time.sleep(30)


@app.task(name="shop.fail", bind=True)
def fail(self: Any, times: int = 1_000_000) -> str:
    """Fails on its first runs."""
    note("failing", id=self.request.id)
    lines = Path(os.environ["LEDGER"]).read_text().splitlines()
    if len([line for line in lines if self.request.id in line and "failing" in line]) <= times:
        raise LookupError("no such lamp")
    return "found"


@app.task(name="shop.fail_quietly", dead_letters=False)
def fail_quietly() -> None:
    raise LookupError("nobody keeps this one")


@app.task(name="shop.fail_acked", acks_on_failure=True)
def fail_acked() -> None:
    raise LookupError("acked by its own choice")


@app.task(name="shop.fail_early", acks_late=False)
def fail_early() -> None:
    raise LookupError("acked before it ran")


@app.task(name="shop.fail_kept", dead_letters=True)
def fail_kept() -> None:
    raise LookupError("kept by its own choice")


@app.task(name="shop.ignore")
def ignore() -> None:
    raise Ignore()


@app.task(name="shop.slow_softly", soft_time_limit=1)
def slow_softly() -> None:
    time.sleep(30)


@app.task(name="shop.errback")
def errback(id: str) -> None:
    note("errback", id=id)


@app.task(name="shop.eta", bind=True)
def eta(self: Any) -> tuple[Any, float]:
    return self.request.eta, time.time()


@app.task(name="shop.noop")
def noop() -> None:
    pass
