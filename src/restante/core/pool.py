"""What a client knows of its servers and does there, as flows without I/O: look-ups, calls, repairs, waits, its pool.

The runners `connection` and `connection_aio` perform the steps of a flow. On failure: a call is repeated until the
client's patience ends (each verb is safe to repeat). Then the caller gets `Unavailable` or, for a send whose outcome is
unknown, `Unconfirmed`. No error of the driver reaches the caller.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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
from restante.core.scripts import Command, Operation, Script, pack
from restante.core.settings import ClientSettings

#: Calls written before the first reply is read. More would fill the buffers at both ends and deadlock.
PIPELINE = 100

#: Number of forks since start: sockets shared with a parent would mix the replies of two processes.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class PooledLink(Protocol):
    """What flows need of a runner's connection."""

    server: Server | None
    client_id: int

    def ended(self) -> bool:
        """Whether the server closed this idle connection."""

    def patient(self, seconds: float) -> None:
        """Sets how long the next replies may take."""


T = TypeVar("T")
L = TypeVar("L", bound=PooledLink)


# -- steps: what a runner performs ------------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """Write packed calls at once and return a list of their replies, error replies among them.

    Without replies it only writes; with nothing to write it reads what is still to come. If anything else fails, the
    runner closes the link, because a later call would read a reply to this one.
    """

    link: Any
    packed: bytes
    replies: int = 1


class Open(NamedTuple):
    """Return a link over a connection of the driver."""

    connection: Any


class Listen(NamedTuple):
    """Return the links that have a reply, as soon as there is one, the waker fires or the time is over."""

    links: Sequence[Any]
    seconds: float
    waker: Any


class Close(NamedTuple):
    """Close a link."""

    link: Any


class Pause(NamedTuple):
    """Sleep."""

    seconds: float


LinkStep = Exchange | Open | Listen | Close | Pause
LinkFlow = Generator[LinkStep, Any, T]


def intact(replies: list[Any]) -> list[Any]:
    """Returns the replies; raises the first error reply."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


