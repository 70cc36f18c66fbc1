"""The installed program `rsmqctl` on a real Redis prints and ends as the program of that name does.

The expected texts come from that program's documents (README and protocol) and, for failures, from its source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from restante.cli import rsmqctl as command
from tests.harness.deadlines import PATIENCE
from tests.rsmq.clients import Node
from tests.rsmq.conftest import Bench
from tests.rsmq.test_cli import Told

SCRIPT = Path(sys.executable).parent / "rsmqctl"
NO_ID = "g73zkl38qzSBNq2NcnVVlCldqwqFXRJd"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def rsmqctl(*words: str, **env: str) -> Ended:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDIS_", "RESTANTE_"))}
    done = subprocess.run([SCRIPT, *words], env=kept | env, capture_output=True, text=True, timeout=PATIENCE)
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def ctl(debian: Bench) -> Callable[..., Ended]:
    """The installed program."""
    return lambda *words: rsmqctl(*words, REDIS_URL=debian.server.url)


@pytest.fixture
def inside(debian: Bench) -> Callable[..., Ended]:
    """The program in this process, which is faster."""

    def run(*words: str) -> Ended:
        told = Told(command.run, words, {"REDIS_URL": debian.server.url})
        return Ended(told.code, told.out, told.err)

    return run


def test_the_documented_commands_of_queues_print_what_the_documents_show(
    ctl: Callable[..., Ended], debian: Bench
) -> None:
    assert ctl("queue", "list") == (0, "[]\n", "")
    assert ctl("queue", "create", "-n", "test-queue") == (0, "", "")
    assert ctl("queue", "create", "-n", "another-queue", "--visibility-timeout", "5", "--delay", "2") == (0, "", "")
    assert ctl("queue", "list") == (0, '["another-queue", "test-queue"]\n', "")
    now = debian.clock.now_ms // 1000
    assert debian.client.hgetall("rsmq:test-queue:Q") == {
        b"vt": b"30",
        b"delay": b"0",
        b"maxsize": b"65535",
        b"created": b"%d" % now,
        b"modified": b"%d" % now,
    }
    assert ctl("queue", "describe", "-n", "test-queue") == (
        0,
        '{"vt": 30.0, "delay": 0.0, "maxsize": 65535, "totalrecv": 0, "totalsent": 0, '
        f'"created": {now}, "modified": {now}, "msgs": 0, "hiddenmsgs": 0}}\n',
        "",
    )
    assert ctl("queue", "delete", "--name", "another-queue") == (0, "", "")
    assert ctl("queue", "list") == (0, '["test-queue"]\n', "")


def test_the_documented_commands_of_messages_print_what_the_documents_show(
    inside: Callable[..., Ended], debian: Bench
) -> None:
    inside("queue", "create", "-n", "test-queue")
    sent = inside("message", "send", "-n", "test-queue", "-m", "Hello, World")
    stored: Any = debian.client.zrange("rsmq:test-queue", 0, -1)
    id = stored[0].decode()
    assert sent == (0, f"{id}\n", ""), "the bare ID, without quotes"
    now = debian.clock.now_ms
    expected = f'{{"id": "{id}", "message": "Hello, World", "rc": 1, "ts": {now}}}\n'
    assert inside("message", "receive", "-n", "test-queue") == (0, expected, "")
    assert debian.client.zscore("rsmq:test-queue", id) == now + 30_000
    assert inside("message", "receive", "-n", "test-queue") == (0, "No messages on queue: test-queue\n", "")
    assert inside("message", "visibility", "-n", "test-queue", "-i", id, "-t", "600") == (
        0,
        f"Message ID: {id} visibility timeout set to 600s\n",
        "",
    )
    assert debian.client.zscore("rsmq:test-queue", id) == now + 600_000
    assert inside("message", "delete", "-n", "test-queue", "--message-id", id) == (0, "", "")
    inside("message", "send", "-n", "test-queue", "--message", "naïve")
    popped = inside("message", "pop", "-n", "test-queue")
    assert (popped.code, json.loads(popped.out)["message"]) == (0, "naïve")
    assert list(json.loads(popped.out)) == ["id", "message", "rc", "ts"]
    assert inside("message", "pop", "-n", "test-queue") == (0, "No messages on queue: test-queue\n", "")


def test_failures_end_with_one_and_begin_with_the_same_text(inside: Callable[..., Ended]) -> None:
    inside("queue", "create", "-n", "orders")
    on_missing = [
        ("queue", "describe"),
        ("queue", "delete"),
        ("message", "send", "-m", "x"),
        ("message", "receive"),
        ("message", "pop"),
        ("message", "delete", "-i", NO_ID),
        ("message", "visibility", "-i", NO_ID, "-t", "1"),
    ]
    for words in on_missing:
        assert inside(*words, "-n", "nowhere") == (1, "", "No such queue: nowhere\n"), words
    assert inside("queue", "create", "-n", "orders") == (1, "", "Queue already exists: orders\n")
    assert inside("message", "delete", "-n", "orders", "-i", NO_ID) == (
        1,
        "",
        f"Failed to delete message ID: {NO_ID}\n",
    )
    assert inside("message", "visibility", "-n", "orders", "-i", NO_ID, "-t", "1") == (
        1,
        "",
        f"Failed to change visibility timeout for message ID: {NO_ID}\n",
    )
    assert inside("queue", "create", "-n", "x", "-m", "1") == (
        1,
        "",
        "Failed to create queue: x\nmaxsize must be between 1024 and 65536\n",
    )
    long = "x" * 70_000
    assert inside("message", "send", "-n", "orders", "-m", long) == (
        1,
        "",
        f"Failed to send message: {long}\nMessage too long\n",
    )


def test_wrong_usage_ends_with_two_and_help_with_none(inside: Callable[..., Ended]) -> None:
    for words in (
        ("queue", "create"),
        ("message", "send", "-n", "orders"),
        ("queue", "create", "-n", "x", "-t", "soon"),
    ):
        ended = inside(*words)
        assert (ended.code, ended.out) == (2, "")
        assert "Usage: rsmqctl" in ended.err
    for option in ("--redis-url", "--verbose"):
        assert option in inside("--help").out
    assert "--message-id" in inside("message", "visibility", "--help").out


def test_the_queues_delay_and_a_timeout_of_zero_hold(inside: Callable[..., Ended], debian: Bench) -> None:
    """The other program sends with a delay of 0 and ignores `-t 0`, contrary to its help."""
    Node(debian.client).create("orders", delay=60)
    late = inside("message", "send", "-n", "orders", "-m", "a").out.strip()
    inside("message", "send", "-n", "orders", "-m", "b", "-d", "0")
    assert debian.client.zscore("rsmq:orders", late) == debian.clock.now_ms + 60_000
    assert json.loads(inside("message", "receive", "-n", "orders", "-t", "0").out)["rc"] == 1
    assert json.loads(inside("message", "receive", "-n", "orders").out)["rc"] == 2


def test_the_server_is_the_option_then_the_environment_then_localhost(debian: Bench) -> None:
    url, wrong = debian.server.url, "redis://127.0.0.1:1"
    assert rsmqctl("-r", url, "queue", "list", REDIS_URL=wrong) == (0, "[]\n", "")
    assert rsmqctl("--redis-url", url, "queue", "list") == (0, "[]\n", "")
    away = rsmqctl("queue", "list", REDIS_URL=wrong, RESTANTE_URL=url)
    assert (away.code, away.out, away.err.splitlines()[0]) == (1, "", "Failed to list queues")
    assert "Traceback" not in away.err
    assert "Traceback" in rsmqctl("-v", "queue", "list", REDIS_URL=wrong).err
    assert "redis://localhost:6379" in rsmqctl("--help").out
