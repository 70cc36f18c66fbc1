"""Row 64: whoever fires schedules is killed again and again, and each tick is sent once, by none early."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta

import pytest

from restante import Admin, Client, JournalEvent
from restante.core.message import tick_id
from restante.core.ticks import instant_ms
from tests.faults.rows import verdict
from tests.harness.deadlines import wait_until
from tests.harness.processes import PythonProcess
from tests.harness.servers import RedisServer

#: What a server runs beside its routes.
SWEEPER = """
import sys, restante
sweeper = restante.Sweeper(restante.connect(sys.argv[1]))
print("up", flush=True)
sweeper.run()
"""
#: Fires what is due on its way, and leaves nothing to the dedup window.
CONSUMER = """
import sys, restante
queue = restante.connect(sys.argv[1]).queue(sys.argv[2])
print("up", flush=True)
for message in queue.consume():
    message.ack()
"""


@pytest.mark.parametrize(
    ("schedules", "seconds", "kills"),
    [pytest.param(200, 1, 6, id="short"), pytest.param(10_000, 20, 20, marks=pytest.mark.chaos, id="long")],
)
def test_each_tick_is_sent_once_though_firers_are_killed(
    server: RedisServer, post: Client, view: Admin, name: str, schedules: int, seconds: int, kills: int
) -> None:
    queue = post.queue(name, dedup=0, journal_keep=10_000_000, journal_cap=10_000_000)
    every = timedelta(seconds=seconds)
    first = {}
    for number in range(schedules):
        made = queue.schedule(f"s{number}", every=every, missed="all", payload=number)
        assert made.next_at is not None
        first[made.name] = instant_ms(made.next_at, "")
    chance = random.Random(7)
    programs = [SWEEPER, SWEEPER, SWEEPER, CONSUMER]
    running = [PythonProcess(program, server.url, name, forked=True) for program in programs]
    try:
        for process in running:
            process.wait_line("up")
        for _ in range(kills):
            time.sleep(chance.uniform(0.1, 2.5 * seconds / kills + 0.5))
            at = chance.randrange(len(programs))
            running[at].kill9()
            running[at].close()
            running[at] = PythonProcess(programs[at], server.url, name, forked=True)
        stopped = view.now_ms() + 1000 * seconds

        def caught_up() -> bool:
            return min(one.head.next_ms for one in queue.schedules()) > stopped

        wait_until(caught_up)
    finally:
        for process in running:
            process.close()
    last = {one.name: one.head.next_ms for one in queue.schedules()}
    sent: Counter[str] = Counter()
    early = 0
    position = None
    while page := view.journal(name, after=position, limit=10_000):
        position = page[-1].position
        for entry in page:
            if entry.event is JournalEvent.SENT:
                sent[entry.message_id] += 1
                tick = entry.message_id.rpartition("@")[2]
                early += entry.at.isoformat() < tick.replace("Z", "+00:00")
    expected = {
        tick_id(schedule, at) for schedule in first for at in range(first[schedule], last[schedule], 1000 * seconds)
    }
    twice = sum(count - 1 for count in sent.values())
    verdict(
        64,
        n=len(expected),
        lost=len(expected - sent.keys()),
        dup=twice,
        phantom=len(sent.keys() - expected),
        early=early,
        kills=kills,
    )
    assert sent.keys() == expected
