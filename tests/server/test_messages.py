"""Messages over HTTP: what 201 promises, long polls that stand in nobody's way, verdicts that are fenced."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from restante import Admin, Client, State, fixed
from restante.core.journal import JournalEntry
from restante.core.keys import QueueKeys
from restante.core.message import JournalEvent
from restante.server import Serving
from tests.faults.rows import count_from_journal, verdict
from tests.harness.deadlines import PATIENCE, at_most, took_at_most, wait_until
from tests.harness.servers import RedisServer
from tests.server.calls import Api, Up

JOURNAL = QueueKeys("orders")["journal"]


def take(api: Api, queue: str = "orders", **body: Any) -> dict[str, Any]:
    answer = api.post(f"/api/queues/{queue}/receive", body)
    assert answer.status == 200, answer.body
    (message,) = answer.json["messages"]
    return dict(message)


def long_poll(api: Api) -> socket.socket:
    """A connection that has asked for a message and waits; what it takes is leased for hours."""
    body = b'{"wait_seconds": 60, "lease_seconds": 36000}'
    head = (
        "POST /api/queues/orders/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    link = socket.create_connection((api.host, api.port))
    link.sendall(head.encode() + body)
    return link


class TestSend:
    def test_one_and_many_with_every_option(self, api: Api, admin: Admin) -> None:
        one = api.post(
            "/api/queues/orders/messages",
            {
                "payload": {"n": 1},
                "kind": "order.placed",
                "priority": 7,
                "headers": {"a": 1},
                "max_attempts": 2,
                "lease_seconds": 9,
                "unique": "k",
                "retry": "fixed:1.0,2.0",
                "expires_seconds": 60,
            },
        )
        assert one.status == 201
        assert one.json["stored"] is True
        found = admin.show("orders", one.json["id"])
        assert (found.kind, found.priority, found.headers, found.max_attempts) == ("order.placed", 7, {"a": 1}, 2)
        assert found.retry is not None
        assert found.retry.delays == (1.0, 2.0)
        again = api.post("/api/queues/orders/messages", {"payload": 2, "unique": "k"})
        assert again.json == {"id": one.json["id"], "stored": False}
        many = api.post("/api/queues/orders/messages", {"messages": [{"payload": n} for n in range(3)]})
        assert [told["stored"] for told in many.json["messages"]] == [True] * 3
        assert admin.counts("orders").ready == 4

    def test_bytes_and_large_numbers_come_back_as_they_went_in(self, api: Api) -> None:
        api.post("/api/queues/orders/messages", {"payload_base64": "AP8=", "content_type": "image/png"})
        taken = take(api)
        assert (taken["payload_base64"], taken["content_type"]) == ("AP8=", "image/png")
        api.call(
            "POST",
            "/api/queues/orders/messages",
            raw=b'{"payload": {"n": 123456789012345678901234567890}}',
            headers={"Content-Type": "application/json"},
        )
        assert take(api)["payload"] == {"n": 123456789012345678901234567890}

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({}, "payload"),
            ({"payload": 1, "payload_base64": "AA=="}, "not both"),
            ({"payload": 1, "typo": 2}, "typo"),
            ({"payload_base64": "%%"}, "base64"),
            ({"payload": 1, "priority": 256}, "priority"),
            ({"payload": 1, "priority": "7"}, "priority"),
            ({"payload": 1, "id": "a b"}, "id"),
            ({"payload": 1, "delay_seconds": -1}, "delay_seconds"),
            ({"payload": 1, "retry": "sometimes"}, "retry"),
            ({"messages": []}, "messages"),
            ({"payload": 1, "durability": "always"}, "durability"),
            ({"payload": 1, "delay_seconds": 1, "due_at": 5}, "not both"),
            ([1], "object"),
            ("x", "object"),
        ],
    )
    def test_bad_input_names_the_remedy_and_stores_nothing(self, api: Api, post: Client, body: Any, said: str) -> None:
        answer = api.post("/api/queues/orders/messages", body)
        assert answer.status == 422
        assert set(answer.json) == {"error", "message", "hint"}
        assert said in answer.json["message"]
        assert not post.connection.command("EXISTS", b"restante:{orders}:messages", key=b"restante:{orders}:messages")

    def test_a_batch_with_one_bad_message_stores_none(self, api: Api, admin: Admin) -> None:
        answer = api.post(
            "/api/queues/orders/messages", {"messages": [{"payload": 1}, {"payload": 2, "priority": 999}]}
        )
        assert answer.status == 422
        assert "messages.1.priority" in answer.json["message"]
        assert admin.queues() == []

    def test_a_payload_that_is_too_large_and_a_full_queue_are_told_apart(self, api: Api) -> None:
        api.call("PUT", "/api/queues/small", {"max_payload_bytes": 10, "max_length": 1})
        assert api.post("/api/queues/small/messages", {"payload": "x" * 11}).status == 413
        assert api.post("/api/queues/small/messages", {"payload": "x"}).status == 201
        full = api.post("/api/queues/small/messages", {"payload": "x"})
        assert (full.status, full.json["error"]) == (429, "QueueFull")
        assert "retry-after" in full.headers


class TestIdempotencyKey:
    def test_the_same_key_stores_once_even_after_the_message_is_gone(self, api: Api, admin: Admin) -> None:
        key = {"Idempotency-Key": "order-17"}
        first = api.post("/api/queues/orders/messages", {"payload": 1}, headers=key)
        again = api.post("/api/queues/orders/messages", {"payload": 1}, headers=key)
        assert (first.json["stored"], again.json["stored"]) == (True, False)
        assert first.json["id"] == again.json["id"]
        taken = take(api)
        api.post(f"/api/queues/orders/messages/{taken['id']}/ack", {"lease_token": taken["lease_token"]})
        api.call("PUT", "/api/queues/orders", {"dedup_seconds": 0})
        assert api.post("/api/queues/orders/messages", {"payload": 1}, headers=key).json["id"] == first.json["id"]
        assert admin.counts("orders").totals["sent"] == 1

    def test_another_body_under_the_same_key_is_refused(self, api: Api, admin: Admin) -> None:
        key = {"Idempotency-Key": "k"}
        api.post("/api/queues/orders/messages", {"payload": 1}, headers=key)
        other = api.post("/api/queues/orders/messages", {"payload": 2}, headers=key)
        assert (other.status, admin.counts("orders").totals["sent"]) == (409, 1)

    def test_many_at_once_store_one(self, api: Api, admin: Admin) -> None:
        def send(_: int) -> str:
            batch = {"messages": [{"payload": 1}, {"payload": 2}]}
            answer = api.post("/api/queues/orders/messages", batch, headers={"Idempotency-Key": "k"})
            return str([told["id"] for told in answer.json["messages"]])

        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(send, range(16)))) == 1
        assert admin.counts("orders").totals["sent"] == 2


class TestReceive:
    @pytest.mark.timed
    def test_a_long_poll_wakes_at_once_and_holds_up_nobody(self, api: Api, post: Client) -> None:
        found: list[float] = []

        def wait() -> None:
            assert (
                len(api.post("/api/queues/orders/receive", {"wait_seconds": 30}, timeout=PATIENCE).json["messages"])
                == 1
            )
            found.append(time.monotonic())

        waiting = [threading.Thread(target=wait) for _ in range(40)]
        for thread in waiting:
            thread.start()
        time.sleep(0.5)
        quick = []
        for _ in range(20):
            started = time.monotonic()
            assert api.get("/api/queues").status == 200
            quick.append(time.monotonic() - started)
        took_at_most(max(quick), 0.5)  # a shared connection would hold each up for the whole wait
        sent = time.monotonic()
        post.queue("orders").send_many(list(range(40)))
        for thread in waiting:
            thread.join(PATIENCE)
        assert len(found) == 40
        took_at_most(max(found) - sent, 5)

    def test_a_caller_who_hung_up_while_waiting_takes_nothing(
        self, api: Api, post: Client, admin: Admin, serving: Serving
    ) -> None:
        queue = post.queue("orders")
        with long_poll(api):
            wait_until(lambda: serving.state.waiting == 1)
        wait_until(lambda: serving.state.waiting == 0)
        queue.send("x")
        message = queue.receive(timeout=PATIENCE)
        assert message is not None
        assert (message.attempts, admin.counts("orders").totals["received"]) == (1, 1)

    @pytest.mark.usefixtures("clock")
    def test_what_was_taken_for_a_caller_who_hung_up_is_given_back_uncounted(
        self, api: Api, post: Client, admin: Admin, serving: Serving, redis: RedisServer
    ) -> None:
        """The caller leaves while the server's call to Redis is under way, so the message is taken all the same."""
        queue = post.queue("orders")
        assert api.post("/api/queues/orders/receive").json["messages"] == []
        queue.send("x")
        redis.pause()
        try:
            with long_poll(api):
                wait_until(lambda: serving.state.waiting == 1)
            wait_until(lambda: not serving._server.server_state.connections)
        finally:
            redis.resume()
        wait_until(lambda: admin.counts("orders").totals["released"] == 1, lambda: admin.counts("orders"))
        message = queue.receive()
        assert message is not None
        assert message.attempts == 1

    @pytest.mark.timed
    def test_no_more_than_was_asked_and_none_when_there_is_none(self, api: Api, post: Client) -> None:
        post.queue("orders").send_many([1, 2, 3])
        assert len(api.post("/api/queues/orders/receive", {"count": 2}).json["messages"]) == 2
        started = time.monotonic()
        api.post("/api/queues/orders/receive", {})
        assert api.post("/api/queues/orders/receive", {"wait_seconds": 0.5}).json["messages"] == []
        took = time.monotonic() - started
        assert took > 0.4
        took_at_most(took, 3)

    def test_acks_travel_with_the_next_receive(self, api: Api, post: Client, admin: Admin) -> None:
        post.queue("orders").send_many([1, 2])
        first = take(api)
        acks = [{"id": first["id"], "lease_token": first["lease_token"]}, {"id": "none", "lease_token": "x"}]
        answer = api.post("/api/queues/orders/receive", {"acks": acks})
        assert answer.json["lost"] == ["none"]
        entries = post.connection.command("XREVRANGE", JOURNAL, "+", "-", "COUNT", 1, key=JOURNAL)
        events = [line.event for line in JournalEntry.parse_block("orders", entries[0][0], entries[0][1][1])]
        assert events == [JournalEvent.ACKED, JournalEvent.RECEIVED]  # one entry: one call to Redis did both
        assert len(answer.json["messages"]) == 1
        assert admin.counts("orders").totals["acked"] == 1

    def test_acks_whose_lease_is_lost_are_named_by_a_wait_that_ends_empty(self, api: Api) -> None:
        body = {"acks": [{"id": "none", "lease_token": "x"}], "wait_seconds": 0.2}
        answer = api.post("/api/queues/orders/receive", body)
        assert (answer.json["lost"], answer.json["messages"]) == (["none"], [])

    def test_the_consumer_is_known_by_the_name_it_gives(self, api: Api, post: Client) -> None:
        post.queue("orders").send("x")
        take(api, consumer="shop-7", pid=42)
        (consumer,) = api.get("/api/consumers").json["consumers"]
        assert (consumer["name"], consumer["pid"], consumer["held_count"]) == ("shop-7", 42, 1)
        assert consumer["held"][0]["state"] == "leased"


