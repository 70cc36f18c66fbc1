"""The asyncio runner: performs the same flows as `connection`, with the same decisions and errors.

On failure it acts like the synchronous runner. A cancelled call closes its connection and never reuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from redis import exceptions as foreign
from redis.asyncio import connection as driver

from restante.core.call_retry import BLOCK, BLOCK_MARGIN, LOST, Server
from restante.core.flow import drive_async
from restante.core.pool import Close, Exchange, LinkFlow, LinkStep, Listen, Open, Pause, Pool, intact
from restante.core.scripts import Command, Operation
from restante.core.settings import ClientSettings

T = TypeVar("T")


class AsyncLink:
    """One connection and the facts of its server."""

    __slots__ = ("_reading", "client_id", "connection", "server")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.server: Server | None = None
        self.client_id = 0
        self._reading: asyncio.Task[Any] | None = None

    async def exchange(self, packed: bytes, replies: int) -> list[Any]:
        """Writes calls and returns their replies, error replies among them; any other failure closes the connection."""
        before = _cancellations()
        answers: list[Any] = []
        try:
            if packed:
                await self.connection.send_packed_command(packed, False)
            for _ in range(replies):
                begun, self._reading = self._reading, None
                try:
                    if begun is None:
                        answers.append(await self.connection.read_response(True))
                    else:
                        answers.append(await asyncio.wait_for(begun, self.connection.socket_timeout))
                except foreign.ResponseError as error:
                    answers.append(error)
            _heed_cancel(before)
        except BaseException:
            await self.close()
            raise
        return answers

    def listen(self) -> asyncio.Task[Any]:
        """Begins to read the next reply, which the next `exchange` returns."""
        reading = self.connection.read_response(True, timeout=BLOCK + 2 * BLOCK_MARGIN)
        self._reading = asyncio.ensure_future(reading)
        return self._reading

    def ended(self) -> bool:
        """Whether the server closed this idle connection, as far as the event loop has noticed."""
        reader = self.connection._reader
        return reader is None or bool(reader.at_eof())

    def patient(self, seconds: float) -> None:
        """Sets how long the next replies may take."""
        self.connection.socket_timeout = seconds

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        await self.connection.disconnect(nowait=True)
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)


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
        self.url = url
        self.settings = settings
        self.pool: Pool[AsyncLink] = Pool(url, settings, driver, aio=True, reconnect="restante.aio.connect()")
        self.endpoint = self.pool.endpoint

    async def drive(self, flow: LinkFlow[T]) -> T:
        """Performs a flow of the pool."""
        return await drive_async(flow, _perform)

    async def run(self, op: Operation[T], *, patience: float | None = None) -> T:
        """Runs one operation and returns its result, or raises a typed error."""
        link = self.pool.ready_link(op)
        if link is None:
            return await drive_async(self.pool.run(op, patience), _perform)
        # Without a flow, as in the synchronous runner.
        started = time.monotonic()
        try:
            (reply,) = intact(await link.exchange(op.packed(), 1))
        except LOST as error:
            result: T = await drive_async(
                self.pool.run_again(self.pool.retry(op, patience, started), link, error), _perform
            )
            return result
        if not self.pool.keep_idle(None, link):
            await link.close()
        return op.parse(reply)

    async def command(self, *words: Any, key: bytes = b"") -> Any:
        """Runs a plain command without a script. It may be repeated, so the command must be safe to repeat."""
        return await self.run(Command(words, key))

    async def wait(self, markers: Sequence[bytes], seconds: float) -> None:
        """Waits until one of the markers is set or the time is over."""
        await drive_async(self.pool.wait(markers, seconds), _perform)

    async def close(self) -> None:
        """Closes idle connections; those in use are closed when they are returned."""
        await drive_async(self.pool.close(), _perform)


async def _perform(step: LinkStep) -> Any:
    match step:
        case Exchange():
            return await step.link.exchange(step.packed, step.replies)
        case Open():
            return AsyncLink(step.connection)
        case Close():
            return await step.link.close()
        case Listen():
            return await _listen(step)
        case Pause():
            return await asyncio.sleep(step.seconds)


async def _listen(step: Listen) -> list[AsyncLink]:
    reading = {link.listen(): link for link in step.links}
    done, _ = await asyncio.wait(reading, timeout=step.seconds, return_when=asyncio.FIRST_COMPLETED)
    return [reading[task] for task in done]
