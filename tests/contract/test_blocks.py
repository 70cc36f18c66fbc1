"""`with message:` has one rule: an exception of the block is the message's failure, however it was received."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import restante
from restante import LeaseLost, Queue
from tests.contract.rooms import Room, needs

pytestmark = needs("tokens")

Body = Callable[[], object]
#: The standard format; Spark, in the same process, gives every handler one of its own.
_FORMAT = logging.Formatter("%(levelname)s %(message)s")


def text_of(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged, as a program that configured nothing prints it."""
    return "\n".join(map(_FORMAT.format, caplog.records))


async def in_block(message: Any, body: Body) -> None:
    """Runs the body in a block of `with message:`, or of `async with`."""
    if hasattr(message, "__aenter__"):
        async with message:
            body()
    else:
        with message:
            body()


def failing(error: BaseException) -> Body:
    def body() -> None:
        raise error

    return body


def succeeding() -> None:
    pass


async def in_loop(room: Room, queue: Any, bodies: dict[str, Body]) -> dict[str, Any]:
    """Runs the body of each payload in a loop over `consume()`; returns the messages by payload."""
    seen = {}

    def run() -> None:
        for message in queue.consume(stop_when_empty=True):
            seen[message.payload] = message
            with message:
                bodies[message.payload]()

    if room.name.startswith("async"):
        async for message in queue.consume(stop_when_empty=True):
            seen[message.payload] = message
            await in_block(message, bodies[message.payload])
    else:
        await room.call(run)
    return seen


async def by_receive(room: Room, queue: Any, bodies: dict[str, Body], many: bool = False) -> dict[str, Any]:
    """As `in_loop`, by calls of `receive` or `receive_many`."""
    count = len(bodies)
    messages = await room.call(queue.receive_many, count) if many else [await room.take(queue) for _ in range(count)]
    for message in messages:
        await in_block(message, bodies[message.payload])
    return {message.payload: message for message in messages}


async def check_failure(room: Room, caplog: pytest.LogCaptureFixture, how: Any, **options: Any) -> None:
    """One message is acked, one fails: nothing is raised, the log has the traceback, and the message its error."""
    queue = room.queue(max_attempts=1)
    error = LookupError("no such customer")
    await room.call(queue.send_many, ["good", "bad", "last"])
    seen = await how(room, queue, {"good": succeeding, "bad": failing(error), "last": succeeding}, **options)
    assert room.states(queue) == {"dead": 1}
    assert {payload: message.error for payload, message in seen.items()} == {"good": None, "bad": error, "last": None}
    assert (seen["bad"].settled, seen["bad"].verdict) == (True, "nacked")
    logged = [record for record in caplog.records if record.name == "restante"]
    assert [(record.levelno, record.exc_info and record.exc_info[1]) for record in logged] == [(logging.ERROR, error)]
    assert seen["bad"].id in text_of(caplog)
    assert "Traceback" in text_of(caplog)
    (attempt,) = room.admin.show(queue.name, seen["bad"].id).history
    assert (attempt.error_class, "no such customer" in attempt.error) == ("LookupError", True)


async def test_the_program_goes_on_behind_a_block_that_failed_after_receive(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await check_failure(room, caplog, by_receive)


async def test_the_program_goes_on_behind_a_block_that_failed_after_receive_many(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await check_failure(room, caplog, by_receive, many=True)


@needs("consume")
async def test_the_program_goes_on_behind_a_block_that_failed_in_consume(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await check_failure(room, caplog, in_loop)


@needs("retry")
async def test_a_failed_block_obeys_the_retry_policy(room: Room) -> None:
    queue = room.queue(max_attempts=3, retry=restante.fixed(60))
    await room.send(queue, "x")
    await in_block(await room.take(queue), failing(LookupError("first")))
    assert room.states(queue) == {"retrying": 1}
    await room.pass_time(60)
    message = await room.take(queue)
    assert message.attempts == 2
    await in_block(message, succeeding)
    assert room.states(queue) == {}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("verdict", ["acked", "buried"])
async def test_a_verdict_given_in_a_block_stands(
    room: Room, verdict: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = room.queue()
    await room.send(queue, "x")
    message = await room.take(queue)
    await room.call(message.ack if verdict == "acked" else message.bury)
    error = LookupError("afterwards")
    await in_block(message, failing(error) if fails else succeeding)
    assert (message.verdict, message.error) == (verdict, error if fails else None)
    assert room.states(queue) == ({} if verdict == "acked" else {"dead": 1})
    assert ("LookupError: afterwards" in text_of(caplog)) is fails
    assert not message.lease_lost  # no second verdict was tried
    assert "lease lost" not in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
async def test_an_interrupt_of_a_block_returns_the_message_and_is_raised(room: Room, kind: type[BaseException]) -> None:
    queue = room.queue(retry=restante.fixed(3600))
    await room.send(queue, "x")
    message = await room.take(queue)
    with pytest.raises(kind):
        await in_block(message, failing(kind()))
    assert isinstance(message.error, kind)
    assert room.events(queue, message.id)[-1] == "nacked"
    await room.pass_time(0)
    assert (await room.take(queue)).attempts == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_block_whose_lease_is_lost_says_so(room: Room, fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It says so in the log and on the message. Another consumer handles the message, so nothing is raised."""
    queue = room.queue()
    await room.send(queue, "slow")
    message = await room.take(queue, lease=0.1)
    await room.pass_time(0.1)
    await in_block(message, failing(LookupError("late")) if fails else succeeding)
    assert f"lease lost before {'nack' if fails else 'ack'}" in caplog.text
    assert ("LookupError: late" in text_of(caplog)) is fails
    assert isinstance(message.error, LookupError if fails else LeaseLost)
    assert (message.lease_lost, message.settled) == (True, False)
    assert (await room.take(queue)).attempts == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_block_whose_verdict_cannot_reach_the_server_raises(
    room: Room, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As every other call on the queue then does. The failure of the block is in the log and in the chain of errors."""
    client = room.client(timeout=1) if room.name.endswith("http") else room.client(patience=0.1)
    queue = client.queue(room.queue().name)
    await room.send(queue, "x")
    message = await room.take(queue)
    await room.call(client.close)
    error = LookupError("before")
    with pytest.raises(restante.Unavailable) as raised:
        await in_block(message, failing(error) if fails else succeeding)
    assert raised.value.__context__ is (error if fails else None)
    assert ("LookupError: before" in text_of(caplog)) is fails
    assert (message.settled, message.error) == (False, error if fails else None)


def test_a_failure_is_seen_without_any_configuration_of_logging(plain_queue: Queue) -> None:
    """Python prints warnings and errors of loggers that nobody configured on standard error."""
    program = """
import sys, restante
client = restante.connect(sys.argv[1])
queue = client.queue("seen-without-logging")
queue.send("x", max_attempts=1)
with queue.receive(timeout=5) as message:
    raise LookupError("no such customer")
print("behind the block", message.verdict)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, plain_queue.connection.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "behind the block nacked\n"
    assert "failed queue=seen-without-logging" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.rstrip().endswith("LookupError: no such customer")
