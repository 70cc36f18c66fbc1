"""up, demo and a server that is away: long-running commands leave no process behind."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

import restante
from restante import Admin, Client, State
from tests.cli.conftest import Cli
from tests.cli.test_admin import on_terminal
from tests.harness.deadlines import at_most, wait_until
from tests.harness.servers import RedisServer


@pytest.mark.timed
@pytest.mark.parametrize("words", [("send", "orders", "1"), ("up",), ("consume", "app")])
def test_a_server_that_is_down_ends_a_command_with_three(lone_cli: Cli, words: tuple[str, ...]) -> None:
    (lone_cli.cwd / "app.py").write_text(
        "import restante\nq = restante.connect().queue('q')\n@q.handler\ndef work(message): pass\n"
    )
    with at_most(5):
        ran = lone_cli("--url", "redis://user:s3cret@127.0.0.1:1", *words)
    assert ran.code == 3
    assert "cannot be reached" in ran.error
    assert "s3cret" not in ran.out + ran.err


@pytest.mark.timed
def test_a_server_that_stands_still_is_given_up_on(cli: Cli, server: RedisServer) -> None:
    server.pause()
    try:
        with at_most(5):
            ran = cli.inside("ls", "--json")
    finally:
        server.resume()
    assert (ran.code, ran.out) == (3, "")
    assert json.loads(ran.err)["error"] == "Unavailable"


def test_up_sweeps_a_queue_nobody_consumes_and_leaves_nobody(lone_cli: Cli) -> None:
    running = lone_cli.start("up", "--port", "0")
    running.wait_for("Ctrl-C to stop")
    with restante.connect(directory=lone_cli.cwd / ".restante") as post:
        post.queue("orders").send(1, delay=0.1)
        running.wait_for("promoted")
        assert Admin(post).counts("orders").ready == 1
    running.interrupt()
    assert running.wait() == 0
    lone_cli.leaves_nobody()
    assert "● ready" in running.output


def test_up_goes_on_when_its_server_comes_back(cli: Cli) -> None:
    with RedisServer(appendonly="always") as server:
        running = cli.start("--url", server.url, "up", "--json", "--port", "0")
        running.wait_for('"away":null')
        server.kill9()
        running.wait_for("cannot be reached")
        before = len(running.output)
        server.restart()
        wait_until(lambda: '"away":null' in running.output[before:])
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def test_the_demo_shows_every_state_and_leaves_nobody(lone_cli: Cli) -> None:
    running = lone_cli.start("demo", "--json")

    def looks() -> list[dict[str, Any]]:
        return [json.loads(line) for line in running.output.split("\n")[:-1] if line.startswith("{")]

    def rows() -> list[dict[str, Any]]:
        return [row for look in looks() for row in look["queues"]]

    wait_until(
        lambda: {state for row in rows() for state in State if row[state.value]} == set(State), lambda: rows()[-5:]
    )
    shown = {"orders", "payments", "emails", "reports", "thumbnails"}
    shown |= {"warehouse.pack", "warehouse.count", "loyalty.award", "loyalty.apologise", "call:shop.stock.ask"}
    wait_until(lambda: {row["queue"] for row in looks()[-1]["queues"]} >= shown)
    wait_until(lambda: any(row["done_per_second"] > 0 for row in rows()))
    running.interrupt()
    assert running.wait() == 0
    lone_cli.leaves_nobody()
    assert "events.unrouted" not in {row["queue"] for row in rows()}


@pytest.mark.chaos
def test_the_demo_ends_by_itself_after_its_seconds_and_keeps_its_pace(lone_cli: Cli) -> None:
    running = lone_cli.start("demo", "--seconds", "8", "--json")
    with at_most(30):
        assert running.wait() == 0
    lone_cli.leaves_nobody()
    last = json.loads([line for line in running.output.splitlines() if line.startswith("{")][-1])
    assert sum(row["done_per_second"] for row in last["queues"]) > 5


def test_the_demo_ends_by_itself_after_its_seconds(lone_cli: Cli) -> None:
    running = lone_cli.start("demo", "--seconds", "1", "--json")
    assert running.wait() == 0
    lone_cli.leaves_nobody()


def test_the_demo_is_drawn_on_a_terminal_until_control_c(lone_cli: Cli) -> None:
    code, screen = on_terminal(lone_cli, "demo", answers={"reports": "\x03"})
    assert code == 0, screen[-3000:]
    lone_cli.leaves_nobody()
    for text in ("a sample shop", "● scheduled", "done/s", "payments", "closed:"):
        assert text in screen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_stopped_or_killed_leaves_nobody(lone_cli: Cli, number: signal.Signals) -> None:
    running = lone_cli.start("demo", "--directory", "shop")
    running.wait_for("reports")
    wait_until(lambda: len(lone_cli.family()) >= 7)  # the parent, five roles, the keeper and its server
    running.signal(number)
    assert running.wait() == (-9 if number == signal.SIGKILL else 0)
    lone_cli.leaves_nobody()


def test_the_demo_does_not_open_on_a_server_of_yours(cli: Cli, post: Client, admin: Admin) -> None:
    assert cli.inside("demo", "--url", cli.env["RESTANTE_URL"]).code == 2
    assert admin.queues() == []
