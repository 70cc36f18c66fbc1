"""`restante acl` and `restante token`: access rights, and no secret on a command line."""

from __future__ import annotations

import restante
from tests.cli.conftest import Cli
from tests.harness.servers import RedisServer, call


def test_the_printed_line_makes_a_user_who_may_do_his_part(cli: Cli, server: RedisServer) -> None:
    made = cli("acl", "--role", "send", "--user", "shop", "--password", "-", stdin="p4ss word\n")
    assert (made.code, made.err) == (0, "")
    assert "p4ss" not in made.out
    call(server.client(), *made.out.split())
    try:
        with restante.connect(server.url.replace("redis://", "redis://shop:p4ss%20word@")) as post:
            assert post.queue("orders").send(1)
        refused = cli("--url", server.url.replace("redis://", "redis://shop:p4ss%20word@"), "ls")
        assert (refused.code, "restante acl --role view" in refused.error) == (3, True)
    finally:
        call(server.client(), "ACL", "DELUSER", "shop")


def test_the_line_is_printed_without_a_server_and_names_its_user_by_the_roles(lone_cli: Cli) -> None:
    shown = lone_cli.inside("acl", "-r", "consume", "-r", "send")
    assert shown.code == 0
    assert shown.out.startswith("ACL SETUSER restante-consume-send reset on #SHA256-OF-THE-PASSWORD +@connection ")
    assert "--password -" in shown.err
    made = lone_cli.inside("acl", "--role", "view", "--queue", "orders", "--json").json
    assert (made["user"], made["roles"], made["queues"]) == ("restante-view", ["view"], ["orders"])
    assert made["command"].endswith(" ".join(made["rules"]))
    assert "~restante:{orders}:*" in made["rules"]
    assert not any("{*}" in rule for rule in made["rules"])


def test_what_cannot_become_a_user_is_refused(lone_cli: Cli) -> None:
    for words in (
        ["--role", "send", "--password", "on-the-command-line"],
        ["--role", "send", "--password", "-"],
        ["--role", "emperor"],
        ["--role", "send", "--add"],
        [],
    ):
        assert lone_cli("acl", *words).code == 2
    assert lone_cli.inside("acl", "--role", "send", "--user", "two words").code == 4
    assert lone_cli.inside("acl", "--role", "send", "--queue", "all*").code == 4


def test_tokens_end_and_change_by_command(cli: Cli) -> None:
    made = cli.inside("token", "create", "ci", "--role", "send", "--expires", "2h", "--json").json
    assert made["expires_at"] > made["created_at"]
    assert cli.inside("token", "create", "ops", "--role", "operate").code == 0
    shown = cli.inside("token", "ls").out
    assert made["expires_at"][:10] in shown
    assert "never" in shown
    rotated = cli.inside("token", "rotate", "ci", "--overlap", "10m", "--json").json
    assert (rotated["id"], rotated["token"] != made["token"]) == (made["id"], True)
    assert cli.inside("token", "rotate", "nobody").code == 1
    assert cli.inside("token", "create", "x", "--role", "send", "--expires", "soon").code == 2
    audit = cli.inside("token", "ls", "--json").json["tokens"]
    assert [one["name"] for one in audit] == ["ci", "ops"]
