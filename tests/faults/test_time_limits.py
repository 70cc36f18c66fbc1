"""Time limits: who is stopped, what becomes of the message, and what a handler that hangs leaves to others."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import restante
from restante import Admin, Client, Consumer, LeasedMessage, Queue, State, TimeLimit, fixed
from restante.core import time_limit
from restante.core.message import JournalEvent
from restante.core.prefetch import Prefetch
from tests.faults.rows import history_faults, journal_lines, lost_messages, verdict
from tests.faults.test_holding_on import events, serving
from tests.harness.deadlines import PATIENCE, wait_until, wait_until_async
from tests.harness.servers import RedisServer

#: Seconds; a limit that a handler which sleeps for ever is certain to pass.
LIMIT = 0.2
#: Seconds a consumer may hold a message: so long that a busy machine renews in time, and still renewed often.
KEPT_LEASE = 3.0


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "STOP_GRACE", 0.3)


@pytest.fixture
def opened() -> Iterator[threading.Event]:
    """What hanging handlers wait for, in C: set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def sleep_for_ever() -> None:
    """Sleeps as a handler in Python does, which an asynchronous exception can end."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.01)


def failure(view: Admin, queue: str, id: str) -> tuple[State, str, str]:
    """The state of a message, and the class and text of its last error."""
    shown = view.show(queue, id)
    return shown.state, shown.history[-1].error_class, shown.history[-1].error


def test_a_plain_handler_is_stopped_at_its_limit_and_tried_again(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, timeout=LIMIT, retry=fixed(0))
    id = queue.send("x")
    attempts: list[int] = []

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            sleep_for_ever()

    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert attempts == [1, 2]
    assert (consumer.handled, consumer.failed, consumer.hung) == (1, 1, 0)
    lines = [line for line in view.journal(name, limit=100) if line.message_id == id]
    assert [line.error_class for line in lines if line.event is JournalEvent.NACKED] == ["TimeLimit"]


def test_a_coroutine_is_cancelled_at_its_limit(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    id = queue.send("x")
    cleaned: list[str] = []

    @queue.handler
    async def handle(message: LeasedMessage) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            cleaned.append("cleaned up")

    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert cleaned == ["cleaned up"]
    assert (consumer.failed, consumer.hung) == (1, 0)
    state, error_class, text = failure(view, name, id)
    assert (state, error_class) == (State.DEAD, "TimeLimit")
    assert "await asyncio.sleep(PATIENCE)" in text  # the place where it was stopped


def test_except_exception_does_not_keep_a_handler_alive(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    id = queue.send("x")

    @queue.handler
    def stubborn(message: LeasedMessage) -> None:
        while True:
            try:
                sleep_for_ever()
            except Exception:
                continue

    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert failure(view, name, id)[:2] == (State.DEAD, "TimeLimit")
    assert (consumer.failed, consumer.hung) == (1, 0)  # its thread has left the handler


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_handler_that_swallows_the_stop_has_failed_all_the_same(
    post: Client, view: Admin, name: str, asynchronous: bool
) -> None:
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    id = queue.send("x")

    def plain(message: LeasedMessage) -> None:
        try:
            sleep_for_ever()
        except BaseException:
            return

    async def coroutine(message: LeasedMessage) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except BaseException:
            return

    queue.handler(coroutine if asynchronous else plain)
    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert failure(view, name, id)[:2] == (State.DEAD, "TimeLimit")
    assert (consumer.handled, consumer.failed) == (0, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_soft_limit_lets_the_handler_end_by_itself(post: Client, view: Admin, name: str, asynchronous: bool) -> None:
    queue = post.queue(name, timeout=PATIENCE, soft_timeout=LIMIT)
    id = queue.send("x")
    left: list[float | None] = []

    def plain(message: LeasedMessage) -> None:
        try:
            sleep_for_ever()
        except restante.SoftTimeLimit:
            left.append(message.remaining)

    async def coroutine(message: LeasedMessage) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except restante.SoftTimeLimit:
            await asyncio.sleep(0)  # the task is not cancelled
            left.append(message.remaining)

    queue.handler(coroutine if asynchronous else plain)
    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert len(left) == 1
    assert left[0] is not None
    assert 0 < left[0] < PATIENCE
    assert events(view, name, id)[-1] == "acked"
    assert (consumer.handled, consumer.failed) == (1, 0)


def test_a_soft_limit_that_is_not_caught_fails_the_attempt(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, soft_timeout=LIMIT, max_attempts=1)
    id = queue.send("x")
    queue.handler(lambda message: sleep_for_ever())
    Consumer([queue], stop_when_empty=True).run()
    assert failure(view, name, id)[:2] == (State.DEAD, "SoftTimeLimit")


def test_the_limit_of_a_message_goes_before_that_of_its_handler_and_that_before_the_queue(
    post: Client, name: str
) -> None:
    queue = post.queue(name, timeout=300)
    seen: dict[str, float | None] = {}

    def handle(message: LeasedMessage) -> None:
        seen[message.payload] = message.remaining

    def limited(message: LeasedMessage) -> None:
        handle(message)

    limited.timeout = 200  # type: ignore[attr-defined]  # as a task sets it
    queue.handler(handle)
    queue.handler(kind="limited")(limited)
    queue.send("queue")
    queue.send("handler", kind="limited")
    queue.send("message", kind="limited", timeout=100)
    queue.send_many([restante.Draft("draft", timeout=50)])
    Consumer([queue], stop_when_empty=True).run()
    rounded = {name: None if left is None else -(-left // 50) * 50 for name, left in seen.items()}
    assert rounded == {"queue": 300, "handler": 200, "message": 100, "draft": 50}


def test_a_message_without_a_limit_has_no_time_remaining(post: Client, name: str) -> None:
    queue = post.queue(name)
    queue.send("x")
    seen: list[float | None] = []
    queue.handler(lambda message: seen.append(message.remaining))
    Consumer([queue], stop_when_empty=True).run()
    assert seen == [None]


@pytest.mark.parametrize("chunk", [1, 10])
def test_a_consumer_whose_handler_hangs_serves_the_others_and_says_so(
    post: Client,
    view: Admin,
    name: str,
    opened: threading.Event,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    """The others are those that its thread had taken with it, as it does of quick handlers, and those that follow."""
    monkeypatch.setattr(Prefetch, "room", 100)
    monkeypatch.setattr(Prefetch, "chunk", chunk)
    caplog.set_level(logging.INFO, "restante")
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    served: list[Any] = []

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        if message.payload == "hang":
            opened.wait(PATIENCE)
        served.append(message.payload)

    hanging = queue.send("hang", priority=9)
    queue.send_many(list(range(20)))
    consumer = Consumer([queue], concurrency=1)
    with serving(consumer):
        wait_until(lambda: len(served) == 20)
        assert consumer.hung == 1
        wait_until(lambda: view.show(name, hanging).state is State.DEAD)
        state, error_class, text = failure(view, name, hanging)
        assert (state, error_class) == (State.DEAD, "TimeLimit")
        assert "opened.wait(PATIENCE)" in text
        wait_until(lambda: [one.hung for one in view.consumers() if name in one.queues] == [1])
        assert f"hung queue={name} id={hanging}" in caplog.text
        opened.set()
        wait_until(lambda: consumer.hung == 0)
        queue.send("after")
        wait_until(lambda: "after" in served)
        wait_until(lambda: [one.hung for one in view.consumers() if name in one.queues] == [0])
    assert events(view, name, hanging).count("nacked") == 1
    assert consumer.failed == 1  # once, although the handler has ended since


def test_a_coroutine_that_blocks_the_event_loop_is_broken_off(
    post: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    served: list[Any] = []

    @queue.handler
    async def handle(message: LeasedMessage) -> None:
        if message.payload == "block":
            sleep_for_ever()
        served.append(message.payload)

    blocking = queue.send("block", priority=9)
    queue.send_many(list(range(5)))
    consumer = Consumer([queue], concurrency=2, stop_when_empty=True)
    consumer.run()
    assert failure(view, name, blocking)[:2] == (State.DEAD, "TimeLimit")
    assert "it blocks the event loop" in caplog.text
    assert consumer.hung == 0
    # Others that waited for the loop may have passed their limits with it; no message is in between.
    assert len(served) + view.counts(name).dead == 6


def test_a_coroutine_that_does_not_end_gives_its_place_away(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    go = threading.Event()
    served: list[Any] = []

    @queue.handler
    async def handle(message: LeasedMessage) -> None:
        while message.payload == "hang" and not go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        served.append(message.payload)

    hanging = queue.send("hang", priority=9)
    queue.send_many(list(range(5)))
    consumer = Consumer([queue], concurrency=1)
    with serving(consumer):
        wait_until(lambda: sorted(each for each in served if each != "hang") == list(range(5)))
        wait_until(lambda: view.show(name, hanging).state is State.DEAD)
        assert consumer.hung == 1
        go.set()
        wait_until(lambda: consumer.hung == 0)
    assert failure(view, name, hanging)[:2] == (State.DEAD, "TimeLimit")


def test_a_consumer_stops_though_a_handler_hangs(post: Client, view: Admin, name: str, opened: threading.Event) -> None:
    queue = post.queue(name, timeout=LIMIT, max_attempts=1)
    hanging = queue.send("hang")
    queue.handler(lambda message: opened.wait(PATIENCE))
    consumer = Consumer([queue], grace=PATIENCE)
    with serving(consumer) as running:
        wait_until(lambda: consumer.hung == 1)
        consumer.stop()
        running.join(PATIENCE / 2)
        assert not running.is_alive()
    assert view.show(name, hanging).state is State.DEAD


@pytest.mark.parametrize("error", [SystemExit("x"), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_that_ends_threads_fails_the_attempt_and_leaves_the_worker(
    post: Client, view: Admin, name: str, error: BaseException, asynchronous: bool
) -> None:
    queue = post.queue(name, max_attempts=1)
    served: list[Any] = []

    def plain(message: LeasedMessage) -> None:
        if message.payload == "raise":
            raise error
        served.append(message.payload)

    async def coroutine(message: LeasedMessage) -> None:
        plain(message)

    queue.handler(coroutine if asynchronous else plain)
    id = queue.send("raise", priority=9)
    queue.send("next")
    Consumer([queue], stop_when_empty=True).run()
    assert served == ["next"]
    assert failure(view, name, id)[:2] == (State.DEAD, type(error).__name__)


def test_handlers_that_end_while_they_are_stopped_disturb_no_other(
    post: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Handlers whose length is about their limit: the exception comes before, in and after the last line of each."""
    queue = post.queue(name, timeout=0.02, soft_timeout=0.018, max_attempts=1)
    queue.send_many(list(range(300)))
    dice = random.Random(5)

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        until = time.monotonic() + 0.016 + dice.random() * 0.006
        while time.monotonic() < until:
            pass

    consumer = Consumer([queue], concurrency=2, stop_when_empty=True)
    consumer.run()
    counts = view.counts(name)
    assert counts.waiting == counts.leased == 0
    assert consumer.handled + consumer.failed == 300
    assert counts.dead == consumer.failed
    assert "worker failed" not in caplog.text
    classes = {message.history[-1].error_class for message in view.walk(name, State.DEAD)}
    assert classes <= {"TimeLimit", "SoftTimeLimit"}


