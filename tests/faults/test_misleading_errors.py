"""What a failure says: the cause that is one, and the remedy, for every way to be refused or misunderstood."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import restante
from restante import (
    AccessDenied,
    Admin,
    Client,
    Consumer,
    InvalidInput,
    MissingExtra,
    NotFound,
    RestanteError,
    Sweeper,
    Unavailable,
)
from restante.core.failures import ACL_RULES
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer, call

#: What other services answer to the first words of a Redis client; None: they close, "": they say nothing.
STRANGERS = {
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer as Redis does: another service listens there"),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer as Redis does: another service listens there"),
    "rabbitmq": (b"AMQP\x00\x00\x09\x01", "does not answer as Redis does: another service listens there"),
    "memcached": (b"ERROR\r\n", "does not answer as Redis does: another service listens there"),
    "tls": (b"\x15\x03\x01\x00\x02\x02\x46", "does not answer as Redis does: it expects TLS"),
    "postgres": (None, "it closes the connection before it answers; another service may listen there"),
    "silent": (b"", "it accepts the connection and does not answer"),
}


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes | None], int]]:
    """Starts a service that is not Redis; gives its port."""
    listening: list[socket.socket] = []
    held: list[socket.socket] = []

    def serve(listener: socket.socket, answer: bytes | None) -> None:
        while True:
            try:
                client, _ = listener.accept()
                client.recv(1000)
                if answer:
                    client.sendall(answer)
            except OSError:
                return
            if answer is None:
                client.close()
            else:
                held.append(client)

    def start(answer: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for one in listening:
        one.shutdown(socket.SHUT_RDWR)
        one.close()
    for one in held:
        one.close()


async def tried(url: str, **settings: Any) -> list[RestanteError]:
    """The error of each runner, when a message is sent there."""
    found = []
    with pytest.raises(RestanteError) as told, restante.connect(url, patience=0.2, **settings) as post:
        post.queue("q").send(1)
    found.append(told.value)
    with pytest.raises(RestanteError) as told:
        async with restante.aio.connect(url, patience=0.2, **settings) as other:
            await other.queue("q").send(1)
    return [*found, told.value]


@pytest.mark.parametrize("name", STRANGERS)
async def test_a_server_that_is_not_redis_is_called_so(stranger: Callable[[bytes | None], int], name: str) -> None:
    answer, text = STRANGERS[name]
    for error in await tried(f"redis://127.0.0.1:{stranger(answer)}", connect_timeout=0.3):
        assert isinstance(error, Unavailable)
        assert text in str(error)
        assert "is the server running" not in str(error)


async def test_a_server_without_tls_is_called_so(server: RedisServer) -> None:
    for error in await tried(server.url.replace("redis://", "rediss://")):
        assert "use redis:// if the server has no TLS" in str(error)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with users."""
    with RedisServer() as running:
        call(running.client(), "ACL", "SETUSER", "ada", "on", ">secret", *ACL_RULES.split())
        yield running


def as_ada(server: RedisServer, password: str = "secret") -> str:
    return server.url.replace("redis://", f"redis://ada:{password}@")


def test_the_rights_that_the_errors_name_are_enough(guarded: RedisServer) -> None:
    with restante.connect(as_ada(guarded)) as post:
        queue = post.queue("acl", lease=60)
        queue.send_many([1, 2, 3, 4])
        queue.send(5, delay=0.05)
        for verb in ("ack", "nack", "bury", "release", "extend"):
            message = queue.receive(timeout=10)
            assert message is not None
            getattr(message, verb)()
        admin = Admin(post)
        admin.pause("acl")
        admin.resume("acl")
        admin.replay("acl")
        assert admin.counts("acl").waiting
        assert admin.consumers()
        assert admin.journal("acl")
        admin.drop("acl", force=True)


#: What is taken from the user, and what the error must quote: the server's reason, and the least role that may.
TAKEN = {
    "-@write": ("'sadd' command", "send"),
    "-evalsha": ("'evalsha' command", "send"),
    "-info": ("'info' command", "send"),
    "-zadd": ("can't run this command", "send"),
    "-bzpopmin": ("'bzpopmin' command", "consume"),
    "resetkeys": ("one of the keys", "send"),
}


def send_and_wait(url: str) -> None:
    """Everything a producer and a consumer do."""
    with restante.connect(url, patience=0.1) as post:
        queue = post.queue("rights")
        queue.send(1)
        queue.receive()
        queue.receive(timeout=1)


@pytest.mark.parametrize("taken", TAKEN)
async def test_a_missing_right_is_denied_access_with_the_role_that_is_needed(guarded: RedisServer, taken: str) -> None:
    client = guarded.client()
    call(client, "ACL", "SETUSER", "ada", taken)
    try:
        with pytest.raises(AccessDenied) as told:
            send_and_wait(as_ada(guarded))
        reason, role = TAKEN[taken]
        assert reason in str(told.value)
        assert f"`restante acl --role {role}`" in str(told.value)
        assert isinstance(told.value, Unavailable)  # a consumer waits until the right is granted
    finally:
        call(client, "ACL", "SETUSER", "ada", *ACL_RULES.split())


