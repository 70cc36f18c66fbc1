"""Schedules over HTTP: put, listed, shown, paused, run and deleted, by whom that is allowed."""

from __future__ import annotations

from datetime import UTC, datetime

from restante import Admin, Client
from tests.server.calls import Api

PATH = "/api/queues/orders/schedules"


def test_a_schedule_is_put_and_shown_with_its_next_ticks(api: Api, post: Client) -> None:
    body = {"cron": "0 3 * * *", "tz": "Europe/Berlin", "payload": {"n": 1}, "priority": 5, "overlap": False}
    made = api.call("PUT", f"{PATH}/nightly", body)
    assert made.status == 200
    told = made.json["schedule"]
    assert (told["cron"], told["tz"], told["payload"], told["overlap"]) == (
        "0 3 * * *",
        "Europe/Berlin",
        {"n": 1},
        False,
    )
    assert len(told["ticks"]) == 10
    assert told["ticks"][0] == told["next_at"]
    assert datetime.fromtimestamp(told["next_at"] / 1000, UTC).hour in (1, 2)
    assert api.call("PUT", f"{PATH}/nightly", body).json == made.json
    assert api.get(f"{PATH}/nightly").json == made.json
    stored = post.queue("orders").schedules()[0]
    assert (stored.priority, stored.payload, stored.head.revision) == (5, {"n": 1}, 1)


def test_schedules_of_all_queues_are_listed(api: Api, post: Client) -> None:
    api.call("PUT", f"{PATH}/soon", {"every_seconds": 60, "payload_base64": "AAE=", "content_type": "image/png"})
    post.queue("mail").schedule("late", every="100d")
    found = api.get("/api/schedules").json
    assert [(one["queue"], one["name"]) for one in found["schedules"]] == [("orders", "soon"), ("mail", "late")]
    assert (found["total"], found["schedules"][0]["last_state"]) == (2, None)
    assert [one["name"] for one in api.get("/api/schedules?queue=mail").json["schedules"]] == ["late"]
    assert api.get("/api/schedules?limit=1").json["total"] == 2
    assert api.get("/api/schedules?queue=nobody").status == 404
    assert api.get(f"{PATH}/soon").json["schedule"]["payload_base64"] == "AAE="


def test_a_schedule_is_paused_resumed_run_and_deleted(api: Api, post: Client) -> None:
    api.call("PUT", f"{PATH}/poll", {"every_seconds": 3600, "payload": 7})
    paused = api.post(f"{PATH}/poll/pause").json["schedule"]
    assert (paused["status"], paused["next_at"]) == ("paused", None)
    assert api.post(f"{PATH}/poll/resume").json["schedule"]["status"] == "active"
    id = api.post(f"{PATH}/poll/run").json["id"]
    message = post.queue("orders").receive()
    assert message is not None
    assert (message.id, message.payload) == (id, 7)
    assert api.get(f"{PATH}/poll").json["schedule"]["last_state"] == "leased"
    assert api.call("DELETE", f"{PATH}/poll").json == {"deleted": "poll"}
    assert api.get(f"{PATH}/poll").status == 404
    assert [entry.verb for entry in Admin(post).audit()][:2] == ["delete schedule", "run schedule"]


def test_what_is_no_schedule_is_refused_and_nothing_stored(api: Api, post: Client) -> None:
    post.queue("orders").send(1)
    for body, said in (
        ({"cron": "0 25 * * *"}, "the hour '25'"),
        ({"cron": "0 3 * * *", "tz": "Europe/Berln"}, "did you mean Europe/Berlin?"),
        ({"cron": "0 3 * * *", "every_seconds": 5}, "give a cron expression"),
        ({"every_seconds": 5, "jitter_seconds": 9}, "jitter must be shorter"),
        ({"every_seconds": 5, "payload": 1, "payload_base64": ""}, "not both"),
        ({"every": 5}, "every"),
    ):
        refused = api.call("PUT", f"{PATH}/bad", body)
        assert refused.status == 422
        assert said in refused.json["message"]
    assert api.post(f"{PATH}/nobody/pause").status == 404
    assert api.get("/api/schedules").json["schedules"] == []
