"""Declares exchanges, queues and bindings, with the checks and errors of AMQP, and removes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.exceptions import ChannelError

from restante.celery.broadcasts import start_at_end
from restante.celery.queue_arguments import check_arguments
from restante.celery.unroutable import not_found
from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.keys import QUEUES
from restante.core.message import State
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient


class Declarations:
    """What one channel declares."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._options = broker.options

    def check_exchange(self, exchange: str) -> None:
        """Raises unless the exchange is declared."""
        if not self._broker.routing.table(exchange).declared:
            raise not_found("exchange", exchange, "Channel.exchange_declare")

    def check_queue(self, queue: str) -> None:
        """Raises unless the queue is declared."""
        if not self._exists(queue):
            raise not_found("queue", queue, "Channel.queue_declare")

    def declare_queue(self, queue: str, arguments: dict[str, Any] | None, *, transient: bool) -> None:
        """Declares a queue; a second declaration with other arguments is an error."""
        arguments = check_arguments(queue, arguments)
        info = QueueInfo(queue, transient or "x-expires" in arguments, arguments)
        declared = self._broker.routing.queue(queue)
        if declared is None or declared != info:
            if declared is not None and declared.arguments != arguments:
                differences = sorted({*declared.arguments.items()} ^ {*arguments.items()})
                raise ChannelError(
                    f"PRECONDITION_FAILED - queue {queue!r} was declared with {declared.arguments}, not {arguments} "
                    f"(different: {', '.join(sorted({name for name, _ in differences}))}): use the same arguments, or "
                    "delete the queue first",
                    (50, 10),
                    "Channel.queue_declare",
                    "406",
                )
            self._broker.routing.bind(info, "", queue)
        self._apply(info)

    def _apply(self, info: QueueInfo) -> None:
        """Sets the queue's settings from its arguments. With a dead-letter exchange no message dies in the core."""
        if info.transient:
            self._broker.transient_queues.renew(info)
            return
        limit = info.arguments.get("x-delivery-limit", self._options.delivery_limit)
        queue = self._broker.queue(info.name)
        settings: dict[str, Any] = {
            "max_attempts": 65535 if "x-dead-letter-exchange" in info.arguments else limit,
            "max_length": info.arguments.get("x-max-length"),
        }
        if not queue.ref.opened:
            queue.ensure_open()
        if any(getattr(queue.settings, name) != value for name, value in settings.items()):
            queue.configure(**settings)

    def _exists(self, queue: str) -> bool:
        if self._broker.routing.queue(queue) is not None:
            return True
        return bool(self._broker.command("SISMEMBER", QUEUES, self._broker.full_name(queue), key=QUEUES))

    def size(self, queue: str) -> int:
        """Messages that wait, including scheduled ones."""
        counts = self._counts(queue)
        return counts.ready + counts.scheduled + counts.retrying if counts else 0

    def unsettled(self, queue: str) -> int:
        """Messages that are neither settled nor dead."""
        counts = self._counts(queue)
        return int(counts.waiting) if counts else 0

    def _counts(self, queue: str) -> Any:
        try:
            return Admin(self._broker.client).counts(self._broker.full_name(queue))
        except NotFound:
            return None

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Binds a queue to an exchange; a transient queue starts at the end of the exchange's broadcasts."""
        routing = self._broker.routing
        table = routing.table(exchange)
        if not table.declared:
            raise not_found("exchange", exchange, "Channel.queue_bind", (50, 20))
        info = routing.queue(queue)
        if info is None:
            if not self._exists(queue):
                raise not_found("queue", queue, "Channel.queue_bind", (50, 20))
            info = QueueInfo(queue)
        if not any(key == routing_key and bound == info for key, _, bound in table.bindings):
            if info.transient and table.broadcasts:
                start_at_end(self._broker, queue, exchange)
            routing.bind(info, exchange, routing_key)

    def purge(self, queue: str) -> int:
        """Removes waiting messages, including scheduled ones; leased and dead messages stay."""
        try:
            waiting = (State.READY, State.SCHEDULED, State.RETRYING)
            return Admin(self._broker.client).purge(self._broker.full_name(queue), waiting)
        except NotFound:
            return 0

    def bindings(self) -> list[tuple[str, str, str]]:
        """Queue, exchange and pattern of every binding of every declared queue."""
        routing = self._broker.routing
        queues = [key for key, _, _ in routing.table("").bindings]
        return [(queue, exchange, pattern) for queue in queues for exchange, pattern in routing.bindings(queue)]