async def test_a_refused_login_says_which_part_is_wrong_and_never_the_password(guarded: RedisServer) -> None:
    for error in await tried(as_ada(guarded, "wr0ng")):
        assert isinstance(error, AccessDenied)
        assert "refused the login: check user and password" in str(error)
        assert "wr0ng" not in str(error)
    for error in await tried(guarded.url.replace("redis://", "redis://:needless@")):
        assert "has no password for the default user: leave the password out" in str(error)
    client = guarded.client()
    call(client, "CONFIG", "SET", "requirepass", "secret")
    try:
        for error in await tried(guarded.url):
            assert isinstance(error, AccessDenied)
            assert "asks for a login" in str(error)
    finally:
        call(client, "CONFIG", "SET", "requirepass", "")


async def test_a_database_the_server_does_not_have_is_named(server: RedisServer) -> None:
    for error in await tried(f"{server.url}/9999"):
        assert isinstance(error, InvalidInput)
        assert "no such database" in str(error)


BAD_URLS = {
    "redis://host/abc": "database 'abc' of the Redis URL is not a number",
    "redis://host/0/1": "is not a number",
    "rediss://host/-1": "is not a number",
    "redis+sentinel://host:1/mymaster/abc": "is not a number",
    "redis+cluster://host:1/3": "only database 0",
    "redis://host/0?socket_timeot=3": "no option 'socket_timeot': did you mean socket_timeout",
    "redis://host/0?max_connections=3": "no option 'max_connections'",
    "redis://host/0?ssl_ca_certs=x": "needs TLS: write rediss://",
    "restante://host": "for Celery's broker_url and for the bus: here use redis://",
    "restante+socket:///x": "for Celery's broker_url",
    "amqp://host": "RabbitMQ's, which carries events: give it to restante.Bus",
    "http://host:8025": "use restante.http.connect()",
    "localhost:6379": "has no scheme: write redis://host:port/database",
    "rdis://host": "scheme 'rdis' is not known",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_means_nothing_here_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(InvalidInput) as told:
        restante.connect(url)
    assert BAD_URLS[url] in str(told.value)


@pytest.mark.parametrize("connect", [restante.connect, restante.aio.connect])
def test_a_misspelt_option_of_a_client_is_refused_with_the_nearest(connect: Any, server: RedisServer) -> None:
    with pytest.raises(InvalidInput, match=r"connect\(\) has no option 'patince': did you mean patience"):
        connect(server.url, patince=3)
    with pytest.raises(InvalidInput, match="'consumr': did you mean consumer"):
        connect(server.url, consumr="me")
    with pytest.raises(InvalidInput, match="patience must be"):
        connect(server.url, patience="long")
    with pytest.raises(InvalidInput, match="url must be text"):
        connect(6379)


def test_a_misspelt_option_is_refused_at_the_other_doors_too(post: Client) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: restante.http.connect(tokn="x"), "token"),  # type: ignore[call-arg]
        (lambda: Admin(post, operater="me"), "operator"),  # type: ignore[call-arg]
        (lambda: Consumer([], concurency=3), "concurrency"),  # type: ignore[call-arg]
        (lambda: Sweeper(post, queue=("a",)), "queues"),  # type: ignore[call-arg]
        (lambda: post.queue("a").consume(prefech=1), "prefetch"),  # type: ignore[call-arg]
        (lambda: post.queue("a", leas=1), "lease"),  # type: ignore[call-arg]
        (lambda: post.queue("a").configure(leas=1), "lease"),  # type: ignore[call-arg]
        (lambda: Admin(post).configure("a", leas=1), "lease"),  # type: ignore[call-arg]
    ]
    import restante.http

    for door, nearest in wrong:
        with pytest.raises(InvalidInput, match=f"did you mean {nearest}"):
            door()


