"""Row 42: a long backlog and many delayed messages that fall due at once; no script holds up the server for long."""

from __future__ import annotations

import pytest

import restante
from restante import Admin
from tests.faults.rows import verdict
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import took_at_most
from tests.harness.servers import RedisServer, call

#: Milliseconds that a single script may hold up the server.
SCRIPT_MS = 5.0


@pytest.mark.timed
@pytest.mark.parametrize(
    ("backlog", "delayed"), [(20_000, 5_000), pytest.param(1_000_000, 100_000, marks=pytest.mark.chaos)]
)
def test_a_backlog_with_many_due_at_once_is_served_in_short_scripts(name: str, backlog: int, delayed: int) -> None:
    with (
        FrozenClock(1_800_000_000_000) as clock,
        RedisServer(clock=clock) as server,
        restante.connect(server.url) as post,
    ):
        queue = post.queue(name, journal_keep=1000, journal_cap=2000)
        later: list[str] = []
        for _ in range(delayed // 1000):
            later += queue.send_many([0] * 1000, delay=60, priority=200)
        for _ in range(backlog // 1000):
            queue.send_many([1] * 1000)
        assert queue.receive_many(1)[0].payload == 1
        clock.advance(60)
        client = server.client()
        call(client, "CONFIG", "SET", "slowlog-log-slower-than", int(SCRIPT_MS * 1000))
        call(client, "CONFIG", "SET", "slowlog-max-len", 1000)
        call(client, "SLOWLOG", "RESET")
        seen: set[str] = set()
        while len(seen) < delayed:
            taken = queue.receive_many(100)
            assert all(message.payload == 0 for message in taken), "what is due and of higher priority comes first"
            seen |= {message.id for message in taken}
            queue.ack_many(taken)
        slow = call(client, "SLOWLOG", "GET", 1000)
        slowest = max((entry[2] / 1000 for entry in slow), default=0.0)
        took_at_most(slowest / 1000, SCRIPT_MS / 1000, f"the slowest of {len(slow)} slow scripts")
        counts = Admin(post).counts(name)
        assert (counts.ready + counts.leased, counts.scheduled) == (backlog, 0)
    verdict(42, n=delayed + backlog, lost=len(set(later) - seen), slowest_script_ms=slowest)


@pytest.mark.timed
def test_a_page_of_messages_with_long_histories_is_listed_in_a_short_script(name: str) -> None:
    with RedisServer() as server, restante.connect(server.url) as client:
        queue = client.queue(name, max_attempts=10, retry=restante.fixed(*[0] * 9))
        queue.send_many(range(30))
        for attempt in range(10):
            queue.nack_many(queue.receive_many(30), error=f"{attempt} {'x' * 3900}")
        driver = server.client()
        call(driver, "CONFIG", "SET", "slowlog-log-slower-than", 0)
        call(driver, "SLOWLOG", "RESET")
        page = Admin(client).messages(name, "dead", limit=30)
        slowest = max(entry[2] for entry in call(driver, "SLOWLOG", "GET", 100)) / 1e6
        assert [message.history[-1].error[:3] for message in page.messages] == ["9 x"] * 30
        # Each history is read once: about a millisecond for all. Once per letter, it would be seconds.
        took_at_most(slowest, 0.1, "the listing of 30 messages")