@pytest.mark.parametrize("limits", [20, pytest.param(100, marks=pytest.mark.chaos)])
def test_time_limits_under_load_lose_nothing(
    post: Client, view: Admin, name: str, limits: int, opened: threading.Event
) -> None:
    """Plain handlers that run on, that hang in C, and coroutines, among others that are quick."""
    queue = post.queue(name, timeout=0.5, retry=fixed(0), max_attempts=10, lease=2)
    runs: list[tuple[str, int]] = []
    ways = itertools.cycle(["run on", "hang", "coroutine", "swallow"])

    def handle(message: LeasedMessage) -> None:
        runs.append((message.id, message.attempts))
        if message.attempts > 1 or message.payload == "quick":
            return
        if message.payload == "hang":
            opened.wait(1.2)
        elif message.payload == "run on":
            sleep_for_ever()
        else:
            try:
                sleep_for_ever()
            except BaseException:
                return

    @queue.handler(kind="coroutine")
    async def coroutine(message: LeasedMessage) -> None:
        runs.append((message.id, message.attempts))
        if message.attempts == 1:
            await asyncio.sleep(PATIENCE)

    queue.handler(handle)
    slow = [queue.send(way, kind=way.replace(" ", "-")) for way in itertools.islice(ways, limits)]
    consumer = Consumer([queue], concurrency=8)
    sent = list(slow)
    with serving(consumer):
        while (view.counts(name).waiting or view.counts(name).leased) and len(sent) < 100_000:
            sent += queue.send_many(["quick"] * 20)
            time.sleep(0.02)
        wait_until(lambda: view.counts(name).waiting == view.counts(name).leased == 0)
        wait_until(lambda: consumer.hung == 0)
    nacked = [line for line in journal_lines(view, name) if line.event is JournalEvent.NACKED]
    limited = {line.message_id for line in nacked if line.error_class == "TimeLimit"}
    assert set(slow) <= limited
    verdict(
        "time limits",
        n=len(sent),
        lost=len(set(sent) - {id for id, _ in runs}) + lost_messages(view, name) + view.counts(name).dead,
        **history_faults(view, name, runs, excused=lambda received, expired: False),
        limits=len(nacked),
    )


