"""Rows 38 and 40: names and numbers nobody should send, at every door, and again in the scripts themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import restante
from restante import Admin, Client, InvalidInput, InvalidName, Position
from restante.core import admin as admin_room
from restante.core import operations
from restante.core.journal_reader import JournalReader
from restante.core.keys import QueueKeys
from restante.core.lease_journal import LeaseJournal
from restante.core.names import valid_name
from restante.core.scripts import Argument, Script, ScriptCall
from restante.core.stored import encode
from tests.faults.rows import verdict
from tests.harness.servers import RedisServer, call

HOSTILE = [
    "",
    " ",
    "-a",
    "a b",
    "a\x00b",
    "a\r\nb",
    "a\n",
    "{x}",
    "a{b}c",
    "}{",
    "*",
    "?",
    "[a]",
    "é",
    "а",
    "ａ",
    "a\u200b",
    "a" * 201,
    "x" * 1000,
    "\ud800",
    "'",
    '"',
    "a\\b",
    "a,b",
    "a;b",
    "a|b",
    "$(a)",
    "a%00",
]
#: Odd but harmless: they stay inside their own key.
ODD = [
    "QUEUES",
    "a:Q",
    "../..",
    "a/b",
    "queues",
    "restante",
    "restante:queues",
    ".",
    "@",
    "1",
    "a" * 200,
    "+a:b@c/d._-",
]

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_valid(name: Any) -> bool:
    try:
        valid_name(name)
    except InvalidName:
        return False
    return True


def refused(attempt: Callable[[], Any], error: type[Exception]) -> bool:
    """Whether the attempt ends in this error; any other one passes through."""
    try:
        attempt()
    except error:
        return True
    return False


def doors(post: Client, queue: str) -> dict[str, Callable[[Any], Any]]:
    """Every way a name comes in."""
    view = Admin(post)
    opened = post.queue(queue)
    return {
        "queue": lambda name: post.queue(name),
        "queues": lambda name: post.receive_many([queue, name]),
        "consumer": lambda name: restante.connect(post.url, consumer=name or "-"),
        "operator": lambda name: Admin(post, operator=name or "-"),
        "kind": lambda name: opened.send(1, kind=name or "-"),
        "id": lambda name: opened.send(1, id=name),
        "batch id": lambda name: opened.send_many([restante.Draft(1, id=name)]),
        "counts": view.counts,
        "messages": lambda name: view.messages(name, "ready"),
        "show": lambda name: view.show(queue, name),
        "delete": lambda name: view.delete(queue, [name]),
        "purge": view.purge,
        "pause": view.pause,
        "configure": lambda name: view.configure(name, lease=5),
        "move": lambda name: view.move(queue, name, ["x"]),
        "drop": view.drop,
        "journal": view.journal,
        "reader": lambda name: view.register_reader(queue, name, Position(0)),
        "cursors": lambda name: view.cursors(name, "ready", 2),
        "place": JournalReader(post).place,
        "blocks": lambda name: list(JournalReader(post).blocks(name, 0, 1)),
        "bulk reader": lambda name: JournalReader(post).register(queue, name, 0),
        "lease journal": lambda name: LeaseJournal(post, name, "o"),
        "task": lambda name: view.task(queue, name),
        "replay": view.replay,
    }


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused_at_every_door(server: RedisServer, post: Client, name: str) -> None:
    post.queue("doors").send("x")
    before = set(call(server.client(), "KEYS", "*"))
    for door, enter in doors(post, "doors").items():
        assert refused(lambda: enter(name), InvalidName), f"{door} let {name!a} in"  # noqa: B023 (called at once)
    assert set(call(server.client(), "KEYS", "*")) == before


@quick
@given(text=st.text(max_size=30) | st.from_regex(r"[A-Za-z0-9._:@/+\-{}*\x00\n ]{0,12}", fullmatch=True))
@example("a:Q")
@example("../x")
def test_whatever_name_comes_in_no_key_lies_outside_its_queue(server: RedisServer, post: Client, text: str) -> None:
    if is_valid(text):
        queue = post.queue(text)
        queue.send("x", id="a")
        message = queue.receive()
        assert message is not None
        message.ack()
        Admin(post).purge(text)
        Admin(post).drop(text)
    else:
        with pytest.raises(InvalidName):
            post.queue(text)
    for key in call(server.client(), "SCAN", 0, "COUNT", 100_000)[1]:
        assert key.startswith(b"restante:{") or key in (b"restante:queues", b"restante:audit")


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_stays_inside_its_own_keys(server: RedisServer, post: Client, name: str) -> None:
    plain = server.client()
    before = set(call(plain, "KEYS", "*"))
    post.queue(name).send("x")
    common = {b"restante:queues", b"restante:audit"}
    fresh = set(call(plain, "KEYS", "*")) - before - common
    assert fresh
    assert all(key.startswith(f"restante:{{{name}}}:".encode()) for key in fresh)
    Admin(post).drop(name)
    assert set(call(plain, "KEYS", "*")) - common == before - common
    verdict(38, n=1, name=name[:30])


BAD_SECONDS = [-1, -0.001, math.nan, math.inf, -math.inf, 1e300, 2**63, 10**30, "1", b"1", True, [], {}]
BAD_WHOLE = [-1, 256, 999, 2**31, 2**63, 0.5, math.nan, "1", b"1", True, None, [], {}]


@pytest.mark.parametrize("value", BAD_SECONDS, ids=repr)
def test_bad_seconds_are_refused_before_anything_is_stored(post: Client, view: Admin, name: str, value: Any) -> None:
    queue = post.queue(name)
    queue.send("x")
    message = queue.receive()
    assert message is not None
    calls: list[Callable[[], Any]] = [
        lambda: queue.send(1, delay=value),
        lambda: queue.send(1, lease=value),
        lambda: queue.send_many([restante.Draft(1, delay=value)]),
        lambda: queue.receive(lease=value),
        lambda: queue.receive(timeout=value) if value != 2**63 else queue.receive(timeout=-1),
        lambda: message.nack(delay=value),
        lambda: message.release(delay=value),
        lambda: message.extend(lease=value),
        lambda: queue.configure(lease=value),
        lambda: queue.configure(dedup=value),
        lambda: restante.fixed(value),
        lambda: restante.exponential(value),
        lambda: restante.exponential(1, cap=value),
    ]
    for attempt in calls:
        with pytest.raises(InvalidInput):
            attempt()
    assert view.counts(name).leased == 1
    message.ack()
    assert view.counts(name).waiting == 0


@pytest.mark.parametrize("value", BAD_WHOLE, ids=repr)
def test_bad_whole_numbers_are_refused_before_anything_is_stored(
    post: Client, view: Admin, name: str, value: Any
) -> None:
    queue = post.queue(name)
    with pytest.raises(InvalidInput):
        queue.send(1, priority=value)
    with pytest.raises(InvalidInput):
        queue.send_many([restante.Draft(1, priority=value)])
    if value not in (256, 999, None):
        with pytest.raises(InvalidInput):
            queue.send(1, max_attempts=value if value != 2**31 else 0)
    if value not in (256, 999):
        with pytest.raises(InvalidInput):
            queue.receive_many(value)
    assert view.counts(name).waiting == 0


@quick
@given(value=st.integers() | st.floats() | st.text(max_size=5) | st.none() | st.booleans())
def test_any_priority_and_delay_is_kept_or_refused_with_its_name(post: Client, value: Any) -> None:
    queue = post.queue("numbers")
    for option, fits in (
        ("priority", type(value) is int and 0 <= value <= 255),
        ("delay", type(value) in (int, float) and 0 <= value <= 315_360_000),
    ):
        if fits:
            id = queue.send("x", **{option: value})
            Admin(post).delete("numbers", [id])
        else:
            with pytest.raises(InvalidInput, match=option):
                queue.send("x", **{option: value})


RAW = ["-1", "nan", "inf", "-inf", "1e300", "1.5", "x", "", "9223372036854775808", "--1", "\x00", "0x"]


def raw(post: Client, script: Script, name: str, *args: Argument) -> Any:
    """The script by its bare arguments, past every check of the client."""
    keys = QueueKeys(name).group(script.keys)
    return post.connection.run(ScriptCall(script, keys, list(args), lambda reply: reply, name))


@pytest.mark.parametrize("value", RAW, ids=ascii)
def test_the_scripts_refuse_bad_numbers_themselves(
    server: RedisServer, post: Client, view: Admin, name: str, value: str
) -> None:
    queue = post.queue(name)
    waiting = queue.send("x", delay=3600)
    queue.send("y", priority=255)
    message = queue.receive()
    assert message is not None
    body = encode("x")[0]
    token = message.lease_token
    calls: list[tuple[Script, list[Argument]]] = [
        (operations.SEND, ["0", "raw", "", value, body]),
        (operations.RECEIVE, [value, "n", "c", "", ""]),
        (operations.NACK, [message.id, token, value, "", '""']),
        (operations.RELEASE, [value, message.id, token]),
        (operations.EXTEND, ["c", "", message.id, token, value]),
        (admin_room.EDIT, ["op", waiting, body, value, ""]),
    ]
    if value:  # an empty text means "now", or "the queue's own"
        calls += [
            (operations.SEND, ["0", "raw", value, "0", body]),
            (operations.SEND, ["0", "raw", "+" + value, "0", body]),
            (operations.RECEIVE, ["1", "n", "c", value, ""]),
            (admin_room.EDIT, ["op", waiting, body, "0", value]),
        ]
    snapshot = _contents(server, name)
    for script, args in calls:
        assert refused(lambda: raw(post, script, name, *args), InvalidInput), f"{script.name} took {args}"  # noqa: B023 (called at once)
    assert _contents(server, name) == snapshot
    message.ack()
    assert view.counts(name).waiting == 1
    verdict(40, n=len(calls), value=value)


def test_a_script_with_too_few_arguments_stores_nothing(server: RedisServer, post: Client, name: str) -> None:
    post.queue(name).send("x")
    snapshot = _contents(server, name)
    wrong: list[list[Argument]] = [["0", "id", ""], ["0", "id", "", "0", b"short"], ["0", "id", "", "0"]]
    for args in wrong:
        with pytest.raises(InvalidInput):
            raw(post, operations.SEND, name, *args)
    assert _contents(server, name) == snapshot


def _contents(server: RedisServer, name: str) -> dict[bytes, bytes]:
    """Every key of the queue as the server would save it."""
    plain = server.client()
    keys = [key for key in call(plain, "KEYS", "*") if key.startswith(f"restante:{{{name}}}:".encode())]
    return {key: call(plain, "DUMP", key) for key in sorted(keys)}
