"""The clock that a test moves: what follows it, and that nothing is left of it."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import restante
from restante import Admin, Client, InvalidInput, LeaseLost, State
from restante.core import operations
from restante.core.scripts import Script, sha1
from restante.testing import Clock, PrivateServer
from restante.testing.clock import PREFACE, loaded_scripts, move_scripts, restore_scripts
from tests.harness.deadlines import wait_until

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_delayed_message_is_ready_when_the_clock_reaches_its_time(
    restante_client: Client, restante_clock: Clock
) -> None:
    orders = restante_client.queue("orders")
    restante_clock.freeze(NEW_YEAR)
    id = orders.send("x", delay=timedelta(days=400))
    assert Admin(restante_client).show("orders", id).due_at == NEW_YEAR + timedelta(days=400)
    restante_clock.move(timedelta(days=400) - timedelta(milliseconds=1))
    assert orders.receive() is None
    restante_clock.move(0.001)
    assert Admin(restante_client).counts("orders").ready == 1
    assert orders.receive() is not None


def test_a_schedule_ticks_when_the_clock_moves(restante_client: Client, restante_clock: Clock) -> None:
    restante_clock.freeze(NEW_YEAR)
    orders = restante_client.queue("orders")
    made = orders.schedule("nightly", "0 3 * * *", tz="Europe/Berlin", missed="all")
    assert made.next_at is not None
    restante_clock.set(made.next_at - timedelta(milliseconds=1))
    assert orders.receive() is None
    restante_clock.move(0.001)
    message = orders.receive()
    assert message is not None
    assert (message.schedule, message.tick) == ("nightly", made.next_at)
    message.ack()
    restante_clock.move(timedelta(days=2))
    assert len(orders.receive_many(10)) == 2


def test_a_lease_ends_and_its_holder_learns_it(restante_client: Client, restante_clock: Clock) -> None:
    orders = restante_client.queue("orders", lease=30)
    orders.send("x")
    message = orders.receive()
    assert message is not None
    restante_clock.move(31)
    with pytest.raises(LeaseLost):
        message.ack()
    again = orders.receive()
    assert again is not None
    assert again.attempts == 2


def test_a_message_expires_a_rate_refills_and_a_duplicate_is_stored_again(
    restante_client: Client, restante_clock: Clock
) -> None:
    restante_clock.freeze(NEW_YEAR)
    orders = restante_client.queue("orders", rate=1, dedup=60)
    orders.send("x", expires=60)
    restante_clock.move(61)
    assert orders.receive() is None
    for _ in range(2):
        orders.send("y")
    first = orders.receive()
    assert first is not None
    assert orders.receive() is None  # the rate is spent
    restante_clock.move(1)
    assert orders.receive() is not None
    first.ack()
    assert not orders.send("y", id=first.id).stored
    restante_clock.move(121)
    assert orders.send("y", id=first.id).stored


def test_operators_see_the_time_of_the_test(restante_client: Client, restante_clock: Clock) -> None:
    admin, orders = Admin(restante_client), restante_client.queue("orders", max_attempts=1)
    restante_clock.freeze(NEW_YEAR)
    orders.send("x")
    message = orders.receive()
    assert message is not None
    assert message.nack(error="no") is State.DEAD
    assert admin.counts("orders").at == NEW_YEAR
    assert admin.now_ms() == NEW_YEAR.timestamp() * 1000
    assert admin.replay("orders").replayed == 1


def test_keys_that_expire_by_themselves_grow_older(restante_client: Client, restante_clock: Clock) -> None:
    command = restante_client.connection.command
    command("SET", "restante:{orders}:once:1", "d", "PX", 60_000)
    command("SET", "restante:{orders}:once:2", "d")
    restante_clock.move(59)
    assert 0 < command("PTTL", "restante:{orders}:once:1") <= 1000
    restante_clock.move(1)
    assert command("EXISTS", "restante:{orders}:once:1") == 0
    assert command("EXISTS", "restante:{orders}:once:2") == 1


def test_a_waiting_receive_is_woken_by_the_move(restante_client: Client, restante_clock: Clock) -> None:
    orders, taken = restante_client.queue("orders"), list[Any]()
    orders.send("x", delay=3600)
    waiting = threading.Thread(target=lambda: taken.append(orders.receive(timeout=1000)))
    waiting.start()
    wait_until(lambda: restante_client.connection.command("INFO", "clients").count(b"blocked_clients:1") == 1)
    restante_clock.move(3601)
    waiting.join()
    assert taken[0].payload == "x"


def test_a_running_clock_runs_on_and_a_frozen_one_stands_still(restante_clock: Clock) -> None:
    moved = restante_clock.set(NEW_YEAR)
    wait_until(lambda: restante_clock.now() > moved)
    frozen = restante_clock.freeze()
    assert restante_clock.now() == frozen
    assert restante_clock.move(5) == frozen + timedelta(seconds=5)
    assert restante_clock.set(NEW_YEAR - timedelta(days=1)) == NEW_YEAR - timedelta(days=1)


def test_the_clock_of_asyncio_is_the_same(restante_server: PrivateServer, restante_clock: Clock) -> None:
    import asyncio

    async def due() -> bool:
        async with restante.aio.connect(restante_server.url) as client:
            orders = client.queue("orders")
            await orders.send("x", delay=60)
            restante_clock.move(61)
            return await orders.receive() is not None

    assert asyncio.run(due())


@pytest.mark.parametrize("wrong", [-1, "60", None])
def test_the_clock_moves_by_seconds_and_forward(restante_clock: Clock, wrong: float) -> None:
    with pytest.raises(InvalidInput):
        restante_clock.move(wrong)


def test_a_time_without_zone_is_refused(restante_clock: Clock) -> None:
    with pytest.raises(InvalidInput, match="aware"):
        restante_clock.set(datetime(2030, 1, 1))


def test_a_server_without_the_clock_keeps_its_own_time(restante_clock: Clock) -> None:
    restante_clock.move(86400)
    with PrivateServer() as other, other.client() as client:
        ahead = restante_clock.now() - datetime.fromtimestamp(Admin(client).now_ms() / 1000, UTC)
        assert ahead > timedelta(hours=23)
        client.queue("orders").send("x")
        assert Admin(client).counts("orders").at + ahead > restante_clock.now() - timedelta(hours=1)


def test_every_script_of_every_room_follows_the_clock_and_gets_its_text_back() -> None:
    for module in pkgutil.walk_packages(restante.__path__, "restante."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    before = {script: script.text for script in loaded_scripts()}
    assert {operations.SEND, operations.RECEIVE} <= before.keys()
    assert len(before) > 25
    move_scripts()
    try:
        for script in before:
            assert script.text.split(b"\n")[0].startswith(b"#!lua")
            assert script.text.count(PREFACE.encode()) == 1
            assert script.sha == sha1(script.text)
    finally:
        restore_scripts()
    assert {script: script.text for script in loaded_scripts()} == before
    assert all(script.sha == sha1(script.text) for script in before)


def test_a_script_made_later_is_found() -> None:
    late = operations.ACK
    assert any(script is late for script in loaded_scripts())
    assert isinstance(late, Script)
