"""Publishes to RabbitMQ with many unconfirmed events at a time, over one connection of its own.

If the connection fails, all unconfirmed events are published again over a new one, with their ids and in their order.
An event fails alone if the broker refuses it, and with all others if the broker stays away for longer than the client's
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

from restante.bus.amqp_messages import event_message, event_refused, queue_full, returned_error, route, unreachable
from restante.bus.batch import Publishing
from restante.bus.client_rabbitmq import CONFIRM, ConnectionPool, RabbitConnection
from restante.core.errors import InvalidInput, RestanteError, Unavailable, Unconfirmed
from restante.rabbitmq.ladder import Ladder
from restante.rabbitmq.topology import EVENTS, shared

if TYPE_CHECKING:
    from restante.bus.registry import Registry

log = logging.getLogger("restante")

#: Unconfirmed events at a time. More are repeated after a lost connection, fewer leave the broker idle.
WINDOW = 1000
#: Bytes of unconfirmed events: large ones fill the broker's memory long before the window is full.
WINDOW_BYTES = 16 * 1024 * 1024
#: Writes between two reads of confirms. Each read is a system call.
LOOK_EVERY = 50
#: Events that are written to the journal together, if there is one. The last ones before a pause wait for the watcher.
NOTE_TOGETHER = 50
#: Seconds between two rounds of the thread that settles events nobody waits for.
WATCH_EVERY = 0.1
#: Seconds a waiting thread holds the lock for, so that others get it.
TURN = 0.05
#: Connections that fail while an event is the only unconfirmed one, before it fails as the cause.
FATAL = 3


class _Entry:
    """An event, its message and its progress."""

    __slots__ = ("deaths", "exchange", "key", "message", "noted", "publishing", "returned", "size", "written")

    def __init__(self, publishing: Publishing, ladder: Ladder) -> None:
        self.publishing = publishing
        self.message = event_message(publishing.envelope, publishing.text, publishing.options)
        self.exchange, self.key = route(publishing.envelope, publishing.options, ladder)
        self.size = len(publishing.text)
        self.noted: int | None = None
        #: Whether it was written to a connection, so that the broker may have it.
        self.written = False
        #: Whether the broker has returned it because no queue took it.
        self.returned = False
        self.deaths = 0


class Confirms:
    """The unconfirmed events of one client of RabbitMQ."""

    def __init__(self, pool: ConnectionPool, registry: Registry | None = None) -> None:
        self._pool = pool
        self._registry = registry
        self._lock = threading.RLock()
        self.pid = os.getpid()
        self._connection: RabbitConnection | None = None
        self._channel: Any = None
        #: Events to write to the journal, events to publish, and by delivery tag those published and not confirmed.
        self._unnoted: list[_Entry] = []
        self._queue: deque[_Entry] = deque()
        self._pending: dict[int, _Entry] = {}
        self._bytes = 0
        self._tag = 0
        self._since_look = 0
        self._confirmed_at = 0.0
        #: Since when publishing has failed without a confirm; None while it succeeds.
        self._down_since: float | None = None
        self._retry_at = 0.0
        self._pause = 0.05
        #: How many events are still published one at a time, to find one that ends connections.
        self._careful = 0
        self._watcher: threading.Thread | None = None
        self._closed = False
        atexit.register(self.close)

    # -- publishing ---------------------------------------------------------------------------------------------

    def begin(self, publishing: Publishing) -> None:
        """Hands an event over; waits only while too many are unconfirmed."""
        entry = _Entry(publishing, self._pool.ladder)
        publishing.driven_by(lambda seconds: self._drive([publishing], seconds))
        with self._lock:
            if self._closed:
                raise Unavailable("this client is closed: open a new one")
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
        """Waits until every event is settled, and closes the connection. Failures are logged."""
        if self.pid != os.getpid():
            return
        atexit.unregister(self.close)
        with self._lock:
            while self._left:
                self._note()
                self._work(TURN)
            self._closed = True
            self._drop_connection()

    # -- writing and reading --------------------------------------------------------------------------------------

    @property
    def _left(self) -> int:
        return len(self._unnoted) + len(self._queue) + len(self._pending)

    @property
    def _crowded(self) -> bool:
        return self._left > 1 and (self._left >= WINDOW or self._bytes >= WINDOW_BYTES)

    def _drive(self, publishings: Sequence[Publishing], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for publishing in publishings:
            while not publishing.done() and time.monotonic() < deadline:
                with self._lock:
                    if not publishing.done():
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
                except Exception:  # the thread must live on, or events nobody waits for are never settled
                    log.exception("confirms not read")

    def _note(self) -> None:
        """Writes events to the journal before they can be received, many in one call."""
        if self._unnoted:
            assert self._registry is not None
            entries, self._unnoted = self._unnoted, []
            events = [(entry.publishing.envelope, entry.size, entry.publishing.options) for entry in entries]
            for entry, count in zip(entries, self._registry.sent_many(events), strict=True):
                entry.noted = count
            self._queue.extend(entries)

    def _work(self, block: float) -> None:
        """Publishes as many events as the window allows and reads confirms, waiting up to `block` seconds for them."""
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
        # Set before the write: a connection may be lost in the middle of a message.
        self._pending[self._tag] = entry
        entry.written = True
        try:
            # amqp replaces the channel's method by one that waits for the confirm; the class's own does not.
            type(self._channel).basic_publish(self._channel, entry.message, entry.exchange, entry.key, True)
        except ConnectionPool.LOST:
            raise
        except Exception as error:
            # The broker and this client may count differently now, so that a confirm would be for another event.
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

    # -- confirms ------------------------------------------------------------------------------------------------

    def _on_return(self, error: Any, exchange: str, key: str, message: Any) -> None:
        id = message.properties.get("message_id")
        for entry in self._pending.values():
            if entry.publishing.id == id and entry.key == key and entry.exchange == exchange and not entry.returned:
                entry.returned = True
                return

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for entry in self._pop_confirmed(tag, multiple):
            if not entry.returned:
                self._end(entry, 0 if entry.exchange == EVENTS else entry.noted or None)
            elif entry.exchange == EVENTS:
                self._end(entry, 0)
            elif error := returned_error(entry.publishing.topic, entry.publishing.options, entry.exchange):
                self._end(entry, error)
            else:
                # EVENTS keeps events without a subscription; a service that has subscribed meanwhile gets it too.
                entry.exchange, entry.returned = EVENTS, False
                self._queue.append(entry)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for entry in self._pop_confirmed(tag, multiple):
            self._end(entry, queue_full(entry.publishing.id))

    def _pop_confirmed(self, tag: int, multiple: bool) -> list[_Entry]:
        """Removes and returns the events of a confirm. Tags grow, and a dict keeps their order."""
        self._confirmed_at = time.monotonic()
        self._down_since, self._pause = None, 0.05
        tags = [tag]
        if multiple:
            tags = []
            for pending in self._pending:
                if pending > tag:
                    break
                tags.append(pending)
        return [self._pending.pop(taken) for taken in tags if taken in self._pending]

    def _end(self, entry: _Entry, outcome: int | RestanteError | None) -> None:
        self._bytes -= entry.size
        self._careful = max(0, self._careful - 1)
        if isinstance(outcome, RestanteError):
            if self._registry is not None:
                self._registry.not_sent(entry.publishing.envelope, entry.size)
            entry.publishing.failed(outcome)
        else:
            entry.publishing.settled(outcome)

    # -- lost connections ----------------------------------------------------------------------------------------

    def _lost(self, error: BaseException) -> None:
        """Queues unconfirmed events again; after the client's patience they fail."""
        self._drop_connection()
        unconfirmed = list(self._pending.values())
        self._pending.clear()
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
        elif unconfirmed:
            # Two connections in a row without a single confirm: perhaps one of these events ends them.
            if len(unconfirmed) == 1:
                unconfirmed[0].deaths += 1
                if unconfirmed[0].deaths >= FATAL:
                    self._end(unconfirmed.pop(), event_refused(error))
            self._careful = max(self._careful, len(unconfirmed) + len(self._queue))
        for entry in unconfirmed:
            entry.returned = False
        self._queue.extendleft(reversed(unconfirmed))
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
