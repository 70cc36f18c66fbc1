"""Inventory of a RabbitMQ node for the dashboard and metrics: services, queues, archives and rungs.

It needs the broker's URL (`--broker`) and no store, because services register themselves on the broker. If the broker
is unavailable, `Seen.problem` says so and everything else works.
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

#: Seconds to wait for another reader of an archive. A replay may take longer, a listing does not.
PATIENCE = 3.0
#: Seconds for which an inventory is cached, so that pages, metrics and anomalies share one.
FRESH = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """An inventory, or the reason why there is none."""

    inventory: Inventory | None = None
    problem: str = ""

    @property
    def handlers(self) -> tuple[HandlerInfo, ...]:
        return self.inventory.handlers if self.inventory else ()

    @property
    def nearly_full(self) -> list[Archive]:
        """Archives that will soon refuse more events."""
        return [archive for archive in self.inventory.archives if archive.nearly_full] if self.inventory else []


class RabbitView:
    """One RabbitMQ node, with an inventory shared by concurrent requests."""

    def __init__(self, url: str | None, client: Client) -> None:
        self.url = url
        self._client = client
        #: Held while an archive is read.
        self.reading = threading.Lock()
        self._looking = threading.Lock()
        self._seen = Seen()
        self._at = float("-inf")

    def look(self) -> Seen:
        """The current inventory. Without a broker URL it is empty, and `problem` tells if services are on RabbitMQ."""
        if self.url is None:
            remote = any(card.broker == "rabbitmq" for card in registered_handlers(self._client))
            hint = "some services are on RabbitMQ: start the server with --broker amqp://… to see their queues"
            return Seen(problem=hint if remote else "")
        with self._looking:
            if time.monotonic() - self._at > FRESH:
                self._seen = self._count(self.url)
                self._at = time.monotonic()
            return self._seen

    def forget(self) -> None:
        """Drops the cached inventory, after messages have moved."""
        self._at = float("-inf")

    def _count(self, url: str) -> Seen:
        try:
            from restante.bus.inventory import take_inventory
        except ModuleNotFoundError as error:
            return Seen(problem=f"RabbitMQ needs {error.name}: pip install 'restante[rabbitmq]'")
        # Messages that a reader holds are not counted. After PATIENCE, during a long replay, that error is accepted.
        alone = self.reading.acquire(timeout=PATIENCE)
        try:
            return Seen(take_inventory(url, registered_handlers(self._client)))
        except RestanteError as error:
            log.warning("inventory failed broker=rabbitmq error=%s", error)
            return Seen(problem=str(error))
        finally:
            if alone:
                self.reading.release()
