"""The Kombu transport: one turn of work at a time, driven by Celery's event loop or by `drain_events`.

A turn tells acks and takes what is free in one call per queue, hands messages out, and parks blocked commands that
wake it: markers of idle queues, broadcast streams, a timer for what falls due, a waker that other threads ring. Every
wait has an end. On failure a connection error reaches Kombu and Celery, which connect anew; leases are kept meanwhile.
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
from urllib.parse import quote, urlsplit, urlunsplit

import redis
from kombu.exceptions import ChannelError
from kombu.transport import base

from restante.celery.broker_client import BrokerClient
from restante.celery.channel import Channel, Source, entry_order
from restante.celery.control import extend_inspect
from restante.celery.options import Options
from restante.core.blocking import BlockedCommand
from restante.core.call_retry import BLOCK, markers_by_slot
from restante.core.errors import InvalidInput, NotReady, ReadOnly, RestanteError, Unavailable, Unconfirmed

log = logging.getLogger("restante")

#: Entries of a broadcast taken by one look.
ENTRIES = 100
DEFAULT_PORT = 6379


class Management(base.Management):
    """What Kombu's management interface asks."""

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
    """`restante://`."""

    Channel: Any = Channel
    Management = Management
    can_parse_url = True
    default_port = DEFAULT_PORT
    # Celery knows by this word that broadcasts, mingle and gossip work.
    driver_type = "redis"
    driver_name = "restante"
    connection_errors = (Unavailable, NotReady, Unconfirmed, ReadOnly, OSError)
    channel_errors = (ChannelError, InvalidInput)
    # What connecting anew mends. Without the distinction Kombu closes the connection when a publish is refused.
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

            requests.watch()
        if client.ssl and not self.options.ssl:
            self.options = self.options.with_tls(client.ssl)  # broker_use_ssl: True, or redis-py's arguments
        self.channels: list[Any] = []
        self._broker: BrokerClient | None = None
        self._hub: Any = None
        self._thread = 0
        self._depth = 0
        self._wake_pending = True
        self._waker: tuple[socket.socket, socket.socket] | None = None
        self._markers: list[BlockedCommand] = []
        self._streams: list[BlockedCommand] = []
        self._timer: Any = None
        self._timer_at = 0.0

    def driver_version(self) -> str:
        return str(redis.__version__)

    @property
    def broker(self) -> BrokerClient:
        if self._broker is None:
            self._broker = BrokerClient.shared(self._url(), self.options)
        return self._broker

    def _url(self) -> str:
        """The core's URL for what Kombu was given."""
        client, options = self.client, self.options
        given = client.hostname or ""
        if "://" not in given:
            login = ""
            if client.userid or client.password:
                login = f"{quote(client.userid or '', safe='')}:{quote(client.password or '', safe='')}@"
            path = (client.virtual_host or "/").lstrip("/")
            scheme = "restantes" if client.transport_cls == "restantes" else "restante"
            host = f"[{given}]" if ":" in given else given
            port = client.port or ("" if host else DEFAULT_PORT)
            given = f"{scheme}://{login}{host or 'localhost'}{f':{port}' if port else ''}{f'/{path}' if path else ''}"
        parts = urlsplit(given)
        scheme = parts.scheme
        if options.sentinel_kwargs and scheme != "sentinel" and not options.master_name:
            raise InvalidInput("sentinel_kwargs needs sentinels: use restante+sentinel://…, or set master_name")
        if options.ssl and scheme in ("embedded", "socket", "unix"):
            raise InvalidInput(f"ssl has no meaning for a {scheme} URL: leave it out")
        if scheme == "embedded":
            return f"embedded://{parts.netloc}{parts.path}"
        if scheme in ("socket", "unix"):
            query = parts.query.replace("virtual_host=", "db=")
            return f"unix://{parts.netloc}{parts.path}{f'?{query}' if query else ''}"
        tls = scheme in ("restantes", "rediss") or bool(options.ssl)
        netloc = parts.netloc or f"localhost:{DEFAULT_PORT}"
        if scheme == "cluster" and options.master_name:
            raise InvalidInput("master_name needs sentinels, and the URL is a cluster's: leave it out")
        named = scheme == "sentinel" and parts.path.split("/")[1:2] == [options.master_name]
        if options.master_name and not named:
            return self._sentinel_url(parts, tls)
        if scheme in ("sentinel", "cluster"):
            return urlunsplit((f"{'rediss' if tls else 'redis'}+{scheme}", netloc, parts.path, parts.query, ""))
        if scheme not in ("restante", "restantes", "redis", "rediss"):
            raise InvalidInput(
                f"the broker URL scheme {scheme!r} is not known: use restante://, restantes://, "
                "restante+socket:///path, restante+sentinel://, restante+cluster:// or restante+embedded://"
            )
        return urlunsplit(("rediss" if tls else "redis", netloc, parts.path, parts.query, ""))

    def _sentinel_url(self, parts: Any, tls: bool) -> str:
        """Kombu's way: a list of URLs, each a sentinel, and the service's name as an option."""
        hosts = []
        for text in self.client.alt or [f"restante://{parts.netloc}"]:
            host = urlsplit(text).netloc.rpartition("@")[2]
            hosts.append(host if ":" in host else f"{host}:26379")
        login = parts.netloc.rpartition("@")[0]
        netloc = f"{login}@{','.join(hosts)}" if login else ",".join(hosts)
        database = parts.path.strip("/")
        path = f"/{self.options.master_name}/{database}" if database else f"/{self.options.master_name}"
        return str(urlunsplit((f"{'rediss' if tls else 'redis'}+sentinel", netloc, path, parts.query, "")))

    # -- connection ----------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        self.broker.ping()
        extend_inspect()
        return self

    def verify_connection(self, connection: Any) -> bool:
        return True

    def create_channel(self, connection: Any) -> Any:
        # Not of this transport where Kombu has switched to another URL while it connected.
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
        for parked in (*self._markers, *self._streams):
            if hub is not None:
                _ignoring(hub.remove_reader, parked)
            parked.drop()
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

    # -- turns ---------------------------------------------------------------------------------------------------

    @property
    def turning(self) -> bool:
        """Whether somebody will tell acks soon: Celery's loop, or a drain under way."""
        return self._hub is not None or self._depth > 0

    def wake(self) -> None:
        """Something changed: the next turn must look. From another thread it wakes the loop."""
        self._wake_pending = True
        if self._waker is not None and threading.get_ident() != self._thread:
            try:
                self._waker[1].send(b".")
            except OSError:
                pass  # full: it is ringing already

    def _ring(self) -> socket.socket:
        if self._waker is None:
            near, far = socket.socketpair()
            near.setblocking(False)
            far.setblocking(False)
            self._waker = (near, far)
        return self._waker[0]

    def _quiet(self) -> None:
        if self._waker is not None:
            try:
                while self._waker[0].recv(4096):
                    pass
            except OSError:
                pass

    def _turn(self) -> None:
        """Takes what is free; acks that nothing was taken with are told after it."""
        self._wake_pending = False
        now = time.monotonic()
        for channel in list(self.channels):
            channel.pump(now)
        broker = self.broker
        if broker.has_acks() and not any(channel.waiting for channel in self.channels):
            broker.flush_acks()

    def _next_due(self) -> float | None:
        """Seconds until something falls due in a queue that has room."""
        times = [
            source.due_at
            for channel in self.channels if channel.free
            for source in channel.sources.values() if source.due_at is not None
        ]  # fmt: skip
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _idle_sources(self) -> list[Source]:
        return [
            source
            for channel in self.channels if channel.free
            for source in channel.sources.values() if not source.maybe
        ]  # fmt: skip

    def _busy(self) -> bool:
        """Whether the next turn has something to do already."""
        return self._wake_pending or any(
            channel.waiting or (channel.free and any(source.maybe for source in channel.sources.values()))
            for channel in self.channels
        )

    def _park(self) -> None:
        """Blocks on the markers of idle queues and on broadcasts, unless that is so already."""
        wanted = {source.marker for source in self._idle_sources()}
        parked = {marker for one in self._markers for marker in one.words[1:-1]}
        if not wanted <= parked:
            for one in self._markers:
                self._woken(self._unwatch(one).end())
            self._markers = []
            if not self._busy():
                connection = self.broker.client.connection
                for names in markers_by_slot(connection.endpoint, sorted(wanted)):
                    self._markers.append(self._watch(BlockedCommand(connection, ("BZPOPMIN", *names, BLOCK), names[0])))
        self._park_streams()

    def _park_streams(self) -> None:
        wanted: dict[bytes, str] = {}
        for channel in self.channels:
            for source in channel.sources.values():
                for stream, place in source.places.items():
                    wanted[stream] = min(wanted.get(stream, place), place, key=entry_order)
        if {stream for one in self._streams for stream in one.words[6 : 6 + (len(one.words) - 6) // 2]} == set(wanted):
            return
        for one in self._streams:
            self._heard(self._unwatch(one).end())
        self._streams = []
        connection = self.broker.client.connection
        for names in markers_by_slot(connection.endpoint, sorted(wanted)):
            places = [wanted[name] for name in names]
            words = ("XREAD", "BLOCK", int(BLOCK * 1000), "COUNT", ENTRIES, "STREAMS", *names, *places)
            self._streams.append(self._watch(BlockedCommand(connection, words, names[0])))

    def _watch(self, parked: BlockedCommand) -> BlockedCommand:
        if self._hub is not None:
            self._hub.add_reader(parked.fileno(), self._answered, parked)
        return parked

    def _unwatch(self, parked: BlockedCommand) -> BlockedCommand:
        if self._hub is not None:
            _ignoring(self._hub.remove_reader, parked.fileno())
        return parked

    def _answered(self, parked: BlockedCommand) -> None:
        """A blocked command has its answer."""
        if parked in self._markers:
            self._markers.remove(parked)
            self._woken(self._unwatch(parked).read())
        elif parked in self._streams:
            self._streams.remove(parked)
            self._heard(self._unwatch(parked).read())
        self._wake_pending = True

    def _woken(self, reply: Any) -> None:
        """A marker was set, or nothing happened for so long that it is time to look."""
        now = time.monotonic()
        self.broker.polled_at = now
        if reply:
            for channel in self.channels:
                for source in channel.sources.values():
                    if source.marker == reply[0]:
                        source.maybe = True
                        if not channel.free:
                            # Not for us now: whoever has room shall have it.
                            self.broker.command("ZADD", source.marker, 0, 0, key=source.marker)
            return
        for channel in self.channels:
            for source in channel.sources.values():
                source.maybe = source.maybe or not source.info.transient
            channel.refresh(now)
        self.broker.transient_queues.remove_expired_when_due()

    def _heard(self, reply: Any) -> None:
        for stream, entries in reply or ():
            for channel in list(self.channels):
                channel.hear(stream, entries)
        if not reply:
            now = time.monotonic()
            for channel in self.channels:
                channel.refresh(now)

    def _check_late(self) -> None:
        for parked in (*self._markers, *self._streams):
            if parked.late:
                self._unwatch(parked)
                (self._markers if parked in self._markers else self._streams).remove(parked)
                parked.give_up()
                raise Unavailable("the broker's answer is overdue: the connection is half-open")

    # -- by drain_events -----------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Hands out what is there, or raises socket.timeout.

        As with RabbitMQ, a consumer without a prefetch count gets everything that has arrived. One with a count gets
        one message: the loop of a worker that runs tasks in place decides between two tasks whether it goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._thread = threading.get_ident()
        self._depth += 1
        try:
            while True:
                if self._deliver():
                    return
                self._turn()
                if self._deliver():
                    return
                self._park()
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
            self._depth -= 1
            more = self.turning or any(channel.waiting for channel in self.channels)
            if self._broker is not None and not more and self._broker.has_acks():
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
        waker = self._ring()
        poller.register(waker, select.POLLIN)
        by_number = {parked.fileno(): parked for parked in (*self._markers, *self._streams)}
        for number in by_number:
            poller.register(number, select.POLLIN)
        for number, _ in poller.poll(max(0.0, seconds) * 1000):
            if number == waker.fileno():
                self._quiet()
                self._wake_pending = True
            else:
                self._answered(by_number[number])
        self._check_late()

    # -- by Celery's loop ----------------------------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        for parked in (*self._markers, *self._streams):
            loop.add_reader(parked.fileno(), self._answered, parked)
        self._hub = loop
        self._thread = threading.get_ident()
        self._wake_pending = True
        loop.add_reader(self._ring(), self._quiet)
        loop.on_tick.add(self._tick)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        loop.on_tick.discard(self._tick)
        self._hub = None

    def on_readable(self, connection: Any, loop: Any) -> None:
        self._wake_pending = True

    def _tick(self) -> None:
        """One turn of Celery's loop, before it sleeps."""
        self._thread = threading.get_ident()
        due = self._next_due()
        if not (self._busy() or (due is not None and due <= 0)):
            if self._markers or self._streams:
                self._check_late()
            return
        self._turn()
        delivered = False
        for channel in list(self.channels):
            while channel.deliver():
                delivered = True
        if not self._busy():
            if self.broker.has_acks():
                self.broker.flush_acks()
            self._park()
        if delivered or self._busy():
            # The pool learns of new work by callbacks like this one, which may have been before it: once more round.
            self._wake_at(0.0)
        elif (due := self._next_due()) is not None:
            self._wake_at(due)

    def _wake_at(self, seconds: float) -> None:
        """Makes the loop turn again then. It has chosen its sleep already, so a nearer time rings the waker."""
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
        self._wake_at(0.0)


class SchemeTransport(Transport):
    """What `restante://` and `restantes://` stand for: Kombu takes the URL apart, as for most transports.

    `Transport`, which an application names by `broker_transport`, reads the URL itself: Kombu would lose that it said
    `rediss://`.
    """

    can_parse_url = False


class _Timer:
    """An entry of the loop's timers that knows whether it has rung."""

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


def _ignoring(call: Callable[..., Any], *words: Any) -> None:
    try:
        call(*words)
    except (OSError, ValueError, KeyError):
        pass
