"""Where no consumer runs handlers: what hooks hear of blocks and loops, and what the log says they do not."""

# A queue of any kind has no type here, so its decorators have none; tests/core/test_typing.py proves their types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import restante
from restante import Hook, State
from restante.hooks.logging import LogContext
from restante.testing import PrivateServer, drain
from tests.contract.rooms import Room, needs

pytestmark = needs("admin", "tokens", "headers", "retry")


class Listening(Hook):
    """Notes how attempts end."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def started(self, message: Any) -> None:
        self.notes.append(("started", message.payload))

    def finished(self, message: Any, seconds: float) -> None:
        self.notes.append(("finished", message.payload))

    def failed(self, message: Any, error: BaseException, state: State | None) -> None:
        self.notes.append(("failed", message.payload, str(error), state))

    def dead(self, message: Any, error: BaseException) -> None:
        self.notes.append(("dead", message.payload))


class Around(Hook):
    """Has code around handlers alone."""

    def around(self, message: Any, call: Any) -> Any:
        return call()

    async def around_async(self, message: Any, call: Any) -> Any:
        return await call()


async def block(message: Any, do: Any) -> None:
    """One block of `with message:`, in a thread where its verbs block."""
    if hasattr(message, "__aenter__"):
        async with message:
            done = do(message)
            if asyncio.iscoroutine(done):
                await done
        return

    def run() -> None:
        with message:
            do(message)

    await asyncio.to_thread(run)


async def turns(queue: Any, do: Any) -> None:
    """A loop over all messages, each in a block."""
    if asyncio.iscoroutinefunction(queue.send):
        async for message in queue.consume(stop_when_empty=True):
            await block(message, do)
        return

    def loop() -> None:
        for message in queue.consume(stop_when_empty=True):
            with message:
                do(message)

    await asyncio.to_thread(loop)


def fail(message: Any) -> None:
    if message.payload == 2:
        raise ValueError("broken")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of hooks and soft limits that are left out."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "by run_handler" in record.getMessage()
    ]


async def test_hooks_hear_of_a_block_around_a_received_message(room: Room) -> None:
    queue, hook = room.queue(max_attempts=1), Listening()
    queue.add_hook(hook)
    await room.call(queue.send_many, [1, 2, 3])
    for _ in range(3):
        message = await room.take(queue)
        await block(message, (lambda one: one.release()) if message.payload == 3 else fail)
    assert hook.notes == [
        ("started", 1),
        ("finished", 1),
        ("started", 2),
        ("failed", 2, "broken", State.DEAD),
        ("dead", 2),
        ("started", 3),
    ]


@needs("consume")
async def test_hooks_hear_of_a_turn_of_a_loop_once(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    queue, hook = room.queue(max_attempts=1), Listening()
    queue.add_hook(hook)
    await room.call(queue.send_many, [1, 2])
    await turns(queue, fail)
    assert [note[0] for note in hook.notes] == ["started", "finished", "started", "failed", "dead"]
    assert warnings(caplog) == []


async def test_hooks_hear_once_of_a_handler_that_has_a_block_of_its_own() -> None:
    hook = Listening()
    with PrivateServer() as server, server.client() as client:
        orders = client.queue("orders")
        orders.add_hook(hook)

        @orders.handler
        def ship(message: restante.LeasedMessage) -> None:
            with message:
                pass

        orders.send(1)
        restante.Consumer([orders], stop_when_empty=True).run()
        orders.send(2)
        drain(orders)
    assert hook.notes == [("started", 1), ("finished", 1), ("started", 2), ("finished", 2)]


async def test_a_hook_that_is_only_around_handlers_is_named_once(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    queue = room.queue()
    queue.add_hook(Around())
    queue.add_hook(Listening())
    await room.call(queue.send_many, [1, 2])
    for _ in range(2):
        await block(await room.take(queue), fail)
    assert warnings(caplog) == [
        f"hooks not called queue={queue.name} hooks=Around: in a loop, around runs by run_handler"
    ]


async def test_a_loop_that_runs_the_handler_or_the_block_of_the_hook_gets_no_warning(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    queue, context = room.queue(), LogContext()
    for hook in (context, Listening()):
        queue.add_hook(hook)
    await room.send(queue, 1)

    def by_hand(message: Any) -> None:
        with context.processing(message):
            pass

    await block(await room.take(queue), by_hand)
    assert warnings(caplog) == []
    queue.add_hook(Around())

    @queue.task(kind="run")
    async def run() -> None: ...

    await room.send(queue, {}, kind="run")
    await block(await room.take(queue), queue.run_handler)
    assert warnings(caplog) == []
    await room.send(queue, 1)
    await block(await room.take(queue), by_hand)
    assert [line.partition(":")[0] for line in warnings(caplog)] == [
        f"hooks not called queue={queue.name} hooks=Around"
    ]


@needs("consume")
async def test_a_soft_limit_that_a_loop_does_not_keep_is_said_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    queue = room.queue(soft_timeout=60, timeout=600)
    await room.call(queue.send_many, [1, 3])
    await turns(queue, fail)
    assert warnings(caplog) == [f"soft_timeout not in force queue={queue.name}: in a loop, it holds by run_handler"]


@needs("consume")
async def test_a_soft_limit_holds_in_a_loop_that_runs_the_handler(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    queue, seen = room.queue(soft_timeout=0.1, timeout=600), []

    @queue.handler
    async def wait(message: Any) -> None:
        try:
            await asyncio.sleep(3600)
        except restante.SoftTimeLimit:
            seen.append(message.payload)

    await room.send(queue, 1)
    await turns(queue, queue.run_handler)
    assert seen == [1]
    assert warnings(caplog) == []
