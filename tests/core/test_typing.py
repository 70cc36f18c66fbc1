"""A type checker finds the slips of a program before it runs, and accepts the programs of the guides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.deadlines import PATIENCE

#: One run of mypy serves both tests, and only one process may use its cache.
pytestmark = pytest.mark.xdist_group("typing")

ROOT = Path(__file__).parents[2]

#: Each line with a comment must be refused with that code of mypy; no other line may be.
WRONG = """
import restante
import restante.http
from restante import Admin, Consumer, Draft, LeasedMessage

post = restante.connect("redis://localhost")
web = restante.http.connect()
restante.connect("redis://localhost", patince=3)  # call-arg
restante.connect("redis://localhost", patience="long")  # arg-type
restante.conect("redis://localhost")  # attr-defined
restante.http.connect(tokn="x")  # call-arg
restante.http.aio.connect(tokn="x")  # call-arg
restante.http.connect(verify=3)  # arg-type
post.queue("orders", leese=30)  # call-arg
post.queue("orders", max_attempts="five")  # arg-type
web.queue("orders", leese=30)  # call-arg
orders = post.queue("orders")
orders.send({"a": 1}, priorty=3)  # call-arg
orders.send({"a": 1}, delay="soon")  # arg-type
orders.send_many([1], dealy=3)  # call-arg
orders.send_many([1], id="same")  # call-arg
orders.configure(leese=30)  # call-arg
orders.consume(prefech=1)  # call-arg
web.queue("orders").send(1, priorty=3)  # call-arg
Admin(post, operater="me")  # call-arg
Admin(post).configure("orders", leese=30)  # call-arg
Consumer([orders], concurency=3)  # call-arg
Consumer(orders)  # arg-type
Draft(1, priorty=3)  # call-arg


@orders.handler  # call-overload
def takes_nothing() -> None: ...


@orders.handler  # call-overload
def takes_two(message: LeasedMessage, other: int) -> None: ...


@orders.handler  # call-overload
def takes_text(message: str) -> None: ...


@orders.handler(kind="a")  # type-var
def takes_bytes(message: bytes) -> None: ...


@orders.handler  # call-overload
async def takes_async(message: restante.aio.AsyncLeasedMessage) -> None: ...


@orders.task
def ship(order: int, express: bool = False) -> str:
    return str(order)


@orders.task(priority=3)
async def told(message: LeasedMessage, order: int) -> None: ...


ship.send()  # call-arg
ship.send("42")  # arg-type
ship.send(42, ordr=1)  # call-arg
ship.send(42, False, 3)  # call-arg
ship.draft("42")  # arg-type
ship("42")  # arg-type
ship.using(dealy=3)  # call-arg
ship.using(delay="soon").send(1)  # arg-type
ship.using(delay=3).send("42")  # arg-type
number: int = ship(42)  # assignment
told.send(order="42")  # arg-type
told.send("a message", 42)  # call-arg,arg-type
told(42)  # arg-type,call-arg,unused-coroutine
orders.task("ship")  # call-overload
orders.task(prioty=3)(ship.function)  # call-overload
orders.task(priority="high")  # call-overload
restante.Task(ship)  # call-arg,arg-type


far_orders = web.queue("orders")

@far_orders.task
def far_ship(order: int) -> None: ...


far_ship.send("42")  # arg-type
far_ship.send(ordr=42)  # call-arg
far_ship.draft("42")  # arg-type
far_ship.using(dealy=3)  # call-arg
far_orders.task(prioty=3)(ship.function)  # call-overload
far_orders.run_handler(42)  # arg-type
far_orders.consume()  # attr-defined


async def forgets() -> None:
    ship.send_async(42)  # unused-coroutine
    await ship.send_async("42")  # arg-type
    restante.aio.connect("redis://localhost", patince=3)  # call-arg
    async with restante.http.aio.connect("http://localhost:8025") as far:
        far.queue("orders").send(1)  # unused-coroutine
        far.queue("orders").receive_many(1)  # unused-coroutine
        await far.queue("orders").send(1, priorty=3)  # call-arg
        far_task = far.queue("orders").task(awaits)
        far_task.send(42)  # unused-coroutine
        await far_task.send("42")  # arg-type
        await far_task.using(dealy=3).send(42)  # call-arg
        async with await far.queue("orders").receive() as received:  # union-attr,union-attr
            far.queue("orders").run_handler(received)  # unused-coroutine
    async with restante.aio.connect("redis://localhost") as other:
        other.queue("orders", leese=30)  # call-arg
        queue = other.queue("orders")
        queue.send(1)  # unused-coroutine
        queue.send_many([1])  # unused-coroutine
        queue.configure(lease=30)  # unused-coroutine
        queue.receive_many(1)  # unused-coroutine
        await queue.send(1, priorty=3)  # call-arg
        message = queue.receive()
        message.ack()  # attr-defined
        async for one in queue.consume():
            one.ack()  # unused-coroutine
            one.nack()  # unused-coroutine
            with one:  # attr-defined,attr-defined
                pass
        queue.consume(prefech=3)  # call-arg
        queue.handler(plain_of_async)  # call-overload
        task = queue.task(awaits)
        task.send(42)  # unused-coroutine
        await task.send("42")  # arg-type
        await task.using(dealy=3).send(42)  # call-arg


def plain_of_async(message: restante.aio.AsyncLeasedMessage) -> None:
    print(message.payload)


async def awaits(message: restante.aio.AsyncLeasedMessage, order: int) -> None:
    message.ack()  # unused-coroutine
"""

RIGHT = """
from datetime import timedelta

import restante
import restante.http
from restante import Admin, Consumer, Draft, LeasedMessage, Sweeper

