"""Row 54: a replay killed half way leaves each message in exactly one place, and its resumption finishes the work."""

from __future__ import annotations

import time

import pytest

from restante import Admin, Client, State
from tests.faults.rows import missing, places, verdict
from tests.harness.processes import PythonProcess
from tests.harness.servers import RedisServer

REPLAY = """
import sys, restante
admin = restante.Admin(restante.connect(sys.argv[1]), operator="killed")
def progress(task):
    print("at", task.id, task.replayed, flush=True)
admin.replay(sys.argv[2], rate=4000, progress=progress)
"""


@pytest.mark.parametrize("after", [0.0, 0.35])
def test_a_replay_killed_half_way_is_resumed_and_moves_each_message_once(
    server: RedisServer, post: Client, view: Admin, name: str, after: float
) -> None:
    queue = post.queue(name)
    sent: list[str] = []
    for _ in range(5):
        sent += queue.send_many(list(range(1000)))
        queue.bury_many(queue.receive_many(1000))
    assert view.counts(name).dead == 5000
    with PythonProcess(REPLAY, server.url, name, forked=True) as replaying:
        replaying.wait_line("at")
        time.sleep(after)
        replaying.kill9()
    [task] = view.tasks(name)
    counts = view.counts(name)
    assert 0 < counts.ready < 5000
    assert counts.ready + counts.dead == 5000
    assert task.replayed == counts.ready  # the progress moves with the messages
    before = places(view, name)
    assert {len(states) for states in before.values()} == {1}
    resumed = view.replay(name, task=task.id)
    assert (resumed.status, resumed.replayed) == ("finished", 5000)
    found = places(view, name)
    doubled = view.counts(name).totals["replayed"] - 5000
    assert all(states == [State.READY] for states in found.values())
    verdict(54, n=5000, lost=missing(sent, found), dup=doubled, half=counts.ready)