def test_a_loop_that_passes_the_limit_fails_the_attempt_and_keeps_the_message_no_longer(
    post: Client, view: Admin, name: str, opened: threading.Event
) -> None:
    queue = post.queue(name, timeout=LIMIT, lease=KEPT_LEASE, max_attempts=1)
    slow = queue.send("slow")
    queue.send("next")
    seen: list[Any] = []
    for message in queue.consume(stop_when_empty=True):
        with message:
            if message.payload == "slow":
                assert message.remaining is not None
                wait_until(lambda: view.show(name, slow).state is State.DEAD)
            seen.append((message.payload, message.lease_lost, type(message.error)))
    assert seen == [("slow", True, TimeLimit), ("next", False, type(None))]
    assert failure(view, name, slow)[:2] == (State.DEAD, "TimeLimit")
    assert events(view, name, slow).count("acked") == 0


async def test_a_loop_on_asyncio_that_passes_the_limit_fails_the_attempt(
    server: RedisServer, view: Admin, name: str
) -> None:
    async with restante.aio.connect(server.url) as client:
        queue = client.queue(name, timeout=LIMIT, lease=KEPT_LEASE, max_attempts=1)
        slow = await queue.send("slow")
        async for message in queue.consume(stop_when_empty=True):
            async with message:
                await wait_until_async(lambda: view.show(name, slow).state is State.DEAD)
            assert isinstance(message.error, TimeLimit)


def test_a_timeout_stays_with_its_message_when_it_is_edited_and_moved(post: Client, view: Admin, name: str) -> None:
    queue: Queue = post.queue(name)
    id = queue.send("x", timeout=1.5, headers={"a": 1})
    view.edit(name, id, payload="y")
    assert view.show(name, id).timeout == 1.5
    assert view.move(name, f"{name}-moved", [id]) == 1
    message = post.queue(f"{name}-moved").receive()
    assert message is not None
    assert message.payload == "y"
    assert message.timeout == 1.5
    assert message.headers == {"a": 1}
    with pytest.raises(restante.InvalidInput, match="timeout"):
        queue.send("x", timeout=0)
    with pytest.raises(restante.InvalidInput, match="timeout"):
        queue.configure(timeout=-1)
