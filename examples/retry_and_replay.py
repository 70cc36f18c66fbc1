"""A bank that is away: payments fail, are tried again, die, and are replayed once it is back.

Run it as `python -m examples.retry_and_replay`; it ends by itself.
"""

from __future__ import annotations

import logging

import restante
from restante import Admin, Consumer, LeasedMessage, State


def main() -> None:
    logging.disable(logging.WARNING)  # the consumer reports every failure; here they are meant
    bank = {"open": False}
    with restante.connect() as post:
        payments = post.queue("payments", max_attempts=3, retry=restante.fixed(0.05, 0.1))
        admin = Admin(post, operator="example")

        @payments.handler
        def pay(message: LeasedMessage) -> None:
            if message.payload["amount"] < 0:
                message.bury(error="an amount below zero cannot be paid")  # no repetition mends this
            elif not bank["open"]:
                raise TimeoutError("the bank does not answer")

        payments.send_many([{"amount": amount} for amount in (10, 20, -5, 40)], kind="payment")
        while (counts := admin.counts("payments")).waiting:
            Consumer([payments], stop_when_empty=True).run()
        print(f"the bank is away: {counts.dead} dead after {counts.totals['received']} deliveries")

        for letter in admin.walk("payments", State.DEAD):
            history = admin.show("payments", letter.id).history
            print(f"  {letter.id} {[f'{one.attempt}: {one.error_class}' for one in history]}")

        bank["open"] = True
        would = admin.replay("payments", error_class="TimeoutError", dry_run=True)
        done = admin.replay("payments", error_class="TimeoutError", rate=1000)
        Consumer([payments], stop_when_empty=True).run()
        counts = admin.counts("payments")
        print(f"replayed {done.replayed} of {would.replayed} that timed out: {counts.totals['acked']} paid")
        print(f"left among the dead: {counts.dead}, for a person to look at")


if __name__ == "__main__":
    main()
