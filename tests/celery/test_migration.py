"""Moving an application from Kombu's own Redis transport and back: counts, order, kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue

from restante import Admin, InvalidInput, RestanteError, State, Unavailable
from restante.celery.migration import ASIDE, Migration
from restante.core import operations
from tests.celery.conftest import drop_calls
from tests.cli.conftest import Cli
from tests.harness.processes import PythonProcess
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call


@pytest.fixture
def stock(server: RedisServer) -> Celery:
    """An application on Kombu's own transport, on another database of the same server."""
    return Celery("old", broker=f"{server.url}/5", set_as_current=False)


@pytest.fixture
def source(server: RedisServer) -> str:
    return f"{server.url}/5"


@pytest.fixture
def cli(server: RedisServer, tmp_path: Path) -> Iterator[Cli]:
    made = Cli(server.url, tmp_path)
    yield made
    made.close()


def old_list(server: RedisServer, key: str = "celery") -> list[Any]:
    with redis.Redis.from_url(f"{server.url}/5") as client:
        return [json.loads(text) for text in call(client, "LRANGE", key, 0, -1)]


def work(url: str, source: str, **options: Any) -> tuple[Connection, Migration]:
    connection = Connection(url)
    return connection, Migration(source, connection.transport, **options)


class TestThere:
    def test_everything_that_waits_arrives_in_order_with_its_headers(
        self, stock: Celery, cli: Cli, source: str, url: str, admin: Admin, server: RedisServer
    ) -> None:
        ids = [stock.send_task("shop.add", args=(n, n), countdown=600 if n == 2 else None).id for n in range(5)]
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--yes", "--json")
        assert (ran.code, ran.json["moved"], ran.json["still_waiting"]) == (0, 5, 0), ran.err
        ready = list(admin.walk("celery", State.READY))
        assert [message.headers["id"] for message in ready] == [ids[0], ids[1], ids[3], ids[4]]
        assert {message.kind for message in ready} == {"shop.add"}
        assert ready[0].payload[0] == [0, 0]
        (later,) = admin.walk("celery", State.SCHEDULED)
        assert later.headers["id"] == ids[2]
        assert old_list(server) == []
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 1

    def test_what_workers_held_is_moved_when_asked(
        self, stock: Celery, cli: Cli, source: str, url: str, admin: Admin
    ) -> None:
        stock.send_task("shop.add", args=(1, 2))
        with stock.connection_for_read() as connection:
            channel = connection.channel()
            message = stock.amqp.queues["celery"](channel).get()
            assert message is not None
            channel.qos._on_collect.cancel()  # what a killed worker leaves behind
            channel.qos._delivered.clear()
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 1
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--unacked", "--yes", "--json")
        assert (ran.code, ran.json["unacked"]) == (0, 1), ran.err
        assert admin.counts("celery").ready == 1

    def test_what_workers_held_goes_to_every_queue_that_is_bound_for_it(
        self, server: RedisServer, source: str, url: str, admin: Admin
    ) -> None:
        """Kombu does not store the queue of a held message either, and restores it to every bound queue."""
        events = Exchange("events", "topic")
        with Connection(source) as connection:
            channel = connection.channel()
            for name, key in (("billing", "order.*"), ("audit", "#"), ("returns", "return.#")):
                Queue(name, events, routing_key=key)(channel).declare()
            Producer(channel, events).publish("x", routing_key="order.paid")
            for name in ("billing", "audit"):
                assert Queue(name)(channel).get() is not None
            channel.qos._on_collect.cancel()  # what a killed worker leaves behind
            channel.qos._delivered.clear()
        connection, moving = work(url, source)
        with connection:
            assert moving.move_unacked().unacked == 1
        moving.close()
        assert {name: admin.counts(name).ready for name in admin.queues()} == {"audit": 1, "billing": 1}

    @pytest.mark.parametrize("held", [False, True], ids=["waiting", "held by workers"])
    def test_nothing_is_removed_that_has_not_arrived(
        self, stock: Celery, source: str, through: Connection, proxy: FaultProxy, admin: Admin, held: bool
    ) -> None:
        for number in range(10):
            stock.send_task("shop.add", args=(number,))
        if held:
            with stock.connection_for_read() as connection:
                channel = connection.channel()
                assert all(stock.amqp.queues["celery"](channel).get() for _ in range(10))
                channel.qos._on_collect.cancel()  # what a killed worker leaves behind
                channel.qos._delivered.clear()
        moving = Migration(source, through.transport)
        through.channel().queue_declare("celery")
        drop_calls(proxy, operations.SEND)
        move = moving.move_unacked if held else lambda: moving.move(["celery"])
        with pytest.raises(RestanteError):
            move()
        found = moving.look(["celery"])
        assert found.total + found.unacked == 10
        proxy.pass_through()
        assert move().messages == 10
        moving.close()
        assert sorted(message.payload[0][0] for message in admin.walk("celery", State.READY)) == list(range(10))

    def test_what_cannot_be_read_is_named_and_kept(
        self, stock: Celery, server: RedisServer, source: str, url: str, admin: Admin
    ) -> None:
        stock.send_task("shop.add", args=(1,))
        with redis.Redis.from_url(source) as client:
            call(client, "LPUSH", "celery", "{")
            connection, moving = work(url, source)
            with connection:
                moved = moving.move(["celery"])
            moving.close()
            assert (moved.messages, moved.left) == (1, ["{"])
            assert call(client, "LRANGE", f"{ASIDE}celery:left", 0, -1) == [b"{"]

    def test_priorities_need_a_choice(self, stock: Celery, url: str, source: str, admin: Admin) -> None:
        for priority in (0, 3, 9):
            stock.send_task("shop.add", args=(priority,), priority=priority)
        connection, moving = work(url, source)
        with connection, pytest.raises(InvalidInput, match="--invert-priorities"):
            moving.check(moving.look())
        moving.close()
        connection, moving = work(url, source, invert=True)
        with connection:
            moving.check(moving.look())
            assert moving.move(moving.queues()).messages == 3
        moving.close()
        assert [message.payload[0] for message in admin.walk("celery", State.READY)] == [[0], [3], [9]]

    def test_a_move_that_was_killed_goes_on_without_doubles(
        self, stock: Celery, url: str, source: str, admin: Admin, server: RedisServer
    ) -> None:
        for number in range(3000):
            stock.send_task("shop.add", args=(number,))
        program = (
            "import sys\nfrom kombu import Connection\nfrom restante.celery.migration import Migration\n"
            "c = Connection(sys.argv[1]); m = Migration(sys.argv[2], c.transport)\n"
            "m.move(m.queues(), lambda count: print(count, flush=True))\n"
        )
        for at in ("500", "1500"):
            with PythonProcess(program, url, source, forked=True) as process:
                process.wait_line(at if at == "500" else "700")
                process.kill9()
        connection, moving = work(url, source)
        with connection:
            moving.move(moving.queues())
        moving.close()
        numbers = [message.payload[0][0] for message in admin.walk("celery", State.READY)]
        assert numbers == list(range(3000))
        assert old_list(server) == old_list(server, f"{ASIDE}celery") == []


