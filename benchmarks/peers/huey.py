"""Huey on Redis, which takes a message off the list and acknowledges nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable

from huey import RedisHuey

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "RedisHuey with blocking reads, no results, no periodic tasks",
    "consume": "two thread workers",
    "consume_best": "two process workers",
    "delayed": "scheduler interval 1 s (its shortest)",
    "recovery": "nothing to set",
}


def _huey(url: str) -> RedisHuey:
    return RedisHuey("bench", url=url, results=False, immediate=False)


huey = _huey(os.environ.get(recording.URL, "redis://"))


def _noop(payload: str) -> None:
    recording.handle(payload)


noop = huey.task(name="noop")(_noop)


class HueyPeer(protocol.Peer):
    """Sends by calling the task, works by `huey_consumer`."""

    name = "huey"
    settings = SETTINGS
    missing = {"send_bulk": "no bulk call"}
    lost = "lost"

    def __init__(self, url: str) -> None:
        self._task = _huey(url).task(name="noop")(_noop)

    def send_each(self, payloads: Iterable[str]) -> None:
        for payload in payloads:
            self._task(payload)

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        for payload, delay in messages:
            self._task.schedule((payload,), delay=delay)

    def worker(self, measure: str) -> list[list[str]]:
        command = [protocol.script("huey_consumer"), "benchmarks.peers.huey.huey", "-q", "-n"]
        if measure == "consume_best":
            return [[*command, "-k", "process", "-w", "2"]]
        return [[*command, "-k", "thread", "-w", "2"]]


if __name__ == "__main__":
    # Huey names a task after its module, which must be the same here and in the worker.
    from benchmarks.peers.huey import HueyPeer as Importable

    protocol.main(Importable)
