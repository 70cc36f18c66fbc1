"""ls, show, journal, consumers, doctor and the help, as people and programs see them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from restante import Admin, Client, State
from tests.cli.conftest import Cli
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer


def fail(post: Client, queue: str, payload: object, error: Exception) -> str:
    """A message that is dead after one attempt."""
    opened = post.queue(queue)
    opened.send(payload, max_attempts=1)
    message = opened.receive()
    assert message is not None
    message.nack(error=error)
    return message.id


def test_the_help_names_every_command_and_exit_code(cli: Cli) -> None:
    ran = cli("--help", COLUMNS="100")
    assert ran.code == 0
    for word in (
        "up",
        "send",
        "receive",
        "consume",
        "ls",
        "show",
        "replay",
        "delete",
        "purge",
        "pause",
        "resume",
        "move",
        "edit",
        "configure",
        "journal",
        "consumers",
        "doctor",
        "bench",
        "demo",
        "Exit codes",
        "--install-completion",
    ):
        assert f" {word}" in ran.out, word
    assert cli(COLUMNS="100").out == ran.out
    assert cli.inside("--version").out.startswith("restante ")


def test_wrong_usage_ends_with_two(cli: Cli) -> None:
    assert "No such command" in cli("sned").error
    assert cli.inside("send").code == 2
    ran = cli("ls", "--state", "lost", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert '"error":"WrongUsage"' in ran.err
    assert cli.inside("--url", "redis://x", "--directory", "y", "ls").code == 2


def test_queues_and_their_counts(cli: Cli, post: Client, admin: Admin) -> None:
    assert cli.inside("ls").code == 1
    post.queue("orders").send_many([1, 2])
    post.queue("orders").send(3, delay=60)
    admin.pause("orders")
    fail(post, "emails", 1, ValueError("x"))
    shown = cli("ls")
    assert (shown.code, shown.err) == (0, "")
    header, emails, orders = shown.out.splitlines()
    for state in State:
        assert f"● {state.value}" in header
    assert emails.split()[:7] == ["emails", "·", "·", "·", "·", "1", "·"]
    assert orders.split()[:7] == ["orders", "1", "2", "·", "·", "·", "·"]
    assert "paused" in orders
    ran = cli("ls", "--json")
    rows = {row["queue"]: row for row in ran.json["queues"]}
    assert {state.value: rows["orders"][state.value] for state in State} == {
        "scheduled": 1,
        "ready": 2,
        "leased": 0,
        "retrying": 0,
        "dead": 0,
        "done": 0,
    }
    one = cli.inside("ls", "orders", "--json").json
    assert (one["queue"], one["paused"], one["settings"]["max_attempts"]) == ("orders", True, 5)
    assert cli.inside("ls", "nope").code == 1
    assert "max_attempts" in cli.inside("ls", "orders").out


def test_messages_of_a_state_come_in_pages(cli: Cli, post: Client) -> None:
    post.queue("orders").send_many([{"n": number} for number in range(5)])
    post.queue("orders").send({"text": "x" * 5000})
    seen: list[dict[str, Any]] = []
    after: list[str] = []
    while True:
        page = cli.inside("ls", "orders", "--state", "ready", "--limit", "4", "--json", *after).json
        seen += page["messages"]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]
    assert [one["payload"]["n"] for one in seen[:5]] == [0, 1, 2, 3, 4]
    assert seen[5]["payload_start"].startswith('{"text":"xxx')
    table = cli("ls", "orders", "--state", "ready", "-n", "2")
    assert seen[0]["id"] in table.out
    assert "--after" in table.err
    assert cli.inside("ls", "orders", "--state", "dead").code == 1


def test_show_has_the_payload_and_a_row_per_attempt(cli: Cli, post: Client, admin: Admin) -> None:
    opened = post.queue("orders", retry=None)
    id = opened.send({"order": 1, "text": "[bold]héllo[/]"}, kind="order.placed", headers={"a": "b"})
    for number in range(2):
        message = opened.receive(timeout=PATIENCE)
        assert message is not None
        message.nack(delay=0, error=ValueError(f"attempt {number} failed"))
    ran = cli("show", "orders", id)
    assert ran.code == 0
    for text in (id, "● ", "order.placed", "a=b", '"[bold]héllo[/]"', "2 / 5", "attempt 0 failed", "attempt 1 failed"):
        assert text in ran.out, text
    shown = cli.inside("show", "orders", id, "--json").json
    assert shown["payload"] == {"order": 1, "text": "[bold]héllo[/]"}
    assert [one["error_class"] for one in shown["history"]] == ["ValueError", "ValueError"]
    missing = cli.inside("show", "orders", "no-such-id", "--json")
    assert (missing.code, missing.out) == (1, "")
    assert '"error":"NotFound"' in missing.err


def test_show_prints_the_traceback_of_a_failure_that_is_tried_again(cli: Cli, post: Client) -> None:
    opened = post.queue("orders", retry=None)
    id = opened.send("x")
    message = opened.receive(timeout=PATIENCE)
    assert message is not None
    try:
        raise LookupError("no customer")
    except LookupError as error:
        message.nack(error=error)
    ran = cli.inside("show", "orders", id)
    for text in ("error of attempt 1", "Traceback (most recent call last)", 'raise LookupError("no customer")'):
        assert text in ran.out, text


def test_consumers_says_how_many_handlers_hang(cli: Cli, post: Client) -> None:
    opened = post.queue("orders")
    opened.ref.presence = b'{"host":"h","pid":1,"concurrency":4,"hung":2}'
    opened.receive()
    [found] = cli.inside("consumers", "--json").json["consumers"]
    assert (found["concurrency"], found["hung"]) == (4, 2)
    assert "hung" in cli("consumers").out


def test_the_journal_is_shown_and_followed(cli: Cli, post: Client) -> None:
    assert cli.inside("journal").code == 1
    post.queue("orders").send(1)
    time.sleep(0.01)  # the journals of two queues are put in order by the millisecond
    id = post.queue("emails").send(2)
    ran = cli("journal", "--json", "-n", "1")
    assert (ran.json["event"], ran.json["queue"], ran.json["message_id"]) == ("sent", "emails", id)
    running = cli.start("journal", "--follow")
    running.wait_for("sent")
    message = post.queue("orders").receive()
    assert message is not None
    message.ack()
    later = post.queue("made-later").send(3)
    running.wait_for("acked")
    running.wait_for(later)
    running.interrupt()
    assert running.wait() == 0
    assert running.output.count(later) == 1


def test_a_journal_of_payloads_is_shown_as_any_other(cli: Cli, post: Client) -> None:
    assert cli("configure", "orders", "journal=payloads", "--json").json["settings"]["journal"] == "payloads"
    ids = post.queue("orders").send_many(["a", "b"])
    assert cli.inside("purge", "orders", "--yes").code == 0
    ran = cli("journal", "orders", "-n", "4", "--json")
    assert [(line["event"], line["message_id"], line["detail"]) for line in ran.ndjson] == [
        ("sent", ids[0], ""),
        ("sent", ids[1], ""),
        ("purged", ids[0], "ready"),
        ("purged", ids[1], "ready"),
    ]
    shown = cli.inside("journal", "orders", "-n", "2")
    assert all(text in shown.out for text in ("purged", *ids, "gone", "ready"))


def test_the_doctor_ends_with_five_for_a_danger(cli: Cli, tmp_path: Path) -> None:
    ran = cli("doctor", "--json")
    assert ran.code == 5
    found = {one["what"]: one for one in ran.json["findings"]}
    assert (found["persistence"]["level"], found["version"]["level"]) == ("danger", "ok")
    assert "appendonly" in found["persistence"]["remedy"]
    safe = RedisServer(appendonly="everysec", maxmemory=100_000_000)
    with safe:
        well = cli.inside("--url", safe.url, "doctor")
        assert well.code == 0
        assert "● ok" in well.out


def test_a_server_that_evicts_is_refused_by_all_but_the_doctor(cli: Cli) -> None:
    config = {"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"}
    with RedisServer(appendonly="everysec", config=config) as server:
        refused = cli("--url", server.url, "send", "orders", "1")
        assert (refused.code, "noeviction" in refused.error) == (4, True)
        ran = cli.inside("--url", server.url, "doctor", "--json")
        assert ran.code == 5
        # The code is that of this one danger: the server is well otherwise.
        assert [one["what"] for one in ran.json["findings"] if one["level"] == "danger"] == ["eviction"]


def test_completion_knows_commands_and_queues(cli: Cli, post: Client) -> None:
    post.queue("orders").send(1)
    script = cli(_RESTANTE_COMPLETE="source_bash")
    assert "complete -o default -F _restante_completion restante" in script.out
    words = cli(_RESTANTE_COMPLETE="complete_bash", COMP_WORDS="restante re", COMP_CWORD="1")
    assert words.out.split() == ["receive", "result", "replay", "revoke", "resume"]
    names = cli(_RESTANTE_COMPLETE="complete_bash", COMP_WORDS="restante show or", COMP_CWORD="2")
    assert names.out.split() == ["orders"]
    away = cli(
        _RESTANTE_COMPLETE="complete_bash",
        COMP_WORDS="restante show or",
        COMP_CWORD="2",
        RESTANTE_URL="redis://127.0.0.1:1",
    )
    assert away.out.split() == []


def test_show_tells_how_far_a_handler_is_and_what_came_out(cli: Cli, post: Client) -> None:
    opened = post.queue("orders", keep_done=5)
    id = opened.send("work")
    message = opened.receive()
    assert message is not None
    message.progress(0.4, "reading pages")
    assert "40 %  reading pages" in cli("show", "orders", id).out
    assert cli.inside("show", "orders", id, "--json").json["progress"]["fraction"] == 0.4
    message.ack(result={"total": 7})
    shown = cli("show", "orders", id).out
    assert "result" in shown
    assert '"total": 7' in shown
    assert cli.inside("show", "orders", id, "--json").json["result"] == {"total": 7}
