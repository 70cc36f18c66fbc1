"""`restante schedule`: add, ls, show, pause, resume, run, rm."""

from __future__ import annotations

import re

from restante import Client
from tests.cli.conftest import Cli


def test_a_schedule_is_added_shown_listed_and_removed(cli: Cli, post: Client) -> None:
    shown = cli("schedule", "add", "orders", "nightly", "0 3 * * *", "--tz", "Europe/Berlin", "--payload", '{"n":1}')
    assert shown.code == 0
    assert "0 3 * * * in Europe/Berlin" in shown.out
    assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(0[12]:00:00 UTC\)", shown.out)) == 3
    added = cli(
        *("schedule", "add", "orders", "poll", "--every", "5m", "--jitter", "10s", "--missed", "skip", "--no-overlap"),
        *("--priority", "9", "--kind", "look", "--header", "a=b", "--json"),
    )
    assert added.json["every_seconds"] == 300
    assert (added.json["missed"], added.json["overlap"], added.json["jitter_seconds"]) == ("skip", False, 10)
    assert len(added.json["ticks"]) == 3
    listed = cli("schedule", "ls")
    assert [line.split()[1] for line in listed.out.splitlines()] == ["name", "poll", "nightly"]
    assert [one["name"] for one in cli("schedule", "ls", "orders", "--json").json["schedules"]] == ["poll", "nightly"]
    told = cli("schedule", "show", "orders", "nightly", "--ticks", "7", "--json").json
    assert (told["cron"], told["payload"], len(told["ticks"])) == ("0 3 * * *", {"n": 1}, 7)
    gone = cli("schedule", "rm", "orders", "poll", "--json")
    assert gone.json == {"queue": "orders", "schedule": "poll", "deleted": True}
    assert [one.name for one in post.queue("orders").schedules()] == ["nightly"]


def test_a_schedule_is_paused_resumed_and_run(cli: Cli, post: Client) -> None:
    post.queue("orders").schedule("poll", every="1d", payload=7)
    assert "resume it with: restante schedule resume orders poll" in cli("schedule", "pause", "orders", "poll").err
    assert cli("schedule", "ls", "--json").json["schedules"][0]["status"] == "paused"
    assert "poll is active; next tick: " in cli("schedule", "resume", "orders", "poll").err
    id = cli("schedule", "run", "orders", "poll").out.strip()
    message = post.queue("orders").receive()
    assert message is not None
    assert (message.id, message.payload) == (id, 7)
    assert cli("schedule", "run", "orders", "poll", "--json").json["schedule"] == "poll"


def test_a_wrong_expression_is_refused_in_one_line_that_names_the_field(cli: Cli, post: Client) -> None:
    refused = cli("schedule", "add", "orders", "nightly", "0 25 * * *")
    assert (refused.code, refused.out) == (4, "")
    assert refused.error.startswith(
        "error: the hour '25' of the cron expression '0 25 * * *' is not valid: use 0 to 23"
    )
    assert cli("schedule", "add", "orders", "nightly", "0 3 * * *", "--tz", "Europe/Berln").code == 4
    assert (
        "did you mean Europe/Berlin?" in cli("schedule", "add", "orders", "x", "0 3 * * *", "--tz", "Europe/Berln").err
    )
    assert cli("schedule", "add", "orders", "nightly").code == 2
    assert cli("schedule", "add", "orders", "nightly", "0 3 * * *", "--every", "5m").code == 2
    assert cli("schedule", "add", "orders", "nightly", "0 3 * * *", "--start", "soon").code == 2
    assert post.queue("orders").schedules() == []


def test_nothing_found_is_code_one_and_names_what_there_is(cli: Cli, post: Client) -> None:
    post.queue("orders").schedule("nightly", every="1d")
    assert cli("schedule", "show", "orders", "nigtly").code == 1
    assert "did you mean nightly?" in cli("schedule", "pause", "orders", "nigtly").err
    assert "did you mean orders?" in cli("schedule", "ls", "order").err
    assert cli("schedule", "add", "order", "x", "@daily").code == 1
    post.queue("orders").unschedule("nightly")
    assert cli("schedule", "ls").code == 1
