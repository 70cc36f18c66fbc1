"""RSMQ queues beside the native ones on the command line: ls, and the bridge between them."""

from __future__ import annotations

import signal

import pytest

from restante import Admin, Client
from restante.rsmq.client import Rsmq
from tests.cli.conftest import Cli


@pytest.fixture
def rsmq(post: Client) -> Rsmq:
    made = Rsmq(post=post)
    made.create_queue("orders", vt=600)
    return made


def test_ls_lists_rsmq_queues_beside_the_native_ones(cli: Cli, post: Client, rsmq: Rsmq) -> None:
    rsmq.send_many("orders", ["a", "b", "c"])
    rsmq.receive_message("orders")
    alone = cli.inside("ls")
    assert alone.code == 0
    assert alone.out.splitlines()[0].split()[:2] == ["RSMQ", "queue"]
    post.queue("orders").send(1)
    native, row, blank, header, other = cli.inside("ls").out.splitlines()
    assert (native.split()[0], row.split()[0], blank, header.split()[0]) == ("queue", "orders", "", "RSMQ")
    assert other.split()[:5] == ["orders", "3", "1", "3", "1"]
    told = cli.inside("ls", "--json").json
    assert ([one["queue"] for one in told["queues"]], [one["messages"] for one in told["rsmq"]]) == (["orders"], [3])
    assert cli.inside("ls", "--rsmq", "--json").json["rsmq"][0]["hidden"] == 1
    assert cli.inside("ls", "--rsmq", "--ns", "nobodys").code == 1


def test_messages_of_an_rsmq_queue_count_down_to_when_they_can_be_received(cli: Cli, rsmq: Rsmq) -> None:
    first, second = rsmq.send_message("orders", '{"n": 1}'), rsmq.send_message("orders", "two")
    later = rsmq.send_message("orders", "three", delay=900)
    assert rsmq.receive_message("orders") is not None
    shown = cli.inside("ls", "orders", "--rsmq").out.splitlines()
    assert [line.split()[0] for line in shown[1:]] == [second, first, later]
    assert "● ready" in shown[1]
    assert "waited" in shown[1]
    assert "lease 9 m 5" in shown[2] or "lease 10 m" in shown[2]
    assert "due in 14 m 5" in shown[3] or "due in 15 m" in shown[3]
    page = cli.inside("ls", "orders", "--rsmq", "--limit", "2", "--json").json
    assert [one["attempts"] for one in page["messages"]] == [0, 1]
    rest = cli.inside("ls", "orders", "--rsmq", "--after", page["next"], "--json").json
    assert ([one["id"] for one in rest["messages"]], rest["next"]) == ([later], None)
    assert cli.inside("ls", "nope", "--rsmq").code == 1
    assert cli.inside("ls", "orders", "--rsmq", "--state", "ready").code == 2


def test_the_bridge_carries_once_and_says_what_it_did(cli: Cli, post: Client, rsmq: Rsmq) -> None:
    rsmq.send_many("orders", ['{"n": 1}', "two"])
    words = ("rsmq", "bridge", "--queue", "orders", "--to", "shop", "--once")
    done = cli.inside(*words, "--decode", "--json")
    assert (done.code, done.json) == (0, {"moved": 2, "repeated": 0, "refused": 0})
    assert [message.payload for message in post.queue("shop").receive_many(5, lease=1)] == [{"n": 1}, "two"]
    post.queue("out").send_many([1, "x"])
    back = cli.inside("rsmq", "bridge", "-q", "orders", "--to", "out", "--back", "--once")
    assert (back.code, "2 moved" in back.err) == (0, True)
    assert [one.message for one in rsmq.receive_many("orders", 5)] == ["1", "x"]
    assert cli.inside("rsmq", "bridge", "--queue", "nope", "--to", "shop", "--once").code == 1
    assert cli.inside(*words, "--back", "--decode").code == 2
    assert cli.inside(*words, "--realtime").code == 2


def test_the_bridge_runs_until_it_is_told_to_end(cli: Cli, rsmq: Rsmq, admin: Admin) -> None:
    running = cli.start("rsmq", "bridge", "--queue", "orders", "--to", "shop")
    running.wait_for("moving rsmq:orders → shop")
    rsmq.send_many("orders", ["a", "b"])
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert "moved" in running.output
    # However far it got, nothing is lost.
    assert admin.counts("shop").ready + rsmq.get_queue_attributes("orders").msgs == 2
