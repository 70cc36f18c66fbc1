"""Mail: hears of everything that happens to orders. `celery -A examples.two_services.mail worker`"""

from __future__ import annotations

import os
from typing import Any

from restante import Bus, no_retry
from restante.bus import Envelope

bus = Bus("mail", os.environ.get("BROKER"), store=os.environ.get("STORE"))
bus.conf.worker_redirect_stdouts = False  # what is printed goes to the terminal, not to the log


@bus.subscribe("shop.order.*")
def tell_customer(data: dict[str, Any], about: Envelope) -> None:
    print(f"mail: {about.topic} of order {data['order']}, from {about.source}", flush=True)


@bus.subscribe("shop.order.paid", retry=no_retry())
def count(data: dict[str, Any]) -> None:
    raise ValueError(f"order {data['order']} has no customer")
