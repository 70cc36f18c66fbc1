"""The rights of Redis users are those that scripts and clients need: read from the scripts, seen on a server."""

from __future__ import annotations

import ast
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest

import restante.core
from restante import Admin
from restante.core.acl import PLAIN, SCRIPTS, SHARED, RedisRole, granted, role_for_script, rules, script_calls
from restante.core.batch_calls import BatchName, adding
from restante.core.claims import CLAIM, once
from restante.core.journal import Line
from restante.core.keys import NAMES
from restante.core.message import JournalEvent, State
from restante.core.throttle import THROTTLE, throttle
from tests.core import scenario
from tests.core.bench import Bench
from tests.core.paired import Pair
from tests.core.verbs import SCRIPTS as BY_NAME
from tests.harness.servers import call

_LUA = {path.name.removesuffix(".lua") for path in resources.files("restante.core").joinpath("lua").iterdir()}
_CORE = Path(restante.core.__file__ or "").parent
#: Plain commands that need no right of a role: every user has them, or their refusal is expected.
_FOR_ALL = {
    "ACL",
    "ASKING",
    "CLIENT",
    "CLUSTER",
    "EVALSHA",
    "INFO",
    "PING",
    "SCRIPT",
    "TIME",
    "TYPE",
    "WAIT",
    "WAITAOF",
}
#: For the doctor's look at Celery's own lists, durability disk before Redis 7.2, and sentinels.
_MAY_BE_REFUSED = {"CONFIG", "HLEN", "LLEN", "SENTINEL"}
#: Of the event bus and of Celery's exchanges, whose programs use the wide rule: replies and bindings.
_BUS = {"HINCRBY", "PEXPIRE", "RPUSH"}


def test_every_script_belongs_to_a_role() -> None:
    assert frozenset().union(*SCRIPTS.values()) == _LUA - set(SHARED)
    assert all(role_for_script(name) is not None for name in _LUA - set(SHARED))


def test_every_command_in_a_script_is_granted_to_the_roles_that_run_it() -> None:
    """By the bare text of each script, without the reading of functions and variables that the rights rest on."""
    for role in RedisRole:
        rights = set(granted([role])) | {"TIME"}
        for name in SCRIPTS[role]:
            text = resources.files("restante.core").joinpath("lua", f"{name}.lua").read_text()
            assert set(re.findall(r"call\('([A-Z]+)'", text)) <= rights, f"{role} runs {name}"


def test_a_key_that_a_script_names_by_a_loose_word_is_a_state_s_index() -> None:
    """Where a variable's name says nothing, the rights span every state: only commands of sorted sets may do so."""
    for name in _LUA - set(SHARED):
        wide = {command for command, words in script_calls(name).items() if words >= {state.value for state in State}}
        assert {command for command in wide if not command.startswith("Z")} == set(), name


def _plain_commands() -> Iterator[str]:
    for path in sorted({*_CORE.glob("*.py")} - {_CORE / "acl.py"}):
        for node in ast.walk(ast.parse(path.read_text())):
            first = None
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "command" and node.args:
                first = node.args[0]
            elif isinstance(node, ast.Tuple) and not all(_is_word(one) for one in node.elts):
                first = node.elts[0]
            if isinstance(first, ast.Constant) and _is_word(first):
                yield str(first.value)


def _is_word(node: ast.expr) -> bool:
    """Whether it is written like a command. A tuple of nothing else is a list of the server's errors."""
    return isinstance(node, ast.Constant) and re.fullmatch("[A-Z]{3,}", str(node.value)) is not None


def test_every_plain_command_of_the_core_is_granted_to_a_role() -> None:
    found = set(_plain_commands())
    assert {"BZPOPMIN", "SADD", "XRANGE", "HSETNX", "UNLINK"} <= found, "the search finds what is known to be there"
    rights = {command for calls in PLAIN.values() for command in calls}
    assert found - rights - _FOR_ALL - _MAY_BE_REFUSED - _BUS == set()


def test_a_role_may_run_the_scripts_that_the_clients_call() -> None:
    for role in RedisRole:
        allowed = {rule.partition("|")[2] for rule in rules([role]) if rule.startswith("+evalsha")}
        assert allowed == {BY_NAME[name].sha.decode() for name in SCRIPTS[role] if name in BY_NAME} | {
            script.sha.decode() for script in (CLAIM, THROTTLE) if script.name in SCRIPTS[role]
        }


