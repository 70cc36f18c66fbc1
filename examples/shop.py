"""A small shop: `python -m examples.shop` places orders, `restante consume examples.shop:orders` ships them.

Both find the same embedded server as long as they run in the same directory; with RESTANTE_URL, the server it names.
"""

from __future__ import annotations

import random

import restante
from restante import LeasedMessage

post = restante.connect()
orders = post.queue("orders", lease=10, max_attempts=4, retry=restante.exponential(0.1, cap=5))
receipts = post.queue("receipts", keep_done=100)


@orders.handler(kind="order.placed")
def ship(message: LeasedMessage) -> None:
    """Packs an order. The stock service is away now and then: the exception leads to another attempt, later."""
    if random.random() < 0.2:
        raise ConnectionError("the stock service does not answer")
    # The id makes it harmless that an order may be packed twice: one receipt is stored.
    receipts.send({"order": message.payload["order"]}, id=f"receipt-{message.id}")
    print(f"shipped order {message.payload['order']} at attempt {message.attempts}")


@orders.handler(kind="order.cancelled")
async def cancel(message: LeasedMessage) -> None:
    """A coroutine is a handler like any other."""
    print(f"cancelled order {message.payload['order']}")


@receipts.handler
def write(message: LeasedMessage) -> None:
    """Writes a receipt."""
    print(f"receipt for order {message.payload['order']}")


def main() -> None:
    """Places a few orders and says what waits."""
    for number in range(1, 9):
        valued = number % 4 == 0
        orders.send({"order": number}, kind="order.placed", priority=200 if valued else 0, headers={"shop": "corner"})
    orders.send({"order": 3}, kind="order.cancelled", delay=0.2)
    counts = restante.Admin(post).counts("orders")
    print(f"{counts.ready} ready, {counts.scheduled} scheduled; now run: restante consume examples.shop:orders")
    post.close()


if __name__ == "__main__":
    main()
