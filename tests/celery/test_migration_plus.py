"""Moving an application from celery-redis-plus and back.

celery-redis-plus needs Python 3.13 and a redis-py below 8, so it cannot be installed beside Restante's own tests.
`Plus` writes what its versions write: for 0.4.1 as observed in a run, for 0.2.0, 0.2.3 and 0.3.0 according to their
sources and their document of the message flow. `restante.celery.celery_redis_plus` describes the keys.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection

from restante import Admin, InvalidInput, RestanteError, State, Unavailable
from restante.celery.migration import ASIDE, SEPARATOR, Migration
from restante.core import operations
from tests.celery.conftest import drop_calls
from tests.cli.conftest import Cli
from tests.harness.processes import PythonProcess
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call

#: By version: the prefix of a queue's key, whether each queue has its own index, the factor of priorities in scores,
#: whether delayed messages are in line, and whether bindings are a sorted set.
VERSIONS = {
    "document": ("", False, 10**10, True, False),
    "0.2.0": ("", False, 10**10, False, False),
    "0.2.3": ("queue:", False, 10**13, False, False),
    "0.3.0": ("queue:", True, 10**13, False, False),
    "0.4.1": ("queue:", True, 10**13, False, True),
}


class Plus:
    """Writes the keys that a publisher and a worker of celery-redis-plus write."""

    def __init__(self, url: str, version: str = "0.4.1", prefix: str = "") -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.lead, self.own_index, self.factor, self.in_line, self.sorted_bindings = VERSIONS[version]
        self.prefix = prefix
        for queue in ("celery", "billing", "shipping"):
            self.bind("events" if queue != "celery" else "celery", "order.#" if queue != "celery" else queue, queue)
        self.tick = 0

    def bind(self, exchange: str, key: str, queue: str) -> None:
        member, name = SEPARATOR.join((key, "", queue)), f"{self.prefix}_kombu.binding.{exchange}"
        if self.sorted_bindings:
            self.client.zadd(name, {member: "inf"})
        else:
            self.client.sadd(name, member)

    def index(self, queue: str) -> str:
        return f"{self.prefix}messages_index:{queue}" if self.own_index else f"{self.prefix}messages_index"

    def send(self, *args: Any, queues: tuple[str, ...] = ("celery",), priority: int = 0, countdown: float = 0) -> str:
        """Publishes a task to one or several queues under one tag, as its transport does; returns the task's id."""
        id, tag, now = str(uuid.uuid4()), str(uuid.uuid4()), time.time()
        eta = now + countdown if countdown else 0
        body = json.dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
        message = {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": "shop.add",
                "id": id,
                "root_id": id,
                "retries": 0,
                "timelimit": [None, None],
                "eta": datetime.fromtimestamp(eta, UTC).isoformat() if eta else None,
            },
            "properties": {
                "correlation_id": id,
                "delivery_mode": 2,
                "delivery_tag": tag,
                "body_encoding": "base64",
                "priority": priority,
                "delivery_info": {"exchange": "", "routing_key": queues[0]},
                **({"eta": eta} if eta else {}),
            },
        }
        delayed = countdown > 60
        self.tick += 1
        score = (255 - priority) * self.factor + int((eta if delayed else now) * 1000) + self.tick
        for queue in queues:
            self.client.hset(
                f"{self.prefix}message:{tag}",
                mapping={
                    "payload": json.dumps(message),
                    "routing_key": queue,
                    "priority": priority,
                    "eta": eta,
                    "native_delayed": int(delayed),
                    "delivery_count": 0,
                },
            )
            self.client.zadd(self.index(queue), {tag: eta if delayed else now + 360})
            if not delayed or self.in_line:
                self.client.zadd(f"{self.prefix}{self.lead}{queue}", {tag: score})
        return id

    def take(self, queue: str = "celery") -> str:
        """Receives a message as a worker that is killed afterwards does; returns the tag."""
        ((tag, _),) = self.client.zpopmin(f"{self.prefix}{self.lead}{queue}")
        return str(tag.decode())

    def left(self) -> set[str]:
        """The keys that are left, except bindings and those of the move itself."""
        names = {key.decode() for key in self.client.scan_iter("*")}
        return {name for name in names if "_kombu" not in name and ASIDE not in name}


