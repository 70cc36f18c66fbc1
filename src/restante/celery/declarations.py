"""What a Kombu channel declares: exchanges, queues and bindings, and the life of queues that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import base
from kombu.utils.uuid import uuid

from restante.celery.queue_arguments import checked
from restante.celery.transient_queues import drop_queue
from restante.celery.unroutable import not_found
from restante.core.admin import Admin
from restante.core.errors import NotFound
from restante.core.keys import QUEUES, exchange_key
from restante.core.message import State
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient
    from restante.celery.options import Options


class Declarations(base.StdChannel):
    """The half of a channel that says what is there; `Channel` sends and receives."""

    connection: Any
    broker: BrokerClient
    options: Options
    sources: dict[str, Any]

    def _subscribe(self, source: Any) -> None:
        """Told when the bindings of a queue that is consumed from have changed."""
        raise NotImplementedError

    def exchange_declare(
        self, exchange: str | None = None, type: str = "direct", durable: bool = False, auto_delete: bool = False,
        arguments: Any = None, nowait: bool = False, passive: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        if passive:
            if not self.broker.routing.table(exchange).declared:
                raise not_found("exchange", exchange, "Channel.exchange_declare")
            return
        self.broker.routing.declare(exchange, type, durable)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False, **_: Any) -> None:
        if if_unused and self.broker.routing.table(exchange).bindings:
            return
        self.broker.routing.forget_exchange(exchange)

    def exchange_bind(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("exchanges cannot be bound to exchanges here: bind the queue to both")

    exchange_unbind = exchange_bind

    def prepare_queue_arguments(self, arguments: Any, **given: Any) -> dict[str, Any]:
        return dict(base.to_rabbitmq_queue_arguments(arguments or {}, **given))

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: Any = None, **_: Any,
    ) -> queue_declare_ok_t:  # fmt: skip
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._exists(queue):
                raise not_found("queue", queue, "Channel.queue_declare")
        else:
            made = checked(queue, arguments)
            info = QueueInfo(queue, auto_delete or exclusive or "x-expires" in made, made)
            before = self.broker.routing.queue(queue)
            if before is None or before != info:
                if before is not None and before.arguments != made:
                    differ = sorted({*before.arguments.items()} ^ {*made.items()})
                    raise ChannelError(
                        f"PRECONDITION_FAILED - queue {queue!r} was declared with {before.arguments}, not {made} "
                        f"(different: {', '.join(sorted({name for name, _ in differ}))}): use the same arguments, or "
                        "delete the queue first",
                        (50, 10), "Channel.queue_declare", "406",
                    )  # fmt: skip
                self.broker.routing.bind(info, "", queue)
            self._open(info)
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _open(self, info: QueueInfo) -> None:
        """Makes the queue what its arguments say. A dead-letter exchange takes what the core would call dead."""
        if info.transient:
            self.broker.transient_queues.renew(info)
            return
        limit = info.arguments.get("x-delivery-limit", self.options.delivery_limit)
        queue = self.broker.queue(info.name)
        wanted: dict[str, Any] = {
            "max_attempts": 65535 if "x-dead-letter-exchange" in info.arguments else limit,
            "max_length": info.arguments.get("x-max-length"),
        }
        if not queue.ref.opened:
            queue.ensure_open()
        if any(getattr(queue.settings, name) != value for name, value in wanted.items()):
            queue.configure(**wanted)

    def _exists(self, queue: str) -> bool:
        if self.broker.routing.queue(queue) is not None:
            return True
        return bool(self.broker.command("SISMEMBER", QUEUES, self.broker.full_name(queue), key=QUEUES))

    def _size(self, queue: str) -> int:
        counts = self._counts(queue)
        return counts.ready + counts.scheduled + counts.retrying if counts else 0

    def _counts(self, queue: str) -> Any:
        try:
            return Admin(self.broker.client).counts(self.broker.full_name(queue))
        except NotFound:
            return None

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        exchange = exchange or "amq.direct"
        routing = self.broker.routing
        table = routing.table(exchange)
        if not table.declared:
            raise not_found("exchange", exchange, "Channel.queue_bind", (50, 20))
        info = routing.queue(queue)
        if info is None:
            if not self._exists(queue):
                raise not_found("queue", queue, "Channel.queue_bind", (50, 20))
            info = QueueInfo(queue)
        if not any(key == (routing_key or "") and known == info for key, _, known in table.bindings):
            if info.transient and table.broadcasts:
                self._take_place(queue, exchange)
            routing.bind(info, exchange, routing_key or "")
        source = self.sources.get(queue)
        if source is not None:
            self._subscribe(source)

    def _take_place(self, queue: str, exchange: str) -> None:
        """The place from which a queue hears a broadcast: where it was, or the end as of now."""
        places = exchange_key(self.broker.full_name(exchange), "positions")
        stream = exchange_key(self.broker.full_name(exchange), "broadcast")
        newest = self.broker.command("XREVRANGE", stream, "+", "-", "COUNT", 1, key=stream)
        last = newest[0][0] if newest else b"0-0"
        self.broker.command("HSETNX", places, queue, last, key=places)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        self.broker.routing.unbind(queue, exchange or "amq.direct", routing_key or "")
        source = self.sources.get(queue)
        if source is not None:
            self._subscribe(source)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> int:
        counts = self._counts(queue)
        waiting = counts.waiting if counts else 0
        if if_empty and waiting:
            return 0
        if if_unused and any(queue in channel.sources for channel in self.connection.channels):
            return 0
        drop_queue(self.broker, queue)
        return waiting

    def after_reply_message_received(self, queue: str) -> None:
        self.queue_delete(queue)

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Removes what waits, scheduled included; what workers hold and what is dead stays."""
        admin, name = Admin(self.broker.client), self.broker.full_name(queue)
        try:
            return admin.purge(name, (State.READY, State.SCHEDULED, State.RETRYING))
        except NotFound:
            return 0

    def list_bindings(self) -> list[tuple[str, str, str]]:
        routing = self.broker.routing
        names = [key for key, _, _ in routing.table("").bindings]
        return [(queue, exchange, pattern) for queue in names for exchange, pattern in routing.bindings(queue)]

    get_bindings = list_bindings
