"""The two brokers as the scenario sees them, and services in processes of their own."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp
import orjson

import restante
from restante.bus import BusClient
from restante.bus.dead import DeadLetters, dead_letters
from restante.core.stored import Json
from tests.celery.workers import _PROGRAM, GREEN, wait_for
from tests.harness.deadlines import PATIENCE
from tests.harness.ledger import read_ledger
from tests.harness.processes import PythonProcess
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer

_numbers = itertools.count(1)


class Service(PythonProcess):
    """`celery worker` of one service."""

    def __init__(
        self,
        place: Place,
        name: str,
        handlers: list[str],
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        options: dict[str, Any] | None = None,
        wait: bool = True,
        **told: Any,
    ) -> None:
        self.place = place
        given = {
            "service": place.named(name),
            "broker": place.url,
            "handlers": handlers,
            "options": {**place.options, **(options or {})},
            **told,
        }
        command = [
            "-A",
            "tests.bus.service:bus",
            "worker",
            "-P",
            pool,
            "-c",
            str(concurrency),
            "-l",
            "INFO",
            "-n",
            f"{name}{next(_numbers)}@test",
            "--without-mingle",
            "--without-gossip",
            "--without-heartbeat",
        ]
        environment = {
            "SERVICE": json.dumps(given),
            "LEDGER": str(place.ledger),
            "PYTHONWARNINGS": "default",
        }
        super().__init__(_PROGRAM, *command, env=environment, forked=pool not in GREEN)
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.close()
                raise

    def wait_ready(self) -> None:
        wait_for(lambda: " ready." in self.stderr or self.returncode is not None, told=lambda: self.stderr[-3000:])
        assert " ready." in self.stderr, f"{self.stderr[-3000:]}\n{self.place.broker_log()}"


class Place:
    """One broker of the scenario, with a ledger and names of its own."""

    kind: str
    url: str

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self.mark = f"t{os.getpid()}n{next(_numbers)}"
        self.options: dict[str, Any] = {}

    def named(self, service: str) -> str:
        """A service's name that no other test has."""
        return f"{service}-{self.mark}"

    def client(self, **settings: Any) -> BusClient:
        return BusClient(self.url, source="tests", **settings)

    def rows(self, kind: str = "", service: str = "") -> list[dict[str, Any]]:
        full = self.named(service) if service else ""
        return [
            row
            for row in read_ledger(self.ledger)
            if (not kind or row["kind"] == kind) and (not full or row.get("service") == full)
        ]

    def wait_rows(self, count: int, kind: str, service: str = "", timeout: float = PATIENCE) -> list[dict[str, Any]]:
        wait_for(
            lambda: len(self.rows(kind, service)) >= count,
            timeout,
            lambda: f"{len(self.rows(kind, service))} of {count} {kind}",
        )
        return self.rows(kind, service)

    def broker_log(self) -> str:
        """The end of what the broker has logged, for the message of a test that fails."""
        return ""

    def mend(self) -> None:
        """Whatever the failing handler failed of is mended."""
        self.ledger.with_suffix(".mended").touch()

    def dead(self, service: str) -> DeadLetters:
        return dead_letters(self.url, self.named(service))

    def wait_dead(self, service: str, count: int, timeout: float = PATIENCE) -> list[Any]:
        letters = self.dead(service)
        try:
            wait_for(lambda: len(letters.list()) >= count, timeout, lambda: str(letters.list()))
            return letters.list()
        finally:
            letters.close()

    def raw(self, service: str, handler: str, body: bytes, headers: dict[str, Any], content_type: str) -> None:
        """Puts a message of any kind into a subscription's queue."""
        raise NotImplementedError

    def waiting(self, service: str, handler: str) -> int:
        """How many messages lie in a subscription's queue or are held."""
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        """SIGKILL, then up again."""
        raise NotImplementedError


class OnRedis(Place):
    kind = "redis"

    def __init__(self, folder: Path, server: RedisServer) -> None:
        super().__init__(folder)
        self.server = server
        self.url = f"{server.url.replace('redis://', 'restante://')}/0"

    def raw(self, service: str, handler: str, body: bytes, headers: dict[str, Any], content_type: str) -> None:
        with restante.connect(self.server.url) as post:
            payload: Any = body
            if content_type == "application/json":
                try:
                    orjson.loads(body)
                    payload = Json(body)
                except ValueError:
                    pass
            post.queue(f"{self.named(service)}.{handler}").send(
                payload,
                headers=headers,
                content_type=None if isinstance(payload, Json) else content_type,
                kind=headers["type"] if " " not in headers["type"] else "",
            )

    def waiting(self, service: str, handler: str) -> int:
        with restante.connect(self.server.url) as post:
            counts = restante.Admin(post).counts(f"{self.named(service)}.{handler}")
            return counts.waiting + counts.leased

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def kill(self) -> None:
        self.server.kill9()
        self.server.restart()


class OnRabbitMQ(Place):
    kind = "rabbitmq"

    def __init__(self, folder: Path, rabbit: RabbitServer, store: RedisServer) -> None:
        super().__init__(folder)
        self.rabbit = rabbit
        self.store = store
        self.url = rabbit.url
        self.options = {"store": f"{store.url}/0"}

    def client(self, **settings: Any) -> BusClient:
        return BusClient(self.url, source="tests", store=self.options["store"], **settings)

    def channel(self, then: Callable[[Any], Any]) -> Any:
        with amqp.Connection(f"127.0.0.1:{self.rabbit.port}", confirm_publish=True) as connection:
            return then(connection.channel())

    def broker_log(self) -> str:
        return self.rabbit.log[-6000:]

    def raw(self, service: str, handler: str, body: bytes, headers: dict[str, Any], content_type: str) -> None:
        named = {f"cloudEvents_{name}": value for name, value in headers.items()}
        message = amqp.Message(body, content_type=content_type, application_headers=named, delivery_mode=2)
        self.channel(lambda channel: channel.basic_publish(message, "", f"{self.named(service)}.{handler}"))

    def waiting(self, service: str, handler: str) -> int:
        name = f"{self.named(service)}.{handler}"
        return int(self.channel(lambda channel: channel.queue_declare(name, passive=True).message_count))

    def restart(self) -> None:
        self.rabbit.stop()
        self.rabbit.start()

    def kill(self) -> None:
        self.rabbit.kill()
        self.rabbit.start()