post = restante.connect("redis://localhost", patience=3, connect_timeout=timedelta(seconds=1), consumer="me")
orders = post.queue("orders", lease=timedelta(minutes=2), max_attempts=3, retry=restante.fixed(1, 5), rate=None)
sent: restante.MessageId = orders.send({"a": 1}, priority=3, delay=timedelta(hours=1), kind="order")
many: list[restante.MessageId] = orders.send_many([1, Draft(2, id="x")], priority=3)
orders.send_many(("a", "b"))
orders.configure(lease=30, max_length=None)
web = restante.http.connect("http://localhost:8025", token="x", timeout=3)
web.queue("orders", lease=30).send(1, priority=3, id="x")


@web.queue("orders").task(priority=3)
def pack(message: LeasedMessage, order: int) -> str:
    return str(order)


total: float = pack.send(order=42).result(timeout=3)
pack.using(delay=3).send(42).cancel()
got = web.queue("orders").receive()
if got is not None:
    with got:
        got.ack(result=web.queue("orders").run_handler(got))
restante.http.aio.connect("https://queues", verify="ca.pem", cert=("a.pem", "a.key"), proxy="http://proxy:3128")
Admin(post, operator="me").configure("orders", lease=30)
Sweeper(post, ("orders",))


@orders.handler
def plain(message: LeasedMessage) -> None:
    print(message.payload, message.verdict)


@orders.handler(kind="a")
async def coroutine(message: restante.LeasedMessage) -> int:
    return message.attempts


@orders.handler(kind="b")
def untyped(message):
    print(message)


@orders.handler(kind="c")
def wider(message: restante.Message) -> str:
    return message.id


class Handler:
    async def __call__(self, message: LeasedMessage) -> None: ...


orders.handler(Handler())
orders.handler(kind="d")(lambda message: print(message.payload))
plain_again = plain
Consumer([orders], concurrency=3, stop_when_empty=True).run()
for message in orders.consume(prefetch=10):
    with message:
        print(message.id)


@orders.task
def ship(order: int, express: bool = False) -> str:
    return str(order)


@orders.task(kind="order.told", priority=3, retry=restante.fixed(1), unique="order", timeout=timedelta(minutes=1))
async def told(message: LeasedMessage, order: int, *, express: bool = False) -> int:
    return message.attempts


@orders.task(unique=True)
def unannotated(order, carrier="post"):
    return order


@orders.task
def nothing() -> None: ...


ship.send(42, express=True)
ship.send(order=42)
text: str = ship(42)
told.send(42)
told.send(order=42, express=True)
unannotated.send(42, carrier="air")
nothing.send()
ship.using(delay=timedelta(hours=1), priority=9, id="x", timeout=5).using(headers={"a": 1}).send(order=42)
drafts: list[Draft] = [ship.draft(1), told.draft(order=2)]
orders.send_many(drafts)
task: restante.Task[..., str] = ship


async def awaits(message: LeasedMessage) -> None:
    attempts: int = await told(message, 42)
    print((await ship.send_async(order=42)).id, attempts)


async def remembers() -> None:
    async with restante.aio.connect("redis://localhost", patience=3) as other:
        queue = other.queue("orders", lease=30)
        id: restante.MessageId = await queue.send(1, priority=3)
        await queue.send_many([id])
        message = await queue.receive(timeout=1)
        if message is not None:
            await message.ack()
        async for one in queue.consume(prefetch=10):
            async with one:
                print(one.payload, one.error)
        @queue.task
        async def deliver(message: restante.aio.AsyncLeasedMessage, to: str) -> None:
            await message.extend()

        @queue.task(priority=3)
        def lift(message: LeasedMessage, kilos: float) -> None:
            message.extend()

        @queue.task(kind="weighing")
        async def weigh(kilos: float) -> float:
            return kilos

        handle = await deliver.send("Ada")
        print(handle.id, await weigh(3.5))
        await lift.using(delay=3).send_async(kilos=3)
        await queue.send_many([weigh.draft(2), deliver.draft(to="Ada")])
        queue.handler(alone)
        queue.handler(kind="plain")(plain)
        queue.handler(kind="lambda")(lambda message: print(message.payload))
        Consumer([queue, orders])


async def alone(message: restante.aio.AsyncLeasedMessage) -> None:
    await message.nack(error="no")
"""
_COMMENT = re.compile(r"# ([a-z-]+(?:,[a-z-]+)*)$")
_FOUND = re.compile(r"^(?:.*/)?(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], set[str]]:
    """The errors of both programs by file and line, from one run of mypy with the settings of a plain user."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "wrong.py").write_text(WRONG)
    (folder / "right.py").write_text(RIGHT)
    (folder / "mypy.ini").write_text(f"[mypy]\nfollow_imports = silent\nmypy_path = {ROOT / 'src'}\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            "mypy.ini",
            "--no-error-summary",
            "--cache-dir",
            str(ROOT / ".mypy_cache" / "programs"),
            "wrong.py",
            "right.py",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    made: dict[tuple[str, int], set[str]] = {}
    for line in done.stdout.splitlines():
        if (one := _FOUND.match(line)) is not None:
            made.setdefault((one[1], int(one[2])), set()).add(one[3])
        else:
            assert ": note: " in line, line
    return made


def test_a_type_checker_refuses_what_would_fail_or_do_nothing(found: dict[tuple[str, int], set[str]]) -> None:
    expected = {
        number: set(comment[1].split(","))
        for number, line in enumerate(WRONG.splitlines(), 1)
        if (comment := _COMMENT.search(line)) is not None
    }
    assert {line: codes for (file, line), codes in found.items() if file == "wrong"} == expected


def test_a_type_checker_accepts_programs_that_are_right(found: dict[tuple[str, int], set[str]]) -> None:
    assert [(line, codes) for (file, line), codes in found.items() if file == "right"] == []
