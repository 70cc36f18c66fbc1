"""arq with a tuned worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.worker import func

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "keep_result 0, log_results off; send_bulk is 100 calls in flight at once",
    "consume": "one worker, max_jobs 100, poll_delay 0.01 s",
    "consume_best": "two workers, max_jobs 100, poll_delay 0.01 s",
    "latency, delayed, idle": "max_jobs 100, poll_delay as it comes (0.5 s)",
    "recovery": f"job_timeout {protocol.LEASE} s, to which arq adds 10 s",
}
#: Set for the worker when it shall poll quickly.
POLL = "BENCH_ARQ_POLL"


async def noop(ctx: dict[str, Any], payload: str) -> None:
    """Note the message."""
    await recording.handle_async(payload)


class WorkerSettings:
    """What the `arq` command reads."""

    functions = [func(noop, name="noop", keep_result=0)]
    redis_settings = RedisSettings.from_dsn(os.environ.get(recording.URL, "redis://"))
    max_jobs = 100
    poll_delay = float(os.environ.get(POLL, "0.5"))
    log_results = False
    job_timeout = int(os.environ.get(recording.LEASE, "300"))


class ArqPeer(protocol.Peer):
    """Sends by `enqueue_job`, works by the `arq` command."""

    name = "arq"
    settings = SETTINGS

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        settings = RedisSettings.from_dsn(url)
        self._pool: ArqRedis = self._runner.run(create_pool(settings))

    def send_each(self, payloads: Iterable[str]) -> None:
        async def run() -> None:
            for payload in payloads:
                await self._pool.enqueue_job("noop", payload)

        self._runner.run(run())

    def send_bulk(self, payloads: list[str]) -> None:
        async def run() -> None:
            await asyncio.gather(*(self._pool.enqueue_job("noop", text) for text in payloads))

        self._runner.run(run())

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        async def run() -> None:
            for payload, delay in messages:
                await self._pool.enqueue_job("noop", payload, _defer_by=delay)

        self._runner.run(run())

    def worker(self, measure: str) -> list[list[str]]:
        command = [protocol.script("arq"), "benchmarks.peers.arq.WorkerSettings"]
        if measure.startswith("consume"):
            command = ["env", f"{POLL}=0.01", *command]
        return [command] * (2 if measure == "consume_best" else 1)

    def close(self) -> None:
        self._runner.run(self._pool.aclose())


if __name__ == "__main__":
    protocol.main(ArqPeer)
