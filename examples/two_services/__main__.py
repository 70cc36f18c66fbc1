"""Starts both services, publishes and calls, looks at what died, puts it back, and stops them as an operator would.

Runs on an embedded Redis, or on the broker that BROKER names (amqp://… wants STORE, a Redis, too).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from examples.two_services.events import AskPrice, OrderPaid
from restante import Declined, NoHandler, NotFound
from restante.bus import BusClient
from restante.bus.dead import dead_letters


def wait(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen")
        time.sleep(0.2)


def main() -> None:
    broker = os.environ.setdefault("BROKER", "restante+embedded://")
    with BusClient(broker, source="shop") as shop:  # no Celery in here
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "celery",
                    "-q",
                    "-A",
                    f"examples.two_services.{name}",
                    "worker",
                    "-c",
                    "2",
                    "-l",
                    "CRITICAL",
                    "-n",
                    f"{name}@example",
                ]
            )
            for name in ("billing", "mail")
        ]
        try:

            def answers() -> bool:
                try:
                    return shop.call(AskPrice(sku="lamp"), timeout=5).price == Decimal("19.90")  # type: ignore[no-any-return]
                except NoHandler:
                    return False  # the workers have not started yet

            wait(answers, "an answer")
            try:
                shop.call(AskPrice(sku="unicorn"))
            except Declined as refusal:
                print("declined:", refusal.data, flush=True)
            dead = dead_letters(broker, "mail")

            def heard() -> bool:
                try:
                    return dead.counts() is not None
                except NotFound:
                    return False

            wait(heard, "the start of mail")
            event = shop.publish(OrderPaid(order=42, amount=Decimal("19.90")))
            print("published", event.id, "to", event.subscriptions, "subscriptions", flush=True)
            wait(lambda: dead.list(), "the death of what has no customer")
            (one,) = dead.list()
            print("dead in mail:", one.subscription, one.error_class, flush=True)
            print("put back:", dead.replay(), flush=True)  # to mail alone; once its handler is mended
            time.sleep(2)
            dead.close()
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            for worker in workers:
                worker.wait(30)


if __name__ == "__main__":
    main()
