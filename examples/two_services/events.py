"""What both services know: the events and calls between them."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel

from restante.bus import Event


class OrderPaid(Event, topic="shop.order.paid", version="1"):
    """Somebody has paid."""

    order: int
    amount: Decimal


class Quote(BaseModel):
    """What a call for a price answers."""

    sku: str
    price: Decimal


class AskPrice(Event, topic="shop.price.ask", response=Quote):
    """What something costs."""

    sku: str
