"""A slot that moves between the masters of a cluster while its queue is in use loses nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import restante
from restante import Admin
from restante.core.keys import QueueKeys
from tests.faults.rows import (
    count_from_journal,
    history_faults,
    keep_whole_journal,
    missing,
    never_run,
    verdict,
    wait_until,
)
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer

#: Seconds: far more than the few attempts below need, and the time that a test takes which fails.
ENOUGH = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster3]:
    with RedisCluster3() as running:
        yield running


def other_node(cluster: RedisCluster3, slot: int) -> RedisServer:
    owner = cluster.node_of_slot(slot)
    return next(node for node in cluster.nodes if node is not owner)


@pytest.mark.parametrize("runner", ["sync", "asyncio"])
def test_a_client_finds_a_slot_that_moved_while_it_was_idle(cluster: RedisCluster3, runner: str) -> None:
    name = f"idle-{runner}"
    slot = cluster.slot_of(f"restante:{{{name}}}:queue")

    def blocking() -> list[Any]:
        with restante.connect(cluster.url, patience=ENOUGH) as post:
            queue = post.queue(name)
            queue.send("before")
            cluster.move_slot(slot, other_node(cluster, slot))
            queue.send("after")
            return [message.payload for message in queue.receive_many(3)]

    async def waiting() -> list[Any]:
        async with restante.aio.connect(cluster.url, patience=ENOUGH) as post:
            queue = post.queue(name)
            await queue.send("before")
            cluster.move_slot(slot, other_node(cluster, slot))
            await queue.send("after")
            return [message.payload for message in await queue.receive_many(3)]

    assert (blocking() if runner == "sync" else asyncio.run(waiting())) == ["before", "after"]


@pytest.mark.parametrize("runner", ["sync", "asyncio"])
def test_a_key_that_went_ahead_of_its_slot_is_read_at_its_new_node(cluster: RedisCluster3, runner: str) -> None:
    """The old node names the new one, which answers only a client that asks as one who was sent there."""
    name = f"ahead-{runner}"
    slot = cluster.slot_of(f"restante:{{{name}}}:queue")
    key = QueueKeys(name)["messages"]

    def blocking() -> int:
        with restante.connect(cluster.url, patience=ENOUGH) as post:
            return int(post.connection.command("HLEN", key, key=key))

    async def waiting() -> int:
        async with restante.aio.connect(cluster.url, patience=ENOUGH) as post:
            return int(await post.connection.command("HLEN", key, key=key))

    with restante.connect(cluster.url) as sender:
        sender.queue(name).send_many(["a", "b"])
        target = other_node(cluster, slot)
        assert cluster.move_slot(slot, target, finish=False)
        try:
            assert (blocking() if runner == "sync" else asyncio.run(waiting())) == 2
        finally:
            cluster.move_slot(slot, target)
        assert [message.payload for message in sender.queue(name).receive_many(3)] == ["a", "b"]


@pytest.mark.parametrize("moves", [2, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_slot_that_moves_under_load_loses_nothing(cluster: RedisCluster3, moves: int) -> None:
    with restante.connect(cluster.url, patience=20) as post:
        name = "moving"
        slot = cluster.slot_of(f"restante:{{{name}}}:queue")
        queue = post.queue(name, lease=5)
        keep_whole_journal(queue)
        sent: list[str] = [queue.send("first")]
        seen: list[tuple[str, int]] = []
        errors: list[Exception] = []
        over = threading.Event()
        finished = threading.Event()

        def produce() -> None:
            try:
                with restante.connect(cluster.url, patience=20) as mine:
                    while not over.is_set():
                        sent.append(mine.queue(name).send(len(sent)))
                        time.sleep(0.002)
            except Exception as error:
                errors.append(error)

        def consume() -> None:
            try:
                with restante.connect(cluster.url, patience=20) as mine:
                    while not finished.is_set():
                        message = mine.queue(name).receive(timeout=1)
                        if message is not None:
                            message.ack()
                            seen.append((message.id, message.attempts))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for work in (produce, produce, consume, consume)]
        for thread in threads:
            thread.start()
        for move in range(moves):
            time.sleep(0.7)
            target = [node for node in cluster.nodes if node is not cluster.node_of_slot(slot)][move % 2]
            cluster.move_slot(slot, target, batch=2, pause=0.1)
        time.sleep(0.7)
        over.set()
        for thread in threads[:2]:
            thread.join(PATIENCE)
        view = Admin(post)
        drained = wait_until(lambda: view.counts(name).waiting == 0 or bool(errors), 60, "draining")
        finished.set()
        for thread in threads[2:]:
            thread.join(PATIENCE)
        assert not errors, errors
        assert not any(thread.is_alive() for thread in threads)
        verdict(
            "cluster move",
            n=len(sent),
            lost=missing(sent, [id for id, _ in seen]),
            **history_faults(view, name, seen, excused=never_run(seen)),
            max_recovery_s=drained,
            moves=moves,
        )
        count_from_journal(post, name)
