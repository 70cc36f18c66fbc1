"""The queue over HTTP behind a line that loses answers: sends are stored once, receives and verdicts not repeated."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

import restante
import restante.http
from restante import Admin, InvalidInput, LeaseLost, NotReady, Unavailable, Unconfirmed
from restante.http import calls
from restante.server import ServerSettings, Serving
from tests.harness.deadlines import PATIENCE, wait_until_async
from tests.harness.servers import HOST, RedisServer, closed_port, free_port

#: Both clients, which every test runs on.
CONNECT: Final[dict[str, Callable[..., Any]]] = {"sync": restante.http.connect, "async": restante.http.aio.connect}


class Line:
    """Carries requests to the server, and loses what it is told to lose. It also serves as a proxy."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        #: Paths and headers of the requests that came.
        self.seen: list[str] = []
        self.headers: list[Any] = []
        #: What happens to the next requests: "drop" loses the request, "cut" its answer, "unready" answers 503 and
        #: "gateway" 502 after the server has answered, and "end" closes the connection behind the answer.
        self.faults: list[str] = []
        #: Connections that were opened and closed.
        self.opened, self.closed = 0, 0
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body by one segment each would wait for one another.
            disable_nagle_algorithm = True

            def setup(self) -> None:
                line.opened += 1
                super().setup()

            def carry(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                line.seen.append(self.path)
                line.headers.append(self.headers)
                fault = line.faults.pop(0) if line.faults else ""
                self.close_connection = fault in ("drop", "cut", "end")
                if fault == "drop":
                    return
                if fault == "unready":
                    self.answer(503, b'{"error":"NotReady","message":"not ready"}')
                    return
                there = http.client.HTTPConnection(HOST, port)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                there.request(self.command, urlsplit(self.path).path, body, headers)
                answer = there.getresponse()
                told = answer.read()
                there.close()
                if fault == "gateway":
                    self.answer(502, b"<html>Bad Gateway</html>")
                elif fault != "cut":
                    self.answer(answer.status, told)

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = carry  # noqa: N815 (the names http.server looks for)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                line.closed += 1

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a handshake that the client broke off

        self._server = Server((HOST, 0), Handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self._scheme}://{HOST}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


async def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The method's result, whether it blocks or is awaited."""
    if inspect.iscoroutinefunction(method):
        return await method(*args, **kwargs)
    return await asyncio.to_thread(method, *args, **kwargs)


@pytest.fixture(scope="module")
def serving(server: RedisServer) -> Iterator[Serving]:
    with Serving(server.url, ServerSettings(port=0, sweep=False)) as running:
        yield running


@pytest.fixture
def port(serving: Serving) -> int:
    return int(serving.address.rpartition(":")[2])


@pytest.fixture
def line(port: int) -> Iterator[Line]:
    made = Line(port)
    yield made
    made.close()


@pytest.fixture(params=CONNECT)
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CONNECT[request.param]


@pytest.fixture
async def far(line: Line, connect: Callable[..., Any]) -> AsyncIterator[Any]:
    opened = connect(line.address)
    yield opened
    await call(opened.close)


@pytest.fixture
async def queue(far: Any, name: str) -> Any:
    """A queue that has been used, so that an idle connection is there."""
    opened = far.queue(name)
    await call(opened.send, "warm")
    return opened


async def taken(queue: Any) -> Any:
    message = await call(queue.receive)
    assert message is not None
    return message


# -- what is repeated ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drop", "cut", "unready", "gateway"])
async def test_a_send_is_repeated_and_stored_once(line: Line, queue: Any, view: Admin, fault: str) -> None:
    line.faults = [fault] * 2
    id = await call(queue.send, "x")
    assert id.stored
    assert [message.id for message in view.walk(queue.name, "ready")][1:] == [id]
    line.faults = [fault]
    assert all(one.stored for one in await call(queue.send_many, ["a", "b"]))
    assert view.counts(queue.name).ready == 4


async def test_a_send_that_is_there_already_says_so_though_its_answer_was_lost(line: Line, queue: Any) -> None:
    first = await call(queue.send, "x", id="given")
    line.faults = ["cut"]
    again = await call(queue.send, "x", id="given")
    assert (first.stored, again.stored) == (True, False)


@pytest.mark.parametrize("faults", [["cut"] * 1000, ["cut"] + ["unready"] * 1000, ["gateway"] * 1000])
async def test_a_send_that_nobody_answers_is_in_doubt(
    line: Line, queue: Any, view: Admin, monkeypatch: pytest.MonkeyPatch, faults: list[str]
) -> None:
    monkeypatch.setattr(calls, "PATIENCE", 0.3)
    line.faults = list(faults)
    with pytest.raises(Unconfirmed) as doubt:
        await call(queue.send, "x")
    line.faults = []
    [id] = doubt.value.ids
    assert (await call(queue.send, "x", id=id)).stored is False
    assert view.counts(queue.name).ready == 2


async def test_a_send_that_the_server_never_took_is_not_in_doubt(
    line: Line, queue: Any, view: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PATIENCE", 0.3)
    line.faults = ["unready"] * 1000
    with pytest.raises(NotReady):
        await call(queue.send, "x")
    assert view.counts(queue.name).ready == 1


async def test_a_send_to_nobody_was_not_stored(
    name: str, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PATIENCE", 0.3)
    nobody = connect(f"http://{HOST}:{closed_port()}")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await call(nobody.queue(name).send, "x")
    await call(nobody.close)
    with pytest.raises(Unavailable, match="closed"):
        await call(nobody.queue(name).send, "x")


@pytest.mark.parametrize("fault", ["drop", "cut"])
@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
async def test_a_verdict_is_not_repeated_by_itself_and_may_be_given_again(
    line: Line, queue: Any, view: Admin, verb: str, fault: str
) -> None:
    message = await taken(queue)
    line.faults, line.seen = [fault], []
    with pytest.raises(Unavailable):
        await call(getattr(message, verb))
    assert [path.rpartition("/")[2] for path in line.seen] == [verb]
    assert not message.settled
    if fault == "drop" or verb == "ack":
        await call(getattr(message, verb))
    else:
        with pytest.raises(LeaseLost):  # it was carried out, and nobody could know
            await call(getattr(message, verb))
    assert view.counts(queue.name).leased == 0


@pytest.mark.parametrize("fault", ["drop", "cut", "gateway"])
async def test_a_receive_is_not_repeated(line: Line, queue: Any, view: Admin, fault: str) -> None:
    await call(queue.send_many, ["a", "b", "c"])
    line.faults, line.seen = [fault], []
    with pytest.raises(Unavailable):
        await call(queue.receive_many, 2)
    assert len(line.seen) == 1
    assert view.counts(queue.name).leased == (0 if fault == "drop" else 2)
    line.faults = ["unready"]
    with pytest.raises(NotReady):
        await call(queue.receive_many, 2)


async def test_settings_and_any_read_are_repeated(line: Line, far: Any, queue: Any) -> None:
    line.faults = ["cut", "unready"]
    assert (await call(queue.configure, lease=77)).lease == 77
    line.faults = ["cut", "unready"]
    assert (await call(queue.read_settings)).lease == 77
    line.faults = ["drop"]
    assert (await call(far.ask, "GET", queue.ref.path))["settings"]["lease_seconds"] == 77
    line.faults = ["drop"]
    with pytest.raises(Unavailable):
        await call(far.ask, "POST", f"{queue.ref.path}/pause", {})


async def test_a_send_with_an_idempotency_key_is_repeated_and_stored_once(
    line: Line, far: Any, queue: Any, view: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{queue.ref.path}/messages"
    line.faults = ["cut", "unready"]
    first = await call(far.ask, "POST", path, {"payload": 1}, idempotency_key="order-1")
    again = await call(far.ask, "POST", path, {"payload": 1}, idempotency_key="order-1")
    assert (first["id"], again["stored"]) == (again["id"], False)
    assert view.counts(queue.name).ready == 2
    monkeypatch.setattr(calls, "PATIENCE", 0.3)
    line.faults = ["cut"] * 1000
    with pytest.raises(Unconfirmed, match="same Idempotency-Key"):
        await call(far.ask, "POST", path, {"payload": 2}, idempotency_key="order-2")
    line.faults = []
    with pytest.raises(InvalidInput, match="only a send"):
        await call(far.ask, "POST", f"{queue.ref.path}/receive", {}, idempotency_key="order-3")


# -- connections -----------------------------------------------------------------------------------------------------


async def test_calls_one_after_another_use_one_connection(line: Line, queue: Any) -> None:
    for number in range(20):
        await call(queue.send, number)
        await call((await taken(queue)).ack)
    assert line.opened == 1


async def test_a_connection_that_was_closed_while_idle_is_replaced(line: Line, queue: Any, view: Admin) -> None:
    line.faults = ["end"]
    message = await taken(queue)
    await wait_until_async(lambda: line.closed)
    await call(message.ack)
    assert view.counts(queue.name).waiting == 0
    assert line.opened == 2


async def test_a_wait_that_is_longer_than_one_request_goes_on(
    line: Line, queue: Any, view: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "POLL", 0.1)
    await call(queue.send, "second")
    first = await call(queue.receive_many, 2)
    line.seen = []
    waiting = asyncio.create_task(call(queue.receive_many, 1, PATIENCE, acks=first))
    await wait_until_async(lambda: len(line.seen) >= 3)
    assert view.counts(queue.name).totals["acked"] == 2
    await call(queue.send, "third")
    assert [message.payload for message in await waiting] == ["third"]


async def test_a_receive_that_waits_is_one_request(line: Line, far: Any, post: restante.Client, name: str) -> None:
    queue = far.queue(name)
    waiting = asyncio.create_task(call(queue.receive, PATIENCE))
    await wait_until_async(lambda: line.seen)
    await asyncio.sleep(0.3)  # long enough for more
    post.queue(name).send("x")
    assert (await waiting).payload == "x"
    assert len(line.seen) == 1


async def test_a_wait_comes_on_top_of_the_timeout(line: Line, connect: Callable[..., Any], name: str) -> None:
    # The margin of a busy machine is the timeout, so neither is short.
    client = connect(line.address, timeout=5)
    begun = time.monotonic()
    assert await call(client.queue(name).receive, 6) is None
    assert time.monotonic() - begun >= 6
    await call(client.close)


@pytest.mark.parametrize("limit", [0.2, httpx.Timeout(5, read=0.2)])
async def test_a_server_that_does_not_answer_is_given_up(connect: Callable[..., Any], limit: Any) -> None:
    with socket.create_server((HOST, 0)) as silent:
        client = connect(f"http://{HOST}:{silent.getsockname()[1]}", timeout=limit)
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="timed out"):
            await call(client.queue("q").receive)
        assert time.monotonic() - begun >= 0.2
        await call(client.close)


async def test_a_proxy_carries_the_requests_and_its_login_is_not_shown(
    line: Line, connect: Callable[..., Any], name: str
) -> None:
    proxy = line.address.replace("//", "//user:secret@")
    client = connect("http://queues.invalid:8025", proxy=proxy, token="rst_hidden")
    queue = client.queue(name)
    await call(queue.send, "x")
    assert line.seen == [f"http://queues.invalid:8025/api/queues/{name}/messages"]
    assert line.headers[0]["Proxy-Authorization"].startswith("Basic ")
    line.faults = ["drop"]
    with pytest.raises(Unavailable) as told:
        await call(queue.receive)
    assert "secret" not in str(told.value)
    assert "rst_hidden" not in str(told.value)
    await call(client.close)


async def test_the_environment_names_a_proxy_but_not_for_this_machine(
    line: Line, connect: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", line.address)
    client = connect("http://queues.invalid:8025")
    await call(client.queue(name).send, "x")
    assert len(line.seen) == 1
    await call(client.close)
    monkeypatch.setenv("HTTP_PROXY", f"http://{HOST}:{closed_port()}")
    near = connect(line.address)
    assert await call(near.queue(name).receive) is not None
    await call(near.close)


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for this machine, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(params=["anyone", "clients with a certificate"])
def secure(request: pytest.FixtureRequest, port: int, certificate: tuple[str, str]) -> Iterator[Line]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if request.param != "anyone":
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate[0])
    made = Line(port, context)
    yield made
    made.close()


async def test_the_certificate_of_a_server_is_checked_and_that_of_a_client_shown(
    secure: Line, certificate: tuple[str, str], connect: Callable[..., Any], name: str
) -> None:
    trusted = ssl.create_default_context(cafile=certificate[0])
    for verify in (certificate[0], Path(certificate[0]), trusted, False):
        client = connect(secure.address, verify=verify, cert=certificate)
        assert await call(client.queue(name).receive) is None
        await call(client.close)
    stranger = connect(secure.address, cert=certificate)
    with pytest.raises(Unavailable, match=r"CERTIFICATE_VERIFY_FAILED.*pass verify="):
        await call(stranger.queue(name).receive)
    await call(stranger.close)


def test_options_of_a_connection_that_cannot_be_used_are_refused(
    connect: Callable[..., Any], tmp_path: Path, certificate: tuple[str, str]
) -> None:
    web = f"https://{HOST}:1"
    for options, told in (
        ({"verify": str(tmp_path / "missing.pem")}, "verify="),
        ({"verify": certificate[1]}, "verify="),
        ({"cert": str(tmp_path / "missing.pem")}, "verify="),
        ({"proxy": "ftp://user:secret@host"}, "proxy must be"),
        ({"proxy": 3128}, "proxy must be"),
        ({"timeout": "soon"}, "timeout must be"),
        ({"timeout": 0}, "timeout must be"),
        ({"token": "rst_ü"}, "token"),
        ({"token": "rst_a\nHost: other"}, "token"),
        ({"consumer": "no spaces"}, "consumer"),
    ):
        with pytest.raises(InvalidInput, match=told) as refused:
            connect(web, **options)
        assert "secret" not in str(refused.value)
    for address in ("localhost:8025", "redis://localhost", "http://", "http://host:port", 8025):
        with pytest.raises(InvalidInput, match="must be http://host:port"):
            connect(address)


async def test_a_login_in_the_address_is_not_shown(connect: Callable[..., Any]) -> None:
    client = connect(f"http://user:secret@{HOST}:{closed_port()}/restante/")
    assert client.address.endswith("/restante")
    with pytest.raises(Unavailable) as told:
        await call(client.queue("q").receive)
    assert "secret" not in client.address + str(told.value)
    await call(client.close)
    with pytest.raises(InvalidInput) as refused:
        connect("http://user:secret@host:port")
    assert "secret" not in str(refused.value)


async def test_a_server_that_is_no_restante_server_is_told(connect: Callable[..., Any]) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Welcome</html>")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer((HOST, free_port()), Other) as other:
        threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
        client = connect(f"http://{HOST}:{other.server_address[1]}")
        with pytest.raises(Unavailable, match="check the address"):
            await call(client.queue("q").receive)
        await call(client.close)
        other.shutdown()


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_queue_named_by_dots_is_that_queue(line: Line, far: Any, name: str) -> None:
    queue = far.queue(name)
    await call(queue.send, "x")
    message = await taken(queue)
    assert (message.queue, message.payload) == (name, "x")
    await call(message.ack)


async def test_errors_told_over_http_are_the_errors_of_a_queue(queue: Any) -> None:
    await call(queue.configure, max_length=1)
    with pytest.raises(restante.QueueFull, match="max_length is 1"):
        await call(queue.send, "y")
    await call(queue.configure, max_length=None, max_payload=10)
    with pytest.raises(restante.PayloadTooLarge):
        await call(queue.send, "x" * 100)
    with pytest.raises(InvalidInput, match="did you mean delay"):
        await call(queue.nack_many, [], dealy=1)
