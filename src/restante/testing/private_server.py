"""A private server in a temporary directory, for the tests of one process; its data are gone when it is closed.

On failure `start` raises Unavailable with the last lines of the server's log.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Self, Unpack

from restante.core.embedded import DIRECTORY_VARIABLE, EMBEDDED, Embedded, answers
from restante.core.errors import RestanteError
from restante.core.keys import QUEUES, exchange_key
from restante.core.queue import CLIENTS, Client
from restante.core.settings import ClientOptions, ClientSettings
from restante.testing import sent
from restante.testing.clock import Clock, restore_scripts

#: Environment variables that name a server, and would lead a test to it.
_URLS = ("RESTANTE_URL", "RESTANTE_BROKER", "CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")


class PrivateServer:
    """A server of this process alone: `with PrivateServer() as server:`. Nothing runs before it is first used."""

    def __init__(self) -> None:
        # Short, because a socket's path may have a hundred characters and pytest's own folders nearly have them.
        self.directory = tempfile.mkdtemp(prefix="restante-")
        self._embedded = Embedded(self.directory)
        self._started = False
        self._environment: dict[str, str | None] = {}
        self._own: Client | None = None

    @property
    def url(self) -> str:
        """The URL of the server, for `restante.connect`."""
        return self._embedded.url

    @property
    def running(self) -> bool:
        """Whether the server runs: this object or a client of the environment started it."""
        return answers(self._embedded.socket)

    def start(self) -> str:
        """Starts the server if it does not run, and returns its URL."""
        if not self._started:
            self._embedded.join()
            self._started = True
        return self.url

    def use(self) -> None:
        """Makes this the server of every `restante.connect()` and `Bus` without a URL, until `leave_environment`."""
        wanted = dict.fromkeys(_URLS) | {
            "RESTANTE_URL": EMBEDDED,
            DIRECTORY_VARIABLE: self.directory,
            "RESTANTE_BROKER": f"embedded://{self.directory}",
        }
        for name, value in wanted.items():
            self._environment.setdefault(name, os.environ.get(name))
            _set_variable(name, value)

    def leave_environment(self) -> None:
        """Restores the environment that `use` has changed."""
        for name, value in self._environment.items():
            _set_variable(name, value)
        self._environment.clear()

    def client(self, **settings: Unpack[ClientOptions]) -> Client:
        """Opens a client. Close it when done."""
        return Client(self.start(), ClientSettings.parse(settings))

    @property
    def clock(self) -> Clock:
        """The clock of this server."""
        return Clock(self._client())

    def _client(self) -> Client:
        if self._own is None:
            self._own = self.client()
        return self._own

    def clear(self) -> None:
        """Removes everything: messages, queues, settings, bindings, the moved clock.

        Queues that open clients of this process hold are registered again at their next use, with the options that
        `client.queue(…)` was given. A bus declares its queues again with `bus.declare()`.
        """
        connection = self._client().connection
        pattern = exchange_key("*", "routes")
        versions = {
            key: connection.command("HGET", key, "version", key=key)
            for key in connection.command("KEYS", pattern, key=QUEUES)
        }
        connection.command("FLUSHALL", key=QUEUES)
        for key, version in versions.items():
            # Clients keep the bindings of a version: one that counted from 1 again would look like the old one.
            connection.command("HSET", key, "version", int(version or 0) + 1, key=key)
        restore_scripts()
        sent.forget_handled()
        for client in list(CLIENTS):
            if client.url == self.url:
                client.reopen()

    def close(self) -> None:
        """Stops the server at once, removes its directory and restores the environment."""
        restore_scripts()
        self.leave_environment()
        if self.running:
            try:
                # Not by leaving it: clients that the program never closes would keep it alive until the process ends.
                self._client().connection.command("SHUTDOWN", "NOSAVE", key=QUEUES)
            except RestanteError:
                pass  # a server that ends cannot answer
        if self._own is not None:
            self._own.close()
        self._embedded.leave()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