class TestVerdicts:
    def test_an_invented_id_and_a_late_ack_are_refused_and_change_nothing(
        self, api: Api, post: Client, admin: Admin
    ) -> None:
        post.queue("orders").send("x")
        taken = take(api, lease_seconds=0.2)
        for id, token in (("invented", taken["lease_token"]), (taken["id"], "forged")):
            answer = api.post(f"/api/queues/orders/messages/{id}/ack", {"lease_token": token})
            assert (answer.status, answer.json["error"], answer.json["ids"]) == (409, "LeaseLost", [id])
        wait_until(lambda: admin.show("orders", taken["id"]).state is not State.LEASED)
        late = api.post(f"/api/queues/orders/messages/{taken['id']}/ack", {"lease_token": taken["lease_token"]})
        assert late.status == 409
        found = admin.show("orders", taken["id"])
        assert (found.state, found.attempts) == (State.READY, 1)

    def test_every_verdict_does_what_it_says(self, api: Api, post: Client, admin: Admin) -> None:
        queue = post.queue("orders", retry=None)
        for verb, body, state in (
            ("ack", {}, None),
            ("nack", {"error": "no", "error_class": "Timeout"}, State.RETRYING),
            ("nack", {"delay_seconds": 60}, State.RETRYING),
            ("bury", {"error": "never"}, State.DEAD),
            ("release", {"delay_seconds": 60}, State.SCHEDULED),
            ("extend", {"lease_seconds": 99}, State.LEASED),
            ("extend", {}, State.LEASED),
        ):
            id = queue.send(verb)
            taken = take(api)
            answer = api.post(f"/api/queues/orders/messages/{id}/{verb}", {"lease_token": taken["lease_token"], **body})
            assert answer.status == 200, (verb, answer.body)
            if state is not None:
                assert admin.show("orders", id).state is state
            if body.get("error_class"):
                assert admin.show("orders", id).history[-1].error_class == "Timeout"

    def test_the_delay_of_a_verdict_is_the_one_asked_for(self, api: Api, post: Client, admin: Admin) -> None:
        queue = post.queue("orders", retry=fixed(1, 1))
        for verb in ("nack", "release"):
            for many in (False, True):
                id = queue.send(verb)
                taken = take(api)
                ticket = {"lease_token": taken["lease_token"]}
                path, body = f"messages/{id}/{verb}", {**ticket, "delay_seconds": 600}
                if many:
                    path, body = verb, {"messages": [{"id": id, **ticket}], "delay_seconds": 600}
                assert api.post(f"/api/queues/orders/{path}", body).status == 200
                due = admin.show("orders", id).due_at
                assert due is not None
                assert due.timestamp() * 1000 - taken["received_at"] >= 600_000

    def test_extend_honours_its_argument(self, api: Api, post: Client) -> None:
        post.queue("orders").send("x")
        taken = take(api, lease_seconds=5)
        body = {"lease_token": taken["lease_token"], "lease_seconds": 100}
        (until,) = api.post(f"/api/queues/orders/messages/{taken['id']}/extend", body).json["lease_expires_at"]
        assert 90_000 < until - taken["received_at"] < 110_000

    def test_many_at_once_name_those_that_are_lost(self, api: Api, post: Client, admin: Admin) -> None:
        post.queue("orders").send_many([1, 2, 3])
        taken = api.post("/api/queues/orders/receive", {"count": 3}).json["messages"]
        tickets = [{"id": one["id"], "lease_token": one["lease_token"]} for one in taken]
        tickets[1]["lease_token"] = "forged"
        answer = api.post("/api/queues/orders/ack", {"messages": tickets})
        assert (answer.status, answer.json["ids"]) == (409, [taken[1]["id"]])
        assert admin.counts("orders").totals["acked"] == 2
        nacked = api.post(
            "/api/queues/orders/nack", {"messages": [dict(tickets[1], lease_token=taken[1]["lease_token"])]}
        )
        assert nacked.json == {"states": ["retrying"]}


