"""Connections that are slow, silent, endless or too many: each ends with its answer, and others are served."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from restante import Client, Unavailable
from restante.server import ServerSettings, Serving
from restante.server.http_protocol import MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED, MAX_URL
from tests.faults.rows import verdict
from tests.harness.deadlines import PATIENCE, took_at_most
from tests.server.calls import Api, Up

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def hasty(post: Client) -> Iterator[Api]:
    """A server that waits for nobody."""
    settings = ServerSettings(port=0, head_seconds=0.5, body_seconds=0.5, write_seconds=1.0, sweep=False)
    with Serving(post.url, settings) as serving:
        yield Api(serving.address)


def link_to(api: Api) -> socket.socket:
    return socket.create_connection((api.host, api.port), PATIENCE)


def rest(link: socket.socket) -> bytes:
    """Everything until the server closes; a connection that stays open fails the test."""
    answer = b""
    try:
        while part := link.recv(65536):
            answer += part
    except ConnectionResetError:
        pass
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def answer_to(api: Api, request: bytes) -> bytes:
    with link_to(api) as link:
        link.sendall(request)
        return rest(link)


def dripping(link: socket.socket, text: bytes) -> threading.Event:
    """Sends a byte at a time, faster than any deadline, until the server is gone."""
    stop = threading.Event()

    def drip() -> None:
        try:
            while not stop.wait(0.05):
                link.sendall(text)
        except OSError:
            pass

    threading.Thread(target=drip, daemon=True).start()
    return stop


@pytest.mark.parametrize("begun", [b"G", b"GET /heal", GET, GET + b"X-Slow: ", b"\r\n"])
def test_headers_that_drip_are_answered_408_and_others_are_served_meanwhile(hasty: Api, begun: bytes) -> None:
    with link_to(hasty) as link:
        link.sendall(begun)
        stop = dripping(link, b"\r\n" if begun == b"\r\n" else b"T" if begun == b"G" else b"x")
        assert hasty.get("/healthz").status == 200
        answer = rest(link)
        stop.set()
    if begun == b"G":
        assert status(answer) == 400  # no method is called so
    else:
        assert status(answer) == 408
        assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error", "message", "hint"}
    assert hasty.get("/healthz").status == 200


def test_a_connection_that_says_nothing_is_closed_without_an_answer(hasty: Api) -> None:
    with link_to(hasty) as link:
        assert rest(link) == b""


def test_the_deadline_holds_for_later_requests_of_a_connection(hasty: Api) -> None:
    with link_to(hasty) as link:
        link.sendall(GET + b"\r\n")
        assert status(link.recv(65536)) == 200
        link.sendall(GET)
        stop = dripping(link, b"x")
        assert status(rest(link)) == 408
        stop.set()


def test_a_body_that_drips_after_its_answer_holds_no_connection(hasty: Api) -> None:
    with link_to(hasty) as link:
        link.sendall(GET + b"Content-Length: 1000\r\n\r\n")
        stop = dripping(link, b"x")
        assert status(rest(link)) == 200
        stop.set()


def test_a_body_that_ends_after_its_answer_leaves_a_usable_connection(api: Api) -> None:
    with link_to(api) as link:
        link.sendall(GET + b"Content-Length: 3\r\n\r\n")
        assert status(link.recv(65536)) == 200
        link.sendall(b"abc" + GET + b"\r\n")
        assert status(link.recv(65536)) == 200


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (GET + b"X-Large: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (GET + b"X" * 200_000 + b": y\r\n\r\n", 431),
        (GET + b"".join(b"X-%d: y\r\n" % n for n in range(MAX_HEADERS)) + b"\r\n", 431),
        (GET + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 900) for n in range(95)) + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /" + b"a" * 2_000_000, 414),
        (b"GARBAGE\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_heads_beyond_the_limits_are_refused(api: Api, request_: bytes, expected: int) -> None:
    answer = answer_to(api, request_)
    assert status(answer) == expected
    assert b"\r\nconnection: close\r\n" in answer
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error", "message", "hint"}
    assert api.get("/healthz").status == 200


def test_heads_at_the_limits_are_served(api: Api) -> None:
    url = b"GET /healthz?" + b"a" * (MAX_URL - 9) + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert status(answer_to(api, url + b"\r\n")) == 200
    assert (
        status(answer_to(api, GET + b"Connection: close\r\nX: " + b"y" * (MAX_HEADER_BYTES - 100) + b"\r\n\r\n")) == 200
    )
    many = b"".join(b"X-%d: y\r\n" % n for n in range(MAX_HEADERS - 2))
    assert status(answer_to(api, GET + b"Connection: close\r\n" + many + b"\r\n")) == 200


def test_an_endless_header_in_small_pieces_is_refused_by_counting(api: Api) -> None:
    with link_to(api) as link:
        link.sendall(GET + b"X: ")
        try:
            for _ in range(2000):
                link.sendall(b"y" * 1000)
        except OSError:
            pass
        assert status(rest(link)) == 431


def test_trailers_are_limited_and_never_become_headers(api: Api, post: Client) -> None:
    head = (
        b"POST /api/queues/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b'e\r\n{"payload": 1}\r\n0\r\n'
    assert status(answer_to(api, head + body + b"Idempotency-Key: late\r\nContent-Encoding: gzip\r\n\r\n")) == 201
    sent = post.queue("orders").receive()
    assert sent is not None
    assert sent.id != "late"
    for trailers in (b"X: " + b"y" * 200_000, b"X: " + b"y" * 2_000_000, b"X: y\r\n" * 20_000):
        with link_to(api) as link:
            link.sendall(head + body[:6])
            link.sendall(body[6:] + trailers + b"\r\n\r\n")
            assert status(rest(link)) == 431


def test_pipelined_requests_are_answered_in_order_and_are_bounded(api: Api) -> None:
    some = GET + b"\r\n" + GET.replace(b"healthz", b"nosuch") + b"\r\n" + GET + b"Connection: close\r\n\r\n"
    answers = [int(part[:3]) for part in answer_to(api, some).split(b"HTTP/1.1 ")[1:]]
    assert answers == [200, 404, 200]
    flood = answer_to(api, (GET + b"\r\n") * 5000)
    assert 0 < flood.count(b"HTTP/1.1 200") <= 5000
    assert flood.count(b"HTTP/1.1 200") >= MAX_PIPELINED
    assert flood.count(b"\r\nconnection: close\r\n") == 1
    assert api.get("/healthz").status == 200


def test_a_wrong_request_behind_a_right_one_does_not_spoil_its_answer(api: Api) -> None:
    answer = answer_to(api, GET + b"\r\n" + GET + b"X: " + b"y" * 100_000 + b"\r\n\r\n")
    assert status(answer) == 200
    assert answer.endswith(b'{"status":"ok"}') or b" 431 " in answer


def test_a_client_that_never_reads_its_answer_is_cut_off(post: Client) -> None:
    post.queue("orders").send_many([{"text": "x" * 50_000} for _ in range(200)])
    with Serving(post.url, ServerSettings(port=0, write_seconds=0.5, sweep=False)) as serving, socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(PATIENCE)
        link.connect(("127.0.0.1", serving.port))
        link.sendall(b"POST /api/queues/orders/receive HTTP/1.1\r\nHost: localhost\r\n")
        link.sendall(b'Content-Type: application/json\r\nContent-Length: 13\r\n\r\n{"count":200}')
        assert status(link.recv(100)) == 200
        until = time.monotonic() + PATIENCE
        while serving._server.server_state.connections:
            assert time.monotonic() < until, "the connection is still open"
            time.sleep(0.05)
        assert len(rest(link)) < 200 * 50_000


def test_a_server_that_is_full_gives_places_of_waiting_connections_to_new_ones(post: Client) -> None:
    with ExitStack() as open_:
        settings = ServerSettings(port=0, max_connections=20, head_seconds=PATIENCE, sweep=False)
        api = Api(open_.enter_context(Serving(post.url, settings)).address)
        slow = [open_.enter_context(link_to(api)) for _ in range(60)]
        for link in slow[-20:]:
            link.sendall(GET)
        assert [api.get("/healthz").status for _ in range(10)] == [200] * 10
        assert rest(slow[0]) == b""


def test_a_server_whose_places_all_work_answers_503(post: Client) -> None:
    with ExitStack() as open_:
        api = Api(
            open_.enter_context(Serving(post.url, ServerSettings(port=0, max_connections=3, sweep=False))).address
        )
        streams = [open_.enter_context(link_to(api)) for _ in range(3)]
        for link in streams:
            link.sendall(b"GET /api/journal HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            assert status(link.recv(65536)) == 200
        with link_to(api) as refused:
            answer = rest(refused)
        assert status(answer) == 503
        assert b"\r\nretry-after: 1\r\n" in answer
        streams.pop().close()
        while status(answer) == 503:
            answer = answer_to(api, GET + b"Connection: close\r\n\r\n")
        assert status(answer) == 200


def test_an_upgrade_is_answered_as_if_it_was_not_asked_for(api: Api) -> None:
    ask = GET + b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    assert status(answer_to(api, ask)) == 200


def test_a_port_is_taken_before_it_is_served(post: Client) -> None:
    first = Serving(post.url, ServerSettings(port=0, sweep=False))
    first.bind()
    with pytest.raises(Unavailable, match=rf"cannot listen on 127\.0\.0\.1:{first.port}: Address already in use"):
        Serving(post.url, ServerSettings(port=first.port)).bind()
    with first:
        assert Api(first.address).get("/healthz").status == 200


def _seconds_of(api: Api, count: int) -> list[float]:
    """How long each of many small requests took, sorted."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        assert api.get("/api/queues/orders").status == 200
        took.append(time.perf_counter() - begun)
    return sorted(took)


@pytest.mark.timed
@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.chaos)])
def test_slow_and_large_requests_do_not_slow_down_others(post: Client, up: Callable[..., Up], count: int) -> None:
    """Row 50: the slowest hundredth of other requests takes at most twice as long as on a server left alone."""
    post.queue("orders").send(1)
    api = up().api
    _seconds_of(api, count)  # warms the server up
    alone = _seconds_of(api, count)
    with ExitStack() as hostile:
        for number in range(60):
            link = hostile.enter_context(link_to(api))
            # In turns: a head that drips, a body that drips, a body whose announced gigabyte never comes.
            link.sendall(
                (GET, GET + b"Content-Length: 5000\r\n\r\n", GET + b"Content-Length: 1000000000\r\n\r\n")[number % 3]
            )
            hostile.callback(dripping(link, b"x").set)
        beside = _seconds_of(api, count)
    late = int(count * 0.99)
    if count >= 1000:  # of fewer, the slowest hundredth is what the machine did to a single request
        took_at_most(beside[late], max(2 * alone[late], 0.01), "the slowest hundredth beside hostile requests")
    verdict(50, n=count, p99_alone_ms=round(alone[late] * 1000, 2), p99_beside_ms=round(beside[late] * 1000, 2))