class Pool(Generic[L]):
    """The connections of one client and the facts of its servers.

    `driver` is the driver's module with the connection classes, `aio` whether it is the asyncio one, and `reconnect`
    the call that an error recommends once the client is closed.
    """

    def __init__(self, url: str, settings: ClientSettings, driver: Any, *, aio: bool, reconnect: str) -> None:
        self.settings = settings
        self.endpoint = Endpoint.parse(url, settings)
        self.idle: dict[Address | None, deque[L]] = {}
        self._driver = driver
        self._aio = aio
        self._reconnect = reconnect
        self._single = self.endpoint.mode == "single"
        self._generation = _forks
        self._slots = SlotMap()
        self._master: Address | None = None
        self._checked = False
        self._waitaof: bool | None = None
        self._closed = False

    # -- links ---------------------------------------------------------------------------------------------------

    def take_idle(self, address: Address | None) -> L | None:
        """Returns an idle link to a server, or None if there is none."""
        if self._generation != _forks:
            self.idle, self._generation = {}, _forks
        if self._closed:
            raise Unavailable(f"this client is closed: call {self._reconnect} again")
        try:
            return self.idle[address].pop()
        except (KeyError, IndexError):
            return None

    def keep_idle(self, address: Address | None, link: L) -> bool:
        """Puts a link among the idle ones; returns False if there are enough, and the link must be closed."""
        idle = self.idle.get(address)
        if idle is None:
            idle = self.idle.setdefault(address, deque())
        if self._closed or len(idle) >= self.settings.idle_connections:
            return False
        idle.append(link)
        return True

    def take(self, address: Address | None) -> LinkFlow[L]:
        """Returns an idle link to a server, or a new one."""
        return self.take_idle(address) or (yield from self.make(address))

    def give(self, address: Address | None, link: L) -> LinkFlow[None]:
        """Takes a link back that is between two calls."""
        if not self.keep_idle(address, link):
            yield Close(link)

    def make(self, address: Address | None) -> LinkFlow[L]:
        """Returns a new link to a server that is safe to use."""
        options = self.endpoint.kwargs(address, aio=self._aio)
        # A half-open connection must be noticed before the first command is sent over it.
        patience, options["socket_timeout"] = options["socket_timeout"], self.settings.connect_timeout
        link: L = yield Open(self.endpoint.connection_class(self._driver)(**options))
        try:
            first, second, link.client_id = intact((yield Exchange(link, HANDSHAKE, 3)))
            link.patient(patience)
            link.server = Server.parse(first, second)
            if not self._checked:
                link.server.check(self.settings, self.endpoint.shown)
                self._checked = True
        except (foreign.ResponseError, RestanteError):
            yield Close(link)
            raise
        return link

    def dedicated(self, key: bytes) -> LinkFlow[L]:
        """Returns a new link to the server that holds a key, for a caller that keeps and closes it."""
        return (yield from self.make((yield from self.find(key))))

    def close_idle(self, address: Address | None) -> LinkFlow[None]:
        """Closes idle links to a server: if one is half-open, the others probably are too."""
        for link in self.idle.pop(address, ()):
            yield Close(link)

    def close(self) -> LinkFlow[None]:
        """Closes idle links; those in use are closed when they are given back."""
        self._closed = True
        for idle in list(self.idle.values()):
            while idle:
                yield Close(idle.pop())

    # -- look-ups ------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> LinkFlow[Address | None]:
        """Returns the address of the server that holds a key; None for a single server."""
        if self._single:
            return None
        if self.endpoint.mode == "sentinel":
            if self._master is None:
                self._master = yield from self._ask_sentinels()
            return self._master
        address = self._slots.of(key)
        if address is None:
            yield from self._learn_slots()
            address = self._slots.of(key)
            if address is None:
                raise foreign.ClusterDownError("CLUSTERDOWN no node serves this slot")
        return address

    def same_server(self, one: bytes, other: bytes) -> bool:
        """Whether one script may use both keys."""
        return self.endpoint.mode != "cluster" or key_slot(one) == key_slot(other)

    def remap(self, address: Address | None) -> LinkFlow[None]:
        """Forgets a server, and who is responsible for which key."""
        yield from self.close_idle(address)
        self._master = None
        if self.endpoint.mode == "cluster":
            try:
                yield from self._learn_slots()
            except LOST:
                pass  # the next attempt gets the same failure and reports it

    def _ask_sentinels(self) -> LinkFlow[Address]:
        error: Exception = foreign.ConnectionError("no sentinel answered")
        kind = self.endpoint.sentinel_class(self._driver)
        for seed in self.endpoint.seeds:
            try:
                link: L = yield Open(kind(**self.endpoint.sentinel_kwargs(seed, aio=self._aio)))
                replies = yield Exchange(link, self.endpoint.sentinel_question)
                yield Close(link)
                (reply,) = intact(replies)
            except LOST as failure:
                error = failure
            else:
                if reply:
                    return reply[0].decode(), int(reply[1])
                error = foreign.ConnectionError(f"sentinels know no service {self.endpoint.service!r}")
        raise error

    def _learn_slots(self) -> LinkFlow[None]:
        error: Exception = foreign.ConnectionError("no cluster node answered")
        known = [address for address in self.idle if address is not None]
        for address in [*known, *self.endpoint.seeds]:
            try:
                self._slots.learn((yield from self._ask(address, pack(("CLUSTER", "SLOTS")))))
                return
            except LOST as failure:
                error = failure
        raise error

    def _ask(self, address: Address | None, packed: bytes) -> LinkFlow[Any]:
        """Returns the reply of one server to a packed command."""
        link = yield from self.take(address)
        replies = yield Exchange(link, packed)
        yield from self.give(address, link)
        return intact(replies)[0]

    # -- calls ---------------------------------------------------------------------------------------------------

    def ready_link(self, op: Operation[Any]) -> L | None:
        """Returns an idle link over which the operation can run at once, without a look-up or another command."""
        if self._single and op.durability == "memory" and not op.question and not op.once:
            return self.take_idle(None)
        return None

    def run(self, op: Operation[T], patience: float | None = None) -> LinkFlow[T]:
        """Runs one operation and returns its result, or raises a typed error."""
        result: T = yield from self._attempts(self.retry(op, patience, time.monotonic()))
        return result

    def run_again(self, retry: CallRetry, link: L, error: BaseException) -> LinkFlow[Any]:
        """Goes on with an operation whose first attempt failed on a link of `ready_link`."""
        ask = yield from self._recover(retry, error, None, link)
        return (yield from self._attempts(retry, ask))

    def retry(self, op: Operation[Any], patience: float | None, started: float) -> CallRetry:
        """The attempts of an operation."""
        return CallRetry(op, self.settings.patience if patience is None else patience, started)

    def _attempts(self, retry: CallRetry, ask: Address | None = None) -> LinkFlow[Any]:
        while True:
            op = retry.op
            address: Address | None = None
            link: L | None = None
            try:
                address = ask or (yield from self.find(op.keys[0]))
                fresh = yield from self.take(address)
                if op.once and fresh.ended():
                    # Nothing is written yet, so a new connection is no second attempt.
                    yield Close(fresh)
                    fresh = yield from self.make(address)
                link = fresh
                reply = yield from self._attempt(op, address, link, ask is not None)
            except LOST as error:
                ask = yield from self._recover(retry, error, address, link)
                continue
            yield from self.give(address, link)
            return op.parse(reply)

    def _recover(
        self, retry: CallRetry, error: BaseException, address: Address | None, link: L | None
    ) -> LinkFlow[Address | None]:
        """Repairs what made an attempt fail, or raises the error for the caller; `link` is None if nothing was written.

        Returns the address to ask next, if the server named one.
        """
        if link is not None and isinstance(error, foreign.ResponseError):
            yield from self.give(address, link)
        step = retry.next(error, self.endpoint.shown, link is not None)
        if step.error is not None:
            raise step.error from None
        if step.inspect:
            raise (yield from self._misplaced(retry.op)) from None
        if step.remap:
            yield from self.remap(address)
        if step.load is not None:
            yield from self._load(step.load, address)
        if step.pause:
            yield Pause(step.pause)
        retry.repeat()
        return step.ask

    def run_all(self, ops: Sequence[Operation[T]]) -> LinkFlow[list[T]]:
        """Runs repeatable operations in one round trip per server; repeats those that fail, alone and with retries."""
        by_address: dict[Address | None, list[int]] = {}
        replies: dict[int, Any] = {}
        try:
            for number, op in enumerate(ops):
                by_address.setdefault((yield from self.find(op.keys[0])), []).append(number)
            for address, numbers in by_address.items():
                for start in range(0, len(numbers), PIPELINE):
                    part = numbers[start : start + PIPELINE]
                    link = yield from self.take(address)
                    answers = yield Exchange(link, b"".join(ops[number].packed() for number in part), len(part))
                    yield from self.give(address, link)
                    replies.update(zip(part, answers, strict=True))
        except LOST:
            pass  # `run` meets the failure again
        results = []
        for number, op in enumerate(ops):
            reply = replies.get(number, _NO_REPLY)
            # `run` decides what an error reply means.
            results.append((yield from self.run(op)) if isinstance(reply, Exception) else op.parse(reply))
        return results

    def _attempt(self, op: Operation[Any], address: Address | None, link: L, ask: bool) -> LinkFlow[Any]:
        """A call, with a command before it (a question, ASKING) or after it (for a durability level)."""
        try:
            after = yield from self._after(op, link)
            before = bool(op.question) + ask
            packed = op.question + asking(ask) + op.packed() + (after or b"")
            replies = intact((yield Exchange(link, packed, before + 1 + bool(after))))
            if after is not None and not confirmed(op.durability, replies[-1]):
                raise not_confirmed(op)
        except RestanteError:
            yield from self.give(address, link)
            raise
        return (replies[0], replies[before]) if op.question else replies[before]

    def _after(self, op: Operation[Any], link: L) -> LinkFlow[bytes | None]:
        """The packed command that has to follow a send of this durability."""
        if op.durability == "memory":
            return None
        if op.durability == "disk" and self._waitaof is None:
            assert link.server is not None
            (reply,) = intact((yield Exchange(link, disk_question(link.server))))
            self._waitaof = disk_support(link.server, reply, self.endpoint.shown)
        return durability_command(op.durability, bool(self._waitaof), self.settings)

    def _load(self, script: Script, address: Address | None) -> LinkFlow[None]:
        try:
            yield from self._ask(address, pack(("SCRIPT", "LOAD", script.text)))
        except LOST:
            pass  # the next attempt gets the same failure and counts it

    def _misplaced(self, op: Operation[Any]) -> LinkFlow[RestanteError]:
        types: list[bytes] = []
        for key in op.keys:
            types.append((yield from self.run(Command(("TYPE", key), key))))
        return misplaced(op, types)

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, markers: Sequence[bytes], seconds: float, waker: Any = None) -> LinkFlow[None]:
        """Waits until one of the markers is set or the time is over. A wake-up is consumed: only one waiter sees it.

        The server's timeout is coarse, so the client measures the time and ends the block over a second connection.
        """
        # A full block ends by the server's own timeout, which saves an idle consumer one command.
        limit = seconds if seconds < BLOCK else BLOCK + BLOCK_MARGIN
        parked: list[tuple[Address | None, L]] = []
        try:
            for names in markers_by_slot(self.endpoint, markers):
                address = yield from self.find(names[0])
                link = yield from self.take(address)
                parked.append((address, link))
                yield Exchange(link, pack(("BZPOPMIN", *names, BLOCK)), 0)
            woken = yield Listen([link for _, link in parked], limit, waker)
            for address, link in parked:
                if link not in woken:
                    yield from self.unblock(address, link)
                link.patient(BLOCK_MARGIN)
                intact((yield Exchange(link, b"")))
                link.patient(self.settings.socket_timeout)
            while parked:
                yield from self.give(*parked.pop())
        except foreign.ResponseError as error:
            failure = waiting_failed(error, markers, self.endpoint.shown)
            if failure is not None:
                raise failure from None
            yield from self.remap(None)
        except LOST as error:
            for address, _ in parked:
                yield from self.close_idle(address)
            raise lost_waiting(error, self.endpoint.shown) from None
        except GeneratorExit:
            parked.clear()  # the runner itself was interrupted and performs no more steps
            raise
        finally:
            for _, link in parked:
                yield Close(link)

    def unblock(self, address: Address | None, link: L) -> LinkFlow[None]:
        """Ends the block of a link over a second one."""
        helper = yield from self.take(address)
        helper.patient(self.settings.connect_timeout)
        replies = yield Exchange(helper, pack(("CLIENT", "UNBLOCK", link.client_id)))
        helper.patient(self.settings.socket_timeout)
        yield from self.give(address, helper)
        intact(replies)


_NO_REPLY = foreign.ConnectionError("no reply")
