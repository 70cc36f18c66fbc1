"""Billing: writes invoices for what was paid, and knows the prices. `celery -A examples.two_services.billing worker`"""

from __future__ import annotations

import os
from decimal import Decimal

from examples.two_services.events import AskPrice, OrderPaid, Quote
from restante import Bus, Declined, fixed

bus = Bus("billing", os.environ.get("BROKER"), store=os.environ.get("STORE"))
bus.conf.worker_redirect_stdouts = False  # what is printed goes to the terminal, not to the log


@bus.subscribe(OrderPaid, retry=fixed(0.2, 0.5, 1))
def write_invoice(event: OrderPaid) -> None:
    if event.envelope.attempts < 3:
        raise ConnectionError("the printer is warming up")  # waits at the broker, for this handler alone
    print(
        f"billing: invoice for order {event.order} over {event.amount}, attempt {event.envelope.attempts}", flush=True
    )


@bus.answer(AskPrice)
def price(call: AskPrice) -> Quote:
    if call.sku == "unicorn":
        raise Declined({"reason": "not for sale"})  # an answer, not a failure
    return Quote(sku=call.sku, price=Decimal("19.90"))
