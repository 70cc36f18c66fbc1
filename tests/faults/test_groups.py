"""The order inside groups while consumers are killed and messages fail: judged by the journal alone."""

from __future__ import annotations

import random
import time

import pytest

import restante
from restante import Admin, Draft
from tests.core.history import History, Line, check
from tests.faults.workers import Worker
from tests.harness.deadlines import wait_until
from tests.harness.servers import RedisServer

#: Seconds of a lease: what a killed consumer held waits that long.
LEASE = 1.0


def _worker(server: RedisServer) -> Worker:
    return Worker(server.url, "ordered", handler="raise on", payload="poison", seconds=0.002)


def ordered_under_kills(server: RedisServer, groups: int, each: int, workers: int, kills: int) -> None:
    """Sends to groups with a concurrency of one, kills consumers by chance, and checks the journal."""
    chance = random.Random(11)
    with restante.connect(server.url) as client:
        queue = client.queue(
            "ordered",
            group_concurrency=1,
            lease=LEASE,
            max_attempts=50,
            retry=restante.fixed(0.05),
            journal_keep=100_000,
        )
        # One message in some groups always fails, until it is dead: what is behind it waits for that.
        for number in range(each):
            queue.send_many(
                [
                    Draft("poison" if number == 1 and group % 7 == 0 else number, group=f"g{group}", max_attempts=4)
                    if number == 1 and group % 7 == 0
                    else Draft(number, group=f"g{group}")
                    for group in range(groups)
                ]
            )
        running = [_worker(server) for _ in range(workers)]
        admin = Admin(client)
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0.1, 0.4))
                place = chance.randrange(workers)
                running[place].close()
                running[place] = _worker(server)
            wait_until(lambda: admin.counts("ordered").waiting == 0)
        finally:
            for worker in running:
                worker.close()
        history = History("groups", strict=True)
        history.lines = [
            Line(
                entry.position.sequence,
                entry.event.value,
                entry.state,
                round(entry.at.timestamp() * 1000),
                entry.message_id,
                entry.priority,
                entry.attempts,
                round(entry.due_at.timestamp() * 1000) if entry.due_at else 0,
                entry.detail,
                entry.group,
            )
            for entry in admin.journal("ordered", limit=10**6)
        ]
        verdict = check(history)
        assert verdict.inversions == []
        assert verdict.fifo == []
        assert verdict.overlap == []
        assert verdict.dup > 0
        counts = admin.counts("ordered")
        assert counts.dead == -(-groups // 7)
        assert counts.totals["acked"] == groups * each - counts.dead
        assert [found for found in admin.groups("ordered", limit=1000).groups if found.ready or found.retrying] == []


def test_each_group_stays_in_order_while_consumers_are_killed(server: RedisServer) -> None:
    ordered_under_kills(server, groups=20, each=10, workers=3, kills=5)


@pytest.mark.chaos
@pytest.mark.timeout(0)
def test_two_hundred_groups_stay_in_order_through_sixty_kills(server: RedisServer) -> None:
    ordered_under_kills(server, groups=200, each=50, workers=8, kills=60)
