"""SAQ with a tuned worker."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from typing import Any

from saq import Queue

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "ttl -1 (nothing kept of a done job); send_bulk is 100 calls in flight at once",
    "consume": "one worker, concurrency 30",
    "consume_best": "two worker processes, concurrency 30",
    "delayed": "schedule timer 1 s (its shortest)",
    "recovery": f"timeout {protocol.LEASE} s, 3 retries, sweep timer 1 s (its shortest); "
    "it aborts stuck jobs one after another, 5 s each",
}


async def noop(ctx: dict[str, Any], *, payload: str) -> None:
    """Note the message."""
    await recording.handle_async(payload)


_url = os.environ.get(recording.URL)
settings = {
    "queue": Queue.from_url(_url, name="bench") if _url else None,
    "functions": [("noop", noop)],
    "concurrency": 30,
    "timers": {"sweep": 1} if recording.LEASE in os.environ else {},
}


class SaqPeer(protocol.Peer):
    """Sends by `enqueue`, works by the `saq` command."""

    name = "saq"
    settings = SETTINGS

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._queue = Queue.from_url(url, name="bench")

    async def _send(self, payload: str, scheduled: int = 0) -> None:
        await self._queue.enqueue(
            "noop",
            payload=payload,
            scheduled=scheduled,
            ttl=-1,
            retries=3,
            timeout=protocol.LEASE,
        )

    def send_each(self, payloads: Iterable[str]) -> None:
        async def run() -> None:
            for payload in payloads:
                await self._send(payload)

        self._runner.run(run())

    def send_bulk(self, payloads: list[str]) -> None:
        async def run() -> None:
            await asyncio.gather(*(self._send(text) for text in payloads))

        self._runner.run(run())

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        async def run() -> None:
            for payload, delay in messages:
                # Whole seconds only; rounded up, because early is worse than late.
                await self._send(payload, -int(-(time.time() + delay) // 1))

        self._runner.run(run())

    def worker(self, measure: str) -> list[list[str]]:
        processes = "2" if measure == "consume_best" else "1"
        command = [protocol.script("saq"), "benchmarks.peers.saq.settings", "--quiet"]
        return [[*command, "--workers", processes]]

    def close(self) -> None:
        self._runner.run(self._queue.disconnect())


if __name__ == "__main__":
    protocol.main(SaqPeer)