@pytest.fixture
def source(server: RedisServer) -> str:
    return f"{server.url}/5"


@pytest.fixture
def plus(source: str) -> Iterator[Plus]:
    made = Plus(source)
    yield made
    made.client.close()


@pytest.fixture
def cli(server: RedisServer, tmp_path: Path) -> Iterator[Cli]:
    made = Cli(server.url, tmp_path)
    yield made
    made.close()


class TestThere:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_everything_arrives_in_its_order_with_its_delays_and_for_every_queue(
        self, source: str, cli: Cli, url: str, admin: Admin, version: str
    ) -> None:
        plus = Plus(source, version)
        held = plus.send("held", priority=255)
        tag = plus.take()
        ids = [plus.send(n, priority=priority) for n, priority in enumerate((0, 200, 0, 250, 200))]
        later, soon = plus.send("later", countdown=3600), plus.send("soon", countdown=30)
        both = plus.send("both", queues=("billing", "shipping"))
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--yes", "--json")
        assert (ran.code, ran.json["moved"], ran.json["still_waiting"]) == (0, 9, 0), ran.err
        ready = [message.headers["id"] for message in admin.walk("celery", State.READY)]
        assert ready == [ids[3], ids[1], ids[4], ids[0], ids[2]]
        assert [message.priority for message in admin.walk("celery", State.READY)] == [250, 200, 200, 0, 0]
        due = {message.headers["id"]: message for message in admin.walk("celery", State.SCHEDULED)}
        assert set(due) == {later, soon}
        for id, seconds in ((later, 3600), (soon, 30)):
            due_at, sent_for = due[id].due_at, datetime.fromisoformat(due[id].headers["eta"])
            assert due_at is not None
            assert abs(due_at - sent_for) < timedelta(seconds=1)
            assert sent_for <= datetime.now(UTC) + timedelta(seconds=seconds)
        for queue in ("billing", "shipping"):
            assert [message.headers["id"] for message in admin.walk(queue, State.READY)] == [both]
        assert plus.left() == {f"message:{tag}", plus.index("celery")}
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--unacked", "--yes", "--json")
        assert (ran.code, ran.json["unacked"]) == (0, 1), ran.err
        assert next(admin.walk("celery", State.READY)).headers["id"] == held
        assert plus.left() == set()
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--unacked", "--yes").code == 1
        plus.client.close()

    def test_what_was_moved_runs_as_it_was_sent(self, plus: Plus, cli: Cli, source: str, url: str) -> None:
        id = plus.send(2, 3, priority=7)
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 0
        with Connection(url) as connection:
            message = connection.channel().basic_get("celery")
            assert message.payload[0] == [2, 3]
            assert (message.headers["id"], message.headers["task"]) == (id, "shop.add")
            assert (message.properties["priority"], message.properties["correlation_id"]) == (7, id)
            assert "eta" not in message.properties
            message.ack()

    def test_a_prefix_keeps_applications_apart(self, source: str, cli: Cli, url: str, admin: Admin) -> None:
        mine, other = Plus(source, prefix="mine[1]:"), Plus(source, prefix="other:")
        for one in (mine, other):
            one.send(1)
            one.send(2, countdown=600)
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--prefix", "mine[1]:", "--yes", "--json")
        assert (ran.code, ran.json["moved"]) == (0, 2), ran.err
        assert all(key.startswith("other:") for key in mine.left())
        assert len(other.left()) == 4
        for one in (mine, other):
            one.client.close()

    def test_lists_of_kombus_own_beside_it_are_moved_too(
        self, plus: Plus, cli: Cli, source: str, url: str, admin: Admin
    ) -> None:
        from celery import Celery

        with redis.Redis.from_url(source) as client:
            call(client, "DEL", "_kombu.binding.celery")
        Celery("older", broker=source, set_as_current=False).send_task("shop.add", args=("list",))
        plus.send("sorted", priority=9)
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--yes", "--json")
        assert (ran.code, ran.json["moved"]) == (0, 2), ran.err
        assert [message.payload[0] for message in admin.walk("celery", State.READY)] == [["sorted"], ["list"]]

    def test_a_move_that_was_killed_goes_on_without_doubles(
        self, plus: Plus, url: str, source: str, admin: Admin
    ) -> None:
        for number in range(600):
            plus.send(number, countdown=0 if number % 3 else 600 + number)
        program = (
            "import sys\nfrom kombu import Connection\nfrom restante.celery.migration import Migration\n"
            "c = Connection(sys.argv[1]); m = Migration(sys.argv[2], c.transport)\n"
            "m.move(m.queues(), lambda count: print(count, flush=True))\n"
        )
        for _ in range(2):
            with PythonProcess(program, url, source, forked=True) as process:
                process.wait_line("150")
                process.kill9()
        with Connection(url) as connection:
            moving = Migration(source, connection.transport)
            moving.move(moving.queues())
            moving.close()
        ready = [message.payload[0][0] for message in admin.walk("celery", State.READY)]
        assert ready == [number for number in range(600) if number % 3]
        assert admin.counts("celery").scheduled == 200
        assert plus.left() == set()

    @pytest.mark.parametrize("held", [False, True], ids=["waiting", "held by workers"])
    def test_nothing_is_removed_that_has_not_arrived(
        self, plus: Plus, source: str, through: Connection, proxy: FaultProxy, admin: Admin, held: bool
    ) -> None:
        for number in range(3):
            plus.send(number, countdown=600 if number == 2 and not held else 0)
            if held:
                plus.take()
        moving = Migration(source, through.transport)
        through.channel().queue_declare("celery")
        drop_calls(proxy, operations.SEND)
        move = moving.move_unacked if held else lambda: moving.move(["celery"])
        with pytest.raises(RestanteError):
            move()
        found = moving.look(["celery"])
        assert found.total + found.unacked == 3
        proxy.pass_through()
        assert move().messages == 3
        moving.close()
        counts = admin.counts("celery")
        assert (counts.ready, counts.scheduled) == ((3, 0) if held else (2, 1))

    def test_what_cannot_be_read_is_named_and_kept(self, plus: Plus, cli: Cli, source: str, url: str) -> None:
        plus.send("gone")
        (gone,) = plus.client.keys("message:*")
        plus.client.delete(gone)
        plus.send("garbage")
        (garbage,) = plus.client.keys("message:*")
        plus.client.hset(garbage, "payload", "{")
        plus.send("fine")
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--yes", "--json")
        assert (ran.code, ran.json["moved"], ran.json["still_waiting"]) == (1, 1, 0)
        assert len(ran.json["left"]) == 2
        assert any("message_ttl" in text for text in ran.json["left"])
        assert plus.left() == {garbage.decode()}
        assert plus.client.llen(f"{ASIDE}celery:left") == 2

    def test_priorities_are_not_inverted(self, plus: Plus, cli: Cli, source: str, url: str) -> None:
        plus.send(1, priority=3)
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--invert-priorities", "--yes")
        assert ran.code != 0
        assert "255 first" in ran.err
        assert len(plus.client.keys("message:*")) == 1


