"""RSMQ queues over HTTP: counts and settings, messages page by page, one whole, and deleting and moving them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from restante import Admin, Client
from restante.rsmq.client import Rsmq
from tests.harness.servers import RedisServer, call
from tests.server.calls import Api


@pytest.fixture
def rsmq(post: Client) -> Rsmq:
    made = Rsmq(post=post)
    made.create_queue("orders", vt=60, delay=0)
    return made


def listed(api: Api, queue: str = "orders", question: str = "") -> dict[str, Any]:
    answer = api.get(f"/api/rsmq/{queue}/messages{question}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


class TestLooking:
    def test_the_page_is_offered_once_there_is_a_queue(self, api: Api, post: Client) -> None:
        assert api.get("/api/rsmq").json["queues"] == []
        assert "rsmq" not in {page["id"] for page in api.get("/api/session").json["pages"]}
        Rsmq(post=post).create_queue("orders")
        assert "rsmq" in {page["id"] for page in api.get("/api/session").json["pages"]}
        assert [one["queue"] for one in api.get("/api/queues").json["rsmq"]] == ["orders"]

    def test_counts_and_settings_are_told_in_our_words(self, api: Api, rsmq: Rsmq) -> None:
        rsmq.send_many("orders", ["a", "b", "c"])
        rsmq.send_message("orders", "d", delay=600)
        rsmq.receive_message("orders")
        answer = api.get("/api/rsmq/orders").json
        assert abs(answer["queue"].pop("created_at") - answer["now"]) < 60_000
        assert abs(answer["queue"].pop("modified_at") - answer["now"]) < 60_000
        assert answer["queue"] == {
            "queue": "orders",
            "namespace": "rsmq",
            "messages": 4,
            "hidden": 2,
            "lease_seconds": 60,
            "delay_seconds": 0,
            "max_payload_bytes": 65536,
            "sent": 4,
            "received": 1,
        }
        rsmq.set_queue_attributes("orders", maxsize=-1)
        assert api.get("/api/rsmq").json["queues"][0]["max_payload_bytes"] is None

    def test_messages_come_by_when_they_can_be_received(self, api: Api, rsmq: Rsmq) -> None:
        first, second = rsmq.send_message("orders", '{"n": 1}'), rsmq.send_message("orders", "x" * 3000)
        later = rsmq.send_message("orders", "later", delay=600)
        held = rsmq.receive_message("orders")
        assert held is not None
        assert held.id == first
        found = listed(api)
        assert [(one["id"], one["state"]) for one in found["messages"]] == [
            (second, "ready"),
            (first, "leased"),
            (later, "scheduled"),
        ]
        big, one, _ = found["messages"]
        assert (big["size"], len(big["preview"]), big["whole"], big["attempts"], big["first_received_at"]) == (
            3000,
            1024,
            False,
            0,
            None,
        )
        assert (one["attempts"], one["first_received_at"], one["preview"]) == (1, held.fr, '{"n": 1}')
        assert 0 < one["due_at"] - found["now"] <= 60_000
        assert abs(one["sent_at"] - found["now"]) < 60_000
        assert (found["total"], found["next"]) == (3, None)

    def test_pages_go_on_from_a_place_while_messages_go(self, api: Api, rsmq: Rsmq, redis: RedisServer) -> None:
        ids = [id for _ in range(5) for id in rsmq.send_many("orders", ["x"] * 5)]
        # All at one time, as a batch of another client has them: then only the id tells places apart.
        call(redis.client(), "ZADD", "rsmq:orders", *(word for id in ids for word in (1000, id)))
        seen: list[str] = []
        question = "?limit=10"
        while True:
            found = listed(api, question=question)
            seen += [one["id"] for one in found["messages"]]
            if found["next"] is None:
                break
            rsmq.delete_message("orders", seen[-1])
            question = f"?limit=10&before={found['next']}"
        assert seen == sorted(ids)

    def test_one_message_is_shown_whole(self, api: Api, rsmq: Rsmq, redis: RedisServer) -> None:
        id = rsmq.send_message("orders", "x" * 3000)
        assert api.get(f"/api/rsmq/orders/messages/{id}").json["message"]["payload"] == "x" * 3000
        call(redis.client(), "HSET", "rsmq:orders:Q", id, b"\xff\x00")
        shown = api.get(f"/api/rsmq/orders/messages/{id}").json["message"]
        assert (base64.b64decode(shown["payload_base64"]), "payload" in shown) == (b"\xff\x00", False)

    def test_another_namespace_is_named(self, api: Api, post: Client, rsmq: Rsmq) -> None:
        other = Rsmq(post=post, namespace="{shop}")
        other.create_queue("mail")
        id = other.send_message("mail", "x")
        assert [one["queue"] for one in api.get("/api/rsmq?namespace=%7Bshop%7D").json["queues"]] == ["mail"]
        assert [one["id"] for one in listed(api, "mail", "?namespace=%7Bshop%7D")["messages"]] == [id]
        assert api.get("/api/rsmq/mail").status == 404

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("nope", 404),
            ("nope/messages", 404),
            (f"orders/messages/{'0' * 32}", 404),
            ("QUEUES", 422),
            ("orders/messages/short", 422),
            ("orders/messages?limit=0", 422),
            ("orders/messages?before=x", 422),
            ("a%20b", 422),
            ("orders?namespace=a%20b", 422),
        ],
    )
    def test_what_is_not_there_or_not_right_is_said(self, api: Api, rsmq: Rsmq, path: str, status: int) -> None:
        assert api.get(f"/api/rsmq/{path}").status == status

    def test_a_spoiled_queue_hides_no_other(self, api: Api, rsmq: Rsmq, redis: RedisServer) -> None:
        for name in ("a", "b", "c"):
            rsmq.create_queue(name)
        call(redis.client(), "SET", "rsmq:a", "theirs")
        call(redis.client(), "DEL", "rsmq:b:Q")
        call(redis.client(), "SADD", "rsmq:QUEUES", "not a name")
        assert [one["queue"] for one in api.get("/api/rsmq").json["queues"]] == ["c", "orders"]
        assert api.get("/api/rsmq/a").json["error"] == "Corrupt"

    def test_a_key_of_somebody_else_hides_no_native_queue(self, api: Api, post: Client, redis: RedisServer) -> None:
        post.queue("mail").send(1)
        call(redis.client(), "SET", "rsmq:QUEUES", "theirs")
        assert [one["queue"] for one in api.get("/api/queues").json["queues"]] == ["mail"]
        assert api.get("/api/session").status == 200


class TestOperating:
    def test_messages_are_deleted_and_the_audit_says_by_whom(
        self, token: Callable[..., Api], rsmq: Rsmq, admin: Admin
    ) -> None:
        api = token("operate", "read")
        ids = rsmq.send_many("orders", ["a", "b", "c"])
        assert api.call("DELETE", f"/api/rsmq/orders/messages/{ids[0]}").json == {"deleted": 1}
        assert api.call("DELETE", f"/api/rsmq/orders/messages/{ids[0]}").status == 404
        assert api.post("/api/rsmq/orders/delete", {"ids": [ids[0], ids[1]]}).json == {"deleted": 1}
        assert [one["id"] for one in listed(api)["messages"]] == [ids[2]]
        assert [(line.who, line.verb, line.queue, line.count) for line in admin.audit()] == [
            ("t-operate-read", "delete", "rsmq:orders", 1),
            ("t-operate-read", "delete", "rsmq:orders", 1),
        ]

    def test_messages_move_into_a_native_queue_under_their_ids(
        self, api: Api, post: Client, rsmq: Rsmq, admin: Admin
    ) -> None:
        ready, later = rsmq.send_message("orders", "now"), rsmq.send_message("orders", "later", delay=600)
        body = {"ids": [ready, later, "0" * 32], "to": "shop"}
        assert api.post("/api/rsmq/orders/move", body).json == {"moved": 2}
        assert (admin.counts("shop").ready, admin.counts("shop").scheduled) == (1, 1)
        message = post.queue("shop").receive()
        assert message is not None
        assert (message.id, message.payload) == (ready, "now")
        assert listed(api)["messages"] == []
        assert [(line.verb, line.queue, line.count, line.detail) for line in admin.audit()] == [
            ("move", "rsmq:orders", 2, "to shop")
        ]

    def test_messages_move_into_another_rsmq_queue_that_must_be_there(self, api: Api, rsmq: Rsmq, admin: Admin) -> None:
        id = rsmq.send_message("orders", "x")
        body = {"ids": [id], "to": "mail", "rsmq": True}
        assert api.post("/api/rsmq/orders/move", body).status == 404
        rsmq.create_queue("mail")
        assert api.post("/api/rsmq/orders/move", body).json == {"moved": 1}
        assert [one["id"] for one in listed(api, "mail")["messages"]] == [id]
        assert api.post("/api/rsmq/mail/move", body).status == 409
        assert [line.detail for line in admin.audit()] == ["to rsmq:mail"]

    @pytest.mark.parametrize(
        "body", [{}, {"ids": []}, {"ids": ["short"]}, {"ids": ["0" * 32], "to": "a b"}, {"ids": ["0" * 32], "x": 1}]
    )
    def test_a_body_that_makes_no_sense_is_refused(self, api: Api, rsmq: Rsmq, body: dict[str, Any]) -> None:
        assert api.post("/api/rsmq/orders/move", body).status == 422

    def test_who_may_only_read_changes_nothing(self, token: Callable[..., Api], rsmq: Rsmq) -> None:
        token("operate")
        id = rsmq.send_message("orders", "x")
        reader = token("read")
        assert [one["id"] for one in listed(reader)["messages"]] == [id]
        assert reader.call("DELETE", f"/api/rsmq/orders/messages/{id}").status == 403
        for path, body in (("delete", {"ids": [id]}), ("move", {"ids": [id], "to": "shop"})):
            assert reader.post(f"/api/rsmq/orders/{path}", body).status == 403
        assert listed(reader)["total"] == 1
