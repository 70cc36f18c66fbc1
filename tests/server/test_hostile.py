"""Requests that mean harm: bodies too large, too slow, packed or broken, and names that are none."""

from __future__ import annotations

import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator

import pytest

from restante import Admin, Client
from restante.server import ServerSettings, Serving
from tests.harness.deadlines import PATIENCE, took_at_most
from tests.server.calls import Api

JSON = {"Content-Type": "application/json"}
#: The head of a send, without its end.
SEND = b"POST /api/queues/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def tight(post: Client) -> Iterator[Api]:
    """A server with small limits."""
    with Serving(post.url, ServerSettings(port=0, max_body=100_000, body_seconds=1.0)) as serving:
        yield Api(serving.address)


def raw(api: Api, text: bytes) -> bytes:
    """Everything the server answers until it closes the connection; one that stays open fails the test."""
    with socket.create_connection((api.host, api.port), PATIENCE) as link:
        link.sendall(text)
        answer = b""
        try:
            while part := link.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def test_a_body_beyond_the_limit_is_refused_by_its_length_and_by_counting(tight: Api, admin: Admin) -> None:
    big = b'{"payload": "' + b"x" * 200_000 + b'"}'
    assert tight.call("POST", "/api/queues/orders/messages", raw=big, headers=JSON).status == 413
    chunks = b"".join(b"4e20\r\n" + b"x" * 20_000 + b"\r\n" for _ in range(10))
    answer = raw(tight, SEND + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert admin.queues() == []


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_packed_bodies_are_not_unpacked(api: Api, name: str, admin: Admin) -> None:
    bomb = gzip.compress(b" " * 10_000_000) if name == "gzip" else zlib.compress(b" " * 10_000_000)
    answer = api.call("POST", "/api/queues/orders/messages", raw=bomb, headers={**JSON, "Content-Encoding": name})
    assert (answer.status, admin.queues()) == (415, [])


@pytest.mark.timed
def test_a_body_that_drips_is_given_up(tight: Api, admin: Admin) -> None:
    with socket.create_connection((tight.host, tight.port), 10) as link:
        link.sendall(SEND + b"Content-Length: 1000\r\n\r\n")
        answer = b""
        started = time.monotonic()
        for _ in range(900):
            link.sendall(b"{")
            time.sleep(0.1)
            link.settimeout(0.001)
            try:
                answer = link.recv(1000)
                break
            except TimeoutError:
                link.settimeout(10)
        took_at_most(time.monotonic() - started, 4)
        assert answer.startswith(b"HTTP/1.1 408 ")
    assert tight.get("/healthz").status == 200
    assert admin.queues() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"payload": NaN}',
        b'{"payload": 1e999}',
        b'{"payload": "\\ud800"}',
        b'{"payload": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"null",
        b"{}" * 3,
        b'{"payload": ' + b"1" * 30 + b', "x": Infinity}',
    ],
)
def test_what_is_no_json_is_a_clear_error(api: Api, body: bytes, admin: Admin) -> None:
    answer = api.call("POST", "/api/queues/orders/messages", raw=body, headers=JSON)
    assert answer.status in (400, 422), answer.body
    assert set(answer.json) == {"error", "message", "hint"}
    assert admin.queues() == []


@pytest.mark.parametrize(
    "name",
    ["a b", "-a", "%00", "a%0Ab", "%7Ba%7D", "..%2F..%2Fetc%2Fpasswd%00", "x" * 201, "%C3%A9", "a*", "%25"],
)
def test_a_name_that_is_none_is_refused_everywhere(api: Api, name: str, admin: Admin) -> None:
    for method, path, body in (
        ("POST", f"/api/queues/{name}/messages", {"payload": 1}),
        ("GET", f"/api/queues/{name}", None),
        ("PUT", f"/api/queues/{name}", {}),
        ("POST", f"/api/queues/{name}/receive", {}),
        ("GET", f"/api/queues/orders/messages/{name}", None),
        ("POST", f"/api/queues/orders/messages/{name}/ack", {"lease_token": "x"}),
    ):
        answer = api.call(method, path.replace(" ", "%20"), body)
        assert answer.status in (400, 404, 422), (method, path, answer.status)
    assert admin.queues() == []


