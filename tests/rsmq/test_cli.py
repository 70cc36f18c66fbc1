"""`restante rsmq` beside Node's client: JSON output, one-line errors, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest

from restante.cli import entry
from tests.rsmq.clients import Node
from tests.rsmq.conftest import Bench

ID = "ho7047m26uqdueeIDtLbt6Uf6DLNHZ1x"


class Told:
    """A command that has ended."""

    def __init__(self, run: Callable[[list[str]], int], words: tuple[str, ...], env: dict[str, str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDIS_", "RESTANTE_"))}
        with (
            unittest.mock.patch.dict(os.environ, kept | env, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            self.code = run(list(words))
        self.out, self.err = out.getvalue(), err.getvalue()

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        (line,) = self.out.splitlines()
        return json.loads(line)


@pytest.fixture
def ctl(debian: Bench) -> Callable[..., Told]:
    """The command, with the server in REDIS_URL."""
    run = lambda words: entry.run(["rsmq", *words])  # noqa: E731 - a name for one line
    return lambda *words, **env: Told(run, words, {"REDIS_URL": debian.server.url} | env)


def test_a_queue_from_making_to_deleting(ctl: Callable[..., Told], debian: Bench) -> None:
    assert ctl("queue", "list").json == []
    assert ctl("queue", "create", "-n", "orders").json == 1
    assert ctl("queue", "create", "-n", "other", "-t", "0", "-d", "5", "-m", "-1").json == 1
    assert ctl("queue", "list").json == ["orders", "other"]
    now = debian.clock.now_ms // 1000
    assert ctl("queue", "describe", "-n", "other").json == {
        "vt": 0,
        "delay": 5,
        "maxsize": -1,
        "totalrecv": 0,
        "totalsent": 0,
        "created": now,
        "modified": now,
        "msgs": 0,
        "hiddenmsgs": 0,
    }
    told = ctl("queue", "set", "-n", "other", "-t", "7", "-m", "2048").json
    assert (told["vt"], told["delay"], told["maxsize"]) == (7, 5, 2048)
    assert ctl("queue", "delete", "-n", "other").json == 1
    assert ctl("queue", "list").json == ["orders"]


def test_a_message_from_sending_to_deleting(ctl: Callable[..., Told], debian: Bench) -> None:
    Node(debian.client).create("orders", vt=30)
    id = ctl("message", "send", "-n", "orders", "-m", "naïve ☕").json
    now = debian.clock.now_ms
    assert ctl("message", "receive", "-n", "orders", "-t", "0").json == {
        "id": id,
        "message": "naïve ☕",
        "rc": 1,
        "fr": now,
        "sent": float(now),
    }
    assert ctl("message", "receive", "-n", "orders").json["rc"] == 2, "-t 0 is honoured"
    assert ctl("message", "receive", "-n", "orders").json is None
    assert ctl("message", "visibility", "-n", "orders", "-i", id, "-t", "0").json == 1
    assert ctl("message", "visibility", "-n", "orders", "-i", ID, "-t", "0").json == 0
    assert ctl("message", "delete", "-n", "orders", "-i", id).json == 1
    assert ctl("message", "delete", "-n", "orders", "-i", id).json == 0
    ctl("message", "send", "-n", "orders", "-m", "-v")
    assert ctl("message", "pop", "-n", "orders").json["message"] == "-v"
    ctl("message", "send", "-n", "orders", "-m", "")
    assert ctl("message", "pop", "-n", "orders").json["message"] == ""
    assert ctl("message", "pop", "-n", "orders").json is None


def test_the_queues_delay_holds_where_none_is_given(ctl: Callable[..., Told], debian: Bench) -> None:
    Node(debian.client).create("orders", delay=60)
    late = ctl("message", "send", "-n", "orders", "-m", "a").json
    soon = ctl("message", "send", "-n", "orders", "-m", "b", "-d", "0").json
    now = debian.clock.now_ms
    assert (debian.client.zscore("rsmq:orders", late), debian.client.zscore("rsmq:orders", soon)) == (now + 60_000, now)


def test_errors_are_one_line_and_code_one(ctl: Callable[..., Told]) -> None:
    ctl("queue", "create", "-n", "orders")
    for words, text in (
        (("message", "pop", "-n", "nowhere"), "Queue not found"),
        (("queue", "create", "-n", "orders"), "Queue exists"),
        (("queue", "create", "-n", "a b"), "Invalid qname format"),
        (("queue", "create", "-n", "x", "-t", "-1"), "vt must be between 0 and 9999999"),
        (("queue", "set", "-n", "orders"), "No attribute was supplied"),
        (("message", "delete", "-n", "orders", "-i", "short"), "Invalid id format"),
    ):
        told = ctl(*words)
        assert (told.code, told.out, told.err) == (1, "", f"error: {text}\n")


def test_wrong_usage_and_a_server_that_is_away_have_their_own_codes(ctl: Callable[..., Told]) -> None:
    assert ctl("message", "send", "-n", "orders").code == 2
    assert ctl("queue", "create", "-n", "x", "-t", "soon").code == 2
    assert ctl("nothing").code == 2
    away = ctl("queue", "list", "-r", "redis://127.0.0.1:1")
    assert (away.code, away.out) == (3, "")


def test_the_server_and_the_namespace_may_stand_anywhere(ctl: Callable[..., Told], debian: Bench) -> None:
    url = debian.server.url
    wrong = "redis://127.0.0.1:1"
    assert ctl("-r", url, "--ns", "shop", "queue", "create", "-n", "orders", REDIS_URL=wrong).json == 1
    assert ctl("queue", "list", "--ns=shop", f"--redis-url={url}", REDIS_URL=wrong).json == ["orders"]
    assert ctl("queue", "list").json == []
    assert ctl("queue", "list", REDIS_URL="", RESTANTE_URL=url).json == []
    told = ctl("queue", "-v", "list")
    assert told.json == []
    assert f"{url} ns=rsmq" in told.err


def test_the_url_of_restante_comes_before_the_environment(debian: Bench) -> None:
    words = ("rsmq", "queue", "list", "--url", debian.server.url)
    assert Told(entry.run, words, {"REDIS_URL": "redis://127.0.0.1:1"}).json == []


def test_complaints_are_json_where_asked_for(debian: Bench) -> None:
    words = ("rsmq", "message", "pop", "-n", "nowhere", "--json", "--url", debian.server.url)
    told = Told(entry.run, words, {})
    assert (told.code, json.loads(told.err)) == (1, {"error": "queueNotFound", "message": "Queue not found"})