def test_a_text_where_a_list_of_names_belongs_is_refused(post: Client, view: Admin, name: str) -> None:
    before = view.queues()
    for door in (
        lambda: post.receive_many("orders"),
        lambda: view.delete(name, "abc"),
        lambda: view.move(name, "other", "abc"),
        lambda: view.replay(name, ids="abc"),
        lambda: view.purge(name, "dead"),
        lambda: view.purge(name, ["daed"]),
        lambda: Consumer(post.queue(name)),  # type: ignore[arg-type]
        lambda: Sweeper(post, "orders"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput):
            door()
    assert view.queues() == before


def test_a_queue_that_is_not_there_is_not_dropped(post: Client, view: Admin, name: str) -> None:
    post.queue(name).send(1)
    with pytest.raises(NotFound, match=f"did you mean {name}"):
        view.drop(f"{name}x")


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (lambda: None, "must take one argument, the message"),
        (lambda message, more: None, "must take one argument, the message"),
        (5, "must be a function"),
        ("handle", "must be a function"),
    ],
)
def test_a_handler_that_cannot_take_a_message_is_refused_when_it_is_registered(
    post: Client, name: str, handler: Any, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        post.queue(name).handler(handler)


def test_a_handler_that_would_run_nothing_is_refused(post: Client, name: str, view: Admin) -> None:
    queue = post.queue(name, max_attempts=1)

    def forgets(message: Any) -> Any:
        yield message

    with pytest.raises(InvalidInput, match="has a yield"):
        queue.handler(forgets)

    async def work(message: Any) -> None:
        raise AssertionError("nobody awaits it")

    queue.handler(lambda message: work(message))
    queue.send(1)
    Consumer([queue], stop_when_empty=True).run()
    (dead,) = view.walk(name, restante.State.DEAD)
    assert "nobody awaits" in view.show(name, dead.id).history[-1].error


def test_an_object_called_like_a_coroutine_function_is_awaited(post: Client, name: str, view: Admin) -> None:
    seen = []

    class Handler:
        async def __call__(self, message: restante.LeasedMessage) -> None:
            seen.append(message.payload)

    queue = post.queue(name)
    queue.handler(Handler())
    queue.send("x")
    Consumer([queue], stop_when_empty=True).run()
    assert seen == ["x"]


def test_a_consumer_of_a_paused_queue_says_that_it_is_paused(
    post: Client, name: str, view: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    queue = post.queue(name)
    queue.send(1)
    view.pause(name)
    for message in queue.consume(stop_when_empty=True):
        raise AssertionError(message)
    assert f"paused queue={name}" in caplog.text
    caplog.clear()
    queue.handler(lambda message: None)
    queue.ref.opened = False
    Consumer([queue], stop_when_empty=True).run()
    assert f"paused queue={name}" in caplog.text


NOBODY = 65534
#: Runs as a user without rights, as root may do anything. The first call imports what that user may not read.
UNPRIVILEGED = """
import os
import restante
try:
    restante.connect("unix:///nowhere", patience=0).queue("q").send(1)
except restante.Unavailable:
    pass
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
try:
    {program}
except restante.RestanteError as error:
    print(type(error).__name__, error)
"""


def unprivileged(program: str) -> str:
    text = UNPRIVILEGED.format(program=program, nobody=NOBODY)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE, cwd="/")
    assert done.stderr == ""
    return done.stdout


def test_a_directory_that_may_not_be_written_is_denied_access() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        told = unprivileged(f"restante.connect(directory={folder + '/mine'!r})")
        assert told.startswith("AccessDenied the directory")
        assert "Permission denied; choose one this user may write to" in told


def test_a_socket_that_may_not_be_opened_is_denied_access() -> None:
    with RedisServer(unix_socket=True, config={"unixsocketperm": "700"}) as running:
        told = unprivileged(f"restante.connect({running.unix_url!r}, patience=0.1).queue('q').send(1)")
        assert told.startswith("AccessDenied unix://")
        assert "is the server running" not in told


def test_a_file_where_the_directory_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Unavailable, match=r"cannot be used: .*choose one this user may write to"):
            restante.connect(directory=directory)


BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in {blocked!r} else find(name, *rest)
import restante
try:
    {program}
except restante.MissingExtra as error:
    assert isinstance(error, ImportError) and isinstance(error, restante.RestanteError)
    print(error.name, error)
"""


#: Defines a task whose argument has this annotation.
TASK = "def ship(order: {annotation}): ...\n    restante.connect('redis://localhost').queue('orders').task(ship).draft([1])"


@pytest.mark.parametrize(
    ("blocked", "program", "extra"),
    [
        (("celery", "kombu"), "restante.Bus", "bus"),
        (("celery",), "from restante import Bus", "bus"),
        (("celery",), "from restante.bus import Bus", "bus"),
        (("pydantic",), "import restante.bus", "bus"),
        (("celery", "kombu"), "import restante.celery", "celery"),
        (("fastapi",), "import restante.server", "server"),
        (("uvicorn",), "from restante.server import Serving", "server"),
        (("pyspark",), "import restante.spark", "spark"),
        (("aio_pika",), "from restante.bus import AsyncBusClient; AsyncBusClient('amqp://localhost')", "rabbitmq"),
        (("kombu",), "import restante.rabbitmq.declaration", "rabbitmq"),
        (("sqlalchemy",), "import restante.bus.outbox", "outbox"),
        (("httpx",), "import restante.http", "http"),
        (("pydantic",), TASK.format(annotation="set[int]"), "tasks"),
    ],
)
def test_a_part_whose_packages_are_missing_names_its_extra(blocked: tuple[str, ...], program: str, extra: str) -> None:
    text = BLOCKED.format(blocked=blocked, program=program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr == ""
    assert f"pip install 'restante[{extra}]'" in done.stdout


def test_a_task_of_json_annotations_needs_no_extra_package() -> None:
    text = BLOCKED.format(blocked=("pydantic",), program=TASK.format(annotation="list[int] | None"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stderr, done.stdout) == ("", "")


def test_an_extra_that_is_missing_is_an_import_error_to_those_who_expect_one() -> None:
    assert issubclass(MissingExtra, ModuleNotFoundError)
    assert str(MissingExtra()).startswith("This part of Restante needs packages")
