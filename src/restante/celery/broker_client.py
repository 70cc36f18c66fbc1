"""The client of one broker in one process: its connection, the leases it holds, and verdicts that are pending.

Kombu replaces connections and channels after every network failure; the leases outlive them. On failure a pending
verdict is sent again until the server answers or the lease ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from restante.celery.options import Options
from restante.celery.routing import Routing
from restante.celery.transient_queues import TransientQueues
from restante.celery.unroutable import DroppedMessages
from restante.connecting import resolve
from restante.core.call_retry import away
from restante.core.errors import RestanteError, Unavailable
from restante.core.holder import LeaseHolder
from restante.core.operations import Received
from restante.core.queue import Client, Flow, LeasedMessage, Queue, run_flow
from restante.core.router import Router
from restante.core.settings import ClientSettings

T = TypeVar("T")
log = logging.getLogger("restante")

#: Seconds an ack may wait for the loop to flush it; then the verdict thread does. Shorter: more calls beside the loop.
#: Longer: a program without a loop settles its messages later.
ACK_DELAY = 0.25
#: Rounds without work after which the verdict thread ends.
IDLE_ROUNDS = 40

_clients: dict[tuple[int, str, Options], BrokerClient] = {}
_lock = threading.Lock()


class BrokerClient:
    """A broker client that all Kombu connections of this process to one broker share."""

    def __init__(self, url: str, options: Options) -> None:
        self.options = options
        self.on_close: Any = None
        if url.startswith("embedded:"):
            url, self.on_close = resolve(None, url.partition("//")[2] or ".restante")
        chosen = {
            "socket_timeout": options.socket_timeout,
            "connect_timeout": options.socket_connect_timeout,
            "patience": options.patience,
            "allow_eviction": options.allow_eviction,
        }
        settings = ClientSettings(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
        self.client = Client(url, settings)
        extra = self.client.connection.endpoint.options
        if options.client_name:
            extra["client_name"] = options.client_name
        if options.socket_keepalive is not None and not url.startswith("unix:"):
            extra["socket_keepalive"] = options.socket_keepalive
        if options.socket_keepalive_options is not None and not url.startswith("unix:"):
            extra["socket_keepalive_options"] = dict(options.socket_keepalive_options)
        if isinstance(options.ssl, Mapping):
            extra.update(options.ssl)
        if options.sentinel_kwargs:
            self.client.connection.endpoint.sentinel.update(options.sentinel_kwargs)
        self.command = self.client.connection.command
        self.router = Router(self.client, options.global_keyprefix, author="celery")
        self.routing = Routing(self)
        self.transient_queues = TransientQueues(self)
        self.dropped = DroppedMessages(self)
        self.holder = LeaseHolder(self.client.connection)
        self._verdict_thread: threading.Thread | None = None
        self._users = 0
        self._clock: tuple[float, float] | None = None
        #: What the consumer registry shows of this process; a worker sets it.
        self.process_info = b""
        #: When a consumer of this process last looked for messages, by time.monotonic().
        self.polled_at = 0.0

    @classmethod
    def shared(cls, url: str, options: Options) -> BrokerClient:
        """Returns this process's client for a broker and counts one more user; call `close` when done with it."""
        key = (os.getpid(), url, _hashable(options))
        with _lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = cls(url, options)
            client._users += 1
            return client

    def close(self) -> None:
        """Counts one user less; the last one closes the connection, unless leases are held or verdicts pending."""
        with _lock:
            self._users -= 1
            if self._users > 0 or self.holder.in_use:
                return
            for key in [key for key, client in _clients.items() if client is self]:
                del _clients[key]
        self.transient_queues.close()
        self.holder.close()
        self.client.close()
        if self.on_close is not None:
            self.on_close()

    def full_name(self, name: str) -> str:
        """A queue's or exchange's name on the server, with the prefix of this application."""
        return f"{self.options.global_keyprefix}{name}"

    def queue(self, name: str) -> Queue:
        return self.client.queue(self.full_name(name))

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow of operations to its end and returns its result."""
        return run_flow(self.client.connection, flow)

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, queue: Queue, count: int, lease: float) -> Received:
        """Receives up to `count` messages and delivers the queue's acks in the same call."""
        if self.process_info and queue.ref.presence != self.process_info:
            queue.ref.presence, queue.ref.seen = self.process_info, 0.0
        try:
            received, _ = self.holder.receive(queue, count, lease=lease)
        except BaseException:
            if self.holder.has_acks:
                self._start_verdict_thread()
            raise
        self.polled_at = time.monotonic()
        assert received is not None  # one queue without a wait always answers
        if received.messages:
            self.holder.hold(queue, received.messages)
            self._start_verdict_thread()
        return received

    # -- verdicts ------------------------------------------------------------------------------------------------

    def flush_acks(self) -> None:
        """Delivers every queued ack; one that cannot be delivered now is repeated by the verdict thread."""
        try:
            self.holder.flush_all()
        except BaseException:
            self._start_verdict_thread()
            raise

    def release(self, messages: Sequence[LeasedMessage]) -> None:
        """Returns messages to their queues without counting the attempt; repeats it later if the server is away."""
        self.holder.release_all(messages, insist=True)
        if self.holder.has_late_releases:
            self._start_verdict_thread()

    def _start_verdict_thread(self) -> None:
        if self._verdict_thread is None or not self._verdict_thread.is_alive():
            with _lock:
                if self._verdict_thread is None or not self._verdict_thread.is_alive():
                    self._verdict_thread = threading.Thread(
                        target=self._deliver_verdicts, name="restante-verdicts", daemon=True
                    )
                    self._verdict_thread.start()

    def _deliver_verdicts(self) -> None:
        """Delivers verdicts that no loop delivered in time. Ends after a while without work."""
        idle = failures = 0
        while idle < IDLE_ROUNDS or not self._idle_thread_ends():
            time.sleep(ACK_DELAY if not failures else away(failures))
            try:
                if self.holder.has_late_releases:
                    self.holder.release_late()
                elif self.holder.has_acks:
                    if time.monotonic() - self.holder.acks_since >= ACK_DELAY:
                        self.holder.flush_all()
                elif not self.holder.in_use:
                    idle += 1
                    continue
                idle = failures = 0
            except RestanteError as error:
                failures += 1
                if failures == 1:
                    log.warning("verdicts delayed error=%s", error)
            except Exception:
                failures += 1
                log.exception("verdicts delayed")

    def _idle_thread_ends(self) -> bool:
        """Signs the thread off, unless a message was received meanwhile: its receiver may have seen the thread here."""
        with _lock:
            self._verdict_thread = None
            if self.holder.in_use:
                self._verdict_thread = threading.current_thread()
        return self._verdict_thread is None

    def server_time(self) -> float:
        """The server's clock in seconds, read once a minute and extrapolated in between."""
        now = time.monotonic()
        if self._clock is None or now - self._clock[0] > 60:
            seconds, micro = self.command("TIME", key=b"")
            self._clock = (now, int(seconds) + int(micro) / 1e6)
        return self._clock[1] + now - self._clock[0]

    def ping(self) -> None:
        """Raises if the server does not answer."""
        try:
            self.command("PING", key=b"")
        except RestanteError:
            raise
        except OSError as error:
            raise Unavailable(str(error)) from None


def _hashable(options: Options) -> Options:
    """Options as a dictionary key: dicts in them are replaced by their text."""
    return replace(
        options,
        ssl=repr(options.ssl),
        sentinel_kwargs=repr(options.sentinel_kwargs),
        socket_keepalive_options=repr(options.socket_keepalive_options),
    )
