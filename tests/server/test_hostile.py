"""Requests that mean harm: bodies too large, too slow, packed or broken, and names that are none."""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Iterator

import pytest

from restante import Admin, Post
from restante.server import ServerSettings, Serving
from tests.harness.deadlines import took_at_most
from tests.server.calls import Api

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def tight(post: Post) -> Iterator[Api]:
    """A server with small limits."""
    with Serving(post.url, ServerSettings(port=0, max_body=100_000, body_seconds=1.0)) as serving:
        yield Api(serving.address)


def raw(api: Api, text: bytes, timeout: float = 10) -> bytes:
    with socket.create_connection((api.host, api.port), timeout) as link:
        link.sendall(text)
        answer = b""
        try:
            while part := link.recv(65536):
                answer += part
        except TimeoutError:
            pass
        return answer


def test_a_body_beyond_the_limit_is_refused_by_its_length_and_by_counting(tight: Api, admin: Admin) -> None:
    big = b'{"payload": "' + b"x" * 200_000 + b'"}'
    assert tight.call("POST", "/api/queues/orders/messages", raw=big, headers=JSON).status == 413
    head = b"POST /api/queues/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b"".join(b"4e20\r\n" + b"x" * 20_000 + b"\r\n" for _ in range(10))
    assert (
        b" 413 " in raw(tight, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n").split(b"\r\n")[0]
    )
    assert admin.queues() == []


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_packed_bodies_are_not_unpacked(api: Api, name: str, admin: Admin) -> None:
    bomb = gzip.compress(b" " * 10_000_000) if name == "gzip" else zlib.compress(b" " * 10_000_000)
    answer = api.call("POST", "/api/queues/orders/messages", raw=bomb, headers={**JSON, "Content-Encoding": name})
    assert (answer.status, admin.queues()) == (415, [])


@pytest.mark.timed
def test_a_body_that_drips_is_given_up(tight: Api, admin: Admin) -> None:
    with socket.create_connection((tight.host, tight.port), 10) as link:
        link.sendall(
            b"POST /api/queues/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n"
        )
        given_up = False
        started = time.monotonic()
        try:
            for _ in range(900):
                link.sendall(b"{")
                time.sleep(0.1)
                link.settimeout(0.001)
                try:
                    if link.recv(1000):
                        given_up = True
                        break
                except TimeoutError:
                    link.settimeout(10)
        except OSError:
            given_up = True
        took_at_most(time.monotonic() - started, 4)
        assert given_up
    assert tight.get("/healthz").status == 200
    assert admin.queues() == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"payload": NaN}', b'{"payload": 1e999}', b'{"payload": "\\ud800"}',
        b'{"payload": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"null", b"{}" * 3,
        b'{"payload": ' + b"1" * 30 + b', "x": Infinity}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_a_clear_error(api: Api, body: bytes, admin: Admin) -> None:
    answer = api.call("POST", "/api/queues/orders/messages", raw=body, headers=JSON)
    assert answer.status in (400, 422), answer.body
    assert set(answer.json) == {"error", "message", "hint"}
    assert admin.queues() == []


@pytest.mark.parametrize(
    "name",
    ["a b", "-a", "%00", "a%0Ab", "%7Ba%7D", "..%2F..%2Fetc%2Fpasswd%00", "x" * 201, "%C3%A9", "a*", "%25"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_everywhere(api: Api, name: str, admin: Admin) -> None:
    for method, path, body in (
        ("POST", f"/api/queues/{name}/messages", {"payload": 1}), ("GET", f"/api/queues/{name}", None),
        ("PUT", f"/api/queues/{name}", {}), ("POST", f"/api/queues/{name}/receive", {}),
        ("GET", f"/api/queues/orders/messages/{name}", None),
        ("POST", f"/api/queues/orders/messages/{name}/ack", {"lease_token": "x"}),
    ):  # fmt: skip
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
        "limit=0", "limit=1001", "limit=x", "state=lost", "order=best", "before=x", "before=1~%00", "q=" + "x" * 201,
        "kind=" + "x" * 201,
    ],
)  # fmt: skip
def test_pages_have_limits(api: Api, post: Post, query: str) -> None:
    post.queue("orders").send(1)
    assert api.get(f"/api/queues/orders/messages?{query}").status == 422


def test_broken_requests_and_floods_of_headers_do_not_stop_the_server(api: Api) -> None:
    for text in (
        b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" * 100,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    ):  # fmt: skip
        raw(api, text, 3)
    assert api.get("/healthz").status == 200


def test_logs_tell_no_payloads_and_no_secrets(up, post: Post) -> None:  # type: ignore[no-untyped-def]  # a factory
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
