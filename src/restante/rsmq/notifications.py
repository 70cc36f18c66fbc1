"""Waits for the next message of an RSMQ queue: until a send is announced on its channel, or a timeout.

On failure: a lost connection is opened again before the next poll of the queue; until then each wait lasts its timeout.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Self

from restante.core.call_retry import LOST
from restante.core.connection import Connection, Link, Waker
from restante.core.connection_aio import AsyncConnection, AsyncLink
from restante.core.pool import intact
from restante.core.scripts import Command, Operation, ScriptCall, pack
from restante.rsmq import calls
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.namespace import Namespace

#: Seconds between two polls of a queue where no message is known to become due: an unannounced send is noticed this
#: late.
LOOK_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A step of a flow: subscribe, unless that is done."""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A step of a flow: close the connection of the subscription."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A step of a flow: wait until an announcement, the stop or the end of these seconds."""

    seconds: float


Step = Operation[Any] | Subscribe | Unsubscribe | Sleep


def wait_for(
    namespace: Namespace,
    qname: str,
    vt: int | None,
    timeout: float,
    *,
    every: float = LOOK_EVERY,
    stopping: Callable[[], bool] = lambda: False,
) -> Generator[Step, Any, RsmqReceived | None]:
    """Receives the next message; waits until an announcement, a stop or the timeout, and polls every `every` s."""
    deadline = time.monotonic() + timeout
    while True:
        yield Subscribe()
        got = yield calls.receive_or_wait(namespace, qname, vt)
        if isinstance(got, RsmqReceived):
            return got
        left = deadline - time.monotonic()
        if left <= 0 or stopping():
            return None
        yield Sleep(min(left, every if got is None else min(got, every)))


class Subscription:
    """A subscription to a queue's channel on a separate connection; does nothing without realtime."""

    def __init__(self, connection: Connection, namespace: Namespace, qname: str, stop: Waker | None = None) -> None:
        self._connection = connection
        self._stop = stop
        self._key = namespace.place(qname)[0]
        self._channel = namespace.channel(qname)
        self._link: Link | None = None

    def perform(self, step: Step) -> Any:
        """Performs a step of a flow that waits for messages."""
        if isinstance(step, ScriptCall | Command):
            return self._connection.run(step)
        if isinstance(step, Sleep):
            return self.wait(step.seconds)
        return self.open() if isinstance(step, Subscribe) else self.close()

    def open(self) -> None:
        """Subscribes. The poll that follows finds messages that were sent before."""
        if not self._channel or self._link is not None:
            return
        try:
            link = self._connection.drive(self._connection.pool.dedicated(self._key))
        except LOST:
            return  # the poll that follows raises, or finds the server back
        try:
            link.call(pack(("SUBSCRIBE", self._channel)))
        except LOST:
            link.close()
        else:
            self._link = link

    def wait(self, seconds: float) -> None:
        """Sleeps until an announcement, the stop or the timeout."""
        if self._link is None and self._stop is None:
            time.sleep(seconds)
            return
        poller = select.poll()
        if self._link is not None:
            poller.register(self._link, select.POLLIN)
        if self._stop is not None:
            poller.register(self._stop, select.POLLIN)
        woken = {number for number, _ in poller.poll(seconds * 1000)}
        if self._link is not None and self._link.fileno() in woken:
            try:
                self._link.read()
            except LOST:
                self.close()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSubscription:
    """The subscription for asyncio."""

    def __init__(
        self, connection: AsyncConnection, namespace: Namespace, qname: str, stop: asyncio.Event | None = None
    ) -> None:
        self._connection = connection
        self._stop = stop
        self._key = namespace.place(qname)[0]
        self._channel = namespace.channel(qname)
        self._link: AsyncLink | None = None
        self._reading: asyncio.Task[Any] | None = None

    async def perform(self, step: Step) -> Any:
        """Performs a step of a flow that waits for messages."""
        if isinstance(step, ScriptCall | Command):
            return await self._connection.run(step)
        if isinstance(step, Sleep):
            return await self.wait(step.seconds)
        return await (self.open() if isinstance(step, Subscribe) else self.close())

    async def open(self) -> None:
        """Subscribes."""
        if not self._channel or self._link is not None:
            return
        try:
            link = await self._connection.drive(self._connection.pool.dedicated(self._key))
        except LOST:
            return  # the poll that follows raises, or finds the server back
        try:
            intact(await link.exchange(pack(("SUBSCRIBE", self._channel)), 1))
        except LOST:
            await link.close()
        else:
            self._link = link

    async def wait(self, seconds: float) -> None:
        """Sleeps until an announcement, the stop or the timeout."""
        tasks: list[asyncio.Task[Any]] = []
        if self._link is not None:
            if self._reading is None:
                # Kept between waits: cancelling a read could lose half of an announcement.
                reading = self._link.connection.read_response(True, timeout=None)
                self._reading = asyncio.ensure_future(reading)
            tasks.append(self._reading)
        stopping = asyncio.ensure_future(self._stop.wait()) if self._stop is not None else None
        if stopping is not None:
            tasks.append(stopping)
        if not tasks:
            await asyncio.sleep(seconds)
            return
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if stopping is not None:
                stopping.cancel()
        if self._reading is not None and self._reading.done():
            failed = self._reading.exception() is not None
            self._reading = None
            if failed:
                await self.close()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
