"""consume with several processes, with --reload and with JSON logs, as a shell runs it."""

from __future__ import annotations

import json
import os
import signal
import sys
import unittest.mock

import pytest

from restante import Admin, Client
from restante.cli.arguments import parse_size
from restante.cli.session import WrongUsage
from tests.cli.conftest import Cli
from tests.harness.deadlines import wait_until
from tests.harness.servers import RedisServer, call

APP = """
import restante

orders = restante.connect().queue("orders")

@orders.handler
def order(message):
    if message.payload == "bad":
        raise ValueError("no such order")
    print("VERSION", message.payload, flush=True)
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_serve_a_queue_and_say_where_and_how_much(cli: Cli, post: Client, admin: Admin, method: str) -> None:
    (cli.cwd / "app.py").write_text(APP)
    post.queue("orders").send_many(["good"] * 9 + ["bad"])
    words = ("consume", "app:orders", "--processes", "2", "--start-method", method, "--stop-when-empty")
    ran = cli(*words, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[-1]) == {"handled": 9, "failed": 1}
    assert (admin.counts("orders").retrying, admin.counts("orders").waiting) == (1, 1)
    said = cli(*words)
    assert "consuming orders on redis://" in said.err
    assert "in 2 processes with concurrency 1; Ctrl-C to stop" in said.err
    assert said.err.splitlines()[-1].startswith("stopped: ")
    cli.leaves_nobody()


def test_a_client_that_the_program_named_gives_its_processes_that_name(cli: Cli, admin: Admin) -> None:
    (cli.cwd / "app.py").write_text(APP.replace("connect()", "connect(consumer='shop')"))
    running = cli.start("consume", "app", "--processes", "2", "--concurrency", "3")
    wait_until(lambda: len(admin.consumers()[0].processes if admin.consumers() else ()) == 2, lambda: running.output)
    (shown,) = cli("consumers", "--json").json["consumers"]
    assert (shown["name"], shown["concurrency"], shown["queues"]) == ("shop", 6, ["orders"])
    assert [one["name"] for one in shown["processes"]] == ["shop/1", "shop/2"]
    assert [one["concurrency"] for one in shown["processes"]] == [3, 3]
    table = cli("consumers").out
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["shop", "shop/1", "shop/2"]
    refused = cli("drop", "orders", "--yes")
    assert (refused.code, "orders is consumed by shop," in refused.error) == (4, True)
    running.interrupt()
    assert running.wait() == 0
    cli.leaves_nobody()
    # Processes of this host that are gone do not count.
    assert cli("drop", "orders", "--yes").code == 0


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_is_wrong_from_the_start_ends_the_command_as_with_one_process(
    cli: Cli, post: Client, server: RedisServer, method: str
) -> None:
    (cli.cwd / "app.py").write_text(APP + "\nplain = restante.connect().queue('plain')\n")
    (cli.cwd / "broken.py").write_text("x = 1\n1 / 0\n")
    words = ("--processes", "2", "--start-method", method)
    absent = cli("consume", "absent:orders", *words)
    assert (absent.code, absent.err.splitlines()[-1]) == (2, "error: no module absent in this directory or installed")
    broken = cli("consume", "broken", *words, "--json")
    said = json.loads(broken.err.splitlines()[-1])
    assert (broken.code, said["error"], "broken.py line 2" in said["message"]) == (2, "WrongUsage", True)
    assert cli("consume", "app:plain", *words).code == 4
    away = cli("consume", "app", *words, "--url", "redis://127.0.0.1:1")
    assert (away.code, "127.0.0.1:1" in away.err.splitlines()[-1]) == (3, True)
    call(server.client(), "SET", "restante:{orders}:ready", "planted")
    ran = cli("consume", "app:orders", *words)
    assert (ran.code, "restante:{orders}:ready" in ran.err.splitlines()[-1]) == (4, True)


def test_options_that_do_not_fit_are_refused(cli: Cli) -> None:
    (cli.cwd / "app.py").write_text(APP)
    assert "spawn or fork, not thread" in cli("consume", "app", "-p", "2", "--start-method", "thread").error
    assert "--reload needs --start-method spawn" in cli("consume", "app", "--reload", "--start-method", "fork").error
    assert "not a size: '12X'" in cli("consume", "app", "--max-memory", "12X").error
    assert cli("consume", "app", "--max-tasks", "0").code == 2


def test_sizes_are_read_as_people_write_them() -> None:
    assert [parse_size(text) for text in ("1048576", "512K", "512m", "2G", "1.5GB", "64MiB")] == [
        1 << 20,
        1 << 19,
        1 << 29,
        1 << 31,
        3 << 29,
        1 << 26,
    ]
    for text in ("", "0", "-1M", "M", "12X", "1e9"):
        with pytest.raises(WrongUsage, match="not a size"):
            parse_size(text)


def test_sigterm_stops_idle_processes_and_a_stopped_one_is_replaced(cli: Cli) -> None:
    (cli.cwd / "app.py").write_text(APP)
    running = cli.start("consume", "app:orders", "--processes", "1")
    running.wait_for("consuming orders")
    child = int(running.output.partition("started process=1 pid=")[2].split()[0])
    os.kill(child, signal.SIGTERM)  # an operator recycles one by hand
    wait_until(lambda: running.output.count("started process=1") == 2, lambda: running.output)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    cli.leaves_nobody()


def test_reload_restarts_with_the_changed_code_and_waits_where_it_is_broken(cli: Cli, post: Client) -> None:
    (cli.cwd / "app.py").write_text(APP.replace("VERSION", "first"))
    running = cli.start("consume", "app", "--reload")
    running.wait_for("consuming orders")
    post.queue("orders").send("letter")
    running.wait_for("first letter")
    (cli.cwd / "app.py").write_text(APP.replace("VERSION", "second"))
    running.wait_for("reloading changed=app.py")
    wait_until(lambda: running.output.count("started process=1") == 2, lambda: running.output)
    post.queue("orders").send("parcel")
    running.wait_for("second parcel")
    (cli.cwd / "app.py").write_text("def broken(:")
    running.wait_for("failed process=1 error=WrongUsage: importing app failed: SyntaxError")
    (cli.cwd / "app.py").write_text(APP.replace("VERSION", "third"))
    post.queue("orders").send("card")
    running.wait_for("third card")
    running.interrupt()
    assert running.wait() == 0
    cli.leaves_nobody()


def test_reload_without_its_package_names_the_extra(cli: Cli) -> None:
    (cli.cwd / "app.py").write_text(APP)
    with unittest.mock.patch.dict(sys.modules, {"watchfiles": None}):
        sys.modules.pop("restante.cli.reload", None)
        ran = cli.inside("consume", "app", "--reload")
    assert ran.code == 4
    assert ran.error == ("error: --reload needs watchfiles, which is not installed: pip install 'restante[reload]'")


@pytest.mark.parametrize("words", [(), ("--processes", "2")])
def test_json_logs_are_objects_with_their_fields(cli: Cli, post: Client, words: tuple[str, ...]) -> None:
    (cli.cwd / "app.py").write_text(APP)
    id = post.queue("orders").send("bad")
    ran = cli("consume", "app", "--stop-when-empty", "--json", *words)
    lines = [json.loads(line) for line in ran.err.splitlines()]
    (failure,) = [line for line in lines if line["level"] == "WARNING"]
    assert {"time", "level", "logger", "pid", "message"} <= failure.keys()
    assert (failure["logger"], failure["queue"], failure["id"]) == ("restante", "orders", id)
    assert failure["error"].startswith("ValueError: no such order")
    assert ran.out.splitlines()[-1] == '{"handled":0,"failed":1}'
