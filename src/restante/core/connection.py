"""Runs operations on Redis over redis-py's connections, retries failed calls, and maps every failure to a typed error.

On failure: a call is repeated until the client's patience ends (each verb is safe to repeat). Then the caller gets
`Unavailable` or, for a send whose outcome is unknown, `Unconfirmed`. No error of the driver reaches the caller.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

import hiredis
import redis
from redis import exceptions as foreign
from redis.crc import key_slot

from restante.core.call_retry import (
    BLOCK,
    BLOCK_MARGIN,
    HANDSHAKE,
    LOST,
    CallRetry,
    Server,
    SlotMap,
    asking,
    confirmed,
    disk_question,
    disk_support,
    durability_command,
    lost_waiting,
    markers_by_slot,
    misplaced,
    not_confirmed,
    waiting_failed,
)
from restante.core.endpoint import Address, Endpoint
from restante.core.errors import RestanteError, Unavailable
from restante.core.keys import QUEUES
from restante.core.operations import Command, Operation, Script, pack
from restante.core.settings import ClientSettings

T = TypeVar("T")


#: Number of forks since start: sockets shared with a parent would mix the replies of two processes.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)

#: Bytes read from the socket at once.
READ_SIZE = 65536
#: Calls written before the first reply is read. More would fill the buffers at both ends and deadlock.
PIPELINE = 100
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

    def call(self, packed: bytes, replies: int = 1) -> Any:
        """Writes, then reads `replies` replies. Raises the first error reply after all were read."""
        self._socket.sendall(packed)
        if replies == 1:
            return self.read()
        answers, failed = [], None
        for _ in range(replies):
            try:
                answers.append(self.read())
            except foreign.ResponseError as error:
                failed = failed or error
                answers.append(error)
        if failed is not None:
            raise failed
        return answers

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def ended(self) -> bool:
        """Whether the server closed this idle connection; only then is an idle socket readable."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def patient(self, seconds: float | None) -> None:
        """Sets how long the next replies may take; None waits forever."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self.connection.disconnect()


class Connection:
    """The synchronous runner. Threads may share it, and a forked child may go on using it."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self.settings = settings
        self.url = url
        self.endpoint = Endpoint.parse(url, settings)
        self._idle: dict[Address | None, deque[Link]] = {}
        self._generation = _forks
        self._slots = SlotMap()
        self._master: Address | None = None
        self._checked = False
        self._waitaof: bool | None = None
        self._closed = False

    # -- links ---------------------------------------------------------------------------------------------------

    def make_link(self, address: Address | None) -> Link:
        kind = self.endpoint.options.get("connection_class", redis.Connection)
        options = self.endpoint.kwargs(address)
        # A half-open connection must be noticed before the first command is sent over it.
        patience, options["socket_timeout"] = options["socket_timeout"], self.settings.connect_timeout
        link = Link(kind(**options))
        try:
            first, second, client_id = link.call(HANDSHAKE, 3)
            link.patient(patience)
            link.server = Server.parse(first, second)
            link.client_id = client_id
            if not self._checked:
                link.server.check(self.settings, self.endpoint.shown)
                self._checked = True
        except BaseException:
            link.close()
            raise
        return link

    def take_link(self, address: Address | None) -> Link:
        if self._generation != _forks:
            self._idle, self._generation = {}, _forks
        if self._closed:
            raise Unavailable("this client is closed: call restante.connect() again")
        try:
            return self._idle[address].pop()
        except (KeyError, IndexError):
            return self.make_link(address)

    def give_link(self, address: Address | None, link: Link) -> None:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle.setdefault(address, deque())
        if self._closed or len(idle) >= self.settings.idle_connections:
            link.close()
        else:
            idle.append(link)

    def address_of(self, key: bytes) -> Address | None:
        """The address of the server that holds a key; None for a single server."""
        if self.endpoint.mode == "single":
            return None
        if self.endpoint.mode == "sentinel":
            if self._master is None:
                self._master = self._ask_sentinels()
            return self._master
        address = self._slots.of(key)
        if address is None:
            self._learn_slots()
            address = self._slots.of(key)
            if address is None:
                raise foreign.ClusterDownError("CLUSTERDOWN no node serves this slot")
        return address

    def _ask_sentinels(self) -> Address:
        error: Exception = foreign.ConnectionError("no sentinel answered")
        for seed in self.endpoint.seeds:
            link = Link(self.endpoint.sentinel_class(redis)(**self.endpoint.sentinel_kwargs(seed)))
            try:
                reply = link.call(self.endpoint.sentinel_question)
                if reply:
                    return reply[0].decode(), int(reply[1])
                error = foreign.ConnectionError(f"sentinels know no service {self.endpoint.service!r}")
            except LOST as failure:
                error = failure
            finally:
                link.close()
        raise error

    def _learn_slots(self) -> None:
        error: Exception = foreign.ConnectionError("no cluster node answered")
        known = [address for address in self._idle if address is not None]
        for address in [*known, *self.endpoint.seeds]:
            try:
                link = self.take_link(address)
                self._slots.learn(link.call(pack(("CLUSTER", "SLOTS"))))
                self.give_link(address, link)
                return
            except LOST as failure:
                error = failure
        raise error

    def _remap_after(self, failure: RestanteError | None) -> None:
        if failure is not None:
            raise failure from None
        self.remap(None)

    def close_idle(self, address: Address | None) -> None:
        """Closes idle connections to a server: if one connection is half-open, the others probably are too."""
        for link in self._idle.pop(address, ()):
            link.close()

    def remap(self, address: Address | None) -> None:
        self.close_idle(address)
        self._master = None
        if self.endpoint.mode == "cluster":
            try:
                self._learn_slots()
            except LOST:
                pass  # the next attempt gets the same failure and reports it

    # -- calls ---------------------------------------------------------------------------------------------------

    def run(self, op: Operation[T], *, patience: float | None = None) -> T:
        """Runs one operation and returns its result, or raises a typed error."""
        effort: CallRetry | None = None
        started = time.monotonic()
        ask: Address | None = None
        while True:
            address: Address | None = None
            written = False
            try:
                address = ask or self.address_of(op.keys[0])
                link = self.take_link(address)
                if op.once and link.ended():
                    # Nothing is written yet, so a new connection is no second attempt.
                    link.close()
                    link = self.make_link(address)
                written = True
                reply = self._call(op, address, link, ask is not None)
            except LOST as error:
                if effort is None:
                    effort = CallRetry(op, self.settings.patience if patience is None else patience, started)
                step = effort.next(error, self.endpoint.shown, written)
                if step.error is not None:
                    raise step.error from None
                if step.inspect:
                    raise misplaced(op, [self.command("TYPE", key, key=key) for key in op.keys]) from None
                ask = step.ask
                if step.remap:
                    self.remap(address)
                if step.load:
                    self._load(step.load, address)
                if step.pause:
                    time.sleep(step.pause)
                op = effort.repeated()
                continue
            return op.parse(reply)

    def run_all(self, ops: Sequence[Operation[T]]) -> list[T]:
        """Runs repeatable operations in one round trip per server; repeats those that fail, alone and with retries."""
        by_address: dict[Address | None, list[int]] = {}
        replies: dict[int, Any] = {}
        try:
            for number, op in enumerate(ops):
                by_address.setdefault(self.address_of(op.keys[0]), []).append(number)
            for address, numbers in by_address.items():
                for start in range(0, len(numbers), PIPELINE):
                    part = numbers[start : start + PIPELINE]
                    link = self.take_link(address)
                    try:
                        link.write(b"".join(ops[number].packed() for number in part))
                        for number in part:
                            try:
                                replies[number] = link.read()
                            except foreign.ResponseError:
                                pass  # `run` handles the failure later; the other replies must still be read
                    except BaseException:
                        link.close()
                        raise
                    self.give_link(address, link)
        except LOST:
            pass
        return [op.parse(replies[n]) if n in replies else self.run(op) for n, op in enumerate(ops)]

    def _call(self, op: Operation[Any], address: Address | None, link: Link, ask: bool) -> Any:
        packed = op.packed()
        try:
            if op.durability == "memory" and not ask and not op.question:
                reply = link.call(packed)
            else:
                reply = self._call_with(op, link, packed, ask)
        except (foreign.ResponseError, RestanteError):
            self.give_link(address, link)
            raise
        except BaseException:
            link.close()
            raise
        self.give_link(address, link)
        return reply

    def _call_with(self, op: Operation[Any], link: Link, packed: bytes, ask: bool) -> Any:
        """A call with a command before it (a question, ASKING) or after it (for a durability level)."""
        after = None
        if op.durability != "memory":
            if op.durability == "disk" and self._waitaof is None:
                assert link.server is not None
                reply = link.call(disk_question(link.server))
                self._waitaof = disk_support(link.server, reply, self.endpoint.shown)
            after = durability_command(op.durability, bool(self._waitaof), self.settings)
        asked = bool(op.question)
        answers = link.call(op.question + asking(ask) + packed + (after or b""), 1 + asked + ask + (after is not None))
        if not asked and not ask and after is None:
            return answers
        if after is not None and not confirmed(op.durability, answers[-1]):
            raise not_confirmed(op)
        return (answers[0], answers[1 + ask]) if asked else answers[ask]

    def _load(self, script: Script, address: Address | None) -> None:
        try:
            link = self.take_link(address)
            link.call(pack(("SCRIPT", "LOAD", script.text)))
            self.give_link(address, link)
        except LOST:
            pass  # the next attempt gets the same failure and counts it

    def command(self, *words: Any, key: bytes = b"") -> Any:
        """Runs a plain command without a script. It may be repeated, so the command must be safe to repeat."""
        return self.run(Command(words, key))

    def examine(self) -> None:
        """Checks again whether the server is safe, as on the first connection; raises UnsafeServer if it is not."""
        sections = [self.command("INFO", section, key=QUEUES) for section in ("server", "memory")]
        Server.parse(*sections).check(self.settings, self.endpoint.shown)

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, markers: Sequence[bytes], seconds: float, waker: Waker | None = None) -> None:
        """Waits until one of the markers is set or the time is over. A wake-up is consumed: only one waiter sees it.

        The server's timeout is coarse, so the client measures the time and ends the block over a second connection.
        """
        # A full block ends by the server's own timeout, which saves an idle consumer one command.
        limit = seconds if seconds < BLOCK else BLOCK + BLOCK_MARGIN
        parked: list[tuple[Address | None, Link]] = []
        try:
            for names in markers_by_slot(self.endpoint, markers):
                address = self.address_of(names[0])
                link = self.take_link(address)
                parked.append((address, link))
                link.write(pack(("BZPOPMIN", *names, BLOCK)))
            # Not select(): it fails for file descriptors above 1023.
            poller = select.poll()
            for _, link in parked:
                poller.register(link, select.POLLIN)
            if waker is not None:
                poller.register(waker, select.POLLIN)
            woken = {number for number, _ in poller.poll(limit * 1000)}
            for address, link in parked:
                if link.fileno() not in woken:
                    self.unblock(address, link)
                link.patient(BLOCK_MARGIN)
                link.read()
                link.patient(self.settings.socket_timeout)
            while parked:
                self.give_link(*parked.pop())
        except foreign.ResponseError as error:
            self._remap_after(waiting_failed(error, markers, self.endpoint.shown))
        except LOST as error:
            for address, _ in parked:
                self.close_idle(address)
            raise lost_waiting(error, self.endpoint.shown) from None
        finally:
            for _, link in parked:
                link.close()

    def unblock(self, address: Address | None, link: Link) -> None:
        helper = self.take_link(address)
        helper.patient(self.settings.connect_timeout)
        helper.call(pack(("CLIENT", "UNBLOCK", link.client_id)))
        helper.patient(self.settings.socket_timeout)
        self.give_link(address, helper)

    def same_server(self, one: bytes, other: bytes) -> bool:
        """Whether one script may use both keys."""
        return self.endpoint.mode != "cluster" or key_slot(one) == key_slot(other)

    def close(self) -> None:
        """Closes idle connections; those in use are closed when they are returned."""
        self._closed = True
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


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