class TestKilled:
    def test_what_was_answered_201_is_stored_and_a_repeated_key_is_one_message(
        self, up: Any, post: Client, admin: Admin
    ) -> None:
        """The server is killed with requests under way, three times; each sender repeats its key at the next one."""
        confirmed: dict[int, str] = {}
        wanted = 600
        current: list[Up] = [up()]
        changing = threading.Lock()

        def send(number: int) -> None:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                with changing:
                    api = current[0].api
                try:
                    answer = api.post(
                        "/api/queues/orders/messages",
                        {"payload": number},
                        headers={"Idempotency-Key": f"k{number}"},
                        timeout=60,
                    )
                except (OSError, http.client.HTTPException):  # also one that ended in the middle of an answer
                    time.sleep(0.05)
                    continue
                if answer.status == 201:
                    confirmed[number] = answer.json["id"]
                    return
                assert answer.status == 503, answer.body

        with ThreadPoolExecutor(6) as threads:
            futures = [threads.submit(send, number) for number in range(wanted)]
            for goal in (100, 250, 400):
                while len(confirmed) < goal:
                    time.sleep(0.005)
                fresh = up()
                current[0].kill9()
                with changing:
                    current[0] = fresh
            for future in futures:
                future.result()
        assert len(confirmed) == wanted
        stored = [(message.id, message.payload) for message in admin.walk("orders", State.READY)]
        answered = [(id, number) for number, id in confirmed.items()]
        missed, phantoms = set(answered) - set(stored), set(stored) - set(answered)
        verdict(48, n=wanted, lost=len(missed), phantom=len(phantoms), dup=len(stored) - len(set(stored)))
        count_from_journal(post, "orders")

    @pytest.mark.timed
    def test_sigterm_lets_requests_finish_and_ends_live_connections(self, up: Any, post: Client) -> None:
        server = up()
        stream = server.api.events("/api/journal")
        stream.until("hello")
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(server.api.post("/api/queues/orders/receive", {"wait_seconds": 30}))
        )
        waiting.start()
        time.sleep(0.5)
        with at_most(8):
            server.terminate()
            waiting.join(PATIENCE)
            assert server.wait() == 0
        assert answers[0].status == 200
        assert answers[0].json["messages"] == []
        stream.close()
