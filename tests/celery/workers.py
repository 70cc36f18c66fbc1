"""Starts Celery workers, and sends tasks to them from this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from celery import Celery

from tests.celery.shop import make_app
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.ledger import read_ledger
from tests.harness.processes import PythonProcess


class Address(Protocol):
    """Something with a URL, such as a server."""

    @property
    def url(self) -> str: ...


_PROGRAM = """
import sys
from celery.__main__ import main
sys.argv = ["celery", *sys.argv[1:]]
main()
"""


#: Pools that patch the standard library.
GREEN = ("gevent", "eventlet")


class Worker(PythonProcess):
    """`celery worker` on the sample app; with `scheme="redis"` on Kombu's own transport, for comparison."""

    def __init__(
        self,
        server: Address,
        folder: Path,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        name: str = "w1",
        scheme: str = "restante",
        queues: str = "",
        options: dict[str, Any] | None = None,
        conf: dict[str, Any] | None = None,
        bind: dict[str, list[str]] | None = None,
        words: tuple[str, ...] = (),
        wait: bool = True,
        clock: FrozenClock | None = None,
        **more: Any,
    ) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        url = f"{server.url.replace('redis://', f'{scheme}://')}/0"
        told = {
            "broker": url,
            "backend": f"{server.url}/1",
            "options": options or {},
            "conf": conf or {},
            "bind": bind or {},
            **more,
        }
        environment = {"SHOP": json.dumps(told), "LEDGER": str(self.ledger), "PYTHONWARNINGS": "default"}
        command = [
            "-A",
            "tests.celery.shop",
            "worker",
            "-P",
            pool,
            "-c",
            str(concurrency),
            "-n",
            f"{name}@test",
            "-l",
            "INFO",
            *(("-Q", queues) if queues else ()),
            *words,
        ]
        # Green threads and another clock must be set up before the modules they patch are imported: no fork then.
        forked = pool not in GREEN and clock is None
        super().__init__(_PROGRAM, *command, env=environment, clock=clock, forked=forked)
        self.app: Celery = make_app(told)
        self.app.set_default()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        wait_for(lambda: " ready." in self.stderr or self.returncode is not None, told=lambda: self.stderr[-3000:])
        assert " ready." in self.stderr, self.stderr[-3000:]

    def close(self) -> None:
        super().close()
        # The app lives until it is garbage-collected; forgetting its results then would open a connection again.
        backend: Any = self.app.backend
        backend.result_consumer.stop()
        backend.result_consumer._pubsub = None
        backend.client.connection_pool.disconnect()

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        if task == "note":
            options.setdefault("ignore_result", True)  # the ledger has the result
        return self.app.send_task(f"shop.{task}", args=args, **options)

    def rows(self, kind: str = "") -> list[dict[str, Any]]:
        """The lines that tasks wrote to the ledger."""
        return [row for row in read_ledger(self.ledger) if not kind or row["kind"] == kind]

    def wait_rows(self, count: int, kind: str = "", timeout: float = PATIENCE) -> list[dict[str, Any]]:
        wait_for(
            lambda: len(self.rows(kind)) >= count, timeout, lambda: f"{self.rows(kind)[-5:]} {self.stderr[-3000:]}"
        )
        return self.rows(kind)


def wait_for(true: Callable[[], Any], timeout: float = PATIENCE, told: Callable[[], str] = lambda: "") -> None:
    wait_until(true, told, timeout=timeout)
