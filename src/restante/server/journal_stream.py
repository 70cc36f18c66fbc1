"""The live journal of one client: lines, changed counts, and signs of life; it ends with the server or the token.

If a call to Redis fails the stream ends, and the client reconnects with the position it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request

from restante.server.access import CHECKED_EVERY, Role
from restante.server.journal_feed import write_event
from restante.server.state import ServerState

#: Seconds between two `hello` events on a stream without news: proxies close silent connections.
HELLO_EVERY = 15.0


async def journal_stream(
    state: ServerState, request: Request, queues: list[str], after: str | None, *, counts: bool, lines: bool
) -> AsyncIterator[bytes]:
    """The events of one stream: journal lines, changed counts, and `hello` while there are none.

    It ends when the server closes, and when the caller's token is revoked.
    """
    chosen = frozenset(queues)
    woken = state.monitor.watch() if counts else None
    source = state.hub.follow(queues, after)
    news = _News(state, source if lines else None, woken)
    seen = 0  # the monitor's number before its first count: then there is nothing to report yet
    clock = asyncio.get_running_loop()
    check_at, hello_at = clock.time() + CHECKED_EVERY, clock.time() + HELLO_EVERY
    try:
        yield write_event("hello", {"now": await state.now_ms()})
        while True:
            if clock.time() >= check_at:
                if not await state.still_may(request, Role.READ):
                    return
                check_at = clock.time() + CHECKED_EVERY
            if counts and seen != state.monitor.number:
                changed, seen = _counts_since(state, chosen, seen), state.monitor.number
                yield changed
            arrived = await news.wait(max(0.0, min(check_at, hello_at) - clock.time()))
            if news.closed:
                return
            if arrived:
                hello_at = clock.time() + HELLO_EVERY
            elif clock.time() >= hello_at:
                yield write_event("hello", {"now": await state.now_ms()})
                hello_at = clock.time() + HELLO_EVERY
            if (events := news.take_lines()) is not None:
                yield events
    finally:
        if woken is not None:
            state.monitor.unwatch(woken)
        await news.close()
        await source.aclose()  # type: ignore[attr-defined]  # a generator, typed as an iterator


class _News:
    """What a stream waits for: the next lines, changed counts, and the closing of the server."""

    def __init__(self, state: ServerState, source: AsyncIterator[bytes] | None, woken: asyncio.Event | None) -> None:
        self._source = source
        self._woken = woken
        self._closing = asyncio.ensure_future(state.closing.wait())
        # They live longer than one wait: a read of lines that is cancelled would lose them.
        self._lines: asyncio.Future[bytes] | None = None
        self._counts: asyncio.Future[Any] | None = None

    @property
    def closed(self) -> bool:
        """Whether the server closes."""
        return self._closing.done()

    async def wait(self, seconds: float) -> bool:
        """Whether anything arrived within this time."""
        if self._source is not None and self._lines is None:
            self._lines = asyncio.ensure_future(anext(self._source))
        if self._woken is not None and self._counts is None:
            self._counts = asyncio.ensure_future(self._woken.wait())
        waits = [wait for wait in (self._lines, self._counts, self._closing) if wait is not None]
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._woken is not None and self._counts in done:
            self._woken.clear()
            self._counts = None
        return bool(done)

    def take_lines(self) -> bytes | None:
        """The events that have arrived, if any."""
        if self._lines is None or not self._lines.done():
            return None
        events, self._lines = self._lines.result(), None
        return events

    async def close(self) -> None:
        for wait in (self._lines, self._counts, self._closing):
            if wait is not None:
                wait.cancel()
        if self._lines is not None:
            await asyncio.gather(self._lines, return_exceptions=True)


def _counts_since(state: ServerState, chosen: frozenset[str], seen: int) -> bytes:
    """The changed counts as an event; all counts if the client missed a change, or follows only some queues."""
    monitor = state.monitor
    if not chosen and seen == monitor.number - 1:
        return monitor.change
    return monitor.event([row for name, row in monitor.sent.items() if not chosen or name in chosen])
