"""What one process has of one broker: the client, the leases it holds, and verdicts that are still to be told.

Connections and channels come and go with every hiccup of the network; leases do not. On failure to tell a verdict it
is told again until the server is back or the lease is over.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from restante.celery.options import Options
from restante.celery.presence import Presence
from restante.celery.routing import Routing
from restante.celery.unroutable import DroppedMessages
from restante.connecting import resolve
from restante.core.call_retry import away
from restante.core.errors import LeaseLost, RestanteError, Unavailable
from restante.core.operations import MAX_BATCH, Received
from restante.core.queue import Client, LeasedMessage, Queue, receiving
from restante.core.renewal import Renewal
from restante.core.settings import ClientSettings

log = logging.getLogger("restante")

#: Seconds an ack may wait for the turn of a loop; after them it is told from the side.
LONGEST_ACK = 0.25

_desks: dict[tuple[int, str, Options], Desk] = {}
_lock = threading.Lock()


class Desk:
    """The client of one broker in one process; shared by all its connections."""

    def __init__(self, url: str, options: Options) -> None:
        self.options = options
        self.on_close: Any = None
        if url.startswith("embedded:"):
            url, self.on_close = resolve(None, url.partition("//")[2] or ".restante")
        told = {
            "socket_timeout": options.socket_timeout, "connect_timeout": options.socket_connect_timeout,
            "patience": options.patience, "allow_eviction": options.allow_eviction,
        }  # fmt: skip
        settings = ClientSettings(**{name: value for name, value in told.items() if value is not None})  # type: ignore[arg-type]
        self.post = Client(url, settings)
        extra = self.post.connection.endpoint.options
        if options.client_name:
            extra["client_name"] = options.client_name
        if options.socket_keepalive is not None and not url.startswith("unix:"):
            extra["socket_keepalive"] = options.socket_keepalive
        if options.socket_keepalive_options is not None and not url.startswith("unix:"):
            extra["socket_keepalive_options"] = dict(options.socket_keepalive_options)
        if isinstance(options.ssl, Mapping):
            extra.update(options.ssl)
        if options.sentinel_kwargs:
            self.post.connection.endpoint.sentinel.update(options.sentinel_kwargs)
        self.command = self.post.connection.command
        self.routing = Routing(self)
        self.presence = Presence(self)
        self.dropped = DroppedMessages(self)
        self.renewal = Renewal(self.post.connection)
        self._queues: dict[str, Queue] = {}
        self._acks: dict[str, deque[LeasedMessage]] = {}
        self._acked_at = 0.0
        #: To be released once the server is back.
        self._late: deque[LeasedMessage] = deque()
        self._side: threading.Thread | None = None
        self._users = 0
        self._clock: tuple[float, float] | None = None
        #: What the registry shows of this process, where a worker says it.
        self.process_info = b""
        #: When a consumer of this process last looked for messages, by time.monotonic().
        self.polled_at = 0.0

    @classmethod
    def of(cls, url: str, options: Options) -> Desk:
        """The desk of this process for a broker; leave it when done."""
        key = (os.getpid(), url, _hashable(options))
        with _lock:
            desk = _desks.get(key)
            if desk is None:
                desk = _desks[key] = cls(url, options)
            desk._users += 1
            return desk

    def leave(self) -> None:
        """The last user closes the client, unless tasks at work still have verdicts to give."""
        with _lock:
            self._users -= 1
            if self._users > 0 or self.renewal.held_any or self.has_acks() or self._late:
                return
            for key in [key for key, desk in _desks.items() if desk is self]:
                del _desks[key]
        self.presence.close()
        self.renewal.close()
        self.post.close()
        if self.on_close is not None:
            self.on_close()

    def name(self, word: str) -> str:
        """A queue's or exchange's name on the server."""
        return f"{self.options.global_keyprefix}{word}"

    def queue(self, name: str) -> Queue:
        full = self.name(name)
        found = self._queues.get(full)
        if found is None:
            found = self._queues[full] = self.post.queue(full)
        return found

    # -- taking --------------------------------------------------------------------------------------------------

    def take(self, queue: Queue, count: int, lease: float) -> Received:
        """Receives up to `count`; acks that wait travel along."""
        acks = self._waiting_acks(queue.name)
        if self.process_info and queue.ref.presence != self.process_info:
            queue.ref.presence, queue.ref.seen = self.process_info, 0.0
        try:
            got = queue.run(receiving((queue.ref,), count, lease=lease, acks=acks))
        except BaseException:
            self._put_back(queue.name, acks)
            raise
        self.polled_at = time.monotonic()
        assert got is not None  # one queue without a wait always answers
        if got.messages:
            self.renewal.hold(queue.ref, got.messages)
            self._start()
        return got

    # -- verdicts ------------------------------------------------------------------------------------------------

    def ack_soon(self, message: LeasedMessage) -> None:
        """Notes an ack that is told with the next receive of its queue, or by `tell_acks`."""
        message.settled = True
        self.renewal.drop(message)
        waiting = self._acks.get(message.queue)
        if waiting is None:
            waiting = self._acks.setdefault(message.queue, deque())
        if not waiting:
            self._acked_at = time.monotonic()
        waiting.append(message)

    def has_acks(self) -> bool:
        return any(self._acks.values())

    def tell_acks(self) -> None:
        """Tells every ack that waits."""
        for name in list(self._acks):
            while acks := self._waiting_acks(name):
                try:
                    self.post.queue(name).ack_many(acks)
                except LeaseLost as error:
                    log.warning("lease lost before ack queue=%s ids=%s", name, ",".join(error.ids[:10]))
                except BaseException:
                    self._put_back(name, acks)
                    raise

    def _waiting_acks(self, name: str) -> Sequence[LeasedMessage]:
        waiting = self._acks.get(name)
        if not waiting:
            return ()
        made: list[LeasedMessage] = []
        while len(made) < MAX_BATCH:
            try:
                made.append(waiting.popleft())
            except IndexError:
                break
        return made

    def _put_back(self, name: str, acks: Sequence[LeasedMessage]) -> None:
        if acks:
            self._acks.setdefault(name, deque()).extendleft(reversed(acks))
            self._start()

    def nack(self, message: LeasedMessage, error: BaseException | str, delay: float = 0.0) -> None:
        """Back to its place after the delay, the attempt counted."""
        self._settle("nack", message, error, delay)

    def bury(self, message: LeasedMessage, error: BaseException | str) -> None:
        self._settle("bury", message, error)

    def release(self, messages: Sequence[LeasedMessage]) -> None:
        """Back to their places, attempts not counted; told later where the server is away."""
        by_queue: dict[str, list[LeasedMessage]] = {}
        for message in messages:
            message.settled = True
            self.renewal.drop(message)
            by_queue.setdefault(message.queue, []).append(message)
        for name, some in by_queue.items():
            for start in range(0, len(some), MAX_BATCH):
                part = some[start : start + MAX_BATCH]
                try:
                    self.post.queue(name).release_many(part)
                except LeaseLost:
                    pass  # somebody else has them already
                except RestanteError as error:
                    log.warning("release put off queue=%s count=%d error=%s", name, len(part), error)
                    self._late += part
                    self._start()

    def _settle(self, verb: str, message: LeasedMessage, error: BaseException | str, delay: float = 0.0) -> None:
        message.settled = True
        self.renewal.drop(message)
        queue = self.post.queue(message.queue)
        try:
            if verb == "nack":
                queue.nack_many((message,), delay=delay, error=error)
            else:
                queue.bury_many((message,), error=error)
        except LeaseLost:
            log.warning("lease lost before %s queue=%s id=%s", verb, message.queue, message.id)

    # -- from the side -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._side is None or not self._side.is_alive():
            with _lock:
                if self._side is None or not self._side.is_alive():
                    self._side = threading.Thread(target=self._work, name="restante-desk", daemon=True)
                    self._side.start()

    def _work(self) -> None:
        """Tells what no loop told in time. Ends when there has been nothing to do for a while."""
        idle = failures = 0
        while idle < 40:
            time.sleep(LONGEST_ACK if not failures else away(failures))
            try:
                if self._late:
                    self._tell_late()
                elif self.has_acks():
                    if time.monotonic() - self._acked_at >= LONGEST_ACK:
                        self.tell_acks()
                elif not self.renewal.held_any:
                    idle += 1
                    continue
                idle = failures = 0
            except RestanteError as error:
                failures += 1
                if failures == 1:
                    log.warning("verdicts wait error=%s", error)
            except Exception:
                failures += 1
                log.exception("verdicts wait")
        self._side = None

    def _tell_late(self) -> None:
        while self._late:
            message = self._late[0]
            try:
                self.post.queue(message.queue).release_many((message,))
            except LeaseLost:
                pass
            self._late.popleft()

    def server_time(self) -> float:
        """The server's clock in seconds, asked for once a minute and counted on in between."""
        now = time.monotonic()
        if self._clock is None or now - self._clock[0] > 60:
            seconds, micro = self.command("TIME", key=b"")
            self._clock = (now, int(seconds) + int(micro) / 1e6)
        return self._clock[1] + now - self._clock[0]

    def check(self) -> None:
        """Raises where the server is not there."""
        try:
            self.command("PING", key=b"")
        except RestanteError:
            raise
        except OSError as error:
            raise Unavailable(str(error)) from None


def _hashable(options: Options) -> Options:
    """Options hold dicts, which no key may: by their text they are told apart."""
    return replace(
        options, ssl=repr(options.ssl), sentinel_kwargs=repr(options.sentinel_kwargs),
        socket_keepalive_options=repr(options.socket_keepalive_options),
    )  # fmt: skip