class TestBack:
    def test_everything_goes_back_as_it_was(
        self, stock: Celery, cli: Cli, source: str, url: str, admin: Admin, server: RedisServer
    ) -> None:
        for number in range(4):
            stock.send_task("shop.add", args=(number,))
        before = old_list(server)
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 0
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--back", "--yes", "--json")
        assert (ran.code, ran.json["moved"]) == (0, 4), ran.err
        after = old_list(server)
        assert [(m["body"], m["headers"]) for m in after] == [(m["body"], m["headers"]) for m in before]
        assert admin.counts("celery").waiting == 0
        with stock.connection_for_read() as connection:
            assert stock.amqp.queues["celery"](connection.channel()).get().payload[0] == [0]

    def test_nothing_is_deleted_here_that_has_not_arrived_there(
        self, stock: Celery, source: str, url: str, admin: Admin, server: RedisServer
    ) -> None:
        for number in range(3):
            stock.send_task("shop.add", args=(number,))
        connection, moving = work(url, source)
        with connection, redis.Redis.from_url(source) as client:
            assert moving.move(["celery"]).messages == 3
            call(client, "SET", "celery", "in the way of the list")
            for _ in range(2):  # a failed try must not make the next one skip a message
                with pytest.raises(Unavailable, match="WRONGTYPE"):
                    moving.back(["celery"])
                assert admin.counts("celery").ready == 3
            call(client, "DEL", "celery")
            assert moving.back(["celery"]).messages == 3
        moving.close()
        assert len(old_list(server)) == 3
        assert admin.counts("celery").ready == 0

    def test_it_asks_first(self, cli: Cli, source: str, url: str, stock: Celery) -> None:
        stock.send_task("shop.add")
        cli.inside("migrate-celery", "--from", source, "--to", url, "--yes")
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--back").code == 2


def test_the_doctor_sees_what_still_waits_in_kombus_lists(server: RedisServer, cli: Cli) -> None:
    old = Celery("old", broker=f"{server.url}/0", set_as_current=False)
    old.send_task("shop.add")
    said = cli.inside("doctor", "--json").json
    assert any(finding["what"] == "celery" and "1 tasks wait" in finding["found"] for finding in said["findings"])
