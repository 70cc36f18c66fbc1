"""The Kombu transport: receives, delivers and waits, driven by Celery's event loop or by `drain_events`.

Each round receives what there is room for, with one call per queue that also carries pending acks, and hands messages
to consumers. Then the transport waits for the markers of idle queues, for broadcast streams, for a timer that rings
when something falls due, and for a socket by which other threads wake it. Every wait has an end.

On failure a connection error reaches Kombu and Celery, which reconnect; leases are kept meanwhile.
"""

from __future__ import annotations

import logging
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from kombu.exceptions import ChannelError
from kombu.transport import base

from restante.celery.broadcasts import entry_order
from restante.celery.broker_client import BrokerClient
from restante.celery.channel import Channel
from restante.celery.control import extend_inspect
from restante.celery.options import Options
from restante.celery.source import Source
from restante.celery.urls import DEFAULT_PORT, core_url
from restante.core.blocking import BlockedCommand
from restante.core.call_retry import BLOCK, markers_by_slot
from restante.core.errors import InvalidInput, NotReady, ReadOnly, RestanteError, Unavailable, Unconfirmed

log = logging.getLogger("restante")

#: Broadcasts read by one call.
ENTRIES = 100


class Management(base.Management):
    """Kombu's management interface."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.channel = transport.client.channel()

    def get_bindings(self) -> list[dict[str, str]]:
        return [
            {"destination": queue, "source": exchange, "routing_key": pattern}
            for queue, exchange, pattern in self.channel.list_bindings()
        ]

    def close(self) -> None:
        self.channel.close()


class Transport(base.Transport):
    """A transport for any broker URL, for applications that name it with `broker_transport`."""

    Channel: Any = Channel
    Management = Management
    can_parse_url = True
    default_port = DEFAULT_PORT
    # With this value Celery enables broadcasts, mingle and gossip.
    driver_type = "redis"
    driver_name = "restante"
    connection_errors = (Unavailable, NotReady, Unconfirmed, ReadOnly, OSError)
    channel_errors = (ChannelError, InvalidInput)
    # Errors that a reconnect cures. Without this list Kombu would close the connection when a publish is refused.
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.options = Options.parse(client.transport_options)
        if "celery" in sys.modules:  # Kombu alone has no workers, and need not load Celery
            from restante.celery import requests

            requests.trust_broker_delays()
        if client.ssl and not self.options.ssl:
            self.options = self.options.with_tls(client.ssl)  # broker_use_ssl: True, or redis-py's arguments
        self.channels: list[Any] = []
        self._broker: BrokerClient | None = None
        self._hub: Any = None
        self._thread = 0
        #: Calls of drain_events under way.
        self._drains = 0
        self._wake_pending = True
        #: Two ends of a socket: a byte written to the second ends a wait on the first.
        self._waker: tuple[socket.socket, socket.socket] | None = None
        #: What waits at the server: for markers of idle queues, and for broadcasts.
        self._markers: list[BlockedCommand] = []
        self._streams: list[BlockedCommand] = []
        self._timer: Any = None
        self._timer_at = 0.0

    def driver_version(self) -> str:
        return str(redis.__version__)

    @property
    def broker(self) -> BrokerClient:
        if self._broker is None:
            self._broker = BrokerClient.shared(core_url(self.client, self.options), self.options)
        return self._broker

    @property
    def seconds_since_poll(self) -> float | None:
        """Seconds since this process last looked for messages; None before it connects."""
        return None if self._broker is None else time.monotonic() - self._broker.polled_at

    # -- connection ----------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        self.broker.ping()
        extend_inspect()
        return self

    def verify_connection(self, connection: Any) -> bool:
        return True

    def create_channel(self, connection: Any) -> Any:
        # The connection may belong to another transport: Kombu may have switched to another URL while it connected.
        channel = connection.Channel(connection)
        connection.channels.append(channel)
        return channel

    def close_channel(self, channel: Any) -> None:
        if channel in self.channels:
            self.channels.remove(channel)
        channel.connection = None
        self.wake()

    def close_connection(self, connection: Any) -> None:
        for channel in list(self.channels):
            try:
                channel.close()
            except RestanteError as error:
                log.warning("closing failed error=%s", error)
        self.channels.clear()
        hub, self._hub = self._hub, None
        for command in (*self._markers, *self._streams):
            if hub is not None:
                _ignoring(hub.remove_reader, command)
            command.close()
        self._markers, self._streams = [], []
        if hub is not None:
            hub.on_tick.discard(self._tick)
            if self._waker is not None:
                _ignoring(hub.remove_reader, self._waker[0])
        if self._waker is not None:
            near, far = self._waker
            self._waker = None
            near.close()
            far.close()
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    # -- rounds --------------------------------------------------------------------------------------------------

    @property
    def loop_running(self) -> bool:
        """Whether Celery's event loop or a call of `drain_events` will flush pending acks soon."""
        return self._hub is not None or self._drains > 0

    def wake(self) -> None:
        """Makes the next round look for messages; called from another thread, it ends the loop's wait."""
        self._wake_pending = True
        if self._waker is not None and threading.get_ident() != self._thread:
            try:
                self._waker[1].send(b".")
            except OSError:
                pass  # full: a wake-up is pending already

    def _waker_socket(self) -> socket.socket:
        if self._waker is None:
            near, far = socket.socketpair()
            near.setblocking(False)
            far.setblocking(False)
            self._waker = (near, far)
        return self._waker[0]

    def _empty_waker(self) -> None:
        if self._waker is not None:
            try:
                while self._waker[0].recv(4096):
                    pass
            except OSError:
                pass

    def _receive(self) -> None:
        """Receives for every channel; then flushes the acks that no receive has carried."""
        self._wake_pending = False
        now = time.monotonic()
        for channel in list(self.channels):
            channel.receive(now)
        broker = self.broker
        if broker.holder.has_acks and not any(channel.waiting for channel in self.channels):
            broker.flush_acks()

    def _next_due(self) -> float | None:
        """Seconds until something falls due for a channel that has room."""
        times = [
            source.due_at
            for channel in self.channels
            if channel.room
            for source in channel.sources.values()
            if source.due_at is not None
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _idle_sources(self) -> list[Source]:
        return [
            source
            for channel in self.channels
            if channel.room
            for source in channel.sources.values()
            if not source.maybe_ready
        ]

    def _busy(self) -> bool:
        """Whether the next round has something to do already."""
        return self._wake_pending or any(
            channel.waiting or (channel.room and any(source.maybe_ready for source in channel.sources.values()))
            for channel in self.channels
        )

    def _start_waiting(self) -> None:
        """Sends the commands that block until an idle queue has messages or a broadcast arrives, unless they run."""
        wanted = {source.marker for source in self._idle_sources()}
        blocked = {marker for command in self._markers for marker in command.keys}
        if not wanted <= blocked:
            for command in self._markers:
                self._on_marker(self._unwatch(command).unblock())
            self._markers = []
            if not self._busy():
                connection = self.broker.client.connection
                for names in markers_by_slot(connection.endpoint, sorted(wanted)):
                    words = ("BZPOPMIN", *names, BLOCK)
                    self._markers.append(self._watch(BlockedCommand(connection, words, names)))
        self._wait_for_broadcasts()

    def _wait_for_broadcasts(self) -> None:
        wanted: dict[bytes, str] = {}
        for channel in self.channels:
            for source in channel.sources.values():
                for stream, position in source.broadcasts.positions.items():
                    wanted[stream] = min(wanted.get(stream, position), position, key=entry_order)
        if {stream for command in self._streams for stream in command.keys} == set(wanted):
            return
        for command in self._streams:
            self._on_broadcasts(self._unwatch(command).unblock())
        self._streams = []
        connection = self.broker.client.connection
        for names in markers_by_slot(connection.endpoint, sorted(wanted)):
            positions = [wanted[name] for name in names]
            words = ("XREAD", "BLOCK", int(BLOCK * 1000), "COUNT", ENTRIES, "STREAMS", *names, *positions)
            self._streams.append(self._watch(BlockedCommand(connection, words, names)))

    def _watch(self, command: BlockedCommand) -> BlockedCommand:
        if self._hub is not None:
            self._hub.add_reader(command.fileno(), self._on_answer, command)
        return command

    def _unwatch(self, command: BlockedCommand) -> BlockedCommand:
        if self._hub is not None:
            _ignoring(self._hub.remove_reader, command.fileno())
        return command

    def _on_answer(self, command: BlockedCommand) -> None:
        """Reads the answer of a blocked command."""
        if command in self._markers:
            self._markers.remove(command)
            self._on_marker(self._unwatch(command).read())
        elif command in self._streams:
            self._streams.remove(command)
            self._on_broadcasts(self._unwatch(command).read())
        self._wake_pending = True

    def _on_marker(self, reply: Any) -> None:
        """Marks the queue that has messages, or every durable queue if the wait timed out."""
        now = time.monotonic()
        self.broker.polled_at = now
        if reply:
            for channel in self.channels:
                for source in channel.sources.values():
                    if source.marker == reply[0]:
                        source.maybe_ready = True
                        if not channel.room:
                            # This channel cannot receive now: the marker is set again for a consumer that can.
                            self.broker.command("ZADD", source.marker, 0, 0, key=source.marker)
            return
        for channel in self.channels:
            for source in channel.sources.values():
                source.maybe_ready = source.maybe_ready or not source.info.transient
            channel.save_positions(now)
        self.broker.transient_queues.remove_expired_when_due()

    def _on_broadcasts(self, reply: Any) -> None:
        for stream, entries in reply or ():
            for channel in list(self.channels):
                channel.receive_broadcasts(stream, entries)
        if not reply:
            now = time.monotonic()
            for channel in self.channels:
                channel.save_positions(now)

    def _check_overdue(self) -> None:
        for command in (*self._markers, *self._streams):
            if command.overdue:
                self._unwatch(command)
                (self._markers if command in self._markers else self._streams).remove(command)
                command.give_up()
                raise Unavailable("the broker's answer is overdue: the connection is half-open")

    # -- by drain_events -----------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Hands waiting messages to their consumers; raises socket.timeout if none arrives in time.

        As with RabbitMQ, a consumer without a prefetch count gets all messages that have arrived. With a count it gets
        one: a worker that runs tasks in its own loop decides between two tasks whether it continues.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._thread = threading.get_ident()
        self._drains += 1
        try:
            while True:
                if self._deliver():
                    return
                self._receive()
                if self._deliver():
                    return
                self._start_waiting()
                if self._busy():
                    continue
                pause = BLOCK
                due = self._next_due()
                if due is not None:
                    pause = min(pause, due)
                if deadline is not None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("timed out")
                    pause = min(pause, left)
                self._sleep(pause)
        finally:
            self._drains -= 1
            more = self.loop_running or any(channel.waiting for channel in self.channels)
            if self._broker is not None and not more and self._broker.holder.has_acks:
                self._broker.flush_acks()

    def _deliver(self) -> bool:
        delivered = False
        for channel in list(self.channels):
            if channel.prefetch and delivered:
                continue
            while channel.deliver():
                delivered = True
                if channel.prefetch:
                    break
        return delivered

    def _sleep(self, seconds: float) -> None:
        poller = select.poll()
        waker = self._waker_socket()
        poller.register(waker, select.POLLIN)
        by_number = {command.fileno(): command for command in (*self._markers, *self._streams)}
        for number in by_number:
            poller.register(number, select.POLLIN)
        for number, _ in poller.poll(max(0.0, seconds) * 1000):
            if number == waker.fileno():
                self._empty_waker()
                self._wake_pending = True
            else:
                self._on_answer(by_number[number])
        self._check_overdue()

    # -- by Celery's loop ----------------------------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        for command in (*self._markers, *self._streams):
            loop.add_reader(command.fileno(), self._on_answer, command)
        self._hub = loop
        self._thread = threading.get_ident()
        self._wake_pending = True
        loop.add_reader(self._waker_socket(), self._empty_waker)
        loop.on_tick.add(self._tick)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        loop.on_tick.discard(self._tick)
        self._hub = None

    def on_readable(self, connection: Any, loop: Any) -> None:
        self._wake_pending = True

    def _tick(self) -> None:
        """Runs one round in Celery's event loop, before the loop sleeps."""
        self._thread = threading.get_ident()
        due = self._next_due()
        if not (self._busy() or (due is not None and due <= 0)):
            if self._markers or self._streams:
                self._check_overdue()
            return
        self._receive()
        delivered = False
        for channel in list(self.channels):
            while channel.deliver():
                delivered = True
        if not self._busy():
            if self.broker.holder.has_acks:
                self.broker.flush_acks()
            self._start_waiting()
        if delivered or self._busy():
            # The pool learns of new work in a callback like this one, which may have run already: one more tick.
            self._tick_in(0.0)
        elif (due := self._next_due()) is not None:
            self._tick_in(due)

    def _tick_in(self, seconds: float) -> None:
        """Makes the loop tick again after so many seconds.

        The loop has computed its sleep already, so an earlier time has to wake it by the waker.
        """
        if seconds <= 0:
            if self._waker is not None:
                try:
                    self._waker[1].send(b".")
                except OSError:
                    pass
            return
        at = time.monotonic() + seconds
        if self._timer is not None:
            if not self._timer.fired and abs(self._timer_at - at) < 0.001:
                return
            self._timer.cancel()
        self._timer = _Timer(self._hub, seconds, self.wake)
        self._timer_at = at
        self._tick_in(0.0)


class SchemeTransport(Transport):
    """The transport of `restante://` and `restantes://`: Kombu splits the URL, as for most transports.

    `Transport` parses the URL itself, because Kombu would lose the scheme `rediss://`.
    """

    can_parse_url = False


class _Timer:
    """A timer of the event loop that knows whether it has fired."""

    def __init__(self, hub: Any, seconds: float, then: Callable[[], None]) -> None:
        self.fired = False
        self._then = then
        self._entry = hub.call_later(seconds, self)

    def __call__(self) -> None:
        self.fired = True
        self._then()

    def cancel(self) -> None:
        if not self.fired:
            self._entry.cancel()


def _ignoring(call: Callable[..., Any], *args: Any) -> None:
    """Makes a call whose failure does not matter: its file descriptor may be closed already."""
    try:
        call(*args)
    except (OSError, ValueError, KeyError):
        pass