class TestBack:
    def test_everything_goes_back_as_its_workers_read_it(
        self, plus: Plus, cli: Cli, source: str, url: str, admin: Admin
    ) -> None:
        for number, priority in enumerate((0, 200, 0)):
            plus.send(number, priority=priority)
        plus.send("later", countdown=3600)
        before = {key: plus.client.hgetall(key) for key in plus.client.keys("message:*")}
        order = [
            json.loads(plus.client.hget(f"message:{tag.decode()}", "payload"))["headers"]["id"]
            for tag in plus.client.zrange("queue:celery", 0, -1)
        ]
        began = time.monotonic()
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 0
        ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--back", "--yes", "--json")
        assert (ran.code, ran.json["moved"]) == (0, 4), ran.err
        took = time.monotonic() - began
        assert admin.counts("celery").waiting == 0
        after = {key: plus.client.hgetall(key) for key in plus.client.keys("message:*")}

        def facts(hashes: dict[bytes, Any]) -> list[Any]:
            return sorted(
                (
                    json.loads(one[b"payload"])["headers"]["id"],
                    json.loads(one[b"payload"])["body"],
                    one[b"priority"],
                    one[b"native_delayed"],
                    one[b"routing_key"],
                )
                for one in hashes.values()
            )

        def due(hashes: dict[bytes, Any]) -> list[float]:
            return sorted(float(one[b"eta"]) for one in hashes.values())

        assert facts(after) == facts(before)
        # What is left of a delay is measured before the send, so the send's own time is added; whole milliseconds.
        assert all(-0.002 <= new - old <= took + 0.002 for old, new in zip(due(before), due(after), strict=True))
        assert plus.client.zcard("messages_index:celery") == 4
        again = [
            json.loads(plus.client.hget(f"message:{tag.decode()}", "payload"))["headers"]["id"]
            for tag in plus.client.zrange("queue:celery", 0, -1)
        ]
        assert again == order
        assert not plus.client.exists("celery")

    def test_nothing_is_deleted_here_that_has_not_arrived_there(
        self, plus: Plus, source: str, url: str, admin: Admin
    ) -> None:
        plus.send(1)
        plus.send(2)
        with Connection(url) as connection:
            moving = Migration(source, connection.transport)
            assert moving.move(["celery"]).messages == 2
            plus.client.set("queue:celery", "in the way of the sorted set")
            for _ in range(2):  # a failed try must not make the next one skip a message
                with pytest.raises(Unavailable, match="WRONGTYPE"):
                    moving.back(["celery"])
                assert admin.counts("celery").ready == 2
            plus.client.delete("queue:celery")
            assert moving.back(["celery"]).messages == 2
            moving.close()
        assert plus.client.zcard("queue:celery") == 2
        assert admin.counts("celery").ready == 0

    def test_the_queues_are_those_of_the_target_whatever_the_default_server_is(
        self, plus: Plus, source: str, url: str, tmp_path: Path
    ) -> None:
        plus.send(1)
        with RedisServer() as other:
            cli = Cli(other.url, tmp_path)
            assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 0
            ran = cli.inside("migrate-celery", "--from", source, "--to", url, "--back", "--yes", "--json")
            assert (ran.code, ran.json["moved"]) == (0, 1), ran.err
            cli.close()

    def test_the_layout_can_be_said_and_a_wrong_one_is_refused(
        self, plus: Plus, url: str, source: str, cli: Cli, admin: Admin
    ) -> None:
        plus.send(1)
        assert cli.inside("migrate-celery", "--from", source, "--to", url, "--yes").code == 0
        common = ("migrate-celery", "--from", source, "--to", url, "--yes")
        wrong = cli.inside(*common, "--back", "--layout", "celery-redis-pluss")
        assert "did you mean celery-redis-plus" in wrong.err
        assert cli.inside(*common, "--layout", "kombu").code == 2
        assert admin.counts("celery").ready == 1
        assert cli.inside(*common, "--back", "--layout", "kombu").code == 0
        assert plus.client.llen("celery") == 1

    def test_versions_before_0_3_are_refused(self, source: str, url: str) -> None:
        plus = Plus(source, "0.2.3")
        plus.send(1)
        with Connection(url) as connection:
            moving = Migration(source, connection.transport)
            with pytest.raises(InvalidInput, match=r"before 0\.3"):
                moving.back(["celery"])
            moving.close()
        plus.client.close()


def test_the_doctor_sees_what_still_waits_there(server: RedisServer, cli: Cli) -> None:
    plus = Plus(f"{server.url}/0")
    plus.send(1)
    said = cli.inside("doctor", "--json").json
    assert any("1 tasks wait in celery-redis-plus" in finding["found"] for finding in said["findings"])
    plus.client.close()
