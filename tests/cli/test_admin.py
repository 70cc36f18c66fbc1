"""Operator commands: replay, delete, purge, pause, move, edit, configure."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

from restante import Admin, Client, State
from tests.cli.conftest import RESTANTE, Cli
from tests.harness.deadlines import PATIENCE, wait_until

_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def bury(post: Client, count: int, error: str = "Broken", kind: str = "order") -> list[str]:
    """Dead messages of the queue orders."""
    opened = post.queue("orders")
    opened.send_many(list(range(count)), kind=kind)
    failure = type(error, (Exception,), {})("x")
    ids = []
    while batch := opened.receive_many(1000):
        opened.bury_many(batch, error=failure)
        ids += [message.id for message in batch]
    return ids


def on_terminal(cli: Cli, *words: str, answers: dict[str, str]) -> tuple[int, str]:
    """Runs a command on a new terminal and types each answer when its text appears; returns exit code and screen."""
    near, far = pty.openpty()
    env = cli.env | {"TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
    # A new session whose leader has the terminal: else Ctrl-C does not become a signal.
    leader = [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, str(RESTANTE)]
    child = subprocess.Popen(
        [*leader, *words], stdin=far, stdout=far, stderr=far, env=env, cwd=cli.cwd, start_new_session=True
    )
    os.close(far)
    screen, deadline = "", time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            if not select.select([near], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(near, 65536)
            except OSError:  # the last writer has closed its end
                break
            screen += data.decode(errors="replace")
            for text in [text for text in answers if text in screen]:
                os.write(near, answers.pop(text).encode())
        return child.wait(PATIENCE), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)
    finally:
        child.kill()
        child.wait()
        os.close(near)


def test_replay_asks_on_a_terminal_with_the_number(cli: Cli, post: Client, admin: Admin) -> None:
    bury(post, 7)
    bury(post, 2, "Other")
    code, screen = on_terminal(cli, "replay", "orders", "--error", "Broken", answers={"[y/N]": "n\n"})
    assert "Replay 7 dead messages of orders?" in screen
    assert (code, admin.counts("orders").dead) == (1, 9)
    code, screen = on_terminal(cli, "replay", "orders", answers={"[y/N]": "y\n"})
    assert "Replay 9 dead messages of orders?" in screen
    assert "9 replayed" in screen
    assert (code, admin.counts("orders").ready) == (0, 9)


def test_replay_filters_counts_and_reports(cli: Cli, post: Client, admin: Admin) -> None:
    bury(post, 3, "Broken")
    first, *_ = bury(post, 2, "Other", kind="refund")
    dry = cli("replay", "orders", "--error", "Broken", "--dry-run", "--json")
    assert (dry.code, dry.json["replayed"], dry.json["dry_run"]) == (0, 3, True)
    assert admin.counts("orders").dead == 5
    one = cli.inside("replay", "orders", first, "--json").json
    assert (one["status"], one["replayed"]) == ("finished", 1)
    assert cli.inside("replay", "orders", "--kind", "nothing").code == 1
    rest = cli("replay", "orders")
    assert (rest.code, rest.out, rest.err) == (0, "", "4 replayed in orders\n")
    assert cli.inside("replay", "nope").code == 1


def test_an_interrupted_replay_goes_on_by_its_task(cli: Cli, post: Client, admin: Admin) -> None:
    bury(post, 300)
    running = cli.start("replay", "orders", "--rate", "10")
    wait_until(lambda: admin.counts("orders").ready)
    running.interrupt()
    assert running.wait() == 1
    told = re.search(r"restante replay orders --task (\S+)", running.output)
    assert told is not None, running.output
    done = admin.counts("orders").ready
    assert 0 < done < 300
    rest = cli.inside("replay", "orders", "--task", told[1], "--json").json
    assert (rest["status"], rest["replayed"]) == ("finished", 300)
    assert admin.counts("orders").ready == 300


def test_revoke_takes_back_what_is_leased_and_tells_why(cli: Cli, post: Client, admin: Admin) -> None:
    opened = post.queue("orders")
    first, second = opened.send_many([1, 2])
    assert opened.receive() is not None
    taken = cli("revoke", "orders", first, second, "--reason", "the worker hangs")
    assert (taken.code, taken.err) == (0, "1 revoked\n")
    assert (admin.counts("orders").ready, admin.counts("orders").leased) == (2, 0)
    line = next(entry for entry in admin.journal("orders") if entry.event == "revoked")
    assert line.detail.endswith(", the worker hangs")
    again = cli.inside("revoke", "orders", first, "--json")
    assert (again.code, again.json) == (1, {"queue": "orders", "revoked": 0})


def test_cancel_gives_up_what_waits_and_what_runs(cli: Cli, post: Client, admin: Admin) -> None:
    opened = post.queue("orders")
    first, second = opened.send_many([1, 2])
    assert opened.receive() is not None
    done = cli.inside("cancel", "orders", first, second, "nobody", "--json")
    assert (done.code, done.json) == (0, {"queue": "orders", "cancelled": 2})
    assert admin.counts("orders").waiting == 0
    assert cli("cancel", "orders", first).code == 1
    assert [(entry.verb, entry.count) for entry in admin.audit() if entry.queue == "orders"][:1] == [("cancel", 2)]


def test_delete_spares_what_is_held(cli: Cli, post: Client, admin: Admin) -> None:
    opened = post.queue("orders")
    first, second = opened.send_many([1, 2])
    assert opened.receive() is not None
    held = cli("delete", "orders", first, second)
    assert held.code == 4
    assert "are leased and were not deleted" in held.error
    assert cli.inside("delete", "orders", second, "--json").code == 1
    assert cli("delete", "orders", opened.send(3), "--json").json == {"queue": "orders", "deleted": 1}


def test_purge_needs_a_yes(cli: Cli, post: Client, admin: Admin) -> None:
    bury(post, 3)
    post.queue("orders").send_many([1, 2])
    refused = cli("purge", "orders")
    assert refused.code == 2
    assert "5 messages" in refused.error
    assert cli.inside("purge", "orders", "--state", "dead", "--yes", "--json").json == {"queue": "orders", "purged": 3}
    assert admin.counts("orders").ready == 2
    assert cli.inside("purge", "orders", "--state", "leased", "--yes").code == 4
    code, screen = on_terminal(cli, "purge", "orders", answers={"[y/N]": "y\n"})
    assert (code, "Remove 2 messages" in screen) == (0, True)
    assert cli.inside("purge", "orders", "--yes").code == 1


def test_drop_removes_a_queue_with_what_it_holds_once_it_is_told_yes(cli: Cli, post: Client, admin: Admin) -> None:
    post.queue("orders").send_many([1, 2])
    post.queue("orders").send(3, delay=3600)
    refused = cli.inside("drop", "orders")
    assert (refused.code, refused.error) == (
        2,
        "error: Remove orders with its 3 messages (1 scheduled, 2 ready) for good? Give --yes to confirm",
    )
    assert admin.counts("orders").waiting == 3
    assert "did you mean orders" in cli.inside("drop", "ordrs", "--yes").error
    assert cli("drop", "orders", "--yes", "--json").json == {"queue": "orders", "dropped": True, "messages": 3}
    assert admin.queues() == []
    entry = admin.audit()[0]
    assert (entry.who, entry.verb, entry.queue) == ("tester", "drop", "orders")
    assert cli.inside("drop", "orders", "--yes").code == 1


def test_drop_is_refused_while_messages_are_held_or_consumers_live_unless_forced(
    cli: Cli, post: Client, admin: Admin
) -> None:
    queue = post.queue("orders")
    queue.send_many([1, 2])
    held = queue.receive()
    assert held is not None
    leased = cli.inside("drop", "orders", "--yes")
    assert (leased.code, leased.error) == (
        4,
        "error: orders has 1 leased messages: stop its consumers, or give --force",
    )
    held.ack()
    used = cli.inside("drop", "orders", "--yes")
    assert (used.code, f"is consumed by {post.consumer}, seen within the last minute" in used.error) == (4, True)
    queue.receive()
    assert cli.inside("drop", "orders", "--yes", "--force").code == 0
    assert admin.queues() == []
    # A consumer of this host whose process is gone does not count.
    post.queue("mail").send(1)
    assert cli("receive", "mail", "--ack").code == 0
    assert cli.inside("drop", "mail", "--yes").code == 0


def test_a_setting_or_a_move_makes_no_queue_by_a_slip(cli: Cli, post: Client, admin: Admin) -> None:
    id = post.queue("orders").send(1)
    post.queue("archive").configure()
    assert "did you mean orders? Give --create" in cli.inside("configure", "ordrs", "lease=2m").error
    assert "did you mean archive? Give --create" in cli.inside("move", "orders", "archiv", id).error
    assert admin.queues() == ["archive", "orders"]
    assert cli.inside("configure", "orders2", "lease=2m", "--create").code == 0
    assert cli.inside("move", "orders", "archive2", id, "--create").code == 0
    assert admin.queues() == ["archive", "archive2", "orders", "orders2"]


def test_pause_and_resume(cli: Cli, post: Client, admin: Admin) -> None:
    post.queue("orders").send(1)
    assert cli("pause", "orders", "--json").json == {"queue": "orders", "paused": True}
    assert cli.inside("receive", "orders").code == 1
    assert cli("resume", "orders").code == 0
    assert cli.inside("receive", "orders").code == 0
    assert cli.inside("pause", "typo").code == 1
    assert admin.queues() == ["orders"]


def test_a_waiting_message_is_edited_and_moved(cli: Cli, post: Client, admin: Admin) -> None:
    id = post.queue("orders").send({"n": 1}, headers={"a": "b"}, delay=3600)
    edited = cli("edit", "orders", id, "--payload", '{"n": 2}', "--priority", "9", "--delay", "2h", "--json").json
    assert (edited["payload"], edited["priority"], edited["headers"]) == ({"n": 2}, 9, {"a": "b"})
    assert (edited["state"], edited["id"]) == ("scheduled", id)
    assert cli.inside("edit", "orders", id).code == 2
    moved = cli("move", "orders", "archive", id, "--json").json
    assert moved == {"queue": "orders", "moved": 1, "target": "archive"}
    assert admin.show("archive", id).state is State.SCHEDULED
    assert cli.inside("move", "orders", "archive", id).code == 1


def test_settings_are_shown_and_changed(cli: Cli, admin: Admin) -> None:
    words = ("lease=2m", "max_attempts=8", "retry=fixed:1,5", "keep_done=10", "rate=2.5", "durability=disk")
    changed = cli("configure", "orders", *words, "--json").json["settings"]
    assert (changed["lease"], changed["max_attempts"], changed["keep_done"], changed["rate"]) == (120.0, 8, 10, 2.5)
    assert admin.counts("orders").settings.durability == "disk"
    back = cli.inside("configure", "orders", "max_attempts=", "rate=none")
    assert back.code == 0
    assert "max_attempts  5" in back.out
    assert cli.inside("configure", "orders", "lease").code == 2
    assert "no setting 'leese'" in cli.inside("configure", "orders", "leese=1").error
    assert cli.inside("configure", "orders", "max_attempts=many").code == 4
