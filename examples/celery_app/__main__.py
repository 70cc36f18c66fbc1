"""Starts a worker, sends some tasks, waits until they are done, and stops it as an operator would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import restante
from restante import Admin, State


def main() -> None:
    with restante.connect() as post:  # keeps the embedded server while worker and sender come and go
        os.environ["BROKER"] = "restante+embedded://"
        from examples.celery_app.app import audit, charge

        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "examples.celery_app.app", "worker", "-c", "2", "-l", "WARNING"]
        )
        try:
            for order in (1, 2, 3):
                charge.apply_async((order,), priority=100 + order)  # high first
            audit.delay(4)
            admin, deadline = Admin(post), time.monotonic() + 60
            while (done := admin.counts("celery")).totals["acked"] < 9 or done.waiting or not done.dead:
                if time.monotonic() > deadline or worker.poll() is not None:
                    raise SystemExit("the worker did not do its work")
                time.sleep(0.2)
            print("acked", done.totals["acked"], "sent", done.totals["sent"], flush=True)
            for letter in admin.walk("celery", State.DEAD):  # `restante replay celery` would run it again
                failure = admin.show("celery", letter.id).history[-1]
                print("dead", letter.kind, failure.error.splitlines()[-1], flush=True)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)


if __name__ == "__main__":
    main()
