"""The asyncio runner: the same operations, decisions and errors as `connection`.

On failure it acts like the synchronous runner. A cancelled call closes its connection and never reuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from redis import exceptions as foreign
from redis.asyncio import connection as driver

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
from restante.core.operations import Command, Operation, Script, pack
from restante.core.settings import ClientSettings

T = TypeVar("T")


class AsyncLink:
    """One connection and the facts of its server."""

    __slots__ = ("client_id", "connection", "server")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.server: Server | None = None
        self.client_id = 0

    async def call(self, packed: bytes, replies: int = 1) -> Any:
        """Writes, then reads `replies` replies. Raises the first error reply after all were read."""
        connection = self.connection
        before = _cancellations()
        await connection.send_packed_command(packed, False)
        if replies == 1:
            answer = await connection.read_response(True)
            _heed_cancel(before)
            return answer
        answers, failed = [], None
        for _ in range(replies):
            try:
                answers.append(await connection.read_response(True))
            except foreign.ResponseError as error:
                failed = failed or error
                answers.append(error)
        _heed_cancel(before)
        if failed is not None:
            raise failed
        return answers

    def ended(self) -> bool:
        """Whether the server closed this idle connection, as far as the event loop has noticed."""
        reader = self.connection._reader
        return reader is None or bool(reader.at_eof())

    async def close(self) -> None:
        await self.connection.disconnect(nowait=True)


def _cancellations() -> int:
    """How often this task was cancelled. A task cancelled earlier may still make calls, to settle its message."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _heed_cancel(before: int) -> None:
    """Raises a lost cancellation: before Python 3.12 the driver's timeouts may drop one that arrives with a reply."""
    if _cancellations() > before:
        raise asyncio.CancelledError


