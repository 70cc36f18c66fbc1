"""Publishes to RabbitMQ with many confirms on their way at a time, over one connection of its own.

On failure of the connection everything unconfirmed goes again, under its id and in its order, over a new one. An event
fails alone where the broker refuses it, and with all others where the broker stays away for longer than the client's
patience. Threads may share it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import amqp

from restante.bus.batch import Publishing
from restante.bus.client_rabbitmq import (
    CONFIRM,
    ConnectionPool,
    RabbitConnection,
    amqp_message,
    event_refused,
    ladder_gone,
    no_subscription,
    properties_of,
    queue_full,
    route,
    to_headers,
    unreachable,
)
from restante.core.errors import InvalidInput, RestanteError, Unavailable, Unconfirmed
from restante.rabbitmq.ladder import Ladder
from restante.rabbitmq.topology import EVENTS, shared

if TYPE_CHECKING:
    from restante.bus.registry import Registry

log = logging.getLogger("restante")

#: Events that wait for their confirms at a time. More go again after a lost connection, fewer leave the broker idle.
WINDOW = 1000
#: Bytes of such events: large ones fill the broker's memory long before the window is full.
WINDOW_BYTES = 16 * 1024 * 1024
#: Writes between two looks at what was confirmed. Each look is a system call.
LOOK_EVERY = 50
#: Events that are noted in the journal together, where there is one. The last ones of a pause wait for the watcher.
NOTE_TOGETHER = 50
#: Seconds between two looks of the thread that settles what nobody waits for.
WATCH_EVERY = 0.1
#: Seconds one turn of a waiting thread takes, so that others get theirs.
TURN = 0.05
#: Connections that an event may end while it is the only one on its way, before it is given up alone.
FATAL = 3


class _Entry:
    """An event, its message, and how far it has come."""

    __slots__ = ("deaths", "exchange", "key", "message", "noted", "publishing", "returned", "size", "written")

    def __init__(self, publishing: Publishing, ladder: Ladder) -> None:
        self.publishing = publishing
        envelope = publishing.envelope
        self.message = amqp_message(publishing.text, to_headers(envelope), properties_of(envelope, publishing.options))
        self.exchange, self.key = route(envelope, publishing.options, ladder)
        self.size = len(publishing.text)
        self.noted: int | None = None
        #: Whether it was written to any connection: the broker may have it.
        self.written = False
        #: Whether the broker has sent it back because no queue took it.
        self.returned = False
        self.deaths = 0


class Confirms:
    """The events of one client that are on their way to RabbitMQ."""

    def __init__(self, pool: ConnectionPool, registry: Registry | None = None) -> None:
        self._pool = pool
        self._registry = registry
        self._lock = threading.RLock()
        self.pid = os.getpid()
        self._connection: RabbitConnection | None = None
        self._channel: Any = None
        #: To be noted in the journal, to be written, and by delivery tag what was written and not confirmed.
        self._unnoted: list[_Entry] = []
        self._queue: deque[_Entry] = deque()
        self._pending: dict[int, _Entry] = {}
        self._bytes = 0
        self._tag = 0
        self._since_look = 0
        self._confirmed_at = 0.0
        #: Since when nothing was confirmed although it was tried; None while all is well.
        self._down_since: float | None = None
        self._retry_at = 0.0
        self._pause = 0.05
        #: How many events still go one at a time, to find the one that ends connections.
        self._careful = 0
        self._watcher: threading.Thread | None = None
        self._closed = False
        atexit.register(self.close)

    # -- for those who publish -----------------------------------------------------------------------------------

    def begin(self, publishing: Publishing) -> None:
        """Hands an event over; waits only while too many are on their way."""
        entry = _Entry(publishing, self._pool.ladder)
        publishing.driven_by(lambda seconds: self._drive([publishing], seconds))
        with self._lock:
            if self._closed:
                raise Unavailable("this client is closed: make a new one")
            if self._registry is not None:
                self._unnoted.append(entry)
                if len(self._unnoted) >= NOTE_TOGETHER:
                    self._note()
            else:
                self._queue.append(entry)
            self._bytes += entry.size
            if self._queue:
                self._work(0)
            while self._crowded:
                self._note()
                self._work(TURN)
            if self._watcher is None and self._left:
                self._watcher = threading.Thread(target=self._watch, name="restante-confirms", daemon=True)
                self._watcher.start()

    def settle(self, publishings: Sequence[Publishing]) -> None:
        """Waits until each of them is published or has failed."""
        self._drive(publishings, float("inf"))

    def close(self) -> None:
        """Waits until nothing is on its way, and closes the connection. What fails is logged."""
        if self.pid != os.getpid():
            return
        atexit.unregister(self.close)
        with self._lock:
            while self._left:
                self._note()
                self._work(TURN)
            self._closed = True
            self._drop_connection()

    # -- moving on -----------------------------------------------------------------------------------------------

    @property
    def _left(self) -> int:
        return len(self._unnoted) + len(self._queue) + len(self._pending)

    @property
    def _crowded(self) -> bool:
        return self._left > 1 and (self._left >= WINDOW or self._bytes >= WINDOW_BYTES)

    def _drive(self, publishings: Sequence[Publishing], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for one in publishings:
            while not one.done() and time.monotonic() < deadline:
                with self._lock:
                    if not one.done():
                        self._note()
                        self._work(min(TURN, max(0.0, deadline - time.monotonic())))

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_EVERY)
            with self._lock:
                if self._closed or not self._left:
                    self._watcher = None
                    return
                try:
                    self._note()
                    self._since_look = LOOK_EVERY
                    self._work(0)
                except Exception:  # the thread must live on, or nobody settles what nobody waits for
                    log.exception("confirms not read")

    def _note(self) -> None:
        """Notes events in the journal before they can be received, many by one call."""
        if self._unnoted:
            assert self._registry is not None
            entries, self._unnoted = self._unnoted, []
            told = [(one.publishing.envelope, one.size, one.publishing.options) for one in entries]
            for entry, count in zip(entries, self._registry.sent_many(told), strict=True):
                entry.noted = count
            self._queue.extend(entries)

    def _work(self, block: float) -> None:
        """Writes what there is room for and reads what was confirmed, waiting for it no longer than `block`."""
        now = time.monotonic()
        if now < self._retry_at:
            time.sleep(min(block, self._retry_at - now))
            return
        try:
            if self._channel is None:
                self._open()
            most = 1 if self._careful else WINDOW
            while self._queue and len(self._pending) < most:
                self._write(self._queue.popleft())
            if block or self._since_look >= LOOK_EVERY or len(self._pending) >= most:
                self._read(block)
        except amqp.exceptions.NotFound as error:
            self._lost(error)
            self._declare()
        except ConnectionPool.LOST as error:
            self._lost(error)

    def _open(self) -> None:
        self._connection = RabbitConnection(self._pool.url)
        channel = self._connection.kombu.connection.channel()
        channel.events["basic_return"].add(self._on_return)
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.confirm_select()
        self._tag, self._channel = 0, channel

    def _write(self, entry: _Entry) -> None:
        if not self._pending:
            self._confirmed_at = time.monotonic()
        self._tag += 1
        self._since_look += 1
        # Noted before it is written: a connection may be lost in the middle of a message.
        self._pending[self._tag] = entry
        entry.written = True
        try:
            # The connection makes every channel wait for confirms; the class's own method does not.
            type(self._channel).basic_publish(self._channel, entry.message, entry.exchange, entry.key, True)
        except ConnectionPool.LOST:
            raise
        except Exception as error:
            # The broker and this side may count differently now, so that a confirm would be for another event.
            del self._pending[self._tag]
            self._end(entry, InvalidInput(f"the event cannot be written as AMQP: {error}"))
            raise ConnectionError("an event could not be written") from error

    def _read(self, block: float) -> None:
        self._since_look = 0
        assert self._connection is not None
        drain = self._connection.kombu.connection.drain_events
        try:
            while self._pending:
                drain(timeout=block)
                block = 0
        except TimeoutError:
            if self._pending and time.monotonic() - self._confirmed_at > CONFIRM:
                raise

    # -- what the broker says ------------------------------------------------------------------------------------

    def _on_return(self, error: Any, exchange: str, key: str, message: Any) -> None:
        id = message.properties.get("message_id")
        for entry in self._pending.values():
            if entry.publishing.id == id and entry.key == key and entry.exchange == exchange and not entry.returned:
                entry.returned = True
                return

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for entry in self._taken(tag, multiple):
            if not entry.returned:
                self._end(entry, 0 if entry.exchange == EVENTS else entry.noted or None)
            elif entry.publishing.options.delay:
                self._end(entry, ladder_gone(entry.exchange))
            elif entry.exchange == EVENTS:
                self._end(entry, 0)
            elif entry.publishing.options.unrouted == "raise":
                self._end(entry, no_subscription(entry.publishing.topic))
            else:
                # By the exchange that keeps what nobody wants; whoever has subscribed meanwhile gets it there too.
                entry.exchange, entry.returned = EVENTS, False
                self._queue.append(entry)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for entry in self._taken(tag, multiple):
            self._end(entry, queue_full(entry.publishing.id))

    def _taken(self, tag: int, multiple: bool) -> list[_Entry]:
        """What a confirm is about. Tags grow, and a dict keeps their order."""
        self._confirmed_at = time.monotonic()
        self._down_since, self._pause = None, 0.05
        tags = [tag]
        if multiple:
            tags = []
            for one in self._pending:
                if one > tag:
                    break
                tags.append(one)
        return [self._pending.pop(one) for one in tags if one in self._pending]

    def _end(self, entry: _Entry, outcome: int | RestanteError | None) -> None:
        self._bytes -= entry.size
        self._careful = max(0, self._careful - 1)
        if isinstance(outcome, RestanteError):
            if self._registry is not None:
                self._registry.not_sent(entry.publishing.envelope, entry.size)
            entry.publishing.failed(outcome)
        else:
            entry.publishing.settled(outcome)

    # -- when the broker is away ---------------------------------------------------------------------------------

    def _lost(self, error: BaseException) -> None:
        """What was not confirmed goes again; after the client's patience it fails."""
        self._drop_connection()
        again = list(self._pending.values())
        self._pending.clear()
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
        elif again:
            # Two connections in a row without a single confirm: perhaps one of these events ends them.
            if len(again) == 1:
                again[0].deaths += 1
                if again[0].deaths >= FATAL:
                    self._end(again.pop(), event_refused(error))
            self._careful = max(self._careful, len(again) + len(self._queue))
        for entry in again:
            entry.returned = False
        self._queue.extendleft(reversed(again))
        self._retry_at = now + self._pause
        if self._retry_at > self._down_since + self._pool.patience:
            log.warning("broker away events=%d error=%s", len(self._queue), type(error).__name__)
            for entry in list(self._queue):
                id = entry.publishing.id
                self._end(entry, Unconfirmed(ids=(id,)) if entry.written else unreachable(self._pool.url, error))
            self._queue.clear()
            self._down_since, self._retry_at, self._pause, self._careful = None, 0.0, 0.05, 0
        self._pause = min(1.0, self._pause * 2)

    def _declare(self) -> None:
        try:
            self._pool.declare(shared(self._pool.options))
        except RestanteError as error:
            log.debug("not declared error=%s", error)  # the next write says the same

    def _drop_connection(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.close()
