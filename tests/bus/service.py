"""A service of the tests, as `celery -A` finds it: told by the environment who it is and what it does.

Handlers write what they did to a ledger outside the broker: one JSON line, one write.
"""

from __future__ import annotations

import json
import os
import signal
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

from celery.exceptions import Reject

from restante import RetryPolicy, fixed
from restante.bus import Bus, Envelope, Event
from restante.core.errors import Declined
from tests.harness.ledger import note


class Paid(Event, topic="shop.order.paid", version="2"):
    """A sample event."""

    order: int
    amount: Decimal = Decimal("0.10")


class Price(Event, topic="shop.price.get", response=Decimal, error=dict[str, str]):
    """A sample call."""

    sku: str


def make(told: dict[str, Any]) -> Bus:
    """The service `told["service"]` with the handlers it asks for."""
    options = dict(told.get("options", {}))
    if "retry" in options:
        options["retry"] = RetryPolicy.parse(options["retry"])
    made = Bus(told["service"], told["broker"], **options)
    made.conf.worker_hijack_root_logger = False
    made.conf.update(told.get("conf", {}))
    wanted = set(told.get("handlers", ()))

    def written(name: str, data: Any, envelope: Envelope, **more: Any) -> None:
        note(
            name,
            service=made.service,
            id=envelope.id,
            topic=envelope.topic,
            source=envelope.source,
            data=data,
            attempts=envelope.attempts,
            **more,
        )

    if "paid" in wanted:

        @made.subscribe("shop.order.paid")
        def paid(data: Any, envelope: Envelope) -> None:
            written("paid", data, envelope)

    if "typed" in wanted:

        @made.subscribe(Paid)
        def typed(event: Paid) -> None:
            written("typed", {"order": event.order, "amount": str(event.amount)}, event.envelope)

    if "every" in wanted:

        @made.subscribe("shop.#")
        async def every(data: Any, envelope: Envelope) -> None:
            written("every", data, envelope)

    if "slow" in wanted:

        @made.subscribe("shop.slow")
        def slow(data: dict[str, Any], envelope: Envelope) -> None:
            written("begun", data, envelope)
            while data.get("hold") and not Path(os.environ["LEDGER"]).with_suffix(".mended").exists():
                time.sleep(0.02)
            time.sleep(data.get("seconds", 0.05))
            written("slow", data, envelope)

    if "failing" in wanted:

        @made.subscribe("shop.order.*", retry=fixed(*told.get("delays", (1, 2, 4))), name="failing")
        def failing(data: Any, envelope: Envelope) -> None:
            mended = Path(os.environ["LEDGER"]).with_suffix(".mended").exists()
            written("failing", data, envelope, mended=mended)
            if not mended:
                raise ConnectionError("the carrier is away")

    if "celery_style" in wanted:

        @made.subscribe(
            "shop.celery", autoretry_for=(KeyError,), retry_backoff=1, retry_jitter=False, max_retries=2, bind=True
        )
        def celery_style(self: Any, data: Any, envelope: Envelope) -> None:
            written("celery_style", data, envelope, retries=self.request.retries)
            if data == "retry":
                raise self.retry(countdown=0.5)
            if data in ("reject", "again"):
                raise Reject(data, requeue=data == "again")
            raise KeyError(data) if data == "key" else OSError(data)

    if "killer" in wanted:

        @made.subscribe("shop.killer", max_attempts=3, retry=fixed(0.2, 0.2))
        def killer(data: Any, envelope: Envelope) -> None:
            written("killer", data, envelope)
            os.kill(os.getpid(), signal.SIGKILL)

    if "limit" in wanted:

        @made.subscribe("shop.limit", time_limit=1, max_attempts=2, retry=fixed(0.2))
        def limit(data: Any, envelope: Envelope) -> None:
            written("limit", data, envelope)
            time.sleep(60)

    if "early" in wanted:

        @made.subscribe("shop.early", celery_options={"acks_late": False}, retry=fixed(0.2, 0.2))
        def early(data: Any, envelope: Envelope) -> None:
            mended = Path(os.environ["LEDGER"]).with_suffix(".mended").exists()
            written("early", data, envelope)
            if data == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if data == "wait":
                time.sleep(60)
            if data == "fail" and not mended:
                raise ConnectionError("the carrier is away")

    if "celery_options" in wanted:

        @made.subscribe("shop.fragile", reject_on_worker_lost=False, retry=fixed(0.2, 0.2))
        def fragile(data: Any, envelope: Envelope) -> None:
            written("fragile", data, envelope)
            os.kill(os.getpid(), signal.SIGKILL)

        @made.subscribe("shop.limited", rate_limit="2/s")
        def limited(data: Any, envelope: Envelope) -> None:
            written("limited", data, envelope)

        @made.subscribe("shop.soft", soft_time_limit=1, acks_late=False, max_retries=1, default_retry_delay=0.2)
        def soft(data: Any, envelope: Envelope) -> None:
            written("soft", data, envelope)
            time.sleep(60)

        @made.subscribe("shop.hard", time_limit=1, acks_late=False, max_retries=1, default_retry_delay=0.2)
        def hard(data: Any, envelope: Envelope) -> None:
            written("hard", data, envelope)
            time.sleep(60)

    if "price" in wanted:

        @made.answer(Price)
        def price(call: Price) -> Decimal:
            if call.sku == "none":
                raise Declined({"reason": "sold out"})
            if call.sku == "error":
                raise RuntimeError("the shelf fell over")
            if call.sku == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if call.sku.startswith("slow"):
                note("priced", service=made.service, sku=call.sku)
                time.sleep(float(call.sku[4:] or 1))
            note("price", service=made.service, sku=call.sku)
            return Decimal("10.10")

    return made


bus = make(json.loads(os.environ["SERVICE"])) if "SERVICE" in os.environ else None
