"""What an operator does over HTTP: lists that do not lie, filters, replay, edit, import and export, figures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from kombu import Connection, Exchange, Producer

from restante import Admin, Client, State
from restante.server import Serving
from tests.docs.pages import Page
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.requirements import require
from tests.harness.servers import RedisServer, call
from tests.server.calls import Api

ROOT = Path(__file__).parents[2]
LINES = {"Content-Type": "application/x-ndjson"}


class TestLists:
    @pytest.mark.parametrize("order", ["oldest", "newest"])
    def test_pages_meet_without_gap_while_messages_come_and_go(self, api: Api, post: Client, order: str) -> None:
        queue = post.queue("orders")
        ids = [queue.send(n, priority=n % 3) for n in range(60)]
        seen: list[str] = []
        place = ""
        while True:
            page = api.get(f"/api/queues/orders/messages?order={order}&limit=7{place}").json
            seen += [message["id"] for message in page["messages"]]
            queue.send("newer", priority=255)
            if page["next"] is None:
                break
            place = f"&before={page['next'].replace('+', '%2B')}"
        assert len(seen) == len(set(seen))
        assert set(ids) <= set(seen)

    def test_counts_are_true_and_a_filter_says_where_it_stopped(self, api: Api, post: Client) -> None:
        queue = post.queue("orders")
        for _ in range(8):
            queue.send_many([{"n": n} for n in range(1000)], kind="common")
        queue.send({"n": "needle"}, kind="rare")
        first = api.get("/api/queues/orders/messages?kind=rare").json
        assert (first["total"], first["scanned"], first["messages"]) == (8001, 5000, [])
        rest = api.get(f"/api/queues/orders/messages?kind=rare&before={first['next'].replace('+', '%2B')}").json
        assert [message["kind"] for message in rest["messages"]] == ["rare"]
        assert rest["next"] is None

    def test_a_filter_that_fills_its_page_goes_on_behind_its_last_match(self, api: Api, post: Client) -> None:
        queue = post.queue("orders")
        wanted = [queue.send(n, kind="odd" if n % 2 else "even") for n in range(40)][1::2]
        seen: list[str] = []
        place = ""
        while True:
            page = api.get(f"/api/queues/orders/messages?kind=odd&limit=3{place}").json
            seen += [message["id"] for message in page["messages"]]
            if page["next"] is None:
                break
            place = f"&before={page['next'].replace('+', '%2B')}"
        assert seen == wanted

    def test_a_message_tells_its_whole_life(self, api: Api, post: Client) -> None:
        queue = post.queue("orders", retry=None)
        id = queue.send({"n": 1}, kind="a", headers={"h": 1})
        message = queue.receive()
        assert message is not None
        message.nack(error=ValueError("boom"), delay=0)
        told = api.get(f"/api/queues/orders/messages/{id}").json["message"]
        assert (told["state"], told["attempts"], told["payload"], told["error_class"]) == (
            "retrying",
            1,
            {"n": 1},
            "ValueError",
        )
        assert [line["event"] for line in told["journal"]] == ["sent", "received", "nacked"]
        assert told["journal_complete"] is True
        assert "boom" in told["history"][0]["error"]
        queue.receive(timeout=PATIENCE).ack()  # type: ignore[union-attr]
        assert api.get(f"/api/queues/orders/messages/{id}").status == 404
        gone = api.get(f"/api/journal?queue=orders&message_id={id}").json["entries"]
        assert gone[0]["event"] == "acked"

    def test_an_overdue_message_is_found_behind_hundreds_of_long_ones(
        self, api: Api, post: Client, admin: Admin
    ) -> None:
        queue = post.queue("orders")
        queue.send_many(list(range(301)))
        queue.receive_many(300, lease=3600)
        short = queue.receive(lease=0.3)
        assert short is not None
        wait_until(lambda: admin.show("orders", short.id).state is not State.LEASED)
        assert admin.show("orders", short.id).state is State.READY


class TestActs:
    def test_replay_counts_first_then_puts_back_and_is_remembered(self, api: Api, post: Client, admin: Admin) -> None:
        queue = post.queue("orders")
        queue.send_many([{"n": n} for n in range(30)], kind="a")
        for number, message in enumerate(queue.receive_many(30)):
            message.bury(error=TimeoutError("t") if number % 3 else KeyError("k"))
        groups = api.get("/api/queues/orders/dead").json["groups"]
        assert [(group["error_class"], group["count"]) for group in groups] == [("TimeoutError", 20), ("KeyError", 10)]
        dry = api.post("/api/queues/orders/replay", {"error_class": "KeyError", "dry_run": True}).json["task"]
        assert (dry["replayed"], admin.counts("orders").dead) == (10, 30)
        done = api.post("/api/queues/orders/replay", {"error_class": "KeyError"}).json["task"]
        assert (done["status"], done["replayed"], admin.counts("orders").ready) == ("finished", 10, 10)
        slow = api.post("/api/queues/orders/replay", {"rate": 5})
        assert (slow.status, slow.json["task"]["status"]) == (202, "running")
        assert api.get(f"/api/queues/orders/replays/{slow.json['task']['id']}").json["task"]["total"] == 20
        assert len(api.get("/api/queues/orders/replays").json["tasks"]) == 2

    def test_edit_move_purge_pause_and_drop(self, api: Api, post: Client, admin: Admin) -> None:
        queue = post.queue("orders")
        ids = [queue.send(n) for n in range(5)]
        changed = api.call("PATCH", f"/api/queues/orders/messages/{ids[0]}", {"payload": "new", "priority": 9})
        assert (changed.json["message"]["payload"], changed.json["message"]["priority"]) == ("new", 9)
        assert api.post("/api/queues/orders/move", {"ids": ids[:2], "to": "other"}).json == {"moved": 2}
        assert api.post("/api/queues/orders/move", {"ids": ids[:2], "to": "orders"}).status == 409
        assert api.post("/api/queues/orders/pause").json["paused"] is True
        assert api.post("/api/queues/orders/receive").json["messages"] == []
        assert api.post("/api/queues/orders/resume").json["paused"] is False
        held = queue.receive()
        assert held is not None
        assert api.call("PATCH", f"/api/queues/orders/messages/{held.id}", {"priority": 1}).status == 409
        assert api.call("DELETE", f"/api/queues/orders/messages/{held.id}").status == 409
        assert api.call("DELETE", "/api/queues/orders").status == 409
        assert api.post("/api/queues/orders/purge", {"states": ["ready"]}).json == {"purged": 2}
        held.ack()
        assert api.call("DELETE", "/api/queues/orders").json == {"dropped": "orders"}
        assert admin.queues() == ["other"]
        verbs = [entry["verb"] for entry in api.get("/api/audit").json["entries"]]
        assert verbs[:2] == ["drop", "purge"]

    def test_settings_are_told_as_they_stand(self, api: Api) -> None:
        told = api.call("PUT", "/api/queues/orders", {"lease_seconds": 7, "retry": "fixed:1.0", "max_length": 5}).json
        assert (told["settings"]["lease_seconds"], told["settings"]["retry"]) == (7, "fixed:1.0")
        told = api.call("PUT", "/api/queues/orders", {"max_length": None}).json
        assert (told["settings"]["max_length"], told["settings"]["lease_seconds"]) == (None, 7)


def test_a_replay_that_fails_after_its_answer_is_logged(
    api: Api, post: Client, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = post.queue("orders", max_attempts=1)
    queue.send_many(list(range(50)))
    for message in queue.receive_many(50):
        message.bury(error="no")
    assert api.post("/api/queues/orders/replay", {"rate": 5}).status == 202
    call(redis.client(), "CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        wait_until(lambda: "replay failed queue=orders" in caplog.text)
    finally:
        call(redis.client(), "CONFIG", "SET", "min-replicas-to-write", "0")


class TestFiles:
    def test_what_is_exported_can_be_imported_once(self, api: Api, post: Client, admin: Admin) -> None:
        queue = post.queue("orders", max_attempts=1)
        queue.send_many([{"n": n, "text": "ü" * n} for n in range(250)], kind="a", priority=3)
        queue.send(b"\x00\xff", content_type="image/png")
        for message in queue.receive_many(251):
            message.bury(error="no")
        file = api.get("/api/queues/orders/export?state=dead")
        assert "orders-dead.ndjson" in file.headers["content-disposition"]
        assert file.body.count(b"\n") == 251
        first = api.call("POST", "/api/queues/copy/import", raw=file.body, headers=LINES).json
        again = api.call("POST", "/api/queues/copy/import", raw=file.body, headers=LINES).json
        assert first == {"lines": 251, "stored": 251, "existing": 0}
        assert [(line.verb, line.count) for line in admin.audit() if line.queue == "copy"] == [
            ("import", 0),
            ("import", 251),
        ]
        assert again == {"lines": 251, "stored": 0, "existing": 251}
        copied = {message.id: message for message in admin.walk("copy", State.READY)}
        assert {message.priority for message in copied.values()} == {0, 3}
        assert any(message.content_type == "image/png" for message in copied.values())

    def test_a_bad_line_is_named_and_nothing_is_stored(self, api: Api, admin: Admin) -> None:
        body = b'{"payload": 1}\n' * 600 + b'{"payload": 1, "priority": 300}\n'
        answer = api.call("POST", "/api/queues/orders/import", raw=body, headers=LINES)
        assert answer.status == 422
        assert "line 601" in answer.json["message"]
        assert admin.queues() == []


class TestFigures:
    def test_metrics_tell_states_ages_events_and_times(self, api: Api, post: Client, serving: Serving) -> None:
        queue = post.queue("figures")
        queue.send("before")
        queue.send_many([1, 2, 3])
        for message in queue.receive_many(2):
            message.ack()
        wait_until(lambda: b'restante_run_seconds_count{queue="figures"} 2.0' in api.get("/metrics").body, poll=0.1)
        text = api.get("/metrics").body.decode()
        assert 'restante_messages{queue="figures",state="ready"} 2.0' in text
        assert 'restante_events_total{event="sent",queue="figures"} 4.0' in text.replace(
            'restante_events_total{queue="figures",event="sent"}', 'restante_events_total{event="sent",queue="figures"}'
        )
        assert 'restante_wait_seconds_count{queue="figures"} 2.0' in text
        for name in ("oldest_seconds", "overdue", "sweeper_lag_seconds", "last_poll_seconds", "live_clients"):
            assert f"restante_{name}" in text

    def test_metrics_tell_how_long_until_the_next_is_due_and_since_when_the_oldest_is_there(
        self, api: Api, post: Client, admin: Admin
    ) -> None:
        queue = post.queue("orders")
        queue.send_many(["dead", "failed"])
        dead, failed = queue.receive_many(2)
        dead.bury(error="no")
        failed.nack(delay=3000)
        queue.send("later", delay=6000)
        admin.pause("orders")
        page = api.get("/metrics").body.decode()
        figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[:1] != "#")
        ahead = {
            state: float(figures[f'restante_next_due_seconds{{queue="orders",state="{state}"}}'])
            for state in ("scheduled", "retrying")
        }
        assert 3000 < ahead["scheduled"] <= 6000
        assert 0 < ahead["retrying"] <= 3000
        assert float(figures['restante_oldest_seconds{queue="orders",state="dead"}']) < 3000
        assert figures['restante_paused{queue="orders"}'] == "1.0"
        assert figures['restante_events_total{event="sent",queue="orders"}'] == "3.0"

    def test_handlers_that_hang_are_counted_and_are_trouble(self, api: Api, post: Client) -> None:
        queue = post.queue("orders")
        queue.ref.presence = b'{"host":"h","pid":1,"concurrency":4,"hung":2}'
        queue.receive()
        (consumer,) = api.get("/api/consumers").json["consumers"]
        assert consumer["hung"] == 2
        api.get("/api/topics")  # counts consumers anew
        assert 'restante_hung_handlers{queue="orders"} 2.0' in api.get("/metrics").body.decode()
        (shown,) = api.get("/api/queues").json["queues"]
        assert {"level": "bad", "text": "2 hung handlers"} in shown["trouble"]

    def test_a_message_whose_consumer_is_no_longer_seen_is_named(
        self, api: Api, post: Client, redis: RedisServer
    ) -> None:
        post.queue("orders").send_many(["a", "b"])
        for name in ("alive", "killed"):
            api.post("/api/queues/orders/receive", {"consumer": name, "lease_seconds": 3600})

        def zombies() -> list[str]:
            api.get("/api/topics")  # counts consumers anew
            told = api.get("/api/anomalies").json["anomalies"]
            return [one["who"] for one in told if (one["kind"], one["queue"]) == ("zombie", "orders")]

        assert zombies() == []
        # As after a minute without a word.
        call(redis.client(), "HDEL", "restante:{orders}:consumers", "killed")
        assert zombies() == ["killed"]

    def test_messages_that_no_queue_was_bound_for_are_a_figure_and_an_anomaly(
        self, api: Api, redis: RedisServer
    ) -> None:
        broker = Connection(redis.url.replace("redis://", "restante://"))
        exchange = Exchange("shop", "topic")
        with broker:
            for key in ("order.paid", "order.paid", "order.sent"):
                Producer(broker, exchange).publish("x", routing_key=key, declare=[exchange])
        assert 'restante_unroutable_total{exchange="shop"} 3.0' in api.get("/metrics").body.decode()
        # The server may still show what it noticed in the tests before.
        (found,) = (one for one in api.get("/api/anomalies").json["anomalies"] if one["kind"] == "unroutable")
        assert found["count"] == 3
        assert found["text"] == "exchange shop has dropped 3 messages because no queue was bound"

    def test_what_looks_wrong_is_named(self, api: Api, post: Client, admin: Admin) -> None:
        queue = post.queue("orders", max_attempts=2)
        queue.send("x" * 1_200_000)
        queue.send("y", id="weak")
        time.sleep(1.4)
        first, second = queue.receive_many(2)
        first.ack() if first.id != "weak" else second.ack()
        weak = second if second.id == "weak" else first
        weak.nack(delay=600, error="no")
        queue.send("z" * 1_200_000, id="large")
        queue.send("w", id="left", lease=0.1)
        queue.send_many(list(range(30)))
        ids = [message.id for message in admin.walk("orders", State.READY)]
        admin.delete("orders", [id for id in ids if id not in ("large", "left")])
        time.sleep(0.5)
        post.queue("orders").receive_many(2)
        time.sleep(1)
        admin.purge("orders", ["dead"])
        wanted = {"near_dead", "large_payload", "bulk_delete", "lease_lost"}
        wait_until(lambda: wanted <= {one["kind"] for one in api.get("/api/anomalies").json["anomalies"]}, poll=0.1)

    def test_a_queue_in_trouble_comes_first(self, api: Api, post: Client) -> None:
        for name in ("a", "b", "c"):
            post.queue(name).send(1)
        message = post.queue("b").receive()
        assert message is not None
        message.bury(error="no")
        queues = api.get("/api/queues").json["queues"]
        assert queues[0]["queue"] == "b"
        assert queues[0]["trouble"][0] == {"level": "bad", "text": "1 dead letter"}


class TestDocuments:
    """The examples of the guide, against a server; the reference page, against the application."""

    page = Page(ROOT / "docs" / "guide" / "server.md")

    def _text(self, language: str, serving: Serving, number: int = 0) -> str:
        return (
            self.page.blocks(language)[number]
            .text.replace("http://localhost:8025", serving.address)
            .replace("localhost:8025", serving.address.removeprefix("http://"))
        )

    @pytest.mark.parametrize(
        ("number", "said"),
        [(0, "shipping order 3\n"), (1, "shipping order 4\n"), (2, "shipped order 5 by air\n")],
    )
    def test_the_examples_in_python_run(self, serving: Serving, post: Client, number: int, said: str) -> None:
        ran = subprocess.run(
            [sys.executable, "-c", self._text("python", serving, number)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        assert ran.stdout == said

    def test_the_example_in_javascript_runs(self, serving: Serving, post: Client, admin: Admin) -> None:
        node = require("node")
        ran = subprocess.run(
            [node, "--input-type=module", "-e", self._text("javascript", serving)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        assert ran.stdout == "shipping order 1\nshipping order 2\n"
        assert admin.counts("orders").totals["acked"] == 2

    def test_the_example_with_curl_runs(self, serving: Serving, post: Client) -> None:
        require("curl")
        text = self._text("bash", serving).replace("curl -sN", "curl -sN --max-time 2").replace("01J…", "01J")
        ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert '"stored":true' in ran.stdout
        assert '"payload":{"order":42}' in ran.stdout
        assert '"error":"LeaseLost"' in ran.stdout
        assert "event: hello" in ran.stdout

    def test_the_reference_and_the_dashboard_s_types_are_what_the_application_describes(self) -> None:
        made = run_path(str(ROOT / "docs" / "http_reference.py"))
        assert (ROOT / "docs" / "reference" / "http.md").read_text() == made["page"](), made["__doc__"]
        assert (ROOT / "dashboard" / "openapi.json").read_text() == made["models"](), made["__doc__"]

    def test_the_description_is_json_that_other_programs_read(self, api: Api) -> None:
        told: Any = json.loads(api.get("/api/openapi.json").body)
        assert told["openapi"].startswith("3.1")
        assert all("{queue:name}" not in path for path in told["paths"])
