"""RabbitMQ as the server sees it: services, queues, archives and rungs, counted when somebody asks.

It needs the broker's URL (`--broker`) and no store: services list themselves on the broker. That the broker is away is
said, and stops nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from restante.bus.registry import HandlerInfo, registered_handlers
from restante.core.errors import RestanteError

if TYPE_CHECKING:
    from restante.bus.inventory import Archive, Inventory
    from restante.core.queue import Client

log = logging.getLogger("restante")

#: Seconds to wait for whoever reads an archive; a replay may take longer, a list does not.
PATIENCE = 3.0
#: Seconds for which a count is good: pages, metrics and anomalies of one moment ask the broker once.
FRESH = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """What was counted, or why that was not possible."""

    inventory: Inventory | None = None
    problem: str = ""

    @property
    def cards(self) -> tuple[HandlerInfo, ...]:
        return self.inventory.handlers if self.inventory else ()

    @property
    def nearly_full(self) -> list[Archive]:
        """Archives that will soon refuse."""
        return [one for one in self.inventory.archives if one.nearly_full] if self.inventory else []


class RabbitView:
    """One broker, looked at by many requests."""

    def __init__(self, url: str | None, post: Client) -> None:
        self.url = url
        self._post = post
        #: Held by whoever reads an archive.
        self.reading = threading.Lock()
        self._looking = threading.Lock()
        self._seen = Seen()
        self._at = float("-inf")

    def look(self) -> Seen:
        """What is there now. Without a broker's URL nothing is, but for services that a store knows."""
        if self.url is None:
            far = any(card.broker == "rabbitmq" for card in registered_handlers(self._post))
            told = "some services are on RabbitMQ: start the server with --broker amqp://… to see their queues"
            return Seen(problem=told if far else "")
        with self._looking:
            if time.monotonic() - self._at > FRESH:
                self._seen = self._count(self.url)
                self._at = time.monotonic()
            return self._seen

    def forget(self) -> None:
        """The next look counts anew: something was moved."""
        self._at = float("-inf")

    def _count(self, url: str) -> Seen:
        try:
            from restante.bus.inventory import take_inventory
        except ModuleNotFoundError as error:
            return Seen(problem=f"RabbitMQ needs {error.name}: pip install 'restante[rabbitmq]'")
        # What somebody reads is not counted meanwhile; during a replay, which may be long, that is near enough.
        alone = self.reading.acquire(timeout=PATIENCE)
        try:
            return Seen(take_inventory(url, registered_handlers(self._post)))
        except RestanteError as error:
            log.warning("RabbitMQ away error=%s", error)
            return Seen(problem=str(error))
        finally:
            if alone:
                self.reading.release()
