"""Row 60: readers of journals, the audit and the dashboard's broker are away, and no message notices."""

from __future__ import annotations

import logging

import pytest

import restante
from restante import Admin, Client, Position, State, Sweeper
from restante.server import ServerSettings, Serving
from tests.faults.rows import missing, verdict
from tests.harness.servers import RedisServer, call, closed_port
from tests.server.calls import Api

#: Lines that the journals of these tests keep at most.
CAP = 1000


def test_a_journal_reader_that_never_comes_back_costs_lines_and_no_message(
    server: RedisServer, post: Client, view: Admin, name: str
) -> None:
    queue = post.queue(name, journal_keep=CAP, journal_cap=CAP)
    first = queue.send("the reader has seen this")
    view.register_reader(name, "pipeline", Position(1))
    sent, seen = [first], []
    for _ in range(10):
        sent += queue.send_many(list(range(500)))
        while taken := queue.receive_many(500):
            seen += [message.id for message in taken]
            queue.ack_many(taken)
    counts = view.counts(name)
    assert (counts.waiting, counts.totals["acked"]) == (0, len(sent))
    # What the reader has missed is counted, and the journal stays within bounds all the same.
    assert counts.journal_lost > 0
    kept = call(server.client(), "XLEN", f"restante:{{{name}}}:journal")
    assert kept < len(sent)
    verdict(60, n=len(sent), lost=missing(sent, seen), dup=len(seen) - len(set(seen)), journal_lost=counts.journal_lost)


def test_an_audit_that_cannot_be_written_stops_neither_messages_nor_operators(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer() as own, restante.connect(own.url) as post:
        call(own.client(), "SET", "restante:audit", "in the way")
        view = Admin(post, operator="ada")
        queue = post.queue(name, max_attempts=1)
        sent = queue.send_many(["acked", "dead", "deleted"])
        acked, dead = queue.receive_many(2)
        acked.ack()
        dead.nack(error="no")
        Sweeper(post).run_once()
        with caplog.at_level(logging.WARNING, "restante"):
            assert view.delete(name, sent[2:]) == 1
            assert view.replay(name).replayed == 1
        assert caplog.text.count("audit missed") == 2
        # The journal names the operator, so that who did it is not lost.
        done = [(line.event, line.consumer) for line in view.journal(name)][-2:]
        assert done == [("deleted", "ada"), ("replayed", "ada")]
        again = queue.receive()
        assert again is not None
        again.ack()
        verdict("60b", n=3, lost=view.counts(name).waiting + view.counts(name).dead, dup=int(again.id != sent[1]))


def test_a_dashboard_whose_broker_and_lake_are_away_still_serves_queues(name: str) -> None:
    with RedisServer() as own, restante.connect(own.url) as post:
        broker = f"amqp://guest:guest@127.0.0.1:{closed_port()}//"
        with Serving(own.url, ServerSettings(port=0, broker=broker)) as serving:
            api = Api(serving.address)
            sent = api.post(f"/api/queues/{name}/messages", {"payload": "x"})
            assert sent.status == 201
            (message,) = api.post(f"/api/queues/{name}/receive", {}).json["messages"]
            token = {"lease_token": message["lease_token"]}
            assert api.post(f"/api/queues/{name}/messages/{message['id']}/ack", token).status == 200
            assert api.get("/api/queues").status == api.get("/metrics").status == 200
        assert Admin(post).counts(name).totals["acked"] == 1
        assert not list(Admin(post).walk(name, State.READY))
    verdict("60c", n=1, lost=int(message["id"] != sent.json["id"]))
