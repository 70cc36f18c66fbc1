"""Row 30: a server pointed at a replica shows what the replica has, and refuses everything that would change it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import restante
from restante import Admin, Client, ReadOnly
from restante.server import ServerSettings, Serving
from tests.faults.rows import count_from_journal, verdict
from tests.harness.deadlines import wait_until
from tests.harness.servers import HOST, RedisServer, call
from tests.server.calls import Api


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A master that no server sweeps, and that does not wait for a second replica before it serves the first."""
    with RedisServer(config={"repl-diskless-sync-delay": "0"}) as running:
        yield running


@pytest.fixture
def replica(redis: RedisServer) -> Iterator[RedisServer]:
    with RedisServer() as running:
        call(running.client(), "REPLICAOF", HOST, redis.port)
        wait_until(lambda: running.info("replication").get("master_link_status") == "up")
        yield running


def in_step(master: RedisServer, replica: RedisServer) -> bool:
    """Whether the replica has all that the master has written."""
    told = master.info("replication")
    return told["master_repl_offset"] == replica.info("replication")["slave_repl_offset"]


#: What a dashboard asks for.
READS = (
    "/api/queues",
    "/api/queues/orders",
    "/api/queues/orders/messages?state=ready",
    "/api/queues/orders/messages?state=dead",
    "/api/queues/orders/messages/first",
    "/api/queues/orders/dead",
    "/api/queues/orders/replays",
    "/api/consumers",
    "/api/anomalies",
    "/api/audit",
    "/metrics",
    "/readyz",
)

#: What would change something: path and body.
WRITES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/api/queues/orders/messages", {"payload": 1}),
    ("/api/queues/orders/receive", {}),
    ("/api/queues/orders/purge", {"states": ["ready"]}),
    ("/api/queues/orders/replay", {}),
    ("/api/queues/orders/pause", {}),
)


def test_a_dashboard_on_a_replica_shows_queues_and_never_takes_a_lease(
    redis: RedisServer, replica: RedisServer, post: Client, admin: Admin
) -> None:
    queue = post.queue("orders", max_attempts=1, lease=0.05)
    queue.send("waits", id="first")
    queue.send("dies", id="second", priority=9)
    held = queue.receive()
    assert held is not None
    held.bury(error="no")
    queue.send("expires unseen", id="third", priority=9)
    assert queue.receive() is not None
    wait_until(lambda: admin.counts("orders").overdue == 1)
    wait_until(lambda: in_step(redis, replica))
    before = [entry.position for entry in admin.journal("orders")]
    with Serving(replica.url, ServerSettings(port=0)) as serving:
        api = Api(serving.address)
        shown = {path: api.get(path) for path in READS}
        assert {path: answer.status for path, answer in shown.items()} == dict.fromkeys(READS, 200)
        (row,) = shown["/api/queues"].json["queues"]
        states = row["states"]
        assert (row["queue"], states["ready"], states["dead"], states["leased"]) == ("orders", 1, 1, 1)
        assert row["overdue"] == 1
        assert [one["id"] for one in shown[READS[2]].json["messages"]] == ["first"]
        assert shown["/api/queues/orders/messages/first"].json["message"]["payload"] == "waits"
        with contextlib.closing(api.events("/api/journal?queue=orders")) as live:
            live.until("position")
            fourth = queue.send("while it looks")
            (line,), _ = live.lines(1)
            assert line["message_id"] == fourth
        # All at once: each is tried again for a while, as the server may become the master.
        with ThreadPoolExecutor(len(WRITES)) as pool:
            refused = list(pool.map(lambda write: api.post(*write), WRITES))
        assert [(one.status, one.json["error"]) for one in refused] == [(503, "ReadOnly")] * len(WRITES)
        assert all("point the URL at the master" in one.json["message"] for one in refused)
    after = admin.journal("orders")
    # Neither a lease nor a sweep: the lease that ran out is still there, although a sweeper ran beside the dashboard.
    assert [entry.event for entry in after if entry.position not in before] == ["sent"]
    assert admin.counts("orders").overdue == 1
    verdict(30, n=4, lost=4 - sum(getattr(admin.counts("orders"), state) for state in ("ready", "leased", "dead")))
    count_from_journal(post, "orders")


def test_looking_at_a_replica_works_and_everything_else_is_refused(
    redis: RedisServer, replica: RedisServer, post: Client
) -> None:
    ids = post.queue("orders").send_many([1, 2, 3])
    post.queue("orders").receive()
    wait_until(lambda: in_step(redis, replica))
    with restante.connect(replica.url, patience=0) as far:
        view = Admin(far)
        assert (view.counts("orders").ready, view.counts("orders").leased) == (2, 1)
        assert view.show("orders", ids[0]).payload == 1
        assert [message.id for message in view.walk("orders", restante.State.READY)] == ids[1:]
        assert len(view.journal("orders")) == 4
        for attempt in (
            lambda: far.queue("orders").receive(),
            lambda: far.queue("orders").send(4),
            lambda: view.purge("orders"),
            lambda: view.delete("orders", ids),
        ):
            with pytest.raises(ReadOnly, match="is a replica: point the URL at the master"):
                attempt()
