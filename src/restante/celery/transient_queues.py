"""Keeps transient queues alive while they have consumers, and removes them when nobody uses them.

RabbitMQ never expires a queue that has a consumer. Redis knows no consumers, so a consumer's process renews the expiry
of its transient queues. It does so in a thread of its own: a worker that is busy with tasks must not lose its remote
control. On failure the thread logs the error and renews again after its interval. A queue that expired anyway, because
its process or the server was away for too long, is declared and bound again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from restante.core.admin import Admin
from restante.core.errors import NotFound, RestanteError
from restante.core.keys import TRANSIENT
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.broker_client import BrokerClient
    from restante.celery.source import Source

log = logging.getLogger("restante")

#: Seconds after which an unused auto_delete queue without x-expires expires.
UNUSED = 300.0
#: Seconds a consumed queue lives at least after each renewal, even if x-expires is shorter. Too short: a process that
#: stalls loses its queue. Too long: the queues of a killed process stay that long.
CONSUMED = 60.0
#: Seconds between two renewals: several fit into CONSUMED, so that one may fail.
RENEW_EVERY = 15.0
#: Seconds between the expiry of a transient queue and its removal, so that a late renewal still counts.
GRACE = 5.0
#: Seconds between two searches for expired queues.
REMOVE_EVERY = 60.0


class TransientQueues:
    """Renews the transient queues this process consumes from."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._consumed: dict[int, Source] = {}
        # Held during a renewal, so that a queue that loses its consumer at that moment is not declared again.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._searched_at = 0.0

    def add(self, source: Source) -> None:
        """Keeps a queue alive from now on."""
        if not source.info.transient:
            return
        self.renew(source.info, consumed=True)
        with self._lock:
            self._consumed[id(source)] = source
            if self._thread is None:
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stopped,), name="restante-transient-queues", daemon=True
                )
                self._thread.start()

    def remove(self, source: Source) -> None:
        """Stops keeping a queue alive: it expires after its own time."""
        with self._lock:
            if self._consumed.pop(id(source), None) is None:
                return
            others = any(other.name == source.name for other in self._consumed.values())
            if not self._consumed:
                self._thread = None
                self._stopped.set()
        if not others:
            self.renew(source.info)

    def close(self) -> None:
        with self._lock:
            self._consumed.clear()
            self._thread = None
            self._stopped.set()

    def renew(self, info: QueueInfo, *, consumed: bool = False) -> bool:
        """Moves the expiry of a queue into the future; returns False if the queue had been removed."""
        seconds = info.seconds("x-expires") or UNUSED
        until = self._broker.server_time() + (max(seconds, CONSUMED) if consumed else seconds)
        name = self._broker.full_name(info.name)
        return not self._broker.command("ZADD", TRANSIENT, int(until * 1000), name, key=TRANSIENT)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(RENEW_EVERY):
            try:
                self.run_once()
            except RestanteError as error:
                log.warning("queues not renewed error=%s", error)
            except Exception:
                log.exception("queues not renewed")

    def run_once(self) -> int:
        """Renews every consumed queue and removes expired ones; returns how many had to be declared again."""
        declared = 0
        for key, source in list(self._consumed.items()):
            with self._lock:
                if key in self._consumed and not self.renew(source.info, consumed=True):
                    self._declare_again(source)
                    declared += 1
        self.remove_expired_when_due()
        return declared

    def _declare_again(self, source: Source) -> None:
        routing = self._broker.routing
        log.warning("declared again queue=%s reason=expired", source.name)
        routing.bind(source.info, "", source.name)
        for exchange, pattern in source.broadcasts.bindings:
            source.broadcasts.restore(exchange)
            routing.bind(source.info, exchange, pattern)

    def remove_expired_when_due(self) -> None:
        now = time.monotonic()
        if now - self._searched_at > REMOVE_EVERY:
            self._searched_at = now
            self.remove_expired()

    def remove_expired(self) -> None:
        """Removes the transient queues that nobody renewed in time."""
        before = int((self._broker.server_time() - GRACE) * 1000)
        prefix = self._broker.options.global_keyprefix
        for raw in self._broker.command("ZRANGEBYSCORE", TRANSIENT, "-inf", before, "LIMIT", 0, 100, key=TRANSIENT):
            name = raw.decode()
            if name.startswith(prefix) and self._broker.command("ZREM", TRANSIENT, name, key=TRANSIENT):
                drop_queue(self._broker, name[len(prefix) :])


def drop_queue(broker: BrokerClient, queue: str) -> None:
    """Removes a queue with its messages, bindings and broadcast positions."""
    broker.routing.remove_queue(queue)
    try:
        Admin(broker.client, audited=False).drop(broker.full_name(queue))
    except NotFound:
        pass
