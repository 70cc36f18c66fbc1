"""The sample shop's Celery tasks: they draw thumbnails of uploaded pictures; some fail at first."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from celery import Celery

from restante.celery import install

#: Pictures uploaded per second.
UPLOADS_PER_SECOND = 3.0

app: Any = Celery("shop")
app.conf.update(task_default_queue="thumbnails", task_ignore_result=True, worker_hijack_root_logger=False)
install(app)


class PictureBroken(Exception):
    """A part of the picture is missing; the upload may be in progress."""


@app.task(autoretry_for=(PictureBroken,), retry_backoff=2, max_retries=3)  # type: ignore[untyped-decorator]  # Celery's own
def thumbnail(picture: int, width: int) -> None:
    """Draws a thumbnail."""
    time.sleep(random.uniform(0.05, 0.4))
    if random.random() < 0.15:
        raise PictureBroken(f"picture {picture} ends early")


def upload(stop: threading.Event) -> None:
    """Sends tasks until stopped, some with a delay."""
    number = 0
    while not stop.wait(random.expovariate(UPLOADS_PER_SECOND)):
        number += 1
        later = random.uniform(2, 12) if number % 6 == 0 else None
        thumbnail.apply_async(
            (number, random.choice((120, 480))), countdown=later, priority=9 if number % 10 == 0 else 0
        )
