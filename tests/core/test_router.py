"""A router sends a copy to every bound queue, by bindings that any process may have changed a moment before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import restante
from restante import Admin, Client, QueueFull, aio
from restante.core import operations as ops
from restante.core.flow import Flow, drive
from restante.core.operator_verbs import DELETE
from restante.core.queue import run_flow_async
from restante.core.queue_ref import QueueRef
from restante.core.router import Router
from restante.core.routes import QueueInfo, Table
from restante.core.scripts import Command, Operation, ScriptCall
from tests.core.bench import Bench

TOPIC = "order.paid"


class Process:
    """A client with its own copy of the routes; it notes the calls of the last flow."""

    def __init__(self, url: str) -> None:
        self.client = restante.connect(url)
        self.router = Router(self.client, author="tests")
        self.calls: list[Operation[Any]] = []
        #: Called before each call, with it.
        self.before: Callable[[Any], None] = lambda call: None

    def run(self, flow: Flow[Any]) -> Any:
        self.calls.clear()

        def perform(call: Any) -> Any:
            self.calls.append(call)
            self.before(call)
            return self.client.connection.run(call)

        return drive(flow, perform)

    def bind(self, *queues: str, transient: bool = False) -> None:
        self.run(self.router.bind("shop", [(QueueInfo(queue, transient), "order.#") for queue in queues]))

    def publish(self, id: str, *, streams: bool = False) -> int:
        def stream() -> Command[bytes]:
            return Command(("XADD", b"stream", "*", "id", id), b"stream")

        count: int = self.run(self.router.publish("shop", TOPIC, sending(id), stream if streams else None))
        return count


def sending(id: str) -> Callable[[QueueRef, QueueInfo], ScriptCall[Any]]:
    return lambda ref, info: ops.send(ref, info.name, id=id)


@pytest.fixture
def processes(debian: Bench) -> Iterator[tuple[Process, Process]]:
    with ExitStack() as opened:
        pair = Process(debian.server.url), Process(debian.server.url)
        for process in pair:
            opened.enter_context(process.client)
        pair[0].run(pair[0].router.declare("shop", "topic"))
        yield pair


def ids(client: Client, *queues: str) -> dict[str, list[str]]:
    """The ready messages of each queue, first to last."""
    admin = Admin(client)
    return {queue: [message.id for message in admin.walk(queue, restante.State.READY)] for queue in queues}


class TestPublishing:
    def test_each_bound_queue_has_a_copy_under_the_same_id(self, processes: tuple[Process, Process]) -> None:
        one, _ = processes
        one.bind("a", "b", "c")
        assert [one.publish("m1"), one.publish("m2")] == [3, 3]
        assert ids(one.client, "a", "b", "c") == {name: ["m1", "m2"] for name in "abc"}

    def test_with_a_copy_of_the_routes_every_call_is_a_send(self, processes: tuple[Process, Process]) -> None:
        one, _ = processes
        one.bind("a", "b")
        one.publish("m1")
        one.publish("m2")
        assert [call.script.name for call in one.calls if isinstance(call, ScriptCall)] == ["send", "send"]
        assert len(one.calls) == 2

    def test_a_topic_that_no_queue_is_bound_to_reaches_none(self, processes: tuple[Process, Process]) -> None:
        one, _ = processes
        one.run(one.router.bind("shop", [(QueueInfo("a"), "user.*")]))
        assert [one.publish("m1"), one.publish("m2")] == [0, 0]

    def test_a_publish_that_one_queue_refused_may_be_repeated_under_its_id(
        self, processes: tuple[Process, Process]
    ) -> None:
        one, _ = processes
        one.bind("a", "full", "c")
        full = one.client.queue("full", max_length=1)
        full.send("in the way")
        for _ in range(2):
            with pytest.raises(QueueFull):
                one.publish("m1")
        message = full.receive()
        assert message is not None
        message.ack()
        assert one.publish("m1") == 3
        assert ids(one.client, "a", "full", "c") == {name: ["m1"] for name in ("a", "full", "c")}


class TestStaleCopies:
    def test_a_queue_bound_before_a_publish_gets_its_message(self, processes: tuple[Process, Process]) -> None:
        one, other = processes
        other.bind("a")
        one.publish("m1")
        other.bind("b")
        assert one.publish("m2") == 2
        assert ids(one.client, "a", "b") == {"a": ["m1", "m2"], "b": ["m2"]}

    def test_a_queue_unbound_before_a_publish_gets_nothing(self, processes: tuple[Process, Process]) -> None:
        one, other = processes
        other.bind("a", "b")
        one.publish("m1")
        other.run(other.router.unbind("shop", [("a", "order.#")]))
        assert one.publish("m2") == 1
        other.run(other.router.unbind("shop", [("b", "order.#")]))
        assert one.publish("m3") == 0
        assert ids(one.client, "a", "b") == {"a": ["m1"], "b": ["m1", "m2"]}

    def test_a_message_that_a_consumer_has_already_is_not_taken_back(self, processes: tuple[Process, Process]) -> None:
        one, other = processes
        other.bind("a")
        one.publish("m1")
        other.run(other.router.unbind("shop", [("a", "order.#")]))
        received = []

        def receive_first(call: Any) -> None:
            if isinstance(call, ScriptCall) and call.script is DELETE:
                received.extend(other.client.queue("a").receive_many(10))

        one.before = receive_first
        assert one.publish("m2") == 1
        assert [message.id for message in received] == ["m1", "m2"]
        other.client.queue("a").ack_many(received)

    def test_a_removed_exchange_reaches_no_queue(self, processes: tuple[Process, Process]) -> None:
        one, other = processes
        other.bind("a")
        one.publish("m1")
        other.run(other.router.remove("shop"))
        assert one.publish("m2") == 0
        assert ids(one.client, "a") == {"a": ["m1"]}


class TestStreams:
    def test_transient_queues_read_one_entry_and_the_others_get_copies(
        self, processes: tuple[Process, Process]
    ) -> None:
        one, _ = processes
        one.bind("here", "there", transient=True)
        one.bind("kept")
        assert [one.publish("m1", streams=True), one.publish("m2", streams=True)] == [3, 3]
        assert one.client.connection.command("XLEN", b"stream") == 2
        assert ids(one.client, "kept") == {"kept": ["m1", "m2"]}
        assert "here" not in Admin(one.client).queues()

    def test_without_a_stream_a_transient_queue_gets_a_copy(self, processes: tuple[Process, Process]) -> None:
        one, _ = processes
        one.bind("here", transient=True)
        assert [one.publish("m1"), one.publish("m2")] == [1, 1]
        assert ids(one.client, "here") == {"here": ["m1", "m2"]}


def test_the_list_of_a_queues_bindings_follows_them(processes: tuple[Process, Process]) -> None:
    one, other = processes
    one.bind("a")
    one.run(one.router.bind("", [(QueueInfo("a"), "a")]))
    one.run(one.router.bind("other", [(QueueInfo("a"), "x")]))
    assert other.run(other.router.bindings("a")) == [("other", "x"), ("shop", "order.#")]
    other.run(other.router.unbind("other", [("a", "x")]))
    assert one.run(one.router.bindings("a")) == [("shop", "order.#")]


async def test_the_asyncio_runner_publishes_by_current_routes_too(
    debian: Bench, processes: tuple[Process, Process]
) -> None:
    other = processes[0]
    other.bind("a")
    async with aio.connect(debian.server.url) as client:
        router = Router(client, author="tests")

        async def publish(id: str) -> int:
            return await run_flow_async(client.connection, router.publish("shop", TOPIC, sending(id)))

        assert await publish("m1") == 1
        other.bind("b")
        assert await publish("m2") == 2
        other.run(other.router.unbind("shop", [("a", "order.#")]))
        assert await publish("m3") == 1
    assert ids(other.client, "a", "b") == {"a": ["m1", "m2"], "b": ["m2", "m3"]}


def test_two_bindings_that_match_name_their_queue_once() -> None:
    info = QueueInfo("billing").text()
    stored = [b"version", b"1", b"type", b"topic durable", b"b:billing\torder.#", info, b"b:billing\t*.paid", info]
    table = Table.parse([*stored, b"b:audit\t#", QueueInfo("audit").text()])
    assert [queue.name for queue in table.match("order.paid")] == ["billing", "audit"]
    assert [queue.name for queue in table.match("user.created")] == ["audit"]
