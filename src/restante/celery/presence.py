"""Keeps the queues that come and go for as long as somebody consumes from them, and ends them afterwards.

RabbitMQ never expires a queue that has a consumer. Redis knows no consumers, so a consumer's process signs for its
transient queues, from a thread of its own: a worker that is busy with tasks must not lose its remote control. On
failure the thread logs it and signs again at the next tick. A queue that ended all the same, because its process or the
server was away for too long, is declared and bound again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from restante.core.admin import Admin
from restante.core.errors import NotFound, RestanteError
from restante.core.keys import TRANSIENT, exchange_key
from restante.core.routes import QueueInfo

if TYPE_CHECKING:
    from restante.celery.desk import Desk

log = logging.getLogger("restante")

#: Seconds after which an auto_delete queue without x-expires ends when nobody uses it.
UNUSED = 300.0
#: Seconds a queue is kept at least after a sign of its consumer, also where x-expires is shorter. Too short: a process
#: that stalls loses its queue. Too long: what a killed process leaves lies around.
CONSUMED = 60.0
#: Seconds between two signs: several fit into CONSUMED, so that one may fail.
SIGN_EVERY = 15.0
#: Seconds a transient queue outlives its time, so that a slow consumer's sign still counts.
GRACE = 5.0
#: Seconds between two looks for transient queues that nobody uses.
TIDY_EVERY = 60.0


class Consumed(Protocol):
    """What is consumed from: the queue, its bindings, and how far it has read each broadcast."""

    name: str
    info: QueueInfo
    bindings: list[tuple[str, str]]
    places: dict[bytes, str]


class Presence:
    """Signs for the transient queues this process consumes from."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._consumed: dict[int, Consumed] = {}
        # Held while a queue is signed for, so that a queue that is left at that moment is not made anew.
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._tidied_at = 0.0

    def enter(self, source: Consumed) -> None:
        """From now on the queue is kept."""
        if not source.info.transient:
            return
        self.sign(source.info, consumed=True)
        with self._lock:
            self._consumed[id(source)] = source
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._wake,), name="restante-presence", daemon=True
                )
                self._thread.start()

    def leave(self, source: Consumed) -> None:
        """From now on the queue's own time counts."""
        with self._lock:
            if self._consumed.pop(id(source), None) is None:
                return
            others = any(one.name == source.name for one in self._consumed.values())
            if not self._consumed:
                self._thread = None
                self._wake.set()
        if not others:
            self.sign(source.info)

    def close(self) -> None:
        with self._lock:
            self._consumed.clear()
            self._thread = None
            self._wake.set()

    def sign(self, info: QueueInfo, *, consumed: bool = False) -> bool:
        """Notes when the queue ends unless it is signed for again; False where it was not known any more."""
        seconds = info.seconds("x-expires") or UNUSED
        until = self._desk.server_time() + (max(seconds, CONSUMED) if consumed else seconds)
        name = self._desk.name(info.name)
        return not self._desk.command("ZADD", TRANSIENT, int(until * 1000), name, key=TRANSIENT)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(SIGN_EVERY):
            try:
                self.run_once()
            except RestanteError as error:
                log.warning("queues not signed for error=%s", error)
            except Exception:
                log.exception("queues not signed for")

    def run_once(self) -> int:
        """Signs for every queue that is consumed from, and ends what nobody uses; returns how many were made again."""
        revived = 0
        for key, source in list(self._consumed.items()):
            with self._lock:
                if key in self._consumed and not self.sign(source.info, consumed=True):
                    self._revive(source)
                    revived += 1
        self.tidy_when_due()
        return revived

    def _revive(self, source: Consumed) -> None:
        routing = self._desk.routing
        log.warning("declared again, its time had passed queue=%s", source.name)
        routing.bind(source.info, "", source.name)
        for exchange, pattern in source.bindings:
            place = source.places.get(exchange_key(self._desk.name(exchange), "broadcast"))
            if place is not None:
                places = exchange_key(self._desk.name(exchange), "positions")
                self._desk.command("HSETNX", places, source.name, place, key=places)
            routing.bind(source.info, exchange, pattern)

    def tidy_when_due(self) -> None:
        now = time.monotonic()
        if now - self._tidied_at > TIDY_EVERY:
            self._tidied_at = now
            self.tidy()

    def tidy(self) -> None:
        """Ends transient queues that nobody uses any more."""
        before = int((self._desk.server_time() - GRACE) * 1000)
        prefix = self._desk.options.global_keyprefix
        for raw in self._desk.command("ZRANGEBYSCORE", TRANSIENT, "-inf", before, "LIMIT", 0, 100, key=TRANSIENT):
            name = raw.decode()
            if name.startswith(prefix) and self._desk.command("ZREM", TRANSIENT, name, key=TRANSIENT):
                drop_queue(self._desk, name[len(prefix) :])


def drop_queue(desk: Desk, queue: str) -> None:
    """Removes a queue with its messages, bindings and positions."""
    desk.routing.forget_queue(queue)
    try:
        Admin(desk.post, audited=False).drop(desk.name(queue))
    except NotFound:
        pass
