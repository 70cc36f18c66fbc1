"""TaskIQ on Redis streams with acknowledgement."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "RedisStreamBroker, uvloop in the worker, ack when executed, read 100 at a time; "
    "send_bulk is 100 calls in flight at once",
    "consume": "one worker process, 100 tasks at once, prefetch 100, no parsing",
    "consume_best": "two worker processes",
    "delayed": "one worker and the scheduler, its intervals at 1 s (the shortest it rounds to)",
    "recovery": f"idle_timeout {protocol.LEASE} s; it reclaims only after a read that returned new "
    "messages, and none arrive here",
}
MODULE = "benchmarks.peers.taskiq"


def _broker(url: str) -> RedisStreamBroker:
    lease = os.environ.get(recording.LEASE)
    idle = int(lease) * 1000 if lease else 600_000
    return RedisStreamBroker(url, consumer_id="0", idle_timeout=idle, unacknowledged_lock_timeout=1.0)


_url = os.environ.get(recording.URL, "redis://")
broker = _broker(_url)
scheduler = TaskiqScheduler(broker, [ListRedisScheduleSource(_url)])


@broker.task(task_name="noop")
async def noop(payload: str) -> None:
    """Note the message."""
    await recording.handle_async(payload)


class TaskiqPeer(protocol.Peer):
    """Sends by `kiq`, works by `taskiq worker`."""

    name = "taskiq"
    settings = SETTINGS

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._broker = _broker(url)
        self._source = ListRedisScheduleSource(url)
        self._task = self._broker.register_task(noop.original_func, task_name="noop")
        self._runner.run(self._broker.startup())

    def send_each(self, payloads: Iterable[str]) -> None:
        async def run() -> None:
            for payload in payloads:
                await self._task.kiq(payload)

        self._runner.run(run())

    def send_bulk(self, payloads: list[str]) -> None:
        async def run() -> None:
            await asyncio.gather(*(self._task.kiq(text) for text in payloads))

        self._runner.run(run())

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        async def run() -> None:
            for payload, delay in messages:
                due = datetime.now(UTC) + timedelta(seconds=delay)
                await self._task.schedule_by_time(self._source, due, payload)

        self._runner.run(run())

    def worker(self, measure: str) -> list[list[str]]:
        taskiq = protocol.script("taskiq")
        command = [taskiq, "worker", f"{MODULE}:broker", "--log-level", "ERROR", "--no-parse"]
        command += ["--ack-type", "when_executed", "--max-async-tasks", "100"]
        command += ["--max-prefetch", "100"]
        command += ["--workers", "2" if measure == "consume_best" else "1"]
        if measure != "delayed":
            return [command]
        schedule = [taskiq, "scheduler", f"{MODULE}:scheduler", "--log-level", "ERROR"]
        return [command, [*schedule, "--update-interval", "1", "--loop-interval", "1"]]

    def close(self) -> None:
        self._runner.run(self._broker.shutdown())


if __name__ == "__main__":
    protocol.main(TaskiqPeer)
