"""Batches over HTTP: sent by one request, listed, shown, cancelled, resumed."""

from __future__ import annotations

from restante import Client
from tests.server.calls import Api


def sent(api: Api, count: int = 2, **options: object) -> str:
    numbers = range(count)
    body = {
        "home": "reports",
        "title": "nightly",
        "messages": [{"queue": f"orders-{number % 2}", "payload": number, "max_attempts": 1} for number in numbers],
        "on_complete": {"payload": {"report": 1}, "kind": "report"},
        **options,
    }
    reply = api.post("/api/batches", body)
    assert reply.status == 201, reply.json
    assert all(one["stored"] for one in reply.json["messages"])
    return str(reply.json["id"])


def place(id: str) -> str:
    return f"/api/batches/{id.replace('/', '%2F')}"


def take(api: Api, queue: str) -> dict[str, object]:
    (message,) = api.post(f"/api/queues/{queue}/receive", {}).json["messages"]
    return dict(message)


def test_a_batch_sent_and_worked_off_over_http_sends_its_end(api: Api) -> None:
    id = sent(api, on_dead={"payload": "alarm"})
    shown = api.get(place(id)).json
    assert (shown["id"], shown["state"], shown["pending"], shown["title"]) == (id, "running", 2, "nightly")
    listed = api.get("/api/batches?home=reports").json
    assert [row["id"] for row in listed["batches"]] == [id]
    first, second = take(api, "orders-0"), take(api, "orders-1")
    assert first["batch"] == id
    assert api.get(f"/api/queues/orders-0/messages/{first['id']}").json["message"]["batch"] == id
    api.post(f"/api/queues/orders-0/messages/{first['id']}/ack", {"lease_token": first["lease_token"]})
    api.post(f"/api/queues/orders-1/messages/{second['id']}/nack", {"lease_token": second["lease_token"]})
    assert take(api, "reports")["payload"] == "alarm"
    end = take(api, "reports")
    assert (end["payload"], end["kind"]) == ({"report": 1}, "report")
    counts = end["headers"]["batch"]  # type: ignore[index]
    assert (counts["done"], counts["dead"], counts["failed"][0]["id"]) == (1, 1, second["id"])
    assert api.get("/api/batches").json["batches"] == []
    (row,) = api.get("/api/batches?ended=true").json["batches"]
    assert (row["state"], row["fraction"], row["failed"][0]["ended"]) == ("complete", 1.0, "dead")
    assert row["ended_at"] >= row["created_at"]


def test_an_operator_cancels_one_and_resumes_one(api: Api, post: Client) -> None:
    id = sent(api)
    assert api.post(f"{place(id)}/cancel", {}).json == {"cancelled": 2}
    assert api.get(place(id)).json["state"] == "cancelled"
    running = sent(api, 1)
    post.connection.command("DEL", "restante:{orders-0}:messages", key=b"restante:{orders-0}:messages")
    assert api.post(f"{place(running)}/resume").json == {"missing": 1}
    assert api.get(place(running)).json["lost"] == 1
    assert [entry["verb"] for entry in api.get("/api/audit").json["entries"]][:2] == ["resume", "cancel"]


def test_what_cannot_be_is_refused(api: Api) -> None:
    taken = sent(api, id="mine")
    assert taken == "reports/mine"
    body = {"home": "reports", "messages": []}
    for wrong, status, word in (
        ({**body, "id": "mine"}, 422, "already"),
        ({**body, "id": "a/b"}, 422, "id"),
        ({**body, "parent": "reports/nobody"}, 404, "no batch"),
        ({**body, "on_complete": {"payload": 1, "delay_seconds": 5}}, 422, "no delay"),
        ({**body, "messages": [{"queue": "q", "payload": 1, "id": "x"}]}, 422, "makes the ids"),
        ({**body, "tittle": "x"}, 422, "tittle"),
        ({"messages": []}, 422, "home"),
    ):
        reply = api.post("/api/batches", wrong)
        assert (reply.status, word in str(reply.json)) == (status, True), (wrong, reply.json)
    assert api.get("/api/batches/reports%2Fnobody").status == 404
    assert api.get("/api/batches/reports").status == 422
    assert api.get("/api/batches?homme=reports").status == 422
