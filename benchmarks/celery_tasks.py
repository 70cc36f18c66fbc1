"""The tasks that `benchmarks.celery` measures; the broker by a variable, nearly everything else as Celery has it."""

from __future__ import annotations

import os
import time

from celery import Celery

app = Celery("bench", broker=os.environ.get("BROKER", "memory://"))
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_hijack_root_logger=False)
if "LOGLESS" in os.environ:
    import logging

    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


@app.task
def noop() -> None:
    pass


@app.task
def stamp(due: float) -> None:
    late = time.time() - due
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{late}\n".encode())
    os.close(file)
