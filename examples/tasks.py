"""Tasks of a shop: `python -m examples.tasks` sends and handles them; `restante consume examples.tasks` also handles.

Shows checked arguments, options of tasks and sends, a unique task, a batch, and a message as another language sends it.
"""

from __future__ import annotations

from datetime import date

import restante
from restante import Consumer, InvalidArguments, LeasedMessage

client = restante.connect()
work = client.queue("work", max_attempts=3, retry=restante.fixed(0, 0.5))


@work.task
def ship(order: int, express: bool = False) -> None:
    """Ships an order; tells the customer, once however often it is told to."""
    print(f"shipping order {order} {'by air' if express else 'by post'}")
    notify.send(order=order)


@work.task(unique="order", priority=10)
async def notify(order: int) -> None:
    """Tells the customer. A second call for an order that still waits is not stored."""
    print(f"telling the customer of order {order}")


@work.task(kind="order.invoiced", max_attempts=2)
def invoice(message: LeasedMessage, order: int, due: date | None = None) -> None:
    """Writes an invoice. The printer fails at the first attempt: the exception leads to a second one."""
    if message.attempts == 1:
        raise ConnectionError("the printer does not answer")
    print(f"invoicing order {order} at attempt {message.attempts}, due {due or 'now'}")


def main() -> None:
    """Sends some calls, shows what is refused, and handles everything."""
    ship.send(order=1)
    ship.using(priority=100).send(2, express=True)
    work.send_many([ship.draft(3), invoice.draft(order=3, due=date(2030, 1, 31))])
    work.send({"order": 4, "due": "2030-02-28"}, kind="order.invoiced")  # as another language sends it
    try:
        ship.send(order="5")  # type: ignore[arg-type]  # a type checker reports it too
    except InvalidArguments as error:
        print(f"refused: {error}")
    consumer = Consumer([work], concurrency=2, stop_when_empty=True)
    consumer.run()
    client.close()
    print(f"{consumer.handled} handled, {consumer.failed} failed and retried")


if __name__ == "__main__":
    main()
