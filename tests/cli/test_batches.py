"""Operator commands for batches: ls, show, cancel, resume."""

from __future__ import annotations

from restante import Client
from restante.core.batch_calls import BatchName, adding, opening
from tests.cli.conftest import Cli


def opened(post: Client, id: str, count: int = 2) -> str:
    """A batch in the home queue reports."""
    orders = post.queue("orders", max_attempts=1)
    with post.batch("reports", id=id, title="nightly", on_complete=1) as batch:
        for number in range(count):
            batch.send(orders, number)
    return batch.id


def left_open(post: Client, id: str) -> str:
    """One whose producer died after it had announced a message."""
    name = BatchName("reports", id)
    post.queue("reports").ensure_open()
    post.connection.run(opening(name, "n", {"title": "", "parent": "", "keep_ms": 60_000}))
    post.connection.run(adding(name, [("orders", "never")]))
    return str(name)


def test_ls_lists_those_that_have_not_ended_or_have(cli: Cli, post: Client) -> None:
    assert cli("batch", "ls").code == 1
    first, second = opened(post, "one"), opened(post, "two", 0)
    running = cli("batch", "ls", "--json").json["batches"]
    assert [(row["id"], row["state"], row["pending"], row["fraction"]) for row in running] == [
        (first, "running", 2, 0.0)
    ]
    assert [row["id"] for row in cli("batch", "ls", "reports", "--ended", "--json").json["batches"]] == [second]
    assert "nightly" in cli("batch", "ls").out
    assert "0%" in cli("batch", "ls").out
    assert cli("batch", "ls", "report").code == 1


def test_show_says_how_far_it_is_and_what_failed(cli: Cli, post: Client) -> None:
    id = opened(post, "one")
    message = post.queue("orders").receive()
    assert message is not None
    message.nack(error=ValueError("no"))
    shown = cli("batch", "show", id, "--json").json
    assert (shown["dead"], shown["pending"]) == (1, 1)
    assert shown["failed"] == [{"id": message.id, "queue": "orders", "ended": "dead", "error": "ValueError"}]
    text = cli("batch", "show", id).out
    assert "50%" in text
    assert "ValueError" in text
    assert cli("batch", "show", "reports/nobody").code == 1
    assert cli("batch", "show", "reports").code == 4


def test_cancel_gives_it_up_after_a_confirmation(cli: Cli, post: Client) -> None:
    id = opened(post, "one")
    assert cli("batch", "cancel", id).code == 2
    assert cli("batch", "cancel", id, "--yes", "--json").json == {"batch": id, "cancelled": 2}
    assert cli("batch", "show", id, "--json").json["state"] == "cancelled"
    assert post.queue("orders").receive() is None


def test_resume_seals_what_a_dead_producer_left_open(cli: Cli, post: Client) -> None:
    id = left_open(post, "open")
    assert "resume" in cli("batch", "show", id).err
    assert cli("batch", "resume", id, "--json").json == {"batch": id, "missing": 1, "state": "complete"}
