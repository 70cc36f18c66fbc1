"""The sample shop's services on the event bus: a warehouse and a loyalty programme, which subscribe to orders.

Each is an ordinary Celery worker; the other processes do not know them.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from pydantic import BaseModel

from restante import RestanteError, fixed
from restante.bus import Bus, BusClient, Event

#: Calls per second that ask the warehouse.
CALLS_PER_SECOND = 2.0


class OrderPaid(Event, topic="shop.order.paid", version="1"):
    """An order was paid."""

    order: int
    total: float


class Stock(BaseModel):
    """The reply of the warehouse."""

    sku: str
    pieces: int


class AskStock(Event, topic="shop.stock.ask", response=Stock):
    """Asks how many pieces are in stock."""

    sku: str


class ShelfEmpty(Exception):
    """The pieces have not been delivered yet; a retry may succeed."""


class CardLost(Exception):
    """The customer has no card any more; a retry does not help."""


def warehouse(url: str) -> Bus:
    """Packs paid orders, counts all events of orders, and answers calls about the stock."""
    bus = Bus("warehouse", url, retry=fixed(1, 3, 6))

    @bus.subscribe(OrderPaid)
    def pack(event: OrderPaid) -> None:
        time.sleep(random.uniform(0.01, 0.1))
        if random.random() < 0.12:
            raise ShelfEmpty(f"order {event.order} waits for a delivery")

    @bus.subscribe("shop.order.*")
    def count(data: Any) -> None:
        time.sleep(0.002)

    @bus.answer(AskStock)
    def stock(call: AskStock) -> Stock:
        time.sleep(random.expovariate(1 / 0.01))
        return Stock(sku=call.sku, pieces=random.randint(0, 40))

    return bus


def loyalty(url: str) -> Bus:
    """Awards points for paid orders, and apologises for declined ones."""
    bus = Bus("loyalty", url, retry=fixed(2))

    @bus.subscribe(OrderPaid)
    def award(event: OrderPaid) -> None:
        time.sleep(random.uniform(0.005, 0.03))
        if event.order % 60 == 7:
            raise CardLost(f"no card for order {event.order}")

    @bus.subscribe("shop.order.declined", name="apologise")
    def apologise(data: dict[str, Any]) -> None:
        time.sleep(random.uniform(0.01, 0.05))

    return bus


def ask(url: str, stop: threading.Event) -> None:
    """Calls the warehouse about its stock, as customers do."""
    with BusClient(url, source="website") as client:
        while not stop.wait(random.expovariate(CALLS_PER_SECOND)):
            try:
                client.call(AskStock(sku=f"s{random.randint(1, 50)}"), timeout=2)
            except RestanteError:
                pass  # the warehouse has not started yet, or stops


#: Role → function that creates its bus.
SERVICES = {"warehouse": warehouse, "loyalty": loyalty}
