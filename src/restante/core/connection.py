"""The synchronous runner: performs the flows of `pool` on redis-py's connections.

On failure see `pool`: a call is repeated, and then the caller gets a typed error.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import hiredis
import redis
from redis import exceptions as foreign

from restante.core.call_retry import LOST, Server
from restante.core.flow import drive
from restante.core.keys import QUEUES
from restante.core.pool import Close, Exchange, LinkFlow, LinkStep, Listen, Open, Pause, Pool
from restante.core.scripts import Command, Operation
from restante.core.settings import ClientSettings

T = TypeVar("T")

#: Bytes read from the socket at once.
READ_SIZE = 65536
_WAITING = object()


class Link:
    """One connection and the facts of its server.

    redis-py connects (TLS, login, database). After that, commands go directly to the socket and replies directly
    through hiredis, because on the hot path the driver's layers cost more than the server's work.
    """

    __slots__ = ("_feed", "_gets", "_socket", "client_id", "connection", "server")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.server: Server | None = None
        self.client_id = 0
        connection.connect()
        self._socket = connection._sock
        reader = hiredis.Reader(
            protocolError=foreign.InvalidResponse, notEnoughData=_WAITING, replyError=connection._parser.parse_error
        )
        self._feed, self._gets = reader.feed, reader.gets

    def write(self, packed: bytes) -> None:
        self._socket.sendall(packed)

    def read(self) -> Any:
        """Returns the next reply; raises an error reply."""
        reply = self._gets()
        while reply is _WAITING:
            data = self._socket.recv(READ_SIZE)
            if not data:
                raise foreign.ConnectionError("the server closed the connection")
            self._feed(data)
            reply = self._gets()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call(self, packed: bytes) -> Any:
        """Writes a call and returns its reply, or raises its error reply; any other failure closes the connection."""
        try:
            self._socket.sendall(packed)
            return self.read()
        except foreign.ResponseError:
            raise
        except BaseException:
            self.close()
            raise

    def exchange(self, packed: bytes, replies: int) -> list[Any]:
        """Writes calls and returns their replies, error replies among them; any other failure closes the connection."""
        answers: list[Any] = []
        try:
            if packed:
                self._socket.sendall(packed)
            for _ in range(replies):
                try:
                    answers.append(self.read())
                except foreign.ResponseError as error:
                    answers.append(error)
        except BaseException:
            self.close()
            raise
        return answers

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def ended(self) -> bool:
        """Whether the server closed this idle connection; only then is an idle socket readable."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def patient(self, seconds: float) -> None:
        """Sets how long the next replies may take."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self.connection.disconnect()


class Connection:
    """The synchronous runner. Threads may share it, and a forked child may go on using it."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self.pool: Pool[Link] = Pool(url, settings, redis, aio=False, reconnect="restante.connect()")
        self.endpoint, self.same_server = self.pool.endpoint, self.pool.same_server
        self.url = url
        self.settings = settings

    def drive(self, flow: LinkFlow[T]) -> T:
        """Performs a flow of the pool."""
        return drive(flow, _perform)

    def run(self, op: Operation[T], *, patience: float | None = None) -> T:
        """Runs one operation and returns its result, or raises a typed error."""
        link = self.pool.ready_link(op)
        if link is None:
            return drive(self.pool.run(op, patience), _perform)
        # Nearly every call. A flow is not needed unless it fails, and to drive one costs a send 3 % more time.
        started = time.monotonic()
        try:
            reply = link.call(op.packed())
        except LOST as error:
            result: T = drive(self.pool.run_again(self.pool.retry(op, patience, started), link, error), _perform)
            return result
        if not self.pool.keep_idle(None, link):
            link.close()
        return op.parse(reply)

    def run_all(self, ops: Sequence[Operation[T]]) -> list[T]:
        """Runs repeatable operations in one round trip per server; repeats those that fail, alone and with retries."""
        return drive(self.pool.run_all(ops), _perform)

    def command(self, *words: Any, key: bytes = b"") -> Any:
        """Runs a plain command without a script. It may be repeated, so the command must be safe to repeat."""
        return self.run(Command(words, key))

    def examine(self) -> None:
        """Checks again whether the server is safe, as on the first connection; raises UnsafeServer if it is not."""
        sections = [self.command("INFO", section, key=QUEUES) for section in ("server", "memory")]
        Server.parse(*sections).check(self.settings, self.endpoint.shown)

    def wait(self, markers: Sequence[bytes], seconds: float, waker: Waker | None = None) -> None:
        """Waits until one of the markers is set, the waker fires or the time is over."""
        drive(self.pool.wait(markers, seconds, waker), _perform)

    def close(self) -> None:
        """Closes idle connections; those in use are closed when they are returned."""
        drive(self.pool.close(), _perform)


def _perform(step: LinkStep) -> Any:
    match step:
        case Exchange():
            return step.link.exchange(step.packed, step.replies)
        case Open():
            return Link(step.connection)
        case Close():
            return step.link.close()
        case Listen():
            return _listen(step)
        case Pause():
            return time.sleep(step.seconds)


def _listen(step: Listen) -> list[Link]:
    # Not select(): it fails for file descriptors above 1023.
    poller = select.poll()
    for link in step.links:
        poller.register(link, select.POLLIN)
    if step.waker is not None:
        poller.register(step.waker, select.POLLIN)
    woken = {number for number, _ in poller.poll(step.seconds * 1000)}
    return [link for link in step.links if link.fileno() in woken]


class Waker:
    """Wakes a sleeping runner from another thread or a signal handler."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.woken = False

    def fileno(self) -> int:
        return self._near.fileno()

    def wake(self) -> None:
        """Ends the current wait with this waker and all later ones."""
        self.woken = True
        try:
            self._far.send(b".")
        except (BlockingIOError, OSError):
            pass  # full: a wake-up is already pending; closed: no wait is left

    def close(self) -> None:
        self._near.close()
        self._far.close()
