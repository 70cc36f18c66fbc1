"""Bodies that nobody meant: whatever they are, the server answers in its own words, and stores nothing it refused.

`RESTANTE_EXAMPLES` sets how many are tried; without it a fixed set, the same on every machine.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from functools import cache
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from restante import Admin, Client
from tests.server.calls import Api, described

_ASKED = os.environ.get("RESTANTE_EXAMPLES")
some = settings(
    max_examples=int(_ASKED) if _ASKED else 60,
    derandomize=_ASKED is None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


#: A field that makes an answer wait; that it does is tested elsewhere.
WAITING = "wait_seconds"


@cache
def with_bodies() -> list[tuple[str, str, list[str]]]:
    """(method, path, fields) of every route that reads a JSON body; not made during collection, since the description
    takes long."""
    schema = described()
    named = {"queue": "orders", "id": "m1", "service": "billing", "batch": "orders%2Fb1"}
    known = schema["components"]["schemas"]
    found = []
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body is not None:
                parts = [body, *body.get("anyOf", ()), *body.get("oneOf", ())]
                names = [one["$ref"].rpartition("/")[2] for one in parts if "$ref" in one]
                fields = sorted({field for name in names for field in known[name].get("properties", {})} - {WAITING})
                found.append((method.upper(), re.sub(r"\{(\w+)\}", lambda match: named[match[1]], path), fields))
    return found


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, "", "m1", "orders", "\0", "\ud800", "x" * 300])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def calls(draw: Any) -> tuple[str, str, bytes]:
    """A call whose body has some of the fields that the route knows, with any values, or is no JSON at all."""
    method, path, fields = draw(st.sampled_from(with_bodies()))
    if draw(st.integers(0, 4)) == 0:
        return method, path, draw(st.binary(max_size=40))
    chosen = draw(st.lists(st.sampled_from([*fields, "foreign"]), unique=True, max_size=5))
    return method, path, json.dumps({name: draw(VALUES) for name in chosen}).encode()


def test_every_route_with_a_body_is_found() -> None:
    assert len(with_bodies()) >= 20
    assert [path for _, path, fields in with_bodies() if not fields] == [
        "/api/queues/orders/pause",
        "/api/queues/orders/resume",
        "/api/queues/orders/messages/m1/revoke",
        "/api/queues/orders/messages/m1/cancel",
        "/api/batches/orders%2Fb1/cancel",
        "/api/batches/orders%2Fb1/resume",
        "/api/queues/orders/schedules/m1/pause",
        "/api/queues/orders/schedules/m1/resume",
        "/api/queues/orders/schedules/m1/run",
    ]


@some
@given(calls())
@example(("POST", "/api/queues/orders/messages", b'{"payload": 1, "due_at": 1e400}'))
@example(("POST", "/api/queues/orders/messages", b'{"payload": 1, "delay_seconds": 1e308}'))
@example(("POST", "/api/queues/orders/messages", b'{"payload": "\\ud800"}'))
@example(("POST", "/api/queues/orders/receive", b'{"count": 1' + b"0" * 400 + b"}"))
@example(("PATCH", "/api/queues/orders/messages/m1", b'{"due_at": 99999999999999999}'))
def test_whatever_the_body_is_the_answer_is_not_a_failure_of_the_server(
    api: Api, post: Client, admin: Admin, call: tuple[str, str, bytes]
) -> None:
    method, path, body = call
    post.queue("orders").send("x", id="m1")
    before = admin.counts("orders").totals["sent"]
    answer = api.call(method, path, raw=body, headers={"Content-Type": "application/json"})
    assert answer.status < 500, (method, path, body, answer.body)
    if answer.status >= 400:
        assert set(answer.json) >= {"error", "message", "hint"}
        counts = admin.counts("orders")
        assert counts.totals["sent"] == before, "what is refused is not stored"


def test_one_line_that_cannot_be_read_stops_no_live_journal(api: Api, post: Client, admin: Admin) -> None:
    for name in ("orders", "spoiled"):
        post.queue(name).send(1)
    with closing(api.events("/api/journal")) as stream:
        stream.until("position")
        key = post.queue("spoiled").ref.keys["journal"]
        last = admin.counts("spoiled").journal_last
        post.connection.command("XADD", key, f"0-{last + 1}", "e", b"no line of ours\xff", key=key)
        post.queue("orders").send(2, id="after")
        seen: list[str] = []
        while "after" not in seen:
            seen += [line["message_id"] for line in stream.until("journal").data]


def test_a_damaged_message_is_shown_and_exported_as_bytes(api: Api, post: Client) -> None:
    queue = post.queue("orders")
    for id in ("good", "damaged", "headless"):
        queue.send({"n": 1}, id=id)
    key = queue.ref.keys["messages"]
    raw = post.connection.command("HGET", key, "damaged", key=key)
    post.connection.command("HSET", key, "damaged", raw[:-3] + b'"\xff', "headless", b"gone", key=key)
    page = api.get("/api/queues/orders/messages?state=ready").json
    assert [one["id"] for one in page["messages"]] == ["good", "damaged", "headless"]
    for id, content in (("good", "payload"), ("damaged", "payload_base64"), ("headless", "payload_base64")):
        assert content in api.get(f"/api/queues/orders/messages/{id}").json["message"]
    lines = api.get("/api/queues/orders/export?state=ready").body.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["good", "damaged", "headless"]
