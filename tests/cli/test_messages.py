"""send, receive and consume, as a shell runs them."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from restante import Admin, Client, State
from tests.cli.conftest import RESTANTE, Cli
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.servers import RedisServer, call

APP = """
import time
import restante

orders = restante.connect().queue("orders")
emails = restante.connect().queue("emails")

@orders.handler
def order(message):
    if message.payload == "slow":
        print("started", flush=True)
        time.sleep(30)
    if message.payload == "bad":
        raise ValueError("no such order")

@emails.handler
async def email(message):
    pass
"""


AIO_APP = """
import restante.aio

letters = restante.aio.connect().queue("letters")

@letters.handler
async def deliver(message):
    if message.payload == "unreadable":
        await message.bury(error="no address")
    else:
        print("delivered", message.payload, flush=True)

@letters.handler(kind="heavy")
def lift(message):
    message.ack()
    print("lifted", message.payload, flush=True)
"""


def test_a_sent_message_carries_everything_it_was_given(cli: Cli, admin: Admin) -> None:
    ran = cli(
        "send",
        "orders",
        '{"order": 42}',
        "--priority",
        "200",
        "--delay",
        "10m",
        "--id",
        "o-42",
        "--kind",
        "order.placed",
        "--header",
        "tenant=a=b",
        "--header",
        "x=1",
        "--unique",
        "order-42",
        "--max-attempts",
        "7",
        "--retry",
        "fixed:1,5",
        "--lease",
        "2h",
    )
    assert (ran.code, ran.out, ran.err) == (0, "o-42\n", "")
    message = admin.show("orders", "o-42")
    assert message.payload == {"order": 42}
    assert (message.state, message.priority, message.kind) == (State.SCHEDULED, 200, "order.placed")
    assert message.headers == {"tenant": "a=b", "x": "1"}
    assert (message.unique, message.max_attempts) == ("order-42", 7)
    assert message.retry is not None
    assert message.retry.next(2) == 5
    admin.edit("orders", "o-42", delay=0)
    held = cli.inside("receive", "orders", "--json").json
    assert lease_of(held) == timedelta(hours=2)
    again = cli.inside("send", "orders", "1", "--unique", "order-42", "--json")
    assert (again.code, again.json) == (0, {"queue": "orders", "id": "o-42", "stored": False})


def lease_of(received: dict[str, str]) -> timedelta:
    """How long a received message is held."""
    return datetime.fromisoformat(received["lease_expires_at"]) - datetime.fromisoformat(received["received_at"])


def test_a_durability_that_is_not_reached_ends_with_three(cli: Cli, admin: Admin) -> None:
    one = cli.inside("send", "orders", "1", "--durability", "replica:1", "--json")
    assert (one.code, '"error":"Unconfirmed"' in one.err) == (3, True)
    lines = cli("send", "orders", "--durability", "replica:1", stdin="2\n3\n")
    assert (lines.code, "replica:1" in lines.err) == (3, True)
    assert admin.counts("orders").ready == 3  # stored all the same, by the server itself


def test_bytes_are_sent_from_a_file(cli: Cli, admin: Admin) -> None:
    (cli.cwd / "picture").write_bytes(b"\x00\xff")
    assert cli("send", "blobs", "--raw", "picture", "--content-type", "image/x", "--id", "b").code == 0
    message = admin.show("blobs", "b")
    assert (message.payload, message.content_type) == (b"\x00\xff", "image/x")
    got = cli.inside("receive", "blobs", "--ack", "--json").json
    assert base64.b64decode(got["payload_base64"]) == b"\x00\xff"
    assert cli.inside("send", "blobs", "--raw", "absent").code == 2


def test_every_line_of_standard_input_is_a_message(cli: Cli, admin: Admin) -> None:
    lines = "".join(f'{{"n": {number}}}\n\n' for number in range(1200))
    ran = cli("send", "bulk", "--priority", "3", "--json", stdin=lines)
    assert ran.code == 0
    assert len({one["id"] for one in ran.ndjson}) == 1200
    assert [message.payload["n"] for message in admin.walk("bulk", State.READY)] == list(range(1200))
    bad = cli("send", "bulk", stdin='1\n"two"\nthree\n4\n')
    assert bad.code == 4
    assert "line 3 is not JSON" in bad.err
    assert "2 messages before it were sent" in bad.err
    assert admin.counts("bulk").ready == 1202
    assert cli("send", "bulk", stdin="\n").code == 1
    unended = cli("send", "bulk", "--json", stdin='"one"\n"last, without a line end"')
    assert [admin.show("bulk", one["id"]).payload for one in unended.ndjson] == ["one", "last, without a line end"]


def test_a_line_is_sent_before_the_next_one_comes(cli: Cli, post: Client) -> None:
    with subprocess.Popen([RESTANTE, "send", "slow"], stdin=subprocess.PIPE, env=cli.env) as child:
        assert child.stdin is not None
        child.stdin.write(b'"first"\n')
        child.stdin.flush()
        message = post.queue("slow").receive(timeout=PATIENCE)
        assert message is not None
        assert message.payload == "first"
        child.stdin.close()
        assert child.wait() == 0


def test_what_cannot_be_stored_is_refused_in_one_line(cli: Cli, admin: Admin) -> None:
    admin.configure("tight", max_length=1)
    assert cli.inside("send", "tight", "1").code == 0
    full = cli("send", "tight", "2")
    assert full.code == 4
    assert "tight is full" in full.error
    assert cli.inside("send", "orders", "{oops").code == 4
    assert "is not valid" in cli.inside("send", "a b", "1").error
    assert cli.inside("send", "orders", "1", "--delay", "soon").code == 2
    assert admin.queues() == ["tight"]


def test_receive_prints_and_holds_or_acks(cli: Cli, post: Client, admin: Admin) -> None:
    post.queue("orders").send_many([{"n": 1}, {"n": 2}, {"n": 3}], kind="order")
    held = cli("receive", "orders", "--lease", "1m")
    assert held.code == 0
    assert "not acked: ready in orders again in 1 m" in held.err
    (message,) = admin.walk("orders", State.LEASED)
    assert message.received_at is not None
    assert message.lease_expires_at == message.received_at + timedelta(minutes=1)
    assert '"n": 1' in held.out
    assert "not acked" in held.err
    assert admin.counts("orders").leased == 1
    ran = cli("receive", "orders", "-n", "5", "--ack", "--json")
    assert [one["payload"]["n"] for one in ran.ndjson] == [2, 3]
    assert ran.err == ""
    one = ran.ndjson[0]
    assert (one["queue"], one["kind"], one["state"], one["attempts"]) == ("orders", "order", "leased", 1)
    assert one["lease_token"]
    counts = admin.counts("orders")
    assert (counts.leased, counts.waiting) == (1, 1)


def test_what_nobody_read_is_not_acked(cli: Cli, post: Client, admin: Admin) -> None:
    post.queue("orders").send_many([1, 2, 3])
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(RESTANTE), "receive", "orders", "-n", "3", "--ack", "--json"]
    with subprocess.Popen(words, stdout=writing, stderr=subprocess.PIPE, env=cli.env) as child:
        os.close(writing)
        assert child.wait() == 1
    counts = admin.counts("orders")
    assert (counts.leased, counts.totals["acked"]) == (3, 0)


def test_receive_with_nothing_there_ends_with_one(cli: Cli, post: Client) -> None:
    post.queue("orders").configure()
    started = time.monotonic()
    none = cli("receive", "orders", "--timeout", "1s", "--json")
    assert (none.code, none.out, none.err) == (1, "", "")
    assert time.monotonic() - started >= 1


def test_receive_from_a_queue_that_is_not_there_makes_none_and_names_the_nearest(
    cli: Cli, post: Client, admin: Admin
) -> None:
    post.queue("orders").send(1)
    ran = cli("receive", "ordres", "--timeout", "1h")
    assert (ran.code, ran.out, ran.error) == (1, "", "error: no queue ordres: did you mean orders?")
    assert "known are orders" in cli.inside("receive", "quite-different").error
    assert admin.queues() == ["orders"]


def test_a_queue_made_by_a_slip_is_said(cli: Cli, post: Client) -> None:
    post.queue("orders").configure()
    assert "ordrs is a new queue; a queue named orders exists too" in cli.inside("send", "ordrs", "1").err
    assert cli.inside("send", "quite-different", "1").err == ""
    assert cli.inside("send", "orders", "1").err == ""


def test_receive_from_a_paused_queue_says_that_it_is_paused(cli: Cli, post: Client, admin: Admin) -> None:
    post.queue("orders").send(1)
    admin.pause("orders")
    ran = cli.inside("receive", "orders")
    assert (ran.code, ran.err) == (1, "orders is paused; to receive from it: restante resume orders\n")


def test_consume_names_its_servers_without_their_passwords(cli: Cli, post: Client, server: RedisServer) -> None:
    (cli.cwd / "app.py").write_text(APP)
    call(server.client(), "ACL", "SETUSER", "ada", "on", ">secret", "~*", "+@all")
    post.queue("orders").configure()
    ran = cli("consume", "app:orders", "--stop-when-empty", "--url", server.url.replace("//", "//ada:secret@"))
    assert f"consuming orders on {server.url} with concurrency 1" in ran.err
    assert "secret" not in ran.err


def test_handlers_of_several_modules_and_posts_are_run(cli: Cli, post: Client, admin: Admin) -> None:
    (cli.cwd / "app.py").write_text(APP)
    post.queue("orders").send_many(["good", "bad"])
    post.queue("emails").send_many([1, 2])
    ran = cli("consume", "app:orders", "app:emails", "--stop-when-empty", "--json")
    assert (ran.code, ran.json) == (0, {"handled": 3, "failed": 1})
    assert (admin.counts("orders").retrying, admin.counts("emails").waiting) == (1, 0)


def test_a_stopped_consumer_hands_back_and_leaves_nobody(cli: Cli, post: Client, admin: Admin) -> None:
    (cli.cwd / "app.py").write_text(APP)
    post.queue("orders").send_many(["slow", "slow", "good"])
    running = cli.start("consume", "app", "--grace", "500ms", "--concurrency", "2", "--prefetch", "1")
    wait_until(lambda: running.output.count("started") == 2, lambda: running.output)
    consumers = cli("consumers", "--json").json["consumers"]
    assert "orders" in {queue for one in consumers for queue in one["queues"]}
    assert {one["concurrency"] for one in consumers} == {2}
    running.interrupt()
    assert running.wait() == 0
    assert "stopped: 0 handled" in running.output
    cli.leaves_nobody()
    counts = admin.counts("orders")
    assert (counts.ready, counts.retrying, counts.leased) == (1, 2, 0)
    assert {message.attempts for message in admin.walk("orders", State.READY)} == {0}


def test_a_consumer_that_fails_ends_with_its_error(cli: Cli, post: Client, server: RedisServer) -> None:
    (cli.cwd / "app.py").write_text(APP)
    post.queue("orders").send("x")
    call(server.client(), "DEL", "restante:{orders}:ready")
    call(server.client(), "SET", "restante:{orders}:ready", "planted")
    ran = cli("consume", "app")
    assert (ran.code, "restante:{orders}:ready" in ran.err) == (4, True)


def test_sigterm_stops_an_idle_consumer(cli: Cli) -> None:
    (cli.cwd / "app.py").write_text(APP)
    running = cli.start("consume", "app:orders")
    running.wait_for("consuming orders")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_the_handlers_of_an_asyncio_queue_are_run(cli: Cli) -> None:
    (cli.cwd / "aio_app.py").write_text(AIO_APP)
    cli("send", "letters", '"good"')
    cli("send", "letters", '"unreadable"')
    cli("send", "letters", '"heavy"', "--kind", "heavy")
    ran = cli("consume", "aio_app:letters", "--stop-when-empty")
    assert (ran.code, sorted(ran.out.splitlines())) == (0, ["delivered good", "lifted heavy"])
    assert "3 handled, 0 failed" in ran.err
    assert cli("ls", "--json").json["queues"][0]["dead"] == 1
    assert cli("consume", "aio_app", "--stop-when-empty").code == 0


def test_what_cannot_be_consumed_is_said(cli: Cli) -> None:
    (cli.cwd / "app.py").write_text(APP + "\nplain = restante.connect().queue('plain')\n")
    (cli.cwd / "broken.py").write_text("x = 1\n1 / 0\n")
    assert "no module absent" in cli("consume", "absent:orders").error
    assert "is a module, not a queue, a task or a handler: name app:orders or app:emails" in (
        cli("consume", "app:time").error
    )
    broken = cli("consume", "broken")
    assert (broken.code, "ZeroDivisionError" in broken.error, "broken.py line 2" in broken.error) == (2, True, True)
    assert cli("consume", "app:plain").code == 4


def test_the_embedded_server_keeps_messages_between_commands(lone_cli: Cli) -> None:
    assert lone_cli("send", "orders", '"kept"').code == 0
    assert lone_cli("receive", "orders", "--ack", "--json").json["payload"] == "kept"


def test_a_server_that_nobody_named_is_said_once_and_only_then(lone_cli: Cli) -> None:
    said = f"restante: no URL given, using the private server in {lone_cli.cwd / '.restante'}; set RESTANTE_URL"
    (lone_cli.cwd / "app.py").write_text(
        "import restante\nfor _ in range(2):\n    restante.connect().close()\nprint('done')\n"
    )
    sent = lone_cli("send", "orders", "1", "--json")
    assert sent.json["stored"]
    assert sent.err.startswith(said)
    program = [sys.executable, "app.py"]
    for env, lines in (({}, 1), ({"RESTANTE_URL": "embedded"}, 0), ({"RESTANTE_DIRECTORY": ".restante"}, 0)):
        done = subprocess.run(program, cwd=lone_cli.cwd, env=lone_cli.env | env, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr.count(said)) == (0, "done\n", lines), done.stderr
    for words in (("--url", "embedded"), ("--directory", ".restante")):
        named = lone_cli.inside("ls", *words, "--json")
        assert (named.json["queues"][0]["queue"], named.err) == ("orders", "")
    assert Path(lone_cli.cwd, ".restante").is_dir()
    assert lone_cli.inside("--directory", "elsewhere", "ls").code == 1
