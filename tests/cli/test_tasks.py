"""Tasks on the command line: what `consume` takes for a queue, and `result`."""

from __future__ import annotations

import json

import pytest

from restante import Admin, Client
from tests.cli.conftest import Cli

APP = """
import restante
import restante.aio
import restante.http

client = restante.connect()
orders = client.queue("orders", keep_done=10, max_attempts=1)
parcels = restante.aio.connect().queue("parcels")
empty = client.queue("empty")
both = [orders, parcels]
named = {"orders": orders}
consumer = restante.Consumer([client.queue("other")]) if client.queue("other").handlers else None
far = restante.http.connect().queue("orders")

@orders.task
def ship(order: int) -> str:
    print("ship", order, flush=True)
    if order < 0:
        raise ValueError("no such order")
    return f"shipped {order}"

@orders.handler
def other(message):
    print("other", message.payload, flush=True)

@parcels.task
async def pack(parcel: int) -> None:
    print("pack", parcel, flush=True)

@far.task
def far_ship(order: int) -> None: ...

def loose(message): ...

class Shop:
    ship = ship
"""


@pytest.fixture
def app(cli: Cli) -> None:
    (cli.cwd / "app.py").write_text(APP)


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("name", ["orders", "ship", "other", "Shop.ship"])
def test_a_task_or_handler_means_its_whole_queue(cli: Cli, post: Client, name: str) -> None:
    post.queue("orders").send({"order": 1}, kind="ship")
    post.queue("orders").send("x")
    ran = cli("consume", f"app:{name}", "--stop-when-empty")
    assert (ran.code, sorted(ran.out.splitlines())) == (0, ["other x", "ship 1"]), ran.err
    assert "consuming orders on" in ran.err


@pytest.mark.usefixtures("app")
def test_a_task_of_an_asyncio_queue_is_consumed_beside_others_and_in_processes(cli: Cli, post: Client) -> None:
    post.queue("orders").send({"order": 1}, kind="ship")
    post.queue("parcels").send({"parcel": 2}, kind="pack")
    ran = cli("consume", "app:pack", "app:ship", "app:orders", "--processes", "1", "--stop-when-empty")
    assert (ran.code, sorted(ran.out.splitlines())) == (0, ["pack 2", "ship 1"]), ran.err
    post.queue("parcels").send({"parcel": 3}, kind="pack")
    assert cli("consume", "app", "--stop-when-empty").out == "pack 3\n"


def test_a_module_that_keeps_only_the_task_is_consumed(cli: Cli, post: Client) -> None:
    (cli.cwd / "lone.py").write_text(
        "import restante\n"
        "@restante.connect().queue('orders').task\n"
        "def ship(order: int) -> None: print('ship', order)\n"
    )
    post.queue("orders").send({"order": 1}, kind="ship")
    assert cli("consume", "lone", "--stop-when-empty").out == "ship 1\n"


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("client", 2, "app:client is a Client, not one of its queues: name app:orders or app:parcels or app:ship"),
        ("both", 2, "app:both is a list; name each of its queues or tasks, such as app:orders app:parcels"),
        ("named", 2, "app:named is a dict; name each"),
        ("far", 2, "app:far is an HttpQueue, not a queue, a task or a handler; nothing consumes over HTTP"),
        ("far_ship", 2, "app:far_ship is a Task, not a queue, a task or a handler; nothing consumes over HTTP"),
        ("loose", 2, "app:loose is a function, not a queue, a task or a handler: name app:orders"),
        ("restante", 2, "app:restante is a module, not a queue"),
        ("empty", 4, "app:empty has no handler: register one with @empty.handler or @empty.task"),
        ("shp", 2, "app has no shp: did you mean ship?"),
        ("orders.nothing", 2, "app has no orders.nothing"),
    ],
)
def test_what_is_no_queue_is_refused_with_what_to_name(cli: Cli, name: str, code: int, said: str) -> None:
    ran = cli("consume", f"app:{name}")
    assert (ran.code, said in ran.error) == (code, True), ran.err


def test_a_module_of_queues_over_http_says_how_to_handle_them(cli: Cli) -> None:
    (cli.cwd / "far.py").write_text(
        "import restante.http\nfar = restante.http.connect().queue('orders')\n@far.task\ndef ship() -> None: ...\n"
    )
    ran = cli("consume", "far")
    assert (ran.code, "receive in a loop and call run_handler" in ran.error) == (2, True)


@pytest.mark.usefixtures("app")
def test_result_prints_what_a_task_returned(cli: Cli, post: Client) -> None:
    queue = post.queue("orders", keep_done=10)
    id = queue.send({"order": 1}, kind="ship")
    assert cli("consume", "app:ship", "--stop-when-empty").code == 0
    ran = cli("result", "orders", id)
    assert (ran.code, ran.out, ran.err) == (0, '"shipped 1"\n', "")
    assert cli("result", "orders", id, "--wait", "10", "--json").json == {
        "queue": "orders",
        "id": id,
        "state": "done",
        "result": "shipped 1",
    }
    plain = queue.send(1)
    message = queue.receive()
    assert message is not None
    message.ack()
    assert (cli("result", "orders", plain).out) == "null\n"


def test_result_says_why_there_is_none(cli: Cli, post: Client, admin: Admin) -> None:
    queue = post.queue("orders", max_attempts=1)
    id = queue.send(1)
    waits = cli("result", "orders", id)
    assert (waits.code, waits.error) == (1, f"error: {id} is ready and has not ended: wait with --wait 60")
    message = queue.receive()
    assert message is not None
    message.progress(0.4, "reading")
    runs = cli("result", "orders", id, "--wait", "10ms", "--json")
    assert (runs.code, runs.out, json.loads(runs.err)["error"]) == (1, "", "ResultTimeout")
    assert "is leased (40 % reading) and has not ended" in json.loads(runs.err)["message"]
    message.nack(error=ValueError("no such order"))
    dead = cli("result", "orders", id)
    assert (dead.code, "no such order" in dead.error, "restante replay orders" in dead.error) == (4, True, True)
    admin.delete("orders", [id])
    gone = cli("result", "orders", id, "--json")
    assert (gone.code, json.loads(gone.err)["error"]) == (1, "NoResult")
    absent = cli("result", "ordres", id)
    assert (absent.code, "did you mean orders" in absent.error) == (1, True)
    assert cli("result", "orders", id, "--wait", "soon").code == 2
