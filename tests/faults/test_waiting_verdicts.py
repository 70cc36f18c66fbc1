"""A consumer whose server goes away while it works: every verdict waits for it, and no message is done twice."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import restante
from restante import Admin, Client, Consumer, LeasedMessage, State
from restante.rsmq import AsyncRsmq, AsyncRsmqConsumer, Rsmq, RsmqConsumer
from tests.faults.rows import wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer


@pytest.fixture(scope="module")
def mortal() -> Iterator[RedisServer]:
    """A server that keeps every confirmed write over a kill."""
    with RedisServer(appendonly="always") as running:
        yield running


class Outage:
    """Kills the server when told, and starts it again once the log says that somebody waits for it."""

    def __init__(self, server: RedisServer, log: pytest.LogCaptureFixture) -> None:
        self.server, self._log = server, log
        self._thread: threading.Thread | None = None
        #: Whether somebody was seen to wait.
        self.noticed = False

    def begin(self, until: str = "waits for the server") -> None:
        self.server.kill9()
        self._thread = threading.Thread(target=self._end, args=(until,))
        self._thread.start()

    def _end(self, until: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while until not in self._log.text and time.monotonic() < deadline:
            time.sleep(0.01)
        self.noticed = until in self._log.text
        self.server.restart()

    @property
    def begun(self) -> bool:
        return self._thread is not None

    def over(self) -> None:
        assert self._thread is not None
        self._thread.join(PATIENCE)


@pytest.fixture
def outage(mortal: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[Outage]:
    caplog.set_level(logging.INFO, "restante")
    made = Outage(mortal, caplog)
    yield made
    made.over()
    assert made.noticed


@pytest.fixture
def post(mortal: RedisServer) -> Iterator[Client]:
    """A client that gives up soon, so that an outage is noticed soon."""
    with restante.connect(mortal.url, patience=0.1) as opened:
        yield opened


def events(post: Client, queue: str, id: str) -> list[str]:
    return [entry.event.value for entry in Admin(post).journal(queue) if entry.message_id == id]


def raises(message: Any) -> None:
    raise RuntimeError("the handler failed")


#: What the body of the loop does with the message during whose work the server goes away, and what must follow.
BODIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "with": (lambda message: None, "acked"),
    "with, failing": (raises, "nacked"),
    "ack": (lambda message: message.ack(), "acked"),
    "nack": (lambda message: message.nack(delay=3600), "nacked"),
    "bury": (lambda message: message.bury(error="no"), "buried"),
    "release": (lambda message: message.release(delay=3600), "released"),
    "extend": (lambda message: message.extend(), "acked"),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_verdict_in_consume_waits_for_a_server_that_is_away(
    outage: Outage, post: Client, name: str, body: str
) -> None:
    act, verdict = BODIES[body]
    queue = post.queue(name, retry=restante.fixed(3600))
    first, second = queue.send("first"), queue.send("second")
    seen = []
    for message in queue.consume(stop_when_empty=True):
        seen.append(message.payload)
        with message:
            if not outage.begun:
                outage.begin()
                time.sleep(0.02)  # slow enough for its ack to travel at once
                act(message)
    outage.over()
    assert seen == ["first", "second"]
    assert [event for event in events(post, name, first) if event != "extended"] == ["sent", "received", verdict]
    assert events(post, name, second)[-1] == "acked"


@pytest.mark.parametrize("body", BODIES)
async def test_a_verdict_in_an_asyncio_consume_waits_too(
    outage: Outage, post: Client, mortal: RedisServer, name: str, body: str
) -> None:
    act, verdict = BODIES[body]
    post.queue(name, retry=restante.fixed(3600)).send_many(["first", "second"])
    seen = []
    async with restante.aio.connect(mortal.url, patience=0.1) as other:
        async for message in other.queue(name).consume(stop_when_empty=True):
            seen.append((message.id, message.payload))
            async with message:
                if not outage.begun:
                    outage.begin()
                    if (result := act(message)) is not None:
                        await result
    await asyncio.to_thread(outage.over)
    assert [payload for _, payload in seen] == ["first", "second"]
    first = events(post, name, seen[0][0])
    assert [event for event in first if event != "extended"] == ["sent", "received", verdict]


def test_the_last_ack_of_a_loop_that_ends_waits_for_the_server(outage: Outage, post: Client, name: str) -> None:
    queue = post.queue(name)
    id = queue.send("only")
    for message in queue.consume():
        outage.begin()
        message.ack()
        break
    outage.over()
    wait_until(lambda: events(post, name, id) == ["sent", "received", "acked"], PATIENCE, "the last ack")


def test_a_loop_told_to_stop_does_not_wait_for_the_server_any_more(
    mortal: RedisServer, post: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "restante")
    queue = post.queue(name)
    queue.send_many(["first", "second"])

    def stop() -> None:
        wait_for(caplog, "nack waits")
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=stop).start()
    try:
        for message in queue.consume():
            with message:
                mortal.kill9()
                raise RuntimeError("it fails while the server is away")
    finally:
        mortal.restart()
    assert "nack failed" in caplog.text


def wait_for(log: pytest.LogCaptureFixture, text: str) -> None:
    wait_until(lambda: text in log.text, PATIENCE, text)


def test_a_lease_that_ended_during_the_outage_does_not_end_the_loop(
    outage: Outage, post: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = post.queue(name, lease=0.1, max_attempts=50)
    queue.send("first")
    for message in queue.consume():
        with message:
            if outage.begun:
                break
            outage.begin()
            time.sleep(0.3)
            raise RuntimeError("too late")
    outage.over()
    assert "lease lost before nack" in caplog.text
    assert message.attempts > 1


def test_a_consumer_s_failed_handler_is_nacked_once_the_server_is_back(outage: Outage, post: Client, name: str) -> None:
    queue = post.queue(name, retry=restante.fixed(3600))
    id = queue.send("x")
    queue.send("y")

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        if message.payload == "x":
            outage.begin()
            raise ValueError("a failure to be remembered")

    Consumer([queue], stop_when_empty=True).run()
    outage.over()
    shown = Admin(post).show(name, id)
    assert shown.state is State.RETRYING
    assert [attempt.error_class for attempt in shown.history] == ["ValueError"]
    assert Admin(post).counts(name).totals["acked"] == 1


def test_an_rsmq_consumer_deletes_what_was_handled_while_the_server_was_away(outage: Outage, post: Client) -> None:
    rsmq = Rsmq(post=post)
    rsmq.create_queue("rows", vt=60)
    for text in ("first", "second"):
        rsmq.send_message("rows", text)
    seen: list[Any] = []

    def handle(message: Any) -> None:
        seen.append(message.message)
        if not outage.begun:
            outage.begin()

    RsmqConsumer(rsmq, "rows", handle, stop_when_empty=True).run()
    outage.over()
    assert seen == ["first", "second"]
    assert rsmq.get_queue_attributes("rows").msgs == 0


async def test_an_asyncio_rsmq_consumer_does_so_too(outage: Outage, post: Client, mortal: RedisServer) -> None:
    blocking = Rsmq(post=post)
    blocking.create_queue("async-rows", vt=60)
    blocking.send_message("async-rows", "first")
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message.message)
        outage.begin()

    async with restante.aio.connect(mortal.url, patience=0.1) as other:
        await AsyncRsmqConsumer(AsyncRsmq(post=other), "async-rows", handle, stop_when_empty=True).run()
    await asyncio.to_thread(outage.over)
    assert seen == ["first"]
    assert blocking.get_queue_attributes("async-rows").msgs == 0