@contextmanager
def _monitored(bench: Bench) -> Iterator[list[list[str]]]:
    """The commands the server runs meanwhile, those inside scripts included; there at the end of the block."""
    seen: list[list[str]] = []
    with socket.create_connection(("127.0.0.1", bench.server.port)) as link, link.makefile("rb") as lines:
        link.sendall(b"MONITOR\r\n")
        assert lines.readline() == b"+OK\r\n"
        yield seen
        call(bench.client, "ECHO", "that was all")
        for line in lines:
            words = re.findall(r'"((?:[^"\\]|\\.)*)"', line.decode())
            if words[:2] == ["ECHO", "that was all"]:
                return
            seen.append(["lua" if b" lua] " in line else "", *words])


def _use_batches(client: restante.Client) -> None:
    """Every verb of a batch, with a message that fails, and one that was announced and never sent."""
    work = client.queue("work", max_attempts=1)
    with client.batch("q", on_complete=1, on_dead=2) as batch:
        batch.send(work, 1)
        batch.send(work, 2)
    client.connection.run(adding(BatchName.parse(batch.id), [("work", "never")]))
    work.receive().nack(error="boom")  # type: ignore[union-attr]
    batch.resume()
    batch.status()
    work.receive().ack()  # type: ignore[union-attr]
    with client.batch("q", parent=None) as other:
        other.send(work, 1)
    other.cancel()


def test_scripts_use_no_key_that_was_not_read_from_their_text(debian: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "WALK", 40)  # the story alone meets every rule
    by_sha = {script.sha.decode(): script.name for script in (*BY_NAME.values(), CLAIM, THROTTLE)}
    used: set[tuple[str, str, str]] = set()
    with _monitored(debian) as seen, restante.connect(debian.server.url) as post:
        scenario.play(Pair(debian))
        queue, admin = post.queue("q"), Admin(post)
        queue.send(1, id="seen")
        admin.counts("q")
        for newest_first in (False, True):
            admin.messages("q", State.READY, newest_first=newest_first)
        admin.show("q", "seen")
        for id in ("seen", "nobody"):
            queue.status(id)
        queue.schedules()
        throttle(queue, "job", 1, 1, 1)
        _use_batches(post)
        line = Line(JournalEvent.SENT, State.READY, "k", 1)
        for verb in ("take", "confirm", "seize", "release", "note"):
            post.connection.run(once(verb, queue.ref.keys, "seen", 1, 60, line))
    running = ""
    for place, command, *words in seen:
        if place != "lua":
            running = by_sha.get(words[0], "") if command == "EVALSHA" else ""
            continue
        for key in words[: 2 if command in ("RENAME", "UNLINK") else 1]:
            word = key.rpartition("}:")[2].partition(":")[0]
            used.add((running, command, word))
    read = {
        (name, command, word)
        for name in by_sha.values()
        for command, words in script_calls(name).items()
        for word in words
    }
    beyond = {one for one in used if one[0] and one[1] != "TIME"} - read  # without a name: the tests' own scripts
    assert beyond == set()
    assert {name for name, _, _ in used} - {""} == _LUA - set(SHARED), "every script was seen at work"
    assert {word for _, _, word in used} >= set(NAMES) - {"tasks", "consumers"}, "with nearly every key"


@pytest.mark.parametrize(
    ("role", "command", "word"),
    [
        ("send", "HGET", "messages"),
        ("send", "HDEL", "messages"),
        ("send", "XRANGE", "journal"),
        ("send", "ZREM", "ready"),
        ("consume", "XRANGE", "journal"),
        ("consume", "HSET", "messages"),
        ("consume", "UNLINK", "messages"),
        ("pipeline", "XADD", "journal"),
        ("pipeline", "HSET", "messages"),
        ("operate", "BZPOPMIN", "marker"),
    ],
)
def test_a_role_has_no_right_that_its_work_does_not_need(role: str, command: str, word: str) -> None:
    assert word not in granted([RedisRole(role)]).get(command, frozenset())
