"""RQ with its worker that does not fork."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import redis
import rq

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "SimpleWorker, no description, result_ttl as it comes (0 is slower)",
    "consume": "one SimpleWorker",
    "consume_best": "two SimpleWorkers",
    "delayed": "SimpleWorker with the scheduler",
    "recovery": f"forking Worker, job_timeout {protocol.LEASE} s, monitoring 5 s, 3 retries",
}
HANDLER = "benchmarks.peers.rq.noop"
#: Options of one job; a description would be built from the arguments and stored.
OPTIONS = {"description": ""}


def noop(payload: str) -> None:
    """Note the message."""
    recording.handle(payload)


class RqPeer(protocol.Peer):
    """Sends by `enqueue_call` and `enqueue_many`, works by `rq worker`."""

    name = "rq"
    settings = SETTINGS

    def __init__(self, url: str) -> None:
        self._url = url
        self._queue = rq.Queue("bench", connection=redis.Redis.from_url(url))
        self._retry: dict[str, object] = {}

    def send_each(self, payloads: Iterable[str]) -> None:
        for payload in payloads:
            self._queue.enqueue_call(HANDLER, (payload,), **OPTIONS, **self._retry)

    def send_bulk(self, payloads: list[str]) -> None:
        prepare = rq.Queue.prepare_data
        self._queue.enqueue_many([prepare(HANDLER, (text,), **OPTIONS) for text in payloads])

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        for payload, delay in messages:
            self._queue.enqueue_in(timedelta(seconds=delay), HANDLER, payload, **OPTIONS)

    def worker(self, measure: str) -> list[list[str]]:
        command = [protocol.script("rq"), "worker", "-q", "--disable-job-desc-logging"]
        command += ["--url", self._url]
        if measure == "recovery":
            self._retry = {"retry": rq.Retry(max=3), "timeout": protocol.LEASE}
            command += ["--job-monitoring-interval", "5", "--maintenance-interval", "1"]
        else:
            command += ["--worker-class", "rq.SimpleWorker"]
        if measure == "delayed":
            command += ["--with-scheduler"]
        return [[*command, "bench"]] * (2 if measure == "consume_best" else 1)


if __name__ == "__main__":
    protocol.main(RqPeer)
