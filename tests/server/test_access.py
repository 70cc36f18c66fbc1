"""Who may do what: every route with every role and none, tokens, browsers, foreign pages and foreign names."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from restante import Admin, Client, InvalidInput
from restante.server import ServerSettings, Serving
from restante.server.access import Tokens
from restante.server.app import UNGUARDED, api_routes
from tests.harness.deadlines import PATIENCE, wait_until
from tests.server.calls import Api
from tests.server.conftest import Clock

_RSMQ_ID = "0" * 32
_TICKET = {"messages": [{"id": "m1", "lease_token": "x"}]}
#: (operation, body) for a call that would be understood if it were allowed.
_BODIES: dict[str, Any] = {
    "send": {"payload": 1},
    "receive": {},
    "receive_any": {"queues": ["orders"]},
    "ack": {"lease_token": "x"},
    "nack": {"lease_token": "x"},
    "bury": {"lease_token": "x"},
    "release": {"lease_token": "x"},
    "extend": {"lease_token": "x"},
    "progress": {"lease_token": "x", "fraction": 0.5},
    "ack_many": _TICKET,
    "nack_many": _TICKET,
    "bury_many": _TICKET,
    "release_many": _TICKET,
    "extend_many": _TICKET,
    "configure": {"lease_seconds": 5},
    "pause": {},
    "resume": {},
    "purge": {"states": ["dead"]},
    "delete_many": {"ids": ["m1"]},
    "revoke": {},
    "cancel": {},
    "revoke_many": {"ids": ["m1"]},
    "cancel_many": {"ids": ["m1"]},
    "move": {"ids": ["m1"], "to": "other"},
    "replay": {"ids": ["m1"]},
    "replay_events": {"ids": ["m1"]},
    "edit": {"priority": 1},
    "sign_in": {"token": "rst_no"},
    "send_batch": {"home": "orders", "messages": []},
    "cancel_batch": {},
    "resume_batch": {},
    "rsmq_delete_many": {"ids": [_RSMQ_ID]},
    "rsmq_move": {"ids": [_RSMQ_ID], "to": "other"},
    "put_schedule": {"cron": "0 3 * * *"},
    "pause_schedule": {},
    "resume_schedule": {},
    "run_schedule": {},
}
_NEEDS = {
    "send": "send",
    "receive": "consume",
    "receive_any": "consume",
    "ack": "consume",
    "nack": "consume",
    "bury": "consume",
    "release": "consume",
    "extend": "consume",
    "progress": "consume",
    "ack_many": "consume",
    "nack_many": "consume",
    "bury_many": "consume",
    "release_many": "consume",
    "extend_many": "consume",
    "configure": "operate",
    "drop": "operate",
    "pause": "operate",
    "resume": "operate",
    "purge": "operate",
    "delete_many": "operate",
    "revoke": "operate",
    "cancel": "operate",
    "revoke_many": "operate",
    "cancel_many": "operate",
    "move": "operate",
    "replay": "operate",
    "replay_events": "operate",
    "edit": "operate",
    "delete": "operate",
    "import": "operate",
    "send_batch": "send",
    "cancel_batch": "operate",
    "resume_batch": "operate",
    "rsmq_delete": "operate",
    "rsmq_delete_many": "operate",
    "rsmq_move": "operate",
    "put_schedule": "operate",
    "pause_schedule": "operate",
    "resume_schedule": "operate",
    "run_schedule": "operate",
    "delete_schedule": "operate",
}


def _operations() -> list[tuple[str, str, str]]:
    """(method, path, operation) of the whole API, by its routes: its description takes long to make, and a test below
    compares them."""
    named = {"queue": "orders", "id": "m1", "service": "billing", "batch": "orders%2Fb1"}
    return [
        (method, re.sub(r"\{(\w+)\}", lambda found: named[found[1]], path), route.name.rstrip("_"))
        for path, route in api_routes()
        for method in sorted(route.methods or ())
    ]


OPERATIONS = _operations()


def _ask(api: Api, method: str, path: str, operation: str) -> int:
    if operation == "import":
        return api.call(method, path, raw=b'{"payload":1}\n', headers={"Content-Type": "application/x-ndjson"}).status
    body = _BODIES.get(operation)
    return api.call(method, path, body).status


def test_the_api_has_the_routes_its_design_names() -> None:
    assert {operation for _, _, operation in OPERATIONS} >= set(_BODIES) | set(_NEEDS) | {
        "queues",
        "queue",
        "messages",
        "message",
        "status",
        "dead",
        "replays",
        "replay_task",
        "batches",
        "batch",
        "consumers",
        "anomalies",
        "audit",
        "topics",
        "dead_events",
        "schedules",
        "show_schedule",
        "rsmq_queues",
        "rsmq_queue",
        "rsmq_messages",
        "rsmq_message",
        "insights",
        "journal",
        "metrics",
        "healthz",
        "readyz",
        "session",
        "export",
    }


@pytest.mark.parametrize("role", ["none", "wrong", "read", "send", "consume", "operate"])
def test_every_route_asks_for_its_role(role: str, token: Callable[..., Api], post: Client, serving: Serving) -> None:
    post.queue("orders").send("x", id="m1")
    token("operate")  # so that one is asked for
    if role in ("none", "wrong"):
        api = Api(serving.address, "" if role == "none" else f"rst_{'0' * 12}_{'a' * 43}")
    else:
        api = token("read", role) if role == "read" else token(role, *(["read"] if role == "operate" else []))
    for method, path, operation in OPERATIONS:
        needed = _NEEDS.get(operation, "" if operation in (*UNGUARDED, "session", "sign_out") else "read")
        status = _ask(api, method, path, operation)
        said = f"{method} {path} by {role}: {status}"
        if operation in UNGUARDED:
            assert status in (200, 401), said
        elif role in ("none", "wrong"):
            assert status == 401, said
        elif needed in ("", role) or role == "operate":
            assert status not in (401, 403, 500), said
        else:
            assert status == 403, said


def test_the_description_demands_a_token_exactly_where_the_server_does(
    token: Callable[..., Api], post: Client, serving: Serving
) -> None:
    described = token("operate").get("/api/openapi.json").json
    demands = {
        operation["operationId"]: operation["security"] == [{"token": []}]
        for item in described["paths"].values()
        for operation in item.values()
    }
    post.queue("orders").send("x", id="m1")
    text = Tokens(post).create("browser", ["read"])[1]
    serving.state.tokens._asked_at = float("-inf")
    stranger = Api(serving.address)
    asked = {
        operation: stranger.post(path, {"token": text}).status == 401
        if operation == "sign_in"
        else _ask(stranger, method, path, operation) == 401
        for method, path, operation in OPERATIONS
    }
    assert demands == asked
    assert [operation for operation, needed in asked.items() if not needed] == ["sign_in", "healthz", "readyz"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD"])
def test_a_method_that_a_route_does_not_have_is_refused_and_changes_nothing(
    method: str, api: Api, admin: Admin, post: Client
) -> None:
    post.queue("orders").send("x", id="m1")
    before = admin.counts("orders").totals
    known = {(each, path) for each, path, _ in OPERATIONS}
    for path in {path for _, path, _ in OPERATIONS}:
        if (method, path) not in known and (method != "HEAD" or path.startswith("/api/")):
            answer = api.call(method, path, headers={"Content-Type": "application/json"})
            assert answer.status == 405, f"{method} {path}: {answer.status}"
    assert admin.counts("orders").totals == before


def test_probes_may_ask_for_the_head_alone(api: Api) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        answer = api.call("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")
    assert api.call("HEAD", "/nope").status == 404


class TestTokens:
    def test_the_secret_is_not_kept(self, post: Client, redis: Any) -> None:
        made, text = Tokens(post).create("ci", ["send"])
        kept = post.connection.command("HGETALL", b"restante:tokens", key=b"restante:tokens")
        assert text.split("_", 2)[2].encode() not in b"".join(kept)
        assert [token.name for token in Tokens(post).list()] == [made.name]

    def test_a_revoked_token_and_its_browsers_are_let_in_no_more(
        self, token: Callable[..., Api], post: Client, serving: Serving, clock: Clock
    ) -> None:
        other, reader = token("operate"), token("read")
        text = reader._headers["Authorization"].removeprefix("Bearer ")
        signed = Api(serving.address).post("/api/session", {"token": text})
        cookie = signed.headers["set-cookie"].partition(";")[0]
        assert reader.get("/api/queues").status == 200
        assert Api(serving.address).get("/api/queues", headers={"Cookie": cookie}).status == 200
        Tokens(post).revoke("t-read")  # by another process, which cannot tell the server
        clock.advance(2)
        assert reader.get("/api/queues").status == 401
        assert Api(serving.address).get("/api/queues", headers={"Cookie": cookie}).status == 401
        assert Api(serving.address).post("/api/session", {"token": text}).status == 401
        assert other.get("/api/queues").status == 200

    @pytest.mark.parametrize("signed_in", [False, True], ids=["by token", "by cookie"])
    def test_the_live_connection_of_a_revoked_token_ends_and_others_go_on(
        self, token: Callable[..., Api], post: Client, serving: Serving, clock: Clock, signed_in: bool
    ) -> None:
        other, reader = token("operate"), token("read")
        if signed_in:
            text = reader._headers["Authorization"].removeprefix("Bearer ")
            signed = Api(serving.address).post("/api/session", {"token": text})
            reader._headers = {"Cookie": signed.headers["set-cookie"].partition(";")[0]}
        post.queue("orders").send("before")
        ended, goes_on = reader.events("/api/journal?counts=1"), other.events("/api/journal")
        for stream in (ended, goes_on):
            stream.until("position")
        Tokens(post).revoke("t-read")
        clock.advance(2)
        assert "resync" not in ended.rest()
        post.queue("orders").send("after", kind="after")
        while goes_on.until("journal").data[-1]["kind"] != "after":
            pass
        for stream in (ended, goes_on):
            stream.close()

    def test_a_live_connection_to_an_open_server_ends_when_the_first_token_is_made(
        self, api: Api, post: Client, clock: Clock
    ) -> None:
        stream = api.events("/api/journal")
        stream.until("hello")
        Tokens(post).create("ops", ["operate"])
        clock.advance(2)
        assert "resync" not in stream.rest()
        assert api.get("/api/queues").status == 401
        stream.close()

    def test_a_receive_that_waits_gets_nothing_once_its_token_is_revoked(
        self, token: Callable[..., Api], post: Client, serving: Serving, clock: Clock
    ) -> None:
        token("operate")
        taker, queue = token("consume"), post.queue("orders")
        queue.send("before")
        with ThreadPoolExecutor(1) as threads:
            assert len(taker.post("/api/queues/orders/receive").json["messages"]) == 1
            waiting = threads.submit(taker.post, "/api/queues/orders/receive", {"wait_seconds": 60})
            wait_until(lambda: serving.state.waiting)
            Tokens(post).revoke("t-consume")
            clock.advance(2)
            queue.send("secret", id="secret")
            answer = waiting.result()
        assert b"secret" not in answer.body
        message = queue.receive(timeout=PATIENCE)
        assert message is not None
        assert (message.id, message.attempts) == ("secret", 1)

    def test_the_secret_of_a_token_is_looked_at_and_not_its_id_alone(
        self, token: Callable[..., Api], serving: Serving
    ) -> None:
        right = token("operate")._headers["Authorization"].removeprefix("Bearer ")
        wrong = right[:-1] + ("A" if right[-1] != "A" else "B")
        assert Api(serving.address, right).get("/api/queues").status == 200
        assert Api(serving.address, wrong).get("/api/queues").status == 401
        assert Api(serving.address).post("/api/session", {"token": wrong}).status == 401

    def test_a_name_is_used_once_and_roles_must_be_roles(self, post: Client) -> None:
        tokens = Tokens(post)
        tokens.create("ci", ["send"])
        with pytest.raises(InvalidInput, match="already"):
            tokens.create("ci", ["read"])
        with pytest.raises(InvalidInput, match="roles are"):
            tokens.create("other", ["admin"])
        with pytest.raises(InvalidInput, match="at least one"):
            tokens.create("other", [])


class TestBrowsers:
    def test_signing_in_sets_a_cookie_that_scripts_and_other_sites_cannot_use(
        self, token: Callable[..., Api], serving: Serving, admin: Admin
    ) -> None:
        text = token("operate")._headers["Authorization"].removeprefix("Bearer ")
        answer = Api(serving.address).post("/api/session", {"token": text})
        assert answer.status == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        jar = {"Cookie": cookie.partition(";")[0]}
        assert [(line.who, line.verb) for line in admin.audit()] == [("t-operate", "sign in")]
        assert Api(serving.address).get("/api/session", headers=jar).json["user"] == "t-operate"
        assert Api(serving.address).call("DELETE", "/api/session", headers=jar).status == 200
        assert Api(serving.address).get("/api/session", headers=jar).status == 401

    def test_a_page_of_another_site_can_change_nothing(self, api: Api, post: Client) -> None:
        post.queue("orders").send("x")
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": f"http://{api.host}:{api.port}.evil.example"},
            {"Origin": f"http://evil{api.host}:{api.port}"},
        ):
            assert api.post("/api/queues/orders/pause", headers=headers).status == 403
        plain = {"Content-Type": "text/plain"}
        assert api.call("POST", "/api/queues/orders/messages", raw=b'{"payload":1}', headers=plain).status == 415
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert api.call("POST", "/api/queues/orders/pause", raw=b"a=b", headers=form).status == 415
        own = {"Sec-Fetch-Site": "same-origin", "Origin": api.address}
        assert api.post("/api/queues/orders/pause", headers={**own, "Host": f"localhost:{api.port}"}).status == 200

    def test_a_server_without_tokens_answers_to_no_other_name(self, api: Api) -> None:
        alike = ("localhost.evil.example", "127.0.0.1.nip.io", "evil-localhost", "1127.0.0.1:8025")
        for host in ("evil.example", "evil.example:8025", *alike):
            assert api.get("/api/queues", headers={"Host": host}).status == 403
        assert api.get("/api/queues", headers={"Host": "127.0.0.1:8025"}).status == 200

    def test_no_other_origin_may_read_and_every_answer_is_guarded(self, api: Api) -> None:
        for path in ("/api/queues", "/", "/nope", "/healthz"):
            headers = api.get(path, headers={"Origin": "http://evil.example"}).headers
            assert "access-control-allow-origin" not in headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"


def test_beyond_this_machine_tokens_are_needed(post: Client) -> None:
    serving = Serving(post.url, ServerSettings("0.0.0.0", 0))
    with pytest.raises(InvalidInput, match="token create"):
        serving.check()
    serving.state.client.close()  # only a server that ran closes it
    Tokens(post).create("ops", ["operate"])
    serving = Serving(post.url, ServerSettings("0.0.0.0", 0))
    serving.check()
    serving.state.client.close()


def test_operators_are_named_in_the_journal_and_in_the_audit(
    token: Callable[..., Api], post: Client, admin: Admin
) -> None:
    queue = post.queue("orders")
    ids = [queue.send(n) for n in range(3)]
    operator = token("operate")
    assert operator.post("/api/queues/orders/delete", {"ids": ids[:2]}).json == {"deleted": 2}
    operator.post("/api/queues/orders/pause")
    entries = operator.get("/api/audit").json["entries"]
    assert [(entry["who"], entry["verb"], entry["queue"], entry["count"]) for entry in entries] == [
        ("t-operate", "pause", "orders", 0),
        ("t-operate", "delete", "orders", 2),
    ]
    lines = admin.journal("orders", newest_first=True, limit=3)
    assert [(line.event.value, line.consumer) for line in lines] == [
        ("paused", "t-operate"),
        ("deleted", "t-operate"),
        ("deleted", "t-operate"),
    ]
