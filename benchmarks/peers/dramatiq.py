"""Dramatiq on its Redis broker."""

from __future__ import annotations

import os
from collections.abc import Iterable

import dramatiq
from dramatiq.brokers.redis import MAINTENANCE_SCALE, RedisBroker

from benchmarks.peers import protocol, recording

SETTINGS = {
    "all": "default middleware",
    "consume": "1 process × 16 threads",
    "consume_best": "2 processes × 16 threads",
    "recovery": f"heartbeat_timeout {protocol.LEASE} s, maintenance with every command",
}
MODULE = "benchmarks.peers.dramatiq"


def _broker(url: str) -> RedisBroker:
    lease = os.environ.get(recording.LEASE)
    if not lease:
        return RedisBroker(url=url)
    heartbeat = int(lease) * 1000
    return RedisBroker(url=url, heartbeat_timeout=heartbeat, maintenance_chance=MAINTENANCE_SCALE)


broker = _broker(os.environ.get(recording.URL, "redis://"))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop", max_retries=3)
def noop(payload: str) -> None:
    """Note the message."""
    recording.handle(payload)


class DramatiqPeer(protocol.Peer):
    """Sends by `send`, works by the `dramatiq` command."""

    name = "dramatiq"
    settings = SETTINGS
    missing = {"send_bulk": "no bulk call"}

    def __init__(self, url: str) -> None:
        noop.broker = _broker(url)
        noop.broker.declare_actor(noop)

    def send_each(self, payloads: Iterable[str]) -> None:
        for payload in payloads:
            noop.send(payload)

    def send_later(self, messages: Iterable[tuple[str, float]]) -> None:
        for payload, delay in messages:
            noop.send_with_options(args=(payload,), delay=int(delay * 1000))

    def worker(self, measure: str) -> list[list[str]]:
        processes = "2" if measure == "consume_best" else "1"
        return [[protocol.script("dramatiq"), MODULE, "--processes", processes, "--threads", "16"]]


if __name__ == "__main__":
    protocol.main(DramatiqPeer)