def test_a_name_with_a_slash_and_every_other_sign_works(api: Api, admin: Admin) -> None:
    name = "eu/orders:v1@shop+a.b-c_d"
    path = "/api/queues/eu%2Forders:v1@shop%2Ba.b-c_d"
    assert api.post(f"{path}/messages", {"payload": 1, "id": "a/b"}).status == 201
    assert api.get(f"{path}/messages/a%2fb").json["message"]["id"] == "a/b"
    assert admin.queues() == [name]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "state=lost",
        "order=best",
        "before=x",
        "before=1~%00",
        "q=" + "x" * 201,
        "kind=" + "x" * 201,
    ],
)
def test_pages_have_limits(api: Api, post: Client, query: str) -> None:
    post.queue("orders").send(1)
    assert api.get(f"/api/queues/orders/messages?{query}").status == 422


def test_a_misspelt_parameter_is_refused_with_the_nearest(api: Api, post: Client) -> None:
    post.queue("orders").send(1)
    answer = api.call("GET", "/api/queues/orders/messages?limt=5")
    assert (answer.status, answer.json["error"]) == (422, "InvalidInput")
    assert "has no option 'limt': did you mean limit?" in answer.json["message"]
    assert len(api.call("GET", f"/api/audit?{'x' * 5000}=1").body) < 1000
    for path in ("/healthz?at=1", "/metrics?format=prometheus"):
        assert api.call("GET", path).status == 200


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(b"GARBAGE\r\n\r\n", 400, id="garbage"),
        pytest.param(b"GET / HTTP/9.9\r\n\r\n", 400, id="HTTP 9.9"),
        pytest.param(b"\x16\x03\x01" * 100, 400, id="TLS"),
        pytest.param(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414, id="long URL"),
        pytest.param(SEND + b"X: " + b"y" * 200_000 + b"\r\n\r\n", 431, id="large header"),
        pytest.param(SEND + b"Content-Length: -1\r\n\r\n", 400, id="negative length"),
        pytest.param(SEND + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, id="chunk without a length"),
    ],
)
def test_a_broken_request_is_answered_and_others_are_served_meanwhile(
    api: Api, post: Client, admin: Admin, text: bytes, status: int
) -> None:
    post.queue("mails").send("x")
    with socket.create_connection((api.host, api.port), PATIENCE) as before:
        before.sendall(b"GET /api/queues/mails HTTP/1.1\r\nHost: localhost\r\n")  # in the middle of its head
        answer = raw(api, text)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
        assert b"\r\nconnection: close\r\n" in answer
        assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error", "message", "hint"}
        assert api.post("/api/queues/mails/receive").json["messages"][0]["payload"] == "x"
        before.sendall(b"\r\n")
        assert before.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert admin.queues() == ["mails"]


def test_a_failure_nobody_foresaw_is_told_without_its_words(
    api: Api, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> int:
        raise RuntimeError("the password of Redis is SECRET")

    monkeypatch.setattr(serving.state, "now_ms", broken)
    answer = api.get("/readyz")
    assert (answer.status, answer.json["error"]) == (500, "Unexpected")
    assert b"SECRET" not in answer.body
    monkeypatch.undo()
    assert api.get("/readyz").status == 200


def test_logs_tell_no_payloads_and_no_secrets(up, post: Client) -> None:  # type: ignore[no-untyped-def]  # a factory
    server = up("--quiet")
    for path, body in (
        ("/api/queues/orders/messages", {"payload": "SECRET", "priority": 999}),
        ("/api/session", {"token": "rst_SECRET"}),
    ):
        server.api.post(path, body)
    server.api.get("/api/queues", headers={"Authorization": "Bearer rst_SECRET"})
    server.terminate()
    server.wait()
    assert "SECRET" not in server.stderr + "\n".join(server.lines)
