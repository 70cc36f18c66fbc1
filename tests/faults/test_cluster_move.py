"""A slot that moves between the masters of a cluster while its queue is in use loses nothing."""

from __future__ import annotations

import threading
import time

import pytest

import restante
from restante import Admin
from tests.faults.rows import history_faults, keep_whole_journal, missing, never_run, verdict, wait_until
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE


@pytest.mark.parametrize("moves", [2, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_slot_that_moves_under_load_loses_nothing(moves: int) -> None:
    with RedisCluster3() as cluster, restante.connect(cluster.url, patience=20) as post:
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