class AsyncConnection:
    """The asyncio runner. It belongs to the event loop that first uses it."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self.settings = settings
        self.url = url
        self.endpoint = Endpoint.parse(url, settings)
        self._idle: dict[Address | None, deque[AsyncLink]] = {}
        self._slots = SlotMap()
        self._master: Address | None = None
        self._checked = False
        self._waitaof: bool | None = None
        self._closed = False

    # -- links ---------------------------------------------------------------------------------------------------

    async def make_link(self, address: Address | None) -> AsyncLink:
        options = self.endpoint.kwargs(address, aio=True)
        # A half-open connection must be noticed before the first command is sent over it.
        patience, options["socket_timeout"] = options["socket_timeout"], self.settings.connect_timeout
        link = AsyncLink(_async_class(self.endpoint)(**options))
        try:
            first, second, client_id = await link.call(HANDSHAKE, 3)
            link.connection.socket_timeout = patience
            link.server = Server.parse(first, second)
            link.client_id = client_id
            if not self._checked:
                link.server.check(self.settings, self.endpoint.shown)
                self._checked = True
        except BaseException:
            await link.close()
            raise
        return link

    async def take_link(self, address: Address | None) -> AsyncLink:
        if self._closed:
            raise Unavailable("this client is closed: call restante.aio.connect() again")
        try:
            return self._idle[address].pop()
        except (KeyError, IndexError):
            return await self.make_link(address)

    async def give_link(self, address: Address | None, link: AsyncLink) -> None:
        idle = self._idle.setdefault(address, deque())
        if self._closed or len(idle) >= self.settings.idle_connections:
            await link.close()
        else:
            idle.append(link)

    async def address_of(self, key: bytes) -> Address | None:
        """The address of the server that holds a key; None for a single server."""
        if self.endpoint.mode == "single":
            return None
        if self.endpoint.mode == "sentinel":
            if self._master is None:
                self._master = await self._ask_sentinels()
            return self._master
        address = self._slots.of(key)
        if address is None:
            await self._learn_slots()
            address = self._slots.of(key)
            if address is None:
                raise foreign.ClusterDownError("CLUSTERDOWN no node serves this slot")
        return address

    async def _ask_sentinels(self) -> Address:
        error: Exception = foreign.ConnectionError("no sentinel answered")
        for seed in self.endpoint.seeds:
            link = AsyncLink(self.endpoint.sentinel_class(driver)(**self.endpoint.sentinel_kwargs(seed, aio=True)))
            try:
                reply = await link.call(self.endpoint.sentinel_question)
                if reply:
                    return reply[0].decode(), int(reply[1])
                error = foreign.ConnectionError(f"sentinels know no service {self.endpoint.service!r}")
            except LOST as failure:
                error = failure
            finally:
                await link.close()
        raise error

    async def _learn_slots(self) -> None:
        error: Exception = foreign.ConnectionError("no cluster node answered")
        known = [address for address in self._idle if address is not None]
        for address in [*known, *self.endpoint.seeds]:
            try:
                link = await self.take_link(address)
                self._slots.learn(await link.call(pack(("CLUSTER", "SLOTS"))))
                await self.give_link(address, link)
                return
            except LOST as failure:
                error = failure
        raise error

    async def close_idle(self, address: Address | None) -> None:
        """Closes idle connections to a server; see the synchronous runner."""
        for link in self._idle.pop(address, ()):
            await link.close()

    async def remap(self, address: Address | None) -> None:
        await self.close_idle(address)
        self._master = None
        if self.endpoint.mode == "cluster":
            try:
                await self._learn_slots()
            except LOST:
                pass  # the next attempt gets the same failure and reports it

    # -- calls ---------------------------------------------------------------------------------------------------

    async def run(self, op: Operation[T], *, patience: float | None = None) -> T:
        """Runs one operation and returns its result, or raises a typed error."""
        effort: CallRetry | None = None
        started = time.monotonic()
        ask: Address | None = None
        while True:
            address: Address | None = None
            written = False
            try:
                address = ask or await self.address_of(op.keys[0])
                link = await self.take_link(address)
                if op.once and link.ended():
                    # Nothing is written yet, so a new connection is no second attempt.
                    await link.close()
                    link = await self.make_link(address)
                written = True
                reply = await self._call(op, address, link, ask is not None)
            except LOST as error:
                if effort is None:
                    effort = CallRetry(op, self.settings.patience if patience is None else patience, started)
                step = effort.next(error, self.endpoint.shown, written)
                if step.error is not None:
                    raise step.error from None
                if step.inspect:
                    raise await self._misplaced(op) from None
                ask = step.ask
                if step.remap:
                    await self.remap(address)
                if step.load:
                    await self._load(step.load, address)
                if step.pause:
                    await asyncio.sleep(step.pause)
                op = effort.repeated()
                continue
            return op.parse(reply)

    async def _call(self, op: Operation[Any], address: Address | None, link: AsyncLink, ask: bool) -> Any:
        packed = op.packed()
        try:
            if op.durability == "memory" and not ask:
                reply = await link.call(packed)
            else:
                reply = await self._call_with(op, link, packed, ask)
        except (foreign.ResponseError, RestanteError):
            await self.give_link(address, link)
            raise
        except BaseException:
            await link.close()
            raise
        await self.give_link(address, link)
        return reply

    async def _call_with(self, op: Operation[Any], link: AsyncLink, packed: bytes, ask: bool) -> Any:
        """A call with a command before it (ASKING) or after it (for a durability level)."""
        after = None
        if op.durability != "memory":
            if op.durability == "disk" and self._waitaof is None:
                assert link.server is not None
                reply = await link.call(disk_question(link.server))
                self._waitaof = disk_support(link.server, reply, self.endpoint.shown)
            after = durability_command(op.durability, bool(self._waitaof), self.settings)
        answers = await link.call(asking(ask) + packed + (after or b""), 1 + ask + (after is not None))
        if not ask and after is None:
            return answers
        if after is not None and not confirmed(op.durability, answers[-1]):
            raise not_confirmed(op)
        return answers[1 if ask else 0]

    async def _load(self, script: Script, address: Address | None) -> None:
        try:
            link = await self.take_link(address)
            await link.call(pack(("SCRIPT", "LOAD", script.text)))
            await self.give_link(address, link)
        except LOST:
            pass  # the next attempt gets the same failure and counts it

    async def _misplaced(self, op: Operation[Any]) -> RestanteError:
        return misplaced(op, [await self.command("TYPE", key, key=key) for key in op.keys])

    async def command(self, *words: Any, key: bytes = b"") -> Any:
        """Runs a plain command without a script. It may be repeated, so the command must be safe to repeat."""
        return await self.run(Command(words, key))

    # -- waiting -------------------------------------------------------------------------------------------------

    async def wait(self, markers: Sequence[bytes], seconds: float) -> None:
        """Waits until one of the markers is set or the time is over; see the synchronous runner."""
        limit = seconds if seconds < BLOCK else BLOCK + BLOCK_MARGIN
        before = _cancellations()
        parked: list[tuple[Address | None, AsyncLink]] = []
        reading: list[asyncio.Task[Any]] = []
        try:
            for names in markers_by_slot(self.endpoint, markers):
                address = await self.address_of(names[0])
                link = await self.take_link(address)
                parked.append((address, link))
                await link.connection.send_packed_command(pack(("BZPOPMIN", *names, BLOCK)), False)
                reading.append(
                    asyncio.ensure_future(link.connection.read_response(True, timeout=BLOCK + 2 * BLOCK_MARGIN))
                )
            _heed_cancel(before)
            await asyncio.wait(reading, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for (address, link), task in zip(parked, reading, strict=True):
                if not task.done():
                    helper = await self.take_link(address)
                    await asyncio.wait_for(
                        helper.call(pack(("CLIENT", "UNBLOCK", link.client_id))), self.settings.connect_timeout
                    )
                    await self.give_link(address, helper)
                await asyncio.wait_for(task, BLOCK_MARGIN)
            _heed_cancel(before)
            while parked:
                await self.give_link(*parked.pop())
        except foreign.ResponseError as error:
            failure = waiting_failed(error, markers, self.endpoint.shown)
            if failure is not None:
                raise failure from None
            await self.remap(None)
        except (*LOST, TimeoutError) as error:
            for address, _ in parked:
                await self.close_idle(address)
            raise lost_waiting(error, self.endpoint.shown) from None
        finally:
            for task in reading:
                task.cancel()
            for _, link in parked:
                await link.close()
            await asyncio.gather(*reading, return_exceptions=True)

    async def close(self) -> None:
        """Closes idle connections; those in use are closed when they are returned."""
        self._closed = True
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()


def _async_class(endpoint: Endpoint) -> Any:
    """The driver's asyncio version of the URL's connection class."""
    kind = endpoint.options.get("connection_class")
    return getattr(driver, kind.__name__) if kind is not None else driver.Connection
