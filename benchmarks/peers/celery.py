"""Celery on its stock Redis transport."""

from __future__ import annotations

import os
from collections.abc import Iterable

from celery import Celery

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "no result backend, acks_late, no gossip, mingle, heartbeat or events",
    "consume": "one solo worker, prefetch 16",
    "consume_best": "two solo workers, prefetch 16",
    "recovery": f"visibility_timeout {protocol.LEASE} s",
}
MODULE = "benchmarks.peers.celery"

_lease = os.environ.get(recording.LEASE)

app = Celery("bench", broker=os.environ.get(recording.URL))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=16,
    worker_disable_rate_limits=True,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": int(_lease)} if _lease else {},
)


@app.task(name="noop")
def noop(payload: str) -> None:
    """Note the message."""
    recording.handle(payload)


class CeleryPeer(protocol.Peer):
    """Sends by `delay`, works by `celery worker`."""

    name = "celery"
    settings = SETTINGS
    missing = {"send_bulk": "no bulk call"}

    def __init__(self, url: str) -> None:
        app.conf.broker_url = url

    def send_each(self, payloads: Iterable[str]) -> None:
        for payload in payloads:
            noop.delay(payload)

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        for payload, delay in messages:
            noop.apply_async((payload,), countdown=delay)

    def worker(self, measure: str) -> list[list[str]]:
        command = [protocol.script("celery"), "-A", MODULE, "worker", "-P", "solo", "-l", "ERROR"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        processes = 2 if measure == "consume_best" else 1
        return [[*command, "-n", f"bench{number}@%h"] for number in range(processes)]


if __name__ == "__main__":
    protocol.main(CeleryPeer)
