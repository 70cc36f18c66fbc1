"""The queue over HTTP behind a line that loses answers: sends are stored once, receives and verdicts not repeated."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import restante
import restante.http
from restante import Admin, Client, LeaseLost, NotReady, Unavailable, Unconfirmed
from restante.http import HttpClient, HttpMessage, HttpQueue
from restante.server import ServerSettings, Serving
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.servers import HOST, RedisServer, closed_port


class Line:
    """Carries requests to the server, and loses what it is told to lose."""

    def __init__(self, port: int) -> None:
        #: Paths of the requests that came.
        self.seen: list[str] = []
        #: What happens to the next requests: "drop" loses the request, "cut" its answer, "unready" answers 503, and
        #: "end" closes the connection behind the answer.
        self.faults: list[str] = []
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body by one segment each would wait for one another.
            disable_nagle_algorithm = True

            def carry(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                line.seen.append(self.path)
                fault = line.faults.pop(0) if line.faults else ""
                self.close_connection = fault in ("drop", "cut", "end")
                if fault == "drop":
                    return
                if fault == "unready":
                    self.answer(503, b'{"error":"NotReady","message":"not ready"}')
                    return
                there = http.client.HTTPConnection(HOST, port)
                there.request(self.command, self.path, body, dict(self.headers))
                answer = there.getresponse()
                told = answer.read()
                there.close()
                if fault != "cut":
                    self.answer(answer.status, told)

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = carry  # noqa: N815 (the names http.server looks for)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def serving(server: RedisServer) -> Iterator[Serving]:
    with Serving(server.url, ServerSettings(port=0, sweep=False)) as running:
        yield running


@pytest.fixture
def line(serving: Serving) -> Iterator[Line]:
    made = Line(int(serving.address.rpartition(":")[2]))
    yield made
    made.close()


@pytest.fixture
def far(line: Line) -> Iterator[HttpClient]:
    with restante.http.connect(line.address) as opened:
        yield opened


@pytest.fixture
def queue(far: HttpClient, name: str) -> HttpQueue:
    """A queue that has been used, so that an idle connection is there."""
    opened = far.queue(name)
    opened.send("warm")
    return opened


def taken(queue: HttpQueue) -> HttpMessage:
    message = queue.receive()
    assert message is not None
    return message


@pytest.mark.parametrize("fault", ["drop", "cut", "unready"])
def test_a_send_is_repeated_and_stored_once(line: Line, queue: HttpQueue, view: Admin, fault: str) -> None:
    line.faults = [fault] * 2
    id = queue.send("x")
    assert id.stored
    assert [message.id for message in view.walk(queue.name, "ready")][1:] == [id]
    line.faults = [fault]
    assert all(one.stored for one in queue.send_many(["a", "b"]))
    assert view.counts(queue.name).ready == 4


def test_a_send_that_is_there_already_says_so_though_its_answer_was_lost(line: Line, queue: HttpQueue) -> None:
    first = queue.send("x", id="given")
    line.faults = ["cut"]
    again = queue.send("x", id="given")
    assert (first.stored, again.stored) == (True, False)


def test_a_send_that_nobody_answers_is_in_doubt(
    line: Line, queue: HttpQueue, view: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restante.http, "PATIENCE", 0.3)
    line.faults = ["cut"] * 1000
    with pytest.raises(Unconfirmed) as doubt:
        queue.send("x")
    line.faults = []
    [id] = doubt.value.ids
    assert queue.send("x", id=id).stored is False
    assert view.counts(queue.name).ready == 2


def test_a_send_to_nobody_was_not_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restante.http, "PATIENCE", 0.3)
    with (
        restante.http.connect(f"http://{HOST}:{closed_port()}") as nobody,
        pytest.raises(Unavailable, match="cannot be reached"),
    ):
        nobody.queue(name).send("x")


@pytest.mark.parametrize("fault", ["drop", "cut"])
@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
def test_a_verdict_is_not_repeated_by_itself_and_may_be_given_again(
    line: Line, queue: HttpQueue, view: Admin, verb: str, fault: str
) -> None:
    message = taken(queue)
    line.faults, line.seen = [fault], []
    with pytest.raises(Unavailable):
        getattr(message, verb)()
    assert [path.rpartition("/")[2] for path in line.seen] == [verb]
    assert not message.settled
    if fault == "drop" or verb == "ack":
        getattr(message, verb)()
    else:
        with pytest.raises(LeaseLost):  # it was carried out, and nobody could know
            getattr(message, verb)()
    assert view.counts(queue.name).leased == 0


@pytest.mark.parametrize("fault", ["drop", "cut"])
def test_a_receive_is_not_repeated(line: Line, queue: HttpQueue, view: Admin, fault: str) -> None:
    queue.send_many(["a", "b", "c"])
    line.faults, line.seen = [fault], []
    with pytest.raises(Unavailable):
        queue.receive_many(2)
    assert len(line.seen) == 1
    assert view.counts(queue.name).leased == (2 if fault == "cut" else 0)
    line.faults = ["unready"]
    with pytest.raises(NotReady):
        queue.receive_many(2)


def test_a_connection_that_was_closed_while_idle_is_replaced(line: Line, queue: HttpQueue, view: Admin) -> None:
    line.faults = ["end"]
    message = taken(queue)
    wait_until(lambda: restante.http._ended(queue._client._idle[-1]))
    message.ack()
    assert view.counts(queue.name).waiting == 0


def test_a_wait_that_is_longer_than_one_request_goes_on(
    line: Line, far: HttpClient, view: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restante.http, "POLL", 0.1)
    queue = far.queue(name)
    queue.send_many(["first", "second"])
    first = queue.receive_many(2)
    got: list[Any] = []
    waiting = threading.Thread(
        target=lambda: got.extend(queue.receive_many(1, PATIENCE, acks=first)), name="waiting", daemon=True
    )
    line.seen = []
    waiting.start()
    wait_until(lambda: len(line.seen) >= 3)
    assert view.counts(name).totals["acked"] == 2
    queue.send("third")
    wait_until(lambda: [message.payload for message in got] == ["third"])


def test_a_receive_that_waits_is_one_request(line: Line, far: HttpClient, post: Client, name: str) -> None:
    queue = far.queue(name)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(queue.receive(PATIENCE)), daemon=True)
    waiting.start()
    wait_until(lambda: line.seen)
    time.sleep(0.3)  # long enough for more
    post.queue(name).send("x")
    wait_until(lambda: got and got[0].payload == "x")
    assert len(line.seen) == 1


def test_errors_told_over_http_are_the_errors_of_a_queue(queue: HttpQueue) -> None:
    queue.configure(max_length=1)
    with pytest.raises(restante.QueueFull, match="max_length is 1"):
        queue.send("y")
    queue.configure(max_length=None, max_payload=10)
    with pytest.raises(restante.PayloadTooLarge):
        queue.send("x" * 100)
